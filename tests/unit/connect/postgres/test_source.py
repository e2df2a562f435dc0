"""The source of a table's changes: types, options, and what it refuses, on a real server."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from tests.postgres_server import drop_slots
from tests.support.postgres_sinks import execute

import godwit as gw
from godwit.connect.postgres.pgoutput import read_row
from godwit.connect.postgres.types import PostgresValueType, column_from_texts
from godwit.model.errors import InvalidFlowError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.connect.postgres.source import PostgresSource

pytestmark = pytest.mark.postgres

Open = "Callable[..., PostgresSource]"
_numbers = itertools.count()


@contextlib.contextmanager
def _sources(dsn: str) -> Iterator[Callable[..., PostgresSource]]:
    """Yield a function that makes sources with a slot of this test's; drop the slots at the end."""
    slots: list[str] = []
    sources: list[PostgresSource] = []

    def make(table: Any = "t", **options: Any) -> PostgresSource:
        options = {"timeout": "3 seconds", **options}
        if "slot" not in options:
            options["slot"] = f"source_{next(_numbers)}"
        slots.append(options["slot"])
        sources.append(gw.sources.postgres(dsn, table, **options))
        return sources[-1]

    try:
        yield make
    finally:
        for source in sources:
            source.close()
        drop_slots(dsn, *slots)


@pytest.fixture
def make(postgres: str) -> Iterator[Callable[..., PostgresSource]]:
    with _sources(postgres) as function:
        yield function


def rows_between(source: PostgresSource, begin: Any, end: Any) -> list[dict[str, Any]]:
    names = source.schema.names
    splits = source.splits(begin, end, 2)
    return [row for s in splits for b in source.read(s, names) for row in b.to_pylist()]


def snapshot_and_place(source: PostgresSource) -> tuple[list[dict[str, Any]], Any]:
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


def changes_after(source: PostgresSource, position: Any) -> tuple[list[dict[str, Any]], Any]:
    """Return the changes that are committed, and the position after them."""
    rows: list[dict[str, Any]] = []
    end = source.end(position)
    while (after := source.latest(position, until=end)) != position:
        rows += rows_between(source, position, after)
        position = after
    return rows, position


def changes_before_error(source: PostgresSource, position: Any) -> tuple[list[Any], str]:
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
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(postgres, "CREATE TABLE t (id serial PRIMARY KEY, v text)")
    insert = "INSERT INTO t (v) VALUES ('a'), ('b'), (NULL)"
    first = make(slot="contract", snapshot=False)
    first.open(None)
    first.close()
    execute(postgres, *[insert] * 6)
    source = make(slot="contract", snapshot=False, include=["position", "time", "transaction"])
    gw.testing.check_source(source, add=lambda: execute(postgres, insert), exact_limits=False)
    execute(postgres, *[insert] * 3)
    whole = make(slot="contract", snapshot=False, whole_transactions=True)
    gw.testing.check_source(whole, add=lambda: execute(postgres, insert), exact_limits=False)


def test_the_snapshot_keeps_the_contract_of_sources(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(
        postgres,
        'CREATE TABLE t (id int, k text COLLATE "C", v text, PRIMARY KEY (k, id))',
        "INSERT INTO t SELECT i, chr(65 + i % 3) || '%s''', 'v' FROM generate_series(1, 40) i",
    )
    gw.testing.check_source(make(include=["snapshot"]), max_rows=100)


_SAME = {  # by type, values that are read as by psycopg
    "bool": ["t", "f"],
    "int2": ["-32768", "7"],
    "int4": ["-2147483648", "2147483647"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "float4": ["1.5", "NaN", "-Infinity", "3.4028235e38"],
    "float8": ["1.7976931348623157e308", "5e-324", "-0", "NaN", "Infinity"],
    "numeric(20, 5)": ["1.5", "-99999999999999.99999", "0"],
    "numeric(4, -2)": ["123400"],
    "text": ["", "a\nb", "NULL", "\\N", 'quote"d, é', "x" * 9000],
    "varchar(3)": ["abc", " a "],
    "char(4)": ["a"],
    "name": ["a"],
    "bytea": ["\\x", "\\x00ff5c"],
    "date": ["0001-01-01", "9999-12-31"],
    "time": ["00:00:00", "23:59:59.999999"],
    "timestamp": ["0001-01-01 00:00:00", "2024-02-29 12:00:00.5"],
    "timestamptz": ["2024-02-29 12:00:00.000001+02", "1900-01-01 00:00:00+00"],
    "int4[]": ["{}", "{1,NULL,-3}"],
    "text[]": ['{a,"b,c","",NULL,"NULL","\\"","\\\\","{"," "}', "{}"],
    "bool[]": ["{t,f}"],
    "bytea[]": ['{"\\\\x00",NULL}'],
    "numeric(5,1)[]": ["{1.5,NULL}"],
    "date[]": ["{2024-01-01}"],
    "float8[]": ["{NaN,1}"],
    "positive": ["1", "12"],
    "positives": ["{1,2}"],
}
_TEXT = {  # by type, values that are read as their text
    "numeric": ["1.50", "NaN", "Infinity", "1e-20"],
    "numeric(50, 2)": ["123456789012345678901234567890123456789012.25"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "json": ['{"a" : 1}'],
    "jsonb": ['{"a" : [1, null]}'],
    "inet": ["10.0.0.1/8", "::2/64"],
    "interval": ["1 year 2 months -3 days 04:05:06.7", "-1 day"],
    "timetz": ["12:00:00+02"],
    "int4range": ["[1,5)", "empty", "(,7]"],
    "tstzrange": ["[2024-01-01,)"],
    "int4multirange": ["{[1,3),[5,9)}"],
    "mood": ["sad", "happy"],
    "pair": ['(1,"a,b")'],
    "point": ["(1,2)"],
    "bit(3)": ["101"],
    "tsvector": ["'a':1"],
    "xid": ["7"],
    "box[]": ["{(1,1),(0,0);(2,2),(1,1)}"],  # whose delimiter is a semicolon
    "int2vector": ["12 3", "123"],
}


def test_every_type_is_read_alike_from_the_snapshot_and_from_changes(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    types = {**_SAME, **_TEXT}
    columns = ", ".join(f"c{n} {name}" for n, name in enumerate(types))
    execute(
        postgres,
        "CREATE DOMAIN positive AS numeric(6, 0) CHECK (value > 0)",
        "CREATE DOMAIN positives AS int8[]",
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE TYPE pair AS (a int, b text)",
        f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
    )

    def insert(first: int) -> None:
        with psycopg.connect(postgres, autocommit=True) as connection:
            for n, values in enumerate(types.values()):
                for place, value in enumerate([*values, None]):
                    number = first + n * 20 + place
                    statement = f"INSERT INTO t (id, c{n}) VALUES ({number}, %s)"
                    connection.execute(statement.encode(), [value])

    insert(0)
    source = make()
    snapshot, position = snapshot_and_place(source)
    insert(10_000)
    changes, _ = changes_after(source, position)
    without = [{**row, "id": row["id"] - 10_000} for row in changes]
    assert repr(without) == repr(snapshot)
    texts = ", ".join(f"c{n}::text" for n in range(len(types)))
    with psycopg.connect(postgres) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        values = connection.execute("SELECT * FROM t WHERE id < 10000 ORDER BY id").fetchall()
        written = connection.execute(
            f"SELECT {texts} FROM t WHERE id < 10000 ORDER BY id".encode()
        ).fetchall()
    for row, theirs, text in zip(snapshot, values, written, strict=True):
        for n, name in enumerate(types):
            ours = row[f"c{n}"]
            expected = theirs[n + 1] if name in _SAME else text[n]
            if name == "float4" and expected is not None:
                expected = pa.scalar(expected, pa.float32()).as_py()
            assert repr(_plain(ours)) == repr(_plain(expected)), name
    as_text = make(schema={"id": "int", **{f"c{n}": "string" for n in range(len(types))}})
    read, _ = snapshot_and_place(as_text)
    for row, text in zip(read[: len(written)], written, strict=True):
        bools = {n for n, name in enumerate(types) if name == "bool"}  # t, and true by ::text
        padded = {n for n, name in enumerate(types) if name == "char(4)"}
        for n in set(range(len(types))) - bools - padded:
            assert row[f"c{n}"] == text[n]


def _plain(value: Any) -> Any:
    """Return a value without the class of its time zone, and decimals by their value."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if hasattr(value, "utcoffset") and getattr(value, "tzinfo", None) is not None:
        return value.timestamp()
    if type(value).__name__ == "Decimal":
        return float(value), value == value.to_integral_value()
    return value


@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        ("timestamptz", "infinity", "infinity"),
        ("date", "0044-03-15 BC", "BC"),
        ("numeric(5, 2)", "NaN", "NaN"),
        ("time", "24:00:00", "24:00:00"),
        ("int4[]", "{{1,2},{3,4}}", "more than one dimension"),
        ("int4[]", "[0:1]={1,2}", "a lower bound other"),
    ],
)
def test_a_value_that_the_type_lacks_is_refused_and_can_be_read_as_text(
    postgres: str, make: Callable[..., PostgresSource], dtype: str, value: str, said: str
) -> None:
    execute(
        postgres,
        f"CREATE TABLE t (id int PRIMARY KEY, v {dtype})",
        f"INSERT INTO t VALUES (1, '{value}')",
    )
    with pytest.raises(SourceError, match=said) as raised:
        snapshot_and_place(make())
    assert 'type "string" in schema=' in str(raised.value)
    assert "'v'" in str(raised.value)
    rows, _ = snapshot_and_place(make(schema="id int, v string"))
    assert rows[0]["v"] == value


def test_drawn_texts_of_arrays_are_read_as_the_server_writes_them(postgres: str) -> None:
    import random

    rng = random.Random(4)
    drawn = [
        [
            rng.choice([None, "", "NULL", "".join(rng.choices('a"\\{},; \n', k=rng.randrange(5)))])
            for _ in range(rng.randrange(5))
        ]
        for _ in range(300)
    ]
    with psycopg.connect(postgres) as connection:
        texts = [connection.execute("SELECT (%s::text[])::text", [v]).fetchone() for v in drawn]
    field = pa.field("v", pa.list_(pa.string()))
    array = pa.array([text[0] for text in texts if text])
    assert column_from_texts(array, field).to_pylist() == drawn


def test_updates_name_the_columns_that_they_leave_out(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    large = "x" * 5000
    execute(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY, small int, large text, other text)",
        "ALTER TABLE t ALTER large SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL",
        f"INSERT INTO t VALUES (1, 1, '{large}', '{large}')",
    )
    source = make()
    rows, position = snapshot_and_place(source)
    assert (rows[0]["large"], rows[0]["unchanged"], rows[0]["change"]) == (large, None, 1)
    execute(
        postgres,
        "UPDATE t SET small = 2",
        "UPDATE t SET other = 'o'",
        "UPDATE t SET id = 2, large = 'l'",
        "DELETE FROM t",
    )
    changes, position = changes_after(source, position)
    named = [(r["id"], r["small"], r["large"], r["other"], r["unchanged"]) for r in changes]
    assert named == [
        (1, 2, None, None, "large\nother"),
        (1, 2, None, "o", "large"),
        (1, None, None, None, None),
        (2, 2, "l", "o", None),
        (2, None, None, None, None),
    ]
    assert [row["change"] for row in changes] == [1, 1, -1, 1, -1]
    execute(postgres, f"INSERT INTO t VALUES (1, 1, '{large}', '{large}')", "UPDATE t SET id = 7")
    with pytest.raises(SourceError, match="omits a large value of it") as raised:
        changes_after(source, position)
    assert "REPLICA IDENTITY FULL" in str(raised.value)


def test_with_whole_rows_before_them_changes_are_complete(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    large = "x" * 5000
    execute(
        postgres,
        "CREATE TABLE t (id int, large text)",  # without a key
        "ALTER TABLE t ALTER large SET STORAGE EXTERNAL",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"INSERT INTO t VALUES (1, '{large}'), (1, '{large}')",
    )
    source = make(before=True)
    rows, position = snapshot_and_place(source)
    assert rows == [{"id": 1, "large": large, "change": 1}] * 2
    execute(postgres, "UPDATE t SET id = 2 WHERE ctid = '(0,1)'", "DELETE FROM t WHERE id = 1")
    changes, _ = changes_after(source, position)
    assert changes == [
        {"id": 1, "large": large, "change": -1},
        {"id": 2, "large": large, "change": 1},
        {"id": 1, "large": large, "change": -1},
    ]
    assert (source.kind, source.table_keys) == ("changes", ())


def test_epochs_end_with_transactions_if_asked(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY)")
    torn, whole = make(), make(whole_transactions=True)
    places = [snapshot_and_place(source)[1] for source in (torn, whole)]
    execute(
        postgres,
        "INSERT INTO t SELECT generate_series(1, 5)",
        "INSERT INTO t VALUES (6)",
        "INSERT INTO t VALUES (7)",
    )

    def sizes(source: PostgresSource, position: Any) -> list[int]:
        found_sizes = []
        end = source.end(position)  # until it is reached, an epoch waits for rows to arrive
        while (after := source.latest(position, limit=2, until=end)) != position:
            found_sizes.append(len(rows_between(source, position, after)))
            source.committed(after)
            position = after
        return found_sizes

    assert sizes(torn, places[0]) == [2, 2, 2, 1]
    assert sizes(whole, places[1]) == [5, 2]


def test_the_slot_follows_commits_and_never_precedes_them(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (v text)")
    source = make(slot="follows")
    _, position = snapshot_and_place(source)

    def confirmed() -> int:
        query = (
            "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint FROM pg_replication_slots "
            "WHERE slot_name = 'follows'"
        )
        return int(execute(postgres, query)[0][0])

    execute(postgres, "INSERT INTO t VALUES (1)")
    changes, after = changes_after(source, position)
    assert len(changes) == 1
    assert confirmed() <= position["lsn"]
    again = pickle.loads(pickle.dumps(source))  # a restart: the slot is taken from the first
    again.open(position)
    assert changes_after(again, position) == (changes, after)
    again.committed(after)
    again.close()
    for _ in range(1000):
        if confirmed() == after["lsn"]:
            break
        execute(postgres, "SELECT pg_sleep(0.01)")
    assert confirmed() == after["lsn"]
    execute(postgres, "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 500)")
    assert (source.lag(after).size_bytes or 0) > 500_000


def _refused(source: PostgresSource, position: Any = None) -> str:
    def start() -> None:
        source.open(position)
        source.latest(source.start() if position is None else position)

    with pytest.raises(SourceError) as raised:
        start()
    return str(raised.value)


def test_what_cannot_be_read_is_refused_with_the_way_out(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(
        postgres,
        "CREATE TABLE keyless (id int)",
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE silent (id int PRIMARY KEY)",
        "ALTER TABLE silent REPLICA IDENTITY NOTHING",
        "CREATE VIEW v AS SELECT 1 AS id",
        "CREATE TABLE change (id int PRIMARY KEY, change int)",
    )
    assert "has no primary key" in _refused(make("keyless"))
    assert "REPLICA IDENTITY DEFAULT" in _refused(make("silent"))
    assert "REPLICA IDENTITY FULL" in _refused(make("t", before=True))
    assert "not a table" in _refused(make("v"))
    assert "has no table absent" in _refused(make("absent"))
    assert "two columns with the name 'change'" in _refused(make("change"))
    assert "'v' of " in _refused(make(schema="id int, v long"))
    assert "part of the key" in _refused(make(schema="v string"))
    assert "is not in the table" in _refused(make(schema="id int, w string"))
    execute(postgres, "CREATE PUBLICATION part_of_it FOR TABLE silent")
    assert "ADD TABLE" in _refused(make(publication="part_of_it"))
    execute(postgres, "DROP PUBLICATION part_of_it")
    execute(postgres, "CREATE PUBLICATION inserts FOR TABLE t WITH (publish = 'insert')")
    assert "SET (publish" in _refused(make(publication="inserts"))
    execute(postgres, "DROP PUBLICATION inserts")
    execute(postgres, "CREATE PUBLICATION few FOR TABLE t WHERE (id > 5)")
    assert "some of its rows or columns" in _refused(make(publication="few"))
    execute(postgres, "DROP PUBLICATION few")
    execute(postgres, "CREATE PUBLICATION few FOR TABLE t (id)")
    assert "some of its rows or columns" in _refused(make(publication="few"))
    make(publication="few", schema="id int").open(None)
    execute(postgres, "DROP PUBLICATION few")


def test_options_are_checked_before_anything_connects(postgres: str) -> None:
    read = gw.sources.postgres
    for options, said in (
        ({"slot": "Not a name"}, "Not a name"),
        ({"slot": "s", "on_truncate": "keep"}, "on_truncate='keep'"),
        ({"slot": "s", "max_rows_per_epoch": 0}, "max_rows_per_epoch"),
        ({"slot": "s", "include": ["lsn"]}, "'lsn'"),
    ):
        with pytest.raises((SourceError, InvalidFlowError), match=said):
            read(postgres, "t", **options)
    with pytest.raises(InvalidFlowError, match="several tables"):
        read(postgres, ["a", "b"], slot="s")
    with pytest.raises(SourceError, match="unescaped") as raised:
        read("postgresql://me:p@ss@host/db", "t", slot="s")
    assert "p@ss" not in str(raised.value)
    shown = repr(read("postgresql://me:secret@host/db", "t", slot="s"))
    assert "secret" not in shown


def test_a_position_is_refused_by_another_server_timeline_or_table(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    source = make(slot="mine")
    _, position = snapshot_and_place(source)
    source.close()
    assert "read database system" in _refused(source, {**position, "system": "1"})
    assert "timeline 7" in _refused(source, {**position, "timeline": 7})
    assert "dropped and created again" in _refused(source, {**position, "tables": [1]})
    assert "without the column 'v'" in _refused(source, {**position, "columns": ["id"]})
    assert "no longer has its slot" in _refused(make(slot="gone"), position)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("SELECT pg_create_physical_replication_slot('physical')")
    assert "cannot use the slot 'physical'" in _refused(make(slot="physical"))


def test_a_slot_that_something_else_read_or_reads_is_refused(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY)")
    first = make(slot="shared")
    _, position = snapshot_and_place(first)
    execute(postgres, "INSERT INTO t VALUES (1)")
    second = make(slot="shared")
    _, later = snapshot_and_place(second)
    execute(postgres, "INSERT INTO t VALUES (2)")
    changes, end = changes_after(second, later)
    assert [row["id"] for row in changes] == [2]
    second.committed(end)
    second.close()
    assert "another query or program has read the slot since" in _refused(first, position)
    with psycopg.connect(f"{postgres} replication=database", autocommit=True) as other:
        other.pgconn.exec_(
            b"START_REPLICATION SLOT shared LOGICAL 0/0 "
            b"(proto_version '1', publication_names 'shared')"
        )
        third = make(slot="shared", timeout="300 ms")
        pid = other.info.backend_pid
        assert f"process {pid} reads it for another" in _refused(third, end)
        other.close()


def test_a_truncation_is_refused_or_skipped(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY)")
    refusing, skipping = make(), make(on_truncate="skip")
    places = [snapshot_and_place(source)[1] for source in (refusing, skipping)]
    execute(postgres, "INSERT INTO t VALUES (1)", "TRUNCATE t", "INSERT INTO t VALUES (2)")
    keys, error = changes_before_error(refusing, places[0])
    assert keys == [1]
    assert "was truncated" in error
    assert 'on_truncate="skip"' in error
    changes, _ = changes_after(skipping, places[1])
    assert [row["id"] for row in changes] == [1, 2]
    reports = " ".join(skipping.take_reports())
    assert "t was truncated, but its rows stay in the target" in reports


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("ALTER TABLE t DROP v", "is missing from its changes"),
        ("ALTER TABLE t RENAME v TO w", "is missing from its changes"),
        ("ALTER TABLE t ALTER v TYPE text USING v::text", "has a type in its changes"),
        ("ALTER TABLE t ADD w int DEFAULT 5", ""),
        ("ALTER TABLE t RENAME TO u", ""),
        ("ALTER TABLE t ALTER v TYPE smallint", ""),
    ],
)
def test_altered_tables_are_read_on_or_refused_by_the_column(
    postgres: str, make: Callable[..., PostgresSource], statement: str, said: str
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY, v int)")
    source = make()
    _, position = snapshot_and_place(source)
    table = "u" if "TO u" in statement else "t"
    execute(
        postgres,
        "INSERT INTO t VALUES (1, 1)",
        statement,
        f"INSERT INTO {table} (id) VALUES (2)",
    )
    if not said:
        changes, position = changes_after(source, position)
        assert [row["id"] for row in changes] == [1, 2]
        added = [report for report in source.take_reports() if "has new columns 'w'" in report]
        assert len(added) == (1 if "ADD w" in statement else 0)
        return
    keys, error = changes_before_error(source, position)
    assert keys == [1]
    assert said in error
    assert "'v'" in error


def test_partitions_and_several_tables_are_read_as_one(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE other (v text, id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 'a'), (11, 'b')",
        "INSERT INTO other VALUES ('c', 1)",
    )
    source = make(["t", "other"], include={"table": "table"}, schema="id int, v string")
    rows, position = snapshot_and_place(source)
    assert source.table_keys == ("table", "id")
    seen = sorted((r["table"].partition(".")[2], r["id"], r["v"]) for r in rows)
    assert seen == [("other", 1, "c"), ("t", 1, "a"), ("t", 11, "b")]
    execute(postgres, "UPDATE t SET id = 12 WHERE id = 1", "DELETE FROM other")
    changes, _ = changes_after(source, position)
    named = [(r["table"].partition(".")[2], r["id"], r["change"]) for r in changes]
    assert named == [("t", 1, -1), ("t", 12, 1), ("other", 1, -1)]


def test_a_row_of_a_message_has_nulls_values_and_what_is_left_out() -> None:
    message = b"\0\3n" + b"t\0\0\0\2ab" + b"u"
    values, end = read_row(message, 0)
    assert values[:2] == [None, b"ab"]
    assert end == len(message)
    assert PostgresValueType("numeric", -1).natural == pa.string()


def test_a_lost_connection_is_opened_again(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY)")
    source = make()
    _, position = snapshot_and_place(source)
    end = (
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
        "WHERE application_name = 'godwit'"
    )
    keys: list[int] = []
    begin = position
    for number in range(4):
        execute(postgres, f"INSERT INTO t VALUES ({number})", end)
        for _ in range(100):
            after = source.latest(position)
            execute(postgres, end)  # between planning and reading, too
            keys += [row["id"] for row in rows_between(source, position, after)]
            position = after
            if len(keys) > number:
                break
    assert keys == [0, 1, 2, 3]
    source._opened_stream().close()
    assert len(rows_between(source, {**position, "lsn": begin["lsn"]}, position)) == 4


def test_a_transaction_is_forgotten_as_it_is_read(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY)")
    source = make()
    _, position = snapshot_and_place(source)
    execute(postgres, "INSERT INTO t SELECT generate_series(1, 500)")
    keys: list[int] = []
    sizes = set()
    while (after := source.latest(position, limit=50)) != position:
        keys += [row["id"] for row in rows_between(source, position, after)]
        source.committed(after)
        assert source._stream is not None
        sizes.add(sum(len(t.messages) for t in source._stream.transactions))
        position = after
    assert keys == list(range(1, 501))
    assert max(sizes) < 100


def test_another_replica_identity_is_refused(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL UNIQUE)",
        "INSERT INTO t VALUES (1, 1)",
    )
    source = make()
    _, position = snapshot_and_place(source)
    execute(
        postgres,
        "UPDATE t SET other = 2",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_other_key",
        "UPDATE t SET other = 3",
    )
    keys, error = changes_before_error(source, position)
    assert keys == [1]
    assert "its key is now 'other'" in error


def test_a_slot_whose_log_was_removed_is_refused(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY)")
    source = make()
    _, position = snapshot_and_place(source)
    source.close()
    switch = ["INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t", "SELECT pg_switch_wal()"]
    execute(
        postgres,
        "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'",
        "SELECT pg_reload_conf()",
    )
    try:
        execute(postgres, *switch * 3, "CHECKPOINT")
        assert "removed log that the query had not read" in _refused(source, position)
    finally:
        execute(postgres, "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_missing_privileges_are_named(postgres: str, make: Callable[..., PostgresSource]) -> None:
    schema = execute(postgres, "SELECT current_schema()")[0][0]
    execute(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE ROLE reader LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO reader",
    )
    as_reader = postgres.replace("user=postgres", "user=reader")
    source = gw.sources.postgres(as_reader, "t", slot="as_reader")
    try:
        assert "ALTER ROLE ... REPLICATION" in _refused(source)
        execute(postgres, "ALTER ROLE reader REPLICATION")
        assert "GRANT SELECT" in _refused(source)
        execute(postgres, "GRANT SELECT ON t TO reader")
        assert "cannot create the publication" in _refused(source)
        execute(postgres, "CREATE PUBLICATION as_reader FOR TABLE t")
        assert snapshot_and_place(source)[0] == []
    finally:
        source.close()
        drop_slots(postgres, "as_reader")
        execute(postgres, "DROP OWNED BY reader", "DROP ROLE reader")


def test_the_slot_follows_the_log_while_other_tables_change(
    postgres: str, make: Callable[..., PostgresSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.connect.tables.source._ADVANCE_S", 0.0)
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (v text)")
    flow = gw.Flow("advance")
    source = make(slot="advances")
    flow.sink("t", flow.source("t", source), gw.sinks.noop())
    kept = "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots"
    with gw.testing.cluster(flow) as run:
        run.epoch()
        run.epoch()
        execute(postgres, "INSERT INTO other SELECT repeat('x', 999) FROM generate_series(1, 999)")
        assert execute(postgres, f"{kept} WHERE slot_name = 'advances'")[0][0] > 900_000
        for _ in range(100):
            run.epoch()
            if execute(postgres, f"{kept} WHERE slot_name = 'advances'")[0][0] < 100_000:
                break
        assert execute(postgres, f"{kept} WHERE slot_name = 'advances'")[0][0] < 100_000
        execute(postgres, "INSERT INTO t VALUES (1)")
        for _ in range(100):
            if run.epoch()["t"].num_rows:
                break
    assert run.rows("t").column("id").to_pylist() == [1]


def test_a_dropped_table_is_noticed(
    postgres: str, make: Callable[..., PostgresSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.connect.tables.source._ADVANCE_S", 0.0)
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    source = make(schema="id int")
    _, position = snapshot_and_place(source)
    execute(postgres, "ALTER TABLE t DROP v")
    for _ in range(3):
        position = source.latest(position)
    execute(postgres, "DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)")
    _, error = changes_before_error(source, position)
    assert "dropped, renamed, or created again" in error


def test_a_limit_and_an_end_read_a_part_of_a_transaction_whose_commit_has_not_arrived(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY)")
    source = make()
    _, position = snapshot_and_place(source)
    execute(postgres, "INSERT INTO t SELECT generate_series(1, 5)")
    after = source.latest(position, limit=2, until=source.end(position))
    assert [row["id"] for row in rows_between(source, position, after)] == [1, 2]


def test_an_epoch_of_everything_reads_snapshot_and_changes_or_raises(
    postgres: str, make: Callable[..., PostgresSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.connect.tables.log.MAX_BYTES", 1000)
    execute(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t SELECT generate_series(1, 9)",
    )
    source = make()
    source.open(None)
    start = source.start()
    execute(postgres, *[f"INSERT INTO t VALUES ({number})" for number in range(10, 200)])
    end = source.end(start)
    keys = [row["id"] for row in rows_between(source, start, end)]
    assert keys == list(range(1, 200))
    source.committed(end)
    execute(postgres, "INSERT INTO t VALUES (0)", "TRUNCATE t", "INSERT INTO t VALUES (1)")
    last = source.end(end)
    with pytest.raises(SourceError, match="was truncated"):
        source.splits(end, last, 2)


def test_a_table_is_not_rewritten_while_its_snapshot_is_read(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    source = make(["t", "u"], include=["table"])
    source.open(None)
    source.start()
    for table in ("t", "u"):
        with pytest.raises(psycopg.errors.LockNotAvailable):
            execute(postgres, "SET lock_timeout = '1ms'", f"TRUNCATE {table}")
    source.close()
    execute(postgres, "TRUNCATE t", "TRUNCATE u")


@pytest.mark.parametrize(
    ("altered", "message"),
    [
        (["DROP COLUMN v", "ADD COLUMN v int"], "column 'v' of .* was dropped and added again"),
        (
            ["DROP CONSTRAINT t_pkey", "ADD PRIMARY KEY (id, v)"],
            "by 'id', but its key is now 'id', 'v'",
        ),
    ],
)
@pytest.mark.parametrize("runs", [True, False])
def test_rows_that_were_altered_without_a_log_are_not_read_on(
    postgres: str, make: Any, altered: list[str], message: str, runs: bool
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY, v int)")
    execute(postgres, "ALTER TABLE t REPLICA IDENTITY FULL")
    source = make()
    _, position = snapshot_and_place(source)
    if not runs:
        source.close()
    execute(postgres, *(f"ALTER TABLE t {what}" for what in altered), "INSERT INTO t VALUES (1, 2)")
    with pytest.raises(SourceError, match=message):
        changes_after(source, position) if runs else source.open(position)


def test_a_key_that_rows_may_share_for_a_moment_is_none(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    )
    with pytest.raises(SourceError, match="NOT DEFERRABLE"):
        make().open(None)
    source = make(before=True)
    _, position = snapshot_and_place(source)
    execute(postgres, "UPDATE t SET id = 3 - id")
    rows, _ = changes_after(source, position)
    assert [(row["id"], row["v"], row["change"]) for row in rows] == [
        *((1, "a", -1), (2, "a", 1), (2, "b", -1), (1, "b", 1)),
    ]


def test_a_table_that_was_rewritten_and_a_truncated_partition_are_named(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
    )
    source = make()
    _, position = snapshot_and_place(source)
    execute(postgres, "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (20) TO (30)")
    source.close()
    source.open(position)
    assert not source.take_reports()
    execute(postgres, "TRUNCATE t2", "INSERT INTO t VALUES (1, 'a')")
    rows, position = changes_after(source, position)
    assert [row["id"] for row in rows] == [1]
    [report] = source.take_reports()
    assert "was rewritten, or a partition of it was rewritten, truncated" in report
    source.close()
    source.open(position)
    assert not source.take_reports(), "it is named once"


def test_a_publication_that_lost_changes_is_refused_while_the_query_runs(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(postgres, "CREATE TABLE t (id int PRIMARY KEY)")
    source = make(slot="lost_changes")
    _, position = snapshot_and_place(source)
    execute(postgres, "ALTER PUBLICATION lost_changes SET (publish = 'insert')")
    source._last_checked_s -= 60
    with pytest.raises(SourceError, match="lacks some of them"):
        source.latest(position)


def test_the_log_is_read_while_the_snapshot_is(
    postgres: str, make: Callable[..., PostgresSource]
) -> None:
    execute(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE other (id int)",
        "INSERT INTO t SELECT generate_series(1, 30)",
    )
    source = make(max_rows_per_epoch=10)
    source.open(None)
    begin = source.start()
    execute(
        postgres,
        "INSERT INTO other SELECT generate_series(1, 100)",
        "INSERT INTO t VALUES (100)",
    )
    stream: Any = source._stream
    deadline = time.monotonic() + 60
    while not stream.transactions:
        source.latest(begin)
        assert time.monotonic() < deadline, "nothing of the log arrives"
    position, rows = begin, list[dict[str, Any]]()
    while position["snapshot"] is not None:
        execute(postgres, f"INSERT INTO t VALUES ({200 + len(rows)})")
        end = source.latest(position)
        rows += rows_between(source, position, end)
        position = end
    assert sorted(row["id"] for row in rows) == list(range(1, 31))
    read = [changes_after(source, position)[0]]
    stream.close()  # as if the connection were lost
    read.append(changes_after(source, position)[0])
    assert [[row["id"] for row in changes] for changes in read] == [[100, 200, 210, 220, 230]] * 2
