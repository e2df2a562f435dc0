"""XXH64 as Spark chains it over the columns of a key, for whole columns at a time.

Problem: a key must fall into the same key group whether the JVM hashes it (at a source) or Python
does (behind another operator).  Spark's ``xxhash64(a, b, ...)`` starts from seed 42, hashes the
first column with it, and uses each column's hash as the seed of the next; a null leaves the hash as
it is.  The functions here take one seed per row and return one hash per row, so that chaining is
calling them in turn.

Invariant: the same 64 bits as ``org.apache.spark.sql.catalyst.expressions.XXH64``, and, for bytes,
as the XXH64 specification (https://github.com/Cyan4973/xxHash, ``doc/xxhash_spec.md``).

No step loops over rows.  Bytes of different lengths are handled by rounds: round r touches the rows
that are long enough to have an r-th stripe, so the number of rounds grows with the longest value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SPARK_SEED", "hash_bytes", "hash_int32", "hash_int64"]

SPARK_SEED = 42
"""Seed of Spark's ``xxhash64`` expression."""

UInt64Array = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.intp] | slice

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)
_STRIPE = 32
_BLOCK = 32_768  # rows whose intermediate arrays stay in the cache; without, a third of the speed
_ALL = slice(None)


def _rotated(values: UInt64Array, bits: int) -> UInt64Array:
    rotated = values << np.uint64(bits)
    rotated |= values >> np.uint64(64 - bits)
    return rotated


def _avalanche(hashes: UInt64Array) -> UInt64Array:
    """Mix the bits of `hashes`, in place."""
    hashes ^= hashes >> np.uint64(33)
    hashes *= _PRIME_2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _PRIME_3
    hashes ^= hashes >> np.uint64(32)
    return hashes


def _mixed_lane(lane: UInt64Array) -> UInt64Array:
    """One 8-byte input on its way into an accumulator."""
    return _rotated(lane * _PRIME_2, 31) * _PRIME_1


def _with_word(hashes: UInt64Array, words: UInt64Array) -> UInt64Array:
    return _rotated(hashes ^ _mixed_lane(words), 27) * _PRIME_1 + _PRIME_4


def _with_half_word(hashes: UInt64Array, halves: UInt64Array) -> UInt64Array:
    return _rotated(hashes ^ (halves * _PRIME_1), 23) * _PRIME_2 + _PRIME_3


def hash_int32(values: npt.NDArray[np.int32], seeds: UInt64Array) -> UInt64Array:
    """Hash 4-byte integers.

    `values`: shape ``(N,)``, int32.
    `seeds`: shape ``(N,)``, uint64: the seed of each row.
    Returns shape ``(N,)``, uint64.

    Examples
    --------
    >>> hash_int32(np.array([1], np.int32), np.array([42], np.uint64)).view(np.int64).tolist()
    [-6698625589789238999]
    """
    hashes = np.empty_like(seeds)
    for block in _blocks(len(seeds)):
        bits = values[block].view(np.uint32).astype(np.uint64)
        seeded = seeds[block] + (_PRIME_5 + np.uint64(4))
        hashes[block] = _avalanche(_with_half_word(seeded, bits))
    return hashes


def hash_int64(values: npt.NDArray[np.int64], seeds: UInt64Array) -> UInt64Array:
    """Hash 8-byte integers; shapes as in `hash_int32`."""
    hashes = np.empty_like(seeds)
    for block in _blocks(len(seeds)):
        seeded = seeds[block] + (_PRIME_5 + np.uint64(8))
        hashes[block] = _avalanche(_with_word(seeded, values[block].view(np.uint64)))
    return hashes


def hash_bytes(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seeds: UInt64Array,
) -> UInt64Array:
    """Hash byte strings.

    `data`: shape ``(B,)``: the bytes of all values.
    `starts`, `lengths`: shape ``(N,)``: value i is ``data[starts[i]:starts[i] + lengths[i]]``.
    `seeds`: shape ``(N,)``: the seed of each row.
    Returns shape ``(N,)``, uint64.
    """
    hashes = np.empty_like(seeds)
    for block in _blocks(len(seeds)):
        hashes[block] = _hash_block(data, starts[block], lengths[block], seeds[block])
    return hashes


def _hash_block(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seeds: UInt64Array,
) -> UInt64Array:
    hashes = seeds + _PRIME_5
    long = np.flatnonzero(lengths >= _STRIPE)
    if len(long):
        hashes[long] = _hash_stripes(data, starts[long], lengths[long], seeds[long])
    hashes += lengths.view(np.uint64)

    at = starts + (lengths & ~(_STRIPE - 1))
    for word in range(3):
        rows = _where((lengths & (_STRIPE - 1)) >= 8 * (word + 1))
        if rows is not None:
            hashes[rows] = _with_word(hashes[rows], _read(data, at[rows], "<u8"))
            at[rows] += 8
    rows = _where(lengths & 4 != 0)
    if rows is not None:
        halves = _read(data, at[rows], "<u4").astype(np.uint64)
        hashes[rows] = _with_half_word(hashes[rows], halves)
        at[rows] += 4
    for byte in range(3):
        rows = _where((lengths & 3) > byte)
        if rows is not None:
            mixed = hashes[rows] ^ (data[at[rows] + byte].astype(np.uint64) * _PRIME_5)
            hashes[rows] = _rotated(mixed, 11) * _PRIME_1
    return _avalanche(hashes)


def _hash_stripes(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seeds: UInt64Array,
) -> UInt64Array:
    """Digest the whole 32-byte stripes of values that have at least one."""
    lanes = np.stack([seeds + _PRIME_1 + _PRIME_2, seeds + _PRIME_2, seeds, seeds - _PRIME_1])
    stripes = lengths // _STRIPE
    # Longest first: the rows that still have a stripe are a prefix in every round.
    by_stripes = np.argsort(-stripes, kind="stable")
    live = len(stripes) - np.cumsum(np.bincount(stripes))
    for stripe in range(int(stripes.max())):
        rows = by_stripes[: live[stripe]]
        at = starts[rows] + stripe * _STRIPE
        for lane in range(4):
            words = _read(data, at + 8 * lane, "<u8")
            lanes[lane, rows] = _rotated(lanes[lane, rows] + words * _PRIME_2, 31) * _PRIME_1
    first, second, third, fourth = lanes
    hashes = _rotated(first, 1) + _rotated(second, 7) + _rotated(third, 12) + _rotated(fourth, 18)
    for lane in range(4):
        hashes = (hashes ^ _mixed_lane(lanes[lane])) * _PRIME_1 + _PRIME_4
    return hashes


def _blocks(count: int) -> Iterator[slice]:
    for first in range(0, count, _BLOCK):
        yield slice(first, first + _BLOCK)


def _where(chosen: npt.NDArray[np.bool_]) -> Rows | None:
    """Rows that are chosen; a slice where all are, since that copies nothing; None for none."""
    count = np.count_nonzero(chosen)
    if count == 0:
        return None
    return _ALL if count == len(chosen) else np.flatnonzero(chosen)


def _read(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], dtype: str) -> npt.NDArray[Any]:
    """Read one little-endian integer at each byte position; positions need no alignment."""
    size = np.dtype(dtype).itemsize
    anywhere = np.ndarray((len(data) - size + 1,), dtype, data, strides=(1,))
    return anywhere[at]
