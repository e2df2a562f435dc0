"""Duplicates and joins as one would write them down: plain Python over lists of rows.

Each takes the rows of an epoch, then closes up to the watermark that the epoch before left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.oracles.windows import BEGINNING

__all__ = ["Duplicates", "Interval", "Newest"]

Row = tuple[Any, ...]
"""Key, moment, and what else there is."""


@dataclass(kw_only=True)
class _Late:
    closed: int = BEGINNING
    late: int = 0

    def on_time(self, rows: list[Row]) -> list[Row]:
        kept = [row for row in rows if row[1] >= self.closed]
        self.late += len(rows) - len(kept)
        return kept


@dataclass(kw_only=True)
class Duplicates(_Late):
    """Rows that pass a `drop_duplicates`."""

    within: int
    through: list[Row] = field(default_factory=list)

    def epoch(self, rows: list[Row], until: int) -> list[Row]:
        found = []
        for row in self.on_time(rows):
            if not any(
                row[0] == other[0] and abs(row[1] - other[1]) <= self.within
                for other in self.through
            ):
                self.through.append(row)
                found.append(row)
        self.closed = max(self.closed, until)
        return found


@dataclass(kw_only=True)
class Newest(_Late):
    """Rows of the left with the newest of the right."""

    within: int | None
    inner: bool
    left: list[Row] = field(default_factory=list)
    right: list[Row] = field(default_factory=list)

    def epoch(self, left: list[Row], right: list[Row], until: int) -> list[Row]:
        self.left += self.on_time(left)
        self.right += self.on_time(right)
        self.closed = max(self.closed, until)
        due = [row for row in self.left if row[1] < self.closed]
        self.left = [row for row in self.left if row[1] >= self.closed]
        found = []
        for key, moment, value in due:
            there = [
                (other[1], number, other)
                for number, other in enumerate(self.right)
                if key is not None
                and other[0] == key
                and other[1] <= moment
                and (self.within is None or other[1] >= moment - self.within)
            ]
            if there:
                found.append((key, moment, value, *max(there)[2][1:]))
            elif not self.inner:
                found.append((key, moment, value, None, None))
        return found


@dataclass(kw_only=True)
class Interval(_Late):
    """All pairs within an interval, and rows that met none."""

    earliest: int
    latest: int
    how: str
    left: list[list[Any]] = field(default_factory=list)
    right: list[list[Any]] = field(default_factory=list)

    def epoch(self, left: list[Row], right: list[Row], until: int) -> list[Row]:
        found: list[Row] = []
        for side, rows in enumerate((self.on_time(left), self.on_time(right))):
            for row in rows:
                mine = [row, False]
                for theirs in (self.right, self.left)[side]:
                    one, other = (row, theirs[0])[:: -1 if side else 1]
                    if (
                        one[0] is not None
                        and one[0] == other[0]
                        and self.earliest <= other[1] - one[1] <= self.latest
                    ):
                        mine[1] = theirs[1] = True
                        found.append((one[0], *one[1:], *other[1:]))
                (self.left, self.right)[side].append(mine)
        self.closed = max(self.closed, until)
        self.left, alone = self._part(self.left, max(self.latest, 0))
        if self.how in ("left", "full"):
            found += [(*row, None, None) for row in alone]
        self.right, alone = self._part(self.right, max(-self.earliest, 0))
        if self.how in ("right", "full"):
            found += [(row[0], None, None, *row[1:]) for row in alone]
        return found

    def _part(self, rows: list[list[Any]], reach: int) -> tuple[list[list[Any]], list[Row]]:
        kept = [row for row in rows if row[0][1] + reach >= self.closed]
        over = [row for row, met in rows if row[1] + reach < self.closed and not met]
        return kept, over
