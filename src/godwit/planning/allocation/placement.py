"""A placement of units, and what may be changed in it: budgets, room, pins, deviations.

Problem: answer, for many units at once, which moves and exchanges the allocation model allows and
what they would do to the executors involved.

Invariant: loads, use of resources, moves and bytes always belong to `Placement.place`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.allocation.units import FREE

if TYPE_CHECKING:
    from godwit.planning.allocation.model import AllocationModel
    from godwit.planning.arrays import BoolArray, FloatArray, IndexArray, IntArray

__all__ = ["Placement"]


class Placement:
    """Where the units are, with what follows from it.

    `model`: units and limits. `place`: shape ``(U,)``: executor of each unit; within the budgets.
    `movable`: shape ``(U,)``: units that are not pinned.
    """

    def __init__(self, model: AllocationModel, place: IntArray) -> None:
        self.model = model
        units = model.units
        self.movable = units.pinned == FREE
        self._way_back = units.home.copy()
        if model.empties:
            self._way_back[~model.stays[units.home]] = -1
        self._sign = np.where(model.stays, -1.0, 0.0)
        self._reset(place)

    def _reset(self, place: IntArray) -> None:
        model = self.model
        n = len(model.speed)
        self.place = place.copy()
        self._load = np.bincount(place, weights=model.weight, minlength=n)
        self._used = (
            np.stack(
                [np.bincount(place, weights=use, minlength=n) for use in model.usage.T], axis=1
            )
            if model.usage.shape[1]
            else np.empty((n, 0))
        )
        self._moves, self._bytes = model.spent(place)
        self._away = place != model.units.home

    def _badness(self, load: FloatArray, executors: IndexArray | slice | int) -> FloatArray:
        deviation = load / self.model.speed[executors] - self.model.mean
        # An executor that drains may have less than its share: then 0 stands for its deviation.
        return np.maximum(deviation, self._sign[executors] * deviation)

    def _deviation(self) -> FloatArray:
        deviation = self._load / self.model.speed - self.model.mean
        return np.where(self.model.stays, deviation, np.maximum(deviation, 0.0))

    def worst(self) -> int:
        """Return the executor with the largest deviation; ties: the lowest index."""
        return int(np.abs(self._deviation()).argmax())

    def put(self, unit: int, executor: int) -> None:
        """Place a unit, whatever that does to budgets and room."""
        model, units, old = self.model, self.model.units, int(self.place[unit])
        for sign, where in ((-1, old), (1, executor)):
            self._load[where] += sign * model.weight[unit]
            self._used[where] += sign * model.usage[unit]
        away = int(executor != units.home[unit]) - int(old != units.home[unit])
        self._moves += away * int(units.count[unit])
        self._bytes += away * float(units.state_bytes[unit])
        self.place[unit] = executor
        self._away[unit] = executor != units.home[unit]

    # -- what may change --------------------------------------------------------------------------

    def _full(self, moves: int, *, spend: bool) -> bool:
        """Whether the budget has no room for so many more units to leave home."""
        return not spend or self._moves + moves > self.model.max_moves

    def _extra_moves(self, unit: IndexArray, executor: IndexArray) -> FloatArray:
        home = self.model.units.home[unit]
        away = (executor != home).astype(np.float64) - self._away[unit]
        return np.asarray(away * self.model.units.count[unit], np.float64)

    def _extra_bytes(self, unit: IndexArray, executor: IndexArray) -> FloatArray:
        if self.model.max_bytes == np.inf:  # then nobody asks how many
            return np.zeros(1)
        home = self.model.units.home[unit]
        away = (executor != home).astype(np.float64) - self._away[unit]
        return np.asarray(away * self.model.units.state_bytes[unit], np.float64)

    def _within(self, moves: FloatArray, size: FloatArray, *, spend: bool) -> BoolArray:
        model = self.model
        within = (self._moves + moves <= model.max_moves) | (moves <= 0)
        within &= (self._bytes + size <= model.max_bytes) | (size <= 0)
        if not spend:
            within &= moves <= 0
        return np.asarray(within, np.bool_)

    def _affordable(self, unit: IndexArray, executor: IndexArray, *, spend: bool) -> BoolArray:
        moves, size = self._extra_moves(unit, executor), self._extra_bytes(unit, executor)
        return self._within(moves, size, spend=spend)

    def _exchangeable(
        self, u: IndexArray, v: IndexArray, at_v: IndexArray, at_u: IndexArray, *, spend: bool
    ) -> BoolArray:
        """Shape ``(pairs,)``: whether budgets and room let u go to `at_v` and v to `at_u`."""
        model = self.model
        moves = np.add(self._extra_moves(u, at_v), self._extra_moves(v, at_u))
        size = np.add(self._extra_bytes(u, at_v), self._extra_bytes(v, at_u))
        good = self._within(moves, size, spend=spend)
        for r in range(model.usage.shape[1]):
            shift = model.usage[v, r] - model.usage[u, r]
            for executor, change in ((at_u, shift), (at_v, -shift)):
                good &= (
                    ~model.stays[executor]
                    | (change <= 0)
                    | (self._used[executor, r] + change <= model.room[executor, r])
                )
        return good

    def _fits(self, unit: IndexArray, executors: IndexArray) -> BoolArray:
        """Shape ``(units, executors)``: whether there is room for one unit more."""
        model = self.model
        fits = np.ones((len(unit), len(executors)), np.bool_)
        for r in range(model.usage.shape[1]):
            use = model.usage[unit, r][:, None]
            fits &= self._used[executors, r] + use <= model.room[executors, r]
        return fits | ~model.stays[executors]

    def _returnable(self) -> IndexArray:
        """Units that moved and may go home."""
        return np.flatnonzero(self._away & self.movable & (self._way_back >= 0))

    def permits_moves(self, units: IndexArray, executor: int, *, limit: float) -> BoolArray:
        """Shape ``(units,)``: whether each may go to an executor.

        Neither executor's deviation may be `limit` or more afterwards.
        """
        weight, own = self.model.weight[units], self.place[units]
        target = np.full(len(units), executor)
        return np.asarray(
            (self._badness(self._load[executor] + weight, executor) < limit)
            & (self._badness(self._load[own] - weight, own) < limit)
            & self._affordable(units, target, spend=True)
            & self._fits(units, target[:1])[:, 0]
        )

    def permits_exchanges(self, one: IndexArray, other: IndexArray, *, limit: float) -> BoolArray:
        """Shape ``(one, other)``: whether units of one executor and of another may change places.

        Neither executor's deviation may be `limit` or more afterwards.
        """
        at_one, at_other = self.place[one], self.place[other]
        gain = self.model.weight[other] - self.model.weight[one][:, None]
        shape = gain.shape
        allowed = self._badness(self._load[at_one[0]] + gain, at_one[0]) < limit
        allowed &= self._badness(self._load[at_other[0]] - gain, at_other[0]) < limit
        allowed &= self._exchangeable(
            np.repeat(one, shape[1]),
            np.tile(other, shape[0]),
            np.full(gain.size, at_other[0]),
            np.full(gain.size, at_one[0]),
            spend=True,
        ).reshape(shape)
        return np.asarray(allowed, np.bool_)
