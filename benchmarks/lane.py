"""Cost of an epoch in lanes and on the driver by number of key groups, without Spark.

Two lanes take 20,000 rows an epoch over keys drawn evenly.  Figures are CPU milliseconds of steady
epochs (medians), so other programs on the machine disturb them little.

    python -m benchmarks.lane [--key-groups 256 4096 32768] [--rows 20000] [--keys 100000]
        [--operators 1] [--lanes 2] [--epochs 15] [--state aggregate|binary]
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from benchmarks.lane_times import in_parts
from benchmarks.options import read_options
from benchmarks.took import NoSinks, timed_epoch
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

from godwit.api.flow import LogicalFlow
from godwit.engine.settings import Lanes
from godwit.library import aggregates as gw

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from benchmarks.took import Took

    from godwit.plan.compiled import CompiledFlow

AGGREGATES: dict[str, dict[str, Any]] = {
    "aggregate": {"n": gw.count(), "total": gw.sum("v")},
    "binary": {"top": gw.top_k("v", 3)},
}


def flow_of(num_key_groups: int, operators: int, state: str) -> CompiledFlow:
    """Make a flow of some operators side by side over a string key."""
    flow = LogicalFlow("flow", num_key_groups)
    frame: Any = FakeDataFrame(pa.schema({"k": pa.string(), "v": pa.float64()}))
    keyed = flow.source("rows", frame).key_by("k")
    for index in range(operators):
        stream = keyed.compute(name=f"operator{index}", **AGGREGATES[state])
        flow.sink(f"sink{index}", stream, FakeSink())
    return flow.compile(resolver(flow))


def batches(rng: np.random.Generator, rows: int, keys: int) -> Sequence[pa.RecordBatch]:
    """Two source partitions."""
    parts = []
    for _ in range(2):
        chosen = rng.integers(0, keys, rows // 2)
        names = pa.array([f"customer-{key:08d}" for key in chosen.tolist()])
        parts.append(pa.record_batch({"k": names, "v": pa.array(rng.random(rows // 2))}))
    return parts


def measure(flow: CompiledFlow, arguments: argparse.Namespace) -> list[Took]:
    """Run epochs and return what the second half of them took."""
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as directory:
        settings = Lanes(
            inline_bytes=32 * 1024,
            snapshot_growth=1.0,
            snapshot_budget_bytes=max(arguments.snapshots, 1),
        )
        run = NoSinks(flow, Path(directory), {"e": arguments.lanes}, settings=settings)
        run.snapshots = None if arguments.snapshots else ()
        took = []
        for _ in range(arguments.epochs):
            rows = batches(rng, arguments.rows, arguments.keys)
            took.append(timed_epoch(run, dict.fromkeys(range(arguments.operators), rows)))
        return took[len(took) // 2 :]


def main() -> None:
    arguments = read_options(
        __doc__,
        key_groups=[256, 4096, 32768],
        rows=20_000,
        keys=100_000,
        operators=1,
        lanes=2,
        epochs=15,
        snapshots=0,
        state=tuple(AGGREGATES),
    )
    for num_key_groups in arguments.key_groups:
        took = measure(flow_of(num_key_groups, arguments.operators, arguments.state), arguments)
        print(f"{num_key_groups:>6} key groups:{in_parts(took)}")


if __name__ == "__main__":
    main()
