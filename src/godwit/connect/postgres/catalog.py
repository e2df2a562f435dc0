"""The server that changes are read from: checks of its tables, publication and slot."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from godwit.connect.postgres.connection import (
    Connection,
    error_text,
    plain_name,
    scalar,
    secrets_of_dsn,
    server_of_dsn,
    table_parts,
)
from godwit.connect.postgres.types import SETTINGS, PostgresValueType, read_types
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

_TIMEOUTS: Final = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
_END: Final = (
    "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
    "ELSE pg_current_wal_flush_lsn() END - '0/0'::pg_lsn)::bigint"
)


def lsn_text(lsn: int) -> str:
    """Return a position in the log in PostgreSQL's notation.

    Examples
    --------
    >>> lsn_text(0x1_0150_5A90)
    '1/1505A90'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """Connection settings of a server; `where`: name of the source in errors."""

    dsn: str | Mapping[str, Any]
    where: str

    @property
    def name(self) -> str:
        """Server and database, without secrets."""
        return server_of_dsn(self.dsn)

    def connect(self, *, replication: bool = False) -> Connection:
        """Return a connection that formats values as `SETTINGS` say."""
        with self.translating("cannot be reached"):
            return self.try_connect(replication=replication)

    def try_connect(self, *, replication: bool = False) -> Connection:
        """Return a connection, as `connect`; raise the library's errors."""
        parameters = {} if isinstance(self.dsn, str) else dict(self.dsn)
        first = self.dsn if isinstance(self.dsn, str) else ""
        known: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(first, **parameters)
        settings = {**SETTINGS, **dict.fromkeys(_TIMEOUTS, "0"), "row_security": "off"}
        if replication:  # which gets no answer while an epoch runs
            settings |= {"wal_sender_timeout": "5min", "tcp_keepalives_idle": "30"}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        known["options"] = f"{known.get('options') or ''} {options}".strip()
        known["client_encoding"] = "utf8"
        known.setdefault("application_name", "godwit")
        if replication:
            known["replication"] = "database"
        return psycopg.Connection.connect(**known, autocommit=True)

    def error(self, what: str, remedy: str, **context: object) -> SourceError:
        """Return an error about the source."""
        return SourceError(f"{self.where} {what}.", remedy=remedy, **context)

    @contextlib.contextmanager
    def translating(self, what: str) -> Iterator[None]:
        """Context that translates the server's errors to the source's; `what`: failed action."""
        try:
            yield
        except psycopg.Error as error:
            text = secrets_of_dsn(self.dsn).hide(error_text(error))
            raise self.error(f"{what}: {text}", _remedy_of(error)) from None


def _remedy_of(error: psycopg.Error) -> str:
    """Return the remedy for an error of the server."""
    text = str(error).lower()
    if error.sqlstate == "53400":
        return (
            "Increase max_replication_slots, or drop unused slots; a snapshot needs one "
            "temporarily."
        )
    if error.sqlstate == "42501" or any(
        said in text for said in ("permission denied", "walsender", "wal sender")
    ):
        return (
            "The source's user needs LOGIN and REPLICATION (ALTER ROLE ... REPLICATION), SELECT "
            "on the tables, and ownership of them if the source is to create the publication."
        )
    return "Fix this, and start the query again: it continues from its checkpoint."


@dataclass(frozen=True, slots=True)
class PostgresColumn:
    """A column of a table in the catalogue."""

    name: str
    number: int  # that no other column of the table gets, also after this one was dropped
    type_oid: int
    modifier: int
    shown_type: str
    collation: str  # empty: the type has none
    may_be_left_out: bool  # by an update that does not change it, since it may be large
    values: PostgresValueType
    by_default: bool = True

    @property
    def natural(self) -> pa.DataType:
        """Arrow type that values are read as by default."""
        return self.values.natural

    def can_be(self, dtype: pa.DataType) -> bool:
        """Return whether values can be read as an Arrow type, exactly or with an error each."""
        return self.values.can_be(dtype)


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """A table whose changes are read."""

    name: str  # with its schema
    parts: tuple[str, str]
    oid: int
    identity: str  # of replicas: d, i, f or n
    partitioned: bool
    columns: tuple[PostgresColumn, ...]
    keys: tuple[str, ...]  # of the replica identity, or else the primary key; may be empty

    @property
    def from_clause(self) -> sql.Composed:
        """FROM clause: only the table's own rows, not those of tables that inherit from it."""
        only = sql.SQL("" if self.partitioned else "ONLY ")
        return only + sql.Identifier(*self.parts)

    def column(self, name: str) -> PostgresColumn | None:
        """Return a column by its name."""
        return next((column for column in self.columns if column.name == name), None)

    def key_tuple(self, values: Sequence[sql.Composable] | None = None) -> sql.Composed:
        """Return the key columns, or values for them, as a row that SQL compares."""
        parts: list[sql.Composable] = []
        for position, name in enumerate(self.keys):
            column = self.column(name)
            assert column is not None, "a key column is a column of the table"
            if values is None:
                parts.append(sql.Identifier(name))
            else:
                typed = sql.SQL("{}::{}").format(values[position], sql.SQL(column.shown_type))
                if column.collation:
                    typed += sql.SQL(f" COLLATE {column.collation}")
                parts.append(typed)
        return sql.SQL("ROW({})").format(sql.SQL(", ").join(parts))


def read_table(connection: Connection, server: PostgresServer, table: str) -> PostgresTable:
    """Return the description of a table; raise if its changes cannot be read."""
    parts = table_parts(table, server.where, SourceError)
    name = sql.Identifier(*parts).as_string(connection)
    described = connection.execute(
        "SELECT n.nspname, c.relname, c.oid::bigint, c.relreplident, c.relkind, c.relpersistence, "
        "has_table_privilege(c.oid, 'SELECT') FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
        [name],
    ).fetchone()
    if described is None:
        raise server.error(f"has no table {table} to read", "Create it, or correct its name.")
    schema, relname, oid, identity, kind, persistence, may_select = described
    if kind not in {"r", "p"} or persistence != "p":
        raise server.error(
            f"cannot read {table}, which is not a table with logged changes",
            "Use a table that is not a view, and not temporary, unlogged or foreign.",
        )
    if not may_select:
        user = sql.Identifier(connection.info.user).as_string(connection)
        raise server.error(
            f"has no permission to read {table}", f"GRANT SELECT ON {name} TO {user};"
        )
    columns = connection.execute(
        """
        SELECT a.attname, a.attnum, a.atttypid::bigint, a.atttypmod,
               format_type(a.atttypid, a.atttypmod),
               CASE WHEN a.attcollation = 0 THEN '' ELSE a.attcollation::regcollation::text END,
               a.attstorage <> 'p' AND %s <> 'f'
        FROM pg_attribute a
        WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
        ORDER BY a.attnum
        """,
        [identity, oid],
    ).fetchall()
    types = read_types(connection, [(row[2], row[3]) for row in columns])
    return PostgresTable(
        name=plain_name((schema, relname)),
        parts=(schema, relname),
        oid=oid,
        identity=identity,
        partitioned=kind == "p",
        columns=tuple(PostgresColumn(*(*row, types[row[2], row[3]])) for row in columns),
        keys=_read_keys(connection, oid, identity),
    )


def _read_keys(connection: Connection, oid: int, identity: str) -> tuple[str, ...]:
    """Return the columns that identify a row of a table, even between two of its changes."""
    keys = scalar(
        connection,
        """
        SELECT array_agg(a.attname::text ORDER BY k.place)
        FROM pg_index i
        CROSS JOIN unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
        WHERE i.indrelid = %s AND k.place <= i.indnkeyatts AND i.indimmediate
          AND CASE %s WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
        """,
        oid,
        identity,
    )
    return tuple(keys or ())


def read_state(connection: Connection, oid: int) -> dict[str, Any] | None:
    """Return the state of a table that can change without logged rows; ``None`` if it is dropped.

    ``keys``, the numbers of its ``columns``, and the ``files`` of its partitions or its own: a
    truncated or rewritten table gets another one. All are plain values, for a position.
    """
    identity = scalar(connection, "SELECT relreplident FROM pg_class WHERE oid = %s", oid)
    if identity is None:
        return None
    columns = connection.execute(
        "SELECT attname, attnum FROM pg_attribute "
        "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped",
        [oid],
    )
    files = connection.execute(
        "SELECT relid::oid::text, pg_relation_filenode(relid)::bigint FROM pg_partition_tree(%s) "
        "WHERE isleaf UNION SELECT %s::oid::text, pg_relation_filenode(%s)::bigint",
        [oid, oid, oid],
    )
    return {
        "keys": list(_read_keys(connection, oid, identity)),
        "columns": dict(columns.fetchall()),
        "files": dict(files.fetchall()),
    }


def check_identity(server: PostgresServer, table: PostgresTable, *, before: bool) -> None:
    """Raise unless changes of a table identify the changed row."""
    quoted = sql.Identifier(*table.parts).as_string()
    if before and table.identity != "f":
        raise server.error(
            "has before=True, but PostgreSQL does not log the rows before a change of "
            f"{table.name}",
            f"ALTER TABLE {quoted} REPLICA IDENTITY FULL; or omit before=, and call latest().",
            table=table.name,
        )
    if not before and not table.keys:
        raise server.error(
            f"cannot identify the changed rows of {table.name}: the table has no primary key "
            "that is NOT DEFERRABLE, or REPLICA IDENTITY NOTHING",
            f"ALTER TABLE {quoted} ADD PRIMARY KEY (...); or REPLICA IDENTITY USING INDEX ...; or "
            "REPLICA IDENTITY FULL, and read it with before=True.",
            table=table.name,
        )
    if table.identity == "n":
        raise server.error(
            f"cannot read {table.name}, whose REPLICA IDENTITY is NOTHING",
            f"ALTER TABLE {quoted} REPLICA IDENTITY DEFAULT;",
            table=table.name,
        )


def prepare_publication(
    connection: Connection,
    server: PostgresServer,
    publication: str,
    tables: Sequence[PostgresTable],
    columns: Sequence[str],
    *,
    truncations: bool,
) -> None:
    """Create the publication of the tables if it is absent; raise if it is incomplete.

    `columns`, `truncations`: as for `check_published`.
    """
    name = sql.Identifier(publication)
    if not scalar(
        connection, "SELECT count(*) FROM pg_publication WHERE pubname = %s", publication
    ):
        listed = sql.SQL(", ").join(table.from_clause for table in tables)
        with server.translating(f"cannot create the publication {publication!r}"):
            connection.execute(
                sql.SQL(
                    "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)"
                ).format(name, listed)
            )
        return
    check_published(connection, server, publication, tables, columns, truncations=truncations)


def check_published(
    connection: Connection,
    server: PostgresServer,
    publication: str,
    tables: Sequence[PostgresTable],
    columns: Sequence[str],
    *,
    truncations: bool,
) -> None:
    """Raise unless the tables exist, and all changes of their rows are published.

    `columns`: names of those that are read. `truncations`: these have to be published, too.
    """
    quoted_publication = sql.Identifier(publication).as_string(connection)
    row = connection.execute(
        "SELECT pubviaroot, pubtruncate, pubinsert, pubupdate, pubdelete FROM pg_publication "
        "WHERE pubname = %s",
        [publication],
    ).fetchone()
    if row is not None and not all(row[1:] if truncations else row[2:]):
        raise server.error(
            "needs inserts, updates, deletes and truncations, but the publication "
            f"{quoted_publication} lacks some of them",
            f"ALTER PUBLICATION {quoted_publication} SET (publish = 'insert, update, delete, "
            "truncate'); changes that it lacked are not in the log: if the query has read "
            "changes before, begin with a new slot and checkpoint. Truncations are not needed "
            'with on_truncate="skip".',
        )
    if row is not None and not row[0] and any(table.partitioned for table in tables):
        raise server.error(
            f"reads a partitioned table, but the publication {quoted_publication} publishes its "
            "changes by partition",
            f"ALTER PUBLICATION {quoted_publication} SET (publish_via_partition_root = true);",
        )
    has_filters = connection.info.server_version >= 15_00_00
    query = "SELECT schemaname, tablename, {} FROM pg_publication_tables WHERE pubname = %s".format(  # noqa: S608
        "attnames::text[], rowfilter" if has_filters else "NULL::text[], NULL::text"
    )
    published = {
        (row[0], row[1]): row[2:] for row in connection.execute(query, [publication]).fetchall()
    }
    for table in tables:
        quoted = sql.Identifier(*table.parts).as_string(connection)
        if scalar(connection, "SELECT to_regclass(%s)::oid::bigint", quoted) != table.oid:
            raise server.error(
                f"read the table {table.name}, which was dropped, renamed, or created again",
                "To read the table that now has that name, use a new slot and a new checkpoint, "
                "so that the query begins with a snapshot. If it was renamed, rename it back.",
                table=table.name,
            )
        if table.parts not in published:
            raise server.error(
                f"reads {table.name}, which is not in the publication {quoted_publication}",
                f"ALTER PUBLICATION {quoted_publication} ADD TABLE {quoted}; its changes before "
                "that are not in the log: if the query has read changes before, begin with a new "
                "slot and checkpoint.",
                table=table.name,
            )
        names, row_filter = published[table.parts]
        if row_filter is not None or (names is not None and not set(columns) <= set(names)):
            raise server.error(
                f"reads {table.name}, but the publication {quoted_publication} has only some of "
                "its rows or columns",
                "Publish the whole table, and filter rows and columns in the flow.",
                table=table.name,
            )


@dataclass(frozen=True, slots=True)
class SlotState:
    """A replication slot."""

    confirmed: int
    kept_bytes: int  # of the log that the server keeps for it
    active_pid: int | None


def read_slot(connection: Connection, server: PostgresServer, slot: str) -> SlotState | None:
    """Return the state of a slot, ``None`` if it does not exist; raise if it cannot be used."""
    row = connection.execute(
        "SELECT plugin, database, temporary, (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, "
        "active_pid, wal_status, (restart_lsn - '0/0'::pg_lsn)::bigint "
        "FROM pg_replication_slots WHERE slot_name = %s",
        [slot],
    ).fetchone()
    if row is None:
        return None
    plugin, database, temporary, confirmed, active_pid, status, restart = row
    if plugin != "pgoutput" or database != connection.info.dbname or temporary:
        raise server.error(
            f"cannot use the slot {slot!r}: it is physical, temporary, in another database, or "
            "has a plugin other than pgoutput",
            "Give another slot=; the source creates it.",
            slot=slot,
        )
    if status == "lost" or restart is None:
        raise server.error(
            f"has lost its slot {slot!r}: the server has removed log that the query had not read "
            "(max_slot_wal_keep_size)",
            f"SELECT pg_drop_replication_slot('{slot}'); and start with a new checkpoint, so "
            "that the query begins with a snapshot. Increase max_slot_wal_keep_size.",
            slot=slot,
        )
    end = scalar(connection, _END)
    return SlotState(confirmed, max(0, end - restart), active_pid)


def end_of_log(connection: Connection) -> int:
    """Return the position up to which the server's log is written."""
    return int(scalar(connection, _END))


def create_slot(server: PostgresServer, slot: str) -> None:
    """Create a slot; this waits for running transactions."""
    with (
        server.translating(f"cannot create the slot {slot!r}"),
        server.connect(replication=True) as connection,
    ):
        connection.execute(
            sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput NOEXPORT_SNAPSHOT").format(
                sql.Identifier(slot)
            )
        )


def identify(server: PostgresServer, connection: Connection) -> tuple[str, int]:
    """Return the identity of the database system, and its timeline."""
    level = scalar(connection, "SHOW wal_level")
    if level != "logical":
        raise server.error(
            f"needs a server with wal_level = logical, but it is {level}",
            "ALTER SYSTEM SET wal_level = 'logical'; and restart the server.",
        )
    with (
        server.translating("cannot identify the server"),
        server.connect(replication=True) as connection_,
    ):
        row = connection_.execute("IDENTIFY_SYSTEM").fetchone()
    assert row is not None
    return str(row[0]), int(row[1])
