"""Native Spark and Godwit, in the environment of the project.

Variants of native Spark: ``memory`` and ``rocksdb`` (state of an aggregation), ``function``
(``transformWithState``, which takes RocksDB).  Of Godwit: ``own`` (its own source), ``adopted``
(the query of native Spark by `godwit.write_stream`), and the same with ``-function``.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.adopted import ROCKS
from benchmarks.peers.programs.job import PARALLELISM, Job
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

COLUMNS, RESULTS = "key string, v double", "key string, n long, s double"


class State(NamedTuple):
    """Number and sum of a key's rows."""

    n: int = 0
    s: float = 0.0


def session(*, rocksdb: bool) -> SparkSession:
    """Start Spark."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{PARALLELISM}]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": str(PARALLELISM),
    }
    if rocksdb:
        settings["spark.sql.streaming.stateStore.providerClass"] = ROCKS
        settings["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] = "true"
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def rows(spark: SparkSession, job: Job) -> DataFrame:
    """Read a file in every micro-batch."""
    reader = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    return reader.csv(str(job.input))


def aggregated(frame: DataFrame) -> DataFrame:
    """Count and add up by SQL."""
    return frame.groupBy("key").agg(sf.count("*").alias("n"), sf.sum("v").alias("s"))


def processed(frame: DataFrame) -> DataFrame:
    """Count and add up by a Python function with state."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Sums(StatefulProcessor):
        """Number and sum of the rows of a key."""

        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("sums", "n long, s double")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803
            n, s = self.state.get() or (0, 0.0)
            for row in rows:
                n, s = n + 1, s + row.v
            self.state.update((n, s))
            yield Row(key=key[0], n=n, s=s)

        def close(self) -> None:
            pass

    return frame.groupBy("key").transformWithState(Sums(), RESULTS, "Update", "None")


def process(key: Any, rows: Any, state: Any) -> Iterator[tuple[Any, ...]]:
    """Do as `processed`, as a function of Godwit's."""
    n, s = state.value
    for row in rows:
        n, s = n + 1, s + row.v
    state.value = State(n, s)
    yield key[0], n, s


def run_query(writer: Any, job: Job) -> None:
    """Run a query over a DataFrame to its end."""

    def collect(frame: DataFrame, _: int) -> None:
        job.write((row.key, row.n, row.s) for row in frame.collect())

    writer = writer.format("noop") if job.results is None else writer.foreachBatch(collect)
    writer = writer.outputMode("update").option("checkpointLocation", str(job.work / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def run_flow(job: Job, *, function: bool) -> None:
    """Run a flow over Godwit's own source to its end."""

    def collect(table: Any, _: int) -> None:
        job.write(zip(*(table.column(name).to_pylist() for name in ("key", "n", "s")), strict=True))

    flow = gw.Flow("sums")
    files = gw.sources.csv(job.input, schema=COLUMNS, header=False, max_files_per_epoch=1)
    keyed = flow.source("rows", files).key_by("key")
    results = (
        keyed.process(process, state=State, output=RESULTS)
        if function
        else keyed.compute(n=gw.count(), s=gw.sum("v"))
    )
    sink = gw.sinks.noop() if job.results is None else gw.sinks.foreach_table(collect)
    flow.sink("results", results, sink)
    query = flow.start(checkpoint=job.work / "checkpoint", trigger={"availableNow": True})
    query.awaitTermination()


def main() -> None:
    """Run the job that the command line names."""
    job = Job.of_command_line()
    function = job.variant.endswith("function")
    spark = session(rocksdb=job.variant in {"rocksdb", "function"})
    compute = processed if function else aggregated
    job.begin()
    if job.variant.startswith("own"):
        run_flow(job, function=function)
    else:
        query = compute(rows(spark, job))
        adopted = job.variant.startswith("adopted")
        run_query(gw.write_stream(query) if adopted else query.writeStream, job)
    job.end()


if __name__ == "__main__":
    main()
