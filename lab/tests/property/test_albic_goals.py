"""While an executor drains, ALBIC reaches its goals in their order: enumeration is the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.oracles.allocation import allowed_assignments, over_under
from tests.support.rounds import rounds

from godwit.control.planners.allocation.milp import plan_milp
from godwit.placement import metrics
from godwit.placement.problem import NO_TRAFFIC, Limits, Problem, Traffic
from godwit.placement.registry import planner
from godwit_lab.planners.allocation.albic import plan_albic

MOST = 0.1  # max_load_distance: below this share of the mean, traffic comes before balance
MARGIN = 1e-3  # share of the mean that a plan has to gain


def draining_problem(seed: int) -> Problem:
    """Draw loads, places, budgets and traffic; one executor or more drain."""
    rng = np.random.default_rng([seed, 39])
    n, m = int(rng.integers(2, 4)), int(rng.integers(2, 6))
    whole = rng.random() < 0.5
    load = rng.integers(1, 20, m).astype(np.float64) if whole else rng.gamma(2, 5, m)
    size = rng.integers(0, 9, m).astype(np.float64)
    draining = np.zeros(n, np.bool_)
    draining[rng.choice(n, int(rng.integers(1, n)), replace=False)] = True
    edges = int(rng.integers(1, 2 * m + 1))
    return Problem(
        executors=tuple(f"e{i}" for i in range(n)),
        load=load,
        state_bytes=size,
        current=rng.integers(0, n, m, np.int32),
        capacity=rng.integers(1, 4 if rng.random() < 0.3 else 2, n).astype(np.float64),
        draining=draining,
        limits=Limits(
            max_moves=int(rng.integers(0, m + 1)) if rng.random() < 0.6 else None,
            max_bytes=float(rng.integers(0, size.sum() + 1)) if rng.random() < 0.4 else None,
        ),
        operators=("x", "y"),
        operator_of=rng.integers(0, 2, m, np.int32),
        traffic=Traffic(
            source=rng.integers(0, m, edges, np.int32),
            target=rng.integers(0, m, edges, np.int32),
            rate=rng.integers(1, 50, edges).astype(np.float64),
        ),
    )


def goals(problem: Problem, assignments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return key groups left on draining executors, and load distances until ``MOST``."""
    distance = over_under(problem, assignments).max(axis=1) / metrics.mean_index(problem)
    return problem.draining[assignments].sum(axis=1), np.maximum(distance, MOST)


def test_as_many_key_groups_leave_as_can_and_loads_are_as_even_as_that_allows() -> None:
    for seed in range(rounds(30, 320)):
        problem = draining_problem(seed)
        left, distance = goals(problem, allowed_assignments(problem))
        (after,), (reached,) = goals(problem, plan_albic(problem, patience=5).assignment[None])
        assert after == left.min(), seed
        assert reached <= distance[left == left.min()].min() + MARGIN, seed


def test_a_draining_executor_is_not_emptied_onto_the_fullest_beside_an_idle_one() -> None:
    problem = Problem(
        executors=("e0", "e1", "e2"),
        load=np.array([2.0, 5.0, 8.0]),
        state_bytes=np.ones(3),
        current=np.array([2, 1, 1], np.int32),
        draining=np.array([False, False, True]),
        limits=Limits(max_moves=1),
        operators=("x", "y"),
        operator_of=np.array([1, 0, 0], np.int32),
        traffic=Traffic(
            source=np.array([0, 2]), target=np.array([2, 1]), rate=np.array([7.0, 19.0])
        ),
    )
    assert plan_albic(problem).assignment.tolist() == [0, 1, 1]


def test_without_traffic_albic_plans_as_the_milp() -> None:
    for seed in range(rounds(10, 20)):
        problem = replace(draining_problem(seed), traffic=NO_TRAFFIC)
        assert planner("albic")(problem).objective == plan_milp(problem).objective
