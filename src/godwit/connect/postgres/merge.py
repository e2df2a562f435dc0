"""SQL statements that apply an epoch's rows, copied to a temporary table, to a table by key.

Every statement is within the transaction of the epoch.  Null is equal to null in keys: indexes
serve ``=`` and ``IS NULL``, but not ``IS NOT DISTINCT FROM``, so keys with nulls are compared by a
second statement.

**A history** is read around the staged versions only: of each key, the last row before them, and
the rows after them.  These rows and the staged ones are events in order of versions; each row is
valid until the next event (see `godwit.connect.delta.history`).  Queries that write one history
wait for each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, LiteralString

from psycopg import sql

from godwit.columns.signed import CHANGE
from godwit.connect.postgres.table import comma_separated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.connect.postgres.connection import Connection
    from godwit.sinks.writing import TargetLayout

STAGE: Final = "godwit_stage"
_FORMER: Final = "godwit_former"
_NEXT: Final = "godwit_next"
RESERVED: Final = (STAGE, _FORMER, _NEXT)
"""Names of tables that the sink uses internally."""
_HISTORY_LOCK: Final = 0x60D318  # any number that others are unlikely to lock


class StagedMerge:
    """Merge of the temporary table `STAGE` into a table.

    `target`: the table. `layout`: what its rows and those of an epoch are. `row_number`: column of
    the temporary table by which the rows of a key are ordered.
    """

    def __init__(self, target: sql.Identifier, layout: TargetLayout, row_number: str) -> None:
        self._layout = layout
        self._deletes = layout.context.kind != "rows"
        self._columns = [
            name
            for name in layout.context.schema.names
            if not (layout.is_history and name in layout.added)
        ]
        self._names: dict[str, sql.Composable] = {
            "target": target,
            "stage": sql.Identifier(STAGE),
            "row": sql.Identifier(row_number),
            "columns": comma_separated(self._columns),
            "keys": comma_separated(layout.row_keys),
            "sign": sql.Identifier(CHANGE.name) if self._deletes else sql.SQL("1"),
            "signed": sql.SQL(", 0::smallint AS {}" if self._deletes else "").format(
                sql.Identifier(CHANGE.name)
            ),
            "version": sql.Identifier(layout.version),
        }

    def create_stage(self, connection: Connection) -> None:
        """Create the temporary table, without rows."""
        self._execute_with_names(
            connection,
            "CREATE TEMP TABLE {stage} AS "
            "SELECT 0::bigint AS {row}, {columns}{signed} FROM {target} WITH NO DATA",
        )

    def apply(self, connection: Connection) -> None:
        """Apply the rows of the temporary table to the table, and drop the temporary table."""
        if self._layout.is_history:
            self._insert_versions(connection)
        else:
            if self._deletes:
                self._delete_rows(connection)
            self._upsert_rows(connection)
        self._execute_with_names(connection, "DROP TABLE {stage}")

    def _upsert_rows(self, connection: Connection) -> None:
        """Upsert rows with sign 1, unless the row with the same key is newer."""
        others = [name for name in self._columns if name not in self._layout.row_keys]
        newer: LiteralString = ""
        if self._layout.version:
            newer = " WHERE t.{version} IS NULL OR t.{version} <= excluded.{version}"
        # One statement cannot change a row twice: of rows with the same keys, the last counts.
        # Going in order of keys keeps two queries on one table from locking each other out.
        self._execute_with_names(
            connection,
            "INSERT INTO {target} AS t ({columns}) SELECT DISTINCT ON ({keys}) {columns} "
            "FROM {stage} WHERE {sign} > 0 ORDER BY {keys}, {row} DESC "
            "ON CONFLICT ({keys}) {update}" + (newer if others else ""),
            update=sql.SQL("DO UPDATE SET {}").format(_assignments_from_excluded(others))
            if others
            else sql.SQL("DO NOTHING"),
        )

    def _delete_rows(self, connection: Connection) -> None:
        """Delete the rows whose keys have sign -1."""
        for condition in self._same_keys("t", "s"):
            self._execute_with_names(
                connection,
                "DELETE FROM {target} t USING {stage} s WHERE s.{sign} < 0 AND {condition}",
                condition=condition,
            )

    def _insert_versions(self, connection: Connection) -> None:
        """Insert versions of rows, and end the previous versions; a delete only ends a version."""
        layout = self._layout
        keys = layout.row_keys
        values = [name for name in self._columns if name not in {*keys, layout.version}]
        names = {
            "former": sql.Identifier(_FORMER),
            "next": sql.Identifier(_NEXT),
            "valid_to": sql.Identifier(layout.valid_to),
            "current": sql.Identifier(layout.current),
            "m_keys": _columns_of_alias("m", keys),
            "s_keys": _columns_of_alias("s", keys),
            "f_keys": _columns_of_alias("f", keys),
        }

        def execute(statement: LiteralString, **more: sql.Composable) -> None:
            self._execute_with_names(connection, statement, **names, **more)

        execute(
            "SELECT pg_advisory_xact_lock({lock}, {name}::regclass::oid::int)",
            lock=sql.Literal(_HISTORY_LOCK),
            name=sql.Literal(self._names["target"].as_string(connection)),
        )
        execute(
            "CREATE TEMP TABLE {former} AS SELECT {keys}, {version}, {valid_to} "
            "FROM {target} WITH NO DATA"
        )
        for same, same_before in zip(
            self._same_keys("t", "m"), self._same_keys("p", "m"), strict=True
        ):
            execute(
                "INSERT INTO {former} SELECT {t_keys}, t.{version}, t.{valid_to} FROM "
                "(SELECT {keys}, min({version}) AS {version} FROM {stage} GROUP BY {keys}) m "
                "JOIN {target} t ON {same} AND t.{version} >= coalesce("
                "(SELECT max(p.{version}) FROM {target} p WHERE {same_before} "
                "AND p.{version} < m.{version}), m.{version})",
                t_keys=_columns_of_alias("t", keys),
                same=same,
                same_before=same_before,
            )
        # 0: the end of a row, 1: a row or an empty one, 2: one that is staged, which replaces these
        execute(
            "CREATE TEMP TABLE {next} AS SELECT *, "
            "lead({version}) OVER w AS {valid_to}, "
            "coalesce(lag(is_row) OVER w, false) AS is_after_row FROM ("
            "SELECT DISTINCT ON ({keys}, {version}) * FROM ("
            "SELECT {keys}, {valid_to} AS {version}, false AS is_row, 0 AS origin FROM {former} "
            "WHERE {valid_to} > {version} UNION ALL "
            "SELECT {keys}, {version}, {valid_to} IS NULL OR {valid_to} > {version}, 1 "
            "FROM {former} UNION ALL "
            "SELECT {keys}, {version}, {sign} > 0, 2 FROM {stage}"
            ") e ORDER BY {keys}, {version}, origin DESC"
            ") d WINDOW w AS (PARTITION BY {keys} ORDER BY {version})"
        )
        # A delete that ends no row stays as an empty row, since a row may come before it yet.
        execute("DELETE FROM {next} WHERE NOT is_row AND is_after_row")
        execute("UPDATE {next} SET {valid_to} = {version} WHERE NOT is_row")
        is_next = self._same_keys("n", "t", [*keys, layout.version])
        is_former = self._same_keys("f", "t", [*keys, layout.version])
        for same, same_former in zip(is_next, is_former, strict=True):
            execute(
                "DELETE FROM {target} t USING {former} f WHERE {same_former} "
                "AND NOT EXISTS (SELECT FROM {next} n WHERE {same})",
                same_former=same_former,
                same=same,
            )
            execute(
                "UPDATE {target} t SET {valid_to} = n.{valid_to}, {current} = false FROM {next} n "
                "WHERE {same} AND n.origin < 2 AND t.{valid_to} IS DISTINCT FROM n.{valid_to}",
                same=same,
            )
        for origin, source in (
            (0, sql.SQL("")),
            (
                2,
                sql.SQL(" JOIN {stage} s ON {same}").format(
                    **self._names,
                    same=sql.SQL(" OR ").join(self._same_keys("s", "n", [*keys, layout.version])),
                ),
            ),
        ):
            columns = [*keys, layout.version, *(values if origin else ())]
            execute(
                "INSERT INTO {target} ({written}, {valid_to}, {current}) "
                "SELECT {selected}, n.{valid_to}, n.{valid_to} IS NULL FROM {next} n{source} "
                "WHERE n.origin = {origin} ORDER BY {n_keys} "
                "ON CONFLICT ({keys}, {version}) DO UPDATE SET {update}",
                written=comma_separated(columns),
                selected=sql.SQL(", ").join(
                    sql.Identifier("n" if name not in values else "s", name) for name in columns
                ),
                source=source,
                origin=sql.Literal(origin),
                n_keys=_columns_of_alias("n", [*keys, layout.version]),
                update=_assignments_from_excluded([*values, layout.valid_to, layout.current]),
            )
        execute("DROP TABLE {former}, {next}")

    def _same_keys(
        self, left: str, right: str, keys: Sequence[str] | None = None
    ) -> list[sql.Composed]:
        """Return the conditions that rows of two tables have equal keys: without and with nulls.

        `left`, `right`: aliases. `keys`: by default those of the rows; only the first may be null.
        """
        key_names = self._layout.row_keys if keys is None else keys

        def join(word: LiteralString, text: LiteralString, names: Sequence[str]) -> sql.Composed:
            return sql.SQL(word).join(
                sql.SQL(text).format(l=sql.Identifier(left, name), r=sql.Identifier(right, name))
                for name in names
            )

        has_null = join(" OR ", "{r} IS NULL", self._layout.row_keys)
        are_equal = join(" AND ", "({l} = {r} OR {l} IS NULL AND {r} IS NULL)", key_names)
        return [
            join(" AND ", "{l} = {r}", key_names),
            sql.SQL("({}) AND {}").format(has_null, are_equal),
        ]

    def _execute_with_names(
        self, connection: Connection, statement: LiteralString, **more: sql.Composable
    ) -> None:
        """Execute a statement with the names of this table filled in."""
        names: dict[str, Any] = {**self._names, **more}
        connection.execute(sql.SQL(statement).format(**names))


def _columns_of_alias(alias: str, names: Sequence[str]) -> sql.Composed:
    """Return columns of a table, separated by commas."""
    return sql.SQL(", ").join(sql.Identifier(alias, name) for name in names)


def _assignments_from_excluded(names: Sequence[str]) -> sql.Composed:
    """Return assignments of the columns of a row that was to be inserted."""
    return sql.SQL(", ").join(
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in names
    )
