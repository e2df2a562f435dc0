"""Rules that every planner in the registry follows, whatever its method."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from godwit.model.errors import InvalidProblemError
from godwit.placement.problem import Limits, Problem, Traffic
from godwit.placement.registry import PLANNERS
from godwit.placement.solution import (
    Solution,
    Status,
    broken_limits,
    illegalities,
    validate_solution,
)
from godwit_lab.cli.plan_json import solution_to_dict

if TYPE_CHECKING:
    from godwit.placement.registry import Planner

ASSIGNMENT = [entry for entry in PLANNERS.values() if entry.asks is Problem]
MATRIX = {"sizes": [1, 2, 3, 4], "probability": np.full((4, 4), 0.25)}
SOLVERS = {"albic", "milp"}  # each plan takes as long as a hundred of another planner's
OPTIONS: dict[str, dict[str, Any]] = {"mtm": {"transitions": MATRIX, "gamma": 0.5}}


def _problem(rng: np.random.Generator, *, intervals: bool) -> Problem:
    m, n = int(rng.integers(2, 12)), int(rng.integers(2, 5))
    draining = rng.random(n) < 0.25
    draining[rng.integers(n)] = False
    current = rng.integers(0, n, m)
    if intervals:
        current = np.sort(current)
    pairs = int(rng.integers(1, 2 * m))
    low, high = np.sort(rng.random(2) * 8).tolist()
    choices: dict[str, Any] = {
        "max_moves": int(rng.integers(0, m + 1)),
        "max_bytes": float(rng.random() * 50),
        "tau": float(rng.choice([0.0, 0.3, 1.5])),
        "load_low": low,
        "load_high": high,
        "target_executors": int(rng.integers(1, int((~draining).sum()) + 1)),
    }
    always = {"tau", "load_low", "load_high"}
    return Problem(
        executors=tuple(f"e{i}" for i in range(n)),
        load=rng.integers(0, 9, m).astype(np.float64),
        state_bytes=rng.integers(0, 9, m).astype(np.float64),
        current=current.astype(np.int32),
        draining=draining,
        capacity=np.ones(n) if rng.random() < 0.7 else rng.random(n) + 0.5,
        intervals=intervals,
        limits=Limits(**{k: v for k, v in choices.items() if k in always or rng.random() < 0.4}),
        traffic=Traffic(
            source=rng.integers(0, m, pairs, np.int32),
            target=rng.integers(0, m, pairs, np.int32),
            rate=rng.random(pairs),
        ),
        history=rng.random((3, m)),
    )


@pytest.mark.parametrize("entry", ASSIGNMENT, ids=lambda entry: entry.name)
@pytest.mark.parametrize("intervals", [False, True])
def test_no_planner_returns_an_invalid_solution(entry: Planner, intervals: bool) -> None:
    rng = np.random.default_rng(7)
    planned = 0
    for _ in range(25):
        problem = _problem(rng, intervals=intervals)
        if intervals:
            problem = dataclasses.replace(problem, capacity=np.ones(problem.num_executors))
        refusal = entry.refusal(problem)
        if refusal:
            with pytest.raises(InvalidProblemError, match="does not support this problem"):
                entry(problem)
            continue
        try:
            solution = entry(problem, **OPTIONS.get(entry.name, {}))
        except InvalidProblemError as error:
            # Only a chain that has no plan within tau for one of its sizes is a wrong problem.
            assert entry.name == "mtm", error  # noqa: PT017  the rest of the run still counts
            continue
        assert isinstance(solution, Solution)
        assert solution.method == entry.name
        assert solution.elapsed_s >= 0
        validate_solution(solution)
        assert json.loads(json.dumps(solution_to_dict(solution)))
        planned += 1
    takes_intervals_only = entry.refusal(_problem(np.random.default_rng(0), intervals=False))
    assert planned or takes_intervals_only or intervals


@pytest.mark.parametrize("entry", ASSIGNMENT, ids=lambda entry: entry.name)
def test_a_planner_is_a_function_of_its_problem(entry: Planner) -> None:
    rng = np.random.default_rng(11)
    compared = 0
    for intervals in (False, True):
        tau = None if "tau" in entry.refuses else 2.0
        problem = dataclasses.replace(
            _problem(rng, intervals=intervals), limits=Limits(tau=tau, load_low=1.0, load_high=9.0)
        )
        if entry.refusal(problem):
            continue
        options = OPTIONS.get(entry.name, {})
        first, second = entry(problem, **options), entry(problem, **options)
        assert first.assignment.tolist() == second.assignment.tolist()
        compared += 1
    assert compared


LIMITS: dict[str, dict[str, Any]] = {
    "max_moves": {"max_moves": 2},
    "max_bytes": {"max_bytes": 9.0},
    "tau": {"tau": 0.5},
    "max_usage": {"max_usage": (14.0, 14.0)},
    "target_executors": {"target_executors": 2},
}


def _within_reach(problem: Problem) -> bool:
    """True if any assignment keeps the limits."""
    m, n = problem.num_key_groups, problem.num_executors
    return any(
        not illegalities(problem, assignment) and not broken_limits(problem, assignment)
        for assignment in (
            np.array(places, np.int32) for places in itertools.product(range(n), repeat=m)
        )
    )


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("entry", ASSIGNMENT, ids=lambda entry: entry.name)
def test_every_planner_keeps_every_limit_or_refuses_it_by_name(entry: Planner, limit: str) -> None:
    rng = np.random.default_rng(13)
    for seed in range(5 if entry.name in SOLVERS else 12):
        always = {} if "tau" in entry.refuses or limit == "tau" else {"tau": 2.0}
        if entry.name == "elb":
            always = {"load_low": 0.0, "load_high": 60.0}
        problem = Problem(
            executors=("a", "b", "c"),
            resources=("cpu", "memory"),
            load=rng.integers(1, 6, (6, 2)).astype(np.float64),
            state_bytes=rng.integers(1, 6, 6).astype(np.float64),
            current=np.sort(rng.integers(0, 3, 6, np.int32)),
            intervals=entry.plans_intervals or entry.name == "storm_default",
            limits=Limits(**always | LIMITS[limit]),
            traffic=Traffic(
                source=np.arange(5, dtype=np.int32),
                target=np.arange(1, 6, dtype=np.int32),
                rate=np.ones(5),
            ),
            history=rng.random((3, 6)),
        )
        if limit in entry.refuses:
            with pytest.raises(InvalidProblemError, match=rf"does not keep limits\.{limit}"):
                entry(problem, **OPTIONS.get(entry.name, {}))
            continue
        solution = entry(problem, **OPTIONS.get(entry.name, {}))
        validate_solution(solution)
        if solution.status is not Status.INFEASIBLE:
            continue
        if entry.kind == "baseline":
            assert limit in {"max_moves", "max_bytes", "tau"}, solution.reason
        else:
            assert not _within_reach(problem), (seed, solution.reason)
