"""The busiest of some lanes beside the mean, where one key has a good part of the rows.

    python -m benchmarks.hot_keys [--rows 400000] [--lanes 8] [--epochs 6] [--shares 0.3 0.09 0.04]

All other keys are different ones.  CPU time of lane tasks, in one process without Spark, of each
lane the median over all epochs but the first; with hot keys split and not, in turns.  Keys of type
`text` are told apart by a hash table before they are sent, those of type `decimal` are not.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from benchmarks.lane_times import LaneTimes
from benchmarks.options import read_options
from benchmarks.took import NoSinks
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

from godwit.api.flow import LogicalFlow
from godwit.engine.settings import Lanes
from godwit.library import aggregates as gw

if TYPE_CHECKING:
    from godwit.engine.cluster import SourceBatch
    from godwit.engine.lane.messages import EpochInstruction, LaneReport

KEY_GROUPS, PARTITIONS = 256, 4
TYPES: dict[str, pa.DataType] = {"text": pa.string(), "decimal": pa.decimal128(19, 0)}


def keys_of(kind: str, numbers: np.ndarray[Any, Any]) -> pa.Array:
    """Keys of a type, from numbers."""
    if kind == "text":
        return pa.array([f"customer-{number:010d}" for number in numbers.tolist()])
    return pa.array(numbers).cast(TYPES[kind])


def batches(rng: np.random.Generator, kind: str, rows: int, share: float) -> list[pa.RecordBatch]:
    """Source partitions of an epoch."""
    made = []
    for _ in range(PARTITIONS):
        numbers = rng.integers(1, 10**9, rows // PARTITIONS)
        numbers[rng.random(len(numbers)) < share] = 0
        values = pa.array(rng.random(len(numbers)))
        made.append(pa.record_batch({"k": keys_of(kind, numbers), "v": values}))
    return made


class HotRun(NoSinks):
    """Lanes of one operator, and what each spends."""

    def __init__(self, root: Path, kind: str, lanes: int, hot_keys: float) -> None:
        flow = LogicalFlow("flow", KEY_GROUPS)
        frame: Any = FakeDataFrame(pa.schema({"k": TYPES[kind], "v": pa.float64()}))
        keyed = flow.source("rows", frame).key_by("k")
        sums = keyed.compute(n=gw.count(), total=gw.sum("v"), high=gw.max("v"))
        flow.sink("sums", sums, FakeSink())
        super().__init__(
            flow.compile(resolver(flow)), root, {"e": lanes}, settings=Lanes(hot_keys=hot_keys)
        )
        self.spent = LaneTimes(warm_up=1)

    def run_stages(
        self, instruction: EpochInstruction, batch: SourceBatch[Any] | None
    ) -> list[LaneReport]:
        """Run the stages, and take the CPU time of each lane."""
        self.reports = self.spent.run_stages(self.lane_flow, instruction, batch)
        return self.reports


def main() -> None:
    """Measure and print."""
    given = read_options(__doc__, rows=400_000, lanes=8, epochs=6, shares=[0.3, 0.09, 0.04])
    print("| keys | share of one | split | busiest / mean | lanes ms | source side ms |")
    print("|---|---|---|---|---|---|")
    for kind in TYPES:
        for share in given.shares:
            rng = np.random.default_rng(1)
            with tempfile.TemporaryDirectory() as directory:
                ways = {
                    way: HotRun(Path(directory) / way, kind, given.lanes, hot_keys)
                    for way, hot_keys in (("no", 0.0), ("yes", 0.1))
                }
                for _ in range(given.epochs):
                    rows = batches(rng, kind, given.rows, share)
                    for lanes in ways.values():
                        lanes.play({0: rows})
            for way, lanes in ways.items():
                of_lane = np.median(lanes.spent.epochs[1:], axis=0)
                print(
                    f"| {kind} | {share:.0%} | {way} | {of_lane.max() / of_lane.mean():.2f} "
                    f"| {of_lane.sum():.0f} | {lanes.spent.source_side_ms:.0f} |"
                )


if __name__ == "__main__":
    main()
