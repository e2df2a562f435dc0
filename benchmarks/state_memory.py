"""Epochs over more state than the memory that it may take, with and without a bound.

A checkpoint gets millions of keys of an aggregate, one million in each epoch. Then, in a new
process for each bound, a run with two lanes takes epochs of some touched keys, drawn evenly from
all keys, or (`--hot`) nine of ten from one percent of them. Printed are, of the last half of the
epochs, seconds of CPU of the process and seconds that passed in the median epoch, and of all
epochs the slowest; the largest size of the tables; and the largest memory of the process: without
mapped files, with mapped files, and its proportional share (PSS).

    python -m benchmarks.state_memory [--keys 2 20] [--bound none 1g] [--touched 100000]
        [--epochs 60] [--hot] [--limit MIB] [--directory DIRECTORY]

`--keys` is in millions. `--limit`: the process gets a memory control group of the kernel with this
limit, with page cache (as root, version 1 of control groups); the files of the checkpoint leave the
page cache first, so that the group is charged for them. A checkpoint in DIRECTORY is used
again; it is written under the first bound that is not none.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.options import read_options, temporary_directory
from benchmarks.restart import LANES, MILLION, child, flow, rows_of
from benchmarks.took import NoSinks

from godwit.engine.lane.lane_flow import LaneInput
from godwit.engine.settings import Lanes


def start(directory: Path, bound: str) -> NoSinks:
    """Start a run from the checkpoint."""
    settings = Lanes(
        local_dir=str(directory / "local"), state_memory=None if bound == "none" else bound
    )
    return NoSinks(flow(), directory, LANES, settings=settings)


def fill(directory: Path, bound: str, millions: int) -> dict[str, Any]:
    """Write a checkpoint with some million keys."""
    run, took, cpu_s = start(directory, bound), list[float](), time.process_time()
    for number in range(millions):
        run.play(rows_of(np.arange(number * MILLION, (number + 1) * MILLION)))
        took.append(time.process_time() - cpu_s)
        cpu_s = time.process_time()
    return {"median_cpu_s": float(np.median(took)), "slowest_cpu_s": max(took), **memory()}


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
    run, evicted, fetched, tables = start(directory, bound), 0, 0, 0
    at_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(epochs):
        keys = drawn(rng, millions * MILLION, touched, hot=options.hot)
        outcome = run.epoch({LaneInput(index=0): rows_of(keys)[0]})
        took.append((time.process_time() - cpu_s, time.perf_counter() - at_s))
        evicted += sum(outcome.evicted.values())
        fetched += outcome.fetched_keys
        tables = max(tables, table_bytes(directory))
        peak = {name: max(size, peak.get(name, 0)) for name, size in memory().items()}
        at_s, cpu_s = time.perf_counter(), time.process_time()
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
        limit=0,
        directory=str,
    )
    with temporary_directory() as temporary:
        for millions in arguments.keys:
            directory = Path(arguments.directory or temporary) / f"memory-{millions}"
            if not directory.exists():
                bound = next((b for b in arguments.bound if b != "none"), "none")
                filled = child(fill, directory, bound, millions)
                print(f"{millions:>4} M keys written, {bound}: {json.dumps(filled)}", flush=True)
            for bound in arguments.bound:
                took = child(measure, directory, bound, millions, arguments)
                print(f"{millions:>4} M keys, {bound:>5}: {json.dumps(took)}", flush=True)


if __name__ == "__main__":
    main()
