"""A source of numbers, for tests of what drives sources."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.sources.source import Lag, Source, Split, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.sources.source import Position

SCHEMA = pa.schema(
    [("key", pa.string()), ("number", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))]
)
MINUTE = 60_000_000


class Numbers(Source):
    """Rows 0, 1, 2, ... up to `count`, which a test may let grow.

    Their keys are letters in turn, their event times minutes. A test says by `at_read` what happens
    where a split is read: it gets the rows, and returns them or others, or raises.
    """

    def __init__(
        self, count: int = 0, *, name: str = "numbers", keys: int = 3, most: int | None = None
    ) -> None:
        self.count, self.name, self.keys, self.most = count, name, keys, most
        self.calls: list[tuple[Any, ...]] = []  # of the driver
        self.asked: list[tuple[str, ...]] = []  # columns of every read
        self.at_read: Any = lambda rows: rows
        self.fails: dict[str, BaseException] = {}  # method → what it raises

    def _called(self, method: str, *values: Any) -> None:
        self.calls.append((method, *values))
        if method in self.fails:
            raise self.fails[method]

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def identity(self) -> str:
        return f"numbers {self.name}"

    def open(self, position: Position | None) -> None:
        self._called("open", position)

    def start(self) -> Position:
        self._called("start")
        return {"next": 0}

    def end(self, position: Position) -> Position:
        self._called("end", position)
        return {"next": self.count}

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        self._called("latest", position, limit, until)
        ends = [self.count if until is None else until["next"]]
        ends += [position["next"] + most for most in (limit, self.most) if most is not None]
        return {"next": max(position["next"], min(ends))}

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        self._called("splits", begin, end, parallelism)
        first, rows = begin["next"], end["next"] - begin["next"]
        edges = [first + rows * part // parallelism for part in range(parallelism + 1)]
        return [
            Split(
                rows=stop - start,
                size_bytes=24 * (stop - start),
                what=f"{start}..{stop}",
                payload=(start, stop),
            )
            for start, stop in pairwise(edges)
            if stop > start
        ]

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self.asked.append(tuple(columns))
        start, stop = split.payload
        for first in range(start, stop, 5):  # in several batches
            numbers = range(first, min(first + 5, stop))
            rows = pa.record_batch(
                [
                    [self.key_of(number) for number in numbers],
                    list(numbers),
                    [number * MINUTE for number in numbers],
                ],
                schema=SCHEMA,
            )
            yield self.at_read(rows.select(list(columns)))

    def key_of(self, number: int) -> str:
        """Return the key of a row."""
        return chr(ord("a") + number % self.keys)

    def lag(self, position: Position) -> Lag:
        self._called("lag", position)
        return Lag(rows=self.count - position["next"])

    def committed(self, position: Position) -> None:
        self._called("committed", position)

    def describe(self, position: Position) -> dict[str, Any]:
        self._called("describe", position)
        return {"read": position["next"]}

    def close(self) -> None:
        self._called("close")


class PartlyUnreadable(Numbers):
    """Numbers of which every seventh cannot be read."""

    unreadable = pa.schema([("number", pa.int64()), ("error", pa.string())])

    def __init__(self, count: int = 0, *, rejects: Any = None, **options: Any) -> None:
        super().__init__(count, **options)
        self.rejects = rejects

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        return [replace(split, exact=False) for split in super().splits(begin, end, parallelism)]

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch | Unreadable]:
        start, stop = split.payload
        for number in range(start, stop):
            if number % 7:
                yield from super().read(replace(split, payload=(number, number + 1)), columns)
            else:
                values = [[number], [f"{number} is no number"]]
                rows = pa.record_batch(values, schema=PartlyUnreadable.unreadable)
                yield Unreadable(rows=rows)
