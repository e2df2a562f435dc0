"""Arrow columns as NumPy arrays and back, without a copy where the layout allows it.

Arrow keeps nulls in a bitmap beside the values; the functions here split a column into its values
(undefined where null) and a mask (``None`` where nothing is null), which is what NumPy's scatter
and gather operations want, and join the two again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BoolArray = npt.NDArray[np.bool_]


def numpy_type(dtype: pa.DataType) -> np.dtype[Any] | None:
    """Return the NumPy type with the memory layout of an Arrow type; ``None`` if there is none.

    Dates, times, timestamps and durations are integers.
    """
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        primitive: np.dtype[Any] = np.dtype(dtype.to_pandas_dtype())
        return primitive
    if pa.types.is_boolean(dtype):
        return np.dtype(np.bool_)
    if pa.types.is_temporal(dtype) and not pa.types.is_interval(dtype):
        return np.dtype(np.int32 if dtype.bit_width == 32 else np.int64)
    return None


def values_of(array: pa.Array) -> npt.NDArray[Any]:
    """Return a fixed-width column as a NumPy array, undefined where null; raise for other types.

    Returns shape ``(N,)``, of `numpy_type`; read-only except for booleans.
    """
    if pa.types.is_boolean(array.type):
        bits = np.frombuffer(array.buffers()[1] or b"", np.uint8)
        first = array.offset
        unpacked = np.unpackbits(bits, count=first + len(array), bitorder="little")
        return unpacked[first:].view(np.bool_)
    dtype = numpy_type(array.type)
    if dtype is None:
        msg = f"{array.type} is not a primitive type"
        raise TypeError(msg)
    return _view(array.buffers()[1], dtype, array.offset, len(array))


def words_of(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Return the high (signed) and low 64-bit words of a decimal128 column; null: arbitrary."""
    words = _view(array.buffers()[1], np.dtype(np.uint64), 2 * array.offset, 2 * len(array))
    return words[1::2].view(np.int64), words[::2]


def mask_of(array: pa.Array) -> BoolArray | None:
    """Return a mask of a column's non-null values; ``None`` if none is null."""
    if array.null_count == 0:
        return None
    return values_of(array.is_valid())


def min_of(times: pa.Array) -> int | None:
    """Return the minimum of a 64-bit column such as timestamps; ``None`` without any value."""
    values, mask = values_of(times), mask_of(times)
    if mask is not None:
        values = values[mask]
    return int(values.min()) if len(values) else None


def boundaries_of(array: pa.Array) -> npt.NDArray[Any]:
    """Return the N + 1 offsets of a string or binary column into its `blob_bytes`."""
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    dtype = np.dtype(np.int64 if wide else np.int32)
    if len(array) == 0:
        return np.zeros(1, dtype)
    return _view(array.buffers()[1], dtype, array.offset, len(array) + 1)


def blob_bytes(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of all values of a string or binary column; see `boundaries_of`."""
    return np.frombuffer(array.buffers()[2] or b"", np.uint8)


def column_of(values: npt.NDArray[Any], mask: BoolArray | None, dtype: pa.DataType) -> pa.Array:
    """Return a column of a primitive type from values and a mask.

    `values`: shape ``(N,)``; converted to the type's NumPy type if it is another. `mask`: shape
    ``(N,)``: true where a value is not null; ``None``: no nulls.
    """
    if pa.types.is_boolean(dtype):
        data = np.packbits(values.astype(np.bool_, copy=False), bitorder="little")
    else:
        data = np.ascontiguousarray(values, numpy_type(dtype))
    return pa.Array.from_buffers(dtype, len(values), [bitmap_of(mask), pa.py_buffer(data)])


def bitmap_of(mask: BoolArray | None) -> pa.Buffer | None:
    """Return Arrow's validity bitmap for a mask of values that are not null."""
    return None if mask is None else pa.py_buffer(np.packbits(mask, bitorder="little"))


def binary_column(data: npt.NDArray[np.uint8], boundaries: npt.NDArray[Any]) -> pa.Array:
    """Build a column of large binaries from their bytes and N + 1 offsets."""
    offsets = np.ascontiguousarray(boundaries, np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _view(
    buffer: pa.Buffer | None, dtype: np.dtype[Any], offset: int, count: int
) -> npt.NDArray[Any]:
    """Return `count` values of a buffer, from value `offset` on, as an array without a copy."""
    if buffer is None or count == 0:
        return np.empty(count, dtype)
    return np.frombuffer(buffer, dtype, count, offset * dtype.itemsize)
