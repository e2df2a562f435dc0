"""Redistribution: heavy key groups by an explicit map, all others by a consistent hash.

The baseline that paper 1 §6 calls Redist, after Gedik's partitioning functions for stateful data
parallelism (VLDB Journal 2014), in our own words: the partitioning function is a small table for
the heavy key groups beside a hash ring for the rest.  On a change all heavy key groups are taken
off and placed again one by one, heaviest first, each where imbalance and migration together are
least.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidProblemError
from godwit.planning.baselines.consistent_hashing import ring_owners
from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from godwit.planning.arrays import Clock
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["plan_redistribution"]


def plan_redistribution(
    problem: Problem,
    *,
    heavy_share: float = 0.1,
    migration_weight: float = 0.5,
    points: int = 128,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> Solution:
    """Place heavy key groups greedily over a hash ring for the rest.

    Parameters
    ----------
    heavy_share
        A key group is heavy if its load is at least this share of one executor's fair share.
    migration_weight
        Weight of the migration penalty (bytes moved over the mean state of an executor) against the
        imbalance penalty (load after placing over the fair share), at least 0.
    points, seed
        The ring; see `godwit.planning.baselines.consistent_hashing.plan_consistent_hashing`.

    Returns
    -------
    Solution
        Limits are ignored; a plan that breaks one has status infeasible and says which. Ties go to
        the executor that comes first.

    Raises
    ------
    InvalidProblemError
        If an option is negative.
    """
    began = clock()
    for name, value in (("heavy_share", heavy_share), ("migration_weight", migration_weight)):
        if not 0 <= value < np.inf:
            raise InvalidProblemError(
                f"{name} = {value!r} is wrong.",
                remedy="Give a finite number that is at least 0.",
                field=name,
                value=value,
            )
    owners = problem.available[: problem.target_executors]
    speed = problem.speed[owners]
    weight, state = problem.weight, problem.state_bytes
    share = max(float(weight.sum()) / float(speed.sum()), 1e-300)
    names = [problem.executors[e] for e in owners.tolist()]
    place = ring_owners(problem.num_key_groups, names, points=points, seed=seed)
    heavy = np.flatnonzero(weight >= heavy_share * share)
    light = np.setdiff1d(np.arange(problem.num_key_groups), heavy)
    load = np.zeros(len(owners))
    np.add.at(load, place[light], weight[light])
    mean_state = max(float(state.sum()) / len(owners), 1e-300)
    for k in heavy[np.argsort(-weight[heavy], kind="stable")].tolist():
        penalty = (load + weight[k]) / speed / share
        penalty = penalty + migration_weight * state[k] / mean_state * (
            owners != problem.current[k]
        )
        i = int(penalty.argmin())
        place[k] = i
        load[i] += weight[k]
    return make_solution(
        problem,
        owners[place],
        method="redistribution",
        elapsed_s=clock() - began,
        details={"heavy_key_groups": len(heavy)},
    )
