"""Event time on the driver: watermarks of sources, and the windows that each epoch closes.

A source's watermark is the greatest event time of its rows, less its slack; it never falls.  Epoch
*e* closes windows by the watermarks that epoch *e - 1* left, and judges rows late by what earlier
epochs closed.  So an operator that is fed by windows gets their rows before it closes its own, in
the same epoch; and which rows count does not depend on lanes, retries or executors.

Where key groups of an operator are suspended, it closes nothing, and neither does anything behind
it, by way of loops too: rows that wait are late for nothing.  Timers of operators that these rows
come to do not fire in the epoch in which they go on either, since timers come before rows.

Where streams meet, the source that is furthest behind counts: the watermark of an operator is the
least of those of the sources that its rows descend from.

Rows that wait in a loop of feedback hold the watermark of what reads the loop: it does not pass the
oldest of them. While the loop is dry, it follows the sources whose rows go round in it.

A source that has fallen silent for its time-out, or whose input has ended, is *drained*: it holds
nobody back, and once all sources of an operator are, windows that hold their rows are over.

Source: timestamp punctuations and slack, Madsen et al. (Enorm) §4.2 and §6.2; late rows and
eviction as in Spark's `WatermarkTracker` and `IncrementalExecution`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from godwit.engine.sharing import PaneMeter
from godwit.engine.spreading import SpreadOrders
from godwit.operators.spreading import Spreads
from godwit.operators.windows.slots import Slots
from godwit.plan.compiled import SourceInput, source_of
from godwit.time.event_time import NO_ARRIVALS, Arrivals, Due, EpochTime
from godwit.time.grid import BEGINNING, END

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from godwit.engine.lane.messages import LaneReport
    from godwit.migration import ComponentView
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Event time after an epoch, as its commit record stores it; in microseconds."""

    # name of a watermark (`CompiledFlow.watermarks`) → the watermark
    watermarks: Mapping[str, int] = field(default_factory=dict)
    # name of a watermark → greatest event time seen of the rows that move it
    newest: Mapping[str, int] = field(default_factory=dict)
    # state, as text → windows that end by then are closed
    closed: Mapping[str, int] = field(default_factory=dict)
    # operator → which slots of its key groups take rows
    slots: Mapping[str, Slots] = field(default_factory=dict)
    # operator → its keys that are spread
    spreads: Mapping[str, Spreads] = field(default_factory=dict)
    # state, as text → greatest event time of the rows that came to it, where no watermark tells
    reached: Mapping[str, int] = field(default_factory=dict)
    # state, as text → event time since when windows stay for later ones, and which do
    kept: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Front:
    """Progress of a stream in event time, in microseconds."""

    watermark: int  # no earlier rows are expected of it
    newest: int  # greatest event time of its rows
    drained: bool  # whether none of its sources is expected to have rows
    paused: bool  # whether it comes from an operator that closes nothing in this epoch
    resumes: bool  # whether rows of earlier epochs are among its rows, which waited above

    @classmethod
    def minimum(cls, fronts: Sequence[_Front]) -> _Front:
        """Return the minimum event-time progress of several streams."""
        expected = [front for front in fronts if not front.drained]
        return cls(
            watermark=min(front.watermark for front in expected or fronts),
            newest=max(front.newest for front in fronts),
            drained=not expected,
            paused=any(front.paused for front in fronts),
            resumes=any(front.resumes for front in fronts),
        )


class EventTimes:
    """Event time of a flow's sources and operators, over the epochs of a run.

    It has no clock: times are passed in.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        # as the last epoch left them, by the names of today; ``None`` of a new checkpoint
        times: Times | None,
        *,
        close_at_end: bool = True,  # whether windows are over once the input has ended
    ) -> None:
        self._flow, self._close_at_end = flow, close_at_end
        self._times = Times() if times is None else times
        self._behind = {name: _upstream_of(flow, name) for name in flow.loops}
        self._held: Mapping[str, int] = {}  # loop → least event time of the rows that wait in it
        self._ahead_us = self._future_limits()
        self._heard_us: dict[str, int] = {}
        self._ended = False
        self._windowed = [o for o in flow.operators if o.over_event_time]
        self._timed = [o for o in flow.operators if o.has_timers]
        # Operators that close the same windows as another one, and its name.
        self._follows = {
            o.name: role.first
            for o in flow.operators
            if (role := o.two_phase) is not None and role.slot != 0
        }
        # Not known after a start, unless there is no state: the first epoch looks for it.
        unknown = Due() if times is None else Due(event=BEGINNING, clock=BEGINNING)
        self._due = {operator.name: unknown for operator in self._timed}
        # operator → what its windows cost, of those that may share panes or not, and which they do
        self.sharing = {
            o.name: PaneMeter(*windows)
            for o in self._windowed
            if (windows := o.shared_windows) is not None and o.name not in self._follows
        }
        # operator → orders to spread hot keys of it, of those that may
        self.spreading = {
            o.name: SpreadOrders(o, self._times.spreads.get(o.name) or Spreads())
            for o in flow.operators
            if o.max_parts
        }

    @property
    def times(self) -> Times:
        """Watermarks, and times up to which windows are closed, after the last committed epoch."""
        return self._times

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the components that `epoch_times` requires."""
        return tuple(component.name for component in self._flow.components)

    def regrouped(self, flow: CompiledFlow) -> None:
        """Continue with the flow under another physical plan."""
        self._flow = flow

    def hold_back(self, held: Mapping[str, int]) -> None:
        """Hold back the watermark of each loop to the minimum event time of its waiting rows.

        `held`: loop → that time.
        """
        self._held = held

    def end_input(self) -> None:
        """Mark all sources as ended, so that their windows can close."""
        self._ended = self._close_at_end

    def epoch_times(
        self, *, clock_us: int, silence_us: int, components: Mapping[str, ComponentView]
    ) -> dict[str, EpochTime]:
        """Return the event time of each operator in the next epoch.

        `clock_us`: the driver's clock, in Unix time. `silence_us`: reading of a monotonic clock;
        differences of readings tell how long a source had no rows. `components`: component → how it
        runs in the epoch; a component that is missing counts as without suspended key groups and
        without waiting rows.
        """
        suspended = self._suspended_operators(components)
        resumed = self._resumed_operators(components)
        drained = self._idle_watermarks(silence_us)
        furthest = max((time.max_ahead_us for time in self._flow.times.values()), default=0)
        epoch_times: dict[str, EpochTime] = {}
        emitted: dict[str, _Front | None] = {}
        for operator in self._flow.operators:
            arriving = self._input_progress(operator.name, emitted, drained, suspended | resumed)
            if operator.name in self._follows:
                first = self._follows[operator.name]
                emitted[operator.name] = emitted[first]
                epoch_times[operator.name] = epoch_times[first]
                continue
            paused = operator.name in suspended or (arriving is not None and arriving.paused)
            resumes = operator.name in resumed or (arriving is not None and arriving.resumes)
            # Timers fire before rows, windows close behind them.
            paused = paused or (resumes and operator.has_timers)
            time = EpochTime(
                clock=clock_us,
                not_after=tuple(
                    min(clock_us + ahead, END) for ahead in self._ahead_us[operator.name]
                ),
                spreads=self._hot_keys(operator, components),
            )
            if arriving is not None:
                until = arriving.watermark
                state = str(operator.states[0])
                reached = self._times.reached.get(state, BEGINNING)
                if not self._ended:  # a time far ahead would make whatever comes later late
                    reached = min(reached, clock_us + furthest)
                newest = max(arriving.newest, reached)
                over = newest
                if newest > BEGINNING:
                    over, newest = operator.emitted_by(newest), operator.last_emitted(newest)
                if arriving.drained:
                    until = max(until, over)
                closed = self._times.closed.get(state, BEGINNING)
                sharing = self.sharing.get(operator.name)
                time = replace(
                    time,
                    slots=self._active_slots(operator, arriving.newest, components),
                    closed=closed,
                    until=closed if paused else max(closed, until),
                    duplicated=sharing is not None and sharing.duplicated,
                    kept_since=self._retained_since(operator, closed),
                    ended=self._ended and arriving.drained and not paused,
                )
                arriving = replace(
                    arriving,
                    watermark=arriving.watermark - operator.output_delay_us,
                    newest=newest,
                    paused=paused,
                    resumes=resumes,
                )
            emitted[operator.name] = arriving
            epoch_times[operator.name] = self._allow_timers(operator, time, paused=paused)
        return epoch_times

    def _retained_since(self, operator: KeyedOperator, closed: int) -> int:
        """Return the event time since which an operator retains closed windows for later ones.

        `closed`: time up to which windows are closed.
        """
        if operator.kept_mark is None:
            return END
        since, which = self._times.kept.get(str(operator.states[0]), (closed, operator.kept_mark))
        return since if which == operator.kept_mark else closed

    def _future_limits(self) -> dict[str, list[int]]:
        """Return operator → for each input, the event time above which rows are too far ahead.

        The limits are those of the sources. Rows emitted by an operator over event time have no
        limit: they were checked by the clock of an earlier epoch, and a window may end after it.
        """
        ahead: dict[str, list[int]] = {}
        emitted: dict[str, int] = {}
        for operator in self._flow.operators:
            of_inputs = ahead[operator.name] = [
                emitted[of.upstream]
                if not isinstance(of, SourceInput)
                else self._flow.times[of.source].max_ahead_us
                if of.source in self._flow.times and of.source not in self._behind
                else END
                for of in self._flow.inputs_of(operator.name)
            ]
            tables = operator.broadcast_inputs
            ends = [end for number, end in enumerate(of_inputs) if number not in tables]
            emitted[operator.name] = END if operator.over_event_time else max(ends)
        return ahead

    def _suspended_operators(self, components: Mapping[str, ComponentView]) -> set[str]:
        """Return operators with suspended key groups; of two-phase windows, both phases."""
        suspended = {
            operator.name
            for component in self._flow.components
            if component.name in components and components[component.name].suspended
            for operator in component.operators
        }
        return suspended | {first for other, first in self._follows.items() if other in suspended}

    def _resumed_operators(self, components: Mapping[str, ComponentView]) -> set[str]:
        """Return the operators that process waiting rows of earlier epochs in this epoch."""
        return {
            operator.name
            for component in self._flow.components
            if component.name in components and components[component.name].consume
            for operator in component.operators
        }

    def _active_slots(
        self,
        operator: KeyedOperator,
        newest: int,
        components: Mapping[str, ComponentView],
    ) -> Slots | None:
        """Return which slot of two-phase windows takes rows of each key group in the next epoch.

        ``None`` if the operator has no slots. `newest`: maximum event time so far.
        """
        role = operator.two_phase
        if role is None:
            return None
        slots = self._times.slots.get(operator.name) or Slots.of((), self._flow.num_key_groups)
        plans = [
            components.get(self._flow.component_of(name).name) for name in (role.first, role.second)
        ]
        second = plans[1]
        if second is None or second.takes is None:
            return slots  # in one component with others, nothing can turn
        smooth = {g for plan in plans if plan is not None for g in plan.smooth}
        return slots.with_second(second.takes, smooth, newest, role.grid)

    def _hot_keys(
        self, operator: KeyedOperator, components: Mapping[str, ComponentView]
    ) -> Spreads | None:
        """Return an operator's hot keys that are divided in the next epoch.

        ``None``: it has none.
        """
        orders = self.spreading.get(operator.name)
        if orders is None:
            return None
        spreads = self._times.spreads.get(operator.name) or Spreads()
        plan = components.get(self._flow.component_of(operator.name).name)
        if operator.part_states and plan is not None and (plan.suspended or plan.waiting):
            return spreads  # rows of the parts wait, and would come after these were merged
        reached = self._times.reached.get(str(operator.states[0]), BEGINNING)
        return orders.apply(spreads, reached)

    def _input_progress(
        self,
        operator: str,
        emitted: Mapping[str, _Front | None],
        drained: set[str],
        waiting: set[str],
    ) -> _Front | None:
        """Return the minimum event-time progress of an operator's inputs.

        ``None`` if an input has no event time. `emitted`: operator → progress of its output.
        `drained`: idle watermarks. `waiting`: operators whose rows wait, or waited and go on in
        this epoch.
        """
        fronts = []
        for of in self._flow.inputs_of(operator):
            if isinstance(of, SourceInput) and of.table:
                continue  # a table is what it is, whenever its rows happened
            if not isinstance(of, SourceInput):
                front = emitted[of.upstream]
                if front is not None:
                    front = replace(front, watermark=front.watermark - of.delay_us)
                fronts.append(front)
            elif of.source in self._flow.times and of.source in self._behind:
                fronts.append(self._loop_progress(of.source, drained, waiting))
            elif of.source in self._flow.times:
                fronts.append(self._source_progress(self._flow.watermark_of(of), drained))
            else:
                return None
        known = [front for front in fronts if front is not None]
        return None if len(known) < len(fronts) else _Front.minimum(known)

    def _source_progress(self, name: str, drained: set[str]) -> _Front:
        """Return the event-time progress of a source's rows.

        `name`: of their watermark. `drained`: idle watermarks.
        """
        return _Front(
            watermark=self._times.watermarks.get(name, BEGINNING),
            newest=self._times.newest.get(name, BEGINNING),
            drained=name in drained,
            paused=False,
            resumes=False,
        )

    def _loop_progress(self, loop: str, drained: set[str], waiting: set[str]) -> _Front:
        """Return the event-time progress of a loop's rows, from the sources upstream of the loop.

        Rows that wait at an operator of the loop, or upstream of it, have yet to go round: nothing
        that reads the loop closes before they have, or are among the rows that hold the watermark.
        `drained`, `waiting`: see `_input_progress`.
        """
        behind = self._behind[loop]
        front = _Front.minimum([self._source_progress(name, drained) for name in behind.watermarks])
        newest = max(front.newest, self._times.newest.get(loop, BEGINNING))
        front = replace(
            front,
            watermark=front.watermark - behind.delay_us,
            newest=newest,
            paused=self._flow.loops[loop].holds_watermark
            and not behind.operators.isdisjoint(waiting),
        )
        if loop not in self._held:
            return front
        watermark = min(front.watermark, self._held[loop])
        return replace(front, watermark=watermark, drained=False)

    def _allow_timers(self, operator: KeyedOperator, time: EpochTime, *, paused: bool) -> EpochTime:
        """Return `time` with the flag that timers may fire; unchanged if windows are `paused`."""
        due = self._due.get(operator.name)
        if due is None or paused:
            return time
        return replace(time, due=due.is_due(time))

    def is_due(
        self,
        *,
        clock_us: int,
        silence_us: int,
        components: Mapping[str, ComponentView],
    ) -> bool:
        """Return whether an epoch would close windows or fire timers even if it had no input.

        The parameters are those of `epoch_times`.
        """
        if not self._windowed and not self._timed:
            return False
        epoch_times = self.epoch_times(
            clock_us=clock_us, silence_us=silence_us, components=components
        )
        return any(
            operator.closes(epoch_times[operator.name]) for operator in self._windowed
        ) or any(epoch_times[operator.name].due for operator in self._timed)

    def after(self, epoch_times: Mapping[str, EpochTime], reports: Iterable[LaneReport]) -> Times:
        """Compute watermarks and closed times after an epoch from its lanes' reports."""
        newest = dict(self._times.newest)
        for name, time_us in self._max_event_times(reports).items():
            if time_us > newest.get(name, BEGINNING):
                newest[name] = time_us
        watermarks = dict(self._times.watermarks)
        for name, time_us in newest.items():
            of_source = self._flow.times.get(source_of(name))
            if of_source is not None and name not in self._behind:
                moved = time_us - of_source.slack_us
                watermarks[name] = max(watermarks.get(name, BEGINNING), moved)
        closed = dict(self._times.closed)
        for operator_ in (*self._windowed, *self._timed):
            until = epoch_times[operator_.name].until
            if until > BEGINNING:
                closed[str(operator_.states[0])] = until
        arrived = event_times_of(reports)
        reached = dict(self._times.reached)
        for operator_ in self._windowed:
            time_us = arrived.get(operator_.name, NO_ARRIVALS).reached
            if time_us > BEGINNING:
                state = str(operator_.states[0])
                reached[state] = max(time_us, reached.get(state, BEGINNING))
        kept = {
            str(o.states[0]): (epoch_times[o.name].kept_since, o.kept_mark)
            for o in self._windowed
            if o.kept_mark is not None
        }
        slots = dict(self._times.slots)
        for name, time in epoch_times.items():
            if time.slots is not None and name not in self._follows:
                slots[name] = time.slots.without_expired(time.until)
        spreads = dict(self._times.spreads)
        for name, time in epoch_times.items():
            if time.spreads is not None:
                spreads[name] = time.spreads.expired_at(time.until)
        return Times(
            watermarks=watermarks,
            newest=newest,
            closed=closed,
            slots=slots,
            spreads=spreads,
            reached=reached,
            kept=kept,
        )

    def after_commit(
        self,
        times: Times,
        epoch_times: Mapping[str, EpochTime],
        reports: Sequence[LaneReport],
        silence_us: int,
    ) -> None:
        """Advance to the times of an epoch that was committed; `silence_us`: see `epoch_times`."""
        self._times = times
        for operator_ in self._timed:
            before = Due() if epoch_times[operator_.name].due else self._due[operator_.name]
            due = [
                of.next_due
                for report in reports
                for of in report.operators
                if of.operator == operator_.name
            ]
            self._due[operator_.name] = reduce(or_, due, before)
        for name, sharing in self.sharing.items():
            parts = (name, *(other for other, first in self._follows.items() if first == name))
            works = [d.windows for r in reports for d in r.operators if d.operator in parts]
            sharing.add_epoch(epoch_times[name], [work for work in works if work is not None])
        for name, orders in self.spreading.items():
            orders.committed(times.spreads.get(name) or Spreads())
        for name in self._max_event_times(reports):
            self._heard_us[name] = silence_us

    def _max_event_times(self, reports: Iterable[LaneReport]) -> dict[str, int]:
        """Return watermark name → maximum event time of its rows in this epoch."""
        arrivals = sum(event_times_of(reports).values(), NO_ARRIVALS)
        names = self._flow.watermarks
        return {name: of for number, of in arrivals.newest.items() for name in names[number]}

    def _idle_watermarks(self, silence_us: int) -> set[str]:
        """Return the names of watermarks whose sources are idle, or at the end of their input."""
        drained = set()
        for name in (name for names in self._flow.watermarks for name in names):
            time = self._flow.times.get(source_of(name))
            since = silence_us - self._heard_us.setdefault(name, silence_us)
            if time is None:
                continue
            if self._ended or (time.idle_us is not None and since >= time.idle_us):
                drained.add(name)
        return drained


def event_times_of(reports: Iterable[LaneReport]) -> dict[str, Arrivals]:
    """Return operator → event times of its rows, and counts of left-out rows, over all reports."""
    arrivals: dict[str, Arrivals] = {}
    for report in reports:
        for of in report.operators:
            if of.arrivals is not NO_ARRIVALS:
                arrivals[of.operator] = arrivals.get(of.operator, NO_ARRIVALS) + of.arrivals
    return arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class _Behind:
    """Sources and operators that the rows of a loop descend from."""

    watermarks: tuple[str, ...]  # of the sources whose rows go round in it
    operators: frozenset[str]  # that these rows pass
    delay_us: int  # how far rows lag the watermarks


def _upstream_of(flow: CompiledFlow, loop: str) -> _Behind:
    """Return the sources and operators upstream of a loop's rows."""
    found: dict[str, None] = {}
    edges = [edge for edge in flow.feedbacks if edge.loop == loop]
    pending = [edge.operator for edge in edges]
    seen = set(pending)
    while pending:
        for of in flow.inputs_of(pending.pop()):
            above = [of.upstream] if not isinstance(of, SourceInput) else []
            if isinstance(of, SourceInput) and of.source in flow.loops:
                above = [edge.operator for edge in flow.feedbacks if edge.loop == of.source]
            elif isinstance(of, SourceInput) and of.source in flow.times and not of.table:
                found[flow.watermark_of(of)] = None
            pending += [name for name in above if name not in seen]
            seen.update(above)
    return _Behind(
        watermarks=tuple(found),
        operators=frozenset(seen),
        delay_us=max((edge.delay_us for edge in edges), default=0),
    )
