"""Operators that ask for the entries that their rows meet, in one lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.operators.windows.operator import Entries

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from godwit.checkpoint.entries import StateRows
    from godwit.columns.groups import Groups
    from godwit.engine.lane.rows import LaneRows
    from godwit.engine.lane.window_meter import WindowMeter
    from godwit.operators.settling import SettlingOperator
    from godwit.operators.windows.moments import OperatorTime
    from godwit.store.changes import Contents, EntryRange
    from godwit.store.local_state import LocalState

__all__ = ["Held", "settle"]


@dataclass(frozen=True, slots=True)
class Held:
    """A `godwit.operators.settling.HeldEntries`: what the lane holds of its own key groups."""

    local: LocalState
    here: npt.NDArray[np.int64]

    @property
    def num_key_groups(self) -> int:
        """Key groups of the operator."""
        return self.local.num_key_groups

    def find(
        self, keys: pa.RecordBatch, key_groups: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Find entries by what tells them apart."""
        return self.local.prior(keys, key_groups)

    def scan(self, part: EntryRange) -> Contents:
        """Copy out the entries of a range."""
        return self.local.scan(self.here, part)


def settle(
    operator: SettlingOperator,
    rows: LaneRows,
    told: OperatorTime,
    local: LocalState,
    here: npt.NDArray[np.int64],
    *,
    meter: WindowMeter,
) -> tuple[Groups, StateRows, npt.NDArray[np.int32], pa.RecordBatch] | None:
    """Let the rows of an epoch meet what is held.

    Parameters
    ----------
    operator, rows
        The operator, and rows that have arrived for it.
    told
        The epoch's moments.
    local, here
        What the lane holds as of the last epoch, and its key groups.
    meter
        Takes note of windows that were closed.

    Returns
    -------
    tuple or None
        The keys that were looked at; entries to write, and the key group of each; output. ``None``
        if there is nothing to do.
    """
    arrived = Entries(hashes=rows.hashes, keys=rows.keys, values=rows.columns)
    done = operator.settle(arrived, Held(local, here), told)
    if done is None:
        return None
    if done.closed is not None:
        meter.closed(done.closed)
    return done.groups, done.changed, done.key_groups, done.output
