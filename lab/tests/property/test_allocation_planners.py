"""The MILP against enumeration; draining; and that no planner ever returns an invalid plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.allocation import allowed_assignments, best_allocation, over_under
from tests.oracles.allocation_problems import allocation_problems, random_allocation_problem
from tests.support.rounds import rounds

from godwit.control.planners.allocation.milp import load_distance_bound, plan_milp
from godwit.control.planners.allocation.model import build_model, single_units
from godwit.control.planners.allocation.search import AllocationSearch
from godwit.placement.solution import Status, validate_solution
from godwit_lab.planners.allocation.albic import plan_albic
from godwit_lab.planners.balancing import plan_elb
from godwit_lab.planners.baselines import plan_flux

if TYPE_CHECKING:
    from godwit.placement.problem import Problem
    from godwit.placement.solution import Solution

CLOSE = 1e-6
more = settings(derandomize=True, deadline=None, max_examples=rounds(25, 150))
many = settings(derandomize=True, deadline=None, max_examples=rounds(15, 30))
some = settings(derandomize=True, deadline=None, max_examples=rounds(6, 12))


def sides(problem: Problem, assignment: Any) -> tuple[float, float]:
    over, under = over_under(problem, np.asarray(assignment)[None, :])[0]
    return max(over, under), over + under


@pytest.mark.campaign
def test_milp_equals_enumeration_of_hundreds_of_problems() -> None:
    for seed in range(rounds(40, 400)):
        _check_against_enumeration(random_allocation_problem(np.random.default_rng(seed)))


@many
@given(allocation_problems())
def test_milp_equals_enumeration(problem: Problem) -> None:
    _check_against_enumeration(problem)


def _check_against_enumeration(problem: Problem) -> None:
    best = best_allocation(problem)
    assert best is not None
    solution = plan_milp(problem)
    validate_solution(solution)
    distance, both = sides(problem, solution.assignment)
    scale = CLOSE * (1 + problem.load.sum())
    assert distance == pytest.approx(best.distance, abs=scale)
    assert both == pytest.approx(best.both_sides, abs=4 * scale)
    assert solution.objective == pytest.approx(distance, abs=scale)
    assert solution.status is Status.OPTIMAL


@more
@given(allocation_problems(usage=True))
def test_milp_with_several_resources_equals_enumeration(problem: Problem) -> None:
    best = best_allocation(problem)
    solution = plan_milp(problem)
    validate_solution(solution)
    if best is None:
        assert solution.status is Status.INFEASIBLE
        assert solution.reason
        return
    assert solution.status is Status.OPTIMAL
    distance, _ = sides(problem, solution.assignment)
    assert distance == pytest.approx(best.distance, abs=CLOSE * (1 + problem.load.sum()))


@more
@given(allocation_problems(draining=True))
def test_milp_with_draining_executors_is_optimal_unless_it_has_to_drain(problem: Problem) -> None:
    best = best_allocation(problem)
    assert best is not None
    solution = plan_milp(problem)
    validate_solution(solution)
    if not solution.details["forced_drain"]:
        distance, _ = sides(problem, solution.assignment)
        assert distance == pytest.approx(best.distance, abs=CLOSE * (1 + problem.load.sum()))


@pytest.mark.campaign
def test_bound_is_never_above_the_optimum_of_thousands_of_problems() -> None:
    for seed in range(rounds(200, 1_500)):
        problem = random_allocation_problem(np.random.default_rng(seed))
        best = best_allocation(problem)
        assert best is not None
        assert load_distance_bound(problem) <= best.distance + 1e-9 * (1 + best.distance)


@more
@given(allocation_problems(draining=True))
def test_bound_is_never_above_the_optimum(problem: Problem) -> None:
    best = best_allocation(problem)
    assert best is not None
    assert load_distance_bound(problem) <= best.distance + 1e-9 * (1 + best.distance)


@many
@given(allocation_problems(usage=True, draining=True))
def test_local_search_keeps_to_every_limit_it_started_within(problem: Problem) -> None:
    model = build_model(problem, single_units(problem))
    search = AllocationSearch(model, problem.current.copy())
    search.improve()
    moves, size = model.spent(search.place)
    assert moves <= model.max_moves
    assert size <= model.max_bytes * (1 + 1e-9)
    feasible = {tuple(row) for row in allowed_assignments(problem).tolist()}
    if tuple(problem.current.tolist()) in feasible:
        assert tuple(search.place.tolist()) in feasible
        assert model.objective(search.place) <= model.objective(problem.current) + 1e-9


@some
@given(allocation_problems(draining=True, max_key_groups=8, max_executors=4, limited=False))
def test_repeated_plans_empty_a_draining_executor_and_put_nothing_on_it(problem: Problem) -> None:
    """Lemmas 1 and 4.2 of paper 2, with room for one move in every plan."""
    limits = replace(problem.limits, max_moves=1)
    current = problem.current
    for _ in range(200):
        now = replace(problem, current=current, limits=limits)
        solution = plan_milp(now)
        validate_solution(solution)
        arrived = problem.draining[solution.assignment] & (solution.assignment != current)
        assert not arrived.any()
        current = solution.assignment
        if not problem.draining[current].any():
            return
    pytest.fail(f"still on the draining executor: {current}")


@some
@given(allocation_problems(draining=True, limited=False))
def test_least_distance_without_budget_needs_no_draining_executor(problem: Problem) -> None:
    solution = plan_milp(problem)
    assert not problem.draining[solution.assignment[problem.weight > 0]].any() or not (
        _emptying_helps(problem, solution)
    )


def _emptying_helps(problem: Problem, solution: Solution) -> bool:
    every = allowed_assignments(problem)
    emptied = every[~problem.draining[every].any(axis=1)]
    best = over_under(problem, emptied).max(axis=1).min()
    return bool(best < sides(problem, solution.assignment)[0] - CLOSE)


@some
@given(allocation_problems(draining=True, max_key_groups=12), st.integers(1, 40))
def test_elb_plan_is_valid_for_every_problem(problem: Problem, middle: int) -> None:
    limits = replace(problem.limits, load_low=0.8 * middle, load_high=1.2 * middle)
    ranged = replace(problem, limits=limits)
    validate_solution(plan_elb(ranged))
    validate_solution(plan_elb(ranged, giving="mean", resize=False))


@some
@given(allocation_problems(max_key_groups=12, max_executors=4))
def test_flux_never_raises_the_variance_and_keeps_the_budget(problem: Problem) -> None:
    solution = plan_flux(problem)
    assert solution.status is Status.FEASIBLE
    still = replace(solution, assignment=problem.current)
    assert solution.variance <= still.variance * (1 + 1e-9) + 1e-12


@some
@given(allocation_problems(traffic=True, max_key_groups=9, unequal=False))
def test_albic_without_partitions_is_the_milp(problem: Problem) -> None:
    pure = plan_albic(problem, max_partition_load=0)
    assert pure.objective == pytest.approx(
        plan_milp(problem).objective, abs=CLOSE * (1 + problem.load.sum())
    )
