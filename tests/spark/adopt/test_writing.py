"""Adopted queries write to the sinks of Spark's writer, and say how they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sf

import godwit as gw
from godwit.adopt.explain import explained

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from godwit.adopt.writer import StreamWriter

pytestmark = pytest.mark.spark


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of four rows, of two keys."""
    (tmp_path / "in").mkdir()
    table = pa.table({"k": ["a", "b", "a", "a"], "n": pa.array([1, 2, 3, 4], pa.int64())})
    pq.write_table(table, tmp_path / "in/0.parquet")
    return spark.readStream.schema("k string, n bigint").parquet(str(tmp_path / "in"))


def _run(writer: StreamWriter, tmp_path: Path, name: str) -> None:
    """Run a query to the end of its input."""
    query = (
        writer.option("checkpointLocation", str(tmp_path / name))
        .queryName(name)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None


def test_the_console_shows_batches_as_sparks_does(
    rows: DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = rows.groupBy("k").agg(sf.sum("n").alias("t")).withColumn("twice", sf.expr("t * 2"))
    console = gw.write_stream(counts).outputMode("update").format("console")
    _run(console.option("numRows", 5), tmp_path, "printed")
    printed = capsys.readouterr().out
    assert "Batch: 0" in printed
    assert "|  a|  8|   16|" in printed


def test_sql_and_a_plan_that_is_read_give_the_same_flow(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    rows.createOrReplaceTempView("rows_of_keys")
    text = (
        "WITH positive AS (SELECT * FROM rows_of_keys WHERE n > 0) "
        "SELECT k, count(*) AS n FROM positive GROUP BY k HAVING count(*) > 1"
    )
    writer = gw.sql(spark, text).outputMode("update").format("memory")
    _run(writer, tmp_path, "by_sql")
    assert [tuple(row) for row in spark.table("by_sql").collect()] == [("a", 3)]

    flow, stream = gw.read_plan(rows.groupBy("k").count(), mode="update")
    sink = gw.sinks.memory()
    flow.sink("counts", stream, sink)
    flow.start(checkpoint=str(tmp_path / "read"), trigger={"availableNow": True}).awaitTermination()
    assert sorted(sink.table().to_pylist(), key=str) == [
        {"k": "a", "count": 3},
        {"k": "b", "count": 1},
    ]


def test_distinct_values_are_counted_which_spark_refuses(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    different = rows.groupBy("k").agg(sf.count_distinct(sf.expr("n % 2")).alias("c"))
    _run(gw.write_stream(different).outputMode("complete").format("memory"), tmp_path, "different")
    assert sorted(map(tuple, spark.table("different").collect())) == [("a", 2), ("b", 1)]


def test_two_queries_without_a_name_run_beside_one_another(rows: DataFrame, tmp_path: Path) -> None:
    counts = rows.groupBy("k").count()
    writers = [gw.write_stream(counts).outputMode("update").format("noop") for _ in range(2)]
    queries = [
        writer.option("checkpointLocation", str(tmp_path / f"ck{number}")).start()
        for number, writer in enumerate(writers)
    ]
    assert len({query.id for query in queries}) == 2
    for query in queries:
        query.processAllAvailable()
        query.stop()


def test_a_plan_is_explained_node_by_node(rows: DataFrame) -> None:
    query = rows.where("n > 0").groupBy("k").count().where("count > 1")
    lines = explained(query, mode="update").splitlines()
    kinds = [(line.split()[0], line.split("  ")[-1].strip()) for line in lines[:4]]
    assert kinds == [
        ("Filter", "Spark SQL, over the rows of a batch, at delivery"),
        ("Aggregate", "operator of the flow, in the lanes"),
        ("Filter", "Spark SQL, in the micro-batch"),
        ("StreamingRelation", "streaming DataFrame, read by Spark"),
    ]
    assert lines[4] == "operator 'aggregate': aggregate count(1)"


def test_functions_of_the_groups_of_a_batch_are_adopted_and_variants_are_not(
    rows: DataFrame,
) -> None:
    firsts = rows.groupBy("k").applyInPandas(lambda group: group.head(1), rows.schema)
    flow, _ = gw.read_plan(firsts.groupBy("k").count(), mode="update")
    assert len(flow.operators) == 1
    with pytest.raises(gw.errors.UnsupportedQueryError, match="whose type is variant"):
        gw.read_plan(rows.select(sf.to_variant_object(sf.struct("n")).alias("v")))


def test_a_query_that_cannot_be_adopted_is_refused_with_its_place(
    rows: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PySpark records places where the thread has an active session; what other tests have done to
    # it, and when the first column of the process was made, are not what is tested.
    monkeypatch.setattr("pyspark.errors.utils._enable_debugging_cache", True)
    spark: Any = rows.sparkSession
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    query = rows.groupBy("k").agg(sf.histogram_numeric("n", sf.lit(3)).alias("s"))
    with pytest.raises(gw.errors.UnsupportedQueryError) as caught:
        _run(gw.write_stream(query).outputMode("update").format("noop"), tmp_path, "refused")
    assert caught.value.context["node"] == "HistogramNumeric"
    assert "test_writing.py" in caught.value.context["place"]
    assert not (tmp_path / "refused").exists()
    assert "missing: " in explained(query, mode="update")
    with pytest.raises(gw.errors.UnsupportedQueryError, match="Spark's limit of"):
        gw.read_plan(rows.dropDuplicates(["k"]).limit(3))
    with pytest.raises(gw.errors.UnsupportedQueryError, match="collat"):
        gw.read_plan(rows.groupBy(sf.collate("k", "UNICODE_CI")).count(), mode="update")
    with pytest.raises(gw.errors.UnsupportedQueryError, match="Spark refuses the query"):
        gw.read_plan(rows.groupBy("k").count(), mode="append")
