"""Aggregates and joins over changes are what SQL computes on the live rows, after each epoch.

DuckDB is the oracle: it has the live rows of two drawn tables, and computes from scratch.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.support.rounds import rounds

import godwit as gw

ORDERS = pa.schema(
    [("id", pa.int64()), ("customer", pa.string()), ("amount", pa.int64()), ("note", pa.string())]
)
CUSTOMERS = pa.schema([("customer", pa.string()), ("city", pa.string()), ("rank", pa.int64())])
TABLES = {"orders": ORDERS, "customers": CUSTOMERS}
Row = tuple[Any, ...]
QUERIES = {
    "by_customer": "SELECT customer, count(*), sum(amount), min(amount), max(note), "
    "count(DISTINCT note), avg(amount), stddev_samp(amount), count(amount) FILTER (amount > 2), "
    "coalesce(list(DISTINCT note) FILTER (note IS NOT NULL), []) FROM orders GROUP BY customer",
    "joined": "SELECT customer, id, amount, note, city, rank FROM orders {how} JOIN customers "
    "USING (customer)",
    "by_city": "SELECT city, count(*), sum(amount), max(rank), count(DISTINCT id) FROM (SELECT * "
    "FROM orders {how} JOIN customers USING (customer)) GROUP BY city",
    "sizes": "SELECT n, count(*), max(total) FROM (SELECT count(*) AS n, sum(amount) AS total FROM "
    "orders GROUP BY customer) GROUP BY n",
    "notes": "SELECT DISTINCT note FROM orders",
}
SEEDS = range(rounds(4, 400))


class Table:
    """Live rows of a table, perhaps several times, and their changes."""

    def __init__(self, rng: random.Random, schema: pa.Schema) -> None:
        self.rng, self.schema, self.live = rng, schema, list[Row]()

    def draw(self) -> Row:
        choose = self.rng.choice
        if self.schema is CUSTOMERS:
            return (
                choose(["a", "b", "c", "d", None]),
                choose(["x", "y", None]),
                choose([1, 2, None]),
            )
        return (
            self.rng.randrange(30),
            choose(["a", "b", "c", "d", None]),
            choose([None, 1, 2, 3, -(2**40)]),
            choose([None, "", "n", "é"]),
        )

    def changes(self) -> list[Row]:
        """Change the table a few times; return the changes in any order."""
        changes = []
        for _ in range(self.rng.choice([0, 1, 4, 15])):
            if self.live and self.rng.random() < 0.45:
                row = self.live.pop(self.rng.randrange(len(self.live)))
                changes.append((*row, -1))
                if self.rng.random() < 0.5:
                    continue
            self.live.append(self.draw())
            changes.append((*self.live[-1], 1))
        self.rng.shuffle(changes)
        return changes


def _flow(how: Any) -> gw.Flow:
    flow = gw.Flow("sql", num_key_groups=8)
    columns = {
        "orders": "id long, customer string, amount long, note string, change byte",
        "customers": "customer string, city string, rank long, change byte",
    }
    orders, customers = (
        flow.source(name, gw.testing.stream(columns[name])).as_changes() for name in TABLES
    )
    by_customer = orders.key_by("customer").compute(
        n=gw.count(),
        total=gw.sum("amount"),
        least=gw.min("amount"),
        greatest=gw.max("note"),
        notes=gw.count_distinct("note"),
        mean=gw.mean("amount"),
        spread=gw.stddev("amount"),
        large=gw.count("amount", where="amount > 2"),
        listed=gw.collect_set("note"),
        output="changes",
        name="by_customer",
    )
    joined = orders.key_by("customer").join(customers.key_by("customer"), how=how, name="joined")
    by_city = joined.key_by("city").compute(
        n=gw.count(),
        total=gw.sum("amount"),
        best=gw.max("rank"),
        ids=gw.count_distinct("id"),
        output="changes",
        name="by_city",
    )
    sizes = by_customer.key_by("n").compute(
        keys=gw.count(), most=gw.max("total"), output="changes", name="sizes"
    )
    notes = orders.drop_duplicates("note", within="forever", name="notes")
    for name, stream in {
        "by_customer": by_customer,
        "joined": joined,
        "by_city": by_city,
        "sizes": sizes,
        "notes": notes,
    }.items():
        flow.sink(name, stream, gw.sinks.noop())
    return flow


def _plain(name: str, row: Row) -> Row:
    """Return a result row to compare: rounded, lists in order; of notes the key, which is first."""
    return tuple(
        tuple(sorted(value))
        if isinstance(value, list)
        else float(f"{value:.6g}")
        if isinstance(value, float)
        else value
        for value in (row[:1] if name == "notes" else row)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_results_are_those_of_sql_on_the_live_rows(seed: int) -> None:
    rng = random.Random(seed)
    how = ["inner", "left", "right", "full"][seed % 4]
    tables = {name: Table(rng, schema) for name, schema in TABLES.items()}
    results: dict[str, Counter[Row]] = {name: Counter() for name in QUERIES}
    database = duckdb.connect()
    with gw.testing.cluster(_flow(how), executors=2) as run:
        for _ in range(5):
            epoch = {name: rows for name, table in tables.items() if (rows := table.changes())}
            for sink, out in run.epoch(epoch).items() if epoch else ():
                netted: Counter[str] = Counter()
                for row in out.to_pylist():
                    sign = row.pop("change")
                    assert netted[str(row)] * sign >= 0, (sink, row)
                    netted[str(row)] += sign
                    results[sink][_plain(sink, tuple(row.values()))] += sign
            for name, table in tables.items():
                live = [dict(zip(table.schema.names, row, strict=True)) for row in table.live]
                database.register(name, pa.Table.from_pylist(live, schema=table.schema))
            for name, query in QUERIES.items():
                expected = database.execute(query.format(how=how)).fetchall()
                assert +results[name] == Counter(_plain(name, row) for row in expected), name
                assert min(results[name].values(), default=0) >= 0
            if rng.random() < 0.2:
                run.restart()
            elif rng.random() < 0.2:
                key_group, executor = rng.randrange(8), rng.choice(list(run.executors))
                run.migrate({key_group: executor}, component=rng.choice(["joined", "by_customer"]))
