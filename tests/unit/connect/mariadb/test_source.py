"""The source of a MariaDB table's changes: types, options, and what it refuses, on a server."""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from tests.mariadb_server import running_mariadb

import godwit as gw
from godwit.model.errors import SourceError

pytest.importorskip("pymysql", reason="MariaDB tests need PyMySQL.")

import pymysql

from godwit.connect.mariadb import binlog
from godwit.connect.mariadb.server import MariaServer, parse_dsn, query
from godwit.connect.mariadb.source import MariaDBSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.mariadb


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Execute statements on a connection of its own; return the rows of the last one."""
    with contextlib.closing(MariaServer(parse_dsn(url, ""), "").connect()) as connection:
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
    monkeypatch.setattr(
        MariaDBSource, "_first_log_place", lambda self, _: self._log_stream().know(gtids)
    )
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
    "datetime": [("'2024-02-29 12:00:00'", dt.datetime.fromisoformat("2024-02-29 12:00:00"))],
    "datetime(3)": [
        ("'2024-02-29 23:59:59.012'", dt.datetime.fromisoformat("2024-02-29 23:59:59.012000"))
    ],
    "datetime(6)": [
        ("'1000-01-01 00:00:00.000001'", dt.datetime.fromisoformat("1000-01-01 00:00:00.000001"))
    ],
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
    with contextlib.closing(MariaServer(parse_dsn(mariadb, ""), "").connect()) as connection:
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


@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        ("date", "0000-00-00", "0000-00-00"),
        ("date", "2024-02-00", "2024-02-00"),
        ("datetime(2)", "0000-00-00 00:00:00.00", "0000-00-00"),
        ("timestamp NULL", "0000-00-00 00:00:00", "0000-00-00"),
        ("time(3)", "-00:00:00.500", "-00:00:00.500"),
        ("time", "838:59:59", "838:59:59"),
        ("time(6)", "-838:59:58.999999", "-838:59:58.999999"),
    ],
)
def test_a_value_that_the_type_lacks_is_refused_and_can_be_read_as_text(
    mariadb: str, make: Callable[..., MariaDBSource], dtype: str, value: str, said: str
) -> None:
    insert = f"INSERT INTO t VALUES (%d, '{value}')"
    execute(mariadb, f"CREATE TABLE t (id int PRIMARY KEY, v {dtype})", insert % 1)
    with pytest.raises(SourceError, match=said) as raised:
        snapshot_and_place(make())
    assert 'type "string" in schema=' in str(raised.value)
    assert "'v'" in str(raised.value)
    source = make(schema="id int, v string")
    rows, position = snapshot_and_place(source)
    execute(mariadb, insert % 2)
    rows += changes_after(source, position)[0]
    assert [row["v"] for row in rows] == [value, value]
    if dtype.startswith("time("):
        length = make(schema="id int, v interval day to second")
        rows, position = snapshot_and_place(length)
        hours, minutes, seconds = (abs(float(part)) for part in value.split(":"))
        assert rows[1]["v"] == -dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("point", "'v' of .*t, which has type point, which"),
        ("text compressed", "'v' of .*t, which has type text"),
        ("varchar(3) character set gbk", "'v' of .*, which has a type in its changes"),
        ("enum('a') character set sjis", "'v' of .*, which has a type in its changes"),
    ],
)
def test_a_column_that_cannot_be_read_is_refused_by_name_or_left_out(
    mariadb: str, make: Callable[..., MariaDBSource], column: str, said: str
) -> None:
    execute(mariadb, f"CREATE TABLE t (id int PRIMARY KEY, v {column}, w int)")

    def read(**options: Any) -> list[Any]:
        source = make(**options)
        _, position = snapshot_and_place(source)
        execute(mariadb, "INSERT INTO t (id, w) VALUES (1, 2) ON DUPLICATE KEY UPDATE w = w + 1")
        return changes_after(source, position)[0]

    with pytest.raises(SourceError, match=said):
        read()
    assert [row["w"] for row in read(schema="id int, w int")] == [3 if "type in" in said else 2]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DROP TABLE t", "was dropped, renamed, or created again"),
        ("RENAME TABLE t TO other", "was dropped, renamed, or created again"),
        ("ALTER TABLE `t` RENAME AS other", "was dropped, renamed, or created again"),
        ("CREATE OR REPLACE TABLE t (id int)", "was dropped, renamed, or created again"),
        ("SET STATEMENT lock_wait_timeout = 9 FOR TRUNCATE t", "was truncated"),
        ("/* all */ TRUNCATE TABLE /*!t*/", "was truncated"),
        ("ALTER TABLE t TRUNCATE PARTITION p", "was truncated"),
        ("ALTER TABLE t DROP PARTITION q", "was truncated"),
        ("ALTER TABLE t DROP v", "'v' .* was dropped or renamed"),
        ("ALTER TABLE t DROP COLUMN IF EXISTS v, ADD v int DEFAULT 5", "was dropped or renamed"),
        ("ALTER TABLE t RENAME COLUMN v TO w, RENAME COLUMN w TO v", "was dropped or renamed"),
        ("ALTER TABLE t CHANGE COLUMN v u int", "was dropped or renamed"),
        ("ALTER TABLE t MODIFY v varchar(9)", "type in its changes that int32 cannot hold"),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)", "its key is now 'id', 'v'"),
        ("ALTER TABLE t ADD x int FIRST, ADD INDEX (v), DROP INDEX i", ""),
        ("ALTER TABLE t MODIFY v smallint", ""),
        ("CREATE TABLE other LIKE t", ""),
        ("CREATE VIEW other AS SELECT * FROM t", ""),
        ("ANALYZE TABLE t", ""),
        ("CREATE INDEX j ON t (v)", ""),
        ("CREATE TABLE tt (t int)", ""),
    ],
)
def test_statements_that_alter_tables_are_answered_at_their_place_in_the_log(
    mariadb: str, make: Callable[..., MariaDBSource], statement: str, said: str
) -> None:
    execute(
        mariadb,
        "CREATE TABLE t (id int PRIMARY KEY, v int, w int, INDEX i (v)) PARTITION BY RANGE (id) "
        "(PARTITION q VALUES LESS THAN (1), PARTITION p VALUES LESS THAN (100))",
    )
    if "RENAME" in statement.split()[:1] or "RENAME AS" in statement:
        execute(mariadb, "ALTER TABLE t REMOVE PARTITIONING")
    source = make(schema="id int, v int")
    _, position = snapshot_and_place(source)
    execute(mariadb, "INSERT INTO t (id, v) VALUES (1, 1)", statement)
    with contextlib.suppress(Exception):
        execute(mariadb, "INSERT INTO t (id, v) VALUES (2, 2)")
    if not said:
        rows, position = changes_after(source, position)
        assert [(row["id"], row["v"]) for row in rows] == [(1, 1), (2, 2)]
        reports = " ".join(source.take_reports())
        assert ("was altered by" in reports) == statement.startswith("ALTER")
        assert ("has new columns 'x'" in reports) == ("ADD x" in statement)
        return
    keys, error = changes_before_error(source, position)
    assert keys == [1]
    assert re.search(said, error), error


def test_a_truncation_can_be_skipped(mariadb: str, make: Callable[..., MariaDBSource]) -> None:
    execute(mariadb, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source = make(on_truncate="skip")
    _, position = snapshot_and_place(source)
    execute(mariadb, "TRUNCATE t", "INSERT INTO t VALUES (2)")
    rows, _ = changes_after(source, position)
    assert [row["id"] for row in rows] == [2]
    assert "was truncated, but its rows stay in the target" in source.take_reports()[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("binlog_format", "MIXED"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_metadata", "MINIMAL"),
    ],
)
def test_a_server_that_does_not_log_whole_rows_is_refused_with_what_to_do(
    mariadb: str, make: Callable[..., MariaDBSource], name: str, value: str
) -> None:
    execute(mariadb, "CREATE TABLE t (id int PRIMARY KEY, v int)")
    [(before,)] = execute(mariadb, f"SELECT @@GLOBAL.{name}")
    try:
        execute(mariadb, f"SET GLOBAL {name} = '{value}'")
        with pytest.raises(SourceError, match=f"{name} = .* is {value}") as raised:
            make().open(None)
    finally:
        execute(mariadb, f"SET GLOBAL {name} = '{before}'")
    assert f"SET GLOBAL {name} = '{before}';" in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["SET binlog_row_image = 'MINIMAL'", "UPDATE t SET v = 5"],
            "a binlog_row_image other than FULL",
        ),
        (["SET binlog_format = 'STATEMENT'", "UPDATE t SET v = 5"], "without binlog_format = ROW"),
        (
            # Rolled back by its own connection, of whose end the server may learn later.
            [
                *("XA START 'x'", "UPDATE t SET v = 5", "XA END 'x'", "XA PREPARE 'x'"),
                "XA ROLLBACK 'x'",
            ],
            "by XA",
        ),
    ],
)
def test_changes_of_a_client_that_are_not_whole_rows_fail_the_query(
    mariadb: str, make: Callable[..., MariaDBSource], changes: list[str], said: str
) -> None:
    execute(mariadb, "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (0, 0)")
    source = make()
    _, position = snapshot_and_place(source)
    execute(mariadb, "INSERT INTO t VALUES (1, 1)", *changes)
    keys, error = changes_before_error(source, position)
    assert keys == [1]
    assert said in error


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("t (id int PRIMARY KEY) ENGINE = MyISAM", "ENGINE = InnoDB;"),
        ("t (id int PRIMARY KEY) WITH SYSTEM VERSIONING", "system versioned"),
        ("t (id int)", "has no primary key"),
        (
            "t (id int PRIMARY KEY, p int, FOREIGN KEY c (p) REFERENCES p (id) ON DELETE SET NULL)",
            "its foreign key .* .ON DELETE SET NULL",
        ),
    ],
)
def test_tables_whose_changes_are_not_in_the_log_are_refused(
    mariadb: str, make: Callable[..., MariaDBSource], table: str, said: str
) -> None:
    execute(mariadb, "CREATE TABLE p (id int PRIMARY KEY)", f"CREATE TABLE {table}")
    with pytest.raises(SourceError, match=said):
        make().open(None)


def test_rights_and_a_log_that_are_missing_are_named(
    mariadb: str, make: Callable[..., MariaDBSource]
) -> None:
    database = parse_dsn(mariadb, "")["database"]
    execute(
        mariadb,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE OR REPLACE USER reader@localhost IDENTIFIED BY 'se@cret'",
    )
    reader = mariadb.replace("root@", "reader:se%40cret@")
    try:
        with pytest.raises(SourceError, match="cannot be reached: Access denied") as raised:
            make(url=reader).open(None)
        assert "secret" not in str(raised.value)
        execute(mariadb, f"GRANT INSERT ON {database}.* TO reader@localhost")
        log = ("BINLOG MONITOR ON *.*", "REPLICATION SLAVE ON *.*")
        for right in (f"SELECT ON {database}.t", *log):
            with pytest.raises(SourceError, match=r"GRANT .*SELECT ON"):
                snapshot_and_place(make(url=reader))
            execute(mariadb, f"GRANT {right} TO reader@localhost")
        assert snapshot_and_place(make(url=reader))[0] == []
    finally:
        execute(mariadb, "DROP USER reader@localhost")
    with running_mariadb("--skip-log-bin", "--server-id=1") as socket:
        url = f"mariadb://root@localhost/mysql?unix_socket={socket}"
        with pytest.raises(SourceError, match="log_bin = on, but it is off"):
            make(url=url).open(None)


def test_a_log_that_was_removed_begun_again_or_of_another_server_is_refused(
    make: Callable[..., MariaDBSource],
) -> None:
    log = ("--log-bin=log", "--binlog-format=ROW", "--binlog-row-metadata=FULL")
    create = ("CREATE DATABASE d", "CREATE TABLE d.t (id int PRIMARY KEY)")
    with running_mariadb(*log, "--server-id=3", "--gtid-domain-id=4") as socket:
        url = f"mariadb://root@localhost?unix_socket={socket}"
        execute(url, *create)
        source = make("d.t", url=url)
        _, position = snapshot_and_place(source)
        execute(url, "INSERT INTO d.t VALUES (1)")
        _, position = changes_after(source, position)
        source.close()
        execute(url, "INSERT INTO d.t VALUES (2)", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        source.open(position)
        assert changes_after(source, position)[0][0]["id"] == 2
        source.close()
        number = 3
        while execute(url, "SHOW BINARY LOGS")[0][0] == "log.000001":  # it is being read yet
            execute(url, f"INSERT INTO d.t VALUES ({number})", "FLUSH BINARY LOGS")
            number += 1
            execute(url, f"PURGE BINARY LOGS TO 'log.{number:06}'")
        with pytest.raises(SourceError, match="removed binary logs after that"):
            make("d.t", url=url).open(position)
        execute(url, "RESET MASTER", *["INSERT INTO d.t SELECT max(id) + 1 FROM d.t"] * 9)
        with pytest.raises(SourceError, match="RESET MASTER was executed"):
            make("d.t", url=url).open(position)
    with running_mariadb(*log, "--server-id=5") as socket:
        url = f"mariadb://root@localhost?unix_socket={socket}"
        execute(url, *create)
        other = {**position, "server": "another"}
        with pytest.raises(SourceError, match="which the log of this server does not have"):
            make("d.t", url=url).open(other)
        with pytest.raises(SourceError, match="another server with the same server_id = 5"):
            make("d.t", url=url).open({**other, "server_id": "5"})


def test_a_query_goes_on_when_the_server_ends_its_connections_or_starts_again(
    mariadb: str, make: Callable[..., MariaDBSource]
) -> None:
    execute(mariadb, "CREATE TABLE t (id serial, PRIMARY KEY (id))")
    source = make()
    _, position = snapshot_and_place(source)
    ids = []
    for _ in range(3):
        execute(mariadb, "INSERT INTO t VALUES (NULL), (NULL)")
        after = source.latest(position, limit=1)
        while after == position:  # the connections are opened again
            after = source.latest(position, limit=1)
        ids += [row["id"] for row in rows_between(source, position, after)]
        position = after
        connections: list[Any] = [source._control, source._log_stream()._connection]
        for connection in connections:
            with contextlib.suppress(pymysql.err.Error):
                execute(mariadb, f"KILL {connection.thread_id()}")
        execute(mariadb, "FLUSH BINARY LOGS")
    while len(ids) < 6:
        after = source.latest(position)
        ids += [row["id"] for row in rows_between(source, position, after)]
        position = after
    assert ids == [1, 2, 3, 4, 5, 6]


def test_a_lost_snapshot_is_named(mariadb: str, make: Callable[..., MariaDBSource]) -> None:
    execute(mariadb, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    source = make()
    source.open(None)
    position = source.start()
    after = source.latest(position, limit=1)
    number = source._snapshot._connection.thread_id()
    execute(mariadb, f"KILL {number}")
    with pytest.raises(SourceError, match="continues"):
        rows_between(source, position, after)
    source.close()
    source.open(after)
    rows = rows_between(source, after, source.latest(after))
    assert [row["id"] for row in rows] == [2, 3]


def test_tables_without_a_key_are_read_with_the_rows_before_changes(
    mariadb: str, make: Callable[..., MariaDBSource]
) -> None:
    execute(
        mariadb,
        "CREATE TABLE t (v text, g int AS (length(v)) VIRTUAL, s int AS (length(v)) STORED, "
        "i int INVISIBLE DEFAULT 4)",
        "INSERT INTO t (v) VALUES ('a'), ('a')",
    )
    source = make(before=True)
    rows, position = snapshot_and_place(source)
    assert rows == [{"v": "a", "i": 4, "change": 1}] * 2
    execute(mariadb, "UPDATE t SET v = 'bb' LIMIT 1", "DELETE FROM t WHERE v = 'bb'")
    rows, _ = changes_after(source, position)
    assert [(row["v"], row["change"]) for row in rows] == [("a", -1), ("bb", 1), ("bb", -1)]
    execute(mariadb, "INSERT INTO t (v) VALUES ('ccc')")
    named = make(before=True, schema="v string, s int, g int")
    rows, position = snapshot_and_place(named)
    assert rows[1] == {"v": "ccc", "s": 3, "g": 3, "change": 1}
    execute(mariadb, "INSERT INTO t (v) VALUES ('dddd')")
    assert changes_after(named, position)[0] == [{"v": "dddd", "s": 4, "g": 4, "change": 1}]


def test_times_of_an_old_format_are_refused_with_what_to_do(
    mariadb: str, make: Callable[..., MariaDBSource]
) -> None:
    try:
        execute(
            mariadb,
            "SET GLOBAL mysql56_temporal_format = 0",
            "CREATE TABLE t (id int PRIMARY KEY, v time(3), w datetime, x timestamp(6))",
        )
        source = make(schema="id int")
        _, position = snapshot_and_place(source)
        execute(mariadb, "INSERT INTO t (id) VALUES (1)")
        with pytest.raises(SourceError, match="FORCE"):
            changes_after(source, position)
    finally:
        execute(mariadb, "SET GLOBAL mysql56_temporal_format = 1")


def test_a_log_without_checksums_is_read(mariadb: str, make: Callable[..., MariaDBSource]) -> None:
    execute(mariadb, "CREATE TABLE t (id int PRIMARY KEY)")
    source = make()
    _, position = snapshot_and_place(source)
    try:
        for number, checksum in enumerate(("NONE", "CRC32", "NONE")):
            execute(mariadb, f"INSERT INTO t VALUES ({2 * number})")
            execute(mariadb, f"SET GLOBAL binlog_checksum = '{checksum}'")
            execute(mariadb, f"INSERT INTO t VALUES ({2 * number + 1})")
        rows, position = changes_after(source, position)
        assert [row["id"] for row in rows] == [*range(6)]
        source.close()
        source.open(position)
        execute(mariadb, "INSERT INTO t VALUES (6)")
        assert changes_after(source, position)[0][0]["id"] == 6
    finally:
        execute(mariadb, "SET GLOBAL binlog_checksum = 'CRC32'")


def test_tables_of_several_databases_and_compressed_logs_are_read(
    mariadb: str, make: Callable[..., MariaDBSource]
) -> None:
    here = parse_dsn(mariadb, "")["database"]
    other = f"{here}_other"
    create = "TABLE {}.t (id int PRIMARY KEY, v text)"
    try:
        execute(mariadb, f"CREATE DATABASE {other}", f"CREATE {create.format(other)}")
        execute(mariadb, f"CREATE {create.format(here)}", f"INSERT INTO {here}.t VALUES (1, 'a')")
        source = make(["t", f"{other}.t"], include=["table"])
        assert source.table_keys == ("table", "id")
        rows, position = snapshot_and_place(source)
        assert [(row["table"], row["id"]) for row in rows] == [(f"{here}.t", 1)]
        execute(mariadb, "SET GLOBAL log_bin_compress = 1")
        execute(
            mariadb,
            f"INSERT INTO {other}.t VALUES (2, repeat('x', 1000))",
            f"UPDATE {other}.t SET v = repeat('y', 1000)",
            "CREATE TABLE harmless (column_of_a_long_name int)",
            f"UPDATE t, {other}.t o SET t.v = 'b', o.v = 'b'",
        )
        rows, _ = changes_after(source, position)
        named = [(row["table"], row["id"], row["v"][:1]) for row in rows]
        away, near = f"{other}.t", f"{here}.t"
        assert named[:2] == [(away, 2, "x"), (away, 2, "y")]
        assert sorted(named[2:]) == sorted([(away, 2, "b"), (near, 1, "b")])
    finally:
        execute(mariadb, "SET GLOBAL log_bin_compress = 0", f"DROP DATABASE {other}")


_KEY_TYPES = {
    "varchar(20) COLLATE utf8mb4_general_ci": ["'b'", "'A'", "'Ö'", "'z '", "''", "'%s'", "'\\\\'"],
    "varbinary(9)": ["x'00'", "x'ff00'", "''", "'a'"],
    "enum('z', 'a', 'm')": ["'z'", "'a'", "'m'"],
    "set('z', 'a')": ["'z'", "'a'", "'z,a'", "''"],
    "decimal(30, 10)": ["-1.5", "2", "10", "99999999999999999999.0000000001"],
    "bigint unsigned": ["0", "18446744073709551615", "9"],
    "double": ["-0.1", "1e300", "5"],
    "bit(9)": ["1", "257", "2"],
    "date": ["'2024-01-01'", "'0000-00-00'", "'1999-12-31'"],
    "datetime(3)": ["'2024-01-01 00:00:00.5'", "'2024-01-01'"],
    "timestamp": ["'2024-01-01 00:00:00'", "'2001-01-01'"],
    "time(2)": ["'-12:00:00.5'", "'100:00:00'", "'01:00:00'"],
    "uuid": ["uuid()", "uuid()", "'00000000-0000-0000-0000-000000000001'"],
    "inet6": ["'::1'", "'2001::'"],
}


@pytest.mark.parametrize("dtype", _KEY_TYPES)
def test_an_interrupted_snapshot_and_its_changes_meet_at_keys_of_every_type(
    mariadb: str, make: Callable[..., MariaDBSource], dtype: str
) -> None:
    execute(
        mariadb,
        f"CREATE TABLE t (k {dtype}, id int, v int, PRIMARY KEY (k, id))",
        *(
            f"INSERT INTO t VALUES ({value}, {number}, 0)"
            for value in _KEY_TYPES[dtype]
            for number in range(2)
        ),
    )
    source = make(schema="k string, id int, v int")
    source.open(None)
    position = source.start()
    rows: dict[Any, Any] = {}
    for step in range(400):
        end = source.end(position)
        limit = 5 if position["snapshot"] is None else 1
        after = source.latest(position, limit=limit, until=end)
        if after == position:
            break
        for row in rows_between(source, position, after):
            if row["change"] > 0:
                rows[row["k"], row["id"]] = row["v"]
            else:
                del rows[row["k"], row["id"]]
        position = after
        if position["snapshot"] is not None:
            source.close()
            execute(mariadb, f"UPDATE t SET v = {step} + 1")
            if step == 2:
                execute(mariadb, f"DELETE FROM t WHERE id = 1 AND k = {_KEY_TYPES[dtype][0]}")
            source.open(position)
    name = "HEX(k)" if "binary" in dtype else "k + 0" if "bit" in dtype else "k"
    name = "k * 1e0" if dtype == "double" else name
    there = execute(mariadb, f"SELECT {name}, id, v FROM t")
    texts = {(str(k), int(number)): int(v) for k, number, v in there}
    ours = {(k.upper() if "binary" in dtype else k, n): v for (k, n), v in rows.items()}
    if dtype == "double":
        texts = {(repr(float(k)), n): v for (k, n), v in texts.items()}
    assert ours == texts


def test_only_statements_about_a_table_have_an_effect_on_it() -> None:
    tables = [("d", "t"), ("d", "a`b")]
    for statement, expected in {
        "TRUNCATE other.t": None,
        "truncate d.t": (0, "truncated"),
        "DROP TABLE IF EXISTS x, `a``b` /* generated by server */": (1, "gone"),
        "DROP DATABASE IF EXISTS `d`": (0, "gone"),
        "DROP DATABASE e": None,
        "DROP TEMPORARY TABLE t": None,
        "DROP INDEX t ON x": None,
        "CREATE OR REPLACE TABLE n SELECT * FROM t": None,
        "CREATE OR REPLACE TABLE d.t (i int)": (0, "gone"),
        "CREATE TABLE IF NOT EXISTS t (i int)": None,
        "ALTER TABLE x EXCHANGE PARTITION p WITH TABLE t": (0, "truncated"),
        "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4": (0, "altered"),
        "ALTER TABLE t RENAME INDEX a TO b": (0, "altered"),
        "ALTER TABLE x DROP COLUMN t": None,
        "ALTER TABLE IF EXISTS d.t DROP COLUMN t": (0, "altered"),
        "ALTER TABLE e.t RENAME TO d.t": None,
        "-- TRUNCATE t\nANALYZE TABLE x": None,
        "INSERT INTO x VALUES ('t')": None,
        "DELETE x FROM x JOIN t": (0, "statement"),
    }.items():
        effect = binlog.effect_of(statement, "d", tables)
        assert (effect and effect[:2]) == expected, statement


@pytest.mark.parametrize(
    "url",
    [
        "mariadb://me:p@ss/w@host/db",
        "postgresql://me:secret@host/db",
        "mariadb://me:secret@host:port/db",
        "host=secret",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SourceError, match="invalid connection") as raised:
        gw.sources.mariadb(url, "t")
    assert not re.search("secret|ss/w", str(raised.value))
