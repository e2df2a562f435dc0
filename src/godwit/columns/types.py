"""Arrow types that a key may have, and the schema of a result as users write it.

A key column must have a type that Spark's ``xxhash64`` and our own agree on, and whose values can
be compared byte by byte; everything else may be read, aggregated and emitted but not keyed by.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from godwit.columns.ddl import columns_of_text, type_of_text
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import check_column_names, listing, type_name

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

_BY_CLASS: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.datetime: pa.timestamp("us", tz="UTC"),
}


def is_key_type(dtype: pa.DataType) -> bool:
    """Return whether a key column may have the type `dtype`.

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
    """Return the remedy for a key column `name` of a type that keys cannot have."""
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

    Raises `InvalidFlowError` if it cannot be read, has no columns, or a column has a reserved name
    or comes twice.

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
        columns = list(columns_of_text(value, where))
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


def _to_type(name: str, value: object, where: str) -> pa.DataType:
    if isinstance(value, pa.DataType):
        return value
    if isinstance(value, type) and value in _BY_CLASS:
        return _BY_CLASS[value]
    if isinstance(value, str):
        return type_of_text(name, value, where)
    if hasattr(value, "simpleString") and not isinstance(value, type):
        return _of_spark(name, value, where)
    raise InvalidFlowError(
        f"{where} gives column {name!r} the type {type_name(value)!r}, which is not known.",
        remedy="Give an Arrow type, a name such as 'string', an instance of a type of PySpark's, "
        f"or one of the classes {listing([c.__name__ for c in _BY_CLASS])}.",
        column=name,
    )


def _of_spark(name: str, value: Any, where: str) -> pa.DataType:
    """Arrow type of a type of PySpark's; names of fields need no quotes this way."""
    if hasattr(value, "elementType"):
        return pa.list_(_of_spark(name, value.elementType, where))
    if hasattr(value, "keyType"):
        key, item = (_of_spark(name, of, where) for of in (value.keyType, value.valueType))
        return pa.map_(key, item)
    if isinstance(fields := getattr(value, "fields", None), list):
        return pa.struct(
            [(f.name, _of_spark(f"{name}.{f.name}", f.dataType, where)) for f in fields]
        )
    return type_of_text(name, str(value.simpleString()), where)
