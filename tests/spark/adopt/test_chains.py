"""Duplicates, and stateful operators after one another, give the rows of Spark, batch by batch."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from tests.support.long_tests import chosen
from tests.support.native import Case, Stream, compare_all

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_START = dt.datetime(2024, 1, 1)
_COLUMNS = "k string, ts timestamp, v double, id string, n int"


def _rows(draw: random.Random, batch: int) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch, some of which are late."""
    moments = (_START + dt.timedelta(seconds=300 * batch + draw.randint(0, 600)) for _ in range(20))
    rows = [
        (
            draw.choice(["a", "b", None]),
            moment,
            draw.choice([1.5, None, 0.0, -0.0]),
            draw.choice("xyz"),
            draw.choice([1, 2, 3, None]),
        )
        for moment in moments
    ]
    return [*rows, ("a", None, 1.5, "x", 1)]


def _input(seed: int) -> dict[str, Stream]:
    draw = random.Random(seed)
    return {"s": Stream(schema=_COLUMNS, batches=[_rows(draw, batch) for batch in range(4)])}


def _timed(s: DataFrame) -> DataFrame:
    return s.withWatermark("ts", "2 minutes")


_QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "the first row of each key": (lambda s: s.dropDuplicates(["k", "n"]), "update"),
    "the first rows of all batches": (lambda s: s.limit(33).select("k", "n"), "append"),
    "windows of the first rows of all batches": (
        lambda s: _timed(s).where("n > 1").limit(25).groupBy(sf.window("ts", "5 minutes")).count(),
        "append",
    ),
    "null structs whose fields are never null": (
        lambda s: s.select(
            "k", sf.when(sf.col("n") > 1, sf.struct(sf.lit(1).alias("x"))).alias("q")
        ),
        "append",
    ),
    "zeros of both signs": (lambda s: s.select("k", "v").dropDuplicates(), "append"),
    "keys that are never forgotten": (lambda s: _timed(s).dropDuplicates(["k", "id"]), "append"),
    "event times that are keys": (
        lambda s: _timed(s).select("k", "ts", "id").dropDuplicates(["k", "ts"]),
        "append",
    ),
    "windows that are keys": (
        lambda s: (
            _timed(s)
            .withColumn("w", sf.window("ts", "1 minute"))
            .dropDuplicates(["w", "k"])
            .select("w", "k", "n")
        ),
        "append",
    ),
    "keys of a time": (
        lambda s: (
            s.withWatermark("ts", "1 minute")
            .dropDuplicatesWithinWatermark(["k", "id"])
            .select("k", sf.upper("id").alias("u"), "ts")
        ),
        "append",
    ),
    "keys without an event time, forgotten at once": (
        lambda s: (
            s.withColumn("ts", sf.when(sf.col("n") != 3, sf.col("ts")))
            .withWatermark("ts", "0 seconds")
            .dropDuplicatesWithinWatermark(["n"])
            .select("n", "ts")
        ),
        "append",
    ),
    "rows without duplicates that have their own zero": (
        lambda s: (
            s.selectExpr("k", "n", "IF(n > 2, -0D, 0D) AS z")
            .dropDuplicates(["k", "n", "z"])
            .select("n", sf.col("z").cast("string"), "k")
        ),
        "append",
    ),
    "windows of rows without duplicates": (
        lambda s: (
            _timed(s)
            .dropDuplicates(["id", "k", "ts"])
            .where("n > 1")
            .withColumn("m", sf.col("n") * 2 + 1)
            .groupBy(sf.window("ts", "5 minutes"), sf.coalesce("k", sf.lit("none")).alias("kk"))
            .agg(sf.sum("m"), sf.max(sf.upper("id")))
            .where("kk <> 'a'")
        ),
        "append",
    ),
    "windows of windows": (
        lambda s: (
            _timed(s)
            .groupBy(sf.window("ts", "1 minute"), "k")
            .agg(sf.sum("n").alias("c"))
            .groupBy(sf.window(sf.window_time("window"), "5 minutes"), "k")
            .agg(sf.max("c"), sf.count("*"))
        ),
        "append",
    ),
    "overlapping windows of windows": (
        lambda s: (
            _timed(s)
            .groupBy(sf.window("ts", "1 minute"), "k")
            .count()
            .groupBy(sf.window("window", "5 minutes", "150 seconds"))
            .agg(sf.sum("count"))
        ),
        "append",
    ),
    "results without duplicates": (
        lambda s: (
            _timed(s)
            .groupBy(sf.window("ts", "1 minute"), "k")
            .count()
            .select("window", "count")
            .dropDuplicates()
        ),
        "append",
    ),
    "arrays that are keys": (
        lambda s: (
            _timed(s)
            .groupBy(sf.window("ts", "1 minute"), "k")
            .agg(
                sf.collect_list(sf.concat("id", sf.lit('\x1f\\"'))).alias("l"),
                sf.min("ts").alias("t"),
            )
            .select("window", sf.expr("slice(l, 1, 2)").alias("h"), "t")
            .withColumn("late", sf.expr("timestampdiff(SECOND, window.end, t)"))
            .groupBy(sf.window("window", "5 minutes"), "h")
            .agg(sf.sum("late"))
        ),
        "append",
    ),
    "counts of rows without duplicates": (
        lambda s: s.dropDuplicates(["id", "k"]).groupBy("k").count(),
        "complete",
    ),
}


_ONLY_LONG = (  # cases with another that keeps the same kind of keys
    "keys that are never forgotten",
    "event times that are keys",
    "windows that are keys",
    "overlapping windows of windows",
)


def _case(name: str) -> Case:
    build, mode = _QUERIES[name]
    restarted = {"keys of a time", "windows of windows", "the first rows of all batches"}
    parts = 2 if name in restarted else 1
    return Case(build=build, streams=_input(len(name)), mode=mode, parts=parts)


def test_adopted_queries_give_the_batches_that_spark_gives(spark: SparkSession) -> None:
    names = chosen(_QUERIES, only_long=_ONLY_LONG)
    assert not compare_all(spark, {name: _case(name) for name in names})


def test_an_expression_between_two_operators_that_is_not_known_is_refused(
    spark: SparkSession,
) -> None:
    rows = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    query = rows.dropDuplicates(["value", "timestamp"]).groupBy(
        sf.window("timestamp", "1 minute"),
        sf.soundex(sf.col("value").cast("string")).alias("h"),
    )
    with pytest.raises(gw.errors.UnsupportedQueryError, match="SoundEx"):
        gw.read_plan(query.count())


def test_a_type_that_arrow_does_not_have_is_refused_by_its_column(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load()
    latest = rows.groupBy().agg(sf.expr("max(make_ym_interval(0, int(value)))"))
    with pytest.raises(gw.errors.UnsupportedQueryError, match="interval year to month"):
        gw.read_plan(latest, mode="update")
