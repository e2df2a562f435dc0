"""Tables of SQL databases, by SQLAlchemy: ``gw.sinks.sql``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from godwit.connect.options import check_columns, wrong_option
from godwit.model.errors import SinkError
from godwit.model.frames import user_call
from godwit.model.naming import needs_package

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.connect.sql.sink import SqlSink
    from godwit.sinks.sink import Sink


@user_call
def sql(
    url: str,
    table: str,
    *,
    mode: Literal["append", "upsert", "changes"] = "append",
    keys: str | Sequence[str] | None = None,
    order_by: str | None = None,
    rename: Mapping[str, str] | None = None,
    create: bool = True,
    rejects: Sink | None = None,
) -> SqlSink:
    """Write each epoch to a table of MariaDB, MySQL, SQLite or PostgreSQL; exactly-once.

    **Exactly-once**: readers see all rows of an epoch or none, and each epoch's rows once. A table
    ``godwit_sql_epochs`` in the same database stores the last epoch of each query and sink, in the
    transaction of the epoch. Several queries may write to one table. With ``output="complete"``
    each epoch replaces all rows of the table.

    Rows go through Python, one by one. For PostgreSQL, `gw.sinks.postgres` is faster, and checks
    more before the commit.

    Parameters
    ----------
    url
        Database as SQLAlchemy writes it: ``"mariadb+pymysql://user@host/db"``,
        ``"sqlite:///totals.db"``. The password is not shown in errors or plans.
    table
        Name of the table, with or without its schema (``shop.by_plane``).
    mode
        ``"append"`` inserts rows; ``"upsert"`` replaces the row with the same `keys`, or inserts
        it. Of changes of a table it also deletes rows. ``"changes"`` inserts every change of a
        table, with its column ``change``.
    keys
        Columns that identify a row in ``"upsert"``; by default those that identify a row of the
        result: the key columns, and the window. They cannot be null.
    order_by
        Column with the version of a row. With ``"upsert"`` a row is written unless the table has a
        newer one of its key. So deleted rows stay, with nulls and true in a column ``deleted``.
    rename
        Names of the columns that the sink adds, as in ``{"deleted": "is_deleted"}``.
    create
        ``True``: create the table if it is absent. ``False``: the start fails then.
    rejects
        Sink of the rows that the table cannot take, with the text columns ``sink``, ``reason``,
        ``key`` and ``row`` (the last two as JSON). ``None``: such a row fails its epoch before the
        commit. A row that only the server refuses stops the query after it.

    Raises
    ------
    SinkError
        If SQLAlchemy is not installed, or an option is wrong.

    Notes
    -----
    - *Types*: integers, ``DOUBLE``, decimals of up to 65 digits, 30 after the point, booleans,
      text, bytes, dates, times. Nested types and durations are refused, in SQLite also ``uint64``
      and decimals. Instants are stored in UTC, without a time zone except in PostgreSQL.
    - *Keys* are a primary key, or a unique one of whole values in a collation that keeps different
      texts apart, and never null. In MariaDB and MySQL, text and bytes in keys have at most 255
      characters.
    - *Sessions* of MariaDB and MySQL are in strict mode, ``utf8mb4`` and UTC; tables need InnoDB. A
      deadlock, or a locked file of SQLite, repeats the transaction.

    Examples
    --------
    >>> gw.sinks.sql("sqlite:///totals.db", "by_plane", mode="upsert")
    gw.sinks.sql('sqlite:///totals.db', 'by_plane', mode='upsert')
    """
    options = dict(locals())  # the arguments
    with needs_package("The SQL sink", "sqlalchemy", "sql", SinkError):
        from godwit.connect.sql.sink import SqlSink  # noqa: PLC0415 - sqlalchemy is optional
    if not isinstance(url, str):
        raise wrong_option("SQL", "url", url, 'a URL, as in "mariadb+pymysql://user@host/db"')
    if not isinstance(table, str) or not table:
        raise wrong_option("SQL", "table", table, '"table" or "schema.table"')
    check_columns("SQL", keys=keys)
    return SqlSink(**options)
