"""``gw.sources.data_source``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.adopt.data_source.kinds import checked_kind
from godwit.model.errors import SourceError
from godwit.model.frames import user_call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.adopt.data_source.source import DataSourceSource
    from godwit.columns.types import SchemaLike


@user_call
def data_source(
    kind: type[Any],
    *,
    options: Mapping[str, str] | None = None,
    schema: SchemaLike | None = None,
) -> DataSourceSource:
    """Read a PySpark Python data source as a stream.

    As ``spark.readStream.format(...)`` does, but without a micro-batch engine: a
    ``DataSourceStreamReader`` is asked for offsets and partitions on the driver, and reads each
    partition in a lane. A ``SimpleDataSourceStreamReader`` reads on the driver.

    **Exactly-once** if the reader gives the same rows for the same offsets, as Spark asks for. Its
    ``commit`` is called after the commit of an epoch.

    Parameters
    ----------
    kind
        The class that is derived from ``pyspark.sql.datasource.DataSource``; it need not be
        registered with Spark.
    options
        Options of the data source, as ``.option(...)`` takes them. Their values are text. Values
        that may be secrets are not shown in errors and plans.
    schema
        Columns of the rows, if the data source asks for them; by default those that it names.

    Raises
    ------
    SourceError
        If `kind` is not a data source, has no reader for streams, or fails.

    Examples
    --------
    >>> from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
    >>> class Numbers(SimpleDataSourceStreamReader):
    ...     def initialOffset(self):
    ...         return {"next": 0}
    ...     def read(self, start):
    ...         end = 3
    ...         return iter([(n,) for n in range(start["next"], end)]), {"next": end}
    ...     def readBetweenOffsets(self, start, end):
    ...         return iter([(n,) for n in range(start["next"], end["next"])])
    >>> class NumberSource(DataSource):
    ...     def schema(self):
    ...         return "n int"
    ...     def simpleStreamReader(self, schema):
    ...         return Numbers()
    >>> flow = gw.Flow("numbers")
    >>> numbers = flow.source("numbers", gw.sources.data_source(NumberSource))
    >>> flow.sink("total", numbers.key_by("n").compute(times=gw.count()), gw.sinks.noop())
    >>> gw.testing.run(flow).rows("total").num_rows
    3
    """
    from godwit.adopt.data_source.source import DataSourceSource  # noqa: PLC0415  loads PySpark

    return DataSourceSource(checked_kind(kind, SourceError), dict(options or {}), schema)
