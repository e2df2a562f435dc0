"""Figures of `godwit top`: a projection of the end of a checkpoint's journal.

The journal may be of another version, damaged or made up: what is not understood is left out, every
number is finite and every text short, so whoever draws the figures needs no check of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from godwit.model.errors import GodwitError
from godwit.model.events import DECISIONS, event_from_dict
from godwit.model.wording import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "EpochFigures",
    "EventLine",
    "ExecutorFigures",
    "MigrationFigures",
    "RunFigures",
    "SourceFigures",
    "figures_of",
]

_EPOCHS_OF_LOAD = 16
_MAX_EXECUTORS = 10_000  # more than any cluster has; a journal may say anything
_RATE_S = 10.0
_ELSEWHERE = DECISIONS | {"EpochCommitted", "LoadMeasured"}
_LIFECYCLE = frozenset({"QueryStarted", "QueryStopped", "QueryFailed"})
_TEXT = 300
_MOST = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFigures:
    """One committed epoch."""

    epoch: int  # its number
    began_s: float  # when it began, in seconds, on the driver's clock
    duration_ms: float  # what it took
    # source rows, and rows given to sinks and operators
    rows_in: int
    rows_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorFigures:
    """One executor."""

    # which; how many lanes; whether it is to leave; whether it has gone since
    name: str
    lanes: int
    draining: bool
    lost: bool
    key_groups: int  # it owns, of all components
    # time that its lanes were busy with key groups, and CPU time that they spent, the mean of the
    # last epochs; the first is its load
    busy_ms: float
    cpu_ms: float
    share: float  # of the load of all executors, in [0, 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFigures:
    """Lag of the query behind a source; see `godwit.cluster.spark.observe.progress_sources`."""

    description: str
    behind: int | None
    input_rows_per_s: float | None
    processed_rows_per_s: float | None
    metrics: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationFigures:
    """A migration under way."""

    id: str
    component: str
    strategy: str
    moves: int
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """An event: when (seconds, on the driver's clock), its kind, and its line."""

    at_s: float
    kind: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """A run, as far as the end of the journal tells."""

    # the last event of the query's life (it started, stopped or failed), if it is in sight
    last_word: EventLine | None
    last_s: float | None  # when the journal was last told anything with a time; ``None`` if never
    epochs: tuple[EpochFigures, ...]  # the last ones, oldest first
    rows_per_s: float  # source rows over the last seconds in which there were epochs
    # by name; how many more there are, which are not looked at
    executors: tuple[ExecutorFigures, ...]
    executors_left_out: int
    # largest distance of an executor's load per lane from the mean of those that are not draining,
    # as a share of that mean (paper 2 §4.3.1 gives the distance itself)
    load_distance: float
    # key groups: being warmed, still to be moved, with rows that wait, that do not run
    in_flight: int
    planned: int
    waiting: int
    suspended: int
    # under way; as Spark noted last
    migrations: tuple[MigrationFigures, ...]
    sources: tuple[SourceFigures, ...]
    measured: EventLine | None  # what the controller measured last, if there is one
    # the controller's, and all else but epochs, oldest first
    decisions: tuple[EventLine, ...]
    events: tuple[EventLine, ...]


def figures_of(entries: Sequence[Mapping[str, Any]]) -> RunFigures:
    """Project the entries of a journal.

    `entries`: the last ones, oldest first, as `godwit.checkpoint.journal.JournalReader.tail` gives
    them.
    """
    events = [v for entry in entries if isinstance(v := entry.get("event"), Mapping)]
    lines = [line for values in events if (line := _told(values)) is not None]
    life = [line for line in lines if line.kind in _LIFECYCLE]
    run = _last_run(entries)
    progress = [v for entry in run if isinstance(v := entry.get("progress"), Mapping)]
    latest: Mapping[str, Any] = progress[-1] if progress else {}
    run_events = [v for entry in run if isinstance(v := entry.get("event"), Mapping)]
    epochs = _epochs(entries)
    executors = _executors(progress, run_events)
    times = [line.at_s for line in lines]
    times += [e.began_s + e.duration_ms / 1e3 for e in epochs]
    return RunFigures(
        last_word=life[-1] if life else None,
        last_s=max(times, default=None),
        epochs=epochs,
        rows_per_s=_rows_per_s(epochs),
        executors=executors,
        executors_left_out=len(_mapping(latest.get("executors"))) - len(executors),
        load_distance=_load_distance(executors),
        in_flight=_count(latest.get("inFlightKeyGroups")),
        planned=_count(latest.get("plannedMoves")),
        waiting=_count(latest.get("waitingKeyGroups")),
        suspended=_count(latest.get("suspendedKeyGroups")),
        migrations=_migrations(run_events),
        sources=_sources(run),
        measured=next((line for line in reversed(lines) if line.kind == "LoadMeasured"), None),
        decisions=tuple(line for line in lines if line.kind in DECISIONS),
        events=tuple(line for line in lines if line.kind not in _ELSEWHERE),
    )


def _last_run(entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    for place in range(len(entries) - 1, -1, -1):
        event = entries[place].get("event")
        if isinstance(event, Mapping) and event.get("kind") == "QueryStarted":
            return entries[place:]
    return entries


def _told(values: Mapping[str, Any]) -> EventLine | None:
    try:
        line = event_from_dict(values).describe()
        datetime.fromtimestamp(values["at_s"])  # noqa: DTZ006  only whether it is a time at all
    except (GodwitError, ArithmeticError, AttributeError, KeyError, OSError, TypeError, ValueError):
        return None  # of another version, or not ours
    return EventLine(at_s=float(values["at_s"]), kind=_text(values["kind"]), line=_text(line))


def _epochs(entries: Iterable[Mapping[str, Any]]) -> tuple[EpochFigures, ...]:
    epochs: dict[int, EpochFigures] = {}
    for entry in entries:
        event, progress = entry.get("event"), entry.get("progress")
        if isinstance(progress, Mapping):
            took = progress.get("durationMs")
            figures = EpochFigures(
                epoch=_count(progress.get("epoch")),
                began_s=_time(progress.get("timestamp")),
                duration_ms=_number(took.get("epoch")) if isinstance(took, Mapping) else 0.0,
                rows_in=_count(progress.get("numInputRows")),
                rows_out=_count(progress.get("numOutputRows")),
            )
        elif isinstance(event, Mapping) and event.get("kind") == "EpochCommitted":
            duration_ms = _number(event.get("duration_ms"))
            figures = EpochFigures(
                epoch=_count(event.get("epoch")),
                began_s=_number(event.get("at_s")) - duration_ms / 1e3,
                duration_ms=duration_ms,
                rows_in=_count(event.get("rows_in")),
                rows_out=_count(event.get("rows_out")),
            )
        else:
            continue
        epochs.setdefault(figures.epoch, figures)
    return tuple(epochs.values())


def _rows_per_s(epochs: Sequence[EpochFigures]) -> float:
    if not epochs:
        return 0.0
    end_s = epochs[-1].began_s + epochs[-1].duration_ms / 1e3
    recent = [e for e in epochs if 0 <= end_s - e.began_s <= _RATE_S] or [epochs[-1]]
    span_s = max(end_s - recent[0].began_s, 1e-3)
    return sum(e.rows_in for e in recent) / span_s


def _executors(
    progress: Sequence[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]
) -> tuple[ExecutorFigures, ...]:
    if not progress:
        return ()
    latest = progress[-1]
    spent: dict[str, float] = {}
    busy: dict[str, float] = {}
    there = dict(islice(_mapping(latest.get("executors")).items(), _MAX_EXECUTORS))
    loaded = [p for p in progress if _count(p.get("numInputRows"))][-_EPOCHS_OF_LOAD:]
    for one in loaded:
        states = _mapping(one.get("executors"))
        for name in there.keys() & states.keys():
            values = states[name]
            cpu_ms = _mapping(values).get("cpuMs")
            spent[name] = spent.get(name, 0.0) + _number(cpu_ms)
            busy_ms = _mapping(values).get("busyMs", cpu_ms)
            busy[name] = busy.get(name, 0.0) + _number(busy_ms)
    owned: dict[str, int] = {}
    for component in _mapping(latest.get("keyGroups")).values():
        counts = _mapping(component)
        for name in there.keys() & counts.keys():
            owned[name] = owned.get(name, 0) + _count(counts[name])
    lost = _lost(events)
    total = sum(busy.get(name, 0.0) for name in there) or 1.0
    return tuple(
        ExecutorFigures(
            name=_text(name),
            lanes=_count(_mapping(there[name]).get("lanes")),
            draining=_mapping(there[name]).get("draining") is True,
            lost=name in lost,
            key_groups=owned.get(name, 0),
            busy_ms=busy.get(name, 0.0) / max(len(loaded), 1),
            cpu_ms=spent.get(name, 0.0) / max(len(loaded), 1),
            share=busy.get(name, 0.0) / total,
        )
        for name in sorted(there, key=lambda name: (len(name), name))
    )


def _lost(events: Iterable[Mapping[str, Any]]) -> set[str]:
    lost: set[str] = set()
    for event in events:
        if event.get("kind") == "ExecutorLost":
            lost.add(str(event.get("executor")))
        elif event.get("kind") == "ExecutorAdded":
            lost.discard(str(event.get("executor")))
    return lost


def _load_distance(executors: Iterable[ExecutorFigures]) -> float:
    index = [e.busy_ms / max(e.lanes, 1) for e in executors if not (e.draining or e.lost)]
    mean = sum(index) / len(index) if index else 0.0
    return max(abs(one - mean) for one in index) / mean if mean > 0 else 0.0


def _migrations(events: Iterable[Mapping[str, Any]]) -> tuple[MigrationFigures, ...]:
    there: dict[str, MigrationFigures] = {}
    for event in events:
        name = _text(event.get("migration"))
        if event.get("kind") == "MigrationStarted":
            there[name] = MigrationFigures(
                id=name,
                component=_text(event.get("component")),
                strategy=_text(event.get("strategy")),
                moves=_count(event.get("moves")),
                state_bytes=_count(event.get("state_bytes")),
            )
        elif event.get("kind") in ("MigrationFinished", "MigrationCancelled"):
            there.pop(name, None)
    return tuple(there.values())


def _sources(entries: Sequence[Mapping[str, Any]]) -> tuple[SourceFigures, ...]:
    noted = [v for entry in entries if isinstance(v := entry.get("sources"), Mapping)]
    sources = noted[-1].get("sources") if noted else None
    return tuple(
        SourceFigures(
            description=_text(source.get("description")),
            behind=None if source.get("behind") is None else _count(source["behind"]),
            input_rows_per_s=_maybe(source.get("inputRowsPerSecond")),
            processed_rows_per_s=_maybe(source.get("processedRowsPerSecond")),
            metrics={_text(k): _text(v) for k, v in _mapping(source.get("metrics")).items()},
        )
        for source in (sources if isinstance(sources, list) else [])
        if isinstance(source, Mapping)
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float:
    number = _maybe(value)
    return 0.0 if number is None else number


def _maybe(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _MOST else None  # which is not so of what is no number


def _count(value: Any) -> int:
    return max(0, int(_number(value)))


def _text(value: Any) -> str:
    return printable(str(value)[:_TEXT]).replace("\n", " ")


def _time(value: Any) -> float:
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
