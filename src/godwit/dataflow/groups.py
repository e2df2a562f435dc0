"""Grouping rows by key, exactly, in arrival order, without a Python loop over rows.

Rows are sorted by the 64-bit hash of their key, then every row is compared with its group's first
row, column by column, so two keys that share a hash are still two groups.  Groups come out ordered
by key group, then hash: the state of one key group is one slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.dataflow.arrays import mask_of, numpy_type, values_of
from godwit.model.key_groups import key_groups_of

__all__ = ["Groups", "group_rows"]

_BLOCK = 8192  # keys compared at a time: their copies stay in the cache, three times as fast


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The rows of one batch, grouped by key.

    Attributes
    ----------
    count
        G, the number of groups.
    of_row
        Shape ``(N,)``: the group of each row.
    first_row
        Shape ``(G,)``: the first row (in arrival order) of each group.
    hashes
        Shape ``(G,)``, int64: the key's hash.
    key_groups
        Shape ``(G,)``, int32, ascending: ``pmod(hash, num_key_groups)``.
    order
        Shape ``(N,)``: rows ordered by group, and in arrival order within a group.
    starts
        Shape ``(G + 1,)``: rows of group g are ``order[starts[g]:starts[g + 1]]``.
    """

    count: int
    of_row: npt.NDArray[np.int64]
    first_row: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.int64]
    key_groups: npt.NDArray[np.int32]
    order: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]


def group_rows(hashes: npt.NDArray[np.int64], keys: pa.RecordBatch, num_key_groups: int) -> Groups:
    """Group rows by key.

    Parameters
    ----------
    hashes
        Shape ``(N,)``: 64-bit hash of each row's key.
    keys
        N rows of key columns. Nulls are values like any other; floats are compared by bits
        (NaN and -0.0 are made canonical before they come here).
    num_key_groups
        Number of key groups.

    Notes
    -----
    Groups are ordered by key group, then hash (signed), then, for different keys that share a hash,
    first arrival.

    Examples
    --------
    >>> keys = pa.record_batch({"k": ["a", "b", "a"]})
    >>> groups = group_rows(np.array([7, 6, 7]), keys, 4)
    >>> groups.of_row.tolist(), groups.first_row.tolist(), groups.key_groups.tolist()
    ([1, 0, 1], [1, 0], [2, 3])
    """
    count = len(hashes)
    order = _order_by_key_group_and_hash(hashes, num_key_groups)
    ordered = hashes[order]
    begins = np.empty(count, np.bool_)
    begins[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    group_of_ordered: npt.NDArray[np.int64] = np.cumsum(begins, dtype=np.int64)
    group_of_ordered -= 1
    starts = np.append(np.flatnonzero(begins), count)

    first_row = order[starts[:-1]]
    others = order[~begins]
    if len(others):
        differing = _rows_that_differ(keys, others, first_row[group_of_ordered[~begins]])
        if len(differing):
            group_of_ordered, order = _split_shared_hashes(
                keys, group_of_ordered, order, others[differing]
            )
            begins = np.append(True, group_of_ordered[1:] != group_of_ordered[:-1])
            starts = np.append(np.flatnonzero(begins), count)
            first_row = order[starts[:-1]]

    of_row = np.empty(count, np.int64)
    of_row[order] = group_of_ordered
    group_hashes = hashes[first_row]
    return Groups(
        count=len(first_row),
        of_row=of_row,
        first_row=first_row,
        hashes=group_hashes,
        key_groups=key_groups_of(group_hashes, num_key_groups),
        order=order,
        starts=starts,
    )


def _order_by_key_group_and_hash(
    hashes: npt.NDArray[np.int64], num_key_groups: int
) -> npt.NDArray[np.int64]:
    """Rows ordered by key group, hash and arrival."""
    bits = num_key_groups.bit_length() - 1
    if num_key_groups != 1 << bits:
        return np.lexsort((hashes, key_groups_of(hashes, num_key_groups)))
    sortable = hashes.view(np.uint64) ^ np.uint64(1 << 63)
    if bits:
        # The key group is the hash's lowest bits: rotated to the top, one sort orders by both.
        high = sortable >> np.uint64(bits)
        sortable <<= np.uint64(64 - bits)
        sortable |= high
    # Rows as the lowest bits of what is sorted make a plain sort (three times as fast as argsort)
    # yield the order, and arrival order within equal hashes, at the price of as many hash bits.
    row_bits = np.uint64((1 << max(len(hashes) - 1, 0).bit_length()) - 1)
    packed = sortable & ~row_bits
    packed |= np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    packed &= row_bits
    order = packed.view(np.int64)
    ordered = sortable[order]
    if np.any(ordered[1:] < ordered[:-1]):  # the bits given up would have told two hashes apart
        return np.argsort(sortable, kind="stable")
    return order


def _rows_that_differ(
    keys: pa.RecordBatch, rows: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Positions i where the key of ``rows[i]`` is not the key of ``others[i]``."""
    differ = np.zeros(len(rows), np.bool_)
    for column in keys.columns:
        if numpy_type(column.type) is not None:
            values = values_of(column)
            if pa.types.is_floating(column.type):
                values = values.view(f"i{values.itemsize}")
            different = values[rows] != values[others]
        elif pa.types.is_null(column.type):
            continue
        else:
            different = _unequal(column, rows, others)
        mask = mask_of(column)
        if mask is not None:
            left_mask, right_mask = mask[rows], mask[others]
            different = (different & left_mask & right_mask) | (left_mask != right_mask)
        differ |= different
    return np.flatnonzero(differ)


def _unequal(
    column: pa.Array, rows: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Whether the values at ``rows[i]`` and ``others[i]`` differ; false where either is null."""
    unequal = np.empty(len(rows), np.bool_)
    for first in range(0, len(rows), _BLOCK):
        block = slice(first, first + _BLOCK)
        left, right = column.take(pa.array(rows[block])), column.take(pa.array(others[block]))
        unequal[block] = values_of(pc.not_equal(left, right).fill_null(False))
    return unequal


def _split_shared_hashes(
    keys: pa.RecordBatch,
    group_of_ordered: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    differing: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split the groups of `differing` rows key by key; 64-bit hashes make this next to never run.

    Returns
    -------
    tuple of ndarray
        Group of each ordered row, and the rows in order, with every key a group of its own.
    """
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    shared = np.unique(group_of_ordered[position[differing]])
    affected = np.flatnonzero(np.isin(group_of_ordered, shared))
    rows = order[affected]
    columns = [_bits(column.take(pa.array(rows))).to_pylist() for column in keys.columns]
    rank = np.zeros(len(order), np.int64)
    ranks: dict[tuple[Any, ...], int] = {}
    for at, key in zip(affected.tolist(), zip(*columns, strict=True), strict=True):
        rank[at] = ranks.setdefault((group_of_ordered[at], *key), len(ranks))
    resorted = np.lexsort((rank, group_of_ordered))
    group, rank = group_of_ordered[resorted], rank[resorted]
    begins = np.append(True, (group[1:] != group[:-1]) | (rank[1:] != rank[:-1]))
    return np.cumsum(begins) - 1, order[resorted]


def _bits(column: pa.Array) -> pa.Array:
    """Floats as the integers of their bits, so that NaN is a key like any other."""
    if pa.types.is_floating(column.type):
        return column.view(f"int{column.type.bit_width}")
    return column
