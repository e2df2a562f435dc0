"""Standstill of windows while key groups migrate: instantly, and by moving their state.

    python -m benchmarks.windows.instant [--keys 10000 100000] [--rows 2000]

All key groups of one of three executors go to another one, while a window is open that has a row
of every key.  The real coordinator, lanes, stores and checkpoint in one process without Spark.  The
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
from typing import Any

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


class Stream:
    """Windows with a row of every key, of which some get another row in every epoch."""

    def __init__(self, directory: Path, keys: int, *, rows: int = 2_000, **options: Any) -> None:
        self.run = WindowsApart(directory, share="always", **options)
        self.run.start({"a": 1, "b": 1, "c": 1})
        self._keys = np.random.default_rng(1).permutation(keys)
        self._rows = rows
        self.fill(1)

    def fill(self, second: int) -> None:
        """Give every key a row."""
        for first in range(0, len(self._keys), AT_ONCE):
            self.run.take(batch(self._keys[first : first + AT_ONCE], second * S))

    def epoch_ms(self) -> float:
        """CPU milliseconds of an epoch."""
        some = batch(self._keys[: self._rows], 2 * S)
        gc.collect()  # or it comes in some epoch, and takes longer than all else there
        cpu = time.process_time()
        self.run.take(some)
        return (time.process_time() - cpu) * 1e3

    def usual_ms(self, epochs: int) -> float:
        """Median of some epochs in which nothing happens, after one that is not counted."""
        return median([self.epoch_ms() for _ in range(epochs + 1)][1:])

    def own_key_groups(self, component: str) -> list[int]:
        """Key groups of executor ``a``."""
        own: list[int] = self.run.view.components[component].assignment.key_groups("a").tolist()
        return own


def pause_ms(
    directory: Path, strategy: Strategy, keys: int, rows: int, rounds: int = 3
) -> tuple[float, int]:
    """Pause of a migration, the median of several streams, and bytes of the state that moves."""
    found = [_pause_ms(directory / str(n), strategy, keys, rows) for n in range(rounds)]
    return median(pause for pause, _ in found), found[0][1]


def _pause_ms(directory: Path, strategy: Strategy, keys: int, rows: int) -> tuple[float, int]:
    """Pause of a migration in one stream, and bytes of the state that it is about."""
    stream = Stream(directory, keys, rows=rows)
    run, usual, moved = stream.run, stream.usual_ms(5), stream.own_key_groups("w")
    (load,) = [load for name, load in run.outcomes[-1].loads.items() if name == "w"]
    sizes = dict(zip(load.key_groups.tolist(), load.state_bytes.tolist(), strict=True))
    migration = run.send("w", dict.fromkeys(moved, "b"), strategy)
    pause = sum(stream.epoch_ms() - usual for _ in range(EPOCHS_AFTER))
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
