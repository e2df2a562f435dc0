from __future__ import annotations

import numpy as np
from tests.support.problems import placed as problem

from godwit.placement.problem import Limits
from godwit_lab.planners.baselines import plan_flux


def test_heaviest_key_group_that_lowers_the_variance_moves_from_first_to_last() -> None:
    # 9 to 1: moving 8 would leave 1 and 9; 5 lowers the variance.
    asked = problem([8.0, 1.0, 1.0], [0, 0, 1], 2, limits=Limits(max_moves=1))
    assert plan_flux(asked).num_moves == 1
    assert plan_flux(asked).assignment.tolist() == [0, 1, 1]


def test_second_is_paired_with_last_but_one() -> None:
    asked = problem([6.0, 6.0, 4.0, 4.0, 1.0, 0.0], [0, 0, 1, 1, 2, 3], 4)
    solution = plan_flux(asked)
    assert solution.assignment[0] == 3
    assert solution.assignment[2] == 2


def test_budgets_are_kept() -> None:
    asked = problem([5.0] * 6, [0] * 6, 2, limits=Limits(max_moves=2))
    assert plan_flux(asked).num_moves == 2
    bytes_left = problem(
        [5.0] * 3, [0] * 3, 2, state_bytes=np.array([7.0, 2.0, 7.0]), limits=Limits(max_bytes=3)
    )
    assert plan_flux(bytes_left).moved.tolist() == [1]


def test_draining_executor_gives_first_and_receives_nothing() -> None:
    asked = problem([9.0, 9.0, 1.0], [0, 0, 2], 3, draining=np.array([False, False, True]))
    solution = plan_flux(asked)
    assert not (solution.assignment == 2).any()


def test_executor_that_is_drained_already_takes_no_partner_from_those_with_load() -> None:
    draining = np.array([True, False, False, False])
    question = problem([2.0] * 9, [1, 1, 1, 2, 2, 2, 2, 2, 2], 4, draining=draining)
    assert (plan_flux(question).assignment == 3).any()


def test_capacity_counts() -> None:
    asked = problem([3.0, 3.0, 3.0], [0, 0, 0], 2, capacity=np.array([1.0, 2.0]))
    assert sorted(plan_flux(asked).load_index.tolist()) == [3.0, 3.0]
