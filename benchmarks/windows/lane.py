"""CPU milliseconds an epoch in lanes for windows, sessions and timers, without Spark.

    python -m benchmarks.windows.lane four|one|hopping|sessions|timers [--rows N] [--keys N]
        [--epochs N] [--profile]

Two lanes in one process; figures are medians of the second half, so other programs on the machine
disturb them little.
"""

from __future__ import annotations

import cProfile
import pstats
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from benchmarks.lane_times import in_parts
from benchmarks.options import read_options
from benchmarks.streaming.inputs import names_of
from benchmarks.took import timed_epoch
from benchmarks.windows.inputs import timed_batch
from benchmarks.windows.programs import FOUR, sessions, timers, windows
from tests.support.window_flows import WindowedRun

import godwit as gw

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from benchmarks.took import Took

COLUMNS = pa.schema({"key": pa.string(), "ts": pa.timestamp("us", tz="UTC"), "v": pa.float64()})
AFTER_ALL_US = 2_000_000_000_000_000  # a moment of the clock when no row is ahead of it

FLOWS: dict[str, Callable[[Any], Any]] = {
    "four": partial(windows, gw),
    "one": partial(windows, gw, lengths=FOUR[:1]),
    "hopping": lambda keyed: keyed.window(gw.hopping("20 minutes", every="5 minutes")).compute(
        n=gw.count(), s=gw.sum("v")
    ),
    "sessions": partial(sessions, gw),
    "timers": partial(timers, gw),
}


def windowed(
    flow: Callable[[Any], Any], root: str, *, num_key_groups: int
) -> tuple[WindowedRun, list[str]]:
    """Make a run of windows on two lanes, and say which columns of rows it takes."""
    run = WindowedRun(
        flow,
        Path(root),
        executors={"a": 2},
        num_key_groups=num_key_groups,
        columns=COLUMNS,
        key="key",
    )
    run.run.clock_us = AFTER_ALL_US
    return run, list(run.compiled.inputs[0].columns)


def measure(flow: str, given: argparse.Namespace) -> list[Took]:
    """Run epochs and return what each took."""
    rng, names = np.random.default_rng(1), names_of(np.arange(given.keys))
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as root:
        run, wanted = windowed(FLOWS[flow], root, num_key_groups=256)
        took = []
        for epoch in range(given.epochs):
            batch = timed_batch(rng, names, epoch, given.rows).select(wanted)
            half = given.rows // 2
            if given.profile and epoch >= given.epochs // 2:
                profile.enable()
            took.append(timed_epoch(run.run, {0: [batch[:half], batch[half:]]}))
            profile.disable()
    if given.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    return took


def main() -> None:
    given = read_options(
        __doc__, sorted(FLOWS), rows=1_000_000, keys=100_000, epochs=12, profile=False
    )
    for flow in given.row:
        took = measure(flow, given)[given.epochs // 2 :]
        print(f"{flow:>9}:{in_parts(took)}")


if __name__ == "__main__":
    main()
