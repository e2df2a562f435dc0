"""Tables whose changes are read: ``gw.sources.postgres``."""

from __future__ import annotations

import re
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
    from godwit.connect.postgres.source import PostgresSource
    from godwit.time.durations import Duration


@user_call
def postgres(
    dsn: str | Mapping[str, Any],
    table: str | Sequence[str],
    *,
    slot: str,
    publication: str | None = None,
    schema: SchemaLike | None = None,
    before: bool = False,
    snapshot: bool = True,
    include: Sequence[str] | Mapping[str, str] = (),
    whole_transactions: bool = False,
    max_rows_per_epoch: int | None = None,
    on_truncate: Literal["refuse", "skip"] = "refuse",
    timeout: Duration = "30 seconds",
) -> PostgresSource:
    """Read the rows of a PostgreSQL table, and then its changes by logical replication.

    **Exactly once**: each row of the snapshot, and each change committed after it, is read once,
    also over restarts. The slot is advanced only behind commits of the query. The rows are upserts;
    with `before`, changes.

    The server needs ``wal_level = logical``, and the user ``REPLICATION`` and ``SELECT`` on the
    table. A slot that is not read makes the server keep its log: drop the slot of a query that you
    give up, by ``SELECT pg_drop_replication_slot('...')``.

    Parameters
    ----------
    dsn
        Connection string or URI, or a mapping of psycopg's connection parameters.
    table
        Name of the table, with or without its schema; a partitioned table is read as one. Or a list
        of tables with the same columns and keys; then `include` must have ``"table"``.
    slot
        Name of the replication slot, one for each source. It is created if it is absent, with the
        plugin ``pgoutput``.
    publication
        Name of the publication; by default that of the slot. It is created if it is absent, for
        which the user must own the table.
    schema
        Columns to read, as in ``"id long, price decimal(10, 2)"``, among them the key. By default
        all but generated ones, with the types of the table. Every type can be read as ``string``.
    before
        ``True``: read the row before each update and delete too, which needs ``REPLICA IDENTITY
        FULL``. The rows are then changes, of which aggregates subtract.
    snapshot
        ``True``: a new query first reads the rows that the table has. ``False``: it reads only
        changes, those that the slot has.
    include
        Further columns to add, any of ``"position"`` (of the commit in the log), ``"time"`` (of the
        commit), ``"transaction"``, ``"table"`` and ``"snapshot"``; a mapping renames them.
    whole_transactions
        ``True``: an epoch never ends within a transaction, so its size is at least that of one.
    max_rows_per_epoch
        Maximum rows of the snapshot, or changes, that an epoch reads. By default 250,000 rows of
        the snapshot, and 64 MB of changes.
    on_truncate
        Action for ``TRUNCATE``, which does not name the deleted rows: ``"refuse"``: the query
        fails; ``"skip"``: it continues, and the rows stay in the target.
    timeout
        Maximum time to wait for the server, or for the slot while another connection has it.

    Raises
    ------
    SourceError
        If psycopg is not installed, or an option is wrong. At the start or in an epoch: if the
        server, the table or the slot cannot be used; the message says what to do.
    InvalidFlowError
        If `schema` or `include` is wrong.

    Notes
    -----
    - By default columns have the types of the table. Types that Arrow does not have, such as
      ``numeric`` without digits, ``jsonb``, ranges, enums and ``interval``, are text. A value that
      the type lacks (``infinity``, ``NaN`` in a decimal) fails its epoch; ``schema=`` reads any
      column as ``string``. ``latest`` does not store lists: read arrays as text for it.
    - An added column is not read until a new query names it (``SourceReported``). The query fails
      at the first change after a column that it reads was dropped, renamed or got a type that does
      not fit, after the key was changed, and at ``TRUNCATE`` (``on_truncate="skip"``: the rows stay
      in the target).
    - *Not in PostgreSQL's log*, so not in the target: rows that ``ALTER TABLE ... TYPE ... USING``
      rewrites, partitions that are attached, detached, dropped or truncated by themselves, and
      renamed labels of an enumeration. Begin with a new slot and checkpoint after these, and if a
      slot is refused.
    - *What it costs*: until the snapshot is read, ``ALTER TABLE`` and ``TRUNCATE`` of the table
      wait. The driver receives all changes; lanes decode them.

    Examples
    --------
    >>> gw.sources.postgres("postgresql://host/db", "public.orders", slot="orders")
    gw.sources.postgres('host=host dbname=db', 'public.orders', slot='orders')
    """
    with needs_package("The PostgreSQL source", "psycopg", "postgres", SourceError):
        from godwit.connect.postgres.catalog import PostgresServer  # noqa: PLC0415 - psycopg is optional
        from godwit.connect.postgres.connection import check_dsn  # noqa: PLC0415
        from godwit.connect.postgres.source import PostgresSource  # noqa: PLC0415
    where = "The PostgreSQL source"
    if not isinstance(dsn, str | Mapping):
        raise SourceError(
            f"{where} has a connection of type {type(dsn).__name__}.",
            remedy='Give "host=... dbname=..." or a mapping.',
        )
    check_dsn(dsn, where, SourceError)
    options = TableSourceOptions.of(
        where,
        table,
        schema=schema,
        before=before,
        snapshot=snapshot,
        include=include,
        about=about_changes(pa.int64()),
        whole_transactions=whole_transactions,
        max_rows_per_epoch=max_rows_per_epoch,
        on_truncate=on_truncate,
        timeout_s=seconds(timeout, "The timeout of a PostgreSQL source"),
    )
    if not isinstance(slot, str) or not re.fullmatch("[a-z0-9_]{1,63}", slot):
        raise SourceError(
            f"{where} has slot={slot!r}, which is not a valid name.",
            remedy="Use 1 to 63 of the characters a-z, 0-9 and _.",
        )
    return PostgresSource(
        PostgresServer(dsn, f"The PostgreSQL source of {listing(list(options.tables))}"),
        options,
        slot=slot,
        publication=slot if publication is None else publication,
    )
