"""The demo on the terminal: one live page on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from godwit.model import events

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console, RenderableType

    from godwit.cli.demo.recording import DemoEpoch, Recording

__all__ = ["LivePage", "PlainLines", "sparkline"]

_TICKS = "▁▂▃▄▅▆▇█"
_BAR = 40
# Shown as marks or as numbers anyway; a line for each would drown the others.
_TOO_FINE = (
    events.FilesCollected,
    events.WarmingStarted,
    events.KeyGroupsWarmed,
    events.QueryStopped,
)


def sparkline(values: list[float], width: int) -> str:
    """Draw the last `width` values as a row of blocks, scaled to the largest of them."""
    shown = values[-width:]
    top = max(shown, default=0.0) or 1.0
    return "".join(_TICKS[min(7, int(value / top * 8))] for value in shown)


def _summary(figures: DemoEpoch) -> str:
    return (
        f"in flight {figures.in_flight}, waiting {figures.waiting}, suspended {figures.suspended}"
    )


class PlainLines:
    """One line for everything, for files and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def say(self, text: str) -> None:
        """Print a line."""
        self._print(text)

    def epoch(self, figures: DemoEpoch, recording: Recording) -> None:
        """Print an epoch's figures."""
        owned = " ".join(f"{name}:{count}" for name, count in figures.key_groups.items())
        share = recording.rows / max(recording.rows_in_all, 1)
        self._print(
            f"epoch {figures.epoch:3}  {share:4.0%}  {figures.duration_ms:6.0f} ms  "
            f"{figures.rows_per_s:7.0f} rows/s  key groups {owned}  {_summary(figures)}"
        )

    def event(self, event: events.Event, recording: Recording) -> None:  # noqa: ARG002  the port's
        """Print an event."""
        if not isinstance(event, _TOO_FINE):
            self._print(event.describe())

    def _print(self, text: str) -> None:
        elapsed = time.monotonic() - self._started
        self._console.print(Text(f"{elapsed:6.1f} s  {text}"), soft_wrap=True)


class LivePage:
    """A page that is drawn again several times a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._lines: deque[Text] = deque(maxlen=9)
        self._recording: Recording | None = None
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def say(self, text: str) -> None:
        """Show a line."""
        self._add(Text(text, style="bold"))

    def epoch(self, figures: DemoEpoch, recording: Recording) -> None:  # noqa: ARG002  the port's
        """Show the figures from now on."""
        self._recording = recording

    def event(self, event: events.Event, recording: Recording) -> None:  # noqa: ARG002  the port's
        """Show an event."""
        if not isinstance(event, _TOO_FINE):
            alarming = isinstance(event, events.ExecutorLost | events.KeyGroupsSuspended)
            self._add(Text(event.describe(), style="red" if alarming else ""))

    def _add(self, line: Text) -> None:
        elapsed = Text(f"{time.monotonic() - self._started:6.1f} s  ", style="dim")
        self._lines.append(elapsed.append_text(line))

    def _render(self) -> RenderableType:
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
            (sparkline([e.duration_ms for e in recording.epochs[1:]], _BAR), "cyan"),
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
        counts = Text(f"key groups: {_summary(latest)}", style="yellow" if busy else "")
        return [rows, speed, places, counts]
