"""``gw.sinks.data_source``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.adopt.data_source.kinds import checked_kind
from godwit.model.errors import SinkError
from godwit.model.frames import user_call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.adopt.data_source.sink import DataSourceSink


@user_call
def data_source(
    kind: type[Any],
    *,
    options: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> DataSourceSink:
    """Write each epoch by a PySpark Python data source; at least once.

    As ``writeStream.format(...)`` does: ``write`` gets the rows of an epoch (``Row`` objects, or
    record batches if the writer is a ``DataSourceStreamArrowWriter``), on the driver, and
    ``commit`` its message and the number of the epoch; ``abort`` if one of them fails.

    **At least once**: after a crash the last epoch is written again with the same number. The
    result is exactly-once if the writer's ``commit`` leaves out a number that it has committed.

    Parameters
    ----------
    kind
        The class that is derived from ``pyspark.sql.datasource.DataSource``; it need not be
        registered with Spark.
    options
        Options of the data source, as ``.option(...)`` takes them.
    overwrite
        Passed to ``streamWriter``: true for output that replaces earlier output.

    Raises
    ------
    SinkError
        If `kind` is not a data source, has no writer for streams, or fails.

    Examples
    --------
    >>> from pyspark.sql.datasource import DataSource
    >>> class Printer(DataSource):
    ...     pass
    >>> gw.sinks.data_source(Printer)
    gw.sinks.data_source(Printer)
    """
    from godwit.adopt.data_source.sink import DataSourceSink  # noqa: PLC0415  loads PySpark

    return DataSourceSink(checked_kind(kind, SinkError), dict(options or {}), overwrite=overwrite)
