"""Flux: pair the busiest executor with the idlest and move one key group.

Problem: lower the variance of load a few key groups at a time.

Invariant: every move lowers the variance of the load index over the executors that stay, and a key
group moves at most once per plan.

Source: paper 2 §2.2 and §5.1, paper 3 §3.2 (Shah et al., ICDE 2003).  The papers do not say when a
key group is "suitable"; we take every one whose move lowers the variance, and of these the
heaviest. A draining executor counts as busier than any other and receives nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning import metrics
from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from godwit.planning.arrays import BoolArray, Clock, FloatArray, IntArray
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["plan_flux"]


def plan_flux(problem: Problem, *, clock: Clock = time.perf_counter) -> Solution:
    """Move key groups in pairwise rounds until the budget is spent or no pair can improve.

    A round sorts the executors by load index, descending, and pairs the first with the last, the
    second with the last but one, and so on; each pair moves its heaviest suitable key group. Ties:
    the lower executor, the lower key group. Keeps to ``max_moves`` and ``max_bytes``; knows no
    other limit. O(moves · (m + n log n)) time.
    """
    start = clock()
    assignment = problem.current.copy()
    weight, speed = problem.weight, problem.speed
    load = metrics.loads(problem, assignment)
    budget = _Budget(problem)
    untouched = np.ones(problem.num_key_groups, np.bool_)
    moved = True
    while moved and budget.moves > 0:
        moved = False
        rank = np.lexsort((np.arange(len(load)), -load / speed, ~problem.draining))
        for donor, receiver in zip(
            rank[: len(rank) // 2].tolist(), rank[::-1].tolist(), strict=False
        ):
            if problem.draining[receiver] or budget.moves <= 0:
                continue
            k = _suitable(
                problem,
                assignment,
                load,
                donor=donor,
                receiver=receiver,
                untouched=untouched,
                room=budget.size,
            )
            if k < 0:
                continue
            assignment[k] = receiver
            untouched[k] = False
            load[donor] -= weight[k]
            load[receiver] += weight[k]
            budget.spend(float(problem.state_bytes[k]))
            moved = True
    return make_solution(
        problem,
        assignment,
        method="flux",
        objective=metrics.load_variance(problem, assignment),
        elapsed_s=clock() - start,
    )


class _Budget:
    """Moves and bytes that are left."""

    def __init__(self, problem: Problem) -> None:
        limits = problem.limits
        self.moves = problem.num_key_groups if limits.max_moves is None else limits.max_moves
        self.size = np.inf if limits.max_bytes is None else limits.max_bytes

    def spend(self, size: float) -> None:
        self.moves -= 1
        self.size -= size


def _suitable(
    problem: Problem,
    assignment: IntArray,
    load: FloatArray,
    *,
    donor: int,
    receiver: int,
    untouched: BoolArray,
    room: float,
) -> int:
    mine = np.flatnonzero((assignment == donor) & untouched & (problem.state_bytes <= room))
    if not len(mine):
        return -1
    weight, speed = problem.weight[mine], problem.speed
    if not problem.draining[donor]:
        # Moving w changes Σ(L/c - mean)² by w²(1/c_d² + 1/c_r²) - 2w(x_d/c_d - x_r/c_r), with x the
        # deviations; it falls when w is below the value here.
        mean = metrics.mean_index(problem)
        x = load[[donor, receiver]] / speed[[donor, receiver]] - mean
        slope = x[0] / speed[donor] - x[1] / speed[receiver]
        limit = 2 * slope / (1 / speed[donor] ** 2 + 1 / speed[receiver] ** 2)
        good = (weight > 0) & (weight < limit * (1 - 1e-12))
        if not good.any():
            return -1
        weight = np.where(good, weight, -1.0)
    return int(mine[int(weight.argmax())])
