"""A map of which an epoch touches few items, beside one value that is a dict, without Spark.

    python -m benchmarks.named_states [--keys 4] [--items 10000] [--touched 10] [--epochs 20]

Both get the same rows, in turns, epoch by epoch, in one process with one lane each; CPU
milliseconds of lanes and bytes of changelog an epoch, of the second half.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from benchmarks.options import read_options
from benchmarks.took import timed_epoch
from tests.support.fake_flow import FakeDataFrame
from tests.support.timed_run import TimedRun

import godwit as gw
from godwit.api.flow import LogicalFlow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.took import Took

ROWS = pa.schema([("k", pa.string()), ("item", pa.int64()), ("n", pa.int64())])
OPTIONS: dict[str, dict[str, Any]] = {
    "a map": {"state": {"counts": gw.MapState(int, int)}},
    "a value that is a dict": {"state": {"counts": gw.ValueState(dict[int, int])}},
}


def count(_: Any, rows: Any, states: Any) -> None:
    """Count the rows of each item."""
    held = states.counts
    counts = held.value if hasattr(held, "value") else held
    for row in rows:
        counts[row.item] = counts.get(row.item, 0) + row.n


class Run(TimedRun):
    """One lane with one of the two states."""

    def __init__(self, root: Path, options: dict[str, Any]) -> None:
        flow = LogicalFlow("flow", 16)
        frame: Any = FakeDataFrame(ROWS)
        keyed = flow.source("rows", frame).key_by("k")
        counted = keyed.process(count, output="k string", name="counts", **options)
        super().__init__(flow, counted, root, executors={"a": 1})

    def changelog_bytes(self) -> int:
        """Bytes that the last epoch wrote of the state."""
        record = self.run.log.latest
        assert record is not None
        return sum(segment.block.length for segment in record.segments)

    def epoch(self, rows: pa.RecordBatch) -> Took:
        """Run an epoch."""
        wanted = list(self.compiled.inputs[0].columns)
        return timed_epoch(self.run, {0: [rows.select(wanted)]})


def batch(keys: int, items: Sequence[int]) -> pa.RecordBatch:
    """One row of every key and item."""
    names = [f"key-{key}" for key in range(keys) for _ in items]
    return pa.record_batch(
        [pa.array(names), pa.array(list(items) * keys), pa.array([1] * len(names))], schema=ROWS
    )


def main() -> None:
    given = read_options(__doc__, keys=4, items=10_000, touched=10, epochs=20)
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as root:
        runs = {name: Run(Path(root) / name, options) for name, options in OPTIONS.items()}
        took: dict[str, list[tuple[float, int]]] = {name: [] for name in runs}
        for run in runs.values():
            run.epoch(batch(given.keys, range(given.items)))
        for _ in range(given.epochs):
            some = rng.choice(given.items, given.touched, replace=False).tolist()
            for name, run in runs.items():
                spent = run.epoch(batch(given.keys, some))
                took[name].append((spent.lanes, run.changelog_bytes()))
    for name, of in took.items():
        steady = of[len(of) // 2 :]
        lanes, size = (median(column) for column in zip(*steady, strict=True))
        most = max(ms for ms, _ in steady)
        print(f"{name}: lanes {lanes:.1f} ms CPU (at most {most:.1f}), changelog {size:,.0f} bytes")


if __name__ == "__main__":
    main()
