from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.problems import placed

from godwit.model.errors import InvalidProblemError
from godwit.placement import metrics
from godwit.placement.metrics import wanted_executors
from godwit.placement.problem import Limits, Problem
from godwit.placement.solution import Status
from godwit_lab.planners.balancing import plan_elb


def problem(
    load: list[float], current: list[int], executors: int, low: float, high: float, **fields: Any
) -> Problem:
    limits = Limits(load_low=low, load_high=high)
    return placed(load, current, executors, state_bytes=np.array(load), limits=limits, **fields)


@pytest.mark.parametrize(
    ("total", "low", "high", "count"),
    [(100, 8, 12, 10), (101, 8, 12, 11), (0, 8, 12, 1), (0.3, 0.05, 0.15, 3)],
)
def test_mean_load_is_put_in_the_middle_of_the_range(
    total: float, low: float, high: float, count: int
) -> None:
    assert wanted_executors(total, low, high) == count


def test_only_executors_above_the_range_give() -> None:
    asked = problem([2.0] * 10, [0] * 4 + [1] * 3 + [2] * 3, 3, 4.0, 9.0)
    # 20 / 6.5 asks for 4 executors; with 3 of them nobody is out of range.
    assert plan_elb(asked, resize=False).num_moves == 0
    crowded = problem([2.0] * 10, [0] * 6 + [1] * 2 + [2] * 2, 3, 4.0, 9.0)
    solution = plan_elb(crowded, resize=False)
    assert solution.details["in_range"]
    assert set(crowded.current[solution.moved].tolist()) == {0}


def test_heaviest_key_groups_that_fit_leave_first() -> None:
    asked = problem([6.0, 3.0, 1.0, 1.0, 1.0], [0, 0, 0, 0, 1], 2, 3.0, 9.0)
    solution = plan_elb(asked)
    assert solution.moved.tolist() == [1, 2, 3]
    assert solution.load_index.tolist() == [6.0, 6.0]


def test_idle_executors_are_taken_into_use_as_load_grows() -> None:
    asked = problem([1.0] * 30, [0] * 15 + [1] * 15, 4, 8.0, 12.0)
    solution = plan_elb(asked)
    assert solution.details["wanted_executors"] == 3
    assert solution.load_index.tolist()[3] == 0
    assert solution.details["in_range"]


def test_least_loaded_executors_are_emptied_as_load_falls() -> None:
    asked = problem([1.0] * 20, [0] * 8 + [1] * 8 + [2] * 4, 3, 8.0, 12.0)
    solution = plan_elb(asked)
    assert solution.load_index.tolist() == [10.0, 10.0, 0.0]
    assert solution.num_moves == 4


def test_a_slow_executor_gives_what_fast_ones_have_room_for() -> None:
    """Load 3 of 9 at a quarter of the speed; the others have room for key groups of 1 each."""
    asked = problem([1.0] * 9, [0, 1, 2] * 3, 3, 2.0, 6.0, capacity=np.array([0.25, 1.0, 1.0]))
    solution = plan_elb(asked, resize=False)
    assert solution.load_index.tolist() == [4.0, 4.0, 4.0]
    assert solution.num_moves == 2


def test_a_slow_executor_is_given_no_more_than_it_has_time_for() -> None:
    """It has least to do, and would have most with one more."""
    load, current = [1.0] * 11 + [0.5], [0] + [1] * 6 + [2] * 5
    asked = problem(load, current, 3, 3.9, 6.1, capacity=np.array([0.3, 1.0, 1.0]))
    solution = plan_elb(asked, resize=False)
    assert metrics.loads(asked, solution.assignment).tolist() == [1.0, 5.0, 5.5]


@pytest.mark.parametrize(
    ("half_range", "left"),
    [(0.1, 2), (0.4, 2), (0.46, 3)],  # with two of 0.45 of its share it has 0.9, with three 1.35
)
def test_a_slow_executor_gives_one_more_where_that_is_nearer_to_its_share(
    half_range: float, left: int
) -> None:
    """What is lighter than half of the range stays, as in the paper."""
    load, current = [0.3] * 4 + [0.1] * 28, [0] * 4 + [1] * 14 + [2] * 14
    share = 4.0 / 2.4  # of an executor of speed 1; of the slow one, 0.67
    asked = problem(
        load,
        current,
        3,
        share * (1 - half_range),
        share * (1 + half_range),
        capacity=np.array([0.4, 1.0, 1.0]),
    )
    solution = plan_elb(asked, resize=False)
    assert np.count_nonzero(solution.assignment == 0) == left


def test_draining_executor_is_emptied() -> None:
    asked = problem(
        [1.0] * 20, [0] * 10 + [1] * 10, 3, 8.0, 12.0, draining=np.array([True, False, False])
    )
    solution = plan_elb(asked)
    assert solution.load_index.tolist() == [0.0, 10.0, 10.0]


def test_too_few_executors_is_the_reason() -> None:
    solution = plan_elb(problem([1.0] * 40, [0] * 20 + [1] * 20, 2, 8.0, 12.0))
    assert solution.status is Status.INFEASIBLE
    assert solution.reason == "4 executors are wanted; 2 are available"


def test_key_group_too_heavy_for_the_range_is_the_reason() -> None:
    solution = plan_elb(problem([19.0, 1.0], [0, 0], 2, 8.0, 12.0))
    assert solution.status is Status.INFEASIBLE
    assert "heaviest key group" in solution.reason


def test_key_groups_too_heavy_for_the_range_leave_an_executor_with_more_than_its_share() -> None:
    """Eight of 1.5 each, for executors with 5.5 to 6.5: each is heavier than half of 1."""
    asked = problem([1.5] * 8, [0] * 6 + [1] * 2, 2, 5.5, 6.5)
    solution = plan_elb(asked, resize=False)
    assert solution.load_index.tolist() == [6.0, 6.0]
    assert solution.num_moves == 2


def test_missing_or_empty_range_is_refused() -> None:
    asked = problem([1.0], [0], 1, 0.0, 0.0)
    with pytest.raises(InvalidProblemError, match="load_high = 0"):
        plan_elb(asked)
    bare = Problem(
        executors=("a",), load=np.ones(1), state_bytes=np.ones(1), current=np.zeros(1, np.int32)
    )
    with pytest.raises(InvalidProblemError, match="needs both ends"):
        plan_elb(bare)
