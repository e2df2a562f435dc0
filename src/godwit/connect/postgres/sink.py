"""Results in a PostgreSQL table, exactly once: the rows and the epoch's number commit together.

The invariant: ``godwit_epochs`` says epoch n of a sink if and only if the table holds the rows of
every epoch up to n.  One transaction claims the epoch (and locks the claim), writes the rows and
commits, so a second delivery of the epoch, late or at the same time, finds the claim and writes
nothing.  If the answer of a commit is lost, the next delivery finds out in the same way.

The table ``godwit_epochs`` has the last epoch of a target, its history and writer.  It is in the
schema of the target, independent of the search path, and has a row for each query, sink and target.
A target is identified by its name in that schema, which survives a dump and restore of the
database, and by its object id, which survives a new name or schema of the table: its row follows.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, LiteralString, get_args

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import errors, sql

from godwit.checkpoint.ownership import HistoryPoint
from godwit.connect.postgres.connection import (
    Connection,
    check_dsn,
    dataset_of_table,
    error_text,
    place_of_table,
    plain_name,
    scalar,
    secrets_of_dsn,
    server_of_dsn,
    shown_dsn,
    table_parts,
)
from godwit.connect.postgres.copy import (
    UnwritableRowsError,
    csv_rows,
    find_refused,
    is_storable,
    may_concern_rows,
)
from godwit.connect.postgres.merge import RESERVED, STAGE, StagedMerge
from godwit.connect.postgres.table import TargetTable, comma_separated
from godwit.model.errors import SinkError
from godwit.plan.staging import Rejections
from godwit.sinks.rows import (
    cast_batches,
    is_complete_result,
    join_small_batches,
    split_batch,
    storable_schema,
)
from godwit.sinks.target_sink import CommitRetries, TargetSink, point_of_epoch
from godwit.sinks.writing import Mode, Writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from godwit.plan.staging import RowCheck
    from godwit.sinks.sink import CommittedEpochs, EpochOutput, Sink, SinkContext

EPOCHS: Final = "godwit_epochs"

_RECORD: Final = (
    "INSERT INTO {epochs} AS e (query_id, sink, target, target_oid, epoch, history, digest) "
    "VALUES ({query}, {sink}, {target}, {oid}, {epoch}, {history}, {digest}) "
    "ON CONFLICT (query_id, sink, target) DO UPDATE SET target_oid = excluded.target_oid, "
    "epoch = excluded.epoch, history = excluded.history, digest = excluded.digest, "
    "delivered_at = now()"
)
_CLAIM: Final = (
    "WITH earlier AS (SELECT epoch FROM {epochs} WHERE query_id = {query} AND sink = {sink} "  # noqa: S608 - constants
    "AND target = {target}) "
    + _RECORD
    + " WHERE e.epoch < excluded.epoch RETURNING (SELECT epoch FROM earlier)"
)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of ``godwit_epochs``."""

    schema: str  # of the table that the row is in
    # the table that got the epoch: its name and its object id
    target: str
    oid: int | None
    point: HistoryPoint


class DeliveredEpochs:
    """Record of the epochs that one table got from one sink, in ``godwit_epochs``.

    Made within the transaction that prepares the table, which others wait for.

    `connection`: the server. `target`: the table, which is there. `context`: the query and the
    sink.
    """

    def __init__(self, connection: Connection, target: TargetTable, context: SinkContext) -> None:
        self._query_id, self._writer = context.query_id, context.writer
        self.oid, self._schema, self._table = target.identity(connection)
        self.identifier = sql.Identifier(self._schema, EPOCHS)
        self._prepare_epochs_table(connection, target)
        self._follow_table(connection)

    def _prepare_epochs_table(self, connection: Connection, target: TargetTable) -> None:
        """Create the table ``godwit_epochs``, or check that it can be used for `target`."""
        # CREATE TABLE IF NOT EXISTS asks for the right to create even where there is nothing to do;
        # it is said anyway, for another query's sink may be first.
        if scalar(connection, "SELECT to_regclass(%s)", self.identifier.as_string()) is None:
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (query_id text, sink text, epoch bigint NOT "
                    "NULL, delivered_at timestamptz NOT NULL DEFAULT now(), "
                    "target text NOT NULL, target_oid oid, history text NOT NULL, "
                    "digest text NOT NULL, PRIMARY KEY (query_id, sink, target))"
                ).format(self.identifier)
            )
            return
        target.check_privileges(connection, self.identifier, ["SELECT", "INSERT", "UPDATE"])

    def _follow_table(self, connection: Connection) -> None:
        """Update the row of a table that was renamed, moved or restored."""
        row = self._own_row(connection)
        here = (self._schema, self._table, self.oid)
        if row is not None and (row.schema, row.target, row.oid) != here:
            self._delete_epoch_row(connection, row)
            self.overwrite(connection, row.point)

    def _own_row(self, connection: Connection) -> _Row | None:
        """Return the row of ``godwit_epochs`` for this table, by object id or else by name."""
        rows = self._read_rows(connection, self._schema)
        for row in rows:
            if row.oid == self.oid:
                return row
        for row in rows:
            if row.target != self._table:
                continue
            other = scalar(connection, "SELECT relname FROM pg_class WHERE oid = %s", row.oid)
            if other is None:  # restored from a dump, or created again
                return row
            # Another table had this name: the row is that one's.
            self._delete_epoch_row(connection, row)
            self.overwrite(connection, row.point, target=other, oid=row.oid)
        return self._row_elsewhere(connection)

    def _row_elsewhere(self, connection: Connection) -> _Row | None:
        """Return the row for this table in ``godwit_epochs`` of another schema.

        ``None`` if none is.
        """
        schemas = connection.execute(
            """
            SELECT n.nspname
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relname = %s AND c.relkind = 'r' AND n.nspname <> %s
              AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
            """,
            [EPOCHS, self._schema],
        ).fetchall()
        rows = (row for (schema,) in schemas for row in self._read_rows(connection, schema))
        return next((row for row in rows if row.oid == self.oid), None)

    def _read_rows(self, connection: Connection, schema: str) -> list[_Row]:
        """Return the rows for this query and sink in ``godwit_epochs`` of a schema."""
        statement: LiteralString = (
            "SELECT target, target_oid::bigint, epoch, history, digest FROM {epochs} "
            "WHERE query_id = {query} AND sink = {sink}"
        )
        rows = connection.execute(self._format_statement(statement, schema)).fetchall()
        return [
            _Row(
                schema,
                target,
                oid,
                HistoryPoint(query_id=self._query_id, history=history, epoch=epoch, digest=digest),
            )
            for target, oid, epoch, history, digest in rows
        ]

    def _format_statement(self, text: LiteralString, schema: str, **values: object) -> sql.Composed:
        """Return an SQL statement with the names and literal values of this sink filled in."""
        return sql.SQL(text).format(
            epochs=sql.Identifier(schema, EPOCHS),
            query=sql.Literal(self._query_id),
            sink=sql.Literal(self._writer),
            **{name: sql.Literal(value) for name, value in values.items()},
        )

    def _delete_epoch_row(self, connection: Connection, row: _Row) -> None:
        """Delete a row of ``godwit_epochs``, if the user has the privilege."""
        table = sql.Identifier(row.schema, EPOCHS)
        may_delete = "SELECT has_table_privilege(to_regclass(%s), 'DELETE')"
        if scalar(connection, may_delete, table.as_string()):
            connection.execute(
                self._format_statement(
                    "DELETE FROM {epochs} WHERE query_id = {query} AND sink = {sink} "
                    "AND target = {target}",
                    row.schema,
                    target=row.target,
                )
            )

    def last_point(self, connection: Connection) -> HistoryPoint | None:
        """Return the last epoch recorded for this table and sink; ``None`` if there is none."""
        rows = self._read_rows(connection, self._schema)
        return next((row.point for row in rows if row.target == self._table), None)

    def overwrite(
        self,
        connection: Connection,
        point: HistoryPoint,
        *,
        target: str | None = None,
        oid: int | None = None,
    ) -> None:
        """Record a point as a table's last epoch (default: this table), unconditionally."""
        connection.execute(self._record_statement(_RECORD, point, target, oid))

    def record_once(self, connection: Connection, point: HistoryPoint) -> tuple[bool, int]:
        """Record an epoch as delivered, unless it or a later one is recorded already.

        Waits while another transaction has locked the row. Returns whether the epoch was not
        recorded before, and the last epoch before it; -1 if there was none.
        """
        claimed = connection.execute(self._record_statement(_CLAIM, point)).fetchone()
        if claimed is None:
            return False, point.epoch
        return True, -1 if claimed[0] is None else int(claimed[0])

    def _record_statement(
        self,
        statement: LiteralString,
        point: HistoryPoint,
        target: str | None = None,
        oid: int | None = None,
    ) -> sql.Composed:
        """Return the filled-in `statement`, which records an epoch for a table (default: this)."""
        return self._format_statement(
            statement,
            self._schema,
            target=self._table if target is None else target,
            oid=self.oid if oid is None else oid,
            epoch=point.epoch,
            history=point.history,
            digest=point.digest,
        )

    def has_other_writers(self, connection: Connection) -> bool:
        """Return whether another query or sink has also written to the table."""
        statement = self._format_statement(
            "SELECT EXISTS (SELECT FROM {epochs} WHERE target = {target} "
            "AND (query_id, sink) <> ({query}, {sink}))",
            self._schema,
            target=self._table,
        )
        return bool(scalar(connection, statement))


_COPIED_ROWS: Final = 65_536
_COPIED_BYTES: Final = 16 * 2**20  # as text, rows may take several times as much
_PREPARE_LOCK: Final = 0x60D317  # any number that others are unlikely to lock


class PostgresSink(TargetSink):
    """Writes each epoch to a PostgreSQL table in one transaction (see `godwit.sinks.postgres`)."""

    failures = (psycopg.Error, UnwritableRowsError)
    takes_other_writers = True
    text_of = staticmethod(error_text)
    delivers_concurrently = True  # it touches nothing that lanes of the next epoch write
    deletes = True

    def __init__(
        self,
        dsn: str | Mapping[str, Any],
        table: str,
        *,
        mode: Mode,
        keys: str | Sequence[str] | None,
        order_by: str | None,
        rename: Mapping[str, str] | None,
        create: bool,
        epoch_column: str | None,
        rejects: Sink | None,
    ) -> None:
        writing = Writing(mode=mode, keys=keys, order_by=order_by, rename=rename)
        writing.check(f"PostgreSQL sink on table {table}", get_args(Mode))
        parts = table_parts(table)
        table = plain_name(parts)
        if parts[-1] in {EPOCHS, *RESERVED}:
            raise SinkError(
                f"PostgreSQL sink: table {table} has a name that the sink uses internally.",
                remedy="Choose another name.",
            )
        if epoch_column is not None and mode not in {"append", "changes"}:
            raise SinkError(
                f"PostgreSQL sink on table {table}: epoch_column={epoch_column!r} has no effect "
                "if rows are replaced.",
                remedy='Use mode="append", or omit epoch_column=.',
            )
        check_dsn(dsn)
        super().__init__("PostgreSQL", secrets=secrets_of_dsn(dsn), rejects=rejects, table=table)
        self._dsn = dsn
        self._table = table
        self._writing = writing
        self._create = create
        self._epoch_column = epoch_column
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        where = f"{shown_dsn(self._dsn)!r}, {self._table!r}"
        return f"gw.sinks.postgres({where}, mode={self._writing.mode!r})"

    @property
    def destination(self) -> str:
        """Server and database, without secrets, and name of the table."""
        return f"{server_of_dsn(self._dsn)} {self._table}"

    @property
    def datasets(self) -> tuple[str, ...]:
        """The table, after its server's first address and its database."""
        return (dataset_of_table(self._dsn, self._table),)

    @property
    def place(self) -> str:
        """Text that identifies the table, with or without its schema."""
        return place_of_table(self._dsn, self._table)

    def row_check(self) -> RowCheck:
        """Return the check for rows that the table's columns cannot hold."""
        return self._row_check

    def _fit(self, context: SinkContext) -> None:
        """Set the table's required layout; raise if options do not fit the rows."""
        context = self._set_layout(context)
        self._schema = self._rows_schema = storable_schema(context.schema)
        for field in self._schema:
            if not is_storable(field.type):
                raise self._target_error(
                    f"column {field.name!r} of type {field.type} cannot be a column of a table",
                    "Cast the column to another type in a map before the sink, or leave it out.",
                )
        if self._epoch_column is not None:
            if self._epoch_column in self._schema.names:
                raise self._target_error(
                    f"cannot use {self._epoch_column!r} as epoch_column=, since the rows have a "
                    "column of that name",
                    "Choose another name for epoch_column=.",
                )
            self._schema = self._schema.append(pa.field(self._epoch_column, pa.int64()))
        self._copied_names = self._layout.rows_schema(self._schema).names
        self._target = TargetTable(
            sink=context.name,
            table=self._table,
            schema=self._schema,
            keys=self._layout.keys,
            complete=context.complete,
            epoch_column=self._epoch_column or "",
            deletes=context.kind != "rows" or self._layout.is_history,
        )
        self._row_number = "godwit_row"
        while self._row_number in self._schema.names:
            self._row_number += "_"

    def _try_target(self) -> RowCheck:
        """Prepare the table in a transaction that is rolled back."""
        self._connection = None  # not that of the sink itself
        with contextlib.closing(self):
            self._prepare_table(only_try=True)
        return self._row_check

    def open(self, context: SinkContext) -> None:
        """Connect, check or create the table and ``godwit_epochs``; raise if that fails."""
        self._fit(context)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.close)
            self._prepare_table()
            on_failure.pop_all()

    def _prepare_table(self, *, only_try: bool = False) -> None:
        """Check or create the table and ``godwit_epochs``; `only_try`: and undo it."""
        with self._translating_errors(
            "cannot be opened",
            "Check the server, the connection string and the privileges of its user.",
        ):
            connection = self._connected()
            with connection.transaction(force_rollback=only_try):
                # Sinks that start together must not create one table twice.
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [_PREPARE_LOCK])
                self._target.prepare(connection, create=self._create)
                self._epochs = DeliveredEpochs(connection, self._target, self._context)
                check = self._target.row_check(connection)
                self._row_check = self._layout.check(check)
                last = self._epochs.last_point(connection)
                self._last_epoch = -1 if last is None else last.epoch

    def last_delivered(self) -> HistoryPoint | None:
        """Return the last epoch in ``godwit_epochs`` of this sink and table."""
        with self._reading_epochs():
            return self._epochs.last_point(self._connected())

    def cannot_roll_back(self) -> str | None:
        """Return why rows of later epochs cannot be deleted, as text; ``None`` if they can be."""
        if self._context.complete:
            return None
        if self._target.keys:
            return (
                "rows that were replaced by later ones cannot be restored (later ones will be "
                "written again)"
            )
        if self._epoch_column is None:
            return "rows of the table do not have their epoch, as with epoch_column="
        with self._reading_epochs():
            others = self._epochs.has_other_writers(self._connected())
        return (
            "other writers also write to the table, with their own epoch numbers"
            if others
            else None
        )

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:
        """Delete rows of later epochs (in complete mode the next delivery does), or raise."""
        point = self.last_delivered()
        assert point is not None
        shared = min(point.epoch, epochs.latest_epoch)
        if point.digest:
            shared = epochs.last_shared_epoch(point)
        if self._context.complete:
            shared = epochs.latest_epoch - 1
        elif shared < 0:
            raise self._target_error(
                "cannot be rolled back: it is unknown from which epoch on its rows belong to "
                "another history",
                f"Delete rows by their column {self._epoch_column!r}, then start with "
                'on_divergence="new_writer".',
            )
        elif shared < min_epoch:
            raise self._rollback_error(shared, min_epoch)
        with self._reading_epochs():
            connection = self._connected()
            with connection.transaction():
                if not self._context.complete:
                    connection.execute(
                        sql.SQL("DELETE FROM {} WHERE {} BETWEEN {} AND {}").format(
                            self._target.identifier,
                            sql.Identifier(self._epoch_column or ""),
                            sql.Literal(shared + 1),
                            sql.Literal(point.epoch),  # rows with others are not of this sink
                        )
                    )
                self._epochs.overwrite(connection, point_of_epoch(epochs, shared))
        self._last_epoch = shared

    def continue_after(self, point: HistoryPoint) -> None:
        """Record `point` in ``godwit_epochs`` as the last epoch, unconditionally."""
        with self._reading_epochs():
            self._epochs.overwrite(self._connected(), point)
        self._last_epoch = point.epoch

    def _reading_epochs(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that translates errors while ``godwit_epochs`` is read."""
        return self._translating_errors(
            "its recorded epochs cannot be read",
            "Check the server and the privileges of its user, and start the query again.",
        )

    def deliver(self, output: EpochOutput) -> None:
        """Write the epoch's rows and number in one transaction, unless it is recorded.

        A broken connection is reopened once. A transaction that the server ends, because it and
        another one wait for each other, is repeated. If the server refuses values of rows, these
        rows are found and diverted. Raises `SinkError` if the epoch cannot be written: then the
        table has all of it if the answer to the commit was lost, and otherwise nothing.
        """
        with self._translating_errors(
            f"epoch {output.epoch} cannot be written",
            "The table has either all of the epoch or none of it; fix the cause and start the "
            "query again.",
            epoch=output.epoch,
        ):
            self._write_with_retries(output)
            self._last_epoch = max(self._last_epoch, output.epoch)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Connection:
        """Return the connection, reopened if it is broken."""
        if self._connection is not None and (self._connection.closed or self._connection.broken):
            self.close()
        if self._connection is None:
            if isinstance(self._dsn, str):
                connection: Connection = psycopg.connect(self._dsn, autocommit=True)
            else:
                connection = psycopg.connect(**{**self._dsn, "autocommit": True})
            self._connection = connection
            # The claim waits for its rival to finish and then looks again: read committed.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            connection.execute("SET client_encoding = 'UTF8'")
            # The epoch is not delivered again once it is committed, so a commit must be durable.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
        return self._connection

    def _write_with_retries(self, output: EpochOutput) -> None:
        """Write an epoch; repeat it after a lost connection, or a transaction conflict."""
        retries, was_lost = CommitRetries(self._retry_policy), False
        while True:
            retries.begin(0)
            try:
                self._write_or_divert(output)
            except (errors.DeadlockDetected, errors.SerializationFailure):
                if not retries.wait_after_conflict():
                    raise
            except psycopg.OperationalError:
                if was_lost:
                    raise
                was_lost = True
            else:
                return

    def _write_or_divert(self, output: EpochOutput) -> None:
        """Write an epoch; if the server refuses some rows, divert these and write the others."""
        try:
            self._write_epoch(self._connected(), output)
        except (psycopg.Error, UnwritableRowsError) as error:
            if not may_concern_rows(error):
                raise
            self._write_epoch(self._connected(), output, divert=True)

    def _write_epoch(
        self, connection: Connection, output: EpochOutput, *, divert: bool = False
    ) -> None:
        """Write an epoch's rows and number; `divert`: divert rows that the server refuses."""
        with connection.transaction():
            claimed, before = self._epochs.record_once(connection, output.point)
            if not claimed:
                return
            if before < self._last_epoch:
                raise self._target_error(
                    f"has epochs up to {before}, and epochs up to {self._last_epoch} were "
                    "delivered to it in this run: the server has lost commits, as after a "
                    "failover to a replica that lagged behind",
                    "Restore the table; or start from a backup of the checkpoint from that time; "
                    "or continue without the epochs in between, "
                    'start(on_divergence="new_writer").',
                    epoch=output.epoch,
                )
            if is_complete_result(output, self._context):
                # Not TRUNCATE: readers continue seeing the old rows until the commit.
                connection.execute(sql.SQL("DELETE FROM {}").format(self._target.identifier))
            refused = None
            if divert:
                refused = find_refused(
                    connection,
                    self._batches_of_epoch(output),
                    lambda part: self._load_rows(connection, [] if part is None else [part]),
                )
            else:
                self._load_rows(connection, self._batches_of_epoch(output))
            # Before the commit: an epoch that is recorded has all its rows somewhere, and none that
            # an attempt before this one refused, and this one took, is elsewhere too.
            if refused is not None:
                output.divert(*refused)
            elif self._rejects is not None:
                nothing = pa.RecordBatch.from_pylist([], self._schema)
                output.divert(nothing, Rejections(rows=np.empty(0, np.int64), reasons=()))

    def _load_rows(self, connection: Connection, parts: Iterable[pa.RecordBatch]) -> None:
        """Append or upsert rows within the open transaction."""
        if self._target.keys:
            merge = StagedMerge(self._target.identifier, self._layout, self._row_number)
            merge.create_stage(connection)
            self._copy_rows(connection, parts, sql.Identifier(STAGE), numbered=True)
            merge.apply(connection)
        else:
            self._copy_rows(connection, parts, self._target.identifier)
        # Constraints that are deferred to the commit would refuse the epoch without naming a row.
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _copy_rows(
        self,
        connection: Connection,
        parts: Iterable[pa.RecordBatch],
        table: sql.Identifier,
        *,
        numbered: bool = False,
    ) -> None:
        """Stream rows into a table by COPY, or raise; `numbered`: with a column of row numbers."""
        numbering = [self._row_number] if numbered else []
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            table, comma_separated([*numbering, *self._copied_names])
        )
        row = 0
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for part in parts:
                numbers = [pa.array(np.arange(row, row + part.num_rows))] if numbered else []
                try:
                    text = csv_rows([*numbers, *part.columns])
                except (
                    pa.ArrowException,
                    ArithmeticError,
                    LookupError,
                    TypeError,
                    ValueError,
                ) as e:
                    raise UnwritableRowsError(str(e)) from e
                copy.write(text)
                row += part.num_rows

    def _batches_of_epoch(self, output: EpochOutput) -> Iterator[pa.RecordBatch]:
        """Yield an epoch's rows in batches of bounded size, with the epoch column if requested."""
        layout = self._layout
        if layout.order_by or layout.context.kind != "rows":
            rows = layout.rows(output, self._rows_schema)
        else:  # the server finds the last row of each key
            rows = cast_batches(output, self._rows_schema, layout.context.name, layout.keys)
        for gathered in join_small_batches(rows, rows=_COPIED_ROWS):
            batch = gathered
            if self._epoch_column is not None:
                epochs = pa.repeat(pa.scalar(output.epoch, pa.int64()), batch.num_rows)
                batch = pa.RecordBatch.from_arrays([*batch.columns, epochs], schema=self._schema)
            yield from split_batch(batch, rows=_COPIED_ROWS, size_bytes=_COPIED_BYTES)
