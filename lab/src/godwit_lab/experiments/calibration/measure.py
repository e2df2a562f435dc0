"""Real epochs: short streams on Spark, two executors of one core, in one session."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from godwit import Sizing
from godwit_lab.experiments.calibration.runs import EXECUTORS, RUNS, RealRun

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["measure"]

_EPOCHS, _SKIPPED, _ROUNDS = 11, 4, 2
_SCHEMA = "k long, v double"


@dataclass
class Count:
    """State of one key."""

    rows: int = 0


def count(key: tuple[int], rows: Any, state: Count) -> Iterator[tuple[int, int]]:
    """Do as little as a function with state can."""
    state.rows += len(rows)
    yield key[0], state.rows


def measure(result: Path, *, seed: int = 1) -> None:
    """Carry out all runs, in random orders after one to warm up, and keep what epochs took."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from benchmarks.streaming.programs import session

    spark, work = session(), Path(tempfile.mkdtemp(prefix="godwit-calibration-"))
    try:
        warm_up = RealRun(rows=50_000, keys=10_000, key_groups=128)
        _epochs(spark, warm_up, work, epochs=30)
        took: dict[RealRun, list[float]] = {run: [] for run in RUNS}
        for round_ in range(_ROUNDS):  # each in another order, so that no run meets one bad moment
            for run in random.Random(seed + round_).sample(RUNS, len(RUNS)):
                took[run] += _epochs(spark, run, work, epochs=_EPOCHS)
        warmings = _warmings(spark, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    result.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "taken": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "spark": spark.version,
        "runs": [{"run": at, "epoch_ms": took[run]} for at, run in enumerate(RUNS)],
        "warmings": warmings,
    }
    result.write_text(json.dumps(about, indent=1), "utf-8")


def _epochs(spark: Any, run: RealRun, work: Path, *, epochs: int) -> list[float]:
    source, checkpoint = work / "in", work / "checkpoint"
    _write(source, run, epochs)
    query = _flow(spark, source, run.key_groups).start(
        checkpoint=checkpoint,
        executors=2,
        sizing=Sizing(assignments={"counts": run.assignment()}),
    )
    query.processAllAvailable()
    query.stop()
    took = [
        p["durationMs"]["triggerExecution"]
        for p in query._driver.spark_query.recentProgress  # noqa: SLF001  the whole epoch, Spark's part too
        if p["numInputRows"]
    ]
    for used in (source, checkpoint):
        shutil.rmtree(used)
    return took[_SKIPPED:]


def _warmings(spark: Any, work: Path) -> list[dict[str, float]]:
    """Warm copies of different sizes: key groups move from one executor to the other."""
    import godwit as gw
    from godwit.model.events import KeyGroupsWarmed

    run = RealRun(rows=400_000, keys=1_000_000, key_groups=64, lopsided=1.0)
    source, checkpoint = work / "in", work / "checkpoint"
    _write(source, run, 6)
    query = _flow(spark, source, run.key_groups).start(
        checkpoint=checkpoint,
        executors=2,
        sizing=Sizing(assignments={"counts": run.assignment()}),
    )
    query.processAllAvailable()
    for first, number in ((0, 1), (1, 4), (5, 8), (13, 16), (29, 3), (32, 12)):
        plan = dict.fromkeys(range(first, first + number), EXECUTORS[1])
        query.migrate(plan, component="counts", bounds=gw.migration.Bounds(max_moves=64)).wait(60)
    query.stop()
    for used in (source, checkpoint):
        shutil.rmtree(used)
    return [
        {"state_bytes": event.state_bytes, "duration_ms": event.duration_ms}
        for event in query.events
        if isinstance(event, KeyGroupsWarmed)
    ]


def _flow(spark: Any, source: Path, key_groups: int) -> Any:
    import godwit as gw

    rows = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    flow = gw.Flow("calibration", num_key_groups=key_groups)
    counts = (
        flow.source("rows", rows)
        .key_by("k")
        .process(count, state=Count, output="k long, n long", name="counts")
    )
    flow.sink("nothing", counts, gw.sinks.noop())
    return flow


def _write(directory: Path, run: RealRun, epochs: int) -> None:
    directory.mkdir()
    rng = np.random.default_rng(7)
    weights = np.arange(1, run.keys + 1, dtype=np.float64) ** -run.zipf
    cumulative = np.cumsum(weights / weights.sum())
    for epoch in range(epochs):
        drawn = np.searchsorted(cumulative, rng.random(run.rows)).clip(max=run.keys - 1)
        table = pa.table({"k": drawn.astype(np.int64) * 7919, "v": rng.random(run.rows)})
        file = directory / f"{epoch:04d}.parquet"
        pq.write_table(table, file)
        os.utime(file, (1_600_000_000 + epoch, 1_600_000_000 + epoch))
