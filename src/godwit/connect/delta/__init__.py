"""Delta Lake: ``gw.sinks.delta``, and the last epoch of a table for checks without the flow."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from godwit.connect.delta.read import SCHEMES
from godwit.connect.options import check_columns, check_path
from godwit.model.errors import SinkError
from godwit.model.frames import user_call
from godwit.model.locations import spelled_location
from godwit.model.naming import needs_package
from godwit.sinks.sink import LANE_BYTES, MAX_PARTITIONS, check_maintenance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.connect.delta.sink import DeltaSink
    from godwit.sinks.sink import Maintenance, Sink


@user_call
def delta(
    path: str | os.PathLike[str],
    *,
    mode: Literal["append", "upsert", "changes", "history"] = "append",
    keys: str | Sequence[str] | None = None,
    order_by: str | None = None,
    rename: Mapping[str, str] | None = None,
    partition_by: str | Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    max_partitions: int = MAX_PARTITIONS,
    lane_bytes: int = LANE_BYTES,
    rejects: Sink | None = None,
    maintain: Maintenance | None = None,
) -> DeltaSink:
    """Write each epoch to a Delta Lake table in one commit; exactly-once.

    **Exactly-once**: each epoch is one version of the table, with the epoch's number in it.
    Several queries may write to one table. With ``output="complete"`` each epoch overwrites the
    table's rows; otherwise epochs without rows are not written.

    Without `maintain` the sink neither compacts the table nor removes old files: run ``OPTIMIZE``
    and ``VACUUM`` from any engine.

    Parameters
    ----------
    path
        Path or URI of the table; it is created if absent.
    mode
        ``"append"`` adds rows; ``"upsert"`` replaces the row with the same `keys`, or adds it. Of
        changes of a table it also deletes rows. ``"changes"`` adds every change of a table, with
        its column ``change``. ``"history"`` keeps all versions of a row (slowly changing dimension,
        type 2): each is valid from ``valid_from`` until ``valid_to``, which is null while it is
        ``current``. Late versions are put between the others. Only one query may write a history.
    keys
        Columns that identify a row in ``"upsert"``; by default those that identify a row of the
        result: the key columns, and the window. Two nulls are equal.
    order_by
        Column with the version of a row: an integer, a decimal, a date or a time. With ``"upsert"``
        a row is written unless the table has a newer one of its key. So deleted rows stay, with
        nulls and true in a column ``deleted``. In a history it is the column ``valid_from``.
    rename
        Names of the columns that the sink adds, as in ``{"deleted": "is_deleted"}``.
    partition_by
        Partition columns of the table if the sink creates it.
    storage_options
        Credentials and settings of the object store, as deltalake takes them.
    max_partitions
        Maximum number of partitions that one lane (parallel task) writes in an epoch; an epoch with
        more fails.
    lane_bytes
        A lane with at least this many bytes of output writes files of its own, unless many
        partitions would make them small; smaller outputs are written together by the driver, so
        that there are fewer small files.
    rejects
        Sink of the rows that the table cannot take, with the text columns ``sink``, ``reason``,
        ``key`` and ``row`` (the last two as JSON). ``None``: such a row fails its epoch.
    maintain
        Policy by which the query runs ``OPTIMIZE`` and ``VACUUM`` beside its epochs.

    Raises
    ------
    SinkError
        If deltalake is not installed, or an option is wrong.

    Notes
    -----
    ``partition_by=`` names the partition columns of a new table. Partition values are stored as
    text:

    - text, integers, dates, booleans, floats, timestamps, decimals without a scale: written
    - decimals with a scale, binary, nested types: the table is refused: not all of their values can
      be read back
    - empty text, and the text ``__HIVE_DEFAULT_PARTITION__``: the row is rejected: readers would
      take the value for null
    - a value whose directory ``column=value``, in the encoding of URLs, has more than 255 bytes;
      also a float such as 1e300: the row is rejected
    - all columns of the rows, or a column twice; a name with a colon, a control character, or white
      space at an end, or of more than 228 bytes: the table is refused

    deltalake 1.6 cannot compact a partition whose text has ``~``. Timestamps with a time zone are
    stored in UTC without a zone: read such tables in Spark with ``spark.sql.session.timeZone`` set
    to UTC.

    A path is a local path, or a URI such as ``s3://``, ``gs://``, ``abfss://``. deltalake cannot
    open local paths with ``%`` and two hexadecimal digits, with ``[``, ``]``, ``^``, ``|`` or a
    backslash, or with control characters: they are refused.

    Examples
    --------
    >>> gw.sinks.delta("s3://bucket/by_plane", mode="upsert")
    gw.sinks.delta('s3://bucket/by_plane', mode='upsert')
    """
    options = dict(locals())  # the arguments
    with needs_package("The Delta sink", "deltalake", "delta", SinkError):
        from godwit.connect.delta.sink import DeltaSink  # noqa: PLC0415 - deltalake is optional
    check_path("Delta", path)
    options["path"] = spelled_location(os.fspath(path), error=SinkError, schemes=SCHEMES)
    check_columns("Delta", keys=keys, partition_by=partition_by)
    check_maintenance("Delta", maintain)
    return DeltaSink(**options)


def last_point(target: str, query_id: str, writer: str) -> HistoryPoint | None:
    """Return the last epoch that a query's writer delivered to a table on this machine, if any."""
    from deltalake import DeltaTable  # noqa: PLC0415 - an extra

    from godwit.connect.delta.sink import last_epoch_of  # noqa: PLC0415

    recorded = last_epoch_of(DeltaTable(target), query_id, writer)
    return None if recorded is None or recorded.point.epoch < 0 else recorded.point
