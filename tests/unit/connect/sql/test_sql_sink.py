"""Tables of SQL databases: values come back as they were; tables that change them are refused.

MariaDB, SQLite and PostgreSQL are real; what PostgreSQL stores is compared with what the sink for
PostgreSQL stores.
"""

from __future__ import annotations

import datetime as dt
import math
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.epoch_rows import Committed, EpochRows, context, point, rows

import godwit as gw
from godwit.model.errors import SinkError
from godwit.sinks.target_sink import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from godwit.connect.sql.sink import SqlSink
    from godwit.sinks.sink import SinkContext

sa = pytest.importorskip("sqlalchemy", reason="one of the targets")

EPOCHS = [rows(0, ("N1", 1), ("N2", 2)), rows(1, ("N1", 10), ("N3", 30), ("N1", 11))]


@pytest.fixture(params=["sqlite", "mariadb", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/t.db"
    value: str = request.getfixturevalue(request.param)
    return value if request.param == "mariadb" else url_of(value)


def url_of(dsn: str) -> str:
    """SQLAlchemy's form of a connection string of the tests' server."""
    parts = dict(part.split("=", 1) for part in dsn.split(" ", 3))
    return (
        f"postgresql+psycopg://postgres@/postgres?host={parts['host']}&options={parts['options']}"
    )


pytestmark = [pytest.mark.mariadb, pytest.mark.postgres]


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
        selected = [tuple(row) for row in result] if result.returns_rows else []
    engine.dispose()
    return selected


@contextmanager
def opened(url: str, ctx: SinkContext | None = None, **options: Any) -> Iterator[SqlSink]:
    sink = gw.sinks.sql(url, "target", **options)
    sink.open(ctx or context())
    yield sink
    sink.close()


def read(url: str, columns: Sequence[str], schema: pa.Schema) -> dict[str, list[Any]]:
    """Read the table by SQLAlchemy's types, which are those that the sink would create."""
    from godwit.connect.sql.types import column_type

    engine = sa.create_engine(url)
    dialect = engine.dialect.name
    table = sa.table(
        "target",
        *(
            sa.column(name, column_type(schema.field(name).type, dialect, is_key=False))
            for name in columns
        ),
    )
    with engine.connect() as connection:
        read_rows = connection.execute(sa.select(table).order_by(table.c.k)).all()
    engine.dispose()
    return {name: [row[n] for row in read_rows] for n, name in enumerate(columns)}


UTC = dt.UTC
LARGE = 2**64 - 1
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-(2**7), 2**7 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "uint8": (pa.uint8(), [0, 255]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, LARGE]),
    "float": (pa.float32(), [0.1, -3.5e38 / 2]),
    "double": (pa.float64(), [0.1, 1.7976931348623157e308]),
    "decimal": (pa.decimal128(38, 9), [Decimal("-12345678901234567890.123456789"), Decimal(0)]),
    "text": (pa.string(), ["a'\\\"\n% :x \U0001f426 é ", ""]),
    "bytes": (pa.binary(), [b"\x00\xff'\\", b""]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "local": (
        pa.timestamp("us"),
        [dt.datetime.min, dt.datetime.max],  # noqa: DTZ901,
    ),
    "instant": (
        pa.timestamp("us", "Europe/Berlin"),
        [dt.datetime(1970, 1, 1, 0, 0, 0, 1, UTC), dt.datetime(2038, 6, 1, 12, tzinfo=UTC)],
    ),
    "time": (pa.time64("us"), [dt.time(0, 0, 0, 1), dt.time(23, 59, 59, 999999)]),
}


def test_values_come_back_as_they_were(url: str) -> None:
    without = {"uint64", "decimal"} if url.startswith("sqlite") else set()
    values = {name: value for name, value in VALUES.items() if name not in without}
    schema = pa.schema([("k", pa.int64()), *((name, dtype) for name, (dtype, _) in values.items())])
    columns = {"k": [0, 1, 2]} | {name: [*two, None] for name, (_, two) in values.items()}
    ctx = context(schema=schema, keys=("k",))
    with opened(url, ctx, mode="upsert") as sink:
        table = pa.table(columns, schema=schema)
        assert sink.row_check()(table.to_batches()[0]) is None
        sink.deliver(EpochRows(epoch=0, table=table))
        sink.deliver(EpochRows(epoch=1, table=table))  # updates every column
    stored = read(url, schema.names, schema)
    for name, (dtype, written) in values.items():
        expected = pa.array(written, dtype).to_pylist() if dtype == pa.float32() else written
        if name == "instant" and not url.startswith("postgresql"):
            expected = [value.replace(tzinfo=None) for value in expected]
        assert stored[name] == [*expected, None], name


def test_postgresql_has_what_the_sink_for_postgresql_writes(postgres: str) -> None:
    schema = pa.schema([("k", pa.int64()), *((name, dtype) for name, (dtype, _) in VALUES.items())])
    columns = {"k": [0, 1, 2]} | {name: [*two, None] for name, (_, two) in VALUES.items()}
    table, ctx = pa.table(columns, schema=schema), context(schema=schema, keys=("k",))
    with opened(url_of(postgres), ctx, mode="upsert") as sink:
        sink.deliver(EpochRows(epoch=0, table=table))
    own = gw.sinks.postgres(postgres, "own", mode="upsert")
    own.open(ctx)
    own.deliver(EpochRows(epoch=0, table=table))
    own.close()
    [(different,)] = execute(
        url_of(postgres),
        "SELECT count(*) FROM ((SELECT * FROM target EXCEPT SELECT * FROM own) UNION ALL "
        "(SELECT * FROM own EXCEPT SELECT * FROM target)) d",
    )
    assert different == 0


def test_values_that_a_database_does_not_have_are_rejected_before_the_commit(url: str) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.float64())])
    values = [math.nan, math.inf, 1.0, 1.0, 1.0]
    keys = ["a", "b", None, "x" * 256, "a\0"]
    with opened(url, context(schema=schema, keys=("k",)), mode="upsert") as sink:
        batch = pa.record_batch([keys, values], schema=schema)
        bad = sink.row_check()(batch)
    rejected = {"sqlite": [0, 2], "mariadb": [0, 1, 2, 3], "postgresql+psycopg": [2, 4]}
    assert bad is not None
    assert bad.rows.tolist() == rejected[url.partition(":")[0].partition("+pymysql")[0]]


@pytest.mark.parametrize(
    ("dtype", "names"),
    [
        (pa.list_(pa.int64()), "sqlite mariadb postgresql"),
        (pa.duration("us"), "sqlite mariadb postgresql"),
        (pa.uint64(), "sqlite"),
        (pa.decimal128(9, 2), "sqlite"),
        (pa.decimal256(76, 40), "mariadb"),
    ],
)
def test_types_that_a_database_does_not_have_are_refused_by_name(
    dtype: pa.DataType, names: str
) -> None:
    schema = pa.schema([("k", pa.int64()), ("bad", dtype)])
    for name in names.split():
        sink = gw.sinks.sql(f"{name}://localhost/db", "t")
        with pytest.raises(SinkError, match=f"'bad' of type .* cannot be a column of .* {name}"):
            sink.check_columns(context(schema=schema, keys=("k",)))


def test_texts_that_are_equal_only_to_a_collation_are_different_keys(url: str) -> None:
    names = ["a", "A", "a ", "á", "a"]
    with opened(url, mode="upsert") as sink:
        sink.deliver(rows(0, *((name, number) for number, name in enumerate(names))))
    stored = execute(url, "SELECT plane, total FROM target ORDER BY total")
    assert stored == [("A", 1), ("a ", 2), ("á", 3), ("a", 4)]


def test_an_error_or_a_deadlock_changes_nothing_and_a_delivery_is_repeated(url: str) -> None:
    with opened(url, mode="upsert") as sink:
        sink.deliver(EPOCHS[0])
        before = execute(url, "SELECT plane, total FROM target ORDER BY plane")
        waits: list[float] = []
        sink._retry_policy = RetryPolicy(sleep=waits.append)
        real = sink._record_epoch

        def fail(connection: Any, point: Any) -> None:
            real(connection, point)
            if len(waits) < 3:
                if not url.startswith("sqlite"):  # which lets no others read meanwhile
                    assert execute(url, "SELECT plane, total FROM target ORDER BY plane") == before
                original = Exception(1213, "Deadlock found when trying to get lock")
                raise sa.exc.OperationalError("COMMIT", {}, original)

        sink._record_epoch = fail  # type: ignore[assignment,method-assign]
        sink.deliver(EPOCHS[1])
        assert len(waits) == 3
        sink.deliver(EPOCHS[1])
    assert execute(url, "SELECT plane, total FROM target ORDER BY plane") == [
        ("N1", 11),
        ("N2", 2),
        ("N3", 30),
    ]


KEY = "plane varchar(9) COLLATE utf8mb4_nopad_bin"
MARIADB_TABLES = {
    "has the engine MyISAM": f"{KEY} PRIMARY KEY, total bigint)  ENGINE=MyISAM",
    "key 'plane' with collation utf8mb4_general_ci": "plane varchar(9) CHARACTER SET utf8mb4 "
    "COLLATE utf8mb4_general_ci PRIMARY KEY, total bigint",
    "'plane' in latin1": "plane varchar(9) PRIMARY KEY, total bigint",
    "type INTEGER": f"{KEY} PRIMARY KEY, total int",
    "another unique key": f"{KEY} PRIMARY KEY, total bigint UNIQUE",
    "no primary key": f"{KEY}, total bigint",
    "no column 'total'": f"{KEY} PRIMARY KEY",
    "a value for column 'more'": f"{KEY} PRIMARY KEY, total bigint, more int NOT NULL",
    "covers only some rows or parts of values": f"{KEY}, total bigint, PRIMARY KEY (plane(2))",
    "with type ENUM": "plane enum('a') PRIMARY KEY, total bigint",
    "computes column 'total'": f"{KEY} PRIMARY KEY, total bigint AS (1)",
}


@pytest.mark.parametrize("message", list(MARIADB_TABLES))
def test_tables_that_would_change_rows_are_refused(mariadb: str, message: str) -> None:
    columns, _, options = MARIADB_TABLES[message].partition(")  ")
    execute(mariadb, f"CREATE TABLE target ({columns}) {options}")
    with pytest.raises(SinkError, match=message):
        gw.sinks.sql(mariadb, "target", mode="upsert").open(context())


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)  # MariaDB: above
@pytest.mark.parametrize(
    ("columns", "index", "message"),
    [
        (
            "plane text, total bigint",
            "(plane) WHERE total > 1",
            "covers only some rows or parts of values",
        ),
        ("plane text, total bigint", "(plane COLLATE {other})", "treats different texts as equal"),
        (
            "plane text COLLATE {other} PRIMARY KEY, total bigint",
            "",
            "treats different texts as equal",
        ),
        ("plane text PRIMARY KEY, total bigint AS (1) STORED", "", "computes column 'total'"),
    ],
)
def test_unique_keys_that_are_not_exact_are_refused(
    url: str, columns: str, index: str, message: str
) -> None:
    other = "NOCASE"
    if url.startswith("postgresql"):
        columns = columns.replace("AS (1)", "GENERATED ALWAYS AS (1)")
        options = "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        execute(url, f"CREATE COLLATION other {options}")
        other = "other"
    execute(url, f"CREATE TABLE target ({columns.format(other=other)})")
    if index:
        execute(url, f"CREATE UNIQUE INDEX i ON target {index.format(other=other)}")
    with pytest.raises(SinkError, match=message):
        gw.sinks.sql(url, "target", mode="upsert").open(context())


def test_a_table_of_sqlite_that_replaces_rows_is_refused_and_a_rowid_is_a_key(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    columns = "plane text PRIMARY KEY, total bigint UNIQUE ON CONFLICT REPLACE"
    execute(url, f"CREATE TABLE target ({columns})")
    with pytest.raises(SinkError, match="would also replace rows"):
        gw.sinks.sql(url, "target", mode="upsert").open(context())
    execute(url, "DROP TABLE target", "CREATE TABLE target (k INTEGER PRIMARY KEY)")
    numbers = context(schema=pa.schema([("k", pa.int64())]), keys=("k",))
    with opened(url, numbers, mode="upsert") as sink:
        sink.deliver(EpochRows(epoch=0, table=pa.table({"k": [7, 7]})))
    assert execute(url, "SELECT k FROM target") == [(7,)]


def test_names_that_upserts_would_write_wrongly_are_refused() -> None:
    schema = pa.schema([("k", pa.int64()), ("100 %", pa.int64())])
    sink = gw.sinks.sql("mariadb://localhost/db", "t", mode="upsert")
    with pytest.raises(SinkError, match="doubles a % in names"):
        sink.check_columns(context(schema=schema, keys=("k",)))


def test_a_complete_result_replaces_all_rows_and_can_be_rolled_back(url: str) -> None:
    ctx = replace(context(), complete=True)
    with opened(url, ctx) as sink:
        for epoch in EPOCHS:
            sink.deliver(epoch)
        assert sink.last_delivered() == point(1)
        sink.roll_back(Committed(latest_epoch=0), -1)
        sink.deliver(EPOCHS[0])
    assert execute(url, "SELECT plane FROM target ORDER BY plane") == [("N1",), ("N2",)]


def test_a_url_never_shows_its_password() -> None:
    sink = gw.sinks.sql("mariadb+pymysql://me:se%40cret@localhost:1/db?ssl_key=x", "t")
    shown = [repr(sink), sink.destination]
    with pytest.raises(SinkError) as refused:
        sink.open(context())
    shown.append(str(refused.value))
    assert not any("cret" in text for text in shown)
    with pytest.raises(SinkError) as refused:
        gw.sinks.sql("oracle://me:secret@localhost/db", "t")
    assert "secret" not in str(refused.value)
