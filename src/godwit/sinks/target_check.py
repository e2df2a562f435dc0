"""Targets of a checkpoint's sinks, looked at without the flow that writes them.

A commit record says where its sinks write.  What lies on this machine can be looked at: whether the
target goes on from the checkpoint, and whether the files are there that lanes wrote for an epoch
that is yet to be delivered.  Nothing is written, and no credentials are needed; what lies elsewhere
is named as not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.fs as pafs

from godwit.checkpoint.blocks import read_block
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.staged_output import decode_files
from godwit.checkpoint.verification import Finding
from godwit.model.errors import GodwitError
from godwit.sinks.carried_files import CarriedFiles
from godwit.sinks.continuity import is_shared
from godwit.sinks.parquet_directory import last_point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.checkpoint.records import CommitRecord, SinkRecord
    from godwit.checkpoint.storage import CheckpointStorage

__all__ = ["TargetReport", "check_targets"]

_MARKER = "_godwit.json"
_DELTA = "_delta_log"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReport:
    """What was found at the targets.

    Attributes
    ----------
    findings
        What an epoch that is yet to be delivered lacks.
    refused
        Targets that do not go on from the checkpoint, which a start on them refuses. That is as it
        should be for a backup whose query went on.
    unseen
        Sinks whose targets were not looked at, with where they write.
    """

    findings: tuple[Finding, ...]
    refused: tuple[Finding, ...]
    unseen: tuple[str, ...]


def check_targets(storage: CheckpointStorage) -> TargetReport:
    """Look at the targets that the latest epoch of a checkpoint writes to.

    A query may be running on it.

    Raises
    ------
    GodwitError
        If the checkpoint cannot be opened.
    """
    before = CommitLog.open_read_only(storage).latest
    sinks = {} if before is None else before.sinks or {}
    points: dict[str, HistoryPoint | None] = {}
    unseen = []
    for name, sink in sorted(sinks.items()):
        try:
            points[name] = None if before is None else _delivered(before, sink)
        except _UnseenError as error:
            unseen.append(f"{name} ({sink.target or 'known to the flow only'}{error})")
    # The targets first: those of a running query are never ahead of what it has committed by then.
    log = CommitLog.open_read_only(storage)
    findings: list[Finding] = []
    refused: list[Finding] = []
    for name, point in points.items():
        if log.latest is not None and name in (log.latest.sinks or {}):
            findings += _lacking(log, log.latest, name, point)
            refused += _refused(log, log.latest, name, point)
    return TargetReport(findings=tuple(findings), refused=tuple(refused), unseen=tuple(unseen))


class _UnseenError(Exception):
    """A target that cannot be looked at from here."""


def _delivered(record: CommitRecord, sink: SinkRecord) -> HistoryPoint | None:
    """Find the last epoch that a target holds; ``None`` if it holds none."""
    root = Path(sink.target)
    if not root.is_absolute():
        raise _UnseenError
    if (root / _MARKER).is_file():
        return last_point(pafs.LocalFileSystem(), str(root))
    if (root / _DELTA).is_dir():
        return _delivered_to_delta(record, sink)
    if root.exists() or not root.parent.exists():
        raise _UnseenError
    return None


def _delivered_to_delta(record: CommitRecord, sink: SinkRecord) -> HistoryPoint | None:
    try:
        from deltalake import DeltaTable  # noqa: PLC0415  an extra

        from godwit.sinks.delta_epochs import held_epoch  # noqa: PLC0415

        held = held_epoch(
            DeltaTable(sink.target),
            record.query_id,
            sink.writer,
            f"godwit-{record.query_id}-{sink.writer}",
        )
    except Exception as error:  # the library also raises bare Exceptions
        msg = f": {type(error).__name__}"
        raise _UnseenError(msg) from error
    return None if held is None or held.point.epoch < 0 else held.point


def _refused(
    log: CommitLog, record: CommitRecord, name: str, point: HistoryPoint | None
) -> Iterator[Finding]:
    sink = (record.sinks or {})[name]
    if point is not None and not is_shared(point, log):
        yield Finding(
            file=sink.target,
            problem=f"The target of sink {name!r} has epochs up to {point.epoch} that this "
            f"checkpoint, which ends with epoch {log.latest_epoch}, does not have.",
            remedy="Restore the target as of the checkpoint's backup, or say at the start how to "
            "go on: flow.start(on_divergence=...).",
        )
    elif point is not None and point.epoch < sink.before:
        yield Finding(
            file=sink.target,
            problem=f"The target of sink {name!r} has epochs up to {point.epoch}, and epochs up "
            f"to {sink.before} were delivered to it.",
            remedy="Restore the target as it was, or start from a backup of the checkpoint that "
            "is as old as the target.",
        )


def _lacking(
    log: CommitLog, record: CommitRecord, name: str, point: HistoryPoint | None
) -> Iterator[Finding]:
    sink = (record.sinks or {})[name]
    if point is not None and point.epoch >= record.epoch:
        return
    for target, path in _lane_files_gone(log, record, name):
        now = _delivered(record, sink)
        if now is not None and now.epoch >= record.epoch:
            return  # a running query has delivered it meanwhile
        yield Finding(
            file=f"{target}/{path}",
            problem=f"It is gone, and epoch {record.epoch} is yet to be delivered to sink "
            f"{name!r}: lanes wrote rows of it there.",
            remedy="Restore it. If the target was moved, move it back for the next start.",
        )


def _lane_files_gone(log: CommitLog, record: CommitRecord, name: str) -> Iterator[tuple[str, str]]:
    carried = CarriedFiles(log.storage)
    for output in record.outputs:
        if output.sink != name or output.kind != "files":
            continue
        try:
            written = decode_files(read_block(log.storage, output.block))
        except GodwitError:
            continue  # a verification of the checkpoint tells
        root = Path(written.target)
        if not root.is_absolute():
            continue
        for file in written.files:
            if carried.has(written.target, file):
                continue
            if not (root / file.path).exists() and not (root / file.delivered).exists():
                yield written.target, file.path
