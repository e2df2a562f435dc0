"""``gw.formats``: formats of messages, as users call them (`godwit.sources.message_formats`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.columns.types import SchemaLike, to_schema
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.sources.message_formats import BytesMessages, JsonMessages, TextMessages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from google.protobuf.message import Message

    from godwit.sources.avro_format import AvroMessages
    from godwit.sources.protobuf_format import ProtobufMessages


@user_call
def json(schema: SchemaLike | None = None) -> JsonMessages:
    """JSON objects, one field for each column.

    Times are ISO 8601 text, bytes are Base64, decimals are text or numbers. A field that a message
    lacks is null; fields that `schema` does not name are left out. A number that is no number
    (``NaN``) has no form in JSON, and is written as null.

    Parameters
    ----------
    schema
        Columns to read, as in ``"plane string, delay double"``; not needed to write.
    """
    return JsonMessages(None if schema is None else to_schema(schema, where="The JSON format"))


@user_call
def raw() -> BytesMessages:
    """Values as they are, in a column ``value`` of bytes; to write, the rows' only column."""
    return BytesMessages()


@user_call
def text() -> TextMessages:
    """Values as text in UTF-8, in a column ``value``; to write, the rows' only column."""
    return TextMessages()


@user_call
def avro(
    schema: str | Mapping[str, Any],
    *,
    registry: str | Mapping[int, str | Mapping[str, Any]] | None = None,
    subject: str | None = None,
) -> AvroMessages:
    """Avro records, bare or in the framing of a schema registry.

    Parameters
    ----------
    schema
        The record's schema, as JSON text or a mapping: its fields are the columns. Messages that
        were written with another version of it are read as this one, by Avro's rules.
    registry
        Where the schema of a message's id is found: the registry's URL, or a mapping of ids to
        schemas. ``None``: messages have no framing and are written with `schema`.
    subject
        To write with a registry's URL: the subject that `schema` is registered under.

    Raises
    ------
    InvalidFlowError
        If fastavro is not installed, or `schema` is no schema of a record.
    """
    try:
        from godwit.sources.avro_format import AvroMessages  # noqa: PLC0415 - fastavro is optional
    except ImportError as error:
        raise _missing("Avro", "fastavro", error) from error
    return AvroMessages(schema, registry=registry, subject=subject)


@user_call
def protobuf(
    message: type[Message] | str,
    *,
    descriptors: bytes | Path | None = None,
    framed: bool = False,
    schema_id: int | None = None,
) -> ProtobufMessages:
    """Protocol Buffers messages, bare or in the framing of a schema registry.

    Parameters
    ----------
    message
        The generated class, or the message's full name in `descriptors`.
    descriptors
        The descriptor set that ``protoc --include_imports --descriptor_set_out`` writes: its bytes,
        or its path.
    framed
        Whether messages begin with a registry's framing (a zero byte, the schema's id, the
        message's place in its file).
    schema_id
        To write framed: the id of the schema in the registry.

    Raises
    ------
    InvalidFlowError
        If protobuf is not installed, or the message is not found.
    """
    try:
        from godwit.sources.protobuf_format import ProtobufMessages  # noqa: PLC0415 - optional too
    except ImportError as error:
        raise _missing("Protobuf", "protobuf", error) from error
    return ProtobufMessages(message, descriptors=descriptors, framed=framed, schema_id=schema_id)


def _missing(name: str, package: str, error: ImportError) -> InvalidFlowError:
    return InvalidFlowError(
        f"The {name} format needs {package}, which cannot be imported: {error}.",
        remedy="pip install 'godwit-streams[kafka]'",
        package=package,
    )
