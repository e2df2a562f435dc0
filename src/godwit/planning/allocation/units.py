"""Units of migration: key groups that move together or not at all.

Problem: the allocation of paper 2 §4.3 moves single key groups when it only balances (MILP), and
sets of collocated key groups when it also collocates (ALBIC).  Both are the same model over units.

Invariant: the key groups of one unit are on one executor today, so a unit has one home; only a
pinned unit may hold key groups of several executors, and it has no choice of place.

Source: paper 2 §4.3.2, step 2 ("indivisible units").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from godwit.planning.arrays import FloatArray, IntArray
    from godwit.planning.problem import Problem

__all__ = ["FREE", "Units", "merge_units", "single_units"]

FREE = -1
"""In `Units.pinned`: the unit may go anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """U units made of m key groups."""

    unit_of: IntArray  # shape ``(m,)``: the unit of each key group
    weight: FloatArray  # shape ``(U,)``: load on the bottleneck resource
    usage: FloatArray  # shape ``(U, r)``: load on every resource
    home: IntArray  # shape ``(U,)``: executor that owns the unit today
    count: IntArray  # shape ``(U,)``: key groups that move if the unit leaves its home
    state_bytes: FloatArray  # shape ``(U,)``: bytes that move if the unit leaves its home
    pinned: IntArray  # shape ``(U,)``: the executor the unit must be on, or `FREE`
    # what the pins cost, whatever else is decided
    fixed_moves: int = 0
    fixed_bytes: float = 0.0

    def __len__(self) -> int:
        return len(self.weight)

    def expand(self, place: IntArray) -> IntArray:
        """Shape ``(m,)``: executor of each key group, for an executor of each unit."""
        return place[self.unit_of].astype(np.int32)


def single_units(problem: Problem) -> Units:
    """Every key group by itself, free to go anywhere."""
    m = problem.num_key_groups
    return merge_units(problem, np.arange(m, dtype=np.int32), np.full(m, FREE, np.int32))


def merge_units(problem: Problem, unit_of: IntArray, pinned: IntArray) -> Units:
    """Build the units of a partition of the key groups.

    `problem`: loads, state and today's owners. `unit_of`: shape ``(m,)``: the unit of each key
    group, ``0 <= unit < U``, each used. `pinned`: shape ``(U,)``: the executor a unit must be on,
    or `FREE`.
    """
    size = len(pinned)
    home = np.zeros(size, np.int32)
    home[unit_of[::-1]] = problem.current[::-1]  # the home of a unit's lowest key group
    forced = pinned[unit_of]
    leaves = (forced != FREE) & (forced != problem.current)
    return Units(
        unit_of=unit_of,
        weight=_sums(unit_of, problem.weight, size),
        usage=np.stack([_sums(unit_of, use, size) for use in problem.load.T], axis=1),
        home=np.where(pinned == FREE, home, pinned).astype(np.int32),
        count=np.bincount(unit_of, minlength=size).astype(np.int32),
        state_bytes=_sums(unit_of, problem.state_bytes, size),
        pinned=pinned,
        fixed_moves=int(leaves.sum()),
        fixed_bytes=float(problem.state_bytes[leaves].sum()),
    )


def _sums(unit_of: IntArray, values: FloatArray, size: int) -> FloatArray:
    return np.bincount(unit_of, weights=values, minlength=size).astype(np.float64, copy=False)
