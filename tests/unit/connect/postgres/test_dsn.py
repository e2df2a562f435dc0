"""Connection strings: those that cannot be meant so are refused, and none is ever repeated."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from tests.support.epoch_rows import context

import godwit as gw
from godwit.connect.postgres.connection import plain_name, table_parts
from godwit.model.errors import SinkError

MALFORMED: list[Any] = [
    "postgresql://me:hunter2@ss@host/db",
    "postgresql://me:12/hunter2@host/db",
    "postgresql://me:hunter2/x@host/db",
    "postgresql://me:hun/hunter2@host:5432/db",
    "postgresql://me:hunter2 x@host/db",
    "postgresql://me:hunter2%@host/db",
    "postgresql://me:hunter2%00@host/db",
    "postgresql://me:hunter2@[host/db",
    "postgresql://me:hunter2@host:port/db",
    "postgresql://host/db?passwd=hunter2",
    "postgresql://host/db?hunter2",
    "postgresql://me:\ud800hunter2@host/db",
    "postgres//me:hunter2@host/db",
    "postgresql:/me:hunter2@host/db",
    "mysql://me:hunter2@host/db",
    "jdbc:postgresql://host:5432/db?user=me&password=hunter2",
    "jdbc:postgresql://me:hunter2@host/db",
    "jdbc:postgresql://me:12/hunter2@host/db",
    "JDBC:postgresql:db?password=hunter2",
    "jdbc:mysql://host/db?password=hunter2",
    "host=h password=my hunter2",
    "host=h password='hunter2",
    "host=h pass=hunter2",
    "host=h password=x\\ y hunter2",
    "host=h\0password=hunter2",
    "host=postgresql://me:hunter2@host/db",
    "dbname=postgresql://me:hunter2@host/db",
    "hunter2",
    {"host": "h", "pass": "hunter2"},
    {"host": "postgresql://me:hunter2@h/db"},
    {"host": "h", "port": "hunter2"},
    {"host": "h", "password": "hunter2\0"},
]
UNREACHABLE: list[Any] = [
    "postgresql://me:hunter2@127.0.0.1:1/db",
    "postgresql://me:hunter2%40x@127.0.0.1:1/db",
    "postgresql://127.0.0.1:1/db?user=me&password=hunter2",
    "host=127.0.0.1 port=1 user=me password=hunter2",
    "host=127.0.0.1 port=1 user=me password='hunter2 x'",
    "host=127.0.0.1 port=1 user=me:hunter2",
    {"host": "127.0.0.1", "port": 1, "password": "hunter2", "autocommit": True},
]


@pytest.mark.parametrize("dsn", MALFORMED)
def test_what_cannot_be_meant_so_is_refused_before_anything_connects(dsn: Any) -> None:
    with pytest.raises(SinkError, match="connection string is not valid") as caught:
        gw.sinks.postgres(dsn, "t")
    error = caught.value
    lines = [
        line for line in traceback.format_exception(error) if "gw.sinks.postgres(dsn" not in line
    ]
    assert "hunter2" not in f"{error!r} {vars(error)} {''.join(lines)}"
    assert "%40 for @" in error.remedy


@pytest.mark.parametrize("dsn", UNREACHABLE)
def test_a_server_that_cannot_be_reached_is_reported_without_the_password(dsn: Any) -> None:
    sink = gw.sinks.postgres(dsn, "t")
    assert "hunter2" not in repr(sink)
    with pytest.raises(SinkError, match=r"cannot be opened: .*127\.0\.0\.1") as caught:
        sink.open(context())
    error = caught.value
    assert "hunter2" not in f"{error!r} {vars(error)} {''.join(traceback.format_exception(error))}"


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "postgresql:///db?host=/tmp&user=me",
        "postgresql://me@a:1,b:2/db",
        "postgresql://me:p%40ss%2F@host/d%40b",
        "host=h user=me password='it\\'s' options=-csearch_path=x",
        {"host": "h", "dbname": "a@b", "row_factory": None},
    ],
)
def test_what_can_be_meant_so_is_taken(dsn: Any) -> None:
    gw.sinks.postgres(dsn, "t")


def test_a_sink_shows_where_it_writes() -> None:
    sink = gw.sinks.postgres("postgresql://me:hunter2@host/db", "public.t", mode="upsert")
    assert repr(sink) == (
        "gw.sinks.postgres('user=me password=*** dbname=db host=host', 'public.t', mode='upsert')"
    )


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (
            "jdbc:postgresql://db.example:5432/ok?user=me&password=x",
            "postgresql://db.example:5432/ok,",
        ),
        ("jdbc:postgresql://h/ok", "postgresql://h/ok,"),
        ("jdbc:postgresql:ok", "postgresql://localhost/ok,"),
        ("jdbc:postgresql://h/with-dash", "postgresql://HOST/DATABASE,"),
        ("jdbc:sqlserver://h/ok", "not for PostgreSQL"),
    ],
)
def test_a_jdbc_url_is_answered_with_how_it_is_written(url: str, text: str) -> None:
    with pytest.raises(SinkError, match="JDBC URL") as caught:
        gw.sinks.postgres(url, "t")
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ("t", ("t",)),
        ("Mixed t", ("Mixed t",)),
        ('"Mixed t"', ("Mixed t",)),
        ('public."Mixed t"', ("public", "Mixed t")),
        ('"My schema".t', ("My schema", "t")),
        ('"a.b"."c""d"', ("a.b", 'c"d')),
        ("100%", ("100%",)),
    ],
)
def test_names_of_tables_are_read_as_sql_spells_them(table: str, parts: tuple[str, ...]) -> None:
    assert table_parts(table) == parts
    assert table_parts(plain_name(parts)) == parts


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("", "Give"),
        (".t", "Give"),
        ("a.b.c", "Give"),
        ('""', "Give"),
        ('a"b', '"a""b"'),
        ('"a"b"', "as in SQL"),
        ('"a', "as in SQL"),
        ("a\0b", "Give"),
    ],
)
def test_what_names_no_table_is_refused(table: str, text: str) -> None:
    with pytest.raises(SinkError, match="is not a valid table name") as caught:
        gw.sinks.postgres("dbname=d", table)
    assert text in str(caught.value)
