"""Greedy fusion as the paper writes it: score every stream anew before every fusion."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from godwit.control.planners.fusion import FusionProblem


def waits_in_a_circle(problem: FusionProblem, component_of: list[int]) -> bool:
    graph: dict[int, set[int]] = {c: set() for c in component_of}
    for i, j in zip(problem.source.tolist(), problem.target.tolist(), strict=True):
        if component_of[i] != component_of[j]:
            graph[component_of[j]].add(component_of[i])
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError:
        return True
    return False


def fuse_greedily(problem: FusionProblem, *, by_traffic: bool, acyclic: bool) -> list[int]:
    """Component of each operator, named after the component's lowest one."""
    of = list(range(len(problem.operators)))
    shared = list(problem.attributes)
    while True:
        scored = []
        for at, (i, j) in enumerate(
            zip(problem.source.tolist(), problem.target.tolist(), strict=True)
        ):
            common = shared[of[i]] & shared[of[j]]
            if of[i] != of[j] and common:
                points = float(problem.rate[at]) if by_traffic else float(len(common))
                scored.append((-points, at, of[i], of[j]))
        for points, _, a, b in sorted(scored):
            trial = [min(a, b) if c in {a, b} else c for c in of]
            if points < 0 and not (acyclic and waits_in_a_circle(problem, trial)):
                shared[min(a, b)] = shared[a] & shared[b]
                of = trial
                break
        else:
            return of
