"""Emptying executors, whatever the planner makes of it.

Problem: a planner may know nothing of draining, refuse it, or fail; and an executor that is to
leave must become empty all the same.

Invariant: as long as a key group is on a draining executor, every plan that leaves here moves at
least one off; so draining ends after as many plans as there are key groups, whatever the planner.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning import metrics

if TYPE_CHECKING:
    from godwit.planning import Problem
    from godwit.planning.arrays import IntArray

__all__ = ["evacuated"]


def evacuated(problem: Problem, planned: IntArray) -> IntArray:
    """Return a plan that moves something off draining executors, if anything is there.

    A plan that does so itself stays as it is; to another one all key groups that would stay there
    are added, heaviest first, each to the executor that has least per capacity. Ties: the lower
    executor, the lower key group.
    """
    there = problem.draining[problem.current]
    if not there.any() or (there & (planned != problem.current)).any():
        return planned
    if not len(problem.available):
        return planned
    planned = planned.copy()
    held = metrics.loads(problem, planned)
    heap = [(float(held[e] / problem.speed[e]), e) for e in problem.available.tolist()]
    heapq.heapify(heap)
    homeless = np.flatnonzero(there)
    for k in homeless[np.lexsort((homeless, -problem.weight[homeless]))].tolist():
        index, e = heap[0]
        planned[k] = e
        heapq.heapreplace(heap, (index + float(problem.weight[k] / problem.speed[e]), e))
    return planned
