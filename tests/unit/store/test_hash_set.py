"""Facts about sets of hashes."""

from __future__ import annotations

import numpy as np

from godwit.store.index import HashSet


def test_it_has_what_was_added_and_nothing_else() -> None:
    rng, hashes, expected = np.random.default_rng(1), HashSet(), set[int]()
    for _ in range(30):
        some = rng.integers(-3000, 3000, rng.integers(0, 900))
        hashes.add(some)
        expected |= set(some.tolist()) - {0}
        asked = np.arange(-3100, 3100)
        assert hashes.contains(asked).tolist() == [h in expected for h in asked.tolist()]
        assert sorted(hashes.values().tolist()) == sorted(expected)
    assert hashes.size_bytes <= 8 * 4 * len(expected)


def test_hashes_with_equal_upper_bits_are_told_apart_in_short_searches() -> None:
    hashes = HashSet()
    alike = np.arange(1, 100_001) << 4
    hashes.add(alike)
    assert hashes.contains(alike).all()
    assert not hashes.contains(alike + 1).any()


def test_an_empty_set_and_no_hashes_are_fine() -> None:
    hashes, nothing = HashSet(), np.empty(0, np.int64)
    hashes.add(nothing)
    assert hashes.contains(nothing).size == 0
    assert not hashes.contains(np.array([0, 5])).any()


def test_a_set_has_at_most_32_bytes_a_hash() -> None:
    hashes = HashSet()
    for first in range(0, 20_000, 400):
        hashes.add(np.arange(1 + first, 401 + first))
        assert 16 * (400 + first) <= hashes.size_bytes <= max(8192, 32 * (400 + first))
