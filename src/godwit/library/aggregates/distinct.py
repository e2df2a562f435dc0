"""Approximate distinct counts: HyperLogLog, for all keys at once.

A value's 64-bit hash picks a register and a rank (the position of the first one bit in the rest); a
register keeps its largest rank.  A sketch is one binary value per key, in one of two forms:

*sparse*
    One uint32 per register that is not zero, ascending, at the fine precision of 2**25 registers
    (Heule, Nunkesser and Hall, "HyperLogLog in practice", 2013, §5.3).  Counting them is linear
    counting: exact except for collisions among 33 million registers.
*dense*
    ``2**p`` registers of one byte.  A sketch turns dense when it would be as large.  The estimate
    is Ertl's ("New cardinality estimation algorithms for HyperLogLog sketches", 2017, §4), which
    has no bias to correct and needs no tables.  Relative standard error ``1.04 / 2**(p / 2)``.

Invariant: a sketch depends only on the set of values seen, not on order or splitting, because a
fine register determines the coarse one.  Length tells the forms apart: sparse is shorter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import (
    binary_column,
    blob_bytes,
    boundaries_of,
    column_of,
    mask_of,
)
from godwit.columns.hashing import hash_keys, is_hashable
from godwit.operators.aggregate import BoundAggregate, BuiltIn

IntArray = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]

_FINE = 25  # bits of a fine register's index
_REST = 64 - _FINE
_RANK_BITS = 6
_SEED = 0x60D317  # not the seed of keys: a key's values must not all be in few registers
_CHUNK = 1024  # dense sketches estimated at a time, to bound memory


def bind_approx_distinct(column: pa.Field, *, precision: int) -> BoundAggregate | None:
    """Bind ``approx_distinct`` to a column, with ``2**precision`` registers a sketch.

    ``None`` if it cannot take the column's type.
    """
    if not is_hashable(column.type):
        return None
    return _ApproxDistinct(
        precision=precision,
        state=pa.schema({"sketch": pa.large_binary()}),
        output=pa.int64(),
        identity={
            "aggregate": "approx_distinct",
            "column": column.name,
            "type": str(column.type),
            "precision": precision,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sketches:
    """Sketches of some keys, as arrays."""

    # Shape ``(S,)``: fine registers and the key they belong to, in any order, with repetitions.
    groups: IntArray
    entries: IntArray
    dense_groups: IntArray  # shape ``(D,)``: keys with dense sketches
    registers: ByteArray  # shape ``(D, 2**p)``


@dataclass(frozen=True, slots=True, kw_only=True)
class _ApproxDistinct(BuiltIn):
    """``approx_distinct``; the state is a HyperLogLog sketch, sparse while it is small."""

    commutative = True
    idempotent = True
    precision: int

    @property
    def size(self) -> int:
        """Number of registers of a dense sketch, of one byte each."""
        return 1 << self.precision

    def create(self, count: int) -> pa.RecordBatch:
        return self.states(binary_column(np.empty(0, np.uint8), np.zeros(count + 1, np.int64)))

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Add the hashes of rows' values to the sketches of their groups."""
        column, mask = columns[0], mask_of(columns[0])
        hashes = hash_keys(pa.record_batch([column], names=["value"]), seed=_SEED)
        if mask is not None:
            groups, hashes = groups[mask], hashes[mask]
        rows = _Sketches(
            groups=groups,
            entries=_sketch_entries(hashes),
            dense_groups=np.empty(0, np.int64),
            registers=np.empty((0, self.size), np.uint8),
        )
        return self._merge_sketches(states.num_rows, [self._unpack_sketches(states), rows])

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Merge the two sketches of each pair of states, by the maximum of each register."""
        return self._merge_sketches(
            left.num_rows, [self._unpack_sketches(left), self._unpack_sketches(right)]
        )

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        sketches = self._unpack_sketches(states)
        counts = np.bincount(sketches.groups, minlength=states.num_rows)
        fine = float(1 << _FINE)
        estimates = -fine * np.log1p(-counts / fine)
        for first in range(0, len(sketches.dense_groups), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            estimates[sketches.dense_groups[chunk]] = _estimate_distinct(
                sketches.registers[chunk], self.precision
            )
        return column_of(np.rint(estimates).astype(np.int64), None, pa.int64())

    def _unpack_sketches(self, states: pa.RecordBatch) -> _Sketches:
        """Unpack the sketches of states: sparse ones as entries, dense ones as registers."""
        blobs = states.column(0)
        lengths = np.diff(boundaries_of(blobs))
        dense = lengths == self.size
        dense_groups = np.flatnonzero(dense)
        sparse_groups = np.flatnonzero(~dense)
        sparse = blobs if len(dense_groups) == 0 else blobs.take(pa.array(sparse_groups))
        entries = _concatenated_bytes(sparse).view("<u4").astype(np.int64)
        registers = _concatenated_bytes(blobs.take(pa.array(dense_groups)))
        return _Sketches(
            groups=np.repeat(sparse_groups, lengths[sparse_groups] // 4),
            entries=entries,
            dense_groups=dense_groups,
            registers=registers.reshape(-1, self.size),
        )

    def _merge_sketches(self, count: int, parts: list[_Sketches]) -> pa.RecordBatch:
        """Merge all sketches of each of `count` states; make sketches dense that grew too large."""
        groups, entries = _largest_ranks(
            np.concatenate([part.groups for part in parts]),
            np.concatenate([part.entries for part in parts]),
        )
        sizes = np.bincount(groups, minlength=count)
        dense = sizes * 4 >= self.size
        for part in parts:
            dense[part.dense_groups] = True

        dense_groups = np.flatnonzero(dense)
        position = np.full(count, -1)
        position[dense_groups] = np.arange(len(dense_groups))
        registers = np.zeros((len(dense_groups), self.size), np.uint8)
        for part in parts:
            places = position[part.dense_groups]
            registers[places] = np.maximum(registers[places], part.registers)
        to_dense = dense[groups]
        register, rank = _registers_and_ranks(entries[to_dense], self.precision)
        flat = position[groups[to_dense]] * self.size + register
        np.maximum.at(registers.reshape(-1), flat, rank)

        sizes[dense_groups] = 0
        sparse_data = entries[~to_dense].astype("<u4").view(np.uint8)
        sparse = binary_column(sparse_data, np.concatenate(([0], np.cumsum(sizes * 4))))
        if len(dense_groups) == 0:
            return self.states(sparse)
        edges = np.arange(len(dense_groups) + 1) * self.size
        blobs = pa.concat_arrays([sparse, binary_column(registers.reshape(-1), edges)])
        return self.states(
            blobs.take(pa.array(np.where(dense, count + position, np.arange(count))))
        )


def _sketch_entries(hashes: IntArray) -> IntArray:
    """Return each hash as an entry of a sparse sketch, ``register << 6 | rank``."""
    bits = hashes.view(np.uint64)
    register = (bits >> np.uint64(_REST)).astype(np.int64)
    rest = (bits & np.uint64((1 << _REST) - 1)).astype(np.int64)
    return (register << _RANK_BITS) | (_REST + 1 - _bit_length(rest))


def _registers_and_ranks(entries: IntArray, precision: int) -> tuple[IntArray, ByteArray]:
    """Return the register and rank of sparse entries in a sketch of ``2**precision`` registers."""
    between_bits = _FINE - precision
    fine = entries >> _RANK_BITS
    between = fine & ((1 << between_bits) - 1)
    rank = np.where(
        between == 0,
        between_bits + (entries & ((1 << _RANK_BITS) - 1)),
        between_bits + 1 - _bit_length(between),
    )
    return fine >> between_bits, rank.astype(np.uint8)


def _bit_length(values: IntArray) -> IntArray:
    """Return the number of bits of each value (as ``int.bit_length``); exact below 2**53."""
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)


def _largest_ranks(groups: IntArray, entries: IntArray) -> tuple[IntArray, IntArray]:
    """Keep the largest rank of every group and register; return groups and entries, ordered."""
    packed = (groups << 32) | entries
    packed.sort()
    last = np.ones(len(packed), np.bool_)
    np.not_equal(packed[1:] >> _RANK_BITS, packed[:-1] >> _RANK_BITS, out=last[:-1])
    packed = packed[last]
    return packed >> 32, packed & 0xFFFFFFFF


def _estimate_distinct(registers: ByteArray, precision: int) -> npt.NDArray[np.float64]:
    """Return the number of distinct values of each dense sketch (Ertl's paper, algorithm 6)."""
    size = 1 << precision
    top = 64 - precision + 1  # the largest rank
    rows = np.repeat(np.arange(len(registers)), size)
    flat = rows * (top + 1) + registers.reshape(-1)
    counts = np.bincount(flat, minlength=len(registers) * (top + 1)).reshape(-1, top + 1)
    z = size * _ertl_tau(1 - counts[:, top] / size)
    for rank in range(top - 1, 0, -1):
        z = (z + counts[:, rank]) / 2
    z += size * _ertl_sigma(counts[:, 0] / size)
    return size * size / (2 * math.log(2) * z)


def _ertl_sigma(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return Ertl's sigma of each x < 1: x plus the sum of x**(2**k) * 2**(k - 1), k = 1, 2, ..."""
    total, power, factor = x.copy(), x, 1.0
    while True:
        power = power * power
        added = total + power * factor
        if np.array_equal(added, total):
            return total
        total, factor = added, factor * 2


def _ertl_tau(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return (1 - x - sum of (1 - x**(2**-k))**2 * 2**-k) / 3, for k = 1, 2, ...; 0 at 0 and 1."""
    root, factor, total = x, 1.0, 1 - x
    while True:
        root, factor = np.sqrt(root), factor / 2
        reduced = total - (1 - root) ** 2 * factor
        if np.array_equal(reduced, total):
            return np.where((x == 0) | (x == 1), 0.0, total / 3)
        total = reduced


def _concatenated_bytes(blobs: pa.Array) -> ByteArray:
    """Return the bytes of all binary values, one after the other."""
    edges = boundaries_of(blobs)
    return np.ascontiguousarray(blob_bytes(blobs)[edges[0] : edges[-1]])
