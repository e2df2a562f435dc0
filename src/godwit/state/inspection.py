"""What is in a checkpoint: whose it is, what can be read from it, and how large it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.state.collection import unneeded_files
from godwit.state.commit_log import CommitLog, load_record
from godwit.state.records import (
    BLOCKS,
    COMMITS,
    IDENTITY,
    MANIFESTS,
    RUNS,
    FlowIdentity,
    RunRecord,
    number_in,
)

if TYPE_CHECKING:
    from godwit.state.chains import Chains
    from godwit.state.storage import CheckpointStorage

__all__ = ["CheckpointSummary", "OperatorSummary", "inspect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSummary:
    """State of one operator, as of the latest epoch.

    Attributes
    ----------
    name
        Of the operator.
    key_groups
        Number of key groups that have state.
    snapshot_rows, snapshot_bytes
        Size of the snapshots.
    changelog_bytes
        Size of what came after them.
    mean_segments, max_segments
        Length of the chains after their snapshots, over key groups that have state.
    waiting
        Key groups with rows that wait.
    """

    name: str
    key_groups: int
    snapshot_rows: int
    snapshot_bytes: int
    changelog_bytes: int
    mean_segments: float
    max_segments: int
    waiting: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """What is in a checkpoint.

    Attributes
    ----------
    identity
        Whose checkpoint it is.
    run_id
        The run that owns it; empty before the first.
    epochs
        Retained epochs, first and last; ``None`` if none is committed.
    operators
        State, by operator.
    files, file_bytes
        Number and size of all files.
    unneeded_files, unneeded_bytes
        Those of them that the next collection removes.
    """

    identity: FlowIdentity
    run_id: str
    epochs: tuple[int, int] | None
    operators: tuple[OperatorSummary, ...]
    files: int
    file_bytes: int
    unneeded_files: int
    unneeded_bytes: int


def inspect(storage: CheckpointStorage) -> CheckpointSummary:
    """Sum up a checkpoint; reads records and lists files, but reads no state.

    Raises
    ------
    CheckpointError
        If there is no checkpoint.
    CorruptCheckpointError
        If a record is missing or damaged.
    """
    log = CommitLog.open_read_only(storage)
    retained = log.retained_epochs
    runs = [entry.path for entry in storage.list(RUNS) if number_in(entry.path) is not None]
    files = [
        entry
        for directory in ("", RUNS, COMMITS, MANIFESTS, BLOCKS)
        for entry in storage.list(directory)
        if entry.path == IDENTITY or number_in(entry.path, temporary=True) is not None
    ]
    unneeded = unneeded_files(log)
    return CheckpointSummary(
        identity=log.identity,
        run_id=load_record(storage, runs[-1], RunRecord).run_id if runs else "",
        epochs=(retained[0], retained[-1]) if retained else None,
        operators=tuple(_operator_summary(log.chains, name) for name in log.chains.operators),
        files=len(files),
        file_bytes=sum(entry.size_bytes for entry in files),
        unneeded_files=len(unneeded),
        unneeded_bytes=sum(entry.size_bytes for entry in unneeded),
    )


def _operator_summary(chains: Chains, name: str) -> OperatorSummary:
    has_state = chains.versions(name) >= 0
    segments = chains.num_segments(name)[has_state]
    return OperatorSummary(
        name=name,
        key_groups=int(has_state.sum()),
        snapshot_rows=sum(s.rows for s in chains.snapshots() if s.operator == name),
        snapshot_bytes=int(chains.snapshot_bytes(name).sum()),
        changelog_bytes=int(chains.changelog_bytes(name).sum()),
        mean_segments=float(segments.mean()) if len(segments) else 0.0,
        max_segments=int(segments.max(initial=0)),
        waiting=tuple(chains.waiting_key_groups(name)),
    )
