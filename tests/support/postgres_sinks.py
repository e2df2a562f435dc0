"""Sinks on tables of the PostgreSQL server that tests have, and statements beside them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from tests.support.epoch_rows import context

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.connect.postgres.sink import PostgresSink
    from godwit.sinks.sink import SinkContext

__all__ = ["execute", "opened"]


def execute(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    """Commit each statement; return the rows of the last one."""
    with psycopg.Connection.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@contextmanager
def opened(
    dsn: Any, ctx: SinkContext | None = None, table: str = "target", **options: Any
) -> Iterator[PostgresSink]:
    """Yield a sink of (plane, total) rows, unless `ctx` says otherwise, and close it."""
    sink = gw.sinks.postgres(dsn, table, **options)
    try:
        sink.open(ctx or context())
        yield sink
    finally:
        sink.close()
