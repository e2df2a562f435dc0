"""Facts about columns over memory: what goes in comes out, bit for bit."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.model.errors import StateEncodingError
from godwit.store import columns
from godwit.store.columns import COLUMN_WORDS, LIVE, Column, Encoded, column_class

EVERY_TYPE: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, True]),
    (pa.int8(), [-128, 0, 127]),
    (pa.uint16(), [0, 1, 65535]),
    (pa.int32(), [-(2**31), 7, 2**31 - 1]),
    (pa.int64(), [-(2**63), 7, 2**63 - 1]),
    (pa.uint64(), [0, 7, 2**64 - 1]),
    (pa.float16(), [np.float16(0.5), np.float16(-0.0), np.float16(math.inf)]),
    (pa.float32(), [0.5, -0.0, math.inf]),
    (pa.float64(), [0.1, -0.0, math.nan]),
    (pa.date32(), [date(1970, 1, 1), date(2024, 2, 29), date(1, 1, 1)]),
    (pa.timestamp("us", tz="UTC"), [datetime(2024, 1, 1, tzinfo=UTC)] * 3),
    (pa.duration("us"), [timedelta(seconds=1), timedelta(0), timedelta(days=-1)]),
    (pa.decimal128(38, 2), [Decimal("0.01"), Decimal("-1.00"), Decimal("9" * 36 + ".99")]),
    (pa.binary(3), [b"abc", b"\x00\x00\x00", b"\xff\xff\xff"]),
    (pa.binary(16), [b"0123456789abcdef", bytes(16), b"\xff" * 16]),
    (pa.string(), ["", "godwit", "grutto 🐦"]),
    (pa.large_string(), ["", "godwit", "x" * 5000]),
    (pa.binary(), [b"", b"\x00", b"\xff" * 5000]),
    (pa.large_binary(), [b"", b"\x00", b"abc"]),
]
IDS = [str(dtype) for dtype, _ in EVERY_TYPE]


def column_of(dtype: pa.DataType, rows: int = 64, entries: int = 0, heap: int = 20_000) -> Column:
    return column_and_words(dtype, rows, entries, heap)[0]


def column_and_words(
    dtype: pa.DataType, rows: int = 64, entries: int = 0, heap: int = 20_000
) -> tuple[Column, memoryview]:
    """Make a key column, or one of state if there are entries, over memory of its own."""
    cls = column_class(dtype)
    places = {"row": rows, "entry": entries, "byte": heap}
    arrays = []
    for section in cls.sections(dtype, key=not entries):
        count = places[section.per] + section.more
        shape = (count,) if section.width is None else (count, section.width)
        arrays.append(np.zeros(shape, section.dtype))
    words = memoryview(bytearray(8 * COLUMN_WORDS)).cast("q")
    return cls(dtype, arrays, words), words


def bits(value: Any) -> Any:
    return struct.pack("<d", value) if isinstance(value, float) else value


def same(left: pa.Array, right: pa.Array) -> bool:
    return left.type == right.type and [bits(v) for v in left.to_pylist()] == [
        bits(v) for v in right.to_pylist()
    ]


@pytest.mark.parametrize(("dtype", "values"), EVERY_TYPE, ids=IDS)
def test_keys_read_back_as_they_were_appended(dtype: pa.DataType, values: list[Any]) -> None:
    column, array = column_of(dtype), pa.array([*values, None], dtype)
    column.append(0, column.encode(array))
    rows = np.array([3, 1, 0, 2])
    assert same(column.decode(column.gather(rows)), array.take(pa.array(rows)))


@pytest.mark.parametrize(("dtype", "values"), EVERY_TYPE, ids=IDS)
def test_state_reads_back_as_it_was_put_last(dtype: pa.DataType, values: list[Any]) -> None:
    column = column_of(dtype, entries=64)
    first, second = pa.array([*values, None], dtype), pa.array([None, *values], dtype)
    rows = np.array([7, 3, 5, 1])
    column.put(rows, column.encode(first))
    assert same(column.decode(column.gather(rows)), first)
    column.put(rows[::-1].copy(), column.encode(second))
    assert same(column.decode(column.gather(rows[::-1].copy())), second)


@pytest.mark.parametrize(("dtype", "values"), EVERY_TYPE, ids=IDS)
def test_a_slice_is_encoded_from_where_it_starts(dtype: pa.DataType, values: list[Any]) -> None:
    column = column_of(dtype, entries=64)
    whole = pa.array([None, *values, None, *values] * 3, dtype)
    part = whole.slice(9, 8)
    column.put(np.arange(8), column.encode(part))
    assert same(column.decode(column.gather(np.arange(8))), part)
    assert same(column.decode(column.encode(part)), part)


@pytest.mark.parametrize(("dtype", "values"), EVERY_TYPE, ids=IDS)
def test_equality_is_of_values_and_nulls(dtype: pa.DataType, values: list[Any]) -> None:
    column, rows = column_of(dtype), np.arange(4)
    held, others = [*values, None], [None, *values]
    column.append(0, column.encode(pa.array(held, dtype)))
    assert column.equal(rows, column.encode(pa.array(held, dtype))).all()
    expected = [bits(a) == bits(b) for a, b in zip(held, others, strict=True)]
    assert column.equal(rows, column.encode(pa.array(others, dtype))).tolist() == expected
    zero_or_empty = column.decode(column.gather(np.array([-1]))) if column.row_bytes else [""]
    assert not column.equal(rows[3:], column.encode(pa.array(zero_or_empty, dtype)))[0]


@pytest.mark.parametrize(("dtype", "values"), EVERY_TYPE, ids=IDS)
def test_row_minus_one_is_zero_or_empty(dtype: pa.DataType, values: list[Any]) -> None:
    column = column_of(dtype, entries=64)
    column.put(np.arange(3), column.encode(pa.array(values, dtype)))
    blank = column.gather(np.array([-1]))
    assert blank.nulls is None
    assert blank.heap_bytes() == 0
    if isinstance(blank.values, np.ndarray):
        assert not blank.values.any()


@pytest.mark.parametrize(("dtype", "values"), EVERY_TYPE, ids=IDS)
def test_no_rows_are_no_values(dtype: pa.DataType, values: list[Any]) -> None:
    column, none = column_of(dtype, entries=64), np.empty(0, np.int64)
    column.put(none, column.encode(pa.array([], dtype)))
    assert len(column.decode(column.gather(none))) == 0


@pytest.mark.parametrize(("dtype", "values"), EVERY_TYPE, ids=IDS)
def test_nulls_alone_are_put_and_gathered(dtype: pa.DataType, values: list[Any]) -> None:
    column, rows = column_of(dtype, entries=64), np.arange(3)
    column.put(rows, column.encode(pa.array(values, dtype)))
    column.put(rows[:2], column.encode(pa.nulls(2, dtype)))
    for wanted in ([0, 1], [1], [2], [0, 2]):
        found = column.decode(column.gather(np.array(wanted)))
        found.validate(full=True)
        assert found.is_null().to_pylist() == [row < 2 for row in wanted]
        assert str(found.drop_null()) == str(pa.array([values[2]] * (2 in wanted), dtype))


def test_floats_are_equal_by_bits() -> None:
    column = column_of(pa.float64())
    column.append(0, column.encode(pa.array([0.0, math.nan, 1.0])))
    other = column.encode(pa.array([-0.0, math.nan, 1.0]))
    assert column.equal(np.arange(3), other).tolist() == [False, True, True]


def test_what_lies_under_a_null_does_not_matter() -> None:
    column = column_of(pa.int64())
    validity = pa.py_buffer(bytes([0b10]))
    hidden = [pa.py_buffer(np.array([x, 1])) for x in (5, 6)]
    five, six = (pa.Array.from_buffers(pa.int64(), 2, [validity, h]) for h in hidden)
    column.append(0, column.encode(five))
    assert column.equal(np.arange(2), column.encode(six)).all()


def test_bytes_of_replaced_and_released_state_are_garbage() -> None:
    column, words = column_and_words(pa.binary(), entries=64)
    column.put(np.arange(3), column.encode(pa.array([b"aaaa", b"bb", b"c"])))
    assert words[LIVE] == 7
    column.put(np.array([0]), column.encode(pa.array([b"dd"])))
    assert words[LIVE] == 5
    column.release(np.array([1]))
    assert words[LIVE] == 3
    assert column.decode(column.gather(np.arange(3))).to_pylist() == [b"dd", b"", b"c"]


@pytest.mark.parametrize("dtype", [pa.string(), pa.large_string()], ids=str)
def test_released_keys_keep_their_bytes_until_revived(dtype: pa.DataType) -> None:
    column, words = column_and_words(dtype)
    column.append(0, column.encode(pa.array(["one", "three"], dtype)))
    column.release(np.array([1]))
    assert words[LIVE] == 3
    column.revive(np.array([1]))
    assert words[LIVE] == 8
    assert column.decode(column.gather(np.arange(2))).to_pylist() == ["one", "three"]


def test_another_type_is_cast_if_its_values_fit() -> None:
    column = column_of(pa.int32())
    assert column.encode(pa.array([1, 2], pa.int64())).values.tolist() == [1, 2]
    with pytest.raises(pa.ArrowInvalid):
        column.encode(pa.array([2**40], pa.int64()))


@pytest.mark.parametrize("offset", [1, 2**31], ids=["backwards", "beyond"])
def test_entries_outside_the_heap_are_an_error_and_not_a_crash(offset: int) -> None:
    column: Any = column_of(pa.string())
    column.append(0, column.encode(pa.array(["one", "two", "three"])))
    column._offsets[2] = offset
    with pytest.raises(IndexError, match="not within its heap"):
        column.gather(np.array([0, 1]))


def test_a_row_outside_the_column_is_an_error() -> None:
    with pytest.raises(IndexError):
        column_of(pa.int64(), rows=8).gather(np.array([8]))


def test_taking_some_encoded_values_takes_their_nulls() -> None:
    for dtype, values in ((pa.int64(), [1, None, 3]), (pa.string(), ["a", None, "c"])):
        column = column_of(dtype)
        some = column.encode(pa.array(values, dtype)).take(np.array([1, 2]))
        assert column.decode(some).to_pylist() == values[1:]


def test_nulls_belong_to_the_values_of_a_slice() -> None:
    blobs = pa.array([b"x", b"y", b"a", b"b", b"c"], pa.large_binary())
    some = Encoded(blobs.slice(2), np.array([0, 1, 0], np.uint8))
    for dtype in (pa.string(), pa.large_string()):
        assert column_of(dtype).decode(some).to_pylist() == ["a", None, "c"]


def test_more_than_offsets_can_count_is_refused_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(columns, "_MAX_OFFSET", 7)
    for dtype, limited in ((pa.string(), True), (pa.large_string(), False)):
        column = column_of(dtype)
        column.append(0, column.encode(pa.array(["four", "four"], dtype)))
        assert column.decode(column.gather(np.array([1]))).to_pylist() == ["four"]
        both = column.gather(np.arange(2))
        if limited:
            with pytest.raises(StateEncodingError, match="one column of type string on one lane"):
                column.decode(both)
        else:
            assert column.decode(both).to_pylist() == ["four", "four"]
