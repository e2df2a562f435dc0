"""What is in a checkpoint: whose it is, what can be read from it, and how large it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.checkpoint.collection import unneeded_files
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.ownership import load_record
from godwit.checkpoint.paths import (
    BLOCKS,
    COMMITS,
    EDITS,
    FLOWS,
    IDENTITY,
    MANIFESTS,
    PLANS,
    RUNS,
    number_in,
)
from godwit.checkpoint.records import FlowIdentity, RunRecord, StateId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from godwit.checkpoint.storage.storage import CheckpointStorage

__all__ = ["CheckpointSummary", "StateSummary", "inspect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSummary:
    """One state of one operator, as of the latest epoch."""

    # operator, state: whose
    operator: str
    state: str
    removed: bool  # whether the operator is no longer part of the flow
    key_groups: int  # number of key groups that have state
    # snapshot_rows, snapshot_bytes: size of the snapshots
    snapshot_rows: int
    snapshot_bytes: int
    changelog_bytes: int  # size of what came after them
    # mean_segments, max_segments: length of the chains after their snapshots, over key groups that
    # have state
    mean_segments: float
    max_segments: int
    waiting: tuple[int, ...]  # key groups with rows that wait for the operator


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """What is in a checkpoint."""

    identity: FlowIdentity  # whose checkpoint it is
    run_id: str  # the run that owns it; empty before the first
    epochs: tuple[int, int] | None  # retained epochs, first and last; ``None`` if none is committed
    pending: tuple[str, ...]  # what the next epoch is to rename and drop, in words
    # plan, components: number of the physical plan, and component → its operators; -1 before the
    # first epoch
    plan: int
    components: Mapping[str, tuple[str, ...]]
    states: tuple[StateSummary, ...]  # by operator and state
    # files, file_bytes: number and size of all files
    files: int
    file_bytes: int
    # unneeded_files, unneeded_bytes: those of them that the next collection removes
    unneeded_files: int
    unneeded_bytes: int


def inspect(storage: CheckpointStorage) -> CheckpointSummary:
    """Sum up a checkpoint; reads records and lists files, but reads no state."""
    log = CommitLog.open_read_only(storage)
    retained = log.retained_epochs
    runs = [entry.path for entry in storage.list(RUNS) if number_in(entry.path) is not None]
    files = [
        entry
        for directory in ("", RUNS, FLOWS, PLANS, EDITS, COMMITS, MANIFESTS, BLOCKS)
        for entry in storage.list(directory)
        if entry.path == IDENTITY or number_in(entry.path, temporary=True) is not None
    ]
    unneeded = unneeded_files(log)
    return CheckpointSummary(
        identity=log.identity,
        run_id=load_record(storage, runs[-1], RunRecord).run_id if runs else "",
        epochs=(retained[0], retained[-1]) if retained else None,
        pending=tuple(_pending(log)),
        plan=log.plan,
        components={
            c.name: c.operators
            for plan in [log.physical_plan]
            if plan is not None
            for c in plan.components
        },
        states=tuple(_state_summary(log, state) for state in log.chains.states),
        files=len(files),
        file_bytes=sum(entry.size_bytes for entry in files),
        unneeded_files=len(unneeded),
        unneeded_bytes=sum(entry.size_bytes for entry in unneeded),
    )


def _pending(log: CommitLog) -> Iterator[str]:
    for edit in log.edits():
        yield from (f"{old} is renamed to {new}" for old, new in edit.renamed.items())
        yield from (f"{name} is dropped" for name in edit.dropped)


def _state_summary(log: CommitLog, state: StateId) -> StateSummary:
    chains = log.chains
    has_state = chains.versions(state) >= 0
    segments = chains.num_segments(state)[has_state]
    return StateSummary(
        operator=state.operator,
        state=state.state,
        removed=state.operator in log.version(log.flow).kept,
        key_groups=int(has_state.sum()),
        snapshot_rows=sum(snapshot.rows for snapshot in chains.snapshots(state)),
        snapshot_bytes=int(chains.snapshot_bytes(state).sum()),
        changelog_bytes=int(chains.changelog_bytes(state).sum()),
        mean_segments=float(segments.mean()) if len(segments) else 0.0,
        max_segments=int(segments.max(initial=0)),
        waiting=tuple(chains.waiting_key_groups(state.operator)),
    )
