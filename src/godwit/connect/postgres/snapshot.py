"""Snapshots: existing rows of tables, read in parts, in order of their keys, before the changes.

All parts are of one moment, which the server exports at an exact position of its log: a change that
was committed before it is in the snapshot, and one committed later is not.  The export ends with
the connection.
"""

from __future__ import annotations

import contextlib
import select
import uuid
from typing import TYPE_CHECKING, Final

import psycopg
import pyarrow as pa
from psycopg import pq, sql
from pyarrow import csv

from godwit.connect.postgres.connection import scalar
from godwit.connect.tables.rows import FEW, Key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.connect.postgres.catalog import PostgresServer, PostgresTable
    from godwit.connect.postgres.connection import Connection

_ALL: Final = 1 << 62
_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 65_536
_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresSnapshot:
    """Consistent view of the tables, while this object has its connection.

    The tables are locked before the moment: where one is rewritten or truncated after it, its rows
    of the moment are gone.
    """

    def __init__(self, server: PostgresServer, tables: Sequence[PostgresTable]) -> None:
        slot = f"godwit_{uuid.uuid4().hex}"
        self._connection = server.connect()
        with contextlib.ExitStack() as failing, server.translating("cannot take a snapshot"):
            failing.callback(self._connection.close)
            locked = sql.SQL(", ").join(table.from_clause for table in tables)
            self._connection.execute(_BEGIN)
            self._connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(locked))
            with server.connect(replication=True) as exporting:
                row = exporting.execute(
                    sql.SQL(
                        "CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
                    ).format(sql.Identifier(slot))
                ).fetchone()
                assert row is not None
                self._connection.execute(_set_snapshot_statement(str(row[2])))
            self.token = str(scalar(self._connection, "SELECT pg_export_snapshot()"))
            failing.pop_all()
        high, low = str(row[1]).split("/")
        self.lsn = (int(high, 16) << 32) + int(low, 16)

    @property
    def closed(self) -> bool:
        """True if the connection, and with it the consistent view, is lost."""
        return self._connection.closed or self._connection.broken

    def close(self) -> None:
        """End the snapshot."""
        self._connection.close()

    def keys_after(
        self, table: PostgresTable, after: Key | None, up_to: Key | None, rows: int
    ) -> tuple[int, Key | None]:
        """Return the number of the next rows of a table, at most `rows`, and the last row's key."""
        count, keys = self._every_key(table, after, up_to, rows, rows)
        return count, keys[-1] if keys else None

    def _every_key(
        self, table: PostgresTable, after: Key | None, up_to: Key | None, rows: int, step: int
    ) -> tuple[int, list[Key]]:
        """Return the number of the next rows of a table, at most `rows`, and some of their keys.

        These are the keys of every `step`-th row, and of the last one.
        """
        names = sql.SQL(", ").join(map(sql.Identifier, table.keys))
        texts = sql.SQL(", ").join(
            sql.SQL("{}::text").format(sql.Identifier(name)) for name in table.keys
        )
        query = sql.SQL(
            "WITH r AS MATERIALIZED (SELECT {names}, row_number() OVER (ORDER BY {names}) AS {n} "
            "FROM {table}{where} ORDER BY {names} LIMIT {rows}) "
            "SELECT {n}, {texts} FROM r WHERE {n} % {step} = 0 OR {n} = (SELECT max({n}) FROM r) "
            "ORDER BY {n}"
        ).format(
            names=names,
            texts=texts,
            table=table.from_clause,
            where=_key_range_condition(table, after, up_to),
            rows=sql.Literal(rows),
            step=sql.Literal(step),
            n=sql.Identifier("godwit row number"),
        )
        rows_read = self._connection.execute(query).fetchall()
        if not rows_read:
            return 0, []
        return int(rows_read[-1][0]), [list(row[1:]) for row in rows_read]

    def parts_of(
        self, table: PostgresTable, after: Key | None, up_to: Key | None, parallelism: int
    ) -> list[tuple[int | None, Key | None, Key | None]]:
        """Return number of rows, and bounds, of about equal parts of a range of a table's keys.

        A table without keys is one part, of an unknown number of rows.
        """
        if not table.keys:
            return [(None, None, None)]
        total, _ = self._every_key(table, after, up_to, _ALL, _ALL)
        if not total:
            return []
        rows = total if total <= FEW else -(-total // max(1, parallelism))
        _, keys = self._every_key(table, after, up_to, total, rows)
        sizes = [min(rows, total - place * rows) for place in range(len(keys))]
        return list(zip(sizes, [after, *keys], keys, strict=False))


def begin_at(connection: Connection, token: str) -> None:
    """Begin a transaction that reads an exported snapshot."""
    connection.execute(_BEGIN)
    connection.execute(_set_snapshot_statement(token))


def _set_snapshot_statement(token: str) -> sql.Composed:
    """Return the statement that sets a transaction to an exported snapshot."""
    return sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(token))


def copy_range(
    connection: Connection,
    table: PostgresTable,
    columns: Sequence[str],
    after: Key | None,
    up_to: Key | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table with keys after `after`, up to `up_to`, as text columns.

    They are in order of their keys. If no columns are asked for, there is one of nulls.
    """
    named = sql.SQL(", ").join(map(sql.Identifier, columns)) if columns else sql.SQL("NULL")
    order: sql.Composable = sql.SQL("")
    if table.keys:
        order = sql.SQL(" ORDER BY ") + sql.SQL(", ").join(map(sql.Identifier, table.keys))
    query = sql.SQL("COPY (SELECT {} FROM {}{}{}) TO STDOUT (FORMAT csv)").format(
        named, table.from_clause, _key_range_condition(table, after, up_to), order
    )
    names = list(columns) or ["nothing"]
    lines: list[bytes] = []
    size = 0
    for line in _copied_lines(connection, query.as_bytes(connection)):
        lines.append(line)
        size += len(line)
        if size >= _BATCH_BYTES or len(lines) >= _BATCH_ROWS:
            yield _parse_csv_lines(lines, size, names)
            lines, size = [], 0
    if lines:
        yield _parse_csv_lines(lines, size, names)


def _copied_lines(connection: Connection, query: bytes) -> Iterator[bytes]:
    """Yield the lines of a COPY, of one row each."""
    link = connection.pgconn
    result = link.exec_(query)
    if result.status != pq.ExecStatus.COPY_OUT:
        state = result.error_field(pq.DiagnosticField.SQLSTATE) or b"XX000"
        raise psycopg.errors.lookup(state.decode())(result.get_error_message())
    while True:
        length, data = link.get_copy_data(1)
        if length > 0:
            yield bytes(data)
        elif length == 0:
            select.select([link.socket], [], [], 1.0)
            link.consume_input()
        else:
            break
    ended = False
    while (outcome := link.get_result()) is not None:
        ended = outcome.status == pq.ExecStatus.COMMAND_OK
        if not ended:
            raise psycopg.OperationalError(outcome.get_error_message())
    if not ended:
        raise psycopg.OperationalError("the COPY ended before its last row")


def _parse_csv_lines(lines: list[bytes], size: int, names: list[str]) -> pa.RecordBatch:
    """Return lines of CSV as text columns; an empty value without quotes is null."""
    table = csv.read_csv(
        pa.BufferReader(b"".join(lines)),
        read_options=csv.ReadOptions(column_names=names, block_size=size + 1, use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    assert table.num_rows == len(lines), "each line has one row"
    return table.combine_chunks().to_batches()[0]


def _key_range_condition(
    table: PostgresTable, after: Key | None, up_to: Key | None
) -> sql.Composed:
    """Return the condition that a key is after `after`, and not after `up_to`."""
    conditions = [
        sql.SQL(" {} {} {}").format(
            table.key_tuple(), sql.SQL(compared), table.key_tuple([*map(sql.Literal, key)])
        )
        for compared, key in ((">", after), ("<=", up_to))
        if key is not None
    ]
    return sql.SQL(" WHERE" if conditions else "") + sql.SQL(" AND").join(conditions)


def keys_up_to(
    connection: Connection, table: PostgresTable, keys: Sequence[Key], bound: Key
) -> set[int]:
    """Return the numbers of the keys that are not after `bound`, in the order of the table."""
    if not keys:
        return set()
    columns = [list(values) for values in zip(*keys, strict=True)]
    names = [sql.Identifier(f"k{number}") for number in range(len(columns))]
    query = sql.SQL("SELECT n FROM unnest({}) WITH ORDINALITY AS k ({}, n) WHERE {} <= {}").format(
        sql.SQL(", ").join(sql.SQL("{}::text[]").format(sql.Literal(values)) for values in columns),
        sql.SQL(", ").join(names),
        table.key_tuple(names),
        table.key_tuple([*map(sql.Literal, bound)]),
    )
    return {int(number) - 1 for (number,) in connection.execute(query).fetchall()}
