"""Load balance within a migration budget, as a mixed-integer linear program.

Problem: the assignment with the least load distance d that moves at most ``max_moves`` key groups
and at most ``max_bytes`` of state; executors may differ in capacity, several resources may be
limited, and executors that drain give up their key groups.

Invariant: nothing ever moves onto a draining executor, and plans made one after another on the same
loads empty it: a plan that hardly balances takes at least one key group off, budget permitting (the
paper's Lemma 4.2 says so of its model only without a budget).  Moves go to draining rather than to
the last per cent of balance.

Source: paper 2 §4.3.1.  Small programs go to HiGHS whole and come back proved.  Larger ones are
solved by local search, again and again after taking some moves back, and now and then by HiGHS on a
few executors around the worst one, for as long as the limits allow; a combinatorial bound says how
far from the optimum they can be.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.allocation.model import (
    AllocationModel,
    SolverLimits,
    build_model,
    plan_within_target,
    single_units,
    solver_limits,
)
from godwit.planning.allocation.search import AllocationSearch
from godwit.planning.allocation.solver import load_distance_bound, program_size, solve_allocation
from godwit.planning.arrays import wrong_value
from godwit.planning.solution import make_solution

if TYPE_CHECKING:
    from godwit.planning.arrays import Clock, IntArray
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["AllocationResult", "allocate_units", "plan_milp"]

_WHOLE_PROGRAM = 600
"""Binaries up to which HiGHS gets the whole program at once."""
_CLOSE_ENOUGH = 1e-6
"""A load distance of a millionth of the mean counts as none: no statistic is that exact."""


_URGENT = 0.01
"""Balance goes before draining where it gains more than this share of the mean."""
_PROGRESS = 1e-3
"""A plan that gains less than this share of the mean takes a key group off a draining executor."""
_SHAKES = 32
"""One of so many rounds goes to HiGHS, which takes as long as a dozen of the others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllocationResult:
    """Placement of the units, and how good it is."""

    place: IntArray  # shape ``(U,)``: executor of each unit
    objective: float  # d, in the problem's unit of load
    bound: float  # proved lower bound of d by HiGHS, if it solved the whole program; else 0
    optimal: bool  # whether d is proved least
    infeasible: bool  # whether it is proved that the limits contradict each other
    rounds: int  # searches after the first
    forced: bool  # whether key groups left a draining executor at the cost of balance


def plan_milp(
    problem: Problem,
    *,
    time_limit_s: float = 5.0,
    node_limit: int | None = None,
    rounds: int = 10_000,
    patience: int = 400,
    least_gain: float = 0.1,
    clock: Clock = time.perf_counter,
    rng: np.random.Generator | None = None,
) -> Solution:
    """Least load distance within the migration budget (paper 2 §4.3.1).

    Minimises d, the largest deviation of a load index from the mean; then load left on draining
    executors; then the sum of the largest overload and the largest underload; then moves.
    Constraints: every key group has one executor, ``max_moves``, ``max_bytes``, ``max_usage``,
    ``tau`` and ``target_executors`` of the problem's limits, nothing onto a draining executor. Ties
    are broken by the lowest index.

    Parameters
    ----------
    problem
        Loads, owners and limits.
    time_limit_s, node_limit, rounds, patience, clock, rng
        How long to look, see `SolverLimits`.
    least_gain
        Percent of the mean load index. A plan that does not lower d, or the two sides of it
        together, by as much moves nothing, unless it takes key groups off a draining executor or
        ends a breach of limits; 0 takes every gain.

    Returns
    -------
    Solution
        `objective` is d and `bound` a proved lower bound of it, both in the unit of load. It is
        optimal where no d is lower by `least_gain`, or, if key groups move, none at all.
    """
    if not 0 <= least_gain < np.inf:
        raise wrong_value("options.least_gain", least_gain, "give a finite number ≥ 0")
    limits = solver_limits(
        time_limit_s=time_limit_s,
        node_limit=node_limit,
        rounds=rounds,
        patience=patience,
        clock=clock,
        rng=rng,
    )
    return plan_within_target(
        problem, lambda narrowed: _plan(narrowed, limits=limits, least_gain=least_gain)
    )


def _plan(problem: Problem, *, limits: SolverLimits, least_gain: float) -> Solution:
    start = limits.clock()
    model = build_model(problem, single_units(problem))
    least = load_distance_bound(problem)
    result = allocate_units(model, limits=limits, least=least, least_gain=least_gain / 100)
    bound = max(least, result.bound)
    stays = bool((result.place == model.units.home).all())
    slack = max(_CLOSE_ENOUGH, least_gain / 100 if stays else 0.0)
    close = result.objective - bound <= slack * model.scale
    return make_solution(
        problem,
        model.units.expand(result.place),
        method="milp",
        optimal=(result.optimal or close) and not result.forced,
        reason=_contradiction(problem) if result.infeasible else "",
        objective=result.objective,
        bound=min(bound, result.objective),
        elapsed_s=limits.clock() - start,
        details={"rounds": result.rounds, "forced_drain": result.forced},
    )


def _contradiction(problem: Problem) -> str:
    if problem.limits.target_executors is not None and problem.draining.any():
        return "no plan within the limits empties the draining executors"
    return "the limits contradict each other"


def allocate_units(
    model: AllocationModel,
    *,
    limits: SolverLimits,
    least: float = 0.0,
    enough: float = 0.0,
    least_gain: float = 0.0,
) -> AllocationResult:
    """Place units so that d is least; what MILP and ALBIC share.

    `model`: units and limits. `limits`: how long to look. `least`: a known lower bound of d, in the
    problem's unit, at which to stop. `enough`: a d, in the problem's unit, below which moves are
    rather saved. `least_gain`: by how much, in fair shares, d or both sides together must fall for
    units to move.
    """
    deadline = limits.clock() + limits.time_limit_s
    start = model.units.home.copy()
    search = AllocationSearch(model, start)
    if model.empties:
        search.evacuate(len(model.units))
    search.improve(enough / model.scale)
    place = search.place
    proved, infeasible, bound, rounds = False, False, 0.0, 0
    done = 0 < enough >= model.objective(place) and model.within_room(place)
    over_and_under = sum(model.over_under(start))
    if over_and_under - least / model.scale <= least_gain and model.within_room(start):
        place, done = start, True
    if not done and (program_size(model) <= _WHOLE_PROGRAM or not model.within_room(place)):
        result = solve_allocation(
            model,
            place,
            free=np.arange(len(model.units), dtype=np.int32),
            executors=np.arange(len(model.speed), dtype=np.int32),
            time_limit_s=max(1e-3, (deadline - limits.clock()) / 2),
            node_limit=limits.node_limit,
        )
        infeasible = result.infeasible
        bound = max(0.0, result.bound * model.scale)
        proved = result.proved
        if result.place is not None and (proved or _better(model, result.place, place)):
            place = result.place
    if not done and not proved and not infeasible:
        place, rounds = _search_neighbourhoods(model, place, limits, deadline, least)
    if not _worth_moving(model, place, start, least_gain):
        place = start
    search = AllocationSearch(model, place)
    forced = search.drain(force=not _lower(model, place, start))
    search, costs = _evacuate(model, search, start)
    forced |= costs
    return AllocationResult(
        place=search.place,
        objective=model.objective(search.place),
        bound=bound,
        optimal=proved,
        infeasible=infeasible,
        rounds=rounds,
        forced=forced,
    )


def _evacuate(
    model: AllocationModel, search: AllocationSearch, start: IntArray
) -> tuple[AllocationSearch, bool]:
    """Spend moves on draining rather than on the last per cent of balance.

    Tries to take as many key groups off draining executors as the budget has moves, then half as
    many, and so on, and takes the first plan that is nearly as balanced.

    Returns the better search, and whether its plan gives up balance.
    """
    waiting = int((~model.stays[search.place]).sum())
    already = int((~model.stays[start]).sum()) - waiting
    d = max(model.over_under(search.place))
    count = int(min(already + waiting, model.max_moves)) if waiting else 0
    while count > already:
        trial = AllocationSearch(model, start)
        if trial.evacuate(count) > already:
            trial.improve()
            now = max(model.over_under(trial.place))
            within = model.within_room(trial.place) or not model.within_room(search.place)
            if now <= d + _URGENT and within:
                return trial, now > d + _CLOSE_ENOUGH
        count //= 2
    return search, False


def _better(model: AllocationModel, place: IntArray, than: IntArray) -> bool:
    if model.within_room(place) != model.within_room(than):
        return model.within_room(place)
    return _key(model, place) < _key(model, than)


def _key(model: AllocationModel, place: IntArray) -> tuple[float, float]:
    over, under = model.over_under(place)
    return max(over, under), over + under


def _worth_moving(
    model: AllocationModel, place: IntArray, start: IntArray, least_gain: float
) -> bool:
    """Return whether `place` gains enough to leave `start` for it; draining is not asked about."""
    excess, before = model.excess(place), model.excess(start)
    return excess < before or (
        excess == before and _lower(model, place, start, by=max(least_gain, _CLOSE_ENOUGH))
    )


def _lower(
    model: AllocationModel, place: IntArray, than: IntArray, *, by: float = _PROGRESS
) -> bool:
    """Return whether `place` is better, in d or in both sides together, by as much as is asked for.

    What is asked for by default is enough to put draining off.
    """
    (d, both), (d_before, both_before) = _key(model, place), _key(model, than)
    return d < d_before - by or (d <= d_before and both < both_before - by)


def _search_neighbourhoods(
    model: AllocationModel,
    place: IntArray,
    limits: SolverLimits,
    deadline: float,
    least: float,
) -> tuple[IntArray, int]:
    """Take moves back and search anew; now and then re-plan a few executors with HiGHS."""
    failures, rounds = 0, 0
    best = place
    while rounds < limits.rounds and failures < limits.patience:
        d = max(model.over_under(best))
        left = deadline - limits.clock()
        if left <= 0.01 or d - least / model.scale <= _CLOSE_ENOUGH:
            break
        rounds += 1
        if rounds % _SHAKES:
            search = AllocationSearch(model, place)
            search.shake(limits.rng)
            search.improve()
            candidate = search.place
        else:
            # Neighbourhoods grow slowly: small ones are solved in milliseconds.
            size = min(3 + failures // _SHAKES, 10, len(model.speed))
            candidate = _replan_some(model, best, size, limits, left)
        if _better(model, candidate, best):
            best, place, failures = candidate, candidate, 0
            continue
        failures += 1
        # Wandering among plans that are as good leads to better ones than always starting at one.
        if max(model.over_under(candidate)) <= d and model.within_room(candidate):
            place = candidate
    return best, rounds


def _replan_some(
    model: AllocationModel, place: IntArray, size: int, limits: SolverLimits, time_limit_s: float
) -> IntArray:
    """Let HiGHS place the units of a few executors, the worst one among them."""
    executors = _neighbourhood(model, place, size, limits.rng)
    inside = np.zeros(len(model.speed), np.bool_)
    inside[executors] = True
    result = solve_allocation(
        model,
        place,
        free=np.flatnonzero(inside[place]).astype(np.int32),
        executors=executors,
        cutoff=max(model.over_under(place)) * (1 - 1e-3),
        refine=False,
        time_limit_s=time_limit_s if math.isinf(time_limit_s) else min(time_limit_s, 0.25),
        node_limit=limits.node_limit,
    )
    if result.place is None:
        return place
    search = AllocationSearch(model, result.place)
    search.improve()
    return search.place if _better(model, search.place, result.place) else result.place


def _neighbourhood(
    model: AllocationModel, place: IntArray, size: int, random: np.random.Generator
) -> IntArray:
    deviation = model.deviations(place)
    deviation = np.where(model.stays, deviation, np.maximum(deviation, 0.0))
    worst = int(np.abs(deviation).argmax())
    chosen = {worst}
    # Partners on the other side of the mean first; among all of them at random.
    other_side = np.flatnonzero(np.sign(deviation) == -np.sign(deviation[worst]))
    if len(other_side):
        take = min(len(other_side), max(1, size // 2))
        chosen.update(random.choice(other_side, take, replace=False).tolist())
    rest = np.array([e for e in range(len(model.speed)) if e not in chosen], np.int32)
    more = min(len(rest), size - len(chosen))
    if more > 0:
        chosen.update(random.choice(rest, more, replace=False).tolist())
    return np.array(sorted(chosen), np.int32)
