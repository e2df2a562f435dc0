"""Every assignment of a small problem, tried: the oracle of the allocation planners."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from godwit.placement.problem import Problem

SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BestAllocation:
    """The least d, the least over + under among those, and how many assignments there were."""

    distance: float
    both_sides: float
    candidates: int


def over_under(problem: Problem, assignments: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Shape ``(a, 2)``: largest overload and underload of each of a assignments."""
    n = problem.num_executors
    weight = problem.load[:, problem.bottleneck]
    capacity = problem.capacity[:, problem.bottleneck]
    index = np.stack(
        [((assignments == e) * weight).sum(axis=1) / capacity[e] for e in range(n)], axis=1
    )
    stays = ~problem.draining
    deviation = index - weight.sum() / capacity[stays].sum()
    over = np.maximum(deviation.max(axis=1), 0)
    under = np.maximum(-deviation[:, stays].min(axis=1), 0)
    return np.stack([over, under], axis=1)


@functools.cache
def _every_assignment(n: int, m: int) -> npt.NDArray[np.int32]:
    return np.indices((n,) * m, np.int32).reshape(m, n**m).T.copy()


def allowed_assignments(problem: Problem) -> npt.NDArray[np.int32]:
    """Shape ``(a, m)``: every assignment that keeps to the limits of moves, bytes and usage."""
    every = _every_assignment(problem.num_executors, problem.num_key_groups)
    moved = every != problem.current
    limits = problem.limits
    good: npt.NDArray[np.bool_] = ~(problem.draining[every] & moved).any(axis=1)
    if limits.max_moves is not None:
        good &= moved.sum(axis=1) <= limits.max_moves
    if limits.max_bytes is not None:
        good &= (moved * problem.state_bytes).sum(axis=1) <= limits.max_bytes * (1 + SLACK)
    for r, most in enumerate(limits.max_usage or ()):
        for e in np.flatnonzero(~problem.draining).tolist():
            used = ((every == e) * problem.load[:, r]).sum(axis=1) / problem.capacity[e, r]
            good &= used <= most * (1 + SLACK)
    return every[good]


def best_allocation(problem: Problem) -> BestAllocation | None:
    """Enumerate; None where no assignment keeps to the limits."""
    every = allowed_assignments(problem)
    if not len(every):
        return None
    sides = over_under(problem, every)
    distance = sides.max(axis=1)
    least = float(distance.min())
    ties = distance <= least + SLACK * (1 + least)
    return BestAllocation(
        distance=least, both_sides=float(sides[ties].sum(axis=1).min()), candidates=len(every)
    )
