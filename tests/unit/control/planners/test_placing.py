"""Lanes stay evenly loaded where columns have values enough, and an exchange is worth so much."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.control.planners.placing import compare_placing, imbalance_of, min_values
from godwit.placement.metrics import busiest_lane


def test_key_groups_are_dealt_out_to_the_lane_that_has_least() -> None:
    assert busiest_lane(np.array([5.0, 4.0, 3.0, 3.0, 0.0]), 2) == 8.0
    assert busiest_lane(np.zeros(4), 3) == 0.0
    assert busiest_lane(np.array([7.0]), 3) == 7.0


@pytest.mark.parametrize("lanes", [8, 32])
def test_more_values_load_lanes_more_evenly(lanes: int) -> None:
    ratios = [imbalance_of(values, 256, lanes) for values in (1, 20, 1000, 10**7)]
    assert ratios[0] == lanes  # one value is one lane's
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("num_key_groups", [7, 64, 256])
def test_values_enough_are_the_fewest_that_keep_the_bound(num_key_groups: int) -> None:
    needed = min_values(num_key_groups, 4, 1.1)
    equal = -(-num_key_groups // 4) * 4 / num_key_groups
    assert imbalance_of(needed // 2, num_key_groups, 4) > 1.1 * equal
    for more in (1, 2, 8, 1024):
        assert imbalance_of(more * needed, num_key_groups, 4) <= 1.1 * equal


def test_an_exchange_is_saved_or_a_lane_is_overloaded_whichever_is_more() -> None:
    load, even = np.full(16, 10.0), np.ones(16)
    skewed = np.where(np.arange(16) == 3, 100.0, 1.0)
    saves = compare_placing(load, load, even, exchange_ms=80.0, lanes=4)
    assert (saves.apart_ms, saves.together_ms, saves.exchange_ms) == (100.0, 80.0, 20.0)
    assert saves.pays
    costs = compare_placing(load, load, skewed, exchange_ms=80.0, lanes=4)
    assert costs.together_ms > 140
    assert not costs.pays
    assert not compare_placing(load, load, even, exchange_ms=0.0, lanes=4).pays
