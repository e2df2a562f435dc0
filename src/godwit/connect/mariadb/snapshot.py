"""Snapshots: existing rows of MariaDB tables, read in order of their keys before the changes.

All parts are of one moment, a transaction with a consistent snapshot, whose place in the binary log
the server names.  No other connection can have that moment, so the driver reads the rows, and
splits have them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pymysql

from godwit.connect.mariadb.server import query, quoted
from godwit.connect.mariadb.stream import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.connect.mariadb.server import Connection, MariaServer, MariaTable
    from godwit.connect.tables.rows import Key

_BATCH_ROWS: Final = 16_384
_BATCH_BYTES: Final = 4 << 20
_ALTERED: Final = 1412  # a table was altered after the moment
_ATTEMPTS: Final = 5


class MariaSnapshot:
    """Consistent view of the tables, while this object has its connection.

    The tables cannot be altered until the moment ends.
    """

    def __init__(self, server: MariaServer, tables: Sequence[MariaTable]) -> None:
        self._server = server
        self._connection = server.connect(raw=True)
        with contextlib.ExitStack() as failing, server.translating("cannot take a snapshot"):
            failing.callback(self._connection.close)
            for attempt in range(_ATTEMPTS):
                try:
                    self._begin_transaction(tables)
                    break
                except pymysql.err.Error as error:
                    if error.args[0] != _ALTERED or attempt == _ATTEMPTS - 1:
                        raise
            failing.pop_all()
        self.lsn = place_of(self.gtids)

    def _begin_transaction(self, tables: Sequence[MariaTable]) -> None:
        """Begin the transaction, and read its place in the log."""
        query(self._connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        query(self._connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        status = dict(query(self._connection, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
        self.file = status[b"Binlog_snapshot_file"].decode()
        self.position = int(status[b"Binlog_snapshot_position"])
        [(gtids,)] = query(
            self._connection, "SELECT BINLOG_GTID_POS(%s, %s)", self.file, self.position
        )
        if gtids is None:
            raise pymysql.err.InternalError(0, f"{self.file} was removed meanwhile")
        self.gtids = gtids.decode()
        for table in tables:  # locks its columns, or raises if they were altered
            query(self._connection, f"SELECT 1 FROM {table.from_clause} LIMIT 1")  # noqa: S608

    @property
    def closed(self) -> bool:
        """True if the connection is lost, and its consistent view with it."""
        return not self._connection.open

    def close(self) -> None:
        """End the snapshot."""
        if self._connection.open:
            self._connection.close()

    def keys_after(
        self, table: MariaTable, after: Key | None, up_to: Key | None, rows: int
    ) -> tuple[int, Key | None]:
        """Return the number of the next rows of a table, at most `rows`, and the last row's key."""
        columns = table.key_columns()
        names = ", ".join(c.values.key_selected(quoted(c.name)) for c in columns)
        source = f"FROM {table.from_clause}{_key_range_condition(table, after, up_to)}"
        last = query(
            self._connection,
            f"SELECT {names} {source}{_order_by_keys(table)} LIMIT 1 OFFSET {rows - 1}",
        )
        number = rows
        if not last:
            [(count,)] = query(self._connection, f"SELECT COUNT(*) {source}")
            number = int(count)
            last = query(
                self._connection, f"SELECT {names} {source}{_order_by_keys(table, ' DESC')} LIMIT 1"
            )
        return number, [value.decode() for value in last[0]] if last else None

    def rows(
        self, table: MariaTable, names: Sequence[str], after: Key | None, up_to: Key | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with keys after `after`, up to `up_to`, as columns of values in their form."""
        columns = [column for name in names if (column := table.column(name)) is not None]
        selected = ", ".join(c.values.selected(quoted(c.name)) for c in columns)
        conditions = f"{_key_range_condition(table, after, up_to)}{_order_by_keys(table)}"
        source = f"FROM {table.from_clause}{conditions}"
        cursor: Any = self._connection.cursor(pymysql.cursors.SSCursor)
        with contextlib.closing(cursor):
            cursor.execute(f"SELECT {selected} {source}")
            batch: list[tuple[bytes | None, ...]] = []
            size = 0
            for row in cursor:
                batch.append(row)
                size += sum(len(value) for value in row if value is not None)
                if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                    yield _rows_to_columns(batch, names)
                    batch, size = [], 0
            if batch:
                yield _rows_to_columns(batch, names)


def _rows_to_columns(rows: list[tuple[bytes | None, ...]], names: Sequence[str]) -> pa.RecordBatch:
    """Return rows as columns."""
    columns = [pa.array(values, pa.binary()) for values in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def _order_by_keys(table: MariaTable, direction: str = "") -> str:
    """Return the SQL clause for the order of a table's keys."""
    columns = table.key_columns()
    named = ", ".join(c.values.compared(quoted(c.name)) + direction for c in columns)
    return f" ORDER BY {named}" if named else ""


def _key_range_condition(table: MariaTable, after: Key | None, up_to: Key | None) -> str:
    """Return the condition that a key is after `after`, and not after `up_to`."""
    columns = table.key_columns()
    names = [column.values.compared(quoted(column.name)) for column in columns]
    conditions = [
        _key_comparison(
            names,
            [key_column.literal(text) for key_column, text in zip(columns, key, strict=True)],
            operator,
        )
        for operator, key in ((">", after), ("<", up_to))
        if key is not None
    ]
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _key_comparison(names: Sequence[str], values: Sequence[str], operator: str) -> str:
    """Return the condition that a key is after another, or (``<``) not after it.

    It is written out, since the server uses an index for its first part only then.
    """
    [name, *names], [value, *values] = names, values
    if not names:
        return f"{name} {operator}{'=' if operator == '<' else ''} {value}"
    later_columns = _key_comparison(names, values, operator)
    return f"({name} {operator}= {value} AND ({name} {operator} {value} OR {later_columns}))"


def keys_up_to(
    connection: Connection, table: MariaTable, keys: Sequence[Key], bound: Key
) -> set[int]:
    """Return the numbers of the keys that are not after `bound`, in the order of the table."""
    columns = table.key_columns()
    bounds = [column.literal(text) for column, text in zip(columns, bound, strict=True)]
    numbers: set[int] = set()
    for begin in range(0, len(keys), 500):
        tests = [
            _key_comparison([c.literal(t) for c, t in zip(columns, key, strict=True)], bounds, "<")
            for key in keys[begin : begin + 500]
        ]
        [row] = query(connection, f"SELECT {', '.join(tests)}")
        numbers |= {begin + place for place, is_before in enumerate(row) if int(is_before)}
    return numbers
