"""Writing rows to PostgreSQL: text for COPY, and the search for rows that the server refuses.

**Refused rows** are found one by one, by halving the refused batch.  A constraint, a trigger or
the syntax of an ``inet`` refuses a row when the row arrives, which is after its epoch was
committed.  The epoch cannot be refused any more, so its other rows are written and these are set
aside.

Triggers and policies refuse rows with codes of their own, so the code does not show whether an
error is about a row.  It is about a row if the same statement without rows passes, unless the code
reports a failure of the server, which another attempt may not meet.

**COPY.**  Rows become CSV in whole columns: Arrow writes primitive types itself; binary and lists
are brought into PostgreSQL's text form by operations on whole columns; only columns that become
``jsonb`` pass through Python objects.  An empty field is null, a quoted one is a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from godwit.columns.types import is_binary, is_list, is_text
from godwit.connect.postgres.connection import Connection, error_text
from godwit.plan.staging import Rejections
from godwit.sinks.rows import with_plain_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_IN_TROUBLE: Final = ("08", "25", "28", "3D", "40", "53", "55P03", "57", "58")
"""SQLSTATE classes: connection, transaction state, authorization, catalogue, rollback, resources,
a lock that is not to be had, intervention of an operator, system error."""


class UnwritableRowsError(Exception):
    """Some rows have values that cannot be written as text."""


def may_concern_rows(error: psycopg.Error | UnwritableRowsError) -> bool:
    """Return whether an error may be caused by a row's values, so that other rows may pass."""
    if isinstance(error, UnwritableRowsError):
        return True
    return error.sqlstate is not None and not error.sqlstate.startswith(_IN_TROUBLE)


def find_refused(
    connection: Connection,
    parts: Iterable[pa.RecordBatch],
    load: Callable[[pa.RecordBatch | None], None],
) -> tuple[pa.RecordBatch, Rejections] | None:
    """Load the rows that the server accepts; return the others, with the server's reasons.

    `connection`: in a transaction. `parts`: the rows. `load`: writes a part of them; called without
    rows first. Raises `psycopg.Error` if the error is not about a row.
    """
    with connection.transaction():
        load(None)
    refused: list[pa.RecordBatch] = []
    reasons: list[str] = []
    for part in parts:
        for row, reason in _bisect_refused(connection, part, load):
            refused.append(row)
            reasons.append(reason)
    if not refused:
        return None
    rows = pa.concat_batches(refused)
    return rows, Rejections(rows=np.arange(rows.num_rows), reasons=reasons)


def _bisect_refused(
    connection: Connection, rows: pa.RecordBatch, load: Callable[[pa.RecordBatch | None], None]
) -> Iterator[tuple[pa.RecordBatch, str]]:
    """Load rows with `load`, by bisection; yield each row that the server refuses, and why."""
    try:
        with connection.transaction():  # a savepoint
            load(rows)
    except (psycopg.Error, UnwritableRowsError) as error:
        if not may_concern_rows(error):
            raise
        if rows.num_rows == 1:
            yield rows, _refusal_reason(error)
            return
    else:
        return
    half = rows.num_rows // 2
    yield from _bisect_refused(connection, rows.slice(0, half), load)
    yield from _bisect_refused(connection, rows.slice(half), load)


def _refusal_reason(error: psycopg.Error | UnwritableRowsError) -> str:
    """Return why the server or the encoder refused a row."""
    if isinstance(error, UnwritableRowsError):
        return f"cannot be written as text: {error_text(error)}"
    return f"the server reports: {error.diag.message_primary or error_text(error)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresType:
    """PostgreSQL type of an Arrow type."""

    name: str  # type of a column that Godwit creates
    # names (``pg_type.typname``) of the types that an existing column may have: those that hold
    # every value
    accepted: tuple[str, ...]


_TEXT: Final = PostgresType(
    name="text",
    accepted=("text", "varchar", "bpchar", "citext", "uuid", "json", "jsonb", "inet"),
)
_JSON: Final = PostgresType(name="jsonb", accepted=("jsonb", "json"))
_SIMPLE: Final = {
    pa.null(): PostgresType(name="text", accepted=_TEXT.accepted),
    pa.bool_(): PostgresType(name="boolean", accepted=("bool",)),
    pa.int8(): PostgresType(name="smallint", accepted=("int2", "int4", "int8", "numeric")),
    pa.int16(): PostgresType(name="smallint", accepted=("int2", "int4", "int8", "numeric")),
    pa.int32(): PostgresType(name="integer", accepted=("int4", "int8", "numeric")),
    pa.int64(): PostgresType(name="bigint", accepted=("int8", "numeric")),
    pa.uint8(): PostgresType(name="smallint", accepted=("int2", "int4", "int8", "numeric")),
    pa.uint16(): PostgresType(name="integer", accepted=("int4", "int8", "numeric")),
    pa.uint32(): PostgresType(name="bigint", accepted=("int8", "numeric")),
    pa.uint64(): PostgresType(name="numeric(20,0)", accepted=("numeric",)),
    pa.float16(): PostgresType(name="real", accepted=("float4", "float8")),
    pa.float32(): PostgresType(name="real", accepted=("float4", "float8")),
    pa.float64(): PostgresType(name="double precision", accepted=("float8",)),
    pa.date32(): PostgresType(name="date", accepted=("date",)),
    pa.date64(): PostgresType(name="date", accepted=("date",)),
}


def postgres_type(dtype: pa.DataType) -> PostgresType:
    """Return the PostgreSQL type of a column for values of an Arrow type.

    Lists of primitive values become arrays; everything else that is nested becomes ``jsonb``.
    """
    if simple := _SIMPLE.get(dtype):
        return simple
    if pa.types.is_decimal(dtype):
        precision, scale = decimal_digits(dtype)
        return PostgresType(name=f"numeric({precision},{scale})", accepted=("numeric",))
    if pa.types.is_timestamp(dtype):
        name = "timestamp" if dtype.tz is None else "timestamptz"
        return PostgresType(name=name, accepted=(name,))
    if pa.types.is_time(dtype):
        return PostgresType(name="time", accepted=("time",))
    if pa.types.is_duration(dtype):
        return PostgresType(name="interval", accepted=("interval",))
    if is_text(dtype):
        return _TEXT
    if is_binary(dtype):
        return PostgresType(name="bytea", accepted=("bytea",))
    if pa.types.is_dictionary(dtype):
        return postgres_type(dtype.value_type)
    if _is_array(dtype):
        element = postgres_type(element_type(dtype))
        return PostgresType(
            name=f"{element.name}[]", accepted=tuple(f"_{name}" for name in element.accepted)
        )
    return _JSON


def is_storable(dtype: pa.DataType) -> bool:
    """Return whether a column can store values of an Arrow type."""
    if pa.types.is_dictionary(dtype):
        return is_storable(dtype.value_type)
    if is_list(dtype) or pa.types.is_struct(dtype) or pa.types.is_map(dtype):
        inner = [dtype.field(position) for position in range(dtype.num_fields)]
        has_names_once = len({field.name for field in inner}) == len(inner)  # as JSON has
        return has_names_once and all(is_storable(field.type) for field in inner)
    return postgres_type(dtype) is not _JSON


def element_type(dtype: pa.DataType) -> pa.DataType:
    """Return the element type of a list; of other types, the type itself."""
    return dtype.value_type if _is_array(dtype) else dtype


def key_types(dtype: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the types of the keys of maps in a type, however deep."""
    if pa.types.is_map(dtype):
        yield dtype.key_type
    if pa.types.is_nested(dtype):
        for position in range(dtype.num_fields):
            yield from key_types(dtype.field(position).type)


def decimal_digits(dtype: pa.DataType) -> tuple[int, int]:
    """Return the precision and the scale that values of a decimal type need."""
    return dtype.precision - min(dtype.scale, 0), max(dtype.scale, 0)


def csv_rows(columns: Sequence[pa.Array]) -> bytes:
    """Encode rows for ``COPY ... FROM STDIN (FORMAT csv)``, in UTF-8."""
    fields = [_csv_field(column) for column in columns]
    names = [str(position) for position in range(len(fields))]
    out = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, batch_size=16_384)
    csv.write_csv(pa.RecordBatch.from_arrays(fields, names=names), out, options)
    return bytes(out.getvalue())


def _csv_field(values: pa.Array) -> pa.Array:
    """Convert values to a type whose CSV text PostgreSQL reads exactly."""
    dtype = values.type
    if pa.types.is_dictionary(dtype):
        return _csv_field(values.dictionary_decode())
    if is_text(dtype) or pa.types.is_null(dtype):
        return values.cast(pa.large_string())
    if is_binary(dtype):
        return _hexadecimal_text(values)
    if pa.types.is_float16(dtype):
        return values.cast(pa.float32())
    if pa.types.is_date64(dtype):
        return values.cast(pa.date32())
    if dtype == pa.time64("ns"):
        return values.cast(pa.time64("us"))  # PostgreSQL would round without a word
    if pa.types.is_timestamp(dtype) and dtype.tz is not None:
        # In UTC: offsets of old local times have seconds, which the text form would lose.
        return _concatenate_by_row(values.cast(pa.timestamp(dtype.unit)), "Z")
    if pa.types.is_duration(dtype):
        return _concatenate_by_row(values.cast(pa.duration("us")).cast(pa.int64()), " microseconds")
    if _is_array(dtype):
        return _array_literals(values)
    if pa.types.is_nested(dtype):
        return _as_json(values)
    return values


def _hexadecimal_text(values: pa.Array) -> pa.Array:
    """Return binary values as text in PostgreSQL's hexadecimal form."""
    binary = values.cast(pa.large_binary())
    _, offsets, data = binary.buffers()
    ends = np.frombuffer(offsets, np.int64, len(binary) + 1, binary.offset * 8)
    digits = (b"" if data is None else data.slice(ends[0], ends[-1] - ends[0]).to_pybytes()).hex()
    text = pa.LargeStringArray.from_buffers(
        len(binary), pa.py_buffer((ends - ends[0]) * 2), pa.py_buffer(digits.encode())
    )
    prefixed = _concatenate_by_row("\\x", text)
    return pc.if_else(binary.is_valid(), prefixed, pa.scalar(None, pa.large_string()))


def _array_literals(values: pa.Array) -> pa.Array:
    """Return lists of primitive values as text such as ``{1,2,NULL}``."""
    lists = values.cast(pa.large_list(values.type.value_type))
    elements = _csv_field(lists.flatten()).cast(pa.large_string())
    escaped = pc.replace_substring(pc.replace_substring(elements, "\\", "\\\\"), '"', '\\"')
    quoted = _concatenate_by_row('"', escaped, '"').fill_null("NULL")
    # flatten() leaves out what null lists cover, so offsets are computed from lengths.
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    texts = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), quoted.cast(pa.string()))
    literals = _concatenate_by_row("{", pc.binary_join(texts, ","), "}")
    return pc.if_else(lists.is_valid(), literals, pa.scalar(None, pa.large_string()))


def _concatenate_by_row(*parts: pa.Array | str) -> pa.Array:
    """Concatenate columns and constant texts row by row; null where a column is."""
    texts = [
        pa.scalar(part, pa.large_string())
        if isinstance(part, str)
        else part.cast(pa.large_string())
        for part in parts
    ]
    return pc.binary_join_element_wise(*texts, pa.scalar("", pa.large_string()))


def _as_json(values: pa.Array) -> pa.Array:
    """Return nested values as JSON: decimals as numbers, times in ISO 8601, binary in base 64."""
    schema = with_plain_types(pa.schema([("values", values.type)]), _in_microseconds)
    values = values.cast(schema.field(0).type)
    encoder = msgspec.json.Encoder(decimal_format="number")
    return pa.array(
        [
            None if value is None else encoder.encode(value).decode()
            for value in values.to_pylist(maps_as_pydicts="strict")
        ],
        pa.large_string(),
    )


def _in_microseconds(dtype: pa.DataType) -> pa.DataType:
    """Return a duration type in microseconds, as in Python; other types unchanged."""
    return pa.duration("us") if pa.types.is_duration(dtype) else dtype


def _is_array(dtype: pa.DataType) -> bool:
    """Return whether a type is stored as a PostgreSQL array."""
    return is_list(dtype) and not pa.types.is_nested(dtype.value_type)
