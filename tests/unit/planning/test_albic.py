from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from godwit.model.errors import InvalidProblemError
from godwit.planning.albic import plan_albic, score_pairs
from godwit.planning.problem import Limits, Problem, Traffic
from godwit.planning.validation import validate_solution


def pipeline(current: list[int], *, pairs: int = 4, executors: int = 2, **fields: Any) -> Problem:
    """Two operators of `pairs` key groups; key group k sends to k + pairs only."""
    source = np.arange(pairs, dtype=np.int32)
    return Problem(
        executors=tuple(f"e{i}" for i in range(executors)),
        load=fields.pop("load", np.ones(2 * pairs)),
        state_bytes=np.ones(2 * pairs),
        current=np.array(current, np.int32),
        traffic=Traffic(source=source, target=source + pairs, rate=np.full(pairs, 10.0)),
        operators=("up", "down"),
        operator_of=np.repeat([0, 1], pairs),
        downstream=((0, 1),),
        **fields,
    )


def test_pairs_above_average_are_scored_and_told_apart_by_place() -> None:
    scored = score_pairs(pipeline([0, 0, 1, 1, 0, 1, 0, 1]), 1.5)
    assert scored.source.tolist() == [0, 1, 2, 3]
    assert scored.target.tolist() == [4, 5, 6, 7]
    assert scored.together.tolist() == [True, False, False, True]


def test_even_traffic_has_no_pairs_worth_collocating() -> None:
    even = replace(
        pipeline([0, 0, 1, 1], pairs=2),
        traffic=Traffic(
            source=np.array([0, 0, 1, 1]), target=np.array([2, 3, 2, 3]), rate=np.full(4, 5.0)
        ),
    )
    assert len(score_pairs(even, 1.5).source) == 0
    assert len(score_pairs(even, 0.9).source) == 4


def test_downstream_operators_are_read_off_the_traffic_where_none_are_named() -> None:
    named = pipeline([0, 0, 1, 1, 0, 1, 0, 1])
    unnamed = replace(named, downstream=())
    assert score_pairs(unnamed, 1.5).source.tolist() == score_pairs(named, 1.5).source.tolist()


def test_one_pair_comes_together_per_plan() -> None:
    problem = pipeline([0, 0, 1, 1, 1, 1, 0, 0], limits=Limits(max_moves=4))
    solution = plan_albic(problem)
    validate_solution(solution)
    assert len(solution.details["pinned"]) == 1
    assert solution.collocation_factor >= 0.25


def test_repeated_plans_reach_full_collocation_in_balance() -> None:
    problem = pipeline([0, 0, 1, 1, 1, 1, 0, 0], limits=Limits(max_moves=2))
    factors = []
    for _ in range(12):
        solution = plan_albic(problem, max_load_distance=30.0, max_partition_load=60.0)
        factors.append(solution.collocation_factor)
        problem = replace(problem, current=solution.assignment)
    assert factors[-1] == 1.0
    assert factors == sorted(factors)
    assert solution.load_distance == pytest.approx(0.0)


def test_collocated_pair_moves_as_one() -> None:
    # Executor e0 is too heavy; both pairs on it could be torn apart to balance better.
    problem = pipeline(
        [0, 0, 1, 0, 0, 1],
        pairs=3,
        load=np.array([3.0, 3.0, 2.0, 3.0, 3.0, 2.0]),
    )
    solution = plan_albic(problem, max_partition_load=100.0, max_load_distance=60.0)
    where = solution.assignment
    assert where[0] == where[3]
    assert where[1] == where[4]
    assert where[2] == where[5]


def test_partitions_shrink_until_the_load_distance_is_small_enough() -> None:
    load = np.array([3.0, 3.0, 2.0, 3.0, 3.0, 2.0])
    problem = pipeline([0, 0, 1, 0, 0, 1], pairs=3, load=load)
    solution = plan_albic(problem, max_load_distance=1.0, max_partition_load=100.0)
    assert solution.load_distance == pytest.approx(0.0)
    assert solution.details["max_partition_load"] < 100.0
    assert solution.details["attempts"] > 1


def test_pinned_pair_does_not_meet_on_a_draining_executor() -> None:
    problem = pipeline(
        [0, 0, 1, 1, 2, 2, 1, 1], executors=3, draining=np.array([False, False, True])
    )
    solution = plan_albic(problem, pairs=4)
    validate_solution(solution)
    assert not (solution.assignment == 2).any()


def test_pairs_that_do_not_fit_the_budget_are_passed_over() -> None:
    problem = pipeline([0, 0, 1, 1, 1, 1, 0, 0], limits=Limits(max_moves=0))
    solution = plan_albic(problem)
    assert solution.num_moves == 0
    assert solution.details["pinned"] == []


@pytest.mark.parametrize(
    "option",
    [
        {"max_load_distance": -1.0},
        {"max_partition_load": float("nan")},
        {"partition_step": 0.0},
        {"score_factor": -2.0},
        {"pairs": -1},
    ],
)
def test_wrong_options_are_named(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidProblemError, match=f"options.{next(iter(option))}"):
        plan_albic(pipeline([0, 0, 1, 1], pairs=2), **option)
