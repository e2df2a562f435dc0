"""What a start needs of a checkpoint, looked at without a flow and without a row.

A verification reads every byte of every retained epoch.  This opens the checkpoint as a start does
and looks whether the files are there that the latest epoch stands on: its state, the rows that
wait, the output that may have to be delivered again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.findings import Finding
from godwit.checkpoint.paths import BLOCKS, COMMITS, padded
from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from godwit.checkpoint.records import BlockRef
    from godwit.checkpoint.storage.storage import CheckpointStorage

__all__ = ["lacking_blocks", "start_problems"]

_RESTORE = "Restore it from a copy of the checkpoint, or start with a new checkpoint."


def start_problems(storage: CheckpointStorage) -> tuple[Finding, ...]:
    """Find what would keep the checkpoint from being started, if anything.

    Reads the records that a start reads, and lists directories; blocks are not read.
    """
    try:
        log = CommitLog.open_read_only(storage)
        if log.latest is None:
            return ()
        chains, _ = log.chains, log.physical_plan
        log.versions_since(min(chains.written_under()))
        log.edits()
        blocks = {*chains.blocks(), *log.latest.blocks()}
        return tuple(
            Finding(file=block.file, problem=problem, remedy=_RESTORE)
            for block, problem in lacking_blocks(storage, blocks)
        )
    except GodwitError as error:
        found = Finding(
            file=str(error.context.get("file", "")), problem=error.message, remedy=error.remedy
        )
        return (found,)


def lacking_blocks(
    storage: CheckpointStorage, blocks: Iterable[BlockRef]
) -> Iterator[tuple[BlockRef, str]]:
    """Yield each block whose file is missing or too short, and what is wrong, once a file."""
    sizes = {
        entry.path: entry.size_bytes
        for directory in (BLOCKS, COMMITS)
        for entry in storage.list(directory)
    }
    seen: set[str] = set()
    for block in sorted(blocks, key=lambda block: (block.file, -block.offset)):
        if block.file in seen:
            continue
        seen.add(block.file)
        size = sizes.get(block.file)
        if size is None:
            yield block, "It is missing, though the latest epoch needs it."
        elif size < block.offset + padded(block.length):
            yield block, f"It has {size} bytes, fewer than the latest epoch needs of it."
