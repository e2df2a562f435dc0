"""Timers and expiries in one lane: which keys have one that is due, and when the next one is.

Both are found by a scan of one column of the local store; entries are read of those keys only that
have something to do.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import values_of
from godwit.columns.groups import Groups, group_rows
from godwit.operators.windows.moments import Due
from godwit.store.changes import EntryRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.engine.lane.rows import LaneRows
    from godwit.operators.timers import TimedProcess
    from godwit.operators.windows.moments import OperatorTime
    from godwit.store.changes import Contents
    from godwit.store.local_state import LocalState

__all__ = ["group_with", "next_due", "with_due_keys"]


def with_due_keys(
    operator: TimedProcess,
    rows: LaneRows,
    told: OperatorTime,
    local: LocalState,
    here: npt.NDArray[np.int64],
) -> tuple[Groups, pa.RecordBatch]:
    """Group rows by key, and give the keys: those without rows, too, that have something due.

    Parameters
    ----------
    operator, rows
        The operator, and rows that have arrived for it.
    told
        The epoch's moments.
    local, here
        What the lane holds as of the last epoch, and its key groups.
    """
    columns = operator.due_columns(told).items() if told.due else ()
    due = [local.scan(here, EntryRange(column=column, end=limit + 1)) for column, limit in columns]
    groups, keys, _ = group_with(rows, due)
    return groups, keys


def group_with(
    rows: LaneRows, entries: Sequence[Contents]
) -> tuple[Groups, pa.RecordBatch, list[list[int]]]:
    """Group rows, and entries of state, by key.

    Returns
    -------
    groups, keys
        Groups of the rows, some of which have none; and the keys.
    of_entries
        Which key each entry is of.
    """
    own = list(range(len(rows.operator.keys)))
    hashes = np.concatenate([rows.hashes, *(some.hashes for some in entries)])
    every = pa.concat_batches([rows.keys, *(some.keys.select(own) for some in entries)])
    groups = group_rows(hashes, every, rows.num_key_groups)
    of_rows = Groups(
        count=groups.count,
        of_row=groups.of_row[: len(rows.hashes)],
        first_row=groups.first_row,
        hashes=groups.hashes,
        key_groups=groups.key_groups,
    )
    ends = np.cumsum([len(rows.hashes), *(len(some.hashes) for some in entries)])
    of_entries = [groups.of_row[first:end].tolist() for first, end in itertools.pairwise(ends)]
    return of_rows, every.take(pa.array(groups.first_row)), of_entries


def next_due(
    operator: TimedProcess,
    told: OperatorTime,
    local: LocalState,
    here: npt.NDArray[np.int64],
    changed: pa.RecordBatch | None,
) -> Due:
    """Say when timers or expiries are due next: of all keys, if the epoch looked for them.

    Parameters
    ----------
    changed
        State columns of the entries that this epoch changed, if any.
    """
    earliest = Due()
    first = len(operator.schema.keys)
    for column, limit in operator.due_columns(told).items():
        if told.due:
            earliest |= operator.due_of(column, local.least(here, column, after=limit))
        if changed is not None and changed.num_rows:
            moments = values_of(changed.column(column - first))
            earliest |= operator.due_of(column, int(moments.min()))
    return earliest
