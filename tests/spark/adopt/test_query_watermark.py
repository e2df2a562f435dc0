"""A query with several watermarks gives the rows of Spark, which has one for the whole query."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from tests.adopted import nexmark
from tests.support.native import Case, Stream, compare_all

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_START = dt.datetime(2024, 1, 1)
_COLUMNS = "k string, ts timestamp, n int"
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
_MULTIPLE = "spark.sql.streaming.statefulOperator.allowMultiple"
_NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
_RANGE = "k = k2 AND ts2 BETWEEN ts - interval 1 minute AND ts + interval 3 minutes"


def _rows(draw: random.Random, batch: int, step: int) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch, some of which are late."""
    return [
        (
            draw.choice(["a", "b", None]),
            _START + dt.timedelta(seconds=step * batch + draw.randint(0, 600)),
            draw.choice([1, 2, None]),
        )
        for _ in range(draw.choice((0, 8)) if batch else 8)
    ]


def _input(seed: int, *, slow: bool = False) -> dict[str, Stream]:
    """Draw two streams; `slow`: the second one has rows in the first batch only."""
    draw = random.Random(seed)
    first = [_rows(draw, batch, 300) for batch in range(3)]
    second = [[] if slow and batch else _rows(draw, batch, 200) for batch in range(3)]
    return {
        "a": Stream(schema=_COLUMNS, batches=first),
        "b": Stream(schema=_COLUMNS, batches=second),
    }


def _a(a: DataFrame) -> DataFrame:
    return a.withWatermark("ts", "2 minutes")


def _b(b: DataFrame) -> DataFrame:
    return b.selectExpr("k AS k2", "ts AS ts2", "n AS m").withWatermark("ts2", "1 minute")


def _sums(rows: DataFrame) -> DataFrame:
    return rows.groupBy(sf.window("ts", "5 minutes").alias("w"), "k").agg(sf.sum("n").alias("s"))


def _maxima(rows: DataFrame) -> DataFrame:
    window = sf.window("ts2", "5 minutes").alias("w2")
    return rows.groupBy(window, "k2").agg(sf.max("m").cast("long").alias("x"))


_MINIMUM: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "duplicates on one side of a join": lambda a, b: (
        _a(a).dropDuplicatesWithinWatermark(["k", "n"]).join(_b(b), sf.expr(_RANGE), "left")
    ),
    "a join whose second stream has no watermark": lambda a, b: _a(a).join(
        b.selectExpr("k AS k2", "n AS m"), sf.expr("k = k2 AND n <= m")
    ),
    "a union of windows and a stream": lambda a, b: _sums(_a(a)).union(
        _b(b).select(sf.window("ts2", "5 minutes"), "k2", sf.col("m").cast("long"))
    ),
    "a union of streams of which one has a watermark": lambda a, b: _sums(_a(a).union(b)),
    "windows of a union of rows without duplicates and a stream": lambda a, b: _sums(
        _a(a).dropDuplicates(["k", "ts"]).union(b.withWatermark("ts", "1 minute"))
    ),
    "sliding windows of a union of streams with a watermark each": lambda a, b: (
        _a(a)
        .union(b.withWatermark("ts", "1 minute"))
        .groupBy(sf.window("ts", "5 minutes", "2 minutes"), "k")
        .agg(sf.collect_list("n"))
    ),
    "duplicates whose event time is left out": lambda a, b: (
        _a(a).dropDuplicates(["k", "n"]).select("k", "n").union(b.select("k", "n"))
    ),
}


def _of_parts(a: DataFrame, b: DataFrame) -> DataFrame:
    """Return windows of two parts of one stream, which share its watermark."""
    rows = _a(a)
    return _sums(rows.where("n > 1").union(rows.where("k = 'a' AND n = 1")))


def _joined_parts(a: DataFrame, b: DataFrame) -> DataFrame:
    """Return a join of two parts of one stream, which share its watermark."""
    rows = _a(a)
    early = "y.k = x.k AND y.ts BETWEEN x.ts AND x.ts + interval 2 minutes"
    right = rows.where("n = 1").alias("y")
    joined = rows.where("n > 1").alias("x").join(right, sf.expr(early), "left")
    return joined.select("x.k", "x.ts", sf.col("y.ts").alias("ts2"))


_MINIMUM |= {"parts of a stream": _of_parts, "parts of a stream, joined": _joined_parts}


def _of_both(a: DataFrame, b: DataFrame) -> DataFrame:
    return _sums(_a(a)).union(_maxima(_b(b)))


def test_a_query_with_several_watermarks_gives_the_batches_that_spark_gives(
    spark: SparkSession,
) -> None:
    cases = {
        name: Case(build=build, streams=_input(len(name)), mode="append")
        for name, build in _MINIMUM.items()
    }
    # Spark forgets the watermark of each stream at a restart, and not that of the query.
    cases["a union of windows, restarted"] = Case(
        build=_of_both, streams=_input(1, slow=True), mode="append", parts=2
    )
    cases |= nexmark.cases(("q5",), num_batches=3)
    assert compare_all(spark, cases) == {}


def test_the_greatest_watermark_may_be_that_of_the_query(spark: SparkSession) -> None:
    cases = {
        "restarted": Case(build=_of_both, streams=_input(1, slow=True), mode="append", parts=2)
    }
    spark.conf.set(_POLICY, "max")
    try:
        assert compare_all(spark, cases) == {}
    finally:
        spark.conf.unset(_POLICY)


def test_windows_wait_for_rows_if_batches_without_rows_are_off(spark: SparkSession) -> None:
    cases = {
        "windows": Case(build=lambda a: _sums(_a(a)), streams={"a": _input(2)["a"]}, mode="append"),
        "restarted": Case(build=_of_both, streams=_input(1), mode="append", parts=2),
    }
    spark.conf.set(_NO_DATA, "false")
    try:
        assert compare_all(spark, cases) == {}
    finally:
        spark.conf.unset(_NO_DATA)


def test_rows_that_are_late_by_the_watermark_of_their_own_batch_are_refused(
    spark: SparkSession,
) -> None:
    rates = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    spark.conf.set(_MULTIPLE, "false")
    try:
        with pytest.raises(gw.errors.UnsupportedQueryError, match="of their own batch"):
            gw.read_plan(rates.dropDuplicatesWithinWatermark(["value"]))
    finally:
        spark.conf.unset(_MULTIPLE)
    gw.read_plan(rates.dropDuplicatesWithinWatermark(["value"]))
