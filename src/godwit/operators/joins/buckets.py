"""Rows of a key and side in slices of event time, numbered without gaps, found by their numbers.

The local store finds an entry by all that tells it apart, and nothing by a part of that.  So the
rows of a bucket are numbered, and the first of them says how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Bucketed", "Wanted", "buckets_reached", "load_buckets"]

IntArray: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bucketed:
    """Rows in buckets."""

    # key, side, bucket: shape ``(n,)``: the bucket that each row is in
    key: IntArray
    side: npt.NDArray[np.integer]
    bucket: IntArray
    number: IntArray  # shape ``(n,)``: its number there
    met: Bools  # shape ``(n,)``: whether it has met a row of the other side
    # Shape ``(n,)``: how many rows the bucket has, at the first of them; 0 at others.
    rows: IntArray
    values: pa.RecordBatch  # n rows

    def take(self, which: IntArray) -> Bucketed:
        """Return some of the rows."""
        return Bucketed(
            key=self.key[which],
            side=self.side[which],
            bucket=self.bucket[which],
            number=self.number[which],
            met=self.met[which],
            rows=self.rows[which],
            values=self.values.take(pa.array(which)),
        )

    def before(self, later: Bucketed) -> Bucketed:
        """Return these rows, then others."""
        return Bucketed(
            key=np.concatenate([self.key, later.key]),
            side=np.concatenate([self.side, later.side]),
            bucket=np.concatenate([self.bucket, later.bucket]),
            number=np.concatenate([self.number, later.number]),
            met=np.concatenate([self.met, later.met]),
            rows=np.concatenate([self.rows, later.rows]),
            values=pa.concat_batches([self.values, later.values]),
        )

    def with_met(self, met: Bools) -> Bucketed:
        """Return the rows with another note of which have met others."""
        return replace(self, met=met)

    def numbered_after(self, loaded: Bucketed) -> Bucketed:
        """Give rows numbers in order of arrival, after those that their buckets hold already."""
        both = loaded.take(np.flatnonzero(loaded.number == 0)).before(self)
        first = len(both.key) - len(self.key)
        bucket = _numbers_of(both.key, both.side, both.bucket)
        held = np.zeros(int(bucket.max(initial=-1)) + 1, np.int64)
        held[bucket[:first]] = both.rows[:first]
        own = bucket[first:]
        order = np.argsort(own, kind="stable")
        ordered = own[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        number = np.empty(len(own), np.int64)
        number[order] = held[ordered] + rank
        return replace(self, number=number)

    def counted(self, loaded: int) -> IntArray:
        """Give `rows` as they are now that all but the first `loaded` rows have come."""
        bucket = _numbers_of(self.key, self.side, self.bucket)
        added = np.bincount(bucket[loaded:], minlength=int(bucket.max(initial=-1)) + 1)
        counts = self.rows.copy()
        firsts = np.flatnonzero(self.number == 0)
        counts[firsts] += added[bucket[firsts]]
        return counts

    def among(self, others: Bucketed) -> Bools:
        """Whether each row is one of the others."""
        every = self.before(others)
        row = _numbers_of(every.key, every.side, every.bucket, every.number)
        split = len(self.key)
        return np.isin(row[:split], row[split:])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wanted:
    """Buckets to look for."""

    # key, side, bucket: shape ``(n,)``: each one once
    key: IntArray
    side: npt.NDArray[np.integer]
    bucket: IntArray
    whole: Bools  # shape ``(n,)``: whether all of its rows are wanted, or only the first


def buckets_reached(
    parts: Sequence[tuple[IntArray, npt.NDArray[np.integer], IntArray]],
    *,
    whole: Sequence[bool],
    first_open: int,
) -> Wanted:
    """Join lists of buckets to one that has each once, but for those that are gone.

    Parameters
    ----------
    parts
        Key, side and bucket; as often as you like.
    whole
        Of each part, whether all rows of its buckets are wanted.
    first_open
        The first bucket that is not gone.
    """
    key, side, bucket = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    wanted = np.repeat(whole, [len(part[0]) for part in parts])
    live = bucket >= first_open
    key, side, bucket, wanted = key[live], side[live], bucket[live], wanted[live]
    number = _numbers_of(key, side, bucket)
    count = int(number.max(initial=-1)) + 1
    at = np.empty(count, np.int64)
    at[number] = np.arange(len(number))
    all_of = np.zeros(count, np.bool_)
    all_of[number[wanted]] = True
    return Wanted(key=key[at], side=side[at], bucket=bucket[at], whole=all_of)


def load_buckets(
    wanted: Wanted,
    find: Callable[
        [IntArray, npt.NDArray[np.integer], IntArray, IntArray], tuple[Bools, pa.RecordBatch]
    ],
) -> Bucketed:
    """Load the rows of some buckets: the first of each, then the others.

    Parameters
    ----------
    find
        Finds entries by key, side, bucket and number; their state columns are whether a row has
        met others, how many rows its bucket has, and the row.
    """

    def found(
        key: IntArray, side: npt.NDArray[np.integer], bucket: IntArray, number: IntArray
    ) -> tuple[Bools, Bucketed]:
        known, state = find(key, side, bucket, number)
        state = state.take(pa.array(np.flatnonzero(known)))
        names = state.schema.names[2:]
        values = pa.RecordBatch.from_arrays(
            state.columns[2:], schema=pa.schema([state.schema.field(name) for name in names])
        )
        return known, Bucketed(
            key=key[known],
            side=side[known],
            bucket=bucket[known],
            number=number[known],
            met=values_of(state.column(0)),
            rows=values_of(state.column(1)),
            values=values,
        )

    known, first = found(wanted.key, wanted.side, wanted.bucket, np.zeros_like(wanted.key))
    others = np.where(wanted.whole[known], first.rows - 1, 0)
    of = np.repeat(np.arange(len(others)), others)
    before = np.repeat(np.cumsum(others) - others, others)
    number = 1 + np.arange(len(of)) - before
    there, rest = found(first.key[of], first.side[of], first.bucket[of], number)
    assert there.all(), "the first row of a bucket says how many there are"
    return first.before(rest)


def _numbers_of(*columns: npt.NDArray[np.integer]) -> IntArray:
    """Give rows numbers by what they hold: equal ones alike, without gaps."""
    count = len(columns[0])
    order = np.lexsort(columns[::-1])
    new = np.zeros(count, np.bool_)
    for column in columns:
        new[1:] |= np.diff(column[order]) != 0
    numbers = np.empty(count, np.int64)
    numbers[order] = np.cumsum(new)
    return numbers
