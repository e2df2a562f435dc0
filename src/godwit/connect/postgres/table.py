"""PostgreSQL table of a sink: created or checked before any row is written.

A mismatch stops the query before its first epoch, and not hours later.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from psycopg import sql

from godwit.columns.types import is_text
from godwit.connect.postgres.connection import Connection, scalar, table_parts
from godwit.connect.postgres.copy import decimal_digits, element_type, key_types, postgres_type
from godwit.connect.row_checks import (
    EACH_KEY_ONCE,
    KNOWN_YEARS,
    NO_NANOSECONDS,
    NO_ZERO_BYTES,
    WHOLE_MICROSECONDS,
    ColumnCheck,
    RowChecks,
    one_of,
    up_to_characters,
)
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.plan.staging import RowCheck

_NULLS_NOT_DISTINCT_SINCE = 15_00_00

_TAKES_ALIKE: Final = "treats different texts as equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column in PostgreSQL's catalogue."""

    name: str
    type_name: str
    shown_type: str
    is_enum: bool
    modifier: int
    not_null: bool
    has_default: bool
    generated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """Table that a sink writes to."""

    sink: str  # name of the sink, for errors
    table: str  # name of the table, with its schema in front (``public.by_plane``) or without
    schema: pa.Schema  # columns of the rows
    keys: tuple[str, ...]  # columns that identify a row; empty where rows are only appended
    complete: bool  # whether every epoch replaces all rows
    # column of `schema` that the sink fills with the number of the epoch; empty for none
    epoch_column: str = ""
    deletes: bool = False  # whether rows are also deleted by `keys`

    @property
    def identifier(self) -> sql.Identifier:
        """Name of the table, quoted for SQL."""
        return sql.Identifier(*table_parts(self.table))

    def prepare(self, connection: Connection, *, create: bool) -> None:
        """Check that the rows fit the table; if it is absent, `create` it, or else raise."""
        self._check_names(connection)
        self._check_maps()
        if not self._table_exists(connection):
            statement = self._create_statement(connection)
            if not create:
                raise self._table_error(
                    "does not exist",
                    f"Create it, or pass create=True: {statement.as_string(connection)};",
                )
            connection.execute(statement)
            return
        columns = self._read_columns(connection)
        self._check_columns(columns)
        needed = ["INSERT"]
        if self.keys:
            needed += ["SELECT", "UPDATE"]
        if self.complete or self.deletes:
            needed += ["DELETE"]
        self.check_privileges(connection, self.identifier, needed)
        self._check_rules(connection)
        if self.keys:
            self._check_unique(connection, columns)
            self._check_temporary(connection)
        if self.deletes or not self.keys:
            self._check_row_security(connection)

    def identity(self, connection: Connection) -> tuple[int, str, str]:
        """Return object id, schema and name of the existing table."""
        row = connection.execute(
            "SELECT c.oid::bigint, n.nspname, c.relname FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
            [self._name_in_errors],
        ).fetchone()
        assert row is not None
        return int(row[0]), str(row[1]), str(row[2])

    def _check_maps(self) -> None:
        """Raise if maps have keys that cannot be names in a JSON object."""
        for field in self.schema:
            for keys in key_types(field.type):
                if (
                    pa.types.is_nested(keys)
                    or pa.types.is_boolean(keys)
                    or pa.types.is_decimal(keys)
                ):
                    raise self._table_error(
                        f"would store column {field.name!r} as JSON, which cannot represent a map "
                        f"with keys of type {keys}",
                        "Cast the keys to text in a map before the sink.",
                    )

    def _check_row_security(self, connection: Connection) -> None:
        """Raise if the table has row security, which prevents COPY, and hides rows from deletes."""
        if scalar(
            connection, "SELECT row_security_active(to_regclass(%s)::oid)", self._name_in_errors
        ):
            user = connection.info.user
            what = "deletes may miss rows" if self.deletes else "rows cannot be copied into it"
            raise self._table_error(
                f"has row-level security that applies to {user}, under which {what}",
                ("" if self.deletes else 'Use mode="upsert", which inserts; or ')
                + f"ALTER ROLE {_quoted_name(user)} BYPASSRLS;",
            )

    def _check_names(self, connection: Connection) -> None:
        """Raise if the server would truncate a name."""
        limit = scalar(connection, "SELECT current_setting('max_identifier_length')::int")
        for name in (*table_parts(self.table), *self.schema.names):
            if "\0" in name:
                raise self._table_error(
                    f"or its columns cannot have the name {name!r}, which contains a zero byte",
                    "Choose another name; columns can be renamed before the sink.",
                )
            if len(name.encode()) > limit:
                raise self._table_error(
                    f"or its columns cannot have the name {name!r}, which is longer than the "
                    f"server's limit of {limit} bytes",
                    "Choose a shorter name; columns can be renamed before the sink.",
                )

    def row_check(self, connection: Connection) -> RowCheck:
        """Return the check for rows that the table's columns cannot hold.

        Other conditions of the table (the form of an ``inet``, constraints and triggers) are known
        only to the server.
        """
        columns = self._read_columns(connection)
        labels: dict[str, tuple[str, ...]] = {
            name: tuple(definition)
            for name, definition in connection.execute(
                """
                SELECT a.attname, array_agg(e.enumlabel::text ORDER BY e.enumsortorder)
                FROM pg_attribute a
                JOIN pg_type t ON t.oid = a.atttypid
                JOIN pg_enum e ON e.enumtypid IN (t.oid, t.typbasetype)
                WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
                GROUP BY a.attname
                """,
                [self._name_in_errors],
            )
        }
        checks = []
        for field in self.schema:
            if field.name == self.epoch_column:
                continue
            column = columns[field.name]
            rules = [NO_ZERO_BYTES, KNOWN_YEARS, NO_NANOSECONDS, WHOLE_MICROSECONDS, EACH_KEY_ONCE]
            if field.name in labels:
                rules.append(one_of(labels[field.name]))
            if column.type_name.removeprefix("_") in {"varchar", "bpchar"} and column.modifier > 0:
                rules.append(up_to_characters(column.modifier - 4))
            checks.append(ColumnCheck(field.name, tuple(rules), nullable=not column.not_null))
        return RowChecks(tuple(checks))

    def _table_exists(self, connection: Connection) -> bool:
        """Return whether the table exists; raise if it is not a table."""
        kind = scalar(
            connection,
            "SELECT c.relkind FROM pg_class c WHERE c.oid = to_regclass(%s)",
            self._name_in_errors,
        )
        if kind not in {None, "r", "p"}:
            raise self._table_error("is not a table", "Use a table; COPY cannot write to views.")
        parts = "SELECT EXISTS (SELECT FROM pg_inherits WHERE inhparent = to_regclass(%s))"
        if kind == "p" and not scalar(connection, parts, self._name_in_errors):
            raise self._table_error(
                "is partitioned, but has no partition",
                f"CREATE TABLE ... PARTITION OF {self._name_in_errors} ...;",
            )
        return kind is not None

    @property
    def _name_in_errors(self) -> str:
        """Name of the table, quoted, as text for errors."""
        return self.identifier.as_string()

    def _create_statement(self, connection: Connection) -> sql.Composed:
        """Return the statement that creates the table."""
        supports_null_keys = connection.info.server_version >= _NULLS_NOT_DISTINCT_SINCE
        null_keys = any(self.schema.field(name).nullable for name in self.keys)
        parts: list[sql.Composable] = [
            sql.SQL("{} {}{}").format(
                sql.Identifier(field.name),
                sql.SQL(postgres_type(field.type).name),
                sql.SQL("" if field.nullable else " NOT NULL"),
            )
            for field in self.schema
        ]
        if self.keys:
            unique = (
                "UNIQUE NULLS NOT DISTINCT" if null_keys and supports_null_keys else "PRIMARY KEY"
            )
            parts.append(sql.SQL("{} ({})").format(sql.SQL(unique), comma_separated(self.keys)))
        return sql.SQL("CREATE TABLE {} ({})").format(self.identifier, sql.SQL(", ").join(parts))

    def _read_columns(self, connection: Connection) -> dict[str, _Column]:
        """Return the table's columns by name, from the server's catalogue."""
        rows = connection.execute(
            """
            SELECT a.attname, b.typname, format_type(a.atttypid, a.atttypmod), b.typtype = 'e',
                   CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
                   a.attnotnull, a.atthasdef OR a.attidentity <> '',
                   a.attgenerated <> '' OR a.attidentity = 'a'
            FROM pg_attribute a
            JOIN pg_type t ON t.oid = a.atttypid
            JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
            WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
            """,
            [self._name_in_errors],
        )
        names = [field.name for field in fields(_Column)]
        return {row[0]: _Column(**dict(zip(names, row, strict=True))) for row in rows}

    def _check_columns(self, columns: Mapping[str, _Column]) -> None:
        """Raise if columns cannot hold the rows, or columns that the rows lack are required.

        `columns`: name → column of the table.
        """
        alter = f"ALTER TABLE {self._name_in_errors}"
        for field in self.schema:
            fitting = postgres_type(field.type)
            column = columns.get(field.name)
            if column is None:
                raise self._table_error(
                    f"has no column {field.name!r}",
                    f"{alter} ADD COLUMN {_quoted_name(field.name)} {fitting.name};",
                )
            if column.generated:
                raise self._table_error(
                    f"computes column {field.name!r} itself",
                    "Leave the column out of the flow's rows, or make it an ordinary column.",
                )
            takes_text = column.is_enum and "text" in fitting.accepted
            accepted = column.type_name in fitting.accepted or takes_text
            if not accepted or _loses_digits(field.type, column):
                raise self._table_error(
                    f"has column {field.name!r} of type {column.shown_type}, which does not hold "
                    f"every value of {field.type}",
                    f"{alter} ALTER COLUMN {_quoted_name(field.name)} TYPE {fitting.name};",
                )
        for column in columns.values():
            supplied = column.name in self.schema.names or column.has_default or column.generated
            if column.not_null and not supplied:
                raise self._table_error(
                    f"needs a value for column {column.name!r}, which the rows do not have",
                    f"{alter} ALTER COLUMN {_quoted_name(column.name)} DROP NOT NULL;",
                )

    def check_privileges(
        self, connection: Connection, table: sql.Identifier, needed: Sequence[str]
    ) -> None:
        """Raise if the user lacks one of the privileges `needed` on a table."""
        name, user = table.as_string(), connection.info.user
        for privilege in needed:
            allowed = "SELECT has_table_privilege(to_regclass(%s), %s)"
            if not scalar(connection, allowed, name, privilege):
                purpose = "" if table == self.identifier else f"needs table {name}, which "
                raise self._table_error(
                    f"{purpose}cannot be written by {user}",
                    f"GRANT {', '.join(needed)} ON {name} TO {_quoted_name(user)};",
                )

    def _check_temporary(self, connection: Connection) -> None:
        """Raise if the user cannot create temporary tables, which upserts need."""
        allowed = "SELECT has_database_privilege(current_database(), 'TEMPORARY')"
        if not scalar(connection, allowed):
            user, database = connection.info.user, connection.info.dbname
            raise self._table_error(
                f"cannot be upserted by {user}, who may not create temporary tables",
                f"GRANT TEMPORARY ON DATABASE {_quoted_name(database)} TO {_quoted_name(user)};",
            )

    def _check_rules(self, connection: Connection) -> None:
        """Raise if rules of the table would change the rows that are written."""
        events = ["2", "3"] if self.keys else []
        events += ["4"] if self.complete or self.deletes else []
        names = connection.execute(
            "SELECT rulename FROM pg_rewrite WHERE ev_class = to_regclass(%s) "
            "AND ev_enabled IN ('O', 'A') AND ev_type::text = ANY (%s) ORDER BY rulename",
            [self._name_in_errors, events],
        ).fetchall()
        if names:
            what = "INSERT or UPDATE" if self.keys else "DELETE"
            what += " or DELETE" if self.deletes else ""
            drops = " ".join(
                f"DROP RULE {_quoted_name(name)} ON {self._name_in_errors};" for (name,) in names
            )
            raise self._table_error(
                f"has a rule ON {what}, by which the server would not write the epoch's rows as "
                "they are",
                f"{drops} Use a trigger instead.",
            )

    def _check_unique(self, connection: Connection, columns: Mapping[str, _Column]) -> None:
        """Raise `SinkError` unless the table has a unique index on exactly the key columns.

        If a key column is nullable, the index has to treat nulls as equal (``NULLS NOT
        DISTINCT``). `columns`: name → column of the table.
        """
        # The catalogue learnt to say whether nulls are distinct with the server that has a choice.
        sees_nulls = (
            "i.indnullsnotdistinct"
            if connection.info.server_version >= _NULLS_NOT_DISTINCT_SINCE
            else "false"
        )
        rows = connection.execute(
            f"""
            SELECT (SELECT array_agg(a.attname::text ORDER BY a.attname::text)
                    FROM pg_attribute a
                    WHERE a.attrelid = i.indrelid
                      AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1])),
                   {sees_nulls},
                   CASE WHEN NOT i.indimmediate THEN 'is deferrable'
                        WHEN NOT i.indisvalid THEN 'is not valid'
                        WHEN i.indpred IS NOT NULL THEN 'is of some rows only (WHERE)'
                        WHEN EXISTS (SELECT FROM pg_collation o WHERE NOT o.collisdeterministic
                                     AND o.oid = ANY (i.indcollation::oid[]))
                          OR EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
                                     WHERE a.attrelid = i.indrelid AND t.typname = 'citext'
                                     AND a.attnum
                                       = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1]))
                        THEN '{_TAKES_ALIKE}'
                   END,
                   c.relname
            FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indexprs IS NULL
            """,  # noqa: S608 - constants
            [self._name_in_errors],
        ).fetchall()
        on_keys = [row for row in rows if row[0] == sorted(self.keys)]
        fitting = [nulls for _, nulls, fault, _ in on_keys if fault is None]
        # The server takes all that it can for the upsert, and then refuses it for these.
        deferrable = [name for _, _, fault, name in on_keys if fault == "is deferrable"]
        nullable = not all(columns[name].not_null for name in self.keys)
        keys = ", ".join(_quoted_name(name) for name in self.keys)
        if deferrable or not fitting:
            nulls = " NULLS NOT DISTINCT" if nullable else ""
            what = (
                f"has a unique constraint on ({keys}) that is deferrable, with which the server "
                "refuses all upserts"
                if deferrable
                else f"has a unique constraint on ({keys}) that {on_keys[0][2]}, which upserts "
                "cannot use"
                if on_keys
                else f"has no unique constraint on ({keys}), which upserts need"
            )
            actions = [f"DROP CONSTRAINT {_quoted_name(name)}" for name in deferrable]
            if on_keys and on_keys[0][2] == _TAKES_ALIKE:
                texts = [name for name in self.keys if is_text(self.schema.field(name).type)]
                actions += [
                    f'ALTER COLUMN {_quoted_name(name)} TYPE text COLLATE "C"' for name in texts
                ]
            if not fitting:
                actions.append(f"ADD UNIQUE{nulls} ({keys})")
            raise self._table_error(
                what,
                f"ALTER TABLE {self._name_in_errors} {', '.join(actions)};"
                + (" (in addition or instead)" if on_keys and not deferrable else ""),
            )
        if nullable and not any(fitting):
            raise self._table_error(
                f"has a unique constraint on ({keys}) that allows duplicate null keys",
                f"ALTER TABLE {self._name_in_errors} ADD UNIQUE NULLS NOT DISTINCT ({keys}); "
                "(PostgreSQL 15 or newer) in addition or instead, or SET NOT NULL on the key "
                "columns.",
            )

    def _table_error(self, what: str, remedy: str) -> SinkError:
        """Return an error about the table; `what`: the problem as text."""
        return SinkError(
            f"PostgreSQL sink {self.sink!r}: table {self.table} {what}.",
            remedy=remedy,
            sink=self.sink,
            table=self.table,
        )


def _loses_digits(dtype: pa.DataType, column: _Column) -> bool:
    """Return whether a column would silently round values of a type."""
    if column.modifier < 0:
        return False
    type_name = column.type_name.removeprefix("_")  # of an array; its modifier is its elements'
    if type_name == "numeric":
        precision, scale = _decimal_digits(element_type(dtype))
        column_precision = (column.modifier - 4) >> 16 & 0xFFFF
        # 11 bits with a sign: a numeric(5, -3) holds thousands.
        column_scale = (((column.modifier - 4) & 0x7FF) ^ 0x400) - 0x400
        return column_scale < scale or column_precision - column_scale < precision - scale
    if type_name in {"timestamp", "timestamptz", "time", "interval"}:
        return column.modifier & 0xFFFF < 6
    return False


def _decimal_digits(dtype: pa.DataType) -> tuple[int, int]:
    """Return the decimal digits of a type before and after the point."""
    if pa.types.is_decimal(dtype):
        return decimal_digits(dtype)
    return len(str(2 ** (dtype.bit_width - pa.types.is_signed_integer(dtype)))), 0


def _quoted_name(name: str) -> str:
    """Return a name quoted for SQL."""
    return sql.Identifier(name).as_string()


def comma_separated(names: Sequence[str]) -> sql.Composed:
    """Return names, quoted, separated by commas."""
    return sql.SQL(", ").join(sql.Identifier(name) for name in names)
