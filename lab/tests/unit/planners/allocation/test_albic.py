from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from godwit.control.planners.allocation.model import build_model, single_units
from godwit.control.planners.allocation.search import Placement
from godwit.model.errors import InvalidProblemError
from godwit.placement import metrics
from godwit.placement.problem import Limits, Problem, Traffic
from godwit.placement.solution import validate_solution
from godwit_lab.planners.allocation.albic import collocate, plan_albic, score_pairs
from godwit_lab.planners.allocation.graph_partition import KeyGroupGraph


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


def test_as_many_pairs_are_pinned_per_plan_as_asked_for() -> None:
    problem = pipeline([0, 0, 1, 1, 1, 1, 0, 0], limits=Limits(max_moves=4))
    solution = plan_albic(problem, pairs=1)
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


def test_pair_that_would_part_as_much_as_it_brings_together_is_not_pinned() -> None:
    # A ring over two executors: wherever a pair meets, another one of the same rate is parted.
    source = np.arange(4, dtype=np.int32)
    problem = replace(
        pipeline([0, 0, 1, 1], pairs=2),
        operator_of=np.zeros(4, np.int32),
        downstream=(),
        traffic=Traffic(source=source, target=(source + 1) % 4, rate=np.full(4, 10.0)),
    )
    assert plan_albic(problem, max_partition_load=50.0).details["pinned"] == []


def even_traffic(executors: int, operators: int, per: int, seed: int, **fields: Any) -> Problem:
    """Every key group of an operator sends the same to every one of the next; placed at random."""
    rng = np.random.default_rng(seed)
    m = operators * per
    pairs = [
        (o * per + i, (o + 1) * per + j)
        for o in range(operators - 1)
        for i in range(per)
        for j in range(per)
    ]
    return Problem(
        executors=tuple(f"e{i}" for i in range(executors)),
        load=rng.uniform(0.95, 1.05, m),
        state_bytes=np.ones(m),
        current=rng.permutation(np.arange(m, dtype=np.int32) % executors),
        operators=tuple(f"o{i}" for i in range(operators)),
        operator_of=np.repeat(np.arange(operators), per),
        traffic=Traffic(
            source=np.array([i for i, _ in pairs]),
            target=np.array([j for _, j in pairs]),
            rate=np.ones(len(pairs)),
        ),
        **fields,
    )


def test_even_traffic_is_collocated_with_the_moves_that_balance_does_not_need() -> None:
    problem = even_traffic(6, 6, 10, 1, limits=Limits(max_moves=8))
    factors = [metrics.collocation_factor(problem, problem.current)]
    for _ in range(8):
        solution = plan_albic(problem, even_enough=4.0)
        validate_solution(solution)
        assert solution.num_moves <= 8
        factors.append(solution.collocation_factor)
        problem = replace(problem, current=solution.assignment)
    assert factors[-1] > 1.5 * factors[0]
    assert solution.load_distance <= 0.04 * metrics.mean_index(problem) * (1 + 1e-6)


def test_collocation_steps_keep_every_limit_and_never_lose_traffic() -> None:
    for seed in range(20):
        problem = even_traffic(
            4, 3, 5, seed,
            draining=np.array([False, False, False, seed % 2 == 0]),
            limits=Limits(max_moves=6, max_bytes=5.0, max_usage=(4.4,)),
        )  # fmt: skip
        model = build_model(problem, single_units(problem))
        placement = Placement(model, problem.current)
        before = metrics.collocation_factor(problem, problem.current)
        worst = max(model.over_under(problem.current))
        within = model.within_room(problem.current)
        traffic = KeyGroupGraph(problem).between_units(np.arange(15, dtype=np.int32), 15)
        gained = collocate(placement, traffic, limit=worst * 1.1)
        after = metrics.collocation_factor(problem, placement.place)
        assert after == pytest.approx(before + gained / problem.traffic.rate.sum())
        assert after >= before
        assert max(model.over_under(placement.place)) <= worst * 1.1
        assert model.spent(placement.place)[0] <= model.max_moves
        assert model.within_room(placement.place) or not within
        arrived = placement.place[placement.place != problem.current]
        assert not problem.draining[arrived].any()


def test_two_key_groups_do_not_swap_for_ever() -> None:
    problem = Problem(
        executors=("a", "b"),
        load=np.array([6.0, 5.0, 5.0, 4.0, 4.0, 4.0]),
        state_bytes=np.ones(6),
        current=np.array([1, 0, 0, 1, 1, 0]),
        traffic=Traffic(
            source=np.array([0, 1, 2]), target=np.array([3, 5, 4]), rate=np.full(3, 7.0)
        ),
        limits=Limits(max_moves=3),
    )
    assert plan_albic(problem).num_moves == 0


@pytest.mark.parametrize(
    "option",
    [
        {"max_load_distance": -1.0},
        {"max_partition_load": float("nan")},
        {"partition_step": 0.0},
        {"score_factor": -2.0},
        {"pairs": -1},
        {"even_enough": -0.5},
    ],
)
def test_wrong_options_are_named(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidProblemError, match=f"options.{next(iter(option))}"):
        plan_albic(pipeline([0, 0, 1, 1], pairs=2), **option)
