"""Grouping is exact, ordered by key group and hash, and keeps the order of arrival."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rounds import rounds

from godwit.columns.groups import Groups, group_repeating_rows, group_rows
from godwit.columns.hashing import hash_keys
from godwit.model.key_groups import key_groups_of


def rows_of(groups: Groups) -> list[list[int]]:
    return [
        groups.order[groups.starts[g] : groups.starts[g + 1]].tolist() for g in range(groups.count)
    ]


def assert_right(
    groups: Groups, hashes: npt.NDArray[np.int64], names: list[Any], num_key_groups: int
) -> None:
    """Compare with a dict over keys; `names` are what tells keys apart."""
    expected: dict[Any, list[int]] = {}
    for row, name in enumerate(names):
        expected.setdefault(name, []).append(row)
    found = rows_of(groups)
    assert sorted(found) == sorted(expected.values())
    assert groups.count == len(expected)
    assert groups.first_row.tolist() == [rows[0] for rows in found]
    assert groups.hashes.tolist() == hashes[groups.first_row].tolist()
    assert groups.key_groups.tolist() == key_groups_of(groups.hashes, num_key_groups).tolist()
    places = list(zip(groups.key_groups.tolist(), groups.hashes.tolist(), strict=True))
    assert places == sorted(places)
    for group, rows in enumerate(found):
        assert groups.of_row[rows].tolist() == [group] * len(rows)


@settings(derandomize=True, deadline=None, max_examples=rounds(40, 200), database=None)
@given(
    ids=st.lists(st.integers(0, 12), max_size=40),
    hash_of=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=13, max_size=13),
    same_hash=st.booleans(),
    num_key_groups=st.sampled_from([1, 2, 3, 16, 100, 256, 32_768]),
)
def test_groups_are_those_of_a_dict_even_where_hashes_collide(
    ids: list[int], hash_of: list[int], same_hash: bool, num_key_groups: int
) -> None:
    # Key 12 is null; keys 0 to 2 share one hash if same_hash, whatever their order of arrival.
    table = np.array(hash_of, np.int64)
    if same_hash:
        table[:3] = table[0]
    hashes = table[np.array(ids, np.int64)]
    names = [None if i == 12 else f"key {i}" for i in ids]
    keys = pa.record_batch({"a": pa.array(names, pa.string()), "b": pa.array(ids, pa.int32())})
    assert_right(group_rows(hashes, keys, num_key_groups), hashes, ids, num_key_groups)


@settings(derandomize=True, deadline=None, max_examples=rounds(40, 200), database=None)
@given(
    ids=st.lists(st.integers(0, 12), max_size=200),
    num_key_groups=st.sampled_from([1, 3, 16, 100, 256]),
    columns=st.sampled_from(["abc", "c", "ab", "b"]),
    known=st.booleans(),
)
def test_repeating_rows_are_grouped_in_the_same_way(
    ids: list[int], num_key_groups: int, columns: str, known: bool
) -> None:
    values = {
        "a": pa.array([None if i == 12 else f"key {i}" for i in ids], pa.string()),
        "b": pa.array(
            [None if i < 2 else math.nan if i == 2 else i / 4 for i in ids], pa.float64()
        ),
        "c": pa.array([None if i == 0 else i // 2 for i in ids], pa.int32()),
    }
    keys = pa.record_batch({name: values[name] for name in columns})
    hashes = hash_keys(keys)
    sorted_groups = group_rows(hashes, keys, num_key_groups)
    groups = group_repeating_rows(keys, num_key_groups, hashes=hashes if known else None)
    if groups is None:
        assert sorted_groups.count >= 0.9 * len(ids)
        return
    for name in ("of_row", "first_row", "hashes", "key_groups", "order", "starts"):
        expected, found = getattr(sorted_groups, name), getattr(groups, name)
        assert found.tolist() == expected.tolist(), name
        assert found.dtype == expected.dtype, name


COLLIDING: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [1, 2, None, 0, 1, None]),
    (pa.bool_(), [True, None, False, True]),
    (pa.float64(), [1.0, math.nan, None, math.nan, 1.0]),
    (pa.float16(), [1.0, math.nan, None, math.nan, 1.0]),
    (pa.string(), ["", None, "a", "", None]),
    (pa.large_binary(), [b"", None, b"a", b""]),
    (pa.binary(2), [b"ab", None, b"cd", b"ab"]),
    (pa.decimal128(20, 2), [Decimal("1.10"), None, Decimal("1.11"), Decimal("1.10")]),
    (pa.date32(), [1, 2, None, 1]),
    (pa.null(), [None, None]),
]


@pytest.mark.parametrize(("dtype", "values"), COLLIDING, ids=[str(c[0]) for c in COLLIDING])
def test_keys_of_every_type_that_share_a_hash_stay_apart(
    dtype: pa.DataType, values: list[Any]
) -> None:
    column = pa.array([values[0], *values], dtype)[1:]
    hashes = np.full(len(values), 77)
    groups = group_rows(hashes, pa.record_batch({"k": column}), 16)
    assert_right(groups, hashes, [repr(v) for v in column.to_pylist()], 16)


def test_keys_that_differ_in_the_second_column_only_stay_apart() -> None:
    keys = pa.record_batch({"a": ["x"] * 4, "b": pa.array([1, None, 1, None])})
    groups = group_rows(np.zeros(4, np.int64), keys, 4)
    assert rows_of(groups) == [[0, 2], [1, 3]]


def test_hashes_that_agree_in_all_but_the_bits_given_to_rows_are_told_apart() -> None:
    # 1,000 rows take ten bits of what is sorted; these hashes differ in the lowest of those only.
    hashes = np.tile([512, 0, 256], 334)[:1000]
    keys = pa.record_batch({"k": hashes.astype(str).tolist()})
    assert_right(group_rows(hashes, keys, 2), hashes, hashes.tolist(), 2)


def test_many_rows_with_few_keys_keep_their_order_of_arrival() -> None:
    values = np.random.default_rng(3).integers(0, 50, 20_000)
    keys = pa.record_batch({"k": values})
    hashes = hash_keys(keys)
    assert_right(group_rows(hashes, keys, 256), hashes, values.tolist(), 256)


@pytest.mark.parametrize("distinct", [50, 65_536, 65_600])
def test_rows_are_ordered_by_group_and_then_by_arrival(distinct: int) -> None:
    values = np.concatenate([np.arange(distinct), np.arange(distinct)[::-1]])
    keys = pa.record_batch({"k": values})
    hashes = hash_keys(keys)
    groups = Groups(
        count=distinct,
        of_row=values,
        first_row=np.arange(distinct),
        hashes=hashes,
        key_groups=values.astype(np.int32),
    )
    assert (groups.order == np.lexsort((np.arange(len(values)), values))).all()


def test_many_keys_whose_hashes_are_known_are_left_to_a_sort_of_these() -> None:
    keys = pa.record_batch({"k": np.random.default_rng(5).integers(0, 60_000, 270_000)})
    assert group_repeating_rows(keys, 16) is not None
    assert group_repeating_rows(keys, 16, hashes=hash_keys(keys)) is None


def test_no_rows_give_no_groups() -> None:
    groups = group_rows(np.empty(0, np.int64), pa.record_batch({"k": pa.array([], pa.string())}), 4)
    assert (groups.count, groups.starts.tolist(), len(groups.of_row)) == (0, [0], 0)


@pytest.mark.parametrize(
    ("distinct", "hot", "by_table"),
    [(60_000, 0.0, True), (60_000, 0.05, True), (250_000, 0.0, False), (2**40, 0.05, False)],
)
def test_of_many_rows_it_is_seen_from_a_sample_whether_keys_come_back(
    distinct: int, hot: float, *, by_table: bool
) -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(0, distinct, 270_000)
    values[rng.random(len(values)) < hot] = 7
    keys = pa.record_batch({"k": values, "pane": np.full(len(values), 30)})
    groups = group_repeating_rows(keys, 16, 1)
    assert (groups is not None) == by_table
    if groups is not None:
        expected = group_rows(hash_keys(keys.select(["k"])), keys, 16, 1)
        assert groups.of_row.tolist() == expected.of_row.tolist()
        assert groups.first_row.tolist() == expected.first_row.tolist()


def test_rows_in_the_order_of_their_keys_do_not_seem_to_repeat_for_that() -> None:
    # The first rows have every key that they have twice; of all rows, few have.
    keys = pa.record_batch({"k": np.concatenate([np.arange(8000) // 2, np.arange(8000, 92_000)])})
    assert group_repeating_rows(keys, 16, hashes=hash_keys(keys)) is None
