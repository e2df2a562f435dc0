"""Tables whose changes are read: ``gw.sources.mariadb``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from godwit.connect.tables.rows import about_changes
from godwit.connect.tables.source import TableSourceOptions
from godwit.model.errors import SourceError
from godwit.model.frames import user_call
from godwit.model.naming import listing, needs_package
from godwit.time.durations import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.columns.types import SchemaLike
    from godwit.connect.mariadb.source import MariaDBSource
    from godwit.time.durations import Duration


@user_call
def mariadb(
    url: str | Mapping[str, Any],
    table: str | Sequence[str],
    *,
    schema: SchemaLike | None = None,
    before: bool = False,
    snapshot: bool = True,
    include: Sequence[str] | Mapping[str, str] = (),
    whole_transactions: bool = False,
    max_rows_per_epoch: int | None = None,
    on_truncate: Literal["refuse", "skip"] = "refuse",
    timeout: Duration = "30 seconds",
) -> MariaDBSource:
    """Read the rows of a MariaDB table, and then its changes from the binary log.

    **Exactly once**: each row of the snapshot, and each change committed after it, is read once,
    also over restarts. Positions are GTIDs, so the query may go on with a replica. The rows are
    upserts; with `before`, changes.

    The server needs ``log_bin``, ``binlog_format = ROW`` and ``binlog_row_metadata = FULL``, and
    the user ``REPLICATION SLAVE``, ``BINLOG MONITOR``, and ``SELECT`` on the table. The server must
    keep its binary logs for as long as the query may be stopped.

    Parameters
    ----------
    url
        ``"mariadb://user:password@host:3306/database"``, with parameters of PyMySQL such as
        ``?unix_socket=...``, or a mapping of these parameters.
    table
        Name of the table, with or without its database. Or a list of tables with the same columns
        and keys; then `include` must have ``"table"``.
    schema
        Columns to read, as in ``"id long, price decimal(10, 2)"``, among them the key. By default
        all but generated ones, with the types of the table. Every type but geometry and compressed
        ones can be read as ``string``.
    before
        ``True``: read the row before each update and delete too. The rows are then changes, of
        which aggregates subtract, and tables need no key.
    snapshot
        ``True``: a new query first reads the rows that the table has. ``False``: it reads only
        changes, from the present end of the log.
    include
        Further columns to add, any of ``"position"`` (of the commit in the log, a number that
        grows), ``"time"`` (of the commit), ``"transaction"`` (its GTID), ``"table"`` and
        ``"snapshot"``; a mapping renames them.
    whole_transactions
        ``True``: an epoch never ends within a transaction, so its size is at least that of one.
    max_rows_per_epoch
        Maximum rows of the snapshot, or changes, that an epoch reads. By default 250,000 rows of
        the snapshot, and 64 MB of changes.
    on_truncate
        Action for ``TRUNCATE`` and partitions that are dropped, which does not name the deleted
        rows: ``"refuse"``: the query fails; ``"skip"``: it continues, and the rows stay in the
        target.
    timeout
        Maximum time to wait for the server.

    Raises
    ------
    SourceError
        If PyMySQL is not installed, or an option is wrong. At the start or in an epoch: if the
        server, the table or the log cannot be used; the message says what to do.
    InvalidFlowError
        If `schema` or `include` is wrong.

    Notes
    -----
    Types of the table, and those that they are read as:

    - ``tinyint`` ... ``bigint``: the same width; unsigned ones the next wider type, ``bigint
      unsigned`` ``decimal(20, 0)``; ``tinyint(1)`` and ``bit`` also ``boolean``
    - ``decimal``: ``decimal``; of more than 38 digits text
    - ``bit(1)``, ``bit(n)``: ``boolean``, ``long``
    - ``char``, ``text``, ``enum``, ``set``, ``json``, ``uuid``, ``inet4``, ``inet6``: text;
      character sets of several bytes other than Unicode (``gbk``, ``sjis``) are refused
    - ``binary``, ``blob``: ``binary``, with the zeros at the end that the log leaves out
    - ``date``, ``datetime``, ``timestamp``: ``date``, ``timestamp_ntz``, ``timestamp``; dates of
      zeros fail their epoch: read the column as ``string``
    - ``time``: time of day; negative ones, and those of more than a day, as ``interval day to
      second`` or ``string``
    - geometry, compressed columns: refused by name

    - The query fails if the table was dropped, renamed, replaced or exchanged, or if a column that
      it reads was dropped or renamed. Other alterations are reported: values that they rewrite are
      not in the log.
    - *Not in MariaDB's log*, so refused at the start: rows that a foreign key changes (``ON DELETE
      CASCADE``, ``SET NULL``), tables without transactions (MyISAM, Aria), and system-versioned
      tables. Changes with ``sql_log_bin = 0`` are lost without a trace. With ``sync_binlog = 0``, a
      crash of the server may take back changes that were read.
    - *While a snapshot is read*, by the driver, one transaction stays open, and ``ALTER TABLE``
      waits for it. A table without a key is read in one epoch.

    Examples
    --------
    >>> gw.sources.mariadb("mariadb://host/shop", "orders")
    gw.sources.mariadb('host=host database=shop', 'orders')
    """
    with needs_package("The MariaDB source", "pymysql", "mariadb", SourceError):
        from godwit.connect.mariadb.server import MariaServer, parse_dsn  # noqa: PLC0415 - optional
        from godwit.connect.mariadb.source import MariaDBSource  # noqa: PLC0415
    where = "The MariaDB source"
    if not isinstance(url, str | Mapping):
        raise SourceError(
            f"{where} has a connection of type {type(url).__name__}.",
            remedy='Give "mariadb://user@host/database" or a mapping.',
        )
    options = TableSourceOptions.of(
        where,
        table,
        schema=schema,
        before=before,
        snapshot=snapshot,
        include=include,
        about=about_changes(pa.string()),
        whole_transactions=whole_transactions,
        max_rows_per_epoch=max_rows_per_epoch,
        on_truncate=on_truncate,
        timeout_s=seconds(timeout, "The timeout of a MariaDB source"),
    )
    described = f"{where} of {listing(list(options.tables))}"
    return MariaDBSource(MariaServer(parse_dsn(url, where), described), options)
