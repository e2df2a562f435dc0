"""Policies for windows: one or two phases, and shared panes or duplicated state.

**Split or combine.**  In two components (*split*) key groups of windows migrate without their
state, and all that windows are made of crosses an exchange; in one (*combined*) it is the other way
about. Which costs less depends on how often key groups migrate. After every period, by default the
longest window, both layouts are priced (`godwit.control.planners.splitting`). What the layout in
use does is measured; what the other would do follows from that. Only what an exchange adds cannot
be measured while there is none: then the last figure stands, and before the first one a fixed one
(`ExchangeCosts`). Source: Madsen et al. (Enorm) §5.1.1 and §5.1.2; modification punctuations, §6.2;
docs/design/windows-and-event-time.md says where Godwit differs.

**Panes or states per window.**  After every period both are priced at what lanes measured
(`godwit.library.windows.sharing`, `godwit.library.windows.consolidation`).  Source: §5.1.2.

Invariant: results do not depend on either choice, and a change holds for the same windows in all
lanes, since it happens between two epochs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from godwit.control.planners.splitting import LayoutCosts, choose_layout, most_beneficial
from godwit.control.policy import Hysteresis, check_epoch_settings, reversed_by_regrouping
from godwit.engine.policies import Proposal, Regroup
from godwit.library.windows.consolidation import is_duplicated_cheaper
from godwit.library.windows.two_phase import ConsolidatePart
from godwit.model import events
from godwit.model.decision_events import ManualChange
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_class
from godwit.model.naming import listing
from godwit.plan.compiled import source_of
from godwit.plan.grouping import in_lane_inputs, regrouped
from godwit.time.durations import Duration, microseconds
from godwit.time.grid import BEGINNING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from godwit.checkpoint.records import PhysicalPlan
    from godwit.control.planners.splitting import Choice, WindowLayout
    from godwit.control.policy import Announce, ManualOverrides
    from godwit.engine.policies import FlowEpoch
    from godwit.library.windows.sharing import PaneMeter
    from godwit.plan.compiled import CompiledFlow
    from godwit.time.grid import PaneGrid

_BYTE_LATENCY_MS: Final = 10 / 2**20
"""Default time to copy a byte of state to another executor."""
_BYTE_MS: Final = 80 / 2**20
"""CPU time per byte of migrated state: copying, and growing tables twice."""
_MOVE_MS: Final = 1.0
"""CPU time per migrated key group, besides its bytes."""
_TURN_SHARE: Final = 0.5
"""Ratio of the cost of switching slots, which empties one and begins a table, to moving."""
_MEMORY: Final = 0.5
"""Weight of earlier periods in the moving average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCosts:
    """Costs of an exchange, which lanes cannot measure."""

    # CPU time of parting and serialising a partial, where lanes have not measured any yet
    row_ms: float = 0.0002
    byte_ms: float = 5 / 2**20  # CPU time of a byte on its way, beside that
    lane_ms: float = 0.5  # CPU time of one more lane task


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """Costs of both layouts over a period, with the measurements behind them."""

    costs: LayoutCosts  # of the period
    epochs: int  # its epochs with input
    numbers: dict[str, float]  # what the costs rest on, for people: figure → value


@dataclass(slots=True, kw_only=True)
class _Sums:
    """Measurements of the running period."""

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


class LayoutMeter:
    """Measures one windowed aggregate, and prices both of its layouts."""

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
        self._present_layout: WindowLayout | None = None
        self._sums = _Sums()
        # where key groups took rows in the last epoch: executors, and whether in the second slot
        self._last_placement: tuple[npt.NDArray[np.object_], npt.NDArray[np.bool_]] | None = None
        self._state: dict[str, npt.NDArray[np.int64]] = {}
        self._row_ms = exchange.row_ms
        self._epochs_per_turn = 1.0

    def add_epoch(self, epoch: FlowEpoch, layout: WindowLayout, levels_more: int) -> Metered | None:
        """Add an epoch; return the costs of both layouts if it ends the period, else ``None``.

        A change of `layout` starts the period again; `levels_more`: levels that the two-phase
        layout adds to an epoch.
        """
        if layout != self._present_layout:
            self._present_layout, self._sums, self._last_placement = layout, _Sums(), None
            self._state.clear()
        self._count_migrations(epoch)
        self._add_work(epoch)
        watermarks = epoch.outcome.watermarks
        sources = epoch.flow.sources_of(self._slots[0])
        watermark = min(
            (time for name, time in watermarks.items() if source_of(name) in sources),
            default=BEGINNING,
        )
        sums = self._sums
        if sums.since == BEGINNING:
            sums.since = watermark
        is_over = watermark - sums.since >= self._period_us and sums.since > BEGINNING
        if not is_over or sums.epochs < self._epochs:
            return None
        metered = self._price_layouts(epoch, layout, levels_more)
        self._sums = _Sums(since=watermark)
        return metered

    def _add_work(self, epoch: FlowEpoch) -> None:
        """Add the rows, CPU time and state of an epoch."""
        outcome, flow, sums = epoch.outcome, epoch.flow, self._sums
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
        sums.lanes = max(sum(epoch.component_views[home].assignment.lanes), 1)

    def _count_migrations(self, epoch: FlowEpoch) -> None:
        """Count the key groups that changed executor since the last epoch.

        Those of a lost executor do not count: they need another executor in any case.
        """
        views = [epoch.component_views[epoch.flow.component_of(slot).name] for slot in self._slots]
        owners = [
            np.array(view.assignment.executors, object)[view.assignment.executor_of]
            for view in views
        ]
        in_second_slot = np.zeros(len(owners[0]), np.bool_)
        if views[0] is not views[1] and views[1].takes is not None:
            in_second_slot[list(views[1].takes)] = True
        executor = np.where(in_second_slot, owners[1], owners[0])
        placement_before, self._last_placement = self._last_placement, (executor, in_second_slot)
        if placement_before is None:
            return
        former_executor, was_in_second_slot = placement_before
        executors = {name for view in views for name in view.assignment.executors}
        moved_groups = np.flatnonzero(former_executor != executor)
        moved_groups = np.array(
            [g for g in moved_groups.tolist() if former_executor[g] in executors], np.int64
        )
        self._sums.migrations += len(moved_groups)
        self._sums.turned += int((was_in_second_slot != in_second_slot)[moved_groups].sum())
        self._sums.movers.update(moved_groups.tolist())

    def _price_layouts(self, epoch: FlowEpoch, layout: WindowLayout, levels_more: int) -> Metered:
        """Return the costs of both layouts, from the measurements of the period.

        `levels_more`: levels that the two-phase layout adds to an epoch.
        """
        sums, exchange = self._sums, self._exchange
        if layout == "split":
            if sums.crossed:
                self._row_ms = _update_average(self._row_ms, sums.sending_ms / sums.crossed)
            if sums.migrations:
                self._epochs_per_turn = sums.turned / sums.migrations
            turned: float = sums.turned
        else:  # each can turn once while its other slot is not free again
            turned = min(len(sums.movers), self._epochs_per_turn * sums.migrations)
        speed = epoch.copies_bytes_per_s
        byte_latency_ms = 1e3 / speed if speed else _BYTE_LATENCY_MS
        num_key_groups = epoch.flow.num_key_groups
        state_bytes = sum(int(state.sum()) for state in self._state.values()) / num_key_groups
        handing_ms = sums.handed * self._row_ms + sums.handed_bytes * exchange.byte_ms
        partial_ms = handing_ms / (self._partials * num_key_groups)
        move_ms = _MOVE_MS + state_bytes * _BYTE_MS
        costs = LayoutCosts(
            rows=max(sums.rows, 0),
            row_ms=sums.cpu_ms / max(sums.rows, 1),
            partials=self._partials,
            key_groups=num_key_groups,
            partial_ms=partial_ms,
            migrations=sums.migrations,
            instant_ms=partial_ms + _TURN_SHARE * move_ms,
            move_ms=move_ms,
            move_latency_ms=_MOVE_MS + state_bytes * byte_latency_ms,
            with_state=max(sums.migrations - turned, 0),
            stage_ms=max(levels_more, 0) * sums.lanes * exchange.lane_ms * sums.epochs,
        )
        return Metered(
            costs=costs,
            epochs=sums.epochs,
            numbers={
                "rows": costs.rows,
                "handed_rows": sums.handed,
                "handed_bytes": sums.handed_bytes,
                "partial_windows": costs.partials,
                "partial_ms": costs.partial_ms,
                "migrated_key_groups": costs.migrations,
                "migrated_with_state": costs.with_state,
                "state_bytes_per_key_group": state_bytes,
                "turn_ms": costs.instant_ms,
                "move_ms": costs.move_ms,
                "move_latency_ms": costs.move_latency_ms,
                "stage_ms": costs.stage_ms,
            },
        )


def _update_average(before: float, measured: float) -> float:
    """Return the moving average after the measurement of one more period."""
    return _MEMORY * before + (1 - _MEMORY) * measured


def partials_in(grid: PaneGrid, period_us: int) -> float:
    """Return the number of panes passed on in a period, counted once per window that needs them.

    When several windows end at the same time, only the panes of the longest are passed on.

    Examples
    --------
    >>> from godwit.time.grid import PaneGrid, TimeWindow
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


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """Settings for choosing one-phase or two-phase windows by measured costs.

    Pass it as ``gw.control.Adaptation(splitting=...)``. It applies to windows with
    ``consolidate="measured"``. One-phase windows need one shuffle less; key groups of two-phase
    windows change their executor without copying state.

    Attributes
    ----------
    max_latency
        Maximum time that all migrations of one period may take together, such as ``"500
        milliseconds"``: of the layouts that keep it, the one with less CPU time is chosen.
        ``None``: no limit, so that CPU time alone decides.
    period
        Event time from one decision to the next, which uses the measurements of that time;
        ``None``: the length of the longest window. A shorter period may be misleading, because the
        number of windows that close in it varies.
    epochs
        Minimum number of epochs with input from one decision to the next.
    confirm
        Number of consecutive decisions that must agree before the layout changes.
    payback_epochs
        Number of epochs within which the CPU time that the other layout saves must exceed the CPU
        time of moving state for the change.

    Raises
    ------
    InvalidFlowError
        If a setting has a wrong value.

    Examples
    --------
    >>> gw.control.Splitting(max_latency="2 seconds").max_latency_ms
    2000.0
    """

    max_latency: Duration | None = None
    period: Duration | None = None
    epochs: int = 16
    confirm: int = 2
    payback_epochs: int = 500

    def __post_init__(self) -> None:
        for name, least in (("max_latency", 0), ("period", 1)):
            value = getattr(self, name)
            if value is not None:
                microseconds(value, f"The setting {name} of gw.control.Splitting", least=least)
        check_epoch_settings(self)

    @property
    def max_latency_ms(self) -> float:
        """The setting `max_latency` in milliseconds; infinite if there is no limit.

        Examples
        --------
        >>> limited = gw.control.Splitting(max_latency="2 seconds")
        >>> limited.max_latency_ms, gw.control.Splitting().max_latency_ms
        (2000.0, inf)
        """
        if self.max_latency is None:
            return math.inf
        return microseconds(self.max_latency, "The bound", least=0) / 1e3

    @property
    def period_us(self) -> int | None:
        """The setting `period` in microseconds of event time; ``None``: the longest window.

        Examples
        --------
        >>> gw.control.Splitting(period="1 day").period_us
        86400000000
        """
        return None if self.period is None else microseconds(self.period, "The period", least=1)


def splitting_of(flow: CompiledFlow, settings: Splitting | None) -> Splitting | None:
    """Return the checked settings for choosing one-phase or two-phase windows, or their defaults.

    Returns ``None`` if no window has ``consolidate="measured"`` and no settings are given. Raises
    `InvalidFlowError` if settings are given and there is no such window.
    """
    if _measured_parts(flow):
        return settings or Splitting()
    if settings is None:
        return None
    roles = [operator.two_phase for operator in flow.operators]
    always_apart = [role.first for role in roles if role is not None and role.slot == 0]
    note = (
        f" ({listing(always_apart)}: consolidate='apart', which is not changed)"
        if always_apart
        else ""
    )
    raise InvalidFlowError(
        f"The setting splitting of adaptation has no effect: flow {flow.name!r} has no windows "
        f"with consolidate='measured'{note}.",
        remedy='Set it, as in window(gw.hopping("6 hours", every="1 hour"), '
        'consolidate="measured"), or omit splitting=.',
        flow=flow.name,
    )


def layout_of(flow: CompiledFlow, part: ConsolidatePart) -> WindowLayout | None:
    """Return the current layout of windows; ``None`` if it is neither two-phase nor one-phase.

    Fused operators downstream may share the consolidate part's component.
    """
    first, second, consolidating = (flow.component_of(name) for name in (*part.slots, part.name))
    members = {operator.name for operator in consolidating.operators}
    downstream = _downstream_members(flow, part.name, members)
    if first is second is consolidating:
        return "combined" if members == downstream | set(part.slots) else None
    slots_are_alone = len(first.operators) == len(second.operators) == 1
    return "split" if slots_are_alone and members == downstream else None


def _downstream_members(flow: CompiledFlow, operator: str, members: set[str]) -> set[str]:
    """Return an operator of a component, and its `members` that read its rows in the same lanes."""
    downstream, streams = {operator}, in_lane_inputs(flow)
    while True:
        readers = {stream.operator for stream in streams if stream.upstream in downstream}
        added = readers & members - downstream
        if not added:
            return downstream
        downstream |= added


def components_for(
    flow: CompiledFlow, part: ConsolidatePart, layout: WindowLayout
) -> dict[str, tuple[str, ...]]:
    """Return component → its operators if the windows of `part` have this layout."""
    first, second = part.slots
    beside = tuple(
        operator.name
        for operator in flow.component_of(part.name).operators
        if operator.name not in part.slots
    )
    if layout == "combined":
        return {first: (first, second, *beside)}
    return {first: (first,), second: (second,), "+".join(beside): beside}


class SplitOrCombine:
    """Policy that prices both layouts of windowed aggregates, and proposes the cheaper one."""

    def __init__(
        self,
        flow: CompiledFlow,
        settings: Splitting,
        exchange: ExchangeCosts,
        *,
        overrides: ManualOverrides,
        announce: Announce,
    ) -> None:
        self._settings, self._overrides, self._announce = settings, overrides, announce
        self._flow, self._parts = flow, {part.part_of: part for part in _measured_parts(flow)}
        self._meters = {
            name: LayoutMeter(part, exchange, period_us=settings.period_us, epochs=settings.epochs)
            for name, part in self._parts.items()
        }
        self._hysteresis = Hysteresis(confirm=settings.confirm)
        self._choice_of: dict[str, Choice] = {}
        self._standing_proposals: dict[str, Proposal] = {}
        self._layouts: dict[tuple[str, PhysicalPlan], tuple[WindowLayout | None, int]] = {}

    def observe(self, epoch: FlowEpoch) -> None:
        """Add an epoch to the measurements of all windows; evaluate at the end of a period."""
        self._flow = epoch.flow
        alone = self._overrides.operators(epoch.flow, epoch.at_s)
        for name, part in self._parts.items():
            layout, levels_more = self._present_layout(epoch.flow, part)
            if layout is None or alone & {part.name, *part.slots}:
                self._withdraw_proposal(name)
                continue
            if name in self._choice_of and self._choice_of[name].layout == layout:
                self._withdraw_proposal(name)
            metered = self._meters[name].add_epoch(epoch, layout, levels_more)
            if metered is not None:
                choice = choose_layout(metered.costs, layout, self._settings.max_latency_ms)
                self._announce(
                    events.LayoutsCompared, **self._comparison_fields(name, layout, metered, choice)
                )
                self._propose_once_confirmed(name, epoch.flow, metered, choice)

    def propose(self, now_s: float) -> Iterator[Proposal]:  # noqa: ARG002
        """Yield the most beneficial change of a layout."""
        first = most_beneficial(self._choice_of)
        if first is not None:
            # Operators fused with the consolidate part may have changed since the decision.
            wanted = components_for(self._flow, self._parts[first], self._choice_of[first].layout)
            change = Regroup(components=wanted, plan=self._flow.physical_plan)
            yield replace(self._standing_proposals[first], change=change)

    def answered(self, proposal: Proposal) -> None:
        """Drop a proposal that was carried out or rejected."""
        self._withdraw_proposal(ManualChange.COMPONENTS.name_in(proposal.subject) or "")

    def _present_layout(
        self, flow: CompiledFlow, part: ConsolidatePart
    ) -> tuple[WindowLayout | None, int]:
        """Return the current layout of windows, and the levels that the two-phase layout adds."""
        key = (part.name, flow.physical_plan)  # of which there are few in a run
        if key not in self._layouts:
            layout = layout_of(flow, part)
            self._layouts[key] = layout, 0 if layout is None else _levels_more(flow, part)
        return self._layouts[key]

    def _withdraw_proposal(self, name: str) -> None:
        """Withdraw the proposal for the aggregate `name`; it must be confirmed again."""
        self._choice_of.pop(name, None)
        self._standing_proposals.pop(name, None)
        self._hysteresis.reset(name)

    def _propose_once_confirmed(
        self, name: str, flow: CompiledFlow, metered: Metered, choice: Choice
    ) -> None:
        """Propose a change of an aggregate's layout after enough consecutive evaluations agree."""
        self._choice_of.pop(name, None)
        self._standing_proposals.pop(name, None)
        if not self._hysteresis.is_confirmed(name, choice.layout if choice.changes else None):
            return
        part, worth_bytes = self._parts[name], math.inf
        if choice.layout == "combined":  # parting moves nothing
            saved_ms = choice.saved_ms / metered.epochs
            worth_bytes = self._settings.payback_epochs * saved_ms / _BYTE_MS
        self._choice_of[name] = replace(
            choice,
            saved_ms=choice.saved_ms / metered.epochs,
            relieved_ms=choice.relieved_ms / metered.epochs,
        )
        self._standing_proposals[name] = Proposal(
            subject=ManualChange.COMPONENTS.of(name),
            change=Regroup(
                components=components_for(flow, part, choice.layout), plan=flow.physical_plan
            ),
            reason=_reason_text(name, metered, choice, self._settings.max_latency_ms),
            gain=worth_bytes,  # in bytes: CPU time that is saved, as state that it would move
            numbers={
                "split_ms": metered.costs.split_ms,
                "combined_ms": metered.costs.combined_ms,
                "migrations": metered.costs.migrations,
            },
            reverses=reversed_by_regrouping(flow, part.name, *part.slots),
        )

    def _comparison_fields(
        self, name: str, layout: WindowLayout, metered: Metered, choice: Choice
    ) -> dict[str, Any]:
        """Return the fields of the event that reports a comparison of layouts."""
        costs, bound_ms = metered.costs, self._settings.max_latency_ms
        return {
            "operator": name,
            "layout": layout,
            "cheaper": choice.layout,
            "epochs": metered.epochs,
            "split_ms": costs.split_ms,
            "combined_ms": costs.combined_ms,
            "split_latency_ms": costs.split_latency_ms,
            "combined_latency_ms": costs.combined_latency_ms,
            "max_latency_ms": None if math.isinf(bound_ms) else bound_ms,
            "within": choice.within,
            "numbers": metered.numbers,
        }


def _measured_parts(flow: CompiledFlow) -> tuple[ConsolidatePart, ...]:
    """Return the consolidate parts of the aggregates whose layout is chosen by measurement."""
    parts = (o for o in flow.operators if isinstance(o, ConsolidatePart))
    return tuple(part for part in parts if part.measured)


def _levels_more(flow: CompiledFlow, part: ConsolidatePart) -> int:
    """Return the number of levels of an epoch that only the two-phase layout has."""
    split, combined = (
        flow.with_plan(regrouped(flow, components_for(flow, part, layout)))
        for layout in ("split", "combined")
    )
    return split.levels - combined.levels


def _reason_text(name: str, metered: Metered, choice: Choice, max_latency_ms: float) -> str:
    """Return the measured costs that led to a layout, as text."""
    costs = metered.costs
    cpu = f"{costs.split_ms:.1f} ms of CPU split and {costs.combined_ms:.1f} ms combined"
    moved = f"{costs.migrations:.0f} key groups migrated"
    reason = f"{name} takes {cpu} over {metered.epochs} epochs, in which {moved}"
    if not math.isinf(max_latency_ms):
        exceeded = "" if choice.within else ", which neither meets"
        reason += (
            f"; migrations take {costs.split_latency_ms:.0f} ms split and "
            f"{costs.combined_latency_ms:.0f} ms combined, of {max_latency_ms:.0f} ms "
            f"allowed{exceeded}"
        )
    return reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseWindowState:
    """Change of the state of overlapping windows: shared panes, or a state per window."""

    operator: str
    duplicated: bool


class SharePanes:
    """Policy that prices shared panes against a state per window."""

    def __init__(self, meters: Mapping[str, PaneMeter]) -> None:  # operator → what its windows cost
        self._meters = meters
        self._hysteresis = Hysteresis()
        self._standing_proposals: dict[str, Proposal] = {}

    def observe(self, epoch: FlowEpoch) -> None:  # noqa: ARG002  the meters are told by the engine
        """Evaluate the windows whose period has ended; the engine adds to their meters."""
        for name, meter in self._meters.items():
            if not meter.is_over:
                continue
            self._standing_proposals.pop(name, None)
            counts, costs, before = meter.counts, meter.costs, meter.duplicated
            meter.begin()
            duplicated = is_duplicated_cheaper(counts, costs, duplicated=before)
            change = ChooseWindowState(operator=name, duplicated=duplicated)
            if not self._hysteresis.is_confirmed(name, change if duplicated != before else None):
                continue
            ms = {
                "shared_ms": counts.shared_ms(costs),
                "duplicated_ms": counts.duplicated_ms(costs),
            }
            self._standing_proposals[name] = Proposal(
                subject=f"windows of {name}",
                change=change,
                reason=f"{ms['shared_ms']:.1f} ms of CPU with shared panes and "
                f"{ms['duplicated_ms']:.1f} ms without",
                gain=abs(ms["shared_ms"] - ms["duplicated_ms"]),
                numbers=ms,
            )

    def propose(self, now_s: float) -> Iterator[Proposal]:  # noqa: ARG002
        """Yield the changes of the last evaluation until they are answered."""
        yield from tuple(self._standing_proposals.values())

    def answered(self, proposal: Proposal) -> None:
        """Drop a proposal that was carried out."""
        self._standing_proposals.pop(proposal.change.operator, None)
        self._hysteresis.reset(proposal.change.operator)
