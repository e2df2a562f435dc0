"""Recording of a demo run: figures per epoch, events, and the comparison.

The terminal, the picture and ``--json`` all show the same recording.  The verdict compares what the
stream delivered with one batch query over the same files.  Every column compared is exact (counts,
integer sums, extremes, and means that both sides divide from the same integers), so "equal" means
equal.
"""

from __future__ import annotations

import math
import os
import queue
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from godwit.cli.console import BLOCKS, tell
from godwit.model import events
from godwit.model.errors import EpochFailedError
from godwit.model.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from rich.console import Console, RenderableType

    from godwit.runtime.query import Query

Key = tuple[Any, ...]
_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of a streamed result with a batch query's."""

    what: str  # which result
    rows: int  # rows of the batch query
    differences: tuple[str, ...]  # what differs, one sentence each, in order of keys

    @property
    def equal(self) -> bool:
        """True if there are no differences."""
        return not self.differences


def newest_rows(delivered: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the newest row of every key; the column ``epoch`` has the epoch that wrote a row.

    Raises `ValueError` if one epoch delivered a key twice, so that "newest" would be ambiguous.
    """
    ordered = delivered.sort_by("epoch")
    last: dict[Key, tuple[int, int]] = {}
    columns = [ordered[name].to_pylist() for name in (*keys, "epoch")]
    for row, (*key, number) in enumerate(zip(*columns, strict=True)):
        seen = last.get(tuple(key))
        if seen is not None and seen[0] == number:
            raise ValueError(f"epoch {number} delivered key {tuple(key)} twice")
        last[tuple(key)] = (number, row)
    return ordered.take([row for _, row in last.values()]).drop_columns(["epoch"])


def compare(what: str, streamed: pa.Table, batch: pa.Table, keys: Sequence[str]) -> Comparison:
    """Compare two tables row by row, matched by `keys`, on the columns of `batch`.

    `what`: the result's name.
    """
    names = [name for name in batch.column_names if name not in keys]
    left, right = _by_key(streamed, keys, names), _by_key(batch, keys, names)
    differences = []
    if streamed.num_rows != len(left):
        differences.append(f"{streamed.num_rows - len(left)} keys are in the stream's rows twice")
    for key in sorted(left.keys() | right.keys(), key=repr):
        named = ", ".join(f"{k}={v!r}" for k, v in zip(keys, key, strict=True))
        if key not in left:
            differences.append(f"{named}: missing in the stream; batch has {right[key]}")
        elif key not in right:
            differences.append(f"{named}: only in the stream, which has {left[key]}")
        elif left[key] != right[key]:
            differences.append(f"{named}: stream has {left[key]}, batch has {right[key]}")
    return Comparison(what=what, rows=len(right), differences=tuple(differences))


def compare_files(what: str, directory: Path, batch: pa.Table, keys: Sequence[str]) -> Comparison:
    """Compare the newest rows in a Parquet sink's directory with the result of a batch query.

    `what`: the result's name.
    """
    import pyarrow.dataset as ds  # noqa: PLC0415  it brings pandas along, and the start is busy

    delivered = ds.dataset(directory, partitioning="hive", format="parquet").to_table()
    try:
        newest = newest_rows(delivered, keys)
    except ValueError as error:
        return Comparison(what=what, rows=batch.num_rows, differences=(str(error),))
    return compare(what, newest, batch, keys)


def tell_comparison(console: Console, name: str, comparison: Comparison) -> None:
    """Print whether a result equals that of the batch query, and the first differences."""
    if comparison.equal:
        verdict = Text.assemble(
            ("equal", "green"), f" to the batch query, all {comparison.rows:,} rows"
        )
    else:
        differences = counted(len(comparison.differences), "difference")
        verdict = Text.assemble((differences, "red"), " from the batch query")
    console.print(Text(f"{name}: ") + verdict, soft_wrap=True)
    for difference in comparison.differences[:_SHOWN]:
        tell(console, f"  {difference}")


def _by_key(
    table: pa.Table, keys: Sequence[str], names: Sequence[str]
) -> dict[Key, Mapping[str, Any]]:
    """Return values of the columns `keys` → row, which has only the columns `names`."""
    return {
        tuple(row[key] for key in keys): {name: row[name] for name in names}
        for row in table.select([*keys, *names]).to_pylist()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoEpoch:
    """Figures of one committed epoch."""

    epoch: int  # its number
    at_s: float  # when it was done, in seconds since the stream began
    # source rows, and those per second of the epoch
    rows: int
    rows_per_s: float
    duration_ms: float  # how long it took
    key_groups: Mapping[str, int]  # executor → key groups it owns, over all operators
    # key groups that are on their way, that have rows waiting, that do not run
    in_flight: int
    waiting: int
    suspended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A labelled time in the picture."""

    at_s: float
    label: str


@dataclass(slots=True, kw_only=True)
class Recording:
    """Measurements of the demo so far."""

    started_s: float  # when the stream began, on the clock of the events
    rows_in_all: int  # rows that there are to stream
    # in the order in which they happened
    epochs: list[DemoEpoch] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    log: list[events.Event] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Number of source rows committed so far."""
        return sum(epoch.rows for epoch in self.epochs)

    @property
    def executors(self) -> list[str]:
        """Names of all executors that ever were present or owned key groups."""
        names = {name for epoch in self.epochs for name in epoch.key_groups}
        return sorted(names, key=lambda name: (len(name), name))

    def mark(self, label: str, at_s: float) -> None:
        """Add a label at `at_s`, a Unix time in seconds."""
        self.marks.append(Mark(at_s=at_s - self.started_s, label=label))

    def add_epoch(
        self, progress: Mapping[str, Any], status: Mapping[str, Any], at_s: float
    ) -> DemoEpoch:
        """Add and return an epoch, from the query's progress and status."""
        owned = dict.fromkeys(status["executors"], 0)
        for places in progress["keyGroups"].values():
            for executor, count in places.items():
                owned[executor] = owned.get(executor, 0) + count
        figures = DemoEpoch(
            epoch=progress["epoch"],
            at_s=at_s - self.started_s,
            rows=progress["numInputRows"],
            rows_per_s=progress["processedRowsPerSecond"],
            duration_ms=progress["durationMs"]["epoch"],
            key_groups=owned,
            in_flight=status["keyGroupsInFlight"],
            waiting=progress["waitingKeyGroups"],
            suspended=status["keyGroupsSuspended"],
        )
        self.epochs.append(figures)
        return figures

    def median_ms(self) -> float:
        """Return the median epoch time without the first epoch, which starts Python processes."""
        of = sorted(epoch.duration_ms for epoch in self.epochs[1:])
        return of[len(of) // 2] if of else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the recording as plain values for JSON."""
        return {
            "rows_in_all": self.rows_in_all,
            "rows": self.rows,
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "marks": [asdict(mark) for mark in self.marks],
            "events": [event.to_dict() for event in self.log],
        }


class Audience(Protocol):
    """Port to the display of a demo."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def say(self, text: str) -> None:
        """Show a line of text."""

    def epoch(self, figures: DemoEpoch, recording: Recording) -> None:
        """Show the figures of a committed epoch."""

    def event(self, event: events.Event, recording: Recording) -> None:
        """Show an event."""


def audience_for(console: Console, *, plain: bool) -> Audience:
    """Return a display for a console: a live page on a terminal, else plain lines."""
    return LivePage(console) if console.is_terminal and not plain else PlainLines(console)


class QueryRecorder:
    """Feeds a query with files, and records its events and figures.

    `folder`: the input is in ``in`` there, the logs in ``cluster``. `rows_in_all`: rows to come.
    `max_silence_s`: seconds without an event after which the query is taken for stuck.
    """

    def __init__(
        self,
        query: Query,
        folder: Path,
        audience: Audience,
        rows_in_all: int,
        *,
        max_silence_s: float = math.inf,
    ) -> None:
        self._query, self._folder, self._audience = query, folder, audience
        self._max_silence_s = max_silence_s
        self.recording = Recording(started_s=time.time(), rows_in_all=rows_in_all)
        self.progress: Mapping[str, Any] = {}  # of the last epoch
        self._heard_s = time.monotonic()  # when the last event came
        self._let_in_s = 0.0  # when the last file was let in
        self._events: queue.Queue[events.Event] = queue.Queue()
        query.add_listener(self._events.put)

    def let_in(self, file: Path) -> None:
        """Move a file into the source's directory, atomically, with the present modification time.

        So the source reads it after earlier files.
        """
        self._let_in_s = max(time.time(), self._let_in_s + 0.002)  # Spark knows milliseconds
        os.utime(file, (self._let_in_s, self._let_in_s))
        os.link(file, self._folder / "in" / file.name)

    def mark_now(self, label: str) -> None:
        """Add a label at the current time to the recording, and show it."""
        self.recording.mark(label, time.time())
        self._audience.say(label)

    def next_event(self, timeout_s: float, *, record: bool = True) -> events.Event | None:
        """Return the next event, added to the recording and shown if `record`.

        ``None`` if none came in time; then raises if the query has ended, or been silent too long.
        """
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            self._check_alive()
            return None
        self._heard_s = time.monotonic()
        if record:
            self._record(event)
        return event

    def _record(self, event: events.Event) -> None:
        """Record an event, and show it."""
        recording, query = self.recording, self._query
        recording.log.append(event)
        if not isinstance(event, events.EpochCommitted):
            self._audience.event(event, recording)
            return
        self.progress = next(p for p in reversed(query.recentProgress) if p["epoch"] == event.epoch)
        figures = recording.add_epoch(self.progress, query.status, event.at_s)
        self._audience.epoch(figures, recording)
        if len(recording.epochs) == 1:
            self._audience.say("the first epoch is done")

    def _check_alive(self) -> None:
        """Raise if the query has ended, or has sent no event for too long."""
        if self._query.isActive and time.monotonic() - self._heard_s <= self._max_silence_s:
            return
        raise self._query.exception() or EpochFailedError(
            "The query of the demo ended, or stood still, before its input was read.",
            remedy=f"Look at the logs in {self._folder / 'cluster'}.",
        )


_BAR = 40
# Shown as marks or as numbers anyway; a line for each would drown the others.
_TOO_FINE = (
    events.FilesCollected,
    events.WarmingStarted,
    events.KeyGroupsWarmed,
    events.QueryStopped,
)


def _key_groups_text(figures: DemoEpoch) -> str:
    """Return the numbers of key groups that are moving, waiting or suspended, as text."""
    return (
        f"in flight {figures.in_flight}, waiting {figures.waiting}, suspended {figures.suspended}"
    )


class PlainLines:
    """Display by plain lines, for files and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Print a line of text."""
        self._print(text)

    def epoch(self, figures: DemoEpoch, recording: Recording) -> None:
        """Print the figures of a committed epoch."""
        owned = " ".join(f"{name}:{count}" for name, count in figures.key_groups.items())
        share = recording.rows / max(recording.rows_in_all, 1)
        self._print(
            f"epoch {figures.epoch:3}  {share:4.0%}  {figures.duration_ms:6.0f} ms  "
            f"{figures.rows_per_s:7.0f} rows/s  key groups {owned}  {_key_groups_text(figures)}"
        )

    def event(self, event: events.Event, recording: Recording) -> None:  # noqa: ARG002  the port's
        """Print an event."""
        if not isinstance(event, _TOO_FINE):
            self._print(event.describe())

    def _print(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        elapsed = time.monotonic() - self._started
        tell(self._console, f"{elapsed:6.1f} s  {text}")


class LivePage:
    """Display by a page that is redrawn several times a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._lines: deque[Text] = deque(maxlen=9)
        self._recording: Recording | None = None
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Add a bold line, with the seconds since the start, to those below the page's figures."""
        self._add_line(Text(text, style="bold"))

    def epoch(self, figures: DemoEpoch, recording: Recording) -> None:  # noqa: ARG002  the port's
        """Show the figures of this epoch from now on."""
        self._recording = recording

    def event(self, event: events.Event, recording: Recording) -> None:  # noqa: ARG002  the port's
        """Add an event to the lines below the page's figures, unless it is too detailed."""
        if not isinstance(event, _TOO_FINE):
            alarming = isinstance(event, events.ExecutorLost | events.KeyGroupsSuspended)
            self._add_line(Text(event.describe(), style="red" if alarming else ""))

    def _add_line(self, line: Text) -> None:
        """Add a line below the page's figures, with the seconds since the start."""
        elapsed = Text(f"{time.monotonic() - self._started:6.1f} s  ", style="dim")
        self._lines.append(elapsed.append_text(line))

    def _render(self) -> RenderableType:
        """Return the page as rich shows it."""
        page: list[RenderableType] = []
        recording = self._recording
        if recording is not None:
            page = [*self._figures(recording), Text("")]
        for line in tuple(self._lines):
            line.truncate(self._console.width, overflow="ellipsis")
            page.append(line)
        if recording is None:
            elapsed = time.monotonic() - self._started
            page.append(Text(f"{elapsed:6.1f} s  …", style="dim"))
        return Group(*page)

    def _figures(self, recording: Recording) -> list[RenderableType]:
        """Return the bars and numbers above the lines."""
        latest = recording.epochs[-1]
        share = min(1.0, recording.rows / max(recording.rows_in_all, 1))
        filled = round(share * _BAR)
        rows = Text.assemble(
            ("━" * filled, "cyan"),
            ("━" * (_BAR - filled), "dim"),
            f" {recording.rows:,} of {recording.rows_in_all:,} rows   epoch {latest.epoch}",
        )
        speed = Text.assemble(
            (f"{latest.rows_per_s:,.0f} rows/s", "bold"),
            "   epoch time ",
            (f"{latest.duration_ms:,.0f} ms ", "bold"),
            (BLOCKS.sparkline([e.duration_ms for e in recording.epochs[1:]], _BAR), "cyan"),
        )
        places = Table(box=None, padding=(0, 1), show_header=False)
        greatest = max([*latest.key_groups.values(), 1])
        for name in recording.executors:
            count = latest.key_groups.get(name)
            if count is None:
                places.add_row(f"executor {name}", Text("dead", style="red"), "")
            else:
                bar = Text("█" * round(count / greatest * _BAR), style="green")
                idle = Text("idle", style="yellow")
                places.add_row(f"executor {name}", bar if count else idle, f"{count} key groups")
        busy = bool(latest.in_flight or latest.waiting or latest.suspended)
        counts = Text(f"key groups: {_key_groups_text(latest)}", style="yellow" if busy else "")
        return [rows, speed, places, counts]
