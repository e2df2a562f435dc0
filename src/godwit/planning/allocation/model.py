"""Paper 2's allocation model: what is minimised over units, and under which constraints.

For executors A that stay and B that drain, with load index L_i (load / capacity) and fair index
``mean``: ``over = max_{A and B}(L_i - mean)``, ``under = max_A(mean - L_i)``, both at least 0, and
``d = max(over, under)``.  The paper minimises ``w₁·d - w₂(d_u + d_l)`` with w₁ ≫ w₂, which is:
first d, then ``over + under`` (d_u = d - over, d_l = d - under).  We order the two exactly instead
of weighing them, with the other goal of its objective, little load left on B, between them.  Its
constraint (5), ``d <= mean``, is left out: it only makes a problem with one very heavy key group
unsolvable.

Source: paper 2 §4.3.1, Table 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.metrics import mean_index

if TYPE_CHECKING:
    from godwit.planning.allocation.units import Units
    from godwit.planning.arrays import BoolArray, FloatArray, IntArray
    from godwit.planning.problem import Problem

__all__ = ["AllocationModel", "build_model"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllocationModel:
    """Units to place on executors; loads are in units of the fair index (so ``mean`` is 1 or 0)."""

    units: Units  # what is placed
    weight: FloatArray  # shape ``(U,)``: load, scaled
    usage: FloatArray  # shape ``(U, r)``: use of each limited resource; r is 0 without limits
    speed: FloatArray  # shape ``(n,)``: capacity of each executor for the bottleneck
    stays: BoolArray  # shape ``(n,)``: whether the executor may receive units
    room: FloatArray  # shape ``(n, r)``: how much of each limited resource an executor may use
    mean: float  # fair load index, scaled: 1, or 0 where there is no load at all
    scale: float  # what one unit of scaled load is in the problem's unit
    # budget left for units that are not pinned; infinite where there is no limit
    max_moves: float
    max_bytes: float
    empties: bool  # whether executors that do not stay must be empty after the plan

    def deviations(self, place: IntArray) -> FloatArray:
        """Shape ``(n,)``: load index minus mean, scaled."""
        load = np.bincount(place, weights=self.weight, minlength=len(self.speed))
        return load / self.speed - self.mean

    def over_under(self, place: IntArray) -> tuple[float, float]:
        """Largest overload of any executor and largest underload of one that stays."""
        deviation = self.deviations(place)
        return max(0.0, float(deviation.max())), max(0.0, float(-deviation[self.stays].min()))

    def objective(self, place: IntArray) -> float:
        """d, in the problem's unit of load."""
        return max(self.over_under(place)) * self.scale

    def spent(self, place: IntArray) -> tuple[int, float]:
        """Key groups and bytes that `place` moves, beyond what the pins move."""
        away = place != self.units.home
        return int(self.units.count[away].sum()), float(self.units.state_bytes[away].sum())

    def within_budget(self, place: IntArray) -> bool:
        """Whether `place` keeps to both budgets."""
        moves, size = self.spent(place)
        return moves <= self.max_moves and size <= self.max_bytes * (1 + 1e-9)

    def within_room(self, place: IntArray) -> bool:
        """Whether no executor that stays uses more than it may, and those to empty are empty."""
        return self.excess(place) == 0

    def excess(self, place: IntArray) -> float:
        """Add up what executors use above their room, as shares of it; units, if there is none."""
        above = float((~self.stays[place]).sum()) if self.empties else 0.0
        for r in range(self.usage.shape[1]):
            used = np.bincount(place, weights=self.usage[:, r], minlength=len(self.speed))
            room = self.room[:, r]
            over = self.stays & (used > room * (1 + 1e-9))
            above += float(((used - room) / np.maximum(room, 1e-300))[over].sum())
        return above


def build_model(problem: Problem, units: Units) -> AllocationModel:
    """Scale a problem and gather its limits: moves, bytes, usage and τ."""
    mean = mean_index(problem)
    scale = mean if mean > 0 else 1.0
    limits = problem.limits
    usage, room = np.empty((len(units), 0)), np.empty((problem.num_executors, 0))
    if limits.max_usage is not None:
        usage = units.usage
        room = problem.capacity * np.asarray(limits.max_usage)
    if limits.tau is not None:
        share = (1 + limits.tau) * mean * problem.speed
        usage = np.column_stack([usage, units.weight])
        room = np.column_stack([room, share])
    largest = usage.max(axis=0, initial=0.0)
    largest[largest == 0] = 1.0
    return AllocationModel(
        units=units,
        weight=units.weight / scale,
        usage=usage / largest,
        speed=problem.speed.astype(np.float64),
        stays=~problem.draining,
        room=room / largest,
        mean=1.0 if mean > 0 else 0.0,
        scale=scale,
        max_moves=np.inf if limits.max_moves is None else limits.max_moves - units.fixed_moves,
        max_bytes=np.inf if limits.max_bytes is None else limits.max_bytes - units.fixed_bytes,
        empties=limits.target_executors is not None,
    )
