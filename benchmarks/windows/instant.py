"""Standstill of windows while key groups migrate: instantly, and by moving their state.

    python -m benchmarks.windows.instant [--keys 10000 100000] [--rows 2000]

All key groups of one of three executors go to another one, while a window is open that has a row
of every key.  The real conductor, lanes, stores and checkpoint in one process without Spark.  The
pause is what the three epochs after the switch take longer than as many times the median of five
before it, in CPU time; for either strategy from streams of its own, the median of several.  Three
epochs, since a slot that begins to take rows gets its table with the second of them.
"""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from benchmarks.options import read_options
from tests.contract.windows_apart import S, WindowsApart

from godwit.migration import Strategy

AT_ONCE = 1_000_000
EPOCHS_AFTER = 3


def batch(keys: np.ndarray[tuple[int], np.dtype[np.int64]], moment_us: int) -> pa.RecordBatch:
    """Rows of some keys at a moment."""
    names = pa.array(keys).cast(pa.string())
    times = pa.array(np.full(len(keys), moment_us), pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays(
        [names, times, pa.array(np.ones(len(keys), np.int64))], schema=WindowsApart.columns
    )


def pause_ms(
    directory: Path, strategy: Strategy, keys: int, rows: int, rounds: int = 3
) -> tuple[float, int]:
    """Pause of a migration, the median of several streams, and bytes of the state that moves."""
    found = [_pause_ms(directory / str(n), strategy, keys, rows) for n in range(rounds)]
    return median(pause for pause, _ in found), found[0][1]


def _pause_ms(directory: Path, strategy: Strategy, keys: int, rows: int) -> tuple[float, int]:
    """Pause of a migration in one stream, and bytes of the state that it is about."""
    run = WindowsApart(directory, share="always")
    run.start({"a": 1, "b": 1, "c": 1})
    every = np.random.default_rng(1).permutation(keys)
    for first in range(0, keys, AT_ONCE):
        run.take(batch(every[first : first + AT_ONCE], 1 * S))
    some = batch(every[: min(rows, keys)], 2 * S)

    def epoch() -> float:
        gc.collect()  # or it comes in some epoch, and takes longer than all else there
        cpu = time.process_time()
        run.take(some)
        return (time.process_time() - cpu) * 1e3

    usual = median([epoch() for _ in range(6)][1:])
    component = run.view.components["w"]
    moved = component.assignment.key_groups("a").tolist()
    (load,) = [load for name, load in run.outcomes[-1].loads.items() if name == "w"]
    sizes = dict(zip(load.key_groups.tolist(), load.state_bytes.tolist(), strict=True))
    migration = run.send("w", dict.fromkeys(moved, "b"), strategy)
    pause = sum(epoch() - usual for _ in range(EPOCHS_AFTER))
    ended = run.ended(migration)
    assert ended is not None
    assert ended.moved == len(moved)
    return max(pause, 0.0), sum(sizes.get(g, 0) for g in moved)


def main() -> None:
    """Measure and print."""
    given = read_options(__doc__, keys=[10_000, 100_000], rows=2_000)
    print("| keys | state that would move | instant, ms | disruptive, ms |")
    print("|---|---|---|---|")
    for keys in given.keys:
        found = {}
        for strategy in (Strategy.INSTANT, Strategy.DISRUPTIVE):
            with tempfile.TemporaryDirectory() as directory:
                found[strategy] = pause_ms(Path(directory), strategy, keys, given.rows)
        (instant, size), (disruptive, _) = found.values()
        print(f"| {keys:,} | {size / 2**20:.1f} MiB | {instant:.0f} | {disruptive:.0f} |")


if __name__ == "__main__":
    main()
