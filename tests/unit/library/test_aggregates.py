"""Aggregates: types, nulls, extremes, bounds, and what is said when a column does not fit.

That any split of a stream gives the same results is in ``tests/property/test_aggregates.py``.
"""

from __future__ import annotations

import datetime as dt
import math
import pickle
import random
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.library import aggregates as gw
from godwit.library.aggregates.sums import SumOverflowError
from godwit.model.errors import InvalidFlowError


def results(aggregate: gw.Aggregate, *columns: pa.Array, groups: list[int] | None = None) -> Any:
    """Result of every group; one group unless they are given."""
    inputs = pa.schema(
        [pa.field(n, c.type) for n, c in zip(aggregate.columns, columns, strict=True)]
    )
    bound = aggregate.bind(inputs)
    count = 1 if groups is None else max(groups) + 1
    of_row = np.array(groups if groups is not None else [0] * len(columns[0]), np.int64)
    state = bound.update(bound.create(count), of_row, *columns)
    state.validate()
    result = bound.finish(state)
    result.validate(full=True)
    assert result.type == bound.output
    return result.to_pylist()


DECIMAL_38 = pa.decimal128(38, 0)
WIDE = [pa.field("v", t) for t in (pa.int64(), DECIMAL_38, pa.decimal128(38, 38))]
EXACT = Context(prec=80)
LARGEST = Decimal(10**38 - 1)


def test_sums_of_integers_are_int64_and_of_floats_double() -> None:
    small = pa.schema({"v": pa.int8()})
    assert gw.sum("v").bind(small).output == pa.int64()
    assert gw.sum("v").bind(pa.schema({"v": pa.float32()})).output == pa.float64()
    decimals = gw.sum("v").bind(pa.schema({"v": pa.decimal128(10, 2)}))
    assert decimals.output == pa.decimal128(20, 2)
    assert gw.sum("v").bind(pa.schema({"v": DECIMAL_38})).output == DECIMAL_38


def test_a_sum_reaches_both_ends_of_int64() -> None:
    column = pa.array([2**62, 2**62 - 1, -(2**62), -(2**62)])
    assert results(gw.sum("v"), column, groups=[0, 0, 1, 1]) == [2**63 - 1, -(2**63)]


def test_a_sum_may_pass_the_end_of_int64_on_the_way() -> None:
    assert results(gw.sum("v"), pa.array([2**63 - 1, 2**63 - 1, -(2**63), -5])) == [2**63 - 7]


@pytest.mark.parametrize("values", [[2**63 - 1, 1], [-(2**63), -1], [2**62] * 2])
def test_a_sum_of_integers_that_does_not_fit_is_an_error_that_names_the_group(
    values: list[int],
) -> None:
    with pytest.raises(SumOverflowError, match="int64") as caught:
        results(gw.sum("v"), pa.array([0, *values]), groups=[0, *([3] * len(values))])
    assert caught.value.group == 3


def test_merging_sums_that_overflow_is_an_error_of_the_result_alone() -> None:
    bound = gw.sum("v").bind(pa.schema({"v": pa.int64()}))
    states = bound.update(bound.create(1), np.array([0]), pa.array([2**63 - 1]))
    twice = bound.merge(states, states)
    with pytest.raises(SumOverflowError):
        bound.finish(twice)
    back = bound.update(twice, np.array([0]), pa.array([-(2**63 - 1)]))
    assert bound.finish(back).to_pylist() == [2**63 - 1]
    assert back.equals(states)


@pytest.mark.parametrize("column", WIDE, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_sum_is_exact_however_its_values_are_combined(column: pa.Field, seed: int) -> None:
    rng, scale = random.Random(seed), getattr(column.type, "scale", 0)
    most = 2**63 - 1 if column.type == pa.int64() else 10**38 - 1
    values = [rng.choice([most, -most, most // 2, -1, 0]) for _ in range(rng.choice([3, 40]))]
    total, count = sum(values), len(values)
    dtype = column.type
    items = values if dtype == pa.int64() else [Decimal(v).scaleb(-scale, EXACT) for v in values]
    for aggregate in (gw.sum("v"), gw.mean("v")):
        bound = aggregate.bind(pa.schema([column]))
        parts = [
            bound.update(bound.create(1), np.array([0]), pa.array([item], dtype)) for item in items
        ]
        while len(parts) > 1:
            left = parts.pop(rng.randrange(len(parts)))
            at = rng.randrange(len(parts))
            parts[at] = bound.merge(parts[at], left)
        every = bound.update(bound.create(1), np.zeros(count, np.int64), pa.array(items, dtype))
        if not pa.types.is_floating(bound.output):  # whose last bits depend on the order
            assert parts[0].equals(every)
        if bound.describe()["aggregate"] == "sum" and abs(total) > most:
            with pytest.raises(SumOverflowError, match="the sum does not fit"):
                bound.finish(every)
        elif bound.describe()["aggregate"] == "sum":
            (found,) = bound.finish(every).to_pylist()
            assert int(found if dtype == pa.int64() else found.scaleb(scale, EXACT)) == total


def test_the_mean_of_decimals_needs_no_room_for_their_sum() -> None:
    nines = pa.array([Decimal("0.9"), Decimal("0.9")], pa.decimal128(38, 38))
    assert results(gw.mean("v"), nines) == [Decimal("0.9")]
    with pytest.raises(SumOverflowError, match=r"the mean does not fit decimal128\(38, 4\)") as no:
        results(gw.mean("v"), pa.array([LARGEST], DECIMAL_38))
    assert "34 digits" in no.value.remedy


def test_sums_of_decimals_are_exact_up_to_38_digits() -> None:
    column = pa.array([LARGEST, Decimal(-1), Decimal(1), LARGEST.copy_negate()], DECIMAL_38)
    assert results(gw.sum("v"), column, groups=[0, 0, 0, 1]) == [LARGEST, LARGEST.copy_negate()]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_of_decimals_that_does_not_fit_is_an_error(sign: int) -> None:
    column = pa.array([Decimal((10**38 - 1) * sign), Decimal(sign)], DECIMAL_38)
    with pytest.raises(SumOverflowError, match=r"decimal128\(38, 0\)"):
        results(gw.sum("v"), column)


def test_means_of_decimals_have_four_more_digits_rounded_half_away_from_zero() -> None:
    column = pa.array([Decimal("0.01"), Decimal("0.00"), Decimal("0.00")], pa.decimal128(4, 2))
    assert results(gw.mean("v"), column) == [Decimal("0.003333")]
    eighths = pa.array([Decimal(s) for s in (1, 0, 0, 0, 0, 0, 0, 0)], pa.decimal128(4, 0))
    halves = pa.array([Decimal("0.0001")] + [Decimal(0)] * 31, pa.decimal128(8, 4))
    assert results(gw.mean("v"), eighths) == [Decimal("0.1250")]
    assert results(gw.mean("v"), halves) == [Decimal("0.00000313")]  # 0.000003125
    negative = pa.array([Decimal("-0.0001")] + [Decimal(0)] * 31, pa.decimal128(8, 4))
    assert results(gw.mean("v"), negative) == [Decimal("-0.00000313")]


def test_a_mean_of_decimals_that_has_no_room_for_its_digits_is_an_error() -> None:
    with pytest.raises(SumOverflowError):
        results(gw.mean("v"), pa.array([LARGEST], DECIMAL_38))


def test_infinities_and_nan_go_through_sums_and_variances() -> None:
    column = pa.array([math.inf, -math.inf, math.inf, 1.0])
    groups = [0, 0, 1, 1]
    total = results(gw.sum("v"), column, groups=groups)
    assert math.isnan(total[0])
    assert total[1] == math.inf
    assert all(math.isnan(v) for v in results(gw.variance("v"), column, groups=groups))


def test_variance_keeps_its_digits_far_from_zero() -> None:
    column = pa.array([1e9 + 4.0, 1e9 + 7.0, 1e9 + 13.0, 1e9 + 16.0])
    assert results(gw.variance("v"), column) == [30.0]
    assert results(gw.variance("v", population=True), column) == [22.5]
    assert results(gw.stddev("v", population=True), column) == [math.sqrt(22.5)]


def test_variance_keeps_its_digits_over_many_values_far_from_zero() -> None:
    # The mean from their plain sum is off by 1, which would double the variance.
    values = np.tile([1e15, 1e15 + 2], 10_000)
    column = pa.array(np.concatenate([values, values - 2e15]))
    groups = np.repeat([0, 1], len(values)).tolist()
    found = results(gw.variance("v", population=True), column, groups=groups)
    assert found == pytest.approx([1.0, 1.0], rel=1e-9)


def test_one_value_has_no_sample_variance_but_a_population_variance_of_zero() -> None:
    column = pa.array([5])
    assert results(gw.variance("v"), column) == [None]
    assert results(gw.stddev("v"), column) == [None]
    assert results(gw.variance("v", population=True), column) == [0.0]


@pytest.mark.parametrize("call", [gw.max, gw.min])
@pytest.mark.parametrize("first", [0.0, -0.0])
def test_an_extreme_that_is_zero_has_the_sign_of_the_first_zero(call: Any, first: float) -> None:
    lesser = -1.0 if call is gw.max else 1.0
    column = pa.array([lesser, first, None, -first, 0.0, -0.0])
    assert str(results(call("v"), column)) == str([first])
    bound = call("v").bind(pa.schema({"v": pa.float64()}))
    group = np.zeros(1, np.int64)
    states = [
        bound.update(bound.create(1), group, pa.array([value])) for value in (lesser, first, -first)
    ]
    whole = bound.merge(bound.merge(*states[:2]), states[2])
    later = bound.update(bound.merge(*states[:2]), group, pa.array([-first]))
    assert {str(bound.finish(state).to_pylist()) for state in (whole, later)} == {str([first])}


def test_nan_is_the_largest_value() -> None:
    column = pa.array([1.0, math.nan, math.nan, None])
    groups = [0, 0, 1, 1]
    smallest = results(gw.min("v"), column, groups=groups)
    assert smallest[0] == 1.0
    assert math.isnan(smallest[1])
    assert all(math.isnan(v) for v in results(gw.max("v"), column, groups=groups))
    ranked = results(gw.top_k("v", 2), column, groups=groups)
    assert math.isnan(ranked[0][0])
    assert ranked[0][1] == 1.0


def test_the_last_value_may_be_null_unless_nulls_are_ignored() -> None:
    column = pa.array(["a", "b", None])
    assert results(gw.last("v"), column) == [None]
    assert results(gw.last("v", ignore_nulls=True), column) == ["b"]
    assert results(gw.first("v"), column[1:]) == ["b"]


EMPTY: list[tuple[gw.Aggregate, Any]] = [
    (gw.count(), 0),
    (gw.count("v"), 0),
    (gw.sum("v"), None),
    (gw.mean("v"), None),
    (gw.variance("v"), None),
    (gw.stddev("v"), None),
    (gw.min("v"), None),
    (gw.max("v"), None),
    (gw.first("v"), None),
    (gw.last("v", ignore_nulls=True), None),
    (gw.approx_distinct("v"), 0),
    (gw.top_k("v", 3), []),
    (gw.collect_set("v"), []),
    (gw.collect_list("v"), []),
    (gw.count_distinct("v"), 0),
    (gw.max_by("v", "v"), None),
    (gw.min_by("v", "v"), None),
    (gw.approx_percentile("v", 0.9), None),
    (gw.approx_median("v"), None),
]


@pytest.mark.parametrize(("aggregate", "expected"), EMPTY)
def test_an_aggregate_of_nothing_is_null_or_empty(aggregate: gw.Aggregate, expected: Any) -> None:
    bound = aggregate.bind(pa.schema({"v": pa.int64()}))
    assert bound.finish(bound.create(2)).to_pylist() == [expected, expected]
    assert bound.finish(bound.create(0)).to_pylist() == []


@pytest.mark.parametrize("aggregate", [aggregate for aggregate, _ in EMPTY])
def test_bound_aggregates_can_be_pickled(aggregate: gw.Aggregate) -> None:
    bound = aggregate.bind(pa.schema({"v": pa.int64()}))
    copy = pickle.loads(pickle.dumps(bound))
    assert copy.describe() == bound.describe()
    assert copy.state == bound.state


def test_state_of_top_k_and_collect_set_grows_by_the_width_of_a_value() -> None:
    bound = gw.collect_set("v").bind(pa.schema({"v": pa.int32()}))
    state = bound.update(bound.create(1), np.array([0, 0]), pa.array([1, 2], pa.int32()))
    assert len(state.column(0)[0].as_py()) == 8


def test_collect_set_holds_the_first_values_and_ignores_new_ones_beyond_its_bound() -> None:
    column = pa.array(["c", "a", "c", None, "b", "d"])
    assert results(gw.collect_set("v", 3), column) == [["c", "a", "b"]]


def test_collect_list_holds_the_first_values_again_and_again() -> None:
    column = pa.array(["c", "a", "c", None, "b"])
    assert results(gw.collect_list("v"), column) == [["c", "a", "c", "b"]]
    assert results(gw.collect_list("v", 3), column) == [["c", "a", "c"]]


def test_a_value_by_another_may_be_null_and_what_decides_may_not() -> None:
    symbols, prices = pa.array(["A", None, "C", "D"]), pa.array([1.0, 5.0, 5.0, None])
    assert results(gw.max_by("symbol", "price"), symbols, prices) == [None]
    assert results(gw.min_by("symbol", "price"), symbols, prices) == ["A"]
    # NaN is larger than any number, and a key of its own.
    prices = pa.array([math.nan, 5.0, math.nan, -math.inf])
    found = results(gw.max_by("symbol", "price"), symbols, prices, groups=[0, 0, 2, 2])
    assert found == ["A", None, "C"]
    assert results(gw.min_by("symbol", "price"), symbols, prices) == ["D"]


def test_different_values_are_counted_exactly_and_cost_what_they_are_wide() -> None:
    bound = gw.count_distinct("v").bind(pa.schema({"v": pa.int64()}))
    column = pa.array([i % 5_000 for i in range(20_000)])
    state = bound.update(bound.create(1), np.zeros(20_000, np.int64), column)
    assert bound.finish(state).to_pylist() == [5_000]
    assert len(state.column(0)[0].as_py()) == 40_000
    assert results(gw.count_distinct("v"), pa.array([0.0, -0.0, math.nan, math.nan, None])) == [2]


def test_percentiles_of_many_values_take_little_state_and_keep_their_error() -> None:
    values = np.exp(np.random.default_rng(3).normal(0, 3, 200_000))
    for percentage in (0.0, 0.01, 0.5, 0.99, 1.0):
        bound = gw.approx_percentile("v", percentage).bind(pa.schema({"v": pa.float64()}))
        state = bound.update(bound.create(1), np.zeros(len(values), np.int64), pa.array(values))
        exact = float(np.quantile(values, percentage, method="inverted_cdf"))
        assert bound.finish(state)[0].as_py() == pytest.approx(exact, rel=0.01)
        assert len(state.column(0)[0].as_py()) <= 12 * 1_400


def test_a_state_of_percentiles_answers_another_percentage() -> None:
    schema = pa.schema({"v": pa.float64()})
    one = gw.approx_percentile("v", 0.9).bind(schema).describe()
    assert gw.approx_median("v").bind(schema).describe() == one
    assert gw.approx_median("v", error=0.02).bind(schema).describe() != one


def test_the_median_of_an_even_number_of_values_is_the_lower_one() -> None:
    found = results(gw.approx_median("v"), pa.array([4, 1, 2, 3, 0, 0]), groups=[0, 0, 0, 0, 1, 1])
    assert found == [pytest.approx(2, rel=0.01), 0.0]


@pytest.mark.parametrize("percentage", [-0.1, 1.5, math.nan, "0.5", True, [0.5]])
def test_percentages_out_of_range_are_refused(percentage: Any) -> None:
    with pytest.raises(InvalidFlowError, match=r"percentage=.*between 0 and 1"):
        gw.approx_percentile("v", percentage)
    with pytest.raises(InvalidFlowError, match=r"error=.*between 0\.001 and 0\.25"):
        gw.approx_median("v", error=percentage)


def test_collect_set_holds_equal_floats_once() -> None:
    found = results(gw.collect_set("v"), pa.array([0.0, -0.0, math.nan, math.nan, None]))[0]
    assert found[0] == 0.0
    assert math.isnan(found[1])
    assert len(found) == 2


def test_top_k_by_another_column_gives_structs_of_both_under_their_names() -> None:
    symbols = pa.array(["A", None, "C", "D"])
    prices = pa.array([1, 5, 5, None])
    found = results(gw.top_k("symbol", 2, by="price"), symbols, prices)
    assert found == [[{"symbol": None, "price": 5}, {"symbol": "C", "price": 5}]]


def test_top_k_by_its_own_column_is_top_k() -> None:
    assert gw.top_k("v", 2, by="v").columns == ("v",)


@pytest.mark.parametrize("error", [0.26, 0.1, 0.02, 0.0041])
def test_estimates_of_distinct_values_keep_their_stated_error(error: float) -> None:
    # The root mean square over 40 keys of 20,000 values each; its own error is about 11 %.
    values = np.arange(40 * 20_000)
    groups = np.repeat(np.arange(40), 20_000)
    estimates = np.array(
        results(gw.approx_distinct("v", error=error), pa.array(values), groups=groups.tolist())
    )
    relative = estimates / 20_000 - 1
    assert math.sqrt(float(np.mean(relative**2))) <= error * 1.35
    assert abs(relative.mean()) <= 3 * error / math.sqrt(40)


def test_few_values_are_counted_exactly_and_cost_four_bytes_each() -> None:
    bound = gw.approx_distinct("v").bind(pa.schema({"v": pa.string()}))
    column = pa.array([f"value {i % 500}" for i in range(2_000)])
    state = bound.update(bound.create(1), np.zeros(2_000, np.int64), column)
    assert bound.finish(state).to_pylist() == [500]
    assert len(state.column(0)[0].as_py()) == 2_000


def test_a_sketch_never_outgrows_its_registers() -> None:
    bound = gw.approx_distinct("v", error=0.02).bind(pa.schema({"v": pa.int64()}))
    state = bound.create(1)
    for first in range(0, 30_000, 1_000):
        column = pa.array(np.arange(first, first + 1_000))
        state = bound.update(state, np.zeros(1_000, np.int64), column)
        assert len(state.column(0)[0].as_py()) <= 4_096
    assert bound.finish(state)[0].as_py() == pytest.approx(30_000, rel=0.06)


BAD: list[tuple[gw.Aggregate, str, str]] = [
    (gw.sum("text"), "sum('text') does not accept a column of type string", "accepts integers"),
    (gw.mean("flag"), "mean('flag') does not accept a column of type bool", "cast"),
    (gw.variance("day"), "variance('day') does not accept", "decimals"),
    (gw.sum("unsigned"), "column of type uint64", "signed"),
    (gw.min("route"), "min('route') does not accept a column of type list", "strings"),
    (gw.first("route"), "first('route') does not accept", "cast"),
    (gw.collect_set("route"), "collect_set('route') does not accept", "cast"),
    (gw.approx_distinct("route"), "approx_distinct('route') does not accept", "cast"),
    (gw.collect_list("route"), "collect_list('route') does not accept", "cast"),
    (gw.count_distinct("route"), "count_distinct('route') does not accept", "cast"),
    (gw.max_by("text", "route"), "max_by('text', 'route') does not accept", "cast"),
    (gw.approx_percentile("text", 0.5), "approx_percentile('text') does not accept", "integers"),
    (gw.approx_median("day"), "approx_median('day') does not accept", "integers"),
    (gw.top_k("text", 2, by="route"), "top_k('text', 'route') does not accept", "cast"),
    (gw.sum("txet"), "sum('txet') reads column 'txet', which does not exist", "'text'"),
    (gw.count("nothing"), "count('nothing') reads column 'nothing'", "The columns are"),
]


@pytest.mark.parametrize(("aggregate", "what", "remedy"), BAD)
def test_a_column_that_does_not_fit_is_named_with_what_would(
    aggregate: gw.Aggregate, what: str, remedy: str
) -> None:
    inputs = pa.schema(
        {
            "text": pa.string(),
            "flag": pa.bool_(),
            "day": pa.date32(),
            "unsigned": pa.uint64(),
            "route": pa.list_(pa.int64()),
        }
    )
    with pytest.raises(InvalidFlowError) as caught:
        aggregate.bind(inputs)
    assert what in caught.value.message
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("size", [0, -1, 10_001, 2.5, True])
def test_sizes_out_of_range_are_refused(size: Any) -> None:
    with pytest.raises(InvalidFlowError, match=r"k=.*between 1 and 10,000"):
        gw.top_k("v", size)
    with pytest.raises(InvalidFlowError, match=r"limit=.*between 1 and 10,000"):
        gw.collect_set("v", size)


@pytest.mark.parametrize("error", [0.0, 0.004, 0.3, math.nan])
def test_errors_of_estimates_out_of_range_are_refused(error: float) -> None:
    with pytest.raises(InvalidFlowError, match=r"error=.*between 0\.0041"):
        gw.approx_distinct("v", error=error)


def test_the_name_of_a_column_has_to_be_text() -> None:
    with pytest.raises(InvalidFlowError, match="type int instead of a column's name"):
        gw.sum(7)  # type: ignore[arg-type]  # what is tested


class Longest(gw.Aggregator):
    state = pa.schema({"n": pa.int64()})
    output = pa.int64()

    def create(self, count: int) -> pa.RecordBatch:
        return pa.record_batch([np.zeros(count, np.int64)], schema=self.state)

    def update(
        self, states: pa.RecordBatch, groups: np.ndarray, *columns: pa.Array
    ) -> pa.RecordBatch:
        raise NotImplementedError

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return states.column(0)


def test_an_aggregator_of_the_user_describes_its_class_columns_and_state() -> None:
    bound = Longest("v").bind(pa.schema({"v": pa.string()}))
    assert bound.describe() == {"aggregate": "Longest", "columns": ["v"], "state": {"n": "int64"}}


def test_an_aggregator_of_the_user_needs_columns_that_exist() -> None:
    with pytest.raises(InvalidFlowError, match="Longest reads column 'w'"):
        Longest("w").bind(pa.schema({"v": pa.string()}))


@pytest.mark.parametrize(("attribute", "value"), [("state", {"n": "int64"}), ("output", "int64")])
def test_an_aggregator_of_the_user_needs_arrow_types(attribute: str, value: object) -> None:
    broken = type("Broken", (Longest,), {attribute: value})
    with pytest.raises(InvalidFlowError, match=rf"Broken has {attribute} = .*Set {attribute}"):
        broken("v").bind(pa.schema({"v": pa.string()}))


def test_dates_keep_their_type_in_extremes() -> None:
    days = [dt.date(2024, 1, 2), dt.date(2023, 5, 6)]
    assert results(gw.min("v"), pa.array(days)) == [days[1]]
    assert results(gw.max("v"), pa.array(days)) == [days[0]]


@pytest.mark.parametrize(
    ("aggregate", "shown"),
    [
        (gw.count(), "gw.count()"),
        (gw.count("x"), "gw.count('x')"),
        (gw.sum("x"), "gw.sum('x')"),
        (gw.stddev("x", population=True), "gw.stddev('x', population=True)"),
        (gw.first("x"), "gw.first('x')"),
        (gw.top_k("x", 3), "gw.top_k('x', 3)"),
        (gw.top_k("x", 3, by="y"), "gw.top_k('x', 3, by='y')"),
        (gw.collect_set("x"), "gw.collect_set('x')"),
        (gw.collect_set("x", limit=7), "gw.collect_set('x', limit=7)"),
        (gw.collect_list("x", limit=7), "gw.collect_list('x', limit=7)"),
        (gw.max_by("x", "y"), "gw.max_by('x', 'y')"),
        (gw.approx_percentile("x", 0.9), "gw.approx_percentile('x', 0.9)"),
        (gw.approx_median("x", error=0.05), "gw.approx_median('x', error=0.05)"),
        (gw.approx_distinct("x", error=0.05), "gw.approx_distinct('x', error=0.05)"),
    ],
)
def test_an_aggregate_shows_how_it_was_written(aggregate: object, shown: str) -> None:
    assert repr(aggregate) == shown
