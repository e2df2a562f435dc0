"""PostgreSQL: ``gw.sinks.postgres``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from godwit.connect.options import check_columns, wrong_option
from godwit.model.errors import SinkError
from godwit.model.frames import user_call
from godwit.model.naming import needs_package

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.connect.postgres.sink import PostgresSink
    from godwit.sinks.sink import Sink


@user_call
def postgres(
    dsn: str | Mapping[str, Any],
    table: str,
    *,
    mode: Literal["append", "upsert", "changes", "history"] = "append",
    keys: str | Sequence[str] | None = None,
    order_by: str | None = None,
    rename: Mapping[str, str] | None = None,
    create: bool = True,
    epoch_column: str | None = None,
    rejects: Sink | None = None,
) -> PostgresSink:
    """Write each epoch to a PostgreSQL table in one transaction; exactly-once.

    **Exactly-once**: readers see all rows of an epoch or none, and each epoch's rows once. A table
    ``godwit_epochs`` in the same schema stores the last epoch of each query and sink. Several
    queries may append to one table.

    With ``output="complete"`` each epoch replaces all rows of the table in its transaction, so no
    other query may write to it.

    Parameters
    ----------
    dsn
        Connection string or URI, or a mapping of psycopg's connection parameters.
    table
        Name of the table, with or without its schema (``public.by_plane``).
    mode
        ``"append"`` inserts rows; ``"upsert"`` replaces the row with the same `keys`, or inserts
        it. Of changes of a table it also deletes rows. ``"changes"`` inserts every change of a
        table, with its column ``change``. ``"history"`` keeps all versions of a row (slowly
        changing dimension, type 2): each is valid from ``valid_from`` until ``valid_to``, which is
        null while it is ``current``. Late versions are put between the others.
    keys
        Columns that identify a row in ``"upsert"``; by default those that identify a row of the
        result: the key columns, and the window. Two nulls are equal (needs PostgreSQL 15 or newer).
    order_by
        Column with the version of a row: an integer, a decimal, a date or a time. With ``"upsert"``
        a row is written unless the table has a newer one of its key. So deleted rows stay, with
        nulls and true in a column ``deleted``. In a history it is the column ``valid_from``.
    rename
        Names of the columns that the sink adds, as in ``{"deleted": "is_deleted"}``.
    create
        ``True``: create the table if it is absent. ``False``: the start fails then.
    epoch_column
        Integer column that gets the number of the epoch; with it the table can be rolled back
        (``on_divergence="roll_back"``). Only with ``"append"`` and ``"changes"``.
    rejects
        Sink of the rows that the table cannot take, with the text columns ``sink``, ``reason``,
        ``key`` and ``row`` (the last two as JSON). ``None``: such a row fails its epoch before the
        commit, or stops the query after it if only the server refuses the row.

    Raises
    ------
    SinkError
        If psycopg is not installed, or an option is wrong.

    Notes
    -----
    Arrow types, and those of the columns of a table that the sink creates:

    - bool; int8, int16, uint8; int32, uint16; int64, uint32; uint64: boolean; smallint; integer;
      bigint; numeric(20,0)
    - float16, float32; float64; decimal(p, s): real; double precision; numeric(p,s)
    - string; binary: text; bytea
    - date; time; duration: date; time; interval
    - timestamp; timestamp with a zone: timestamp; timestamptz
    - list of one of these: array
    - struct, map, list of lists or structs: jsonb (NaN and infinities become null)

    An existing table may have wider types, and further columns that are nullable or have a default.
    Strings may go to columns of type ``varchar``, ``uuid``, ``json``, ``jsonb``, ``inet`` or an
    enumeration. ``mode="upsert"`` needs a unique constraint on exactly the key columns that is not
    deferrable; none of them may equate different texts (``citext``, collations that are not
    deterministic). If a key column can be null, the constraint must say ``NULLS NOT DISTINCT``
    (PostgreSQL 15), or the column ``NOT NULL``. Tables with rules on INSERT, UPDATE or DELETE are
    refused where the sink would run them.

    Examples
    --------
    >>> gw.sinks.postgres("postgresql://host/db", "public.by_plane", mode="upsert")
    gw.sinks.postgres('dbname=db host=host', 'public.by_plane', mode='upsert')
    """
    options = dict(locals())  # the arguments
    with needs_package("The PostgreSQL sink", "psycopg", "postgres", SinkError):
        from godwit.connect.postgres.sink import PostgresSink  # noqa: PLC0415 - psycopg is optional
    if not isinstance(dsn, str | Mapping):
        raise wrong_option("PostgreSQL", "connection", dsn, '"host=... dbname=..." or a mapping')
    if not isinstance(table, str):
        raise wrong_option("PostgreSQL", "table", table, '"table" or "schema.table"')
    check_columns("PostgreSQL", keys=keys)
    return PostgresSink(**options)
