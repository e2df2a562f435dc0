"""Universal hashing: a new random hash function whenever load is balanced anew (baseline).

Problem: spread key groups evenly without looking at load or state.

Invariant: the assignment depends only on the random generator, the number of key groups and the
executors that stay.

Source: paper 4 §5 (UHLB): h: [p] → [n] drawn from a 2-universal family.  The paper does not say how
often a function is drawn; ``choices`` > 1 draws several and keeps the one with the least variance.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidProblemError
from godwit.planning import metrics
from godwit.planning.balancing.hash_family import universal_hash
from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from godwit.planning.arrays import Clock
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["plan_universal_hashing"]


def plan_universal_hashing(
    problem: Problem,
    *,
    choices: int = 1,
    clock: Clock = time.perf_counter,
    rng: np.random.Generator | None = None,
) -> Solution:
    """Place every key group by a hash function drawn at random (paper 4 §5).

    Minimises nothing and knows no limit. O(choices · m) time.

    Parameters
    ----------
    choices
        Functions drawn; the one with the least variance of load is kept, the first of equals.
    clock
        Where time is read.
    rng
        Draws the functions; by default one with seed 0.
    """
    if choices < 1:
        raise InvalidProblemError(
            f"choices is {choices}.", remedy="Give at least 1.", field="choices", value=choices
        )
    start = clock()
    rng = rng or np.random.default_rng(0)
    available = problem.available
    drawn = [
        available[universal_hash(problem.num_key_groups, len(available), rng)]
        for _ in range(choices)
    ]
    best = min(drawn, key=lambda assignment: metrics.load_variance(problem, assignment))
    return make_solution(
        problem,
        best,
        method="universal_hashing",
        objective=metrics.load_variance(problem, best),
        elapsed_s=clock() - start,
    )
