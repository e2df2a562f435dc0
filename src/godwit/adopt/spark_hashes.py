"""Spark's ``hash`` and ``xxhash64`` of values of any type; see `godwit.adopt.functions`.

The hash of a value is the seed of the next one, a null leaves it as it is, and arrays and structs
are hashed element by element and field by field.  ``xxhash64`` of plain values is that of keys
(`godwit.columns.hashing`).  ``hash`` is Murmur3 of 32 bits, but for the last one to three bytes of
a text: Spark mixes each of them in as an integer with a sign.

Source: ``Murmur3_x86_32.hashUnsafeBytes`` and ``HashExpression`` of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.adopt.array_functions import rows_and_elements
from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.columns.hashing import canonical_floats, decimal_bytes, hash_column, spans_of
from godwit.columns.types import is_binary, is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

UInts = npt.NDArray[np.unsignedinteger[Any]]
_FIRST, _SECOND = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_MIX_FIRST, _MIX_SECOND = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_MAX_LONG_DIGITS = 18  # decimals of more digits do not fit a long and are hashed as bytes


def is_hashed(dtype: pa.DataType) -> bool:
    """Return whether values of a type are hashed as Spark hashes them."""
    if pa.types.is_struct(dtype):
        return all(is_hashed(field.type) for field in dtype)
    if pa.types.is_list(dtype):
        return is_hashed(dtype.value_type)
    return not (pa.types.is_map(dtype) or pa.types.is_interval(dtype))


def murmur3(columns: Sequence[pa.Array], seed: int) -> pa.Array:
    """Return the hash of every row, of 32 bits."""
    hashes = _mix_in_column(
        columns, np.full(len(columns[0]), seed & 0xFFFFFFFF, np.uint32), _murmur3_of_column
    )
    return column_of(hashes.view(np.int32), None, pa.int32())


def xxhash64(columns: Sequence[pa.Array], seed: int) -> pa.Array:
    """Return the hash of every row, of 64 bits."""
    seeds = np.full(len(columns[0]), seed, np.int64).view(np.uint64)
    return column_of(_mix_in_column(columns, seeds, hash_column).view(np.int64), None, pa.int64())


def _mix_in_column(
    columns: Sequence[pa.Array], hashes: UInts, hashed: Callable[[pa.Array, Any], Any]
) -> UInts:
    """Mix values into hashes; `hashed`: does that for plain values."""
    for column in columns:
        if pa.types.is_struct(column.type):
            hashes = _mix_in_column(column.flatten(), hashes, hashed)
        elif pa.types.is_list(column.type):
            hashes = _mix_in_elements(column, hashes, hashed)
        else:
            mixed, mask = hashed(column, hashes), mask_of(column)
            hashes = mixed if mask is None else np.where(mask, mixed, hashes)
    return hashes


def _mix_in_elements(
    lists: pa.Array, hashes: UInts, hashed: Callable[[pa.Array, Any], Any]
) -> UInts:
    """Mix the elements of arrays into hashes, in order."""
    rows, elements = rows_and_elements(lists)
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    position_in_row = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
    hashes = hashes.copy()
    for position in range(int(position_in_row.max(initial=-1)) + 1):
        at_position = np.flatnonzero(position_in_row == position)
        elements_there = elements.take(pa.array(at_position))
        hashes[rows[at_position]] = _mix_in_column(
            [elements_there], hashes[rows[at_position]], hashed
        )
    return hashes


def _murmur3_of_column(column: pa.Array, seeds: UInts) -> UInts:
    """Return the Murmur3 hash of plain values; arbitrary where null."""
    dtype = column.type
    if pa.types.is_null(dtype):
        return seeds
    if is_text(dtype) or is_binary(dtype):
        return _hash_bytes(*spans_of(column), seeds)
    if pa.types.is_decimal(dtype):
        if dtype.precision > _MAX_LONG_DIGITS:
            return _hash_bytes(*decimal_bytes(column), seeds)
        column = pc.cast(column, pa.decimal128(38, dtype.scale))
        words = np.frombuffer(column.buffers()[1], np.int64)
        return _hash_longs(words[2 * column.offset : 2 * (column.offset + len(column)) : 2], seeds)
    if pa.types.is_floating(dtype):
        values = values_of(canonical_floats(column))
        values = values.view(np.int32 if values.itemsize == 4 else np.int64)
    else:
        values = values_of(column)
    if values.itemsize == 8:
        return _hash_longs(values.view(np.int64), seeds)
    return _finish_hash(_mix_in_word(seeds, values.astype(np.int32).view(np.uint32)), np.uint32(4))


def _hash_longs(values: npt.NDArray[np.int64], seeds: UInts) -> UInts:
    """Return the hash of integers of 64 bits: of their lower half, then of their upper one."""
    bits = values.view(np.uint64)
    low, high = bits.astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)
    return _finish_hash(_mix_in_word(_mix_in_word(seeds, low), high), np.uint32(8))


def _hash_bytes(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seeds: UInts,
) -> UInts:
    """Return the hash of byte strings; value i is ``data[starts[i]:starts[i] + lengths[i]]``."""
    hashes, whole = seeds.copy(), lengths & ~3
    for place in range(0, int(whole.max(initial=0)), 4):
        rows = np.flatnonzero(whole > place)
        word = np.zeros(len(rows), np.uint32)
        for byte in range(4):
            word |= data[starts[rows] + place + byte].astype(np.uint32) << np.uint32(8 * byte)
        hashes[rows] = _mix_in_word(hashes[rows], word)
    for byte in range(3):
        rows = np.flatnonzero(lengths - whole > byte)
        signed = data[starts[rows] + whole[rows] + byte].view(np.int8)
        hashes[rows] = _mix_in_word(hashes[rows], signed.astype(np.int32).view(np.uint32))
    return _finish_hash(hashes, lengths.astype(np.uint32))


def _rotate_left(values: UInts, bits: int) -> UInts:
    """Return 32-bit values rotated to the left by `bits`."""
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


def _mix_in_word(hashes: UInts, words: UInts) -> UInts:
    """Mix a word of 4 bytes into hashes."""
    mixed = hashes ^ (_rotate_left(words * _FIRST, 15) * _SECOND)
    return _rotate_left(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish_hash(hashes: UInts, length: Any) -> UInts:
    """Mix the number of bytes into hashes, and spread all bits."""
    hashes = hashes ^ length
    hashes = (hashes ^ (hashes >> np.uint32(16))) * _MIX_FIRST
    hashes = (hashes ^ (hashes >> np.uint32(13))) * _MIX_SECOND
    return hashes ^ (hashes >> np.uint32(16))
