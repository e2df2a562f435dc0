"""Spark's own logs of a streaming query's progress, written without starting processes.

Spark writes three small files an epoch: offsets, the source's files, the commit. On a local disk
its default way creates them through Hadoop's ``FileContext``, which sets permissions by running
``chmod`` in a process of its own, twice a file: 35 to 50 ms each where the other way that Spark
offers, through ``FileSystem``, takes 9. Both write beside the target and rename, and on a local
disk both renames are the same system call.
"""

from __future__ import annotations

import json
import re
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.checkpoint.storage import CheckpointStorage

__all__ = ["give_id", "quick_local_logs", "remove_leftovers", "wait_for_sources"]

_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_SOURCES_TIMEOUT_MS = 60_000
_LEFT_OVER = re.compile(r"\.{1,2}\d+\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp(\.crc)?")


@contextmanager
def quick_local_logs(spark: SparkSession, uri: str) -> Iterator[None]:
    """Let queries that start inside write their logs the quick way, if `uri` is on a local disk.

    What the user has set stays.
    """
    if not uri.startswith("file:") or spark.conf.get(_MANAGER, None) is not None:
        yield
        return
    spark.conf.set(_MANAGER, _BY_FILE_SYSTEM)
    try:
        yield
    finally:
        spark.conf.unset(_MANAGER)


def give_id(storage: CheckpointStorage, query_id: str) -> None:
    """Let Spark's query have the id that the checkpoint has, if it has none yet."""
    path = "spark/metadata"
    if query_id and all(entry.path != path for entry in storage.list("spark")):
        storage.write_atomic(path, json.dumps({"id": str(uuid.UUID(query_id))}).encode())


def remove_leftovers(storage: CheckpointStorage) -> None:
    """Remove what a process that died while it wrote an entry of Spark's log has left beside it.

    Spark does not begin its first micro-batch in a directory that has any file in it.
    """
    for directory in ("spark/offsets", "spark/commits"):
        for entry in storage.list(directory):
            if _LEFT_OVER.fullmatch(entry.path.rpartition("/")[2]):
                storage.delete(entry.path)


def wait_for_sources(query: StreamingQuery) -> None:
    """Wait until the sources of a query that was just started have opened their logs.

    A query that fails before that says so itself later.
    """
    execution: Any = query._jsq.streamingQuery()  # noqa: SLF001  no public way to wait for it
    try:
        execution.awaitInitialization(_SOURCES_TIMEOUT_MS)
    except Exception:  # noqa: BLE001  the query's own error, which the query reports
        return
