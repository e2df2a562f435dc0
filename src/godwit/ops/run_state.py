"""The reducer of the journal: from the state of a run and an entry to the next state.

`reduced` is a pure function, and the only reader of entries: `godwit top`, the live page (also when
scrubbed back), a report and the demo are views of the same `RunState`.

Invariants: the state is bounded, however many entries there were (epochs are merged into at most
`MAX_POINTS` points, lists keep their ends), and no entry can break it: an entry of another version,
damaged or forged is left out, and all values are finite, short and printable
(`godwit.ops.entries`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from godwit.model.events import DECISIONS, LoadMeasured, event_from_dict
from godwit.model.key_groups import MAX_NUM_KEY_GROUPS
from godwit.ops.entries import (
    EventLine,
    count,
    event_line,
    finite,
    items,
    mapping,
    number,
    text,
    unix_time,
)
from godwit.ops.heat import PlacesOfGroups, moved_placement, streamed_placement
from godwit.ops.liveness import LIFECYCLE
from godwit.ops.stories import Measurements, story_of
from godwit.ops.stories import judged as judged_story
from godwit.placement.preview import (
    DEFAULT_BANDWIDTH,
    DEFAULT_CHANGED_SHARE,
    DEFAULT_FETCHED_SHARE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.ops.stories import Story

MAX_POINTS: Final = 720
_MAX_DECISIONS: Final = 200
_MAX_EVENTS: Final = 100
_MAX_MOVES: Final = 100
_MAX_NAMES: Final = 500  # components, edges, sources, sinks, executors
_MAX_HOT_KEYS: Final = 10  # of each operator
_MAX_GROUPS: Final = MAX_NUM_KEY_GROUPS
_EPOCHS_BEFORE: Final = 16  # by whose median a pause is measured
_FURTHEST: Final = 1_000  # epochs that a figure may be late by, and another early
_ELSEWHERE: Final = DECISIONS | {"EpochCommitted", "LoadMeasured"}
_RATE_S: Final = 10.0
_LATENCY: Final = ("p50", "p95", "p99", "max")
_SCALINGS: Final = ("ScaledOut", "ScaledIn")
_CHANGES: Final = (*_SCALINGS, "RebalancingStarted")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorAt:
    """An executor in an epoch."""

    name: str
    lanes: int
    draining: bool
    lost: bool
    key_groups: int  # of all components
    busy_ms: float  # time that its lanes were busy with key groups
    cpu_ms: float  # CPU time that they spent on them


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAt:
    """A source as of its last figures."""

    name: str  # of the flow's source; empty where only its description is known
    description: str
    behind: int | None  # rows that it has and no epoch has read
    # as Spark reports them: rates, and metrics of the connector
    input_rows_per_s: float | None = None
    processed_rows_per_s: float | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Figures of one epoch, in addition to the time series; scrubbing returns to it."""

    epoch: int = -1
    at_s: float = 0.0
    executors: tuple[ExecutorAt, ...] = ()
    executors_left_out: int = 0
    rows_in: int = 0  # source rows of the epoch
    # p50, p95, p99, max → milliseconds from arrival to delivery; without those that are not known
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    # rows: source, component and sink → rows of the epoch; edges: (from, to) of operators → rows
    source_rows: Mapping[str, int] = field(default_factory=dict)
    component_rows: Mapping[str, int] = field(default_factory=dict)
    sink_rows: Mapping[str, int] = field(default_factory=dict)
    edge_rows: Mapping[tuple[str, str], int] = field(default_factory=dict)
    sources: tuple[SourceAt, ...] = ()
    watermarks: Mapping[str, float] = field(default_factory=dict)  # name → Unix time
    hot_keys: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # rows left out since the first entry: (operator or source, reason) → rows
    left_out: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # component → bytes of its state
    state_bytes: Mapping[str, int] = field(default_factory=dict)
    # with a bound on the memory of state: bytes of the tables, key groups whose entries left them
    # in the epoch, and keys whose entries came back
    table_bytes: int = 0
    evicted: int = 0
    fetched: int = 0
    # key groups: being warmed, still to be moved, with rows that wait, that do not run
    in_flight: int = 0
    planned: int = 0
    waiting: int = 0
    suspended: int = 0
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    # kind → requests of the epoch to the object store of the checkpoint
    requests: Mapping[str, int] = field(default_factory=dict)
    # component → where its key groups are, and key group → executor that warms it
    placements: Mapping[str, PlacesOfGroups] = field(default_factory=dict)
    warming: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    # loads of key groups, as the journal has them (packed); decoded only where they are drawn
    loads: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Consecutive epochs: a point in a time series."""

    epoch: int  # the last of them
    epochs: int = 1  # how many
    at_s: float  # when the last one ended, in Unix time
    rows_in: int
    rows_out: int
    took_ms: float  # the longest
    busy_s: float  # all epochs together
    # latency of rows: the mean of p50, by rows, and the greatest p99
    p50_ms: float | None
    p99_ms: float | None
    backlog: int | None  # rows that sources had, at the end
    written_bytes: int = 0  # changelog and snapshots
    commit_ms: float = 0.0  # the longest
    state_bytes: int | None = None
    left_out: int = 0
    waiting: int  # key groups, the most at once
    executors: int
    frame: Frame  # of the last epoch

    def merged(self, later: Point) -> Point:
        """Return this point merged with the one that follows it."""
        rows = self.rows_in + later.rows_in
        if self.p50_ms is None or later.p50_ms is None:
            p50_ms = later.p50_ms if self.p50_ms is None else self.p50_ms
        else:
            share = self.rows_in / rows if rows else 0.5
            p50_ms = share * self.p50_ms + (1 - share) * later.p50_ms
        tails = [ms for ms in (self.p99_ms, later.p99_ms) if ms is not None]
        return replace(
            later,
            epochs=self.epochs + later.epochs,
            rows_in=rows,
            rows_out=self.rows_out + later.rows_out,
            took_ms=max(self.took_ms, later.took_ms),
            busy_s=self.busy_s + later.busy_s,
            p50_ms=p50_ms,
            p99_ms=max(tails, default=None),
            written_bytes=self.written_bytes + later.written_bytes,
            commit_ms=max(self.commit_ms, later.commit_ms),
            left_out=self.left_out + later.left_out,
            waiting=max(self.waiting, later.waiting),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDecision:
    """A decision of the controller, with the expected and the measured figure."""

    at_s: float
    epoch: int
    kind: str
    line: str
    figure: str = ""  # of which `expected` and `measured` are
    before: float | None = None
    expected: float | None = None
    measured: float | None = None
    verdict: str = ""
    judged: int | None = None  # epoch of the judgement
    number: tuple[int, int] | None = None  # executors before and after, of a scaling
    migrations: frozenset[str] = frozenset()
    cost_s: float = 0.0  # time that their copies take, as the controller estimated it
    story: Story  # in plain words


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """Key groups that move or recover: a migration, or a recovery after the loss of an executor."""

    id: str
    component: str
    strategy: str
    moves: int
    state_bytes: int
    began_s: float
    began_epoch: int
    ended_s: float | None = None
    ended_epoch: int | None = None
    ended: str = ""  # how: ``"finished"``, ``"cancelled"``
    moved: int = 0
    # predicted_s: pause by size, bandwidth and strategy (`godwit.placement.preview`); pause_s:
    # measured so far: rows that waited for a copy, or the longer epoch at a switch
    predicted_s: float | None = None
    pause_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Everything that is shown about a run, as of the last entry."""

    flow: Mapping[str, Any] = field(default_factory=dict)  # `godwit.plan.explain`; empty: not known
    last_word: EventLine | None = None  # the last event of the query's life
    last_s: float | None = None
    resumed_after: int = -1  # last epoch before this run of the query
    measured: EventLine | None = None  # the controller's last measurement
    measurements: Measurements = field(default_factory=Measurements)  # since its last change
    frame: Frame = field(default_factory=Frame)  # as of now
    points: tuple[Point, ...] = ()
    step: int = 1  # epochs of a point
    decisions: tuple[ShownDecision, ...] = ()
    decision_lines: tuple[EventLine, ...] = ()  # decisions, and later judgements of them
    movements: tuple[Movement, ...] = ()
    events: tuple[EventLine, ...] = ()
    lost: int = 0  # entries that the writer had to drop
    recent_ms: tuple[float, ...] = ()  # durations of the last epochs
    switched: frozenset[str] = frozenset()  # components whose next epoch has another assignment
    suspended_s: Mapping[str, float] = field(default_factory=dict)  # component → since when
    copied: tuple[float, float] = (0.0, 0.0)  # bytes and seconds of background copies so far


def reduced(state: RunState, entry: Mapping[str, Any]) -> RunState:
    """Return the page's state after one more entry of the journal."""
    for kind, values in islice(entry.items(), 1):
        reduce = _REDUCERS.get(kind)
        if reduce is not None and isinstance(values, dict):
            with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                return reduce(state, values)  # an error means a forged entry
    return state


# -- epochs ---------------------------------------------------------------------------------------


def _apply_progress(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state after a journal entry ``progress``: with the figures of an epoch added."""
    took = {name: number(item) for name, item in _first_pairs(values.get("durationMs"))}
    duration_ms = took.get("epoch", 0.0)
    latency = mapping(values.get("latencyMs"))
    left_out = dict(state.frame.left_out)
    late = 0
    for operator, item in _first_pairs(values.get("leftOutRows")):
        for reason in ("late", "ahead", "untimed"):
            late += _add_rows(left_out, (operator, reason), mapping(item).get(reason))
    sink_rows = {sink: count(rows) for sink, rows in _first_pairs(values.get("sinkRows"))}
    for sink, rows in sink_rows.items():
        if sink.endswith("_rejects"):
            late += _add_rows(left_out, (sink.removesuffix("_rejects"), "rejected"), rows)
    executors, more = _executors_at(state, values)
    state_bytes = {name: count(item) for name, item in _first_pairs(values.get("totalStateBytes"))}
    frame = replace(
        state.frame,
        epoch=count(values.get("epoch")),
        at_s=unix_time(values.get("timestamp")) + duration_ms / 1e3,
        executors=executors,
        executors_left_out=more,
        rows_in=count(values.get("numInputRows")),
        latency_ms=_latency_ms(latency),
        source_rows={
            name: count(mapping(item).get("rows"))
            for name, item in _first_pairs(latency.get("sources"))
        },
        component_rows={
            **{name: 0 for name, _ in _first_pairs(values.get("keyGroups"))},
            **{
                name: count(mapping(item).get("rows"))
                for name, item in _first_pairs(values.get("loads"))
            },
        },
        sink_rows=sink_rows,
        edge_rows={
            (text(mapping(item).get("from")), text(mapping(item).get("to"))): count(
                mapping(item).get("rows")
            )
            for item in items(values.get("streams"), _MAX_NAMES)
        },
        watermarks={name: unix_time(time) for name, time in _first_pairs(values.get("watermarks"))},
        hot_keys={
            operator: {
                text(key): number(share)
                for key, share in islice(mapping(item).items(), _MAX_HOT_KEYS)
            }
            for operator, item in _first_pairs(values.get("hotKeys"))
        },
        left_out=left_out,
        state_bytes=state_bytes or state.frame.state_bytes,
        table_bytes=count(values.get("stateTableBytes")),
        evicted=count(values.get("evictedKeyGroups")),
        fetched=count(values.get("fetchedKeys")),
        in_flight=count(values.get("inFlightKeyGroups")),
        planned=count(values.get("plannedMoves")),
        waiting=count(values.get("waitingKeyGroups")),
        suspended=count(values.get("suspendedKeyGroups")),
        phases_ms={phase: ms for phase, ms in took.items() if phase != "epoch"},
        requests={
            kind: count(number)
            for kind, number in _first_pairs(mapping(values.get("requests")).get("epoch"))
        },
    )
    point = _point_of(
        frame,
        took_ms=duration_ms,
        rows_in=frame.rows_in,
        rows_out=count(values.get("numOutputRows")),
        written_bytes=count(values.get("changelogBytes")) + count(values.get("snapshotBytes")),
        commit_ms=took.get("commit", 0.0),
        state_bytes=sum(state_bytes.values()) if state_bytes else None,
        left_out=late,
        waiting=frame.waiting,
    )
    return _with_epoch(state, point)


def rows_per_s(points: tuple[Point, ...]) -> float:
    """Return the source rows per second over the last seconds in which there were epochs."""
    if not points:
        return 0.0
    end_s = points[-1].at_s
    recent = [p for p in points[-64:] if 0 <= end_s - p.at_s <= _RATE_S]
    # A point may be of many epochs, and epochs may be far apart: only between the ends of two
    # points are both rows and time known.
    if len(recent) < 2:
        recent = [*points[-2:]]
    span_s = end_s - recent[0].at_s
    if span_s > 0:
        return sum(p.rows_in for p in recent[1:]) / span_s
    return points[-1].rows_in / max(points[-1].busy_s, 1e-3)


def _latency_ms(values: Any) -> dict[str, float]:
    """Return figure → milliseconds, of an epoch's latency; missing figures are left out."""
    figures = {name: finite(mapping(values).get(name)) for name in _LATENCY}
    return {name: ms for name, ms in figures.items() if ms is not None}


def _point_of(frame: Frame, *, took_ms: float, **figures: Any) -> Point:
    """Return the point of one epoch; `figures`: those that the frame does not have."""
    return Point(
        epoch=frame.epoch,
        at_s=frame.at_s,
        took_ms=took_ms,
        busy_s=took_ms / 1e3,
        p50_ms=frame.latency_ms.get("p50"),
        p99_ms=frame.latency_ms.get("p99"),
        backlog=_backlog(frame.sources),
        executors=len(frame.executors) + frame.executors_left_out,
        frame=frame,
        **figures,
    )


def _backlog(sources: tuple[SourceAt, ...]) -> int | None:
    """Return the rows that no epoch has read yet; ``None`` if no source reports them."""
    known_backlogs = [source.behind for source in sources if source.behind is not None]
    return sum(known_backlogs) if known_backlogs else None


def _points_before(points: tuple[Point, ...], epoch: int) -> tuple[Point, ...] | None:
    """Return the points before an epoch; ``None`` if it has a point already.

    Epochs far ahead of those before and after them are invalid, and hide no others.
    """
    if not points or epoch > points[-1].epoch:
        return points
    before = tuple(point for point in points if point.epoch < epoch)
    is_invalid = points[len(before)].epoch - epoch > _FURTHEST and (before or len(points) == 1)
    return before if is_invalid else None


def _with_epoch(state: RunState, point: Point) -> RunState:
    """Return the state with an epoch's point, and the pauses of migrations that end with it.

    An epoch that has a point already changes nothing.
    """
    points_before = _points_before(state.points, point.epoch)
    if points_before is None:
        return state
    points, step = (*points_before, point), state.step
    if len(points) > 1 and points[-2].epochs < step:
        points = (*points[:-2], points[-2].merged(point))
    if len(points) > MAX_POINTS:
        pairs = [points[start : start + 2] for start in range(0, len(points), 2)]
        points = tuple(pair[0].merged(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs)
        step *= 2
    median_ms = median(state.recent_ms) if state.recent_ms else point.took_ms
    pause_s = max(0.0, point.took_ms - median_ms) / 1e3
    movements = state.movements
    if state.switched:
        movements = tuple(
            replace(movement, pause_s=max(movement.pause_s or 0.0, pause_s))
            # An epoch's figures come after its delivery, and the end of a migration before it.
            if movement.component in state.switched
            and (
                movement.ended_s is None
                or (movement.ended == "finished" and movement.ended_epoch == point.epoch)
            )
            else movement
            for movement in movements
        )
    movements = tuple(
        replace(
            movement,
            pause_s=pause_s,
            moved=movement.moves,
            ended="finished",
            ended_s=point.at_s,
            ended_epoch=point.epoch,
        )
        if _recovers_on_demand(state, movement) and point.epoch > movement.began_epoch
        else movement
        for movement in movements
    )
    return replace(
        state,
        frame=point.frame,
        points=points,
        step=step,
        movements=movements,
        switched=frozenset(),
        last_s=max(state.last_s or 0.0, point.at_s),
        recent_ms=(*state.recent_ms, point.took_ms)[-_EPOCHS_BEFORE:],
    )


def _executors_at(state: RunState, values: Mapping[str, Any]) -> tuple[tuple[ExecutorAt, ...], int]:
    """Return the figures of executors in an epoch, and the number of omitted executors."""
    listed = _first_pairs(values.get("executors"))
    owned: dict[str, int] = {}
    for _, counts in _first_pairs(values.get("keyGroups")):
        for name, item in islice(mapping(counts).items(), _MAX_NAMES):
            owned[text(name)] = owned.get(text(name), 0) + count(item)
    lost = {e.name for e in state.frame.executors if e.lost}
    executors = tuple(
        ExecutorAt(
            name=name,
            lanes=count(mapping(item).get("lanes")),
            draining=mapping(item).get("draining") is True,
            lost=name in lost,
            key_groups=owned.get(name, 0),
            busy_ms=number(mapping(item).get("busyMs", mapping(item).get("cpuMs"))),
            cpu_ms=number(mapping(item).get("cpuMs")),
        )
        for name, item in sorted(listed, key=lambda pair: (len(pair[0]), pair[0]))
    )
    return executors, len(mapping(values.get("executors"))) - len(executors)


def _apply_sources(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state after a journal entry about sources: with their lag.

    The last epoch takes over their backlog if none was known when it ended.
    """
    listed = [mapping(item) for item in items(values.get("sources"), _MAX_NAMES)]
    sources = tuple(
        SourceAt(
            name=text(item.get("name", "")),
            description=text(item.get("description", "")),
            behind=None if item.get("behind") is None else count(item["behind"]),
            input_rows_per_s=finite(item.get("inputRowsPerSecond")),
            processed_rows_per_s=finite(item.get("processedRowsPerSecond")),
            metrics={name: text(value) for name, value in _first_pairs(item.get("metrics"))},
        )
        for item in listed
    )
    names = items(state.flow.get("sources"), _MAX_NAMES)
    if len(names) == len(sources) and not any(source.name for source in sources):
        # Spark has them in the order of the flow.
        sources = tuple(replace(s, name=n) for s, n in zip(sources, names, strict=True))
    points = state.points
    if points and points[-1].backlog is None:
        points = (*points[:-1], replace(points[-1], backlog=_backlog(sources)))
    return replace(state, points=points, frame=replace(state.frame, sources=sources))


# -- where key groups are -------------------------------------------------------------------------


def _apply_flow(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state after a journal entry ``flow``: with its graph."""

    def node(kind: Any) -> list[str]:
        return [text(part) for part in items(kind, 2)]

    flow = {
        "name": text(values.get("name", "")),
        "keyGroups": count(values.get("keyGroups")),
        "sources": [text(name) for name in items(values.get("sources"), _MAX_NAMES)],
        "operators": [
            {
                "name": text(item.get("name")),
                "does": text(item.get("does", "")),
                **{
                    name: [text(part) for part in items(item.get(name), 16)]
                    for name in ("parts", "components", "keys")
                },
            }
            for item in map(mapping, items(values.get("operators"), _MAX_NAMES))
        ],
        "sinks": [
            {"name": text(mapping(item).get("name")), "takes": text(mapping(item).get("takes", ""))}
            for item in items(values.get("sinks"), _MAX_NAMES)
        ],
        "edges": [
            {"from": start, "to": end, "exchange": edge.get("exchange") is True}
            for edge in map(mapping, items(values.get("edges"), 4 * _MAX_NAMES))
            for start, end in [(node(edge.get("from")), node(edge.get("to")))]
            if len(start) == len(end) == 2
        ],
    }
    return replace(state, flow=flow)


def _apply_places(
    state: RunState, values: Mapping[str, Any], *, key: str, read: Callable[..., Any]
) -> RunState:
    """Return the state with new places of key groups, from the values of a journal entry.

    `key`: where components are in them. `read`: returns a component's places.
    """
    placements = dict(state.frame.placements)
    for name, item in _first_pairs(values.get(key)):
        placement = read(mapping(item), placements.get(name))
        if placement is not None:
            placements[name] = placement
    return replace(state, frame=replace(state.frame, placements=placements))


def _apply_load(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state after a journal entry ``load``: with the packed loads of key groups."""
    return replace(state, frame=replace(state.frame, loads=values))


def _apply_journal(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state after a journal entry ``journal``: entries that the writer dropped."""
    return replace(state, lost=state.lost + count(values.get("lost")))


# -- events ---------------------------------------------------------------------------------------


def _apply_event(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state after a journal entry ``event``."""
    line = event_line(values)
    if line is None:
        return state
    kind = line.kind
    if kind == "QueryStarted":
        state = _apply_query_started(state, values)
    reduce = _EVENTS.get(kind)
    if reduce is not None:
        state = reduce(state, values)
    if kind in DECISIONS:
        state = _apply_decision(state, values, line)
    changes: dict[str, Any] = {"last_s": max(state.last_s or 0.0, line.at_s)}
    if kind == "LoadMeasured":
        changes["measured"] = line
        event = event_from_dict(values)
        if isinstance(event, LoadMeasured):
            changes["measurements"] = state.measurements.after(event)
    if kind in DECISIONS:
        changes["decision_lines"] = (*state.decision_lines, line)[-_MAX_EVENTS:]
    if kind in LIFECYCLE:
        changes["last_word"] = line
    if kind not in _ELSEWHERE:
        changes["events"] = (*state.events, line)[-_MAX_EVENTS:]
    return replace(state, **changes)


def _apply_query_started(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state after the start of a run; without history if the run does not resume."""
    if values.get("resumed") is not True:
        return RunState(lost=state.lost)
    frame = replace(
        state.frame,
        executors=(),
        executors_left_out=0,
        sources=(),
        warming={},
        in_flight=0,
        planned=0,
        waiting=0,
        suspended=0,
    )
    movements = tuple(
        replace(m, ended="cut off", ended_s=m.began_s, ended_epoch=m.began_epoch)
        if m.ended_s is None
        else m
        for m in state.movements
    )
    # Of a checkpoint that was repaired, the last epochs were taken back, and come again.
    last = int(number(values.get("epoch", -1)))
    return replace(
        state,
        frame=frame,
        resumed_after=last,
        points=tuple(point for point in state.points if point.epoch <= last),
        movements=movements,
        suspended_s={},
        switched=frozenset(),
        recent_ms=(),
    )


def _apply_epoch_committed(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state with an epoch that has no entry ``progress``, from its event."""
    frame = replace(
        state.frame,
        epoch=count(values["epoch"]),
        at_s=number(values["at_s"]),
        latency_ms=_latency_ms(values.get("latency_ms")),
    )
    point = _point_of(
        frame,
        took_ms=number(values.get("duration_ms")),
        rows_in=count(values.get("rows_in")),
        rows_out=count(values.get("rows_out")),
        waiting=count(values.get("waiting_key_groups")),
    )
    return _with_epoch(state, point)


def _apply_executor_change(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state with an executor lost (after ``ExecutorLost``), or live (other events)."""
    name, lost = text(values["executor"]), values["kind"] == "ExecutorLost"
    executors = tuple(replace(e, lost=lost) if e.name == name else e for e in state.frame.executors)
    return replace(state, frame=replace(state.frame, executors=executors))


def _apply_rows_unreadable(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state with rows counted that a source could not read."""
    left_out = dict(state.frame.left_out)
    _add_rows(left_out, (text(values["source"]), "unreadable"), values.get("rows"))
    return replace(state, frame=replace(state.frame, left_out=left_out))


def _apply_calls_failed(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state with rows counted for which a user's function failed."""
    left_out = dict(state.frame.left_out)
    _add_rows(left_out, (text(values["operator"]), "failed"), values.get("rows"))
    return replace(state, frame=replace(state.frame, left_out=left_out))


def _apply_migration_started(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state with a migration, and the pause expected by its size and strategy."""
    size, strategy = count(values.get("state_bytes")), text(values["strategy"])
    copied_bytes, copied_s = state.copied
    bandwidth = copied_bytes / copied_s if copied_bytes and copied_s else DEFAULT_BANDWIDTH
    name = text(values["migration"])
    costs_s = [decision.cost_s for decision in state.decisions if name in decision.migrations]
    movement = Movement(
        id=name,
        component=text(values["component"]),
        strategy=strategy,
        moves=count(values.get("moves")),
        state_bytes=size,
        began_s=number(values["at_s"]),
        began_epoch=int(number(values["epoch"])),
        predicted_s=_predicted_s(strategy, costs_s[-1] if costs_s else size / bandwidth),
    )
    return replace(state, movements=(*state.movements, movement)[-_MAX_MOVES:])


def _predicted_s(strategy: str, transfer_s: float) -> float:
    """Return the pause, in seconds, that `godwit.placement.preview` predicts for a migration.

    `transfer_s`: seconds that copying all of its state takes.
    """
    if strategy == "live":
        return transfer_s * DEFAULT_CHANGED_SHARE
    if strategy == "disruptive":
        return transfer_s
    if strategy == "on_demand":
        return transfer_s * DEFAULT_FETCHED_SHARE
    return 2 * transfer_s if strategy == "stop_the_world" else 0.0


def _apply_migration_ended(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state after the end of a migration."""
    name, component = text(values["migration"]), text(values["component"])
    state = _without_copies(state, component, list(state.frame.warming.get(component, {})))
    ended: dict[str, Any] = {
        "ended_s": number(values["at_s"]),
        "ended_epoch": int(number(values["epoch"])),
        "ended": "finished" if values["kind"] == "MigrationFinished" else "cancelled",
        "moved": count(values.get("moved")),
    }
    return replace(
        state,
        movements=tuple(
            replace(m, pause_s=m.pause_s or 0.0, **ended)
            if m.id == name and m.ended_s is None
            else m
            for m in state.movements
        ),
    )


def _apply_warming_started(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state with key groups that are being copied."""
    component, executor = text(values["component"]), text(values["executor"])
    warming = dict(state.frame.warming)
    copies = dict(warming.get(component, {}))
    copies.update(
        (count(group), executor) for group in items(values.get("key_groups"), _MAX_GROUPS)
    )
    if len(copies) <= _MAX_GROUPS and len(warming) <= _MAX_NAMES:
        warming[component] = copies
    return replace(state, frame=replace(state.frame, warming=warming))


def _apply_warmed(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state with the measured bandwidth of copies updated."""
    size, seconds = state.copied
    more = count(values.get("state_bytes")), number(values.get("duration_ms")) / 1e3
    return replace(state, copied=(size + more[0], seconds + more[1]))


def _apply_switched(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state with key groups that run elsewhere from the next epoch on."""
    component = text(values["component"])
    if not values.get("key_groups"):  # rows go elsewhere, or nothing moves yet
        return state
    state = _without_copies(state, component, values.get("key_groups"))
    return replace(state, switched=state.switched | {component})


def _without_copies(state: RunState, component: str, key_groups: Any) -> RunState:
    """Return the state in which these key groups are no longer being copied."""
    finished, copies = set(items(key_groups, _MAX_GROUPS)), state.frame.warming.get(component, {})
    if not finished & copies.keys():
        return state
    warming = dict(state.frame.warming)
    warming[component] = {
        key_group: executor for key_group, executor in copies.items() if key_group not in finished
    }
    return replace(state, frame=replace(state.frame, warming=warming))


def _apply_suspended(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state with key groups whose rows wait; without a migration they recover."""
    since = {text(values["component"]): number(values["at_s"]), **state.suspended_s}
    return replace(_with_recovery(state, values), suspended_s=since)


def _apply_loaded(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state with key groups whose state is fetched; without a migration they recover."""
    return _with_recovery(state, values) if values.get("on_demand") else state


def _with_recovery(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state with a recovery of key groups, unless their component has a movement."""
    component = text(values["component"])
    if any(m.component == component and m.ended_s is None for m in state.movements):
        return state
    recovery = Movement(
        id="recovery",
        component=component,
        strategy="recovery",
        moves=len(values["key_groups"]),
        state_bytes=0,
        began_s=number(values["at_s"]),
        began_epoch=int(number(values["epoch"])),
    )
    return replace(state, movements=(*state.movements, recovery)[-_MAX_MOVES:])


def _recovers_on_demand(state: RunState, movement: Movement) -> bool:
    """Return whether a movement is a recovery whose rows do not wait: it ends with an epoch."""
    return (
        movement.strategy == "recovery"
        and movement.ended_s is None
        and movement.component not in state.suspended_s
    )


def _apply_resumed(state: RunState, values: Mapping[str, Any]) -> RunState:
    """Return the state in which these key groups' waiting rows are processed."""
    component, at_s = text(values["component"]), number(values["at_s"])
    state = _without_copies(state, component, values.get("key_groups"))
    since_s = state.suspended_s.get(component)
    if since_s is None:
        return state
    waited_s, num_resumed = max(0.0, at_s - since_s), len(values["key_groups"])

    def resumed(movement: Movement) -> Movement:
        """Add the key groups and their wait to a movement under way; end a complete recovery."""
        if movement.component != component or movement.ended_s is not None:
            return movement
        moved = min(movement.moved + num_resumed, movement.moves)
        updated = replace(movement, pause_s=max(movement.pause_s or 0.0, waited_s), moved=moved)
        if movement.strategy != "recovery" or moved < movement.moves:
            return updated
        return replace(updated, ended="finished", ended_s=at_s, ended_epoch=int(values["epoch"]))

    movements = tuple(map(resumed, state.movements))
    suspended_s = {
        component_: since
        for component_, since in state.suspended_s.items()
        if component_ != component
    }
    if any(
        movement_.component == component and movement_.ended_s is None for movement_ in movements
    ):
        suspended_s = dict(state.suspended_s)
    return replace(state, movements=movements, suspended_s=suspended_s)


# -- decisions ------------------------------------------------------------------------------------


def _apply_decision(state: RunState, values: Mapping[str, Any], line: EventLine) -> RunState:
    """Return the state with a decision of the controller, or the judgement of an earlier one."""
    if line.kind in ("DecisionJudged", "RebalancingJudged"):
        return _apply_judgement(state, values, line)
    decision = ShownDecision(
        at_s=line.at_s,
        epoch=int(number(values["epoch"])),
        kind=line.kind,
        line=line.line,
        story=story_of(event_from_dict(values), state.measurements),
    )
    if line.kind in _CHANGES:
        state = replace(state, measurements=state.measurements.changed())
    if line.kind in _SCALINGS:
        pair = int(number(values["before"])), int(number(values["wanted"]))
        decision = replace(decision, number=pair)
    elif line.kind == "RebalancingStarted":
        decision = replace(
            decision,
            figure="load distance",
            before=finite(values["distance_before"]),
            expected=finite(values["distance_after"]),
            migrations=frozenset(text(name) for name in mapping(values["migrations"]).values()),
            cost_s=number(values["cost_s"]),
        )
        state = replace(
            state,
            movements=tuple(
                replace(m, predicted_s=_predicted_s(m.strategy, decision.cost_s))
                if m.id in decision.migrations
                else m
                for m in state.movements
            ),
        )
    elif line.kind == "LanesBalanced":
        decision = replace(
            decision,
            figure="busiest lane over the mean",
            before=finite(values["imbalance_before"]),
            expected=finite(values["imbalance_after"]),
        )
    return replace(state, decisions=(*state.decisions, decision)[-_MAX_DECISIONS:])


def _apply_judgement(state: RunState, values: Mapping[str, Any], line: EventLine) -> RunState:
    """Return the state with a judgement added to its decision."""
    epoch, expected = int(number(values["epoch"])), finite(values["expected"])
    judgement: dict[str, Any] = {
        "expected": expected,
        "measured": finite(values["measured"]),
        "verdict": text(values["verdict"]),
        "judged": epoch,
    }
    if line.kind == "DecisionJudged":
        judgement["figure"] = f"figure of the scaling model, target {number(values['target']):.3g}"
        pair = int(number(values["before"])), int(number(values["wanted"]))
        candidates = [d for d in state.decisions if d.number == pair and not d.verdict]
    else:
        candidates = [
            d
            for d in state.decisions
            if d.kind == "RebalancingStarted" and d.expected == expected and not d.verdict
        ]
    event = event_from_dict(values)
    if not candidates:
        alone = ShownDecision(
            at_s=line.at_s,
            epoch=epoch,
            kind=line.kind,
            line=line.line,
            story=story_of(event, state.measurements),
            **judgement,
        )
        return replace(state, decisions=(*state.decisions, alone)[-_MAX_DECISIONS:])
    latest = candidates[-1]
    judgement["story"] = judged_story(latest.story, event, state.measurements)
    judged = replace(latest, **judgement)
    return replace(state, decisions=tuple(judged if d is latest else d for d in state.decisions))


_EVENTS: Final[Mapping[str, Callable[[RunState, Mapping[str, Any]], RunState]]] = {
    "EpochCommitted": _apply_epoch_committed,
    "ExecutorLost": _apply_executor_change,
    "ExecutorAdded": _apply_executor_change,
    "RowsUnreadable": _apply_rows_unreadable,
    "CallsFailed": _apply_calls_failed,
    "MigrationStarted": _apply_migration_started,
    "MigrationFinished": _apply_migration_ended,
    "MigrationCancelled": _apply_migration_ended,
    "WarmingStarted": _apply_warming_started,
    "KeyGroupsWarmed": _apply_warmed,
    "AssignmentSwitched": _apply_switched,
    "KeyGroupsSuspended": _apply_suspended,
    "KeyGroupsLoaded": _apply_loaded,
    "KeyGroupsResumed": _apply_resumed,
}
_REDUCERS: Final[Mapping[str, Callable[[RunState, Mapping[str, Any]], RunState]]] = {
    "progress": _apply_progress,
    "sources": _apply_sources,
    "flow": _apply_flow,
    "placement": partial(_apply_places, key="components", read=moved_placement),
    "stream": partial(_apply_places, key="places", read=streamed_placement),
    "load": _apply_load,
    "journal": _apply_journal,
    "event": _apply_event,
}


def _first_pairs(value: Any) -> list[tuple[str, Any]]:
    """Return the first names and values if a value is a mapping, else none."""
    return [(text(name), item) for name, item in islice(mapping(value).items(), _MAX_NAMES)]


def _add_rows(totals: dict[tuple[str, str], int], name: tuple[str, str], rows: Any) -> int:
    """Add rows to the total of a name, and return them; ignore new names beyond a limit."""
    more = count(rows)
    if more and (name in totals or len(totals) < _MAX_NAMES):
        totals[name] = totals.get(name, 0) + more
    return more
