"""Aggregates that only adopted queries have: merges in any number of parts, and overflow."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.adopt.spark_aggregates import EncodedAggregate, JoinedText, Numeric
from godwit.library import aggregates as gw

if TYPE_CHECKING:
    from godwit.library.aggregates.arithmetic import Overflow
    from godwit.operators.aggregate import Aggregate

_STRUCT = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
_TYPES: list[pa.DataType] = [_STRUCT, pa.int64(), pa.float64(), pa.string()]


def _rows(draw: random.Random, count: int) -> pa.Table:
    values = {
        "s": [
            draw.choice(
                [None, {"x": draw.choice([1, 2, None]), "y": draw.choice([None, ["a"], []])}]
            )
            for _ in range(count)
        ],
        "n": [draw.choice([None, 1, -5, 2**40]) for _ in range(count)],
        "v": [draw.choice([None, 0.5, -2.0, 3.25]) for _ in range(count)],
        "t": [draw.choice([None, "a", "bb"]) for _ in range(count)],
    }
    return pa.table(
        {name: pa.array(values[name], dtype) for name, dtype in zip(values, _TYPES, strict=True)}
    )


def _encoded(make: Aggregate, *sources: Any) -> EncodedAggregate:
    return EncodedAggregate(aggregate=make, sources=sources)


_AGGREGATES: list[Any] = [
    _encoded(gw.max_by("c0", "c1"), ("s", "value"), ("s", "order")),
    _encoded(gw.first("c0"), ("s", "value")),
    _encoded(gw.all_values("collect_list", "c0"), ("s", "value")),
    _encoded(gw.count_distinct("c0"), ("s", "identity")),
    *(Numeric(name=name, columns=("n",)) for name in ("bit_and", "bit_or", "bit_xor")),
    *(Numeric(name=n, columns=("v",)) for n in ("skewness", "kurtosis", "regr_s", "product")),
    *(
        Numeric(name=name, columns=("v", "w"))
        for name in ("covar_pop", "covar_samp", "corr", "regr_r2", "regr_slope", "regr_intercept")
    ),
    Numeric(name="bitmap", columns=("p",)),
    Numeric(name="bitmap_or", columns=("x",)),
    JoinedText(text="t", delimiter="-", orders=()),
    JoinedText(text="t", delimiter="", orders=(("n", True, False), ("v", False, True))),
]


@pytest.mark.parametrize("aggregate", _AGGREGATES, ids=repr)
def test_rows_in_parts_give_what_all_rows_give(aggregate: Any) -> None:
    draw = random.Random(3)
    rows = _rows(draw, 60)
    rows = rows.append_column("w", rows["n"].cast(pa.float64()))
    rows = rows.append_column("x", rows["t"].cast(pa.binary()))
    rows = rows.append_column("p", pa.array([draw.randrange(99) for _ in range(60)]))
    bound = aggregate.bind(rows.schema)
    groups = np.array([draw.randrange(4) for _ in range(60)])

    def states_of(first: int, last: int) -> pa.RecordBatch:
        part = rows.slice(first, last - first)
        columns = [part[name].combine_chunks() for name in aggregate.columns]
        return bound.update(bound.create(5), groups[first:last], *columns)

    whole = bound.finish(states_of(0, 60)).to_pylist()
    parts = bound.merge(bound.merge(states_of(0, 7), states_of(7, 31)), states_of(31, 60))
    merged = bound.finish(parts).to_pylist()
    for mine, other in zip(whole, merged, strict=True):
        assert mine == (pytest.approx(other) if isinstance(other, float) else other)
    assert whole[4] in (None, [], 0, bytes(4096))


@pytest.mark.parametrize(("overflow", "result"), [("wrap", -(2**63) + 1), ("null", None)])
def test_a_sum_that_does_not_fit_wraps_or_is_null(overflow: Overflow, result: int | None) -> None:
    columns = pa.array([2**63 - 1, 2, -1, 1])
    bound = gw.sum_as("n", overflow).bind(pa.schema({"n": pa.int64()}))
    states = bound.update(bound.create(2), np.array([0, 0, 1, 1]), columns)
    assert bound.finish(states).to_pylist() == [result, 0]


def test_a_sum_of_decimals_that_does_not_fit_is_null() -> None:
    dtype = pa.decimal128(38, 0)
    columns = pa.array([Decimal(9 * 10**37), Decimal(9 * 10**37), Decimal(1)], dtype)
    bound = gw.sum_as("n", "wrap").bind(pa.schema({"n": dtype}))
    states = bound.update(bound.create(2), np.array([0, 0, 1]), columns)
    assert bound.finish(states).to_pylist() == [None, Decimal(1)]


@pytest.mark.parametrize(
    ("name", "descending", "result"),
    [
        ("mode", False, 1),
        ("mode", True, 4),
        ("percentile", True, 3.0),
        ("percentile_disc", False, 1.0),
    ],
)
def test_counts_of_values_follow_an_order(name: str, descending: bool, result: float) -> None:
    shares = () if name == "mode" else (0.25,)
    bound = gw.from_counts(name, "n", percentages=shares, descending=descending).bind(
        pa.schema({"n": pa.int64()})
    )
    states = bound.update(bound.create(2), np.zeros(5, np.int64), pa.array([1, 1, 4, 4, 2]))
    if name == "percentile":
        states = bound.update(bound.create(2), np.zeros(5, np.int64), pa.array([1, 2, 3, 4, 2]))
    assert bound.finish(states).to_pylist() == [result, None]


def test_percentiles_of_decimals_have_the_last_bits_of_spark() -> None:
    dtype = pa.decimal128(18, 4)
    values = [Decimal("1.2345"), Decimal("0.0001"), Decimal("1.2345"), Decimal("1.2345")]
    bound = gw.from_counts("percentile", "n", percentages=(0.5,)).bind(pa.schema({"n": dtype}))
    states = bound.update(bound.create(2), np.array([0, 0, 1, 1]), pa.array(values, dtype))
    assert bound.finish(states).to_pylist() == [0.6173, 1.2345]
