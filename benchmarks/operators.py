"""Speed of a lane's own work: hashing, grouping, aggregates, and Python per key.

Run with ``python -m benchmarks.operators [rows]``; prints the CPU time of the best of several
runs.
"""

from __future__ import annotations

import functools
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.library import aggregates as gw
from godwit.library.batch import BatchProcess
from godwit.library.compute import ComputeOperator
from godwit.library.process import ProcessOperator
from godwit.operators.declared import StateColumns
from godwit.operators.operator import STATE, KeyedOperator, OperatorInput
from godwit.store.changes import StateRows
from godwit.values.records import row_class

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from godwit.columns.groups import Groups
    from godwit.columns.python_values import KeyRows

NUM_KEY_GROUPS = 256
INPUTS = pa.schema({"v": pa.float64(), "i": pa.int64(), "s": pa.string()})


class Total(msgspec.Struct):
    """State of `add_up`."""

    count: int = 0
    total: float = 0.0


def add_up(key: tuple[str], rows: KeyRows, state: Total) -> None:  # noqa: ARG001 - the contract
    state.count += len(rows)
    state.total += sum(rows.column("v"))


class Row(msgspec.Struct):
    """A row of `INPUTS`."""

    v: float
    i: int
    s: str


@dataclass
class RowOfDataclass:
    """A row of `INPUTS`."""

    v: float
    i: int
    s: str


def walk(key: tuple[str], rows: KeyRows, state: Total) -> None:  # noqa: ARG001 - the contract
    for row in rows:
        state.count += 1
        state.total += row.v


def add_up_tables(rows: pa.Table, states: pa.Table, key_of_row: Any) -> Any:
    """Do what `add_up` does, for all keys at once."""
    size = states.num_rows
    counts = np.bincount(key_of_row, minlength=size)
    totals = np.bincount(key_of_row, rows["v"], minlength=size)
    columns = {
        "count": pc.add(states["count"], counts),
        "total": pc.add(states["total"], totals),
    }
    return None, pa.table(columns)


def best_of(function: Callable[[], Any], runs: int = 7) -> float:
    """CPU time of the shortest of several runs, in seconds: other programs do not count."""
    best = float("inf")
    for _ in range(runs):
        started = time.process_time()
        function()
        best = min(best, time.process_time() - started)
    return best


def show(what: str, rows: int, keys: int, seconds: float) -> None:
    print(
        f"{what:<44} {seconds * 1e3:>8.1f} ms {rows / seconds / 1e6:>8.2f} M rows/s "
        f"{keys / seconds / 1e3:>9.0f} k keys/s"
    )


class Prior:
    """State that is at hand: a `StateView` of it all, in the order of the keys."""

    def __init__(self, known: npt.NDArray[np.bool_], values: pa.RecordBatch) -> None:
        self._known, self._values = known, values

    def find(self, *_: object) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Find all of them."""
        return self._known, self._values

    def scan(self, entry_range: object = None) -> StateRows:
        """Nobody scans."""
        raise NotImplementedError(entry_range)

    def select(self, columns: object, part: object, choose: object) -> StateRows:
        """Nobody asks."""
        raise NotImplementedError(columns, part, choose)

    def min_after(self, column: int, after: int) -> int:
        """Nobody has timers."""
        raise NotImplementedError(column, after)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouped(OperatorInput):
    """Input whose groups are known, so that grouping is not measured again."""

    groups: Groups
    group_keys: pa.RecordBatch

    def grouped(self, num_hashed: int) -> tuple[Groups, pa.RecordBatch]:
        """Give them."""
        del num_hashed
        return self.groups, self.group_keys


class Sample:
    """Rows whose keys are drawn evenly from `pool`."""

    def __init__(self, rows: int, pool: int) -> None:
        rng = np.random.default_rng(1)
        ids = rng.integers(0, pool, rows)
        self.keys = pa.record_batch({"k": pa.array([f"key{i:08d}" for i in ids])})
        values = [rng.random(rows), rng.integers(0, 1000, rows)]
        text = pa.array([f"value {i % 100}" for i in ids])
        self.rows = pa.RecordBatch.from_arrays([*map(pa.array, values), text], schema=INPUTS)
        self.hashes = hash_keys(self.keys)
        self.groups = group_rows(self.hashes, self.keys, NUM_KEY_GROUPS)
        self.count = self.groups.count
        self.group_keys = self.keys.take(pa.array(self.groups.first_row))

    def input(self, prior: pa.RecordBatch, *, known: bool) -> OperatorInput:
        """Give the rows as a lane does."""
        return Grouped(
            groups=self.groups,
            group_keys=self.group_keys,
            rows=StateRows(hashes=self.hashes, keys=self.keys, values=self.rows),
            states={STATE: Prior(np.full(self.count, known), prior)},
            num_key_groups=NUM_KEY_GROUPS,
        )

    def show(self, what: str, function: Callable[[], Any]) -> None:
        """Time a function of these rows."""
        show(what, self.rows.num_rows, self.count, best_of(function))

    def show_process(self, what: str, operator: KeyedOperator) -> None:
        """Process once from nothing, then time it on keys that are all known."""
        fields = operator.schema.values
        nothing = pa.RecordBatch.from_arrays(
            [pa.nulls(self.count, field.type) for field in fields], schema=fields
        )
        rows, _ = operator.process(self.input(nothing, known=False)).changed[STATE]
        again = self.input(rows.values, known=True)
        self.show(what, lambda: operator.process(again))


def main(rows: int) -> None:
    sample = Sample(rows, rows)
    print(f"{rows:,} rows, {sample.count:,} keys of one string column")
    sample.show("hash_keys", lambda: hash_keys(sample.keys))
    sample.show("group_rows", lambda: group_rows(sample.hashes, sample.keys, NUM_KEY_GROUPS))
    aggregates: dict[str, dict[str, gw.Aggregate]] = {
        "count + sum": {"total": gw.sum("v"), "n": gw.count()},
        "sum of integers": {"r": gw.sum("i")},
        "mean": {"r": gw.mean("v")},
        "variance": {"r": gw.variance("v")},
        "max": {"r": gw.max("v")},
        "max of strings": {"r": gw.max("s")},
        "last": {"r": gw.last("v")},
        "approx_distinct": {"r": gw.approx_distinct("i")},
        "top_k(3)": {"r": gw.top_k("v", 3)},
        "collect_set of strings": {"r": gw.collect_set("s")},
    }
    for name, chosen in aggregates.items():
        operator = ComputeOperator(
            name="o", keys=sample.keys.schema, inputs=INPUTS, aggregates=chosen
        )
        sample.show_process(f"compute process: {name}", operator)
        if name == "count + sum":
            combine = functools.partial(
                operator.combine, sample.groups, sample.group_keys, sample.rows
            )
            sample.show("compute combine: count + sum", combine)
    for per_key in (50, 5, 1):
        cut = Sample(rows, rows // per_key)
        operator_of_user = ProcessOperator(
            name="o",
            keys=cut.keys.schema,
            inputs=INPUTS,
            function=add_up,
            state_type=Total,
            output=pa.schema({"n": pa.int64()}),
        )
        cut.show_process(f"function per key: about {per_key} rows a key", operator_of_user)
        for cls in (None, Row, RowOfDataclass):
            walking = ProcessOperator(
                name="o",
                keys=cut.keys.schema,
                inputs=INPUTS,
                function=walk,
                state_type=Total,
                output=pa.schema({"n": pa.int64()}),
                row_class=None if cls is None else row_class(cls, "The rows"),
            )
            of = "named tuples" if cls is None else cls.__name__
            cut.show_process(f"  row by row, {of}", walking)
        batches = BatchProcess(
            name="o",
            keys=cut.keys.schema,
            inputs=INPUTS,
            function=add_up_tables,
            state=StateColumns(
                columns=pa.schema({"count": pa.int64(), "total": pa.float64()}),
                defaults={"count": 0, "total": 0.0},
            ),
            output=pa.schema({"n": pa.int64()}),
        )
        cut.show_process("  process_batch", batches)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500_000)
