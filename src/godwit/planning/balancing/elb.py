"""Eager load balancing: bring every executor's load into a range, moving little state.

Problem: in each statistic window, loads within [v, u], near its middle, with few state movements.

Invariant: substreams (our key groups) only leave executors that give and only arrive at executors
that take; when no executor has to be added or removed and all are in range, nothing moves.

Source: paper 4 §3, Algorithm 1 (its figure is lost; the phases follow the text).  The paper lets
every executor above the mean give.  By default we let only those above u give, and the others above
the mean only while somebody is below v: the range is the goal, and inside it state need not move.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from godwit.model.errors import InvalidProblemError
from godwit.planning import metrics
from godwit.planning.solution import Solution, Status
from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from godwit.planning.arrays import Clock, FloatArray, IntArray
    from godwit.planning.problem import Problem

__all__ = ["plan_elb", "wanted_executors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    low: float
    high: float

    @property
    def width(self) -> float:
        return (self.high - self.low) / 2


def wanted_executors(total_load: float, low: float, high: float) -> int:
    """Count the executors that put the mean load in the middle of the range: ``⌈2w/(u+v)⌉``.

    Examples
    --------
    >>> wanted_executors(100.0, 8.0, 12.0)
    10
    """
    return max(1, math.ceil(2 * total_load / (low + high) * (1 - 1e-12)))


def plan_elb(
    problem: Problem,
    *,
    resize: bool = True,
    giving: Literal["range", "mean"] = "range",
    clock: Clock = time.perf_counter,
) -> Solution:
    """Bring loads into [load_low, load_high] (paper 4, Algorithm 1).

    The number of executors that hold key groups becomes ``⌈2w/(u+v)⌉``: those with least load are
    emptied (draining ones before all), idle ones of the problem are taken into use. Executors that
    give hand over their heaviest key groups that fit; each goes, heaviest first, to the executor
    that is least loaded with it. Ties: the lower index. O(m log m + moves·n) time.

    Parameters
    ----------
    problem
        Its limits must have ``load_low`` and ``load_high``; loads and range are per capacity.
    resize
        Whether the number of executors may change.
    giving
        ``"range"``: see above; ``"mean"``: every executor above the mean gives, as in the paper.

    Returns
    -------
    Solution
        ``details``: ``wanted_executors``, ``used_executors`` and ``in_range``. The reason says why
        loads are not in range: too few executors, or key groups heavier than (u - v)/2.

    Raises
    ------
    InvalidProblemError
        If the range is missing or empty at 0.
    """
    start = clock()
    wanted = _range(problem)
    index = metrics.load_index(problem, problem.current)
    total = float(problem.weight.sum())
    available = problem.available
    in_use = available[np.bincount(problem.current, minlength=len(index))[available] > 0]
    goal = wanted_executors(total / float(problem.speed[available].mean()), wanted.low, wanted.high)
    most = problem.target_executors
    if not resize:
        goal = most
    used = _choose_executors(available, in_use, index, min(goal, most))
    assignment, given = _give(problem, used, wanted, giving)
    _take(problem, assignment, given, used)
    after = metrics.load_index(problem, assignment)[used]
    slack = 1e-9 * wanted.high
    in_range = bool(((after >= wanted.low - slack) & (after <= wanted.high + slack)).all())
    solution = make_solution(
        problem,
        assignment,
        method="elb",
        reason="" if in_range else _why(problem, goal, most, wanted),
        objective=metrics.load_variance(problem, assignment),
        elapsed_s=clock() - start,
        details={
            "wanted_executors": goal,
            "used_executors": len(np.unique(assignment)),
            "in_range": in_range,
        },
    )
    return solution if in_range else replace(solution, status=Status.INFEASIBLE)


def _range(problem: Problem) -> _Range:
    low, high = problem.limits.load_low, problem.limits.load_high
    if low is None or high is None:
        raise InvalidProblemError(
            f"limits.load_low is {low} and limits.load_high is {high}; elb needs both.",
            remedy="Give the range [v, u] that every executor's load should be in.",
            field="limits.load_low" if low is None else "limits.load_high",
            value=low if low is None else high,
        )
    if high <= 0:
        raise InvalidProblemError(
            f"limits.load_high is {high}; elb needs room for load.",
            remedy="Give a number above 0.",
            field="limits.load_high",
            value=high,
        )
    return _Range(low=low, high=high)


def _choose_executors(
    available: IntArray, in_use: IntArray, index: FloatArray, goal: int
) -> IntArray:
    if goal <= len(in_use):
        keep = np.lexsort((in_use, -index[in_use]))[:goal]
        return np.sort(in_use[keep])
    idle = np.setdiff1d(available, in_use)
    return np.sort(np.concatenate([in_use, idle[: goal - len(in_use)]])).astype(np.int32)


def _give(
    problem: Problem, used: IntArray, wanted: _Range, giving: Literal["range", "mean"]
) -> tuple[IntArray, IntArray]:
    """Phases 1 and 2: who gives, and what."""
    weight, speed = problem.weight, problem.speed
    assignment = problem.current.copy()
    staying = np.zeros(problem.num_executors, np.bool_)
    staying[used] = True
    out = ~staying[assignment]
    load = metrics.loads(problem, assignment)
    index = load[used] / speed[used]
    mean = float(weight.sum() / speed[used].sum())
    giver = index > (wanted.high if giving == "range" else mean) * (1 + 1e-12)
    if giving == "range" and (index < wanted.low).any():
        giver |= index > mean * (1 + 1e-12)
    order = np.lexsort((np.arange(len(weight)), -weight, assignment))
    first = np.searchsorted(assignment[order], np.arange(problem.num_executors + 1))
    takes = used[~giver]
    widest = wanted.width * float(speed[takes].max(initial=0.0))
    for e in used[giver].tolist():
        mine = order[first[e] : first[e + 1]]
        surplus = float(load[e]) - mean * float(speed[e])
        for k, w in zip(mine.tolist(), weight[mine].tolist(), strict=True):
            if 0 < w <= min(surplus, widest):
                out[k] = True
                surplus -= w
    return assignment, np.flatnonzero(out).astype(np.int32)


def _take(problem: Problem, assignment: IntArray, given: IntArray, used: IntArray) -> None:
    """Phase 3: heaviest first, each to the executor that is least loaded with it."""
    speed, weight = problem.speed[used], problem.weight
    left = np.ones(len(assignment), np.bool_)
    left[given] = False
    load = np.bincount(assignment[left], weights=weight[left], minlength=problem.num_executors)
    load = load[used]
    for k in given[np.lexsort((given, -weight[given]))].tolist():
        at = int(((load + weight[k]) / speed).argmin())
        load[at] += weight[k]
        assignment[k] = used[at]


def _why(problem: Problem, goal: int, available: int, wanted: _Range) -> str:
    if goal > available:
        return f"{goal} executors are wanted; {available} are available"
    heaviest = float(problem.weight.max() / problem.speed[problem.available].min())
    if heaviest > wanted.width:
        return (
            f"the heaviest key group makes a load of {heaviest:.6g}, above (u - v)/2 = "
            f"{wanted.width:.6g}"
        )
    return "the range could not be met by the heuristic"
