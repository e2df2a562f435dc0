"""COLA: split the graph of key groups until its parts can be balanced (baseline).

Little traffic between executors under a bound on the load distance, planned from scratch: paper 2
§2.1 and §5.3 (Khandekar et al., Middleware 2009).  All operators start in one part; the heaviest
part is split in two by balanced graph partitioning, here METIS, until a greedy distribution of the
parts is balanced well enough.

Invariant: key groups of one part are on one executor; parts are only ever split, so collocation is
given up no further than balance needs.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from godwit.placement import metrics
from godwit.placement.arrays import FloatArray, IndexArray, IntArray, wrong_value
from godwit.placement.solution import make_solution
from godwit_lab.planners.allocation.graph_partition import KeyGroupGraph

if TYPE_CHECKING:
    from godwit.placement.problem import Problem
    from godwit.placement.solution import Solution

DEFAULT_MAX_LOAD_DISTANCE = 10.0
"""maxLD of paper 2: percent of the mean load index."""


def plan_cola(
    problem: Problem,
    *,
    max_load_distance: float = DEFAULT_MAX_LOAD_DISTANCE,
) -> Solution:
    """Plan by partitioning the traffic graph into balanced parts (COLA: paper 2 §5.3).

    Parts are assigned heaviest first. Minimises traffic between executors, heuristically, under a
    load distance of at most `max_load_distance` percent of the mean; ignores where key groups are
    and what moving them costs. Ties: the lower part, the lower executor. O(parts · (e + parts log
    n)) time.
    """
    if not max_load_distance >= 0:
        raise wrong_value("options.max_load_distance", max_load_distance, "give at least 0")
    graph = KeyGroupGraph(problem)
    weight = problem.weight
    goal = max_load_distance / 100 * metrics.mean_index(problem)
    parts: list[IndexArray] = [np.arange(problem.num_key_groups)]
    heap = [(-float(weight.sum()), 0)]
    best, distance = _assign_parts(problem, parts, weight), np.inf
    while heap:
        if len(parts) >= len(problem.available):
            assignment = _assign_parts(problem, parts, weight)
            now = metrics.load_distance(problem, assignment)
            if now < distance:
                best, distance = assignment, now
            if now <= goal:
                break
        _, index = heapq.heappop(heap)
        if len(parts[index]) < 2:
            continue
        members = parts[index]
        part = graph.partition(members, weight, 2)
        parts[index] = members[part == 0]
        parts.append(members[part == 1])
        for name in (index, len(parts) - 1):
            heapq.heappush(heap, (-float(weight[parts[name]].sum()), name))
    return make_solution(
        problem,
        best,
        method="cola",
        objective=1.0 - metrics.collocation_factor(problem, best),
        details={"parts": len(parts)},
    )


def _assign_parts(problem: Problem, parts: list[IndexArray], weight: FloatArray) -> IntArray:
    """Assign each part, heaviest first, to the executor of lowest load index.

    Returns the executor of each key group.
    """
    load = np.array([float(weight[part].sum()) for part in parts])
    available, speed = problem.available, problem.speed
    heap = [(0.0, e) for e in available.tolist()]
    assignment = np.empty(problem.num_key_groups, np.int32)
    for number in np.argsort(-load, kind="stable").tolist():
        index, e = heapq.heappop(heap)
        assignment[parts[number]] = e
        heapq.heappush(heap, (index + float(load[number] / speed[e]), e))
    return assignment
