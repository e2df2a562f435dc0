"""Broadcast tables in lanes: read from the checkpoint, then kept up to date.

A process remembers the table of a committed epoch, with the local copies of its state.  A lane
without it, in a new process or on a new executor, reads the last snapshot and all segments after
it; others read the segments that they lack.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from godwit.checkpoint.blocks import read_batch, read_segment
from godwit.operators.broadcast import BroadcastTable

if TYPE_CHECKING:
    from godwit.checkpoint.entries import EntryLayout
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.messages import StateInstruction
    from godwit.operators.broadcast import Broadcast
    from godwit.store.local_store import LocalState

# copies of a table's state → version of the table, and contents
_known: weakref.WeakKeyDictionary[LocalState, tuple[int, BroadcastTable]]
_known = weakref.WeakKeyDictionary()


def committed_table(
    broadcast: Broadcast,
    instruction: StateInstruction,
    layout: EntryLayout,
    storage: CheckpointStorage,
    local: LocalState,  # its copies on the executor
) -> BroadcastTable:
    """Return a broadcast table as of the last committed epoch."""
    version, table = _known.get(local, (-1, BroadcastTable.empty(broadcast)))
    if table.declared != broadcast:  # cannot happen; the check is free
        version, table = -1, BroadcastTable.empty(broadcast)
    for snapshot in instruction.snapshots.values():
        if snapshot.version > version:
            entries = layout.read(read_batch(storage, snapshot.block), snapshot.flow)
            version, table = snapshot.version, BroadcastTable.empty(broadcast).updated_with(entries)
    for segment in sorted(instruction.segments, key=lambda segment: segment.epoch):
        if segment.epoch > version:
            entries = layout.read(read_segment(storage, segment), segment.flow)
            version, table = segment.epoch, table.updated_with(entries)
    _known[local] = version, table
    return table
