"""Moves of a plan that pay.

Problem: planners look for the most even plan; a stream pays for every byte that moves, and under
noise the most even plan is another one every period.

The rule: what a plan gains is the time by which the busiest executor, for which every epoch waits,
is relieved over the *horizon*; what it costs is the time that the busiest link needs for the state.
Where a key group migrates instantly no state moves; instead keys that get rows on both sides of the
switch are held twice until their windows are over, and merged once more.  Of that no more is known
than that it is at most all that the key group holds, sent to where windows are consolidated, which
all executors share.
Moves are made in the planner's order (most relief per byte from the most overloaded executor
first), no further than the budget goes and than it takes to be even enough; and none is made unless
the load distance is above its bound, the gain is above its cost, and the gain is more than noise.
A plan that collocates gains what no longer crosses executors, too, and may do so where the load is
even enough and stays so.

Invariant: cutting a plan short never breaks it (every prefix of its moves is a legal plan), and
moves off a draining executor need no gain.

Source: paper 2 §4.3 (a budget for every adaptation period); Algorithm 1's "apply"; paper 3 §4.5
(instant migration, and the expansion of keys that it costs).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidControlError
from godwit.model.frames import user_class
from godwit.model.naming import insist_on_number
from godwit.planning import metrics
from godwit.planning.solution import move_order

if TYPE_CHECKING:
    from godwit.planning import Problem
    from godwit.planning.arrays import FloatArray, IntArray

__all__ = ["Budget", "PlanVerdict", "Terms", "distance", "judge"]


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on what one period may move, over all components; ``None``: no limit.

    Attributes
    ----------
    max_moves
        Key groups.
    max_bytes
        Bytes of state. A key group that is larger by itself moves alone.

    Raises
    ------
    InvalidControlError
        If one of them is no number, or is negative.
    """

    max_moves: int | None = None
    max_bytes: float | None = 2.0**30

    def __post_init__(self) -> None:
        for name, whole in (("max_moves", True), ("max_bytes", False)):
            value = getattr(self, name)
            if value is not None:
                what = f"The budget's {name}"
                insist_on_number(what, value, least=0, error=InvalidControlError, whole=whole)

    def less(self, moves: int, size_bytes: float) -> Budget:
        """Return what is left after some moves."""
        return Budget(
            max_moves=None if self.max_moves is None else max(0, self.max_moves - moves),
            max_bytes=None if self.max_bytes is None else max(0.0, self.max_bytes - size_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """When moving pays."""

    # by how much of the mean an executor's load index may differ from it before key groups move
    max_load_distance: float
    even_enough: float  # at which such difference a plan is cut short
    # by how much of the mean the busiest executor must be relieved, or the load distance fall
    least_gain: float = 0.05
    # the same as a share of an executor's time: on a stream with little to do nothing moves
    least_busy: float = 0.01
    horizon_s: float  # how long the load is taken to stay as it is
    seconds_per_byte: float  # time that one link needs for one byte of state


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanVerdict:
    """Moves of a plan that are worth it, and why the others are not."""

    assignment: IntArray  # the plan, cut short; today's places where nothing is to move
    order: IntArray  # key groups that move, in order
    distance_before: float  # distance_before, distance_after: Load distance, as a share of the mean
    distance_after: float
    relief: float  # share of its time that the busiest executor is relieved of
    # gain_s, cost_s: Over the horizon; of a plan that is not worth it, what it would have gained
    # and cost
    gain_s: float
    cost_s: float
    moved_bytes: float  # state that moves
    reason: str = ""  # why nothing moves; empty where something does


def distance(problem: Problem, assignment: IntArray) -> float:
    """Load distance as a share of the mean load index; 0 where there is no load."""
    mean = metrics.mean_index(problem)
    return metrics.load_distance(problem, assignment) / mean if mean > 0 else 0.0


def judge(
    # what the planner was asked. Where it wants intervals, a plan is made whole or not at all.
    problem: Problem,
    planned: IntArray,  # shape ``(m,)``: the plan
    # terms, budget: When moving pays, and how much may move. Of a plan that exceeds the budget
    # the first moves are made; the rest is planned anew next time.
    terms: Terms,
    budget: Budget,
    *,
    # shape ``(m,)``: state of each key group, where it is more than what moves with it
    # (`Problem.state_bytes`); left out: all of it moves
    held_bytes: FloatArray | None = None,
) -> PlanVerdict:
    """Choose which of a plan's moves are made."""
    expands = problem.state_bytes * 0.0 if held_bytes is None else held_bytes - problem.state_bytes
    order = move_order(
        problem.current,
        planned,
        load=problem.weight,
        state_bytes=problem.state_bytes,
        speed=problem.speed,
        draining=problem.draining,
    )
    leaving = problem.draining[problem.current[order]]
    balancing, draining = order[~leaving], order[leaving]
    whole = problem.intervals
    chosen = balancing if whole else _within(problem, balancing, budget)
    if not whole and not len(problem.traffic.rate):
        chosen = chosen[: _enough(problem, planned, chosen, terms)]
    balanced = _verdict(problem, planned, chosen, terms, expands)
    reason = _reason(problem, balanced, terms)
    if reason:
        stays = _verdict(problem, planned, chosen[:0], terms, expands)
        balanced = replace(stays, gain_s=balanced.gain_s, cost_s=balanced.cost_s, reason=reason)
    if not len(draining):
        return balanced
    # Balance first: it was planned with the rest of the draining executors' load still to come.
    left = budget.less(len(balanced.order), balanced.moved_bytes)
    emptied = draining if whole else _within(problem, draining, left)
    if not len(emptied) and not len(balanced.order):
        emptied = draining[:1]
    if not len(emptied):
        return balanced
    return _verdict(problem, planned, np.concatenate([balanced.order, emptied]), terms, expands)


def _within(problem: Problem, order: IntArray, budget: Budget) -> IntArray:
    """First moves that the budget pays for; one that is too large alone goes alone."""
    kept = len(order) if budget.max_moves is None else min(len(order), budget.max_moves)
    if budget.max_bytes is not None and kept:
        total = np.cumsum(problem.state_bytes[order[:kept]])
        paid = int(np.searchsorted(total, budget.max_bytes * (1 + 1e-9), side="right"))
        kept = min(kept, max(paid, 1 if budget.max_bytes > 0 else 0))
    return order[:kept]


def _enough(problem: Problem, planned: IntArray, order: IntArray, terms: Terms) -> int:
    """Count the moves that it takes to be even enough, or as even as all of them make it."""
    if not len(order):
        return 0
    after = problem.current.copy()
    after[order] = planned[order]
    stays = ~problem.draining
    mean = metrics.mean_index(problem)
    wanted = max(metrics.load_distance(problem, after), terms.even_enough * mean)
    load = metrics.loads(problem, problem.current)
    deviation = np.where(stays, np.abs(load / problem.speed - mean), 0.0)
    most, speed, weight = wanted * (1 + 1e-9), problem.speed, problem.weight
    over = int(np.count_nonzero(deviation > most))
    for made, k in enumerate(order.tolist(), start=1):
        if not over:
            return made - 1
        for e, change in ((int(problem.current[k]), -weight[k]), (int(planned[k]), weight[k])):
            load[e] += change
            was = deviation[e] > most
            deviation[e] = abs(load[e] / speed[e] - mean) if stays[e] else 0.0
            over += int(deviation[e] > most) - int(was)
    return len(order)


def _verdict(
    problem: Problem, planned: IntArray, order: IntArray, terms: Terms, expands: FloatArray
) -> PlanVerdict:
    after = problem.current.copy()
    after[order] = planned[order]
    relief = _busiest(problem, problem.current) - _busiest(problem, after)
    spared = _crossing(problem, problem.current) - _crossing(problem, after)
    merged_bytes = float(expands[order].sum()) / problem.num_executors
    return PlanVerdict(
        assignment=after,
        order=order,
        distance_before=distance(problem, problem.current),
        distance_after=distance(problem, after),
        relief=relief,
        gain_s=(relief + spared * terms.seconds_per_byte) * terms.horizon_s,
        cost_s=(_busiest_link(problem, after) + merged_bytes) * terms.seconds_per_byte,
        moved_bytes=metrics.moved_bytes(problem, after),
    )


def _busiest(problem: Problem, assignment: IntArray) -> float:
    return float(metrics.load_index(problem, assignment).max())


def _crossing(problem: Problem, assignment: IntArray) -> float:
    """Bytes a second between key groups on different executors."""
    traffic = problem.traffic
    apart = assignment[traffic.source] != assignment[traffic.target]
    return float(traffic.rate[apart].sum())


def _busiest_link(problem: Problem, after: IntArray) -> float:
    """Bytes that the executor that sends or receives most sends or receives."""
    moved = np.flatnonzero(after != problem.current)
    sizes: FloatArray = problem.state_bytes[moved]
    n = problem.num_executors
    sent = np.bincount(problem.current[moved], sizes, n)
    received = np.bincount(after[moved], sizes, n)
    return float(max(sent.max(), received.max()))


def _reason(problem: Problem, verdict: PlanVerdict, terms: Terms) -> str:
    """Reason why a plan's balancing moves are not made; empty where they are."""
    mean = metrics.mean_index(problem)
    if not len(verdict.order):
        even = verdict.distance_before <= terms.max_load_distance
        return "the load is even enough" if even else "the planner moves nothing"
    spares = verdict.gain_s > verdict.relief * terms.horizon_s
    stays_even = verdict.distance_after <= max(terms.max_load_distance, verdict.distance_before)
    if not (spares and stays_even):
        if verdict.distance_before <= terms.max_load_distance:
            return "the load is even enough"
        # An idle executor is uneven, too, and filling it relieves each of the others by little.
        evened = max(verdict.relief, (verdict.distance_before - verdict.distance_after) * mean)
        if evened < terms.least_gain * mean:
            return "no plan makes the load more even"
        if evened < terms.least_busy:
            return "there is too little to do"
    if verdict.gain_s <= verdict.cost_s:
        return "moving the state costs more than it gains"
    return ""
