"""A lower bound of the load distance that a bounded number of moves, or bytes, can reach.

Problem: how far a plan is from the best there can be, for sizes that no solver proves.

Invariant: the bound is never above the optimum.  For a wanted distance d, every executor above
``mean + d`` must give away at least its excess, and with r moves it cannot give away more than its
r heaviest key groups; likewise every executor below ``mean - d`` must receive.  If all that takes
more moves (or bytes) than there are, d is out of reach.

Source: our own; it needs no linear program, and unlike the linear relaxation it counts whole moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.planning import metrics

if TYPE_CHECKING:
    from godwit.planning.arrays import BoolArray, FloatArray, IndexArray, IntArray
    from godwit.planning.problem import Problem

__all__ = ["load_distance_bound"]

_PRECISION = 1e-9
"""Share of the mean to which the bound is found; plans are compared to a millionth of it."""
_SHARES = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
"""λ: how much of a move counts where it is given; the rest counts where it is taken."""


def load_distance_bound(problem: Problem) -> float:
    """Lower bound of d (see `godwit.planning.allocation.model`), in the problem's unit of load.

    Considers moves, bytes, and that the heaviest key group has to be somewhere.
    O(m log m) time.
    """
    mean, speed = metrics.mean_index(problem), problem.speed
    load = metrics.loads(problem, problem.current)
    weight, available = problem.weight, problem.available
    deviation = load / speed - mean
    over = np.maximum(deviation, 0.0)
    under = np.where(problem.draining, 0.0, np.maximum(-deviation, 0.0))
    floor = max(0.0, _heaviest(problem) - mean)
    reached = float(max(over.max(), under.max()))
    if reached <= floor:
        return reached
    limits = problem.limits
    checks: list[_MoveCount | _ByteCount] = []
    if limits.max_moves is not None:
        checks.append(_MoveCount(problem, weight, limits.max_moves))
    if limits.max_bytes is not None:
        checks.append(_ByteCount(problem, weight, limits.max_bytes))
    low, high = floor, reached
    if not checks or _possible(checks, load, speed, mean=mean, available=available, distance=low):
        return low
    while high - low > _PRECISION * mean:
        middle = (low + high) / 2
        if _possible(checks, load, speed, mean=mean, available=available, distance=middle):
            high = middle
        else:
            low = middle
    return low


def _heaviest(problem: Problem) -> float:
    """Least load index that the heaviest key group makes somewhere."""
    k = int(problem.weight.argmax())
    places = problem.available
    fastest = float(problem.speed[places].max())
    home = int(problem.current[k])
    if problem.draining[home]:  # it may stay, and then only its overload counts
        fastest = max(fastest, float(problem.speed[home]))
    return float(problem.weight[k]) / fastest


def _possible(
    checks: list[_MoveCount | _ByteCount],
    load: FloatArray,
    speed: FloatArray,
    *,
    mean: float,
    available: IntArray,
    distance: float,
) -> bool:
    # A hair's width of slack: rounding must never make the bound too high.
    excess = load - (mean + distance) * speed * (1 + 1e-12)
    missing = np.zeros_like(load)
    missing[available] = ((mean - distance) * speed * (1 - 1e-12) - load)[available]
    return all(check.suffices(excess, missing) for check in checks)


class _MoveCount:
    """Moves that bring every executor into the range at least.

    An executor that gives a key groups and takes b changes its load by a sum of b minus a sum of a,
    of which only the least and the greatest are looked at. Each move is given once and taken once,
    so for any λ in [0, 1] there are at least Σ_i min (λ·a + (1 - λ)·b) of them, the minimum being
    over the (a, b) that could bring executor i into the range.
    """

    def __init__(self, problem: Problem, weight: FloatArray, limit: int) -> None:
        self._limit = limit
        ascending = np.sort(weight)
        self._takes = _sums(ascending[:limit]), _sums(ascending[::-1][:limit])
        least, most = [], []
        for e in range(problem.num_executors):
            mine = np.sort(weight[problem.current == e])
            least.append(_sums(mine[:limit]))
            most.append(_sums(mine[::-1][:limit]))
        # Executor after executor: one entry for every number of key groups that it could give.
        sizes = np.array([len(sums) for sums in most])
        self._first = np.cumsum(sizes) - sizes
        self._of = np.repeat(np.arange(len(sizes)), sizes)
        self._count = np.arange(len(self._of)) - self._first[self._of]
        self._given = np.concatenate(least), np.concatenate(most)
        self._drains = problem.draining[self._of]

    def suffices(self, excess: FloatArray, missing: FloatArray) -> bool:
        taken, possible = self._taken(excess[self._of], missing[self._of])
        share = _SHARES[:, None]
        moves = np.where(possible, share * self._count + (1 - share) * taken, np.inf)
        fewest = np.minimum.reduceat(moves, self._first, axis=1)
        total = fewest[:, (excess > 0) | (missing > 0)].sum(axis=1)
        return bool(total.max() <= self._limit + 1e-6)

    def _taken(self, excess: FloatArray, missing: FloatArray) -> tuple[IndexArray, BoolArray]:
        """Least number to take with each number given, and whether there is one that will do."""
        least_given, most_given = self._given
        least_taken, most_taken = self._takes
        slack = 1e-12 * float(most_taken[-1])
        # Taking more than this many only makes what has to be given more.
        taken = np.searchsorted(most_taken, missing + least_given - slack)
        taken[self._drains] = 0
        enough = taken < len(most_taken)
        taken[~enough] = 0
        return taken, enough & (least_taken[taken] - most_given <= -excess + slack)


def _sums(values: FloatArray) -> FloatArray:
    return np.concatenate([np.zeros(1), np.cumsum(values)])


class _ByteCount:
    """Bytes that they take at least, if key groups could be cut."""

    def __init__(self, problem: Problem, weight: FloatArray, limit: float) -> None:
        self._limit = limit * (1 + 1e-9)
        size = problem.state_bytes
        order = np.argsort(-weight / np.maximum(size, 1e-300), kind="stable")
        self._given = []
        for e in range(problem.num_executors):
            mine = order[problem.current[order] == e]
            self._given.append(_curve(weight[mine], size[mine]))
        self._taken = _curve(weight[order], size[order])

    def suffices(self, excess: FloatArray, missing: FloatArray) -> bool:
        away = sum(float(np.interp(excess[e], *self._given[e])) for e in np.flatnonzero(excess > 0))
        there = sum(float(np.interp(x, *self._taken)) for x in missing[missing > 0])
        return max(away, there) <= self._limit


def _curve(weight: FloatArray, size: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Load given away against bytes moved, cheapest first."""
    return _sums(weight), _sums(size)
