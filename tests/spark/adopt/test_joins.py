"""Joins of two streams give the rows of Spark, batch by batch."""

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
_RANGE = "k = k2 AND ts2 BETWEEN ts - interval 1 minute AND ts + interval 3 minutes"


def _rows(draw: random.Random, batch: int, keys: list[str | None]) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch, some of which are late."""
    return [
        (
            draw.choice(keys),
            _START + dt.timedelta(seconds=300 * batch + draw.randint(0, 600)),
            draw.choice([1, 2, 3, None]),
        )
        for _ in range(12)
    ]


def _input(seed: int, keys: list[str | None], num_batches: int = 4) -> dict[str, Stream]:
    draw = random.Random(seed)
    schemas = {"left": "k string, ts timestamp, n int", "right": "k2 string, ts2 timestamp, m int"}
    return {
        name: Stream(
            schema=schema, batches=[_rows(draw, batch, keys) for batch in range(num_batches)]
        )
        for name, schema in schemas.items()
    }


def _timed(left: DataFrame, right: DataFrame) -> tuple[DataFrame, DataFrame]:
    return left.withWatermark("ts", "2 minutes"), right.withWatermark("ts2", "1 minute")


def _join(how: str, condition: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
    """Return a join of two streams with watermarks."""

    def query_over(left: DataFrame, right: DataFrame) -> DataFrame:
        left, right = _timed(left, right)
        return left.join(right, sf.expr(condition), how)

    return query_over


def _of_windows(left: DataFrame, right: DataFrame) -> DataFrame:
    left, right = _timed(left, right)
    own = left.withColumn("w", sf.window("ts", "5 minutes"))
    other = right.withColumn("w2", sf.window("ts2", "5 minutes"))
    joined = own.join(other, sf.expr("w = w2 AND k = k2"), "leftOuter")
    return joined.select("k", "w", "n", "m", "w2")


def _of_aliases(left: DataFrame, right: DataFrame) -> DataFrame:
    left, right = _timed(left, right)
    left = left.select("n", *(sf.col(name).alias(name) for name in ("k", "ts")))
    right = right.select("m", *(sf.col(name).alias(name) for name in ("k2", "ts2")))
    return left.join(right, sf.expr(_RANGE), "leftOuter")


def _of_aggregates(left: DataFrame, right: DataFrame) -> DataFrame:
    """Return a join of counts with columns that are aliases, as a part that ``WITH`` names has."""
    left, right = _timed(left, right)
    counts = left.groupBy("k", sf.window("ts", "5 minutes").alias("w")).count()
    others = right.groupBy("k2", sf.window("ts2", "5 minutes").alias("w2")).agg(sf.sum("m"))
    others = others.select(*(sf.col(f"`{name}`").alias(name) for name in others.columns))
    return counts.join(others, sf.expr("k = k2 AND w = w2")).select("k", "w.start", "count")


def _unconditional(left: DataFrame, right: DataFrame) -> DataFrame:
    """Return the join that ``FROM left, right`` is."""
    left, right = _timed(left, right)
    return left.join(right)


_QUERIES: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "inner, without watermarks": lambda left, right: left.join(right, sf.expr("k = k2 AND n <= m")),
    "inner, in a range of time": _join("inner", _RANGE),
    "left, with conditions on one side": _join("leftOuter", f"{_RANGE} AND n > 1 AND m < 3"),
    "right, in a range of time": _join("rightOuter", f"{_RANGE} AND n > 1"),
    "full, in a range of time": _join("fullOuter", _RANGE),
    "semi, with a condition on both sides": _join("leftSemi", f"{_RANGE} AND n <= m"),
    "left, of equal windows": _of_windows,
    "left, of columns that are aliases of their own names": _of_aliases,
    "inner, of aggregates that are aliases of their own names": _of_aggregates,
    "left, of equal event times": _join("leftOuter", "ts = ts2 AND n <= m"),
    "inner, by a condition above it": lambda left, right: _unconditional(left, right).where(
        f"{_RANGE} AND n <= m AND n > 1 AND m < 9"
    ),
    "windows of pairs": lambda left, right: (
        _join("inner", _RANGE)(left, right)
        .groupBy(sf.window("ts", "5 minutes"), "k")
        .agg(sf.sum("m"), sf.count("*"))
    ),
}


_ONLY_LONG = (  # cases with another that joins in the same way
    "inner, in a range of time",
    "right, in a range of time",
    "semi, with a condition on both sides",
)


def _semi_join_of_late_rows() -> Case:
    """Return a semi join whose right rows may be too old to be stored, when left rows meet them."""
    moments = {"left": (365, 365, 365, 180, 210, 241), "right": (327, 359, 360, 180, 365, 419)}
    schemas = {"left": "k string, ts timestamp, n int", "right": "k2 string, ts2 timestamp, m int"}
    late = dt.timedelta(minutes=9)
    streams = {
        name: Stream(
            schema=schemas[name],
            batches=[
                [("z", _START + late, 1), ("old", _START + dt.timedelta(minutes=6), 1)],
                [(f"k{i}", _START + dt.timedelta(seconds=s), 1) for i, s in enumerate(seconds)],
                [("z", _START + 2 * late, 1), ("k0", _START + late, 1)],
            ],
        )
        for name, seconds in moments.items()
    }
    return Case(build=_join("leftSemi", f"{_RANGE} AND n <= m"), streams=streams, mode="append")


def _case(name: str) -> Case:
    keys: list[str | None] = ["a", "b", "c", "d", None]
    parts = 2 if name.startswith("left") else 1  # with a restart
    return Case(build=_QUERIES[name], streams=_input(len(name), keys), mode="append", parts=parts)


def test_adopted_joins_give_the_batches_that_spark_gives(spark: SparkSession) -> None:
    cases = {name: _case(name) for name in chosen(_QUERIES, only_long=_ONLY_LONG)}
    cases["semi, with late rows"] = _semi_join_of_late_rows()
    assert not compare_all(spark, cases)


def _of_any_type(rows: DataFrame) -> DataFrame:
    """Return rows with columns of many types."""
    number, own = rows.columns[2], rows.columns[0]
    struct = sf.struct(sf.col(number).alias("a"), sf.when(sf.col(own) == "a", 0).alias("b"))
    return rows.select(
        "*",
        sf.when(sf.col(own) != "b", struct).alias(f"st_{own}"),
        sf.array(number).alias(f"ar_{own}"),
        sf.create_map(sf.lit("x"), number).alias(f"mp_{own}"),
        sf.expr(f"case {number} when 1 then 0D when 2 then -0D else double('nan') end").alias(
            f"fl_{own}"
        ),
        (sf.col(number) / 2).cast("decimal(4,1)").alias(f"de_{own}"),
    )


_CONDITIONS = (
    ("inner", "k <=> k2 AND fl_k = fl_k2"),
    ("fullOuter", f"n <=> m AND {_RANGE.replace('k = k2 AND ', '')}"),
    ("inner", "st_k = st_k2 AND size(ar_k) = size(ar_k2)"),
    ("inner", "st_k <=> st_k2 AND de_k = m / 2"),
    ("inner", "ar_k <=> ar_k2 AND size(mp_k) = size(mp_k2)"),
    # These are null, too, where the columns that they read are not.
    ("inner", "mp_k['x'] = mp_k2['x'] AND upper(nullif(k, 'c')) = upper(nullif(k2, 'c'))"),
    ("leftOuter", f"mp_k['x'] + 1 = mp_k2['x'] + 1 AND {_RANGE.replace('k = k2 AND ', '')}"),
    (
        "leftSemi",
        f"st_k.b = st_k2.b AND ar_k[0] = ar_k2[0] AND {_RANGE.replace('k = k2 AND ', '')}",
    ),
)


def test_keys_of_every_type_are_compared_as_spark_compares_them(spark: SparkSession) -> None:
    def query_over(how: str, condition: str) -> Callable[..., DataFrame]:
        def build(left: DataFrame, right: DataFrame) -> DataFrame:
            left, right = _timed(_of_any_type(left), _of_any_type(right))
            return left.join(right, sf.expr(condition), how)

        return build

    keys: list[str | None] = ["a", "b", "c", None]
    cases = {
        f"{how}: {condition}": Case(
            build=query_over(how, condition), streams=_input(5, keys, 2), mode="append"
        )
        for how, condition in _CONDITIONS
    }
    assert not compare_all(spark, cases)


def test_text_with_a_collation_is_no_key(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    text = sf.collate(sf.col("value").cast("string"), "UTF8_LCASE")
    rows = rates.select(text.alias("s"), sf.lit(1).alias("v"))
    for query in (
        rows.groupBy("s").agg(sf.count("*"), sf.sum("v"), sf.max("v")),
        rows.select("s").dropDuplicates(["s"]),
        rows.select("s").alias("a").join(rows.select("s").alias("b"), sf.expr("a.s = b.s")),
        rows.groupBy().agg(sf.max("s")),
    ):
        with pytest.raises(gw.errors.UnsupportedQueryError, match=r"(has|with) a collation"):
            gw.read_plan(query, mode="append" if len(query.columns) == 2 else "update")


def test_columns_of_a_join_may_have_any_name(spark: SparkSession) -> None:
    names = ("expires", "is_left", "late_by", "passes", "window_start", "event_time_ms")
    rates = spark.readStream.format("rate").load()
    rows = rates.select("value", *(sf.col("value").alias(name) for name in names))
    flow, _ = gw.read_plan(rows.join(rates.select("value"), "value"))
    assert len(flow.operators) == 1
