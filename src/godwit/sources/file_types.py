"""Columns of files, as columns of a source's schema: what is widened, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.types import is_binary, is_list, is_text
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS: Final = ("s", "ms", "us", "ns")
_DIGITS_OF_INTEGER: Final = {8: 3, 16: 5, 32: 10, 64: 20}


def widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every value of type `source` is a value of type `target`.

    Timestamps of nanoseconds count as of microseconds: most writers choose nanoseconds without a
    need. A value that has more digits is refused when it is cast.
    """
    types = pa.types
    if source.equals(target) or types.is_null(source):
        return True
    if types.is_dictionary(source):
        return widens(source.value_type, target)
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
    for is_one in (is_text, is_binary, types.is_date, types.is_time, types.is_duration):
        if is_one(source):
            return bool(is_one(target))
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
        raise _type_error(column, field, file, "values of that type may not fit")
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise _type_error(column, field, file, str(error).splitlines()[0]) from error


def _type_error(column: pa.Array, field: pa.Field, file: str, reason: str) -> SourceError:
    """Build the error that a file's column cannot be cast to the schema's type."""
    return SourceError(
        f"Column {field.name!r} of the file {file!r} is of type {column.type}, and of type "
        f"{field.type} in the schema: {reason.removesuffix('.')}.",
        remedy="Give a wider type for it (schema=), which also holds for the files read so far, or "
        "move the file out of the directory.",
        file=file,
        column=field.name,
    )


def parse_instants(column: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return text parsed as timestamps or dates; times without an offset are UTC."""
    marked = pc.match_substring_regex(column, r"(?:[Zz]|[+-]\d\d:?\d\d)\s*$")
    none = pa.scalar(None, column.type)
    instants = pc.if_else(marked, column, none).cast(dtype)
    return pc.coalesce(
        instants, pc.if_else(marked, none, column).cast(pa.timestamp(dtype.unit)).cast(dtype)
    )


def common_schema(schema: pa.Schema, instants: Sequence[str] = ()) -> pa.Schema:
    """Return the schema of a source from the schema of its first file.

    Dictionaries become their values, timestamps get microseconds, and columns without a type are
    text. `instants`: columns of timestamps that are in UTC though the file does not say so.
    """
    fields = []
    for field in schema:
        dtype = field.type
        if pa.types.is_dictionary(dtype):
            dtype = dtype.value_type
        if pa.types.is_timestamp(dtype):
            dtype = pa.timestamp("us", tz="UTC" if field.name in instants else dtype.tz)
        elif pa.types.is_null(dtype):
            dtype = pa.string()
        fields.append(pa.field(field.name, dtype))
    return pa.schema(fields)
