"""Upserts into a PostgreSQL table that others write to, too: drawn histories and a dictionary."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from tests.support.epoch_rows import EpochRows, context
from tests.support.rounds import rounds

import godwit as gw

if TYPE_CHECKING:
    from godwit.connect.postgres.sink import PostgresSink

time_of = dt.datetime.fromisoformat
KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int32(), [-(2**31), -1, 0, 1, 2**31 - 1, None]),
    (pa.uint64(), [0, 2**63, 2**64 - 1, None]),
    (pa.string(), ["", "a", "A", "ä", "a ", '"', "\\N", "x" * 100, None]),
    (pa.float64(), [math.nan, 0.0, -0.0, math.inf, -1.5, 5e-324, None]),
    (pa.decimal128(10, 2), [Decimal("-1.25"), Decimal("-0.05"), Decimal("0.00"), None]),
    (pa.binary(), [b"", b"\0", b"ab", b"\xff", None]),
    (pa.bool_(), [True, False, None]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31), None]),
    (pa.timestamp("us"), [time_of("0001-01-01"), time_of("1969-12-31 23:59:59.000001"), None]),
    (pa.timestamp("us", "UTC"), [time_of("1969-12-31 23:59:59.999999+00:00"), None]),
]
Row = tuple[Any, Any, Any, Any]  # j, n, m, note


def name_of(key: Any) -> str:
    """The same text for keys that PostgreSQL takes for one."""
    return repr(0.0 if isinstance(key, float) and key == 0 else key)


class Table:
    """A table, the rows that it must have, and two queries and other programs that write to it."""

    def __init__(self, dsn: str, dtype: pa.DataType, values: list[Any], seed: int) -> None:
        self.drawn = random.Random(f"{seed} {dtype}")
        self.dsn, self.dtype, self.values = dsn, dtype, values
        self.keys = ["k", "j"] if self.drawn.random() < 0.4 else ["k"]
        self.expected: dict[tuple[str, Any], Row] = {}
        self.default: str | None = None
        self.number = 0
        self.epochs = {"n": 0, "m": 0}
        self.delivered: dict[str, list[EpochRows]] = {"n": [], "m": []}
        self.sinks = {column: self.open(column) for column in ("n", "m")}
        self.execute("ALTER TABLE t ADD COLUMN IF NOT EXISTS m bigint")
        self.execute("ALTER TABLE t ADD COLUMN IF NOT EXISTS note text")

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.Connection.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql.SQL(statement), values)
            return cursor.fetchall() if cursor.description else []

    def open(self, column: str) -> PostgresSink:
        """Open the sink of a query, which writes keys and one column."""
        if column == "m":  # the table was created by the other query
            self.execute("ALTER TABLE t ADD COLUMN IF NOT EXISTS m bigint")
        sink = gw.sinks.postgres(
            f"{self.dsn} application_name=godwit", "t", mode="upsert", keys=self.keys
        )
        sink.open(context(schema=self.schema(column), keys=(), query_id=f"query-{column}"))
        return sink

    def schema(self, column: str) -> pa.Schema:
        return pa.schema([("k", self.dtype), ("j", pa.int64()), (column, pa.int64())])

    def draw_keys(self, most: int) -> list[tuple[Any, int | None]]:
        return [
            (self.drawn.choice(self.values), self.drawn.choice([1, 2, None]))
            for _ in range(self.drawn.randint(1, most))
        ]

    def identity(self, key: Any, j: Any) -> tuple[str, Any]:
        return (name_of(key), j if "j" in self.keys else "")

    def deliver(self, column: str) -> None:
        """Deliver an epoch of a query; some keys come more than once."""
        keys = self.draw_keys(12)
        numbers = list(range(self.number, self.number + len(keys)))
        self.number += len(keys)
        table = pa.table(
            [pa.array([k for k, _ in keys], self.dtype), [j for _, j in keys], numbers],
            schema=self.schema(column),
        )
        epoch = EpochRows(epoch=self.epochs[column], table=table)
        self.epochs[column] += self.drawn.randint(1, 3)
        self.sinks[column].deliver(epoch)
        self.delivered[column].append(epoch)
        last = {self.identity(k, j): (j, n) for (k, j), n in zip(keys, numbers, strict=True)}
        for identity, (j, number) in last.items():
            _, n, m, note = self.expected.get(identity, (None, None, None, self.default))
            values = (number, m) if column == "n" else (n, number)
            self.expected[identity] = (j, *values, note)

    def step(self) -> None:
        """Do a drawn step."""
        column = self.drawn.choice(["n", "m"])
        step = self.drawn.choice(
            ["deliver"] * 6 + ["again", "reopen", "note", "delete", "insert", "default", "break"]
        )
        if step == "deliver":
            self.deliver(column)
        elif step == "again" and self.delivered[column]:  # as a driver that was thought dead
            self.sinks[column].deliver(self.drawn.choice(self.delivered[column]))
        elif step == "reopen":
            self.sinks[column].close()
            self.sinks[column] = self.open(column)
        elif step == "note":
            self.execute("UPDATE t SET note = 'x' WHERE n %% 2 = 0 OR m IS NULL")
            for identity, (j, n, m, note) in self.expected.items():
                is_touched = (n is not None and n % 2 == 0) or m is None
                self.expected[identity] = (j, n, m, "x" if is_touched else note)
        elif step == "delete":
            self.execute("DELETE FROM t WHERE n %% 3 = 0")
            self.expected = {
                identity: row
                for identity, row in self.expected.items()
                if row[1] is None or row[1] % 3
            }
        elif step == "insert":
            for key, j in self.draw_keys(3):
                self.number += 1
                self.insert(key, j, self.number)
        elif step == "default":
            self.default = self.drawn.choice(["none", "new"])
            self.execute(f"ALTER TABLE t ALTER COLUMN note SET DEFAULT '{self.default}'")
        elif step == "break":
            self.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'godwit'"
            )

    def insert(self, key: Any, j: Any, number: int) -> None:
        """Insert a row as another program, unless there is one with the same key."""
        identity = self.identity(key, j)
        self.execute(
            "INSERT INTO t (k, j, n, note) VALUES (%s, %s, %s, 'theirs') ON CONFLICT DO NOTHING",
            *(key, j, number),
        )
        self.expected.setdefault(identity, (j, number, None, "theirs"))

    def check(self) -> None:
        written = self.execute("SELECT k, j, n, m, note FROM t")
        rows = [(self.identity(bytes_of(k), j), (j, *rest)) for k, j, *rest in written]
        assert sorted(rows, key=str) == sorted(self.expected.items(), key=str)


def bytes_of(key: Any) -> Any:
    if isinstance(key, memoryview):
        return bytes(key)
    is_instant = isinstance(key, dt.datetime) and key.tzinfo is not None
    return key.astimezone(dt.UTC) if is_instant else int(key) if _is_whole(key) else key


def _is_whole(key: Any) -> bool:
    return isinstance(key, Decimal) and key.as_tuple().exponent == 0


@pytest.fixture
def server(postgres: str) -> str:
    with psycopg.connect(postgres) as connection:
        if connection.info.server_version < 150_000:
            pytest.skip("Null keys need PostgreSQL 15.")
    return postgres


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize(("dtype", "values"), KEYS, ids=lambda value: str(value)[:20])
def test_drawn_epochs_between_writes_of_others_leave_what_a_dictionary_says(
    server: str, dtype: pa.DataType, values: list[Any], seed: int
) -> None:
    table = Table(server, dtype, values, seed)
    for number in range(rounds(15, 25)):
        table.step()
        if number % 5 == 4:
            table.check()
    for sink in table.sinks.values():
        sink.close()
