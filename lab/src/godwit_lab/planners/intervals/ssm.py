"""SSM: the cheapest single migration between assignments by intervals, exactly (paper 1 §4).

Definition 4.1: m key groups lie on a line and every executor owns one interval of it.  Cut the line
into at most n' intervals, none with more load than B = (1 + τ)·W/n', and give each to another
executor, so that the *gain*, the bytes of state that stay, is greatest.

Executors that keep something keep their order, so the only memory needed at a cut x is whether the
executor that owned the key groups around x before has been used already: S(k, x, used) is the
greatest gain of covering [x, m) with at most k intervals.  An interval [x, y) goes to no former
owner (gain 0), to an executor that y leaves behind, or to the one that y cuts in two, which is then
used. These are the O(m·n') states of the paper's SSM (figure 7), with one max-plus product per k
over the r cuts y that B allows after x, all x at once, instead of its case analysis: O(m·r·n')
time with r ≤ m the longest interval within B, against O(m²·n').

Ties are broken towards the earlier cut, then towards an executor that is left behind; intervals
without gain go to the unused executor with most of those key groups already (then the lowest
index).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import as_strided

from godwit.model.errors import InvalidProblemError
from godwit.placement.arrays import FloatArray, IntArray, is_contiguous, wrong_value
from godwit.placement.solution import RELATIVE_TOLERANCE, make_solution

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.placement.problem import Problem
    from godwit.placement.solution import Solution

BLOCK_CELLS = 1 << 18
"""Cells (cut, next cut) handled at once; bounds the memory of a step."""
CACHED_CELLS = 1 << 22
"""Cells whose gains are kept from one k to the next; beyond it they are computed again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """Key groups on a line, as SSM sees them."""

    # shape ``(m + 1,)``: the last cut y such that [x, y) is within the bound; x if none is
    last_cut: IntArray
    # shape ``(m + 1,)``: bytes before each cut whose executor may keep them (not draining)
    state_before: FloatArray
    # shape ``(m + 1,)``: the old interval around each cut x, by the key group at x
    start: IntArray
    end: IntArray
    # shape ``(m + 1,)``: bytes of the old interval that ends at each cut; 0 where none does
    whole: FloatArray


def plan_ssm(problem: Problem) -> Solution:
    """Plan by intervals: fewest bytes moved, no load above (1 + τ) fair shares (paper 1 §4.1).

    ``objective`` and ``bound`` are the bytes moved. If no assignment by intervals is within τ, the
    status is infeasible and the plan moves the fewest bytes among those with the smallest possible
    greatest load. Raises `InvalidProblemError` if the problem is not one of intervals.
    """

    def best(limit: float, *, use: bool = True) -> list[tuple[int, int, int]] | None:
        return best_cuts(line_of(problem, limit, use=use), problem.target_executors)

    return _plan_by(best, problem, "ssm")


def _plan_by(
    best: Callable[..., list[tuple[int, int, int]] | None],
    problem: Problem,
    method: str,
) -> Solution:
    """Plan by intervals with a load bound, that of τ or else the least possible one.

    `best`: load bound → intervals, or ``None`` if there are none. `method`: name of the planner.
    """
    limit = load_bound(problem)
    cuts, reason = best(limit), ""
    if cuts is None:
        least = least_bound(problem)
        share = problem.weight.sum() / problem.target_executors
        reason = (
            f"no intervals are within tau; the smallest feasible tau is {least / share - 1:.6g}"
        )
        cuts = best(least)
        if cuts is None:  # only other resources can be in the way now
            reason = "no intervals are within limits.max_usage; it is ignored"
            cuts = best(max(limit, least), use=False)
    assert cuts is not None, "the least bound admits a plan"
    assignment = assign_intervals(problem, cuts)
    moved = float(problem.state_bytes[assignment != problem.current].sum())
    return make_solution(
        problem,
        assignment,
        method=method,
        optimal=not reason,
        reason=reason,
        objective=moved,
        bound=None if reason else moved,
    )


def load_bound(problem: Problem) -> float:
    """Return B = (1 + τ)·W/n', the most load that an executor may have (paper 1 §4.1).

    Raises `InvalidProblemError` if τ is missing, the current assignment has no intervals, or
    capacities differ.
    """
    if problem.limits.tau is None:
        raise wrong_value("limits.tau", None, "give the load balancing threshold")
    if not is_contiguous(problem.current, problem.num_executors):
        raise wrong_value("current", "not intervals", "give every executor one range of key groups")
    if not problem.homogeneous:
        raise wrong_value(
            "capacity", "unequal", "use a planner for different executors, such as milp"
        )
    bound = (1 + problem.limits.tau) * problem.weight.sum() / problem.target_executors
    return float(bound) * (1 + RELATIVE_TOLERANCE / 2)  # within what validation allows


def line_of(problem: Problem, limit: float, *, use: bool = True) -> Line:
    """Return a problem's key groups as a line, to be cut into intervals.

    `limit`: the most load of the bottleneck resource in one interval. `use`: whether
    ``limits.max_usage`` bounds intervals, too.
    """
    last_cut = last_cuts_within(problem, limit) if use else last_cuts_of(problem.weight, limit)
    keeps = np.where(problem.draining[problem.current], 0.0, problem.state_bytes)
    state_before = np.concatenate(([0.0], np.cumsum(keeps)))
    return lay_out(present_cuts(problem), last_cut=last_cut, state_before=state_before)


def last_cuts_within(problem: Problem, limit: float) -> IntArray:
    """Return the last cut of an interval within the limits that begins at each cut.

    Shape ``(m + 1,)``. Its load is at most `limit`, and its usage at most ``limits.max_usage``.
    """
    last_cut = last_cuts_of(problem.weight, limit)
    if problem.limits.max_usage is not None:
        capacity = problem.capacity[problem.available[0]] * (1 + RELATIVE_TOLERANCE)
        for r, usage in enumerate(problem.limits.max_usage):
            last_cut = np.minimum(
                last_cut, last_cuts_of(problem.load[:, r], usage * float(capacity[r]))
            )
    return last_cut


def present_cuts(problem: Problem) -> IntArray:
    """Return the cuts of the current assignment, ascending, 0 and m included."""
    return np.flatnonzero(np.diff(problem.current, prepend=-1, append=-1)).astype(np.int32)


def lay_out(cuts: IntArray, *, last_cut: IntArray, state_before: FloatArray) -> Line:
    """Return the line whose present intervals lie between `cuts` (0 and m included).

    `last_cut`: last cut of an interval from each cut. `state_before`: bytes of state before each
    cut.
    """
    m = len(state_before) - 1
    lengths = np.diff(cuts)
    whole = np.zeros(m + 1)
    whole[cuts[1:]] = state_before[cuts[1:]] - state_before[cuts[:-1]]
    return Line(
        last_cut=last_cut,
        state_before=state_before,
        start=np.append(np.repeat(cuts[:-1], lengths), m),
        end=np.append(np.repeat(cuts[1:], lengths), m),
        whole=whole,
    )


def last_cuts_of(weight: FloatArray, limit: float) -> IntArray:
    """Return for each cut x the last cut y such that [x, y) weighs at most `limit`."""
    total = np.concatenate(([0.0], np.cumsum(weight)))
    last_cut = np.searchsorted(total, total + limit, side="right") - 1
    return np.maximum(last_cut, np.arange(len(total))).astype(np.int32)


def best_cuts(line: Line, parts: int) -> list[tuple[int, int, int]] | None:
    """Cut the line into at most `parts` intervals that keep most bytes where they are.

    Returns triples ``(x, y, owner)``: intervals [x, y) from left to right, and a key group whose
    executor keeps the interval, or -1 for none; ``None`` if there is no plan within the bound.
    """
    m = len(line.last_cut) - 1
    if (line.last_cut[:-1] == np.arange(m)).any():
        return None
    blocks = _cut_blocks(line)
    cells = sum((stop - first) * width for first, stop, width in blocks)
    cache = [_Gains.of(line, *block) for block in blocks] if cells <= CACHED_CELLS else None
    best = np.full((parts + 1, 2, m + 1 + max(width for _, _, width in blocks)), -np.inf)
    best[:, :, m] = 0.0
    windows = [_gain_windows(best, *block) for block in blocks]
    for k in range(1, parts + 1):
        for i, block in enumerate(blocks):
            gains = cache[i] if cache else _Gains.of(line, *block)
            gains.step(windows[i][k - 1], best[k])
    if best[parts, 0, 0] == -np.inf:
        return None
    return _read_intervals(line, best, parts, cache)


def _gain_windows(best: FloatArray, first: int, stop: int, width: int) -> FloatArray:
    """Return a view of ``best[k, after, y]`` by intervals that begin at cuts ``first:stop``.

    Its axes are ``[k, after, y - x - 1, 0, x - first]``.
    """
    by_part, by_after, by_cut = best.strides
    return as_strided(
        best[:, :, first + 1 :],
        shape=(best.shape[0], 2, width, 1, stop - first),
        strides=(by_part, by_after, by_cut, 0, by_cut),
        writeable=False,
    )


def _cut_blocks(line: Line) -> list[tuple[int, int, int]]:
    """Return blocks of cuts that need little memory each: first, stop, and longest interval."""
    m = len(line.last_cut) - 1
    ahead = line.last_cut[:-1] - np.arange(m)
    blocks, x = [], 0
    while x < m:
        width = int(ahead[x])
        stop = min(m, x + max(1, BLOCK_CELLS // width))
        width = int(ahead[x:stop].max())
        if (stop - x) * width > 2 * BLOCK_CELLS:
            stop = x + max(1, BLOCK_CELLS // width)
            width = int(ahead[x:stop].max())
        blocks.append((x, stop, width))
        x = stop
    return blocks


@dataclass(frozen=True, slots=True, eq=False)
class _Gains:
    """Gains of the intervals [x, y) for x in a block and every y up to `last_cut`.

    ``gain[after, y - x - 1, used, x - first]`` is the most bytes [x, y) can keep when the executor
    around x is used (1) or not (0), and the one around y is used afterwards (1) or not (0).  The
    cuts x are the last axis because the best over y is then a maximum of whole rows.
    """

    first: int
    stop: int
    gain: FloatArray
    total: FloatArray

    @classmethod
    def of(cls, line: Line, first: int, stop: int, width: int) -> _Gains:
        """Return the gains of the intervals that begin at cuts ``first:stop``.

        `width`: the longest.
        """
        m = len(line.last_cut) - 1
        x = np.arange(first, stop)
        y = x + np.arange(1, width + 1)[:, None]
        beyond = y > line.last_cut[first:stop]
        y = np.minimum(y, m)
        end, state_before = line.end[x], line.state_before
        # Whole old intervals strictly to the right of the one around x, and left behind by y.
        passed = np.maximum.accumulate(np.where(y > end, line.whole[y], 0.0), axis=0)
        inside = y < end
        cut = state_before[y] - state_before[np.maximum(line.start[y], x)]
        head = np.where(inside, 0.0, state_before[end] - state_before[x])
        gain = np.empty((2, width, 2, stop - first))
        gain[0, :, 0] = np.maximum(passed, head)
        gain[1, :, 0] = cut
        gain[0, :, 1] = np.where(inside, -np.inf, passed)
        gain[1, :, 1] = np.where(inside, 0.0, cut)
        gain.swapaxes(1, 2)[:, :, beyond] = -np.inf
        return cls(first, stop, gain, np.empty_like(gain))

    def step(self, fewer: FloatArray, best: FloatArray) -> None:
        """Set `best` at the block's cuts, from the best gains with one interval less (`fewer`)."""
        np.add(self.gain, fewer, out=self.total)
        rows = self.total.reshape(-1, 2, self.stop - self.first)
        np.maximum.reduce(rows, axis=0, out=best[:, self.first : self.stop])


def _read_intervals(
    line: Line, best: FloatArray, parts: int, cache: list[_Gains] | None
) -> list[tuple[int, int, int]]:
    """Return the best plan's intervals (x, y, keeper) by table `best`; `cache`: gains by block."""
    m = len(line.last_cut) - 1
    cuts, x, used, k, block = [], 0, 0, parts, 0
    while x < m:
        width = int(line.last_cut[x]) - x
        if cache:
            while cache[block].stop <= x:
                block += 1
            gains = cache[block]
        else:
            gains = _Gains.of(line, x, x + 1, width)
        gain = gains.gain[:, :width, used, x - gains.first]
        total = (gain + best[k - 1, :, x + 1 : x + 1 + width]).T
        y_minus, after = divmod(int(total.argmax()), 2)
        y = x + 1 + y_minus
        cuts.append((x, y, _keeper(line, x, y, used=bool(used), cut=bool(after))))
        x, used, k = y, after, k - 1
    return cuts


def _keeper(line: Line, x: int, y: int, *, used: bool, cut: bool) -> int:
    """Return a key group whose present executor keeps [x, y) in the best plan; -1 for none.

    `used`, `cut`: whether the executor of x keeps an interval to the left, and whether an old
    interval is cut at y.
    """
    if cut:
        if used and y < line.end[x]:
            return -1
        begin = max(int(line.start[y]), x)
        return begin if line.state_before[y] > line.state_before[begin] else -1
    keeper, gain = -1, 0.0
    if not used and y >= line.end[x]:
        keeper, gain = x, float(line.state_before[line.end[x]] - line.state_before[x])
    for end in range(int(line.end[x]) + 1, y + 1):
        if line.whole[end] > gain:
            keeper, gain = end - 1, float(line.whole[end])
    return keeper if gain > 0 else -1


def assign_intervals(problem: Problem, cuts: list[tuple[int, int, int]]) -> IntArray:
    """Return each key group's executor: intervals go to their keeper, or to a free executor."""
    assignment = np.empty(problem.num_key_groups, np.int32)
    free = set(problem.available.tolist())
    for x, y, keeper in cuts:
        if keeper >= 0:
            owner = int(problem.current[keeper])
            assignment[x:y] = owner
            free.remove(owner)
    for x, y, keeper in cuts:
        if keeper < 0:
            counts = np.bincount(problem.current[x:y], minlength=problem.num_executors)
            owner = max(sorted(free), key=lambda e: int(counts[e]))
            assignment[x:y] = owner
            free.remove(owner)
    return assignment


def least_bound(problem: Problem) -> float:
    """Return the smallest bound on load for which the line has at most n' intervals."""
    weight, parts = problem.weight, problem.target_executors
    total = np.concatenate(([0.0], np.cumsum(weight)))
    low, high = max(float(weight.max()), float(total[-1]) / parts), float(total[-1])
    best = _greedy_maximum(total, high, parts)
    while True:
        middle = (low + high) / 2
        largest = _greedy_maximum(total, middle, parts)
        if largest < np.inf:
            best = min(best, largest)
            high = min(middle, best)
        else:
            low = middle
        if high - low <= RELATIVE_TOLERANCE / 8 * high:
            return best * (1 + RELATIVE_TOLERANCE)


def _greedy_maximum(total: FloatArray, limit: float, parts: int) -> float:
    """Return the largest load of intervals that are filled greedily up to `limit`.

    Infinite if there are more than `parts`. `total`: cumulative loads.
    """
    x, m, greatest = 0, len(total) - 1, 0.0
    slack = limit * (1 + RELATIVE_TOLERANCE / 8)
    for _ in range(parts):
        y = int(np.searchsorted(total, total[x] + slack, side="right")) - 1
        if y == x:
            return np.inf
        greatest = max(greatest, float(total[y] - total[x]))
        x = y
        if x == m:
            return greatest
    return np.inf


MAX_SIZE = 2_000
"""Largest m·n·n' it takes; its time grows as the cube of m, the cube of n and the square of n'."""

Plan = tuple[float, tuple[tuple[int, int, int], ...]]
"""Gain, and the cuts that have it."""


def plan_simple_ssm(problem: Problem) -> Solution:
    """Plan the fewest bytes moved within τ by paper 1's recursion (lemma 4.1), to test SSM.

    A sub-problem is a range [x, y) of key groups, a range of executors in the order of their old
    intervals, and a number of parts; its greatest gain is the best over all ways to split all three
    in two (figure 5). Executors without an old interval gain nothing, so they never enter the
    recursion. Problems with m·n·n' above `MAX_SIZE` are refused.
    """
    size = problem.num_key_groups * problem.num_executors * problem.target_executors
    if size > MAX_SIZE:
        raise InvalidProblemError(
            f"m·n·n' = {size} is more than simple_ssm takes ({MAX_SIZE}).",
            remedy="Use ssm, which finds the same optimum.",
            field="current",
            value=size,
        )
    return _plan_by(partial(_best_by_recursion, problem), problem, "simple_ssm")


def _best_by_recursion(
    problem: Problem, limit: float, *, use: bool = True
) -> list[tuple[int, int, int]] | None:
    """Return the result of `best_cuts`, by trying every split; `limit`, `use`: see `line_of`."""
    last_cut = line_of(problem, limit, use=use).last_cut
    keeps = np.where(problem.draining[problem.current], 0.0, problem.state_bytes)
    state = np.concatenate(([0.0], np.cumsum(keeps)))
    cuts = np.flatnonzero(np.diff(problem.current, prepend=-1, append=-1)).tolist()
    old = list(itertools.pairwise(cuts))

    @cache
    def solve(x: int, y: int, first: int, last: int, parts: int) -> Plan | None:
        best: Plan | None = None
        if y <= last_cut[x]:
            gain, keeper = 0.0, -1
            for begin, end in old[first:last]:
                overlap = float(state[min(y, end)] - state[max(x, begin)])
                if overlap > gain:
                    gain, keeper = overlap, max(x, begin)
            best = (gain, ((x, y, keeper),))
        for part in range(1, parts):
            for cut in range(x + 1, y):
                for middle in range(first, last + 1):
                    left = solve(x, cut, first, middle, part)
                    if left is None:
                        break  # this number of parts cannot hold it, whatever their owners
                    right = solve(cut, y, middle, last, parts - part)
                    if right and (best is None or left[0] + right[0] > best[0]):
                        best = (left[0] + right[0], left[1] + right[1])
        return best

    plan = solve(0, problem.num_key_groups, 0, len(old), problem.target_executors)
    return None if plan is None else list(plan[1])
