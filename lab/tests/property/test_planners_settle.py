"""On constant input plans come to rest, and none is worse than doing nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.rounds import rounds

from godwit.control.planners.allocation.milp import plan_milp
from godwit.placement import metrics
from godwit.placement.problem import Limits, Problem, Traffic
from godwit_lab.planners.allocation.albic import plan_albic
from godwit_lab.planners.balancing import plan_clb

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.placement.solution import Solution


def talking(executors: int, key_groups: int, seed: int, *, limits: Limits | None = None) -> Problem:
    """Draw loads, places and traffic: pairs that talk to nobody else, or any that talk to any."""
    rng = np.random.default_rng([executors, key_groups, seed])
    if rng.random() < 0.5:
        order = rng.permutation(key_groups).astype(np.int32)
        half = key_groups // 2
        source, target = order[:half], order[half : 2 * half]
    else:
        edges = int(rng.integers(1, 3 * key_groups))
        source, target = rng.integers(0, key_groups, (2, edges), np.int32)
    whole = rng.random() < 0.5
    return Problem(
        executors=tuple(f"e{i}" for i in range(executors)),
        load=np.round(rng.uniform(1, 10, key_groups), 0 if whole else 9),
        state_bytes=rng.uniform(1, 10, key_groups),
        current=rng.integers(0, executors, key_groups, np.int32),
        traffic=Traffic(source=source, target=target, rate=rng.uniform(1, 50, len(source))),
        limits=limits or Limits(),
    )


def plans_until_rest(
    plan: Callable[[Problem], Solution], problem: Problem, *, at_most: int
) -> list[Solution]:
    """Carry out plan after plan until one moves nothing."""
    plans, seen = [], {problem.current.tobytes()}
    for _ in range(at_most):
        solution = plan(problem)
        plans.append(solution)
        if solution.num_moves == 0:
            return plans
        problem = replace(problem, current=solution.assignment)
        assert problem.current.tobytes() not in seen, "an assignment came back"
        seen.add(problem.current.tobytes())
    pytest.fail(f"the last of {at_most} plans still moves {solution.num_moves} key groups")


def uneven(problem: Problem, assignment: np.ndarray) -> float:
    """Load distance in per cent of the mean, 1 where it is below that."""
    distance = metrics.load_distance(problem, assignment) / metrics.mean_index(problem)
    return max(1.0, 100 * distance)


def sells_no_balance(solution: Solution) -> bool:
    problem = solution.problem
    before = uneven(problem, problem.current)
    return before > 10 or uneven(problem, solution.assignment) <= before + 1e-6


def no_worse_than_doing_nothing(solution: Solution) -> bool:
    problem = solution.problem
    return (
        uneven(problem, solution.assignment) < uneven(problem, problem.current)
        or solution.collocation_factor > metrics.collocation_factor(problem, problem.current) - 1e-9
    )


@pytest.mark.parametrize(
    ("executors", "key_groups", "problems"),
    [(2, 6, rounds(4, 16)), (3, 10, rounds(2, 4)), (5, 30, 1), (10, 100, 1)],
)
def test_albic_comes_to_rest_within_ten_plans(
    executors: int, key_groups: int, problems: int
) -> None:
    for seed in range(problems):
        plans = plans_until_rest(plan_albic, talking(executors, key_groups, seed), at_most=10)
        assert all(no_worse_than_doing_nothing(solution) for solution in plans), seed
        assert all(sells_no_balance(solution) for solution in plans), seed


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("executors", "key_groups", "problems"), [(2, 6, rounds(4, 10)), (4, 16, 2)]
)
def test_albic_comes_to_rest_within_budgets_too(
    executors: int, key_groups: int, problems: int
) -> None:
    limits = Limits(max_moves=max(2, key_groups // 5))
    for seed in range(problems):
        problem = talking(executors, key_groups, 1000 + seed, limits=limits)
        plans = plans_until_rest(plan_albic, problem, at_most=30)
        assert all(no_worse_than_doing_nothing(solution) for solution in plans), seed


@pytest.mark.campaign
@pytest.mark.parametrize("max_moves", [None, 3])
def test_milp_comes_to_rest_within_ten_plans(max_moves: int | None) -> None:
    for seed in range(rounds(5, 10)):
        problem = talking(3, 10, seed, limits=Limits(max_moves=max_moves))
        plans = plans_until_rest(plan_milp, problem, at_most=10)
        for solution in plans[:-1]:
            today = metrics.load_distance(solution.problem, solution.problem.current)
            assert solution.load_distance <= today * (1 + 1e-9)


def test_clb_comes_to_rest_within_ten_plans() -> None:
    for seed in range(rounds(10, 20)):
        rng = np.random.default_rng(seed)
        key_groups, executors = int(rng.integers(4, 60)), int(rng.integers(2, 6))
        history = rng.poisson(rng.uniform(1, 100, key_groups), (8, key_groups)).astype(np.float64)
        problem = Problem(
            executors=tuple(f"e{i}" for i in range(executors)),
            load=history[-1],
            state_bytes=rng.uniform(1, 10, key_groups),
            current=rng.integers(0, executors, key_groups, np.int32),
            history=history,
            capacity=rng.integers(1, 3, executors).astype(np.float64),
        )
        for solution in plans_until_rest(plan_clb, problem, at_most=10):
            before = metrics.history_imbalance(solution.problem, solution.problem.current)
            assert solution.objective is not None
            assert solution.objective <= before
