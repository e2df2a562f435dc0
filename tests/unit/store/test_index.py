"""Facts about the hash index."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from godwit.store.index import HashIndex, SplitIndex, slots_for


def index_of(hashes: npt.NDArray[np.uint64]) -> tuple[HashIndex, npt.NDArray[np.uint64]]:
    slots = np.zeros(slots_for(len(hashes)), np.uint64)
    index = HashIndex(slots)
    index.insert(hashes, np.arange(len(hashes)))
    return index, slots


def random_hashes(count: int, seed: int = 0) -> npt.NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**64 - 1, count, np.uint64)


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 1000])
def test_at_least_half_of_the_slots_stay_free(rows: int) -> None:
    slots = slots_for(rows)
    assert slots >= 2 * rows
    assert slots & (slots - 1) == 0
    assert slots < 4 * rows or rows == 1


def test_every_inserted_hash_leads_to_its_row() -> None:
    hashes = random_hashes(10_000)
    index, slots = index_of(hashes)
    rows, at = index.first(hashes)
    assert np.array_equal(rows, np.arange(10_000))
    assert np.count_nonzero(slots) == 10_000
    assert len(np.unique(at)) == 10_000


def test_a_hash_that_was_not_inserted_ends_at_a_free_slot() -> None:
    index, slots = index_of(random_hashes(10_000))
    rows, at = index.first(random_hashes(10_000, seed=1))
    assert (rows == -1).all()
    assert (slots[at] == 0).all()


def test_a_larger_index_leads_to_the_same_rows() -> None:
    hashes = random_hashes(10_000)
    _, slots = index_of(hashes)
    larger = HashIndex(np.zeros(4 * len(slots), np.uint64))
    larger.copy_from(slots)
    assert np.array_equal(larger.first(hashes)[0], np.arange(10_000))


def test_equal_hashes_are_candidates_one_after_another() -> None:
    hashes = np.full(20, 7, np.uint64)
    index, _ = index_of(hashes)
    seen = set()
    rows, at = index.first(hashes[:1])
    while rows[0] >= 0:
        seen.add(int(rows[0]))
        rows, at = index.following(hashes[:1], at)
    assert seen == set(range(20))


def test_a_chain_wraps_around_the_end() -> None:
    last_home = np.full(40, 2**64 - 1, np.uint64)
    index, slots = index_of(last_home)
    start = int(index.first(last_home[:1])[1][0])
    assert start == len(slots) - 1
    rows, at = index.first(last_home)
    for _ in range(39):
        rows, at = index.following(last_home, at)
    assert (rows >= 0).all()


def test_hash_zero_is_a_hash_like_any_other() -> None:
    zero = np.zeros(1, np.uint64)
    empty = HashIndex(np.zeros(8, np.uint64))
    assert empty.first(zero)[0].tolist() == [-1]
    empty.insert(zero, np.array([5]))
    assert empty.first(zero)[0].tolist() == [5]


def test_inserting_where_a_search_ended_is_the_same_as_from_home() -> None:
    old, new = random_hashes(600), random_hashes(400, seed=1)
    index, _ = index_of(np.concatenate((old, new))[:600])
    rows, at = index.first(new)
    assert (rows == -1).all()
    index.insert(new, np.arange(600, 1000), at)
    assert np.array_equal(index.first(new)[0], np.arange(600, 1000))
    assert np.array_equal(index.first(old)[0], np.arange(600))


def test_searching_slots_of_which_none_is_free_ends_with_an_error() -> None:
    index = HashIndex(np.full(64, np.uint64(1 << 63 | 1)))
    with pytest.raises(IndexError, match="half of them should be free"):
        index.first(np.array([3], np.uint64))


@pytest.mark.parametrize("moved", [0, 1, 37, 63])
def test_an_index_whose_entries_move_leads_to_the_same_rows(moved: int) -> None:
    hashes = np.concatenate((random_hashes(20), np.full(12, 2**64 - 1, np.uint64)))
    _, smaller = index_of(hashes)  # whose last entries are in its first slots
    larger = np.zeros(2 * len(smaller), np.uint64)
    HashIndex(larger).copy_from(smaller, 0, moved)
    index = SplitIndex(smaller, larger, moved)
    added = np.append(random_hashes(4, seed=1), hashes[-1:])
    index.insert(added, 32 + np.arange(5), index.first(added)[1] if moved == 1 else None)
    HashIndex(larger).copy_from(smaller, moved, 63)
    for present, until in ((index, moved), (SplitIndex(smaller, larger, 63), 63)):
        rows, ends = present.first(np.append(hashes, added))
        assert np.array_equal(rows[:20], np.arange(20)), until
        assert np.array_equal(rows[32:36], 32 + np.arange(4)), until
        last, seen = np.append(hashes, added)[-1:], set()
        rows, ends = rows[-1:], ends[-1:]
        while rows[0] >= 0:
            seen.add(int(rows[0]))
            rows, ends = present.following(last, ends)
        assert seen == {*range(20, 32), 36}, until


def test_entries_that_a_killed_process_has_moved_are_not_moved_again() -> None:
    hashes = random_hashes(1000)
    _, smaller = index_of(hashes)
    larger = np.zeros(2 * len(smaller), np.uint64)
    HashIndex(larger).copy_from(smaller, 0, 700)
    HashIndex(larger).copy_from(smaller)
    assert np.count_nonzero(larger) == 1000
    assert np.array_equal(HashIndex(larger).first(hashes)[0], np.arange(1000))
