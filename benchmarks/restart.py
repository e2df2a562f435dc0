"""A restart with much state: time until the first epoch commits, and of the epochs after it.

A checkpoint gets millions of keys of an aggregate, one million in each epoch. Then a new run, in
a new process, takes epochs that touch some keys each. Printed are seconds of CPU of the process
and seconds that passed, for the start and the first epoch together and for the epochs after it,
and the memory of the process at the end, without mapped files. The runs with
`Lanes(restore="whole")` and "touched" start from the same checkpoint, one after the other.

    python -m benchmarks.restart [--keys 1 5] [--touched 100000] [--epochs 24] [--rounds 1]
        [--restore whole touched] [--width 0] [--directory DIRECTORY]

`--keys` is in millions. `--width`: bytes of a key that is a string; 0: keys are integers. A
checkpoint in DIRECTORY is used again.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from benchmarks.options import read_options, temporary_directory
from benchmarks.took import NoSinks
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

from godwit.api.flow import LogicalFlow
from godwit.engine.settings import Lanes
from godwit.library import aggregates as gw

if TYPE_CHECKING:
    from godwit.plan.compiled import CompiledFlow

MILLION = 1_000_000
LANES = {"e": 2}


def flow(width: int = 0) -> CompiledFlow:
    """Make a flow with an aggregate over keys; see `keys_of`."""
    logical = LogicalFlow("flow", 256)
    key_type = keys_of(np.arange(0), width).type
    frame: Any = FakeDataFrame(pa.schema({"k": key_type, "v": pa.int64()}))
    stream = logical.source("rows", frame).key_by("k")
    totals = stream.compute(name="totals", n=gw.count(), total=gw.sum("v"))
    logical.sink("out", totals, FakeSink())
    return logical.compile(resolver(logical))


def keys_of(numbers: np.ndarray[Any, Any], width: int) -> pa.Array:
    """Return numbers as keys: integers, or strings of `width` digits."""
    if not width:
        return pa.array(numbers)
    digits = np.empty((len(numbers), width), np.uint8)
    for place in reversed(range(width)):
        digits[:, place] = numbers % 10 + ord("0")
        numbers = numbers // 10
    ends = pa.py_buffer(np.arange(len(numbers) + 1, dtype=np.int32) * width)
    return pa.Array.from_buffers(pa.string(), len(numbers), [None, ends, pa.py_buffer(digits)])


def rows_of(numbers: np.ndarray[Any, Any], width: int = 0) -> dict[int, list[pa.RecordBatch]]:
    """One row for the key of each number, in two partitions."""
    parts = np.array_split(numbers, 2)
    return {0: [pa.record_batch({"k": keys_of(p, width), "v": pa.array(p % 97)}) for p in parts]}


def start(
    directory: Path, restore: Literal["touched", "whole"] = "touched", width: int = 0
) -> NoSinks:
    """Start a run from the checkpoint."""
    settings = Lanes(local_dir=str(directory / "local"), restore=restore)
    return NoSinks(flow(width), directory, LANES, settings=settings)


def fill(directory: Path, millions: int, width: int) -> None:
    """Write a checkpoint with some million keys."""
    run = start(directory, width=width)
    for number in range(millions):
        run.play(rows_of(np.arange(number * MILLION, (number + 1) * MILLION), width))


def restart(
    restore: Literal["touched", "whole"], directory: Path, millions: int, options: Any
) -> dict[str, Any]:
    """Start again, and run some epochs; return what they took."""
    rng, epochs = np.random.default_rng(1), options.epochs
    took: list[tuple[float, float]] = []
    run = None
    for _ in range(epochs):
        numbers = rng.integers(0, millions * MILLION, options.touched)
        rows = rows_of(numbers, options.width)
        at_s, cpu_s = time.perf_counter(), time.process_time()
        run = run or start(directory, restore, options.width)
        run.play(rows)
        took.append((time.perf_counter() - at_s, time.process_time() - cpu_s))
    status = Path("/proc/self/status").read_text().split()
    return {
        "first": took[0],
        "slowest_after": tuple(np.max(took[1:], axis=0)) if epochs > 1 else None,
        "median_at_end": tuple(np.median(took[-8:], axis=0)),
        "cpu_of_all": float(np.sum(took, axis=0)[1]),
        "anonymous_mib": int(status[status.index("RssAnon:") + 1]) // 1024,
    }


def child(work: Any, *arguments: Any) -> Any:
    """Do some work in a new process; return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def main() -> None:
    arguments = read_options(
        __doc__,
        keys=[1, 5],
        touched=100_000,
        epochs=24,
        rounds=1,
        restore=["whole", "touched"],
        width=0,
        directory=str,
    )
    with temporary_directory() as temporary:
        for millions in arguments.keys:
            directory = Path(arguments.directory or temporary) / str(millions)
            if not directory.exists():
                child(fill, directory, millions, arguments.width)
            for _ in range(arguments.rounds):
                for restore in arguments.restore:
                    shutil.rmtree(directory / "local", ignore_errors=True)
                    took = child(restart, restore, directory, millions, arguments)
                    print(f"{millions:>4} M keys, {restore:>7}: {json.dumps(took)}", flush=True)


if __name__ == "__main__":
    main()
