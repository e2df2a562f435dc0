"""Machine code groups and hashes as NumPy does, and never reads or writes beside its arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rounds import rounds

from godwit.columns import group_kernels, groups
from godwit.columns.groups import (
    Groups,
    group_repeating_rows,
    group_rows,
    places_by_number,
    stable_order,
)
from godwit.columns.hashing import hash_keys
from godwit.store.columns import words_anywhere
from godwit.store.compiled import LOADER

FIELDS = ("of_row", "first_row", "hashes", "key_groups", "order", "starts")
Ids = npt.NDArray[np.int64]


def by_numpy_and_by_machine_code(work: Any) -> tuple[Any, Any]:
    results = []
    for mode in ("off", "now"):
        LOADER.mode = mode
        results.append(work())
    return results[0], results[1]


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests choose themselves; afterwards it is as before."""
    monkeypatch.setattr(LOADER, "mode", "now")


def listed(grouped: Groups | None) -> Any:
    return grouped and {name: getattr(grouped, name).tolist() for name in FIELDS}


def columns_of(ids: Ids) -> dict[str, pa.Array]:
    return {
        "integers": pa.array(ids * 3 - 7),
        "halves": pa.array(ids.astype(np.int32)),
        "floats": pa.array(np.where(ids == 0, np.nan, ids / 4)),
        "times": pa.array(ids, pa.timestamp("us", "UTC")),
        "codes": pa.array([f"code-{i:08d}" for i in ids]),
        "texts": pa.array(["\u00e9" * (i % 90) + str(i) for i in ids.tolist()]),
        "large": pa.array([b"x" * (i % 9) + str(i).encode() for i in ids], pa.large_binary()),
        "gaps": pa.array([None if i % 5 == 0 else f"{i}" for i in ids.tolist()], pa.string()),
    }


@settings(max_examples=rounds(60, 400))
@given(
    rows=st.sampled_from([1, 2, 3, 500, 1025, 3000, 9000]),
    distinct=st.sampled_from([1, 5, 300, 4000, 10**6]),
    names=st.lists(st.sampled_from(sorted(columns_of(np.arange(1)))), min_size=1, max_size=2),
    num_key_groups=st.sampled_from([1, 2, 3, 256, 32_768]),
    kept_bits=st.sampled_from([0, 3, 20, 64]),
    first=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_machine_code_hashes_and_groups_as_numpy(
    *,
    rows: int,
    distinct: int,
    names: list[str],
    num_key_groups: int,
    kept_bits: int,
    first: int,
    seed: int,
) -> None:
    ids = np.random.default_rng(seed).integers(0, distinct, rows)
    columns = columns_of(ids)
    keys = pa.record_batch({name: columns[name] for name in names}).slice(min(first, rows - 1))

    def work() -> Any:
        hashes = hash_keys(keys)
        few = hashes & np.int64((1 << kept_bits) - 1 if kept_bits < 64 else -1)  # keys collide
        return (
            hashes.tolist(),
            listed(group_rows(few, keys, num_key_groups)),
            listed(group_repeating_rows(keys, num_key_groups)),
            listed(group_repeating_rows(keys, num_key_groups, hashes=hashes)),
        )

    by_numpy, by_machine_code = by_numpy_and_by_machine_code(work)
    assert by_machine_code == by_numpy


@pytest.mark.parametrize("distinct", [1, 4, 5, 300, 70_000])
def test_numbers_are_ordered_as_by_numpy(distinct: int) -> None:
    numbers = np.random.default_rng(2).integers(0, distinct, 20_000).astype(np.int32)
    by_numpy, by_machine_code = by_numpy_and_by_machine_code(
        lambda: stable_order(numbers, distinct).tolist()
    )
    assert by_machine_code == by_numpy == np.argsort(numbers, kind="stable").tolist()
    places = places_by_number(numbers, distinct)
    assert places is not None
    assert places.tolist() == np.argsort(by_numpy).tolist()
    LOADER.mode = "off"
    assert places_by_number(numbers, distinct) is None


def sorted_by_kernel(search: Ids) -> int:
    sort, count = group_kernels.sort_and_group.ready(len(search)), len(search)
    assert sort is not None
    arrays = np.empty(count, np.uint64), np.empty(count, np.int64), np.empty(count, np.int64)
    return sort(search, 0, (count - 1).bit_length(), *arrays, np.empty(count + 1, np.int64))


def test_hashes_of_one_bucket_in_the_worst_order_are_left_to_numpy() -> None:
    # All in one place of one bucket, and descending: insertion would take rows times rows steps.
    hashes = (np.arange(5000, dtype=np.int64)[::-1] << 20).copy()
    assert sorted_by_kernel(hashes) == -1
    keys = pa.record_batch({"k": hashes})
    by_numpy, by_machine_code = by_numpy_and_by_machine_code(
        lambda: listed(group_rows(hashes, keys, 1))
    )
    assert by_machine_code == by_numpy


def test_values_that_are_mixed_to_one_slot_are_left_to_numpy() -> None:
    inverse = np.uint64(pow(int(group_kernels._MIXING), -1, 2**64))
    # What is mixed to 0, 1, 2, ...: all in the first slots, each search longer than the last.
    mixed = np.arange(4000, dtype=np.uint64) * inverse
    values = ((mixed ^ (mixed >> np.uint64(32))) * inverse).view(np.int64)
    column = pa.array(np.tile(values, 2))
    assert groups._number_compiled(column) is None
    keys = pa.record_batch({"k": column})
    by_numpy, by_machine_code = by_numpy_and_by_machine_code(
        lambda: listed(group_repeating_rows(keys, 16))
    )
    assert by_machine_code == by_numpy


def test_kernels_refuse_arrays_that_do_not_fit() -> None:
    order, place = group_kernels.any_differs.ready(1), group_kernels.count_and_place.ready(1)
    number = group_kernels.number_words.ready(1)
    assert order is not None
    assert place is not None
    assert number is not None
    words, four = words_anywhere(np.zeros(32, np.uint8)), np.arange(4)
    assert not order(words, 8, four, np.arange(5))
    assert order(words, 9, four, np.arange(5))  # the last values would be read beside the bytes
    assert order(words, 8, np.array([0, 1, 2, 4]), np.arange(5))
    assert order(words, 8, np.array([0, 1, 2, -1]), np.arange(5))
    assert order(words, 8, four, np.arange(4))

    def numbered(
        width: int, *, slots: int = 16, row: int = 0, known: int = 0, rows: int = 4
    ) -> int:
        arrays = np.zeros(4, np.int64), np.empty(rows, np.int64), np.zeros(rows, np.uint64)
        return number(words, width, row, known, *arrays, np.zeros(slots, np.uint32))

    assert numbered(8) == 4
    assert numbered(9) == numbered(7) == numbered(8, slots=1) == numbered(8, rows=3) == -1
    assert numbered(8, row=-1) == numbered(8, row=1, known=2) == numbered(8, known=-1) == -1
    for wrong in (-1, 4):
        assert not place(np.array([0, wrong]), np.zeros(4, np.int64), np.empty(2, np.int64), False)
    assert not place(four, np.zeros(4, np.int64), np.empty(3, np.int64), True)


def test_offsets_that_leave_the_bytes_raise_an_error_and_no_signal() -> None:
    offsets = pa.py_buffer(np.array([0, 2**30, 8], np.int32))
    column = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"8 bytes.")])
    with pytest.raises(IndexError):
        hash_keys(pa.record_batch({"k": column}))
