"""The table ``godwit_epochs``: which epoch of which history a PostgreSQL table got last, from whom.

It lies in the schema of the target, wherever the search path leads, and has a row for each query,
sink and target.  A target is its name in that schema, so that a database that was dumped and
restored is known again, and its object id, so that a table that was renamed or moved to another
schema is: its row follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from godwit.checkpoint.ownership import HistoryPoint

if TYPE_CHECKING:
    from godwit.sinks.postgres_table import Connection, TargetTable
    from godwit.sinks.sink import SinkContext

__all__ = ["EPOCHS", "DeliveredEpochs"]

EPOCHS: Final = "godwit_epochs"

_COLUMNS: Final = (
    "target text NOT NULL DEFAULT ''",
    "target_oid oid",
    "history text NOT NULL DEFAULT ''",
    "digest text NOT NULL DEFAULT ''",
)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of such a table, and where it is."""

    schema: str
    target: str
    oid: int | None
    epoch: int
    history: str
    digest: str


class DeliveredEpochs:
    """The epochs that one table got from one sink of one query.

    Made within the transaction that prepares the table, which others wait for.

    Parameters
    ----------
    connection
        The server.
    target
        The table, which is there.
    context
        The query and the sink.

    Raises
    ------
    SinkError
        If the user may not write ``godwit_epochs``.
    """

    def __init__(self, connection: Connection, target: TargetTable, context: SinkContext) -> None:
        self._query_id, self._writer = context.query_id, context.writer
        self.oid, self._schema, self._table = target.identity(connection)
        self.identifier = sql.Identifier(self._schema, EPOCHS)
        self._prepare(connection, target)
        self._take_along(connection)

    def _prepare(self, connection: Connection, target: TargetTable) -> None:
        # CREATE TABLE IF NOT EXISTS asks for the right to create even where there is nothing to do;
        # it is said all the same, for another query's sink may be first.
        row = connection.execute("SELECT to_regclass(%s)", [self.identifier.as_string()]).fetchone()
        if row is None or row[0] is None:
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (query_id text, sink text, epoch bigint NOT "
                    "NULL, delivered_at timestamptz NOT NULL DEFAULT now(), "
                    + ", ".join(_COLUMNS)
                    + ", PRIMARY KEY (query_id, sink, target))"
                ).format(self.identifier)
            )
            return
        target.check_privileges(connection, self.identifier, ["SELECT", "INSERT", "UPDATE"])
        if not _has_targets(connection, self._schema):
            self._upgrade(connection)

    def _upgrade(self, connection: Connection) -> None:
        """Let a table that an earlier version made tell targets apart."""
        row = connection.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%s) AND contype = 'p'",
            [self.identifier.as_string()],
        ).fetchone()
        added = ", ".join(f"ADD COLUMN {column}" for column in _COLUMNS)
        connection.execute(sql.SQL("ALTER TABLE {} " + added).format(self.identifier))
        if row is not None:
            connection.execute(
                sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(
                    self.identifier, sql.Identifier(row[0])
                )
            )
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD PRIMARY KEY (query_id, sink, target)").format(
                self.identifier
            )
        )

    def _take_along(self, connection: Connection) -> None:
        """Let the row follow a table that was renamed, moved, restored, or known by its schema."""
        found = self._own_row(connection)
        if found is None or (found.schema, found.target, found.oid) == (
            *(self._schema, self._table),
            self.oid,
        ):
            return
        self._delete(connection, found)
        self._write(connection, found.epoch, found.history, found.digest)

    def _own_row(self, connection: Connection) -> _Row | None:
        rows = self._rows(connection, self._schema)
        for row in rows:
            if row.oid == self.oid:
                return row
        for row in rows:
            if row.target != self._table:
                continue
            other = None if row.oid is None else _name_of(connection, row.oid)
            if other is None:  # restored from a dump, or made anew
                return row
            # Another table had this name: the row is that one's.
            self._delete(connection, row)
            self._write(connection, row.epoch, row.history, row.digest, target=other, oid=row.oid)
        for row in rows:
            if not row.target:  # of an earlier version, which knew one table a schema
                return row
        return self._row_elsewhere(connection)

    def _row_elsewhere(self, connection: Connection) -> _Row | None:
        """Find the row of a table that was moved, or whose row an earlier version put elsewhere."""
        schemas = connection.execute(
            """
            SELECT n.nspname, c.oid = to_regclass(%s)
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relname = %s AND c.relkind = 'r' AND n.nspname <> %s
              AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
            """,
            [EPOCHS, EPOCHS, self._schema],
        ).fetchall()
        for schema, is_visible in schemas:
            if _has_targets(connection, schema):
                for row in self._rows(connection, schema):
                    if row.oid == self.oid:
                        return row
            elif is_visible:  # an earlier version put it where the search path began
                for row in self._rows(connection, schema, with_targets=False):
                    return row
        return None

    def _rows(
        self, connection: Connection, schema: str, *, with_targets: bool = True
    ) -> list[_Row]:
        statement = (
            "SELECT target, target_oid::bigint, epoch, history, digest FROM {epochs} "
            "WHERE query_id = {query} AND sink = {sink}"
            if with_targets
            else "SELECT '', NULL::bigint, epoch, '', '' FROM {epochs} "
            "WHERE query_id = {query} AND sink = {sink}"
        )
        found = connection.execute(self._statement(statement, schema)).fetchall()
        return [_Row(schema, *row) for row in found]

    def _statement(self, text: LiteralString, schema: str, **values: object) -> sql.Composed:
        """Fill in a statement, without parameters: beside any, a % in a name is taken for one."""
        return sql.SQL(text).format(
            epochs=sql.Identifier(schema, EPOCHS),
            query=sql.Literal(self._query_id),
            sink=sql.Literal(self._writer),
            **{name: sql.Literal(value) for name, value in values.items()},
        )

    def _delete(self, connection: Connection, row: _Row) -> None:
        table = sql.Identifier(row.schema, EPOCHS)
        allowed = connection.execute(
            "SELECT has_table_privilege(to_regclass(%s), 'DELETE')", [table.as_string()]
        ).fetchone()
        if allowed is None or not allowed[0] or not _has_targets(connection, row.schema):
            return
        connection.execute(
            self._statement(
                "DELETE FROM {epochs} WHERE query_id = {query} AND sink = {sink} "
                "AND target = {target}",
                row.schema,
                target=row.target,
            )
        )

    def last(self, connection: Connection) -> HistoryPoint | None:
        """Return the last epoch; ``None`` if there is none."""
        for row in self._rows(connection, self._schema):
            if row.target == self._table:
                return HistoryPoint(
                    query_id=self._query_id,
                    history=row.history,
                    epoch=row.epoch,
                    digest=row.digest,
                )
        return None

    def put(self, connection: Connection, point: HistoryPoint) -> None:
        """Let a point be the last epoch, whatever was."""
        self._write(connection, point.epoch, point.history, point.digest)

    def _write(
        self,
        connection: Connection,
        epoch: int,
        history: str,
        digest: str,
        *,
        target: str | None = None,
        oid: int | None = None,
    ) -> None:
        connection.execute(
            self._statement(
                "INSERT INTO {epochs} (query_id, sink, target, target_oid, epoch, history, digest) "
                "VALUES ({query}, {sink}, {target}, {oid}, {epoch}, {history}, {digest}) "
                "ON CONFLICT (query_id, sink, target) DO UPDATE SET target_oid = "
                "excluded.target_oid, epoch = excluded.epoch, history = excluded.history, "
                "digest = excluded.digest, delivered_at = now()",
                self._schema,
                target=self._table if target is None else target,
                oid=self.oid if oid is None else oid,
                epoch=epoch,
                history=history,
                digest=digest,
            )
        )

    def claim(self, connection: Connection, point: HistoryPoint) -> tuple[bool, int]:
        """Record an epoch, unless it or a later one is recorded.

        Waits while another transaction holds the claim.

        Returns
        -------
        bool
            Whether it was not recorded before.
        int
            The epoch that was recorded before it; -1 if none was.
        """
        claimed = connection.execute(
            self._statement(
                "WITH earlier AS (SELECT epoch FROM {epochs} WHERE query_id = {query} "
                "AND sink = {sink} AND target = {target}) "
                "INSERT INTO {epochs} AS e "
                "(query_id, sink, target, target_oid, epoch, history, digest) "
                "VALUES ({query}, {sink}, {target}, {oid}, {epoch}, {history}, {digest}) "
                "ON CONFLICT (query_id, sink, target) DO UPDATE SET epoch = excluded.epoch, "
                "history = excluded.history, digest = excluded.digest, delivered_at = now() "
                "WHERE e.epoch < excluded.epoch "
                "RETURNING (SELECT epoch FROM earlier)",
                self._schema,
                target=self._table,
                oid=self.oid,
                epoch=point.epoch,
                history=point.history,
                digest=point.digest,
            )
        ).fetchone()
        if claimed is None:
            return False, point.epoch
        return True, -1 if claimed[0] is None else int(claimed[0])

    def other_writers(self, connection: Connection) -> bool:
        """Whether another query or sink has written to the table too."""
        row = connection.execute(
            self._statement(
                "SELECT EXISTS (SELECT FROM {epochs} WHERE target IN ({target}, '') "
                "AND (query_id, sink) <> ({query}, {sink}))",
                self._schema,
                target=self._table,
            )
        ).fetchone()
        return row is not None and bool(row[0])


def _has_targets(connection: Connection, schema: str) -> bool:
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) "
        "AND attname = 'target' AND NOT attisdropped)",
        [sql.Identifier(schema, EPOCHS).as_string()],
    ).fetchone()
    return row is not None and bool(row[0])


def _name_of(connection: Connection, oid: int) -> str | None:
    """Name of a table; ``None`` if there is none any more."""
    row = connection.execute("SELECT relname FROM pg_class WHERE oid = %s", [oid]).fetchone()
    return None if row is None else str(row[0])
