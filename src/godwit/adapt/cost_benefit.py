"""Moves of a plan that pay: benefit and cost of balancing.

A plan gains the time by which the busiest executor, for which every epoch waits, is relieved over
the *horizon*, and what no longer crosses executors; it costs the time that the busiest link needs
for the state.  Where a key group migrates instantly no state moves; instead keys that get rows on
both sides of the switch are held twice until their windows are over, and merged once more: at most
all that the key group holds, sent to where windows are consolidated, which all executors share.

Moves are made in the planner's order, no further than the budget goes and than it takes to be even
enough; and none is made unless the load distance is above its bound, the gain is above its cost,
and the gain is more than noise.  A plan that collocates may do so where the load stays even enough.

Invariant: cutting a plan short never breaks it (every prefix of its moves is a legal plan), and
moves off a draining executor need no gain.

Source: paper 2 §4.3 (a budget for every adaptation period); Algorithm 1's "apply"; paper 3 §4.5
(instant migration, and the expansion of keys that it costs).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning import metrics
from godwit.planning.solution import moves_in_order

if TYPE_CHECKING:
    from godwit.adapt.settings import Budget
    from godwit.planning import Problem
    from godwit.planning.arrays import FloatArray, IntArray

LEAST_GAIN = 0.05
"""By how much of the mean the busiest executor must be relieved, or the load distance fall."""
_LEAST_BUSY = 0.01
"""The same as a share of an executor's time: on a stream with little to do nothing moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Thresholds and prices by which a move pays."""

    # by how much of the mean an executor's load index may differ from it before key groups move
    max_load_distance: float
    even_enough: float  # at which such difference a plan is cut short
    horizon_s: float  # how long the load is taken to stay as it is
    seconds_per_byte: float  # time that one link needs for one byte of state


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectedMoves:
    """Moves of a plan that pay, and the reason why the others do not."""

    assignment: IntArray  # the plan, cut short; today's places where nothing is to move
    order: IntArray  # key groups that move, in order
    distance_before: float  # load distance, as a share of the mean
    distance_after: float
    relief: float  # share of its time that the busiest executor is relieved of
    # over the horizon; of a plan that is not worth it, what it would have gained and cost
    gain_s: float
    cost_s: float
    moved_bytes: float  # state that moves
    reason: str = ""  # why nothing moves; empty where something does


def distance(problem: Problem, assignment: IntArray) -> float:
    """Load distance as a share of the mean load index; 0 where there is no load."""
    mean = metrics.mean_index(problem)
    return metrics.load_distance(problem, assignment) / mean if mean > 0 else 0.0


def select_moves(
    problem: Problem,
    planned: IntArray,
    terms: Terms,
    budget: Budget,
    *,
    # state of each key group, where it is more than what moves with it (`Problem.state_bytes`)
    held_bytes: FloatArray | None = None,
) -> SelectedMoves:
    """Choose the moves of a plan that are worth making.

    Of a plan that exceeds the budget the first moves are made; the rest is planned anew next time.
    Where the problem wants intervals, all moves are made or none.
    """
    expands = problem.state_bytes * 0.0 if held_bytes is None else held_bytes - problem.state_bytes
    order = moves_in_order(problem, planned)
    leaving = problem.draining[problem.current[order]]
    balancing, draining = order[~leaving], order[leaving]
    all_or_nothing = problem.intervals
    chosen = balancing if all_or_nothing else _within(problem, balancing, budget)
    if not all_or_nothing and not len(problem.traffic.rate):
        chosen = chosen[: _enough(problem, planned, chosen, terms)]
    balanced = _effect_of(problem, planned, chosen, terms, expands)
    reason = _reason(problem, balanced, terms)
    if reason:
        stays = _effect_of(problem, planned, chosen[:0], terms, expands)
        balanced = replace(stays, gain_s=balanced.gain_s, cost_s=balanced.cost_s, reason=reason)
    if not len(draining):
        return balanced
    # Balance first: it was planned with the rest of the draining executors' load still to come.
    left = budget.less(len(balanced.order), balanced.moved_bytes)
    emptied = draining if all_or_nothing else _within(problem, draining, left)
    if not len(emptied) and not len(balanced.order):
        emptied = draining[:1]
    if not len(emptied):
        return balanced
    return _effect_of(problem, planned, np.concatenate([balanced.order, emptied]), terms, expands)


def _within(problem: Problem, order: IntArray, budget: Budget) -> IntArray:
    """First moves that fit the budget; one that is too large for it alone goes alone."""
    count = len(order) if budget.max_moves is None else min(len(order), budget.max_moves)
    if budget.max_bytes is not None and count:
        total = np.cumsum(problem.state_bytes[order[:count]])
        paid = int(np.searchsorted(total, budget.max_bytes * (1 + 1e-9), side="right"))
        count = min(count, max(paid, 1 if budget.max_bytes > 0 else 0))
    return order[:count]


def _enough(problem: Problem, planned: IntArray, order: IntArray, terms: Terms) -> int:
    """Count the first moves after which the load is even enough, or as even as after all."""
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


def _effect_of(
    problem: Problem, planned: IntArray, order: IntArray, terms: Terms, expands: FloatArray
) -> SelectedMoves:
    """Return the benefit and cost of making some of a plan's moves."""
    after = problem.current.copy()
    after[order] = planned[order]
    relief = _busiest(problem, problem.current) - _busiest(problem, after)
    spared = _crossing(problem, problem.current) - _crossing(problem, after)
    merged_bytes = float(expands[order].sum()) / problem.num_executors
    return SelectedMoves(
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
    """Load index of the busiest executor."""
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


def _reason(problem: Problem, selected: SelectedMoves, terms: Terms) -> str:
    """Return why a plan's balancing moves are not worth making; empty where they are."""
    mean = metrics.mean_index(problem)
    if not len(selected.order):
        even = selected.distance_before <= terms.max_load_distance
        return "the load is even enough" if even else "the planner moves nothing"
    spares = selected.gain_s > selected.relief * terms.horizon_s
    stays_even = selected.distance_after <= max(terms.max_load_distance, selected.distance_before)
    if not (spares and stays_even):
        if selected.distance_before <= terms.max_load_distance:
            return "the load is even enough"
        # An idle executor is uneven, too, and filling it relieves each of the others by little.
        evened = max(selected.relief, (selected.distance_before - selected.distance_after) * mean)
        if evened < LEAST_GAIN * mean:
            return "no plan makes the load more even"
        if evened < _LEAST_BUSY:
            return "there is too little to do"
    if selected.gain_s <= selected.cost_s:
        return "moving the state costs more than it gains"
    return ""
