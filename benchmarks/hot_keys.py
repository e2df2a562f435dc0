"""The busiest of some lanes beside the mean, where one key has a good part of the rows.

    python -m benchmarks.hot_keys [--rows 400000] [--lanes 8] [--epochs 6] [--shares 0.3 0.09 0.04]

All other keys are different ones.  CPU time of lane tasks, in one process without Spark, of each
lane the median over all epochs but the first; with hot keys split and not, in turns.  Keys of type
`text` are told apart by a hash table before they are sent, those of type `decimal` are not.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from benchmarks.lane_times import LaneTimes
from benchmarks.options import read_options
from tests.oracles.one_process import OneProcess, lane_operator

from godwit.engine.lane.lane_flow import LaneFlow, shipments
from godwit.engine.lane.wire import ship
from godwit.operators import aggregates as gw
from godwit.operators.compute import ComputeOperator

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


class Lanes(LaneTimes):
    """Lanes of one operator, and what each spends."""

    def __init__(self, root: Path, kind: str, lanes: int, hot_keys: float) -> None:
        super().__init__(warm_up=1)
        operator = ComputeOperator(
            name="sums",
            keys=pa.schema({"k": TYPES[kind]}),
            inputs=pa.schema({"v": pa.float64()}),
            aggregates={"n": gw.count(), "total": gw.sum("v"), "high": gw.max("v")},
        )
        self.flow = LaneFlow(num_key_groups=KEY_GROUPS, operators=(lane_operator(operator),))
        self.run = OneProcess(self.flow, root, {"e": lanes}, hot_keys=hot_keys)

    def epoch(self, rows: list[pa.RecordBatch]) -> None:
        """Run an epoch."""
        told = pickle.loads(pickle.dumps(self.run.instruction()))
        boxes: list[list[bytes]] = [[] for _ in told.places]
        cpu = time.process_time()
        for partition, batch in enumerate(rows):
            for place, payload in ship(shipments(self.flow, told)[0], batch, (0, partition, 0)):
                boxes[place].append(payload)
        self.source_ms.append((time.process_time() - cpu) * 1e3)
        self.run.commit(told.epoch, self.run_lanes(self.flow, told, boxes))


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
                    way: Lanes(Path(directory) / way, kind, given.lanes, hot_keys)
                    for way, hot_keys in (("no", 0.0), ("yes", 0.1))
                }
                for _ in range(given.epochs):
                    rows = batches(rng, kind, given.rows, share)
                    for lanes in ways.values():
                        lanes.epoch(rows)
            for way, lanes in ways.items():
                of_lane = np.median(lanes.epochs[1:], axis=0)
                print(
                    f"| {kind} | {share:.0%} | {way} | {of_lane.max() / of_lane.mean():.2f} "
                    f"| {of_lane.sum():.0f} | {lanes.source_side_ms:.0f} |"
                )


if __name__ == "__main__":
    main()
