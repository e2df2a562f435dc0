"""Facts about the keys that a process remembers as fetched."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.checkpoint.fetched_keys import FetchedKeys
from godwit.store.compiled import LOADER


@pytest.fixture(autouse=True, params=["now", "off"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use machine code from the first row, or none."""
    monkeypatch.setattr(LOADER, "mode", request.param)


@pytest.mark.parametrize("num_key_groups", [1, 7, 64])
def test_what_was_added_is_remembered_until_its_key_group_is_forgotten(num_key_groups: int) -> None:
    rng, fetched = np.random.default_rng(num_key_groups), FetchedKeys(num_key_groups)
    expected = set[int]()
    for _ in range(60):
        some = rng.integers(-3000, 3000, rng.integers(0, 900))
        fetched.add(some)
        expected |= set(some.tolist()) - {0}
        if rng.random() < 0.5:
            forgotten = rng.permutation(num_key_groups)[: rng.integers(0, 3)]
            fetched.forget(forgotten)
            expected = {h for h in expected if h % num_key_groups not in set(forgotten.tolist())}
        asked = np.arange(-3100, 3100)
        assert fetched.contains(asked).tolist() == [h in expected for h in asked.tolist()]


def test_a_key_group_may_be_forgotten_any_number_of_times() -> None:
    fetched, key_group = FetchedKeys(4), np.array([3])
    fetched.add(np.array([5, 6, 8]))
    for number in range(700):
        fetched.add(np.array([4 * number + 3]))
        assert fetched.contains(np.array([4 * number + 3, 5, 6, 8])).all()
        fetched.forget(key_group)
        assert not fetched.contains(4 * np.arange(number + 1) + 3).any()


def test_forgotten_hashes_make_room_for_others() -> None:
    fetched = FetchedKeys(2)
    fetched.add(2 * np.arange(1, 5001))
    size = fetched.size_bytes
    for number in range(40):
        fetched.add(2 * np.arange(5000 * number, 5000 * (number + 1)) + 1)
        fetched.forget(np.array([1]))
    assert fetched.size_bytes <= 4 * size
    assert fetched.contains(2 * np.arange(1, 5001)).all()


def test_hashes_with_equal_upper_bits_are_told_apart_in_short_searches() -> None:
    fetched = FetchedKeys(256)
    alike = np.arange(1, 100_001) << 4
    fetched.add(alike)
    assert fetched.contains(alike).all()
    assert not fetched.contains(alike + 1).any()


def test_no_hashes_are_fine() -> None:
    fetched, nothing = FetchedKeys(8), np.empty(0, np.int64)
    fetched.add(nothing)
    fetched.forget(nothing)
    assert fetched.contains(nothing).size == 0
    assert not fetched.contains(np.array([0, 5])).any()


def test_a_hash_has_at_most_45_bytes() -> None:
    fetched = FetchedKeys(8)
    for first in range(0, 20_000, 400):
        fetched.add(np.arange(1 + first, 401 + first))
        assert 18 * (400 + first) <= fetched.size_bytes <= max(9216, 45 * (400 + first))
        assert fetched.contains(np.arange(1, 401 + first)).all()
