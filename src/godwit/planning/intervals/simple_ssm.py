"""Simple_SSM: the recursion of paper 1, lemma 4.1, kept as the oracle of `ssm`.

Problem and result are those of `ssm`.  A sub-problem is a range [x, y) of key
groups, a range of executors in the order of their old intervals, and a number of parts; its
greatest gain is the best over all ways to split all three in two (paper 1 figure 5).  Executors
without an old interval gain nothing, so they never enter the recursion.
"""

from __future__ import annotations

import itertools
import time
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidProblemError
from godwit.planning.intervals.ssm import assign_intervals, least_bound, line_of, load_bound
from godwit.planning.solution import make_solution

if TYPE_CHECKING:
    from godwit.planning.arrays import Clock
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["MAX_SIZE", "plan_simple_ssm"]

MAX_SIZE = 2_000
"""Largest m·n·n' it takes; its time grows as the cube of m, the cube of n and the square of n'."""

Plan = tuple[float, tuple[tuple[int, int, int], ...]]


def plan_simple_ssm(problem: Problem, *, clock: Clock = time.perf_counter) -> Solution:
    """Move the fewest bytes within τ, by exhaustive recursion.

    Parameters, result and errors are those of `plan_ssm`, except that a problem
    with m·n·n' above `MAX_SIZE` is refused.

    Raises
    ------
    InvalidProblemError
        If the problem is not one of intervals, or too large.
    """
    began = clock()
    size = problem.num_key_groups * problem.num_executors * problem.target_executors
    if size > MAX_SIZE:
        raise InvalidProblemError(
            f"m·n·n' = {size} is more than simple_ssm takes ({MAX_SIZE}).",
            remedy="Use ssm, which finds the same optimum.",
            field="current",
            value=size,
        )
    plan = _best(problem, load_bound(problem))
    reason = ""
    if plan is None:
        reason = "no intervals are within tau"
        plan = _best(problem, least_bound(problem))
    if plan is None:
        reason = "no intervals are within limits.max_usage; it is ignored"
        plan = _best(problem, max(load_bound(problem), least_bound(problem)), use=False)
    assert plan is not None, "the least bound admits a plan"
    assignment = assign_intervals(problem, list(plan[1]))
    moved = float(problem.state_bytes[assignment != problem.current].sum())
    return make_solution(
        problem,
        assignment,
        method="simple_ssm",
        optimal=not reason,
        reason=reason,
        objective=moved,
        bound=None if reason else moved,
        elapsed_s=clock() - began,
    )


def _best(problem: Problem, limit: float, *, use: bool = True) -> Plan | None:
    reach = line_of(problem, limit, use=use).reach
    keeps = np.where(problem.draining[problem.current], 0.0, problem.state_bytes)
    state = np.concatenate(([0.0], np.cumsum(keeps)))
    cuts = np.flatnonzero(np.diff(problem.current, prepend=-1, append=-1)).tolist()
    old = list(itertools.pairwise(cuts))

    @cache
    def solve(x: int, y: int, first: int, last: int, parts: int) -> Plan | None:
        best: Plan | None = None
        if y <= reach[x]:
            gain, keeper = 0.0, -1
            for begin, end in old[first:last]:
                kept = float(state[min(y, end)] - state[max(x, begin)])
                if kept > gain:
                    gain, keeper = kept, max(x, begin)
            best = (gain, ((x, y, keeper),))
        for part in range(1, parts):
            for cut in range(x + 1, y):
                for middle in range(first, last + 1):
                    left = solve(x, cut, first, middle, part)
                    right = solve(cut, y, middle, last, parts - part)
                    if left and right and (best is None or left[0] + right[0] > best[0]):
                        best = (left[0] + right[0], left[1] + right[1])
        return best

    return solve(0, problem.num_key_groups, 0, len(old), problem.target_executors)
