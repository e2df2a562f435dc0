"""The program whose JVM writes an archive of Spark's classes: a little of everything.

    python -m godwit.cluster.spark.platform.class_training PATH

It runs a flow of Godwit's on one core, and a master and a worker beside it; its JVM then writes all
classes that it has loaded.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  as PySpark writes it

import godwit as gw
from godwit.cluster.spark.platform.class_archive import FRUGAL

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOST = "127.0.0.1"


def main(arguments: Sequence[str]) -> None:
    """Train, and have the archive written to the path that is given."""
    (path,) = arguments
    os.environ["SPARK_LOCAL_IP"] = _HOST
    with tempfile.TemporaryDirectory(prefix="godwit-classes-") as directory:
        session = _session(path, Path(directory))
        # What it writes it writes when it exits.
        gateway: Any = SparkContext._gateway  # noqa: SLF001  it is nowhere else
        _stream(session, Path(directory))
        _start_a_cluster(session)
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def _session(path: str, directory: Path) -> SparkSession:
    made: SparkSession = (
        SparkSession.builder.master("local[1]")
        .appName("godwit-classes")
        .config("spark.driver.host", _HOST)
        .config("spark.driver.bindAddress", _HOST)
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config(
            "spark.driver.extraJavaOptions",
            f"{FRUGAL} -XX:ArchiveClassesAtExit={path} -Xlog:disable",
        )
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def _stream(session: SparkSession, directory: Path) -> None:
    rows = session.range(1000).select((F.col("id") % 10).alias("key"), "id")
    rows.write.parquet(str(directory / "in"))
    flow = gw.Flow("training")
    read = session.readStream.schema("key long, id long").parquet(str(directory / "in"))
    sums = flow.source("rows", read).key_by("key").compute(total=gw.sum("id"))
    flow.sink("sums", sums, gw.sinks.parquet(str(directory / "out")))
    query = flow.start(checkpoint=str(directory / "checkpoint"))
    query.processAllAvailable()
    query.stop()
    session.read.parquet(str(directory / "out")).groupBy("key").count().collect()


def _start_a_cluster(session: SparkSession) -> None:
    jvm: Any = session._jvm  # noqa: SLF001  no other way to Spark's own classes
    settings = session.sparkContext._jsc.sc().conf()  # noqa: SLF001
    cluster = jvm.org.apache.spark.deploy.LocalSparkCluster.apply(1, 1, 512, settings)
    cluster.start()
    cluster.stop()
    jvm.java.lang.Class.forName("org.apache.spark.executor.CoarseGrainedExecutorBackend")


if __name__ == "__main__":
    main(sys.argv[1:])
