"""Connection strings of PostgreSQL: read before anything connects, and never repeated.

The client library quotes what it cannot read, and a password that is not written as it should be
is what it most often cannot read: ``postgresql://me:p@ss@host/db`` names a host ``ss@host``.  So
its words about a connection string are never passed on, and one that it reads in such a way is
refused before it connects.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from godwit.model.errors import SinkError
from godwit.model.secrets import HIDDEN, Secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_dsn", "secrets_of_dsn", "server_of_dsn", "shown_dsn"]

_OF_PSYCOPG: Final = {
    *("autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory"),
}
_KINDS: Final = (
    ('missing "="', "a word in it has no = and no value; does a value with a blank lack quotes?"),
    ("unterminated quoted string", "a quotation mark in it is not closed"),
    ("invalid connection option", "it names a parameter that PostgreSQL does not have"),
    ("invalid URI query parameter", "it names a parameter that PostgreSQL does not have"),
    ("unexpected spaces", "there are blanks in it"),
    ("percent-encoded", "a % in it is not followed by two hexadecimal digits that may stand there"),
)
_REMEDY: Final = (
    "Write \"host=... dbname=... user=... password='...'\", a URI whose password has %40 for @, "
    "%2F for / and %25 for %, or a mapping; or leave the password to PGPASSWORD or ~/.pgpass."
)


def check_dsn(dsn: str | Mapping[str, Any]) -> None:
    """Refuse a connection string that cannot be meant so.

    Raises
    ------
    SinkError
        Says what is wrong without repeating any of it.
    """
    problem = _problem(dsn)
    if problem is not None:  # raised where no other error is being handled that would be shown
        raise SinkError(
            f"PostgreSQL sink: the connection string cannot be used: {problem}.", remedy=_REMEDY
        )


def shown_dsn(dsn: str | Mapping[str, Any]) -> str:
    """Return a connection string that `check_dsn` accepts without its secrets.

    Examples
    --------
    >>> shown_dsn("postgresql://me:secret@host/db")
    'user=me password=*** dbname=db host=host'
    """
    parameters = _parameters(dsn)
    hidden = {
        name: HIDDEN if str(value) in Secrets.of_values({name: value}).parts else value
        for name, value in parameters.items()
    }
    return secrets_of_dsn(dsn).hide(make_conninfo(**hidden))


def server_of_dsn(dsn: str | Mapping[str, Any]) -> str:
    """Return what a connection string says of server, database and schemas, and nothing else.

    Examples
    --------
    >>> server_of_dsn("postgresql://me:secret@host/db")
    'host=host dbname=db'
    """
    parameters = _parameters(dsn)
    told = {
        name: str(parameters[name])
        for name in ("host", "hostaddr", "port", "dbname", "service", "options")
        if parameters.get(name) is not None
    }
    return secrets_of_dsn(dsn).hide(" ".join(f"{name}={value}" for name, value in told.items()))


def secrets_of_dsn(dsn: str | Mapping[str, Any]) -> Secrets:
    """Find what is confidential in a connection string that `check_dsn` accepts."""
    parameters = _parameters(dsn)
    # A user with a colon is most likely a password in the wrong place.
    misplaced = str(parameters.get("user") or "").partition(":")[2]
    secrets = Secrets.of_values({**parameters, "user's password": misplaced})
    return secrets | Secrets.of_uri(dsn) if isinstance(dsn, str) else secrets


def _parameters(dsn: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(dsn, str):
        return dict(conninfo_to_dict(dsn))
    return {name: value for name, value in dsn.items() if name not in _OF_PSYCOPG}


def _problem(dsn: str | Mapping[str, Any]) -> str | None:
    texts = [dsn] if isinstance(dsn, str) else [str(value) for value in dsn.values()]
    if any("\0" in text for text in texts):
        return "it holds a zero byte"
    try:
        parameters = _parameters(dsn)
        parameters = dict(conninfo_to_dict(make_conninfo(**parameters)))
    except psycopg.Error as error:
        text = str(error)
        return next((said for kind, said in _KINDS if kind in text), "it cannot be read")
    except (TypeError, UnicodeError):
        return "it holds values that are not text"
    ports = str(parameters.get("port") or "")
    if not re.fullmatch(r"\s*\d*\s*(,\s*\d*\s*)*", ports):
        return "its port is no number; is there an unescaped / or : in the password?"
    host, database = str(parameters.get("host") or ""), str(parameters.get("dbname") or "")
    if "@" in host or "://" in host:
        return "its host holds an @ or ://; is there an unescaped @ in the password?"
    if "://" in database or ("@" in database and _is_uri(dsn) and _is_raw(dsn, database)):
        return "its database holds an @ or ://; is there an unescaped / in the password?"
    return None


def _is_uri(dsn: str | Mapping[str, Any]) -> bool:
    return isinstance(dsn, str) and "://" in dsn


def _is_raw(dsn: str | Mapping[str, Any], text: str) -> bool:
    return isinstance(dsn, str) and text in dsn
