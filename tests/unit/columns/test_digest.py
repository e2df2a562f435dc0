"""Digests of rows: the same for the same rows however they are cut, and others for others."""

from __future__ import annotations

import datetime as dt
import decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from godwit.columns.hashing import RowsDigest

TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint8": (pa.uint8(), st.integers(0, 255)),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "float64": (pa.float64(), st.floats(allow_nan=False)),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=12)),
    "large_string": (pa.large_string(), st.text(max_size=12)),
    "binary": (pa.binary(), st.binary(max_size=12)),
    "decimal": (
        pa.decimal128(20, 2),
        st.decimals(-(10**15), 10**15, places=2, allow_nan=False, allow_infinity=False),
    ),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        st.datetimes(timezones=st.just(dt.UTC), min_value=dt.datetime(1950, 1, 1)),  # noqa: DTZ001  Hypothesis wants it so
    ),
    "date": (pa.date32(), st.dates()),
    "list": (pa.list_(pa.int64()), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=3)),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text(max_size=3)}),
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        st.lists(st.tuples(st.text(max_size=2), st.integers(0, 9)), max_size=2),
    ),
}


def digest(*batches: pa.RecordBatch) -> int:
    found = RowsDigest()
    for batch in batches:
        found.update(batch)
    assert found.rows == sum(batch.num_rows for batch in batches)
    return found.value


@given(st.data())
def test_how_rows_are_cut_makes_no_difference(data: st.DataObject) -> None:
    dtype, values = TYPES[data.draw(st.sampled_from(sorted(TYPES)))]
    column = data.draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=20))
    array = pa.array(column, dtype)
    batch = pa.record_batch({"x": array, "y": pa.array(range(len(column)))})
    whole = digest(batch)
    edges = sorted({0, len(column), *data.draw(st.lists(st.integers(0, len(column)), max_size=4))})
    parts = [batch.slice(a, b - a) for a, b in pairwise(edges)]
    assert digest(*parts) == whole
    copies = [
        pa.record_batch({"x": pa.array(column[a:b], dtype), "y": pa.array(range(a, b))})
        for a, b in pairwise(edges)
    ]
    assert digest(*copies, batch.slice(0, 0)) == whole
    at = data.draw(st.integers(0, len(column) - 1))
    other = data.draw(st.one_of(st.none(), values).filter(lambda value: value != column[at]))
    changed = pa.array([*column[:at], other, *column[at + 1 :]], dtype)
    if not changed.equals(array):  # -0.0 is 0.0
        assert digest(pa.record_batch({"x": changed, "y": batch["y"]})) != whole


@given(st.lists(st.one_of(st.none(), st.integers(0, 99)), min_size=2, max_size=20), st.integers(0))
def test_rows_that_have_changed_places_are_others(column: list[int | None], at: int) -> None:
    here, there = at % len(column), (at + 1) % len(column)
    swapped = list(column)
    swapped[here], swapped[there] = swapped[there], swapped[here]
    same = digest(pa.record_batch({"x": pa.array(column, pa.int64())}))
    other = digest(pa.record_batch({"x": pa.array(swapped, pa.int64())}))
    assert (same == other) == (column == swapped)


def test_what_lies_behind_a_null_makes_no_difference() -> None:
    hidden = [
        pa.Array.from_buffers(
            pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.array([7, behind]).buffers()[1]]
        )
        for behind in (3, 4)
    ]
    assert len({digest(pa.record_batch({"x": array})) for array in hidden}) == 1
    texts = [
        pa.Array.from_buffers(
            pa.string(),
            2,
            [pa.py_buffer(b"\x01"), *pa.array(["seven", behind]).buffers()[1:]],
        )
        for behind in ("", "eight")
    ]
    assert len({digest(pa.record_batch({"x": array})) for array in texts}) == 1


def test_columns_are_told_apart() -> None:
    ones, twos = pa.array([1, 1]), pa.array([2, 2])
    assert digest(pa.record_batch({"a": ones, "b": twos})) != digest(
        pa.record_batch({"a": twos, "b": ones})
    )
    assert digest(pa.record_batch({"a": [decimal.Decimal("1.5")]})) != digest(
        pa.record_batch({"a": [decimal.Decimal("2.5")]})
    )
