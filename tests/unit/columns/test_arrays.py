"""Arrow columns and NumPy arrays turn into each other, slices and nulls included."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.columns.arrays import (
    blob_bytes,
    boundaries_of,
    column_of,
    mask_of,
    numpy_type,
    values_of,
    words_of,
)

PRIMITIVES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, None, False, True]),
    (pa.uint8(), [1, None, 255]),
    (pa.int64(), [1, None, -5]),
    (pa.float32(), [1.5, None, -0.5]),
    (pa.date32(), [dt.date(2024, 1, 1), None]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None]),
    (pa.duration("ms"), [None, dt.timedelta(seconds=3)]),
]


@pytest.mark.parametrize(("dtype", "values"), PRIMITIVES, ids=[str(p[0]) for p in PRIMITIVES])
def test_a_column_taken_apart_and_joined_is_the_column(
    dtype: pa.DataType, values: list[Any]
) -> None:
    for column in (pa.array(values, dtype), pa.array([*values, *values], dtype)[1:]):
        joined = column_of(values_of(column), mask_of(column), dtype)
        joined.validate(full=True)
        assert joined.equals(column)


def test_a_column_without_nulls_has_no_mask() -> None:
    assert mask_of(pa.array([1, None])[:1]) is None
    assert mask_of(pa.array(["a", None])).tolist() == [True, False]  # type: ignore[union-attr]  # the point


def test_an_empty_column_gives_an_empty_array() -> None:
    assert len(values_of(pa.array([], pa.int64()))) == 0
    assert len(values_of(pa.array([], pa.bool_()))) == 0
    assert boundaries_of(pa.array([], pa.string())).tolist() == [0]


def test_words_of_a_decimal_are_its_two_halves() -> None:
    column = pa.array([None, Decimal(-1), Decimal(2**64 + 7)], pa.decimal128(38, 0))[1:]
    high, low = words_of(column)
    assert high.tolist() == [-1, 1]
    assert low.tolist() == [2**64 - 1, 7]


@pytest.mark.parametrize("dtype", [pa.string(), pa.large_binary()])
def test_boundaries_of_a_slice_lead_to_its_bytes(dtype: pa.DataType) -> None:
    column = pa.array(["left out", "ab", None, "c"], pa.string()).cast(dtype)[1:]
    edges, data = boundaries_of(column), blob_bytes(column)
    found = [bytes(data[a:b]) for a, b in itertools.pairwise(edges)]
    assert found == [b"ab", b"", b"c"]


def test_types_without_a_numpy_layout_have_no_numpy_type() -> None:
    for dtype in (
        pa.string(),
        pa.decimal128(5, 2),
        pa.list_(pa.int64()),
        pa.month_day_nano_interval(),
    ):
        assert numpy_type(dtype) is None
    with pytest.raises(TypeError, match="string is not a primitive type"):
        values_of(pa.array(["a"]))


def test_values_of_another_width_are_converted() -> None:
    assert column_of(np.array([1, 2]), None, pa.int8()).equals(pa.array([1, 2], pa.int8()))
