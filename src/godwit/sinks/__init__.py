"""Sinks of results: ``gw.sinks.parquet(...)``, ``gw.sinks.postgres(...)`` and the others.

Each function returns a sink for ``flow.sink(name, stream, sink)``. The target is not accessed until
the query starts; then every sink checks its target before the first epoch.

===============  ==============================  ==========================================
sink             delivery                        needs
===============  ==============================  ==========================================
`parquet`        exactly once                    any file system of ``pyarrow.fs``
`postgres`       exactly once                    ``pip install 'godwit-streams[postgres]'``
`sql`            exactly once                    ``pip install 'godwit-streams[mariadb]'``
`redis`          exactly once                    ``pip install 'godwit-streams[redis]'``
`delta`          exactly once                    ``pip install 'godwit-streams[delta]'``
`iceberg`        exactly once                    ``pip install 'godwit-streams[iceberg]'``
`kafka`          exactly once                    ``pip install 'godwit-streams[kafka]'``
`data_source`    at least once                   a PySpark data source in Python
`foreach`        at least once                   a function of yours
`foreach_table`  at least once                   a function of yours
`memory`         exactly once, in one process    memory on the driver
`console`        at least once                   ``pip install 'godwit-streams[cli]'``
`noop`           none: rows are discarded        nothing
===============  ==============================  ==========================================

A row that a target cannot take fails its epoch before the commit, or goes to the sink that
``rejects=`` names. `delta`, `iceberg`, `kafka`, `postgres`, `redis` and `sql` are connectors: entry
points of the group ``godwit.sinks``, to which other packages may add. To write a sink of your own,
see `gw.sinks.Sink`.
"""

from __future__ import annotations

from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Literal

from godwit.api.names import SINKS
from godwit.model import plugins
from godwit.model.errors import SinkError
from godwit.model.frames import user_call
from godwit.model.naming import needs_package
from godwit.sinks.maintenance import Maintenance
from godwit.sinks.options import check_columns, check_path
from godwit.sinks.simple_sinks import (
    ConsoleSink,
    ForeachSink,
    ForeachTableSink,
    MemorySink,
    NoopSink,
)
from godwit.sinks.sink import (
    LANE_BYTES,
    LANE_FILES,
    MAX_PARTITIONS,
    EpochOutput,
    Sink,
    SinkContext,
    Views,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    import pyarrow.fs as pafs
    from pyspark.sql import DataFrame

    from godwit.adopt.data_source.write import data_source as data_source
    from godwit.connect.delta import delta as delta
    from godwit.connect.iceberg import iceberg as iceberg
    from godwit.connect.kafka.write import kafka as kafka
    from godwit.connect.postgres import postgres as postgres
    from godwit.connect.redis import redis as redis
    from godwit.connect.sql import sql as sql
    from godwit.sinks.parquet_directory import delivered_files, latest_epoch
    from godwit.sinks.parquet_sink import ParquetSink
    from godwit.time.durations import Duration

__all__ = [
    "EpochOutput",
    "Maintenance",
    "MemorySink",
    "Sink",
    "SinkContext",
    "Views",
    "console",
    "delivered_files",
    "foreach",
    "foreach_table",
    "latest_epoch",
    "memory",
    "noop",
    "parquet",
]

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Return a sink of a connector or of another package; suggest one for an unknown name."""
        if name in {"delivered_files", "latest_epoch"}:
            return getattr(import_module("godwit.sinks.parquet_directory"), name)
        return plugins.member("sinks", __name__, name, __all__, SINKS)


def __dir__() -> list[str]:
    return sorted({*__all__, *plugins.names("sinks")})


@user_call
def parquet(
    path: str | os.PathLike[str],
    *,
    mode: Literal["append", "changes"] = "append",
    partition_by: str | Sequence[str] = (),
    compression: str = "zstd",
    keep: int | None = None,
    filesystem: pafs.FileSystem | None = None,
    max_partitions: int = MAX_PARTITIONS,
    lane_bytes: int = LANE_BYTES,
    lane_files: int = LANE_FILES,
    manifest: Duration | None = None,
    rejects: Sink | None = None,
) -> ParquetSink:
    """Write each epoch to Parquet files under ``<path>/epoch=<n>``; exactly-once.

    **Exactly-once**: an epoch delivered twice is written once. On local disks and HDFS an epoch's
    directory appears atomically, and on local disks it survives a power failure. On object stores
    its files appear one by one; a reader that must not see half an epoch waits for its ``_SUCCESS``
    file. Each directory is for one query.

    An epoch without rows writes no directory. With ``output="complete"`` it writes an empty one,
    which is an empty result.

    Parameters
    ----------
    path
        Directory: a local path, or any URI that ``pyarrow.fs`` opens (``s3://``, ``gs://``,
        ``hdfs://``, ...).
    mode
        ``"append"`` writes rows; ``"changes"`` writes every change of a table, with its column
        ``change``, and takes no other rows.
    partition_by
        Columns to partition an epoch's files by, as in Spark: strings, integers, dates or booleans.
        An empty string is read back as null.
    compression
        Compression codec of the files, such as ``"zstd"`` or ``"snappy"``.
    keep
        With ``output="complete"``, where each epoch is the whole result: number of newest epochs to
        keep; older ones are deleted. ``None``: all are kept.
    filesystem
        Arrow file system that `path` is on; by default the one that `path` names as a URI, else the
        local one.
    max_partitions
        Maximum number of partition directories that one lane (parallel task) writes in an epoch;
        an epoch with more fails.
    lane_bytes
        A lane with at least this many bytes of output writes files of its own; smaller outputs are
        written together by the driver, so that there are fewer small files.
    lane_files
        Number of partitions up to which a lane writes files of a sixteenth of `lane_bytes` on
        average; with more, they must have `lane_bytes` on average, or the driver writes one file
        for the rows of all such lanes in a partition.
    manifest
        Time from one writing of ``<path>/_manifest/files.parquet`` to the next, such as
        ``"1 minute"``: a list of the files of delivered epochs, for readers without Godwit. It is
        written beside the epochs, and at the end of the query. ``None``: there is none.
    rejects
        Sink of the rows that Parquet or a directory's name cannot take, with the text columns
        ``sink``, ``reason``, ``key`` and ``row`` (the last two as JSON). ``None``: such a row fails
        its epoch.

    Raises
    ------
    SinkError
        If an option has a wrong type or value.

    Notes
    -----
    - *The manifest* has all files of the epochs up to some epoch, and only delivered
      ones. It is replaced in one step (on HDFS there is none for a moment), and when the query
      ends.
    - *It costs* one listing of the epochs' directories, two of each new epoch, and a footer
      of each new file, on a thread of the driver.
    - ``_manifest/symlink/files.txt`` is for engines that know symlink tables; it has no
      ``epoch``, and is left out with ``partition_by=`` and ``filesystem=``. After a move of the
      directory it names the former place until a query has run on the new one.
    - **Changes of columns.** Columns may be added and removed between runs: read with
      ``mergeSchema``. A column with another type needs another name, or the sink another path, as
      does a new checkpoint.
    - **Partition values.** Spark infers their types, unless you give a schema or set
      ``spark.sql.sources.partitionColumnTypeInference.enabled`` to false. An empty string is read
      as null. On file systems that ignore case, capitals are written as ``%41`` to ``%5A``.

    Examples
    --------
    >>> flow.sink("stored", by_plane, gw.sinks.parquet("out/by_plane", compression="zstd"))
    """
    options = dict(locals())  # the arguments
    from godwit.sinks.parquet_sink import ParquetSink  # noqa: PLC0415  loads Arrow's file formats

    check_path("Parquet", path)
    check_columns("Parquet", partition_by=partition_by)
    return ParquetSink(**options)


@user_call
def foreach(fn: Callable[[DataFrame, int], object]) -> ForeachSink:
    """Call ``fn(rows, epoch)`` for every committed epoch; at least once.

    **At least once**: after a crash the function may be called again for the last epoch, with the
    same rows. It is exactly-once if the function is idempotent per epoch: it overwrites
    ``.../epoch=7``, or records the epoch in the transaction that writes the rows. If the function
    raises, the query fails; the epoch stays committed and is delivered again after the next start.

    Parameters
    ----------
    fn
        Called on the driver with a Spark DataFrame of the epoch's rows, and the number of the
        epoch; its result is ignored.

    Raises
    ------
    SinkError
        If `fn` is not callable.

    Examples
    --------
    >>> def publish(rows, epoch):
    ...     rows.write.mode("overwrite").json(f"out/epoch={epoch}")
    >>> flow.sink("published", by_plane, gw.sinks.foreach(publish))
    """
    return ForeachSink(fn)


@user_call
def foreach_table(fn: Callable[[pa.Table, int], object]) -> ForeachTableSink:
    """Call ``fn(rows, epoch)`` for every committed epoch, with one Arrow table; at least once.

    **At least once**, as `foreach`, but without Spark: the whole epoch is in the driver's memory.
    Calls are in order of epochs, one at a time. After a crash the function may be called again for
    the last epoch, with the same rows. It is exactly-once if the function writes rows and epoch
    number in one transaction.

    Parameters
    ----------
    fn
        Called on the driver with a ``pyarrow.Table`` and the number of the epoch; its result is
        ignored. If it raises, the query fails, and the epoch is delivered again after the next
        start.

    Raises
    ------
    SinkError
        If `fn` is not callable.

    Examples
    --------
    >>> by_epoch = {}
    >>> sink = gw.sinks.foreach_table(lambda rows, epoch: by_epoch.update({epoch: rows}))
    """
    return ForeachTableSink(fn)


@user_call
def memory(name: str | None = None) -> MemorySink:
    """Keep results in the driver's memory: ``.table()``, ``.epochs``, and view `name` if given.

    **Exactly-once within a run**: an epoch delivered twice is kept once. Rows are lost when the
    process ends. They may be read from any thread while the query runs.

    Parameters
    ----------
    name
        Name of a Spark temporary view that shows ``.table()`` after every epoch; ``None``: no view.

    Examples
    --------
    >>> results = gw.sinks.memory()  # flow.sink("by_plane", by_plane, results); flow.start(...)
    >>> results.epochs
    mappingproxy({})
    """
    return MemorySink(name)


@user_call
def console(limit: int = 20, *, file: IO[str] | None = None) -> ConsoleSink:
    """Print the first `limit` rows of every epoch as a table; at least once.

    **At least once**: within one run an epoch is printed once; after a restart the last epoch may
    be printed again.

    Parameters
    ----------
    limit
        Maximum number of rows to print of an epoch.
    file
        Open text file to print to; by default standard output.

    Raises
    ------
    SinkError
        If rich is not installed, or `limit` is negative.

    Examples
    --------
    >>> flow.sink("printed", by_plane, gw.sinks.console(limit=5))
    """
    with needs_package("The console sink", "rich", "cli", SinkError):
        import rich  # noqa: F401, PLC0415 - rich is optional
    return ConsoleSink(limit, file=file)


@user_call
def noop() -> NoopSink:
    """Discard all results; for benchmarks and tests.

    Examples
    --------
    >>> flow.sink("measured", by_plane, gw.sinks.noop())
    """
    return NoopSink()
