"""A windowed aggregate as two operators: one computes partials, one consolidates them.

::

    rows ──▶ compute part ──partials of windows that close──▶ consolidate part ──▶ windows
             state: panes, in two slots per key group         state: none

The compute part is a `WindowedCompute` that emits the partials of closing windows, and the
consolidate part merges them.  Together they give the result of one `WindowedCompute`, whether they
share a component (rows stay in the lane) or not (an exchange lies between them).  The state of the
compute part can be merged from partial states, so the compute part is a flexible component.

Invariant: all partials of a window arrive in the epoch that closes it, so the consolidate part
keeps nothing from one epoch to the next.

Source: compute and consolidate, Madsen et al. (Enorm) §4.2, Figure 5; split and combine, §5.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import values_of
from godwit.columns.groups import group_rows
from godwit.library.windows.compute import WindowedCompute
from godwit.library.windows.operator import PANE, EventTimeOperator
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.operator import OperatorOutput, TwoPhase
from godwit.store.changes import StateRows
from godwit.time.event_time import RowTime, WindowWork
from godwit.time.grid import BEGINNING

if TYPE_CHECKING:
    import numpy.typing as npt

    from godwit.operators.operator import OperatorInput
    from godwit.time.event_time import Arrivals, EpochTime

_SECOND: Final = "_second"
"""Suffix of the name of the second slots of a windowed aggregate's compute part."""
_SLOT: Final = pa.field(f"{RESERVED_PREFIX}_slot", pa.int8())


def second_slots(operator: str) -> str:
    """Return the name of the second compute operator of a two-phase windowed aggregate.

    A migration without state moves the rows of a key group from one of the two to the other.
    """
    return f"{operator}{_SECOND}"


class ComputePart(WindowedCompute):
    """Compute part: keeps panes, and emits the partials of windows that close.

    It is one of the two slots of every key group (`godwit.operators.slots`); the first has
    the name of the windowed aggregate, and hence its state.
    """

    emits = "partial states of windows that have closed"
    reads_touched = False

    def __init__(self, whole: WindowedCompute, slot: int = 0) -> None:
        vars(self).update(vars(whole))  # its aggregates are bound, and stay so
        self.slot = slot
        if slot:
            self.name, self.part_of = second_slots(whole.name), whole.name
        self.output = pa.schema([*self.schema.keys, *self.schema.values])

    @property
    def kept(self) -> None:
        """No windows are retained: they are built by the consolidate part."""
        return None

    @property
    def two_phase(self) -> TwoPhase:
        return _role_of_part(self, self.part_of or self.name, self.slot)

    def output_of_closed(
        self,
        entries: StateRows,
        changed: StateRows | None,
        time: EpochTime,
        work: WindowWork,  # noqa: ARG002 - the other half merges
    ) -> pa.RecordBatch:
        """Return the partial states of windows that close, one per key and pane."""
        if changed is not None:
            entries = _newest_entries(entries.followed_by(changed), len(self.keys))
        pieces, piece_of = self.pieces(entries, time)
        in_closing_windows = np.flatnonzero(piece_of < pieces.count)
        if len(in_closing_windows) < len(entries.hashes):
            entries = entries.take(in_closing_windows)
        columns = [*entries.keys.columns, *entries.values.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)


class ConsolidatePart(EventTimeOperator):
    """Consolidate part: merges partials by key into windows."""

    kind = "windowed consolidate"
    emits = "windows that have closed"

    def __init__(
        self,
        name: str,
        whole: WindowedCompute,
        *,
        measured: bool = False,  # whether costs say if it shares a component with the other half
    ) -> None:
        self.name, self.whole, self.measured, self.part_of = name, whole, measured, whole.name
        self.slots = (whole.name, second_slots(whole.name))  # the operators that are its slots
        self.schema, self.output = whole.schema, whole.output
        self.inputs = pa.schema([*whole.schema.values, _SLOT])
        self.arriving = pa.schema([*whole.schema.keys, *whole.schema.values])
        self.time, self.grid = RowTime(column=PANE), whole.grid
        self.partition_by, self.partition_stated = whole.partition_by, whole.partition_stated

    @property
    def two_phase(self) -> TwoPhase:
        return _role_of_part(self, self.part_of, None)

    def unify_columns(self, rows: pa.RecordBatch, input_number: int) -> pa.RecordBatch:
        """Add a column to partial states: which of the two compute operators (0, 1) sent them."""
        slot = pa.array(np.full(rows.num_rows, input_number, np.int8))
        return rows.append_column(_SLOT, slot)

    def arrange(
        self,
        rows: pa.RecordBatch,
        time: EpochTime,  # noqa: ARG002
        input_number: int = 0,  # noqa: ARG002
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals | None]:
        """Return partial states unchanged: the compute part assigned panes and checked the rows."""
        return rows, None, None

    def first_needed_pane(self, closed: int) -> int:  # noqa: ARG002
        """Return `BEGINNING`: the operator has no state."""
        return BEGINNING

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Merge partial states into windows, and emit these."""
        rows = data.rows
        if not len(rows.hashes):
            return OperatorOutput()
        own = rows.keys.select(self.keys.names)
        groups = group_rows(rows.hashes, own, data.num_key_groups)
        partials = self._merge_partial_states(rows, groups.key_groups[groups.of_row], data.time)
        work = WindowWork()
        output = self.whole.output_of_closed(partials, None, data.time, work)
        work.keys = 0  # the compute part counts them
        return OperatorOutput(
            output=output,
            groups=groups,
            windows=work if self.whole.may_duplicate else None,
            duplicate_partials=len(rows.hashes) - len(partials.hashes),
        )

    def _merge_partial_states(
        self, arrived: StateRows, key_groups: npt.NDArray[np.int32], time: EpochTime
    ) -> StateRows:
        """Merge partial states of a key and pane from both compute operators, older ones first."""
        slot = values_of(arrived.values.column(_SLOT.name))
        values = arrived.values.select(self.schema.values.names)
        partials = StateRows(hashes=arrived.hashes, keys=arrived.keys, values=values)
        if time.slots is None:
            return partials  # one slot has a key and pane once
        return merge_slots(self.whole, partials, slot, time.slots.active[key_groups])


def merge_slots(
    whole: WindowedCompute,
    partials: StateRows,
    slot: npt.NDArray[np.int8],
    active: npt.NDArray[np.int8],
) -> StateRows:
    """Merge partial states of a key and pane from both slots, older ones first.

    `whole`: their aggregate. `slot`, `active`: shape ``(n,)``: the slot of each partial state, and
    the slot that takes rows of its key group.
    """
    if not slot.any() or slot.all():
        return partials
    partials = partials.take(np.argsort(slot == active, kind="stable"))
    groups = group_rows(partials.hashes, partials.keys, 1, len(whole.keys))
    if groups.count == len(slot):
        return partials
    return StateRows(
        hashes=groups.hashes,
        keys=partials.keys.take(pa.array(groups.first_row)),
        values=whole.merge_partials(groups, partials.values),
    )


def _role_of_part(part: EventTimeOperator, first: str, slot: int | None) -> TwoPhase:
    """Return an operator's role; `first`: name of the first of the two compute operators.

    `slot`: number of the operator among these; ``None``: it consolidates.
    """
    return TwoPhase(
        first=first,
        second=second_slots(first),
        slot=slot,
        grid=part.grid,
        pane_position=part.pane_position,
    )


def _newest_entries(entries: StateRows, num_hashed: int) -> StateRows:
    """Return entries without those that a later entry of the same identity replaces."""
    groups = group_rows(entries.hashes, entries.keys, 1, num_hashed)
    if groups.count == len(entries.hashes):
        return entries
    return entries.take(groups.order[groups.starts[1:] - 1])
