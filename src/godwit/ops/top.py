"""`godwit top`: a running stream in the terminal, read from its checkpoint alone.

Each look reads the end of the journal (`godwit.checkpoint.journal.JournalReader`), so its cost does
not grow with the stream, and nothing is asked of the query.  Its last word says whether the query
lives; when the journal is silent, the lease on the checkpoint does.

The figures are a view of the state that those entries reduce to (`godwit.ops.run_state`), in which
every number is finite and every text short.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import reduce
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from godwit.checkpoint.journal import JournalReader
from godwit.model.errors import GodwitError
from godwit.model.text import counted, human_bytes, printable
from godwit.ops.arguments import (
    add_checkpoint,
    bounded,
    flow_name,
    no_journal_error,
    opened_checkpoint,
)
from godwit.ops.console import Symbols, symbols_for
from godwit.ops.liveness import Liveness
from godwit.ops.run_state import RunState, reduced, rows_per_s
from godwit.time.durations import elapsed_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.ops.entries import EventLine
    from godwit.ops.run_state import Movement, SourceAt

_ENTRIES = 1000
_WIDE = 160


def add_top_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit top`, and its function as ``run``."""
    parser.description = (
        "Show a stream while it runs: executors and their load, migrating key groups, rows per "
        "second, epoch time, lag of the sources where it is known, the controller's last "
        "decisions. Only the end of the checkpoint's journal is read, so it works from any "
        "machine that reaches the checkpoint, costs the stream nothing, and shows the last "
        "moments of one that has ended. Ctrl-C ends it. Exit status 0; 2 if there is no "
        "checkpoint, or no journal yet."
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--once",
        action="store_true",
        help="print one frame and end; this is the default unless the output is a terminal",
    )
    parser.add_argument("--json", action="store_true", help="print the figures once, as JSON")
    parser.add_argument(
        "--interval",
        type=bounded(float, 0.1, 3600, "number of seconds"),
        default=1.0,
        metavar="SECONDS",
        help="time between two refreshes (default: %(default)s)",
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
        figures = figures_of(reduce(reduced, self._reader.tail(_ENTRIES), RunState()))
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
    _redraw_until_interrupted(viewer, sight, console, args.interval)
    return 0


def _redraw_until_interrupted(
    viewer: Viewer, sight: Sight, console: Console, interval_s: float
) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFigures:
    """Figures of one committed epoch."""

    epoch: int  # its number
    began_s: float  # Unix time of its start, on the driver's clock
    duration_ms: float
    rows_in: int  # source rows
    rows_out: int  # rows for sinks and operators
    # p50, p95, p99, max → milliseconds from arrival to delivery; without those that are not known
    latency_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorFigures:
    """Figures of one executor."""

    name: str
    lanes: int
    draining: bool
    lost: bool
    key_groups: int  # of all components
    # of its lanes, mean of the last epochs with input: time busy with key groups (its load), and
    # CPU time
    busy_ms: float
    cpu_ms: float
    share: float  # of the load of all executors, in [0, 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Figures that `godwit top` draws, and prints as JSON; times in Unix time, oldest first."""

    last_word: EventLine | None  # the last event of the query's life (started, stopped, failed)
    last_s: float | None  # time of the last entry; ``None`` if there is none
    epochs: tuple[EpochFigures, ...]
    rows_per_s: float  # source rows over the last seconds in which there were epochs
    executors: tuple[ExecutorFigures, ...]
    executors_left_out: int  # number of further ones
    # largest distance of an executor's load per lane from the mean of those that are not draining,
    # as a share of that mean (paper 2 §4.3.1 gives the distance itself)
    load_distance: float
    # key groups: being warmed, still to be moved, with rows that wait, that do not run
    in_flight: int
    planned: int
    waiting: int
    suspended: int
    state_bytes: int  # of all components
    # with a bound on the memory of state, in the last epoch: bytes of the tables, key groups whose
    # entries left them, and keys whose entries came back
    table_bytes: int
    evicted: int
    fetched: int
    migrations: tuple[Movement, ...]  # under way
    sources: tuple[SourceAt, ...]
    measured: EventLine | None  # the controller's last measurement
    decisions: tuple[EventLine, ...]  # of the controller
    events: tuple[EventLine, ...]  # other events than epochs, measurements and decisions


def figures_of(run: RunState) -> RunFigures:
    """Return the figures of a run, from its state after the last entries of the journal."""
    frame, executors = run.frame, _executor_figures(run)
    return RunFigures(
        last_word=run.last_word,
        last_s=run.last_s,
        epochs=tuple(
            EpochFigures(
                epoch=point.epoch,
                began_s=point.at_s - point.took_ms / 1e3,
                duration_ms=point.took_ms,
                rows_in=point.rows_in,
                rows_out=point.rows_out,
                latency_ms=point.frame.latency_ms,
            )
            for point in run.points
        ),
        rows_per_s=rows_per_s(run.points),
        executors=executors,
        executors_left_out=frame.executors_left_out,
        load_distance=_load_distance(executors),
        in_flight=frame.in_flight,
        planned=frame.planned,
        waiting=frame.waiting,
        suspended=frame.suspended,
        state_bytes=sum(frame.state_bytes.values()),
        table_bytes=frame.table_bytes,
        evicted=frame.evicted,
        fetched=frame.fetched,
        migrations=tuple(
            m for m in run.movements if m.ended_s is None and m.strategy != "recovery"
        ),
        sources=frame.sources,
        measured=run.measured,
        decisions=run.decision_lines,
        events=run.events,
    )


def _executor_figures(run: RunState) -> tuple[ExecutorFigures, ...]:
    """Return the figures of the executors of the last epoch."""
    loaded = [p.frame for p in run.points if p.epoch > run.resumed_after and p.rows_in]
    loaded = loaded[-_EPOCHS_OF_LOAD:]
    busy_ms: defaultdict[str, float] = defaultdict(float)
    cpu_ms: defaultdict[str, float] = defaultdict(float)
    for epoch in loaded:
        for executor in epoch.executors:
            busy_ms[executor.name] += executor.busy_ms
            cpu_ms[executor.name] += executor.cpu_ms
    executors = run.frame.executors
    total_ms = sum(busy_ms[executor.name] for executor in executors) or 1.0
    return tuple(
        ExecutorFigures(
            name=executor.name,
            lanes=executor.lanes,
            draining=executor.draining,
            lost=executor.lost,
            key_groups=executor.key_groups,
            busy_ms=busy_ms[executor.name] / max(len(loaded), 1),
            cpu_ms=cpu_ms[executor.name] / max(len(loaded), 1),
            share=busy_ms[executor.name] / total_ms,
        )
        for executor in executors
    )


def _load_distance(executors: Iterable[ExecutorFigures]) -> float:
    """Return the largest distance of a lane's load from the mean, as a share of the mean."""
    index = [e.busy_ms / max(e.lanes, 1) for e in executors if not (e.draining or e.lost)]
    mean = sum(index) / len(index) if index else 0.0
    return max(abs(load - mean) for load in index) / mean if mean > 0 else 0.0


_BAR = 40
_SPARKS = 60
_SHOWN_DECISIONS = 5
_SHOWN_EVENTS = 8
_SHOWN_EXECUTORS = 64
_STYLES = {"running": "green", "stopped": "yellow"}
_ALARMING = (
    *("ExecutorLost", "KeyGroupsSuspended", "QueryFailed", "EpochsHeld"),
    *("ListenerFailed", "BackgroundFailed", "ResidentLanesFailed"),
    *("RowsLeftOut", "RowsUnreadable", "CallsFailed", "FeedbackPaused"),
    "SourceReported",
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
        *_speed_lines(figures, width, symbols),
        *_latency_line(figures),
        _migration_line(figures),
        *_state_line(figures),
        *(_source_line(source, symbols) for source in figures.sources),
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
    decisions = _titled_lines("decisions", figures.decisions[-_SHOWN_DECISIONS:], symbols)
    happened = _titled_lines("events", figures.events[-_SHOWN_EVENTS:], symbols)
    room = _SHOWN_EXECUTORS
    if height is not None:
        # Decisions and running migrations come before a long list of executors.
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


def _speed_lines(figures: RunFigures, width: int, symbols: Symbols) -> Iterator[Text]:
    """Yield the lines about the speed of epochs."""
    if not figures.epochs:
        yield Text("no epochs yet")
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


def _latency_line(figures: RunFigures) -> Iterator[Text]:
    """Yield the line about the latency of rows."""
    latencies = [epoch.latency_ms for epoch in figures.epochs if epoch.latency_ms]
    if latencies:
        shown = "  ".join(f"{name} {elapsed_text(ms)}" for name, ms in latencies[-1].items())
        old = max(latencies[-1].values()) >= _OLD_MS
        note = " (old rows: they arrived long before the query read them)" if old else ""
        yield Text(f"latency of rows, from arrival to delivery: {shown}{note}")


_OLD_MS = 3_600_000.0
"""Min. latency of rows that count as a backfill."""


def _migration_line(figures: RunFigures) -> Text:
    """Return the line about moving key groups."""
    busy = figures.in_flight or figures.planned or figures.waiting or figures.suspended
    return Text(
        f"key groups: {figures.in_flight} in flight, {figures.planned} still to move, "
        f"{figures.waiting} waiting, {figures.suspended} suspended",
        style="yellow" if busy else "",
    )


def _state_line(figures: RunFigures) -> Iterator[Text]:
    """Yield the line about state, if there is a bound on its memory."""
    if figures.table_bytes:
        yield Text(
            f"state: {human_bytes(figures.state_bytes)}, "
            f"{human_bytes(figures.table_bytes)} in tables; last epoch: "
            f"{counted(figures.evicted, 'key group')} evicted, "
            f"{counted(figures.fetched, 'key')} fetched"
        )


def _source_line(source: SourceAt, symbols: Symbols) -> Text:
    """Return the line about a source."""
    parts = [] if source.behind is None else [f"{counted(source.behind, 'offset')} behind"]
    if source.input_rows_per_s is not None:
        parts.append(f"{source.input_rows_per_s:,.0f} rows/s in")
    if source.processed_rows_per_s is not None:
        parts.append(f"{source.processed_rows_per_s:,.0f} processed")
    parts += [f"{name} {value}" for name, value in source.metrics.items()]
    lag = ", ".join(parts) or "does not report its lag"
    return Text(symbols.plain(f"source {source.description[:60]}: {lag}"))


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
        yield Text(f"{less}; {unseen} more are not shown" if unseen else less)


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


def _titled_lines(title: str, shown: tuple[EventLine, ...], symbols: Symbols) -> list[Text]:
    """Return a title, and a line for each event; nothing if there are no events."""
    if not shown:
        return []
    lines = [Text(f"last {title} (UTC)", style="bold")]
    for event in shown:
        clock = datetime.fromtimestamp(event.at_s, UTC).strftime("%H:%M:%S")
        style = "red" if event.kind in _ALARMING else ""
        lines.append(Text.assemble((f"{clock} ", "dim"), (symbols.plain(event.line), style)))
    return lines
