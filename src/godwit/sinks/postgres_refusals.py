"""Rows that only the server can refuse, found one by one by halving what it refused.

A constraint, a trigger, the form of an ``inet``: what they refuse is known when a row arrives,
which is after its epoch was committed.  The epoch cannot be refused any more, so its other rows are
written and these are set aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import psycopg
import pyarrow as pa

from godwit.dataflow.staging import Rejections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from godwit.sinks.postgres_table import Connection

__all__ = ["error_text", "find_refused", "is_about_a_row"]

_ABOUT_ROWS: Final = ("22", "23", "54", "P0")
"""SQLSTATE classes: data exception, constraint violation, limit exceeded, raised by a trigger."""


def is_about_a_row(error: psycopg.Error) -> bool:
    """Whether the server refused what a row holds; another row might have passed."""
    return (error.sqlstate or "").startswith(_ABOUT_ROWS)


def find_refused(
    connection: Connection,
    parts: Iterable[pa.RecordBatch],
    load: Callable[[pa.RecordBatch], None],
) -> tuple[pa.RecordBatch, Rejections] | None:
    """Load what the server takes; return the rows that it refuses, with its reasons.

    Parameters
    ----------
    connection
        In a transaction, which each attempt is a part of.
    parts
        The rows.
    load
        Writes some of them.
    """
    refused: list[pa.RecordBatch] = []
    reasons: list[str] = []
    for part in parts:
        for row, reason in _refused(connection, part, load):
            refused.append(row)
            reasons.append(reason)
    if not refused:
        return None
    rows = pa.concat_batches(refused)
    return rows, Rejections(rows=np.arange(rows.num_rows), reasons=reasons)


def _refused(
    connection: Connection, rows: pa.RecordBatch, load: Callable[[pa.RecordBatch], None]
) -> Iterator[tuple[pa.RecordBatch, str]]:
    try:
        with connection.transaction():  # a savepoint
            load(rows)
    except psycopg.Error as error:
        if not is_about_a_row(error):
            raise
        if rows.num_rows == 1:
            yield rows, f"the server says: {error.diag.message_primary or error_text(error)}"
            return
    else:
        return
    half = rows.num_rows // 2
    yield from _refused(connection, rows.slice(0, half), load)
    yield from _refused(connection, rows.slice(half), load)


def error_text(error: Exception) -> str:
    """Text of an error on one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
