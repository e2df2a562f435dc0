"""`godwit top`: a running stream in the terminal, read from its checkpoint and nothing else.

Each look reads the end of the journal (`godwit.checkpoint.journal.JournalReader`), so its cost does
not grow with the stream, and nothing is asked of the query.  Its last word says whether the query
lives; when the journal is silent, the lease on the checkpoint does.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from godwit.checkpoint.journal import JournalReader
from godwit.checkpoint.ownership import EXPIRY_S, load_record, look_at_lease
from godwit.checkpoint.records import IDENTITY, FlowIdentity
from godwit.cli.checkpoint import opened_checkpoint
from godwit.cli.top_figures import figures_of
from godwit.model.errors import CheckpointError, GodwitError
from godwit.model.wording import counted, human_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.cli.top_figures import EventLine, ExecutorFigures, RunFigures, SourceFigures

__all__ = [
    "ASCII",
    "BLOCKS",
    "Sight",
    "Symbols",
    "Viewer",
    "add_top_command",
    "frame",
    "symbols_for",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """Characters to draw with."""

    ticks: str  # from low to high
    full: str  # of a bar
    encoding: str  # of the terminal: texts are written so that it can show all of them

    def sparkline(self, values: Sequence[float], width: int) -> str:
        """Draw the last `width` values as a row of ticks, scaled to the largest of them."""
        shown = values[-width:] if width > 0 else []
        top = max(shown, default=0.0) or 1.0
        last = len(self.ticks) - 1
        return "".join(self.ticks[min(last, int(v / top * (last + 1)))] for v in shown)

    def bar(self, share: float, width: int) -> str:
        """Draw a bar that fills `width` if `share` is 1; anything above nothing can be seen."""
        filled = round(min(1.0, max(0.0, share)) * width)
        return self.full * (max(filled, 1) if share > 0 and width > 0 else filled)

    def plain(self, text: str) -> str:
        """Write a text so that it can be encoded."""
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding)


BLOCKS = Symbols(ticks="▁▂▃▄▅▆▇█", full="█", encoding="utf-8")
ASCII = Symbols(ticks="_.-~=+*#", full="#", encoding="ascii")


def symbols_for(console: Console) -> Symbols:
    """Choose what the encoding of a console can show."""
    return BLOCKS if console.encoding.lower().replace("-", "").startswith("utf") else ASCII


_BAR = 40
_SPARKS = 60
_DECISIONS = 5
_EVENTS = 8
_EXECUTORS = 64
_STYLES = {"running": "green", "stopped": "yellow"}
_ALARMING = (
    *("ExecutorLost", "KeyGroupsSuspended", "QueryFailed", "EpochsHeld"),
    *("ListenerFailed", "BackgroundFailed", "RowsLeftOut"),
)


def frame(sight: Sight, *, width: int, height: int | None, symbols: Symbols) -> list[Text]:
    """Draw what can be seen.

    `sight`: whose run, how it is, and its figures. `width`, `height`: columns and lines there are;
    ``None``: as many lines as it takes. `symbols`: what the terminal can show. Returns lines, none
    of them wider than `width`.
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
    decisions = _told("decisions", figures.decisions[-_DECISIONS:], symbols)
    happened = _told("events", figures.events[-_EVENTS:], symbols)
    lines = list(above)
    if height is None:
        lines += [*_executors(figures, width, _EXECUTORS, symbols), *decisions, *happened]
    else:
        # What was decided, and what is going on, before a long list of executors.
        room = max(height - len(above) - len(decisions) - 2, 2)
        lines += [*_executors(figures, width, min(room, _EXECUTORS), symbols), *decisions]
        left = height - len(lines)
        lines += happened[:1] + happened[1:][-(left - 1) :] if left > 1 else []
        lines = lines[:height]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="crop")
    return lines


def _speed(figures: RunFigures, width: int, symbols: Symbols) -> Iterator[Text]:
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


def _moving(figures: RunFigures) -> Text:
    busy = figures.in_flight or figures.planned or figures.waiting or figures.suspended
    return Text(
        f"key groups: {figures.in_flight} in flight, {figures.planned} still to move, "
        f"{figures.waiting} waiting, {figures.suspended} suspended",
        style="yellow" if busy else "",
    )


def _source(source: SourceFigures, symbols: Symbols) -> Text:
    parts = [] if source.behind is None else [f"{counted(source.behind, 'offset')} behind"]
    if source.input_rows_per_s is not None:
        parts.append(f"{source.input_rows_per_s:,.0f} rows/s in")
    if source.processed_rows_per_s is not None:
        parts.append(f"{source.processed_rows_per_s:,.0f} processed")
    parts += [f"{name} {value}" for name, value in source.metrics.items()]
    said = ", ".join(parts) or "says nothing of its lag"
    return Text(symbols.plain(f"source {source.description[:60]}: {said}"))


def _executors(figures: RunFigures, width: int, room: int, symbols: Symbols) -> Iterator[Text]:
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
        yield _executor(executor, busiest_ms, name_width, width, symbols)
    if len(shown) < len(executors):
        less = f"and {counted(len(executors) - len(shown), 'executor')} with less load"
        unseen = figures.executors_left_out
        yield Text(f"{less}; {unseen} more are not looked at" if unseen else less)


def _executor(
    executor: ExecutorFigures, busiest_ms: float, name_width: int, width: int, symbols: Symbols
) -> Text:
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


def _told(title: str, shown: tuple[EventLine, ...], symbols: Symbols) -> list[Text]:
    if not shown:
        return []
    lines = [Text(f"last {title} (UTC)", style="bold")]
    for one in shown:
        at = datetime.fromtimestamp(one.at_s, UTC).strftime("%H:%M:%S")
        style = "red" if one.kind in _ALARMING else ""
        lines.append(Text.assemble((f"{at} ", "dim"), (symbols.plain(one.line), style)))
    return lines


_ENTRIES = 1000
_SILENT_S = 5.0
_WIDE = 160


def add_top_command(subparsers: Any) -> None:
    """Add ``top`` to the command line; the function to run is left in ``args.run``."""
    parser = subparsers.add_parser(
        "top",
        help="a running stream in the terminal: load, speed, migrations, decisions",
        description="Show a stream while it runs: executors and their load, key groups on the "
        "move, rows per second, epoch time, lag of the sources where Spark tells it, the "
        "controller's last decisions. Only the end of the checkpoint's journal is read, so it "
        "works from any machine that reaches the checkpoint, costs the stream nothing, and shows "
        "the last moments of one that has ended. Ctrl-C ends it. Exit status 0; 2 if there is no "
        "checkpoint, or no journal yet.",
    )
    parser.add_argument(
        "path", metavar="CHECKPOINT", help="a path, or a URI that pyarrow.fs opens (s3://, hdfs://)"
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="print one frame and end; so it does where the output is no terminal",
    )
    parser.add_argument("--json", action="store_true", help="print the figures once, as JSON")
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="time between two looks (default: %(default)s)",
    )
    parser.set_defaults(run=_top)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 3600")
    return value


_seconds.__name__ = "number of seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """View of a checkpoint at one moment."""

    flow: str  # name of the flow
    # ``"running"``, ``"silent"`` (it may be gone, which cannot be told), ``"stopped"``,
    # ``"failed"`` or ``"died"``
    state: str
    why: str  # what that is known by
    figures: RunFigures  # the run


class Viewer:
    """Looks at one checkpoint again and again.

    `storage`: the checkpoint. `now_s`: seconds of Unix time: journals carry the driver's.
    `monotonic_s`: seconds, from any start.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        *,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._now_s, self._monotonic_s = storage, now_s, monotonic_s
        self._flow = load_record(storage, IDENTITY, FlowIdentity).name
        self._reader = JournalReader(storage)
        self._beat: tuple[int, int] | None = None
        self._beat_seen_s = 0.0
        self._beat_moves = False

    def look(self) -> Sight:
        """Read what there is now."""
        figures = figures_of(self._reader.tail(_ENTRIES))
        state, why = self._life(figures)
        return Sight(flow=printable(self._flow).replace("\n", " "), state=state, why=why,
                     figures=figures)  # fmt: skip

    def _life(self, figures: RunFigures) -> tuple[str, str]:
        last = figures.last_word
        if last is not None and last.kind != "QueryStarted":
            return "stopped" if last.kind == "QueryStopped" else "failed", last.line
        silent_s = self._now_s() - (figures.last_s or 0.0)
        ago = f"last heard of {_duration(silent_s)} ago"
        if abs(silent_s) < _SILENT_S:
            return "running", ""
        if silent_s < 0:
            ago = f"the driver's clock is {_duration(-silent_s)} ahead of this machine's"
        owner = self._held()
        if owner:
            return "running", ago
        if owner is None:
            return "silent", f"{ago}; whether it lives cannot be told yet"
        return "died", f"{ago}, and nobody holds the checkpoint's lease"

    def _held(self) -> bool | None:
        """Say whether the query lives, by its lease."""
        sight, now_s = look_at_lease(self._storage), self._monotonic_s()
        if sight.beat is None:
            return sight.held
        if sight.beat != self._beat:
            self._beat_moves = self._beat is not None
            self._beat, self._beat_seen_s = sight.beat, now_s
        if now_s - self._beat_seen_s >= EXPIRY_S:
            return False
        return True if self._beat_moves else None


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _top(args: argparse.Namespace) -> int:
    viewer = Viewer(opened_checkpoint(args.path))
    sight = viewer.look()
    if sight.figures.last_s is None:
        raise CheckpointError(
            f"The checkpoint {args.path!r} has no journal that can be read yet.",
            remedy="A query writes it from its first second on: start one, and look again.",
            path=args.path,
        )
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
    """Draw again and again until Ctrl-C."""
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
