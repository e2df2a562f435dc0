"""Output of an operator over event time in one lane: windows that are over, or that grew.

What this epoch changed is not in the local store yet, so it is put in the place of what is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.dataflow.groups import group_rows
from godwit.dataflow.windows.operator import Entries
from godwit.state.changes import EntryRange

if TYPE_CHECKING:
    from godwit.dataflow.groups import Groups
    from godwit.dataflow.windows.moments import OperatorTime
    from godwit.dataflow.windows.operator import WindowedOperator
    from godwit.state.local_state import LocalState

__all__ = ["window_output"]


def window_output(
    operator: WindowedOperator,
    told: OperatorTime,
    local: LocalState,
    here: npt.NDArray[np.int64],
    *,
    groups: Groups | None,
    changed: Entries | None,
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
    """
    if operator.update:
        if groups is None or changed is None:
            return None
        return operator.grown(groups, changed, local.prior, told)
    if not operator.closes(told):
        return None
    first, end = operator.closing(told)
    held = local.scan(here, EntryRange(column=operator.pane_position, first=first, end=end))
    entries = Entries(hashes=held.hashes, keys=held.keys, values=held.values)
    if changed is not None:
        entries = _newest(operator, entries, changed, local.num_key_groups)
    return operator.close(entries, told)


def _newest(
    operator: WindowedOperator, held: Entries, changed: Entries, num_key_groups: int
) -> Entries:
    """Put changed entries in the place of those that were held."""
    hashes = np.concatenate([held.hashes, changed.hashes])
    keys = pa.concat_batches([held.keys, changed.keys])
    values = pa.concat_batches([held.values, changed.values])
    groups = group_rows(hashes, keys, num_key_groups, len(operator.keys))
    newest = groups.order[groups.starts[1:] - 1]
    taken = pa.array(newest)
    return Entries(hashes=hashes[newest], keys=keys.take(taken), values=values.take(taken))
