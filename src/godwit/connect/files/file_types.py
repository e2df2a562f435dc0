"""Columns of files as columns of a source's schema: which types are converted or refused.

A file may hold the values of a column in a layout of its own: as a dictionary, as runs, as a view,
as the storage of an extension type.  Such layouts are made plain at any depth, with or without a
declared type.
"""

from __future__ import annotations

import uuid
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import (
    column_of,
    convert_leaves,
    has_leaf,
    mask_of,
    values_of,
    with_leaves,
)
from godwit.columns.types import is_binary, is_list, is_text
from godwit.model.errors import SourceError

_UNITS: Final = ("s", "ms", "us", "ns")
_UUID, _BOOL8 = "arrow.uuid", "arrow.bool8"
_DIGITS_OF_INTEGER: Final = {8: 3, 16: 5, 32: 10, 64: 20}


def widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every value of type `source` is a value of type `target`.

    Times of nanoseconds count as of coarser units: most writers choose nanoseconds without a need,
    and the digits below a column's unit are cut, as those of times in text are.
    """
    types = pa.types
    if source.equals(target) or types.is_null(source):
        return True
    if types.is_dictionary(source) or types.is_run_end_encoded(source):
        return widens(source.value_type, target)
    if isinstance(source, pa.BaseExtensionType):
        if source.extension_name == _UUID and is_text(target):
            return True
        is_bool = source.extension_name == _BOOL8
        return widens(pa.bool_() if is_bool else source.storage_type, target)
    if types.is_integer(source):
        return _integer_widens(source, target)
    if types.is_floating(source):
        return bool(types.is_floating(target) and source.bit_width <= target.bit_width)
    if types.is_decimal(source):
        return bool(
            types.is_decimal(target)
            and target.scale >= source.scale
            and target.precision - target.scale >= source.precision - source.scale
        )
    if types.is_timestamp(source):
        return bool(
            types.is_timestamp(target)
            and (source.tz is None) == (target.tz is None)
            and (_UNITS.index(source.unit) <= _UNITS.index(target.unit) or source.unit == "ns")
        )
    for is_type in (is_text, is_binary, types.is_date, types.is_time, types.is_duration):
        if is_type(source):
            return bool(is_type(target))
    if types.is_struct(source):
        if not types.is_struct(target):
            return False
        fields = {target.field(n).name: target.field(n).type for n in range(target.num_fields)}
        inner = [source.field(n) for n in range(source.num_fields)]
        return all(f.name in fields and widens(f.type, fields[f.name]) for f in inner)
    if types.is_map(source):
        return bool(
            types.is_map(target)
            and widens(source.key_type, target.key_type)
            and widens(source.item_type, target.item_type)
        )
    if is_list(source):
        return bool(is_list(target) and widens(source.value_type, target.value_type))
    return False


def _integer_widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether `target` holds every value of an integer type exactly."""
    types = pa.types
    if types.is_integer(target):
        if types.is_signed_integer(source) == types.is_signed_integer(target):
            return bool(source.bit_width <= target.bit_width)
        return bool(types.is_signed_integer(target) and source.bit_width < target.bit_width)
    if types.is_floating(target):
        return bool(source.bit_width < {16: 11, 32: 24, 64: 53}[target.bit_width])
    if types.is_decimal(target):
        return bool(target.precision - target.scale >= _DIGITS_OF_INTEGER[source.bit_width])
    return False


def cast_column(column: pa.Array, field: pa.Field, file: str) -> pa.Array:
    """Return a column of a file in the schema's type; raise `SourceError` if a value is lost."""
    if column.type.equals(field.type):
        return column
    if not widens(column.type, field.type):
        raise _type_error(column, field, file, _reason_of_types(column.type, field.type))
    try:
        return convert_leaves(column, field.type, _cast_leaf)
    except (pa.ArrowException, ValueError) as error:
        raise _type_error(column, field, file, str(error).splitlines()[0]) from error


def _cast_leaf(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return an array of any layout as an array of a plain type."""
    types, source = pa.types, array.type
    if source.equals(target):
        return array
    if types.is_dictionary(source):
        return convert_leaves(array.dictionary, target, _cast_leaf).take(array.indices)
    if types.is_run_end_encoded(source):
        ends = array.run_ends.to_numpy()
        runs = np.searchsorted(ends, np.arange(array.offset, array.offset + len(array)), "right")
        return convert_leaves(array.values, target, _cast_leaf).take(pa.array(runs))
    if isinstance(source, pa.BaseExtensionType):
        if source.extension_name == _UUID and is_text(target):
            values = array.storage.to_pylist()
            texts = [None if value is None else str(uuid.UUID(bytes=value)) for value in values]
            return pa.array(texts, target)
        if source.extension_name == _BOOL8:
            return pc.not_equal(array.storage, 0).cast(target)
        return convert_leaves(array.storage, target, _cast_leaf)
    if types.is_temporal(source) and types.is_temporal(target):
        return _cast_times(array, target)
    return array.cast(target)


def _cast_times(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert times to another unit; nanoseconds are truncated, other lost digits refused."""
    source, types = array.type, pa.types
    if types.is_date(source) or source.unit != "ns" or target.unit == "ns":
        return array.cast(target)
    step = 1000 ** (3 - _UNITS.index(target.unit))
    values = values_of(array)
    if types.is_duration(source):  # its digits are those of its absolute value
        cut = np.sign(values) * (np.abs(values) // step)
    else:
        cut = values // step
    return column_of(cut, mask_of(array), target)


def _reason_of_types(source: pa.DataType, target: pa.DataType) -> str:
    """Return why values of type `source` are not read as type `target`."""
    types = pa.types
    if is_list(source) and is_list(target):
        return _reason_of_types(source.value_type, target.value_type)
    if types.is_map(source) and types.is_map(target):
        keys, items = (source.key_type, target.key_type), (source.item_type, target.item_type)
        return _reason_of_types(*(items if widens(*keys) else keys))
    if types.is_struct(source) and types.is_struct(target):
        fields = {target.field(n).name: target.field(n).type for n in range(target.num_fields)}
        for field in (source.field(n) for n in range(source.num_fields)):
            if field.name not in fields:
                return f"the struct of the schema has no field {field.name!r}"
            if not widens(field.type, fields[field.name]):
                return _reason_of_types(field.type, fields[field.name])
    if types.is_timestamp(source) and types.is_timestamp(target):
        if source.tz is None and target.tz is not None:
            return "its timestamps have no time zone, so declare it as timestamp_ntz"
        if source.tz is not None and target.tz is None:
            return "its timestamps have a time zone, so declare it as timestamp"
    numbers = (types.is_integer, types.is_floating, types.is_decimal, types.is_timestamp)
    if all(any(is_type(dtype) for is_type in numbers) for dtype in (source, target)):
        return "some values of that type do not fit"
    return f"{source} is not converted to {target}"


def _type_error(column: pa.Array, field: pa.Field, file: str, reason: str) -> SourceError:
    """Build the error that a file's column cannot be cast to the schema's type."""
    return SourceError(
        f"Column {field.name!r} of the file {file!r} is of type {column.type}, but of type "
        f"{field.type} in the schema: {reason.removesuffix('.')}.",
        remedy="In schema=, give a type that fits this file and those read so far (without "
        "schema=, the first file decides the types), or move the file out of the directory.",
        file=file,
        column=field.name,
    )


def common_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a source from the schema of its first file.

    At any depth, views, runs, dictionaries and extension types become the types of their values,
    times and intervals get microseconds, dates days, and columns without a type are text.
    """
    return pa.schema([pa.field(f.name, with_leaves(f.type, _common_leaf)) for f in schema])


def with_types_of(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return a schema in which columns without values have their types from another file."""
    types = dict(zip(other.names, other.types, strict=True))
    return pa.schema(
        [
            f.with_type(types[f.name])
            if f.name in types
            and has_leaf(f.type, pa.types.is_null)
            and widens(f.type, types[f.name])
            else f
            for f in schema
        ]
    )


def without_layouts(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the types of the values for views, runs and dictionaries."""
    return pa.schema([pa.field(f.name, with_leaves(f.type, _plain_leaf)) for f in schema])


def _common_leaf(dtype: pa.DataType) -> pa.DataType:
    """Return the type of a file's leaf in a source's schema."""
    types, plain = pa.types, _plain_leaf(dtype)
    if not plain.equals(dtype):
        return with_leaves(plain, _common_leaf)
    if types.is_null(dtype):
        return pa.string()
    if types.is_timestamp(dtype):
        return pa.timestamp("us", tz=dtype.tz)
    if types.is_date(dtype):
        return pa.date32()
    if types.is_time(dtype):
        return pa.time64("us")
    if types.is_duration(dtype):
        return pa.duration("us")
    if types.is_decimal(dtype) and dtype.precision <= 38:
        return pa.decimal128(dtype.precision, dtype.scale)
    return dtype


def _plain_leaf(dtype: pa.DataType) -> pa.DataType:
    """Return the type of the values of a leaf, without the layout in which they are stored."""
    types = pa.types
    if isinstance(dtype, pa.BaseExtensionType):
        known: dict[str, pa.DataType] = {_UUID: pa.string(), _BOOL8: pa.bool_()}
        return known.get(dtype.extension_name) or with_leaves(dtype.storage_type, _plain_leaf)
    if types.is_dictionary(dtype) or types.is_run_end_encoded(dtype):
        return with_leaves(dtype.value_type, _plain_leaf)
    if types.is_string_view(dtype):
        return pa.string()
    return pa.binary() if types.is_binary_view(dtype) else dtype
