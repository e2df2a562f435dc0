"""``gw.sinks.parquet``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.connect.files.parquet_sink import ParquetSink
from godwit.connect.options import check_columns, check_path
from godwit.model.frames import user_call
from godwit.sinks.sink import LANE_BYTES, LANE_FILES, MAX_PARTITIONS

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Literal

    import pyarrow.fs as pafs

    from godwit.sinks.sink import Sink
    from godwit.time.durations import Duration


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
    check_path("Parquet", path)
    check_columns("Parquet", partition_by=partition_by)
    return ParquetSink(**options)
