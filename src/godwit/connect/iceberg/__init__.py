"""Apache Iceberg: ``gw.sinks.iceberg``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from godwit.connect.options import check_columns, wrong_option
from godwit.model.errors import SinkError
from godwit.model.frames import user_call
from godwit.model.naming import needs_package
from godwit.sinks.sink import check_maintenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.connect.iceberg.sink import IcebergSink
    from godwit.sinks.sink import Maintenance, Sink


@user_call
def iceberg(
    table: str,
    *,
    catalog: str | Mapping[str, str] = "default",
    mode: Literal["append", "upsert", "changes"] = "append",
    keys: str | Sequence[str] | None = None,
    order_by: str | None = None,
    rename: Mapping[str, str] | None = None,
    rejects: Sink | None = None,
    maintain: Maintenance | None = None,
) -> IcebergSink:
    """Write each epoch to an Apache Iceberg table in one commit; exactly-once.

    **Exactly-once**: the snapshot that adds an epoch's rows has the epoch's number. Several queries
    may write to one table. With ``output="complete"`` each epoch replaces the table's rows;
    otherwise epochs without rows are not written.

    The driver writes the files, by pyiceberg; no Spark extension is needed. Without `maintain` the
    sink neither expires snapshots nor compacts the table: do that from any engine.

    Parameters
    ----------
    table
        Namespace and name (``"analytics.by_plane"``); both are created if absent. An existing table
        keeps its partitioning and its properties.
    catalog
        Name of a catalog in pyiceberg's configuration, or a mapping of its properties, as in
        ``{"type": "rest", "uri": "https://..."}``. Passwords are not shown in errors or plans.
    mode
        ``"append"`` adds rows; ``"upsert"`` replaces the row with the same `keys`, or adds it. Of
        changes of a table it also deletes rows. An upsert rewrites the data files that have a key
        of the epoch. ``"changes"`` adds every change of a table, with its column ``change``.
    keys
        Columns that identify a row in ``"upsert"``; by default those that identify a row of the
        result: the key columns, and the window. Two nulls are equal.
    order_by
        Column with the version of a row. With ``"upsert"`` a row is written unless the table has a
        newer one of its key. So deleted rows stay, with nulls and true in a column ``deleted``.
    rename
        Names of the columns that the sink adds, as in ``{"deleted": "is_deleted"}``.
    rejects
        Sink of the rows that the table cannot take, with the text columns ``sink``, ``reason``,
        ``key`` and ``row`` (the last two as JSON). ``None``: such a row fails its epoch.
    maintain
        Policy by which the query compacts the table and expires its snapshots, beside its epochs.

    Raises
    ------
    SinkError
        If pyiceberg is not installed, or an option is wrong.

    Notes
    -----
    Iceberg has no unsigned integers, half floats and lists of a fixed size: the next wider type is
    used, and a list. Cast durations, and columns without a type, before the sink.

    A table that pyiceberg cannot write is refused before the first epoch: format versions 1 and 3,
    required fields within a struct, list or map, further required columns, fewer columns, other
    types, ORC or Avro as ``write.format.default``, encryption, and codecs that PyArrow cannot
    write. Rows are not sorted by a sort order. Epochs are committed to ``main``; tags and branches
    stay. Appending takes all that follows:

    - an earlier partition spec: a complete result replaces it
    - further optional columns: null in new rows; an upsert is refused
    - positional deletes: an upsert applies them, a complete result removes them
    - equality deletes: an upsert is refused, a complete result removes them
    - ``merge-on-read``: files are replaced (copy on write)
    - data files in ORC or Avro, of other writers: an upsert is refused, a complete result replaces
      them

    Examples
    --------
    >>> catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "warehouse"}
    >>> gw.sinks.iceberg("analytics.by_plane", catalog=catalog, mode="upsert")
    gw.sinks.iceberg('analytics.by_plane', mode='upsert')
    """
    options = dict(locals())  # the arguments
    with needs_package("The Iceberg sink", "pyiceberg", "iceberg", SinkError):
        from godwit.connect.iceberg.sink import IcebergSink  # noqa: PLC0415 - pyiceberg is optional
    if not isinstance(table, str) or not table:
        raise wrong_option("Iceberg", "table", table, '"namespace.table"')
    if not isinstance(catalog, str | Mapping):
        raise wrong_option("Iceberg", "catalog", catalog, "a catalog's name, or its properties")
    check_columns("Iceberg", keys=keys)
    check_maintenance("Iceberg", maintain)
    return IcebergSink(**options)
