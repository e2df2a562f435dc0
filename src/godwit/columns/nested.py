"""Nested columns, converted value by value: lists, structs and maps are kept, their leaves are not.

A leaf is a value of any type but list, struct and map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.types import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
