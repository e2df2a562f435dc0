"""Messages of Avro records, bare or in the framing of a schema registry: `gw.formats.avro`."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import fastavro
import pyarrow as pa

from godwit.model.errors import InvalidFlowError, SourceError
from godwit.model.secrets import Secrets
from godwit.sources.message_formats import (
    MessageFormat,
    UnwritableError,
    Value,
    check_fields,
    python_values,
)
from godwit.sources.schema_registry import (
    frame_header,
    parse_frame,
    registered_id,
    schema_of_id,
    schema_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


class AvroMessages(MessageFormat):
    """Values as Avro records, one field for each column."""

    failures = (*MessageFormat.failures, fastavro.schema.SchemaParseException)

    def __init__(
        self,
        schema: str | Mapping[str, Any],
        *,
        registry: str | Mapping[int, str | Mapping[str, Any]] | None,
        subject: str | None,
    ) -> None:
        self._text = _schema_text(schema)
        if isinstance(registry, str):
            if not registry.startswith(("http://", "https://")):
                raise InvalidFlowError(
                    "The Avro format was given a registry that is no URL.",
                    remedy='Give "https://host:port", or a mapping of ids to schemas.',
                )
            Secrets.of_uri(registry)  # so that no error, event or log shows them
        self._registry: str | dict[int, str] | None = (
            {int(i): _schema_text(s) for i, s in registry.items()}
            if isinstance(registry, Mapping)
            else registry
        )
        self._subject = subject
        self._schema = _to_arrow_schema(self._text)

    def __repr__(self) -> str:
        return f"gw.formats.avro({json.loads(self._text).get('name')!r})"

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
        """Decode Avro records into columns; null where a message has no value."""
        reader = _parse_schema(self._text)
        records = [
            None if value is None else self._decode_record(value, reader) for value in values
        ]
        columns = [[record and record[field.name] for record in records] for field in schema]
        return [
            pa.array([str(v) if isinstance(v, uuid.UUID) else v for v in column], field.type)
            for field, column in zip(schema, columns, strict=True)
        ]

    def _decode_record(self, value: bytes, reader: Any) -> Any:
        """Decode one message by its writer's schema, converted to the schema `reader`."""
        stream = io.BytesIO(value)
        writer = reader
        if self._registry is not None:
            schema_id, begin = parse_frame(value)
            stream.seek(begin)
            writer = _parse_schema(self._writer_schema(schema_id))
        record = fastavro.schemaless_reader(stream, writer, reader)
        if stream.read(1):
            msg = "it goes on after the record"
            raise ValueError(msg)
        return record

    def _writer_schema(self, schema_id: int) -> str:
        """Return the registry's schema `schema_id` as JSON text, cached; raise if there is none."""
        if isinstance(self._registry, str):
            return schema_of_id(self._registry, schema_id)
        assert self._registry is not None
        if schema_id not in self._registry:
            msg = f"its schema has id {schema_id}, and registry= has {sorted(self._registry)}"
            raise ValueError(msg)
        return self._registry[schema_id]

    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        """Encode each row as an Avro record, with the framing of the schema registry if any."""
        parsed = _parse_schema(self._text)
        begin = b"" if self._registry is None else frame_header(self._registered_id())
        names = [field.name for field in self._schema]
        columns = [python_values(rows[n]) if n in rows.schema.names else None for n in names]
        written: list[Value] = []
        for row in range(rows.num_rows):
            record = {n: c[row] for n, c in zip(names, columns, strict=True) if c is not None}
            stream = io.BytesIO()
            stream.write(begin)
            try:
                fastavro.schemaless_writer(stream, parsed, record, strict_allow_default=True)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise UnwritableError(f"{type(error).__name__}: {error}") from error
            written.append(stream.getvalue())
        return written

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Raise for columns that the Avro record does not have."""
        check_fields(schema, self._schema, where, "the Avro record")

    def _registered_id(self) -> int:
        """Return the id in the registry of the schema to write, cached; raise if there is none."""
        if isinstance(self._registry, str):
            if self._subject is None:
                raise SourceError(
                    "Avro messages are to be written with a registry, and subject= is not given.",
                    remedy='Name the subject that the schema is registered under, "flights-value".',
                )
            return registered_id(self._registry, self._subject, self._text)
        assert self._registry is not None
        same = [i for i, s in self._registry.items() if s == self._text]
        if not same:
            raise SourceError(
                "Avro messages are to be written, and registry= has no id of their schema.",
                remedy="Add it: registry={7: schema}.",
            )
        return max(same)


def _schema_text(schema: object) -> str:
    """Return a user's Avro schema as JSON text; raise if it is not valid."""
    try:
        text = schema_text(schema)
        parsed = fastavro.parse_schema(json.loads(text))
    except (fastavro.schema.SchemaParseException, ValueError, TypeError, KeyError) as error:
        raise InvalidFlowError(
            f"The Avro format was given a schema that cannot be read: {error}.",
            remedy="Give the schema of a record, as JSON text or a mapping.",
        ) from None
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise InvalidFlowError(
            "The Avro format was given a schema that is not of a record.",
            remedy='Give {"type": "record", "name": ..., "fields": [...]}.',
        )
    return text


@lru_cache(maxsize=1024)
def _parse_schema(text: str) -> Any:
    """Parse the JSON text of an Avro schema; cached."""
    return fastavro.parse_schema(json.loads(text))


def _to_arrow_schema(text: str) -> pa.Schema:
    """Convert an Avro record schema to columns."""
    record = json.loads(text)
    known: dict[str, Any] = {}
    dtype = _to_arrow_type(record, known, record.get("name", "record"), ())
    return pa.schema(list(dtype))


def _to_arrow_type(schema: Any, known: dict[str, Any], where: str, within: tuple[str, ...]) -> Any:
    """Convert a parsed Avro type to Arrow's; `within`: enclosing records, to refuse recursion.

    `where`: the field's path, for errors. `known`: named types so far, which is added to.
    """
    if isinstance(schema, list):
        others = [part for part in schema if part != "null"]
        if len(others) != 1:
            raise _unsupported_type(where, f"a union of {len(others)} types")
        return _to_arrow_type(others[0], known, where, within)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if schema not in known or schema in within:
            raise _unsupported_type(
                where, f"the type {schema!r}, which is not known there or holds itself"
            )
        return _to_arrow_type(known[schema], known, where, within)
    kind, logical = schema["type"], schema.get("logicalType")
    if isinstance(kind, dict | list):
        return _to_arrow_type(kind, known, where, within)
    if "name" in schema:
        known[schema["name"]] = schema
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "fixed":
        return pa.binary()
    if kind == "array":
        return pa.list_(_to_arrow_type(schema["items"], known, where, within))
    if kind == "map":
        return pa.map_(pa.string(), _to_arrow_type(schema["values"], known, where, within))
    if kind == "record":
        name = schema.get("name", "")
        return pa.struct(
            [
                (
                    f["name"],
                    _to_arrow_type(f["type"], known, f"{where}.{f['name']}", (*within, name)),
                )
                for f in schema["fields"]
            ]
        )
    return _to_arrow_type(kind, known, where, within)


def _unsupported_type(where: str, what: str) -> InvalidFlowError:
    """Build the error that the Avro type at `where` has no counterpart in Arrow; `what`: why."""
    return InvalidFlowError(
        f"The Avro schema has {what} at {where}, and Arrow has no type for it.",
        remedy="Leave the field out of the schema that you read with.",
    )
