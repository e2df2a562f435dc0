"""Delta tables to read: ``gw.sources.delta``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from godwit.model.errors import SourceError
from godwit.model.frames import user_call
from godwit.model.locations import check_location, spelled_location
from godwit.model.naming import needs_package

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from godwit.connect.delta.source import DeltaSource
    from godwit.connect.lakes.row_filters import Filters

SCHEMES: Final[Mapping[str, str]] = {
    **{scheme: scheme for scheme in ("s3", "s3a", "gs", "abfs", "abfss", "hdfs", "viewfs")},
    **{scheme: scheme for scheme in ("az", "azure", "adl", "memory")},
    "s3n": "s3",
    "gcs": "gs",
}
"""Scheme of a location → its spelling in the library deltalake."""


@user_call
def delta(
    path: str | os.PathLike[str],
    *,
    changes: bool = False,
    version: int | None = None,
    timestamp: dt.datetime | str | None = None,
    snapshot: bool = True,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    include: Sequence[str] | Mapping[str, str] = (),
    keys: str | Sequence[str] = (),
    on_change: Literal["refuse", "skip"] = "refuse",
    whole_versions: bool = False,
    max_rows_per_epoch: int | None = None,
    max_files_per_epoch: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DeltaSource:
    """Read a Delta Lake table: its rows, then those that later versions add or change.

    No JVM package is needed. Versions that only compact the table (``OPTIMIZE``) are passed over.

    Parameters
    ----------
    path
        Path or URI of the table.
    changes
        ``False``: new rows. A later version that updates or deletes rows is refused (see
        `on_change`). ``True``: changes, with a column ``change``: rows of the snapshot with 1, then
        of each version deleted rows with -1 and new ones with 1. They come from the change data
        feed where the table has it, else from the files that a version removes and adds.
    version, timestamp
        Version at which a new query begins, or a time (a datetime, or ISO 8601 text) whose newest
        version that is; by default the newest. A resumed query continues from its checkpoint.
    snapshot
        ``True``: first read the rows of that version. ``False``: read later versions only.
    columns
        Columns to read; by default all of the newest version.
    filters
        Only rows for which all of ``[("day", ">=", "2024-05-01"), ...]`` hold, or all of one list
        of a list of such lists. Operators: ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``,
        ``not in``. Files that cannot have such rows are not read.
    include
        Further columns, any of ``"version"`` and ``"timestamp"`` of the commit (in rows of the
        snapshot: the snapshot's version, and the time of the file); a mapping renames them.
    keys
        Columns that identify a row of the table, for sinks of its changes.
    on_change
        Action for a version that updates or deletes rows, with ``changes=False``: ``"refuse"``: the
        query fails; ``"skip"``: leave the version out, with the rows that it adds.
    whole_versions
        ``True``: an epoch has all rows of a version or none, even if they are more than the limits
        (the snapshot may be divided); ``False``: an epoch may end within a version.
    max_rows_per_epoch, max_files_per_epoch
        Maximum rows and files that one epoch reads; by default all that are available. Deleted rows
        and those that `filters` leave out count.
    storage_options
        Credentials and settings of the object store, as deltalake takes them.

    Raises
    ------
    SourceError
        If deltalake is not installed, or an option is wrong. At the start or in an epoch: if there
        is no table; if it asks its readers for a feature that the source does not know; if a later
        version drops, renames or retypes a column that is read; if versions or files that were not
        read yet have been removed.

    Notes
    -----
    Partition values that are timestamps without a zone are in UTC; binary ones are refused. In each
    version deleted rows come first.

    Examples
    --------
    >>> gw.sources.delta("s3://bucket/orders", changes=True, keys="id")
    <changes of the Delta table s3://bucket/orders>
    """
    options = dict(locals())  # the arguments
    with needs_package("The Delta source", "deltalake", "delta", SourceError):
        from godwit.connect.delta.source import DeltaSource  # noqa: PLC0415 - deltalake is optional
    check_location(path, SourceError)
    options["path"] = spelled_location(os.fspath(path), error=SourceError, schemes=SCHEMES)
    options["keys"] = (keys,) if isinstance(keys, str) else tuple(keys)
    return DeltaSource(**options)
