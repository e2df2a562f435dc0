"""Which Arrow types a key may have, and how users write the schema of a result.

A key column must have a type that Spark's ``xxhash64`` and our own agree on, and whose values can
be compared byte by byte; everything else may be read, aggregated and emitted but not keyed by.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Protocol, TypeAlias

import pyarrow as pa

from godwit.dataflow.naming import check_column_names, did_you_mean, listing, type_name
from godwit.model.errors import InvalidFlowError

__all__ = ["SchemaLike", "is_key_type", "key_type_remedy", "plain_schema", "to_schema"]


class _SparkField(Protocol):
    name: str
    dataType: _SparkType  # noqa: N815 - PySpark's own spelling


class _SparkType(Protocol):
    def simpleString(self) -> str:  # noqa: N802 - PySpark's own spelling
        ...


class _SparkStruct(Protocol):
    fields: list[_SparkField]


SchemaLike: TypeAlias = pa.Schema | Mapping[str, object] | str | _SparkStruct
"""An Arrow schema, a dict of column name → type, text like ``"symbol string, price double"``, or
a PySpark ``StructType``."""

_BY_NAME: dict[str, pa.DataType] = {
    **dict.fromkeys(("boolean", "bool"), pa.bool_()),
    **dict.fromkeys(("byte", "tinyint", "int8"), pa.int8()),
    **dict.fromkeys(("short", "smallint", "int16"), pa.int16()),
    **dict.fromkeys(("int", "integer", "int32"), pa.int32()),
    **dict.fromkeys(("long", "bigint", "int64"), pa.int64()),
    **dict.fromkeys(("float", "real", "float32"), pa.float32()),
    **dict.fromkeys(("double", "float64"), pa.float64()),
    **dict.fromkeys(("string", "str"), pa.string()),
    **dict.fromkeys(("binary", "bytes"), pa.binary()),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    **dict.fromkeys(("decimal", "dec", "numeric"), pa.decimal128(10, 0)),
}

_BY_CLASS: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.datetime: pa.timestamp("us", tz="UTC"),
}

_COLUMN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<name>[^\s`:]+))(?:\s*:\s*|\s+)(?P<type>.+)"
)
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_TEXT_LENGTH = re.compile(r"(?:varchar|char)\s*\(\s*\d+\s*\)")


def is_key_type(dtype: pa.DataType) -> bool:
    """Whether a key column may have the type `dtype`.

    Booleans, signed integers, floats, doubles, strings, binary, dates (days), timestamps
    (microseconds, as in Spark) and decimals of up to 38 digits may.
    """
    types = pa.types
    return bool(
        types.is_boolean(dtype)
        or types.is_signed_integer(dtype)
        or types.is_float32(dtype)
        or types.is_float64(dtype)
        or types.is_string(dtype)
        or types.is_large_string(dtype)
        or types.is_binary(dtype)
        or types.is_large_binary(dtype)
        or types.is_date32(dtype)
        or (types.is_timestamp(dtype) and dtype.unit == "us")
        or types.is_decimal128(dtype)
    )


def key_type_remedy(name: str, dtype: pa.DataType) -> str:
    """Say what to do about a key column `name` of a type that keys cannot have."""
    types = pa.types
    if types.is_struct(dtype):
        fields = [dtype.field(i).name for i in range(dtype.num_fields)]
        first = fields[0] if fields else "field"
        return (
            f"Add the fields you mean as columns of their own in a map before key_by (such as "
            f"{name}.{first}), and key by those."
        )
    if types.is_map(dtype) or types.is_nested(dtype):
        return (
            f"Turn {name!r} into one value in a map before key_by: explode it, or join its "
            "elements into a string."
        )
    if types.is_dictionary(dtype):
        return f"Cast {name!r} to {dtype.value_type} in a map before key_by."
    if types.is_duration(dtype) or types.is_interval(dtype):
        return f"Cast {name!r} to a number of seconds (bigint) in a map before key_by."
    if types.is_timestamp(dtype):
        return f"Cast {name!r} to timestamp[us] in a map before key_by."
    if types.is_unsigned_integer(dtype):
        return f"Cast {name!r} to a signed integer in a map before key_by."
    return (
        f"Cast {name!r} to a boolean, integer, float, string, binary, date, timestamp or decimal "
        "in a map before key_by."
    )


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Keep names and types only: every column may hold nulls, and there is no metadata."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def to_schema(value: SchemaLike, *, where: str) -> pa.Schema:
    """Read a schema in any of the ways that users write one.

    Parameters
    ----------
    value
        An Arrow schema; a dict of column name → type, where a type is an Arrow type, a Python
        class such as ``str`` or a name such as ``"string"``; text of Spark's DDL with primitive
        types, such as ``"symbol string, price decimal(10, 2)"``; a PySpark ``StructType``.
    where
        Subject of the messages, such as ``"The output of operator 'trades'"``.

    Raises
    ------
    InvalidFlowError
        If it cannot be read, has no columns, or a column has a reserved name or comes twice.

    Examples
    --------
    >>> to_schema("symbol string, price double", where="The output")
    symbol: string
    price: double
    """
    columns: list[tuple[str, object]]
    if isinstance(value, pa.Schema):
        columns = [(field.name, field.type) for field in value]
    elif isinstance(value, str):
        columns = _columns_of_text(value, where)
    elif isinstance(value, Mapping):
        columns = list(value.items())
    elif isinstance(fields := getattr(value, "fields", None), list):
        columns = [(field.name, field.dataType) for field in fields]
    else:
        raise InvalidFlowError(
            f"{where} must be a schema, but is a value of type {type_name(value)}.",
            remedy='Give a pyarrow.Schema, a dict such as {"symbol": "string"}, or text such as '
            '"symbol string, price double".',
        )
    if not columns:
        raise InvalidFlowError(
            f"{where} has no columns.",
            remedy='Name at least one, for example "symbol string, price double".',
        )
    for name, _ in columns:
        if not isinstance(name, str) or not name:
            raise InvalidFlowError(
                f"{where} has a column named {name!r}.", remedy="Use text for names of columns."
            )
    check_column_names([name for name, _ in columns], where)
    return pa.schema([pa.field(name, _to_type(name, dtype, where)) for name, dtype in columns])


def _columns_of_text(text: str, where: str) -> list[tuple[str, object]]:
    columns: list[tuple[str, object]] = []
    for part in _split_at_commas(text) if text.strip() else ():
        match = _COLUMN.fullmatch(part.strip())
        if match is None:
            raise InvalidFlowError(
                f"{where} cannot be read at {part.strip()!r}.",
                remedy='Write names and types in pairs, as in "symbol string, price double".',
                text=text,
            )
        name = match["quoted"].replace("``", "`") if match["quoted"] else match["name"]
        columns.append((name, match["type"]))
    return columns


def _split_at_commas(text: str) -> list[str]:
    """Split at the commas that are neither in brackets nor between backticks."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == "`"
        if not quoted:
            depth += (character in "(<") - (character in ")>")
        if character == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _to_type(name: str, value: object, where: str) -> pa.DataType:
    if isinstance(value, pa.DataType):
        return value
    if isinstance(value, type) and value in _BY_CLASS:
        return _BY_CLASS[value]
    if isinstance(value, str):
        text = value.strip()
    elif hasattr(value, "simpleString") and not isinstance(value, type):
        text = str(value.simpleString())
    else:
        raise _unknown_type(where, name, type_name(value))
    return _type_of_text(name, text, where)


def _type_of_text(name: str, text: str, where: str) -> pa.DataType:
    key = text.lower()
    if key in _BY_NAME:
        return _BY_NAME[key]
    if _TEXT_LENGTH.fullmatch(key):
        return pa.string()
    if decimal := _DECIMAL.fullmatch(key):
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        if not 1 <= precision <= 38 or scale > precision:
            raise InvalidFlowError(
                f"{where} gives column {name!r} the type {text!r}.",
                remedy="A decimal has 1 to 38 digits, and no more of them after the point.",
                column=name,
            )
        return pa.decimal128(precision, scale)
    raise _unknown_type(where, name, text)


def _unknown_type(where: str, name: str, text: str) -> InvalidFlowError:
    return InvalidFlowError(
        f"{where} gives column {name!r} the type {text!r}, which is not known.",
        remedy=f"{did_you_mean(text, list(_BY_NAME))}Types are {listing(list(_BY_NAME), 40)}; for "
        "any other, give an Arrow type, as in {" + repr(name) + ": pa.list_(pa.string())}.",
        column=name,
    )
