"""Events of MariaDB's binary log, with row events of complete rows.

A transaction is a GTID event, then for each statement the descriptions of its tables and the rows
that it changed, and an event that ends it. A statement that changes tables themselves is a
transaction of its own, and is text.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from godwit.connect.mariadb.types import (
    BIT,
    BLOB,
    BLOB_COMPRESSED,
    DATETIME2,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    NEWDECIMAL,
    SET,
    STRING,
    TIME2,
    TIMESTAMP2,
    VAR_STRING,
    VARCHAR,
    VARCHAR_COMPRESSED,
    Charset,
    LogColumn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

QUERY, ROTATE, FORMAT, XID, TABLE_MAP, INCIDENT, XA_PREPARE = 2, 4, 15, 16, 19, 26, 38
GTID, QUERY_COMPRESSED, EXECUTE_LOAD = 162, 165, 18
INSERT, UPDATE, DELETE = b"IUD"
ROWS: Final = {  # type of an event → change, version, and whether it is compressed
    **{23 + n: (kind, 1, False) for n, kind in enumerate(b"IUD")},
    **{30 + n: (kind, 2, False) for n, kind in enumerate(b"IUD")},
    **{166 + n: (kind, 1, True) for n, kind in enumerate(b"IUD")},
    **{169 + n: (kind, 2, True) for n, kind in enumerate(b"IUD")},
}
WITHOUT_CHANGES: Final = frozenset((3, 5, 13, 14, 17, 27, 29, 160, 161, 163, 164))
STANDALONE, PREPARED_XA = 1, 64

_HEADER: Final = 20  # with the byte before an event
_CHECKSUM: Final = 4
_ARTIFICIAL: Final = 0x20
_META_1: Final = {FLOAT, DOUBLE, BLOB, GEOMETRY, TIMESTAMP2, DATETIME2, TIME2, BLOB_COMPRESSED}
_META_2: Final = {VARCHAR, BIT, NEWDECIMAL, STRING, VAR_STRING, ENUM, SET, VARCHAR_COMPRESSED}
_TEXTS: Final = {STRING, VAR_STRING, VARCHAR, BLOB, GEOMETRY, BLOB_COMPRESSED, VARCHAR_COMPRESSED}
_TYPES: Final = _META_1 | _META_2 | {1, 2, 3, 8, 9, 10, 13}  # the rest is not described
_NUMBERS: Final = {1, 2, 3, 4, 5, 8, 9, 13, NEWDECIMAL}

Row = list[bytes | None]


class BinlogEvent(NamedTuple):
    """An event."""

    kind: int
    time_s: int
    server_id: int
    end: int  # position in its file after it
    flags: int
    body: bytes


class BadChecksumError(ValueError):
    """An event is damaged."""


def read_event(data: bytes, *, has_checksum: bool) -> BinlogEvent:
    """Return an event, as the server sends it."""
    time_s, kind, server_id, _, end, flags = struct.unpack_from("<IBIIIH", data, 1)
    body = data[_HEADER:]
    if kind == FORMAT:
        has_checksum = True
    if has_checksum:
        body, checksum = body[:-_CHECKSUM], body[-_CHECKSUM:]
        if kind != FORMAT and not flags & _ARTIFICIAL:
            computed = zlib.crc32(data[1:-_CHECKSUM])
            if computed != int.from_bytes(checksum, "little"):
                msg = f"an event of the binary log is damaged, before position {end}"
                raise BadChecksumError(msg)
    return BinlogEvent(kind, time_s, server_id, end, flags, body)


def checksums_after(event: BinlogEvent) -> bool:
    """Return whether events of a file have checksums; `event`: its format description."""
    return event.body[-1] == 1


def read_gtid(event: BinlogEvent) -> tuple[tuple[int, int, int], int]:
    """Return domain, server and number of a transaction, and flags."""
    number, domain, flags = struct.unpack_from("<QIB", event.body)
    return (domain, event.server_id, number), flags


def read_statement(event: BinlogEvent) -> tuple[str, str]:
    """Return a statement, and the database that it was executed in."""
    body = event.body
    length, status = body[8], int.from_bytes(body[11:13], "little")
    begin = 13 + status + (13 if event.kind == EXECUTE_LOAD else 0)
    text = body[begin + length + 1 :]
    if event.kind == QUERY_COMPRESSED:
        text = _decompress(text)
    return _decode_text(text), _decode_text(body[begin : begin + length])


def _decode_text(data: bytes) -> str:
    """Return a text, which is in UTF-8 unless a client used another character set."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _decompress(data: bytes) -> bytes:
    """Decompress bytes; the first one has the number of bytes of their length."""
    if data[0] & 0x70:
        msg = "the binary log is not compressed by zlib"
        raise ValueError(msg)
    return zlib.decompress(data[1 + (data[0] & 7) :])


class _Reader:
    """Reader of consecutive numbers and texts."""

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self._data, self.offset = data, offset

    @property
    def more(self) -> bool:
        """True if there is more to read."""
        return self.offset < len(self._data)

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        self.offset += size
        return self._data[self.offset - size : self.offset]

    def number(self) -> int:
        """Return a number whose first byte may say how many bytes follow."""
        first = self.take(1)[0]
        size = {252: 2, 253: 3, 254: 8}.get(first)
        return first if size is None else int.from_bytes(self.take(size), "little")

    def text(self) -> bytes:
        """Return bytes that follow their length."""
        return self.take(self.number())


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table at the time of a change; `keys`: positions of its primary key."""

    schema: str
    name: str
    columns: tuple[LogColumn, ...]
    keys: tuple[int, ...]


class UnknownMariaTypeError(ValueError):
    """A table has a column of a type that the log does not describe."""


def table_id(body: bytes) -> int:
    """Return the number by which a statement's events refer to a table."""
    return int.from_bytes(body[:6], "little")


def name_of_table(body: bytes) -> tuple[str, str]:
    """Return database and name of the table that an event describes."""
    schema = body[9 : 9 + body[8]]
    begin = 9 + len(schema) + 1
    return schema.decode(), body[begin + 1 : begin + 1 + body[begin]].decode()


def read_table_map(body: bytes, charset: Callable[[int], Charset]) -> TableMap:
    """Return the description of a table; `charset`: returns the character set of a collation."""
    schema, name = name_of_table(body)
    reader = _Reader(body, 8 + 1 + body[8] + 1)
    reader.take(reader.number() + 1)
    codes = list(reader.take(reader.number()))
    if unknown := set(codes) - _TYPES:
        raise UnknownMariaTypeError(min(unknown))
    meta_reader = _Reader(reader.text())
    meta = [_read_meta(meta_reader, codes, position) for position in range(len(codes))]
    reader.take((len(codes) + 7) // 8)
    fields: dict[int, bytes] = {}
    while reader.more:
        kind = reader.take(1)[0]
        fields[kind] = reader.text()
    numeric_positions = [position for position, code in enumerate(codes) if code in _NUMBERS]
    unsigned_bits = fields.get(1, b"")
    unsigned = (
        {
            position_
            for index, position_ in enumerate(numeric_positions)
            if unsigned_bits[index >> 3] << (index & 7) & 0x80
        }
        if unsigned_bits
        else set()
    )
    collations = {
        **_collations(
            fields, 2, [position_ for position_, code in enumerate(codes) if code in _TEXTS]
        ),
        **_collations(
            fields, 10, [position_ for position_, code in enumerate(codes) if code in {ENUM, SET}]
        ),
    }
    names = list(_packed_texts(fields.get(4, b"")))
    labels = {
        position: values
        for code, kind in ((SET, 5), (ENUM, 6))
        for position, values in zip(
            [position_ for position_, code_ in enumerate(codes) if code_ == code],
            _packed_text_lists(fields.get(kind, b"")),
            strict=False,
        )
    }
    columns = []
    for position, code in enumerate(codes):
        column_charset = (
            charset(collations[position]) if position in collations else Charset("binary")
        )
        decode = column_charset.decoder() if column_charset.known else None
        value_labels = [decode(label) if decode else label for label in labels.get(position, ())]
        column = LogColumn(
            names[position].decode() if names else "",
            code,
            meta[position],
            position in unsigned,
            column_charset,
            tuple(value_labels),
        )
        columns.append(column)
    keys = (
        list(_packed_integers(fields.get(8, b"")))
        or list(_packed_integers(fields.get(9, b"")))[::2]
    )
    return TableMap(schema, name, tuple(columns), tuple(keys))


def _read_meta(reader: _Reader, codes: list[int], place: int) -> int:
    """Return the description of a column's type; correct the type of an enumeration or set."""
    code = codes[place]
    if code in _META_1:
        return reader.take(1)[0]
    if code not in _META_2:
        return 0
    first, second = reader.take(2)
    if code not in {STRING, ENUM, SET}:
        return first | second << 8
    if first & 0x30 != 0x30:
        return second | ((first & 0x30) ^ 0x30) << 4
    codes[place] = first
    return second


def _collations(fields: Mapping[int, bytes], kind: int, places: Sequence[int]) -> dict[int, int]:
    """Return columns → numbers of their collations, given as a default or for each column."""
    if kind + 1 in fields:
        return dict(zip(places, _packed_integers(fields[kind + 1]), strict=True))
    if kind not in fields:
        return {}
    default, *others = _packed_integers(fields[kind])
    different = dict(zip(others[::2], others[1::2], strict=True))
    return {place: different.get(n, default) for n, place in enumerate(places)}


def _packed_integers(data: bytes) -> Iterator[int]:
    reader = _Reader(data)
    while reader.more:
        yield reader.number()


def _packed_texts(data: bytes) -> Iterator[bytes]:
    reader = _Reader(data)
    while reader.more:
        yield reader.text()


def _packed_text_lists(data: bytes) -> Iterator[tuple[bytes, ...]]:
    reader = _Reader(data)
    while reader.more:
        yield tuple(reader.text() for _ in range(reader.number()))


# -- rows -----------------------------------------------------------------------------------------


class PartialRowsError(ValueError):
    """Rows lack columns."""


def read_changes(event: BinlogEvent, sizes: Sequence[int]) -> list[bytes]:
    """Return the changes of rows: kind, former row and new row of each.

    `sizes`: of the columns, `LogColumn.size`.
    """
    kind, version, compressed = ROWS[event.kind]
    reader = _Reader(event.body, 8)
    if version > 1:
        extra = int.from_bytes(reader.take(2), "little")
        reader.take(extra - 2)
    number = reader.number()
    bitmaps = [reader.take((number + 7) // 8) for _ in range(2 if kind == UPDATE else 1)]
    for bitmap in bitmaps:
        if number != len(sizes) or any(not bitmap[n >> 3] >> (n & 7) & 1 for n in range(number)):
            raise PartialRowsError
    data = event.body[reader.offset :]
    if compressed:
        data = _decompress(data)
    changes, offset = [], 0
    prefix = bytes([kind])
    while offset < len(data):
        end = _row_end(data, offset, sizes)
        if kind == UPDATE:
            end = _row_end(data, end, sizes)
        changes.append(prefix + data[offset:end])
        offset = end
    return changes


def _row_end(data: bytes, offset: int, sizes: Sequence[int]) -> int:
    """Return where a row ends."""
    nulls = offset
    offset += (len(sizes) + 7) // 8
    for place, size in enumerate(sizes):
        if data[nulls + (place >> 3)] >> (place & 7) & 1:
            continue
        if size < 0:
            offset += int.from_bytes(data[offset : offset - size], "little") - size
        else:
            offset += size
    return offset


def _read_row(data: bytes, offset: int, sizes: Sequence[int]) -> tuple[Row, int]:
    """Return the values of a row, and where it ends."""
    nulls = offset
    offset += (len(sizes) + 7) // 8
    row: Row = []
    for place, size in enumerate(sizes):
        if data[nulls + (place >> 3)] >> (place & 7) & 1:
            row.append(None)
            continue
        if size < 0:
            begin = offset - size
            offset = begin + int.from_bytes(data[offset:begin], "little")
        else:
            begin = offset
            offset += size
        row.append(data[begin:offset])
    return row, offset


def read_change(message: bytes, sizes: Sequence[int]) -> tuple[Row | None, Row | None]:
    """Return the former and the new row of a change."""
    row, offset = _read_row(message, 1, sizes)
    if message[0] == INSERT:
        return None, row
    if message[0] == DELETE:
        return row, None
    return row, _read_row(message, offset, sizes)[0]


# -- statements -----------------------------------------------------------------------------------

_SQL: Final = re.compile(
    r"/\*(?!M?!).*?\*/|/\*M?!\d*|\*/|--\s[^\n]*|#[^\n]*"  # comments; those with SQL in them are SQL
    r"|(?P<text>'(?:[^'\\]|\\.|'')*')"
    r"|`(?P<quoted>(?:[^`]|``)+)`|\"(?P<double>(?:[^\"]|\"\")+)\""
    r"|(?P<word>[\w$]+)|(?P<sign>[^\s\w])",
    re.DOTALL,
)
_ROWS_LEAVE: Final = re.compile(
    r"\b(?:EXCHANGE|TRUNCATE|DROP|DISCARD|IMPORT|CONVERT)\s(?:PARTITION|TABLESPACE|TABLE)\b"
)
_IF: Final = {"IF", "EXISTS"}
_NOT_COLUMNS: Final = {"INDEX", "KEY", "PRIMARY", "FOREIGN", "CONSTRAINT", "CHECK", "DEFAULT"}
_RENAMES: Final = re.compile(r"\bRENAME\s(?!COLUMN\b|INDEX\b|KEY\b)")


class Effect(NamedTuple):
    """Effect of a statement on a table.

    `what`: the table is ``"truncated"``, ``"gone"`` or ``"altered"``, or its rows are changed by a
    ``"statement"``. `columns`: those that are dropped or renamed.
    """

    table: int
    what: str
    columns: frozenset[str] = frozenset()


def effect_of(statement: str, schema: str, tables: Sequence[tuple[str, str]]) -> Effect | None:
    """Return the effect of a statement on one of the tables, ``None`` if it has none.

    `schema`: database in which it is executed; `tables`: databases and names. It is read carefully
    rather than exactly: what names a table is taken to be about it.
    """
    tokens = list(_statement_tokens(statement))
    words = [word.upper() for word, _ in tokens]
    if words[:2] == ["SET", "STATEMENT"] and "FOR" in words:
        begin = words.index("FOR") + 1
        tokens, words = tokens[begin:], words[begin:]
    if not words:
        return None
    if words[0] == "DROP" and words[1:2] in (["DATABASE"], ["SCHEMA"]):
        dropped = tokens[-1][0].casefold()
        number = next(
            (
                index
                for index, table_name in enumerate(tables)
                if table_name[0].casefold() == dropped
            ),
            None,
        )
        return None if number is None else Effect(number, "gone")
    number = next(
        (
            index
            for index, table_name in enumerate(tables)
            if _is_name_of_table(tokens, schema, *table_name)
        ),
        None,
    )
    if number is None:
        return None
    text = " ".join("?" if quoted else w for w, (_, quoted) in zip(words, tokens, strict=True))
    if words[0] in {"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH", "CALL"}:
        return Effect(number, "statement")
    if words[0] == "TRUNCATE":
        return Effect(number, "truncated")
    if words[0] == "RENAME" or (words[0] == "DROP" and words[1:2] in (["TABLE"], ["TABLES"])):
        return Effect(number, "gone")
    is_replaced = text.startswith("CREATE OR REPLACE TABLE")
    if not is_replaced and (words[0] != "ALTER" or "TABLE" not in words[:4]):
        return None
    if not is_replaced and _ROWS_LEAVE.search(text):
        return Effect(number, "truncated")
    name = [token for token in tokens[words.index("TABLE") + 1 :] if token[0].upper() not in _IF]
    name = name[: 3 if name[1:2] == [(".", False)] else 1]
    number = next(
        (
            index
            for index, table_name in enumerate(tables)
            if _is_name_of_table(name, schema, *table_name)
        ),
        None,
    )
    if number is None:
        return None
    if is_replaced or _RENAMES.search(text):
        return Effect(number, "gone")
    return Effect(number, "altered", frozenset(_lost_columns([word for word, _ in tokens])))


def _statement_tokens(statement: str) -> Iterator[tuple[str, bool]]:
    """Yield words, names and signs of a statement, each with whether it is a quoted name."""
    for match in _SQL.finditer(statement):
        kind = match.lastgroup
        if kind in {"quoted", "double"}:
            mark = "`" if kind == "quoted" else '"'
            yield match[kind].replace(mark * 2, mark), True
        elif kind in {"word", "sign"}:
            yield match[kind], False


def _is_name_of_table(
    tokens: Sequence[tuple[str, bool]], default: str, schema: str, name: str
) -> bool:
    """Return whether tokens have the name of a table."""
    words = [word.casefold() for word, _ in tokens]
    schema, name = schema.casefold(), name.casefold()
    for place, word in enumerate(words):
        if word == name:
            qualified = place > 1 and words[place - 1] == "."
            if (words[place - 2] if qualified else default.casefold()) == schema:
                return True
    return False


def _lost_columns(words: Sequence[str]) -> Iterator[str]:
    """Yield the columns that an ``ALTER TABLE`` drops or renames, or whose name it reuses."""
    for place, word in enumerate(words):
        kind = word.upper()
        if kind not in {"DROP", "RENAME", "CHANGE"}:
            continue
        names = [
            following
            for following in words[place + 1 : place + 8]
            if following.upper() not in {"COLUMN", "IF", "EXISTS"}
        ]
        if kind == "DROP" and names and names[0].upper() not in _NOT_COLUMNS:
            yield names[0]
        elif kind == "CHANGE" and names[:1] != names[1:2]:
            yield from names[:2]
        elif kind == "RENAME" and names[1:2] and names[1].upper() == "TO":
            yield from (names[0], *names[2:3])
