"""Small epochs worked by lanes that stay, beside those for which every epoch starts a Spark job.

    python -m benchmarks.resident [--rounds 3] [--epochs 100] [--rows 1000] [--source own]

One session, in which queries with ``gw.Lanes(resident=False)``, ``"auto"`` and ``True`` take turns,
so that all meet the same machine.  Rows are of a source of Godwit's own, or, with
``--source frames``, of small files that Spark reads.  Printed are the median and the 99th
percentile of a whole epoch of Godwit's, of its stages (for frames they begin with Spark's job that
brings the rows), of the part of the stages that lanes and what starts them take, of the commit, and
of what lies between the ends of two epochs, which has what Spark or the loop of sources do about
them too.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.options import read_options, temporary_directory

import godwit as gw
from godwit.model.events import EpochCommitted, ResidentLanesStarted

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

Resident: TypeAlias = "bool | Literal['auto']"
WAYS: Final[tuple[Resident, ...]] = (False, "auto", True)
_SKIPPED = 10  # epochs at the beginning, in which lanes start and Python loads


def session(cores: int) -> SparkSession:
    """Make a plain session on this machine."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    made = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("godwit-resident")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.default.parallelism", str(cores - 1))  # as many lanes either way
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def own(rows: int, epochs: int) -> Any:
    """Rows of a source of Godwit's own, which the driver has."""
    rng = np.random.default_rng(7)
    table = pa.table(
        {
            "key": pa.array(rng.integers(0, 500, rows * epochs)),
            "value": pa.array(rng.integers(0, 1000, rows * epochs)),
        }
    )
    return gw.sources.memory(table.schema, table, max_rows_per_epoch=rows)


def frames(spark: SparkSession, directory: Path, rows: int, epochs: int) -> Any:
    """Rows of small Parquet files, which Spark reads."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(7)
    for epoch in range(epochs):
        table = pa.table(
            {
                "key": pa.array(rng.integers(0, 500, rows)),
                "value": pa.array(rng.integers(0, 1000, rows)),
            }
        )
        path = directory / f"{epoch:06d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_600_000_000 + epoch,) * 2)  # files are read in order of time
    frame = spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1)
    return frame.parquet(str(directory))


def query_of(
    spark: SparkSession, directory: Path, kind: str, *, rows: int, epochs: int, resident: Resident
) -> dict[str, list[float]]:
    """Run a query over so many small epochs; return the times of each, in milliseconds."""
    spark_cluster: Any = import_module("godwit.spark.cluster")
    stages, lanes_ms = spark_cluster.run_stages, []

    def timed(*args: Any, **options: Any) -> Any:
        began_s = time.perf_counter()
        reports = stages(*args, **options)
        lanes_ms.append((time.perf_counter() - began_s) * 1e3)
        return reports

    flow = gw.Flow("small")
    made = own(rows, epochs) if kind == "own" else frames(spark, directory / "in", rows, epochs)
    sums = flow.source("rows", made).key_by("key")
    flow.sink("sums", sums.compute(n=gw.count(), total=gw.sum("value")), gw.sinks.memory())
    spark_cluster.run_stages = timed
    try:
        query = flow.start(
            checkpoint=directory / "ck",
            trigger={"availableNow": True},
            lanes=gw.Lanes(resident=resident),
            session=spark if kind == "own" else None,
        )
        query.awaitTermination()
    finally:
        spark_cluster.run_stages = stages
    skipped = _SKIPPED
    if resident:  # as Spark jobs, until the lanes have started
        started = [e.epoch for e in query.events if isinstance(e, ResidentLanesStarted)]
        skipped = max(skipped, started[0] + 3) if started else epochs
        if query.status["residentEpochs"] < epochs - skipped or skipped > epochs - 10:
            msg = f"resident lanes have worked {query.status['residentEpochs']} of {epochs} epochs"
            raise RuntimeError(msg)
    took: dict[str, list[float]] = {"lanes": lanes_ms[skipped:]}
    ends_s = [e.at_s for e in query.events if isinstance(e, EpochCommitted)]
    took["period"] = (np.diff(ends_s) * 1e3).tolist()[skipped:]
    for phase in ("epoch", "plan", "stages", "commit", "deliver"):
        times = [entry["durationMs"][phase] for entry in query.recentProgress]
        took[phase] = times[skipped:]
    return took


def main() -> None:
    """Measure, in turns, and print."""
    options = read_options(
        __doc__, rounds=3, epochs=100, rows=1000, cores=3, source=("own", "frames")
    )
    spark = session(options.cores)
    took: dict[tuple[str, Resident], list[float]] = defaultdict(list)
    for turn in range(options.rounds + 1):
        for resident in WAYS:
            with temporary_directory() as directory:
                measured = query_of(
                    spark,
                    directory,
                    options.source,
                    rows=options.rows,
                    epochs=options.epochs,
                    resident=resident,
                )
            if turn:  # the first turn warms the JVM
                for phase, times in measured.items():
                    took[phase, resident].extend(times)
    names = " ".join(f"{way!s:>9s}" for way in WAYS)
    print(f"{'':8s} {'median, ms':>29s}  {'99th percentile, ms':>29s}")
    print(f"{'resident':8s} {names}  {names}")
    for phase in ("period", "epoch", "plan", "stages", "lanes", "commit", "deliver"):
        ways = [took[phase, way] for way in WAYS]
        medians = " ".join(f"{np.median(times):9.1f}" for times in ways)
        worst = " ".join(f"{np.percentile(times, 99):9.1f}" for times in ways)
        print(f"{phase:8s} {medians}  {worst}")
    spark.stop()


if __name__ == "__main__":
    main()
