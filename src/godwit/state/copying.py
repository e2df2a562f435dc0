"""A consistent copy of a checkpoint, taken beside a query that may be running on it.

What is committed never changes, so a copy is the files that the retained epochs need as of one
epoch.  A collection beside it may delete some of them meanwhile; then it begins again from a later
epoch.

Spark's part has to fit: of its progress log, the offsets and commits up to the micro-batch of that
epoch, and all that its sources noted.  A micro-batch that was planned after it is left out and is
planned anew by the copy, from the same offsets on; what sources noted is never ahead of what they
can be asked for again.

By default the copy is a query of its own: it has another id, both for sinks, which keep apart the
epochs of different queries, and for Spark, which refuses two running queries of one id.

The identity is written last, so an interrupted copy is no checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from msgspec.structs import replace

from godwit.model.errors import CheckpointError, CorruptCheckpointError
from godwit.state.collection import needed_files
from godwit.state.commit_log import CommitLog
from godwit.state.framing import encode_record
from godwit.state.paths import IDENTITY, edit_path

if TYPE_CHECKING:
    from godwit.state.storage import CheckpointStorage

__all__ = ["CopiedCheckpoint", "copy_checkpoint", "forget_sparks_progress"]

_SPARK: Final = "spark"
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedCheckpoint:
    """What was copied.

    Attributes
    ----------
    epoch
        The last epoch that is in the copy; -1 if none was committed.
    query_id
        Id of the copy's query.
    files, file_bytes
        Number and size of the files.
    """

    epoch: int
    query_id: str
    files: int
    file_bytes: int


def copy_checkpoint(
    source: CheckpointStorage, target: CheckpointStorage, *, same_query: bool = False
) -> CopiedCheckpoint:
    """Copy a checkpoint, with Spark's part, as of its latest epoch.

    Parameters
    ----------
    source
        The checkpoint; a query may be running on it.
    target
        Where the copy goes; there must be nothing yet.
    same_query
        Keep the query's id: for a backup or a move. Only one of the two may ever be started then.

    Raises
    ------
    CheckpointError
        If there is no checkpoint, or something is at the target already.
    CorruptCheckpointError
        If a file that is needed is missing or damaged.
    """
    if any(target.list(directory) for directory in ("", "commits", "blocks", _SPARK)):
        raise CheckpointError(
            f"There is something at {target.uri!r} already.",
            remedy="Copy to a directory that is empty or does not exist yet.",
            uri=target.uri,
        )
    copied: dict[str, int] = {}
    for attempt in range(_ATTEMPTS):
        log = CommitLog.open_read_only(source)
        try:
            edits = {edit_path(edit.number) for edit in log.edits()}
            for path in sorted(edits | needed_files(log) - {IDENTITY}):
                if path not in copied and (path in _listed(source, path) or not _optional(path)):
                    copied[path] = _copy(source, target, path)
            break
        except CorruptCheckpointError:
            # Deleted by a collection beside this, unless no epoch was committed meanwhile.
            later = CommitLog.open_read_only(source).latest_epoch
            if attempt == _ATTEMPTS - 1 or later == log.latest_epoch:
                raise
    query_id = log.identity.query_id if same_query else uuid4().hex
    if log.latest is not None:
        spark_id = None if same_query else str(UUID(query_id))
        last = log.latest.last_batch
        copied.update(_copy_spark(source, target, -1 if last is None else last.number, spark_id))
    origins = log.identity.origins
    if log.latest is not None:
        whose = log.identity.origin_of(log.latest_epoch)
        origins = tuple(dict.fromkeys((*origins, replace(whose, epoch=log.latest_epoch))))
    identity = replace(log.identity, query_id=query_id, history=uuid4().hex, origins=origins)
    target.create_exclusive(IDENTITY, encode_record(identity))
    return CopiedCheckpoint(
        epoch=log.latest_epoch,
        query_id=query_id,
        files=len(copied) + 1,
        file_bytes=sum(copied.values()),
    )


def forget_sparks_progress(storage: CheckpointStorage) -> None:
    """Delete Spark's part of a checkpoint without an epoch, whose sources are others now."""
    number = 0
    directories = [f"{_SPARK}/offsets", f"{_SPARK}/commits"]
    while storage.list(f"{_SPARK}/sources/{number}"):
        directories.append(f"{_SPARK}/sources/{number}")
        number += 1
    # The id of the query last: until it is gone, the rest can be told to be of one piece.
    for directory in (*directories, _SPARK):
        for entry in storage.list(directory):
            storage.delete(entry.path)


def _optional(path: str) -> bool:
    """Whether `needed_files` names a file that need not be there: few epochs have a manifest."""
    return path.startswith("manifests/")


def _listed(storage: CheckpointStorage, path: str) -> set[str]:
    if not _optional(path):
        return {path}
    return {entry.path for entry in storage.list(path.rpartition("/")[0])}


def _copy(source: CheckpointStorage, target: CheckpointStorage, path: str) -> int:
    data = source.read(path)
    target.create_exclusive(path, data.to_pybytes())
    return int(data.size)


def _copy_spark(
    source: CheckpointStorage, target: CheckpointStorage, batch: int, spark_id: str | None
) -> dict[str, int]:
    copied: dict[str, int] = {}
    for kind in ("offsets", "commits"):
        for entry in source.list(f"{_SPARK}/{kind}"):
            name = entry.path.rpartition("/")[2]
            if name.isdigit() and int(name) <= batch:
                copied[entry.path] = _copy(source, target, entry.path)
    number = 0
    while entries := source.list(f"{_SPARK}/sources/{number}"):
        for entry in entries:
            # Not the checksums of a file system of Hadoop's, nor what was never finished.
            if not entry.path.rpartition("/")[2].startswith((".", "_")):
                copied[entry.path] = _copy(source, target, entry.path)
        number += 1
    path = f"{_SPARK}/metadata"
    if any(entry.path == path for entry in source.list(_SPARK)):
        if spark_id is None:
            copied[path] = _copy(source, target, path)
        else:
            data = json.dumps({"id": spark_id}).encode()
            target.create_exclusive(path, data)
            copied[path] = len(data)
    return copied
