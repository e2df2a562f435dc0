"""Archive of Spark's classes (class data sharing), with which JVMs of demo and tests start sooner.

    JDK_JAVA_OPTIONS=$(python tests/support/class_archive.py)

Each JVM reads, checks and links some 15,000 classes out of Spark's jars, and a local cluster starts
several.  Unless there is an archive already, the program runs a little of everything on one JVM,
which writes the classes that it has loaded when it exits.  It prints the options by which a JVM
maps the archive; `spare_jvms` has every JVM that is started from here do so.

The file's name tells which Java and which jars it was made of, and Java itself looks once more.
None of these JVMs, executors of a cluster included, has time for the best compiler either.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from godwit.ops.local_cluster import FRUGAL

_HOST = "127.0.0.1"


def archive_path() -> Path | None:
    """Return where the archive for this Java and this Spark is, or would be."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin/java" if home else Path(shutil.which("java") or "/no/java")
    if not java.exists():
        return None
    java = java.resolve().parents[1]
    made_of = hashlib.sha256(os.fsencode(java))
    pyspark = find_spec("pyspark")  # not imported: the demo waits for this
    assert pyspark is not None
    assert pyspark.origin is not None
    for file in (java / "release", *sorted(Path(pyspark.origin).parent.glob("jars/*.jar"))):
        if file.exists():
            state = file.stat()
            made_of.update(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    name = f"spark-classes-{made_of.hexdigest()[:16]}.jsa"
    return Path(sys.prefix) / "share" / "godwit" / name


def java_options() -> str:
    """Return options of JVMs that are frugal, and use the archive if there is one."""
    path = archive_path()
    if path is None or not path.exists() or any(c.isspace() for c in str(path)):
        return FRUGAL
    return f"{FRUGAL} -XX:SharedArchiveFile={path} -Xlog:cds*=off"


def spare_jvms() -> None:
    """Have the JVMs that this process and its children start be frugal, and use the archive."""
    os.environ.setdefault("JDK_JAVA_OPTIONS", java_options())


def _write(path: Path) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812  as PySpark writes it

    import godwit as gw

    os.environ["SPARK_LOCAL_IP"] = _HOST
    path.parent.mkdir(parents=True, exist_ok=True)
    # Within the directory of the archive, so that it can be moved there, and goes if this fails.
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=path.parent) as directory:
        unfinished = Path(directory) / path.name
        session: SparkSession = (
            SparkSession.builder.master("local[1]")
            .config("spark.driver.host", _HOST)
            .config("spark.driver.bindAddress", _HOST)
            .config("spark.driver.memory", "1g")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
            .config(
                "spark.driver.extraJavaOptions",
                f"{FRUGAL} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable",
            )
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        gateway: Any = SparkContext._gateway
        rows = session.range(1000).select((F.col("id") % 10).alias("key"), "id")
        rows.write.parquet(f"{directory}/in")
        flow = gw.Flow("training")
        read = session.readStream.schema("key long, id long").parquet(f"{directory}/in")
        sums = flow.source("rows", read).key_by("key").compute(total=gw.sum("id"))
        flow.sink("sums", sums, gw.sinks.parquet(f"{directory}/out"))
        query = flow.start(checkpoint=f"{directory}/checkpoint")
        query.processAllAvailable()
        query.stop()
        session.read.parquet(f"{directory}/out").groupBy("key").count().collect()
        jvm: Any = session._jvm
        settings = session.sparkContext._jsc.sc().conf()
        cluster = jvm.org.apache.spark.deploy.LocalSparkCluster.apply(1, 1, 512, settings)
        cluster.start()
        cluster.stop()
        jvm.java.lang.Class.forName("org.apache.spark.executor.CoarseGrainedExecutorBackend")
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()  # it writes the archive when it exits
        unfinished.replace(path)


if __name__ == "__main__":
    to = archive_path()
    if to is not None and not to.exists():
        print("Archiving Spark's classes, once; this takes about half a minute.", file=sys.stderr)  # noqa: T201
        with contextlib.redirect_stdout(sys.stderr):
            _write(to)
    print(java_options())  # noqa: T201
