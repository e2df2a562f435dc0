"""The MariaDB server that changes are read from, and checks of its settings and tables."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.converters import encoders

from godwit.connect.mariadb.types import Charset, MariaDBValueType, catalogue_type
from godwit.model.errors import SourceError
from godwit.model.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

Connection = Any
"""A connection of PyMySQL."""

_SCHEMES: Final = {"mariadb", "mysql", "mariadb+pymysql", "mysql+pymysql"}
_SETTINGS: Final = (
    "SET SESSION sql_mode = '', time_zone = '+00:00', net_write_timeout = 600, "
    "net_read_timeout = 600, max_statement_time = 0, idle_transaction_timeout = 0, "
    "idle_readonly_transaction_timeout = 0, sql_select_limit = DEFAULT"
)
_MIN_VERSION: Final = (10, 5)  # the first with binlog_row_metadata
_NEEDED: Final = {
    "log_bin": ("1", "Start the server with log_bin."),
    "binlog_format": ("ROW", "SET GLOBAL binlog_format = 'ROW'; and reconnect its clients."),
    "binlog_row_image": (
        "FULL",
        "SET GLOBAL binlog_row_image = 'FULL'; and reconnect its clients.",
    ),
    "binlog_row_metadata": ("FULL", "SET GLOBAL binlog_row_metadata = 'FULL';"),
}
_TRANSACTIONAL: Final = {"INNODB", "ROCKSDB"}
_NO_ACTIONS: Final = {"RESTRICT", "NO ACTION"}
_ACCESS_DENIED: Final = {1044, 1045, 1142, 1143, 1227, 1370}
_LOST: Final = {1053, 1077, 1079, 1080, 1158, 1159, 1160, 1161, 1317, 1927, 2002, 2003, 2006, 2013}


def parse_dsn(dsn: str | Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a URL or a mapping as PyMySQL's parameters; raise if it is malformed."""
    if not isinstance(dsn, str):
        Secrets.of_values({str(name): value for name, value in dsn.items()})
        return dict(dsn)
    Secrets.of_uri(dsn)
    try:
        url = urlsplit(dsn)
        parts = {"host": url.hostname, "port": url.port, "user": url.username}
    except ValueError:
        url, parts = urlsplit(""), {}
    host = str(parts.get("host") or "")
    if url.scheme not in _SCHEMES or "/" in url.path[1:] or "@" in host:
        raise SourceError(  # which does not repeat the URL, as a password may be in the wrong place
            f"{where} has an invalid connection.",
            remedy='Write "mariadb://user:password@host:3306/database", with %40 for @, %2F for / '
            "and %25 for % in the password, or a mapping of PyMySQL's parameters.",
        )
    parameters = {name: value for name, value in parts.items() if value is not None}
    if url.username is not None:
        parameters["user"] = unquote(url.username)
    if url.password is not None:
        parameters["password"] = unquote(url.password)
        Secrets.of_values({"password": parameters["password"]})
    if url.path[1:]:
        parameters["database"] = unquote(url.path[1:])
    options = {
        name_: int(option) if option.isdigit() else option for name_, option in parse_qsl(url.query)
    }
    return parameters | options


@dataclass(frozen=True, slots=True)
class MariaServer:
    """Connection settings of a server; `where`: name of the source in errors."""

    parameters: Mapping[str, Any]  # of PyMySQL
    where: str

    @property
    def name(self) -> str:
        """Server and database, without secrets."""
        parameters = self.parameters
        named = ("unix_socket",) if parameters.get("unix_socket") else ("host", "port")
        named = (*named, "database", "db")
        return " ".join(f"{name}={parameters[name]}" for name in named if parameters.get(name))

    def connect(self, *, raw: bool = False) -> Connection:
        """Return a connection; `raw`: values are bytes, else text."""
        with self.translating("cannot be reached"):
            return self.try_connect(raw=raw)

    def try_connect(self, *, raw: bool = False, read_timeout_s: float | None = None) -> Connection:
        """Return a connection, as `connect`; raise the library's errors."""
        parameters = {"connect_timeout": 10, **self.parameters}
        parameters |= {"charset": "utf8mb4", "autocommit": True, "conv": dict(encoders)}
        parameters |= {"use_unicode": not raw, "init_command": _SETTINGS}
        parameters |= {"cursorclass": pymysql.cursors.Cursor}
        if parameters.get("unix_socket") and not any(name.startswith("ssl") for name in parameters):
            parameters["ssl_disabled"] = True  # else it loads the certificates of the system first
        if read_timeout_s is not None:
            parameters["read_timeout"] = read_timeout_s
        return pymysql.connect(**parameters)

    def error(self, what: str, remedy: str, **context: object) -> SourceError:
        """Return an error about the source."""
        return SourceError(f"{self.where} {what}.", remedy=remedy, **context)

    @contextlib.contextmanager
    def translating(self, what: str) -> Iterator[None]:
        """Context that translates the server's errors to the source's; `what`: failed action."""
        try:
            yield
        except (pymysql.err.Error, OSError, TypeError) as error:
            secrets = Secrets.of_values({str(n): v for n, v in self.parameters.items()})
            text = secrets.hide(" ".join(str(error.args[-1]).split()).rstrip("."))
            raise self.error(f"{what}: {text}", self.remedy_of(error)) from None

    def remedy_of(self, error: Exception) -> str:
        """Return the remedy for an error of the server."""
        if _error_number(error) in _ACCESS_DENIED:
            user = self.parameters.get("user") or "user"
            return (
                "The source's user needs privileges to read the log and the tables: GRANT "
                f"REPLICATION SLAVE, BINLOG MONITOR ON *.* TO {user}; GRANT SELECT ON database.* "
                f"TO {user};"
            )
        return "Fix this, and start the query again: it continues from its checkpoint."


def _error_number(error: Exception) -> int:
    """Return the number of a server's error, 0 for other errors."""
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) else 0


def is_lost(error: Exception) -> bool:
    """Return whether an error means a lost connection, which may be temporary."""
    return _error_number(error) in _LOST or not isinstance(error, pymysql.err.Error)


def query(connection: Connection, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Return the rows of a statement's result."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall())


def quoted(name: str) -> str:
    """Return a name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def check_server(server: MariaServer, connection: Connection) -> tuple[str, str]:
    """Return identity and number of the server; raise unless it logs whole rows with names."""
    with server.translating("cannot look up the server's settings"):
        [(version,)] = query(connection, "SELECT VERSION()")
        if "mariadb" not in version.lower():
            raise server.error(
                f"needs MariaDB, but the server is MySQL {version}, whose GTIDs are different",
                "Let Debezium write its changes to Kafka, and read them by gw.formats.debezium.",
            )
        numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2])
        if numbers < _MIN_VERSION:
            raise server.error(
                f"needs MariaDB 10.5 or newer, but the server is {version}", "Upgrade it."
            )
        for name, (required, remedy) in _NEEDED.items():
            [(value,)] = query(connection, f"SELECT @@GLOBAL.{name}")
            if str(value).upper() != required:
                words = {"0": "off", "1": "on"}
                raise server.error(
                    f"needs a server with {name} = {words.get(required, required)}, but it is "
                    f"{words.get(str(value), value)}",
                    f"{remedy} Changes that were logged before cannot be read.",
                )
        [(number,)] = query(connection, "SELECT @@GLOBAL.server_id")
        variables = dict(query(connection, "SHOW GLOBAL VARIABLES LIKE 'server_uid'"))
    return str(variables.get("server_uid", number)), str(number)


def check_filters(
    server: MariaServer, connection: Connection, tables: Sequence[MariaTable]
) -> None:
    """Raise if the server does not log the database of a table."""
    with server.translating("cannot look up which databases are logged"):
        [(_, _, only, never)] = query(connection, "SHOW MASTER STATUS")
    for table in tables:
        name = table.parts[0]
        if (only and name not in only.split(",")) or name in never.split(","):
            raise server.error(
                f"reads {table.name}, but the server does not log changes of the database {name}",
                "Remove it from binlog_ignore_db, or add it to binlog_do_db, and restart the "
                "server.",
            )


@dataclass(frozen=True, slots=True)
class MariaColumn:
    """A column of a table in the catalogue."""

    name: str
    shown_type: str
    charset: str
    collation: str
    values: MariaDBValueType
    by_default: bool  # not generated
    may_be_left_out: bool = False

    @property
    def natural(self) -> pa.DataType:
        """Arrow type that values are read as by default."""
        return self.values.natural

    def can_be(self, dtype: pa.DataType) -> bool:
        """Return whether values can be read as an Arrow type, exactly or with an error each."""
        return self.values.can_be(dtype)

    def literal(self, text: str) -> str:
        """Return the text of a key's value as SQL, which compares like the column."""
        return self.values.literal(text, self.charset, self.collation)


@dataclass(frozen=True, slots=True)
class MariaTable:
    """A table whose changes are read."""

    parts: tuple[str, str]  # database, name
    columns: tuple[MariaColumn, ...]
    keys: tuple[str, ...]  # the primary key; may be empty

    @property
    def name(self) -> str:
        """Name of the table, with its database."""
        return ".".join(self.parts)

    @property
    def oid(self) -> str:
        """Identity of the table; the log shows when another table gets its name."""
        return self.name

    @property
    def from_clause(self) -> str:
        """Name of the table in a query."""
        return ".".join(map(quoted, self.parts))

    def column(self, name: str) -> MariaColumn | None:
        """Return a column by its name."""
        return next((column for column in self.columns if column.name == name), None)

    def key_columns(self) -> list[MariaColumn]:
        """Return the columns of the key."""
        return [column for name in self.keys for column in self.columns if column.name == name]


def read_table(
    connection: Connection, server: MariaServer, table: str, *, before: bool
) -> MariaTable:
    """Return the description of a table; raise if its changes cannot be read."""
    schema, dot, name = table.rpartition(".")
    if not dot:
        [(schema,)] = query(connection, "SELECT DATABASE()")
    if not schema or not name or "." in schema:
        raise server.error(
            f"has table={table!r}",
            'Write it as "database.table", or give a database in the connection.',
        )
    described = query(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        *(schema, name),
    )
    if not described:
        raise server.error(
            f"has no table {schema}.{name} that its user can read",
            f"Create it, correct its name, or GRANT SELECT ON {quoted(schema)}.{quoted(name)} TO "
            f"{server.parameters.get('user') or 'user'};",
        )
    [(schema, name, kind, engine)] = described
    shown = f"{quoted(schema)}.{quoted(name)}"
    if kind != "BASE TABLE":
        raise server.error(
            f"cannot read {schema}.{name}, which is a {kind.lower()}",
            "Use a table that is not a view, a sequence, or system-versioned: the log does not "
            "distinguish versions from rows.",
        )
    if (engine or "").upper() not in _TRANSACTIONAL:
        raise server.error(
            f"cannot read {schema}.{name}, whose engine {engine} has no transactions",
            f"ALTER TABLE {shown} ENGINE = InnoDB;",
        )
    _check_foreign_keys(connection, server, schema, name)
    rows = query(
        connection,
        "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, NUMERIC_PRECISION, NUMERIC_SCALE, "
        "CHARACTER_SET_NAME, COLLATION_NAME, IS_GENERATED FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
        *(schema, name),
    )
    columns = tuple(
        MariaColumn(
            name=column,
            shown_type=column_type,
            charset=charset or "",
            collation=collation or "",
            values=catalogue_type(
                data_type,
                column_type,
                None if precision is None else int(precision),
                None if scale is None else int(scale),
            ),
            by_default=generated == "NEVER",
        )
        for column, data_type, column_type, precision, scale, charset, collation, generated in rows
    )
    keys = query(
        connection,
        "SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s "
        "AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX",
        *(schema, name),
    )
    if not before and not keys:
        raise server.error(
            f"cannot identify the changed rows of {schema}.{name}: it has no primary key",
            f"ALTER TABLE {shown} ADD PRIMARY KEY (...); or read it with before=True.",
        )
    return MariaTable((schema, name), columns, tuple(key for (key,) in keys))


def _check_foreign_keys(
    connection: Connection, server: MariaServer, schema: str, name: str
) -> None:
    """Raise if a foreign key changes rows of a table, which the server does not log."""
    for constraint, on_delete, on_update in query(
        connection,
        "SELECT CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE FROM "
        "information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = %s "
        "AND TABLE_NAME = %s",
        *(schema, name),
    ):
        if {on_delete, on_update} <= _NO_ACTIONS:
            continue
        raise server.error(
            f"cannot read {schema}.{name}: MariaDB does not log the changes by its foreign key "
            f"{constraint} (ON DELETE {on_delete}, ON UPDATE {on_update})",
            "Make it RESTRICT, and change the rows by statements or triggers instead.",
            constraint=constraint,
        )


def read_charsets(connection: Connection) -> dict[int, Charset]:
    """Return number of a collation → its character set, with the characters of its bytes."""
    sizes = {row[0]: int(row[3]) for row in query(connection, "SHOW CHARACTER SET")}
    try:
        rows = query(
            connection,
            "SELECT ID, CHARACTER_SET_NAME FROM "
            "information_schema.COLLATION_CHARACTER_SET_APPLICABILITY",
        )
    except pymysql.err.Error:  # before 10.10
        rows = query(connection, "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS")
    charsets: dict[str, Charset] = {"binary": Charset("binary")}
    for name, size in sizes.items():
        characters = ""
        if size == 1 and name not in {"binary", "ascii"}:
            data = bytes(range(256)).hex()
            [(characters,)] = query(connection, f"SELECT CONVERT(_{name} 0x{data} USING utf8mb4)")
        charsets[name] = Charset(name, characters if len(characters) == 256 else "")
    return {int(number): charsets[name] for number, name in rows if number is not None}
