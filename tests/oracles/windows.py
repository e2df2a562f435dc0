"""Windows as one would write them down: plain Python over rows, one at a time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["BEGINNING", "Sessions", "Windows", "windows_of"]

BEGINNING = -(2**61)
Span = tuple[int, int]
"""Start and end of a window."""


def windows_of(moment: int, length: int, every: int, offset: int = 0) -> list[Span]:
    """All windows that hold a moment, by trying starts one after the other."""
    start = (moment - offset) // every * every + offset
    found = []
    while start + length > moment:
        found.append((start, start + length))
        start -= every
    return found[::-1]


@dataclass
class Windows:
    """Rows of keys in windows, and what comes out when.

    Attributes
    ----------
    kinds
        (length, every, offset) of each kind of window.
    slack
        Of the one source.
    """

    kinds: Sequence[tuple[int, int, int]]
    slack: int = 0
    watermark: int = BEGINNING
    newest: int = BEGINNING
    closed: int = BEGINNING
    late: int = 0
    open: dict[tuple[str, Span], list[int]] = field(default_factory=lambda: defaultdict(list))

    def epoch(
        self, rows: Iterable[tuple[str, int, int]], *, held: bool = False
    ) -> dict[tuple[str, Span], list[int]]:
        """Take (key, moment, value) rows; return (key, window) → values of those that are over.

        While the operator is `held`, nothing is over.
        """
        for key, moment, value in rows:
            spans = {s for kind in self.kinds for s in windows_of(moment, *kind)}
            wanted = [span for span in spans if span[1] > self.closed]
            self.late += not wanted
            for span in wanted:
                self.open[key, span].append(value)
            self.newest = max(self.newest, moment)
        return self.close(self.closed if held else self.watermark)

    def close(self, until: int) -> dict[tuple[str, Span], list[int]]:
        """Close windows that end by then, and move the watermark on."""
        self.closed = max(self.closed, until)
        over = {at: rows for at, rows in self.open.items() if at[1][1] <= self.closed}
        for at in over:
            del self.open[at]
        self.watermark = max(self.watermark, self.newest - self.slack)
        return over


@dataclass
class Sessions:
    """Sessions of keys, as lists of (moment, value), and what comes out when."""

    gap: int
    slack: int
    watermark: int = BEGINNING
    newest: int = BEGINNING
    closed: int = BEGINNING
    late: int = 0
    open: dict[str, list[list[tuple[int, int]]]] = field(default_factory=lambda: defaultdict(list))

    def epoch(self, rows: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int, int, int]]:
        """Take rows; return (key, start, end, number, total) of the sessions that are over."""
        for key, moment, value in rows:
            self.newest = max(self.newest, moment)
            if moment + self.gap < self.closed:
                self.late += 1
                continue
            meets = [
                s for s in self.open[key] if min(s)[0] - self.gap <= moment <= max(s)[0] + self.gap
            ]
            others = [s for s in self.open[key] if s not in meets]
            self.open[key] = [*others, [(moment, value), *(row for s in meets for row in s)]]
        return self.close(self.watermark)

    def close(self, until: int) -> list[tuple[str, int, int, int, int]]:
        """Close sessions whose end `until` is past, and move the watermark on."""
        self.closed = max(self.closed, until)
        over = []
        for key, sessions in self.open.items():
            for s in list(sessions):
                if max(s)[0] + self.gap < self.closed:
                    sessions.remove(s)
                    total = sum(value for _, value in s)
                    over.append((key, min(s)[0], max(s)[0] + self.gap, len(s), total))
        self.watermark = max(self.watermark, self.newest - self.slack)
        return over
