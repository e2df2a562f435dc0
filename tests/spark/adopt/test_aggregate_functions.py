"""Every aggregate function of Spark's is computed as Spark computes it, or refused by a reason."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from tests.support.native import Case, Stream, compare_all, written

import godwit as gw
from godwit.model.errors import UnsupportedQueryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_COLUMNS = (
    "k string, n int, l bigint, v double, d decimal(10,2), s string, b boolean, ts timestamp, "
    "x binary, st struct<p:int,q:string,r:array<double>>, ar array<int>, m map<string,int>"
)
_COMPUTED: dict[str, tuple[str, ...]] = {
    "any": ("any(b)",),
    "any_value": ("any_value(n)", "any_value(st)", "any_value(m, true)"),
    "approx_count_distinct": ("approx_count_distinct(s)",),
    "approx_percentile": ("approx_percentile(n, array(0.1, 0.9))",),
    "array_agg": ("array_agg(s)", "array_agg(ar)"),
    "avg": ("avg(n)", "avg(d)"),
    "bit_and": ("bit_and(n)", "bit_and(l)"),
    "bit_or": ("bit_or(n)",),
    "bit_xor": ("bit_xor(l) filter (where b)",),
    "bitmap_and_agg": ("hex(bitmap_and_agg(x))",),
    "bitmap_construct_agg": ("hex(bitmap_construct_agg(n))",),
    "bitmap_or_agg": ("hex(bitmap_or_agg(x))",),
    "bool_and": ("bool_and(b)",),
    "bool_or": ("bool_or(b)",),
    "collect_list": ("collect_list(ts)", "collect_list(st)", "collect_list(m)"),
    "collect_set": ("sort_array(collect_set(s))", "sort_array(collect_set(ar))"),
    "collect_union": ("sort_array(collect_union(ar))",),
    "corr": ("corr(n, v)",),
    "count": ("count(*)", "count(st)", "count(n, s)"),
    "count_if": ("count_if(n > 1)",),
    "covar_pop": ("covar_pop(n, v)",),
    "covar_samp": ("covar_samp(n, v)",),
    "every": ("every(b)",),
    "first": ("first(st)", "first(ar, true)", "first(m)", "first(x)"),
    "first_value": ("first_value(d)",),
    "kurtosis": ("kurtosis(v)", "kurtosis(n)"),
    "last": ("last(st)", "last(ar, true)", "last(m)"),
    "last_value": ("last_value(s, true)",),
    "listagg": ("listagg(s)", "listagg(s, '-') within group (order by s desc)"),
    "max": ("max(st)", "max(ar)", "max(struct(v, n))", "max(ts)", "max(x)"),
    "max_by": ("max_by(st, l)", "max_by(n, st)", "max_by(m, struct(l))"),
    "mean": ("mean(v)",),
    "median": ("median(n)", "median(d)"),
    "min": ("min(st)", "min(ar)", "min(struct(s, n)) filter (where n = 1)"),
    "min_by": ("min_by(ar, l)",),
    "mode": ("mode(n, true)", "mode() within group (order by n desc)"),
    "percentile": ("percentile(l, 0.3)", "percentile(v, array(0.1, 0.6), n)"),
    "percentile_approx": ("percentile_approx(n, 0.5)",),
    "percentile_cont": (
        "percentile_cont(0.3) within group (order by v desc)",
        "percentile_cont(0.3) within group (order by n)",
    ),
    "percentile_disc": (
        "percentile_disc(0.3) within group (order by n)",
        "percentile_disc(0.7) within group (order by v desc)",
    ),
    "regr_avgx": ("regr_avgx(n, v)",),
    "regr_avgy": ("regr_avgy(n, v)",),
    "regr_count": ("regr_count(n, v)",),
    "regr_intercept": ("regr_intercept(n, v)",),
    "regr_r2": ("regr_r2(n, v)", "regr_r2(v, 1)", "regr_r2(1, v)"),
    "regr_slope": ("regr_slope(n, v)",),
    "regr_sxx": ("regr_sxx(n, v)",),
    "regr_sxy": ("regr_sxy(n, v)",),
    "regr_syy": ("regr_syy(n, v)",),
    "skewness": ("skewness(v)", "skewness(n)", "skewness(1)"),
    "some": ("some(b)",),
    "std": ("std(n)",),
    "stddev": ("stddev(v)",),
    "stddev_pop": ("stddev_pop(n)",),
    "stddev_samp": ("stddev_samp(n)",),
    "string_agg": ("string_agg(s, ', ') within group (order by n nulls last, s)",),
    "sum": ("sum(n)", "sum(d)"),
    "try_avg": ("try_avg(n)",),
    "try_sum": ("try_sum(n)", "try_sum(l)"),
    "var_pop": ("var_pop(n)",),
    "var_samp": ("var_samp(n)",),
    "variance": ("variance(v)",),
}
_BYTES = "format of a sketch library"
_REFUSED: dict[str, tuple[str, str]] = {
    "approx_top_k": ("approx_top_k(n)", "estimates by a sketch library"),
    "approx_top_k_accumulate": ("approx_top_k_accumulate(n)", _BYTES),
    "count_min_sketch": ("count_min_sketch(n, 0.5d, 0.5d, 1)", _BYTES),
    "histogram_numeric": ("histogram_numeric(n, 3)", "merging of partitions"),
    "hll_sketch_agg": ("hll_sketch_agg(n)", _BYTES),
    "hll_union_agg": ("hll_union_agg(x)", _BYTES),
    "kll_merge_agg_bigint": ("kll_merge_agg_bigint(x)", _BYTES),
    "kll_merge_agg_double": ("kll_merge_agg_double(x)", _BYTES),
    "kll_merge_agg_float": ("kll_merge_agg_float(x)", _BYTES),
    "kll_sketch_agg_bigint": ("kll_sketch_agg_bigint(l)", _BYTES),
    "kll_sketch_agg_double": ("kll_sketch_agg_double(v)", _BYTES),
    "kll_sketch_agg_float": ("kll_sketch_agg_float(cast(v as float))", _BYTES),
    "theta_intersection_agg": ("theta_intersection_agg(x)", _BYTES),
    "theta_sketch_agg": ("theta_sketch_agg(n)", _BYTES),
    "theta_union_agg": ("theta_union_agg(x)", _BYTES),
    "tuple_intersection_agg_double": ("tuple_intersection_agg_double(x)", _BYTES),
    "tuple_intersection_agg_integer": ("tuple_intersection_agg_integer(x)", _BYTES),
    "tuple_sketch_agg_double": ("tuple_sketch_agg_double(n, v)", _BYTES),
    "tuple_sketch_agg_integer": ("tuple_sketch_agg_integer(n, n)", _BYTES),
    "tuple_union_agg_double": ("tuple_union_agg_double(x)", _BYTES),
    "tuple_union_agg_integer": ("tuple_union_agg_integer(x)", _BYTES),
}
_OF_THE_ANALYZER = {"approx_top_k_combine", "grouping", "grouping_id", "measure"}
"""Functions of sketches alone, of ``GROUPING SETS``, and of metric views."""


def _rows(draw: random.Random) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch; no two of them have the same `l`."""
    return [
        (
            draw.choice("abc"),
            draw.choice([1, 2, 3, None]),
            draw.randint(-(10**12), 10**12),
            draw.choice([1.5, 2.0, None, -3.25, 7.0]),
            draw.choice([Decimal("1.25"), Decimal("-7.50"), None]),
            draw.choice(["x", "yy", "z", None]),
            draw.choice([True, False, None]),
            dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=draw.randint(0, 999)),
            draw.choice([b"", b"\x00\xff", None]),
            draw.choice(
                [
                    None,
                    {"p": draw.choice([1, 2, None]), "q": draw.choice(["u", None]), "r": [1.0]},
                    {"p": 2, "q": "u", "r": draw.choice([None, [], [1.0, None], [float("nan")]])},
                ]
            ),
            draw.choice([None, [], [1], [1, 2], [2, 1, None], [None]]),
            draw.choice([None, [], [("a", 1)], [("b", None), ("a", 2)]]),
        )
        for _ in range(draw.choice([5, 14]))
    ]


def _stream() -> dict[str, Stream]:
    draw = random.Random(5)
    return {"s": Stream(schema=_COLUMNS, batches=[_rows(draw) for _ in range(2)])}


def _by(texts: list[str]) -> Callable[[DataFrame], DataFrame]:
    """Return the query that has these aggregates."""
    names = ", ".join(f"{text} AS r{number}" for number, text in enumerate(texts))

    def build(s: DataFrame) -> DataFrame:
        return s.sparkSession.sql(f"SELECT k, {names} FROM {{s}} GROUP BY k", s=s)

    return build


def test_aggregate_functions_give_what_spark_gives(spark: SparkSession) -> None:
    texts = [text for several in _COMPUTED.values() for text in several]
    cases = {
        f"functions {part}": Case(build=_by(texts[part::3]), streams=_stream(), mode="update")
        for part in range(3)
    }
    cases["product, which SQL does not have"] = Case(
        build=lambda s: s.groupBy("k").agg(sf.product("n"), sf.product("v")),
        streams=_stream(),
        mode="update",
    )
    cases["intervals"] = Case(build=_of_intervals, streams=_stream(), mode="update")
    assert not compare_all(spark, cases)


def _of_intervals(s: DataFrame) -> DataFrame:
    """Return sums and means of intervals by an interval of months."""
    return s.sparkSession.sql(
        "SELECT cast(y AS string), c.z IS NULL AS z, total, mean, several, days, x FROM ("
        "SELECT make_ym_interval(0, 7 * n) AS y, named_struct('z', CAST(INTERVAL '1' YEAR * n AS "
        "INTERVAL YEAR)) AS c, sum(make_dt_interval(-n, 0, 0, v)) AS total, count(*) AS x, "
        "avg(make_dt_interval(0, n, 0, v / 7)) AS mean, try_sum(INTERVAL '1' DAY * v) AS several, "
        "max(date(ts) - DATE'2023-12-24') AS days FROM {s} GROUP BY ALL)",
        s=s,
    )


def test_every_other_aggregate_function_is_refused_by_its_reason(spark: SparkSession) -> None:
    registry: Any = spark._jsparkSession.sessionState().functionRegistry()
    names = registry.listFunction()
    known = {*_COMPUTED, *_REFUSED, *_OF_THE_ANALYZER}
    for index in range(names.size()):
        info = registry.lookupFunction(names.apply(index))
        if info.isDefined() and str(info.get().getGroup()) == "agg_funcs":
            assert str(names.apply(index).funcName()) in known
    with written(spark, _stream()) as frames:
        for text, reason in _REFUSED.values():
            with pytest.raises(UnsupportedQueryError, match=reason) as refusal:
                gw.read_plan(_by([text])(frames["s"]), mode="update")
            assert "SQL text" in str(refusal.value.context["place"])
