"""Bytes of Debezium's change events: JSON, with or without a schema in each event, and Avro.

Both are read to the same *envelope*: an object with ``before`` and ``after`` (rows, with the
columns of the table as fields f0, f1, ...), ``op``, ``source`` and ``transaction``.  Avro is read
by the project's own codec.  The schema to read by is made of the writer's: its columns without
their logical types, and null for columns that the writer does not have, so a topic may have events
from before and after a change of its table.
"""

from __future__ import annotations

import contextlib
from decimal import Decimal
from functools import lru_cache
from struct import error as StructError  # noqa: N812  an exception
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from godwit.connect.formats.avro_codec import Read, compile_reader
from godwit.connect.formats.avro_schema import AvroError, AvroField, AvroType, parse_schema
from godwit.connect.formats.debezium_values import (
    DECIMAL,
    PLAIN,
    TEXT,
    SemanticType,
    Types,
    type_in_event,
)
from godwit.connect.formats.registry import FRAME_BYTES, Schemas, parse_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from godwit.connect.formats.message_formats import Value


class EventLayout(NamedTuple):
    """Parts of events that are read."""

    table: pa.Schema
    source: tuple[str, ...]  # fields of ``source``
    transaction: tuple[str, ...]
    usual: tuple[tuple[str, str], ...]  # column → semantic type, where an event does not name it

    def usual_types(self) -> Types:
        """Return the default semantic types, for events that do not state any."""
        return {name: SemanticType(text) for name, text in self.usual}


@lru_cache(maxsize=64)
def _row_class(table: pa.Schema) -> Any:
    """Return the msgspec class of a table's rows, with fields f0, f1, ..."""
    fields = [(f"f{i}", type_in_event(field), None) for i, field in enumerate(table)]
    names = {f"f{i}": field.name for i, field in enumerate(table)}
    return msgspec.defstruct("Row", fields, rename=names, gc=False)


@lru_cache(maxsize=64)
def _part_class(name: str, names: tuple[str, ...]) -> Any:
    """Return the msgspec class of some fields of ``source`` or ``transaction``."""
    return msgspec.defstruct(name, [(field, Any, None) for field in names], gc=False)


def _envelope_fields(layout: EventLayout) -> list[tuple[str, Any, Any]]:
    """Return names, types and defaults of an envelope's fields."""
    row = _row_class(layout.table)
    parts = (("source", layout.source), ("transaction", layout.transaction))
    return [
        ("before", row | None, None),
        ("after", row | None, None),
        ("op", str | None, None),
        *((name, _part_class(name, names) | None, None) for name, names in parts if names),
    ]


# JSON


class JsonEvents:
    """Reader of events in JSON."""

    def __init__(self, layout: EventLayout) -> None:
        self._layout, self._usual_types = layout, layout.usual_types()
        self._decode = _envelope_decoder(layout).decode

    def events(self, values: Sequence[Value]) -> tuple[list[Any], list[Types]]:
        """Return envelope and semantic types of each message, or no envelope without an event."""
        if None not in values:
            decoded = list(map(self._decode, values))  # type: ignore[arg-type]
            if all([envelope.op is not None for envelope in decoded]):  # noqa: C419  faster
                return decoded, [self._usual_types] * len(decoded)
        pairs = [
            (None, self._usual_types) if value is None else self.event(value) for value in values
        ]
        return [envelope for envelope, _ in pairs], [types for _, types in pairs]

    def event(self, value: bytes) -> tuple[Any, Types]:
        """Return envelope and semantic types of an event; no envelope if its payload is null."""
        envelope = self._decode(value)
        if envelope.op is not None:
            return envelope, self._usual_types
        types = self._usual_types
        if envelope.schema is not msgspec.UNSET:
            types = self._types_in(envelope.schema, "after")
        if envelope.payload is not msgspec.UNSET:
            envelope = envelope.payload
        if envelope is not None and envelope.op is None and _is_heartbeat(value):
            return None, types
        return envelope, types

    def key(self, key: bytes) -> tuple[Any, Types]:
        """Return the row in a message's key, and its semantic types."""
        decoded = _key_decoder(self._layout.table).decode(key)
        if decoded.payload is not msgspec.UNSET and decoded.payload is not None:
            return decoded.payload, self._types_in(decoded.schema, None)
        return _key_row_decoder(self._layout.table).decode(key), self._usual_types

    def names(self, texts: Sequence[Value], types: Types, column: str) -> bool:
        """Return whether a message has a column; `texts`: value and key, `types`: of its row."""
        if types is not self._usual_types:  # those of a schema
            return column in types
        for text in texts:
            with contextlib.suppress(msgspec.DecodeError):  # of a key that is not JSON
                message = None if text is None else msgspec.json.decode(text)
                part = message.get("payload", message) if isinstance(message, dict) else None
                rows = [] if part is None else [part, part.get("before"), part.get("after")]
                if any(column in row for row in rows if row is not None):
                    return True
        return False

    def _types_in(self, schema: Any, part: str | None) -> Types:
        """Return the semantic types of a schema; `part`: field of it that is the row's."""
        if schema is msgspec.UNSET:
            return self._usual_types
        return _types_of_schema(bytes(schema), part, self._layout.usual) or self._usual_types


@lru_cache(maxsize=64)
def _envelope_decoder(layout: EventLayout) -> msgspec.json.Decoder[Any]:
    """Return the decoder of events of a table, with or without a schema around them."""
    fields = _envelope_fields(layout)
    inner = msgspec.defstruct("Payload", fields, gc=False)
    outer = msgspec.defstruct(
        "Envelope",
        [
            *fields,
            ("schema", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET),
            ("payload", inner | None | msgspec.UnsetType, msgspec.UNSET),
        ],
        gc=False,
    )
    return msgspec.json.Decoder(outer, float_hook=Decimal)


def _is_heartbeat(value: bytes) -> bool:
    """Return whether a message has only the connector's time."""
    message = msgspec.json.decode(value)
    payload = message.get("payload", message)
    return isinstance(payload, dict) and payload.keys() == {"ts_ms"}


@lru_cache(maxsize=64)
def _key_decoder(table: pa.Schema) -> msgspec.json.Decoder[Any]:
    """Return the decoder of keys with a schema around them."""
    key = msgspec.defstruct(
        "Key",
        [
            ("schema", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET),
            ("payload", _row_class(table) | None | msgspec.UnsetType, msgspec.UNSET),
        ],
        gc=False,
    )
    return msgspec.json.Decoder(key, float_hook=Decimal)


@lru_cache(maxsize=64)
def _key_row_decoder(table: pa.Schema) -> msgspec.json.Decoder[Any]:
    """Return the decoder of keys without a schema."""
    return msgspec.json.Decoder(_row_class(table), float_hook=Decimal)


class _SchemaField(msgspec.Struct, gc=False):
    """A field of a schema of Kafka Connect."""

    type: Any = None
    field: str | None = None
    name: str | None = None
    fields: list[_SchemaField] | None = None
    items: _SchemaField | None = None
    parameters: dict[str, str] | None = None


_schema_decoder: Final = msgspec.json.Decoder(_SchemaField | None)


@lru_cache(maxsize=256)
def _types_of_schema(
    text: bytes, row_field: str | None, default_types: tuple[tuple[str, str], ...]
) -> Types | None:
    """Return the semantic types of a schema's columns; ``None`` for a null schema.

    `row_field`: field of the schema that is the row's; ``None``: it is the row's itself.
    `default_types`: types of columns for which the schema names none.
    """
    schema = _schema_decoder.decode(text)
    if schema is None:
        return None
    if row_field is not None:
        schema = next((f for f in schema.fields or () if f.field == row_field), _SchemaField())
    type_if_unnamed, types = dict(default_types), {}
    for field in schema.fields or ():
        if field.field is not None:
            types[field.field] = _type_of(field, type_if_unnamed.get(field.field))
            if field.items is not None:
                types[f"{field.field}[]"] = _type_of(field.items, None)
    return types


def _type_of(field: _SchemaField, usual: str | None) -> SemanticType:
    """Return the semantic type of a schema's field; `usual`: the default, if it has none."""
    scale = (field.parameters or {}).get("scale")
    plain = TEXT if field.type == "string" else PLAIN
    return SemanticType(field.name or usual or plain, None if scale is None else int(scale))


# Avro


class AvroEvents:
    """Reader of events in Avro, in the framing of a schema registry; of others as JSON."""

    def __init__(self, layout: EventLayout, schemas: Schemas) -> None:
        self._layout, self._schemas = layout, schemas
        self._json = JsonEvents(layout)

    def events(self, values: Sequence[Value]) -> tuple[list[Any], list[Types]]:
        """Return envelope and semantic types of each message, or no envelope without an event."""
        pairs = [(None, {}) if value is None else self.event(value) for value in values]
        return [envelope for envelope, _ in pairs], [types for _, types in pairs]

    def event(self, value: bytes) -> tuple[Any, Types]:
        """Return envelope and semantic types of an event."""
        if value[:1] != b"\0":
            return self._json.event(value)
        read, types = _envelope_reader(self._schema_text(value), self._layout)
        return _read_whole_message(read, value), types

    def key(self, key: bytes) -> tuple[Any, Types]:
        """Return the row in a message's key, and its semantic types."""
        if key[:1] != b"\0":
            return self._json.key(key)
        read, types = _key_reader(self._schema_text(key), self._layout)
        return _read_whole_message(read, key), types

    def names(self, texts: Sequence[Value], types: Types, column: str) -> bool:
        """Return whether a message has a column; see `JsonEvents.names`."""
        is_framed = any(text is not None and text[:1] == b"\0" for text in texts)
        return column in types if is_framed else self._json.names(texts, types, column)

    def _schema_text(self, message: bytes) -> str:
        return self._schemas.text(parse_frame(message)[0])


def _read_whole_message(read: Callable[[bytes, int], tuple[Any, int]], message: bytes) -> Any:
    """Decode a whole framed message."""
    try:
        value, end = read(message, FRAME_BYTES)
    except (IndexError, StructError):
        raise AvroError("the message ends within a value") from None
    if end != len(message):
        raise AvroError(f"it has {len(message) - end} bytes after the record")
    return value


@lru_cache(maxsize=256)
def _envelope_reader(text: str, layout: EventLayout) -> tuple[Read, Types]:
    """Return the function that reads envelopes of a writer's schema, and their semantic types."""
    written = parse_schema(text)
    fields = {part.name: part for part in written.fields}
    if "op" not in fields or "after" not in fields:
        if [*fields] == ["ts_ms"]:  # a heartbeat
            return (lambda message, _: (None, len(message))), {}
        msg = f"it is not a change event: {written} has no field 'op' or 'after'"
        raise ValueError(msg)
    envelope = msgspec.defstruct("Envelope", _envelope_fields(layout), gc=False)
    row_makers: list[Callable[[Any], Any] | None] = []
    read_fields: list[AvroField] = []
    types: Types = {}
    for name in envelope.__struct_fields__:
        record = _record_in(fields[name].type) if name in fields else None
        if record is None and name == "after":
            msg = f"it is not an event of a table: its 'after' is {fields[name].type}, not a record"
            raise ValueError(msg)
        if record is None or name == "op":
            read_fields.append(_field_without_logical_types(name, fields.get(name)))
            row_makers.append(None)
            continue
        if name in ("before", "after"):
            part, make_row, types = _row_reader(record, layout)
        else:
            names = layout.source if name == "source" else layout.transaction
            part, make_row = _record_of_fields(record, names), _part_class(name, names)
        read_fields.append(_nullable_field(name, _like_writer_with_null(fields[name].type, part)))
        row_makers.append(_or_none(make_row))
    read = compile_reader(written, _record_with_fields(written, read_fields))

    def read_envelope(message: bytes, offset: int) -> tuple[Any, int]:
        """Return an envelope, and the offset after it."""
        values, offset = read(message, offset)
        parts = [
            value if make_row is None else make_row(value)
            for make_row, value in zip(row_makers, values, strict=True)
        ]
        return envelope(*parts), offset

    return read_envelope, types


@lru_cache(maxsize=256)
def _key_reader(text: str, layout: EventLayout) -> tuple[Read, Types]:
    """Return the function that reads keys of a writer's schema, and their semantic types."""
    written = parse_schema(text)
    record, make_row, types = _row_reader(written, layout)
    read = compile_reader(written, record)

    def read_key(message: bytes, offset: int) -> tuple[Any, int]:
        """Return the row of a key, and the offset after it."""
        values, offset = read(message, offset)
        return make_row(values), offset

    return read_key, types


def _row_reader(
    written: AvroType, layout: EventLayout
) -> tuple[AvroType, Callable[[Any], Any], Types]:
    """Return the schema to read rows by, a function from its values to a row, and types."""
    row_type = _record_of_fields(written, tuple(layout.table.names))
    default_types, types, converters = dict(layout.usual), {}, {}
    for position, name in enumerate(layout.table.names):
        source = next((f.type for f in written.fields if f.name == name), None)
        if source is not None:
            inner = _not_null(source)
            types[name] = _semantic_of(inner, default_types.get(name))
            if inner.items is not None:
                types[f"{name}[]"] = _semantic_of(_not_null(inner.items), None)
            if (convert := _plain_values(source)) is not None:
                converters[position] = convert
    row_class = _row_class(layout.table)
    if not converters:
        return row_type, lambda values: row_class(*values), types

    def make_row(values: Any) -> Any:
        """Return a row, with structs as in JSON."""
        cells = [*values]
        for position, convert in converters.items():
            cells[position] = convert(cells[position])
        return row_class(*cells)

    return row_type, make_row, types


def _record_of_fields(written: AvroType, names: tuple[str, ...]) -> AvroType:
    """Return the record for reading some fields of another; missing fields are null."""
    fields = {part.name: part for part in written.fields}
    return _record_with_fields(
        written, [_field_without_logical_types(name, fields.get(name)) for name in names]
    )


def _field_without_logical_types(name: str, written: AvroField | None) -> AvroField:
    """Return a field with the writer's type, without logical types; null if absent."""
    return _nullable_field(
        name, AvroType(kind="null") if written is None else _without_logic(written.type)
    )


def _nullable_field(name: str, avro_type: AvroType) -> AvroField:
    """Return a field for reading, whose default is null."""
    return AvroField(name=name, aliases=(), type=avro_type, has_default=True, default=None)


def _record_with_fields(written: AvroType, fields: list[AvroField]) -> AvroType:
    """Return a record of the same name with other fields."""
    return AvroType(kind="record", name=written.name, fields=fields)


def _without_logic(avro_type: AvroType) -> AvroType:
    """Return a type whose values are the raw numbers, texts and bytes.

    Records within are read whole, but for those that contain themselves, which no event has.
    """
    return _without_logical_types(avro_type, ())


def _without_logical_types(avro_type: AvroType, within: tuple[AvroType, ...]) -> AvroType:
    """Return a type without logical types; `within`: enclosing records."""
    if avro_type in within:
        raise AvroError(f"the record {avro_type.name} contains itself")
    if avro_type.kind == "union":
        branches = tuple(_without_logical_types(part, within) for part in avro_type.branches)
        return AvroType(kind="union", branches=branches)
    inner = (*within, avro_type)
    return AvroType(
        kind=avro_type.kind,
        name=avro_type.name,
        symbols=avro_type.symbols,
        size=avro_type.size,
        items=None if avro_type.items is None else _without_logical_types(avro_type.items, inner),
        fields=[
            _nullable_field(part.name, _without_logical_types(part.type, inner))
            for part in avro_type.fields
        ],
    )


def _like_writer_with_null(written: AvroType, record: AvroType) -> AvroType:
    """Return a record as the writer's type has it: alone, or in a union with null."""
    if written.kind != "union":
        return record
    return AvroType(kind="union", branches=(AvroType(kind="null"), record))


def _not_null(avro_type: AvroType) -> AvroType:
    """Return the type of a union that is not null."""
    others = [part for part in avro_type.branches if part.kind != "null"]
    return others[0] if others else avro_type


def _record_in(avro_type: AvroType) -> AvroType | None:
    """Return the record of a type; ``None`` if it has none."""
    inner = _not_null(avro_type)
    return inner if inner.kind == "record" else None


def _or_none(make: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function that builds an object from a record's values, or from null."""
    if isinstance(make, type):
        return lambda values: None if values is None else make(*values)
    return lambda values: None if values is None else make(values)


_OF_LOGICAL: Final[Mapping[str, str]] = {
    "decimal": DECIMAL,
    "date": "io.debezium.time.Date",
    "time-millis": "io.debezium.time.Time",
    "time-micros": "io.debezium.time.MicroTime",
    "timestamp-millis": "io.debezium.time.Timestamp",
    "timestamp-micros": "io.debezium.time.MicroTimestamp",
    "timestamp-nanos": "io.debezium.time.NanoTimestamp",
}


def _semantic_of(avro_type: AvroType, default_name: str | None) -> SemanticType:
    """Return the semantic type of a type: Connect's name of it, or that of its logical type."""
    logical = avro_type.logical.removeprefix("local-")
    scale = avro_type.scale if logical == "decimal" else None
    type_name = TEXT if avro_type.kind in ("string", "enum") else PLAIN
    name = avro_type.connect_name or _OF_LOGICAL.get(logical, "") or default_name or type_name
    return SemanticType(name, scale)


def _plain_values(written: AvroType) -> Callable[[Any], Any] | None:
    """Return a function that converts a type's records and maps to dicts, if it has any."""
    inner = _not_null(written)
    if inner.kind == "record":
        names = [part.name for part in inner.fields]
        makes = [_plain_values(part.type) for part in inner.fields]

        def to_dict(values: Any) -> Any:
            if values is None:
                return None
            parts = zip(names, makes, values, strict=True)
            return {
                name: value if convert is None else convert(value) for name, convert, value in parts
            }

        return to_dict
    if inner.kind == "map":
        return lambda pairs: None if pairs is None else dict(pairs)
    if inner.items is None or (item := _plain_values(inner.items)) is None:
        return None
    return lambda values: None if values is None else [item(value) for value in values]
