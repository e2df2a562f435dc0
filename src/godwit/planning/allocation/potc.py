"""The power of two choices: every key group is processed on two executors, then merged (baseline).

Problem: balance load without ever moving state, by splitting each key group's rows over two places.

Invariant: the rows of a key group are processed on its two candidates only and add up to all of
them; its merge runs on one, and cannot be balanced.

Source: paper 2 §2.2 and §5.2 (PoTC, Nasir et al., ICDE 2015).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidProblemError
from godwit.planning import metrics
from godwit.planning.balancing.pkg import two_candidates
from godwit.planning.split_keys import SplitKeys
from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from godwit.planning.arrays import Clock
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["plan_potc"]


def plan_potc(
    problem: Problem,
    *,
    seed: int = 0,
    merge_cost: float = 0.0,
    merge_load: float = 0.1,
    clock: Clock = time.perf_counter,
) -> Solution:
    """Split every key group over two executors (paper 2 §5.2).

    Key groups are taken in order; each is split so that its candidates' load indices come as close
    as they can. The merge of a key group, ``merge_load · load + merge_cost · state_bytes``, is then
    added to its first candidate, where the merging operator of that key is.

    Parameters
    ----------
    seed
        Chooses the candidates.
    merge_cost
        Load that merging one byte of state makes.
    merge_load
        Load that merging makes as a share of the key group's load.

    Returns
    -------
    Solution
        ``split`` says where rows go; no state moves, so the assignment is today's. `objective` is
        the load distance of the split load with merges; ``details``: ``merge_load`` (what merging
        adds in total) and ``mean_without_merging``. O(m) time.
    """
    for name, value in (("merge_cost", merge_cost), ("merge_load", merge_load)):
        if not 0 <= value < np.inf:
            raise InvalidProblemError(
                f"{name} is {value}.",
                remedy="Give a finite number that is at least 0.",
                field=name,
                value=value,
            )
    start = clock()
    first, second = two_candidates(problem, seed)
    speed, weight = problem.speed, problem.weight
    load = np.zeros(problem.num_executors)
    share = np.ones(problem.num_key_groups)
    for k, (a, b, w) in enumerate(
        zip(first.tolist(), second.tolist(), weight.tolist(), strict=True)
    ):
        if a != b and w > 0:
            # (L_a + x)/c_a = (L_b + w - x)/c_b
            x = (speed[a] * (load[b] + w) - speed[b] * load[a]) / (speed[a] + speed[b])
            share[k] = min(max(float(x) / w, 0.0), 1.0)
        load[a] += share[k] * w
        load[b] += (1 - share[k]) * w
    is_split = share < 1
    merging = np.where(is_split, merge_load * weight + merge_cost * problem.state_bytes, 0.0)
    split = SplitKeys(first=first, second=second, share=share, merging=merging)
    return make_solution(
        problem,
        problem.current,
        method="potc",
        objective=split.load_distance(problem),
        elapsed_s=clock() - start,
        details={
            "merge_load": float(merging.sum()),
            "mean_without_merging": metrics.mean_index(problem),
        },
        split=split,
    )
