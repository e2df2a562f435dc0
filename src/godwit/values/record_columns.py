"""Many records of one class at once, in the tagged form: the bytes and values of one at a time.

Problem: a call, a dict and a look at each field for every record of an epoch's keys take more time
than the functions that change them.

Here a field is a column: its values are read, and written, for all records at once.  msgspec writes
a struct with the class's fields where `godwit.values.values` writes a dict of them, which are the
same bytes, and reads it.

Invariant: results are those of one record at a time, or an error is raised.  Then the caller goes
one by one: for records of several classes, with attributes that are no fields, without fields that
have defaults, or whose class runs code.
"""

from __future__ import annotations

import functools
import itertools
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from godwit.values.checks import maker_of
from godwit.values.types import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

_SHORT = 256  # bytes; a longer extension has a longer header

_encode = msgspec.msgpack.Encoder().encode
_extensions = msgspec.msgpack.Decoder(list[msgspec.msgpack.Ext]).decode


class UnlikeRecordsError(Exception):
    """Records, or their bytes, do not go together."""


class RecordColumns:
    """Writes and reads many records of class `cls`, as extensions with a code.

    `ext_hook`: reads extensions within them.
    """

    def __init__(self, cls: type, code: int, ext_hook: Callable[[int, memoryview], Any]) -> None:
        fields = fields_of(cls)
        self._code, self._struct = code, msgspec.defstruct(cls.__name__, fields, gc=False)
        self._read = msgspec.msgpack.Decoder(
            list[tuple[str, self._struct]],  # type: ignore[name-defined]
            ext_hook=ext_hook,
        ).decode
        self._getters, self._fields = [attrgetter(field) for field in fields], frozenset(fields)
        self._has_attributes = bool(getattr(cls, "__dictoffset__", 0))
        self._make_record = maker_of(cls)

    def encode(
        self,
        name: str,
        records: Sequence[Any],
        leaves: frozenset[type],
        to_msgpack: Callable[[Any], Any],
    ) -> list[bytes]:
        """Encode records under the name of their class.

        `to_msgpack` makes values of types other than `leaves` such that msgpack can encode them.
        """
        if self._has_attributes and not all(
            map(self._fields.issuperset, map(attrgetter("__dict__"), records))
        ):
            raise UnlikeRecordsError
        columns = [list(map(getter, records)) for getter in self._getters]
        for place, column in enumerate(columns):
            if not leaves.issuperset(map(type, column)):
                columns[place] = list(map(to_msgpack, column))
        structs = map(self._struct, *columns) if columns else (self._struct() for _ in records)
        return with_headers(self._code, map(_encode, zip(itertools.repeat(name), structs)))

    def decode(self, names: Collection[str], blobs: Sequence[bytes | memoryview]) -> list[Any]:
        """Decode records whose class goes by any of `names`."""
        if self._make_record is None:
            raise UnlikeRecordsError
        extensions = _extensions(join_blobs(blobs))
        if not {extension.code for extension in extensions} <= {self._code}:
            raise UnlikeRecordsError
        contents: list[Any] = [extension.data for extension in extensions]
        read = self._read(join_blobs(contents))
        if not {name for name, _ in read}.issubset(names):
            raise UnlikeRecordsError
        return list(map(self._make_record, [msgspec.structs.astuple(struct) for _, struct in read]))


def join_blobs(blobs: Sequence[bytes | memoryview]) -> bytes:
    """Join encoded values into one msgpack array, which is decoded by one call."""
    return b"".join([b"\xdd" + len(blobs).to_bytes(4, "big"), *blobs])


def with_headers(code: int, contents: Any) -> list[bytes]:
    """Return encoded contents as msgpack extensions of a code."""
    headers = _extension_headers(code)
    return [
        headers[len(content)] + content
        if len(content) < _SHORT
        else _encode(msgspec.msgpack.Ext(code, content))
        for content in contents
    ]


@functools.lru_cache(maxsize=64)
def _extension_headers(code: int) -> list[bytes]:
    """Return the first bytes of short extensions of a code, by the length of what follows."""
    return [
        _encode(msgspec.msgpack.Ext(code, bytes(length)))[: -length or None]
        for length in range(_SHORT)
    ]
