"""The contract between an operator whose rows meet others by time, and the lane that runs it.

Other operators are handed the state of the keys whose rows came.  Which entries rows meet here
follows from their moments, so such an operator asks for them itself: by what tells entries apart,
or by a range of one column.

Invariant: it asks for no pane that is gone (`WindowedOperator.gone_before`), since the local store
may have dropped it or not; and what it answers depends on nothing but rows, state and the epoch's
moments.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.entries import StateRows
from godwit.checkpoint.evolution import StateDescription, columns_of
from godwit.columns.arrays import values_of
from godwit.operators.windows.description import describe_windows, windows_of
from godwit.operators.windows.operator import Entries, WindowedOperator

if TYPE_CHECKING:
    from godwit.columns.groups import Groups
    from godwit.operators.operator import Advance, Step
    from godwit.operators.windows.moments import OperatorTime
    from godwit.operators.windows.operator import Closed
    from godwit.store.changes import Contents, EntryRange

__all__ = ["HeldEntries", "Settled", "SettlingOperator"]


class HeldEntries(Protocol):
    """State of a lane's key groups, as of the last epoch."""

    @property
    def num_key_groups(self) -> int:
        """Key groups of the operator."""

    def find(
        self, keys: pa.RecordBatch, key_groups: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Find entries by what tells them apart: which are there, and their state columns."""

    def scan(self, part: EntryRange) -> Contents:
        """Copy out the entries of a range."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settled:
    """What an epoch makes of some keys.

    Attributes
    ----------
    groups
        The keys that were looked at, by rows that came.
    changed, key_groups
        Entries to write, ordered by key group, and the key group of each.
    output
        Rows of the operator's ``output`` schema.
    closed
        What closing windows took, where that is measured.
    """

    groups: Groups
    changed: StateRows
    key_groups: npt.NDArray[np.int32]
    output: pa.RecordBatch
    closed: Closed | None = None

    @classmethod
    def of(
        cls,
        groups: Groups,
        *,
        key: npt.NDArray[np.int64],
        keys: pa.RecordBatch,
        values: pa.RecordBatch,
        output: pa.RecordBatch,
        removed: npt.NDArray[np.bool_] | None = None,
        closed: Closed | None = None,
    ) -> Settled:
        """Put entries in order.

        Parameters
        ----------
        key
            Shape ``(n,)``: which of `groups` each entry is of.
        keys, values
            n entries.
        removed
            Shape ``(n,)``: which of them are gone.
        """
        order = np.argsort(key, kind="stable")
        taken, key = pa.array(order), key[order]
        some = removed is not None and removed.any()
        return cls(
            groups=groups,
            changed=StateRows(
                hashes=groups.hashes[key],
                keys=keys.take(taken),
                values=values.take(taken),
                removed=removed[order] if removed is not None and some else None,
            ),
            key_groups=groups.key_groups[key],
            output=output,
            closed=closed,
        )


class SettlingOperator(WindowedOperator):
    """An operator over event time that asks for the entries that its rows meet."""

    def is_late(self, times: npt.NDArray[np.int64], closed: int) -> npt.NDArray[np.bool_]:
        """Whether rows are older than the watermark that earlier epochs acted on."""
        late: npt.NDArray[np.bool_] = times < closed
        return late

    @abstractmethod
    def settle(self, arrived: Entries, held: HeldEntries, told: OperatorTime) -> Settled | None:
        """Let rows meet what is held, and settle what is due.

        Parameters
        ----------
        arrived
            N rows in order of arrival: what tells their entries, and the operator's ``inputs``.
        held
            The lane's state.
        told
            The epoch's moments.

        Returns
        -------
        Settled or None
            ``None`` if there was nothing to do.
        """

    def advance(self, step: Step) -> Advance:
        """Nothing is done apart from `settle`."""
        raise NotImplementedError

    def close(self, held: Entries, changed: Entries | None, told: OperatorTime) -> pa.RecordBatch:
        """Nothing closes apart from `settle`."""
        raise NotImplementedError

    def describe_state(self) -> StateDescription:
        """Say what the entries are, and what they mean."""
        described = StateDescription(columns=columns_of(self.schema.values), codec="arrow")
        return describe_windows(described, self, windows_of(self.grid))

    def moments_of(self, rows: Entries, column: str) -> npt.NDArray[np.int64]:
        """Values of a column of moments, wherever it stands."""
        batch = rows.keys if column in rows.keys.schema.names else rows.values
        return values_of(batch.column(batch.schema.get_field_index(column)))
