"""Integers by key group are a mapping, however they are kept."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from godwit.model.key_groups import PerKeyGroup, key_group_mask


def test_it_is_the_mapping_that_it_was_made_of() -> None:
    numbers = {7: 1, 2: -1, 32_767: 5}
    made = PerKeyGroup.of(numbers)
    assert made == numbers
    assert list(made) == [2, 7, 32_767]
    assert [made[g] for g in numbers] == list(numbers.values())
    assert made.get(3, 9) == 9
    assert 8 not in made
    with pytest.raises(KeyError):
        made[32_768]


def test_of_two_that_name_one_key_group_the_last_counts() -> None:
    parts = [{1: 1, 5: 1}, {5: 2, 0: 2}, PerKeyGroup.of({0: 3})]
    assert PerKeyGroup.joined(parts) == {0: 3, 1: 1, 5: 2}
    assert PerKeyGroup.joined([]) == {}
    assert PerKeyGroup.joined([{}, {}]) == {}


def test_it_survives_pickling() -> None:
    made = PerKeyGroup(np.array([0, 3], np.int32), np.array([7, 9]))
    assert pickle.loads(pickle.dumps(made)) == {0: 7, 3: 9}


@pytest.mark.parametrize("key_groups", [(), (3,), (0, 3, 3, 0, 3, 3, 0)])
def test_a_mask_is_true_for_the_key_groups_of_any_number_of_rows(key_groups: tuple[int]) -> None:
    for some in (key_groups, np.array(key_groups, np.int32)):
        mask = key_group_mask(some, 4)
        assert mask.dtype == np.bool_
        assert np.flatnonzero(mask).tolist() == sorted(set(key_groups))
