"""A join of two tables that change, by its changes, beside computing it again.

    python3 -m venv /tmp/godwit-rivals
    /tmp/godwit-rivals/bin/pip install pathway==0.33.0
    python -m benchmarks.joins.tables [--customers 1000000] [--orders 10000000]
        [--changes 10000] [--epochs 10] [--rivals /tmp/godwit-rivals/bin/python]

Each epoch updates rows, nine orders for each customer; an update is two changes.  A tenth of the
orders get another customer.  The result is the joined rows, ten for each customer.

Godwit and Pathway get the changes of an epoch, and what is timed is until their changes of the
result are there: Godwit in this process, as many lanes as cores one after the other, with its
checkpoint written to a temporary directory; Pathway from the commit of rows that it has, with its
default workers and no persistence, in a process of its own.  DuckDB has both tables in memory, and
joins them into a new table.  All take turns within one run.  The changes that Godwit and Pathway
emit add up to DuckDB's table after the last epoch.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Self

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.options import read_options

import godwit as gw

ORDERS = pa.schema(
    [("id", pa.int64()), ("customer", pa.int64()), ("amount", pa.int64()), ("change", pa.int8())]
)
CUSTOMERS = pa.schema([("customer", pa.int64()), ("city", pa.int64()), ("change", pa.int8())])
_LOAD = 500_000  # rows of an epoch that fills the tables


class Tables:
    """Both tables, and their changes."""

    def __init__(self, customers: int, orders: int) -> None:
        self.rng = np.random.default_rng(1)
        self.cities = self.rng.integers(0, 1000, customers)
        self.owners = self.rng.integers(0, customers, orders)
        self.amounts = self.rng.integers(0, 10**6, orders)

    def inserts(self) -> list[dict[str, pa.Table]]:
        """Return the epochs that fill both tables."""
        epochs = []
        for begin in range(0, len(self.cities), _LOAD):
            ids = np.arange(begin, min(begin + _LOAD, len(self.cities)))
            epochs.append({"customers": _table(CUSTOMERS, ids, self.cities[ids], 1)})
        for begin in range(0, len(self.owners), _LOAD):
            ids = np.arange(begin, min(begin + _LOAD, len(self.owners)))
            epochs.append({"orders": _table(ORDERS, ids, self.owners[ids], self.amounts[ids], 1)})
        return epochs

    def change(self, count: int) -> dict[str, pa.Table]:
        """Update rows, which are `count` changes; return those of both tables."""
        count //= 2
        ids = self.rng.choice(len(self.owners), count - count // 10, replace=False)
        former = _table(ORDERS, ids, self.owners[ids], self.amounts[ids], -1)
        self.amounts[ids] = self.rng.integers(0, 10**6, len(ids))
        moved = ids[: len(ids) // 10]
        self.owners[moved] = self.rng.integers(0, len(self.cities), len(moved))
        orders = [former, _table(ORDERS, ids, self.owners[ids], self.amounts[ids], 1)]
        names = self.rng.choice(len(self.cities), count // 10, replace=False)
        before = _table(CUSTOMERS, names, self.cities[names], -1)
        self.cities[names] = self.rng.integers(0, 1000, len(names))
        customers = [before, _table(CUSTOMERS, names, self.cities[names], 1)]
        return {"orders": pa.concat_tables(orders), "customers": pa.concat_tables(customers)}


def _table(schema: pa.Schema, *columns: Any) -> pa.Table:
    """Return a table; a single number is the value of all rows."""
    count = len(columns[0])
    arrays = [
        pa.array(np.full(count, column) if isinstance(column, int) else column, field.type)
        for field, column in zip(schema, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


class Godwit:
    """The join in this process."""

    def __init__(self, lanes: int) -> None:
        flow = gw.Flow("tables", num_key_groups=64)
        columns = "id long, customer long, amount long, change byte"
        orders = flow.source("orders", gw.testing.stream(columns)).as_changes()
        columns = "customer long, city long, change byte"
        customers = flow.source("customers", gw.testing.stream(columns)).as_changes()
        joined = orders.key_by("customer").join(customers.key_by("customer"), name="joined")
        flow.sink("out", joined, gw.sinks.noop())
        self._run = gw.testing.cluster(flow, executors={"e": lanes})

    def epoch(self, changes: dict[str, pa.Table]) -> tuple[float, pa.Table]:
        """Return the seconds that an epoch takes, and the changes of the result."""
        begin_s = time.perf_counter()
        out = self._run.epoch(changes)
        return time.perf_counter() - begin_s, out.get("out")


class DuckDB:
    """The join of whole tables."""

    def __init__(self) -> None:
        self._connection = duckdb.connect()

    def compute(self, tables: Tables) -> float:
        """Return the seconds that the join of both tables takes."""
        query = self._connection
        for name, columns in {
            "orders": {"customer": tables.owners, "amount": tables.amounts},
            "customers": {"city": tables.cities},
        }.items():
            rows = pa.table({"id": np.arange(len(next(iter(columns.values())))), **columns})
            query.register("given", rows)
            query.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM given")
            query.unregister("given")
        begin_s = time.perf_counter()
        query.execute(
            "CREATE OR REPLACE TABLE joined AS SELECT o.id, o.customer, o.amount, c.city "
            "FROM orders o JOIN customers c ON o.customer = c.id"
        )
        return time.perf_counter() - begin_s

    def checksum(self) -> tuple[int, int]:
        """Return the number of joined rows, and a sum over their columns."""
        row = self._connection.execute(
            "SELECT count(*), sum(id + 3 * customer + 7 * amount + 13 * city) FROM joined"
        ).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])


def checksum(rows: pa.Table) -> tuple[int, int]:
    """Return what `DuckDB.checksum` changes by, by changes of the result."""
    id_, customer, amount, city, sign = (
        rows.column(name).to_numpy() for name in ("id", "customer", "amount", "city", "change")
    )
    weights = id_ + 3 * customer + 7 * amount + 13 * city
    return int(sign.sum()), int((weights * sign).sum())


class Pathway:
    """The join by another engine, in a process that has it."""

    def __init__(self, python: str) -> None:
        self._directory = tempfile.TemporaryDirectory()
        program = Path(__file__).with_name("pathway_tables.py")
        self._process = subprocess.Popen(
            [python, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()

    def epoch(self, changes: dict[str, pa.Table], total: Any) -> float:
        """Return the seconds until the result has a total; at once if it is ``None``."""
        self._number += 1
        paths: dict[str, Any] = {"total": None if total is None else list(map(int, total))}
        for name, schema in (("orders", ORDERS), ("customers", CUSTOMERS)):
            rows = changes.get(name, schema.empty_table())
            paths[name] = f"{self._directory.name}/{self._number}-{name}.parquet"
            pq.write_table(rows, paths[name])
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(paths), file=self._process.stdin, flush=True)
        while line := self._process.stdout.readline():
            if line.startswith("TOOK "):
                return float(line.split()[1])
        raise RuntimeError("Pathway has ended")


def main() -> None:
    options = read_options(
        __doc__, customers=1_000_000, orders=10_000_000, changes=10_000, epochs=10, rivals=str
    )
    tables = Tables(options.customers, options.orders)
    godwit, whole = Godwit(os.cpu_count() or 1), DuckDB()
    begin_s = time.perf_counter()
    total = np.zeros(2, object)
    for epoch in tables.inserts():
        _, out = godwit.epoch(epoch)
        total += checksum(out) if out is not None else (0, 0)
    print(f"Godwit has both tables after {time.perf_counter() - begin_s:.0f} s", flush=True)
    took: dict[str, list[float]] = {"godwit": [], "duckdb": []}
    rival = Pathway(options.rivals) if options.rivals else None
    if rival is not None:
        begin_s = time.perf_counter()
        filling = Tables(options.customers, options.orders).inserts()
        for epoch in filling:
            rival.epoch(epoch, total if epoch is filling[-1] else None)
        print(f"Pathway has them after {time.perf_counter() - begin_s:.0f} s", flush=True)
        took["pathway"] = []
    for number in range(options.epochs + 2):
        changes = tables.change(options.changes)
        seconds, out = godwit.epoch(changes)
        total += checksum(out)
        figures = {"godwit": seconds, "duckdb": whole.compute(tables)}
        if rival is not None:
            figures["pathway"] = rival.epoch(changes, total)
        if number > 1:  # the first ones are for warmth
            for name, value in figures.items():
                took[name].append(value)
        shown = ", ".join(f"{name} {1e3 * value:,.0f} ms" for name, value in figures.items())
        print(f"  {out.num_rows:,} changes of the result: {shown}", flush=True)
    assert tuple(total) == whole.checksum(), "the changes add up to the joined table"
    if rival is not None:
        rival.__exit__()
    print(
        f"{options.customers:,} x {options.orders:,} live rows, {options.changes:,} changes an "
        f"epoch; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for name, values in took.items():
        ratio = median(values) / median(took["godwit"])
        print(f"{name:8} median {1e3 * median(values):9,.1f} ms, {ratio:6.1f}x Godwit's")


if __name__ == "__main__":
    main()
