"""A driver that kills itself, and its JVM, at a chosen step of a chosen epoch.

Called with the path of a JSON file: ``directory`` (with ``in/`` and room for everything else),
``kill`` (step and epoch, or null), ``dsn`` (or null), ``resident`` (true if lanes stay), ``mixed``
(true if rows come from ``own/`` too).  It runs
the flow over everything there is and ends with status 0, unless it is killed, also by a lane that
finds its pid in ``acts/driver``.  The pids of resident lanes are in ``lanes``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chaos.flow import chaos_flow

import godwit as gw
from godwit.engine.loop import EpochLoop
from godwit.engine.outputs import StagedOutput
from godwit.ops.local_cluster import FRUGAL
from godwit.spark.resident.lanes import ResidentLanes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession


def session(directory: Path, *, cores: int = 2) -> SparkSession:
    """Start Spark with two lanes' cores and some, where a task that dies is tried again."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(f"local[{cores},4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", FRUGAL)
        .config("spark.python.daemon.module", "godwit.spark.platform.python_daemon")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )


def die(spark: SparkSession) -> None:
    """Let the JVM go first, so that nothing continues without its driver."""
    gateway: Any = spark.sparkContext._gateway
    os.kill(gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(spark: SparkSession, step: str, epoch: int) -> None:
    """Arrange for the death of this process."""

    def at_step(done: str, now: int) -> None:
        if (done, now) == (step, epoch):
            die(spark)

    def half(output: StagedOutput) -> Iterator[pa.RecordBatch]:
        for batch in everything(output):
            if output.epoch == epoch:
                yield batch.slice(0, (batch.num_rows + 1) // 2)
                die(spark)
            yield batch

    if step == "delivering":
        everything = StagedOutput.batches
        replace(StagedOutput, "batches", half)
    else:
        replace(EpochLoop, "at_step", staticmethod(at_step))


def replace(owner: type, name: str, value: Any) -> None:
    """Put something else in an attribute's place, for the rest of this process's life."""
    setattr(owner, name, value)


queries: list[gw.types.Query] = []


def note_lanes(directory: Path, _step: str, _epoch: int) -> None:
    """Write down the pids of the resident lanes there are, and how many epochs they have worked."""
    for query in queries:
        cluster: Any = query._run.cluster
        lanes = cluster.resident
        if lanes is not None and lanes.pids:
            (directory / "lanes").write_text(json.dumps(sorted({*lanes.pids.values()})))
            (directory / "worked").write_text(str(lanes.epochs))


def main(path: str) -> None:
    """Run."""
    config: dict[str, Any] = json.loads(Path(path).read_text())
    directory = Path(config["directory"])
    resident = config.get("resident", False)
    spark = session(directory, cores=3 if resident else 2)
    spark.sparkContext.setLogLevel("OFF")
    flow = chaos_flow(spark, directory, dsn=config["dsn"], mixed=config.get("mixed", False))
    if config["kill"] is not None:
        die_at(spark, *config["kill"])
    if resident:
        replace(ResidentLanes, "waits_s", 60.0)
        replace(EpochLoop, "at_step", staticmethod(partial(note_lanes, directory)))
    (directory / "acts/driver").write_text(str(os.getpid()))
    query: gw.types.Query = flow.start(
        checkpoint=directory / "ck",
        trigger={"availableNow": True},
        lanes=gw.Lanes(resident=resident),
    )
    queries.append(query)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
