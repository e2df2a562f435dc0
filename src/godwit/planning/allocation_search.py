"""Local search on the allocation model: seconds where the whole program would take minutes.

Problem: lower the worst deviation by moving one unit or exchanging two, within the budgets.

Invariant: every step involves the executor with the worst deviation and leaves both executors of
the step with smaller deviations than that, so the sorted deviations fall lexicographically and the
search ends; budgets and room hold after every step.

Source: our own; paper 2 §4.3.1 gives the model to the solver alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.units import FREE

if TYPE_CHECKING:
    from godwit.planning.allocation_model import AllocationModel
    from godwit.planning.arrays import BoolArray, FloatArray, IndexArray, IntArray

__all__ = ["AllocationSearch"]

_PROGRESS = 1e-10
"""Smallest fall of a deviation, in fair shares, that counts: above the noise of summing floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    worst: float
    unit: int
    executor: int
    other: int = -1
    other_executor: int = -1


class AllocationSearch:
    """A placement that is improved step by step.

    Parameters
    ----------
    model
        What is minimised, within which limits.
    place
        Shape ``(U,)``: where to start; within the budgets.
    """

    def __init__(self, model: AllocationModel, place: IntArray) -> None:
        self.model = model
        units = model.units
        self._movable = units.pinned == FREE
        self._way_back = units.home.copy()
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

    # -- the objective ---------------------------------------------------------------------------

    def _badness(self, load: FloatArray, executors: IndexArray | slice) -> FloatArray:
        deviation = load / self.model.speed[executors] - self.model.mean
        staying = np.abs(deviation)
        return np.where(self.model.stays[executors], staying, np.maximum(deviation, 0.0))

    def _deviation(self) -> FloatArray:
        deviation = self._load / self.model.speed - self.model.mean
        return np.where(self.model.stays, deviation, np.maximum(deviation, 0.0))

    # -- the search ------------------------------------------------------------------------------

    def improve(self) -> None:
        """Go down to a local optimum: first d, then the side that is not the worst."""
        self._repair_room()
        for exchange, spend in ((False, True), (True, False), (True, True)):
            self._descend(exchange=exchange, spend=spend)
        self._trade_moves()
        self._descend(exchange=True, spend=True, second=True)

    def shake(self, random: np.random.Generator) -> None:
        """Send a random share of the moved units home, so that others can be tried instead."""
        away = self._returnable()
        share = random.uniform(0.05, 0.6)
        for unit in away[random.random(len(away)) < share].tolist():
            home = np.array([self.model.units.home[unit]])
            if self._fits(np.array([unit]), home).all():
                self._put(unit, int(home[0]))

    def worst(self) -> int:
        """Return the executor with the largest deviation; ties: the lowest index."""
        return int(np.abs(self._deviation()).argmax())

    def _descend(self, *, exchange: bool, spend: bool, second: bool = False) -> None:
        while True:
            deviation = self._deviation()
            if second:
                over, under = int(deviation.argmax()), int(deviation.argmin())
                h = under if deviation[over] >= -deviation[under] else over
                if (deviation[h] <= 0) if h == over else (deviation[h] >= 0):
                    return
            else:
                h = int(np.abs(deviation).argmax())
            limit = abs(float(deviation[h]))
            step = self._best_move(h, limit, spend=spend)
            if exchange:
                pair = self._best_exchange(h, limit if step is None else step.worst, spend=spend)
                step = step if pair is None else pair
            if step is None:
                return
            self._apply(step)

    def _best_move(self, h: int, limit: float, *, spend: bool) -> _Step | None:
        model = self.model
        n = len(model.speed)
        best: _Step | None = None
        mine = np.flatnonzero((self.place == h) & self._movable)
        if len(mine):
            weight = model.weight[mine]
            executors = np.arange(n)
            target = self._load + weight[:, None]
            worst = np.maximum(
                self._badness(target, slice(None)),
                self._badness(self._load[h] - weight, np.full(len(mine), h))[:, None],
            )
            allowed = model.stays | (self._way_back[mine][:, None] == executors)
            allowed[:, h] = False
            allowed &= self._affordable(mine[:, None], executors, spend=spend)
            allowed &= self._fits(mine, executors)
            best = self._pick(np.where(allowed, worst, np.inf), limit, mine, executors)
        others = np.flatnonzero((self.place != h) & self._movable)
        if len(others):
            weight, owner = model.weight[others], self.place[others]
            worst = np.maximum(
                self._badness(self._load[h] + weight, np.full(len(others), h)),
                self._badness(self._load[owner] - weight, owner),
            )
            target_h = np.array([h])
            allowed = (
                (model.stays[h] | (self._way_back[others] == h))
                & self._affordable(others, np.full(len(others), h), spend=spend)
                & self._fits(others, target_h)[:, 0]
            )
            bar = limit if best is None else best.worst
            best = (
                self._pick(np.where(allowed, worst, np.inf)[:, None], bar, others, target_h) or best
            )
        return best

    def _best_exchange(self, h: int, limit: float, *, spend: bool) -> _Step | None:
        model = self.model
        mine = np.flatnonzero((self.place == h) & self._movable)
        others = np.flatnonzero((self.place != h) & self._movable)
        if not len(mine) or not len(others):
            return None
        owner = self.place[others]
        gain = model.weight[others][None, :] - model.weight[mine][:, None]
        worst = np.maximum(
            self._badness(self._load[h] + gain, np.full(gain.shape, h)),
            self._badness(self._load[owner] - gain, np.broadcast_to(owner, gain.shape)),
        )
        allowed = worst < limit - _PROGRESS
        allowed &= model.stays[owner] | (self._way_back[mine][:, None] == owner)
        if not model.stays[h]:
            allowed &= self._way_back[others] == h
        row, column = np.nonzero(allowed)
        if not len(row):
            return None
        u, v, at_v = mine[row], others[column], owner[column]
        at_h = np.full(len(u), h)
        moves = np.add(self._extra_moves(u, at_v), self._extra_moves(v, at_h))
        size = np.add(self._extra_bytes(u, at_v), self._extra_bytes(v, at_h))
        good = self._within(moves, size, spend=spend)
        for r in range(model.usage.shape[1]):
            shift = model.usage[v, r] - model.usage[u, r]
            for executor, change in ((at_h, shift), (at_v, -shift)):
                good &= (
                    ~model.stays[executor]
                    | (change <= 0)
                    | (self._used[executor, r] + change <= model.room[executor, r])
                )
        if not good.any():
            return None
        pick = int(np.where(good, worst[row, column], np.inf).argmin())
        return _Step(
            worst=float(worst[row[pick], column[pick]]),
            unit=int(u[pick]),
            executor=int(at_v[pick]),
            other=int(v[pick]),
            other_executor=h,
        )

    def _pick(
        self, worst: FloatArray, limit: float, units: IndexArray, executors: IndexArray
    ) -> _Step | None:
        at = int(worst.argmin())
        row, column = divmod(at, worst.shape[1])
        if not worst[row, column] < limit - _PROGRESS:
            return None
        return _Step(
            worst=float(worst[row, column]), unit=int(units[row]), executor=int(executors[column])
        )

    def _apply(self, step: _Step) -> None:
        self._put(step.unit, step.executor)
        if step.other >= 0:
            self._put(step.other, step.other_executor)

    def _put(self, unit: int, executor: int) -> None:
        model, units, old = self.model, self.model.units, int(self.place[unit])
        for sign, where in ((-1, old), (1, executor)):
            self._load[where] += sign * model.weight[unit]
            self._used[where] += sign * model.usage[unit]
        away = int(executor != units.home[unit]) - int(old != units.home[unit])
        self._moves += away * int(units.count[unit])
        self._bytes += away * float(units.state_bytes[unit])
        self.place[unit] = executor

    # -- limits ----------------------------------------------------------------------------------

    def _extra_moves(self, unit: IndexArray, executor: IndexArray) -> FloatArray:
        home = self.model.units.home[unit]
        away = (executor != home).astype(np.float64) - (self.place[unit] != home)
        return np.asarray(away * self.model.units.count[unit], np.float64)

    def _extra_bytes(self, unit: IndexArray, executor: IndexArray) -> FloatArray:
        if self.model.max_bytes == np.inf:  # then nobody asks how many
            return np.zeros(1)
        home = self.model.units.home[unit]
        away = (executor != home).astype(np.float64) - (self.place[unit] != home)
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

    def _fits(self, unit: IndexArray, executors: IndexArray) -> BoolArray:
        """Shape ``(units, executors)``: whether there is room for one unit more."""
        model = self.model
        fits = np.ones((len(unit), len(executors)), np.bool_)
        for r in range(model.usage.shape[1]):
            use = model.usage[unit, r][:, None]
            fits &= self._used[executors, r] + use <= model.room[executors, r]
        return fits | ~model.stays[executors]

    def _repair_room(self) -> None:
        """Move units off executors that use more than they may, most room gained per move first."""
        model = self.model
        for r in range(model.usage.shape[1]):
            while True:
                excess = np.where(model.stays, self._used[:, r] - model.room[:, r], -np.inf)
                h = int(excess.argmax())
                if excess[h] <= 1e-9:
                    break
                mine = np.flatnonzero((self.place == h) & self._movable)
                executors = np.arange(len(model.speed))
                allowed = self._fits(mine, executors) & model.stays
                allowed[:, h] = False
                allowed &= self._affordable(mine[:, None], executors, spend=True)
                allowed &= (model.usage[mine, r] > 0)[:, None]
                if not allowed.any():
                    break
                gain = np.minimum(model.usage[mine, r], excess[h])[:, None]
                target = self._load + model.weight[mine][:, None]
                score = np.where(allowed, gain - 1e-3 * self._badness(target, slice(None)), -np.inf)
                row, column = divmod(int(score.argmax()), score.shape[1])
                self._put(int(mine[row]), int(executors[column]))

    def _trade_moves(self) -> None:
        """Send units home whose move does least good, and spend what that frees."""
        model, units = self.model, self.model.units
        while np.isfinite(model.max_moves) or np.isfinite(model.max_bytes):
            before, start = self.place.copy(), model.objective(self.place)
            h = self.worst()
            bar = abs(float(self._deviation()[h])) - _PROGRESS
            away = self._returnable()
            refunded = False
            for unit in away[np.argsort(model.weight[away], kind="stable")].tolist():
                home, now = int(units.home[unit]), int(self.place[unit])
                weight = float(model.weight[unit])
                pair = np.array([home, now])
                after = self._badness(self._load[pair] + np.array([weight, -weight]), pair)
                if after.max() < bar and self._fits(np.array([unit]), np.array([home])).all():
                    self._put(unit, home)
                    refunded = True
            if refunded:
                self._descend(exchange=False, spend=True)
                self._descend(exchange=True, spend=True)
            if not model.objective(self.place) < start * (1 - 1e-6):
                self._reset(before)
                return

    def _returnable(self) -> IndexArray:
        """Units that moved and may go home."""
        moved = self.place != self.model.units.home
        return np.flatnonzero(moved & self._movable & (self._way_back >= 0))

    # -- draining --------------------------------------------------------------------------------

    def drain(self, *, force: bool) -> bool:
        """Use what is left of the budget to empty draining executors.

        Units leave where that does not raise d; with `force`, if none can, one leaves nevertheless,
        the one that does least harm.

        Returns
        -------
        Whether one was forced.
        """
        left = True
        while left:
            left = self._drain_one(float(np.abs(self._deviation()).max()))
        model = self.model
        moved_off = (~model.stays[model.units.home]) & (self.place != model.units.home)
        return force and not moved_off.any() and self._drain_one(np.inf)

    def evacuate(self, count: int) -> int:
        """Take up to `count` units off draining executors, for good; return how many left.

        Those go that do least harm; `improve` then balances with the rest of the budget.
        """
        self._way_back[~self.model.stays[self._way_back]] = -1
        gone = 0
        while gone < count and self._drain_one(np.inf):
            gone += 1
        return gone

    def _drain_one(self, limit: float) -> bool:
        model = self.model
        waiting = np.flatnonzero(~model.stays[self.place] & self._movable)
        if not len(waiting):
            return False
        executors = np.flatnonzero(model.stays)
        index = (self._load[executors] + model.weight[waiting][:, None]) / model.speed[executors]
        over = index - model.mean
        allowed = self._affordable(waiting[:, None], executors, spend=True)
        allowed &= self._fits(waiting, executors)
        allowed &= over <= limit + _PROGRESS
        if not allowed.any():
            return False
        over = np.where(allowed, over, np.inf)
        if np.isfinite(limit):  # heavy units first, while there is a place for them
            row = int(np.where(allowed.any(axis=1), model.weight[waiting], -1.0).argmax())
        else:
            row = int(over.min(axis=1).argmin())
        column = int(over[row].argmin())
        self._put(int(waiting[row]), int(executors[column]))
        return True
