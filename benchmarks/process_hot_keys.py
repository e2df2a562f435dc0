"""A function per key with one hot key: all its rows in one lane, and in parts by ``merge=``.

    python -m benchmarks.process_hot_keys [--rows 100000] [--lanes 8] [--share 0.5] [--epochs 10]

Real lanes, stores and commit records in one process, without Spark and an epoch at a time, lane
after lane: what is compared is CPU time.  Were lanes to run side by side, an epoch would take as
long as its busiest lane; so rows a second are those of an epoch by that.  Both ways run in turns,
epoch by epoch, and figures are medians.  At the end the key is gathered, and both ways have the
same states.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from benchmarks.lane_times import LaneTimes
from benchmarks.options import read_options
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

from godwit.api.flow import LogicalFlow
from godwit.checkpoint.entries import BatchCache
from godwit.checkpoint.records import Grid
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.settings import Lanes
from godwit.local import LocalRun, lane_inputs
from godwit.operators.declared import ValueState
from godwit.operators.hot_key_orders import parts_for
from godwit.operators.hot_keys import WHOLE, hash_undivided
from godwit.ops.state_view import view_state

if TYPE_CHECKING:
    from godwit.columns.python_values import KeyRows

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.float64()})
HOT = 0
WARM_UP = 2


def observe(_key: tuple[int], rows: KeyRows, state: dict[str, float]) -> None:
    """Count rows, and remember the highest of their values by its first digit."""
    for row in rows:
        digit = str(int(row.v * 10))
        state[digit] = max(state.get(digit, 0.0), row.v)
        state["rows"] = state.get("rows", 0) + 1


def merge(state: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Return what the states of two parts become."""
    rows = state.get("rows", 0) + other.get("rows", 0)
    return {k: max(state.get(k, 0), other.get(k, 0)) for k in {*state, *other}} | {"rows": rows}


class Way(LaneTimes):
    """One way of running the function: its lanes' CPU time by epoch."""

    def __init__(self, root: Path, lanes: int, *, spread: bool) -> None:
        super().__init__(WARM_UP)
        flow = LogicalFlow("flow", 256)
        frame: Any = FakeDataFrame(SCHEMA)
        seen = (
            flow.source("rows", frame)
            .key_by("k")
            .process(observe, state=ValueState(dict, merge=merge), output="k bigint", name="p")
        )
        flow.sink("out", seen, FakeSink())
        self.storage = CheckpointStorage.open(str(root / "checkpoint"))
        self.run = LocalRun(
            flow.compile(resolver(flow)),
            self.storage,
            executors={f"e{lane}": 1 for lane in range(lanes)},
            settings=Lanes(local_dir=str(root / "local")),
        )
        (self.hash,) = hash_undivided(pa.record_batch({"k": [HOT]})).tolist()
        if spread:
            assignment = self.run.view.components["p"].assignment
            parts = parts_for(
                self.hash,
                lanes,
                taken=WHOLE,
                assignment=assignment,
                cpu_ms={},
                hashes_whole=False,
            )
            self.order(Grid(rows=lanes, columns=1, parts=parts))

    def order(self, grid: Grid) -> None:
        """Divide the hot key from the next epoch on, or gather it."""
        assert self.run.epochs.times.spreading["p"].order(self.hash, f"[{HOT}]", grid)

    def epoch(self, rows: pa.Table) -> None:
        """Run an epoch; four source partitions."""
        given = lane_inputs(self.run.flow, {"rows": rows}, partitions=4)
        outcome = self.run.epoch(given)
        self.epochs.append(list(outcome.executor_cpu_ms.values()))

    @property
    def states(self) -> dict[int, dict[str, float]]:
        """Key → its state; every key has one."""
        view = view_state(self.storage, "p", None, None)
        cache = BatchCache(self.storage)
        rows = [row for c in view.chains for row in view.read(c, cache).to_pylist()]
        assert {row["part"] for row in rows} == {None}
        return {row["k"]: json.loads(row["state"]) for row in rows}


def main() -> None:
    given = read_options(__doc__, rows=100_000, lanes=8, share=0.5, epochs=10)
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as directory:
        ways = {
            name: Way(Path(directory) / name, given.lanes, spread=name == "parts")
            for name in ("whole", "parts")
        }
        for _ in range(given.epochs + WARM_UP):
            keys = rng.integers(1, 2_000, given.rows)
            keys[rng.random(given.rows) < given.share] = HOT
            rows = pa.Table.from_arrays(
                [pa.array(keys), pa.array(rng.random(given.rows))], schema=SCHEMA
            )
            for way in ways.values():
                way.epoch(rows)
        busiest = {name: (way.busiest_ms, way.total_ms) for name, way in ways.items()}
        ways["parts"].order(WHOLE)
        for way in ways.values():
            way.epoch(rows)
        assert ways["whole"].states == ways["parts"].states, "states are the same either way"
        gathering_ms = sum(ways["parts"].epochs[-1]) - sum(ways["whole"].epochs[-1])
    print(
        f"{given.rows:,} rows an epoch, {given.share:.0%} of one key, {given.lanes} lanes; "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for name, (most, total) in busiest.items():
        print(
            f"{name:6} busiest lane {most:8.1f} ms, {most / total:5.1%} of all lanes' "
            f"{total:8.1f} ms, {most / (total / given.lanes):.2f} times their mean; "
            f"{given.rows / most * 1e3:10,.0f} rows/s"
        )
    print(f"rows/s in parts over whole: {busiest['whole'][0] / busiest['parts'][0]:.2f}")
    print(f"the epoch that gathers: {gathering_ms:+.1f} ms of all lanes")


if __name__ == "__main__":
    main()
