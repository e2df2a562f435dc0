"""The lines of a program after ``start()`` stay as they are: the handle answers as Spark's does."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import expr, timestamp_seconds, window
from pyspark.sql.streaming.query import StreamingQuery

import godwit as gw
from godwit.adopt.query import SparkQuery

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of four rows, of two keys."""
    (tmp_path / "in").mkdir()
    table = pa.table({"k": ["a", "b", "a", "a"], "n": pa.array([1, 2, 3, 4], pa.int64())})
    pq.write_table(table, tmp_path / "in/0.parquet")
    return spark.readStream.schema("k string, n bigint").parquet(str(tmp_path / "in"))


def _used(query: Any, spark: SparkSession) -> dict[str, Any]:
    """Use a query as programs do; return what does not differ between two queries."""
    query.processAllAvailable()
    latest, progress = query.lastProgress, query.recentProgress
    known = spark.streams.get(query.id)
    assert known is not None
    assert known.runId == query.runId
    assert query.id in [active.id for active in spark.streams.active]
    assert any(item == latest for item in progress)
    assert latest["runId"] == query.runId == str(latest.runId)
    assert latest.sources[0].numInputRows == latest["sources"][0]["numInputRows"]
    query.explain()
    query.explain(extended=True)
    answers = {
        "name": query.name,
        "active": query.isActive,
        "exception": query.exception(),
        "waited": query.awaitTermination(1),
        "status": sorted({"message", "isDataAvailable", "isTriggerActive"} & query.status.keys()),
        "progress": sorted(type(latest)(**dict.fromkeys(_FIELDS)).keys() & latest.keys()),
        "batch": latest.batchId,
        "name in it": latest["name"],
        "rows": latest.numInputRows,
        "files": latest.sources[0].description,
        "metrics": latest.observedMetrics,
        "durations": sorted(latest.durationMs),
        "states": len(latest.stateOperators),
        "updated": latest.stateOperators[0].numRowsUpdated,
    }
    latest["name"] = "another"  # Spark lets programs do that
    assert latest.name == "another"
    query.stop()
    query.stop()
    return answers | {"stopped": query.isActive, "end": query.awaitTermination()}


_DURATIONS = {
    *("addBatch", "commitOffsets", "getBatch", "latestOffset", "queryPlanning"),
    *("triggerExecution", "walCommit"),
}
_FIELDS = (
    *("id", "runId", "name", "timestamp", "batchId", "batchDuration", "durationMs", "eventTime"),
    *("stateOperators", "sources", "sink", "numInputRows", "inputRowsPerSecond"),
    *("processedRowsPerSecond", "observedMetrics"),
)


def test_the_handle_answers_as_sparks_does(spark: SparkSession, rows: DataFrame) -> None:
    theirs = {name for name in dir(StreamingQuery) if not name.startswith("_")}
    assert theirs <= set(dir(SparkQuery))
    counts = rows.groupBy("k").count()
    for name in (None, "counts"):
        started = []
        for plain in (counts.writeStream, gw.write_stream(counts)):
            writer = plain.outputMode("update").format("noop")
            query = writer.start() if name is None else writer.queryName(name).start()
            started.append(_used(query, spark))
        assert started[1] == started[0]
    assert len(started[0]["progress"]) == len(_FIELDS)


def test_the_progress_of_each_batch_is_that_of_spark(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in").mkdir()
    rows = spark.readStream.schema("at timestamp").option("maxFilesPerTrigger", 1)
    counts = (
        rows.parquet(str(tmp_path / "in"))
        .observe("rows", expr("count(*) AS n"), expr("max(struct(at)) AS last"))
        .withWatermark("at", "1 second")
        .groupBy(window("at", "10 seconds"))
        .count()
        .observe("after", expr("count(*) AS n"))
    )
    answers = []
    for start, name in ((counts.writeStream, "spark"), (gw.write_stream(counts), "ours")):
        writer = start.format("noop").option("checkpointLocation", str(tmp_path / name))
        found = []
        for seconds in (15, 42):  # the second one restarts the query
            at = pa.array([seconds * 10**6], pa.timestamp("us", "UTC"))
            pq.write_table(pa.table({"at": at}), tmp_path / f"in/{seconds}.parquet")
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            found += [
                (
                    batch.batchId,
                    batch.numInputRows,
                    batch.eventTime["watermark"],
                    [(s.numInputRows, json.loads(s.endOffset)) for s in batch.sources],
                    batch.observedMetrics.get("rows") if batch.numInputRows else None,
                    json.loads(batch.json)["eventTime"]["watermark"],
                )
                for batch in query.recentProgress
            ]
        (tmp_path / "in/15.parquet").unlink()
        (tmp_path / "in/42.parquet").unlink()
        answers.append(found)
    assert answers[1] == answers[0]
    assert len(answers[0]) == 4  # each run ends with a batch without rows
    assert "no metrics of observe('after')" in caplog.text


def test_a_failure_is_caught_as_sparks_and_as_ours(rows: DataFrame, tmp_path: Path) -> None:
    def fail(batch: Any, number: int) -> None:
        """Fail for every batch."""
        raise RuntimeError("no such table")

    for writer in (rows.writeStream, gw.write_stream(rows)):
        query = writer.foreachBatch(fail).trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException, match="no such table"):
            query.awaitTermination()
        error = query.exception()
        assert isinstance(error, StreamingQueryException)
        assert not query.isActive
    assert "FOREACH_BATCH_USER_FUNCTION_ERROR" in str(error)
    assert isinstance(error, gw.errors.UserFunctionError)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))


def test_a_checkpoint_is_chosen_as_spark_chooses_it(
    spark: SparkSession, rows: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    counts = rows.groupBy("k").count()
    query = gw.write_stream(counts).outputMode("complete").format("memory").queryName("brief")
    limit = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(limit, "-1")  # none, which PySpark itself does not take for local rows
    try:
        running = query.start()
        running.processAllAvailable()
    finally:
        spark.conf.unset(limit)
    assert list(temporary.glob("temporary-*"))
    running.stop()
    assert not list(temporary.glob("temporary-*"))
    assert sorted(map(tuple, spark.table("brief").collect())) == [("a", 3), ("b", 1)]

    with pytest.raises(gw.errors.UnsupportedQueryError, match="no checkpointLocation"):
        gw.write_stream(rows).format("parquet").start(str(tmp_path / "out"))
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "all"))
    try:
        writer = gw.write_stream(rows).queryName("named").trigger(availableNow=True)
        writer.start(str(tmp_path / "out")).awaitTermination()
        with pytest.raises(gw.errors.UnsupportedQueryError, match="rows of one run"):
            gw.write_stream(rows).format("memory").queryName("named").start()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert (tmp_path / "all" / "named").is_dir()


def test_other_stateful_operators_on_a_checkpoint_are_refused(
    rows: DataFrame, tmp_path: Path
) -> None:
    queries = {
        "none": rows.select("k", "n"),
        "counts": rows.groupBy("k").agg(expr("count_if(n > 1)")),
        "fewer": rows.groupBy("k").agg(expr("count_if(n < 1)")),
        "firsts": rows.dropDuplicates(["k"]).groupBy("k").count(),
        "sums": rows.groupBy("k").sum("n"),
        "others": rows.groupBy("n").agg(expr("count_if(n > 1)")),
        "once": rows.dropDuplicates(["k"]),
        "once a time": rows.withColumn("at", timestamp_seconds("n"))
        .withWatermark("at", "1 second")
        .dropDuplicatesWithinWatermark(["k"]),
    }
    refused = {
        ("none", "counts"): "stateful operators differ",
        ("counts", "none"): "stateful operators differ",
        ("counts", "firsts"): "stateful operators differ",
        ("counts", "sums"): "'sum_n' is new, 'count_if_n_[a-z0-9_]+' is gone",
        (
            "counts",
            "fewer",
        ): "'count_if_n_[a-z0-9_]+' is new, 'count_if_n_[a-z0-9_]+' is gone",
        ("counts", "others"): "keys was",
        ("once", "once a time"): "'drop_duplicates_within_watermark' is new",
    }

    def start(name: str, checkpoint: str) -> None:
        """Run a query to the end of its input."""
        writer = gw.write_stream(queries[name]).format("noop")
        writer = writer.outputMode(
            "append" if name in {"none", "once", "once a time"} else "update"
        )
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    for first in ("none", "counts", "once"):
        start(first, first)
    for (first, other), text in refused.items():
        with pytest.raises(gw.errors.CheckpointMismatchError, match=text) as caught:
            start(other, first)
        assert caught.value.remedy.startswith("Give a new checkpointLocation")
    for first in ("none", "counts"):
        start(first, first)


def test_columns_of_one_name_all_come_or_are_refused(rows: DataFrame, tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []

    def keep(batch: DataFrame, _: int) -> None:
        seen.extend(tuple(row) for row in batch.collect())

    twice = rows.select("n", (rows.n * 10).alias("n"))
    query = gw.write_stream(twice).foreachBatch(keep).start()
    query.processAllAvailable()
    query.stop()
    assert sorted(seen) == [(n, 10 * n) for n in (1, 2, 3, 4)]
    first = rows.dropDuplicates(["k"]).select("n", (rows.n * 10).alias("n"))
    writer = gw.write_stream(first).format("delta").option("path", str(tmp_path / "table"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(gw.errors.UnsupportedQueryError, match="several columns named 'n'"):
        writer.start()
