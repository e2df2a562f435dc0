"""Problems of what runs: one component, or several that talk to each other."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.model.assignment import even_assignment
from godwit.model.errors import InvalidProblemError
from godwit.model.key_groups import OTHERS, KeyGroupPairs
from godwit.placement import planner
from godwit.placement.problem import ComponentFacts, Limits, joint_problem
from godwit.placement.solution import executable_plans

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


def test_albic_brings_together_what_talks_and_every_component_gets_its_own_moves() -> None:
    even = even_assignment(N, ["a", "b"], [1, 1])
    other = even.moved({g: ("b", "a")[int(even.executor_of[g])] for g in range(N)})
    components = {
        "first": ComponentFacts(assignment=even, load=np.ones((1, N)), state_bytes=np.ones(N)),
        "second": ComponentFacts(assignment=other, load=np.ones((1, N)), state_bytes=np.ones(N)),
    }
    problem = joint_problem(components, {("first", "second"): one_to_one()}, limits=Limits())
    solution = planner("albic")(problem, pairs=N)
    together = solution.assignment[:N] == solution.assignment[N:]
    assert together.sum() >= N // 2
    parts = executable_plans(solution)
    after = {name: facts.assignment for name, facts in components.items()}
    for name, part in parts.items():
        after[name] = part.target(after[name])
    places = np.concatenate([after[name].executor_of for name in ("first", "second")])
    assert places.tolist() == solution.assignment.tolist()
