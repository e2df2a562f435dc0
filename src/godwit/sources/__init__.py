"""Sources of Godwit's own: rows come as Arrow batches, without Spark's micro-batch engine.

Each function returns a source for ``flow.source(name, source)``. The data is not accessed until the
flow is started.

====================  ============================================  =======================
source                rows                                          position
====================  ============================================  =======================
`parquet`, `arrow`    of files that appear in a directory           which files were read
`csv`, `json`         of text files that appear in a directory      which files were read
`data_source`         of a PySpark data source, written in Python   its offsets
`delta`               of a Delta table, or its changes              version and file
`iceberg`             of an Iceberg table, or its changes           snapshot and file
`kafka`               messages of topics                            offsets of partitions
`mariadb`             rows and changes of tables                    GTIDs
`postgres`            rows and changes of tables                    place in the server's log
`memory`              that the program adds, for tests              number of rows
`rate`                generated: numbers and times                  number of rows
`sequence`            of one source, then of another                that of one source
====================  ============================================  =======================

Connectors and other packages add sources by entry points of the group ``godwit.sources``, as
`kafka`, `mariadb`, `postgres` and `nexmark` (of `godwit-lab`). A position says how far an epoch has
read. To write a source of your own, derive from `gw.sources.Source`, and check it by
`gw.testing.check_source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model import plugins
from godwit.model.frames import user_call
from godwit.sources.simple_sources import MemorySource, RateSource
from godwit.sources.source import Lag, Position, Source, Split, Unreadable

if TYPE_CHECKING:
    import datetime as dt
    from typing import Any

    from godwit.adopt.data_source.read import data_source as data_source
    from godwit.columns.types import SchemaLike
    from godwit.connect.delta.read import delta as delta
    from godwit.connect.files.read import arrow as arrow
    from godwit.connect.files.read import csv as csv
    from godwit.connect.files.read import json as json
    from godwit.connect.files.read import parquet as parquet
    from godwit.connect.iceberg.read import iceberg as iceberg
    from godwit.connect.kafka.read import kafka as kafka
    from godwit.connect.mariadb.read import mariadb as mariadb
    from godwit.connect.postgres.read import postgres as postgres
    from godwit.connect.sequence import sequence as sequence

__all__ = [
    "Lag",
    "MemorySource",
    "Position",
    "Source",
    "Split",
    "Unreadable",
    "arrow",
    "csv",
    "json",
    "memory",
    "parquet",
    "rate",
    "sequence",
]

_OWN_MODULES = {
    **dict.fromkeys(("arrow", "csv", "json", "parquet"), "godwit.connect.files.read"),
    "sequence": "godwit.connect.sequence",
}
_SPARK = 'a DataFrame, as in flow.source("name", spark.readStream.format("{name}")...)'
_MEANT = {
    **dict.fromkeys(("avro", "jdbc", "kinesis", "orc", "pubsub", "socket", "table"), _SPARK),
    **dict.fromkeys(("file", "text", "directory"), "gw.sources.parquet, arrow, csv or json"),
    **dict.fromkeys(("ndjson", "jsonl"), "gw.sources.json"),
    **dict.fromkeys(("generate", "numbers", "range"), "gw.sources.rate"),
    "custom": "a class of yours that derives from gw.sources.Source",
}

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Return a source of a connector or of another package; suggest one for an unknown name."""
        return plugins.member("sources", __name__, name, __all__, _MEANT, own_modules=_OWN_MODULES)


def __dir__() -> list[str]:
    return sorted({*__all__, *plugins.names("sources")})


@user_call
def memory(
    schema: SchemaLike,
    rows: Any = None,
    *,
    name: str = "memory",
    max_rows_per_epoch: int | None = None,
) -> MemorySource:
    """Make a source of rows that the program adds by ``source.add(rows)``; for tests.

    Parameters
    ----------
    schema
        Columns: an Arrow schema, a dict of column name → type, text such as
        ``"symbol string, price double"``, or a PySpark ``StructType``.
    rows
        First rows, as for ``add``: a list of dicts or tuples, an Arrow table or record batch, or a
        pandas DataFrame. A column that a dict lacks is null.
    name
        Name of the source in errors, and its identity in the checkpoint.
    max_rows_per_epoch
        Maximum rows that one epoch reads; by default all that were added.

    Returns
    -------
    MemorySource
        Rows can be added from any thread, before and while a query runs. They are in memory
        only: after a restart of the process, add them again.

    Raises
    ------
    InvalidFlowError
        If the schema or the name is not valid.
    InvalidInputError
        If a row does not fit the columns.
    SourceError
        If `max_rows_per_epoch` is not a positive number.

    Examples
    --------
    >>> source = gw.sources.memory("symbol string, price double", [("A", 9.5)])
    >>> source.add([{"symbol": "B"}])
    >>> source
    <memory source 'memory': 2 rows>
    """
    source = MemorySource(schema, name=name, max_rows_per_epoch=max_rows_per_epoch)
    if rows is not None:
        source.add(rows)
    return source


@user_call
def rate(
    rows_per_second: float = 1.0,
    *,
    num_keys: int | None = None,
    paced: bool = True,
    max_rows_per_epoch: int | None = None,
    num_rows: int | None = None,
    start: dt.datetime | str | None = None,
    seed: int = 0,
) -> Source:
    """Generate numbered rows, at a constant rate, with the columns ``timestamp`` and ``value``.

    ``value`` is 0, 1, 2, ...; with `num_keys` there is a column ``key`` too.

    Parameters
    ----------
    rows_per_second
        Rows per second of event time: row *i* has the ``timestamp`` ``start + i / rows_per_second``
        seconds.
    num_keys
        Adds a column ``key`` (bigint) with pseudo-random numbers of this many different keys;
        ``None``: no such column.
    paced
        ``True``: a row arrives when the clock reaches its timestamp. ``False``: rows arrive as fast
        as they are read, with timestamps ahead of the clock; give `max_rows_per_epoch` or
        `num_rows` too.
    max_rows_per_epoch
        Maximum rows that one epoch reads; by default all that have arrived.
    num_rows
        Number of rows after which the source ends; by default it never does.
    start
        Timestamp of the first row, a datetime or ISO 8601 text; by default the time of the query's
        first start.
    seed
        Seed of the keys. The same seed, start and rate always give the same rows.

    Raises
    ------
    SourceError
        If an option is wrong, or ``paced=False`` has neither `max_rows_per_epoch` nor `num_rows`.

    Examples
    --------
    >>> gw.sources.rate(100.0, num_keys=8).schema.names
    ['timestamp', 'value', 'key']
    """
    return RateSource(
        rows_per_s=rows_per_second,
        num_keys=num_keys,
        paced=paced,
        max_rows_per_epoch=max_rows_per_epoch,
        num_rows=num_rows,
        start=start,
        seed=seed,
    )
