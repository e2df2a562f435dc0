"""Formats of messages with a schema of their own: ``gw.formats.avro`` and ``protobuf``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.naming import needs_package

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from google.protobuf.message import Message

    from godwit.connect.formats.avro_format import AvroMessages
    from godwit.connect.formats.protobuf_format import ProtobufMessages


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
        null, a union of several types, a record that holds itself, a decimal of over 38 digits.

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

    Examples
    --------
    >>> from google.protobuf.timestamp_pb2 import Timestamp  # or a class that protoc made
    >>> gw.sources.kafka("broker:9092", "times", value=gw.formats.protobuf(Timestamp)).schema.names
    ['seconds', 'nanos']
    """
    with needs_package("The Protobuf format", "protobuf", "kafka", InvalidFlowError):
        from godwit.connect.formats.protobuf_format import ProtobufMessages  # noqa: PLC0415 - optional too
    return ProtobufMessages(message, descriptors=descriptors, framed=framed, schema_id=schema_id)
