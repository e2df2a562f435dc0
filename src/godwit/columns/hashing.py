"""The hash of a key: Spark's ``xxhash64`` over the key columns of an Arrow batch.

The hash is part of every checkpoint (it decides a row's key group), so it must not depend on who
computes it.  `hash_keys` gives the bits that the JVM gives for the same values; for types that
Spark has not (unsigned integers, times) it is defined here, by the integer they are stored as.

Two floats that are one key to Spark (all NaNs; 0.0 and -0.0) hash alike; `canonical_keys` makes
them alike bit by bit, which is how grouping and the local store compare them.
"""

from __future__ import annotations

from typing import Any

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
from godwit.model.errors import InvalidFlowError
from godwit.model.hashing import SPARK_SEED, hash_bytes, hash_int32, hash_int64

__all__ = ["canonical_keys", "hash_keys", "is_hashable"]

_MAX_LONG_DIGITS = 18  # decimals of more digits do not fit a long and are hashed as bytes


def is_hashable(dtype: pa.DataType) -> bool:
    """Return whether `hash_keys` takes columns of `dtype`."""
    return (
        numpy_type(dtype) is not None
        or pa.types.is_decimal128(dtype)
        or pa.types.is_null(dtype)
        or _is_bytes(dtype)
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
        hashed = _hash_column(column, hashes)
        mask = mask_of(column)
        hashes = hashed if mask is None else np.where(mask, hashed, hashes)
    return hashes.view(np.int64)


def canonical_keys(keys: pa.RecordBatch) -> pa.RecordBatch:
    """Give floats that are one key one bit pattern: -0.0 becomes 0.0, every NaN the same NaN."""
    if not any(pa.types.is_floating(field.type) for field in keys.schema):
        return keys
    columns = [
        canonical_floats(column) if pa.types.is_floating(column.type) else column
        for column in keys.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=keys.schema)


def canonical_floats(column: pa.Array) -> pa.Array:
    """Give equal floats of one column equal bits; nulls stay."""
    return column_of(_canonical(values_of(column)), mask_of(column), column.type)


def _canonical(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    canonical: npt.NDArray[Any] = values + values.dtype.type(0)  # -0.0 + 0.0 is 0.0
    canonical[np.isnan(canonical)] = np.nan
    return canonical


def _is_bytes(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(dtype)
        or pa.types.is_large_string(dtype)
        or pa.types.is_binary(dtype)
        or pa.types.is_large_binary(dtype)
        or pa.types.is_string_view(dtype)
        or pa.types.is_binary_view(dtype)
        or pa.types.is_fixed_size_binary(dtype)
    )


def _hash_column(column: pa.Array, seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hashes of one column; where a value is null, anything."""
    dtype = column.type
    if pa.types.is_null(dtype):
        return seeds
    if pa.types.is_decimal128(dtype):
        if dtype.precision <= _MAX_LONG_DIGITS:
            return hash_int64(words_of(column)[1].copy().view(np.int64), seeds)
        return hash_bytes(*_big_integers(column), seeds)
    if _is_bytes(dtype):
        return hash_bytes(*_spans(column), seeds)
    values = values_of(column)
    if pa.types.is_floating(dtype):
        # Spark has no half floats: their value as a float stands for them.
        values = _canonical(values.astype(np.float32) if values.itemsize == 2 else values)
        values = values.view(np.int32 if values.itemsize == 4 else np.int64)
    if values.itemsize == 8:
        return hash_int64(np.ascontiguousarray(values).view(np.int64), seeds)
    if values.dtype == np.uint32:
        return hash_int32(values.view(np.int32), seeds)
    return hash_int32(values.astype(np.int32), seeds)


def _spans(
    column: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Bytes, starts and lengths of a column of bytes; nulls have length zero."""
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


def _big_integers(
    column: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Bytes of ``BigInteger.toByteArray``: two's complement, big-endian, as short as can be."""
    high, low = words_of(column)
    words = np.stack([high.view(np.uint64), low], axis=1).astype(">u8")
    digits = words.view(np.uint8).reshape(len(column), 16)
    # A leading byte goes if it repeats the sign bit of the byte behind it.
    signs = np.where(digits[:, 1:] & 0x80 != 0, 0xFF, 0)
    spare = np.cumprod(digits[:, :-1] == signs, axis=1).sum(axis=1).astype(np.int64)
    starts = np.arange(len(column), dtype=np.int64) * 16 + spare
    return digits.reshape(-1), starts, 16 - spare
