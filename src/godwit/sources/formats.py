"""Formats of messages, to decode and to encode: json, text, raw, avro and protobuf.

Connectors and other packages add formats by entry points of the group ``godwit.formats``, as `avro`
and `protobuf`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.model import plugins

if TYPE_CHECKING:
    from godwit.connect.formats import avro as avro  # noqa: PLC0414  for type checkers
    from godwit.connect.formats import debezium as debezium  # noqa: PLC0414
    from godwit.connect.formats import json as json  # noqa: PLC0414
    from godwit.connect.formats import protobuf as protobuf  # noqa: PLC0414
    from godwit.connect.formats import raw as raw  # noqa: PLC0414
    from godwit.connect.formats import text as text  # noqa: PLC0414
    from godwit.connect.formats import upsert as upsert  # noqa: PLC0414

__all__ = ["json", "raw", "text"]

_PLAIN = dict.fromkeys(__all__, "godwit.connect.formats")
_MEANT = {
    **dict.fromkeys(("bytes", "binary"), "gw.formats.raw"),
    **dict.fromkeys(("string", "utf8", "csv"), "gw.formats.text, and split it in a map"),
}

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Return a format of a connector or of another package; suggest one for an unknown name."""
        return plugins.member("formats", "gw.formats", name, __all__, _MEANT, own_modules=_PLAIN)


def __dir__() -> list[str]:
    return sorted({*__all__, *plugins.names("formats")})
