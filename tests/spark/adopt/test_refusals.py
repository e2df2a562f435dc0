"""What Spark refuses before a query runs is refused with the class and condition of its error."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def _late(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("timestamp", "1 minute")


def _twice(rows: DataFrame) -> DataFrame:
    window = sf.window("timestamp", "1 minute")
    return _late(rows).groupBy(window).count().groupBy("count").agg(sf.max("window"))


def _outer(rows: DataFrame) -> DataFrame:
    return rows.join(rows.select("value", sf.col("timestamp").alias("t")), "value", "left")


def _session(rows: DataFrame) -> DataFrame:
    return _late(rows).groupBy(sf.session_window("timestamp", "1 minute")).count()


_QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "an aggregate that never ends": (lambda rows: rows.groupBy("value").count(), "append"),
    "rows in complete mode": (lambda rows: rows, "complete"),
    "sorted rows": (lambda rows: rows.orderBy("value"), "append"),
    "a limit in update mode": (lambda rows: rows.limit(3), "update"),
    "an outer join that never ends": (_outer, "append"),
    "an aggregate of an aggregate in update mode": (_twice, "update"),
    "sessions in update mode": (_session, "update"),
    "duplicates without a time": (
        lambda rows: rows.dropDuplicatesWithinWatermark(["value"]),
        "append",
    ),
    "the rank of a row": (
        lambda rows: rows.selectExpr("rank() OVER (ORDER BY value) AS r"),
        "append",
    ),
    "rows without those of a stream": (lambda rows: rows.exceptAll(rows), "append"),
}
_SETTINGS: dict[str, Callable[[Any, str], object]] = {
    "a mode that does not exist": lambda writer, _: writer.outputMode("apend"),
    "no mode": lambda writer, _: writer.outputMode(""),
    "no name": lambda writer, _: writer.queryName(" "),
    "two triggers": lambda writer, _: writer.trigger(once=True, availableNow=True),
    "no trigger": lambda writer, _: writer.trigger(),
    "a false trigger": lambda writer, _: writer.trigger(once=False),
    "an interval that does not exist": lambda w, _: w.trigger(processingTime="5 parsecs"),
    "an interval that is a number": lambda writer, _: writer.trigger(processingTime=5),
    "a negative interval": lambda writer, _: writer.trigger(processingTime="-1 second"),
    "no function": lambda writer, _: writer.foreach(3),
    "no checkpoint": lambda writer, path: writer.format("parquet").start(path),
    "no path": lambda writer, path: (
        writer.format("parquet").option("checkpointLocation", path).start()
    ),
    "a table in memory without a name": lambda writer, _: writer.format("memory").start(),
    "files in update mode": lambda writer, path: (
        writer.outputMode("update").option("checkpointLocation", path).start(path, "parquet")
    ),
    "partitions by no column": lambda writer, path: (
        writer.partitionBy("nil").option("checkpointLocation", path).start(path, "json")
    ),
    "partitions by a column twice": lambda writer, path: (
        writer.partitionBy("value", "VALUE").option("checkpointLocation", path).start(path, "json")
    ),
    "partitions by all columns": lambda writer, path: (
        writer.partitionBy("VALUE", "timestamp")
        .option("checkpointLocation", path)
        .start(path, "json")
    ),
}


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def _refusal(start: Callable[[], object]) -> tuple[type[Any], object, object]:
    """Return the class of Spark's of an error, its condition and its SQLSTATE."""
    with pytest.raises(PySparkException) as caught:
        start()
    error = caught.value
    if isinstance(error, gw.errors.GodwitError):
        again = pickle.loads(pickle.dumps(error))
        assert (again.getCondition(), again.getSqlState()) == (
            error.getCondition(),
            error.getSqlState(),
        )
    classes = [
        each for each in type(error).__mro__ if each.__module__ == "pyspark.errors.exceptions.base"
    ]
    return classes[0], error.getCondition(), error.getSqlState()


@pytest.mark.parametrize("name", _QUERIES)
def test_a_query_is_refused_as_spark_refuses_it(rows: DataFrame, name: str, tmp_path: Path) -> None:
    build, mode = _QUERIES[name]

    def start(writer: Any, path: Path) -> Callable[[], object]:
        console = writer.outputMode(mode).format("console")
        return console.option("checkpointLocation", str(path)).start  # type: ignore[no-any-return]

    adopted = _refusal(start(gw.write_stream(build(rows)), tmp_path / "a"))
    assert adopted == _refusal(start(build(rows).writeStream, tmp_path / "b"))


@pytest.mark.parametrize("name", _SETTINGS)
def test_a_setting_is_refused_as_spark_refuses_it(
    rows: DataFrame, name: str, tmp_path: Path
) -> None:
    def call(writer: Any, path: Path) -> Callable[[], object]:
        return lambda: _SETTINGS[name](writer, str(path))

    adopted = _refusal(call(gw.write_stream(rows), tmp_path / "a"))
    assert adopted == _refusal(call(rows.writeStream, tmp_path / "b"))


def test_a_table_that_does_not_stream_is_refused_as_spark_refuses_it(spark: SparkSession) -> None:
    table = spark.range(1)
    assert _refusal(lambda: gw.write_stream(table)) == _refusal(lambda: table.writeStream)
