"""What windows cost in either form, split or combined, from the outcomes of one period's epochs.

What the form in use does is measured; what the other would do follows from that.  What goes from
the compute part to the consolidate part is reported in both forms, and so are the places of key
groups, and their state.  Only what an exchange adds cannot be measured while there is none: then
the last figure stands, and before the first one a fixed one (`ExchangeCosts`).

Source: the symbols of Madsen et al. (Enorm) §5.1.1, as `godwit.planning.components.splitting` names
them; docs/decisions/0043 says where Godwit differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from godwit.operators.windows.grid import BEGINNING
from godwit.plan.compiled import source_of
from godwit.planning.components.splitting import FormCosts

if TYPE_CHECKING:
    from godwit.adapt.deciding import EpochSeen
    from godwit.operators.windows.grid import PaneGrid
    from godwit.operators.windows.in_two import ConsolidatePart
    from godwit.planning.components.splitting import Form

__all__ = ["ExchangeCosts", "FormMeter", "Metered"]

_BYTE_LATENCY_MS: Final = 10 / 2**20
"""Time to bring a byte of state to another executor, where none was measured."""
_BYTE_MS: Final = 80 / 2**20
"""CPU time of a byte of state that migrates: to bring it, and to make room in tables twice."""
_MOVE_MS: Final = 1.0
"""Of a key group that migrates, beside its bytes."""
_TURN_SHARE: Final = 0.5
"""What turning costs of what moving does: the old slot is emptied, another table is begun."""
_MEMORY: Final = 0.5
"""What a period's figure still counts once another one was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCosts:
    """What an exchange costs where a flow runs, as far as lanes cannot measure it."""

    # CPU time of parting and serialising a partial, where lanes have not measured any yet
    row_ms: float = 0.0002
    byte_ms: float = 5 / 2**20  # CPU time of a byte on its way, beside that
    lane_ms: float = 0.5  # CPU time of one more lane task


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """What a period came to."""

    costs: FormCosts  # of the period
    epochs: int  # its epochs with input
    byte_ms: float  # CPU time of a byte of state that migrates
    numbers: dict[str, float]  # what the costs rest on, for people: figure → value


@dataclass(slots=True, kw_only=True)
class _Sums:
    """A period under way."""

    since: int = BEGINNING
    epochs: int = 0
    rows: int = 0
    cpu_ms: float = 0.0
    handed: int = 0
    handed_bytes: int = 0
    crossed: int = 0
    sending_ms: float = 0.0
    lanes: int = 0
    migrations: int = 0
    turned: int = 0
    movers: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Places:
    """Where key groups take rows in one epoch; shape ``(num_key_groups,)`` each."""

    executor: npt.NDArray[np.object_]
    second: npt.NDArray[np.bool_]


class FormMeter:
    """Meters one windowed aggregate."""

    def __init__(
        self,
        part: ConsolidatePart,  # its consolidate part
        exchange: ExchangeCosts,  # what an exchange costs where the flow runs
        *,
        # event time of a period, in microseconds; ``None``: the longest window
        period_us: int | None,
        epochs: int,  # epochs with input that a period has at least
    ) -> None:
        self._slots, self._name = part.slots, part.name
        self._exchange, self._epochs = exchange, epochs
        longest = max(window.length_us for window in part.grid.windows)
        self._period_us = longest if period_us is None else period_us
        self._partials = partials_in(part.grid, self._period_us)
        self._form: Form | None = None
        self._sums = _Sums()
        self._places: _Places | None = None
        self._state: dict[str, npt.NDArray[np.int64]] = {}
        self._row_ms = exchange.row_ms
        self._turns = 1.0

    def take(self, seen: EpochSeen, form: Form, levels_more: int) -> Metered | None:
        """Take an epoch; give what the period came to if that is its end.

        form: That it ran in; another one than before begins a period anew.
        levels_more: Levels that epochs have only in the split form.
        """
        if form != self._form:
            self._form, self._sums, self._places = form, _Sums(), None
            self._state.clear()
        self._moved(seen)
        self._add(seen)
        moments = seen.outcome.watermarks
        sources = seen.flow.sources_of(self._slots[0])
        now = min(
            (at for name, at in moments.items() if source_of(name) in sources), default=BEGINNING
        )
        sums = self._sums
        if sums.since == BEGINNING:
            sums.since = now
        over = now - sums.since >= self._period_us and sums.since > BEGINNING
        if not over or sums.epochs < self._epochs:
            return None
        metered = self._metered(seen, form, levels_more)
        self._sums = _Sums(since=now)
        return metered

    def _add(self, seen: EpochSeen) -> None:
        """Add what an epoch did."""
        outcome, flow, sums = seen.outcome, seen.flow, self._sums
        sums.epochs += outcome.batch is not None
        homes = {flow.component_of(name).name for name in (*self._slots, self._name)}
        handed = [outcome.streams.get((slot, self._name), (0, 0)) for slot in self._slots]
        rows = sum(count for count, _ in handed)
        sums.handed += rows
        sums.handed_bytes += sum(size for _, size in handed)
        for name in homes:
            if (load := outcome.loads.get(name)) is not None:
                sums.rows += int(load.rows.sum())
                sums.cpu_ms += float(load.cpu_ms.sum())
        sums.rows -= rows  # what the consolidate part got are no rows of the stream
        home = flow.component_of(self._name).name
        if (traffic := outcome.traffic.get(home)) is not None and rows:
            sums.crossed += rows
            sums.sending_ms += traffic.cpu_ms
        for name in {flow.component_of(slot).name for slot in self._slots}:
            load = outcome.loads.get(name)
            if load is not None and len(load.key_groups):
                known = self._state.setdefault(name, np.zeros(flow.num_key_groups, np.int64))
                known[load.key_groups] = load.state_bytes
        sums.lanes = max(sum(seen.plans[home].assignment.lanes), 1)

    def _moved(self, seen: EpochSeen) -> None:
        """Count key groups that take their rows elsewhere since the epoch before.

        Those of an executor that is gone are no migrations: they need another place in either form.
        """
        plans = [seen.plans[seen.flow.component_of(slot).name] for slot in self._slots]
        owners = [
            np.array(plan.assignment.executors, object)[plan.assignment.executor_of]
            for plan in plans
        ]
        second = np.zeros(len(owners[0]), np.bool_)
        if plans[0] is not plans[1] and plans[1].takes is not None:
            second[list(plans[1].takes)] = True
        now = _Places(executor=np.where(second, owners[1], owners[0]), second=second)
        before, self._places = self._places, now
        if before is None:
            return
        there = {name for plan in plans for name in plan.assignment.executors}
        moved = np.flatnonzero(before.executor != now.executor)
        moved = np.array([g for g in moved.tolist() if before.executor[g] in there], np.int64)
        self._sums.migrations += len(moved)
        self._sums.turned += int((before.second != now.second)[moved].sum())
        self._sums.movers.update(moved.tolist())

    def _metered(self, seen: EpochSeen, form: Form, levels_more: int) -> Metered:
        sums, exchange = self._sums, self._exchange
        if form == "split":
            if sums.crossed:
                self._row_ms = _mixed(self._row_ms, sums.sending_ms / sums.crossed)
            if sums.migrations:
                self._turns = sums.turned / sums.migrations
            turned: float = sums.turned
        else:  # each can turn once while its other slot is not free again
            turned = min(len(sums.movers), self._turns * sums.migrations)
        speed = seen.copies_bytes_per_s
        byte_latency_ms = 1e3 / speed if speed else _BYTE_LATENCY_MS
        num_key_groups = seen.flow.num_key_groups
        state_bytes = sum(int(of.sum()) for of in self._state.values()) / num_key_groups
        handing_ms = sums.handed * self._row_ms + sums.handed_bytes * exchange.byte_ms
        partial_ms = handing_ms / (self._partials * num_key_groups)
        move_ms = _MOVE_MS + state_bytes * _BYTE_MS
        costs = FormCosts(
            rows=max(sums.rows, 0),
            row_ms=sums.cpu_ms / max(sums.rows, 1),
            partials=self._partials,
            key_groups=num_key_groups,
            partial_ms=partial_ms,
            migrations=sums.migrations,
            turn_ms=partial_ms + _TURN_SHARE * move_ms,
            move_ms=move_ms,
            move_latency_ms=_MOVE_MS + state_bytes * byte_latency_ms,
            unturned=max(sums.migrations - turned, 0),
            stage_ms=max(levels_more, 0) * sums.lanes * exchange.lane_ms * sums.epochs,
        )
        return Metered(
            costs=costs,
            epochs=sums.epochs,
            byte_ms=_BYTE_MS,
            numbers={
                "rows": costs.rows,
                "handed_rows": sums.handed,
                "handed_bytes": sums.handed_bytes,
                "partial_windows": costs.partials,
                "partial_ms": costs.partial_ms,
                "migrated_key_groups": costs.migrations,
                "migrated_with_state": costs.unturned,
                "state_bytes_per_key_group": state_bytes,
                "turn_ms": costs.turn_ms,
                "move_ms": costs.move_ms,
                "move_latency_ms": costs.move_latency_ms,
                "stage_ms": costs.stage_ms,
            },
        )


def _mixed(before: float, measured: float) -> float:
    return _MEMORY * before + (1 - _MEMORY) * measured


def partials_in(grid: PaneGrid, period_us: int) -> float:
    """Count the panes that are handed on in a period, each once for every moment it is needed at.

    At a moment at which windows end, those of the longest of them are.

    Examples
    --------
    >>> from godwit.operators.windows.grid import PaneGrid, TimeWindow
    >>> minute = 60_000_000
    >>> six = TimeWindow(length_us=6 * minute, every_us=minute)
    >>> partials_in(PaneGrid.of(six), 6 * minute)
    36.0
    """
    longest: dict[int, int] = {}
    lengths = max(window.length_us for window in grid.windows)
    for window in grid.windows:
        for end in range(0, lengths, window.every_us):
            longest[end] = max(longest.get(end, 0), window.length_us)
    return sum(longest.values()) / grid.width_us * (period_us / lengths)
