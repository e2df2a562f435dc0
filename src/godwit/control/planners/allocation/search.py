"""Local search on the allocation model, which takes seconds instead of minutes.

Lowers the worst deviation by moving one unit or exchanging two, within the budgets; our own (paper
2 §4.3.1 gives the model to the solver alone).

Invariants: loads, use of resources, moves and bytes always belong to `Placement.place`.  Every step
involves the executor with the worst deviation and leaves both executors of the step with smaller
deviations than that, so the sorted deviations fall lexicographically and the search ends; budgets
and room hold after every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.planners.allocation.model import FREE

if TYPE_CHECKING:
    from godwit.control.planners.allocation.model import AllocationModel
    from godwit.placement.arrays import BoolArray, FloatArray, IndexArray, IntArray


class Placement:
    """Placement of units, and the changes that budgets, room and pins allow."""

    def __init__(self, model: AllocationModel, place: IntArray) -> None:
        self.model = model
        units = model.units
        self.movable = units.pinned == FREE
        self._return_order = units.home.copy()
        if np.isfinite(model.max_left):  # units off draining executors may not return
            self._return_order[~model.stays[units.home] & (place != units.home)] = -1
        self._sign = np.where(model.stays, -1.0, 0.0)
        self._recompute_sums(place)

    def _recompute_sums(self, place: IntArray) -> None:
        """Recompute the sums of loads and resources for a placement."""
        model = self.model
        n = len(model.speed)
        self.place = place.copy()
        self._load = np.bincount(place, weights=model.weight, minlength=n)
        self._used_resources = (
            np.stack(
                [np.bincount(place, weights=use, minlength=n) for use in model.usage.T], axis=1
            )
            if model.usage.shape[1]
            else np.empty((n, 0))
        )
        self._moves, self._bytes = model.spent(place)
        self._is_away = place != model.units.home

    def _deviation_at(self, load: FloatArray, executors: IndexArray | slice | int) -> FloatArray:
        """Return the absolute deviations from the mean that executors have with these loads."""
        deviation = load / self.model.speed[executors] - self.model.mean
        # An executor that drains may have less than its share: then 0 stands for its deviation.
        return np.maximum(deviation, self._sign[executors] * deviation)

    def _deviations(self) -> FloatArray:
        """Return each executor's load index minus the mean; at least 0 for a draining executor."""
        deviation = self._load / self.model.speed - self.model.mean
        return np.where(self.model.stays, deviation, np.maximum(deviation, 0.0))

    def worst(self) -> int:
        """Return the executor with the largest deviation; ties: the lowest index."""
        return int(np.abs(self._deviations()).argmax())

    def put(self, unit: int, executor: int) -> None:
        """Place a unit on an executor, without checks of budgets and room."""
        model, units, old_executor = self.model, self.model.units, int(self.place[unit])
        for direction, changed_executor in ((-1, old_executor), (1, executor)):
            self._load[changed_executor] += direction * model.weight[unit]
            self._used_resources[changed_executor] += direction * model.usage[unit]
        moved_away = int(executor != units.home[unit]) - int(old_executor != units.home[unit])
        self._moves += moved_away * int(units.count[unit])
        self._bytes += moved_away * float(units.state_bytes[unit])
        self.place[unit] = executor
        self._is_away[unit] = executor != units.home[unit]

    # -- what may change --------------------------------------------------------------------------

    def _is_budget_spent(self, moves: int, *, may_cost: bool) -> bool:
        """Return whether `moves` more moves exceed the budget, or moves may not cost anything."""
        return not may_cost or self._moves + moves > self.model.max_moves

    def _extra_moves(self, unit: IndexArray, executor: IndexArray) -> FloatArray:
        """Return the moves that each placement adds to the plan; negative for a return home."""
        home = self.model.units.home[unit]
        away = (executor != home).astype(np.float64) - self._is_away[unit]
        return np.asarray(away * self.model.units.count[unit], np.float64)

    def _extra_bytes(self, unit: IndexArray, executor: IndexArray) -> FloatArray:
        """Return the bytes of state that each placement adds to the plan; negative if saved."""
        if self.model.max_bytes == np.inf:  # unlimited, so the bytes do not matter
            return np.zeros(1)
        home = self.model.units.home[unit]
        away = (executor != home).astype(np.float64) - self._is_away[unit]
        return np.asarray(away * self.model.units.state_bytes[unit], np.float64)

    def _within_budget(self, moves: FloatArray, size: FloatArray, *, may_cost: bool) -> BoolArray:
        """Return a mask of changes within the budgets.

        `moves`, `size`: moves and bytes that each change adds. `may_cost`: ``False`` allows only
        changes that add no moves.
        """
        model = self.model
        within = (self._moves + moves <= model.max_moves) | (moves <= 0)
        within &= (self._bytes + size <= model.max_bytes) | (size <= 0)
        if not may_cost:
            within &= moves <= 0
        return np.asarray(within, np.bool_)

    def _affordable_moves(
        self, unit: IndexArray, executor: IndexArray, *, may_cost: bool
    ) -> BoolArray:
        """Return a mask of placements (unit to executor) within the budgets.

        `may_cost`: ``False`` allows only placements that add no moves or bytes.
        """
        moves, size = self._extra_moves(unit, executor), self._extra_bytes(unit, executor)
        return self._within_budget(moves, size, may_cost=may_cost)

    def _affordable_exchanges(
        self, u: IndexArray, v: IndexArray, at_v: IndexArray, at_u: IndexArray, *, may_cost: bool
    ) -> BoolArray:
        """Return a mask of the pairs of units where budgets and room allow an exchange.

        Unit u goes to executor `at_v`, and v to `at_u`. `may_cost`: ``False`` allows only exchanges
        that add no moves or bytes.
        """
        model = self.model
        moves = np.add(self._extra_moves(u, at_v), self._extra_moves(v, at_u))
        size = np.add(self._extra_bytes(u, at_v), self._extra_bytes(v, at_u))
        is_affordable = self._within_budget(moves, size, may_cost=may_cost)
        for resource in range(model.usage.shape[1]):
            shift = model.usage[v, resource] - model.usage[u, resource]
            for executor, change in ((at_u, shift), (at_v, -shift)):
                is_affordable &= (
                    ~model.stays[executor]
                    | (change <= 0)
                    | (
                        self._used_resources[executor, resource] + change
                        <= model.room[executor, resource]
                    )
                )
        return is_affordable

    def _has_room(self, unit: IndexArray, executors: IndexArray) -> BoolArray:
        """Return a mask, ``(units, executors)``: where the executor has room for the unit."""
        model = self.model
        fits = np.ones((len(unit), len(executors)), np.bool_)
        for resource in range(model.usage.shape[1]):
            usage = model.usage[unit, resource][:, None]
            fits &= (
                self._used_resources[executors, resource] + usage <= model.room[executors, resource]
            )
        return fits | ~model.stays[executors]

    def _units_that_may_return(self) -> IndexArray:
        """Return the moved units whose original executor may take them back."""
        return np.flatnonzero(self._is_away & self.movable & (self._return_order >= 0))

    def permits_moves(self, units: IndexArray, executor: int, *, limit: float) -> BoolArray:
        """Return a mask of units, shape ``(units,)``, that may move to an executor.

        Neither executor's deviation may be `limit` or more afterwards.
        """
        weight, present = self.model.weight[units], self.place[units]
        target = np.full(len(units), executor)
        return np.asarray(
            (self._deviation_at(self._load[executor] + weight, executor) < limit)
            & (self._deviation_at(self._load[present] - weight, present) < limit)
            & self._affordable_moves(units, target, may_cost=True)
            & self._has_room(units, target[:1])[:, 0]
        )

    def permits_exchanges(self, first: IndexArray, other: IndexArray, *, limit: float) -> BoolArray:
        """Return a mask, shape ``(first, other)``, of pairs of units that may be exchanged.

        Neither executor's deviation may be `limit` or more afterwards.
        """
        at_one, at_other = self.place[first], self.place[other]
        gain = self.model.weight[other] - self.model.weight[first][:, None]
        shape = gain.shape
        allowed = self._deviation_at(self._load[at_one[0]] + gain, at_one[0]) < limit
        allowed &= self._deviation_at(self._load[at_other[0]] - gain, at_other[0]) < limit
        allowed &= self._affordable_exchanges(
            np.repeat(first, shape[1]),
            np.tile(other, shape[0]),
            np.full(gain.size, at_other[0]),
            np.full(gain.size, at_one[0]),
            may_cost=True,
        ).reshape(shape)
        return np.asarray(allowed, np.bool_)


_PROGRESS = 1e-10
"""Min. fall of a deviation, in fair shares, above the rounding errors of sums."""


_FIRST_PARTNERS = 16
"""Number of executors with which exchanges are tried first, if there are many more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A move, or an exchange, and the worst deviation of its executors afterwards."""

    worst: float
    unit: int
    executor: int
    other: int = -1
    other_executor: int = -1


class AllocationSearch(Placement):
    """A placement that is improved step by step."""

    def improve(self, enough: float = 0.0) -> None:
        """Move and exchange units to a local optimum of load distance d, then of its other side.

        `enough`: deviation, in fair shares, at which to stop and save the remaining moves.
        """
        self._repair_room()
        for exchange, may_cost in ((False, True), (True, False), (True, True)):
            self._improve_most_deviating(exchange=exchange, may_cost=may_cost, enough=enough)
        if abs(float(self._deviations()[self.worst()])) <= enough:
            return
        self._trade_moves()
        self._improve_most_deviating(exchange=True, may_cost=True, second=True)

    def shake(self, random: np.random.Generator) -> None:
        """Move a random share of the moved units back, so that others can move instead."""
        away = self._units_that_may_return()
        share = random.uniform(0.05, 0.3)
        for unit in away[random.random(len(away)) < share].tolist():
            home = np.array([self.model.units.home[unit]])
            if self._has_room(np.array([unit]), home).all():
                self.put(unit, int(home[0]))

    def _improve_most_deviating(
        self, *, exchange: bool, may_cost: bool, second: bool = False, enough: float = 0.0
    ) -> None:
        """Take the best step for the executor of largest deviation, until no step improves it.

        `exchange`: exchange two units, too. `may_cost`: steps may use the budget. `second`: lower
        the smaller of over- and underload. `enough`: deviation at which to stop.
        """
        while True:
            deviation = self._deviations()
            if second:
                most_loaded, least_loaded = int(deviation.argmax()), int(deviation.argmin())
                executor = (
                    least_loaded
                    if deviation[most_loaded] >= -deviation[least_loaded]
                    else most_loaded
                )
                if (
                    (deviation[executor] <= 0)
                    if executor == most_loaded
                    else (deviation[executor] >= 0)
                ):
                    return
            else:
                executor = int(np.abs(deviation).argmax())
            limit = abs(float(deviation[executor]))
            if limit <= enough:
                return
            step = self._best_move(executor, limit, may_cost=may_cost)
            if exchange:
                pair = self._best_exchange(
                    executor, limit if step is None else step.worst, may_cost=may_cost
                )
                step = step if pair is None else pair
            if step is None:
                return
            self._apply_step(step)

    def _best_move(self, h: int, limit: float, *, may_cost: bool) -> _Step | None:
        """Return the best move from or to executor `h` that leaves a deviation below `limit`.

        ``None``: there is none. `may_cost`: it may use the budgets.
        """
        # Where no move is left, only what moved already can go elsewhere for nothing.
        candidate = self.movable & (
            self._is_away if self._is_budget_spent(1, may_cost=may_cost) else True
        )
        on_executor = self.place == h
        # An overloaded executor has to lose units, an underloaded one has to gain some.
        if float(self._deviations()[h]) > 0:
            return self._best_leaving(
                h, np.flatnonzero(on_executor & candidate), limit, may_cost=may_cost
            )
        return self._best_coming(
            h, np.flatnonzero(~on_executor & candidate), limit, may_cost=may_cost
        )

    def _best_leaving(
        self, executor: int, units: IndexArray, limit: float, *, may_cost: bool
    ) -> _Step | None:
        """Return the best move of one of the units `units` away from executor `executor`.

        ``None``: none leaves a deviation below `limit`. `may_cost`: it may use the budgets.
        """
        if not len(units):
            return None
        model = self.model
        weight, executors = model.weight[units], np.arange(len(model.speed))
        worst = np.maximum(
            self._deviation_at(self._load + weight[:, None], slice(None)),
            self._deviation_at(self._load[executor] - weight, executor)[:, None],
        )
        allowed = model.stays | (self._return_order[units][:, None] == executors)
        allowed[:, executor] = False
        allowed &= self._affordable_moves(units[:, None], executors, may_cost=may_cost)
        allowed &= self._has_room(units, executors)
        return self._pick_best_step(np.where(allowed, worst, np.inf), limit, units, executors)

    def _best_coming(
        self, executor: int, units: IndexArray, limit: float, *, may_cost: bool
    ) -> _Step | None:
        """Return the best move of one of the units `units` to executor `executor`.

        ``None``: none leaves a deviation below `limit`. `may_cost`: it may use the budgets.
        """
        if not len(units):
            return None
        model = self.model
        weight, owner = model.weight[units], self.place[units]
        worst = np.maximum(
            self._deviation_at(self._load[executor] + weight, executor),
            self._deviation_at(self._load[owner] - weight, owner),
        )
        target_h = np.array([executor])
        allowed = (
            (model.stays[executor] | (self._return_order[units] == executor))
            & self._affordable_moves(units, np.full(len(units), executor), may_cost=may_cost)
            & self._has_room(units, target_h)[:, 0]
        )
        return self._pick_best_step(
            np.where(allowed, worst, np.inf)[:, None], limit, units, target_h
        )

    def _best_exchange(self, h: int, limit: float, *, may_cost: bool) -> _Step | None:
        """Return the best exchange of a unit of executor `h` with one elsewhere.

        ``None``: none leaves a deviation below `limit`. `may_cost`: it may use the budgets.
        """
        on_executor = self.place == h
        mine, others = (
            np.flatnonzero(on_executor & self.movable),
            np.flatnonzero(~on_executor & self.movable),
        )
        if not self._is_budget_spent(2, may_cost=may_cost):
            near = self._likely_partners(h, others)
            best = self._best_pair(h, mine, near, limit, may_cost=may_cost)
            if best is not None or len(near) == len(others):
                return best
            return self._best_pair(h, mine, others, limit, may_cost=may_cost)
        # Then one of the two must have moved already: a few per cent of all pairs.
        gone = self._is_away[mine]
        best = self._best_pair(h, mine[gone], others, limit, may_cost=may_cost)
        bar = limit if best is None else best.worst
        at_home = self._best_pair(
            h, mine[~gone], others[self._is_away[others]], bar, may_cost=may_cost
        )
        return best if at_home is None else at_home

    def _likely_partners(self, h: int, others: IndexArray) -> IndexArray:
        """Return those of `others` on the executors furthest on the mean's other side from `h`'s.

        `h` is an executor's index. Where there are many executors all pairs take long, and the best
        is nearly always there.
        """
        deviation = self._deviations()
        if len(deviation) <= 2 * _FIRST_PARTNERS:
            return others
        order = np.argsort(deviation if deviation[h] > 0 else -deviation, kind="stable")
        likely = np.zeros(len(deviation), np.bool_)
        likely[order[:_FIRST_PARTNERS]] = True
        return others[likely[self.place[others]]]

    def _best_pair(
        self, h: int, mine: IndexArray, others: IndexArray, limit: float, *, may_cost: bool
    ) -> _Step | None:
        """Return the best exchange of one of `mine`, on executor `h`, with one of `others`.

        ``None``: none leaves a deviation below `limit`. `may_cost`: it may use the budgets.
        """
        if not len(mine) or not len(others):
            return None
        model = self.model
        owner = self.place[others]
        gain = model.weight[others][None, :] - model.weight[mine][:, None]
        worst = np.maximum(
            self._deviation_at(self._load[h] + gain, h),
            self._deviation_at(self._load[owner] - gain, owner),
        )
        allowed = worst < limit - _PROGRESS
        allowed &= model.stays[owner] | (self._return_order[mine][:, None] == owner)
        if not model.stays[h]:
            allowed &= self._return_order[others] == h
        row, column = np.nonzero(allowed)
        if not len(row):
            return None
        u, v, at_v = mine[row], others[column], owner[column]
        good = self._affordable_exchanges(u, v, at_v, np.full(len(u), h), may_cost=may_cost)
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

    def _pick_best_step(
        self, worst: FloatArray, limit: float, units: IndexArray, executors: IndexArray
    ) -> _Step | None:
        """Return the step with the smallest deviation in the matrix `worst` (unit, executor).

        ``None`` unless it is below `limit`.
        """
        flat = int(worst.argmin())
        row, column = divmod(flat, worst.shape[1])
        if not worst[row, column] < limit - _PROGRESS:
            return None
        return _Step(
            worst=float(worst[row, column]), unit=int(units[row]), executor=int(executors[column])
        )

    def _apply_step(self, step: _Step) -> None:
        """Make a move or an exchange."""
        self.put(step.unit, step.executor)
        if step.other >= 0:
            self.put(step.other, step.other_executor)

    def _repair_room(self) -> None:
        """Move units off executors that exceed their room, largest usage first."""
        model = self.model
        for r in range(model.usage.shape[1]):
            while True:
                excess = np.where(
                    model.stays, self._used_resources[:, r] - model.room[:, r], -np.inf
                )
                h = int(excess.argmax())
                if excess[h] <= 1e-9:
                    break
                movable_units = np.flatnonzero((self.place == h) & self.movable)
                executors = np.arange(len(model.speed))
                allowed = self._has_room(movable_units, executors) & model.stays
                allowed[:, h] = False
                allowed &= self._affordable_moves(movable_units[:, None], executors, may_cost=True)
                allowed &= (model.usage[movable_units, r] > 0)[:, None]
                if not allowed.any():
                    break
                gain = np.minimum(model.usage[movable_units, r], excess[h])[:, None]
                target = self._load + model.weight[movable_units][:, None]
                score = np.where(
                    allowed, gain - 1e-3 * self._deviation_at(target, slice(None)), -np.inf
                )
                row, column = divmod(int(score.argmax()), score.shape[1])
                self.put(int(movable_units[row]), int(executors[column]))

    def _trade_moves(self) -> None:
        """Move the least useful moved units back, and spend the moves that this saves."""
        model = self.model
        while np.isfinite(model.max_moves) or np.isfinite(model.max_bytes):
            before, start = self.place.copy(), model.objective(self.place)
            bar = abs(float(self._deviations()[self.worst()])) - _PROGRESS
            away = self._units_that_may_return()
            refunded = False
            for unit in away[np.argsort(model.weight[away], kind="stable")].tolist():
                home = int(model.units.home[unit])
                if self.permits_moves(np.array([unit]), home, limit=bar)[0]:
                    self.put(unit, home)
                    refunded = True
            if refunded:
                self._improve_most_deviating(exchange=False, may_cost=True)
                self._improve_most_deviating(exchange=True, may_cost=True)
            if not model.objective(self.place) < start * (1 - 1e-6):
                self._recompute_sums(before)
                return

    # -- draining --------------------------------------------------------------------------------

    def drain(self, *, force: bool) -> bool:
        """Spend the rest of the budget on draining; return whether a move raised d.

        Units move if that does not raise d. If none can and `force` is set, the one that raises d
        least moves.
        """
        has_drained = True
        while has_drained:
            has_drained = self._drain_one(float(np.abs(self._deviations()).max()))
        model = self.model
        moved_off = (~model.stays[model.units.home]) & (self.place != model.units.home)
        return force and not moved_off.any() and self._drain_one(np.inf)

    def evacuate(self, count: int) -> int:
        """Move up to `count` units off draining executors permanently; return the number moved.

        Those that raise d least move first; `improve` then balances with the rest of the budget.
        """
        self._return_order[~self.model.stays[self._return_order]] = -1
        gone = 0
        while gone < count and self._drain_one(np.inf):
            gone += 1
        return gone

    def _drain_one(self, limit: float) -> bool:
        """Move a unit off a draining executor, unless a deviation would exceed `limit`.

        Returns ``False`` if none can move.
        """
        model = self.model
        units_to_drain = np.flatnonzero(~model.stays[self.place] & self.movable)
        if not len(units_to_drain):
            return False
        executors = np.flatnonzero(model.stays)
        index = (self._load[executors] + model.weight[units_to_drain][:, None]) / model.speed[
            executors
        ]
        deviation_after = index - model.mean
        allowed = self._affordable_moves(units_to_drain[:, None], executors, may_cost=True)
        allowed &= self._has_room(units_to_drain, executors)
        allowed &= deviation_after <= limit + _PROGRESS
        if not allowed.any():
            return False
        deviation_after = np.where(allowed, deviation_after, np.inf)
        if np.isfinite(limit):  # heavy units first, while there is a place for them
            row = int(np.where(allowed.any(axis=1), model.weight[units_to_drain], -1.0).argmax())
        else:
            row = int(deviation_after.min(axis=1).argmin())
        column = int(deviation_after[row].argmin())
        self.put(int(units_to_drain[row]), int(executors[column]))
        return True
