"""Copies of a checkpoint at its latest epoch, also while a query runs on it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

import msgspec
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
from godwit.checkpoint.spark_log import (
    DEFAULT_INTERVAL,
    OFFSETS,
    SPARK,
    OffsetLayout,
    files_read,
    lines_of,
    load_layout,
    log_offset,
    offsets_in,
    read_entry,
    reorder_offsets,
    source_numbers,
)
from godwit.model.errors import (
    CheckpointError,
    CorruptCheckpointError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.checkpoint.records import BatchRef
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
            f"{target.uri!r} already exists, and is not empty.",
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


def copy_spark_log(
    source: CheckpointStorage,
    target: CheckpointStorage,
    batches: Iterable[BatchRef],
    last: BatchRef | None,
    spark_id: str | None,
) -> dict[str, int]:
    """Copy Spark's log as of the last committed micro-batch; return path → bytes copied.

    Copied are the entries of the micro-batch and the one before it, which Spark reads at a start,
    and the logs of the sources. A later micro-batch, already planned, is planned again by the copy.
    Spark may delete entries older than a hundred micro-batches, and compact the sources' logs,
    meanwhile. So offsets are taken from the commit records if these have them.

    `batches`: of the retained epochs. `spark_id`: another id for the copy's query; ``None`` keeps
    it.
    """
    copied: dict[str, int] = {}

    def write(path: str, data: bytes) -> None:
        """Write a file of the copy, and count its bytes."""
        target.create_exclusive(path, data)
        copied[path] = len(data)

    if last is not None:
        layout = load_layout(source)
        if layout is not None:
            write(OFFSETS, encode_record(msgspec.structs.replace(layout, pending={})))
        recorded = {batch.number: batch for batch in (last, *batches)}
        offsets = b""
        # Spark resumes from the last entry, and reads the one before it as well.
        for number in range(max(last.number - 1, 0), last.number + 1):
            offsets = _offset_entry(source, number, recorded.get(number), layout)
            write(f"{SPARK}/offsets/{number}", offsets)
            commit_entry = read_entry(source, f"commits/{number}")
            if commit_entry is not None:  # otherwise Spark offers it again, and it is known
                write(f"{SPARK}/commits/{number}", commit_entry)
        lines = offsets_in(offsets)
        source_of_line = range(len(lines)) if layout is None else layout.lines
        interval = DEFAULT_INTERVAL if layout is None else layout.interval
        ends = dict(zip(source_of_line, map(log_offset, lines), strict=False))
        for number in source_numbers(source, len(ends)):
            end = ends.get(number) if layout is not None or len(ends) == 1 else None
            for path, data in _read_source_log(source, number, end, interval).items():
                write(path, data)
    metadata = read_entry(source, "metadata")
    if metadata is not None:
        renamed_metadata = None if spark_id is None else json.dumps({"id": spark_id}).encode()
        write(f"{SPARK}/metadata", metadata if renamed_metadata is None else renamed_metadata)
    return copied


def _offset_entry(
    source: CheckpointStorage, number: int, batch: BatchRef | None, layout: OffsetLayout | None
) -> bytes:
    """Return the offset-log entry of micro-batch `number` for a layout; raise if it is missing."""
    if batch is not None and batch.offsets:
        if layout is None:
            return batch.offsets
        lines = batch.lines or lines_of(batch.offsets, layout)
        converted = None if lines is None else reorder_offsets(batch.offsets, lines, layout.lines)
        if converted is not None:
            return converted
    entry = None if layout is None else layout.pending.get(number)
    entry = read_entry(source, f"offsets/{number}") if entry is None else entry
    if entry is None:
        raise _incomplete_copy(source, f"{SPARK}/offsets/{number}")
    return entry


def _read_source_log(
    source: CheckpointStorage, number: int, end: int | None, interval: int
) -> dict[str, bytes]:
    """Return path → content of the log of Spark's source `number`, up to entry `end`.

    Works while Spark compacts the log. `end`: ``None``: none is needed. `interval`: see
    `files_read`.
    """
    files: dict[str, bytes] = {}
    for _ in range(_ATTEMPTS):
        for path in source.list(f"{SPARK}/sources/{number}"):
            # Neither checksums of Hadoop's local file system nor unfinished files.
            if path not in files and not path.rpartition("/")[2].startswith((".", "_")):
                with suppress(CorruptCheckpointError):  # merged, and cleared away
                    files[path] = source.read(path).to_pybytes()
        names = {path.rpartition("/")[2] for path in files}
        needed_names = [] if end is None else files_read(names, end, interval)
        missing_names = [name for name in needed_names if name not in names]
        if not missing_names:
            return files
    raise _incomplete_copy(source, f"{SPARK}/sources/{number}/{missing_names[0]}")


def _incomplete_copy(source: CheckpointStorage, path: str) -> CheckpointError:
    """Return the error that a file of Spark's log disappeared while it was copied."""
    return CheckpointError(
        f"Spark's log of {source.uri!r} could not be copied whole: {path!r} is not there.",
        remedy="Remove the incomplete copy and copy again. If it fails while no query runs, "
        "`godwit checkpoint repair` shows if the file can be restored.",
        uri=source.uri,
        file=path,
    )
