"""Orders of rows: by group, by size of values, runs of equal ones, and pairs of neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import numpy_type, values_of
from godwit.columns.hashing import canonical_floats

if TYPE_CHECKING:
    from collections.abc import Iterator

IntArray = npt.NDArray[np.int64]


def order_by(*ranks: IntArray) -> IntArray:
    """Return the positions of rows ordered by several columns of non-negative ranks; stable.

    Ranks and row number are packed into one integer, since a plain sort is several times as fast as
    an argsort. If they do not fit, several stable sorts are made, by the last ranks first.
    """
    count = len(ranks[0])
    if count == 0:
        return np.empty(0, np.int64)
    row_bits, left = (count - 1).bit_length(), [*ranks]
    order: IntArray | None = None
    while left:
        packed, bits, packs = np.arange(count), row_bits, False
        while left and bits + (width := int(left[-1].max()).bit_length()) <= 63:
            rank = left.pop().astype(np.int64, copy=False)
            packed |= (rank if order is None else rank[order]) << bits
            bits, packs = bits + width, True
        if packs:
            packed.sort()
            packed &= (1 << row_bits) - 1
        else:  # not even one rank fits beside the row
            rank = left.pop()
            packed = np.argsort(rank if order is None else rank[order], kind="stable")
        order = packed if order is None else order[packed]
    assert order is not None, "there is a rank"
    return order


def rows_by_group(groups: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Order rows by group, then arrival; group g is ``order[starts[g]:starts[g + 1]]``."""
    return order_by(groups), starts_of(groups, count)


def starts_of(groups: IntArray, count: int) -> IntArray:
    """Return the start of each group once rows are ordered by group: shape ``(count + 1,)``."""
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(groups, minlength=count), out=starts[1:])
    return starts


def starts_run(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of rows that differ from the row before in any column; the first row does."""
    begins = np.ones(len(columns[0]), np.bool_)
    begins[1:] = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        begins[1:] |= column[1:] != column[:-1]
    return begins


def expand_ranges(first: IntArray, count: IntArray) -> tuple[IntArray, IntArray]:
    """Return the numbers of all ranges ``first[i]:first[i] + count[i]``, and each number's i."""
    range_of = np.repeat(np.arange(len(first)), count)
    before = np.repeat(np.cumsum(count) - count, count)
    return range_of, first[range_of] + np.arange(len(range_of)) - before


def first_of_each(order: IntArray, starts: IntArray, limit: int) -> tuple[IntArray, IntArray]:
    """Return the first `limit` rows of every group, and where each group then starts.

    `order`, `starts`: as `rows_by_group` returns them.

    >>> order, starts = first_of_each(np.array([4, 2, 7, 0]), np.array([0, 3, 3, 4]), 2)
    >>> order.tolist(), starts.tolist()
    ([4, 2, 0], [0, 2, 2, 3])
    """
    sizes = np.diff(starts)
    position_in_group = np.arange(len(order)) - np.repeat(starts[:-1], sizes)
    starts_after = np.zeros_like(starts)
    np.cumsum(np.minimum(sizes, limit), out=starts_after[1:])
    return order[position_in_group < limit], starts_after


def pairing(starts: IntArray) -> Iterator[tuple[IntArray, IntArray, npt.NDArray[np.bool_]]]:
    """Pair neighbouring rows within groups, in rounds, until every group has one row.

    Yields for each round: positions of the rows that remain, which the next round numbers from 0;
    positions of the rows merged into them; and a mask of remaining rows that get one.
    """
    sizes = np.diff(starts)
    while sizes.max(initial=0) > 1:
        position_in_group = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
        first_of_pair = np.flatnonzero(position_in_group & 1 == 0)
        has_second = position_in_group[first_of_pair] + 1 < np.repeat(sizes, (sizes + 1) // 2)
        yield first_of_pair, first_of_pair[has_second] + 1, has_second
        sizes = (sizes + 1) // 2
        starts = np.concatenate(([0], np.cumsum(sizes)))


def descending_ranks(column: pa.Array) -> IntArray:
    """Return the rank of each value, 0 for the largest; equal values share one, NaN is largest."""
    if pa.types.is_floating(column.type):
        column = canonical_floats(column)
    if numpy_type(column.type) is None:
        dense: pa.Array = pc.rank(column, "descending", tiebreaker="dense")
        return values_of(dense).astype(np.int64) - 1
    sortable = _order_preserving_unsigned(values_of(column))
    order = np.argsort(~sortable)
    ordered = sortable[order]
    ranks = np.empty(len(order), np.int64)
    ranks[order[:1]] = 0
    ranks[order[1:]] = np.cumsum(ordered[1:] != ordered[:-1])
    return ranks


def _order_preserving_unsigned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values as unsigned integers of the same order; floats must be canonical."""
    if values.dtype.kind in "ub":
        return values.view(f"u{values.itemsize}")
    bits: npt.NDArray[Any] = values.view(f"u{values.itemsize}")
    sign = bits.dtype.type(1 << (8 * values.itemsize - 1))
    if values.dtype.kind == "i":
        flipped: npt.NDArray[Any] = bits ^ sign
        return flipped
    # The bits of floats are ordered like integers, from zero outward.
    ordered: npt.NDArray[Any] = np.where(bits & sign != 0, ~bits, bits | sign)
    return ordered
