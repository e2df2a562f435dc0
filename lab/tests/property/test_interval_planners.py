"""Exact planners of intervals against brute force on random small problems."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.tests.oracles.interval_plans import (
    cheapest_sequence,
    fewest_bytes,
    random_line_problem,
)
from tests.support.rounds import rounds

from godwit.placement.solution import Status, validate_solution
from godwit_lab.planners.intervals import ssm
from godwit_lab.planners.intervals.oms import plan_oms
from godwit_lab.planners.intervals.ssm import plan_simple_ssm, plan_ssm

if TYPE_CHECKING:
    from godwit.placement.problem import Problem
    from godwit.placement.solution import Solution

seeds = st.integers(0, 2**32 - 1)


def _check_against_brute_force(seed: int, most: int = 9) -> tuple[Problem, Solution]:
    """Compare one plan, and return it with its problem."""
    problem = random_line_problem(np.random.default_rng(seed), most=most)
    solution = plan_ssm(problem)
    validate_solution(solution)
    tau = problem.limits.tau
    assert tau is not None
    limit = (1 + tau) * float(problem.weight.sum()) / problem.target_executors
    best = fewest_bytes(problem, limit)
    if best < float("inf"):
        assert solution.status is Status.OPTIMAL
        assert solution.moved_bytes == pytest.approx(best)
        return problem, solution
    assert solution.status is Status.INFEASIBLE
    greatest = float(np.bincount(solution.assignment, weights=problem.weight).max())
    assert fewest_bytes(problem, greatest * (1 - 1e-6)) == float("inf"), "a smaller tau exists"
    assert solution.moved_bytes == pytest.approx(fewest_bytes(problem, greatest))
    return problem, solution


@pytest.mark.campaign
def test_ssm_equals_brute_force_on_thousands_of_problems_of_every_kind() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(rounds(250, 2_500)):
        problem, solution = _check_against_brute_force(seed)
        sources, targets = len(np.unique(problem.current)), problem.target_executors
        kinds["states of no size"] += bool((problem.state_bytes == 0).any())
        kinds["no state at all"] += not problem.state_bytes.any()
        kinds["as many targets as sources"] += sources == targets
        kinds["more targets than sources"] += targets > sources
        kinds["fewer targets than sources"] += targets < sources
        kinds["tau out of reach"] += solution.status is Status.INFEASIBLE
        kinds["draining"] += bool(problem.draining[problem.current].any())
    assert len(kinds) == 7
    assert min(kinds.values()) >= rounds(25, 250), kinds


@pytest.mark.parametrize(
    "cells",
    [{}, {"BLOCK_CELLS": 4, "CACHED_CELLS": 0}, {"BLOCK_CELLS": 4}],
    ids=["all at once", "block by block", "blocks that are kept"],
)
@given(seed=seeds)
@settings(derandomize=True, deadline=None, max_examples=rounds(60, 250))
def test_ssm_equals_brute_force(cells: dict[str, int], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in cells.items():
            patch.setattr(ssm, name, size)
        _check_against_brute_force(seed)


@given(seeds)
@settings(derandomize=True, deadline=None, max_examples=rounds(80, 400))
def test_simple_ssm_ssm_and_one_step_oms_agree(seed: int) -> None:
    problem = random_line_problem(np.random.default_rng(seed), most=7)
    plans = [plan_ssm(problem), plan_simple_ssm(problem), plan_oms(problem)]
    for plan in plans:
        validate_solution(plan)
    assert len({plan.status for plan in plans}) == 1
    assert {plan.moved_bytes for plan in plans} == {plans[0].moved_bytes}


@pytest.mark.campaign
@given(seeds)
@settings(derandomize=True, deadline=None, max_examples=rounds(150, 1_000))
def test_oms_equals_trying_every_sequence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_line_problem(rng, most=6)
    available = len(problem.available)
    further = rng.integers(1, available + 1, int(rng.integers(0, 3))).tolist()
    targets = [problem.target_executors, *further]
    taus = rng.choice([0.2, 0.5, 1.0], len(targets)).tolist()
    solution = plan_oms(problem, targets=targets, taus=taus)
    best = cheapest_sequence(problem, targets, taus)
    if best == float("inf"):
        assert "no intervals within its limits" in solution.reason
    else:
        assert solution.objective == pytest.approx(best)
        assert solution.moved_bytes == pytest.approx(solution.details["moved_bytes"][0])


@given(seeds, st.integers(1, 30))
@settings(derandomize=True, deadline=None, max_examples=rounds(50, 200))
def test_oms_by_a_sample_is_within_the_limits_and_no_better_than_the_optimum(
    seed: int, sample: int
) -> None:
    rng = np.random.default_rng(seed)
    problem = random_line_problem(rng)
    further = rng.integers(1, len(problem.available) + 1, int(rng.integers(0, 3))).tolist()
    targets = [problem.target_executors, *further]
    exact = plan_oms(problem, targets=targets)
    sampled = plan_oms(problem, targets=targets, sample=sample)
    validate_solution(sampled)
    if "cuts" not in exact.details:
        assert "no intervals within its limits" in sampled.reason
        return
    assert exact.objective is not None
    assert sampled.objective is not None
    assert sampled.objective >= exact.objective - 1e-9
    assert sampled.objective == pytest.approx(sum(sampled.details["moved_bytes"]))
    assert sampled.moved_bytes == pytest.approx(sampled.details["moved_bytes"][0])


@given(seeds)
@settings(derandomize=True, deadline=None, max_examples=rounds(50, 200))
def test_nothing_moves_onto_a_draining_executor_and_one_plan_empties_it(seed: int) -> None:
    problem = random_line_problem(np.random.default_rng(seed))
    assignment = plan_ssm(problem).assignment
    assert not problem.draining[assignment].any()
