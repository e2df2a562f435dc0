"""`godwit top`: a running stream in the terminal, read from its checkpoint alone.

Each look reads the end of the journal (`godwit.checkpoint.journal.JournalReader`), so its cost does
not grow with the stream, and nothing is asked of the query.  Its last word says whether the query
lives; when the journal is silent, the lease on the checkpoint does.

The figures are a projection of those entries.  The journal may be of another version, damaged or
made up: what is not understood is left out, every number is finite and every text short, so whoever
draws the figures needs no check of its own.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from godwit.checkpoint.journal import JournalReader
from godwit.cli.arguments import bounded
from godwit.cli.console import Symbols, symbols_for
from godwit.cli.opening import add_checkpoint, flow_name, no_journal_error, opened_checkpoint
from godwit.model.errors import GodwitError
from godwit.model.events import DECISIONS
from godwit.model.wording import counted, human_bytes, printable
from godwit.ops.entries import (
    EventLine,
    count,
    event_line,
    finite,
    mapping,
    number,
    text,
    unix_time,
)
from godwit.ops.liveness import LIFECYCLE, Liveness
from godwit.time.durations import elapsed_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from godwit.checkpoint.storage import CheckpointStorage

_ENTRIES = 1000
_WIDE = 160


def add_top_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit top`, and its function as ``run``."""
    parser.description = (
        "Show a stream while it runs: executors and their load, key groups on the "
        "move, rows per second, epoch time, lag of the sources where Spark tells it, the "
        "controller's last decisions. Only the end of the checkpoint's journal is read, so it "
        "works from any machine that reaches the checkpoint, costs the stream nothing, and shows "
        "the last moments of one that has ended. Ctrl-C ends it. Exit status 0; 2 if there is no "
        "checkpoint, or no journal yet."
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--once",
        action="store_true",
        help="print one frame and end; so it does where the output is no terminal",
    )
    parser.add_argument("--json", action="store_true", help="print the figures once, as JSON")
    parser.add_argument(
        "--interval",
        type=bounded(float, 0.1, 3600, "number of seconds"),
        default=1.0,
        metavar="SECONDS",
        help="time between two looks (default: %(default)s)",
    )
    parser.set_defaults(run=_run_top)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Content of a checkpoint at one time."""

    flow: str  # name of the flow
    # ``"running"``, ``"silent"`` (it may be gone, which cannot be told), ``"stopped"``,
    # ``"failed"`` or ``"died"``
    state: str
    why: str  # what that is known by
    figures: RunFigures  # the run


class Viewer:
    """Reads one checkpoint repeatedly; clocks as in `Liveness`."""

    def __init__(
        self,
        storage: CheckpointStorage,
        *,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._flow = flow_name(storage)
        self._reader = JournalReader(storage)
        self._liveness = Liveness(storage, now_s=now_s, monotonic_s=monotonic_s)

    def look(self) -> Sight:
        """Return state and figures of the stream, read from the checkpoint, to be drawn."""
        figures = figures_of(self._reader.tail(_ENTRIES))
        state, why = self._liveness.look(figures.last_word, figures.last_s)
        return Sight(
            flow=printable(self._flow).replace("\n", " "), state=state, why=why, figures=figures
        )


def _run_top(args: argparse.Namespace) -> int:
    """Show a checkpoint's stream, once or until Ctrl-C; return the exit status."""
    viewer = Viewer(opened_checkpoint(args.path))
    sight = viewer.look()
    if sight.figures.last_s is None:
        raise no_journal_error(args.path)
    if args.json:
        print(json.dumps(asdict(sight), indent=2))
        return 0
    console = Console(highlight=False)
    if args.once or not console.is_terminal:
        width = console.width if console.is_terminal else _WIDE
        plain = Console(highlight=False, width=width, no_color=True)
        for line in frame(sight, width=width, height=None, symbols=symbols_for(plain)):
            plain.print(Text(line.plain.rstrip()), soft_wrap=True)
        return 0
    _watch(viewer, sight, console, args.interval)
    return 0


def _watch(viewer: Viewer, sight: Sight, console: Console, interval_s: float) -> None:
    """Redraw the display until Ctrl-C."""
    symbols = symbols_for(console)

    def drawn(note: str = "") -> Group:
        lines = frame(
            sight, width=console.width, height=console.height - 1 - bool(note), symbols=symbols
        )
        return Group(*lines, *([Text(symbols.plain(note), style="red")] if note else []))

    try:
        with Live(drawn(), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval_s)
                try:
                    sight, note = viewer.look(), ""
                except GodwitError as error:  # a store that is away comes back
                    note = printable(error.message)
                live.update(drawn(note), refresh=True)
    except KeyboardInterrupt:
        pass  # how one leaves; the frame that was seen last stays below
    for line in frame(sight, width=console.width, height=console.height - 1, symbols=symbols):
        console.print(line)


_EPOCHS_OF_LOAD = 16
_MAX_EXECUTORS = 10_000  # more than any cluster has; a journal may say anything
_RATE_S = 10.0
_LATENCY = ("p50", "p95", "p99", "max")
_ELSEWHERE = DECISIONS | {"EpochCommitted", "LoadMeasured"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFigures:
    """Figures of one committed epoch."""

    epoch: int  # its number
    began_s: float  # when it began, in seconds, on the driver's clock
    duration_ms: float  # what it took
    # source rows, and rows given to sinks and operators
    rows_in: int
    rows_out: int
    # p50, p95, p99, max → milliseconds from arrival to delivery; empty where it is not known
    latency_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorFigures:
    """Figures of one executor."""

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
    """Lag of the query behind a source; see `godwit.spark.progress`."""

    description: str
    behind: int | None
    input_rows_per_s: float | None
    processed_rows_per_s: float | None
    metrics: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationFigures:
    """Figures of a migration under way."""

    id: str
    component: str
    strategy: str
    moves: int
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Figures of a run, from the end of the journal."""

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
    """Return the figures of a run, computed from journal entries.

    `entries`: the last ones, oldest first, as `godwit.checkpoint.journal.JournalReader.tail`
    returns them.
    """
    events = _values_of_kind(entries, "event")
    lines = [line for values in events if (line := event_line(values)) is not None]
    life = [line for line in lines if line.kind in LIFECYCLE]
    run = _last_run(entries)
    progress = _values_of_kind(run, "progress")
    latest: Mapping[str, Any] = progress[-1] if progress else {}
    run_events = _values_of_kind(run, "event")
    epochs = _epoch_figures(entries)
    executors = _executor_figures(progress, run_events)
    times = [line.at_s for line in lines]
    times += [e.began_s + e.duration_ms / 1e3 for e in epochs]
    return RunFigures(
        last_word=life[-1] if life else None,
        last_s=max(times, default=None),
        epochs=epochs,
        rows_per_s=_rows_per_s(epochs),
        executors=executors,
        executors_left_out=len(mapping(latest.get("executors"))) - len(executors),
        load_distance=_load_distance(executors),
        in_flight=count(latest.get("inFlightKeyGroups")),
        planned=count(latest.get("plannedMoves")),
        waiting=count(latest.get("waitingKeyGroups")),
        suspended=count(latest.get("suspendedKeyGroups")),
        migrations=_migration_figures(run_events),
        sources=_source_figures(run),
        measured=next((line for line in reversed(lines) if line.kind == "LoadMeasured"), None),
        decisions=tuple(line for line in lines if line.kind in DECISIONS),
        events=tuple(line for line in lines if line.kind not in _ELSEWHERE),
    )


def _values_of_kind(entries: Iterable[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    """Return the values of one kind of journal entries."""
    return [value for entry in entries if isinstance(value := entry.get(kind), Mapping)]


def _last_run(entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the entries since the last start of the query."""
    for place in range(len(entries) - 1, -1, -1):
        event = entries[place].get("event")
        if isinstance(event, Mapping) and event.get("kind") == "QueryStarted":
            return entries[place:]
    return entries


def _epoch_figures(entries: Iterable[Mapping[str, Any]]) -> tuple[EpochFigures, ...]:
    """Return the figures of epochs, from progress or else from commit events."""
    epochs: dict[int, EpochFigures] = {}
    for entry in entries:
        event, progress = entry.get("event"), entry.get("progress")
        if isinstance(progress, Mapping):
            took = progress.get("durationMs")
            figures = EpochFigures(
                epoch=count(progress.get("epoch")),
                began_s=unix_time(progress.get("timestamp")),
                duration_ms=number(took.get("epoch")) if isinstance(took, Mapping) else 0.0,
                rows_in=count(progress.get("numInputRows")),
                rows_out=count(progress.get("numOutputRows")),
                latency_ms=_latency_figures(progress.get("latencyMs")),
            )
        elif isinstance(event, Mapping) and event.get("kind") == "EpochCommitted":
            duration_ms = number(event.get("duration_ms"))
            figures = EpochFigures(
                epoch=count(event.get("epoch")),
                began_s=number(event.get("at_s")) - duration_ms / 1e3,
                duration_ms=duration_ms,
                rows_in=count(event.get("rows_in")),
                rows_out=count(event.get("rows_out")),
                latency_ms=_latency_figures(event.get("latency_ms")),
            )
        else:
            continue
        epochs.setdefault(figures.epoch, figures)
    return tuple(epochs.values())


def _latency_figures(values: Any) -> dict[str, float]:
    """Return figure → milliseconds, of an epoch's latency; missing figures are left out."""
    figures = {name: finite(mapping(values).get(name)) for name in _LATENCY}
    return {name: ms for name, ms in figures.items() if ms is not None}


def _rows_per_s(epochs: Sequence[EpochFigures]) -> float:
    """Return the rows per second over the last epochs."""
    if not epochs:
        return 0.0
    end_s = epochs[-1].began_s + epochs[-1].duration_ms / 1e3
    recent = [e for e in epochs if 0 <= end_s - e.began_s <= _RATE_S] or [epochs[-1]]
    span_s = max(end_s - recent[0].began_s, 1e-3)
    return sum(e.rows_in for e in recent) / span_s


def _executor_figures(
    progress: Sequence[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]
) -> tuple[ExecutorFigures, ...]:
    """Return the figures of the executors, from progress and events."""
    if not progress:
        return ()
    latest = progress[-1]
    cpu_ms: defaultdict[str, float] = defaultdict(float)
    busy_ms: defaultdict[str, float] = defaultdict(float)
    there = dict(islice(mapping(latest.get("executors")).items(), _MAX_EXECUTORS))
    loaded = [p for p in progress if count(p.get("numInputRows"))][-_EPOCHS_OF_LOAD:]
    for one in loaded:
        states = mapping(one.get("executors"))
        for name in there.keys() & states.keys():
            values = mapping(states[name])
            cpu_ms[name] += number(values.get("cpuMs"))
            busy_ms[name] += number(values.get("busyMs", values.get("cpuMs")))
    owned: Counter[str] = Counter()
    for component in mapping(latest.get("keyGroups")).values():
        counts = mapping(component)
        for name in there.keys() & counts.keys():
            owned[name] += count(counts[name])
    lost: set[str] = set()
    for event in events:
        if event.get("kind") == "ExecutorLost":
            lost.add(str(event.get("executor")))
        elif event.get("kind") == "ExecutorAdded":
            lost.discard(str(event.get("executor")))
    total = sum(busy_ms.values()) or 1.0
    return tuple(
        ExecutorFigures(
            name=text(name),
            lanes=count(mapping(there[name]).get("lanes")),
            draining=mapping(there[name]).get("draining") is True,
            lost=name in lost,
            key_groups=owned[name],
            busy_ms=busy_ms[name] / max(len(loaded), 1),
            cpu_ms=cpu_ms[name] / max(len(loaded), 1),
            share=busy_ms[name] / total,
        )
        for name in sorted(there, key=lambda name: (len(name), name))
    )


def _load_distance(executors: Iterable[ExecutorFigures]) -> float:
    """Return the largest distance of a lane's load from the mean, as a share of the mean."""
    index = [e.busy_ms / max(e.lanes, 1) for e in executors if not (e.draining or e.lost)]
    mean = sum(index) / len(index) if index else 0.0
    return max(abs(one - mean) for one in index) / mean if mean > 0 else 0.0


def _migration_figures(events: Iterable[Mapping[str, Any]]) -> tuple[MigrationFigures, ...]:
    """Return the figures of the migrations under way."""
    there: dict[str, MigrationFigures] = {}
    for event in events:
        name = text(event.get("migration"))
        if event.get("kind") == "MigrationStarted":
            there[name] = MigrationFigures(
                id=name,
                component=text(event.get("component")),
                strategy=text(event.get("strategy")),
                moves=count(event.get("moves")),
                state_bytes=count(event.get("state_bytes")),
            )
        elif event.get("kind") in ("MigrationFinished", "MigrationCancelled"):
            there.pop(name, None)
    return tuple(there.values())


def _source_figures(entries: Sequence[Mapping[str, Any]]) -> tuple[SourceFigures, ...]:
    """Return the sources' figures in the last entry ``sources``; empty without one."""
    noted = _values_of_kind(entries, "sources")
    sources = noted[-1].get("sources") if noted else None
    return tuple(
        SourceFigures(
            description=text(source.get("description")),
            behind=None if source.get("behind") is None else count(source["behind"]),
            input_rows_per_s=finite(source.get("inputRowsPerSecond")),
            processed_rows_per_s=finite(source.get("processedRowsPerSecond")),
            metrics={text(k): text(v) for k, v in mapping(source.get("metrics")).items()},
        )
        for source in (sources if isinstance(sources, list) else [])
        if isinstance(source, Mapping)
    )


_BAR = 40
_SPARKS = 60
_SHOWN_DECISIONS = 5
_SHOWN_EVENTS = 8
_SHOWN_EXECUTORS = 64
_STYLES = {"running": "green", "stopped": "yellow"}
_ALARMING = (
    *("ExecutorLost", "KeyGroupsSuspended", "QueryFailed", "EpochsHeld"),
    *("ListenerFailed", "BackgroundFailed", "ResidentLanesFailed"),
    *("RowsLeftOut", "RowsUnreadable", "FeedbackPaused"),
)


def frame(sight: Sight, *, width: int, height: int | None, symbols: Symbols) -> list[Text]:
    """Return the lines of the whole display, none wider than `width`.

    `sight`: the state of the stream. `width`, `height`: size of the terminal; ``None``: any number
    of lines. `symbols`: characters that the terminal can show.
    """
    figures = sight.figures
    above = [
        Text.assemble(
            (symbols.plain(sight.flow), "bold"),
            "  ",
            (sight.state, _STYLES.get(sight.state, "red")),
            f"  {symbols.plain(sight.why)}",
        ),
        *_speed(figures, width, symbols),
        *_latencies(figures),
        _moving(figures),
        *(_source(source, symbols) for source in figures.sources),
        *([Text(symbols.plain(figures.measured.line))] if figures.measured else []),
        *(
            Text(
                symbols.plain(
                    f"migration {m.id} of {m.component} ({m.strategy}): "
                    f"{counted(m.moves, 'key group')}, {human_bytes(m.state_bytes)}"
                ),
                style="yellow",
            )
            for m in figures.migrations
        ),
    ]
    decisions = _listed("decisions", figures.decisions[-_SHOWN_DECISIONS:], symbols)
    happened = _listed("events", figures.events[-_SHOWN_EVENTS:], symbols)
    room = _SHOWN_EXECUTORS
    if height is not None:
        # What was decided, and what is going on, before a long list of executors.
        room = min(room, max(height - len(above) - len(decisions) - 2, 2))
    lines = [*above, *_draw_executors(figures, width, room, symbols), *decisions]
    left = len(happened) if height is None else height - len(lines)
    if left > 1:
        lines += happened[:1] + happened[1:][-(left - 1) :]
    lines = lines[:height]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="crop")
    return lines


def _speed(figures: RunFigures, width: int, symbols: Symbols) -> Iterator[Text]:
    """Yield the lines about the speed of epochs."""
    if not figures.epochs:
        yield Text("no epoch in sight")
        return
    took = [epoch.duration_ms for epoch in figures.epochs]
    yield Text.assemble(
        f"epoch {figures.epochs[-1].epoch}   ",
        (f"{figures.rows_per_s:,.0f} rows/s", "bold"),
    )
    yield Text.assemble(
        "epoch time ",
        (f"{took[-1]:,.0f} ms", "bold"),
        f"  median {median(took):,.0f}  longest {max(took):,.0f}  ",
        (symbols.sparkline(took, min(_SPARKS, max(width - 50, 8))), "cyan"),
    )


def _latencies(figures: RunFigures) -> Iterator[Text]:
    """Yield the line about the latency of rows."""
    known = [epoch.latency_ms for epoch in figures.epochs if epoch.latency_ms]
    if known:
        shown = "  ".join(f"{name} {elapsed_text(ms)}" for name, ms in known[-1].items())
        old = max(known[-1].values()) >= _OLD_MS
        note = " (old rows: they arrived long before the query read them)" if old else ""
        yield Text(f"latency of rows, from arrival to delivery: {shown}{note}")


_OLD_MS = 3_600_000.0
"""Latency from which rows are taken for those of a backfill."""


def _moving(figures: RunFigures) -> Text:
    """Return the line about moving key groups."""
    busy = figures.in_flight or figures.planned or figures.waiting or figures.suspended
    return Text(
        f"key groups: {figures.in_flight} in flight, {figures.planned} still to move, "
        f"{figures.waiting} waiting, {figures.suspended} suspended",
        style="yellow" if busy else "",
    )


def _source(source: SourceFigures, symbols: Symbols) -> Text:
    """Return the line about a source."""
    parts = [] if source.behind is None else [f"{counted(source.behind, 'offset')} behind"]
    if source.input_rows_per_s is not None:
        parts.append(f"{source.input_rows_per_s:,.0f} rows/s in")
    if source.processed_rows_per_s is not None:
        parts.append(f"{source.processed_rows_per_s:,.0f} processed")
    parts += [f"{name} {value}" for name, value in source.metrics.items()]
    said = ", ".join(parts) or "says nothing of its lag"
    return Text(symbols.plain(f"source {source.description[:60]}: {said}"))


def _draw_executors(figures: RunFigures, width: int, room: int, symbols: Symbols) -> Iterator[Text]:
    """Yield the lines about the executors; `room`: number of lines available."""
    executors = figures.executors
    if not executors:
        return
    yield Text(f"executors, load distance {figures.load_distance:.0%} of the mean", style="bold")
    shown = executors
    if len(executors) > max(room - 1, 1):
        shown = tuple(sorted(executors, key=lambda e: -e.busy_ms)[: max(room - 2, 1)])
    name_width = min(max(len(e.name) for e in shown), max(width // 3, 6))
    busiest_ms = max((e.busy_ms / max(e.lanes, 1) for e in shown), default=0.0) or 1.0
    for executor in shown:
        yield _draw_executor(executor, busiest_ms, name_width, width, symbols)
    if len(shown) < len(executors):
        less = f"and {counted(len(executors) - len(shown), 'executor')} with less load"
        unseen = figures.executors_left_out
        yield Text(f"{less}; {unseen} more are not looked at" if unseen else less)


def _draw_executor(
    executor: ExecutorFigures, busiest_ms: float, name_width: int, width: int, symbols: Symbols
) -> Text:
    """Return an executor's line: name (`name_width` cells), share, bar relative to `busiest_ms`."""
    name = Text(symbols.plain(executor.name))
    name.truncate(name_width, overflow="crop", pad=True)
    index = executor.busy_ms / max(executor.lanes, 1)
    figures = f" {executor.share:4.0%} "
    detail = (
        f" busy for {executor.busy_ms:,.0f} ms an epoch ({executor.cpu_ms:,.0f} of CPU), "
        f"{counted(executor.lanes, 'lane')}, "
        f"{counted(executor.key_groups, 'key group')}"
    )
    state = "lost" if executor.lost else "draining" if executor.draining else ""
    if state:
        detail = f" {state};{detail}"
    bar_width = max(min(_BAR, (width - name_width - len(figures)) // 2), 3)
    bar = symbols.bar(index / busiest_ms, bar_width)
    style = "red" if executor.lost else "yellow" if executor.draining else "green"
    return Text.assemble(name, figures, (bar.ljust(bar_width), style), detail)


def _listed(title: str, shown: tuple[EventLine, ...], symbols: Symbols) -> list[Text]:
    """Return a title, and a line for each event; nothing if there are no events."""
    if not shown:
        return []
    lines = [Text(f"last {title} (UTC)", style="bold")]
    for one in shown:
        at = datetime.fromtimestamp(one.at_s, UTC).strftime("%H:%M:%S")
        style = "red" if one.kind in _ALARMING else ""
        lines.append(Text.assemble((f"{at} ", "dim"), (symbols.plain(one.line), style)))
    return lines
