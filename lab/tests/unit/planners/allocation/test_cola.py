from __future__ import annotations

import numpy as np
import pytest

from godwit.model.errors import InvalidProblemError
from godwit.placement.problem import Problem, Traffic
from godwit_lab.planners.allocation.cola import plan_cola
from godwit_lab.planners.allocation.graph_partition import KeyGroupGraph


def two_cliques(size: int = 6) -> Problem:
    """Key groups 0..size-1 talk to each other, and so do the rest; one thin link joins them."""
    pairs = [(i, j) for i in range(size) for j in range(i)]
    source = [i for i, _ in pairs] + [i + size for i, _ in pairs] + [0]
    target = [j for _, j in pairs] + [j + size for _, j in pairs] + [size]
    return Problem(
        executors=("a", "b"),
        load=np.ones(2 * size),
        state_bytes=np.ones(2 * size),
        current=(np.arange(2 * size) % 2).astype(np.int32),
        traffic=Traffic(
            source=np.array(source),
            target=np.array(target),
            rate=np.array([10.0] * (2 * len(pairs)) + [1.0]),
        ),
    )


def test_graph_is_cut_at_its_thinnest_place() -> None:
    asked = two_cliques()
    part = KeyGroupGraph(asked).partition(np.arange(12), asked.weight, 2)
    assert len(set(part[:6].tolist())) == len(set(part[6:].tolist())) == 1
    assert part[0] != part[6]


def test_every_part_has_a_member_even_without_edges_or_weights() -> None:
    asked = two_cliques()
    graph = KeyGroupGraph(asked)
    assert sorted(set(graph.partition(np.array([0, 7, 8]), asked.weight, 2).tolist())) == [0, 1]
    assert graph.partition(np.arange(4), np.zeros(12), 4).tolist() == [0, 1, 2, 3]
    alone = graph.partition(np.array([1, 7]), np.zeros(12), 2)
    assert sorted(alone.tolist()) == [0, 1]


def test_cola_collocates_what_talks_whatever_the_moves() -> None:
    solution = plan_cola(two_cliques())
    assert solution.collocation_factor > 0.99
    assert solution.load_distance == 0
    assert solution.num_moves == 6


def test_parts_are_split_until_the_load_distance_is_met() -> None:
    asked = two_cliques(5)
    coarse = plan_cola(asked, max_load_distance=100)
    heavy = Problem(
        executors=("a", "b", "c"),
        load=asked.load,
        state_bytes=asked.state_bytes,
        current=asked.current,
        traffic=asked.traffic,
    )
    fine = plan_cola(heavy, max_load_distance=21)
    assert coarse.details["parts"] == 2
    assert fine.details["parts"] > 3
    assert fine.load_distance <= 0.21 * 10 / 3


def test_goal_out_of_reach_gives_the_best_there_was() -> None:
    odd = Problem(
        executors=("a", "b"), load=np.ones(3), state_bytes=np.ones(3), current=np.zeros(3, np.int32)
    )
    solution = plan_cola(odd, max_load_distance=0)
    assert solution.load_distance == pytest.approx(0.5)


def test_negative_goal_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="max_load_distance = -1"):
        plan_cola(two_cliques(), max_load_distance=-1)
