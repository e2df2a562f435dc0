"""Sinks of results: ``gw.sinks.parquet(...)``, ``gw.sinks.postgres(...)`` and the others.

Each function returns a sink for ``flow.sink(name, stream, sink)``. The target is not accessed until
the query starts; then every sink checks its target before the first epoch.

===============  ==============================  ==========================================
sink             delivery                        needs
===============  ==============================  ==========================================
`parquet`        exactly once                    any file system of ``pyarrow.fs``
`postgres`       exactly once                    ``pip install 'godwit-streams[postgres]'``
`delta`          exactly once                    ``pip install 'godwit-streams[delta]'``
`iceberg`        exactly once                    ``pip install 'godwit-streams[iceberg]'``
`kafka`          exactly once                    ``pip install 'godwit-streams[kafka]'``
`foreach`        at least once                   a function of yours
`foreach_table`  at least once                   a function of yours
`memory`         exactly once, in one process    memory on the driver
`console`        at least once                   ``pip install 'godwit-streams[cli]'``
`noop`           none: rows are discarded        nothing
===============  ==============================  ==========================================

A row that a target cannot take fails its epoch before the commit, or goes to the sink that
``rejects=`` names. To write a sink of your own, see `gw.sinks.Sink`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Literal

from godwit.api.names import SINKS
from godwit.model.errors import SinkError
from godwit.model.frames import user_call
from godwit.model.locations import DELTALAKE, check_location, spelled_location
from godwit.model.naming import needs_package, no_such_name
from godwit.sinks.simple_sinks import (
    ConsoleSink,
    ForeachSink,
    ForeachTableSink,
    MemorySink,
    NoopSink,
)
from godwit.sinks.sink import LANE_BYTES, MAX_PARTITIONS, EpochOutput, Sink, SinkContext, Views

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    import pyarrow.fs as pafs
    from pyspark.sql import DataFrame

    from godwit.connect.delta.sink import DeltaSink
    from godwit.connect.iceberg.sink import IcebergSink
    from godwit.connect.kafka.sink import KafkaSink
    from godwit.connect.postgres.sink import PostgresSink
    from godwit.sinks.parquet_directory import latest_epoch
    from godwit.sinks.parquet_sink import ParquetSink
    from godwit.sources.message_formats import MessageFormat
    from godwit.time.durations import Duration

__all__ = [
    "EpochOutput",
    "MemorySink",
    "Sink",
    "SinkContext",
    "Views",
    "console",
    "delta",
    "foreach",
    "foreach_table",
    "iceberg",
    "kafka",
    "latest_epoch",
    "memory",
    "noop",
    "parquet",
    "postgres",
]

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Import what few programs use; else say what to use in place of a sink."""
        if name == "latest_epoch":
            return import_module("godwit.sinks.parquet_directory").latest_epoch
        calls = [known for known in __all__ if known.islower()]
        raise no_such_name(__name__, name, calls, SINKS)


def __dir__() -> list[str]:
    return sorted(__all__)


@user_call
def parquet(
    path: str | os.PathLike[str],
    *,
    partition_by: str | Sequence[str] = (),
    compression: str = "zstd",
    keep: int | None = None,
    filesystem: pafs.FileSystem | None = None,
    max_partitions: int = MAX_PARTITIONS,
    lane_bytes: int = LANE_BYTES,
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
    rejects
        Sink of the rows that Parquet or a directory's name cannot take, with the text columns
        ``sink``, ``reason``, ``key`` and ``row`` (the last two as JSON). ``None``: such a row fails
        its epoch.

    Raises
    ------
    SinkError
        If an option has a wrong type or value.

    Examples
    --------
    >>> flow.sink("stored", by_plane, gw.sinks.parquet("out/by_plane", compression="zstd"))
    """
    options = dict(locals())  # the arguments
    from godwit.sinks.parquet_sink import ParquetSink  # noqa: PLC0415  loads Arrow's file formats

    _check_path("Parquet", path)
    _check_columns("Parquet", partition_by=partition_by)
    return ParquetSink(**options)


@user_call
def postgres(
    dsn: str | Mapping[str, Any],
    table: str,
    *,
    mode: Literal["append", "upsert"] = "append",
    keys: str | Sequence[str] | None = None,
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
        it.
    keys
        Columns that identify a row in ``"upsert"``; by default those that identify a row of the
        result: the key columns, and the window. Two nulls are equal (needs PostgreSQL 15 or newer).
    create
        ``True``: create the table if it is absent. ``False``: the start fails then.
    epoch_column
        Integer column that gets the number of the epoch; with it the table can be rolled back
        (``on_divergence="roll_back"``). Only with ``"append"``.
    rejects
        Sink of the rows that the table cannot take, with the text columns ``sink``, ``reason``,
        ``key`` and ``row`` (the last two as JSON). ``None``: such a row fails its epoch before the
        commit, or stops the query after it if only the server refuses the row.

    Raises
    ------
    SinkError
        If psycopg is not installed, or an option is wrong.

    Examples
    --------
    >>> gw.sinks.postgres("postgresql://host/db", "public.by_plane", mode="upsert")
    gw.sinks.postgres('dbname=db host=host', 'public.by_plane', mode='upsert')
    """
    options = dict(locals())  # the arguments
    with needs_package("The PostgreSQL sink", "psycopg", "postgres", SinkError):
        from godwit.connect.postgres.sink import PostgresSink  # noqa: PLC0415 - psycopg is optional
    if not isinstance(dsn, str | Mapping):
        raise _wrong_kind("PostgreSQL", "connection", dsn, '"host=... dbname=..." or a mapping')
    if not isinstance(table, str):
        raise _wrong_kind("PostgreSQL", "table", table, '"table" or "schema.table"')
    _check_columns("PostgreSQL", keys=keys)
    return PostgresSink(**options)


@user_call
def delta(
    path: str | os.PathLike[str],
    *,
    mode: Literal["append", "upsert"] = "append",
    keys: str | Sequence[str] | None = None,
    partition_by: str | Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    max_partitions: int = MAX_PARTITIONS,
    lane_bytes: int = LANE_BYTES,
    rejects: Sink | None = None,
) -> DeltaSink:
    """Write each epoch to a Delta Lake table in one commit; exactly-once.

    **Exactly-once**: each epoch is one version of the table, with the epoch's number in it.
    Several queries may write to one table. With ``output="complete"`` each epoch overwrites the
    table's rows; otherwise epochs without rows are not written.

    The sink neither compacts the table nor removes old files: run ``OPTIMIZE`` and ``VACUUM`` from
    any engine.

    Parameters
    ----------
    path
        Path or URI of the table; it is created if absent.
    mode
        ``"append"`` adds rows; ``"upsert"`` replaces the row with the same `keys`, or adds it.
    keys
        Columns that identify a row in ``"upsert"``; by default those that identify a row of the
        result: the key columns, and the window. Two nulls are equal.
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

    Raises
    ------
    SinkError
        If deltalake is not installed, or an option is wrong.

    Examples
    --------
    >>> gw.sinks.delta("s3://bucket/by_plane", mode="upsert")
    gw.sinks.delta('s3://bucket/by_plane', mode='upsert')
    """
    options = dict(locals())  # the arguments
    with needs_package("The Delta sink", "deltalake", "delta", SinkError):
        from godwit.connect.delta.sink import DeltaSink  # noqa: PLC0415 - deltalake is optional
    _check_path("Delta", path)
    options["path"] = spelled_location(os.fspath(path), error=SinkError, schemes=DELTALAKE)
    _check_columns("Delta", keys=keys, partition_by=partition_by)
    return DeltaSink(**options)


@user_call
def iceberg(
    table: str,
    *,
    catalog: str | Mapping[str, str] = "default",
    mode: Literal["append", "upsert"] = "append",
    keys: str | Sequence[str] | None = None,
    rejects: Sink | None = None,
) -> IcebergSink:
    """Write each epoch to an Apache Iceberg table in one commit; exactly-once.

    **Exactly-once**: the snapshot that adds an epoch's rows has the epoch's number. Several queries
    may write to one table. With ``output="complete"`` each epoch replaces the table's rows;
    otherwise epochs without rows are not written.

    The driver writes the files, by pyiceberg; no Spark extension is needed. The sink neither
    expires snapshots nor compacts the table: do that from any engine.

    Parameters
    ----------
    table
        Namespace and name (``"analytics.by_plane"``); both are created if absent. An existing table
        keeps its partitioning and its properties.
    catalog
        Name of a catalog in pyiceberg's configuration, or a mapping of its properties, as in
        ``{"type": "rest", "uri": "https://..."}``. Passwords are not shown in errors or plans.
    mode
        ``"append"`` adds rows; ``"upsert"`` replaces the row with the same `keys`, or adds it. An
        upsert reads and rewrites all rows of the table between the smallest and the largest key of
        the epoch.
    keys
        Columns that identify a row in ``"upsert"``; by default those that identify a row of the
        result: the key columns, and the window. Two nulls are equal.
    rejects
        Sink of the rows that the table cannot take, with the text columns ``sink``, ``reason``,
        ``key`` and ``row`` (the last two as JSON). ``None``: such a row fails its epoch.

    Raises
    ------
    SinkError
        If pyiceberg is not installed, or an option is wrong.

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
        raise _wrong_kind("Iceberg", "table", table, '"namespace.table"')
    if not isinstance(catalog, str | Mapping):
        raise _wrong_kind("Iceberg", "catalog", catalog, "a catalog's name, or its properties")
    _check_columns("Iceberg", keys=keys)
    return IcebergSink(**options)


@user_call
def kafka(
    servers: str | Sequence[str],
    topic: str,
    *,
    value: Literal["bytes", "text", "json"] | MessageFormat = "json",
    key: str | Sequence[str] | None = None,
    key_format: MessageFormat | None = None,
    headers: str | None = None,
    topic_column: str | None = None,
    partition_column: str | None = None,
    partitioner: str = "murmur2_random",
    exactly_once: bool = True,
    transaction_timeout: Duration = "1 minute",
    timeout: Duration = "30 seconds",
    config: Mapping[str, Any] | None = None,
    rejects: Sink | None = None,
) -> KafkaSink:
    """Write each epoch to a topic of Kafka in one transaction; exactly-once.

    **Exactly-once** for readers of committed messages (``isolation.level=read_committed``): they
    see all rows of an epoch or none, and each epoch's rows once. The epoch's number is committed in
    the same transaction, as an offset of the group ``godwit-<query>-<sink>``. A query that is
    stopped for longer than the broker keeps offsets (``offsets.retention.minutes``, a week by
    default) may write its last epoch again. With ``output="complete"`` every
    epoch writes all of the result.

    Parameters
    ----------
    servers
        Bootstrap servers: ``"host:port"``, or a list of them.
    topic
        Topic to write to, which must exist. Required even if `topic_column` names other topics for
        all rows, since the sink stores the number of its last epoch under this topic.
    value
        Format of the values: ``"json"``, ``"text"`` and ``"bytes"`` (of the rows' only column), or
        one of ``gw.formats``. Values have all columns but `headers`, `topic_column` and
        `partition_column`.
    key
        Column with the message key, as text or bytes; of several columns the key is a JSON object.
        ``None``: messages have no key.
    key_format
        One of ``gw.formats`` for the key's columns, in place of text, bytes or JSON.
    headers
        Column with the message headers: a map of text to text or bytes. ``None``: no headers.
    topic_column
        Column with the name of the topic for each row; a row with null goes to `topic`.
    partition_column
        Column with the partition number for each row; for null the partitioner chooses.
    partitioner
        Partitioner of librdkafka, which chooses partitions by key; the default agrees with Java
        clients.
    exactly_once
        ``False``: **at least once**, without transactions: after a crash the last epoch may be
        written twice, and readers see the rows of an epoch one by one.
    transaction_timeout
        Time after which the broker aborts an open transaction (``transaction.timeout.ms``). It must
        be longer than the delivery of an epoch takes.
    timeout
        Maximum time to wait for an answer of the cluster; then the start, or the delivery and with
        it the query, fails with a `SinkError`.
    config
        Further settings of librdkafka, as in ``{"compression.type": "zstd"}``. Passwords are not
        shown in errors or plans.
    rejects
        Sink of the rows that cannot be encoded as messages or exceed the topic's maximum size, with
        the text columns ``sink``, ``reason``, ``key`` and ``row`` (the last two as JSON). ``None``:
        such a row fails its epoch.

    Raises
    ------
    SinkError
        If confluent-kafka is not installed.
    InvalidFlowError
        If an option is wrong.

    Examples
    --------
    >>> gw.sinks.kafka("broker:9092", "delays", key="plane")
    gw.sinks.kafka('broker:9092', 'delays')
    """
    options = dict(locals())  # the arguments
    with needs_package("The Kafka sink", "confluent-kafka", "kafka", SinkError):
        from godwit.connect.kafka.sink import KafkaSink  # noqa: PLC0415 - confluent-kafka is optional
    _check_columns("Kafka", key=key)
    return KafkaSink(**options)


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


def _check_path(sink: str, path: object) -> None:
    """Raise `SinkError` if a sink's path is empty, or is not a path."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise _wrong_kind(sink, "path", path, 'a directory, as in "out/by_plane", or a URI')
    if not os.fspath(path):
        raise SinkError(
            f"The {sink} sink was given an empty path.",
            remedy='Give a directory, as in "out/by_plane", or a URI.',
        )
    check_location(os.fspath(path), SinkError)


def _check_columns(sink: str, **options: object) -> None:
    """Raise `SinkError` if an option is neither a column's name nor a sequence of names."""
    for option, columns in options.items():
        is_named = isinstance(columns, Sequence) and all(isinstance(c, str) for c in columns)
        if columns is not None and not is_named:
            raise _wrong_kind(sink, option, columns, "the name of a column, or a list of names")


def _wrong_kind(sink: str, what: str, value: object, wanted: str) -> SinkError:
    """Return the error that an argument (`what`) of a sink has a wrong type; `wanted`: examples."""
    article = "a " if what in ("path", "connection", "table") else ""
    return SinkError(
        f"The {sink} sink was given {article}{what} of type {type(value).__name__}.",
        remedy=f"Give {wanted}.",
    )
