"""Sources, unions, and how far streams have come."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

__all__ = ["NEVER", "InputClock", "Node", "Operator", "Row", "Source", "Union", "same_key"]

NEVER = -(10**30)
"""Before all time."""

Row = dict[str, Any]


def same_key(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give keys so that equal ones are equal to Python: NaN equals NaN, and -0.0 equals 0.0."""
    return tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for v in values)


@dataclass
class InputClock:
    """The clock, and what is drained because all input has ended."""

    clock: int = 0
    ended: bool = False


@dataclass(frozen=True)
class Front:
    """Progress of a stream: watermark, newest event time, and if it has ended."""

    watermark: int
    newest: int
    drained: bool


class Node(ABC):
    """A stream: its columns, and the column that says when a row happened."""

    columns: list[str]
    time: str
    is_end: bool = False

    @abstractmethod
    def epoch(self, world: InputClock) -> list[Row]:
        """Rows of this epoch, in order of arrival."""

    @abstractmethod
    def front(self, world: InputClock) -> Front:
        """Progress of the stream as of the last epoch."""

    def bounded(self, world: InputClock) -> list[tuple[Row, int | None]]:
        """Rows of this epoch, and up to which moment each counts; ``None``: at any."""
        return [(row, None) for row in self.epoch(world)]

    @abstractmethod
    def after(self, world: InputClock) -> None:
        """The epoch is over."""

    def moment(self, row: Row) -> int | None:
        at: int | None = row[self.time]
        return at if at is None else at - self.is_end


@dataclass
class Source(Node):
    """Rows from outside."""

    name: str
    columns: list[str]
    time: str
    slack: int = 0
    idle: int | None = None
    max_ahead: int = 86_400 * 10**6
    arrived: list[Row] = field(default_factory=list)
    newest: int = NEVER
    watermark: int = NEVER
    heard: int | None = None

    def epoch(self, world: InputClock) -> list[Row]:
        if self.heard is None:
            self.heard = world.clock
        return self.arrived

    def front(self, world: InputClock) -> Front:
        if self.heard is None:
            self.heard = world.clock
        silent = self.idle is not None and world.clock - self.heard >= self.idle
        return Front(self.watermark, self.newest, world.ended or silent)

    def bounded(self, world: InputClock) -> list[tuple[Row, int | None]]:
        return [(row, world.clock + self.max_ahead) for row in self.epoch(world)]

    def after(self, world: InputClock) -> None:
        if not self.arrived:
            return
        self.heard = world.clock
        for row in self.arrived:
            at = row[self.time]
            if at is not None and at <= world.clock + self.max_ahead:
                self.newest = max(self.newest, at)
        if self.newest > NEVER:
            self.watermark = max(self.watermark, self.newest - self.slack)
        self.arrived = []


def least(fronts: list[Front]) -> Front:
    """Streams that meet are as far as the one furthest behind that is still expected to come."""
    expected = [front for front in fronts if not front.drained]
    return Front(
        min(front.watermark for front in expected or fronts),
        max(front.newest for front in fronts),
        not expected,
    )


@dataclass
class Union(Node):
    """Several streams of the same columns."""

    streams: list[Node]

    def __post_init__(self) -> None:
        first = self.streams[0]
        self.columns, self.time, self.is_end = first.columns, first.time, first.is_end

    def epoch(self, world: InputClock) -> list[Row]:
        return [row for stream in self.streams for row in stream.epoch(world)]

    def front(self, world: InputClock) -> Front:
        return least([stream.front(world) for stream in self.streams])

    def bounded(self, world: InputClock) -> list[tuple[Row, int | None]]:
        return [found for stream in self.streams for found in stream.bounded(world)]

    def after(self, world: InputClock) -> None:
        for stream in self.streams:
            stream.after(world)


@dataclass
class Operator(Node):
    """A keyed operator over event time."""

    name: str
    keys: list[str]
    closed: int = NEVER
    until: int = NEVER
    late: int = 0
    ahead: int = 0
    untimed: int = 0
    emits_newest: int = NEVER
    told: int | None = None
    """Until when it closes, where others decide that."""

    @abstractmethod
    def feeds(self) -> list[Node]:
        """Streams that it reads."""

    @abstractmethod
    def run(self, rows: list[list[Row]]) -> list[Row]:
        """Take the rows of each feed that count; close up to `until`."""

    @abstractmethod
    def is_late(self, at: int) -> bool:
        """True if a row of that event time is late."""

    @abstractmethod
    def over_at(self, newest: int) -> int:
        """Time at which everything is over that rows up to that event time belong to."""

    def emitted_newest(self, newest: int) -> int:
        """Event time of the newest row that may come out."""
        return newest

    delay: int = 0

    def moment_of(self, feed: int, row: Row) -> int | None:
        return self.feeds()[feed].moment(row)

    def key(self, row: Row) -> tuple[Any, ...]:
        return same_key(tuple(row[key] for key in self.keys))

    def front(self, world: InputClock) -> Front:
        front = least([feed.front(world) for feed in self.feeds()])
        newest = self.emitted_newest(front.newest) if front.newest > NEVER else NEVER
        return Front(front.watermark - self.delay, newest, front.drained)

    def epoch(self, world: InputClock) -> list[Row]:
        front = least([feed.front(world) for feed in self.feeds()])
        until = front.watermark
        if front.drained and front.newest > NEVER:
            until = max(until, self.over_at(front.newest))
        until = until if self.told is None else self.told
        self.until = max(self.closed, until)
        self.late = self.ahead = self.untimed = 0
        kept = []
        for number, feed in enumerate(self.feeds()):
            mine = []
            for row, bound in feed.bounded(world):
                at = self.moment_of(number, row)
                if at is None:
                    self.untimed += 1
                elif bound is not None and at > bound:
                    self.ahead += 1
                elif self.is_late(at):
                    self.late += 1
                else:
                    mine.append(row)
            kept.append(mine)
        return self.run(kept)

    def after(self, world: InputClock) -> None:
        self.closed = self.until
        for feed in self.feeds():
            feed.after(world)
