"""Files that retained epochs need: collection of all others, summaries.

Problem: retries, speculation, crashes and superseded snapshots leave files behind, which are
not known to be unused at that time.

Invariant: only files of committed epochs are deleted, and only those that no retained epoch needs.
The latest commit record decides which epochs are retained, so a collection may stop anywhere,
delete in any order, or run beside that of an older run.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.framing import load_record, numbers_in
from godwit.checkpoint.records import (
    BLOCKS,
    COMMITS,
    EDITS,
    FLOWS,
    IDENTITY,
    MANIFESTS,
    PLANS,
    RUNS,
    FlowIdentity,
    RunRecord,
    StateId,
    commit_path,
    edit_path,
    flow_path,
    kept_path,
    manifest_path,
    number_in,
    plan_path,
)
from godwit.model.errors import (
    CheckpointError,
    CorruptCheckpointError,
    EpochCollectedError,
    GodwitError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from godwit.checkpoint.records import KeptEpoch
    from godwit.checkpoint.storage import CheckpointStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Result of a collection."""

    removed: tuple[str, ...]  # paths of the files that were deleted
    freed_bytes: int  # their size
    # why others could not be deleted; the next collection tries again
    errors: tuple[GodwitError, ...]


def collect_garbage(log: CommitLog) -> Collected:
    """Delete every file that no retained epoch needs, and report the deleted ones.

    Reads one manifest and the records after it, and lists seven directories: call it every few
    epochs, not in each. It may run beside commits of the same log. If a file cannot be deleted, the
    others still are.
    """
    removed: dict[str, int] = {}
    errors: list[GodwitError] = []
    for path, size_bytes in unneeded_files(log).items():
        try:
            log.storage.delete(path)
        except GodwitError as error:
            errors.append(error)
        else:
            removed[path] = size_bytes
    log.forget_manifests(
        number
        for path in removed
        if path.startswith(MANIFESTS) and (number := number_in(path)) is not None
    )
    return Collected(
        removed=tuple(removed),
        freed_bytes=sum(removed.values()),
        errors=tuple(errors),
    )


@contextmanager
def reading_while_collected(storage: CheckpointStorage) -> Iterator[None]:
    """Context for reading a checkpoint while a query may run on it and delete old files.

    Raises `EpochCollectedError` instead of the error of a missing file if the file was deleted
    because no retained epoch needs it.
    """
    try:
        yield
    except CorruptCheckpointError as error:
        translated = unless_collected(storage, error)
        if translated is error:
            raise
        raise translated from None


def unless_collected(storage: CheckpointStorage, error: CorruptCheckpointError) -> CheckpointError:
    """Return the error to raise for the missing file that `error` names.

    `EpochCollectedError` if a garbage collection has deleted it; else `error` itself.
    """
    file = str(error.context.get("file", ""))
    if not collected_since(storage, [file]):
        return error
    return EpochCollectedError(
        f"The file {file!r} of the checkpoint {storage.uri!r} was collected while it was about to "
        f"be read: the query that runs there retains its last epochs only.",
        remedy="Read again from the latest epoch. If that takes longer than the query retains "
        "epochs, give it a larger gw.Checkpointing(retain_epochs=...), or read a copy of the "
        "checkpoint.",
        file=file,
        uri=storage.uri,
    )


def collected_since(storage: CheckpointStorage, files: Iterable[str]) -> frozenset[str]:
    """Return those of `files` that are missing because a garbage collection deleted them."""
    missing = {file for file in files if number_in(file) is not None}
    for directory in {file.rpartition("/")[0] for file in missing}:
        missing.difference_update(storage.list(directory))
    if not missing:
        return frozenset()
    try:
        log = CommitLog.open_read_only(storage)
        needed = needed_files(log)
    except CorruptCheckpointError:
        return frozenset()
    latest = {FLOWS: log.flow, PLANS: log.plan}
    return frozenset(
        file
        for file in missing - needed
        if (number := number_in(file)) is not None
        and number <= latest.get(file.rpartition("/")[0], log.latest_epoch)
    )


def unneeded_files(log: CommitLog) -> dict[str, int]:
    """Return path → size in bytes of the files that a garbage collection would delete."""
    latest = log.latest_epoch
    needed = needed_files(log)
    last_run = max(numbers_in(log.storage, RUNS), default=-1)
    unneeded: dict[str, int] = {}
    for directory, current in ((FLOWS, log.flow), (PLANS, log.plan), (RUNS, last_run)):
        for path, size_bytes in log.storage.list(directory).items():
            number = number_in(path, temporary=True)
            if number is None or number > current or path in needed:
                continue
            # An unfinished file of a used number, left by a crash, is never finished.
            if number_in(path) is None or (number < current and directory != RUNS):
                unneeded[path] = size_bytes
    for directory in (BLOCKS, COMMITS, MANIFESTS):
        for path, size_bytes in log.storage.list(directory).items():
            epoch = number_in(path, temporary=True)
            if epoch is None or epoch > latest or path in needed:
                continue
            # A commit beside this may just be writing the manifest of the latest epoch.
            if epoch < latest or number_in(path) is not None:
                unneeded[path] = size_bytes
    needed_edits = {edit_path(edit.number) for edit in log.edits()}
    edits = log.storage.list(EDITS)
    unneeded |= {path: size for path, size in edits.items() if path not in needed_edits}
    return dict(sorted(unneeded.items()))


def needed_files(log: CommitLog) -> set[str]:
    """Return the files that the retained epochs need: those that `chains_at` reads, and all blocks.

    Includes a manifest for every retained epoch, though few have one: another run may have written
    it since the log was opened.
    """
    retained = log.retained_epochs
    if not retained:
        return {IDENTITY}
    # Concurrent commits may move on meanwhile; these epochs need all files that those need.
    anchor = log.manifest_before(retained.start)
    needed = {IDENTITY}
    # Records are read before anything is counted: a number alone costs nothing to write.
    chains = log.replay_chains(retained.start)
    needed.update(block.file for block in chains.blocks())
    for epoch in retained:
        record = log.load_record(epoch)
        needed.update(block.file for block in record.blocks())
        needed.add(plan_path(record.plan))
    needed.update(manifest_path(epoch) for epoch in (anchor, *retained) if epoch >= 0)
    needed.update(commit_path(epoch) for epoch in range(max(anchor, 0), retained.stop))
    # Files of a version are read through every later one.  The records after the manifest are
    # replayed under their versions, even if their files are gone.
    flows = {log.load_record(epoch).flow for epoch in range(anchor + 1, retained.stop)}
    flows |= chains.written_under()
    # Read after the retained epochs: an epoch is named while it is one of them.
    for kept_epoch in log.kept_epochs().values():
        flows |= _add_kept(log, kept_epoch, needed)
    needed.update(map(flow_path, log.versions_since(min(flows))))
    return needed


def _add_kept(log: CommitLog, kept_epoch: KeptEpoch, needed: set[str]) -> set[int]:
    """Add the files that a kept epoch needs to `needed`; return numbers of its flow versions."""
    anchor = log.manifest_before(kept_epoch.epoch)
    chains, record = log.replay_chains(kept_epoch.epoch), log.load_record(kept_epoch.epoch)
    needed.update(block.file for block in (*chains.blocks(), *record.blocks()))
    needed.update((plan_path(record.plan), kept_path(kept_epoch.name)))
    needed.update(manifest_path(epoch) for epoch in {anchor, kept_epoch.epoch} if epoch >= 0)
    first = min(kept_epoch.first, max(anchor, 0))
    needed.update(commit_path(epoch) for epoch in range(first, kept_epoch.epoch + 1))
    flows = {log.load_record(epoch).flow for epoch in range(anchor + 1, kept_epoch.epoch + 1)}
    return flows | chains.written_under()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSummary:
    """Summary of one state of one operator at the latest epoch."""

    # operator, state: whose
    operator: str
    state: str
    removed: bool  # the operator is no longer part of the flow
    key_groups: int  # number of key groups that have state
    # snapshot_rows, snapshot_bytes: size of the snapshots
    snapshot_rows: int
    snapshot_bytes: int
    changelog_bytes: int  # size of the segments after them
    # mean_segments, max_segments: length of the chains after their snapshots, over key groups that
    # have state
    mean_segments: float
    max_segments: int
    waiting: tuple[int, ...]  # key groups with rows that wait for the operator


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """Summary of a checkpoint: identity, epochs, states, sizes."""

    identity: FlowIdentity  # whose checkpoint it is
    num_key_groups: int  # after the last epoch
    run_id: str  # the run that owns it; empty before the first
    epochs: tuple[int, int] | None  # retained epochs, first and last; ``None`` if none is committed
    # name → epoch, of those that stay until they are released
    kept_epochs: Mapping[str, int]
    pending: tuple[str, ...]  # renamings and drops of the next epoch, as text
    # plan, components: number of the physical plan, and component → its operators; -1 before the
    # first epoch
    plan: int
    components: Mapping[str, tuple[str, ...]]
    # source of Godwit's own → its identity, and its position
    positions: Mapping[str, tuple[str, Any]]
    states: tuple[StateSummary, ...]  # by operator and state
    # files, file_bytes: number and size of all files
    files: int
    file_bytes: int
    # unneeded_files, unneeded_bytes: those of them that the next collection removes
    unneeded_files: int
    unneeded_bytes: int


def inspect(storage: CheckpointStorage) -> CheckpointSummary:
    """Summarise a checkpoint from its records and lists of files; no state is read."""
    log = CommitLog.open_read_only(storage)
    retained = log.retained_epochs
    runs = [path for path in storage.list(RUNS) if number_in(path) is not None]
    file_sizes = [
        size_bytes
        for directory in ("", RUNS, FLOWS, PLANS, EDITS, COMMITS, MANIFESTS, BLOCKS)
        for path, size_bytes in storage.list(directory).items()
        if path == IDENTITY or number_in(path, temporary=True) is not None
    ]
    unneeded = unneeded_files(log)
    return CheckpointSummary(
        identity=log.identity,
        num_key_groups=log.chains.num_key_groups,
        run_id=load_record(storage, runs[-1], RunRecord).run_id if runs else "",
        epochs=(retained[0], retained[-1]) if retained else None,
        kept_epochs={name: own.epoch for name, own in log.kept_epochs().items()},
        pending=tuple(_pending_edits(log)),
        plan=log.plan,
        components={
            c.name: c.operators
            for plan in [log.physical_plan]
            if plan is not None
            for c in plan.components
        },
        positions=dict(_source_positions(log)),
        states=tuple(_state_summary(log, state) for state in log.chains.states),
        files=len(file_sizes),
        file_bytes=sum(file_sizes),
        unneeded_files=len(unneeded),
        unneeded_bytes=sum(unneeded.values()),
    )


def _source_positions(log: CommitLog) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yield ``(name, (identity, position))`` of each source that Godwit reads without Spark."""
    batch = None if log.latest is None else log.latest.last_batch
    if batch is not None:
        for name, position in batch.positions.items():
            yield name, (batch.identities[name], position)


def _pending_edits(log: CommitLog) -> Iterator[str]:
    """Yield a text for each renaming or deletion that the next start applies."""
    for edit in log.edits():
        yield from (f"{old} is renamed to {new}" for old, new in edit.renamed.items())
        yield from (f"{name} is dropped" for name in edit.dropped)


def _state_summary(log: CommitLog, state: StateId) -> StateSummary:
    """Return sizes, number of keys and chains of one state at the latest epoch."""
    chains = log.chains
    has_state = chains.versions(state) >= 0
    segments = chains.chains_of(state).num_segments[has_state]
    return StateSummary(
        operator=state.operator,
        state=state.state,
        removed=state.operator in log.version(log.flow).retained,
        key_groups=int(has_state.sum()),
        snapshot_rows=sum(snapshot.rows for snapshot in chains.snapshots(state)),
        snapshot_bytes=int(chains.chains_of(state).snapshot_bytes.sum()),
        changelog_bytes=int(chains.chains_of(state).changelog_bytes.sum()),
        mean_segments=float(segments.mean()) if len(segments) else 0.0,
        max_segments=int(segments.max(initial=0)),
        waiting=tuple(chains.waiting_key_groups(state.operator)),
    )
