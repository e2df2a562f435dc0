"""Duplicates and joins, as lists of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.streams.reference.streams import NEVER, Node, Operator, Row

__all__ = ["Duplicates", "Interval", "Newest"]


@dataclass
class Duplicates(Operator):
    """First rows."""

    feed: Node = None  # type: ignore[assignment]  # given always
    within: int = 1
    through: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.columns, self.time, self.is_end = self.feed.columns, self.feed.time, self.feed.is_end

    def feeds(self) -> list[Node]:
        return [self.feed]

    def is_late(self, at: int) -> bool:
        return at < self.closed

    def over_at(self, newest: int) -> int:
        return NEVER

    def run(self, rows: list[list[Row]]) -> list[Row]:
        found = []
        for row in rows[0]:
            at, came = self.moment_of(0, row), self.through.setdefault(self.key(row), [])
            assert at is not None
            if all(abs(other - at) > self.within for other in came):
                came.append(at)
                found.append(row)
        return found


@dataclass
class _Join(Operator):
    left: Node = None  # type: ignore[assignment]  # given always
    right: Node = None  # type: ignore[assignment]  # given always
    how: str = "inner"
    suffix: str = "_r"
    held: tuple[list[Any], list[Any]] = field(default_factory=lambda: ([], []))

    def __post_init__(self) -> None:
        self.time, self.is_end = self.left.time, self.left.is_end
        of_left = [c for c in self.left.columns if c not in self.keys]
        of_right = [c for c in self.right.columns if c not in self.keys]
        taken = {c.lower() for c in (*self.keys, *of_left)}
        self.named = {c: c + self.suffix if c.lower() in taken else c for c in of_right}
        self.of_left = of_left
        self.columns = [*self.keys, *of_left, *self.named.values()]

    def feeds(self) -> list[Node]:
        return [self.left, self.right]

    def is_late(self, at: int) -> bool:
        return at < self.closed

    def can_meet(self, one: Row, other: Row) -> bool:
        return all(one[k] is not None for k in self.keys) and self.key(one) == self.key(other)

    def joined(self, one: Row | None, other: Row | None) -> Row:
        some = one if one is not None else other
        assert some is not None
        return {
            **{k: some[k] for k in self.keys},
            **{c: None if one is None else one[c] for c in self.of_left},
            **{n: None if other is None else other[c] for c, n in self.named.items()},
        }


@dataclass
class Interval(_Join):
    """Pairs within an interval."""

    between: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.delay = max(self.between[1], -self.between[0], 0)

    def over_at(self, newest: int) -> int:
        return NEVER if self.how == "inner" else newest + self.delay + 1

    def run(self, rows: list[list[Row]]) -> list[Row]:
        found = []
        for side in (0, 1):
            for row in rows[side]:
                mine: list[Any] = [row, self.moment_of(side, row), False]
                for theirs in self.held[1 - side]:
                    one, other = (mine, theirs) if side == 0 else (theirs, mine)
                    apart = other[1] - one[1]
                    if self.can_meet(one[0], other[0]) and (
                        self.between[0] <= apart <= self.between[1]
                    ):
                        mine[2] = theirs[2] = True
                        found.append(self.joined(one[0], other[0]))
                self.held[side].append(mine)
        reach = (max(self.between[1], 0), max(-self.between[0], 0))
        for side, outer in ((0, ("left", "full")), (1, ("right", "full"))):
            for one in [one for one in self.held[side] if one[1] + reach[side] < self.until]:
                self.held[side].remove(one)
                if not one[2] and self.how in outer:
                    pair = (one[0], None) if side == 0 else (None, one[0])
                    found.append(self.joined(*pair))
        return found


@dataclass
class Newest(_Join):
    """The newest row of the right as of each of the left."""

    within: int | None = None

    def over_at(self, newest: int) -> int:
        return newest + 1

    def run(self, rows: list[list[Row]]) -> list[Row]:
        for side in (0, 1):
            self.held[side].extend((row, self.moment_of(side, row)) for row in rows[side])
        found = []
        due = [one for one in self.held[0] if one[1] < self.until]
        for one in sorted(due, key=lambda one: one[1]):
            self.held[0].remove(one)
            row, at = one
            best: Any = None
            for other, moment in self.held[1]:
                near = moment <= at and (self.within is None or moment >= at - self.within)
                if near and self.can_meet(row, other) and (best is None or moment >= best[1]):
                    best = (other, moment)
            if best is not None or self.how == "left":
                found.append(self.joined(row, None if best is None else best[0]))
        return found
