from __future__ import annotations

import numpy as np
import pytest
from tests.support.problems import placed as problem

from godwit.control.planners.cores.intra_executor import balance_lanes, plan_intra_executor
from godwit.model.errors import InvalidProblemError
from godwit.placement.problem import Limits
from godwit.placement.solution import Status


def test_balanced_lanes_stay_as_they_are() -> None:
    load, lane_of = np.array([6.0, 5.0]), np.array([0, 1])
    assert balance_lanes(load, lane_of, 2).tolist() == [0, 1]


def test_key_group_nearest_to_half_the_difference_moves() -> None:
    load = np.array([9.0, 5.0, 3.0, 1.0, 2.0])
    lane_of = np.array([0, 0, 0, 0, 1])
    assert balance_lanes(load, lane_of, 2, theta=1.3).tolist() == [1, 0, 0, 0, 1]


def test_number_of_reassignments_can_be_bounded() -> None:
    load, lane_of = np.ones(8), np.zeros(8, np.int32)
    assert (balance_lanes(load, lane_of, 4, max_moves=2) != 0).sum() == 2
    assert (balance_lanes(load, lane_of, 4, max_moves=0) == 0).all()


def test_one_hot_key_group_is_left_alone_and_named_as_the_reason() -> None:
    solution = plan_intra_executor(problem([10.0, 1.0, 1.0], [0, 0, 1], 2))
    assert solution.assignment.tolist() == [0, 1, 1]
    assert solution.status is Status.INFEASIBLE or "one key group alone" in solution.reason
    assert solution.objective == pytest.approx(10 / 6)
    assert solution.bound == pytest.approx(10 / 6)


def test_problem_limits_give_theta_and_moves() -> None:
    tight = problem([4.0, 3.0, 3.0], [0, 0, 0], 2, limits=Limits(theta=1.4, max_moves=1))
    solution = plan_intra_executor(tight)
    assert solution.num_moves == 1
    assert solution.reason == ""
    assert solution.load_index.max() <= 1.4 * 5


def test_lanes_without_load_are_balanced() -> None:
    solution = plan_intra_executor(problem([0.0, 0.0], [0, 0], 2))
    assert solution.objective == 1.0
    assert solution.num_moves == 0


@pytest.mark.parametrize(
    ("load", "lane_of", "lanes", "theta", "names"),
    [
        ([1.0, -1.0], [0, 0], 1, 1.2, r"load\[1\] = -1"),
        ([1.0], [2], 2, 1.2, r"lane_of\[0\] = 2"),
        ([1.0], [0, 0], 2, 1.2, "lane_of"),
        ([1.0], [0], 0, 1.2, "num_lanes = 0"),
        ([1.0], [0], 1, 0.9, "theta = 0.9"),
    ],
)
def test_wrong_input_is_named(
    load: list[float], lane_of: list[int], lanes: int, theta: float, names: str
) -> None:
    with pytest.raises(InvalidProblemError, match=names):
        balance_lanes(np.array(load), np.array(lane_of), lanes, theta=theta)


def test_unequal_or_draining_lanes_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="capacity"):
        plan_intra_executor(problem([1.0], [0], 2, capacity=np.array([1.0, 2.0])))
    with pytest.raises(InvalidProblemError, match="draining = 'e1'"):
        plan_intra_executor(problem([1.0], [0], 2, draining=np.array([False, True])))
