"""Adopted queries give the rows that Spark gives, batch by batch."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from tests.support.native import Case, Stream, compare_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_START = dt.datetime(2024, 1, 1)
_COLUMNS = "k string, ts timestamp, v double, id string, n int"


def _rows(draw: random.Random, batch: int) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch, some of which are late."""
    seconds = (300 * batch + draw.randint(0, 600) for _ in range(20))
    return [
        (
            draw.choice(["a", "b", "c", None]),
            _START + dt.timedelta(seconds=second, microseconds=draw.randint(0, 999_999)),
            draw.choice([1.5, 2.0, None, -3.25]),
            draw.choice("xyz"),
            draw.choice([1, 2, 3, None]),
        )
        for second in seconds
    ]


def _input() -> dict[str, Stream]:
    draw = random.Random(1)
    return {"s": Stream(schema=_COLUMNS, batches=[_rows(draw, batch) for batch in range(3)])}


def _windows(s: DataFrame) -> DataFrame:
    """Windows that overlap, with a filtered count, and columns of the window."""
    window = sf.window("ts", "5 minutes", "150 seconds")
    results = (sf.sum("v").alias("t"), sf.expr("count(n) FILTER (WHERE n > 1)").alias("c"))
    return (
        s.withWatermark("ts", "2 minutes")
        .groupBy(window, "k")
        .agg(*results)
        .select("k", "window.start", "window", "t", "c")
    )


def _one_text(s: DataFrame) -> DataFrame:
    """Columns of one name of two frames, functions of one name, and long texts of one beginning."""
    other = s.sparkSession.createDataFrame([("a", 10), ("b", 20)], "k string, n int")
    double, square = (
        sf.udf(lambda n: n and 2 * n, "int"),
        sf.udf(lambda n: n and n * n, "int"),
    )
    results = [
        *(sf.sum(column) for column in (s["n"], other["n"], double(s["n"]), square(s["n"]))),
        *(sf.sum(sf.when(s["n"] + other["n"] > limit, s["n"])) for limit in (11, 12, 13)),
    ]
    return s.join(other, s["k"] == other["k"]).groupBy(s["k"]).agg(*results)


_QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], tuple[str, ...]]] = {
    "without state": (
        lambda s: s.where("v > 0").select("k", (sf.col("n") + 1).alias("m"), "ts"),
        ("append",),
    ),
    "per key, with expressions over results": (
        lambda s: (
            s.groupBy("k", sf.col("n") % 2)
            .agg(sf.sum("v"), sf.avg("n"), sf.max("id"), (sf.sum("n") * 2 + sf.count("v")))
            .where("k is not null")
        ),
        ("update", "complete"),
    ),
    "without keys, and rows that all are filtered out": (
        lambda s: s.where("v > 5").groupBy().agg(sf.sum("v"), sf.count("*")),
        ("complete",),
    ),
    "expressions of one text": (_one_text, ("update",)),
    "windows": (_windows, ("append", "update", "complete")),
    "filters above the watermark": (
        lambda s: (
            s.withWatermark("ts", "2 minutes")
            .where("ts < '2024-01-01 00:12:00'")
            .groupBy(sf.window("ts", "5 minutes"))
            .count()
        ),
        ("append",),
    ),
    "filters that move below the watermark": (
        lambda s: (
            s.withWatermark("ts", "1 minutes")
            .groupBy(sf.window("ts", "1 minutes"), "k")
            .count()
            .where("k = 'a'")
        ),
        ("append",),
    ),
    "sessions": (
        lambda s: (
            s.withWatermark("ts", "1 minutes")
            .groupBy(sf.session_window("ts", "30 seconds"), "k")
            .agg(sf.count("*").alias("c"), sf.sum("v"), sf.max("n"))
            .select("k", "session_window.end", "c", "session_window")
        ),
        ("append", "complete"),
    ),
    "sessions with a gap of a column": (
        lambda s: (
            s.withWatermark("ts", "1 minutes")
            .groupBy(
                sf.session_window(
                    "ts", sf.expr("case when n = 1 then '10 seconds' else '40 seconds' end")
                ),
                "k",
            )
            .agg(sf.collect_list("n"), sf.first("id"))
        ),
        ("append",),
    ),
    "totals of windows and arrays": (
        lambda s: (
            s.withColumn("a", sf.array("n", sf.length("id")))
            .withWatermark("ts", "1 minutes")
            .rollup(sf.window("ts", "5 minutes"), "a")
            .agg(sf.count("*"), sf.max(sf.struct("v", "a")), sf.grouping_id())
        ),
        ("update",),
    ),
    "groups by maps": (lambda s: s.groupBy(sf.create_map("id", "n")).count(), ("update",)),
    "groups by event time, of which a batch has none": (
        lambda s: (
            s.withWatermark("ts", "1 minutes")
            .where("ts < '2024-01-01 00:10:00'")
            .groupBy("ts")
            .count()
        ),
        ("append",),
    ),
    "a watermark that removes nothing": (
        lambda s: s.withWatermark("ts", "1 minutes").where("n > 5").groupBy().count(),
        ("update",),
    ),
}


def test_adopted_queries_give_the_batches_that_spark_gives(spark: SparkSession) -> None:
    cases = {
        f"{name} ({mode})": Case(build=build, streams=_input(), mode=mode)
        for name, (build, modes) in _QUERIES.items()
        for mode in modes
    }
    assert not compare_all(spark, cases)
