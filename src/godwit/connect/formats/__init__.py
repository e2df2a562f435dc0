"""Formats of messages: ``gw.formats.json``, ``raw``, ``text``, ``avro``, ``protobuf`` and more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.columns.types import to_schema
from godwit.connect.formats.message_formats import JsonMessages, PlainMessages
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import needs_package

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from google.protobuf.message import Message

    from godwit.columns.types import SchemaLike
    from godwit.connect.formats.avro_format import AvroMessages
    from godwit.connect.formats.debezium_format import DebeziumMessages
    from godwit.connect.formats.message_formats import MessageFormat
    from godwit.connect.formats.protobuf_format import ProtobufMessages
    from godwit.connect.formats.upsert_format import UpsertMessages


@user_call
def avro(
    schema: str | Mapping[str, Any],
    *,
    registry: str | Mapping[int, str | Mapping[str, Any] | Sequence[Any]] | None = None,
    subject: str | None = None,
) -> AvroMessages:
    """Format of Avro records, with or without the framing of a schema registry.

    Parameters
    ----------
    schema
        Schema of the record, as JSON text or a mapping; its fields are the columns. Messages that
        were written with another version are converted to this one by Avro's schema resolution.
    registry
        URL of the schema registry, or a mapping of schema id → schema, to find the writer's schema
        of a message. ``None``: messages have no framing, and were written with `schema`.
    subject
        Subject under which `schema` is registered; needed for writing with a registry's URL.

    Raises
    ------
    InvalidFlowError
        If `schema` is not an Avro schema of a record, or a field has a type that no column has:
        null, a union of several types, a record that contains itself, a decimal of over 38 digits.

    Notes
    -----
    - ``boolean``, ``int``, ``long``, ``float``, ``double``, ``string``, ``bytes``: ``boolean``,
      ``int``, ``bigint``, ``float``, ``double``, ``string``, ``binary``
    - ``enum``, ``fixed``: ``string``, ``binary``
    - ``decimal`` in bytes or fixed: ``decimal``, of at most 38 digits
    - ``uuid`` in string or fixed(16): ``string``, in lower case with hyphens
    - ``date``, ``time-millis``, ``time-micros``: ``date``, and times of day in the same unit
    - ``timestamp-millis``, ``-micros``, ``local-timestamp-millis``, ``-micros``: timestamps in UTC,
      or without a time zone, in the same unit
    - ``timestamp-nanos``, ``local-timestamp-nanos``: ``bigint``, the number of nanoseconds
    - ``duration``: ``binary``, 12 bytes
    - ``array``, ``map``, ``record``: ``array``, ``map``, ``struct``, with the same rules for their
      content
    - a union of ``null`` and one type: the column of that type, null for ``null``

    - Promotions, aliases and defaults follow the specification. A logical type that does not fit
      its type, or is not known, is ignored.
    - If both schemas have a logical type, the writer's unit and scale say what the number means.
      More precise times are cut to the reader's unit; a decimal with digits that the reader's scale
      lacks is unreadable.
    - A record, enum or fixed of another name is unreadable, unless the reader's schema has that
      name as an alias.
    - A reader's schema with the type ``null``, a union of several types, or a record that contains
      itself is refused: leave the field out. Messages may have such fields.

    Examples
    --------
    >>> plane = {"type": "record", "name": "Plane", "fields": [{"name": "seats", "type": "int"}]}
    >>> gw.sources.kafka("broker:9092", "planes", value=gw.formats.avro(plane)).schema.names
    ['seats']
    """
    from godwit.connect.formats.avro_format import AvroMessages  # noqa: PLC0415 - few flows need it

    return AvroMessages(schema, registry=registry, subject=subject)


@user_call
def protobuf(
    message: type[Message] | str,
    *,
    descriptors: bytes | Path | None = None,
    framed: bool = False,
    schema_id: int | None = None,
) -> ProtobufMessages:
    """Format of Protocol Buffers messages, with or without the framing of a schema registry.

    Parameters
    ----------
    message
        Generated class of the message, or the message's full name in `descriptors`.
    descriptors
        Descriptor set from ``protoc --include_imports --descriptor_set_out``, as bytes or as a
        path; needed if `message` is a name.
    framed
        ``True``: messages begin with a schema registry's framing: a zero byte, the schema's id and
        the message's index in its file.
    schema_id
        Id of the schema in the registry; needed for writing framed messages.

    Raises
    ------
    InvalidFlowError
        If protobuf is not installed, or the message is not found.

    Notes
    -----
    **Protobuf.** A field that a message lacks is null if it has presence, and the default of its
    type otherwise. Values of an enum are names. ``google.protobuf.Timestamp`` is a timestamp in
    UTC, cut to microseconds. Unknown fields are ignored.

    Examples
    --------
    >>> from google.protobuf.timestamp_pb2 import Timestamp  # or a class that protoc made
    >>> gw.sources.kafka("broker:9092", "times", value=gw.formats.protobuf(Timestamp)).schema.names
    ['seconds', 'nanos']
    """
    with needs_package("The Protobuf format", "protobuf", "kafka", InvalidFlowError):
        from godwit.connect.formats.protobuf_format import ProtobufMessages  # noqa: PLC0415 - optional too
    return ProtobufMessages(message, descriptors=descriptors, framed=framed, schema_id=schema_id)


@user_call
def debezium(
    schema: SchemaLike,
    *,
    key: str | Sequence[str],
    before: bool = False,
    include: Sequence[str] | Mapping[str, str] = (),
    types: Mapping[str, str] | None = None,
    registry: str | Mapping[int, str | Mapping[str, Any] | Sequence[Any]] | None = None,
    tombstones: bool = True,
) -> DebeziumMessages:
    """Format of Debezium's change events, in JSON with or without schemas, or in Avro.

    Rows are upserts and deletes by key, with a column ``change`` (1 or -1), for
    ``key_by(...).latest()``; and a column ``unchanged``: names of large columns that an update
    leaves out, since they stay as they are. A message without a value deletes the row of its key.
    Heartbeats are ignored. An event that cannot be read, or that truncates the table, goes by
    ``on_bad=`` of the source.

    A Kafka sink writes changes and upserts as events in JSON without schemas: one for each key of
    an epoch, of op ``c``, ``u`` or ``d``. Columns that `include` names are left out.

    Parameters
    ----------
    schema
        Columns of the table to read, as in ``"id long, amount decimal(10, 2)"``; others are
        ignored. A column that an event does not have is null.
    key
        Columns of the primary key.
    before
        ``True``: events have the whole row before each update and delete (PostgreSQL: ``REPLICA
        IDENTITY FULL``). Rows are changes then, which aggregates take as they are, without
        ``latest`` and its state.
    include
        Further columns: ``"op"``; ``"time"`` of the change in the database; ``"snapshot"``;
        ``"position"`` in the database's log, which grows; ``"transaction"``, and ``"order"`` within
        it, if Debezium sends them. And fields of events by name: ``"source.table"`` is a column
        ``source_table``, ``"transaction.data_collection_order"`` a column
        ``transaction_data_collection_order``. A mapping renames them, as in
        ``{"time": "changed_at"}``.
    types
        Semantic types of columns where an event does not name them, if they are not Debezium's
        defaults, as in ``{"created": "io.debezium.time.Timestamp"}``. By default dates are days,
        timestamps microseconds or ISO 8601 text, decimals Base64 or numbers; ``"string"`` for
        decimals as text. Bytes are Base64; ``"hex"`` or ``"base64-url-safe"`` as in Debezium's
        ``binary.handling.mode``.
    registry
        URL of the schema registry, or a mapping of schema id → schema: events and keys are Avro in
        its framing. ``None``: they are JSON.
    tombstones
        ``True``: a sink writes a message without a value behind each delete, so that a compacted
        topic forgets the key.

    Raises
    ------
    InvalidFlowError
        If a column of the key does not exist, a name is taken, a type is not one of events, or
        `registry` is not a URL.

    Notes
    -----
    All modes of ``decimal.handling.mode``, ``time.precision.mode``, ``interval.handling.mode`` and
    ``binary.handling.mode`` are read. Types in the database, and those of columns:

    - numeric: ``decimal``; ``string`` with ``types={"c": "string"}``
    - dates, timestamps: ``date``, ``timestamp``
    - times of day, years: ``int`` or ``long``, in the event's unit; ``isostring`` as ``string``
    - intervals: an interval of days, or ``long``; ISO 8601 as ``string``
    - bytes, bits: ``binary``; bits lowest byte first
    - JSON, XML, UUID, enumerations, sets, structs, maps: ``string``
    - geometry: ``binary`` (its WKB), or ``string`` (JSON)
    - arrays: ``array<...>`` of any of these

    Examples
    --------
    >>> events = gw.formats.debezium("id long, amount long", key="id", include={"time": "at"})
    >>> gw.sources.kafka("broker:9092", "shop.public.orders", value=events).schema.names
    ['id', 'amount', 'at', 'change', 'unchanged']
    """
    from godwit.connect.formats.debezium_format import DebeziumMessages  # noqa: PLC0415 - few flows need it

    kinds_or_names = [include] if isinstance(include, str) else include
    included = (
        dict(kinds_or_names)
        if hasattr(kinds_or_names, "keys")
        else {field: field.replace(".", "_") for field in kinds_or_names}
    )
    schemas = None
    if registry is not None:
        from godwit.connect.formats.avro_format import as_schemas  # noqa: PLC0415 - few flows need it

        schemas = as_schemas(registry)
    return DebeziumMessages(
        to_schema(schema, where="The Debezium format"),
        key=(key,) if isinstance(key, str) else tuple(key),
        has_before=before,
        include=included,
        types=types or {},
        schemas=schemas,
        tombstones=tombstones,
    )


@user_call
def upsert(value: MessageFormat, *, key: SchemaLike | MessageFormat) -> UpsertMessages:
    """Format of compacted topics: a message replaces the row of its key, a tombstone deletes it.

    Rows have the columns of the key, those of the value, and ``change``: 1, or -1 for a message
    without a value. ``key_by(...).latest()`` makes changes of them.

    Parameters
    ----------
    value
        Format of the values, such as ``gw.formats.json("name string, price double")``.
    key
        Columns of the key, as in ``"sku string"``: keys are JSON objects, or a plain text or number
        if there is one column. Or a format, such as ``gw.formats.avro(...)``. If a value has
        columns of these names too, the key's count.

    Raises
    ------
    InvalidFlowError
        If the columns of the value or the key are not known, or one is called ``change``.

    Examples
    --------
    >>> rows = gw.formats.upsert(gw.formats.json("price double"), key="sku string")
    >>> gw.sources.kafka("broker:9092", "prices", value=rows).schema.names
    ['sku', 'price', 'change']
    """
    from godwit.connect.formats.message_formats import MessageFormat  # noqa: PLC0415
    from godwit.connect.formats.upsert_format import KeyMessages, UpsertMessages, check_key  # noqa: PLC0415

    if not isinstance(key, MessageFormat):
        key = KeyMessages(check_key(to_schema(key, where="The key of an upsert format")))
    return UpsertMessages(value, key)


@user_call
def json(schema: SchemaLike | None = None) -> JsonMessages:
    """Format of messages that are JSON objects, with one field per column.

    Times are ISO 8601 text, with digits below a microsecond cut; bytes are Base64, decimals are
    text or numbers, and whole numbers may be written as ``1.0`` or ``1e2``. A field that a message
    lacks is null; fields that are not in `schema` are ignored. ``NaN`` is written as null, since
    JSON has no form for it.

    Parameters
    ----------
    schema
        Columns to read, as in ``"plane string, delay double"``; not needed for writing.

    Examples
    --------
    >>> reading = gw.formats.json("plane string, delay double")
    >>> gw.sources.kafka("broker:9092", "flights", value=reading).schema.names
    ['plane', 'delay']
    """
    return JsonMessages(None if schema is None else to_schema(schema, where="The JSON format"))


@user_call
def raw() -> PlainMessages:
    """Format of unparsed bytes: read as a column ``value``; rows to write have one column.

    Examples
    --------
    >>> gw.sources.kafka("broker:9092", "flights", value=gw.formats.raw()).schema.names
    ['value']
    """
    return PlainMessages("bytes")


@user_call
def text() -> PlainMessages:
    """Format of UTF-8 text: read as a string column ``value``; rows to write have one column.

    Examples
    --------
    >>> gw.sources.kafka("broker:9092", "flights", value=gw.formats.text()).schema.names
    ['value']
    """
    return PlainMessages("text")
