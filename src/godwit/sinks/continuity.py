"""Continuity of targets: comparison of a target with the checkpoint, and ways out if they differ.

A sink takes an epoch that its target has for delivered, which is right as long as both tell one
history.  So a target keeps, with the rows of an epoch, the `HistoryPoint` that they are of, and a
start compares it with the checkpoint:

=============  ==================================================================================
it is          when
=============  ==================================================================================
continued      the target's last epoch is one of the checkpoint's, and the checkpoint has nothing
               between it and its own last epoch, which is the one that may be delivered again
ahead          the target has later epochs of this history: the checkpoint is an older backup
diverged       the target has epochs of another history
behind         the target lacks epochs that the checkpoint has delivered, as an older backup does
another's      the checkpoint is a copy, and the target is that of the query that was copied
=============  ==================================================================================

Everything but the first is refused, unless the user says how to go on.  `check_targets` looks at
targets on this machine without the flow: nothing is written, and no credentials are needed.  The
directory of a connector's target has a file by which it is known, which names an entry point of the
group ``godwit.targets``: a `LastPoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import pyarrow.fs as pafs

from godwit.checkpoint.blocks import read_block
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.staged_output import decode_files
from godwit.checkpoint.verification import Finding
from godwit.model import plugins
from godwit.model.errors import GodwitError, SinkError
from godwit.sinks.carried_files import CarriedFiles
from godwit.sinks.parquet_directory import ParquetDirectory
from godwit.sinks.target_sink import is_shared, point_of_epoch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.checkpoint.records import CommitRecord, SinkRecord
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.sinks.sink import CommittedEpochs, Sink

Way: TypeAlias = Literal["refuse", "roll_back", "new_writer"]
OnDivergence: TypeAlias = Way | Mapping[str, Way]
WAYS: Final[tuple[Way, ...]] = ("refuse", "roll_back", "new_writer")


class LastPoint(Protocol):
    """Function of a connector that reads a target on this machine, without the sink."""

    def __call__(self, target: str, query_id: str, writer: str) -> HistoryPoint | None:
        """Return the last epoch that a query's writer delivered; ``None`` if it delivered none.

        `target`: path of a directory. Raises any error if the target cannot be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position of a sink, by its checkpoint."""

    before: int  # last epoch before the latest that had something for it; -1 if none had
    stays: bool  # whether it is known to write where it wrote in the latest epoch
    copied: bool  # whether another query committed the latest epoch


def divergence_choice(on_divergence: OnDivergence, sink: str) -> Way:
    """Return the action for a sink whose target has diverged, from ``on_divergence=``."""
    if isinstance(on_divergence, Mapping):
        return on_divergence.get(sink, "refuse")
    return on_divergence


def continue_delivery(
    sink: Sink, name: str, epochs: CommittedEpochs, position: Position, way: Way
) -> str | None:
    """Prepare an open sink to continue after the checkpoint's last epoch; raise if it has diverged.

    `position`: last epoch that the checkpoint records for the sink. `way`: the user's choice for a
    diverged target. Returns a text for users about the change made; ``None`` if there was none.
    """
    if not sink.keeps_epochs:
        return None
    problem = _divergence(sink.last_delivered(), epochs, position)
    if problem is None:
        if sink.last_delivered() is not None or not position.stays or position.before < 0:
            return None
        return (
            f"sink {name}: its target has nothing of this query, though epochs up to "
            f"{position.before} had rows for it; it gets the last epoch and later ones"
        )
    if way == "refuse":
        raise _diverged_error(name, problem, sink)
    if way == "new_writer":
        after = problem.resume_after
        sink.continue_after(point_of_epoch(epochs, after))
        return f"sink {name}: {problem.what}; it goes on as a new writer after epoch {after}"
    if problem.kind not in {"ahead", "diverged"} or sink.cannot_roll_back() is not None:
        raise _diverged_error(name, problem, sink)
    sink.roll_back(epochs, _min_epoch(problem, sink, epochs, position))
    left = _divergence(sink.last_delivered(), epochs, position)
    if left is not None:
        raise _diverged_error(name, left, sink)
    now = sink.last_delivered()
    return (
        f"sink {name}: {problem.what}; it was rolled back to "
        f"{'nothing' if now is None or now.epoch < 0 else f'epoch {now.epoch}'}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """Difference between a target's last epoch and the checkpoint."""

    kind: Literal["ahead", "diverged", "behind", "another's"]
    what: str
    resume_after: int  # the last epoch that a new writer takes for delivered


def _divergence(
    point: HistoryPoint | None, epochs: CommittedEpochs, position: Position
) -> _Problem | None:
    """Return how `point`, a target's last epoch, differs from the checkpoint; ``None``: it fits."""
    latest = epochs.latest_epoch
    if point is None:
        if position.copied and position.stays:
            return _Problem(
                kind="another's",
                what="this checkpoint is a copy, and its target is that of the query it was "
                "copied from",
                resume_after=latest,
            )
        return None
    if not is_shared(point, epochs):
        ahead = not point.digest or epochs.relation(point) == "ahead"
        shared = latest if ahead else epochs.last_shared_epoch(point)
        return _Problem(
            kind="ahead" if ahead else "diverged",
            what=f"its target has epochs up to {point.epoch}"
            + ("" if ahead else " of another history")
            + f", and the checkpoint {'has none' if latest < 0 else f'ends with epoch {latest}'}",
            resume_after=latest if shared >= latest else latest - 1,
        )
    if point.epoch < position.before:
        return _Problem(
            kind="behind",
            what=f"its target has {'nothing' if point.epoch < 0 else f'epochs up to {point.epoch}'}"
            f", and epochs up to {position.before} were delivered to it",
            resume_after=latest - 1,
        )
    return None


def _min_epoch(problem: _Problem, sink: Sink, epochs: CommittedEpochs, position: Position) -> int:
    """Return the last epoch that a roll-back has to keep; -1 if it may remove all.

    If the histories differ from an epoch on that this checkpoint has already delivered, the target
    has other rows for it, and the checkpoint cannot deliver it again.
    """
    point = sink.last_delivered()
    if problem.kind != "diverged" or point is None or not position.stays:
        return -1
    return position.before if epochs.last_shared_epoch(point) < position.before else -1


_CAUSES: Final[dict[str, str]] = {
    "ahead": "The checkpoint was restored from an older copy, so it produces epochs again that "
    "the target would skip.",
    "diverged": "Another checkpoint of the query wrote them: one of the two is a copy of the "
    "other, or of an older one.",
    "behind": "The target was restored from an older copy, or its server is a replica that did "
    "not have everything.",
    "another's": "Its rows would mix with those of that query.",
}
_EFFECTS: Final[dict[str, str]] = {  # of going on all the same
    "ahead": "the target keeps its rows and gets the rows that are produced again, too",
    "diverged": "the target keeps its rows and gets the rows that are produced again, too",
    "behind": "the rows in between stay missing",
    "another's": "rows of both queries are in one target",
}


def _diverged_error(name: str, problem: _Problem, sink: Sink) -> SinkError:
    """Return the error that target and checkpoint have diverged, with the possible actions."""
    if problem.kind == "behind":
        back = (
            "Restore the target as it was; or start from a backup of the checkpoint that is as "
            "old as the target"
        )
    elif problem.kind == "another's":
        back = "Give the sink a target of its own"
    elif (why_not := sink.cannot_roll_back()) is None:
        back = (
            'Take back what the target has beyond the checkpoint: start(on_divergence="roll_back")'
        )
    else:
        back = (
            f"Rolling back is not possible here: {why_not}. Restore the target as it was "
            "with the checkpoint, or give the sink another target"
        )
    return SinkError(
        f"Sink {name!r} does not go on from this checkpoint: {problem.what}. "
        f"{_CAUSES[problem.kind]}",
        remedy=f'{back}. Or go on all the same, start(on_divergence="new_writer"): '
        f"{_EFFECTS[problem.kind]}. "
        "on_divergence={sink: choice} applies to one sink.",
        sink=name,
        divergence=problem.kind,
    )


_MARKER = "_godwit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReport:
    """Report on the targets of a checkpoint."""

    findings: tuple[Finding, ...]  # what an epoch that is yet to be delivered lacks
    # targets that do not go on from the checkpoint, which a start on them refuses. That is as it
    # should be for a backup whose query went on.
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
    if (problem := _divergence(point, log, position)) is not None:
        yield Finding(
            file=sink.target,
            problem=f"Sink {name!r} would not go on from this checkpoint: {problem.what}.",
            remedy="Restore the target as of the checkpoint's backup, or start from a backup of "
            "the checkpoint that is as old as the target; or say at the start how to go on: "
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
            problem=f"It is gone, and epoch {record.epoch} is yet to be delivered to sink "
            f"{name!r}: lanes wrote rows of it there.",
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
