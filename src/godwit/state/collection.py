"""Collecting the files that nothing needs any more.

Problem: retries, speculation, crashes and superseded snapshots leave files behind, and nobody knows
at the time that they will not be needed.

Invariant: only files of committed epochs are deleted, and of those only what no retained epoch
needs.  What is retained is decided by the latest commit record, not here, so it does not matter
where a collection stops, in what order it deletes, or whether an older run still does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.state.paths import (
    BLOCKS,
    COMMITS,
    EDITS,
    FLOWS,
    IDENTITY,
    MANIFESTS,
    PLANS,
    commit_path,
    edit_path,
    flow_path,
    manifest_path,
    number_in,
    plan_path,
)

if TYPE_CHECKING:
    from godwit.state.commit_log import CommitLog
    from godwit.state.storage import FileEntry

__all__ = ["collect", "needed_files", "unneeded_files"]


def collect(log: CommitLog) -> list[str]:
    """Delete every file that no retained epoch needs.

    Reads one manifest and the records after it, and lists seven directories: call it every few
    epochs, not in each. It may run beside commits of the same log.

    Returns
    -------
    list of str
        Paths of the files that were deleted.
    """
    removed = [entry.path for entry in unneeded_files(log)]
    for path in removed:
        log.storage.delete(path)
    log.forget_manifests(before=log.anchor)
    return removed


def unneeded_files(log: CommitLog) -> list[FileEntry]:
    """Files that `collect` would delete, ordered by path."""
    latest = log.latest_epoch
    needed = needed_files(log)
    found = [
        entry
        for entry in log.storage.list(FLOWS)
        if (number := number_in(entry.path)) is not None
        and number < log.flow
        and entry.path not in needed
    ]
    found += [
        entry
        for entry in log.storage.list(PLANS)
        if (number := number_in(entry.path)) is not None
        and number < log.plan
        and entry.path not in needed
    ]
    for directory in (BLOCKS, COMMITS, MANIFESTS):
        for entry in log.storage.list(directory):
            epoch = number_in(entry.path, temporary=True)
            if epoch is None or epoch > latest or entry.path in needed:
                continue
            # A commit beside this may just be writing the manifest of the latest epoch.
            if epoch < latest or number_in(entry.path) is not None:
                found.append(entry)
    about = {edit_path(edit.number) for edit in log.edits()}
    found += [entry for entry in log.storage.list(EDITS) if entry.path not in about]
    return sorted(found)


def needed_files(log: CommitLog) -> set[str]:
    """Files that the retained epochs need: what `chains_at` reads, and every block they name.

    A manifest is named for every retained epoch, though few have one: another run may have written
    it since the log was opened.
    """
    retained = log.retained_epochs
    if not retained:
        return {IDENTITY}
    # Commits beside this may move on meanwhile; what they still need, these epochs do too.
    anchor = log.manifest_before(retained.start)
    needed = {IDENTITY}
    # Records are read before anything is counted: a number alone costs nothing to write.
    chains = log.replay(retained.start)
    needed.update(block.file for block in chains.blocks())
    for epoch in retained:
        record = log.load(epoch)
        needed.update(block.file for block in record.blocks())
        needed.add(plan_path(record.plan))
    needed.update(manifest_path(epoch) for epoch in (anchor, *retained) if epoch >= 0)
    needed.update(commit_path(epoch) for epoch in range(max(anchor, 0), retained.stop))
    written_under = {chains.flow, *(segment.flow for segment in chains.segments())}
    written_under.update(snapshot.flow for snapshot in chains.snapshots())
    # What was written under a version is read through every one that followed.
    needed.update(map(flow_path, log.versions_since(min(written_under))))
    return needed
