"""Files and tables that Spark's own file sink writes for adopted queries."""

from __future__ import annotations

import os
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from tests.support.native import settings

import godwit as gw
from godwit.adopt.spark_files import last_batch
from godwit.model.errors import GodwitError, SinkError, UnsupportedQueryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def _input(spark: SparkSession, place: Path, numbers: range) -> DataFrame:
    """Add a file for each number to a directory, and return its stream."""
    for n in numbers:
        rows = spark.createDataFrame([(f"k{n}", n), ("all", n), ("x y", n)], "k string, n int")
        rows.coalesce(1).write.mode("append").parquet(str(place))
    reader = spark.readStream.schema("k string, n int").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(place))


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with settings(spark):
        yield


def _run(writer: Any, checkpoint: Path, start: Callable[[Any], Any]) -> None:
    """Run a query to the end of its input."""
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    start(writer).awaitTermination()


def _start(writer: Any, place: str) -> Any:
    """Start a query that writes to a directory."""
    return writer.start(place)


@pytest.mark.parametrize("file_format", ["csv", "orc"])
def test_files_and_their_log_are_those_that_spark_writes(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    working: Any = spark._jvm.System  # type: ignore[union-attr]
    relative = os.path.relpath(tmp_path / "ours", working.getProperty("user.dir"))
    places = {"native": str(tmp_path / "native"), "ours": relative}
    for numbers in (range(1), range(1, 2)):
        rows = _input(spark, tmp_path / "in", numbers).select("k", (sf.col("n") + 1).alias("m"))
        for kind, writer in (("native", rows.writeStream), ("ours", gw.write_stream(rows))):
            own: Any = writer.format(file_format)
            if file_format == "csv":
                own = own.option("header", True).partitionBy("k")
            _run(own, tmp_path / f"{kind}-c", partial(_start, place=places[kind]))
    read = spark.read.option("header", True).format(file_format)
    expected = sorted(map(str, read.load(places["native"]).collect()))
    assert len(expected) == 6
    assert sorted(map(str, read.load(places["ours"]).collect())) == expected
    assert last_batch(spark, places["ours"]) == last_batch(spark, places["native"]) == 1


def test_a_directory_goes_on_with_the_query_that_spark_ran_and_with_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    rows = _input(spark, tmp_path / "in", range(2)).dropDuplicates(["k"])
    _run(rows.writeStream.format("parquet"), tmp_path / "old", lambda w: w.start(out))
    _input(spark, tmp_path / "in", range(2, 4))
    with pytest.raises(UnsupportedQueryError, match="the log of another query"):
        _run(gw.write_stream(rows), tmp_path / "other", lambda w: w.format("parquet").start(out))
    for number in range(2):  # the second run delivers nothing again
        writer = gw.write_stream(rows).from_spark_checkpoint(str(tmp_path / "old"))
        _run(writer, tmp_path / "new", lambda w: w.format("parquet").start(out))
        assert last_batch(spark, out) == 3, number
    keys = sorted(row.k for row in spark.read.parquet(out).collect())
    assert keys == ["all", "k0", "k1", "k2", "k3", "x y"]
    counts = rows.groupBy("k").count()
    with pytest.raises(UnsupportedQueryError, match="output mode 'update'"):
        _run(gw.write_stream(counts).outputMode("update"), tmp_path / "c", lambda w: w.start(out))


def test_a_table_of_sparks_catalog_is_created_and_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    name = f"t{uuid.uuid4().hex}"
    rows = _input(spark, tmp_path / "in", range(2))
    place = str(tmp_path / "table")
    try:
        writer = gw.write_stream(rows).partitionBy("k").option("path", place)
        _run(writer, tmp_path / "c", lambda w: w.toTable(name, format="json"))
        _input(spark, tmp_path / "in", range(2, 3))
        _run(gw.write_stream(rows), tmp_path / "c", lambda w: w.toTable(name))
        values = sorted((row.n, row.k) for row in spark.table(name).collect())
        assert values == sorted((n, k) for n in range(3) for k in (f"k{n}", "all", "x y"))
        assert (tmp_path / "table/k=all").is_dir()
        with pytest.raises(SinkError, match=r"of the format 'json', but the query writes parquet"):
            _run(gw.write_stream(rows), tmp_path / "c2", lambda w: w.toTable(name, "parquet"))
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_rows_that_a_format_does_not_have_fail_by_sparks_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = _input(spark, tmp_path / "in", range(1))
    with pytest.raises(GodwitError, match=r"Spark cannot write batch 0 .*column"):
        _run(gw.write_stream(rows).format("text"), tmp_path / "c", lambda w: w.start(str(tmp_path)))
