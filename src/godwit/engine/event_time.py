"""Event time on the driver: watermarks of sources, and the windows that each epoch closes.

A source's watermark is the greatest event time of its rows, less its slack; it never falls.  Epoch
*e* closes windows by the watermarks that epoch *e - 1* left, and judges rows late by what earlier
epochs closed.  So an operator downstream of windows gets their rows before it closes its own, in
the same epoch; and late rows do not depend on lanes, retries or executors.

While key groups of an operator are suspended, neither it nor any operator downstream, also through
loops, closes windows: waiting rows do not become late.  Timers of operators that get these rows do
not fire in the epoch that processes them either, since timers fire before rows are processed.

The watermark of an operator is the minimum of those of the sources upstream of it; or, in a flow
with a watermark of the whole query (`CompiledFlow.query_watermark`), the lowest of all sources, or
the greatest, as in Spark.  That one is recorded, and a restart begins to watch the sources again:
the lowest waits until all of them had rows in this run.

Rows that wait in a feedback loop hold back the watermark of the loop's readers: it does not pass
the oldest of them. While the loop is empty, it follows the sources whose rows enter it.

A source that had no rows for its time-out, or whose input has ended, is *drained*: it holds back no
watermark, and once all sources of an operator are drained, windows with their rows are closed.

Source: timestamp punctuations and slack, Madsen et al. (Enorm) §4.2 and §6.2; late rows and
eviction as in Spark's `WatermarkTracker` and `IncrementalExecution`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from godwit.operators.hot_key_orders import SpreadOrders
from godwit.operators.hot_keys import Spreads
from godwit.operators.slots import Slots
from godwit.plan.compiled import SourceInput, source_of
from godwit.time.event_time import NO_ARRIVALS, Arrivals, Due, EpochTime
from godwit.time.grid import BEGINNING, END

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from godwit.engine.lane.messages import LaneReport
    from godwit.migration.state import ComponentView
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Event time after an epoch, as its commit record stores it; in microseconds."""

    # name of a watermark (`CompiledFlow.watermarks`) → the watermark
    watermarks: Mapping[str, int] = field(default_factory=dict)
    # name of a watermark → greatest event time seen of the rows that move it
    newest: Mapping[str, int] = field(default_factory=dict)
    # watermark of the whole query, in flows that have one and had rows of all sources
    query: int | None = None
    # state, as text → windows that end by then are closed
    closed: Mapping[str, int] = field(default_factory=dict)
    # operator → active slots of its key groups
    slots: Mapping[str, Slots] = field(default_factory=dict)
    # operator → its divided hot keys
    spreads: Mapping[str, Spreads] = field(default_factory=dict)
    # state, as text → greatest event time of its rows, for operators without source watermarks
    reached: Mapping[str, int] = field(default_factory=dict)
    # state, as text → event time since which closed windows are retained, and mark of which
    retained: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreamProgress:
    """Progress of a stream in event time, in microseconds."""

    watermark: int  # earlier rows are not expected
    newest: int  # greatest event time of its rows
    drained: bool  # all its sources are drained
    paused: bool  # an operator upstream closes nothing in this epoch
    resumes: bool  # its rows include rows of earlier epochs that waited upstream

    @classmethod
    def minimum(cls, streams: Sequence[_StreamProgress]) -> _StreamProgress:
        """Return the minimum event-time progress of several streams."""
        active = [stream for stream in streams if not stream.drained]
        return cls(
            watermark=min(stream.watermark for stream in active or streams),
            newest=max(stream.newest for stream in streams),
            drained=not active,
            paused=any(stream.paused for stream in streams),
            resumes=any(stream.resumes for stream in streams),
        )


class EventTimes:
    """Event time of a flow's sources and operators, over the epochs of a run.

    It has no clock: times are passed in.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        # after the last epoch, by present names; ``None`` for a new checkpoint
        times: Times | None,
        *,
        close_at_end: bool = True,  # close windows once the input has ended
    ) -> None:
        self._flow, self._close_at_end = flow, close_at_end
        self._times = _at_start(flow, times or Times())
        self._behind = {name: _upstream_of(flow, name) for name in flow.loops}
        self._held: Mapping[str, int] = {}  # loop → minimum event time of its waiting rows
        self._ahead_us = self._future_limits()
        self._heard_us: dict[str, int] = {}
        self._ended = False
        self._windowed = [o for o in flow.operators if o.over_event_time]
        self._timed = [o for o in flow.operators if o.has_timers]
        # operator → the operator that closes the same windows
        self._follows = {
            o.name: role.first
            for o in flow.operators
            if (role := o.two_phase) is not None and role.slot != 0
        }
        # Unknown after a start with state: the first epoch determines it.
        unknown = Due() if times is None else Due(event=BEGINNING, clock=BEGINNING)
        self._due = {operator.name: unknown for operator in self._timed}
        for operator in self._timed:
            if operator.due_by_watermark:
                closed = self._times.closed.get(str(operator.states[0]), BEGINNING)
                self._due[operator.name] = Due(event=closed)
        # operator → meter of its windows' costs, for operators that may share panes
        self.sharing = {
            o.name: meter
            for o in self._windowed
            if o.name not in self._follows and (meter := o.window_meter()) is not None
        }
        # operator → orders to divide its hot keys, for operators that can
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

    def hold_back(self, limits: Mapping[str, int]) -> None:
        """Hold back the watermark of each loop to the minimum event time of its waiting rows.

        `limits`: loop → that time.
        """
        self._held = limits

    def end_input(self) -> None:
        """Mark all sources as ended, so that their windows can close."""
        self._ended = self._close_at_end

    def epoch_times(
        self, *, clock_us: int, silence_us: int, components: Mapping[str, ComponentView]
    ) -> dict[str, EpochTime]:
        """Return the event time of each operator in the next epoch.

        `clock_us`: the driver's clock, in Unix time. `silence_us`: reading of a monotonic clock;
        differences of readings measure how long a source had no rows. `components`: component → how
        it runs in the epoch; a component that is missing counts as without suspended key groups and
        without waiting rows.
        """
        suspended = self._suspended_operators(components)
        resumed = self._resumed_operators(components)
        drained = self._idle_watermarks(silence_us)
        max_ahead_us = max((time.max_ahead_us for time in self._flow.times.values()), default=0)
        epoch_times: dict[str, EpochTime] = {}
        emitted: dict[str, _StreamProgress | None] = {}
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
                if not self._ended:  # a time far in the future would make all later rows late
                    reached = min(reached, clock_us + max_ahead_us)
                newest = max(arriving.newest, reached)
                drained_until = newest
                if newest > BEGINNING:
                    drained_until, newest = (
                        operator.emitted_by(newest),
                        operator.last_emitted(newest),
                    )
                if arriving.drained:
                    until = max(until, drained_until)
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
        since, which = self._times.retained.get(
            str(operator.states[0]), (closed, operator.kept_mark)
        )
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
                emitted[edge.upstream]
                if not isinstance(edge, SourceInput)
                else self._flow.times[edge.source].max_ahead_us
                if edge.source in self._flow.times and edge.source not in self._behind
                else END
                for edge in self._flow.inputs_of(operator.name)
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
        """Return the active slot of two-phase windows for each key group in the next epoch.

        ``None`` if the operator has no slots. `newest`: maximum event time so far.
        """
        role = operator.two_phase
        if role is None:
            return None
        slots = self._times.slots.get(operator.name) or Slots.of((), self._flow.num_key_groups)
        views = [
            components.get(self._flow.component_of(name).name) for name in (role.first, role.second)
        ]
        second = views[1]
        if second is None or second.takes is None:
            return slots  # in one component with others, slots never switch
        smooth = {key_group for view in views if view is not None for key_group in view.smooth}
        return slots.with_second(second.takes, smooth, newest, role.grid)

    def _hot_keys(
        self, operator: KeyedOperator, components: Mapping[str, ComponentView]
    ) -> Spreads | None:
        """Return an operator's hot keys that are divided in the next epoch.

        ``None`` if it has none.
        """
        orders = self.spreading.get(operator.name)
        if orders is None:
            return None
        spreads = self._times.spreads.get(operator.name) or Spreads()
        view = components.get(self._flow.component_of(operator.name).name)
        if operator.part_states and view is not None and (view.suspended or view.waiting):
            return spreads  # waiting rows of the parts would come after their merge
        reached = self._times.reached.get(str(operator.states[0]), BEGINNING)
        return orders.apply(spreads, reached)

    def _input_progress(
        self,
        operator: str,
        emitted: Mapping[str, _StreamProgress | None],
        drained: set[str],
        waiting: set[str],
    ) -> _StreamProgress | None:
        """Return the minimum event-time progress of an operator's inputs.

        ``None`` if an input has no event time. `emitted`: operator → progress of its output.
        `drained`: idle watermarks. `waiting`: operators with waiting rows, or whose waiting rows
        are processed in this epoch.
        """
        streams: list[_StreamProgress | None] = []
        for edge in self._flow.inputs_of(operator):
            if isinstance(edge, SourceInput) and edge.table:
                continue  # rows of a table have no event time
            if not isinstance(edge, SourceInput):
                progress = emitted[edge.upstream]
                if progress is not None:
                    progress = replace(progress, watermark=progress.watermark - edge.delay_us)
                streams.append(progress)
            elif edge.source in self._flow.times and edge.source in self._behind:
                streams.append(self._loop_progress(edge.source, drained, waiting))
            elif edge.source in self._flow.times:
                streams.append(self._source_progress(self._flow.watermark_of(edge), drained))
            else:
                streams.append(None)
        timed_streams = [progress for progress in streams if progress is not None]
        if not timed_streams or (
            len(timed_streams) < len(streams) and self._flow.query_watermark is None
        ):
            return None
        return _StreamProgress.minimum(timed_streams)

    def _source_progress(self, name: str, drained: set[str]) -> _StreamProgress:
        """Return the event-time progress of a source's rows.

        `name`: of their watermark. `drained`: idle watermarks.
        """
        watermark = self._times.watermarks.get(name, BEGINNING)
        if self._flow.query_watermark is not None:
            watermark = BEGINNING if self._times.query is None else self._times.query
        return _StreamProgress(
            watermark=watermark,
            newest=self._times.newest.get(name, BEGINNING),
            drained=name in drained,
            paused=False,
            resumes=False,
        )

    def _loop_progress(self, loop: str, drained: set[str], waiting: set[str]) -> _StreamProgress:
        """Return the event-time progress of a loop's rows, from the sources upstream of the loop.

        Rows that wait at an operator of the loop, or upstream of it, have not passed the loop yet:
        readers of the loop close nothing before these rows have passed or hold its watermark.
        `drained`, `waiting`: see `_input_progress`.
        """
        behind = self._behind[loop]
        progress = _StreamProgress.minimum(
            [self._source_progress(name, drained) for name in behind.watermarks]
        )
        newest = max(progress.newest, self._times.newest.get(loop, BEGINNING))
        progress = replace(
            progress,
            watermark=progress.watermark - behind.delay_us,
            newest=newest,
            paused=self._flow.loops[loop].holds_watermark
            and not behind.operators.isdisjoint(waiting),
        )
        if loop not in self._held:
            return progress
        watermark = min(progress.watermark, self._held[loop])
        return replace(progress, watermark=watermark, drained=False)

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
        """Return true if an epoch without input would close windows or fire timers.

        The parameters are those of `epoch_times`.
        """
        if self._flow.waits_for_input or not (self._windowed or self._timed):
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
            source_time = self._flow.times.get(source_of(name))
            if source_time is not None and name not in self._behind:
                source_watermark = time_us - source_time.slack_us
                watermarks[name] = max(watermarks.get(name, BEGINNING), source_watermark)
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
        retained = {
            str(windowed.states[0]): (epoch_times[windowed.name].kept_since, windowed.kept_mark)
            for windowed in self._windowed
            if windowed.kept_mark is not None
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
            query=_query_watermark(self._flow, self._times.query, watermarks),
            closed=closed,
            slots=slots,
            spreads=spreads,
            reached=reached,
            retained=retained,
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
            known_due = Due() if epoch_times[operator_.name].due else self._due[operator_.name]
            due = [
                work.next_due
                for report in reports
                for work in report.operators
                if work.operator == operator_.name
            ]
            self._due[operator_.name] = reduce(or_, due, known_due)
        for name, sharing in self.sharing.items():
            parts = (name, *(other for other, first in self._follows.items() if first == name))
            works = [
                work_.windows
                for report_ in reports
                for work_ in report_.operators
                if work_.operator in parts
            ]
            sharing.add_epoch(epoch_times[name], [work for work in works if work is not None])
        for name, orders in self.spreading.items():
            orders.committed(times.spreads.get(name) or Spreads())
        for name in self._max_event_times(reports):
            self._heard_us[name] = silence_us

    def _max_event_times(self, reports: Iterable[LaneReport]) -> dict[str, int]:
        """Return watermark name → maximum event time of its rows in this epoch."""
        arrivals = sum(event_times_of(reports).values(), NO_ARRIVALS)
        names = self._flow.watermarks
        return {name: us for number, us in arrivals.newest.items() for name in names[number]}

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
        for work in report.operators:
            if work.arrivals is not NO_ARRIVALS:
                arrivals[work.operator] = arrivals.get(work.operator, NO_ARRIVALS) + work.arrivals
    return arrivals


def _query_watermark(
    flow: CompiledFlow, before: int | None, watermarks: Mapping[str, int]
) -> int | None:
    """Return the watermark of the whole query, which never falls; ``None`` if there is none yet.

    `before`: after the epoch before. `watermarks`: of the sources.
    """
    if flow.query_watermark is None:
        return None
    calls = flow.query_watermark.calls
    greatest: dict[str, int] = {}
    for name in (name for names in flow.watermarks for name in names):
        if source_of(name) in flow.times:
            call = calls.get(source_of(name), name)
            watermark = watermarks.get(name, BEGINNING)
            greatest[call] = max(watermark, greatest.get(call, BEGINNING))
    choose = min if flow.query_watermark.policy == "min" else max
    chosen = choose(greatest.values(), default=BEGINNING)
    moved = max(chosen, BEGINNING if before is None else before)
    return None if moved == BEGINNING else moved


def _at_start(flow: CompiledFlow, times: Times) -> Times:
    """Return recorded times as a run begins with them."""
    if flow.query_watermark is None:
        return times
    # Records of older versions have those of the sources only.
    query = _query_watermark(flow, times.query, {} if times.query is not None else times.watermarks)
    return replace(times, watermarks={}, newest={}, query=query)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Behind:
    """Sources and operators upstream of the rows of a loop."""

    watermarks: tuple[str, ...]  # of the sources whose rows enter the loop
    operators: frozenset[str]  # on the way of these rows
    delay_us: int  # how far rows lag the watermarks


def _upstream_of(flow: CompiledFlow, loop: str) -> _Behind:
    """Return the sources and operators upstream of a loop's rows."""
    watermarks: dict[str, None] = {}
    edges = [edge for edge in flow.feedbacks if edge.loop == loop]
    pending = [edge.operator for edge in edges]
    seen = set(pending)
    while pending:
        for entry in flow.inputs_of(pending.pop()):
            above = [entry.upstream] if not isinstance(entry, SourceInput) else []
            if isinstance(entry, SourceInput) and entry.source in flow.loops:
                above = [edge.operator for edge in flow.feedbacks if edge.loop == entry.source]
            elif isinstance(entry, SourceInput) and entry.source in flow.times and not entry.table:
                watermarks[flow.watermark_of(entry)] = None
            pending += [name for name in above if name not in seen]
            seen.update(above)
    return _Behind(
        watermarks=tuple(watermarks),
        operators=frozenset(seen),
        delay_us=max((edge.delay_us for edge in edges), default=0),
    )
