"""The hash of a key: Spark's ``xxhash64`` over the key columns of an Arrow batch.

The hash is part of every checkpoint (it decides a row's key group), so it must not depend on who
computes it.  `hash_keys` gives the bits that the JVM gives for the same values; for types that
Spark has not (unsigned integers, times) it is defined here, by the integer they are stored as.

Spark's ``xxhash64(a, b, ...)`` starts from seed 42, hashes the first column with it, and uses each
column's hash as the seed of the next; a null leaves the hash as it is.  Invariant: the same 64 bits
as ``org.apache.spark.sql.catalyst.expressions.XXH64``, and, for bytes, as the XXH64 specification
(https://github.com/Cyan4973/xxHash, ``doc/xxhash_spec.md``).

Two floats that are one key to Spark (all NaNs; 0.0 and -0.0) hash alike; `canonical_keys` makes
them alike bit by bit, which is how grouping and the local store compare them.

`RowsDigest` is another hash: of rows in their order, to tell whether two reads of the same thing
gave the same rows.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import (
    blob_bytes,
    boundaries_of,
    column_of,
    mask_of,
    numpy_type,
    values_of,
    words_of,
)
from godwit.columns.types import is_binary, is_text
from godwit.model.errors import InvalidFlowError
from godwit.model.key_groups import key_groups_of
from godwit.store.columns import fixed_width, word_at, words_anywhere
from godwit.store.compiled import kernel, read_only

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from godwit.store.columns import FixedWidth


UInt64Array = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.intp] | slice

SPARK_SEED = 42
"""Seed of Spark's ``xxhash64`` expression."""

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)
_STRIPE = 32
_BLOCK = 32_768  # rows whose intermediate arrays stay in the cache; without, a third of the speed
_ALL = slice(None)

_MAX_LONG_DIGITS = 18  # decimals of more digits do not fit a long and are hashed as bytes


def is_hashable(dtype: pa.DataType) -> bool:
    """Return true if `hash_keys` takes columns of `dtype`."""
    return (
        numpy_type(dtype) is not None
        or pa.types.is_decimal128(dtype)
        or pa.types.is_null(dtype)
        or is_text(dtype)
        or is_binary(dtype)
    )


def hash_keys(keys: pa.RecordBatch, *, seed: int = SPARK_SEED) -> npt.NDArray[np.int64]:
    """Hash every row of `keys`, as ``xxhash64(*columns)`` does in Spark SQL.

    Returns shape ``(N,)``, int64.
    Raises `InvalidFlowError` if a column has a type that cannot be hashed (lists, maps, structs,
    intervals).

    Examples
    --------
    >>> hash_keys(pa.record_batch({"a": pa.array([1, None], pa.int32())})).tolist()
    [-6698625589789238999, 42]
    """
    hashes = np.full(keys.num_rows, seed, np.uint64)
    for field, column in zip(keys.schema, keys.columns, strict=True):
        if not is_hashable(field.type):
            raise InvalidFlowError(
                f"Column {field.name!r} has type {field.type}, which cannot be hashed.",
                remedy="Use columns of a primitive type, strings, binary or decimals as keys.",
                column=field.name,
            )
        hashed = hash_column(column, hashes)
        mask = mask_of(column)
        hashes = hashed if mask is None else np.where(mask, hashed, hashes)
    return hashes.view(np.int64)


def hash_placed(
    keys: pa.RecordBatch, placed: Sequence[str], num_key_groups: int
) -> npt.NDArray[np.int64]:
    """Hash every row of `keys` so that the columns `placed` alone decide its key group.

    The key group is that of ``hash_keys`` of these columns; the rest of the hash tells whole keys
    apart.

    Examples
    --------
    >>> keys = pa.record_batch({"area": ["a", "a"], "user": [1, 2]})
    >>> key_groups_of(hash_placed(keys, ["area"], 16), 16).tolist()
    [6, 6]
    """
    # Half of the hash's range, so that a key group is added without overflow.
    rest = (hash_keys(keys) >> 1) // num_key_groups * num_key_groups
    return rest + key_groups_of(hash_keys(keys.select(list(placed))), num_key_groups)


def canonical_keys(keys: pa.RecordBatch) -> pa.RecordBatch:
    """Return keys whose equal floats have equal bits: -0.0 becomes 0.0, every NaN the same NaN."""
    if not any(pa.types.is_floating(field.type) for field in keys.schema):
        return keys
    columns = [
        canonical_floats(column) if pa.types.is_floating(column.type) else column
        for column in keys.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=keys.schema)


def canonical_floats(column: pa.Array) -> pa.Array:
    """Return a column whose equal floats have equal bits; nulls stay."""
    return column_of(_canonical_values(values_of(column)), mask_of(column), column.type)


def _canonical_values(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return floats with -0.0 replaced by 0.0, and every NaN by the same NaN."""
    canonical: npt.NDArray[Any] = values + values.dtype.type(0)  # -0.0 + 0.0 is 0.0
    canonical[np.isnan(canonical)] = np.nan
    return canonical


def hash_column(column: pa.Array, seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the hash of each value of a column, from its row's seed; arbitrary where null."""
    dtype = column.type
    if pa.types.is_null(dtype):
        return seeds
    if pa.types.is_decimal128(dtype):
        if dtype.precision <= _MAX_LONG_DIGITS:
            return hash_int64(words_of(column)[1].copy().view(np.int64), seeds)
        return hash_bytes(*decimal_bytes(column), seeds)
    if is_text(dtype) or is_binary(dtype):
        if (hashes := _compiled_hashes(column, seeds)) is not None:
            return hashes
        same_width = fixed_width(column)
        if same_width is not None and same_width.dtype.itemsize < _STRIPE:
            return _hash_equal_lengths(same_width, seeds)
        return hash_bytes(*spans_of(column), seeds)
    values = values_of(column)
    if pa.types.is_floating(dtype):
        # Spark has no half floats: their value as a float stands for them.
        values = _canonical_values(values.astype(np.float32) if values.itemsize == 2 else values)
        values = values.view(np.int32 if values.itemsize == 4 else np.int64)
    if values.itemsize == 8:
        return hash_int64(np.ascontiguousarray(values).view(np.int64), seeds)
    if values.dtype == np.uint32:
        return hash_int32(values.view(np.int32), seeds)
    return hash_int32(values.astype(np.int32), seeds)


def spans_of(
    column: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return bytes, starts and lengths of values of a text or binary column; nulls are empty."""
    dtype = column.type
    if pa.types.is_fixed_size_binary(dtype):
        starts = (np.arange(len(column), dtype=np.int64) + column.offset) * dtype.byte_width
        lengths = np.full(len(column), dtype.byte_width, np.int64)
        data = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    else:
        if pa.types.is_string_view(dtype) or pa.types.is_binary_view(dtype):
            column = pc.cast(column, pa.large_binary())
        offsets = boundaries_of(column).astype(np.int64)
        starts, lengths, data = offsets[:-1], np.diff(offsets), blob_bytes(column)
    mask = mask_of(column)
    if mask is not None:
        lengths = np.where(mask, lengths, 0)
    return data, starts, lengths


def decimal_bytes(
    column: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return bytes, starts and lengths of decimals, encoded as by Java's ``toByteArray``."""
    high, low = words_of(column)
    words = np.stack([high.view(np.uint64), low], axis=1).astype(">u8")
    digits = words.view(np.uint8).reshape(len(column), 16)
    # A leading byte goes if it repeats the sign bit of the byte behind it.
    signs = np.where(digits[:, 1:] & 0x80 != 0, 0xFF, 0)
    spare = np.cumprod(digits[:, :-1] == signs, axis=1).sum(axis=1).astype(np.int64)
    starts = np.arange(len(column), dtype=np.int64) * 16 + spare
    return digits.reshape(-1), starts, 16 - spare


# -- XXH64, one seed per row in and one hash per row out, so that chaining is calling in turn. No
# step loops over rows: bytes of different lengths are handled by rounds, and round r touches the
# rows that are long enough to have an r-th stripe


def _rotated(values: UInt64Array, bits: int) -> UInt64Array:
    """Return 64-bit values rotated to the left by `bits`."""
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
    """Return 8-byte words mixed as xxHash mixes them into an accumulator."""
    return _rotated(lane * _PRIME_2, 31) * _PRIME_1


def _with_word(hashes: UInt64Array, words: UInt64Array) -> UInt64Array:
    """Mix an 8-byte word into each hash; return the new hashes."""
    return _rotated(hashes ^ _mixed_lane(words), 27) * _PRIME_1 + _PRIME_4


def _with_half_word(hashes: UInt64Array, halves: UInt64Array) -> UInt64Array:
    """Mix a 4-byte word into each hash; return the new hashes."""
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
    if (hash_all := _hash_halves.ready(len(seeds))) is not None:
        hash_all(values, seeds, hashes)
        return hashes
    for block in _blocks(len(seeds)):
        bits = values[block].view(np.uint32).astype(np.uint64)
        seeded = seeds[block] + (_PRIME_5 + np.uint64(4))
        hashes[block] = _avalanche(_with_half_word(seeded, bits))
    return hashes


def hash_int64(values: npt.NDArray[np.int64], seeds: UInt64Array) -> UInt64Array:
    """Hash 8-byte integers; shapes as in `hash_int32`."""
    hashes = np.empty_like(seeds)
    if (hash_all := _hash_words.ready(len(seeds))) is not None:
        hash_all(values, seeds, hashes)
        return hashes
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
    """Hash the byte strings of one block of rows; parameters as of `hash_bytes`."""
    hashes = seeds + _PRIME_5
    long = np.flatnonzero(lengths >= _STRIPE)
    if len(long):
        hashes[long] = _hash_stripes(data, starts[long], lengths[long], seeds[long])
    hashes += lengths.view(np.uint64)

    places = starts + (lengths & ~(_STRIPE - 1))
    for word in range(3):
        rows = _selection((lengths & (_STRIPE - 1)) >= 8 * (word + 1))
        if rows is not None:
            hashes[rows] = _with_word(hashes[rows], _read_integers(data, places[rows], "<u8"))
            places[rows] += 8
    rows = _selection(lengths & 4 != 0)
    if rows is not None:
        halves = _read_integers(data, places[rows], "<u4").astype(np.uint64)
        hashes[rows] = _with_half_word(hashes[rows], halves)
        places[rows] += 4
    for byte in range(3):
        rows = _selection((lengths & 3) > byte)
        if rows is not None:
            mixed = hashes[rows] ^ (data[places[rows] + byte].astype(np.uint64) * _PRIME_5)
            hashes[rows] = _rotated(mixed, 11) * _PRIME_1
    return _avalanche(hashes)


def _hash_equal_lengths(values: FixedWidth, seeds: UInt64Array) -> UInt64Array:
    """Hash byte strings of one length, which is less than a stripe (32 bytes)."""
    hashes, width = np.empty_like(seeds), values.dtype.itemsize
    for block in _blocks(len(seeds)):
        part, place = values[block], 0
        mixed = seeds[block] + (_PRIME_5 + np.uint64(width))
        for place in range(0, width - 7, 8):
            mixed = _with_word(mixed, word_at(part, place, "<u8"))
        place = width & ~7
        if width & 4:
            mixed = _with_half_word(mixed, word_at(part, place, "<u4").astype(np.uint64))
            place += 4
        for byte in range(place, width):
            mixed ^= word_at(part, byte, "u1").astype(np.uint64) * _PRIME_5
            mixed = _rotated(mixed, 11) * _PRIME_1
        hashes[block] = _avalanche(mixed)
    return hashes


def _hash_stripes(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seeds: UInt64Array,
) -> UInt64Array:
    """Hash the whole 32-byte stripes of values that have any."""
    lanes = np.stack([seeds + _PRIME_1 + _PRIME_2, seeds + _PRIME_2, seeds, seeds - _PRIME_1])
    stripes = lengths // _STRIPE
    # Longest first: the rows that still have a stripe are a prefix in every round.
    by_stripes = np.argsort(-stripes, kind="stable")
    live = len(stripes) - np.cumsum(np.bincount(stripes))
    for stripe in range(int(stripes.max())):
        rows = by_stripes[: live[stripe]]
        places = starts[rows] + stripe * _STRIPE
        for lane in range(4):
            words = _read_integers(data, places + 8 * lane, "<u8")
            lanes[lane, rows] = _rotated(lanes[lane, rows] + words * _PRIME_2, 31) * _PRIME_1
    first, second, third, fourth = lanes
    hashes = _rotated(first, 1) + _rotated(second, 7) + _rotated(third, 12) + _rotated(fourth, 18)
    for lane in range(4):
        hashes = (hashes ^ _mixed_lane(lanes[lane])) * _PRIME_1 + _PRIME_4
    return hashes


def _blocks(count: int) -> Iterator[slice]:
    """Yield slices of rows whose intermediate arrays stay in the cache."""
    for first in range(0, count, _BLOCK):
        yield slice(first, first + _BLOCK)


def _selection(chosen: npt.NDArray[np.bool_]) -> Rows | None:
    """Return the positions of true values; a slice if all are true, ``None`` if none is."""
    count = np.count_nonzero(chosen)
    if count == 0:
        return None
    return _ALL if count == len(chosen) else np.flatnonzero(chosen)


def _read_integers(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], dtype: str
) -> npt.NDArray[Any]:
    """Return the little-endian integer of type `dtype` at each byte offset, aligned or not."""
    return _integers_anywhere(data, np.dtype(dtype))[offsets]


def _integers_anywhere(data: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """View the little-endian integer from every byte on; none if there are fewer bytes."""
    return np.ndarray((max(len(data) - dtype.itemsize + 1, 0),), dtype, data, strides=(1,))


# -- the same, compiled: one pass over the rows


def _compiled_hashes(column: pa.Array, seeds: UInt64Array) -> UInt64Array | None:
    """Return the hash of each string or binary value by machine code; ``None`` without it."""
    kernel_of_type = _KERNEL_OF_TYPE.get(column.type)
    hash_all = kernel_of_type.ready(len(column)) if kernel_of_type is not None else None
    if hash_all is None or not len(column):
        return None
    data, hashes = blob_bytes(column), np.empty_like(seeds)
    words, halves = words_anywhere(data), _integers_anywhere(data, np.dtype("<u4"))
    if not hash_all(data, words, halves, boundaries_of(column), seeds, hashes):
        return None  # NumPy raises where offsets leave the data
    return hashes


_SEEDS = f"{read_only('uint64')}, uint64[::1]"


@kernel(f"void({read_only('int32', anywhere=True)}, {_SEEDS})")
def _hash_halves(values: npt.NDArray[np.int32], seeds: UInt64Array, hashes: UInt64Array) -> None:
    """Hash 4-byte integers, as `hash_int32`; the three arrays have one length."""
    for i in range(min(len(values), len(seeds), len(hashes))):
        mixed = seeds[i] + (_PRIME_5 + np.uint64(4))
        mixed ^= np.uint64(np.uint32(values[i])) * _PRIME_1
        mixed = (mixed << np.uint64(23) | mixed >> np.uint64(41)) * _PRIME_2 + _PRIME_3
        mixed = (mixed ^ mixed >> np.uint64(33)) * _PRIME_2
        mixed = (mixed ^ mixed >> np.uint64(29)) * _PRIME_3
        hashes[i] = mixed ^ mixed >> np.uint64(32)


@kernel(f"void({read_only('int64', anywhere=True)}, {_SEEDS})")
def _hash_words(values: npt.NDArray[np.int64], seeds: UInt64Array, hashes: UInt64Array) -> None:
    """Hash 8-byte integers, as `hash_int64`; the three arrays have one length."""
    for i in range(min(len(values), len(seeds), len(hashes))):
        word = np.uint64(values[i]) * _PRIME_2
        word = (word << np.uint64(31) | word >> np.uint64(33)) * _PRIME_1
        mixed = (seeds[i] + (_PRIME_5 + np.uint64(8))) ^ word
        mixed = (mixed << np.uint64(27) | mixed >> np.uint64(37)) * _PRIME_1 + _PRIME_4
        mixed = (mixed ^ mixed >> np.uint64(33)) * _PRIME_2
        mixed = (mixed ^ mixed >> np.uint64(29)) * _PRIME_3
        hashes[i] = mixed ^ mixed >> np.uint64(32)


def _hash_spans(  # noqa: PLR0917  kernels take no names
    data: npt.NDArray[np.uint8],  # shape ``(B,)``
    words: UInt64Array,  # shape ``(B - 7,)``: the 8 bytes at each of its offsets
    halves: npt.NDArray[np.uint32],  # shape ``(B - 3,)``: the 4 bytes
    offsets: npt.NDArray[Any],  # shape ``(N + 1,)``
    seeds: UInt64Array,
    hashes: UInt64Array,  # shape ``(N,)``, to be written
) -> bool:
    """Hash ``data[offsets[i]:offsets[i + 1]]`` as `hash_bytes`; false if offsets leave the data."""
    if len(offsets) <= len(seeds) or len(hashes) < len(seeds):
        return False
    for i in range(len(seeds)):
        place, end = np.int64(offsets[i]), np.int64(offsets[i + 1])
        if place < 0 or end < place or end > len(data):
            return False
        mixed = seeds[i] + _PRIME_5
        length = np.uint64(end - place)
        if end - place >= _STRIPE:
            first, second = seeds[i] + _PRIME_1 + _PRIME_2, seeds[i] + _PRIME_2
            third, fourth = seeds[i], seeds[i] - _PRIME_1
            while place + _STRIPE <= end:
                first += words[place] * _PRIME_2
                second += words[place + 8] * _PRIME_2
                third += words[place + 16] * _PRIME_2
                fourth += words[place + 24] * _PRIME_2
                first = (first << np.uint64(31) | first >> np.uint64(33)) * _PRIME_1
                second = (second << np.uint64(31) | second >> np.uint64(33)) * _PRIME_1
                third = (third << np.uint64(31) | third >> np.uint64(33)) * _PRIME_1
                fourth = (fourth << np.uint64(31) | fourth >> np.uint64(33)) * _PRIME_1
                place += _STRIPE
            mixed = (first << np.uint64(1) | first >> np.uint64(63)) + (
                second << np.uint64(7) | second >> np.uint64(57)
            )
            mixed += third << np.uint64(12) | third >> np.uint64(52)
            mixed += fourth << np.uint64(18) | fourth >> np.uint64(46)
            for lane in (first, second, third, fourth):
                word = lane * _PRIME_2
                word = (word << np.uint64(31) | word >> np.uint64(33)) * _PRIME_1
                mixed = (mixed ^ word) * _PRIME_1 + _PRIME_4
        mixed += length
        while place + 8 <= end:
            word = words[place] * _PRIME_2
            mixed ^= (word << np.uint64(31) | word >> np.uint64(33)) * _PRIME_1
            mixed = (mixed << np.uint64(27) | mixed >> np.uint64(37)) * _PRIME_1 + _PRIME_4
            place += 8
        if place + 4 <= end:
            mixed ^= np.uint64(halves[place]) * _PRIME_1
            mixed = (mixed << np.uint64(23) | mixed >> np.uint64(41)) * _PRIME_2 + _PRIME_3
            place += 4
        while place < end:
            mixed ^= np.uint64(data[place]) * _PRIME_5
            mixed = (mixed << np.uint64(11) | mixed >> np.uint64(53)) * _PRIME_1
            place += 1
        mixed = (mixed ^ mixed >> np.uint64(33)) * _PRIME_2
        mixed = (mixed ^ mixed >> np.uint64(29)) * _PRIME_3
        hashes[i] = mixed ^ mixed >> np.uint64(32)
    return True


def _span_signature(offsets: str) -> str:
    """Return Numba's signature of `_hash_spans` for offsets of a type."""
    bytes_at = ", ".join(read_only(dtype, anywhere=True) for dtype in ("uint8", "uint64", "uint32"))
    return f"boolean({bytes_at}, {read_only(offsets, anywhere=True)}, {_SEEDS})"


_OF_STRINGS = kernel(_span_signature("int32"))(_hash_spans)
_OF_LARGE_STRINGS = kernel(_span_signature("int64"))(_hash_spans)
_KERNEL_OF_TYPE = {
    pa.string(): _OF_STRINGS,
    pa.binary(): _OF_STRINGS,
    pa.large_string(): _OF_LARGE_STRINGS,
    pa.large_binary(): _OF_LARGE_STRINGS,
}


_WORD = 2**64
_BYTES = (
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_large_string,
    pa.types.is_large_binary,
)


class RowsDigest:
    """Digest of rows that come batch by batch; all batches have the same columns.

    Invariant: it depends on the values, their order and nothing else. How the rows are cut into
    batches, where buffers begin, and the contents of null slots make no difference; a value that
    differs, or two rows that have changed places, do (but for one case in about 2³²).

    Numbers are added up, each times an odd number that grows with its row; bytes are summed by
    Adler-32. Both can go on from one batch to the next, and cost about what reading the memory
    costs.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sums: list[_Sum] = []

    def update(self, batch: pa.RecordBatch) -> None:
        """Add a batch of rows to the digest, after those so far."""
        self.rows += batch.num_rows
        parts = [part for column in batch.columns for part in _parts_to_digest(column)]
        sums = self._sums or [(0, 0, 1) for _ in parts]
        self._sums = [_added(so_far, part) for so_far, part in zip(sums, parts, strict=True)]

    @property
    def value(self) -> int:
        """Digest of all rows so far, a number of 64 bits."""
        sums = [struct.pack("<QI", total, adler) for _, total, adler in self._sums]
        packed = [struct.pack("<Q", self.rows), *sums]
        digest = hashlib.blake2b(b"".join(packed), digest_size=8).digest()
        return int.from_bytes(digest, "little")


_Sum = tuple[int, int, int]
"""Sum of one sequence of numbers or bytes: how many numbers, their total, checksum of the bytes."""


def _added(so_far: _Sum, part: npt.NDArray[Any] | int) -> _Sum:
    """Return a sum with `part` added: 64-bit numbers, bytes, or a number of zeros."""
    count, total, adler = so_far
    if isinstance(part, int):
        return count + part, total, adler
    if part.dtype == np.uint8:
        return count, total, zlib.adler32(part.data, adler)
    if not len(part):
        return so_far
    # Each number times 2 * (its place in the whole sequence) + 1.
    shifted = 2 * count * int(part.sum(dtype=np.uint64))
    total = (total + shifted + int(np.dot(part, _odd_numbers(len(part))))) % _WORD
    return count + len(part), total, adler


@lru_cache(maxsize=4)
def _odd_numbers(count: int) -> npt.NDArray[np.uint64]:
    """Return the first `count` odd numbers."""
    return np.arange(1, 2 * count + 1, 2, dtype=np.uint64)


def _parts_to_digest(array: pa.Array) -> Iterator[npt.NDArray[Any] | int]:
    """Yield a column's null marks and content as arrays of 64-bit numbers or of bytes.

    An integer n stands for n zeros.
    """
    mask = mask_of(array)
    yield len(array) if mask is None else (~mask).astype(np.uint64)
    dtype = array.type
    if pa.types.is_null(dtype):
        return
    if numpy_type(dtype) is not None:
        yield _as_words(values_of(array), mask)
    elif pa.types.is_decimal128(dtype):
        for words in words_of(array):
            yield _as_words(words, mask)
    elif any(is_type(dtype) for is_type in _BYTES):
        present = array if mask is None else array.drop_null()
        boundaries = boundaries_of(present)
        yield _as_words(np.diff(boundaries_of(array)), mask)
        yield blob_bytes(present)[boundaries[0] : boundaries[-1]]
    elif pa.types.is_struct(dtype):
        for child in array.flatten():
            yield from _parts_to_digest(child)
    elif pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        lengths = pc.list_value_length(array).fill_null(0)
        yield _as_words(values_of(lengths), mask)
        yield from _parts_to_digest(array.flatten())
    else:
        yield np.frombuffer(_reprs(array.to_pylist()), np.uint8)


def _as_words(
    values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.uint64]:
    """Return values of up to 64 bits as unsigned integers, 0 where null."""
    if values.dtype.kind == "f":
        values = values.view(f"u{values.dtype.itemsize}")
    words = values.astype(np.uint64) if values.itemsize < 8 else values.view(np.uint64)
    return words if mask is None else np.where(mask, words, np.uint64(0))


def _reprs(values: Iterable[Any]) -> bytes:
    """Return the concatenated reprs of values, for types that have no faster encoding."""
    return "".join(f"{value!r};" for value in values).encode()
