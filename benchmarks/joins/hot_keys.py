"""A join with one hot key, on one lane and spread over several.

    python -m benchmarks.joins.hot_keys [--rows 60000] [--right 1000] [--lanes 4] [--share 0.5]
        [--epochs 10]

Real lanes, stores and commit records in one process, without Spark and an epoch at a time, lane
after lane: what is compared is CPU time.  Were lanes to run side by side, an epoch would take as
long as its busiest lane; so rows a second are those of an epoch by that.  An epoch is ten seconds
of event time, and pairs are at most 200 milliseconds apart.  Both ways run in turns, epoch by
epoch, and the median is of the epochs behind the first four, by when no former part holds rows any
more.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from benchmarks.lane_times import LaneTimes
from benchmarks.options import read_options
from tests.support.meeting_flows import TIME, Feed, MeetingRun, S

from godwit.checkpoint.records import Grid
from godwit.local import lane_inputs
from godwit.operators.hot_key_orders import parts_for
from godwit.operators.hot_keys import WHOLE, hash_undivided

COLUMNS = {"k": pa.int64(), "ts": TIME, "v": pa.float64()}
HOT = 0
WARM_UP = 4


def rows_of(rng: np.random.Generator, count: int, share: float, epoch: int) -> pa.Table:
    """Make rows of one side in an epoch: ten seconds, of which one key has a share."""
    keys = rng.integers(1, 10**6, count)
    keys[rng.random(count) < share] = HOT
    moments = np.sort(epoch * 10 * S + rng.integers(0, 10 * S, count))
    schema = pa.schema(COLUMNS)
    columns = [pa.array(keys), pa.array(moments, TIME), pa.array(rng.random(count))]
    return pa.Table.from_arrays(columns, schema=schema)


class Way(LaneTimes):
    """One way of running the join: its lanes' CPU time by epoch."""

    def __init__(self, root: Path, lanes: int, *, spread: bool) -> None:
        super().__init__(WARM_UP)
        feeds = {name: Feed(COLUMNS) for name in ("left", "right")}
        self.run = MeetingRun(
            lambda streams: (
                streams["left"]
                .key_by("k")
                .join(
                    streams["right"].key_by("k"),
                    between=("0 seconds", "200 milliseconds"),
                    suffix="_r",
                    spread=max(lanes, 2),
                )
            ),
            root,
            feeds,
            executors={"e": lanes},
            num_key_groups=256,
        )
        lanes_of = self.run.run
        timed = partial(self.run_stages, lanes_of.lane_flow)
        lanes_of.run_stages = timed  # type: ignore[method-assign]
        self.pairs = 0
        if spread:
            (orders,) = self.run.times.spreading.values()
            key_hash = int(hash_undivided(pa.record_batch({"k": [HOT]}))[0])
            assignment = self.run.run.assignment
            parts = parts_for(key_hash, lanes, taken=WHOLE, assignment=assignment, cpu_ms={})
            assert orders.order(key_hash, str(HOT), Grid(rows=lanes, columns=1, parts=parts))

    def epoch(self, **rows: pa.Table) -> None:
        """Run an epoch on rows of both sides, four source partitions each."""
        outcome = self.run.run.epoch(lane_inputs(self.run.compiled, rows, partitions=4))
        self.pairs += outcome.rows_out


def main() -> None:
    given = read_options(__doc__, rows=60_000, right=1_000, lanes=4, share=0.5, epochs=10)
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as directory:
        ways = {
            name: Way(Path(directory) / name, given.lanes, spread=name == "spread")
            for name in ("whole", "spread")
        }
        for epoch in range(given.epochs + WARM_UP):
            left = rows_of(rng, given.rows, given.share, epoch)
            right = rows_of(rng, given.right, given.share, epoch)
            for way in ways.values():
                way.epoch(left=left, right=right)
    assert len({way.pairs for way in ways.values()}) == 1, "pairs are the same either way"
    print(
        f"{given.rows:,} + {given.right:,} rows an epoch, {given.share:.0%} of one key, "
        f"{given.lanes} lanes; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for name, way in ways.items():
        rows_per_s = (given.rows + given.right) / way.busiest_ms * 1e3
        print(
            f"{name:8} busiest lane {way.busiest_ms:8.1f} ms, {way.busiest_ms / way.total_ms:5.1%} "
            f"of all lanes' {way.total_ms:8.1f} ms; source side "
            f"{way.source_side_ms:6.1f} ms; {rows_per_s:10,.0f} rows/s"
        )
    print(f"rows/s spread over whole: {ways['whole'].busiest_ms / ways['spread'].busiest_ms:.2f}")


if __name__ == "__main__":
    main()
