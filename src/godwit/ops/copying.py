"""Copies of a checkpoint, as of its latest epoch, while a query may run on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from msgspec.structs import replace

from godwit.checkpoint.collection import needed_files, unless_collected
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.framing import encode_record, load_record
from godwit.checkpoint.records import (
    BLOCKS,
    COMMITS,
    IDENTITY,
    MANIFESTS,
    CommitRecord,
    commit_path,
    edit_path,
)
from godwit.checkpoint.spark_log import SPARK, copy_spark_log
from godwit.model.errors import (
    CheckpointError,
    CorruptCheckpointError,
)

if TYPE_CHECKING:
    from godwit.checkpoint.storage import CheckpointStorage


_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedCheckpoint:
    """Result of a copy."""

    epoch: int  # the last epoch that is in the copy; -1 if none was committed
    query_id: str  # id of the copy's query
    # files, file_bytes: number and size of the files
    files: int
    file_bytes: int


def copy_checkpoint(
    source: CheckpointStorage, target: CheckpointStorage, *, same_query: bool = False
) -> CopiedCheckpoint:
    """Copy a checkpoint, with Spark's logs, as of its latest epoch.

    A query may run on `source`, since committed files do not change; if old files are deleted
    meanwhile, the copy begins again from a later epoch. `target` must not exist or be empty. The
    identity is written last, so an interrupted copy is not a checkpoint.

    The copy gets another query id, both for sinks, which store epochs per query, and for Spark,
    which refuses two running queries with one id. `same_query` keeps the id, for a backup or a
    move: then only one of the two may be started afterwards.
    """
    if any(target.list(directory) for directory in ("", COMMITS, BLOCKS, SPARK)):
        raise CheckpointError(
            f"{target.uri!r} exists already, and is not empty.",
            remedy="Copy to a directory that is empty or does not exist yet.",
            uri=target.uri,
        )
    copied: dict[str, int] = {}
    for attempt in range(_ATTEMPTS):
        log = CommitLog.open_read_only(source)
        try:
            edits = {edit_path(edit.number) for edit in log.edits()}
            manifests = source.list(MANIFESTS)
            for path in sorted(edits | needed_files(log) - {IDENTITY}):
                is_there = not path.startswith(MANIFESTS) or path in manifests
                if path not in copied and is_there:
                    data = source.read(path).to_pybytes()
                    target.create_exclusive(path, data)
                    copied[path] = len(data)
            break
        except CorruptCheckpointError as error:
            translated = unless_collected(source, error)
            if translated is error:
                raise
            if attempt == _ATTEMPTS - 1:
                raise translated from None
    query_id = log.identity.query_id if same_query else uuid4().hex
    origins = log.identity.origins
    if log.latest is not None:
        records = (load_record(target, commit_path(e), CommitRecord) for e in log.retained_epochs)
        batches = [r.batch for r in records if r.batch is not None and r.batch.of_spark]
        last = log.latest.last_batch
        last = None if last is None or not last.of_spark else last
        spark_id = None if same_query else str(UUID(query_id))
        copied.update(copy_spark_log(source, target, batches, last, spark_id))
        origin = log.identity.origin_of(log.latest_epoch)
        origins = tuple(dict.fromkeys((*origins, replace(origin, epoch=log.latest_epoch))))
    identity = replace(log.identity, query_id=query_id, history=uuid4().hex, origins=origins)
    target.create_exclusive(IDENTITY, encode_record(identity))
    return CopiedCheckpoint(
        epoch=log.latest_epoch,
        query_id=query_id,
        files=len(copied) + 1,
        file_bytes=sum(copied.values()),
    )
