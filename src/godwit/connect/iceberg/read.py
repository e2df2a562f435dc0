"""Iceberg tables to read: ``gw.sources.iceberg``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from godwit.model.errors import SourceError
from godwit.model.frames import user_call
from godwit.model.naming import needs_package, type_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from godwit.connect.iceberg.source import IcebergSource
    from godwit.connect.lakes.row_filters import Filters


@user_call
def iceberg(
    table: str,
    *,
    catalog: str | Mapping[str, str] = "default",
    changes: bool = False,
    snapshot: int | None = None,
    tag: str | None = None,
    branch: str = "main",
    existing: bool = True,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    include: Sequence[str] | Mapping[str, str] = (),
    keys: str | Sequence[str] | None = None,
    on_change: Literal["refuse", "skip"] = "refuse",
    whole_snapshots: bool = False,
    max_rows_per_epoch: int | None = None,
    max_files_per_epoch: int | None = None,
) -> IcebergSource:
    """Read an Apache Iceberg table: its rows, then those that later snapshots add or change.

    No JVM package is needed. Snapshots that only compact the table are passed over.

    Parameters
    ----------
    table
        Namespace and name (``"analytics.orders"``).
    catalog
        Name of a catalog in pyiceberg's configuration, or a mapping of its properties, as in
        ``{"type": "rest", "uri": "https://..."}``. Passwords are not shown in errors or plans.
    changes
        ``False``: new rows. A later snapshot that updates or deletes rows is refused (see
        `on_change`). ``True``: changes, with a column ``change``: rows of the first snapshot with
        1, then of each snapshot deleted rows with -1 and new ones with 1. A file that is rewritten
        counts as rows that go and come, equal ones too.
    snapshot, tag
        Snapshot at which a new query begins: its id, or a tag of it; by default the newest of
        `branch`. A resumed query continues from its checkpoint.
    branch
        Branch to follow.
    existing
        ``True``: first read the rows of that snapshot. ``False``: read later snapshots only.
    columns
        Columns to read; by default all of the newest version.
    filters
        Only rows for which all of ``[("day", ">=", "2024-05-01"), ...]`` hold, or all of one list
        of a list of such lists. Operators: ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``,
        ``not in``. Files that cannot have such rows are not read.
    include
        Further columns, any of ``"snapshot"`` (its id) and ``"timestamp"`` of the commit; a mapping
        renames them. Rows that are there at the start have those of the first snapshot.
    keys
        Columns that identify a row of the table, for sinks of its changes; by default the table's
        identifier fields.
    on_change
        Action for a snapshot that updates or deletes rows, with ``changes=False``: ``"refuse"``:
        the query fails; ``"skip"``: leave the snapshot out, with the rows that it adds.
    whole_snapshots
        ``True``: an epoch has all rows of a snapshot or none, even if they are more than the limits
        (the first snapshot may be divided); ``False``: an epoch may end within a snapshot.
    max_rows_per_epoch, max_files_per_epoch
        Maximum rows and files that one epoch reads; by default all that are available. Deleted rows
        and those that `filters` leave out count.

    Raises
    ------
    SourceError
        If pyiceberg is not installed, or an option is wrong. At the start or in an epoch: if there
        is no table, or it was dropped and created again; if snapshots expired before they were
        read; if the table was rolled back (``changes=True`` follows it); if a column that is read
        is dropped or promoted to another type meanwhile; if the table is encrypted, has equality
        deletes, or data files in ORC or Avro.

    Notes
    -----
    - **Roll-backs.** If the table is rolled back, or its branch set to another snapshot, a source
      of changes reads the difference, as long as both snapshots exist. A source of rows fails. A
      table that was dropped and created again is refused.
    - **Limits.** An epoch may end within a snapshot, with ``whole_snapshots=True`` only between
      snapshots. In each snapshot deleted rows come first.
    - **Columns** have the ids of the table's newest schema, so those renamed, moved, added or
      promoted before the start are right in old files, too. While a query runs, a renamed column
      keeps its name, and an added one is not read (``SourceReported``). A column that is dropped or
      promoted then ends the query, and a start reads it as it is.
    - **Formats.** Versions 1 to 3, also with default values, partitions that change, and files
      without field ids (name mapping). Data files must be in Parquet; ORC, Avro and encrypted files
      are refused. UUIDs are text, nanoseconds are cut to microseconds.
    - *What it costs.* Each look for new rows loads the table's metadata. A snapshot is planned on
      the driver; one with positional deletes reads all manifests of the table. Filters skip files
      by partition and metrics.

    Examples
    --------
    >>> catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "warehouse"}
    >>> gw.sources.iceberg("shop.orders", catalog=catalog, changes=True, keys="id")
    <changes of the Iceberg table shop.orders in sqlite:///catalog.db>
    """
    options = dict(locals())  # the arguments
    with needs_package("The Iceberg source", "pyiceberg", "iceberg", SourceError):
        from godwit.connect.iceberg.source import (  # noqa: PLC0415 - pyiceberg is optional
            IcebergSource,
        )
    if not isinstance(table, str) or not table or not isinstance(catalog, str | Mapping):
        raise SourceError(
            f"An Iceberg source has table={table!r}, and catalog= of type {type_name(catalog)}.",
            remedy='Give "namespace.table", and a catalog\'s name or its properties.',
        )
    if isinstance(keys, str):
        options["keys"] = (keys,)
    return IcebergSource(**options)
