"""`godwit top`: a running stream in the terminal, read from its checkpoint and nothing else.

Each look reads the end of the journal (`godwit.checkpoint.journal.JournalReader`), so its cost
does not
grow with the stream, and nothing is asked of the query.  Whether the query lives is told by its
last word, and by the lease on the checkpoint, which is looked at only when the journal is silent.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from godwit.checkpoint.journal import JournalReader
from godwit.checkpoint.ownership import EXPIRY_S, load_record, look_at_lease
from godwit.checkpoint.records import IDENTITY, FlowIdentity
from godwit.cli.checkpoint import opened_checkpoint
from godwit.cli.symbols import symbols_for
from godwit.cli.top_figures import figures_of
from godwit.cli.top_page import frame
from godwit.model.errors import CheckpointError, GodwitError
from godwit.model.wording import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.cli.top_figures import RunFigures

__all__ = ["Sight", "Viewer", "add_top_command"]

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
    """What one look at a checkpoint shows.

    Attributes
    ----------
    flow
        Name of the flow.
    state
        ``"running"``, ``"silent"`` (it may be gone, which cannot be told), ``"stopped"``,
        ``"failed"`` or ``"died"``.
    why
        What that is known by.
    figures
        The run.
    """

    flow: str
    state: str
    why: str
    figures: RunFigures


class Viewer:
    """Looks at one checkpoint again and again.

    Parameters
    ----------
    storage
        The checkpoint.
    now_s
        Seconds of Unix time: journals carry the driver's.
    monotonic_s
        Seconds, from any start.
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
        held = self._held()
        if held:
            return "running", ago
        if held is None:
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
