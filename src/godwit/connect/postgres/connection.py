"""Connection strings, connections, and names of tables.

**Connection strings** are parsed before anything connects, and never appear in errors.  The client
library quotes the part that it cannot parse, which most often is an unescaped password:
``postgresql://me:p@ss@host/db`` names a host ``ss@host``.  So its messages about a connection
string are never passed on, and a string that it parses in such a way is refused before it connects.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeAlias

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from godwit.model.errors import SinkError
from godwit.model.secrets import HIDDEN, Secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.model.errors import GodwitError

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_OF_PSYCOPG: Final = {
    *("autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory"),
}
_KINDS: Final = (
    ('missing "="', "a word in it has no = and no value; is a value with a blank not quoted?"),
    ("unterminated quoted string", "a quotation mark in it is not closed"),
    ("invalid connection option", "it has a parameter that PostgreSQL does not know"),
    ("invalid URI query parameter", "it has a parameter that PostgreSQL does not know"),
    ("unexpected spaces", "it has blanks"),
    ("percent-encoded", "a % in it is not followed by two valid hexadecimal digits"),
)
_REMEDY: Final = (
    "Write \"host=... dbname=... user=... password='...'\", a URI whose password has %40 for @, "
    "%2F for / and %25 for %, or a mapping; or give the password by PGPASSWORD or ~/.pgpass."
)


_PART: Final = re.compile(r'"(?:[^"]|"")+"|[^".]+')


def table_parts(
    table: str, where: str = "PostgreSQL sink", error: type[GodwitError] = SinkError
) -> tuple[str, ...]:
    """Return the name of a table, after its schema, if it has one, without SQL's quotes.

    Raises `error` if that is not a name. Names without quotes are taken as they are, too.

    Examples
    --------
    >>> table_parts('public."Flights ""of"" 2013"')
    ('public', 'Flights "of" 2013')
    """
    parts = _PART.findall(table)
    if ".".join(parts) != table or len(parts) not in {1, 2} or "\0" in table:
        has_quotes = '"' in table and "\0" not in table
        quoted_name = '"' + table.replace('"', '""') + '"'
        raise error(
            f"{where}: {table!r} is not a valid table name.",
            remedy='Give "table" or "schema.table".'
            + (
                f" Quote a name that has quotation marks, or a dot, as in SQL: {quoted_name!r}."
                if has_quotes
                else ""
            ),
        )
    return tuple(part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts)


def plain_name(parts: Sequence[str]) -> str:
    """Return the name of a table as `table_parts` reads it, with quotes only where needed."""
    return ".".join(
        '"' + part.replace('"', '""') + '"' if set(part) & {'"', "."} else part for part in parts
    )


def check_dsn(
    dsn: str | Mapping[str, Any],
    where: str = "PostgreSQL sink",
    error: type[GodwitError] = SinkError,
) -> None:
    """Raise `error` if a connection string is malformed."""
    problem = _dsn_problem(dsn)
    if problem is not None:  # raised where no other error is being handled that would be shown
        raise error(f"{where}: the connection string is not valid: {problem}.", remedy=_REMEDY)


def shown_dsn(dsn: str | Mapping[str, Any]) -> str:
    """Return a valid connection string without secrets.

    Examples
    --------
    >>> shown_dsn("postgresql://me:secret@host/db")
    'user=me password=*** dbname=db host=host'
    """
    parameters = _connection_parameters(dsn)
    hidden = {
        name: HIDDEN if str(value) in Secrets.of_values({name: value}).parts else value
        for name, value in parameters.items()
    }
    return secrets_of_dsn(dsn).hide(make_conninfo(**hidden))


def server_of_dsn(dsn: str | Mapping[str, Any]) -> str:
    """Return only server, database and schemas of a connection string.

    Examples
    --------
    >>> server_of_dsn("postgresql://me:secret@host/db")
    'host=host dbname=db'
    """
    parameters = _connection_parameters(dsn)
    server = {
        name: str(parameters[name])
        for name in ("host", "hostaddr", "port", "dbname", "service", "options")
        if parameters.get(name) is not None
    }
    return secrets_of_dsn(dsn).hide(" ".join(f"{name}={value}" for name, value in server.items()))


def place_of_table(dsn: str | Mapping[str, Any], table: str) -> str:
    """Return a text that identifies a table, with or without its schema; without secrets."""
    server, parts = server_of_dsn(dsn), table_parts(table)
    schema = () if len(parts) > 1 or "search_path" in server else ("public",)
    return f"{server} {plain_name((*schema, *parts))}"


def dataset_of_table(dsn: str | Mapping[str, Any], table: str) -> str:
    """Return the URI of a table for lineage: the server's first address, database, schema, table.

    Examples
    --------
    >>> dataset_of_table("postgresql://me:secret@one,two:5433/shop", "orders")
    'postgres://one:5432/shop.public.orders'
    """
    named = dict(part.partition("=")[::2] for part in server_of_dsn(dsn).split(" "))
    host = (named.get("host") or named.get("hostaddr") or "localhost").partition(",")[0]
    port = (named.get("port") or "").partition(",")[0] or "5432"
    schema, name = ("public", *table_parts(table))[-2:]
    return f"postgres://{host}:{port}/{named.get('dbname', '')}.{schema}.{name}"


def secrets_of_dsn(dsn: str | Mapping[str, Any]) -> Secrets:
    """Return the secrets in a valid connection string."""
    parameters = _connection_parameters(dsn)
    # A user with a colon is most likely a password in the wrong place.
    misplaced = str(parameters.get("user") or "").partition(":")[2]
    secrets = Secrets.of_values({**parameters, "user's password": misplaced})
    return secrets | Secrets.of_uri(dsn) if isinstance(dsn, str) else secrets


def _connection_parameters(dsn: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a connection string, without those of psycopg itself."""
    if isinstance(dsn, str):
        return dict(conninfo_to_dict(dsn))
    return {name: value for name, value in dsn.items() if name not in _OF_PSYCOPG}


def _dsn_problem(dsn: str | Mapping[str, Any]) -> str | None:
    """Return the problem of a connection string, without quoting it; ``None`` if it is valid."""
    if isinstance(dsn, str) and dsn.lower().lstrip().startswith("jdbc:"):
        return _jdbc_problem(dsn.strip())
    texts = [dsn] if isinstance(dsn, str) else [str(value) for value in dsn.values()]
    if any("\0" in text for text in texts):
        return "it contains a zero byte"
    try:
        parameters = _connection_parameters(dsn)
        parameters = dict(conninfo_to_dict(make_conninfo(**parameters)))
    except psycopg.Error as error:
        text = str(error)
        return next((said for kind, said in _KINDS if kind in text), "it cannot be read")
    except (TypeError, UnicodeError):
        return "it has values that are not text"
    ports = str(parameters.get("port") or "")
    if not re.fullmatch(r"\s*\d*\s*(,\s*\d*\s*)*", ports):
        return "its port is not a number; is there an unescaped / or : in the password?"
    host, database = str(parameters.get("host") or ""), str(parameters.get("dbname") or "")
    if "@" in host or "://" in host:
        return "its host contains an @ or ://; is there an unescaped @ in the password?"
    is_unescaped = isinstance(dsn, str) and "://" in dsn and database in dsn
    if "://" in database or ("@" in database and is_unescaped):
        return "its database contains an @ or ://; is there an unescaped / in the password?"
    return None


def _jdbc_problem(url: str) -> str:
    """Return how to write a JDBC URL for libpq; only server and database are quoted."""
    if not url.lower().startswith("jdbc:postgresql:"):
        return "it is a JDBC URL, and not for PostgreSQL"
    parts = re.fullmatch(r"(?is)jdbc:postgresql:(?://([\w.-]*(?::\d+)?)/)?(\w*)/?(?:\?.*)?", url)
    server, database = ("HOST", "DATABASE") if parts is None else parts.groups()
    return (
        "it is a JDBC URL, which libpq does not support. Write "
        f"postgresql://{server or 'localhost'}/{database}, with user and password as parameters "
        "(?user=...&password=...) or as PGUSER and PGPASSWORD"
    )


def scalar(connection: Connection, query: LiteralString | sql.Composed, *parameters: object) -> Any:
    """Return the first value of the first row of a query's result; ``None`` if it has no row."""
    row = connection.execute(query, parameters or None).fetchone()
    return None if row is None else row[0]


def error_text(error: Exception) -> str:
    """Return the text of an error on one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
