"""Savings of rebalancing: against every possible placement, and against its bounds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.ops.advise.stage_advice import what_if
from godwit.placement.metrics import busiest_lane

times = st.lists(st.integers(0, 50).map(float), min_size=1, max_size=6)


@given(times, st.integers(1, 3))
def test_the_schedule_is_within_graham_s_bound_of_the_best_there_is(
    tasks: list[float], slots: int
) -> None:
    best = min(
        max(sum(t for t, at in zip(tasks, where, strict=True) if at == s) for s in range(slots))
        for where in product(range(slots), repeat=len(tasks))
    )
    made = busiest_lane(np.array(tasks), slots)
    assert best <= made <= best * (4 / 3 - 1 / (3 * slots)) + 1e-9


@given(times, st.integers(1, 200), st.floats(0, 1e4))
def test_bounds_and_savings_are_in_order_whatever_a_stage_took(
    tasks: list[float], slots: int, more: float
) -> None:
    made = what_if(busiest_lane(np.array(tasks), slots) + more, tasks, slots)
    assert made.mean_s <= made.bound_s + 1e-9
    assert made.bound_s <= made.moved_s + 1e-9
    assert made.moved_s <= made.as_run_s
    assert 0 <= made.saved_by_moving_s <= made.saved_by_splitting_s + 1e-9


def test_one_partition_that_is_larger_than_a_slot_s_share_cannot_be_moved_away() -> None:
    made = what_if(6.0, [6.0, 1.0, 1.0], 2)
    assert made.saved_by_moving_s == 0
    assert made.bound_s == made.longest_s == 6.0
    assert made.saved_by_splitting_s == pytest.approx(2.0)


def test_a_stage_that_was_faster_than_its_tasks_say_saves_nothing() -> None:
    made = what_if(0.5, [1.0, 1.0], 1)  # clocks of two machines
    assert (made.saved_by_moving_s, made.saved_by_splitting_s) == (0, 0)
