"""``process(..., order="event_time")``: a key's rows in order of event time, timers in between.

Rows of a source arrive in about the order of their event times, and in as many of them at a time as
an epoch happens to have.  A function that gets them as they come may therefore give other results
for the same rows.  Here a row waits until the watermark is past it, since no row before it can
follow then; waiting rows are a state of the operator, an entry per row.  The function is called
once for the rows of a key that have one event time, and timers fire between these calls.

Invariant: the calls for a key depend on its rows that were not late, and on nothing else: not on
the order of arrival, on where epochs begin, or on when the watermark moved.  Rows of one event time
are all there before the first of them is processed, and are in the order of their columns.

Source: the sorting of input by event time in Flink's CEP operator (`CepOperator`), and its timers,
which fire once the watermark is past them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.checkpoint.evolution import StateDescription, columns_of
from godwit.checkpoint.records import StateId
from godwit.columns.arrays import column_of, numpy_type, values_of
from godwit.columns.groups import group_rows
from godwit.library.duplicates import merge_columns
from godwit.library.windows.operator import PANE, EventTimeOperator, number_rows
from godwit.model.key_groups import key_groups_of
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.declared import HELD
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput
from godwit.operators.ordering import starts_run
from godwit.store.changes import EntryRange, StateRows
from godwit.store.columns import StateSchema
from godwit.time.grid import BEGINNING, is_past

if TYPE_CHECKING:
    import numpy.typing as npt

    from godwit.checkpoint.evolution import StateUpgrade, WrittenState
    from godwit.operators.operator import Changed, OperatorInput
    from godwit.time.event_time import EpochTime, RowTime

_NUMBER: Final = f"{RESERVED_PREFIX}_number"
_MOMENT: Final = pa.timestamp("us", tz="UTC")


class InOrder(EventTimeOperator):
    """A function per key, wrapped so that it gets rows in order of event time."""

    emits = "the function's output, once the watermark has passed the rows"

    def __init__(self, inner: KeyedOperator, *, arriving: pa.Schema, time: RowTime) -> None:
        self.inner, self.arriving, self.time = inner, arriving, time
        self.name, self.function, self.output = inner.name, inner.function, inner.output
        self.failures_to = inner.failures_to
        self.row_class, self.output_class = inner.row_class, inner.output_class
        self.zone, self.repeatable, self.schema = inner.zone, inner.repeatable, inner.schema
        self.broadcasts, self.broadcast_inputs = inner.broadcasts, inner.broadcast_inputs
        key_names = inner.keys.names
        self.inputs = pa.schema([field for field in arriving if field.name not in key_names])
        extra_key_fields = [pa.field(PANE, _MOMENT), pa.field(_NUMBER, pa.int64())]
        self._held = StateSchema(
            keys=pa.schema([*inner.keys, *extra_key_fields]), values=self.inputs
        )

    @property
    def kind(self) -> str:  # type: ignore[override]  # that of an instance
        """Kind of the operator, which differs from that of the wrapped one."""
        return f"{self.inner.kind} in order of event time"

    @property
    def keys(self) -> pa.Schema:
        return self.inner.keys

    def table_key_group(self, num_key_groups: int) -> int:
        return self.inner.table_key_group(num_key_groups)

    # -- states --------------------------------------------------------------------------------

    @property
    def states(self) -> tuple[StateId, ...]:
        """States of the function, then the waiting rows."""
        return (*self.inner.states, StateId(self.name, HELD))

    def schema_of(self, state: str) -> StateSchema:
        return self._held if state == HELD else self.inner.schema_of(state)

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Describe a state of the function, or the waiting rows, for the checkpoint."""
        if state != HELD:
            return self.inner.describe_state(state)
        described = StateDescription(
            columns=columns_of(self._held.values),
            codec="arrow",
            entries=columns_of(list(self._held.keys)[len(self.keys) :]),
        )
        return msgspec.structs.replace(described, means=self.means)

    def check_stored_state(
        self, state: str, stored: StateDescription, today: StateDescription
    ) -> None:
        if state == HELD:
            super().check_stored_state(state, stored, today)
        else:
            self.inner.check_stored_state(state, stored, today)

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:
        return None if state == HELD else self.inner.values_from(state, written)

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:
        if state == HELD:
            return super().new_columns(state, count)
        return self.inner.new_columns(state, count)

    # -- time ----------------------------------------------------------------------------------

    @property
    def has_timers(self) -> bool:
        return self.inner.has_timers

    def is_late(self, times: npt.NDArray[np.int64], closed: int) -> npt.NDArray[np.bool_]:
        """Return a mask of event times that the watermark of earlier epochs has passed."""
        return is_past(times, closed)

    def entry_marks(
        self,
        rows: pa.RecordBatch,  # noqa: ARG002
        times: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        return times

    def with_panes(self, rows: pa.RecordBatch, panes: pa.Array) -> pa.RecordBatch:  # noqa: ARG002
        """Return the rows as they are sent: key columns first."""
        return self.insert_identity(rows)

    def closes(self, time: EpochTime) -> bool:
        """Return whether waiting rows may be due in this epoch."""
        return time.until > time.closed

    def needs_state(self, time: EpochTime) -> bool:
        return time.due or self.closes(time)

    def emitted_by(self, moment: int) -> int:
        """Return the first watermark that has passed a row with the event time `moment`."""
        return moment + 1

    def last_emitted(self, newest: int) -> int:
        """Return `newest`: nothing that a row emits happens after it."""
        return newest

    def first_needed_pane(self, closed: int) -> int:  # noqa: ARG002
        """Return `BEGINNING`: rows are removed one by one, not in bulk."""
        return BEGINNING

    def expired_entries(self, closed: int) -> None:  # type: ignore[override]  # noqa: ARG002
        """Return ``None``, since entries are removed one by one."""
        return

    # -- an epoch ------------------------------------------------------------------------------

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Call the function for the rows that are due, in order; store the others."""
        time_limit, arrived = data.time.until, self._waiting_entries(data)
        is_due = is_past(self._times_of(arrived), time_limit)
        due_rows, later_rows = (arrived.take(np.flatnonzero(mask)) for mask in (is_due, ~is_due))
        waiting_rows = due_rows.take(np.empty(0, np.int64))
        if self.closes(data.time):
            position = len(self.keys)
            waiting_rows = data.states[HELD].scan(EntryRange(column=position, end=time_limit))
            due_rows = waiting_rows.followed_by(due_rows)
        order = self._in_order(due_rows)
        due_rows = due_rows.take(order)
        key_names = self.keys.names
        rows = StateRows(
            hashes=due_rows.hashes,
            keys=due_rows.keys.select(key_names),
            values=due_rows.values.select(self.inner.inputs.names),
        )
        states = {name: view for name, view in data.states.items() if name != HELD}
        output = self.inner.process(
            replace(data, rows=rows, states=states, moments=self._times_of(due_rows))
        )
        changed = dict(output.changed)
        if len(later_rows.hashes) or len(waiting_rows.hashes):
            changed[HELD] = self._entry_changes(later_rows, waiting_rows, data.num_key_groups)
        groups = output.groups
        if groups is None and len(data.rows.hashes):
            groups = group_rows(data.rows.hashes, data.rows.keys, data.num_key_groups)
        return replace(output, changed=changed, groups=groups)

    def _waiting_entries(self, data: OperatorInput) -> StateRows:
        """Return the epoch's rows as waiting entries, with event times and numbers."""
        keys, count = data.rows.keys, len(data.rows.hashes)
        column = self.time.column
        batch = keys if column in keys.schema.names else data.rows.values
        times = values_of(batch.column(column)) - int(self.time.is_end)
        zeros = column_of(np.zeros(count, np.int64), None, pa.int64())
        entries = pa.RecordBatch.from_arrays(
            [*keys.columns, column_of(times, None, _MOMENT), zeros], schema=self._held.keys
        )
        rows = StateRows(hashes=data.rows.hashes, keys=entries, values=data.rows.values)
        return number_rows(rows, _NUMBER, data.epoch)

    def _times_of(self, entries: StateRows) -> npt.NDArray[np.int64]:
        """Return the event times of rows."""
        times: npt.NDArray[np.int64] = values_of(entries.keys.column(len(self.keys)))
        return times

    def _in_order(self, rows: StateRows) -> npt.NDArray[np.int64]:
        """Return the positions of rows in order of event time; of one time, by their columns."""
        times = self._times_of(rows)
        order = np.argsort(times, kind="stable")
        if len(order) < 2:
            return order
        starts_time = starts_run(times[order])
        is_alone = starts_time & np.append(starts_time[1:], True)
        tied_positions = np.flatnonzero(~is_alone)
        if len(tied_positions):
            tied_rows = order[tied_positions]
            order[tied_positions] = tied_rows[
                _by_columns(times[tied_rows], self._distinguishing_columns(rows.take(tied_rows)))
            ]
        return order

    def _distinguishing_columns(self, rows: StateRows) -> pa.RecordBatch:
        """Return the columns of rows that tell them apart: the key's, and the function's."""
        own, seen = rows.keys.select(self.keys.names), rows.values.select(self.inner.inputs.names)
        return merge_columns(own, seen, pa.schema([*own.schema, *seen.schema]))

    def _entry_changes(self, later: StateRows, waiting: StateRows, num_key_groups: int) -> Changed:
        """Return the entries to add, and those to remove since their rows were processed."""
        rows = later.followed_by(waiting)
        key_groups = key_groups_of(rows.hashes, num_key_groups)
        order = np.argsort(key_groups, kind="stable")
        removed = np.arange(len(order)) >= len(later.hashes)
        rows = replace(rows, removed=removed if len(waiting.hashes) else None)
        return rows.take(order), key_groups[order]


def _by_columns(times: npt.NDArray[np.int64], rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the positions of rows by time, then by each column; nulls last.

    Floats are ordered by their bits, those below the sign reversed where it is set: in order of the
    numbers, with both zeros and different NaNs distinct.
    """
    columns: list[pa.Array] = [pa.array(times)]
    for column in rows.columns:
        if pa.types.is_floating(column.type):
            dtype = numpy_type(column.type)
            assert dtype is not None, "floats have one"
            bits = values_of(column).view(f"i{dtype.itemsize}")
            bits ^= (bits >> (8 * dtype.itemsize - 1)) & np.iinfo(bits.dtype).max
            column = pc.if_else(column.is_valid(), pa.array(bits), None)  # noqa: PLW2901
        columns.append(column)
    names = [f"c{i}" for i in range(len(columns))]
    table = pa.Table.from_arrays(columns, names)
    order: npt.NDArray[np.int64] = pc.sort_indices(
        table, sort_keys=[(name, "ascending") for name in names]
    ).to_numpy()
    return order.astype(np.int64)
