"""However a stream is split, every aggregate gives what plain Python gives over all rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.oracles import aggregates as oracle
from tests.oracles.lane import Lane
from tests.support.rounds import rounds

from godwit.library import aggregates as gw
from godwit.library.aggregates.conditions import restricted
from godwit.library.compute import ComputeOperator

INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-(2**50), 2**50)
MODERATE = st.floats(-1e6, 1e6, allow_subnormal=False)
FLOATS = st.one_of(MODERATE, st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0]))
DECIMALS = st.integers(-(10**20) + 1, 10**20 - 1).map(lambda i: Decimal(i).scaleb(-3))
STRINGS = st.text(st.sampled_from("ab\u00e9\U0001f426"), max_size=3)

TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), INT64),
    "small": (pa.int64(), SMALL),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (pa.float64(), FLOATS),
    "moderate": (pa.float64(), MODERATE),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "decimal": (pa.decimal128(23, 3), DECIMALS),
    "string": (pa.string(), STRINGS),
    "binary": (pa.binary(), st.binary(max_size=3)),
}

EXACT = list(TYPES)
NUMBERS = ["int8", "small", "decimal"]

Oracle = Callable[[list[Any]], Any]

CASES: list[tuple[str, gw.Aggregate, Oracle, list[str]]] = [
    ("count", gw.count(), oracle.count_rows, ["int64"]),
    ("count of a column", gw.count("v"), oracle.count, ["int64", "string"]),
    ("sum", gw.sum("v"), oracle.total, [*NUMBERS, "moderate", "float64"]),
    ("mean", gw.mean("v"), oracle.mean, ["int8", "small", "moderate", "float64"]),
    ("mean of decimals", gw.mean("v"), partial(oracle.mean_of_decimals, scale=7), ["decimal"]),
    ("variance", gw.variance("v"), oracle.variance, ["int8", "moderate", "float64"]),
    (
        "population variance",
        gw.variance("v", population=True),
        partial(oracle.variance, population=True),
        ["int8", "moderate"],
    ),
    ("min", gw.min("v"), oracle.minimum, EXACT),
    ("max", gw.max("v"), oracle.maximum, EXACT),
    ("first", gw.first("v"), oracle.first, EXACT),
    ("last", gw.last("v"), oracle.last, EXACT),
    ("first not null", gw.first("v", ignore_nulls=True), oracle.first_valid, EXACT),
    ("last not null", gw.last("v", ignore_nulls=True), oracle.last_valid, EXACT),
    ("collect_set", gw.collect_set("v", 3), partial(oracle.collect_set, limit=3), EXACT),
    ("collect_list", gw.collect_list("v", 3), partial(oracle.collect_list, limit=3), EXACT),
    ("count_distinct", gw.count_distinct("v"), oracle.count_distinct, EXACT),
    ("max_by itself", gw.max_by("v", "v"), oracle.maximum, EXACT),
    ("min_by itself", gw.min_by("v", "v"), oracle.minimum, EXACT),
    ("top_k", gw.top_k("v", 2), partial(oracle.top_k, k=2), EXACT),
    ("most_frequent", gw.most_frequent("v", 2), partial(oracle.most_frequent, k=2), EXACT),
]

KEYS = st.one_of(st.none(), st.sampled_from(["x", "y", "z"]))


@st.composite
def streams(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> list[list[list[tuple[Any, Any]]]]:
    """Epochs of batches of rows (key, value)."""
    # A small pool makes equal values, and so ties and repetitions, likely.
    pool = draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=6))
    rows = st.tuples(KEYS, st.sampled_from(pool))
    batches = st.lists(rows, max_size=8)
    return draw(st.lists(st.lists(batches, min_size=1, max_size=4), min_size=1, max_size=3))


def batch_of(rows: list[tuple[Any, Any]], dtype: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "k": pa.array([key for key, _ in rows], pa.string()),
            "v": pa.array([value for _, value in rows], dtype),
        }
    )


def is_finite(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and math.isfinite(value)


def assert_same(found: Any, expected: Any, *, scale: float) -> None:
    """Compare; floats to 9 digits, or to 12 digits of `scale`: sums depend on their order."""
    if isinstance(expected, float) and isinstance(found, float):
        if math.isnan(expected):
            assert math.isnan(found)
        else:
            assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12 * scale)
    elif isinstance(expected, dict):
        assert_same([*found.values()], [*expected.values()], scale=scale)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, scale=scale)
    else:
        assert found == expected


@pytest.mark.parametrize("kind", TYPES)
def test_any_split_into_epochs_and_partials_gives_what_plain_python_gives(kind: str) -> None:
    dtype, values = TYPES[kind]
    cases = {name: (made, expected) for name, made, expected, kinds in CASES if kind in kinds}

    @settings(derandomize=True, deadline=None, max_examples=rounds(7, 25), database=None)
    @given(epochs=streams(values), combined=st.lists(st.booleans(), min_size=3, max_size=3))
    @example(epochs=[[[("x", None), ("x", None)]]], combined=[True] * 3)
    @example(epochs=[[[]], [[(None, None)]]], combined=[False] * 3)
    def holds(epochs: list[list[list[tuple[Any, Any]]]], combined: list[bool]) -> None:
        operator = ComputeOperator(
            name="o",
            keys=pa.schema({"k": pa.string()}),
            inputs=pa.schema({"v": dtype}),
            aggregates={name: aggregate for name, (aggregate, _) in cases.items()},
        )
        lane = Lane(operator, num_key_groups=5)
        seen: dict[Any, list[Any]] = {}
        for epoch, combine in zip(epochs, combined, strict=False):
            batches = [batch_of(rows, dtype) for rows in epoch]
            if combine:
                lane.epoch_of_partials(batches)
            else:
                lane.epoch(pa.concat_batches(batches))
            for row in pa.concat_batches(batches).to_pylist():
                seen.setdefault((row["k"],), []).append(row["v"])
        results = lane.results()
        assert results.keys() == seen.keys()
        for key, all_values in seen.items():
            largest = max((abs(float(v)) for v in all_values if is_finite(v)), default=0.0)
            for name, (_, expected) in cases.items():
                scale = largest**2 if "variance" in name else largest
                assert_same(results[key][name], expected(all_values), scale=scale)

    holds()


@settings(derandomize=True, deadline=None, max_examples=rounds(5, 20), database=None)
@given(
    parts=st.lists(
        st.lists(
            st.tuples(KEYS, st.tuples(st.integers(-3, 3), st.one_of(st.none(), st.integers(0, 3)))),
            max_size=8,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_aggregate_with_a_condition_is_that_of_the_rows_for_which_it_holds(
    parts: list[list[tuple[Any, tuple[int, int | None]]]],
) -> None:
    cases = {name: (made, expected) for name, made, expected, kinds in CASES if "small" in kinds}
    cases |= {"min": (gw.min("v"), oracle.minimum), "rows": (gw.count(), oracle.count_rows)}
    operator = ComputeOperator(
        name="o",
        keys=pa.schema({"k": pa.string()}),
        inputs=pa.schema({"v": pa.int64(), "w": pa.int64()}),
        aggregates={name: restricted(made, "w >= 2") for name, (made, _) in cases.items()},
    )
    batches = [
        pa.record_batch(
            {
                "k": pa.array([key for key, _ in part], pa.string()),
                "v": pa.array([v for _, (v, _) in part], pa.int64()),
                "w": pa.array([w for _, (_, w) in part], pa.int64()),
            }
        )
        for part in parts
    ]
    whole, split = Lane(operator), Lane(operator)
    whole.epoch(pa.concat_batches(batches))
    split.epoch_of_partials(batches)
    seen: dict[Any, list[Any]] = {}
    for key, (v, w) in (row for part in parts for row in part):
        seen.setdefault((key,), []).extend([v] if w is not None and w >= 2 else [])
    for lane in (whole, split):
        results = lane.results()
        assert results.keys() == seen.keys()
        for key, values in seen.items():
            for name, (_, expected) in cases.items():
                of_none = None if name in ("first", "last") else expected(values)
                assert_same(results[key][name], expected(values) if values else of_none, scale=10.0)


@settings(derandomize=True, deadline=None, max_examples=rounds(12, 60), database=None)
@given(
    data=st.data(),
    deciding=st.sampled_from(["int64", "float64", "string", "decimal"]),
    taken=st.sampled_from(["string", "bool", "decimal", "float64", "binary"]),
)
def test_rows_chosen_by_another_column_stay_whole_and_ties_are_broken_by_arrival(
    data: st.DataObject, deciding: str, taken: str
) -> None:
    by_type, by_values = TYPES[deciding]
    value_type, values = TYPES[taken]
    pool = data.draw(st.lists(st.one_of(st.none(), by_values), min_size=1, max_size=3))
    pair = st.tuples(st.one_of(st.none(), values), st.sampled_from(pool))
    parts = data.draw(st.lists(st.lists(st.tuples(KEYS, pair), max_size=6), min_size=1, max_size=4))
    operator = ComputeOperator(
        name="o",
        keys=pa.schema({"k": pa.string()}),
        inputs=pa.schema({"v": value_type, "by": by_type}),
        aggregates={
            "r": gw.top_k("v", 2, by="by"),
            "largest": gw.max_by("v", "by"),
            "smallest": gw.min_by("v", "by"),
        },
    )
    batches = [
        pa.record_batch(
            {
                "k": pa.array([key for key, _ in part], pa.string()),
                "v": pa.array([value for _, (value, _) in part], value_type),
                "by": pa.array([by for _, (_, by) in part], by_type),
            }
        )
        for part in parts
    ]
    whole, split = Lane(operator), Lane(operator)
    whole.epoch(pa.concat_batches(batches))
    split.epoch_of_partials(batches)
    seen: dict[Any, list[Any]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            seen.setdefault((row["k"],), []).append((row["v"], row["by"]))
    for lane in (whole, split):
        for key, result in lane.results().items():
            pairs = [value for row in result["r"] for value in (row["v"], row["by"])]
            expected = [value for pair in oracle.top_k_by(seen[key], 2) for value in pair]
            assert_same(pairs, expected, scale=1)
            for name in ("largest", "smallest"):
                one = oracle.extreme_by(seen[key], largest=name == "largest")
                assert_same(result[name], one, scale=1)


@pytest.mark.parametrize("kind", ["int8", "int64", "float32", "float64", "decimal"])
@settings(derandomize=True, deadline=None, max_examples=rounds(8, 40), database=None)
@given(data=st.data(), percentage=st.floats(0, 1), error=st.sampled_from([0.001, 0.01, 0.25]))
def test_percentiles_are_within_their_error_however_values_are_split(
    kind: str, data: st.DataObject, percentage: float, error: float
) -> None:
    dtype, values = TYPES[kind]
    rows = st.tuples(st.just("x"), st.one_of(st.none(), values))
    parts = data.draw(st.lists(st.lists(rows, max_size=20), min_size=1, max_size=4))
    bound = gw.approx_percentile("v", percentage, error=error).bind(pa.schema({"v": dtype}))

    def sketch(part: list[tuple[Any, Any]]) -> pa.RecordBatch:
        column = batch_of(part, dtype).column("v")
        return bound.update(bound.create(1), np.zeros(len(part), np.int64), column)

    merged = bound.create(1)
    for part in parts:
        merged = bound.merge(merged, sketch(part))
    everything = [row for part in parts for row in part]
    assert merged.equals(sketch(everything))
    assert merged.equals(sketch(everything[::-1]))
    found = bound.finish(merged)[0].as_py()
    column = batch_of(everything, dtype).column("v").to_pylist()
    expected = oracle.percentile(column, percentage)
    if expected is None or not math.isfinite(expected):
        assert_same(found, expected, scale=1)
    else:  # doubles next to zero are themselves further apart than the error
        assert math.isclose(found, expected, rel_tol=error * (1 + 1e-9), abs_tol=1e-321)


@settings(derandomize=True, deadline=None, max_examples=rounds(8, 40), database=None)
@given(parts=st.lists(st.lists(st.integers(0, 400), max_size=150), min_size=1, max_size=5))
def test_a_sketch_depends_only_on_the_set_of_values(parts: list[list[int]]) -> None:
    # 64 registers: sketches of more than 15 values are dense, so both forms and their union occur.
    bound = gw.approx_distinct("v", error=0.13).bind(pa.schema({"v": pa.int64()}))
    everything = [value for part in parts for value in part]

    def sketch(values: list[int]) -> pa.RecordBatch:
        column = pa.array(values, pa.int64())
        return bound.update(
            bound.create(1), pa.array([0] * len(values), pa.int64()).to_numpy(), column
        )

    merged = bound.create(1)
    for part in parts:
        merged = bound.merge(merged, sketch(part))
    assert merged.equals(sketch(everything))
    assert merged.equals(sketch(sorted(set(everything), reverse=True)))
    distinct = len(set(everything))
    estimate = bound.finish(merged)[0].as_py()
    assert abs(estimate - distinct) <= 4 * 0.13 * distinct + (distinct > 0)
