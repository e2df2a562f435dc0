"""Windows of event time and their panes, as integer arithmetic over columns.

Windows of one length begin every so often; a row belongs to each window that holds its event time.
Keeping a state per window would touch ``length / every`` states a row.  So event time is cut into
*panes*, none of which straddles the beginning or end of a window: a row touches one pane, and a
window is made of whole panes when it is asked for.

All moments are microseconds since 1970-01-01 UTC, windows are ``[start, end)``, and windows are
aligned to that moment plus `TimeWindow.offset_us`, as Spark aligns them.

Source: partial windows, Madsen et al. (Enorm) §4.2; panes of width gcd(length, frequency), Li et
al., "No Pane, No Gain", SIGMOD Record 34(1), 2005.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Moments = npt.NDArray[np.int64]

BEGINNING: Final = -(2**61)
"""A moment before all event time."""
END: Final = 2**61
"""A moment after all event time."""


def is_past(moments: Moments, watermark: int) -> npt.NDArray[np.bool_]:
    """Return which moments the watermark is past; rows of the others may still arrive in time.

    The one rule for late and due in every operator: a row is late if the watermark of earlier
    epochs is past it; a timer or window that waits for rows up to and including a moment is due
    once the watermark is past that moment. A window waits for rows *before* its end, so it closes
    when the watermark reaches its end.
    """
    past: npt.NDArray[np.bool_] = moments < watermark
    return past


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """Windows of one length."""

    # length_us, every_us: how long each is, and how long after one the next begins; at most the
    # length
    length_us: int
    every_us: int
    offset_us: int = 0  # windows begin at this moment plus a multiple of `every_us`

    def first_open(self, closed: int) -> int:
        """Start of the first window that ends after `closed`."""
        return self._aligned(closed - self.length_us) + self.every_us

    def last_closing(self, until: int) -> int:
        """Start of the last window that ends at `until` or before."""
        return self._aligned(until - self.length_us)

    def end_of(self, moment: int) -> int:
        """End of the last window that holds `moment`."""
        return self._aligned(moment) + self.length_us

    def _aligned(self, moment: int) -> int:
        """Start of the last window that begins at `moment` or before."""
        return (moment - self.offset_us) // self.every_us * self.every_us + self.offset_us


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowsOfPanes:
    """Pairs of a pane and a window that holds it, as columns."""

    pane: Moments  # position of the pane among those that were asked about
    kind: Moments  # which of the grid's windows
    # start, end: the window
    start: Moments
    end: Moments


@dataclass(frozen=True, slots=True, kw_only=True)
class PaneGrid:
    """The panes of some windows."""

    windows: tuple[TimeWindow, ...]  # at least one
    # Length of a pane: the greatest that divides every length, frequency and distance between
    # offsets.
    width_us: int

    @classmethod
    def of(cls, *windows: TimeWindow) -> PaneGrid:
        """Return the grid of some windows.

        Examples
        --------
        >>> minute = 60_000_000
        >>> of = [TimeWindow(length_us=n * minute, every_us=n * minute) for n in (5, 10, 15, 20)]
        >>> PaneGrid.of(*of).width_us // minute
        5
        """
        first = windows[0].offset_us
        lengths = [n for w in windows for n in (w.length_us, w.every_us, w.offset_us - first)]
        return cls(windows=windows, width_us=math.gcd(*lengths))

    @property
    def longest_us(self) -> int:
        """Maximum length of a window, in microseconds."""
        return max(window.length_us for window in self.windows)

    @property
    def panes_per_window(self) -> int:
        """Number of panes of the longest window."""
        return max(window.length_us for window in self.windows) // self.width_us

    def panes(self, times: Moments) -> Moments:
        """Start of the pane of each event time."""
        offset = self.windows[0].offset_us
        return (times - offset) // self.width_us * self.width_us + offset

    def is_late(self, times: Moments, closed: int) -> npt.NDArray[np.bool_]:
        """Return which event times have only windows that end at `closed` or before."""
        late: npt.NDArray[np.bool_] = times < self.first_open(closed)  # where a pane begins
        return late

    def instants(self, bounds: Moments) -> Moments:
        """Return bounds of windows as instants: unchanged without a calendar."""
        return bounds

    def first_open(self, closed: int) -> int:
        """Start of the first pane needed by a window that ends after `closed`."""
        return min(window.first_open(closed) for window in self.windows)

    def closing(self, closed: int, until: int) -> tuple[int, int]:
        """First pane, and end of the last, of windows that end after `closed`, by `until`."""
        over = [w for w in self.windows if w.first_open(closed) <= w.last_closing(until)]
        first = min((window.first_open(closed) for window in over), default=END)
        return first, max((w.last_closing(until) + w.length_us for w in over), default=first)

    def end_of(self, moment: int) -> int:
        """End of the last window that holds `moment`."""
        return max(window.end_of(moment) for window in self.windows)

    def closes(self, closed: int, until: int) -> bool:
        """Return True if a window ends after `closed`, and at `until` or before."""
        return any(w.first_open(closed) <= w.last_closing(until) for w in self.windows)

    def windows_of(self, panes: Moments, closed: int, until: int) -> WindowsOfPanes:
        """Windows that hold each pane and end after `closed`, and at `until` or before.

        A window of two kinds counts as of the first. The work grows with the pairs that are found.
        """
        parts = [
            self._of_kind(kind, window, panes, closed, until)
            for kind, window in enumerate(self.windows)
        ]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return WindowsOfPanes(pane=columns[0], kind=columns[1], start=columns[2], end=columns[3])

    def windows_over(self, panes: Moments, closed: int, until: int) -> tuple[Moments, Moments]:
        """Start and end of each window in `windows_of`, once, ordered by kind."""
        parts = [
            np.unique(self._of_kind(kind, window, panes, closed, until)[2])
            for kind, window in enumerate(self.windows)
        ]
        lengths = [
            np.full(len(starts_of_kind), window_.length_us)
            for starts_of_kind, window_ in zip(parts, self.windows, strict=True)
        ]
        starts = np.concatenate(parts)
        return starts, starts + np.concatenate(lengths)

    def _of_kind(
        self, kind: int, window: TimeWindow, panes: Moments, closed: int, until: int
    ) -> tuple[Moments, Moments, Moments, Moments]:
        """Return pairs of panes and open windows that close by `until`: pane, kind, start, end."""
        every_us, length_us = window.every_us, window.length_us
        last = (panes - window.offset_us) // every_us * every_us + window.offset_us
        first = last - (length_us - (panes - last) - self.width_us) // every_us * every_us
        first = np.maximum(first, window.first_open(closed))
        last = np.minimum(last, window.last_closing(until))
        counts = np.maximum((last - first) // every_us + 1, 0)
        pane = np.repeat(np.arange(len(panes)), counts)
        windows_before = np.repeat(np.cumsum(counts) - counts, counts)
        start = first[pane] + (np.arange(len(pane)) - windows_before) * every_us
        for earlier in self.windows[:kind]:
            if earlier.length_us == length_us:
                is_new = (start - earlier.offset_us) % earlier.every_us != 0
                pane, start = pane[is_new], start[is_new]
        return pane, np.full(len(pane), kind), start, start + length_us
