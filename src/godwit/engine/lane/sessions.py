"""Sessions in one lane: those that rows made meet those of the state, and some are over.

What is looked for grows with the keys that have rows or whose sessions are over; which those are is
found by one scan of one column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.entries import StateRows
from godwit.columns.groups import Groups, group_rows
from godwit.operators.windows.operator import Entries
from godwit.store.changes import EntryRange

if TYPE_CHECKING:
    from godwit.engine.lane.rows import LaneRows
    from godwit.operators.windows.moments import OperatorTime
    from godwit.operators.windows.sessions import SessionCompute
    from godwit.store.local_state import LocalState

__all__ = ["settle_sessions"]


def settle_sessions(
    operator: SessionCompute,
    rows: LaneRows,
    told: OperatorTime,
    local: LocalState,
    here: npt.NDArray[np.int64],
) -> tuple[Groups, StateRows, npt.NDArray[np.int32], pa.RecordBatch] | None:
    """Let the rows of an epoch meet the sessions of their keys, and close what is over.

    Parameters
    ----------
    operator, rows
        The operator, and rows that have arrived for it.
    told
        The epoch's moments.
    local, here
        What the lane holds as of the last epoch, and its key groups.

    Returns
    -------
    tuple or None
        The keys that were looked at; entries to write, and the key group of each; output. ``None``
        if there is nothing to do.
    """
    arrived = rows.combined()
    names = operator.keys.names
    hashes, keys = [arrived.hashes], [arrived.batch.select(names)]
    if operator.closes(told):
        over = EntryRange(column=operator.last_position, end=operator.last_before(told.until))
        found = local.scan(here, over)
        hashes.append(found.hashes)
        keys.append(found.keys.select(names))
    every = pa.concat_batches(keys)
    if not every.num_rows:
        return None
    groups = group_rows(np.concatenate(hashes), every, local.num_key_groups)
    distinct = every.take(pa.array(groups.first_row))
    held, of_key, slots = _held(operator, groups, distinct, local)
    own = Entries(
        hashes=np.concatenate([held.hashes, arrived.hashes]),
        keys=pa.concat_batches([held.keys, arrived.keys]),
        values=pa.concat_batches([held.values, arrived.columns]),
    )
    key = np.concatenate([of_key, groups.of_row[: len(arrived.hashes)]])
    settled = operator.settle(own, key, slots, told)
    changed = StateRows(
        hashes=settled.entries.hashes,
        keys=settled.entries.keys,
        values=settled.entries.values,
        removed=settled.removed if settled.removed.any() else None,
    )
    return groups, changed, groups.key_groups[settled.key], settled.output


def _held(
    operator: SessionCompute, groups: Groups, keys: pa.RecordBatch, local: LocalState
) -> tuple[Entries, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All sessions of some keys, the key of each, and its slot."""
    pending, first, width = np.arange(groups.count), 0, 1
    entries, values, of_key, slots = [], [], [], []
    while pending.size:
        # Slots of a key have no gaps: twice as many are looked for at a time, until one is free.
        key = np.repeat(pending, width)
        slot = np.tile(np.arange(first, first + width), len(pending))
        looked_for = operator.in_slots(keys.take(pa.array(key)), slot)
        known, prior = local.prior(looked_for, groups.key_groups[key])
        there = pa.array(np.flatnonzero(known))
        entries.append(looked_for.take(there))
        values.append(prior.take(there))
        of_key.append(key[known])
        slots.append(slot[known])
        pending = pending[known[width - 1 :: width]]
        first, width = first + width, 2 * width
    key = np.concatenate(of_key)
    held = Entries(
        hashes=groups.hashes[key],
        keys=pa.concat_batches(entries),
        values=pa.concat_batches(values),
    )
    return held, key, np.concatenate(slots)
