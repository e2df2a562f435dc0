"""A consistent copy of a checkpoint, taken beside a query that may be running on it.

What is committed never changes, so a copy is the files that the retained epochs need as of one
epoch.  A collection beside it may delete some of them meanwhile; then it begins again from a later
epoch.

Spark's part has to fit: of its progress log, the offsets and commits of the micro-batch of that
epoch and of the one before it, which is what Spark reads at a start, and all that its sources
noted.  A micro-batch that was planned after it is left out and is planned anew by the copy, from
the same offsets on; what sources noted is never ahead of what they can be asked for again.

By default the copy is a query of its own: it has another id, both for sinks, which keep apart the
epochs of different queries, and for Spark, which refuses two running queries of one id.

The identity is written last, so an interrupted copy is no checkpoint.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from msgspec.structs import replace

from godwit.checkpoint.collection import needed_files, unless_collected
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.framing import encode_record
from godwit.checkpoint.ownership import load_record
from godwit.checkpoint.records import IDENTITY, CommitRecord, commit_path, edit_path
from godwit.checkpoint.spark_log import (
    DEFAULT_INTERVAL,
    OFFSETS,
    SPARK,
    files_read,
    lines_of,
    load_layout,
    log_offset,
    offsets_in,
    read_entry,
    relined,
    source_numbers,
)
from godwit.model.errors import CheckpointError, CorruptCheckpointError

if TYPE_CHECKING:
    from godwit.checkpoint.records import BatchRef
    from godwit.checkpoint.spark_log import OffsetLayout
    from godwit.checkpoint.storage import CheckpointStorage

__all__ = ["copy_checkpoint"]

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
    """Copy a checkpoint, with Spark's part, as of its latest epoch.

    A query may be running on `source`; there must be nothing at `target` yet.  `same_query` keeps
    the query's id, for a backup or a move: only one of the two may ever be started then.
    """
    if any(target.list(directory) for directory in ("", "commits", "blocks", SPARK)):
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
        except CorruptCheckpointError as error:
            translated = unless_collected(source, error)
            if translated is error:
                raise
            if attempt == _ATTEMPTS - 1:
                raise translated from None
    query_id = log.identity.query_id if same_query else uuid4().hex
    if log.latest is not None:
        spark_id = None if same_query else str(UUID(query_id))
        copied.update(_copy_spark(source, target, log, spark_id))
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


def _optional(path: str) -> bool:
    """Return whether a needed file may be missing: few epochs have a manifest."""
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
    source: CheckpointStorage, target: CheckpointStorage, log: CommitLog, spark_id: str | None
) -> dict[str, int]:
    """Copy Spark's log as of the last micro-batch that is committed.

    Spark clears away what is a hundred micro-batches old, and merges what sources noted, while this
    goes on. So offsets come from the commit records, as far as these carry them.
    """
    latest = log.latest
    copied: dict[str, int] = {}

    def write(path: str, data: bytes) -> None:
        target.create_exclusive(path, data)
        copied[path] = len(data)

    last = None if latest is None else latest.last_batch
    if last is not None:
        layout = load_layout(source)
        if layout is not None:
            write(OFFSETS, encode_record(replace(layout, pending={})))
        recorded = {last.number: last} | {
            batch.number: batch
            for epoch in log.retained_epochs
            if (batch := load_record(target, commit_path(epoch), CommitRecord).batch) is not None
        }
        offsets = b""
        # Spark resumes from the last entry, and reads the one before it as well.
        for number in range(max(last.number - 1, 0), last.number + 1):
            offsets = _offsets(source, number, recorded.get(number), layout)
            write(f"{SPARK}/offsets/{number}", offsets)
            commit_entry = read_entry(source, f"commits/{number}")
            if (
                commit_entry is not None
            ):  # without it, Spark offers the micro-batch again, and it is known
                write(f"{SPARK}/commits/{number}", commit_entry)
        lines = offsets_in(offsets)
        places = range(len(lines)) if layout is None else layout.lines
        interval = DEFAULT_INTERVAL if layout is None else layout.interval
        ends = dict(zip(places, map(log_offset, lines), strict=False))
        for number in source_numbers(source, len(ends)):
            end = ends.get(number) if layout is not None or len(ends) == 1 else None
            for path, data in _source_log(source, number, end, interval).items():
                write(path, data)
    metadata = read_entry(source, "metadata")
    if metadata is not None:
        own = None if spark_id is None else json.dumps({"id": spark_id}).encode()
        write(f"{SPARK}/metadata", metadata if own is None else own)
    return copied


def _offsets(
    source: CheckpointStorage, number: int, batch: BatchRef | None, layout: OffsetLayout | None
) -> bytes:
    """Entry of the offset log of a micro-batch, in the lines of a layout."""
    if batch is not None and batch.offsets:
        if layout is None:
            return batch.offsets
        lines = batch.lines or lines_of(batch.offsets, layout)
        converted = None if lines is None else relined(batch.offsets, lines, layout.lines)
        if converted is not None:
            return converted
    entry = None if layout is None else layout.pending.get(number)
    entry = read_entry(source, f"offsets/{number}") if entry is None else entry
    if entry is None:
        raise _incomplete(source, f"{SPARK}/offsets/{number}")
    return entry


def _source_log(
    source: CheckpointStorage, number: int, end: int | None, interval: int
) -> dict[str, bytes]:
    """Read what a source noted, at least up to an entry, while Spark may merge entries."""
    files: dict[str, bytes] = {}
    for _ in range(_ATTEMPTS):
        for entry in source.list(f"{SPARK}/sources/{number}"):
            # Not the checksums of a file system of Hadoop's, nor what was never finished.
            if entry.path not in files and not entry.path.rpartition("/")[2].startswith((".", "_")):
                with suppress(CorruptCheckpointError):  # merged, and cleared away
                    files[entry.path] = source.read(entry.path).to_pybytes()
        names = {path.rpartition("/")[2] for path in files}
        needed = [] if end is None else files_read(names, end, interval)
        lacking = [name for name in needed if name not in names]
        if not lacking:
            return files
    raise _incomplete(source, f"{SPARK}/sources/{number}/{lacking[0]}")


def _incomplete(source: CheckpointStorage, path: str) -> CheckpointError:
    return CheckpointError(
        f"Spark's log of {source.uri!r} could not be copied whole: {path!r} is not there.",
        remedy="Remove the incomplete copy and copy again. If it fails while no query runs, "
        "`godwit checkpoint repair` says whether the file can be put back.",
        uri=source.uri,
        file=path,
    )
