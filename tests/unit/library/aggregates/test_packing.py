"""Packed rows come back as they were, whatever their types, and in no more bytes than stated."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.library.aggregates.packing import PackedColumn, pack, unpack

TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(38, 2): st.integers(-(10**37), 10**37).map(lambda i: Decimal(i).scaleb(-2)),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.string(): st.text(max_size=5),
    pa.large_binary(): st.binary(max_size=5),
}


@settings(derandomize=True, deadline=None, max_examples=60, database=None)
@given(data=st.data())
def test_rows_of_any_types_come_back(data: st.DataObject) -> None:
    dtypes = data.draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=3))
    nullable = data.draw(st.lists(st.booleans(), min_size=len(dtypes), max_size=len(dtypes)))
    counts = data.draw(st.lists(st.integers(0, 3), max_size=5))
    starts = np.concatenate(([0], np.cumsum(np.array(counts, np.int64)))).astype(np.int64)
    columns = []
    for dtype, nulls in zip(dtypes, nullable, strict=True):
        value = st.one_of(st.none(), TYPES[dtype]) if nulls else TYPES[dtype]
        total = int(starts[-1])
        values = data.draw(st.lists(value, min_size=total, max_size=total))
        columns.append(pa.array([*values[:1], *values], dtype)[min(1, total) :])
    layout = tuple(
        PackedColumn(dtype=dtype, nullable=nulls)
        for dtype, nulls in zip(dtypes, nullable, strict=True)
    )
    blobs = pack(starts, columns, layout)
    blobs.validate(full=True)
    assert len(blobs) == len(counts)
    order = data.draw(st.permutations(range(len(counts))))
    # Keys come back in another order from another column, as they do from a store.
    moved = pa.concat_arrays([pa.array([b"before"], pa.large_binary()), blobs])[1:]
    moved = moved.take(pa.array(order, pa.int64()))
    found_starts, found = unpack(moved, layout)
    assert np.diff(found_starts).tolist() == [counts[key] for key in order]
    rows = [row for key in order for row in range(starts[key], starts[key + 1])]
    for column, original in zip(found, columns, strict=True):
        column.validate(full=True)
        assert column.to_pylist() == original.take(pa.array(rows, pa.int64())).to_pylist()


@pytest.mark.parametrize(
    ("dtype", "nullable", "values", "size"),
    [
        (pa.int32(), False, [1, 2], 8),
        (pa.int32(), True, [1, None], 10),
        (pa.bool_(), False, [True, False], 2),
        (pa.date32(), False, [dt.date(2024, 1, 1)], 4),
        (pa.string(), False, ["ab", "c"], 4 + 8 + 3),
        (pa.decimal128(5, 2), False, [Decimal("1.00")], 16),
    ],
)
def test_a_key_costs_its_values_and_little_more(
    dtype: pa.DataType, nullable: bool, values: list[Any], size: int
) -> None:
    layout = (PackedColumn(dtype=dtype, nullable=nullable),)
    blobs = pack(np.array([0, len(values)]), [pa.array(values, dtype)], layout)
    assert len(blobs[0].as_py()) == size


def test_a_key_without_rows_costs_nothing_where_widths_are_fixed() -> None:
    layout = (PackedColumn(dtype=pa.int64(), nullable=False),)
    blobs = pack(np.array([0, 0, 1]), [pa.array([7])], layout)
    assert [len(blob.as_py()) for blob in blobs] == [0, 8]
