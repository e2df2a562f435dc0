"""Windows as one would write them down: plain Python over rows, one at a time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["BEGINNING", "Windows", "windows_of"]

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
