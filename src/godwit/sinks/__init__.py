"""Sinks of results: ``gw.sinks.parquet(...)``, ``gw.sinks.postgres(...)`` and the others.

Each function makes a sink for ``flow.sink(name, stream, sink)``.  Nothing is touched until the
query starts; then every sink checks its target before the first epoch.

============  ======================================  =========================================
sink          an epoch delivered twice                needs
============  ======================================  =========================================
`parquet`     is there once                           any file system of ``pyarrow.fs``
`postgres`    is there once                           ``pip install 'godwit-streams[postgres]'``
`delta`       is there once                           ``pip install 'godwit-streams[delta]'``
`kafka`       is there once                           ``pip install 'godwit-streams[kafka]'``
`foreach`     reaches your function twice             a function that knows epochs
`memory`      is there once, until the process ends   room on the driver
`console`     may be printed twice                    ``pip install 'godwit-streams[cli]'``
`noop`        is nowhere                              nothing
============  ======================================  =========================================

A row that a target cannot take refuses its epoch before it is committed, or goes to the sink given
as ``rejects=``.  The contract of all sinks is in `godwit.sinks.sink`, the first file to read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal

from godwit.api.names import SINKS
from godwit.model.errors import SinkError
from godwit.model.frames import user_call
from godwit.model.naming import no_such_name
from godwit.sinks.parquet_directory import latest_epoch
from godwit.sinks.parquet_files import LANE_BYTES, MAX_PARTITIONS
from godwit.sinks.parquet_sink import ParquetSink
from godwit.sinks.simple_sinks import ConsoleSink, ForeachSink, MemorySink, NoopSink
from godwit.sinks.sink import EpochOutput, Sink, SinkContext, Views

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow.fs as pafs
    from pyspark.sql import DataFrame

    from godwit.model.durations import DurationOrSeconds
    from godwit.sinks.delta_sink import DeltaSink
    from godwit.sinks.kafka_sink import KafkaSink
    from godwit.sinks.postgres_sink import PostgresSink
    from godwit.sources.message_formats import MessageFormat

__all__ = [
    "EpochOutput",
    "MemorySink",
    "Sink",
    "SinkContext",
    "Views",
    "console",
    "delta",
    "foreach",
    "kafka",
    "latest_epoch",
    "memory",
    "noop",
    "parquet",
    "postgres",
]

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Say what to use in place of a sink that there is not."""
        calls = [known for known in __all__ if known.islower()]
        raise no_such_name(__name__, name, calls, SINKS)


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

    **Exactly-once**: an epoch delivered twice is written once. On local disks and HDFS an epoch
    appears in one step, and on local disks it survives a loss of power. On object stores its files
    appear one by one, and a reader that must not see half an epoch waits for its ``_SUCCESS``. One
    query writes to one directory.

    An epoch without rows leaves no directory, save in complete mode, where it means that the
    result is empty.

    Parameters
    ----------
    path
        A local path or any URI that ``pyarrow.fs`` opens (``s3://``, ``gs://``, ``hdfs://``, ...).
    partition_by
        Columns to make directories of within an epoch: strings, integers, dates or booleans.
        As in Spark, an empty string is read back as null.
    compression
        Codec of the files.
    keep
        In complete mode, the number of newest epochs to keep; ``None`` keeps all.
    filesystem
        An open file system that `path` is a plain path of, instead of one found by URI.
    max_partitions
        The most partition directories that one lane may fill in an epoch; more refuse it.
    lane_bytes
        Lanes write files of an epoch themselves if they have this many bytes of rows or more; the
        driver writes what the others have, into as few files as it can.
    rejects
        Sink of the rows that Parquet or a directory's name cannot take (columns as in
        `godwit.plan.staging.REJECTED`); ``None``: such a row refuses its epoch.

    Raises
    ------
    SinkError
        If an option has a value that is never right.
    """
    _check_path("Parquet", path)
    _check_columns("Parquet", partition_by=partition_by)
    return ParquetSink(
        path,
        partition_by=partition_by,
        compression=compression,
        keep=keep,
        filesystem=filesystem,
        max_partitions=max_partitions,
        lane_bytes=lane_bytes,
        rejects=rejects,
    )


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

    **Exactly-once**: readers see all rows of an epoch or none, and each epoch's rows once. The
    table ``godwit_epochs``, beside the target, keeps the last epoch of each query and sink. Several
    queries may append to one table.

    Where the operator is complete, each epoch replaces all rows of the table in the same
    transaction; such a table belongs to its sink alone.

    Parameters
    ----------
    dsn
        Connection string or URI, or a mapping of psycopg's connection parameters.
    table
        Name of the table, with its schema in front (``public.by_plane``) or without.
    mode
        ``"append"`` adds rows; ``"upsert"`` replaces the row with the same keys.
    keys
        Columns that identify a row in ``"upsert"``; the operator's key columns by default. Keys
        may be null: a null is a key like any other (PostgreSQL 15 or newer).
    create
        Whether to create the table if it is absent.
    epoch_column
        Column that gets the number of the epoch, so that the table can be rolled back; only where
        rows are appended.
    rejects
        Sink of the rows that the table cannot take (columns as in
        `godwit.plan.staging.REJECTED`); ``None``: such a row refuses its epoch, or stops its
        delivery if only the server can tell.

    Raises
    ------
    SinkError
        If psycopg is not installed, or an option is wrong.
    """
    try:
        from godwit.sinks.postgres_sink import PostgresSink  # noqa: PLC0415 - psycopg is optional
    except ImportError as error:
        raise _missing("PostgreSQL", "psycopg", "postgres", error) from error
    if not isinstance(dsn, str | Mapping):
        raise _wrong_kind("PostgreSQL", "connection", dsn, '"host=... dbname=..." or a mapping')
    if not isinstance(table, str):
        raise _wrong_kind("PostgreSQL", "table", table, '"table" or "schema.table"')
    _check_columns("PostgreSQL", keys=keys)
    return PostgresSink(
        dsn,
        table,
        mode=mode,
        keys=keys,
        create=create,
        epoch_column=epoch_column,
        rejects=rejects,
    )


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
    Several queries may write to one table. Where the operator is complete, each epoch overwrites
    the table's rows. Epochs without rows are not written, save in complete mode.

    Compaction and removal of old files are left to you: ``OPTIMIZE`` and
    ``VACUUM``, by any engine.

    Parameters
    ----------
    path
        Path or URI of the table; it is created if absent.
    mode
        ``"append"`` adds rows; ``"upsert"`` merges by keys: replaces the row with the same keys.
    keys
        Columns that identify a row in ``"upsert"``; the operator's key columns by default. A null
        is a key like any other.
    partition_by
        Partition columns of a table that is created.
    storage_options
        Credentials and settings of the object store.
    max_partitions
        The most partitions that one lane may write in an epoch; more refuse it.
    lane_bytes
        Lanes write files of an epoch themselves if they have this many bytes of rows or more; the
        driver writes what the others have, into as few files as it can.
    rejects
        Sink of the rows that the table cannot take (columns as in
        `godwit.plan.staging.REJECTED`); ``None``: such a row refuses its epoch.

    Raises
    ------
    SinkError
        If deltalake is not installed, or an option is wrong.
    """
    try:
        from godwit.sinks.delta_sink import DeltaSink  # noqa: PLC0415 - deltalake is optional
    except ImportError as error:
        raise _missing("Delta", "deltalake", "delta", error) from error
    _check_path("Delta", path)
    _check_columns("Delta", keys=keys, partition_by=partition_by)
    return DeltaSink(
        path,
        mode=mode,
        keys=keys,
        partition_by=partition_by,
        storage_options=storage_options,
        max_partitions=max_partitions,
        lane_bytes=lane_bytes,
        rejects=rejects,
    )


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
    transaction_timeout: DurationOrSeconds = "1 minute",
    timeout: DurationOrSeconds = "30 seconds",
    config: Mapping[str, Any] | None = None,
    rejects: Sink | None = None,
) -> KafkaSink:
    """Write each epoch to a topic of Kafka in one transaction; exactly-once.

    **Exactly-once** for readers of committed messages (``isolation.level=read_committed``): they
    see all rows of an epoch or none, and each epoch's rows once. The epoch's number is committed in
    the same transaction, as an offset of the group ``godwit-<query>-<sink>``. A query that rests
    for longer than the broker keeps offsets (``offsets.retention.minutes``, a week by default) may
    write its last epoch again. Where the operator is complete, every epoch writes the whole result.

    Parameters
    ----------
    servers
        Where the cluster is found: ``"host:port"``, or a list of them.
    topic
        The topic. It must be there, and keeps the sink's epochs even if rows go elsewhere.
    value
        Format of the values: ``"json"``, ``"text"`` and ``"bytes"`` (of the rows' only column), or
        one of ``gw.formats``. Values have all columns but `headers`, `topic_column` and
        `partition_column`.
    key
        Column of the key, as text or bytes; several make a JSON object. ``None``: no keys.
    key_format
        Another format of the key's columns.
    headers
        Column of headers: a map of text to text or bytes.
    topic_column
        Column of the topic that a row goes to; null is `topic`.
    partition_column
        Column of the partition that a row goes to; null leaves it to the partitioner.
    partitioner
        How keys choose partitions, by librdkafka's names; the default is that of Java's clients.
    exactly_once
        ``False``: **at least once**, without transactions: after a crash the last epoch may be
        written twice, and readers see an epoch's rows as they come.
    transaction_timeout
        After which time the broker ends a transaction that is not committed.
    timeout
        How long the cluster may not answer before that is an error.
    config
        More settings of librdkafka, as in ``{"compression.type": "zstd"}``. Passwords in it are
        never shown.
    rejects
        Sink of the rows that cannot be messages or are larger than the topic takes (columns as in
        `godwit.plan.staging.REJECTED`); ``None``: such a row refuses its epoch.

    Raises
    ------
    SinkError
        If confluent-kafka is not installed.
    InvalidFlowError
        If an option is wrong.
    """
    try:
        from godwit.sinks.kafka_sink import KafkaSink  # noqa: PLC0415 - confluent-kafka is optional
    except ImportError as error:
        raise _missing("Kafka", "confluent-kafka", "kafka", error) from error
    _check_columns("Kafka", key=key)
    return KafkaSink(
        servers,
        topic,
        value=value,
        key=key,
        key_format=key_format,
        headers=headers,
        topic_column=topic_column,
        partition_column=partition_column,
        partitioner=partitioner,
        exactly_once=exactly_once,
        transaction_timeout=transaction_timeout,
        timeout=timeout,
        config=config,
        rejects=rejects,
    )


@user_call
def foreach(fn: Callable[[DataFrame, int], object]) -> ForeachSink:
    """Call ``fn(rows, epoch)`` with every committed epoch; at least once.

    **At least once**: after a crash the last epoch may come again, with the very same rows. A
    function that writes by epoch (overwrites ``.../epoch=7``, or records the epoch in the
    transaction that writes the rows) makes that exactly once. If the function raises, the query
    stops; the epoch stays committed and is delivered again when the query starts again.

    Parameters
    ----------
    fn
        Called with a DataFrame and the number of the epoch; what it returns is ignored.

    Raises
    ------
    SinkError
        If `fn` cannot be called.
    """
    return ForeachSink(fn)


@user_call
def memory(name: str | None = None) -> MemorySink:
    """Keep results on the driver: ``.table()``, ``.epochs``, and view `name` if given.

    **Exactly-once within a run**: an epoch delivered twice is kept once. What was kept is gone
    with the process. It may be read from any thread while the query runs.

    Parameters
    ----------
    name
        Name of a Spark temporary view to keep up to date with `table`; ``None`` for no view.

    Examples
    --------
    >>> results = MemorySink()  # flow.sink("by_plane", by_plane, results); flow.start(...)
    >>> results.epochs
    mappingproxy({})
    """
    return MemorySink(name)


@user_call
def console(limit: int = 20, *, file: IO[str] | None = None) -> ConsoleSink:
    """Print the first `limit` rows of every epoch.

    **At least once**: within one run an epoch is printed once; after a restart the last epoch may
    be printed again.

    Parameters
    ----------
    limit
        Rows to print of an epoch, at most.
    file
        Where to print; standard output by default.

    Raises
    ------
    SinkError
        If rich is not installed, or `limit` is negative.
    """
    try:
        import rich  # noqa: F401, PLC0415 - rich is optional
    except ImportError as error:
        raise _missing("console", "rich", "cli", error) from error
    return ConsoleSink(limit, file=file)


@user_call
def noop() -> NoopSink:
    """Throw results away."""
    return NoopSink()


def _missing(sink: str, package: str, extra: str, error: ImportError) -> SinkError:
    """Return the error that a sink's package is not installed."""
    return SinkError(
        f"The {sink} sink needs {package}, which cannot be imported: {error}.",
        remedy=f"pip install 'godwit-streams[{extra}]'",
        package=package,
    )


def _check_path(sink: str, path: object) -> None:
    """Refuse a path that is no text or empty."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise _wrong_kind(sink, "path", path, 'a directory, as in "out/by_plane", or a URI')
    if not os.fspath(path):
        raise SinkError(
            f"The {sink} sink was given an empty path.",
            remedy='Give a directory, as in "out/by_plane", or a URI.',
        )


def _check_columns(sink: str, **options: object) -> None:
    """Refuse options that should name columns and do not."""
    for option, columns in options.items():
        is_named = isinstance(columns, Sequence) and all(isinstance(c, str) for c in columns)
        if columns is not None and not is_named:
            raise _wrong_kind(sink, option, columns, "the name of a column, or a list of names")


def _wrong_kind(sink: str, what: str, value: object, wanted: str) -> SinkError:
    """Return the error that an argument has a wrong type."""
    article = "a " if what in ("path", "connection", "table") else ""
    return SinkError(
        f"The {sink} sink was given {article}{what} of type {type(value).__name__}.",
        remedy=f"Give {wanted}.",
    )
