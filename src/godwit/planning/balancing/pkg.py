"""Partial key grouping: two candidate executors per key group, the idler one takes it (baseline).

Problem: balance load by choosing between two fixed places.

Invariant: every key group is on one of its two candidates, which depend on the seed and the
executors that stay only.

Source: paper 4 §5 (PKG, Nasir et al., ICDE 2015).  The original splits a key over both candidates
row by row, which stateful operators cannot do without merging; as in paper 4's comparison each
substream is sent whole to the less loaded of the two.  `godwit.planning.allocation.potc` keeps the
splitting.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning import metrics
from godwit.planning.balancing.hash_family import hash_choice
from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from godwit.planning.arrays import Clock, IntArray
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["plan_pkg", "two_candidates"]


def two_candidates(problem: Problem, seed: int) -> tuple[IntArray, IntArray]:
    """Two different executors (where there are two) for every key group, each shape ``(m,)``."""
    available, m = problem.available, problem.num_key_groups
    n = len(available)
    first = hash_choice(m, n, 2 * seed)
    if n == 1:
        return available[first], available[first]
    step = hash_choice(m, n - 1, 2 * seed + 1) + 1
    return available[first], available[(first + step) % n]


def plan_pkg(problem: Problem, *, seed: int = 0, clock: Clock = time.perf_counter) -> Solution:
    """Give each key group, in order, to the less loaded of its two candidates (paper 4 §5).

    Load is load per capacity, counted over the key groups placed so far; ties go to the first
    candidate. Knows no limit. O(m) time.
    """
    start = clock()
    first, second = (c.tolist() for c in two_candidates(problem, seed))
    speed = problem.speed.tolist()
    index = [0.0] * problem.num_executors
    placed = []
    for k, weight in enumerate(problem.weight.tolist()):
        executor = first[k] if index[first[k]] <= index[second[k]] else second[k]
        index[executor] += weight / speed[executor]
        placed.append(executor)
    assignment = np.array(placed, np.int32)
    return make_solution(
        problem,
        assignment,
        method="pkg",
        objective=metrics.load_variance(problem, assignment),
        elapsed_s=clock() - start,
    )
