"""Rows that only the server can refuse, found one by one by halving what it refused.

A constraint, a trigger, the form of an ``inet``: what they refuse is known when a row arrives,
which is after its epoch was committed.  The epoch cannot be refused any more, so its other rows are
written and these are set aside.

Triggers and policies refuse rows with any code they like, so the code does not tell whether an
error is about a row.  It is if the same statement without rows passes, save where the code says
that the server is in trouble, which another attempt may not meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import psycopg
import pyarrow as pa

from godwit.plan.staging import Rejections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from godwit.sinks.postgres_table import Connection

__all__ = ["UnwritableRowsError", "error_text", "find_refused", "may_be_about_a_row"]

_IN_TROUBLE: Final = ("08", "25", "28", "3D", "40", "53", "55P03", "57", "58")
"""SQLSTATE classes: connection, transaction state, authorization, catalogue, rollback, resources,
a lock that is not to be had, intervention of an operator, system error."""


class UnwritableRowsError(Exception):
    """Rows have values that no text stands for."""


def may_be_about_a_row(error: psycopg.Error | UnwritableRowsError) -> bool:
    """Whether what a row holds may be what was refused; another row might have passed."""
    if isinstance(error, UnwritableRowsError):
        return True
    return error.sqlstate is not None and not error.sqlstate.startswith(_IN_TROUBLE)


def find_refused(
    connection: Connection,
    parts: Iterable[pa.RecordBatch],
    load: Callable[[pa.RecordBatch | None], None],
) -> tuple[pa.RecordBatch, Rejections] | None:
    """Load what the server takes; return the rows that it refuses, with its reasons.

    Parameters
    ----------
    connection
        In a transaction, which each attempt is a part of.
    parts
        The rows.
    load
        Writes some of them; none, to begin with.

    Raises
    ------
    psycopg.Error
        If the server refuses what is not about a row.
    """
    with connection.transaction():
        load(None)
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
    connection: Connection, rows: pa.RecordBatch, load: Callable[[pa.RecordBatch | None], None]
) -> Iterator[tuple[pa.RecordBatch, str]]:
    try:
        with connection.transaction():  # a savepoint
            load(rows)
    except (psycopg.Error, UnwritableRowsError) as error:
        if not may_be_about_a_row(error):
            raise
        if rows.num_rows == 1:
            yield rows, _reason(error)
            return
    else:
        return
    half = rows.num_rows // 2
    yield from _refused(connection, rows.slice(0, half), load)
    yield from _refused(connection, rows.slice(half), load)


def _reason(error: psycopg.Error | UnwritableRowsError) -> str:
    if isinstance(error, UnwritableRowsError):
        return f"cannot be written as text: {error_text(error)}"
    return f"the server says: {error.diag.message_primary or error_text(error)}"


def error_text(error: Exception) -> str:
    """Text of an error on one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
