"""Messages of PostgreSQL's logical replication, in the format of its plugin ``pgoutput``.

Version 1 of the protocol: a transaction is a Begin, the changes of its rows, and a Commit, in the
order of commits. A Relation message describes a table before its first change, and again after it
was altered. An update has the new row, and of the former one nothing, its key if that changed, or
all of it (``REPLICA IDENTITY FULL``). A large value that an update did not touch is left out.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from godwit.connect.tables.rows import UNCHANGED

BEGIN, COMMIT, RELATION, TRUNCATE = b"BCRT"
INSERT, UPDATE, DELETE = b"IUD"
KEY, OLD, NEW = b"KON"

_EPOCH_US: Final = 946_684_800_000_000  # 2000-01-01, in microseconds of Unix time
_TEXT, _NULL, _LEFT_OUT = b"tnu"

Value = Any  # bytes, ``None`` or `UNCHANGED`


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a table at the time of a change."""

    name: str
    type_oid: int
    modifier: int
    in_key: bool  # of the replica identity


@dataclass(frozen=True, slots=True)
class Relation:
    """A table at the time of a change."""

    oid: int
    whole: bool  # changes have the whole former row
    columns: tuple[RelationColumn, ...]


def read_begin(message: bytes) -> tuple[int, int, int]:
    """Return position of the commit, its time (microseconds of Unix time), and transaction id."""
    lsn, time_us, xid = struct.unpack_from("!QqI", message, 1)
    return lsn, time_us + _EPOCH_US, xid


def read_commit(message: bytes) -> int:
    """Return the position after a commit."""
    (end,) = struct.unpack_from("!Q", message, 10)
    return int(end)


def read_relation(message: bytes) -> Relation:
    """Return the description of a table."""
    (oid,) = struct.unpack_from("!I", message, 1)
    _, offset = _read_text(message, 5)
    _, offset = _read_text(message, offset)
    whole = message[offset : offset + 1] == b"f"
    (num_columns,) = struct.unpack_from("!H", message, offset + 1)
    offset += 3
    columns = []
    for _ in range(num_columns):
        in_key = bool(message[offset] & 1)
        name, offset = _read_text(message, offset + 1)
        type_oid, modifier = struct.unpack_from("!Ii", message, offset)
        columns.append(RelationColumn(name, type_oid, modifier, in_key))
        offset += 8
    return Relation(oid, whole, tuple(columns))


def read_truncate(message: bytes) -> tuple[int, ...]:
    """Return the object ids of truncated tables."""
    (number,) = struct.unpack_from("!I", message, 1)
    return struct.unpack_from(f"!{number}I", message, 6)


def relation_of(message: bytes) -> int:
    """Return the object id of the table of an insert, update or delete."""
    return int.from_bytes(message[1:5], "big")


def num_signed_rows(message: bytes) -> int:
    """Return the maximum number of signed rows that an insert, update or delete yields."""
    return 2 if message[0] == UPDATE and message[5] != NEW else 1


def read_row(message: bytes, offset: int) -> tuple[list[Value], int]:
    """Return the values of a row that begins at `offset`, and the offset after it."""
    number = (message[offset] << 8) | message[offset + 1]
    offset += 2
    values: list[Value] = []
    append = values.append
    for _ in range(number):
        kind = message[offset]
        if kind == _TEXT:
            begin = offset + 5
            offset = begin + int.from_bytes(message[offset + 1 : begin], "big")
            append(message[begin:offset])
        else:
            append(None if kind == _NULL else UNCHANGED)
            offset += 1
    return values, offset


def read_change(message: bytes) -> tuple[list[Value] | None, bool, list[Value] | None]:
    """Return the former row, whether it is complete (else only its key), and the new row."""
    marker = message[5]
    if message[0] == INSERT:
        return None, True, read_row(message, 6)[0]
    if message[0] == DELETE:
        return read_row(message, 6)[0], marker == OLD, None
    if marker == NEW:
        return None, False, read_row(message, 6)[0]
    old_row, offset = read_row(message, 6)
    return old_row, marker == OLD, read_row(message, offset + 1)[0]


def _read_text(message: bytes, offset: int) -> tuple[str, int]:
    """Return the text that ends with a zero byte, and the offset after it."""
    end = message.index(0, offset)
    return message[offset:end].decode(), end + 1
