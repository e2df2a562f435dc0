"""MILP: load balance within a migration budget, as a mixed-integer linear program (paper 2 §4.3.1).

Small programs go to HiGHS whole and come back proved.  Larger ones are solved by local search,
again and again after taking some moves back, and now and then by HiGHS on a few executors around
the worst one, for as long as the limits allow; a combinatorial bound says how far from the optimum
they can be.  Where SciPy, which has HiGHS, is not installed, local search plans alone.

Invariant: nothing ever moves onto a draining executor, and plans made one after another on the same
loads empty it: a plan that hardly balances takes at least one key group off, budget permitting (the
paper's Lemma 4.2 says so of its model only without a budget).  Moves go to draining rather than to
the last per cent of balance.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.planners.allocation.model import (
    FREE,
    AllocationModel,
    SolverLimits,
    build_model,
    plan_within_target,
    single_units,
)
from godwit.control.planners.allocation.search import AllocationSearch
from godwit.placement import metrics
from godwit.placement.arrays import wrong_value
from godwit.placement.solution import make_solution

HAS_SOLVER = find_spec("scipy") is not None
if HAS_SOLVER:
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, milp

if TYPE_CHECKING:
    from godwit.placement.arrays import BoolArray, Clock, FloatArray, IndexArray, IntArray
    from godwit.placement.problem import Problem
    from godwit.placement.solution import Solution

_logger = logging.getLogger(__name__)

_PRECISION = 1e-9
"""Precision of the bound, as a share of the mean; plans are compared to a millionth of it."""
_GIVEN_SHARES = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
"""λ: share of a move that counts at its source; the rest counts at its destination."""


def load_distance_bound(problem: Problem) -> float:
    """Return a lower bound of the load distance of all plans within the budget of moves or bytes.

    For a load distance d, every executor above ``mean + d`` must give away at least its excess, and
    with r moves it cannot give away more than its r heaviest key groups; likewise every executor
    below ``mean - d`` must receive. If all that takes more moves (or bytes) than there are, d
    cannot be reached. Never above the optimum; unlike the linear relaxation it counts whole moves.
    O(m log m).
    """
    mean, speed = metrics.mean_index(problem), problem.speed
    load = metrics.loads(problem, problem.current)
    weight, available = problem.weight, problem.available
    deviation = load / speed - mean
    overload = np.maximum(deviation, 0.0)
    underload = np.where(problem.draining, 0.0, np.maximum(-deviation, 0.0))
    floor = max(0.0, _heaviest_index(problem) - mean)
    reached = float(max(overload.max(), underload.max()))
    if reached <= floor:
        return reached
    limits = problem.limits
    checks: list[_MoveCount | _ByteCount] = []
    if limits.max_moves is not None:
        checks.append(_MoveCount(problem, weight, limits.max_moves))
    if limits.max_bytes is not None:
        checks.append(_ByteCount(problem, weight, limits.max_bytes))
    low, high = floor, reached
    if not checks or _is_within_budget(
        checks, load, speed, mean=mean, available=available, distance=low
    ):
        return low
    while high - low > _PRECISION * mean:
        middle = (low + high) / 2
        if _is_within_budget(checks, load, speed, mean=mean, available=available, distance=middle):
            high = middle
        else:
            low = middle
    return low


def _heaviest_index(problem: Problem) -> float:
    """Return a lower bound of the largest load index: the heaviest key group, placed best."""
    k = int(problem.weight.argmax())
    places = problem.available
    fastest = float(problem.speed[places].max())
    home = int(problem.current[k])
    if problem.draining[home]:  # it may stay, and then only its overload counts
        fastest = max(fastest, float(problem.speed[home]))
    return float(problem.weight[k]) / fastest


def _is_within_budget(
    checks: list[_MoveCount | _ByteCount],
    load: FloatArray,
    speed: FloatArray,
    *,
    mean: float,
    available: IntArray,
    distance: float,
) -> bool:
    """Return whether all executors can come within `distance` of the mean load index.

    `checks`: bounds by moves and by bytes, both of which must allow it.
    """
    # A hair's width of slack: rounding must never make the bound too high.
    excess = load - (mean + distance) * speed * (1 + 1e-12)
    missing = np.zeros_like(load)
    missing[available] = ((mean - distance) * speed * (1 - 1e-12) - load)[available]
    return all(check.suffices(excess, missing) for check in checks)


class _MoveCount:
    """Lower bound by moves: enough of them to bring every executor into the range.

    An executor that gives a key groups and takes b changes its load by a sum of b minus a sum of a,
    of which only the least and the greatest are looked at. Each move is given once and taken once,
    so for any λ in [0, 1] there are at least Σ_i min (λ·a + (1 - λ)·b) of them, the minimum being
    over the (a, b) that could bring executor i into the range.
    """

    def __init__(self, problem: Problem, weight: FloatArray, limit: int) -> None:
        self._limit = limit
        ascending = np.sort(weight)
        self._takes = _running_sums(ascending[:limit]), _running_sums(ascending[::-1][:limit])
        smallest_sums, largest_sums = [], []
        for executor in range(problem.num_executors):
            weights_of_executor = np.sort(weight[problem.current == executor])
            smallest_sums.append(_running_sums(weights_of_executor[:limit]))
            largest_sums.append(_running_sums(weights_of_executor[::-1][:limit]))
        # Executor after executor: one entry for every number of key groups that it could give.
        sizes = np.array([len(sums) for sums in largest_sums])
        self._first = np.cumsum(sizes) - sizes
        self._executor_of_entry = np.repeat(np.arange(len(sizes)), sizes)
        self._count = np.arange(len(self._executor_of_entry)) - self._first[self._executor_of_entry]
        self._given = np.concatenate(smallest_sums), np.concatenate(largest_sums)
        self._drains = problem.draining[self._executor_of_entry]

    def suffices(self, excess: FloatArray, missing: FloatArray) -> bool:
        """Return whether the moves suffice to remove `excess` and add `missing` load."""
        taken, possible = self._fewest_taken(
            excess[self._executor_of_entry], missing[self._executor_of_entry]
        )
        share = _GIVEN_SHARES[:, None]
        moves = np.where(possible, share * self._count + (1 - share) * taken, np.inf)
        fewest = np.minimum.reduceat(moves, self._first, axis=1)
        total = fewest[:, (excess > 0) | (missing > 0)].sum(axis=1)
        return bool(total.max() <= self._limit + 1e-6)

    def _fewest_taken(
        self, excess: FloatArray, missing: FloatArray
    ) -> tuple[IndexArray, BoolArray]:
        """Return the min. number of key groups that each executor takes, and a feasibility mask.

        One entry per executor and number of key groups that it gives. `excess`, `missing`: load
        that it must lose and gain at least.
        """
        least_given, most_given = self._given
        least_taken, most_taken = self._takes
        slack = 1e-12 * float(most_taken[-1])
        # Taking more than this many only makes what has to be given more.
        taken = np.searchsorted(most_taken, missing + least_given - slack)
        taken[self._drains] = 0
        enough = taken < len(most_taken)
        taken[~enough] = 0
        return taken, enough & (least_taken[taken] - most_given <= -excess + slack)


def _running_sums(values: FloatArray) -> FloatArray:
    """Return the cumulative sums of values, with 0 before them."""
    return np.concatenate([np.zeros(1), np.cumsum(values)])


class _ByteCount:
    """Lower bound by bytes, as if key groups could be divided."""

    def __init__(self, problem: Problem, weight: FloatArray, limit: float) -> None:
        self._limit = limit * (1 + 1e-9)
        size = problem.state_bytes
        order = np.argsort(-weight / np.maximum(size, 1e-300), kind="stable")
        self._given = []
        for e in range(problem.num_executors):
            units_of_executor = order[problem.current[order] == e]
            self._given.append(_load_by_bytes(weight[units_of_executor], size[units_of_executor]))
        self._taken = _load_by_bytes(weight[order], size[order])

    def suffices(self, excess: FloatArray, missing: FloatArray) -> bool:
        """Return whether the bytes suffice to remove `excess` and add `missing` load."""
        away = sum(float(np.interp(excess[e], *self._given[e])) for e in np.flatnonzero(excess > 0))
        added = sum(float(np.interp(x, *self._taken)) for x in missing[missing > 0])
        return max(away, added) <= self._limit


def _load_by_bytes(weight: FloatArray, size: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the cumulative sums of load and of bytes over key groups, most load per byte first."""
    return _running_sums(weight), _running_sums(size)


_OPTIMAL, _INFEASIBLE = 0, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SolverResult:
    """Result of a run of HiGHS."""

    # shape ``(U,)``: executor of every unit of the model; ``None`` if nothing was found
    place: IntArray | None
    bound: float  # proved lower bound of d for the part that was free, scaled
    proved: bool  # whether d is proved least
    infeasible: bool  # whether it is proved that no placement keeps to the limits (and the cutoff)


class _Program:
    """The linear program; its columns: one per (unit, executor), then d, over, under."""

    def __init__(
        self, model: AllocationModel, place: IntArray, free: IntArray, executors: IntArray
    ) -> None:
        units = model.units
        self.model, self.place, self.free = model, place, free
        num_executors = len(model.speed)
        is_inside = np.zeros(num_executors, np.bool_)
        is_inside[executors] = True
        allowed = np.broadcast_to(model.stays & is_inside, (len(free), num_executors)).copy()
        at_home = is_inside[units.home[free]]
        if model.max_left == 0:
            at_home &= model.stays[units.home[free]]
        allowed[np.flatnonzero(at_home), units.home[free][at_home]] = True
        pinned = units.pinned[free]
        pinned_units = np.flatnonzero(pinned != FREE)
        allowed[pinned_units] = False
        allowed[pinned_units, pinned[pinned_units]] = True
        row, column = np.nonzero(allowed)
        self.row, self.executor = row.astype(np.int32), column.astype(np.int32)
        self.unit = free[row]
        self.size = len(row)
        self.away = self.executor != units.home[self.unit]
        is_fixed = np.ones(len(units), np.bool_)
        is_fixed[free] = False
        self.base = np.bincount(
            place[is_fixed], weights=model.weight[is_fixed], minlength=num_executors
        )
        moves, size = model.spent(place)
        moved_away = free[place[free] != units.home[free]]
        self.moves_left = model.max_moves - (moves - int(units.count[moved_away].sum()))
        self.bytes_left = model.max_bytes - (size - float(units.state_bytes[moved_away].sum()))
        self.executors = np.flatnonzero(allowed.any(axis=0) | is_inside)
        self.constraints = self._build_constraints(is_fixed)

    def _build_constraints(self, is_fixed: BoolArray) -> list[LinearConstraint]:
        """Return the constraints: one executor per unit, deviations, budgets, room.

        `is_fixed`: mask of units that stay.
        """
        model, units, size = self.model, self.model.units, self.size
        column = np.arange(size)
        position = np.full(len(model.speed), -1)
        position[self.executors] = np.arange(len(self.executors))
        count = len(self.executors)

        def matrix(values: FloatArray, rows: IndexArray, height: int) -> sparse.csr_matrix:
            return sparse.csr_matrix((values, (rows, column)), shape=(height, size + 3))

        def deviation_column(
            height: int, rows: IndexArray, number: int, value: float
        ) -> sparse.csr_matrix:
            return sparse.csr_matrix(
                (np.full(len(rows), value), (rows, np.full(len(rows), size + number))),
                shape=(height, size + 3),
            )

        place_once = LinearConstraint(matrix(np.ones(size), self.row, len(self.free)), 1, 1)
        executor_row = position[self.executor]
        index = matrix(model.weight[self.unit] / model.speed[self.executor], executor_row, count)
        remaining = model.mean - (self.base / model.speed)[self.executors]
        overload = LinearConstraint(
            index + deviation_column(count, np.arange(count), 1, -1.0), -np.inf, remaining
        )
        staying = np.flatnonzero(model.stays[self.executors])
        pick_staying = sparse.csr_matrix(
            (np.ones(len(staying)), (np.arange(len(staying)), staying)), shape=(len(staying), count)
        )
        underload = LinearConstraint(
            pick_staying @ index + deviation_column(len(staying), np.arange(len(staying)), 2, 1.0),
            remaining[staying],
            np.inf,
        )
        largest = LinearConstraint(
            sparse.csr_matrix(
                ([1.0, -1.0, 1.0, -1.0], ([0, 0, 1, 1], [size, size + 1, size, size + 2])),
                shape=(2, size + 3),
            ),
            0,
            np.inf,
        )
        constraints = [place_once, overload, underload, largest]
        first_row = np.zeros(size, np.int32)
        if np.isfinite(self.moves_left):
            cost = np.where(self.away, units.count[self.unit], 0).astype(np.float64)
            constraints.append(
                LinearConstraint(matrix(cost, first_row, 1), -np.inf, self.moves_left)
            )
        if np.isfinite(self.bytes_left):
            largest_bytes = max(1.0, float(units.state_bytes.max()))
            cost = np.where(self.away, units.state_bytes[self.unit], 0.0) / largest_bytes
            limit = self.bytes_left / largest_bytes
            constraints.append(LinearConstraint(matrix(cost, first_row, 1), -np.inf, limit))
        if np.isfinite(model.max_left):
            num_left = self.left() + [0.0] * 3
            stuck = int(units.count[is_fixed & ~model.stays[self.place]].sum())
            constraints.append(LinearConstraint(num_left, -np.inf, model.max_left - stuck))
        for resource in range(model.usage.shape[1]):
            used = matrix(model.usage[self.unit, resource], executor_row, count)
            pinned_load = np.bincount(
                self.place[is_fixed],
                weights=model.usage[is_fixed, resource],
                minlength=len(model.speed),
            )
            room = (model.room[:, resource] - pinned_load)[self.executors][staying]
            constraints.append(LinearConstraint(pick_staying @ used, -np.inf, room))
        return constraints

    def left(self) -> list[float]:
        """Return, for each column but the last three, the key groups on draining executors."""
        drains = ~self.model.stays[self.executor]
        return [float(left) for left in np.where(drains, self.model.units.count[self.unit], 0)]

    def solve(
        self,
        objective: FloatArray,
        *,
        most: tuple[float, float, float],
        least: float = 0.0,
        time_limit_s: float,
        node_limit: int | None,
    ) -> tuple[IntArray | None, float, int]:
        """Run HiGHS; return the executor of each unit, the dual bound and HiGHS's status.

        `most`: upper bounds of the variables d, over and under; `least`: lower bound of d.
        """
        upper = np.concatenate([np.ones(self.size), np.asarray(most)])
        lower_bounds = np.zeros(self.size + 3)
        lower_bounds[self.size] = least
        options: dict[str, float | int | bool] = {
            "time_limit": max(time_limit_s, 1e-3),
            "mip_rel_gap": 0.0,
        }
        if node_limit is not None:
            options["node_limit"] = node_limit
        result = milp(
            objective,
            integrality=np.concatenate([np.ones(self.size), np.zeros(3)]),
            bounds=Bounds(lower_bounds, upper),
            constraints=self.constraints,
            options=options,
        )
        bound = getattr(result, "mip_dual_bound", None)
        lower = -np.inf if bound is None else float(bound)
        if result.x is None:
            return None, lower, int(result.status)
        place = self.place.copy()
        is_chosen = np.asarray(result.x)[: self.size] > 0.5
        place[self.unit[is_chosen]] = self.executor[is_chosen]
        return place, lower, int(result.status)


def program_size(model: AllocationModel) -> int:
    """Return the number of binary variables of the program for a model."""
    free = int((model.units.pinned == FREE).sum())
    return free * int(model.stays.sum()) + len(model.units) - free


def solve_allocation(
    model: AllocationModel,
    place: IntArray,
    *,
    free: IntArray,
    executors: IntArray,
    cutoff: float = np.inf,
    floor: float = 0.0,
    refine: bool = True,
    time_limit_s: float = 5.0,
    node_limit: int | None = None,
) -> SolverResult:
    """Place the free units by HiGHS; all others stay at `place`.

    `executors`: where they may go. `cutoff`, `floor`: only placements with ``d <= cutoff`` are
    searched, and the first with ``d <= floor`` ends the search. With `refine` a second program is
    solved: for less left on draining executors, then for ``over + under``, then for fewer moves.
    Time and node limits hold for each of the two.
    """
    program = _Program(model, place, free, executors)
    most = (cutoff, np.inf, np.inf)
    distance_objective = np.zeros(program.size + 3)
    distance_objective[program.size] = 1.0
    best, bound, status = program.solve(
        distance_objective, most=most, least=floor, time_limit_s=time_limit_s, node_limit=node_limit
    )
    if best is None:
        return SolverResult(place=None, bound=bound, proved=False, infeasible=status == _INFEASIBLE)
    proved = status == _OPTIMAL
    if refine:
        overload, underload = model.over_under(best)
        limit = max(overload, underload) * (1 + 1e-9) + 1e-9
        refined_objective = np.concatenate([_tie_break_weights(program), [0.0, 1.0, 1.0]])
        refined, _, _ = program.solve(
            refined_objective,
            most=(limit, np.inf, np.inf),
            time_limit_s=time_limit_s,
            node_limit=node_limit,
        )
        if refined is not None and max(model.over_under(refined)) <= limit:
            best = refined
    return SolverResult(place=best, bound=bound, proved=proved, infeasible=False)


def least_left(model: AllocationModel, *, limits: SolverLimits) -> int:
    """Return the min. number of key groups that a plan within the limits leaves to drain later.

    Proved for small programs with HiGHS; otherwise the number that the search leaves.
    """
    units = model.units
    search = AllocationSearch(model, units.home)
    search.evacuate(len(units))
    fewest = model.num_left(search.place)
    if fewest == 0 or not HAS_SOLVER or program_size(model) > _WHOLE_PROGRAM:
        return fewest
    everything = np.arange(len(units), dtype=np.int32)
    program = _Program(model, units.home, everything, np.arange(len(model.speed), dtype=np.int32))
    place, _, _ = program.solve(
        np.array(program.left() + [0.0] * 3),
        most=(np.inf, np.inf, np.inf),
        time_limit_s=limits.time_limit_s / 2,
        node_limit=limits.node_limit,
    )
    return fewest if place is None else min(fewest, model.num_left(place))


def _tie_break_weights(program: _Program) -> FloatArray:
    """Return the cost of each (unit, executor) variable in the second program.

    High if it leaves load on a draining executor, tiny if it moves the unit.
    """
    model = program.model
    size = max(1, len(model.units))
    drains = ~model.stays[program.executor]
    left = np.where(drains, model.weight[program.unit] + 1.0 / size, 0.0)
    count = model.units.count[program.unit]
    moved = np.where(program.away, count, 0) / max(1, int(model.units.count.sum()))
    return np.asarray(1e3 * left + 1e-5 * moved, np.float64)


_WHOLE_PROGRAM = 600
"""Binaries up to which HiGHS gets the whole program at once."""
_CLOSE_ENOUGH = 1e-6
"""A load distance of a millionth of the mean counts as none: no statistic is that exact."""


_URGENT_GAIN = 0.01
"""Balance has priority over draining if it gains more than this share of the mean."""
_PROGRESS = 1e-3
"""A plan that gains less than this share of the mean takes a key group off a draining executor."""
_ROUNDS_PER_SOLVER_CALL = 32
"""One round in this many uses HiGHS, which takes as long as a dozen other rounds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllocationResult:
    """Placement of the units, and its quality."""

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
    gap: float = 0.0,
    clock: Clock = time.perf_counter,
    rng: np.random.Generator | None = None,
) -> Solution:
    """Plan the least load distance within the migration budget (paper 2 §4.3.1).

    Minimises d, the largest deviation of a load index from the mean; then load left on draining
    executors; then the sum of the largest overload and the largest underload; then moves. Keeps to
    ``max_moves``, ``max_bytes``, ``max_usage``, ``tau`` and ``target_executors``. Ties are broken
    by the lowest index.

    A plan that does not lower d, or the two sides of it together, by `least_gain` percent of the
    mean load index moves nothing, unless it takes key groups off a draining executor or ends a
    breach of limits. The solution is optimal where no d is lower by `least_gain`, or, if key groups
    move, none at all. The search ends at a d that is within `gap` percent of the mean load index of
    its lower bound; proofs take most of the time that small problems take. For the other options
    see `SolverLimits`.
    """
    for name, value in (("least_gain", least_gain), ("gap", gap)):
        if not 0 <= value < np.inf:
            raise wrong_value(f"options.{name}", value, "give a finite number ≥ 0")
    limits = SolverLimits(
        time_limit_s=time_limit_s,
        node_limit=node_limit,
        rounds=rounds,
        patience=patience,
        clock=clock,
        rng=rng or np.random.default_rng(0),
    )
    return plan_within_target(
        problem,
        lambda narrowed: _plan_problem(narrowed, limits=limits, least_gain=least_gain, gap=gap),
    )


def _plan_problem(
    problem: Problem, *, limits: SolverLimits, least_gain: float, gap: float
) -> Solution:
    """Return the plan for all executors that are not draining; `least_gain`, `gap`: in percent."""
    model = build_model(problem, single_units(problem))
    least = load_distance_bound(problem)
    result = allocate_units(
        model,
        limits=limits,
        least=least,
        enough=least + gap / 100 * model.scale if gap else 0.0,
        least_gain=least_gain / 100,
    )
    bound = max(least, result.bound)
    stays = bool((result.place == model.units.home).all())
    slack = max(_CLOSE_ENOUGH, least_gain / 100 if stays else 0.0)
    close = result.objective - bound <= slack * model.scale
    return make_solution(
        problem,
        model.units.expand(result.place),
        method="milp",
        optimal=(result.optimal or close) and not result.forced,
        reason=_contradiction_reason(problem) if result.infeasible else "",
        objective=result.objective,
        bound=min(bound, result.objective),
        details={"rounds": result.rounds, "forced_drain": result.forced},
    )


def _contradiction_reason(problem: Problem) -> str:
    """Return, as text, the contradicting limits that no plan satisfies."""
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
    """Place units so that d is minimal; shared by MILP and ALBIC.

    Stops at `least`, a known lower bound of d, and at `enough`, below which fewer moves count more
    (both in the problem's unit of load). Units move only if d, or both sides together, fall by
    `least_gain` fair shares.
    """
    deadline = limits.clock() + limits.time_limit_s
    start = model.units.home.copy()
    search = AllocationSearch(model, start)
    if np.isfinite(model.max_left):
        search.evacuate(len(model.units))
    search.improve(enough / model.scale)
    place = search.place
    proved, infeasible, bound, rounds = False, False, 0.0, 0
    within_room = model.within_room(place)
    done = 0 < enough >= model.objective(place) and within_room
    over_and_under = sum(model.over_under(start))
    if over_and_under - least / model.scale <= least_gain and model.within_room(start):
        place, done = start, True
    if not HAS_SOLVER:
        _warn_without_solver()
    if HAS_SOLVER and not done and (program_size(model) <= _WHOLE_PROGRAM or not within_room):
        floor = max(least, enough) / model.scale
        result = solve_allocation(
            model,
            place,
            free=np.arange(len(model.units), dtype=np.int32),
            executors=np.arange(len(model.speed), dtype=np.int32),
            # Cut off all solutions that are worse than the incumbent.
            cutoff=max(model.over_under(place)) * (1 + 1e-9) + 1e-9 if within_room else np.inf,
            floor=floor,
            time_limit_s=max(1e-3, (deadline - limits.clock()) / 2),
            node_limit=limits.node_limit,
        )
        infeasible = result.infeasible and not within_room
        # Below the floor the solver was not asked to look.
        above = result.place is not None and result.bound > floor * (1 + 1e-9)
        bound = result.bound * model.scale if above else least
        done = result.proved
        proved = result.proved and (above or not enough)
        if result.place is not None and (proved or _is_better(model, result.place, place)):
            place = result.place
    if not done and not infeasible:
        place, rounds = _search_neighbourhoods(model, place, limits, deadline, max(least, enough))
    if not _is_worth_moving(model, place, start, least_gain):
        place = start
    search = AllocationSearch(model, place)
    forced = search.drain(force=not _is_lower(model, place, start))
    search, costs = _empty_draining_executors(model, search, start, enough / model.scale)
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


@cache
def _warn_without_solver() -> None:
    """Log, once in a process, that plans are not proved optimal."""
    _logger.warning(
        "SciPy is not installed, so the planner 'milp' uses local search and does not prove that "
        "its plans are optimal. For the exact solver, run pip install 'godwit-streams[planning]'"
    )


def _empty_draining_executors(
    model: AllocationModel, search: AllocationSearch, start: IntArray, enough: float
) -> tuple[AllocationSearch, bool]:
    """Use moves for draining executors before the last percent of balance.

    Tries to take as many key groups off draining executors as the budget has moves, then half as
    many, and so on, and takes the first plan that is nearly as balanced. Returns the better search,
    and whether its plan gives up balance. `start`: placement to begin from. `enough`: distance to
    stop at.
    """
    num_left = int((~model.stays[search.place]).sum())
    num_evacuated = int((~model.stays[start]).sum()) - num_left
    distance = max(model.over_under(search.place))
    count = int(min(num_evacuated + num_left, model.max_moves)) if num_left else 0
    while count > num_evacuated:
        trial = AllocationSearch(model, start)
        if trial.evacuate(count) > num_evacuated:
            trial.improve(enough)
            trial_distance = max(model.over_under(trial.place))
            is_within_room = model.within_room(trial.place) or not model.within_room(search.place)
            if trial_distance <= distance + _URGENT_GAIN and is_within_room:
                return trial, trial_distance > distance + _CLOSE_ENOUGH
        count //= 2
    return search, False


def _is_better(model: AllocationModel, place: IntArray, than: IntArray) -> bool:
    """Return whether `place` keeps limits of room that `than` breaks, or is more even."""
    if model.within_room(place) != model.within_room(than):
        return model.within_room(place)
    return _objective_of(model, place) < _objective_of(model, than)


def _objective_of(model: AllocationModel, place: IntArray) -> tuple[float, float]:
    """Return the largest deviation d, and the sum of largest over- and underload, to compare by."""
    over, under = model.over_under(place)
    return max(over, under), over + under


def _is_worth_moving(
    model: AllocationModel, place: IntArray, start: IntArray, least_gain: float
) -> bool:
    """Return true if `place` gains at least `least_gain` fair shares over `start`."""
    excess, before = model.excess(place), model.excess(start)
    return excess < before or (
        excess == before and _is_lower(model, place, start, by=max(least_gain, _CLOSE_ENOUGH))
    )


def _is_lower(
    model: AllocationModel, place: IntArray, than: IntArray, *, by: float = _PROGRESS
) -> bool:
    """Return whether `place` is better than `than` by at least `by` fair shares.

    Compared are d, and the sum of largest over- and underload. The default is enough to let
    draining wait.
    """
    (d, both), (d_before, both_before) = _objective_of(model, place), _objective_of(model, than)
    return d < d_before - by or (d <= d_before and both < both_before - by)


def _search_neighbourhoods(
    model: AllocationModel,
    place: IntArray,
    limits: SolverLimits,
    deadline: float,
    least: float,
) -> tuple[IntArray, int]:
    """Improve `place` until a limit or the bound `least` is reached; return it and the rounds."""
    failures, rounds = 0, 0
    best = place
    while rounds < limits.rounds and failures < limits.patience:
        d = max(model.over_under(best))
        remaining_s = deadline - limits.clock()
        if remaining_s <= 0.01 or d - least / model.scale <= _CLOSE_ENOUGH:
            break
        rounds += 1
        if rounds % _ROUNDS_PER_SOLVER_CALL or not HAS_SOLVER:
            search = AllocationSearch(model, place)
            search.shake(limits.rng)
            search.improve()
            candidate = search.place
        else:
            # Neighbourhoods grow slowly: small ones are solved in milliseconds.
            size = min(3 + failures // _ROUNDS_PER_SOLVER_CALL, 10, len(model.speed))
            candidate = _replan_some(model, best, size, limits, remaining_s)
        if _is_better(model, candidate, best):
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
    """Return a placement in which HiGHS reassigned the units of `size` executors.

    The executor with the largest deviation is among them.
    """
    executors = _choose_neighbourhood(model, place, size, limits.rng)
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
    return search.place if _is_better(model, search.place, result.place) else result.place


def _choose_neighbourhood(
    model: AllocationModel, place: IntArray, size: int, random: np.random.Generator
) -> IntArray:
    """Choose `size` executors: the most deviating one, some on the other side, some at random."""
    deviation = model.deviations(place)
    deviation = np.where(model.stays, deviation, np.maximum(deviation, 0.0))
    worst = int(np.abs(deviation).argmax())
    chosen = {worst}
    # Partners on the other side of the mean first; among all of them at random.
    other_side = np.flatnonzero(np.sign(deviation) == -np.sign(deviation[worst]))
    if len(other_side):
        num_other_side = min(len(other_side), max(1, size // 2))
        chosen.update(random.choice(other_side, num_other_side, replace=False).tolist())
    others = np.array(
        [executor for executor in range(len(model.speed)) if executor not in chosen], np.int32
    )
    num_others = min(len(others), size - len(chosen))
    if num_others > 0:
        chosen.update(random.choice(others, num_others, replace=False).tolist())
    return np.array(sorted(chosen), np.int32)
