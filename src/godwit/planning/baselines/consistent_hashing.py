"""Consistent hashing: executors and key groups on a ring, each key group to the next point.

The baseline of paper 1 §6 and appendix A.  It balances the number of key groups, not their load,
and moves few of them when executors come and go: only those next to the points that changed.  It
does not look at load, state or the present assignment.

``equal_counts`` is the ideal that appendix A describes: exactly the same number of key groups (give
or take one) for everyone, and as few of them moved as that allows, chosen at random.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidProblemError
from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from godwit.planning.arrays import Clock, IntArray
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["plan_consistent_hashing", "ring_owners"]


def plan_consistent_hashing(
    problem: Problem,
    *,
    points: int = 128,
    seed: int = 0,
    equal_counts: bool = False,
    clock: Clock = time.perf_counter,
) -> Solution:
    """Place key groups by a hash ring over the first n' executors that stay.

    Parameters
    ----------
    points
        Points of each executor on the ring; more points, more even counts.
    seed
        Chooses the ring, or the key groups that move.
    equal_counts
        Whether to equalise counts exactly instead of using a ring.

    Raises
    ------
    InvalidProblemError
        If `points` is below 1.
    """
    began = clock()
    if points < 1:
        raise InvalidProblemError(
            f"points = {points} is wrong.", remedy="Give at least 1.", field="points", value=points
        )
    owners = problem.available[: problem.target_executors]
    if equal_counts:
        assignment = _equal_counts(problem, owners, np.random.default_rng(seed))
    else:
        names = [problem.executors[e] for e in owners.tolist()]
        chosen = ring_owners(problem.num_key_groups, names, points=points, seed=seed)
        assignment = owners[chosen]
    return make_solution(
        problem, assignment, method="consistent_hashing", elapsed_s=clock() - began
    )


def ring_owners(num_key_groups: int, names: list[str], *, points: int, seed: int) -> IntArray:
    """Index into `names` of the owner of each key group on the ring."""
    places = np.array([_place(f"{seed}/{name}/{i}") for name in names for i in range(points)])
    order = np.argsort(places, kind="stable")
    asked = np.array([_place(f"{seed}:{k}") for k in range(num_key_groups)])
    after = np.searchsorted(places[order], asked) % len(places)
    return (order[after] // points).astype(np.int32)


def _place(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _equal_counts(problem: Problem, owners: IntArray, rng: np.random.Generator) -> IntArray:
    m, n = problem.num_key_groups, len(owners)
    counts = np.bincount(problem.current, minlength=problem.num_executors)[owners]
    quota = np.full(n, m // n)
    # The spare key groups stay with those that have most already: fewer moves.
    quota[np.argsort(-counts, kind="stable")[: m % n]] += 1
    assignment = problem.current.copy()
    homeless = np.flatnonzero(~np.isin(problem.current, owners))
    for i, e in enumerate(owners.tolist()):
        surplus = int(counts[i] - quota[i])
        if surplus > 0:
            leaving = rng.choice(np.flatnonzero(problem.current == e), surplus, replace=False)
            homeless = np.concatenate((homeless, leaving))
    wanted = np.repeat(owners, np.maximum(quota - counts, 0))
    assignment[rng.permutation(homeless)] = wanted
    return assignment
