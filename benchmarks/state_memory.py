"""Epochs over more state than the memory that it may take, with and without a bound.

A checkpoint gets millions of keys of an aggregate, one million in each epoch. Printed are seconds
of CPU in the median and the slowest of these epochs at several sizes, and of epochs of some touched
keys at the end. Then, in a new process for each bound, a run with two lanes takes epochs of touched
keys, drawn evenly from all keys, or (`--hot`) nine of ten from one percent of them. Printed are, of
the last half of the epochs, seconds of CPU of the process and seconds that passed in the median
epoch, and of all epochs the slowest; the largest size of the tables; and the largest memory of the
process: without mapped files, with mapped files, and its proportional share (PSS).

    python -m benchmarks.state_memory [--keys 2 20] [--bound none 1g] [--touched 100000]
        [--epochs 60] [--hot] [--width 0] [--limit MIB] [--directory DIRECTORY]

`--keys` is in millions. `--width`: bytes of a key that is a string; 0: keys are integers.
`--limit`: the process gets a memory control group of the kernel with this limit, with page cache
(as root, version 1 of control groups); the files of the checkpoint leave the page cache first, so
that the group is charged for them. A checkpoint in DIRECTORY is used again, also by
`benchmarks.restart`; it is written under the first bound that is not none, and those of smaller
sizes are kept beside it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.options import read_options, temporary_directory
from benchmarks.restart import LANES, MILLION, child, flow, rows_of
from benchmarks.took import NoSinks

from godwit.engine.lane.lane_flow import LaneInput
from godwit.engine.settings import Lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES = (1, 2, 10, 50, 100, 200)
"""Millions of keys at which epochs are compared."""
TOUCHED_EPOCHS = 8


def start(directory: Path, bound: str, width: int) -> NoSinks:
    """Start a run from the checkpoint."""
    settings = Lanes(
        local_dir=str(directory / "local"), state_memory=None if bound == "none" else bound
    )
    return NoSinks(flow(width), directory, LANES, settings=settings)


def fill(directory: Path, bound: str, millions: int, options: Any) -> None:
    """Write a checkpoint with some million keys, and print what its epochs take."""
    rng, run = np.random.default_rng(1), start(directory, bound, options.width)
    took = list[tuple[float, ...]]()
    for number in range(millions):
        took.append(timed(run, np.arange(number * MILLION, (number + 1) * MILLION), options.width))
        if number + 1 in (*SIZES, millions):
            report = {"new": in_short(took), **memory(), "tables_mib": table_bytes(directory) >> 20}
            took.clear()
            for _ in range(TOUCHED_EPOCHS):
                keys = drawn(rng, (number + 1) * MILLION, options.touched, hot=options.hot)
                took.append(timed(run, keys, options.width))
            report["touched"] = in_short(took)
            took.clear()
            print(f"{number + 1:>4} M keys written, {bound}: {json.dumps(report)}", flush=True)
            if options.directory and number + 1 < millions:
                smaller = directory.parent / str(number + 1) / "checkpoint"
                shutil.copytree(directory / "checkpoint", smaller, copy_function=os.link)


def timed(run: NoSinks, numbers: Any, width: int) -> tuple[float, ...]:
    """Run an epoch; return seconds of CPU, seconds that passed, and thousands of page faults."""
    rows = rows_of(numbers, width)[0]
    faults, cpu_s, at_s = page_faults(), time.process_time(), time.perf_counter()
    run.epoch({LaneInput(index=0): rows})
    took = time.process_time() - cpu_s, time.perf_counter() - at_s
    return *took, (page_faults() - faults) / 1000


def in_short(took: Sequence[tuple[float, ...]]) -> dict[str, Any]:
    """Return the median of the last epochs, and each maximum of all; see `timed`."""
    return {
        "median": np.round(np.median(took[-TOUCHED_EPOCHS:], axis=0), 3).tolist(),
        "slowest": np.round(np.max(took, axis=0), 2).tolist(),
        "epochs": len(took),
    }


def page_faults() -> int:
    """Return the page faults of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def memory() -> dict[str, int]:
    """Return the memory of this process, in MiB."""
    words = Path("/proc/self/smaps_rollup").read_text().split()
    status = Path("/proc/self/status").read_text().split()
    sizes = {"pss": words[words.index("Pss:") + 1]}
    for name, field in (("anonymous", "RssAnon:"), ("rss", "VmRSS:")):
        sizes[name] = status[status.index(field) + 1]
    return {f"{name}_mib": int(size) // 1024 for name, size in sizes.items()}


def drawn(rng: np.random.Generator, keys: int, touched: int, *, hot: bool) -> Any:
    """Return the touched keys of an epoch."""
    some = rng.integers(0, keys, touched)
    if hot:
        some[: touched * 9 // 10] //= 100
    return some


def measure(directory: Path, bound: str, millions: int, options: Any) -> dict[str, Any]:
    """Start again, and run some epochs; return what they took."""
    touched, epochs = options.touched, options.epochs
    if options.limit:
        forget_cached(directory)
        enter_control_group(options.limit)
    rng = np.random.default_rng(1)
    took: list[tuple[float, float]] = []
    peak = dict[str, int]()
    run, evicted, fetched, tables = None, 0, 0, 0
    for _ in range(epochs):
        numbers = drawn(rng, millions * MILLION, touched, hot=options.hot)
        rows = rows_of(numbers, options.width)[0]
        at_s, cpu_s = time.perf_counter(), time.process_time()
        run = run or start(directory, bound, options.width)
        outcome = run.epoch({LaneInput(index=0): rows})
        took.append((time.process_time() - cpu_s, time.perf_counter() - at_s))
        evicted += sum(outcome.evicted.values())
        fetched += outcome.fetched_keys
        tables = max(tables, table_bytes(directory))
        peak = {name: max(size, peak.get(name, 0)) for name, size in memory().items()}
    half = np.median(took[epochs // 2 :], axis=0)
    return {
        "first": np.round(took[0], 2).tolist(),
        "median": np.round(half, 3).tolist(),
        "mean": np.round(np.mean(took[epochs // 2 :], axis=0), 3).tolist(),
        "slowest_after": np.round(np.max(took[1:], axis=0), 2).tolist(),
        "all_cpu_s": round(float(np.sum(took, axis=0)[0]), 1),
        "unread_mib": outcome.unread_bytes >> 20,
        "evicted": evicted,
        "fetched": fetched,
        "tables_mib": tables >> 20,
        **peak,
    }


def table_bytes(directory: Path) -> int:
    """Return the bytes of the blocks of all tables."""
    return sum(512 * path.stat().st_blocks for path in (directory / "local").rglob("*.table"))


def forget_cached(directory: Path) -> None:
    """Drop the files of the checkpoint from the page cache."""
    for path in (directory / "checkpoint").rglob("*.*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def enter_control_group(limit_mib: int) -> None:
    """Limit the memory of this process, with the page cache of the files that it reads."""
    group = Path(f"/sys/fs/cgroup/memory/godwit-bench-{os.getpid()}")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(limit_mib << 20))
    (group / "cgroup.procs").write_text(str(os.getpid()))


def main() -> None:
    arguments = read_options(
        __doc__,
        keys=[2, 20],
        bound=["none", "1g"],
        touched=100_000,
        epochs=60,
        hot=False,
        width=0,
        limit=0,
        directory=str,
    )
    with temporary_directory() as temporary:
        for millions in arguments.keys:
            directory = Path(arguments.directory or temporary) / str(millions)
            if not directory.exists():
                bound = next((b for b in arguments.bound if b != "none"), "none")
                child(fill, directory, bound, millions, arguments)
            for bound in arguments.bound if arguments.epochs else ():
                shutil.rmtree(directory / "local", ignore_errors=True)
                took = child(measure, directory, bound, millions, arguments)
                print(f"{millions:>4} M keys, {bound:>5}: {json.dumps(took)}", flush=True)


if __name__ == "__main__":
    main()
