"""Formats of messages, to decode and to encode: json, text, raw, avro and protobuf.

Connectors and other packages add formats by entry points of the group ``godwit.formats``, as `avro`
and `protobuf`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.columns.types import SchemaLike, to_schema
from godwit.model import plugins
from godwit.model.frames import user_call
from godwit.sources.message_formats import JsonMessages, PlainMessages

if TYPE_CHECKING:
    from godwit.connect.formats import avro as avro  # noqa: PLC0414  for type checkers
    from godwit.connect.formats import debezium as debezium  # noqa: PLC0414
    from godwit.connect.formats import protobuf as protobuf  # noqa: PLC0414
    from godwit.connect.formats import upsert as upsert  # noqa: PLC0414

__all__ = ["json", "raw", "text"]

_MEANT = {
    **dict.fromkeys(("bytes", "binary"), "gw.formats.raw"),
    **dict.fromkeys(("string", "utf8", "csv"), "gw.formats.text, and split it in a map"),
}

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Return a format of a connector or of another package; suggest one for an unknown name."""
        return plugins.member("formats", "gw.formats", name, __all__, _MEANT)


def __dir__() -> list[str]:
    return sorted({*__all__, *plugins.names("formats")})


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
