"""One range of key groups for each executor, from an assignment that has none.

Planners of intervals start from intervals.  A stream has none when it starts (key groups are dealt
out round robin), nor after an executor is lost (its key groups are dealt out over the rest).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit_lab.planners.intervals.oms import match_intervals

if TYPE_CHECKING:
    from godwit.placement.arrays import FloatArray, IntArray
    from godwit.placement.problem import Problem


def gather_ranges(problem: Problem) -> IntArray:
    """Return an assignment by ranges of about equal load, each where most of its state is.

    Shape ``(m,)``. There are as many ranges as executors that may own key groups, or as key groups.
    It is not optimal: finding the ranges that move least is as hard as trying all orders of the
    executors.

    Examples
    --------
    >>> from godwit.placement.problem import Problem
    >>> problem = Problem(
    ...     executors=("a", "b"),
    ...     load=np.ones(6),
    ...     state_bytes=np.ones(6),
    ...     current=np.array([0, 1, 0, 1, 0, 1]),
    ... )
    >>> gather_ranges(problem).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    parts = min(problem.target_executors, problem.num_key_groups)
    return match_intervals(problem, even_cuts(problem.weight, parts))


def even_cuts(weight: FloatArray, parts: int) -> IntArray:
    """Return cuts (0 and m included) between non-empty intervals of about equal weight."""
    m = len(weight)
    total = np.concatenate(([0.0], np.cumsum(weight)))
    if not total[-1]:
        total = np.arange(m + 1.0)
    wanted = total[-1] * np.arange(1, parts) / parts
    after = np.clip(np.searchsorted(total, wanted), 1, m)
    cuts = np.where(wanted - total[after - 1] < total[after] - wanted, after - 1, after)
    inner = np.arange(1, parts)
    cuts = np.maximum.accumulate(np.maximum(cuts, inner) - inner) + inner
    cuts = np.minimum(cuts, m - parts + inner)
    return np.concatenate(([0], cuts, [m])).astype(np.int32)
