"""Exact part of the allocation: a lower bound of the load distance, and the program for HiGHS.

**Bound** of the load distance that a bounded number of moves, or bytes, can reach: how far a plan
is from the best there can be, for sizes that no solver proves.

Invariant: the bound is never above the optimum.  For a wanted distance d, every executor above
``mean + d`` must give away at least its excess, and with r moves it cannot give away more than its
r heaviest key groups; likewise every executor below ``mean - d`` must receive.  If all that takes
more moves (or bytes) than there are, d is out of reach.

Source: our own; it needs no linear program, and unlike the linear relaxation it counts whole moves.

**Program.** The allocation model as a mixed-integer linear program, solved by HiGHS.

Problem: place some units on some executors while all others stay where they are, with the least
``d``, then the least load left to drain, then the least ``over + under``, as
`godwit.planning.allocation.model` defines them.

Invariant: what comes back keeps to the budgets and the room of the whole model, because the part
that is not free has been subtracted from them; a bound is only claimed for the part solved.

Source: paper 2 §4.3.1.  The program has one binary per (unit, executor it may be on), so its q is
in the coefficients and a unit's home costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from godwit.planning import metrics
from godwit.planning.allocation.model import FREE

if TYPE_CHECKING:
    from godwit.planning.allocation.model import AllocationModel
    from godwit.planning.arrays import BoolArray, FloatArray, IndexArray, IntArray
    from godwit.planning.problem import Problem

__all__ = ["SolverResult", "load_distance_bound", "program_size", "solve_allocation"]


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


_OPTIMAL, _INFEASIBLE = 0, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SolverResult:
    """Result of HiGHS."""

    # shape ``(U,)``: executor of every unit of the model; ``None`` if nothing was found
    place: IntArray | None
    bound: float  # proved lower bound of d for the part that was free, scaled
    proved: bool  # whether d is proved least
    infeasible: bool  # whether it is proved that no placement keeps to the limits (and the cutoff)


class _Program:
    """Columns: one per (unit, executor), then d, over, under."""

    def __init__(
        self, model: AllocationModel, place: IntArray, free: IntArray, executors: IntArray
    ) -> None:
        units = model.units
        self.model, self.place, self.free = model, place, free
        n = len(model.speed)
        inside = np.zeros(n, np.bool_)
        inside[executors] = True
        allowed = np.broadcast_to(model.stays & inside, (len(free), n)).copy()
        at_home = inside[units.home[free]]
        if model.empties:
            at_home &= model.stays[units.home[free]]
        allowed[np.flatnonzero(at_home), units.home[free][at_home]] = True
        pinned = units.pinned[free]
        held = np.flatnonzero(pinned != FREE)
        allowed[held] = False
        allowed[held, pinned[held]] = True
        row, column = np.nonzero(allowed)
        self.row, self.executor = row.astype(np.int32), column.astype(np.int32)
        self.unit = free[row]
        self.size = len(row)
        self.away = self.executor != units.home[self.unit]
        fixed = np.ones(len(units), np.bool_)
        fixed[free] = False
        self.base = np.bincount(place[fixed], weights=model.weight[fixed], minlength=n)
        moves, size = model.spent(place)
        gone = free[place[free] != units.home[free]]
        self.moves_left = model.max_moves - (moves - int(units.count[gone].sum()))
        self.bytes_left = model.max_bytes - (size - float(units.state_bytes[gone].sum()))
        self.executors = np.flatnonzero(allowed.any(axis=0) | inside)
        self.constraints = self._constraints(fixed)

    def _constraints(self, fixed: BoolArray) -> list[LinearConstraint]:
        model, units, size = self.model, self.model.units, self.size
        column = np.arange(size)
        position = np.full(len(model.speed), -1)
        position[self.executors] = np.arange(len(self.executors))
        count = len(self.executors)

        def matrix(values: FloatArray, rows: IndexArray, height: int) -> sparse.csr_matrix:
            return sparse.csr_matrix((values, (rows, column)), shape=(height, size + 3))

        def extra(height: int, rows: IndexArray, which: int, value: float) -> sparse.csr_matrix:
            return sparse.csr_matrix(
                (np.full(len(rows), value), (rows, np.full(len(rows), size + which))),
                shape=(height, size + 3),
            )

        place_once = LinearConstraint(matrix(np.ones(size), self.row, len(self.free)), 1, 1)
        at = position[self.executor]
        index = matrix(model.weight[self.unit] / model.speed[self.executor], at, count)
        rest = model.mean - (self.base / model.speed)[self.executors]
        over = LinearConstraint(index + extra(count, np.arange(count), 1, -1.0), -np.inf, rest)
        stay = np.flatnonzero(model.stays[self.executors])
        pick = sparse.csr_matrix(
            (np.ones(len(stay)), (np.arange(len(stay)), stay)), shape=(len(stay), count)
        )
        under = LinearConstraint(
            pick @ index + extra(len(stay), np.arange(len(stay)), 2, 1.0), rest[stay], np.inf
        )
        largest = LinearConstraint(
            sparse.csr_matrix(
                ([1.0, -1.0, 1.0, -1.0], ([0, 0, 1, 1], [size, size + 1, size, size + 2])),
                shape=(2, size + 3),
            ),
            0,
            np.inf,
        )
        constraints = [place_once, over, under, largest]
        none = np.zeros(size, np.int32)
        if np.isfinite(self.moves_left):
            cost = np.where(self.away, units.count[self.unit], 0).astype(np.float64)
            constraints.append(LinearConstraint(matrix(cost, none, 1), -np.inf, self.moves_left))
        if np.isfinite(self.bytes_left):
            largest_bytes = max(1.0, float(units.state_bytes.max()))
            cost = np.where(self.away, units.state_bytes[self.unit], 0.0) / largest_bytes
            limit = self.bytes_left / largest_bytes
            constraints.append(LinearConstraint(matrix(cost, none, 1), -np.inf, limit))
        for r in range(model.usage.shape[1]):
            used = matrix(model.usage[self.unit, r], at, count)
            pinned_load = np.bincount(
                self.place[fixed], weights=model.usage[fixed, r], minlength=len(model.speed)
            )
            room = (model.room[:, r] - pinned_load)[self.executors][stay]
            constraints.append(LinearConstraint(pick @ used, -np.inf, room))
        return constraints

    def solve(
        self,
        objective: FloatArray,
        *,
        most: tuple[float, float, float],
        time_limit_s: float,
        node_limit: int | None,
    ) -> tuple[IntArray | None, float, int]:
        upper = np.concatenate([np.ones(self.size), np.asarray(most)])
        options: dict[str, float | int | bool] = {
            "time_limit": max(time_limit_s, 1e-3),
            "mip_rel_gap": 0.0,
        }
        if node_limit is not None:
            options["node_limit"] = node_limit
        result = milp(
            objective,
            integrality=np.concatenate([np.ones(self.size), np.zeros(3)]),
            bounds=Bounds(np.zeros(self.size + 3), upper),
            constraints=self.constraints,
            options=options,
        )
        bound = getattr(result, "mip_dual_bound", None)
        lower = -np.inf if bound is None else float(bound)
        if result.x is None:
            return None, lower, int(result.status)
        place = self.place.copy()
        chosen = np.asarray(result.x)[: self.size] > 0.5
        place[self.unit[chosen]] = self.executor[chosen]
        return place, lower, int(result.status)


def program_size(model: AllocationModel) -> int:
    """Binaries of the whole program."""
    free = int((model.units.pinned == FREE).sum())
    return free * int(model.stays.sum()) + len(model.units) - free


def solve_allocation(
    model: AllocationModel,
    place: IntArray,
    *,
    free: IntArray,
    executors: IntArray,
    cutoff: float = np.inf,
    refine: bool = True,
    time_limit_s: float = 5.0,
    node_limit: int | None = None,
) -> SolverResult:
    """Place the free units anew, everything else staying where it is.

    `model`: the whole model. `place`: shape ``(U,)``: where the units are. `free`, `executors`:
    units that may be placed, and executors they may use (and their homes among these). `cutoff`:
    only placements with ``d <= cutoff`` are looked for. `refine`: whether to solve a second time:
    for less left on draining executors, then for ``over + under``, then for fewer moves.
    `time_limit_s`, `node_limit`: limits of each of the two solutions.
    """
    program = _Program(model, place, free, executors)
    most = (cutoff, np.inf, np.inf)
    first = np.zeros(program.size + 3)
    first[program.size] = 1.0
    best, bound, status = program.solve(
        first, most=most, time_limit_s=time_limit_s, node_limit=node_limit
    )
    if best is None:
        return SolverResult(place=None, bound=bound, proved=False, infeasible=status == _INFEASIBLE)
    proved = status == _OPTIMAL
    if refine:
        over, under = model.over_under(best)
        limit = max(over, under) * (1 + 1e-9) + 1e-9
        second = np.concatenate([_tie_break(program), [0.0, 1.0, 1.0]])
        again, _, _ = program.solve(
            second, most=(limit, np.inf, np.inf), time_limit_s=time_limit_s, node_limit=node_limit
        )
        if again is not None and max(model.over_under(again)) <= limit:
            best = again
    return SolverResult(place=best, bound=bound, proved=proved, infeasible=False)


def _tie_break(program: _Program) -> FloatArray:
    """Load left on draining executors before anything else, and fewer moves after everything."""
    model = program.model
    size = max(1, len(model.units))
    drains = ~model.stays[program.executor]
    left = np.where(drains, model.weight[program.unit] + 1.0 / size, 0.0)
    count = model.units.count[program.unit]
    moved = np.where(program.away, count, 0) / max(1, int(model.units.count.sum()))
    return np.asarray(1e3 * left + 1e-5 * moved, np.float64)
