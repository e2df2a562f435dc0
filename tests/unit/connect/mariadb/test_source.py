"""The source of a MariaDB table's changes: types, options, and what it refuses, on a server."""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from tests.mariadb_server import running_mariadb

import godwit as gw
from godwit.connect.tables.rows import Changes
from godwit.model.errors import InvalidFlowError, SourceError

pymysql = pytest.importorskip("pymysql", reason="MariaDB tests need PyMySQL.")

from godwit.connect.mariadb import binlog
from godwit.connect.mariadb.server import Server, parse_dsn, query
from godwit.connect.mariadb.source import MariaDBSource
from godwit.connect.mariadb.types import column_from_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Execute statements on a connection of its own; return the rows of the last one."""
    with contextlib.closing(Server(parse_dsn(url, ""), "").connect()) as connection:
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            rows = query(connection, statement)
        return rows


@pytest.fixture
def make(mariadb: str) -> Iterator[Callable[..., MariaDBSource]]:
    """Yield a function that makes sources, which are closed at the end."""
    sources: list[MariaDBSource] = []

    def function(table: Any = "t", **options: Any) -> MariaDBSource:
        options = {"timeout": "3 seconds", **options}
        sources.append(gw.sources.mariadb(options.pop("url", mariadb), table, **options))
        return sources[-1]

    yield function
    for source in sources:
        source.close()


def rows_between(source: MariaDBSource, begin: Any, end: Any) -> list[dict[str, Any]]:
    names = source.schema.names
    splits = pickle.loads(pickle.dumps(source.splits(begin, end, 2)))
    return [row for s in splits for b in source.read(s, names) for row in b.to_pylist()]


def snapshot_and_place(source: MariaDBSource) -> tuple[list[dict[str, Any]], Any]:
    """Read a new source's snapshot; return its rows, and the position after it."""
    source.open(None)
    rows: list[dict[str, Any]] = []
    position = source.start()
    while position["snapshot"] is not None:
        after = source.latest(position)
        rows += rows_between(source, position, after)
        source.committed(after)
        position = after
    return rows, position


def changes_after(source: MariaDBSource, position: Any) -> tuple[list[dict[str, Any]], Any]:
    """Return the changes that are committed, and the position after them."""
    rows: list[dict[str, Any]] = []
    end = source.end(position)
    while (after := source.latest(position, until=end)) != position:
        rows += rows_between(source, position, after)
        position = after
    return rows, position


def changes_before_error(source: MariaDBSource, position: Any) -> tuple[list[Any], str]:
    """Return the keys of the changes that are read before an error, and the error."""
    keys: list[Any] = []
    for _ in range(100):
        try:
            after = source.latest(position)
        except SourceError as error:
            return keys, str(error)
        keys += [row["id"] for row in rows_between(source, position, after)]
        source.committed(after)
        position = after
    raise AssertionError(keys)


def test_the_changes_keep_the_contract_of_sources(
    mariadb: str, make: Callable[..., MariaDBSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = "INSERT INTO t (v) VALUES ('a'), ('b'), (NULL)"
    execute(mariadb, "CREATE TABLE t (id serial, v text, PRIMARY KEY (id))")
    [(gtids,)] = execute(mariadb, "SELECT @@gtid_binlog_pos")
    execute(mariadb, *[insert] * 6)
    # A query without a snapshot begins at the end of the log, which has no rows yet.
    monkeypatch.setattr(MariaDBSource, "_begin", lambda self, _: self._log().know(gtids))
    for options in ({"include": ["position", "time", "transaction"]}, {"whole_transactions": True}):
        source = make(snapshot=False, **options)
        gw.testing.check_source(source, add=lambda: execute(mariadb, insert), exact_limits=False)


def test_the_snapshot_keeps_the_contract_of_sources(
    mariadb: str, make: Callable[..., MariaDBSource]
) -> None:
    execute(
        mariadb,
        "CREATE TABLE t (id int, k varchar(9) COLLATE latin1_bin, v text, PRIMARY KEY (k, id))",
        "INSERT INTO t SELECT seq, concat(char(65 + seq % 3), '%''\\\\'), 'v' FROM seq_1_to_40",
    )
    gw.testing.check_source(make(include=["snapshot"]), max_rows=100)


_TYPES: dict[str, list[tuple[str, Any]]] = {  # by type, literals and what they are read as
    "tinyint": [("-128", -128)],
    "tinyint unsigned": [("255", 255)],
    "smallint unsigned": [("65535", 65535)],
    "mediumint": [("-8388608", -8388608)],
    "mediumint unsigned": [("16777215", 16777215)],
    "int": [("-2147483648", -2147483648)],
    "int unsigned": [("4294967295", 4294967295)],
    "int(8) zerofill": [("42", 42)],
    "bigint": [("-9223372036854775808", -9223372036854775808)],
    "bigint unsigned": [("18446744073709551615", Decimal(18446744073709551615))],
    "boolean": [("true", 1), ("2", 2)],
    "decimal(20, 5)": [("1.5", Decimal("1.50000")), ("-99999999999999.99999", None)],
    "decimal(38, 0)": [("-99999999999999999999999999999999999999", None)],
    "decimal(9, 9)": [("-0.000000001", Decimal("-0.000000001"))],
    "decimal(10, 0) unsigned": [("7", Decimal(7))],
    "decimal(65, 30)": [("-1234567890123456789.5", f"-1234567890123456789.5{'0' * 29}")],
    "float": [("0.1", 0.10000000149011612), ("-3.4028234e38", None), ("16777217", 16777216.0)],
    "double": [("1e308", 1e308), ("-0.1", -0.1), ("5e-324", 5e-324), ("123456789.123456789", None)],
    "double(10, 3)": [("0.0005", None)],
    "bit(1)": [("1", True)],
    "bit(12)": [("b'101000000001'", 0b101000000001)],
    "bit(64)": [("18446744073709551615", Decimal(18446744073709551615))],
    "year": [("2024", 2024), ("1901", 1901), ("0", 0)],
    "date": [("'0001-01-01'", dt.date(1, 1, 1)), ("'9999-12-31'", dt.date(9999, 12, 31))],
    "datetime": [("'2024-02-29 12:00:00'", dt.datetime(2024, 2, 29, 12))],
    "datetime(3)": [("'2024-02-29 23:59:59.012'", dt.datetime(2024, 2, 29, 23, 59, 59, 12000))],
    "datetime(6)": [("'1000-01-01 00:00:00.000001'", dt.datetime(1000, 1, 1, 0, 0, 0, 1))],
    "timestamp(5) null": [("'2024-02-29 12:00:00.00001'", None), ("'2038-01-19 03:14:07'", None)],
    "timestamp null": [("'1970-01-01 00:00:01'", None)],
    "time": [("'23:59:59'", dt.time(23, 59, 59)), ("'00:00:00'", dt.time())],
    "time(1)": [("'12:00:00.5'", dt.time(12, 0, 0, 500000))],
    "time(6)": [("'12:00:00.000001'", dt.time(12, 0, 0, 1))],
    "char(5)": [("'ab  '", "ab"), ("''", "")],
    "char(100) character set utf8mb4": [("'Zoë 🦆'", "Zoë 🦆")],
    "varchar(10)": [("'é  '", "é  ")],
    "varchar(300)": [("'\\x01€'", None)],
    "text character set utf8mb4": [("'a\\nb\\0'", "a\nb\0"), ("repeat('x', 70000)", None)],
    "longtext character set utf16": [("'Zoë 🦆'", "Zoë 🦆")],
    "varchar(9) character set ucs2": [("'é€'", "é€")],
    "varchar(9) character set utf32": [("'é€'", "é€")],
    "varchar(9) character set koi8r": [("'Годвит'", "Годвит")],
    "varchar(9) character set cp1250": [("'Łódź'", "Łódź")],
    "varchar(9) character set swe7": [("'å'", "å")],
    "varchar(9) character set ascii": [("'a'", "a")],
    "varchar(9) collate utf8mb4_uca1400_ai_ci": [("'ß'", "ß")],
    "binary(4)": [("x'01000000'", b"\1\0\0\0"), ("x'00'", b"\0\0\0\0"), ("''", b"\0\0\0\0")],
    "binary(255)": [("'a'", b"a".ljust(255, b"\0"))],
    "varbinary(4)": [("x'0100'", b"\1\0"), ("''", b"")],
    "varbinary(300)": [("x'ff'", b"\xff")],
    "tinyblob": [("x'00ff'", b"\0\xff")],
    "mediumblob": [("repeat('x', 70000)", b"x" * 70000)],
    "enum('a', 'é', 'x,y')": [("'é'", "é"), ("3", "x,y"), ("0", "")],
    "enum('ł', 'Ã©') character set utf8mb4": [("'Ã©'", "Ã©")],
    "enum('я') character set koi8r": [("'я'", "я")],
    "set('x', 'é', 'z')": [("'z,x'", "x,z"), ("''", "")],
    f"set({', '.join(f'{chr(39)}m{n}{chr(39)}' for n in range(64))})": [("'m63,m0'", "m0,m63")],
    "json": [("'{\"a\": [1, null]}'", '{"a": [1, null]}')],
    "uuid": [("'123e4567-e89b-12d3-a456-426655440000'", "123e4567-e89b-12d3-a456-426655440000")],
    "inet6": [("'2001:db8::1'", None), ("'::ffff:1.2.3.4'", None), ("'::1.2.3.4'", None)],
    "inet4": [("'10.0.0.1'", "10.0.0.1"), ("'0.0.0.0'", "0.0.0.0")],
    "int invisible": [("7", 7)],
}


def test_every_type_is_read_alike_from_the_snapshot_and_from_the_log(
    mariadb: str, make: Callable[..., MariaDBSource]
) -> None:
    columns = ", ".join(f"c{n} {name}" for n, name in enumerate(_TYPES))
    with contextlib.closing(Server(parse_dsn(mariadb, ""), "").connect()) as connection:
        query(connection, f"CREATE TABLE t (id int PRIMARY KEY, {columns})")

        def insert(first: int) -> None:
            for n, values in enumerate(_TYPES.values()):
                for place, value in enumerate([*(value for value, _ in values), "NULL"]):
                    number = first + n * 20 + place
                    query(connection, f"INSERT INTO t (id, c{n}) VALUES ({number}, {value})")

        insert(0)
        source = make()
        snapshot, position = snapshot_and_place(source)
        insert(10_000)
        changes, position = changes_after(source, position)
        without = [{**row, "id": row["id"] - 10_000} for row in changes]
        assert without == snapshot
        assert repr(without) == repr(snapshot), "the sign of zeros"
        by_key = {row["id"]: row for row in snapshot}
        for n, (name, values) in enumerate(_TYPES.items()):
            for place, (_, expected) in enumerate(values):
                value = by_key[n * 20 + place][f"c{n}"]
                assert value is not None, name
                assert expected is None or value == expected, name
        as_text = make(schema={"id": "int", **{f"c{n}": "string" for n in range(len(_TYPES))}})
        snapshot, position = snapshot_and_place(as_text)
        query(connection, "UPDATE t SET id = id + 100000")
        changes, _ = changes_after(as_text, position)
        added = sorted((row for row in changes if row["change"] > 0), key=lambda row: row["id"])
        assert [{**row, "id": row["id"] - 100_000} for row in added] == snapshot
        texts = query(connection, "SELECT * FROM t ORDER BY id")
    for row, theirs in zip(snapshot, texts, strict=True):
        for n, name in enumerate(list(_TYPES)[:-1]):
            if name.startswith(("int(8)", "float", "double", "bit")):  # not exact, or no text
                continue
            other = theirs[n + 1]
            ours = row[f"c{n}"]
            assert ours == (other.hex() if isinstance(other, bytes) else other), name
