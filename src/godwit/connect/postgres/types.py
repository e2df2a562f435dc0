"""PostgreSQL's types as Arrow types, and its text form of values as Arrow columns.

Every type can be read as text, which is exact. A type that Arrow has is read as that by default. A
value that the Arrow type lacks is refused, so its column is to be read as text: an infinite date,
NaN in a decimal, a year before 1, an array of two dimensions. Text is that of `SETTINGS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.types import is_binary, is_list, is_text
from godwit.connect.formats.text_values import from_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.connect.postgres.connection import Connection

SETTINGS: Final[Mapping[str, str]] = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}
"""Session settings that determine the text format of values."""

_TYPES: Final[Mapping[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_MAX_DIGITS: Final = 38  # of a decimal128
_ELEMENT: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}"]+)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class PostgresValueType:
    """Type of a column's values, with domains resolved to their base."""

    name: str  # ``pg_type.typname``
    modifier: int  # -1: none
    element: PostgresValueType | None = None  # of an array

    @property
    def natural(self) -> pa.DataType:
        """Arrow type that values are read as by default."""
        if self.element is not None:
            return pa.list_(self.element.natural)
        if self.name == "numeric" and self.modifier >= 0:
            precision = (self.modifier - 4) >> 16 & 0xFFFF
            scale = (((self.modifier - 4) & 0x7FF) ^ 0x400) - 0x400  # 11 bits with a sign
            digits = max(precision, scale, precision - min(scale, 0))
            if digits <= _MAX_DIGITS:
                return pa.decimal128(digits, max(scale, 0))
        return _TYPES.get(self.name, pa.string())

    def can_be(self, dtype: pa.DataType) -> bool:
        """Return whether values can be read as an Arrow type, exactly or with an error each."""
        if is_text(dtype) or dtype == self.natural:
            return True
        if self.element is not None:
            return is_list(dtype) and self.element.can_be(dtype.value_type)
        types, natural = pa.types, self.natural
        if types.is_signed_integer(natural) and types.is_signed_integer(dtype):
            return bool(dtype.bit_width >= natural.bit_width)
        if self.name == "numeric" or types.is_integer(natural):
            return bool(types.is_decimal128(dtype) or types.is_float64(dtype))
        if types.is_float32(natural):
            return bool(types.is_float64(dtype))
        if types.is_timestamp(natural) and types.is_timestamp(dtype):
            same = (natural.tz is None) == (dtype.tz is None)
            return same and dtype.unit in {"us", "ns"}
        return is_binary(natural) and is_binary(dtype)


def read_types(
    connection: Connection, asked: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], PostgresValueType]:
    """Return (object id, modifier) of types → the type, from the server's catalogue."""
    asked = list(asked)
    rows = connection.execute(
        """
        WITH RECURSIVE t AS (
            SELECT oid, typname, typtype, typarray, typdelim, typbasetype, typelem, typtypmod
            FROM pg_type WHERE oid = ANY (%s::oid[])
            UNION
            SELECT p.oid, p.typname, p.typtype, p.typarray, p.typdelim, p.typbasetype, p.typelem,
                   p.typtypmod
            FROM pg_type p JOIN t ON p.oid IN (t.typbasetype, t.typelem)
        )
        SELECT t.oid::bigint, t.typname, t.typtype, t.typbasetype::bigint, t.typelem::bigint,
               e.typarray = t.oid AND e.typdelim = ',', t.typtypmod
        FROM t LEFT JOIN t e ON e.oid = t.typelem
        """,
        [[oid for oid, _ in asked]],
    ).fetchall()
    catalogue = {row[0]: row for row in rows}

    def resolved(oid: int, modifier: int) -> PostgresValueType:
        if oid not in catalogue:  # dropped since
            return PostgresValueType("unknown", -1)
        _, name, kind, base, element, is_array, domain_modifier = catalogue[oid]
        if kind == "d":
            return resolved(base, domain_modifier if modifier < 0 else modifier)
        if is_array:  # in the text form of arrays, unlike box[] and int2vector
            return PostgresValueType(name, modifier, resolved(element, modifier))
        return PostgresValueType(name, modifier)

    return {(oid, modifier): resolved(oid, modifier) for oid, modifier in asked}


def column_from_texts(texts: pa.Array, field: pa.Field) -> pa.Array:
    """Return values in PostgreSQL's text form (a string array) as a column of `field`'s type.

    Raises ValueError, with the column and the text, for a value that the type does not have.
    """
    dtype = field.type
    if is_text(dtype):
        return texts.cast(dtype)
    if pa.types.is_boolean(dtype):
        return pc.equal(texts, "t")
    if is_binary(dtype):
        values = [None if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()]
        return pa.array(values, dtype)
    if is_list(dtype):
        return _array_texts_to_lists(texts, field)
    return from_text(texts, field)


def _array_texts_to_lists(texts: pa.Array, field: pa.Field) -> pa.Array:
    """Return arrays such as ``{1,NULL,3}`` as lists."""
    element = field.type.value_field.with_name(field.name)
    if pc.any(pc.match_substring_regex(texts, r'["\\\[]|^.+\{')).as_py():
        rows = [_array_elements(text, field.name) for text in texts.to_pylist()]
        lists = pa.array(rows, pa.list_(pa.string()))
        values = lists.flatten()
    else:
        bare = pc.utf8_slice_codeunits(texts, 1, -1)
        split = pc.split_pattern(bare, ",")
        lists = pc.if_else(pc.equal(bare, ""), pa.scalar([], split.type), split)
        values = lists.flatten()
        values = pc.if_else(pc.equal(values, "NULL"), pa.scalar(None, values.type), values)
    lengths = pc.list_value_length(lists).fill_null(0)
    ends = pc.cumulative_sum(lengths).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    column = pa.ListArray.from_arrays(offsets, column_from_texts(values, element))
    return pc.if_else(lists.is_valid(), column, pa.scalar(None, column.type)).cast(field.type)


def _array_elements(text: str | None, name: str) -> list[str | None] | None:
    """Return the elements of an array's text, without quotes."""
    if text is None:
        return None
    inner = text[1:-1]
    elements: list[str | None] = []
    if not text.startswith("{") or _ELEMENT.sub("", inner).strip(",") != "":
        msg = (
            f"column {name!r}: {text[:50]!r} is an array with more than one dimension, or with a "
            "lower bound other than 1"
        )
        raise ValueError(msg)
    for match in _ELEMENT.finditer(inner):
        quoted, bare = match.groups()
        if quoted is None:
            elements.append(None if bare == "NULL" else bare)
        else:
            elements.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
    return elements


def texts_of(values: list[Any]) -> pa.Array:
    """Return texts as bytes, or ``None``, as a string array."""
    return pa.array(values, pa.binary()).cast(pa.string())
