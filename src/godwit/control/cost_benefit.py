"""Selection of a plan's moves by the benefit and cost of balancing.

A plan gains the time by which the busiest executor, for which every epoch waits, is relieved over
the *horizon*, and what no longer crosses executors; it costs the time that the busiest link needs
for the state.  Where a key group migrates instantly no state moves; instead keys that get rows on
both sides of the switch are held twice until their windows are over, and merged once more: at most
all that the key group holds, sent to where windows are consolidated, which all executors share.

Moves are made in the planner's order, no further than the budget goes and than it takes to be even
enough; and none is made unless the load distance is above its bound, the gain is above its cost,
and both are more than noise explains: loads are measured from a limited number of rows, and chance
alone makes executors differ.  With a scaling model the cost does not count while an executor has
less than half of the mean: it was asked for because it is needed.  A plan that collocates may do so
where the load stays even enough.

With ``Worth(gain="any")`` every move of a plan pays, and only the budget cuts it short.

Invariants: cutting a plan short never breaks it (every prefix of its moves is a legal plan); moves
off a draining executor need no gain, and have half of a budget that does not suffice for all, so
that draining ends; no budget is exceeded, but by one key group that is larger by itself.  Plans by
ranges are made as a whole or not at all: half of one leaves no ranges to plan from.  One that
empties an executor is made whatever its bytes.

Source: paper 2 §4.3 (a budget for every adaptation period); Algorithm 1's "apply"; paper 3 §4.5
(instant migration, and the expansion of keys that it costs).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.settings import Budget
from godwit.placement import metrics
from godwit.placement.solution import moves_in_order

if TYPE_CHECKING:
    from godwit.placement import Problem
    from godwit.placement.arrays import FloatArray, IntArray

LEAST_GAIN = 0.05
"""Min. fall of the busiest executor's load, or the load distance, as a share of the mean."""
CERTAIN = 4.0
"""Standard errors by which an executor must differ from the mean before it counts as uneven.

By chance this happens once in 16,000 tests: five hours of ten executors with ten-second periods.
"""
_MARGIN = 2.0
"""Standard errors by which its difference must exceed the bound."""
_WIDER, _WIDEST_AFTER = 0.25, 30
"""Growth of the bound, as a share, and the number of periods without moves until it is reached.

A load just within the bound is tested for hours, and would exceed it by chance at some time.
"""
LEAN = 0.5
"""Share of the mean load below which a requested executor counts as idle."""
_LEAST_BUSY = 0.01
"""The same as a share of an executor's time, so that nothing moves on a nearly idle stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Thresholds and prices that decide whether a move pays."""

    # by how much of the mean an executor's load index may differ from it before key groups move
    max_load_distance: float
    even_enough: float  # at which such difference a plan is cut short
    horizon_s: float  # how long the load is taken to stay as it is
    seconds_per_byte: float  # time that one link needs for one byte of state
    any_gain: bool = False  # whether all moves pay, whatever they gain
    fills: bool = False  # whether moves pay, whatever they cost, while an executor is lean
    even_for: int = 0  # periods in which nothing moved


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectedMoves:
    """Moves of a plan that pay, and the reason why other moves do not."""

    assignment: IntArray  # the plan, cut short; today's places where nothing is to move
    order: IntArray  # key groups that move, in order
    distance_before: float  # load distance, as a share of the mean
    distance_after: float
    relief: float  # share of its time that the busiest executor is relieved of
    # over the horizon; of a plan that is not worth it, what it would have gained and cost
    gain_s: float
    cost_s: float
    moved_bytes: float  # state that moves
    # variance of the load index, as a share of the square of the mean
    variance_before: float = 0.0
    variance_after: float = 0.0
    # standard error of the load index of the executor known least well, as a share of the mean
    error: float = 0.0
    reason: str = ""  # why nothing moves; empty where something does


def load_distance(problem: Problem, assignment: IntArray) -> float:
    """Return the load distance of an assignment as a share of the mean load index.

    0 without load.
    """
    mean = metrics.mean_index(problem)
    return metrics.load_distance(problem, assignment) / mean if mean > 0 else 0.0


def relative_variance(problem: Problem, assignment: IntArray) -> float:
    """Return the variance of the load index as a share of its mean squared; 0 without load."""
    mean = metrics.mean_index(problem)
    return metrics.load_variance(problem, assignment) / mean**2 if mean > 0 else 0.0


def load_errors(problem: Problem, assignment: IntArray, variance: FloatArray | None) -> FloatArray:
    """Return the standard error of every executor's load index, shape ``(n,)``; 0 if unknown.

    `variance`, shape ``(m,)``, is that of each key group's measured load.
    """
    if variance is None:
        return np.zeros(problem.num_executors)
    summed = np.bincount(assignment, weights=variance, minlength=problem.num_executors)
    errors: FloatArray = np.sqrt(summed) / problem.speed
    return errors


def is_uneven(
    problem: Problem, variance: FloatArray | None, max_load_distance: float, even_for: int = 0
) -> bool:
    """Return whether an executor's load differs from the mean by more than the bound and noise.

    `variance`: of the estimate of each key group's load, if known. `max_load_distance`: the bound,
    as a share of the mean. `even_for`: periods in which nothing moved.
    """
    mean = metrics.mean_index(problem)
    deviations = np.abs(metrics.load_index(problem, problem.current) - mean)
    errors = load_errors(problem, problem.current, variance)
    bound = _widened_distance_bound(max_load_distance, even_for) * mean
    allowed = np.maximum(bound + _MARGIN * errors, CERTAIN * errors)
    return bool((deviations > allowed)[problem.available].any())


def _widened_distance_bound(max_load_distance: float, even_for: int) -> float:
    """Return the bound on the load distance after `even_for` periods with an even load."""
    return max_load_distance * (1 + _WIDER * min(even_for / _WIDEST_AFTER, 1.0))


def is_lean(problem: Problem, assignment: IntArray) -> bool:
    """Return whether an executor has less than half of the mean load."""
    least = float(metrics.load_index(problem, assignment)[problem.available].min(initial=np.inf))
    return least < LEAN * metrics.mean_index(problem)


def select_moves(
    problem: Problem,
    planned: IntArray,
    terms: Terms,
    budget: Budget,
    *,
    held_bytes: FloatArray | None = None,
    variance: FloatArray | None = None,
    alone: bool = True,
    whole: bool = False,
    must: bool = False,
) -> SelectedMoves:
    """Return the moves of a plan that are worth making, within the budget.

    If a plan exceeds the budget, only its first moves are made; the rest is planned again next
    time. If the problem requires intervals, or with `whole`, all moves are made or none: half of a
    plan by ranges leaves no ranges. `planned`: planned executor of each key group. `held_bytes`:
    state of each key group, where it is more than what moves with it (`Problem.state_bytes`).
    `variance`: of each key group's measured load; ``None``: it is exact. `alone`: a key group
    larger than the budget may move, if it moves alone. `must`: moves need not gain more than they
    cost.
    """
    extra_bytes = (
        problem.state_bytes * 0.0 if held_bytes is None else held_bytes - problem.state_bytes
    )
    plan = _Plan(
        problem=problem, planned=planned, terms=terms, expands=extra_bytes, variance=variance
    )
    order = moves_in_order(problem, planned)
    is_leaving = problem.draining[problem.current[order]]
    balancing, draining = order[~is_leaving], order[is_leaving]
    if whole or problem.intervals:
        if len(draining):
            return _effect_of(plan, np.concatenate([balancing, draining]))
        ranges = _effect_of(plan, balancing) if must else _if_worthwhile(plan, balancing)
        if len(_within_budget(problem, ranges.order, budget, alone=alone)) == len(ranges.order):
            return ranges
        return replace(_effect_of(plan, order[:0]), reason="a plan by ranges exceeds the budget")
    first_moves = order[:0]
    if len(draining):
        half = Budget(
            max_moves=None if budget.max_moves is None else -(-budget.max_moves // 2),
            max_bytes=None if budget.max_bytes is None else budget.max_bytes / 2,
        )
        first_moves = _within_budget(problem, draining, half, alone=alone)
        budget = budget.less(len(first_moves), float(problem.state_bytes[first_moves].sum()))
        alone = alone and not len(first_moves)
    # What leaves a draining executor makes others busier: the rest of the plan evens that out, and
    # is worth what it gains then.
    plan_after_first = plan
    if len(first_moves):
        assignment_after = problem.current.copy()
        assignment_after[first_moves] = planned[first_moves]
        plan_after_first = replace(plan, problem=replace(problem, current=assignment_after))
    balancing_moves = _within_budget(problem, balancing, budget, alone=alone)
    if not len(problem.traffic.rate) and not terms.any_gain:
        balancing_moves = balancing_moves[: _num_moves_needed(plan_after_first, balancing_moves)]
    balanced = _if_worthwhile(plan_after_first, balancing_moves)
    if not len(draining):
        return balanced
    remaining_budget = budget.less(len(balanced.order), balanced.moved_bytes)
    alone = alone and not len(balanced.order)
    last_moves = _within_budget(
        problem, draining[len(first_moves) :], remaining_budget, alone=alone
    )
    moved = np.concatenate([balanced.order, first_moves, last_moves])
    if not len(moved):
        return replace(
            balanced, reason="the budget allows no key group to leave draining executors"
        )
    # Balance first: it was planned with the rest of the draining executors' load still to come.
    return _effect_of(plan, moved)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Plan:
    """A plan, and the terms by which its moves are priced."""

    problem: Problem
    planned: IntArray
    terms: Terms
    expands: FloatArray  # state that a key group holds and does not move
    variance: FloatArray | None  # of each key group's measured load


def _if_worthwhile(plan: _Plan, chosen: IntArray) -> SelectedMoves:
    """Return the chosen moves with their effect if they gain more than they cost; else none."""
    balanced = _effect_of(plan, chosen)
    reason = _rejection_reason(plan, balanced)
    if not reason:
        return balanced
    no_moves = _effect_of(plan, chosen[:0])
    return replace(no_moves, gain_s=balanced.gain_s, cost_s=balanced.cost_s, reason=reason)


def _within_budget(problem: Problem, order: IntArray, budget: Budget, *, alone: bool) -> IntArray:
    """Return the first moves of `order` that fit the budget; with `alone`, at least one."""
    count = len(order) if budget.max_moves is None else min(len(order), budget.max_moves)
    if budget.max_bytes is not None and count:
        total = np.cumsum(problem.state_bytes[order[:count]])
        paid = int(np.searchsorted(total, budget.max_bytes * (1 + 1e-9), side="right"))
        count = min(count, max(paid, 1 if alone and budget.max_bytes > 0 else 0))
    return order[:count]


def _num_moves_needed(plan: _Plan, order: IntArray) -> int:
    """Return how many moves of `order` make the load as even as all of them, or even enough.

    Loads that differ by a standard error are as even as measurements can show.
    """
    problem, planned, terms = plan.problem, plan.planned, plan.terms
    if not len(order):
        return 0
    assignment_after = problem.current.copy()
    assignment_after[order] = planned[order]
    is_staying = ~problem.draining
    mean = metrics.mean_index(problem)
    error = float(load_errors(problem, assignment_after, plan.variance).max())
    allowed_distance = max(
        metrics.load_distance(problem, assignment_after), terms.even_enough * mean, error
    )
    load = metrics.loads(problem, problem.current)
    deviation = np.where(is_staying, np.abs(load / problem.speed - mean), 0.0)
    max_deviation, speed, weight = allowed_distance * (1 + 1e-9), problem.speed, problem.weight
    num_over = int(np.count_nonzero(deviation > max_deviation))
    for num_moves, key_group in enumerate(order.tolist(), start=1):
        if not num_over:
            return num_moves - 1
        for executor, change in (
            (int(problem.current[key_group]), -weight[key_group]),
            (int(planned[key_group]), weight[key_group]),
        ):
            load[executor] += change
            was_over = deviation[executor] > max_deviation
            deviation[executor] = (
                abs(load[executor] / speed[executor] - mean) if is_staying[executor] else 0.0
            )
            num_over += int(deviation[executor] > max_deviation) - int(was_over)
    return len(order)


def _effect_of(plan: _Plan, order: IntArray) -> SelectedMoves:
    """Return the moves `order` of a plan with their benefit and cost."""
    problem, terms = plan.problem, plan.terms
    after = problem.current.copy()
    after[order] = plan.planned[order]
    relief = _max_load_index(problem, problem.current) - _max_load_index(problem, after)
    spared = _remote_traffic(problem, problem.current) - _remote_traffic(problem, after)
    mean = metrics.mean_index(problem)
    errors = load_errors(problem, problem.current, plan.variance)[problem.available]
    merged_bytes = float(plan.expands[order].sum()) / problem.num_executors
    return SelectedMoves(
        assignment=after,
        order=order,
        distance_before=load_distance(problem, problem.current),
        distance_after=load_distance(problem, after),
        relief=relief,
        gain_s=(relief + spared * terms.seconds_per_byte) * terms.horizon_s,
        cost_s=(_max_link_bytes(problem, after) + merged_bytes) * terms.seconds_per_byte,
        moved_bytes=metrics.moved_bytes(problem, after),
        variance_before=relative_variance(problem, problem.current),
        variance_after=relative_variance(problem, after),
        error=float(errors.max(initial=0.0)) / mean if mean > 0 else 0.0,
    )


def _max_load_index(problem: Problem, assignment: IntArray) -> float:
    """Return the load index of the busiest executor."""
    return float(metrics.load_index(problem, assignment).max())


def _remote_traffic(problem: Problem, assignment: IntArray) -> float:
    """Return the bytes per second between key groups on different executors."""
    traffic = problem.traffic
    is_remote = assignment[traffic.source] != assignment[traffic.target]
    return float(traffic.rate[is_remote].sum())


def _max_link_bytes(problem: Problem, after: IntArray) -> float:
    """Return the bytes on the busiest link: the most that one executor sends or receives.

    `after`: executor of each key group once the moves are made.
    """
    moved = np.flatnonzero(after != problem.current)
    sizes: FloatArray = problem.state_bytes[moved]
    n = problem.num_executors
    sent = np.bincount(problem.current[moved], sizes, n)
    received = np.bincount(after[moved], sizes, n)
    return float(max(sent.max(), received.max()))


def _rejection_reason(plan: _Plan, selected: SelectedMoves) -> str:
    """Return the reason, as text, why moves for balance do not pay; empty if they do."""
    problem, terms = plan.problem, plan.terms
    mean = metrics.mean_index(problem)
    even = ""
    if selected.distance_before <= _widened_distance_bound(terms.max_load_distance, terms.even_for):
        even = "the load is balanced enough"
    elif not is_uneven(problem, plan.variance, terms.max_load_distance, terms.even_for):
        even = "too few rows to detect an uneven load"
    if not len(selected.order):
        return even or "the planner proposes no moves"
    if terms.any_gain:
        return ""
    spares = selected.gain_s > selected.relief * terms.horizon_s
    stays_even = selected.distance_after <= max(terms.max_load_distance, selected.distance_before)
    if not (spares and stays_even):
        if even:
            return even
        # An idle executor is uneven, too, and filling it relieves each of the others by little.
        evened = max(selected.relief, (selected.distance_before - selected.distance_after) * mean)
        if _is_cut(problem, selected) and selected.variance_after < selected.variance_before:
            evened = selected.distance_before * mean  # parts are worth as much in the end
        if evened < max(LEAST_GAIN, selected.error) * mean:
            return "no plan makes the load more balanced"
        if evened < _LEAST_BUSY:
            return "the load is too low"
    fills = terms.fills and is_lean(problem, problem.current)
    if selected.gain_s <= selected.cost_s and not fills:
        return "moving the state costs more than it gains"
    return ""


def _is_cut(problem: Problem, selected: SelectedMoves) -> bool:
    """Return whether the budget has no room for another key group beside the selected ones."""
    limits = problem.limits
    full = limits.max_moves is not None and len(selected.order) >= limits.max_moves
    largest = float(problem.state_bytes.max(initial=0.0))
    return full or (
        limits.max_bytes is not None and selected.moved_bytes + largest > limits.max_bytes
    )
