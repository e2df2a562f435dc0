"""Output of an operator over event time in one lane: windows that are over, or that grew."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from godwit.columns.arrays import values_of
from godwit.operators.windows.operator import Entries
from godwit.store.changes import EntryRange

if TYPE_CHECKING:
    import pyarrow as pa

    from godwit.columns.groups import Groups
    from godwit.engine.lane.window_meter import WindowMeter
    from godwit.operators.windows.moments import OperatorTime
    from godwit.operators.windows.operator import WindowedOperator
    from godwit.store.local_state import LocalState

__all__ = ["window_output"]


def window_output(
    operator: WindowedOperator,
    told: OperatorTime,
    local: LocalState,
    here: npt.NDArray[np.int64],
    *,
    groups: Groups | None,
    changed: Entries | None,
    meter: WindowMeter,
) -> pa.RecordBatch | None:
    """Give what an operator over event time emits in this epoch.

    Parameters
    ----------
    operator, told
        The operator, and the epoch's moments.
    local, here
        What the lane holds as of the last epoch, and its key groups.
    groups, changed
        What this epoch changed, if anything.
    meter
        Takes note of what it costs.
    """
    if operator.update:
        if groups is None or changed is None:
            return None
        return operator.grown(groups, changed, local.prior, told)
    if not operator.closes(told):
        return None
    cpu = time.process_time()
    first, end = operator.closing(told)
    held = local.scan(here, EntryRange(column=operator.pane_position, first=first, end=end))
    entries = Entries(hashes=held.hashes, keys=held.keys, values=held.values)
    if changed is not None:
        panes = values_of(changed.keys.column(operator.pane_position))
        closing = (panes >= first) & (panes < end)
        changed = changed.take(np.flatnonzero(closing)) if closing.any() else None
    meter.scanned(len(entries.hashes), cpu)
    closed = operator.close(entries, changed, told)
    meter.closed(closed)
    return closed.output
