"""What a query does not read is not computed, as in Spark: every text here is no number."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from tests.support.native import Case, Stream, compare_all

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_START = dt.datetime(2024, 1, 1)
_FAILS = "cast(id AS int)"
_FAILS_FOR_B = "cast(if(k = 'b', id, n) AS int)"
_ROWS = [
    [(k, _START + dt.timedelta(minutes=4 * batch + n), "x", n) for n, k in enumerate("abca")]
    for batch in range(3)
]


def _timed(s: DataFrame) -> DataFrame:
    return s.withWatermark("ts", "1 minute")


def _windows(s: DataFrame) -> DataFrame:
    window = sf.window("ts", "2 minutes", "1 minute")
    return (
        _timed(s)
        .groupBy(window, "k")
        .agg(sf.expr(f"sum({_FAILS})").alias("bad"), sf.sum("n").alias("r"))
    )


def _filtered(s: DataFrame) -> DataFrame:
    rows = (
        _timed(s)
        .groupBy(sf.window("ts", "2 minutes", "1 minute"), "k")
        .agg(sf.expr(f"sum({_FAILS_FOR_B})").alias("r"))
    )
    return rows.selectExpr("window", "k AS key", "r", "1 AS one").where(
        "key IN ('a', 'c') AND one = 1"
    )


def _joined(s: DataFrame) -> DataFrame:
    other = _timed(s).selectExpr("ts AS ts2", "k AS k2")
    rows = _timed(s.withColumn("bad", sf.expr(_FAILS)))
    return rows.join(other, sf.expr("k = k2 AND ts2 BETWEEN ts AND ts + interval 4 minutes"))


def _dead(s: DataFrame) -> DataFrame:
    """Branches that are not reached, right in an aggregate, above it, and in one another."""
    dead = sf.expr("CASE WHEN 1 > 2 THEN sum(cast(id AS int)) WHEN n0 > 1 THEN 5 ELSE 7 END")
    keys = s.withColumn("n0", sf.expr("n % 2")).groupBy("n0")
    rows = keys.agg(
        dead.alias("r"), sf.expr(f"max({_FAILS})").alias("bad"), sf.count("*").alias("c")
    )
    nested = "if(true, CASE WHEN c > 3 THEN r ELSE if(null, bad, c) END, bad) AS chosen"
    return rows.selectExpr("n0", "r", nested)


_QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str, str]] = {
    "an aggregate": (
        lambda s: (
            s.groupBy("k").agg(sf.expr(f"max({_FAILS})").alias("bad"), sf.count("*")).drop("bad")
        ),
        "update",
        "aggregate count(1)",
    ),
    "an aggregate of windows": (lambda s: _windows(s).drop("bad"), "append", "aggregate sum(n)"),
    "an aggregate below another one": (
        lambda s: (
            _windows(s)
            .where("r > 0")
            .select("window", sf.expr("cast(concat(k, 'x') AS int)").alias("w"), "r")
            .groupBy(sf.window("window", "10 minutes"))
            .agg(sf.max("w").alias("bad"), sf.sum("r"))
            .drop("bad")
        ),
        "append",
        "aggregate sum(n)",
    ),
    "a column of joined rows": (lambda s: _joined(s).select("k", "ts2"), "append", "inner join"),
    "a column of rows without duplicates": (
        lambda s: s.withColumn("bad", sf.expr(_FAILS)).dropDuplicates(["k"]).select("k", "n"),
        "append",
        "drop duplicates of k",
    ),
    "a column of the first rows": (
        lambda s: s.withColumn("bad", sf.expr(_FAILS)).limit(5).select("k", "n"),
        "append",
        "pass the first rows",
    ),
    "branches that are not reached": (_dead, "update", "aggregate count(1)"),
    "a map with equal keys that is never null": (
        lambda s: (
            s.groupBy("k")
            .agg(sf.expr("map_from_entries(collect_list(struct('x' AS key, n)))").alias("bad"))
            .selectExpr("k", "bad IS NULL AS gone", "if(k IS NULL, 1, 2) AS c")
        ),
        "update",
        "",
    ),
    "rows of groups that are left out": (
        lambda s: (
            s.groupBy("k")
            .agg(sf.expr(f"sum({_FAILS_FOR_B})").alias("r"))
            .where("k <> 'b' AND r > 0")
        ),
        "complete",
        "",
    ),
    "rows of windows that are left out": (
        lambda s: _filtered(s).where("key <> 'b' AND window.end > timestamp'2024-01-01 00:03:00'"),
        "append",
        "",
    ),
}


def test_what_nothing_reads_is_not_computed_as_in_spark(spark: SparkSession) -> None:
    streams = {"s": Stream(schema="k string, ts timestamp, id string, n int", batches=_ROWS)}
    cases = {
        name: Case(build=build, streams=dict(streams), mode=mode)
        for name, (build, mode, _) in _QUERIES.items()
    }
    assert not compare_all(spark, cases)


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.format("rate").load()
    return rows.selectExpr("'a' AS k", "timestamp AS ts", "'x' AS id", "int(value) AS n")


@pytest.mark.parametrize("name", [name for name, query in _QUERIES.items() if query[2]])
def test_operators_compute_what_is_read_alone(rows: DataFrame, name: str) -> None:
    build, mode, action = _QUERIES[name]
    flow, _ = gw.read_plan(build(rows), mode=mode)
    assert next(iter(flow.operators)).action == action  # type: ignore[union-attr]


@pytest.mark.parametrize("build", [_windows, _filtered])
def test_windows_are_panes_where_columns_and_groups_are_left_out(
    rows: DataFrame, build: Callable[[DataFrame], DataFrame]
) -> None:
    query = build(rows).where("window.end IS NOT NULL").select("r")
    flow, _ = gw.read_plan(query, mode="append")
    make: Any = next(iter(flow.operators)).make  # type: ignore[union-attr]
    assert make.args[1].panes is not None
