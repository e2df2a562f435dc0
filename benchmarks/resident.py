"""Small epochs worked by lanes that stay, beside those for which every epoch starts a Spark job.

    python -m benchmarks.resident [--rounds 3] [--epochs 40] [--rows 1000] [--cores 3]

One session, in which queries with and without ``gw.Lanes(resident=True)`` take turns, so that both
meet the same machine.  Rows come as DataFrames of small files, read by Spark.  Printed are the
median and the 99th percentile of a whole epoch of Godwit's, of its stages (which begin with Spark's
job that brings the rows), of the part of the stages that lanes and what starts them take, and of
the commit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import godwit as gw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def query_of(
    spark: SparkSession, directory: Path, *, rows: int, epochs: int, resident: bool
) -> dict[str, list[float]]:
    """Run a query over so many small epochs; return the times of each, in milliseconds."""
    from godwit.cluster.spark.run import cluster as spark_cluster

    source = directory / "in"
    source.mkdir(parents=True)
    rng = np.random.default_rng(7)
    for epoch in range(epochs):
        table = pa.table(
            {
                "k": pa.array(rng.integers(0, 500, rows), pa.int32()),
                "x": pa.array(rng.random(rows)),
            }
        )
        path = source / f"{epoch:06d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_600_000_000 + epoch,) * 2)  # files are read in order of time
    stages, lanes_ms = spark_cluster.run_stages, []

    def timed(*args: Any) -> Any:
        began_s = time.perf_counter()
        reports = stages(*args)
        lanes_ms.append((time.perf_counter() - began_s) * 1e3)
        return reports

    frame = spark.readStream.schema("k int, x double").option("maxFilesPerTrigger", 1)
    flow = gw.Flow("small")
    sums = flow.source("rows", frame.parquet(str(source))).key_by("k")
    flow.sink("sums", sums.compute(n=gw.count(), total=gw.sum("x")), gw.sinks.memory())
    spark_cluster.run_stages = timed  # type: ignore[assignment]
    try:
        query = flow.start(
            checkpoint=directory / "ck",
            trigger={"availableNow": True},
            lanes=gw.Lanes(resident=resident),
        )
        query.awaitTermination()
    finally:
        spark_cluster.run_stages = stages
    worked = query.status["residentEpochs"]
    if resident and worked < epochs - _SKIPPED:
        msg = f"resident lanes have worked {worked} of {epochs} epochs"
        raise RuntimeError(msg)
    took: dict[str, list[float]] = {"lanes": lanes_ms[_SKIPPED:]}
    for phase in ("epoch", "stages", "commit"):
        times = [entry["durationMs"][phase] for entry in query.recentProgress]
        took[phase] = times[_SKIPPED:]
    return took


def main() -> None:
    """Measure, in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("rounds", 3), ("epochs", 40), ("rows", 1000), ("cores", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    spark = session(options.cores)
    took: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for turn in range(options.rounds + 1):
        for resident in (False, True):
            directory = Path(tempfile.mkdtemp(prefix="godwit-resident-"))
            try:
                measured = query_of(
                    spark, directory, rows=options.rows, epochs=options.epochs, resident=resident
                )
            finally:
                shutil.rmtree(directory, ignore_errors=True)
            if turn:  # the first turn warms the JVM
                for phase, times in measured.items():
                    took[phase, resident].extend(times)
    print(f"{'':8s} {'median, ms':>24s} {'99th percentile, ms':>26s}")
    print(f"{'':8s} {'ordinary':>12s} {'resident':>12s} {'ordinary':>13s} {'resident':>12s}")
    for phase in ("epoch", "stages", "lanes", "commit"):
        pair = took[phase, False], took[phase, True]
        medians = " ".join(f"{np.median(times):12.1f}" for times in pair)
        worst = " ".join(f"{np.percentile(times, 99):12.1f}" for times in pair)
        print(f"{phase:8s} {medians}  {worst}")
    spark.stop()


if __name__ == "__main__":
    main()
