"""Rules for rows: each finds its values, at any depth, and names the column and the reason."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.connect.row_checks import (
    KNOWN_YEARS,
    NO_NANOSECONDS,
    NO_ZERO_BYTES,
    ColumnCheck,
    RowChecks,
    Rule,
    one_of,
    up_to_characters,
)

TEXTS = pa.list_(pa.string())
BROKEN = pa.StringArray.from_buffers(
    3, pa.py_buffer(np.array([0, 1, 4, 5], np.int32)), pa.py_buffer(b"a\xed\xa0\x80b")
)
TOO_LARGE = pa.Array.from_buffers(
    pa.decimal128(3, 0),
    2,
    [None, pa.py_buffer(b"".join(n.to_bytes(16, "little") for n in (7, 10**5)))],
)


def rejected(values: pa.Array, *rules: Rule, nullable: bool = True) -> dict[int, str]:
    check = RowChecks((ColumnCheck("c", rules, nullable=nullable),))
    found = pickle.loads(pickle.dumps(check))(pa.record_batch({"c": values}))
    return {} if found is None else dict(zip(found.rows.tolist(), found.reasons, strict=True))


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", None, "b\0c"]),
        pa.array(["a", None, "b\0c"], pa.large_string()),
        pa.array(["a", None, "b\0c"]).dictionary_encode(),
        pa.array([["a"], None, ["b", "\0"]], TEXTS),
        pa.array([["a"], None, ["b", "\0"]], pa.large_list(pa.string())),
        pa.array([["a", "b"], None, ["c", "\0"]], pa.list_(pa.string(), 2)),
        pa.array([[("a", "b")], None, [("c", "\0")]], pa.map_(pa.string(), pa.string())),
        pa.array([[("a", 1)], None, [("\0", 2)]], pa.map_(pa.string(), pa.int64())),
        pa.array([{"x": {"y": ["a"]}}, None, {"x": {"y": ["\0"]}}]),
        pa.array(["x", "a", None, "b\0c"]).slice(1),
        pa.array([["\0"], [], None, ["\0"]], TEXTS).slice(1),
    ],
    ids=lambda values: str(values.type),
)
def test_text_with_a_zero_byte_is_found_at_any_depth(values: pa.Array) -> None:
    assert list(rejected(values, NO_ZERO_BYTES)) == [2]
    assert rejected(values.slice(0, 2), NO_ZERO_BYTES) == {}


@pytest.mark.parametrize(
    ("dtype", "first", "last"),
    [
        (pa.date32(), -719_162, 2_932_896),
        (pa.date64(), -719_162 * 86_400_000, 2_932_896 * 86_400_000),
        (pa.timestamp("s"), -62_135_596_800, 253_402_300_799),
        (pa.timestamp("ms", "UTC"), -62_135_596_800_000, 253_402_300_799_999),
        (pa.timestamp("us"), -62_135_596_800_000_000, 253_402_300_799_999_999),
    ],
)
def test_years_are_those_from_1_to_9999(dtype: pa.DataType, first: int, last: int) -> None:
    step = 86_400_000 if dtype == pa.date64() else 1
    numbers: list[Any] = [first - step, first, last, last + step, None]
    values = pa.array(numbers, pa.int32() if dtype == pa.date32() else pa.int64()).cast(dtype)
    assert list(rejected(values, KNOWN_YEARS)) == [0, 3]


def test_nanoseconds_that_microseconds_do_not_express_are_found() -> None:
    values = pa.array([1_000, -1_000, 1_001, -1, None], pa.timestamp("ns"))
    assert list(rejected(values, NO_NANOSECONDS, KNOWN_YEARS)) == [2, 3]


def test_texts_are_counted_in_characters() -> None:
    assert list(rejected(pa.array(["żół", "żółw", None]), up_to_characters(3))) == [1]


def test_texts_may_be_some_only() -> None:
    found = rejected(pa.array(["ok", "no", None]), one_of(("ok", "late")))
    assert found == {1: "column 'c' is not one of the target's 2 values ('ok', 'late', ...)"}


def test_nulls_are_found_where_there_may_be_none() -> None:
    assert list(rejected(pa.array([1, None]), nullable=False)) == [1]
    assert rejected(pa.array([1, None])) == {}


@pytest.mark.parametrize(("values", "bad"), [(BROKEN, 1), (TOO_LARGE, 1)])
def test_values_that_are_none_of_their_type_are_found_and_the_others_still_checked(
    values: pa.Array, bad: int
) -> None:
    found = rejected(values, NO_ZERO_BYTES)
    assert list(found) == [bad]
    assert "is not a value of its type" in found[bad]


def test_a_row_has_one_reason_the_first() -> None:
    rows = pa.record_batch({"a": ["\0", "x"], "b": ["\0", "\0"]})
    found = RowChecks((ColumnCheck("a", (NO_ZERO_BYTES,)), ColumnCheck("b", (NO_ZERO_BYTES,))))(
        rows
    )
    assert found is not None
    assert found.rows.tolist() == [0, 1]
    assert ["column 'a'" in found.reasons[0], "column 'b'" in found.reasons[1]] == [True, True]


@pytest.mark.parametrize(
    "dtype", [pa.int64(), pa.float64(), pa.bool_(), pa.binary(), pa.time64("us")]
)
def test_rules_pass_over_what_they_are_not_about(dtype: pa.DataType) -> None:
    rules = (NO_ZERO_BYTES, KNOWN_YEARS, NO_NANOSECONDS, up_to_characters(1), one_of(("a",)))
    assert rejected(pa.nulls(3, dtype), *rules) == {}
