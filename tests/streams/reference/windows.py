"""Windows and sessions, as lists of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tests.streams.reference.calendars import begins, number_of, spelled
from tests.streams.reference.streams import NEVER, Front, InputClock, Node, Operator, Row

__all__ = ["LastRows", "Session", "Window"]


def aggregate(what: str, column: str | None, rows: list[Row]) -> Any:
    """Give an aggregate of some rows, in order of arrival."""
    if what == "count":
        return len(rows) if column is None else sum(row[column] is not None for row in rows)
    assert column is not None
    every = [row[column] for row in rows]
    if what in ("first", "last"):
        return every[0 if what == "first" else -1]
    values = [value for value in every if value is not None]
    if what == "collect_set":
        return list(dict.fromkeys(values))
    if what == "top_k":
        return sorted(values, key=lambda v: (isinstance(v, float) and math.isnan(v), v))[::-1][:3]
    if not values:
        return None
    if what in ("min", "max"):
        pick = min if what == "min" else max
        return pick(values, key=lambda v: (isinstance(v, float) and math.isnan(v), v))
    if any(isinstance(v, float) and not math.isfinite(v) for v in values):
        return math.nan
    if what == "sum":
        return sum(values)
    mean = Fraction(sum(Fraction(v) for v in values), len(values))
    if what == "mean":
        return float(mean)
    if len(values) == 1:
        return None
    return float(sum((Fraction(v) - mean) ** 2 for v in values) / (len(values) - 1))


@dataclass
class OfWindows(Operator):
    """Aggregates of rows of a key and a span of time; `keyed`: key → its values as they came."""

    feed: Node = None  # type: ignore[assignment]  # given always
    aggregates: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    keyed: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)

    time: str = "window_end"
    is_end: bool = True

    def __post_init__(self) -> None:
        self.columns = [*self.keys, "window_start", "window_end", *self.aggregates]

    def feeds(self) -> list[Node]:
        return [self.feed]

    def timed(self, row: Row) -> tuple[int, tuple[Any, ...]]:
        """Event time of a row, and its key."""
        at, key = self.moment_of(0, row), self.key(row)
        assert at is not None
        self.keyed.setdefault(key, tuple(row[k] for k in self.keys))
        return at, key

    def result(self, key: tuple[Any, ...], start: int, end: int, rows: list[Row]) -> Row:
        return {
            **dict(zip(self.keys, self.keyed[key], strict=True)),
            "window_start": start,
            "window_end": end,
            **{name: aggregate(*of, rows) for name, of in self.aggregates.items()},
        }


@dataclass
class Window(OfWindows):
    """Aggregates of windows (length, every, start): of microseconds, or of a calendar's units."""

    kinds: list[tuple[int, int, int]] = field(default_factory=list)
    update: bool = False
    lateness: int = 0
    calendar: tuple[str, str] | None = None  # its unit, a day or a month, and its time zone
    length_as: str | None = None
    open: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.delay = self.lateness
        if self.length_as is not None:
            self.columns.insert(len(self.keys) + 2, self.length_as)

    @property
    def grows(self) -> bool:
        """True if a window may be emitted more than once."""
        return self.update or self.lateness > 0

    def begins(self, number: int) -> int:
        return number if self.calendar is None else begins(*self.calendar, number)

    def windows(self, at: int) -> set[tuple[int, int]]:
        """Windows that hold a moment, in the units of their kinds."""
        at = at if self.calendar is None else number_of(*self.calendar, at)
        found = set()
        for length, every, start in self.kinds:
            begin = (at - start) // every * every + start
            while begin + length > at:
                found.add((begin, begin + length))
                begin -= every
        return found

    def is_late(self, at: int) -> bool:
        return all(self.begins(end) <= self.closed - self.lateness for _, end in self.windows(at))

    def over_at(self, newest: int) -> int:
        return max(self.begins(end) for _, end in self.windows(newest))

    def emitted_newest(self, newest: int) -> int:
        return self.over_at(newest) - 1

    def run(self, rows: list[list[Row]]) -> list[Row]:
        touched: dict[tuple[Any, ...], None] = {}
        for row in rows[0]:
            at, key = self.timed(row)
            for window in self.windows(at):
                if self.begins(window[1]) > self.closed - self.lateness:
                    self.open.setdefault((key, window), []).append(row)
                    touched[key, window] = None
        ends = {one: self.begins(one[1][1]) for one in self.open}
        found = [
            self.window_row(key, window)
            for key, window in self.open
            if ((key, window) in touched and (self.update or ends[key, window] <= self.closed))
            or (not self.update and self.closed < ends[key, window] <= self.until)
        ]
        for one in [one for one in self.open if ends[one] <= self.until - self.lateness]:
            del self.open[one]
        return found

    def window_row(self, key: tuple[Any, ...], window: tuple[int, int]) -> Row:
        start, end = window
        row = self.result(key, self.begins(start), self.begins(end), self.open[key, window])
        if self.length_as is not None:
            unit = None if self.calendar is None else self.calendar[0]
            row[self.length_as] = spelled(end - start, unit)
        return row


@dataclass
class Session(OfWindows):
    """Aggregates of sessions; ``open`` holds lists of (moment, row)."""

    gap: int = 1
    open: dict[tuple[Any, ...], list[list[tuple[int, Row]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.delay = 1

    def is_late(self, at: int) -> bool:
        return at + self.gap < self.closed

    def over_at(self, newest: int) -> int:
        return newest + self.gap + 1

    def emitted_newest(self, newest: int) -> int:
        return newest + self.gap - 1

    def run(self, rows: list[list[Row]]) -> list[Row]:
        for row in rows[0]:
            at, key = self.timed(row)
            near: list[Any] = []
            far: list[Any] = []
            for one in self.open.get(key, []):
                first, last = min(m for m, _ in one), max(m for m, _ in one)
                (near if first - self.gap <= at <= last + self.gap else far).append(one)
            self.open[key] = [*far, [*(pair for one in near for pair in one), (at, row)]]
        found = []
        for key, sessions in self.open.items():
            for one in list(sessions):
                end = max(m for m, _ in one) + self.gap
                if end < self.until:
                    sessions.remove(one)
                    start, of = min(m for m, _ in one), [row for _, row in one]
                    found.append(self.result(key, start, end, of))
        return found


@dataclass
class LastRows(Operator):
    """Aggregates of the last rows of a key, whenever some more have come."""

    feed: Node = None  # type: ignore[assignment]  # given always
    aggregates: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    length: int = 1
    every: int = 1
    seen: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)

    time: str = ""

    def __post_init__(self) -> None:
        self.columns = [*self.keys, "window_number", *self.aggregates]

    def feeds(self) -> list[Node]:
        return [self.feed]

    def is_late(self, at: int) -> bool:
        del at
        return False

    def over_at(self, newest: int) -> int:
        return newest

    def front(self, world: InputClock) -> Front:
        del world
        return Front(NEVER, NEVER, drained=True)

    def epoch(self, world: InputClock) -> list[Row]:
        return self.run([self.feed.epoch(world)])

    def run(self, rows: list[list[Row]]) -> list[Row]:
        found = []
        for row in rows[0]:
            seen = self.seen.setdefault(self.key(row), [])
            seen.append(row)
            number, rest = divmod(len(seen) - self.length, self.every)
            if number < 0 or rest:
                continue
            last = seen[-self.length :]
            found.append(
                {
                    **{key: seen[0][key] for key in self.keys},
                    "window_number": number,
                    **{name: aggregate(*of, last) for name, of in self.aggregates.items()},
                }
            )
        return found
