"""Messages of Avro records, with or without a schema registry's framing: `gw.formats.avro`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import error as StructError  # noqa: N812  an exception
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.connect.formats.avro_codec import Read, Write, compile_reader, compile_writer
from godwit.connect.formats.avro_schema import (
    AvroError,
    AvroType,
    check_defaults,
    parse_schema,
    to_arrow_schema,
)
from godwit.connect.formats.message_formats import (
    NOT_OF_MESSAGES,
    MessageFormat,
    UnwritableError,
    Value,
    check_fields,
    error_text,
    python_values,
    to_array,
)
from godwit.connect.formats.registry import (
    FRAME_BYTES,
    Schemas,
    frame_header,
    parse_frame,
    schema_text,
)
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class AvroMessages(MessageFormat):
    """Values as Avro records, one field for each column."""

    def __init__(
        self,
        schema: str | Mapping[str, Any],
        *,
        registry: str | Mapping[int, str | Mapping[str, Any] | Sequence[Any]] | None,
        subject: str | None,
    ) -> None:
        self._text = _schema_text(schema)
        if _parse_schema(self._text).kind != "record":
            raise InvalidFlowError(
                "The Avro format has a schema that is not a record.",
                remedy='Give {"type": "record", "name": ..., "fields": [...]}.',
            )
        self._schemas = None if registry is None else as_schemas(registry)
        self._subject = subject
        try:
            self._schema = to_arrow_schema(_parse_schema(self._text))
            check_defaults(_parse_schema(self._text))
        except (AvroError, RecursionError) as error:
            raise _invalid_schema(error) from None

    def __repr__(self) -> str:
        return f"gw.formats.avro({_parse_schema(self._text).name!r})"

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
        """Decode Avro records into columns; null where a message has no value."""
        names = tuple(schema.names)
        none = (None,) * len(names)
        readers: dict[bytes, Read] = {}  # begin of a message → how it is read
        skip = 0 if self._schemas is None else FRAME_BYTES
        rows = []
        for value in values:
            if value is None:
                rows.append(none)
                continue
            begin = value[:skip]
            if begin not in readers:
                readers[begin] = self._message_reader(value, names)
            try:
                row, end = readers[begin](value, skip)
            except (IndexError, StructError):
                raise AvroError("the message ends within a value") from None
            if end != len(value):
                raise AvroError(f"it has {len(value) - end} bytes after the record")
            rows.append(row)
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        return [
            to_array(column, field.name, field.type)
            for field, column in zip(schema, columns, strict=True)
        ]

    def _message_reader(self, value: bytes, names: tuple[str, ...]) -> Read:
        """Return the function that reads messages with the schema of this one."""
        if self._schemas is None:
            return _compiled_reader(self._text, self._text, names)
        schema_id, _ = parse_frame(value)
        return _compiled_reader(self._schemas.text(schema_id), self._text, names)

    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        """Encode each row as an Avro record, with the framing of the schema registry if any."""
        begin = b""
        if self._schemas is not None:
            begin = frame_header(self._schemas.id_of(self._text, self._subject))
        try:
            write = _compiled_writer(self._text, tuple(rows.schema.names))
            columns = [
                _values_to_write(column, self._schema.field(name).type)
                for name, column in zip(rows.schema.names, rows.columns, strict=True)
            ]
            written: list[Value] = []
            for row in zip(*columns, strict=True) if columns else [()] * rows.num_rows:
                out = bytearray(begin)
                write(row, out)
                written.append(bytes(out))
        except NOT_OF_MESSAGES:
            raise
        except Exception as error:
            raise UnwritableError(error_text(error)) from error
        return written

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Raise for columns that the Avro record does not have."""
        check_fields(schema, self._schema, where, "the Avro record")


def _values_to_write(column: pa.Array, dtype: pa.DataType) -> list[Any]:
    """Return a column's values to write; times as numbers in the units of `dtype`."""
    kinds = (pa.types.is_timestamp, pa.types.is_time, pa.types.is_date)
    if not any(all(map(kind, (column.type, dtype))) for kind in kinds):
        return python_values(column)
    if pa.types.is_date(dtype):
        return list(column.cast(dtype).cast(pa.int32()).to_pylist())
    width = pa.int32() if pa.types.is_time32(column.type) else pa.int64()
    numbers = column.cast(width).to_pylist()
    times, per = _PER_SECOND[dtype.unit], _PER_SECOND[column.type.unit]
    return [None if number is None else number * times // per for number in numbers]


def as_schemas(registry: str | Mapping[int, str | Mapping[str, Any] | Sequence[Any]]) -> Schemas:
    """Return the schemas of a registry, given by URL or as a mapping; raise if one is not valid."""
    if isinstance(registry, Mapping):
        return Schemas({int(i): _schema_text(schema) for i, schema in registry.items()})
    return Schemas(registry)


def _schema_text(schema: object) -> str:
    """Return a user's Avro schema as JSON text; raise if it is not valid."""
    try:
        text = schema_text(schema)
        _parse_schema(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise _invalid_schema(error) from None
    return text


def _invalid_schema(error: Exception) -> InvalidFlowError:
    """Build the error that a user's schema is not valid."""
    return InvalidFlowError(
        f"The schema of the Avro format cannot be parsed: {error}.",
        remedy="Give the schema of a record, as JSON text or as a mapping.",
    )


@lru_cache(maxsize=1024)
def _parse_schema(text: str) -> AvroType:
    """Parse the JSON text of an Avro schema; cached."""
    return parse_schema(text)


@lru_cache(maxsize=1024)
def _compiled_reader(written: str, record: str, names: tuple[str, ...]) -> Read:
    """Compile the function that reads messages of one schema by another; cached."""
    try:
        parsed = _parse_schema(written)
    except AvroError as error:
        raise AvroError(f"its writer's schema is not valid: {error}") from None
    return compile_reader(parsed, _parse_schema(record), names)


@lru_cache(maxsize=256)
def _compiled_writer(record: str, names: tuple[str, ...]) -> Write:
    """Compile the function that writes a schema's records from some columns; cached."""
    return compile_writer(_parse_schema(record), names)
