"""Sources of Godwit's own: rows come as Arrow batches, without Spark's micro-batch engine.

Each function makes a source for ``flow.source(name, source)``. Nothing is touched until the flow
is started.

====================  ============================================  =======================
source                rows                                          position
====================  ============================================  =======================
`parquet`, `arrow`    files that turn up in a directory             which files were read
`csv`, `json`         the same, of lines of text                    which files were read
`kafka`               messages of topics                            offsets of partitions
`memory`              what a program adds, for tests                a number of rows
`rate`                numbered rows, any number a second            a number of rows
`nexmark`             bids, auctions and persons of the benchmark   a number of rows
====================  ============================================  =======================

The contract of all sources is in `godwit.sources.source`, the first file to read: derive from
`Source` to write your own, and check it by ``gw.testing.check_source``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.columns.types import to_schema
from godwit.model.errors import SourceError
from godwit.model.frames import user_call
from godwit.model.naming import no_such_name
from godwit.sources.file_formats import ArrowFormat, ParquetFormat
from godwit.sources.files import FileSource
from godwit.sources.generated import RateSource
from godwit.sources.memory import MemorySource
from godwit.sources.nexmark import NexmarkKind, NexmarkSource
from godwit.sources.source import Lag, Position, Source, Split, Unreadable
from godwit.sources.text_formats import CsvFormat, JsonFormat

if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    import pyarrow.fs as pafs

    from godwit.columns.types import SchemaLike
    from godwit.model.durations import DurationOrSeconds
    from godwit.sources.kafka_source import KafkaSource, Start
    from godwit.sources.message_formats import MessageFormat

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
    "kafka",
    "memory",
    "nexmark",
    "parquet",
    "rate",
]

_SPARK = 'a DataFrame, as in flow.source("name", spark.readStream.format("{name}")...)'
_MEANT = {
    **dict.fromkeys(
        ("avro", "delta", "iceberg", "jdbc", "kinesis", "orc", "pubsub", "socket", "table"), _SPARK
    ),
    **dict.fromkeys(("file", "text", "directory"), "gw.sources.parquet, arrow, csv or json"),
    **dict.fromkeys(("ndjson", "jsonl"), "gw.sources.json"),
    **dict.fromkeys(("generate", "numbers", "range"), "gw.sources.rate"),
    "custom": "a class of yours that derives from gw.sources.Source",
}

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Say what to use in place of a source that there is not."""
        raise no_such_name(__name__, name, [n for n in __all__ if n.islower()], _MEANT)


@user_call
def parquet(
    path: str | os.PathLike[str],
    *,
    schema: SchemaLike | None = None,
    filesystem: pafs.FileSystem | None = None,
    pattern: str | None = None,
    max_rows_per_epoch: int | None = None,
    max_files_per_epoch: int | None = None,
) -> Source:
    """Parquet files that turn up in a directory, and in those within it.

    Files are read once each, those listed together by modification time and path. A large file is
    read by all lanes, row groups by row groups; only the columns that the flow reads are read.
    Directories named as ``day=2024-05-01`` are columns.

    Parameters
    ----------
    path
        A directory or a file: a local path, or a URI that ``pyarrow.fs`` understands (``s3://``,
        ``gs://``, ``abfs://``, ``hdfs://``).
    schema
        Columns: an Arrow schema, a dict of column name → type, text such as
        ``"symbol string, price double"``, or a PySpark ``StructType``. By default those of the
        first file. A column that a file does not have is null, one of a narrower type is widened,
        one of another type is refused with the file's name; further columns are not read.
    filesystem
        File system that `path` is on; by default the one that it says.
    pattern
        Reads only files of such names (``"*.parquet"``); by default all but those that begin with
        ``_`` or ``.``.
    max_rows_per_epoch, max_files_per_epoch
        How much an epoch reads at most; by default all there is. An epoch may end within a file.

    Raises
    ------
    SourceError
        While it is read: if the directory is not there, or a file is no Parquet file, changed after
        it was listed, or vanished before it was read.
    """
    return FileSource(
        ParquetFormat(),
        path,
        schema=schema,
        filesystem=filesystem,
        pattern=pattern,
        max_rows_per_epoch=max_rows_per_epoch,
        max_files_per_epoch=max_files_per_epoch,
    )


@user_call
def arrow(
    path: str | os.PathLike[str],
    *,
    schema: SchemaLike | None = None,
    filesystem: pafs.FileSystem | None = None,
    pattern: str | None = None,
    max_rows_per_epoch: int | None = None,
    max_files_per_epoch: int | None = None,
) -> Source:
    """Arrow IPC files (Feather 2) that turn up in a directory, and in those within it.

    Parameters and errors are those of `parquet`; a large file is cut between its record batches.
    """
    return FileSource(
        ArrowFormat(),
        path,
        schema=schema,
        filesystem=filesystem,
        pattern=pattern,
        max_rows_per_epoch=max_rows_per_epoch,
        max_files_per_epoch=max_files_per_epoch,
    )


@user_call
def json(
    path: str | os.PathLike[str],
    *,
    schema: SchemaLike | None = None,
    filesystem: pafs.FileSystem | None = None,
    pattern: str | None = None,
    max_rows_per_epoch: int | None = None,
    max_files_per_epoch: int | None = None,
    on_bad: Literal["refuse", "skip", "divert"] = "refuse",
    rejects: Any = None,
) -> Source:
    """Files with a JSON object a line that turn up in a directory, and in those within it.

    Parameters and errors are those of `parquet`. Without a schema, types are what the first file's
    first lines look like. Files named ``.gz``, ``.bz2``, ``.zst``, ``.lz4`` and ``.br`` are
    decompressed; such a file is not cut.

    Parameters
    ----------
    on_bad
        A line cannot be read: ``"refuse"`` its epoch, naming the file, ``"skip"`` it, with a
        warning, or ``"divert"`` it to the sink `rejects`.
    rejects
        Sink of lines that cannot be read, with ``on_bad="divert"``. Its rows have columns ``path``,
        ``value`` (bytes of the line) and ``error``; they come with their epoch.
    """
    return FileSource(
        JsonFormat(skips_bad=on_bad != "refuse"),
        path,
        schema=schema,
        filesystem=filesystem,
        pattern=pattern,
        max_rows_per_epoch=max_rows_per_epoch,
        max_files_per_epoch=max_files_per_epoch,
        on_bad=on_bad,
        rejects=rejects,
    )


@user_call
def csv(
    path: str | os.PathLike[str],
    *,
    schema: SchemaLike | None = None,
    header: bool = True,
    delimiter: str = ",",
    quote: str | None = '"',
    escape: str | None = None,
    null_values: Sequence[str] = ("",),
    newlines_in_values: bool = False,
    filesystem: pafs.FileSystem | None = None,
    pattern: str | None = None,
    max_rows_per_epoch: int | None = None,
    max_files_per_epoch: int | None = None,
    on_bad: Literal["refuse", "skip", "divert"] = "refuse",
    rejects: Any = None,
) -> Source:
    """Files of comma-separated values that turn up in a directory, and in those within it.

    Further parameters and errors are those of `parquet`. Without a schema, types are what the first
    file's first lines look like. Compressed files are read as by `json`.

    Parameters
    ----------
    header
        Whether a file's first line has the names of its columns. ``False``: they are those of
        `schema`, in its order.
    delimiter, quote, escape
        One character each; ``None``: there is none.
    null_values
        Texts that stand for null where they are not quoted.
    newlines_in_values
        Whether quoted text may have line breaks. Then a file is not cut, and read as a whole.
    on_bad, rejects
        As of `json`; not with `newlines_in_values`.
    """
    columns = None
    if not header:
        if schema is None:
            raise SourceError(
                "CSV files without a header have no names of columns.", remedy="Give schema=."
            )
        columns = to_schema(schema, where="The schema of a CSV source").names
    file_format = CsvFormat(
        delimiter=delimiter,
        quote=quote,
        escape=escape,
        columns=columns,
        null_values=null_values,
        newlines_in_values=newlines_in_values,
        skips_bad=on_bad != "refuse",
    )
    return FileSource(
        file_format,
        path,
        schema=schema,
        filesystem=filesystem,
        pattern=pattern,
        max_rows_per_epoch=max_rows_per_epoch,
        max_files_per_epoch=max_files_per_epoch,
        on_bad=on_bad,
        rejects=rejects,
    )


@user_call
def memory(
    schema: SchemaLike,
    rows: Any = None,
    *,
    name: str = "memory",
    max_rows_per_epoch: int | None = None,
) -> MemorySource:
    """Rows that the program adds, for tests: ``source.add(rows)``, also while a query runs.

    Parameters
    ----------
    schema
        Columns: an Arrow schema, a dict of column name → type, text such as
        ``"symbol string, price double"``, or a PySpark ``StructType``.
    rows
        Rows to begin with, as ``add`` takes them: dicts, tuples, an Arrow table or record batch, or
        a pandas DataFrame. A column that a dict does not have is null.
    name
        Name in errors and in the checkpoint.
    max_rows_per_epoch
        How many rows an epoch reads at most; by default all there are.

    Examples
    --------
    >>> source = memory("symbol string, price double", [("A", 9.5)])
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
    """Numbered rows: columns ``timestamp`` and ``value`` (0, 1, 2, ...), and ``key`` if asked for.

    Parameters
    ----------
    rows_per_second
        Row *i* happens ``i / rows_per_second`` after the start: its ``timestamp``.
    num_keys
        Adds a column ``key`` (bigint), drawn from so many keys.
    paced
        Whether a row comes when its moment is reached. ``False``: as fast as they are read, with
        moments that run ahead of the clock; give `max_rows_per_epoch` or `num_rows` too.
    max_rows_per_epoch
        How many rows an epoch reads at most; by default all that are due.
    num_rows
        After how many rows it ends; by default never.
    start
        The first row's moment, a datetime or ISO 8601 text; by default when the query starts for
        the first time.
    seed
        Another seed, other keys. The same seed and start give the same rows, always.
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


@user_call
def nexmark(
    kind: NexmarkKind,
    *,
    events_per_second: float = 10_000.0,
    paced: bool = True,
    max_rows_per_epoch: int | None = None,
    num_rows: int | None = None,
    start: dt.datetime | str | None = None,
    seed: int = 0,
) -> Source:
    """Bids, auctions or persons of the NEXMark benchmark, an auction house.

    Of 50 events one is a person, 3 are auctions and 46 are bids. Three sources of one seed, one
    start and one rate make one auction house: bids are for auctions that there are by then.

    Parameters
    ----------
    kind
        ``"bids"``, ``"auctions"`` or ``"persons"``: each has columns of its own, and its event time
        in ``date_time``.
    events_per_second
        Rate of all three kinds together.
    paced, max_rows_per_epoch, num_rows, start, seed
        As in `rate`.
    """
    return NexmarkSource(
        kind,
        events_per_s=events_per_second,
        paced=paced,
        max_rows_per_epoch=max_rows_per_epoch,
        num_rows=num_rows,
        start=start,
        seed=seed,
    )


@user_call
def kafka(
    servers: str | Sequence[str],
    topics: str | Sequence[str],
    *,
    value: Literal["bytes", "text", "json"] | MessageFormat = "bytes",
    schema: SchemaLike | None = None,
    include: Sequence[str] | Mapping[str, str] = (),
    start: Start = "earliest",
    max_rows_per_epoch: int | None = None,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    on_data_loss: Literal["refuse", "skip"] = "refuse",
    on_bad: Literal["refuse", "skip", "divert"] = "refuse",
    rejects: Any = None,
    group: str | None = None,
    timeout: DurationOrSeconds = "30 seconds",
    config: Mapping[str, Any] | None = None,
) -> KafkaSource:
    """Messages of Kafka's topics, read by the executors without a JVM package.

    Parameters
    ----------
    servers
        Where the cluster is found: ``"host:port"``, or a list of them.
    topics
        A topic, or a list of topics. Partitions that are added later are read from their beginning.
    value
        Format of the values: ``"json"`` with `schema`, ``"text"``, ``"bytes"``, or one of
        ``gw.formats`` such as ``gw.formats.avro(...)``.
    schema
        Columns of JSON values, as in ``"plane string, delay double"``.
    include
        More columns, of ``"key"``, ``"headers"``, ``"timestamp"``, ``"topic"``, ``"partition"`` and
        ``"offset"``; a mapping gives them other names, ``{"timestamp": "arrived_at"}``.
    start
        Where a new query begins: ``"earliest"``, ``"latest"``, a datetime (the first message that
        is no older), or offsets by partition, ``{0: 120, 1: 80}``, which of several topics are
        ``{"flights": {0: 120}}``; partitions that are not named begin with their earliest.
    max_rows_per_epoch
        How many offsets an epoch reads at most, shared among the partitions; by default all.
    isolation
        Whether messages of transactions that were aborted, or are open, are left out.
    on_data_loss
        Where retention has deleted messages that are yet to be read: refuse to go on, or go on
        without them and warn how many offsets there were.
    on_bad
        A message that cannot be read: refuse its epoch, leave it out and warn, or leave it out and
        give it to `rejects`.
    rejects
        Sink of messages that cannot be read, with ``on_bad="divert"``. Its rows have columns
        ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, ``value``, ``headers`` and
        ``error``, and are delivered with their epoch, exactly once where the sink is.
    group
        Consumer group that offsets are reported to after each commit, for lag monitors. A query
        goes on from its checkpoint, whatever the group says.
    timeout
        How long the cluster may be away, or not answer, before that is an error.
    config
        More settings of librdkafka, as in ``{"security.protocol": "ssl"}``. Passwords in it are
        never shown.

    Raises
    ------
    SourceError
        If confluent-kafka is not installed.
    InvalidFlowError
        If an option is wrong.
    """
    try:
        from godwit.sources.kafka_source import KafkaSource  # noqa: PLC0415 - optional
    except ImportError as error:
        raise SourceError(
            f"The Kafka source needs confluent-kafka, which cannot be imported: {error}.",
            remedy="pip install 'godwit-streams[kafka]'",
            package="confluent-kafka",
        ) from error
    return KafkaSource(
        servers,
        topics,
        value=value,
        schema=schema,
        include=include,
        start=start,
        max_rows_per_epoch=max_rows_per_epoch,
        isolation=isolation,
        on_data_loss=on_data_loss,
        on_bad=on_bad,
        rejects=rejects,
        group=group,
        timeout=timeout,
        config=config,
    )
