"""Arrow columns as NumPy arrays and back, without a copy where the layout allows it.

Arrow keeps nulls in a bitmap beside the values; the functions here split a column into its values
(undefined where null) and a mask (``None`` where nothing is null), which is what NumPy's scatter
and gather operations want, and join the two again.

Nested columns are converted leaf by leaf (`convert_leaves`): lists, structs and maps are kept, and
a leaf is a value of any other type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.types import is_list
from godwit.store.columns import take_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


def decode_dictionary(column: pa.DictionaryArray, dtype: pa.DataType) -> pa.Array:
    """Return the values of a dictionary column as a type."""
    if column.null_count or column.dictionary.null_count or column.dictionary.type != dtype:
        return column.cast(dtype)
    return take_values(column.dictionary, values_of(column.indices).astype(np.int64))


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


def with_leaves(dtype: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with each of its leaves replaced; views of lists become lists.

    Examples
    --------
    >>> with_leaves(pa.list_(pa.date32()), lambda dtype: pa.string())
    ListType(list<item: string>)
    """
    types = pa.types

    def inner(field: pa.Field) -> pa.Field:
        """Return a field of the type with its leaves replaced."""
        return field.with_type(with_leaves(field.type, leaf))

    if types.is_struct(dtype):
        return pa.struct([inner(dtype.field(n)) for n in range(dtype.num_fields)])
    if types.is_map(dtype):
        return pa.map_(inner(dtype.key_field), inner(dtype.item_field))
    if types.is_fixed_size_list(dtype):
        return pa.list_(inner(dtype.value_field), dtype.list_size)
    if types.is_large_list(dtype) or types.is_large_list_view(dtype):
        return pa.large_list(inner(dtype.value_field))
    return pa.list_(inner(dtype.value_field)) if is_list(dtype) else leaf(dtype)


def has_leaf(dtype: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type is, or contains, a leaf for which a test is true."""
    if pa.types.is_map(dtype):
        return has_leaf(dtype.key_type, test) or has_leaf(dtype.item_type, test)
    if pa.types.is_struct(dtype) or is_list(dtype):
        return any(has_leaf(dtype.field(n).type, test) for n in range(dtype.num_fields))
    return test(dtype)


def leaves_of(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the leaves of a column, which is a leaf itself or has lists and structs of them."""
    if pa.types.is_struct(array.type):
        for part in array.flatten():  # null where the struct is
            yield from leaves_of(part)
    elif is_list(array.type):
        yield from leaves_of(array.flatten())
    else:
        yield array


def convert_leaves(
    array: pa.Array, target: pa.DataType, leaf: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array:
    """Return an array in a type of the same nesting; `leaf` converts an array of leaves.

    Structs are matched by the names of their fields; a field that a value lacks is null.
    Every value but a list, struct or map on both sides is a leaf.
    """
    types, source = pa.types, array.type
    if not len(array):  # whose buffers need not have even a first offset
        return pa.array([], target)
    if types.is_struct(source) and types.is_struct(target):
        names = [source.field(n).name for n in range(source.num_fields)]
        parts = dict(zip(names, array.flatten(), strict=True))  # null where the struct is
        fields = [target.field(n) for n in range(target.num_fields)]
        columns = [
            convert_leaves(parts[f.name], f.type, leaf)
            if f.name in parts
            else pa.nulls(len(array), f.type)
            for f in fields
        ]
        mask = array.is_null() if array.null_count else None
        if not fields:
            return pa.array([{}] * len(array), target, mask=mask and mask.to_numpy(False))
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)
    if types.is_map(source) and types.is_map(target):
        starts = array.offsets
        inner = slice(starts[0].as_py(), starts[-1].as_py())
        keys = convert_leaves(array.keys[inner], target.key_type, leaf)
        items = convert_leaves(array.items[inner], target.item_type, leaf)
        offsets = pc.subtract(starts, starts[0])
        mask = array.is_null() if array.null_count else None
        return pa.MapArray.from_arrays(_with_nulls(offsets, mask), keys, items, target)
    if is_list(source) and is_list(target):
        return _convert_list(array, target, leaf)
    return leaf(array, target)


def _convert_list(
    array: pa.Array, target: pa.DataType, leaf: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array:
    """Return lists, of any layout, as lists of another layout and type."""
    elements = convert_leaves(array.flatten(), target.value_type, leaf)
    mask = array.is_null() if array.null_count else None
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if pa.types.is_large_list(target):
        offsets = _with_nulls(pa.array(ends, pa.int64()), mask)
        return pa.LargeListArray.from_arrays(offsets, elements, target)
    plain = target if pa.types.is_list(target) else pa.list_(target.value_field)
    lists = pa.ListArray.from_arrays(_with_nulls(pa.array(ends, pa.int32()), mask), elements, plain)
    return lists if plain is target else lists.cast(target)


def _with_nulls(offsets: pa.Array, mask: pa.Array | None) -> pa.Array:
    """Return offsets that are null where `mask` is true, which is how Arrow is given nulls."""
    if mask is None:
        return offsets
    missing = pa.concat_arrays([mask, pa.array([False])])
    return pc.if_else(missing, pa.scalar(None, offsets.type), offsets)
