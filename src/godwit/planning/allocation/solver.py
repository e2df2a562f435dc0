"""The allocation model as a mixed-integer linear program, solved by HiGHS.

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

from godwit.planning.allocation.units import FREE

if TYPE_CHECKING:
    from godwit.planning.allocation.model import AllocationModel
    from godwit.planning.arrays import BoolArray, FloatArray, IndexArray, IntArray

__all__ = ["SolverResult", "program_size", "solve_allocation"]

_OPTIMAL, _INFEASIBLE = 0, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SolverResult:
    """What HiGHS found."""

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
            held = np.bincount(
                self.place[fixed], weights=model.usage[fixed, r], minlength=len(model.speed)
            )
            room = (model.room[:, r] - held)[self.executors][stay]
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
