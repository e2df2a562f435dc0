"""Tables that are broadcast, as lanes have them: read from the checkpoint, then kept up to date.

What is remembered is the table of a committed epoch, one for each local store and table.  A lane
that has none, since its process is new or its executor was added, reads the last snapshot and all
segments after it; others read the segments that they lack.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from godwit.checkpoint.blocks import read_batch, read_segment
from godwit.operators.broadcast import BroadcastTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.entries import EntryLayout
    from godwit.checkpoint.records import StateId
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.messages import StateInstruction
    from godwit.operators.broadcast import Broadcast
    from godwit.store.local_store import LocalStore

_Remembered = dict["StateId", tuple[int, BroadcastTable]]  # table → its version, and contents
_known: weakref.WeakKeyDictionary[Any, _Remembered] = weakref.WeakKeyDictionary()


def committed_table(
    broadcast: Broadcast,
    instruction: StateInstruction,
    layouts: Mapping[str, EntryLayout],
    storage: CheckpointStorage,
    store: LocalStore,  # of the executor
) -> BroadcastTable:
    """Return a broadcast table as of the last committed epoch."""
    remembered = _known.setdefault(store, {})
    layout = layouts[broadcast.state]
    version, table = remembered.get(instruction.state, (-1, BroadcastTable.empty(broadcast)))
    if table.of != broadcast:  # another flow's of the same run cannot be; it costs nothing to see
        version, table = -1, BroadcastTable.empty(broadcast)
    for snapshot in instruction.snapshots.values():
        if snapshot.version > version:
            entries = layout.read(read_batch(storage, snapshot.block), snapshot.flow)
            version, table = snapshot.version, BroadcastTable.empty(broadcast).updated_with(entries)
    for segment in sorted(instruction.segments, key=lambda segment: segment.epoch):
        if segment.epoch > version:
            entries = layout.read(read_segment(storage, segment), segment.flow)
            version, table = segment.epoch, table.updated_with(entries)
    remembered[instruction.state] = version, table
    return table
