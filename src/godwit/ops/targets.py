"""Checks of a checkpoint's targets on this machine, without the flow.

Nothing is written, and no credentials are needed.  The directory of a connector's target has a file
by which it is known, and which names an entry point of the group ``godwit.targets``: a `LastPoint`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow.fs as pafs

from godwit.checkpoint.blocks import read_block
from godwit.checkpoint.commit_log import CommitLog
from godwit.connect.files.parquet_directory import ParquetDirectory
from godwit.model import plugins
from godwit.model.errors import GodwitError
from godwit.ops.verification import Finding
from godwit.plan.staging import decode_files
from godwit.sinks.carried_files import CarriedFiles
from godwit.sinks.continuity import Position, divergence_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.checkpoint.records import CommitRecord, SinkRecord
    from godwit.checkpoint.storage import CheckpointStorage


class LastPoint(Protocol):
    """Function of a connector that reads a target on this machine, without the sink."""

    def __call__(self, target: str, query_id: str, writer: str) -> HistoryPoint | None:
        """Return the last epoch that a query's writer delivered; ``None`` if it delivered none.

        `target`: path of a directory. Raises any error if the target cannot be read.
        """


_MARKER = "_godwit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReport:
    """Report on the targets of a checkpoint."""

    findings: tuple[Finding, ...]  # what an epoch that is yet to be delivered lacks
    # targets that do not continue from the checkpoint, which a start on them refuses. That is as it
    # should be for a backup whose query continued.
    refused: tuple[Finding, ...]
    unseen: tuple[str, ...]  # sinks whose targets were not looked at, with where they write


def check_targets(storage: CheckpointStorage) -> TargetReport:
    """Compare the targets of sinks on this machine with a checkpoint; nothing is written.

    A query may be running on it.
    """
    before = CommitLog.open_read_only(storage).latest
    sinks = {} if before is None else before.sinks
    points: dict[str, HistoryPoint | None] = {}
    unseen = []
    for name, sink in sorted(sinks.items()):
        try:
            points[name] = None if before is None else _last_delivered(before, sink)
        except _UnseenError as error:
            unseen.append(f"{name} ({sink.target or 'known to the flow only'}{error})")
    # The targets first: those of a running query are never ahead of what it has committed by then.
    log = CommitLog.open_read_only(storage)
    findings: list[Finding] = []
    refused: list[Finding] = []
    for name, point in points.items():
        if log.latest is not None and name in log.latest.sinks:
            findings += _missing_lane_files(log, log.latest, name, point)
            refused += _divergence_findings(log, log.latest, name, point)
    return TargetReport(findings=tuple(findings), refused=tuple(refused), unseen=tuple(unseen))


class _UnseenError(Exception):
    """A target that cannot be read from here."""


def _last_delivered(record: CommitRecord, sink: SinkRecord) -> HistoryPoint | None:
    """Return the last epoch of a sink's target, if any; raise if the target cannot be read here."""
    root = Path(sink.target)
    if not root.is_absolute():
        raise _UnseenError
    if (root / _MARKER).is_file():
        return ParquetDirectory(pafs.LocalFileSystem(), str(root)).last_point()
    for marker in plugins.names("targets"):
        if (root / marker).exists():
            return _last_seen_by_connector(marker, record, sink)
    if root.exists() or not root.parent.exists():
        raise _UnseenError
    return None


def _last_seen_by_connector(
    marker: str, record: CommitRecord, sink: SinkRecord
) -> HistoryPoint | None:
    """Return the last epoch of a sink's target, as a connector reads it; raise if it cannot.

    `marker`: name of the file by which the target is known.
    """
    try:
        read: LastPoint = plugins.load("targets", marker)
        return read(sink.target, record.query_id, sink.writer)
    except Exception as error:  # libraries also raise bare Exceptions
        msg = f": {type(error).__name__}"
        raise _UnseenError(msg) from error


def _divergence_findings(
    log: CommitLog, record: CommitRecord, name: str, point: HistoryPoint | None
) -> Iterator[Finding]:
    """Yield a finding if the target of the sink `name` has diverged from the checkpoint."""
    sink = record.sinks[name]
    position = Position(before=sink.before, stays=False, copied=False)
    if (problem := divergence_of(point, log, position)) is not None:
        yield Finding(
            file=sink.target,
            problem=f"Sink {name!r} cannot continue from this checkpoint: {problem.what}.",
            remedy="Restore the target as of the checkpoint's backup, or start from a backup of "
            "the checkpoint from the same time as the target; or set how to continue: "
            "flow.start(on_divergence=...).",
        )


def _missing_lane_files(
    log: CommitLog, record: CommitRecord, name: str, point: HistoryPoint | None
) -> Iterator[Finding]:
    """Yield a finding for each missing data file of an epoch not delivered to the sink yet."""
    sink = record.sinks[name]
    if point is not None and point.epoch >= record.epoch:
        return
    for target, path in _missing_files(log, record, name):
        now = _last_delivered(record, sink)
        if now is not None and now.epoch >= record.epoch:
            return  # a running query has delivered it meanwhile
        yield Finding(
            file=f"{target}/{path}",
            problem=f"It no longer exists, but epoch {record.epoch} has not been delivered to "
            f"sink {name!r} yet: lanes wrote its rows to this file.",
            remedy="Restore it. If the target was moved, move it back for the next start.",
        )


def _missing_files(log: CommitLog, record: CommitRecord, name: str) -> Iterator[tuple[str, str]]:
    """Yield target and path of each missing data file that a lane wrote for the sink `name`."""
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
