"""Values of nested types encoded as binary values, which state can hold.

`encoded` packs structs, arrays and maps, each value into one binary value, and `decoded` unpacks
them.  Equal values have equal bytes if they are encoded with ``canonical``.  `order_keys` gives
binary values that are ordered, byte by byte, as Spark orders the values; they are not decoded.

A struct is a packed row of its fields, an array has a packed row for each of its elements, and a
map is an array of structs.  A nested part of a value is encoded first, so nothing loops over rows.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import column_of, mask_of, numpy_type, values_of
from godwit.columns.hashing import canonical_floats
from godwit.library.aggregates.packing import PackedColumn, pack, unpack
from godwit.operators.ordering import descending_ranks, order_by
from godwit.store.columns import can_be_state, is_variable_width

IntArray = npt.NDArray[np.int64]


def is_nested(dtype: pa.DataType) -> bool:
    """Return whether values of a type are encoded: structs, arrays and maps."""
    return bool(pa.types.is_struct(dtype) or pa.types.is_map(dtype) or pa.types.is_list(dtype))


def can_be_encoded(dtype: pa.DataType) -> bool:
    """Return whether values of a nested type can be encoded, with all their parts."""
    if is_nested(dtype):
        parts = _packed_fields(dtype)
        return bool(parts) and all(can_be_encoded(part.type) for part in parts)
    return can_be_state(dtype) or pa.types.is_null(dtype)


def encoded(values: pa.Array, *, canonical: bool = False) -> pa.Array:
    """Encode values of a nested type as large binaries; null where they are null.

    `canonical`: equal values have equal bytes, so zeros have no sign, and the entries of a map are
    in the order of their keys.
    """
    dtype = values.type
    starts, parts = _unpacked_rows(values)
    if canonical and pa.types.is_map(dtype):
        order = _map_order_by_key(starts, parts[0])
        parts = [part.take(pa.array(order)) for part in parts]
    columns: list[pa.Array] = []
    for part in parts:
        columns.append(part.is_valid())
        if not pa.types.is_null(part.type):
            columns.append(_zeros_for_nulls(part, canonical=canonical))
    packed = pack(starts, columns, _packed_layout(dtype))
    return pc.if_else(values.is_valid(), packed, pa.scalar(None, pa.large_binary()))


def decoded(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Decode values of a nested type; the inverse of `encoded`."""
    valid = mask_of(values)
    missing = None if valid is None else pa.array(~valid)
    if valid is not None:
        values = pc.if_else(pa.array(valid), values, _binary_of_empty(dtype))
    starts, columns = unpack(values, _packed_layout(dtype))
    parts, position = [], 0
    for part in _packed_fields(dtype):
        has_value = columns[position]
        position += 1
        if pa.types.is_null(part.type):
            parts.append(pa.nulls(len(has_value)))
            continue
        column = pc.if_else(has_value, columns[position], pa.scalar(None, columns[position].type))
        parts.append(decoded(column, part.type) if is_nested(part.type) else column)
        position += 1
    if pa.types.is_struct(dtype):
        return pa.StructArray.from_arrays(parts, fields=list(dtype), mask=missing)
    offsets = pa.array(starts.astype(np.int32))
    if pa.types.is_map(dtype):
        return pa.MapArray.from_arrays(offsets, *parts, type=dtype, mask=missing)
    return pa.ListArray.from_arrays(offsets, parts[0], type=dtype, mask=missing)


def order_keys(values: pa.Array) -> pa.Array:
    """Return binaries whose order is Spark's of these values; null where they are null.

    NaN is the largest number, and null is less than any value of a field or an element.
    """
    keys = _order_keys(values)
    return pc.if_else(values.is_valid(), keys, pa.scalar(None, pa.binary()))


def _order_keys(values: pa.Array) -> pa.Array:
    """Return the binaries of `order_keys`; arbitrary where values are null."""
    dtype, length = values.type, len(values)
    if pa.types.is_struct(dtype):
        parts = [_null_marked_keys(part) for part in _unpacked_rows(values)[1]]
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    if pa.types.is_list(dtype):
        starts, (elements,) = _unpacked_rows(values)
        offsets = pa.array(starts.astype(np.int32))
        element_keys = pa.ListArray.from_arrays(offsets, _null_marked_keys(elements))
        joined = pc.binary_join(element_keys, pa.scalar(b"", pa.binary()))
        end = pa.scalar(b"\x00", pa.binary())
        return pc.binary_join_element_wise(joined, end, pa.scalar(b"", pa.binary()))
    if pa.types.is_null(dtype):
        return pa.array([b""] * length, pa.binary())
    if is_variable_width(dtype):
        binaries = values.cast(pa.binary()).fill_null(b"")
        escaped = pc.replace_substring(binaries, b"\x00", b"\x00\xff")
        end = pa.scalar(b"\x00\x00", pa.binary())
        return pc.binary_join_element_wise(escaped, end, pa.scalar(b"", pa.binary()))
    return _fixed_keys(values)


def _fixed_keys(values: pa.Array) -> pa.Array:
    """Return values of fixed width as big-endian bytes in the same order."""
    filled = _zeros_for_nulls(values, canonical=True)
    if numpy_type(filled.type) is None:  # decimals, whose words have the sign in the last byte
        width = filled.type.byte_width
        buffer = filled.buffers()[1] or b""
        cells = np.frombuffer(buffer, np.uint8)
        cells = cells[filled.offset * width : (filled.offset + len(filled)) * width]
        cells = cells.reshape(-1, width)[:, ::-1].copy()
        cells[:, 0] ^= 0x80
    else:
        numbers = values_of(filled)
        if numbers.dtype.kind == "b":
            numbers = numbers.view(np.uint8)
        width = numbers.dtype.itemsize
        bits = numbers.view(f"u{width}")
        sign_bit = bits.dtype.type(1 << (8 * width - 1))
        if numbers.dtype.kind == "f":
            bits = np.where(bits & sign_bit != 0, ~bits, bits | sign_bit)
        elif numbers.dtype.kind == "i":
            bits = bits ^ sign_bit
        cells = bits.astype(f">u{width}").view(np.uint8)
    data = pa.py_buffer(np.ascontiguousarray(cells))
    fixed = pa.Array.from_buffers(pa.binary(width), len(filled), [None, data])
    return fixed.cast(pa.binary())


def _null_marked_keys(part: pa.Array) -> pa.Array:
    """Return the order keys of a field or an element, after a byte that marks nulls."""
    keys = _order_keys(part)
    first = pa.scalar(b"\x02", pa.binary())
    marked = pc.binary_join_element_wise(first, keys, pa.scalar(b"", pa.binary()))
    return pc.if_else(part.is_valid(), marked, pa.scalar(b"\x01", pa.binary()))


def _unpacked_rows(values: pa.Array) -> tuple[IntArray, list[pa.Array]]:
    """Return where each value's packed rows start, and the columns of these rows."""
    dtype, length = values.type, len(values)
    if pa.types.is_struct(dtype):
        return np.arange(length + 1), list(values.flatten())
    valid = mask_of(values)
    if pa.types.is_map(dtype):
        item = pa.struct([pa.field("key", dtype.key_type), pa.field("value", dtype.item_type)])
        ends = values.offsets.to_numpy().astype(np.int64)
        entries = pa.StructArray.from_arrays([values.keys, values.items], fields=list(item))
        sizes = np.diff(ends)
        if valid is not None:
            sizes = np.where(valid, sizes, 0)
        starts = np.append(0, np.cumsum(sizes))
        rows = np.arange(starts[-1]) + np.repeat(ends[:-1] - starts[:-1], sizes)
        return starts, list(entries.take(pa.array(rows)).flatten())
    sizes = values_of(pc.list_value_length(values).fill_null(0)).astype(np.int64)
    return np.append(0, np.cumsum(sizes)), [values.flatten()]


def _packed_fields(dtype: pa.DataType) -> list[pa.Field]:
    """Return the columns of the packed rows of a nested type."""
    if pa.types.is_struct(dtype):
        return list(dtype)
    if pa.types.is_map(dtype):
        return [dtype.key_field, dtype.item_field]
    return [dtype.value_field]


def _packed_layout(dtype: pa.DataType) -> tuple[PackedColumn, ...]:
    """Return the layout of the packed rows: for each part, a validity flag and its value."""
    layout: list[PackedColumn] = []
    for part in _packed_fields(dtype):
        layout.append(PackedColumn(dtype=pa.bool_(), nullable=False))
        if not pa.types.is_null(part.type):
            stored = pa.large_binary() if is_nested(part.type) else part.type
            layout.append(PackedColumn(dtype=stored, nullable=False))
    return tuple(layout)


def _zeros_for_nulls(part: pa.Array, *, canonical: bool) -> pa.Array:
    """Return a part without nulls: zeros, or empty, where it has none."""
    if is_nested(part.type):
        return encoded(part, canonical=canonical).fill_null(b"")
    if canonical and pa.types.is_floating(part.type):
        part = canonical_floats(part)
    mask = mask_of(part)
    if mask is None:
        return part
    if is_variable_width(part.type):
        return part.fill_null(b"" if pa.types.is_binary(part.type) else "")
    if numpy_type(part.type) is None:
        return pc.if_else(part.is_valid(), part, _zero_of_type(part.type))
    values = values_of(part)
    return column_of(np.where(mask, values, values.dtype.type(0)), None, part.type)


def _zero_of_type(dtype: pa.DataType) -> pa.Scalar:
    """Return the zero of decimals or fixed binaries."""
    if pa.types.is_decimal(dtype):
        return pa.scalar(Decimal(0), dtype)
    return pa.scalar(b"\x00" * dtype.byte_width, dtype)


def _binary_of_empty(dtype: pa.DataType) -> pa.Scalar:
    """Return the binary of an empty array or map, or of a struct of nulls."""
    empty: Any = {field.name: None for field in dtype} if pa.types.is_struct(dtype) else []
    return encoded(pa.array([empty], dtype))[0]


def _map_order_by_key(starts: IntArray, keys: pa.Array) -> IntArray:
    """Return the order of the entries of maps by their keys."""
    ranks = descending_ranks(order_keys(keys))
    maps = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return order_by(maps, ranks)
