from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from lab.tests.oracles.interval_plans import line_problem, random_line_problem

from godwit.model.errors import InvalidProblemError
from godwit.placement.solution import Status, validate_solution
from godwit_lab.planners.baselines import (
    plan_consistent_hashing,
    plan_redistribution,
    plan_storm_default,
    ring_owners,
)
from godwit_lab.planners.intervals.ssm import plan_ssm

APPENDIX_A = line_problem(
    [0] * 6 + [1] * 6, load=[1, 1, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1], num_executors=3, tau=0.25
)


def test_appendix_a_consistent_hashing_moves_four_where_two_are_enough() -> None:
    problem = dataclasses.replace(APPENDIX_A, intervals=False)
    for seed in range(20):
        plan = plan_consistent_hashing(problem, equal_counts=True, seed=seed)
        assert plan.num_moves == 4
        assert np.bincount(plan.assignment).tolist() == [4, 4, 4]
    assert plan_ssm(APPENDIX_A).num_moves == 2


def test_appendix_a_equal_counts_can_leave_load_uneven() -> None:
    problem = dataclasses.replace(APPENDIX_A, intervals=False)
    worst = max(
        plan_consistent_hashing(problem, equal_counts=True, seed=seed).load_index.max()
        for seed in range(50)
    )
    assert worst == 6


def test_a_ring_moves_only_key_groups_of_the_executor_that_leaves() -> None:
    before = ring_owners(500, ["a", "b", "c"], points=64, seed=0)
    after = ring_owners(500, ["a", "b"], points=64, seed=0)
    stays = before < 2
    assert np.array_equal(before[stays], after[stays])
    counts = np.bincount(before)
    assert counts.min() > 100


def test_storm_deals_consecutive_key_groups_evenly() -> None:
    plan = plan_storm_default(line_problem([0] * 7, num_executors=3))
    assert plan.assignment.tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_redistribution_places_heavy_key_groups_apart() -> None:
    problem = line_problem([0] * 8, load=[9, 9, 9, 9, 1, 1, 1, 1], num_executors=4)
    problem = dataclasses.replace(problem, intervals=False)
    plan = plan_redistribution(problem, migration_weight=0.0)
    assert sorted(plan.assignment[:4].tolist()) == [0, 1, 2, 3]


def test_redistribution_moves_less_when_moving_weighs_more() -> None:
    rng = np.random.default_rng(0)
    problem = line_problem(
        np.repeat(range(4), 16).tolist(), load=rng.random(64).tolist(), num_executors=6
    )
    problem = dataclasses.replace(problem, intervals=False)
    cheap = plan_redistribution(problem, migration_weight=0.0, heavy_share=0.0)
    dear = plan_redistribution(problem, migration_weight=100.0, heavy_share=0.0)
    assert dear.num_moves < cheap.num_moves
    assert cheap.load_distance < 1.0 < dear.load_distance


@pytest.mark.parametrize("plan", [plan_storm_default, plan_consistent_hashing, plan_redistribution])
def test_baselines_are_legal_on_random_problems(plan: object) -> None:
    assert callable(plan)
    rng = np.random.default_rng(3)
    seen = set()
    for _ in range(200):
        problem = random_line_problem(rng)
        solution = plan(problem)
        validate_solution(solution)
        assert not problem.draining[solution.assignment].any()
        assert len(np.unique(solution.assignment)) <= problem.target_executors
        seen.add(solution.status)
    assert seen == {Status.FEASIBLE, Status.INFEASIBLE}


def test_equal_counts_moves_no_more_than_it_must() -> None:
    rng = np.random.default_rng(4)
    for _ in range(100):
        problem = dataclasses.replace(random_line_problem(rng), intervals=False)
        plan = plan_consistent_hashing(problem, equal_counts=True)
        used = problem.available[: problem.target_executors]
        counts = np.bincount(plan.assignment, minlength=problem.num_executors)[used]
        assert counts.max() - counts.min() <= 1
        before = np.bincount(problem.current, minlength=problem.num_executors)[used]
        assert plan.num_moves == problem.num_key_groups - np.minimum(before, counts).sum()


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="points = 0"):
        plan_consistent_hashing(APPENDIX_A, points=0)
    with pytest.raises(InvalidProblemError, match="heavy_share"):
        plan_redistribution(APPENDIX_A, heavy_share=-1)
