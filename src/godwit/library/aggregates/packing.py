"""Lists of rows as one binary value per key, packed and unpacked for all keys at once.

Aggregates that keep several values per key (``top_k``, ``collect_set``) have state of no fixed
width.  A key's rows are packed column by column::

    [number of rows: u32, only if a column has variable width]
    for every column:  [1 byte a row: is it there?]   (only if the column may hold nulls)
                       values, side by side           (fixed width; booleans take a byte)
                       or lengths: u32 a row, then the bytes

Invariant: packing looks at every key's bytes once and never loops over keys or rows in Python.
Pieces of one kind (say, all lengths) are moved between keys' order and their own by one Arrow
``take`` over spans of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import (
    BoolArray,
    binary_column,
    bitmap_of,
    blob_bytes,
    boundaries_of,
    column_of,
    mask_of,
    numpy_type,
    values_of,
)
from godwit.store.columns import is_variable_width

IntArray = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedColumn:
    """One column of packed rows."""

    dtype: pa.DataType  # a type that state can hold
    nullable: bool  # whether there may be nulls


def pack(starts: IntArray, columns: list[pa.Array], layout: tuple[PackedColumn, ...]) -> pa.Array:
    """Pack the rows of each of G keys into one binary value; return the G values.

    Key g has the rows ``starts[g]:starts[g + 1]``. The value of a key without rows is empty if no
    column has variable width.
    """
    pieces: list[tuple[ByteArray, IntArray]] = []
    if _has_header(layout):
        counts = np.diff(starts).astype("<u4")
        pieces.append((counts.view(np.uint8), np.arange(len(starts)) * 4))
    for column, packed in zip(columns, layout, strict=True):
        if packed.nullable:
            mask = mask_of(column)
            valid = np.ones(len(column), np.bool_) if mask is None else mask
            pieces.append((valid.view(np.uint8), starts))
        if is_variable_width(packed.dtype):
            offsets = boundaries_of(column).astype(np.int64)
            lengths = np.diff(offsets).astype("<u4")
            pieces.append((lengths.view(np.uint8), starts * 4))
            pieces.append((blob_bytes(column), offsets[starts]))
        else:
            data, width = _fixed_bytes(column)
            pieces.append((data, starts * width))
    spans = [binary_column(data, boundaries) for data, boundaries in pieces]
    if len(spans) == 1:
        return spans[0]
    keys = len(starts) - 1
    interleaved = np.arange(len(spans) * keys).reshape(len(spans), keys).T.ravel()
    joined = pa.concat_arrays(spans).take(pa.array(interleaved))
    return binary_column(blob_bytes(joined), boundaries_of(joined)[:: len(spans)])


def pack_nothing(count: int, layout: tuple[PackedColumn, ...]) -> pa.Array:
    """Return the packed value of no rows `count` times."""
    nothing = [pa.nulls(0, column.dtype) for column in layout]
    return pack(np.zeros(count + 1, np.int64), nothing, layout)


def unpack(blobs: pa.Array, layout: tuple[PackedColumn, ...]) -> tuple[IntArray, list[pa.Array]]:
    """Unpack what `pack` returned: where each key's rows start, and the rows' columns."""
    boundaries = boundaries_of(blobs).astype(np.int64)
    data = blob_bytes(blobs)
    positions, ends = boundaries[:-1].copy(), boundaries[1:]
    if _has_header(layout):
        counts = (
            _concatenate_ranges(data, positions, np.full(len(positions), 4))
            .view("<u4")
            .astype(np.int64)
        )
        positions += 4
    else:
        counts = (ends - positions) // _row_width(layout)
    starts = np.zeros(len(positions) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])

    columns = []
    for packed in layout:
        mask = None
        if packed.nullable:
            valid = _concatenate_ranges(data, positions, counts).view(np.bool_)
            mask = None if valid.all() else valid
            positions += counts
        if is_variable_width(packed.dtype):
            lengths = _concatenate_ranges(data, positions, counts * 4).view("<u4").astype(np.int64)
            positions += counts * 4
            offsets = np.zeros(len(lengths) + 1, np.int64)
            np.cumsum(lengths, out=offsets[1:])
            sizes = np.diff(offsets[starts])
            columns.append(
                _variable_width_column(
                    _concatenate_ranges(data, positions, sizes), offsets, mask, packed.dtype
                )
            )
            positions += sizes
        else:
            width = _byte_width(packed.dtype)
            columns.append(
                _fixed_width_column(
                    _concatenate_ranges(data, positions, counts * width), mask, packed.dtype
                )
            )
            positions += counts * width
    return starts, columns


def unpack_rows(
    blobs: pa.Array, layout: tuple[PackedColumn, ...]
) -> tuple[IntArray, list[pa.Array]]:
    """Unpack what `pack` returned: the position of each row's value, and the rows' columns."""
    starts, columns = unpack(blobs, layout)
    return np.repeat(np.arange(len(blobs)), np.diff(starts)), columns


def _has_header(layout: tuple[PackedColumn, ...]) -> bool:
    """Return whether packed values begin with a number of rows: if a column has variable width."""
    return any(is_variable_width(column.dtype) for column in layout)


def _byte_width(dtype: pa.DataType) -> int:
    """Return the bytes that a value of a fixed-width type takes."""
    primitive = numpy_type(dtype)
    return dtype.byte_width if primitive is None else primitive.itemsize


def _row_width(layout: tuple[PackedColumn, ...]) -> int:
    """Return the bytes of one packed row of fixed-width columns."""
    return sum(_byte_width(column.dtype) + column.nullable for column in layout)


def _concatenate_ranges(data: ByteArray, starts: IntArray, lengths: IntArray) -> ByteArray:
    """Concatenate the byte ranges ``starts[i]:starts[i] + lengths[i]``; `starts` ascends."""
    ends = starts + lengths
    if len(starts) == 0:
        return data[:0]
    if np.array_equal(ends[:-1], starts[1:]):
        gathered = data[starts[0] : ends[-1]]
    else:
        # A binary array whose odd values are the gaps; take its even values.
        edges = np.stack([starts, ends], axis=1).ravel()
        taken = binary_column(data, edges).take(pa.array(np.arange(0, len(edges) - 1, 2)))
        gathered = blob_bytes(taken)[: boundaries_of(taken)[-1]]
    return np.ascontiguousarray(gathered)


def _fixed_bytes(column: pa.Array) -> tuple[ByteArray, int]:
    """View a fixed-width column as bytes; return them and the width of a value."""
    width = _byte_width(column.type)
    if numpy_type(column.type) is not None:
        return np.ascontiguousarray(values_of(column)).view(np.uint8), width
    first = column.offset * width
    data = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    return data[first : first + len(column) * width], width


def _fixed_width_column(data: ByteArray, mask: BoolArray | None, dtype: pa.DataType) -> pa.Array:
    """Build a column of fixed-width type from the bytes of its values; `mask`: false where null."""
    primitive = numpy_type(dtype)
    if primitive is not None:
        return column_of(data.view(primitive), mask, dtype)
    count = len(data) // dtype.byte_width
    return pa.Array.from_buffers(dtype, count, [bitmap_of(mask), pa.py_buffer(data)])


def _variable_width_column(
    data: ByteArray, offsets: IntArray, mask: BoolArray | None, dtype: pa.DataType
) -> pa.Array:
    """Build a column of text or binary from bytes and offsets; `mask`: false where null."""
    wide = pa.types.is_large_string(dtype) or pa.types.is_large_binary(dtype)
    narrowed = offsets if wide else offsets.astype(np.int32)
    buffers = [bitmap_of(mask), pa.py_buffer(narrowed), pa.py_buffer(data)]
    return pa.Array.from_buffers(dtype, len(offsets) - 1, buffers)
