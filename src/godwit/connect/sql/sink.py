"""Results in a table of an SQL database, exactly once: rows and epoch number commit together.

The invariant: ``godwit_sql_epochs`` says epoch n of a sink if and only if the table holds the rows
of every epoch up to n.  One transaction locks the sink's row there, writes the rows, the number,
and commits.  So a second delivery, late or at the same time, finds the number and writes nothing.

SQLAlchemy Core writes the statements.  A dialect differs in its upsert, its types
(`godwit.connect.sql.types`), and the settings of a connection.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, cast

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from godwit.checkpoint.ownership import HistoryPoint
from godwit.columns.signed import CHANGE
from godwit.connect.row_checks import RowChecks
from godwit.connect.sql.types import (
    DIALECTS,
    KEY_LENGTH,
    MYSQL,
    column_check,
    column_type,
    holds,
    stored_values,
)
from godwit.connect.sql.unique import unique_keys
from godwit.model.errors import SinkError
from godwit.model.naming import listing
from godwit.model.secrets import Secrets
from godwit.sinks.rows import is_complete_result, split_batch, storable_schema
from godwit.sinks.target_sink import (
    CommitRetries,
    TargetSink,
    point_of_epoch,
    point_without_history,
)
from godwit.sinks.writing import Writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from godwit.plan.staging import RowCheck
    from godwit.sinks.sink import CommittedEpochs, EpochOutput, Sink, SinkContext

EPOCHS: Final = "godwit_sql_epochs"
_ROWS: Final = 5_000  # of a statement's parameters
_BYTES: Final = 8 * 2**20
_CREATIONS: Final = 3  # tries
_RETRIED: Final = ("1213", "1205", "40P01", "40001", "database is locked")
"""Error codes and texts of transactions that were aborted for another one."""
_STRICT: Final = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'"
)


_SERVERS: Final = {
    "mariadb": ("mysql", 3306, ""),
    "mysql": ("mysql", 3306, ""),
    "postgresql": ("postgres", 5432, "public"),
}
"""Dialect → scheme for lineage, default port, default schema."""


class SqlSink(TargetSink):
    """Writes each epoch to a table in one transaction (see `gw.sinks.sql`)."""

    failures = (SQLAlchemyError,)
    takes_other_writers = True
    delivers_concurrently = True  # it touches nothing that lanes of the next epoch write
    deletes = True

    def __init__(
        self,
        url: str,
        table: str,
        *,
        mode: str,
        keys: str | Sequence[str] | None,
        order_by: str | None,
        rename: Mapping[str, str] | None,
        create: bool,
        rejects: Sink | None,
    ) -> None:
        self._writing = Writing(mode=mode, keys=keys, order_by=order_by, rename=rename)
        self._writing.check(f"SQL sink on table {table}", ("append", "upsert", "changes"))
        try:
            self._url = sa.make_url(url)
            self._dialect = self._url.get_backend_name()
        except (ArgumentError, ValueError):
            self._dialect = ""
        if self._dialect not in DIALECTS:
            raise SinkError(
                "SQL sink: the URL is not one of MariaDB, MySQL, PostgreSQL or SQLite.",
                remedy='Write it as in "mariadb+pymysql://user:password@host/db" or '
                '"sqlite:///file.db"; escape special characters of the password (%40 for @).',
            )
        secrets = Secrets.of_uri(url) | Secrets.of_values({"password": self._url.password or ""})
        super().__init__("SQL", secrets=secrets, rejects=rejects, table=table)
        schema, _, self._table_name = table.rpartition(".")
        self._schema_name = schema or None
        self._create = create
        self._engine: sa.Engine | None = None

    def __repr__(self) -> str:
        where = f"{self._shown_url!r}, {self._place['table']!r}"
        return f"gw.sinks.sql({where}, mode={self._writing.mode!r})"

    @property
    def _shown_url(self) -> str:
        return self._secrets.hide(self._url.set(query={}).render_as_string(hide_password=True))

    @property
    def destination(self) -> str:
        """Server and database, without user and secrets, and name of the table."""
        place = self._url.set(username=None, password=None, query={}, drivername=self._dialect)
        return f"{place.render_as_string()} {self._place['table']}"

    @property
    def datasets(self) -> tuple[str, ...]:
        """The table, named as by OpenLineage, with MySQL's scheme for MariaDB."""
        if self._dialect == "sqlite":
            return ()  # a file with other tables too
        kind, port, schema = _SERVERS[self._dialect]
        server = f"{kind}://{self._url.host or 'localhost'}:{self._url.port or port}"
        parts = (self._url.database or "", self._schema_name or schema, self._table_name)
        if kind == "mysql":  # whose schemas are databases
            parts = ("", self._schema_name or self._url.database or "", self._table_name)
        return (f"{server}/{'.'.join(part for part in parts if part)}",)

    @staticmethod
    def text_of(error: Exception) -> str:
        """Return the text of a database error, without statement and rows."""
        original = getattr(error, "orig", None) or error
        return " ".join(str(original).split()).rstrip(".")

    def row_check(self) -> RowCheck:
        """Return the check for rows that the table's columns cannot hold."""
        return self._row_check

    def _fit(self, context: SinkContext) -> None:
        """Set the table's required layout; raise if there is none for the rows."""
        context = self._set_layout(context)
        self._schema = storable_schema(context.schema)
        percent = [name for name in self._schema.names if "%" in name]
        if percent and self._dialect in MYSQL and self._layout.keys:
            raise self._target_error(
                f"cannot upsert column {percent[0]!r}: SQLAlchemy doubles a % in names in "
                f"upserts of {self._dialect}",
                "Rename the column in a map before the sink.",
            )
        columns = []
        for field in self._schema:
            is_key = field.name in self._layout.keys
            dtype = column_type(field.type, self._dialect, is_key=is_key)
            if dtype is None:
                raise self._target_error(
                    f"column {field.name!r} of type {field.type} cannot be a column of a table in "
                    f"{self._dialect}",
                    "Cast the column to another type in a map before the sink, such as text, or "
                    "leave it out.",
                )
            nullable = field.nullable and not is_key
            columns.append(sa.Column(field.name, dtype, nullable=nullable, autoincrement=False))
        keys = self._layout.keys
        constraints = [sa.PrimaryKeyConstraint(*keys)] if keys else []
        metadata = sa.MetaData(schema=self._schema_name)
        options: dict[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
        self._table = sa.Table(self._table_name, metadata, *columns, *constraints, **options)
        name = sa.String(KEY_LENGTH)
        self._epochs = sa.Table(
            EPOCHS,
            metadata,
            *(sa.Column(key, name, primary_key=True) for key in ("query_id", "sink", "target")),
            sa.Column("epoch", sa.BigInteger, nullable=False),
            sa.Column("history", name, nullable=False),
            sa.Column("digest", name, nullable=False),
            **options,
        )

    def _try_target(self) -> RowCheck:
        """Check an existing table, or the columns of a table to be created."""
        self._engine = None  # not that of the sink itself
        with (
            contextlib.closing(self),
            self._opening_errors(),
            self._connected_engine().connect() as trial,
        ):
            self._row_check = self._check_table(sa.inspect(trial))
        return self._row_check

    def _opening_errors(self) -> contextlib.AbstractContextManager[None]:
        return self._translating_errors(
            "cannot be opened", "Check the server, the URL and the privileges of its user."
        )

    def open(self, context: SinkContext) -> None:
        """Connect, check or create the table and ``godwit_sql_epochs``; raise if that fails."""
        self._fit(context)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.close)
            with self._opening_errors():
                for tries_left in reversed(range(_CREATIONS)):
                    try:
                        self._prepare_tables(self._connected_engine())
                        break
                    except DBAPIError:  # another sink may have created the same
                        if not tries_left:
                            raise
            on_failure.pop_all()

    def _prepare_tables(self, engine: sa.Engine) -> None:
        """Check or create the tables, and the sink's row of ``godwit_sql_epochs``."""
        with engine.begin() as connection:
            self._row_check = self._check_table(sa.inspect(connection))
            self._table.create(connection, checkfirst=True)
            self._epochs.create(connection, checkfirst=True)
        with engine.begin() as connection:
            last = self._recorded_epoch(connection)
            if last is None:
                self._record_epoch(connection, point_without_history(-1), is_new=True)
        self._last_epoch = -1 if last is None else last.epoch

    def _connected_engine(self) -> sa.Engine:
        """Return the engine, whose connections have the settings that the sink needs."""
        if self._engine is None:
            options: dict[str, Any] = {"hide_parameters": True, "pool_pre_ping": True}
            if self._dialect in MYSQL:
                options["connect_args"] = {"charset": "utf8mb4", "init_command": _STRICT}
            if self._dialect != "sqlite":
                options["isolation_level"] = "READ COMMITTED"
            try:
                engine = sa.create_engine(self._url, **options)
            except (ModuleNotFoundError, NoSuchModuleError) as error:
                raise self._target_error(
                    f"needs a driver that is not installed: {error}",
                    "Run pip install 'godwit-streams[mariadb]', or install the driver of the URL.",
                ) from error
            if self._dialect == "sqlite":  # whose driver begins transactions late
                sa.event.listen(engine, "connect", _leave_transactions)
                sa.event.listen(engine, "begin", _begin_at_once)
            self._engine = engine
        return self._engine

    def _check_table(self, inspector: sa.Inspector) -> RowCheck:
        """Return the check of rows; raise if the existing table cannot store them."""
        keys, lengths, required = self._layout.keys, dict[str, int | None](), set[str]()
        if self._dialect in MYSQL:
            lengths = {
                column_.name: getattr(column_.type, "length", None)
                for column_ in self._table.columns
            }
        if inspector.has_table(self._table_name, self._schema_name):
            existing = {
                column["name"]: column
                for column in inspector.get_columns(self._table_name, self._schema_name)
            }
            for column in self._table.columns:
                existing_column = existing.pop(column.name, None)
                if existing_column is None or not holds(
                    existing_column["type"], column.type, self._dialect
                ):
                    ddl = column.type.compile(self._connected_engine().dialect)
                    described_type = (
                        "" if existing_column is None else f"type {existing_column['type']}"
                    )
                    raise self._target_error(
                        f"has column {column.name!r} with {described_type}, which does not hold "
                        "every value "
                        "of the rows"
                        if existing_column is not None
                        else f"has no column {column.name!r}",
                        f"Give it the type {ddl}, or cast the column in a map before the sink.",
                    )
                identity: Mapping[str, Any] = existing_column.get("identity") or {}
                if existing_column.get("computed") or identity.get("always"):
                    raise self._target_error(
                        f"computes column {column.name!r} itself",
                        "Leave the column out of the flow's rows, or make it an ordinary column.",
                    )
                lengths[column.name] = getattr(existing_column["type"], "length", None)
                if not existing_column["nullable"]:
                    required.add(column.name)
            self._check_further(list(existing.values()))
            if keys:
                self._check_unique(inspector)
            if self._dialect in MYSQL:
                self._check_mysql(inspector)
        elif not self._create:
            ddl = str(sa.schema.CreateTable(self._table).compile(self._connected_engine()))
            raise self._target_error("does not exist", f"Create it: {' '.join(ddl.split())};")
        return self._layout.check(
            RowChecks(
                tuple(
                    column_check(
                        field,
                        self._dialect,
                        is_key=field.name in keys,
                        nullable=field.name not in required,
                        length=lengths.get(field.name),
                    )
                    for field in self._schema
                )
            )
        )

    def _check_further(self, columns: Sequence[Any]) -> None:
        """Raise if columns that the rows lack need a value."""
        for column in columns:
            has_value = column.get("autoincrement") is True or column.get("computed")
            if not (column["nullable"] or column["default"] is not None or has_value):
                raise self._target_error(
                    f"needs a value for column {column['name']!r}, which the rows do not have",
                    "Give the column a default, or make it nullable.",
                )

    def _check_unique(self, inspector: sa.Inspector) -> None:
        """Raise unless rows can be replaced by the key columns, and only by them."""
        connection = cast("sa.Connection", inspector.bind)
        unique, exact = unique_keys(connection, self._table)
        keys = frozenset(self._layout.keys)
        named = listing(self._layout.keys)
        if keys not in exact:
            raise self._target_error(
                f"has a unique key ({named}) that covers only some rows or parts of values, is "
                "deferrable, or has a collation that treats different texts as equal"
                if keys in unique
                else f"has no primary key ({named}), which is needed to replace rows",
                f"ALTER TABLE {self._place['table']} ADD PRIMARY KEY ({named}).",
            )
        replaces = self._dialect in MYSQL and unique != {keys}
        if self._dialect == "sqlite":
            created = sa.text("SELECT sql FROM sqlite_master WHERE name = :name")
            text = connection.execute(created, {"name": self._table_name}).scalar() or ""
            replaces = re.search(r"(?i)\bON\s+CONFLICT\s+(REPLACE|IGNORE)\b", text) is not None
        if replaces:
            raise self._target_error(
                "has another unique key, by which the server would also replace rows",
                "Drop it, or write to a table without it.",
            )

    def _check_mysql(self, inspector: sa.Inspector) -> None:
        """Raise if the table has no transactions, or does not store all text exactly."""
        statement = sa.text(
            "SELECT t.engine, c.column_name, c.character_set_name, c.collation_name "
            "FROM information_schema.tables t JOIN information_schema.columns c "
            "ON c.table_schema = t.table_schema AND c.table_name = t.table_name "
            "WHERE t.table_name = :table AND t.table_schema = coalesce(:schema, database())"
        )
        names = {"table": self._table_name, "schema": self._schema_name}
        for engine, column, charset, collation in inspector.bind.execute(statement, names):  # type: ignore[union-attr]  # a connection
            if str(engine).lower() != "innodb":
                raise self._target_error(
                    f"has the engine {engine}, which does not support transactions",
                    f"ALTER TABLE {self._place['table']} ENGINE = InnoDB.",
                )
            if column in self._table.columns and charset not in {None, "utf8mb4"}:
                raise self._target_error(
                    f"has column {column!r} in {charset}, which does not hold every text",
                    f"ALTER TABLE {self._place['table']} CONVERT TO CHARACTER SET utf8mb4.",
                )
            is_exact = str(collation).endswith(("nopad_bin", "0900_bin"))
            if column in self._layout.keys and charset is not None and not is_exact:
                raise self._target_error(
                    f"has key {column!r} with collation {collation}, which treats different "
                    "texts as equal",
                    "Give it a binary collation without padding: utf8mb4_nopad_bin (MariaDB) or "
                    "utf8mb4_0900_bin (MySQL).",
                )

    def _own_row(self) -> sa.ColumnElement[bool]:
        """Return the condition of this sink's row of ``godwit_sql_epochs``."""
        epochs, context = self._epochs.c, self._context
        return sa.and_(
            epochs.query_id == context.query_id,
            epochs.sink == context.writer,
            epochs.target == self._table_name,
        )

    def _recorded_epoch(
        self, connection: sa.Connection, *, lock: bool = False
    ) -> HistoryPoint | None:
        """Return the recorded epoch; `lock`: until the end of the transaction."""
        epochs = self._epochs.c
        query = sa.select(epochs.history, epochs.epoch, epochs.digest).where(self._own_row())
        row = connection.execute(query.with_for_update() if lock else query).fetchone()
        if row is None:
            return None
        history, epoch, digest = row
        query_id = self._context.query_id
        return HistoryPoint(query_id=query_id, history=history, epoch=epoch, digest=digest)

    def _record_epoch(
        self, connection: sa.Connection, point: HistoryPoint, *, is_new: bool = False
    ) -> None:
        """Record an epoch as the last one."""
        values = {"epoch": point.epoch, "history": point.history, "digest": point.digest}
        if not is_new:
            connection.execute(sa.update(self._epochs).where(self._own_row()).values(values))
            return
        keys = {"query_id": self._context.query_id, "sink": self._context.writer}
        row = {**keys, "target": self._table_name, **values}
        connection.execute(sa.insert(self._epochs).values(row))

    def last_delivered(self) -> HistoryPoint | None:
        """Return the last epoch in ``godwit_sql_epochs`` of this sink; ``None`` if it has none."""
        with self._reading_epochs(), self._connected_engine().connect() as connection:
            point = self._recorded_epoch(connection)
        return None if point is None or (point.epoch < 0 and not point.history) else point

    def _reading_epochs(self) -> contextlib.AbstractContextManager[None]:
        return self._translating_errors(
            "its recorded epochs cannot be read",
            "Check the server and the privileges of its user, and start the query again.",
        )

    def cannot_roll_back(self) -> str | None:
        """Return why rows of later epochs cannot be deleted, as text; ``None`` if they can be."""
        if self._context.complete:
            return None
        if self._layout.keys:
            return (
                "rows that were replaced by later ones cannot be restored (later ones will be "
                "written again)"
            )
        return "rows of the table do not have their epoch"

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:  # noqa: ARG002
        """Roll back in complete mode: the next delivery replaces all rows."""
        point = point_of_epoch(epochs, epochs.latest_epoch - 1)
        self.continue_after(point)

    def continue_after(self, point: HistoryPoint) -> None:
        """Record `point` as the last epoch, unconditionally."""
        with self._reading_epochs(), self._connected_engine().begin() as connection:
            self._record_epoch(connection, point)
        self._last_epoch = point.epoch

    def deliver(self, output: EpochOutput) -> None:
        """Write the epoch's rows and number in one transaction, unless it is recorded."""
        with self._translating_errors(
            f"epoch {output.epoch} cannot be written",
            "The table has either all of the epoch or none of it; fix the cause and start the "
            "query again.",
            epoch=output.epoch,
        ):
            retries, was_lost = CommitRetries(self._retry_policy), False
            while True:
                retries.begin(0)
                try:
                    with self._connected_engine().begin() as connection:
                        self._write_epoch(connection, output)
                except DBAPIError as error:
                    if error.connection_invalidated and not was_lost:
                        was_lost = True
                    elif not (_lost_against_another(error) and retries.wait_after_conflict()):
                        raise
                else:
                    self._last_epoch = max(self._last_epoch, output.epoch)
                    return

    def _write_epoch(self, connection: sa.Connection, output: EpochOutput) -> None:
        """Write an epoch within a transaction."""
        point = self._recorded_epoch(connection, lock=True)
        before = -1 if point is None else point.epoch
        if before >= output.epoch:
            return
        if point is None or before < self._last_epoch:
            raise self._target_error(
                f"has epochs up to {before}, and epochs up to {self._last_epoch} were delivered "
                "to it in this run: the server has lost commits",
                "Restore the table; or start from a backup of the checkpoint from that time; or "
                'continue without the epochs in between, start(on_divergence="new_writer").',
                epoch=output.epoch,
            )
        if is_complete_result(output, self._context):
            connection.execute(sa.delete(self._table))
        for batch in self._layout.rows(output, self._schema):
            for part in split_batch(batch, rows=_ROWS, size_bytes=_BYTES):
                self._write_rows(connection, part)
        self._record_epoch(connection, output.point)

    def _write_rows(self, connection: sa.Connection, rows: pa.RecordBatch) -> None:
        """Insert, upsert or delete rows, all with the same sign."""
        values = {
            name: stored_values(column, self._dialect)
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        }
        signs = values.pop(CHANGE.name) if self._context.kind != "rows" else [1] * rows.num_rows
        row_dicts = [
            dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)
        ]
        deleted = [row for row, sign in zip(row_dicts, signs, strict=True) if sign < 0]
        written = [row for row, sign in zip(row_dicts, signs, strict=True) if sign > 0]
        if deleted:
            keys = self._layout.keys
            key_conditions = [
                self._table.c[key] == sa.bindparam(f"key_{number}")
                for number, key in enumerate(keys)
            ]
            key_parameters = [
                {f"key_{number}": row[key] for number, key in enumerate(keys)} for row in deleted
            ]
            connection.execute(sa.delete(self._table).where(*key_conditions), key_parameters)
        if written:
            connection.execute(
                self._upsert_statement() if self._layout.keys else sa.insert(self._table), written
            )

    def _upsert_statement(self) -> sa.Insert:
        """Return the statement that inserts a row, or updates the one that is not newer."""
        keys, version, columns = self._layout.keys, self._layout.version, self._table.c
        # MySQL assigns in this order, and compares with what it assigned: the version comes last.
        value_names = sorted(
            (column.name for column in columns if column.name not in keys), key=version.__eq__
        )
        if self._dialect in MYSQL:
            insert = mysql.insert(self._table)
            new_values: Any = insert.inserted
            if not value_names:
                return insert.on_duplicate_key_update({keys[0]: columns[keys[0]]})
            if version:
                is_newer = sa.or_(
                    columns[version].is_(None), new_values[version] >= columns[version]
                )
                values = {
                    name: sa.func.IF(is_newer, new_values[name], columns[name])
                    for name in value_names
                }
            else:
                values = {name: new_values[name] for name in value_names}
            return insert.on_duplicate_key_update([(name, values[name]) for name in value_names])
        new_insert = sqlite.insert if self._dialect == "sqlite" else postgresql.insert
        statement = cast("postgresql.Insert", new_insert(self._table))
        if not value_names:
            return statement.on_conflict_do_nothing(index_elements=list(keys))
        new_values, condition = statement.excluded, None
        if version:
            condition = sa.or_(columns[version].is_(None), new_values[version] >= columns[version])
        return statement.on_conflict_do_update(
            index_elements=list(keys),
            set_={name: new_values[name] for name in value_names},
            where=condition,
        )

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None


def _leave_transactions(connection: Any, _: object) -> None:
    """Disable the driver's own transactions, which SQLite's driver begins at the first write."""
    connection.isolation_level = None


def _begin_at_once(connection: sa.Connection) -> None:
    """Begin a transaction that locks the database."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _lost_against_another(error: DBAPIError) -> bool:
    """Return whether a transaction failed because of another one."""
    code = str(getattr(error.orig, "sqlstate", None) or "")
    arguments: Iterable[Any] = getattr(error.orig, "args", ())
    texts = [code, *map(str, arguments)]
    return any(text.startswith(_RETRIED) for text in texts)
