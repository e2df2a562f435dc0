"""Events and figures of a demo, for its page, its picture and ``--json``.

Events and figures of epochs are entries as in a journal, and `godwit.ops.run_state.reduced` makes
the state of the run of them. On a terminal the page is that of `godwit top`.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from godwit.model import events
from godwit.model.text import printable
from godwit.ops.console import symbols_for, tell
from godwit.ops.run_state import RunState, reduced
from godwit.ops.top import Sight, figures_of, frame

if TYPE_CHECKING:
    from collections.abc import Mapping

# Shown as marks or as numbers anyway; a line for each would drown the others.
_TOO_FINE = (
    events.EpochCommitted,
    events.FilesCollected,
    events.WarmingStarted,
    events.KeyGroupsWarmed,
    events.QueryStopped,
)
_SHOWN_LINES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMark:
    """A labelled time in the picture."""

    at_s: float  # since the stream began
    label: str


class Show:
    """Shows a run, as a live page or as lines; a context."""

    def __init__(self, console: Console, *, plain: bool = True) -> None:
        self.run = RunState()
        self.marks: list[PhaseMark] = []
        self.events: list[events.Event] = []
        self.rows = 0  # source rows that are committed
        self.rows_in_all = 0
        self.stream_began()
        self._console, self._began_s = console, time.monotonic()
        self._lines: deque[Text] = deque(maxlen=_SHOWN_LINES)
        self._live: Live | None = None
        if console.is_terminal and not plain:
            self._live = Live(
                console=console, refresh_per_second=4, get_renderable=self._page_with_lines
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def stream_began(self) -> None:
        """Set the origin of times to now."""
        self.started_s = time.time()

    def say(self, text: str) -> None:
        """Show a line of text, with the seconds since the start."""
        line = f"{time.monotonic() - self._began_s:6.1f} s  {text}"
        if self._live is None:
            tell(self._console, line)
        else:
            self._lines.append(Text(printable(line), no_wrap=True, style="bold"))

    def mark(self, label: str, at_s: float | None = None) -> None:
        """Add a label to the picture, at a Unix time in seconds; by default now."""
        at_s = time.time() if at_s is None else at_s
        self.marks.append(PhaseMark(at_s=at_s - self.started_s, label=label))

    def add_event(self, event: events.Event) -> None:
        """Add an event, and show it, unless it is too detailed."""
        self.events.append(event)
        if not isinstance(event, events.EpochCommitted):  # its figures come by `add_epoch`
            self.run = reduced(self.run, {"event": event.to_dict()})
        if not isinstance(event, _TOO_FINE) and self._live is None:
            self.say(event.describe())

    def add_epoch(self, progress: Mapping[str, Any]) -> None:
        """Add the figures of an epoch, as a journal has them, and show them."""
        self.run = reduced(self.run, {"progress": progress})
        self.rows += progress["numInputRows"]
        if self._live is None:
            epoch = self.epochs()[-1]
            owned = " ".join(f"{name}:{count}" for name, count in epoch["key_groups"].items())
            self.say(
                f"epoch {epoch['epoch']:3}  {self.rows / max(self.rows_in_all, 1):4.0%}  "
                f"{epoch['duration_ms']:6.0f} ms  {epoch['rows_per_s']:7.0f} rows/s  "
                f"key groups {owned}  in flight {epoch['in_flight']}, "
                f"waiting {epoch['waiting']}, suspended {epoch['suspended']}"
            )
        if len(self.run.points) == 1:
            self.say("the first epoch is done")

    def median_ms(self) -> float:
        """Return the median epoch time without the first epoch, which starts Python processes."""
        return median([point.took_ms for point in self.run.points[1:]] or [0.0])

    def epochs(self) -> list[dict[str, Any]]:
        """Return the figures of all epochs as plain values; times since the stream began."""
        return [
            {
                "epoch": point.epoch,
                "at_s": point.at_s - self.started_s,
                "rows": point.rows_in,
                "rows_per_s": point.rows_in / max(point.took_ms / 1e3, 1e-3),
                "duration_ms": point.took_ms,
                "key_groups": {e.name: e.key_groups for e in point.frame.executors if not e.lost},
                "in_flight": point.frame.in_flight,
                "waiting": point.frame.waiting,
                "suspended": point.frame.suspended,
            }
            for point in self.run.points
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything that was measured as plain values for JSON."""
        return {
            "rows_in_all": self.rows_in_all,
            "rows": self.rows,
            "epochs": self.epochs(),
            "marks": [asdict(mark) for mark in self.marks],
            "events": [event.to_dict() for event in self.events],
        }

    def _page_with_lines(self) -> Group:
        """Return the page of `godwit top`, and below it the last lines that were said."""
        lines = list(self._lines)
        if not self.run.points:
            return Group(*lines)
        sight = Sight(
            flow="flight_delays",
            state="running",
            why=f"{self.rows:,} of {self.rows_in_all:,} rows",
            figures=figures_of(self.run),
        )
        height = max(self._console.height - len(lines) - 1, 1)
        symbols = symbols_for(self._console)
        return Group(
            *frame(sight, width=self._console.width, height=height, symbols=symbols), *lines
        )
