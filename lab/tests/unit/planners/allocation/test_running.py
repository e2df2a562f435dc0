"""ALBIC over the components of what runs."""

from __future__ import annotations

import numpy as np

from godwit.model.assignment import even_assignment
from godwit.model.key_groups import KeyGroupPairs
from godwit.placement import planner
from godwit.placement.problem import ComponentFacts, Limits, joint_problem
from godwit.placement.solution import executable_plans

N = 8


def test_albic_brings_together_what_talks_and_every_component_gets_its_own_moves() -> None:
    even = even_assignment(N, ["a", "b"], [1, 1])
    other = even.moved({g: ("b", "a")[int(even.executor_of[g])] for g in range(N)})
    components = {
        "first": ComponentFacts(assignment=even, load=np.ones((1, N)), state_bytes=np.ones(N)),
        "second": ComponentFacts(assignment=other, load=np.ones((1, N)), state_bytes=np.ones(N)),
    }
    g = np.arange(N)
    one_to_one = KeyGroupPairs.counted(g, g, 50.0)
    problem = joint_problem(components, {("first", "second"): one_to_one}, limits=Limits())
    solution = planner("albic")(problem, pairs=N)
    together = solution.assignment[:N] == solution.assignment[N:]
    assert together.sum() >= N // 2
    parts = executable_plans(solution)
    after = {name: facts.assignment for name, facts in components.items()}
    for name, part in parts.items():
        after[name] = part.target(after[name])
    places = np.concatenate([after[name].executor_of for name in ("first", "second")])
    assert places.tolist() == solution.assignment.tolist()
