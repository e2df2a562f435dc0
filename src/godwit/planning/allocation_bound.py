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
    from godwit.planning.arrays import FloatArray, IntArray
    from godwit.planning.problem import Problem

__all__ = ["load_distance_bound"]

_ROUNDS = 60


def load_distance_bound(problem: Problem) -> float:
    """Lower bound of d (see `godwit.planning.allocation_model`), in the problem's unit of load.

    Considers moves, bytes, and that the heaviest key group has to be somewhere.
    O((m log m) + 60·n) time.
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
    for _ in range(_ROUNDS):
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
    """Moves that excesses and shortages take at least."""

    def __init__(self, problem: Problem, weight: FloatArray, limit: int) -> None:
        self._limit = limit
        self._given = [
            np.cumsum(np.sort(weight[problem.current == e])[::-1])
            for e in range(problem.num_executors)
        ]
        self._taken = np.cumsum(np.sort(weight)[::-1])

    def suffices(self, excess: FloatArray, missing: FloatArray) -> bool:
        away = 0
        for e in np.flatnonzero(excess > 0).tolist():
            away += _first_reaching(self._given[e], float(excess[e]))
        wanted = missing[missing > 0]
        there = sum(_first_reaching(self._taken, float(x)) for x in wanted.tolist())
        return max(away, there) <= self._limit


def _first_reaching(sums: FloatArray, amount: float) -> int:
    if len(sums) == 0 or sums[-1] < amount * (1 - 1e-12):
        return len(sums)
    return int(np.searchsorted(sums, amount * (1 - 1e-12))) + 1


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
    zero = np.zeros(1)
    return np.concatenate([zero, np.cumsum(weight)]), np.concatenate([zero, np.cumsum(size)])
