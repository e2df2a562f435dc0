"""Problems of what runs: one component, or several that talk to each other."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.model.assignment import even_assignment
from godwit.model.errors import InvalidProblemError
from godwit.model.key_groups import OTHERS, KeyGroupPairs
from godwit.placement.problem import ComponentFacts, joint_problem

N = 8


def facts(*, reversed_places: bool = False, load: float = 1.0) -> ComponentFacts:
    names = ["b", "a"] if reversed_places else ["a", "b"]
    return ComponentFacts(
        assignment=even_assignment(N, names, [2, 1] if names[0] == "a" else [1, 2]),
        load=np.full((3, N), load),
        state_bytes=np.full(N, 100.0),
    )


def one_to_one(rows: float = 50.0) -> KeyGroupPairs:
    g = np.arange(N)
    return KeyGroupPairs.counted(g, g, rows)


def test_key_groups_are_numbered_through_and_traffic_crosses_components() -> None:
    components = {"first": facts(), "second": facts(reversed_places=True, load=2.0)}
    pairs = {
        ("first", "second"): KeyGroupPairs(
            source=np.array([0, 0, 3]), target=np.array([OTHERS, 5, 2]), rows=np.array([9.0, 4, 6])
        ),
        ("gone", "second"): one_to_one(),
    }
    problem = joint_problem(components, pairs, draining=["b"])
    assert (problem.executors, problem.operators) == (("a", "b"), ("first", "second"))
    assert problem.operator_of.tolist() == [0] * N + [1] * N
    assert problem.capacity[:, 0].tolist() == [2.0, 1.0]
    assert problem.available.tolist() == [0]
    assert problem.weight.tolist() == [1.0] * N + [2.0] * N
    assert problem.history.shape == (3, 2 * N)
    found = zip(
        problem.traffic.source.tolist(),
        problem.traffic.target.tolist(),
        problem.traffic.rate.tolist(),
        strict=True,
    )
    assert list(found) == [(0, N + 5, 4.0), (3, N + 2, 6.0)]
    assert problem.downstream == ((0, 1),)
    there = components["second"].assignment
    assert [problem.executors[e] for e in problem.current[N:]] == [
        there.executor(g) for g in range(N)
    ]


def test_an_executor_to_drain_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidProblemError, match="'ghost'"):
        joint_problem({"first": facts()}, {}, draining=["ghost"])
