"""Results in a PostgreSQL table, exactly once: the rows and the epoch's number commit together.

The invariant: ``godwit_epochs`` says epoch n of a sink if and only if the table holds the rows of
every epoch up to n.  One transaction claims the epoch (and locks the claim), writes the rows and
commits, so a second delivery of the epoch, late or at the same time, finds the claim and leaves.
A commit whose answer is lost is settled in the same way: deliver again, and look at the claim.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from godwit.model.errors import SinkError
from godwit.plan.staging import Rejections
from godwit.sinks.continuity import point_at, too_few_left
from godwit.sinks.postgres_copy import csv_rows
from godwit.sinks.postgres_dsn import check_dsn, secrets_of_dsn, server_of_dsn, shown_dsn
from godwit.sinks.postgres_epochs import EPOCHS, DeliveredEpochs
from godwit.sinks.postgres_refusals import (
    UnwritableRowsError,
    error_text,
    find_refused,
    may_be_about_a_row,
)
from godwit.sinks.postgres_table import Connection, TargetTable, comma_separated
from godwit.sinks.rows import (
    check_mode,
    checked_rejects,
    fit,
    gather,
    halved,
    is_whole,
    storable_schema,
    upsert_keys,
)
from godwit.sinks.sink import EpochOutput, Sink, SinkContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.plan.staging import RowCheck
    from godwit.sinks.continuity import CommittedEpochs

__all__ = ["PostgresSink"]

_COPIED_ROWS: Final = 65_536
_COPIED_BYTES: Final = 16 * 2**20  # as text, rows may take several times as much
_STAGE: Final = "godwit_stage"
_PREPARE_LOCK: Final = 0x60D317  # any number that others are unlikely to lock


class PostgresSink(Sink):
    """Writes each epoch to a PostgreSQL table in one transaction.

    **Exactly-once**: readers see all rows of an epoch or none, and each epoch's rows once. The
    table ``godwit_epochs``, beside the target, keeps the last epoch of each query and sink. Several
    queries may append to one table.

    Where the operator is complete, each epoch replaces all rows of the table in the same
    transaction; such a table belongs to its sink alone.

    Parameters
    ----------
    dsn
        Connection string or URI, or a mapping of psycopg's connection parameters.
    table
        Name of the table, with its schema in front (``public.by_plane``) or without.
    mode
        ``"append"`` adds rows; ``"upsert"`` replaces the row with the same keys.
    keys
        Columns that identify a row in ``"upsert"``; the operator's key columns by default. Keys
        may be null: a null is a key like any other (PostgreSQL 15 or newer).
    create
        Whether to create the table if it is absent.
    epoch_column
        Column that gets the number of the epoch, so that the table can be rolled back; only where
        rows are appended.
    rejects
        Sink of the rows that the table cannot take (columns as in
        `godwit.plan.staging.REJECTED`); ``None``: such a row refuses its epoch, or stops its
        delivery if only the server can tell.

    Raises
    ------
    SinkError
        If an option has a value that is never right.
    """

    def __init__(
        self,
        dsn: str | Mapping[str, Any],
        table: str,
        *,
        mode: Literal["append", "upsert"] = "append",
        keys: str | Sequence[str] | None = None,
        create: bool = True,
        epoch_column: str | None = None,
        rejects: Sink | None = None,
    ) -> None:
        check_mode(f"PostgreSQL sink on table {table}", mode, keys)
        if not all(table.split(".")) or table.count(".") > 1 or "\0" in table:
            raise SinkError(
                f"PostgreSQL sink: {table!r} does not name a table.",
                remedy='Give "table" or "schema.table".',
            )
        if table.rsplit(".", maxsplit=1)[-1] in {EPOCHS, _STAGE}:
            raise SinkError(
                f"PostgreSQL sink: table {table} has a name that the sink needs for itself.",
                remedy="Choose another name.",
            )
        if epoch_column is not None and mode != "append":
            raise SinkError(
                f"PostgreSQL sink on table {table}: epoch_column={epoch_column!r} means nothing "
                "where rows are replaced.",
                remedy='Use mode="append", or leave epoch_column out.',
            )
        check_dsn(dsn)
        self._dsn, self._secrets = dsn, secrets_of_dsn(dsn)
        self._rejects = checked_rejects(rejects)
        self._table = table
        self._mode = mode
        self._keys = keys
        self._create = create
        self._epoch_column = epoch_column
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        return f"gw.sinks.postgres({shown_dsn(self._dsn)!r}, {self._table!r}, mode={self._mode!r})"

    @property
    def destination(self) -> str:
        """The server, the database and the table."""
        return f"{server_of_dsn(self._dsn)} {self._table}"

    @property
    def rejects(self) -> Sink | None:
        """Where rows go that the table cannot take."""
        return self._rejects

    def row_check(self) -> RowCheck:
        """Return what finds rows that no column of the table's types takes."""
        return self._check

    def open(self, context: SinkContext) -> None:
        """Connect; create the table or check that the rows fit it.

        Raises
        ------
        SinkError
            If the server cannot be reached or the rows do not fit; says what to do.
        """
        self._context = context
        self._schema = self._rows_schema = storable_schema(context.schema)
        if self._epoch_column is not None:
            if self._epoch_column in self._schema.names:
                raise self._error(
                    f"cannot put epochs into column {self._epoch_column!r}, which the rows have",
                    "Give epoch_column another name.",
                )
            self._schema = self._schema.append(pa.field(self._epoch_column, pa.int64()))
        self._target = TargetTable(
            sink=context.name,
            table=self._table,
            schema=self._schema,
            keys=upsert_keys(context, self._keys) if self._mode == "upsert" else (),
            complete=context.complete,
            epoch_column=self._epoch_column or "",
        )
        self._row_number = "godwit_row"
        while self._row_number in self._schema.names:
            self._row_number += "_"
        try:
            connection = self._connect()
            with connection.transaction():
                # Sinks that start together must not create one table twice.
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [_PREPARE_LOCK])
                self._target.prepare(connection, create=self._create)
                self._epochs = DeliveredEpochs(connection, self._target, context)
                self._check = self._target.row_check(connection)
                last = self._epochs.last(connection)
                self._last = -1 if last is None else last.epoch
        except psycopg.Error as error:
            self.close()
            raise self._error(
                f"cannot be opened: {error_text(error)}",
                "Check the server, the connection string and the privileges of its user.",
            ) from self._secrets.cause(error)
        except SinkError:
            self.close()
            raise

    @property
    def keeps_epochs(self) -> bool:
        """True: ``godwit_epochs`` says which epoch of which history the table got last."""
        return True

    def last_delivered(self) -> HistoryPoint | None:
        """Return the last epoch that the table got from this sink."""
        with self._asking():
            return self._epochs.last(self._connect())

    def cannot_roll_back(self) -> str | None:
        """Say why rows cannot be taken from the table again."""
        if self._context.complete:
            return None
        if self._target.keys:
            return "rows that were replaced by later ones are gone (what comes replaces them again)"
        if self._epoch_column is None:
            return "rows of the table do not say which epoch they are of, as with epoch_column="
        with self._asking():
            others = self._epochs.other_writers(self._connect())
        return "others write to the table too, and count epochs of their own" if others else None

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:
        """Delete rows of later epochs; a whole result is written anew.

        Raises
        ------
        SinkError
            If it is not known from which epoch on rows are of another history.
        """
        point = self.last_delivered()
        assert point is not None
        shared = min(point.epoch, epochs.latest_epoch)
        if point.digest:
            shared = epochs.shared_with(point)
        if self._context.complete:
            shared = epochs.latest_epoch - 1
        elif shared < 0:
            raise self._error(
                "cannot be rolled back: nobody knows since which epoch its rows are of another "
                "history",
                f"Delete rows by their column {self._epoch_column!r}, then start with "
                'on_divergence="new_writer".',
            )
        elif shared < min_epoch:
            raise self._error(*too_few_left(shared, min_epoch))
        with self._asking():
            connection = self._connect()
            with connection.transaction():
                if not self._context.complete:
                    connection.execute(
                        sql.SQL("DELETE FROM {} WHERE {} > {}").format(
                            self._target.identifier,
                            sql.Identifier(self._epoch_column or ""),
                            sql.Literal(shared),
                        )
                    )
                self._epochs.put(connection, point_at(epochs, shared))
        self._last = shared

    def continue_after(self, point: HistoryPoint) -> None:
        """Record epochs as delivered."""
        with self._asking():
            self._epochs.put(self._connect(), point)
        self._last = point.epoch

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._error(
                f"cannot be asked for its epochs: {error_text(error)}",
                "Check the server and the privileges of its user, and start the query again.",
            ) from self._secrets.cause(error)

    def deliver(self, output: EpochOutput) -> None:
        """Write the epoch's rows and its number in one transaction, unless it is recorded.

        A connection that breaks is opened anew once. Where the server refuses the epoch because of
        what is in a row, such rows are found and diverted.

        Raises
        ------
        SinkError
            If the epoch cannot be written. All of it is in the table then if the answer to the
            commit was lost, and otherwise nothing.
        """
        try:
            try:
                self._write_or_divert(output)
            except psycopg.OperationalError:
                self._write_or_divert(output)
            self._last = max(self._last, output.epoch)
        except (psycopg.Error, UnwritableRowsError) as error:
            raise self._error(
                f"epoch {output.epoch} cannot be written: {error_text(error)}",
                "It is in the table whole or not at all; mend the cause and start the query again.",
                epoch=output.epoch,
            ) from self._secrets.cause(error)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> Connection:
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

    def _write_or_divert(self, output: EpochOutput) -> None:
        try:
            self._write(self._connect(), output)
        except (psycopg.Error, UnwritableRowsError) as error:
            if not may_be_about_a_row(error):
                raise
            self._write(self._connect(), output, apart=True)

    def _write(self, connection: Connection, output: EpochOutput, *, apart: bool = False) -> None:
        """Write an epoch; with `apart`, divert the rows that the server refuses."""
        with connection.transaction():
            claimed, before = self._epochs.claim(connection, output.point)
            if not claimed:
                return
            if before < self._last:
                raise self._error(
                    f"has epochs up to {before}, and epochs up to {self._last} were delivered to "
                    "it in this run: the server has gone back, as after a failover to a replica "
                    "that did not have everything",
                    "Restore the table; or start from a backup of the checkpoint that is as old; "
                    'or go on without the epochs in between, start(on_divergence="new_writer").',
                    epoch=output.epoch,
                )
            if is_whole(output, self._context):
                # Not TRUNCATE: readers go on seeing the old rows until the commit.
                connection.execute(sql.SQL("DELETE FROM {}").format(self._target.identifier))
            refused = None
            if apart:
                refused = find_refused(
                    connection,
                    self._parts(output),
                    lambda part: self._load(connection, [] if part is None else [part]),
                )
            else:
                self._load(connection, self._parts(output))
            # Before the commit: an epoch that is recorded has all its rows somewhere, and none that
            # an attempt before this one refused, and this one took, is elsewhere too.
            if refused is not None:
                output.divert(*refused)
            elif self._rejects is not None:
                nothing = pa.RecordBatch.from_pylist([], self._schema)
                output.divert(nothing, Rejections(rows=np.empty(0, np.int64), reasons=()))

    def _load(self, connection: Connection, parts: Iterable[pa.RecordBatch]) -> None:
        if self._target.keys:
            self._upsert(connection, parts)
        else:
            self._copy(connection, parts, self._target.identifier)
        # What is deferred to the commit would refuse the epoch there without naming a row.
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _upsert(self, connection: Connection, parts: Iterable[pa.RecordBatch]) -> None:
        columns = comma_separated(self._schema.names)
        keys = comma_separated(self._target.keys)
        others = [name for name in self._schema.names if name not in self._target.keys]
        update: sql.Composable = sql.SQL("DO NOTHING")
        if others:
            update = sql.SQL("DO UPDATE SET {}").format(
                sql.SQL(", ").join(
                    sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others
                )
            )
        names = {
            "stage": sql.Identifier(_STAGE),
            "row": sql.Identifier(self._row_number),
            "target": self._target.identifier,
            "columns": columns,
            "keys": keys,
            "update": update,
        }
        connection.execute(
            sql.SQL(
                "CREATE TEMP TABLE {stage} AS "
                "SELECT 0::bigint AS {row}, {columns} FROM {target} WITH NO DATA"
            ).format(**names)
        )
        self._copy(connection, parts, sql.Identifier(_STAGE), numbered=True)
        # One statement cannot change a row twice: of rows with the same keys, the last counts.
        # Going in order of keys keeps two queries on one table from locking each other out.
        connection.execute(
            sql.SQL(
                "INSERT INTO {target} ({columns}) SELECT DISTINCT ON ({keys}) {columns} "
                "FROM {stage} ORDER BY {keys}, {row} DESC ON CONFLICT ({keys}) {update}"
            ).format(**names)
        )
        connection.execute(sql.SQL("DROP TABLE {stage}").format(**names))

    def _copy(
        self,
        connection: Connection,
        parts: Iterable[pa.RecordBatch],
        table: sql.Identifier,
        *,
        numbered: bool = False,
    ) -> None:
        numbering = [self._row_number] if numbered else []
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            table, comma_separated([*numbering, *self._schema.names])
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

    def _parts(self, output: EpochOutput) -> Iterator[pa.RecordBatch]:
        rows = fit(output, self._rows_schema, self._context.name, self._target.keys)
        for gathered in gather(rows, rows=_COPIED_ROWS):
            batch = gathered
            if self._epoch_column is not None:
                epochs = pa.repeat(pa.scalar(output.epoch, pa.int64()), batch.num_rows)
                batch = pa.RecordBatch.from_arrays([*batch.columns, epochs], schema=self._schema)
            yield from halved(batch, rows=_COPIED_ROWS, size_bytes=_COPIED_BYTES)

    def _error(self, what: str, remedy: str, **context: Any) -> SinkError:
        return SinkError(
            f"PostgreSQL sink {self._context.name!r} on table {self._table}: "
            f"{self._secrets.hide(what)}.",
            remedy=remedy,
            sink=self._context.name,
            table=self._table,
            **context,
        )
