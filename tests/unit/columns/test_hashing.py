"""Hashes of keys are XXH64 of each value's bytes in turn, as Spark has them."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from godwit.columns.hashing import canonical_keys, hash_keys, hash_placed, is_hashable
from godwit.model.errors import InvalidFlowError
from godwit.model.key_groups import key_groups_of


def chained(*columns: bytes | None) -> int:
    """Hash the bytes of one row's columns in turn."""
    seed = 42
    for value in columns:
        if value is not None:
            seed = xxhash.xxh64_intdigest(value, seed)
    return int(np.uint64(seed).view(np.int64))


def int_bytes(value: int) -> bytes:
    return struct.pack("<i", value)


def long_bytes(value: int) -> bytes:
    return struct.pack("<q", value)


def hashes(**columns: pa.Array) -> list[int]:
    listed: list[int] = hash_keys(pa.record_batch(columns)).tolist()
    return listed


EPOCH = dt.date(1970, 1, 1)
SECOND = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)

CASES: list[tuple[pa.DataType, list[Any], list[bytes]]] = [
    (pa.bool_(), [True, False], [int_bytes(1), int_bytes(0)]),
    (pa.int8(), [-128, 127], [int_bytes(-128), int_bytes(127)]),
    (pa.int16(), [-3, 300], [int_bytes(-3), int_bytes(300)]),
    (pa.int32(), [-(2**31), 5], [int_bytes(-(2**31)), int_bytes(5)]),
    (pa.int64(), [-(2**63), 5], [long_bytes(-(2**63)), long_bytes(5)]),
    (pa.date32(), [EPOCH, EPOCH - dt.timedelta(3)], [int_bytes(0), int_bytes(-3)]),
    (pa.timestamp("us", "UTC"), [SECOND], [long_bytes(1_000_000)]),
    (pa.duration("us"), [dt.timedelta(seconds=-1)], [long_bytes(-1_000_000)]),
    (pa.float32(), [1.5, -2.0], [struct.pack("<f", 1.5), struct.pack("<f", -2.0)]),
    (pa.float64(), [1.5, math.inf], [struct.pack("<d", 1.5), struct.pack("<d", math.inf)]),
    (pa.string(), ["", "godwit", "\u00e9" * 40], [b"", b"godwit", "\u00e9".encode() * 40]),
    (pa.large_string(), ["ab"], [b"ab"]),
    (pa.string_view(), ["ab", "a longer string than fits"], [b"ab", b"a longer string than fits"]),
    (pa.binary(), [b"\x00", b"\xff" * 33], [b"\x00", b"\xff" * 33]),
    (pa.binary(3), [b"abc", b"def"], [b"abc", b"def"]),
    (pa.decimal128(18, 2), [Decimal("-1.25")], [long_bytes(-125)]),
    (
        pa.decimal128(38, 0),
        [Decimal(0), Decimal(127), Decimal(128), Decimal(-128), Decimal(-129), Decimal(10**37)],
        [b"\x00", b"\x7f", b"\x00\x80", b"\x80", b"\xff\x7f", (10**37).to_bytes(16, "big")],
    ),
    (pa.uint32(), [2**32 - 1], [int_bytes(-1)]),
    (pa.uint64(), [2**64 - 1], [long_bytes(-1)]),
]


@pytest.mark.parametrize(("dtype", "values", "expected"), CASES, ids=[str(c[0]) for c in CASES])
def test_a_value_hashes_as_its_bytes(
    dtype: pa.DataType, values: list[Any], expected: list[bytes]
) -> None:
    assert is_hashable(dtype)
    column = pa.array(values, dtype)
    assert hashes(k=column) == [chained(value) for value in expected]


@pytest.mark.parametrize(("dtype", "values", "expected"), CASES, ids=[str(c[0]) for c in CASES])
def test_slices_and_nulls_change_nothing_for_the_values_beside_them(
    dtype: pa.DataType, values: list[Any], expected: list[bytes]
) -> None:
    column = pa.array([None, *values, None, *values], dtype)[2:]
    bytes_of_rows = [*expected[1:], None, *expected]
    assert hashes(k=column) == [chained(value) for value in bytes_of_rows]


def test_the_hash_of_a_column_seeds_the_next_and_nulls_are_skipped() -> None:
    a = pa.array(["x", None, "x", None])
    b = pa.array([1, 1, None, None], pa.int64())
    assert hashes(a=a, b=b) == [
        chained(b"x", long_bytes(1)),
        chained(long_bytes(1)),
        chained(b"x"),
        42,
    ]


def test_equal_floats_hash_alike() -> None:
    other_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    column = pa.Array.from_buffers(
        pa.float64(), 4, [None, pa.py_buffer(np.array([0.0, -0.0, math.nan, other_nan]))]
    )
    zero, minus_zero, nan, second_nan = hashes(k=column)
    assert zero == minus_zero == chained(long_bytes(0))
    assert nan == second_nan == chained(struct.pack("<Q", 0x7FF8000000000000))


def test_canonical_keys_give_equal_floats_equal_bits_and_keep_nulls() -> None:
    values = np.array([0.0, -0.0, math.nan, -math.nan, 1.5], np.float32)
    column = pa.array(values, mask=np.array([False, False, False, False, True]))
    batch = pa.record_batch({"k": column, "s": ["a"] * 5})
    canonical = canonical_keys(batch)
    bits = canonical["k"].view(pa.int32()).to_pylist()
    assert bits == [0, 0, 0x7FC00000, 0x7FC00000, None]
    assert canonical["s"].equals(batch["s"])


def test_keys_without_floats_are_returned_as_they_are() -> None:
    batch = pa.record_batch({"k": ["a"]})
    assert canonical_keys(batch) is batch


def test_a_column_of_nothing_but_nulls_leaves_the_seed() -> None:
    assert hashes(k=pa.nulls(2)) == [42, 42]


def test_no_rows_give_no_hashes() -> None:
    assert hashes(k=pa.array([], pa.string()), v=pa.array([], pa.decimal128(30, 2))) == []


def test_a_list_cannot_be_hashed_and_the_error_says_which_column() -> None:
    assert not is_hashable(pa.list_(pa.int64()))
    with pytest.raises(InvalidFlowError, match=r"'route' has type list.*primitive") as caught:
        hashes(route=pa.array([[1]]))
    assert caught.value.context["column"] == "route"


@pytest.mark.parametrize("num_key_groups", [1, 2, 3, 12, 256, 1000, 32_768])
@pytest.mark.parametrize("placed", [["area"], ["user"], ["user", "area"]])
def test_some_key_columns_place_a_key_and_all_of_them_tell_it_apart(
    num_key_groups: int, placed: list[str]
) -> None:
    rng = np.random.default_rng(num_key_groups)
    users = rng.permutation(50_000)
    keys = pa.record_batch({"area": pa.array([f"a{u % 97}" for u in users]), "user": users})
    found = hash_placed(keys, placed, num_key_groups)
    by_placed = key_groups_of(hash_keys(keys.select(placed)), num_key_groups)
    assert key_groups_of(found, num_key_groups).tolist() == by_placed.tolist()
    assert len(np.unique(found)) == keys.num_rows
