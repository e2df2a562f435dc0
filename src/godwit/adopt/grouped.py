"""Aggregates per group, with the semantics of Spark's streaming aggregates.

A window is an ordinary group key in Spark, and a watermark removes groups: those whose window ends,
or whose event time lies, at the watermark or before.

===========  =====================  =============================  ============================
output mode  a batch emits          late rows                      groups are removed
===========  =====================  =============================  ============================
update       groups with rows       dropped                        once the watermark is there
append       groups it removes      dropped                        once the watermark is there
complete     all groups             count (the watermark is idle)  never
===========  =====================  =============================  ============================

Batch *e* drops rows by the watermark that batch *e - 1* removed groups by, and removes groups by
the watermark that the rows before it left (`godwit.engine.event_time`, whose rule is Spark's).  A
batch without rows runs whenever the watermark has advanced.  Without group keys there is one group,
which comes out of every batch, also out of one without rows.

Source: `StateStoreSaveExec` and `WatermarkSupport` of Spark.
"""

from __future__ import annotations

import time as cpu_clock
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.columns.types import KEY_OF_ALL
from godwit.library.compute import ComputeOperator
from godwit.library.windows.operator import PANE, EventTimeOperator
from godwit.model.key_groups import key_groups_of
from godwit.operators.operator import OperatorOutput
from godwit.store.changes import StateRows
from godwit.time.event_time import Arrivals, RowTime
from godwit.time.grid import END, PaneGrid, TimeWindow

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from godwit.operators.aggregate import Aggregate
    from godwit.operators.operator import OperatorInput
    from godwit.plan.nodes import OutputMode
    from godwit.time.event_time import EpochTime

_EPOCH: Final = 0  # Spark's first watermark, in microseconds
_ENTRY: Final = TimeWindow(length_us=1, every_us=1)
"""A group is an entry a microsecond before the watermark that removes it."""


class GroupedAggregates(ComputeOperator):
    """Aggregates per group of a query without a watermark."""

    kind = "compute"

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        inputs: pa.Schema,
        aggregates: Mapping[str, Aggregate],
        mode: OutputMode,
    ) -> None:
        super().__init__(name=name, keys=keys, inputs=inputs, aggregates=aggregates, mode=mode)

    def reads_all_keys(self, time: EpochTime) -> bool:
        """Return whether an epoch reads the state of keys without rows."""
        return self.is_global or super().reads_all_keys(time)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Update the groups of the batch's rows; emit these groups, or all (complete)."""
        processed = super().process(data)
        if not self.is_global or _has_rows(processed):
            return processed
        return OperatorOutput(output=whole_result(self, data))


class GroupsInTime(EventTimeOperator, ComputeOperator):
    """Aggregates per group of a query with a watermark, which removes groups with a time."""

    kind = "groups in time"

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,  # group columns but for the one that the watermark removes groups by
        arriving: pa.Schema,  # columns of the rows as they come: key columns first
        time: str,  # column of the row's event time, which the watermark follows
        # column by which the watermark removes groups: end of a window, or an event time
        removed_by: str | None,
        only_time: str | None,  # column that is true in rows that move the watermark and do no more
        inputs: pa.Schema,
        aggregates: Mapping[str, Aggregate],
        append: bool,  # groups are emitted when they are removed, and not when they have rows
    ) -> None:
        moment = arriving.field(removed_by or time).type
        entry = pa.schema([*keys, pa.field(PANE, moment)])
        super().__init__(name=name, keys=entry, inputs=inputs, aggregates=aggregates, narrow=False)
        self.time, self.arriving, self.grid = RowTime(column=time), arriving, PaneGrid.of(_ENTRY)
        self.removed_by, self.only_time, self.update = removed_by, only_time, not append
        results = list(self.output)[len(entry) :]
        removal = [] if removed_by is None else [pa.field(removed_by, moment)]
        self.output = pa.schema([*keys, *removal, *results])

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """The group columns, which identify a row of the result."""
        removal = [] if self.removed_by is None else [self.removed_by]
        return ((*self.keys.names, *removal),)

    @property
    def _is_one_group(self) -> bool:
        """True if all rows form one group, which is also emitted in batches without rows."""
        return self.is_global and self.removed_by is None

    # -- rows on their way ---------------------------------------------------------------------

    def arrange(
        self,
        rows: pa.RecordBatch,
        time: EpochTime,
        input_number: int = 0,  # noqa: ARG002
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals | None]:
        """Assign rows to groups, and leave out those whose group earlier batches have removed."""
        if self.only_time is not None:
            rows = only_rows(rows, self.only_time)
        panes = self._removal_times(rows)
        late = values_of(panes) < max(time.closed, _EPOCH)
        if late.any():
            panes = panes.filter(pa.array(~late))
        rows, left_out, arrivals = leave_out(rows, late, self)
        return self.with_panes(rows, panes), left_out, arrivals

    def _removal_times(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the event time of each row's entry: just before the watermark that removes it."""
        moment = self.schema.keys.field(self.pane_position).type
        if self.removed_by is None:
            return column_of(np.full(rows.num_rows, END), None, moment)
        column = rows.column(self.removed_by)
        ends, mask = values_of(column) - 1, mask_of(column)
        return column_of(ends if mask is None else np.where(mask, ends, END), None, moment)

    # -- time ----------------------------------------------------------------------------------

    def closes(self, time: EpochTime) -> bool:
        """Return whether the watermark has advanced, so that a batch runs without rows."""
        return time.until > max(time.closed, _EPOCH)

    def needs_state(self, time: EpochTime) -> bool:
        """Return whether the batch emits groups without rows."""
        return self._is_one_group or (not self.update and self.closes(time))

    def reads_all_keys(self, time: EpochTime) -> bool:
        """Return whether the batch emits groups without rows."""
        return self.needs_state(time)

    def first_needed_pane(self, closed: int) -> int:
        """Return the first entry that the watermark `closed` does not remove."""
        return max(closed, _EPOCH)

    # -- a batch -------------------------------------------------------------------------------

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Update the groups of the batch's rows; emit them, or the groups that it removes."""
        groups, changed, output, closing_ms = None, None, None, 0.0
        if len(data.rows.hashes):
            groups, keys = data.grouped(self.pane_position)
            rows = data.rows.values
            rows = self.merge_partials(groups, rows) if data.is_partial else rows
            is_stored, prior = data.state.find(keys, groups.key_groups)
            state = self.update_states(
                groups, keys, rows, is_stored, prior, are_partial=data.is_partial
            )
            changed = StateRows(hashes=groups.hashes, keys=keys, values=state)
            if self.update:
                output = self._output_rows(changed)
        elif self._is_one_group:
            output = self._global_result(data)
        if not self.update and self.closes(data.time):
            cpu = cpu_clock.process_time()
            output = self._results_of_removed(data, changed)
            closing_ms = (cpu_clock.process_time() - cpu) * 1e3
        written = {}
        if groups is not None and changed is not None:
            written = {self.states[0].state: (changed, groups.key_groups)}
        return OperatorOutput(output=output, groups=groups, changed=written, closing_ms=closing_ms)

    def _results_of_removed(self, data: OperatorInput, changed: StateRows | None) -> pa.RecordBatch:
        """Return the results of the groups that this batch removes."""
        entries, closing = self.closing_entries(data, changed)
        if closing is not None:
            entries = entries.followed_by(closing)
            groups = group_rows(entries.hashes, entries.keys, data.num_key_groups)
            newest = groups.order[groups.starts[1:] - 1]
            entries = entries.take(newest)
        return self._output_rows(entries)

    def closing_panes(self, time: EpochTime) -> tuple[int, int]:
        """Return the range of the entries that this batch removes."""
        return self.first_needed_pane(time.closed), self.first_needed_pane(time.until)

    def _output_rows(self, entries: StateRows) -> pa.RecordBatch:
        """Return the output rows of groups, from their entries."""
        position = self.pane_position
        own = entries.keys.columns[:position]
        if self.removed_by is not None:
            pane = entries.keys.column(position)
            ends = values_of(pane)
            own.append(column_of(ends + 1, None if (ends < END).all() else ends < END, pane.type))
        results = self.results(entries.keys, entries.values)
        return pa.RecordBatch.from_arrays([*own, *results], schema=self.output)

    def _global_result(self, data: OperatorInput) -> pa.RecordBatch | None:
        """Return the result of the whole stream in a batch without rows, on its lane."""
        keys = self.schema.keys
        entry = pa.RecordBatch.from_arrays(
            [pa.array([True]), column_of(np.array([END]), None, keys.field(1).type)], schema=keys
        )
        result = _entry_if_on_this_lane(self, data, entry)
        return None if result is None else self._output_rows(result)


def only_rows(rows: pa.RecordBatch, only_time: str) -> pa.RecordBatch:
    """Return rows without those that only advance the watermark."""
    moving = rows.column(only_time)
    return rows.filter(pc.invert(moving)) if moving.true_count else rows


def leave_out(
    rows: pa.RecordBatch, late: npt.NDArray[np.bool_], operator: EventTimeOperator
) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals | None]:
    """Return the rows that are not late, the late ones with a reason, and their number."""
    if not late.any():
        return rows, None, None
    count = int(np.count_nonzero(late))
    lost = rows.filter(pa.array(late))
    columns = lost.select(operator.arriving.names).columns
    left_out = pa.RecordBatch.from_arrays(
        [*columns, pa.array(["late"] * count, pa.string())], schema=operator.left_out_schema
    )
    return rows.filter(pa.array(~late)), left_out, Arrivals(late=count)


def _has_rows(output: OperatorOutput) -> bool:
    """Return whether an output has rows."""
    return output.output is not None and output.output.num_rows > 0


def whole_result(operator: GroupedAggregates, data: OperatorInput) -> pa.RecordBatch | None:
    """Return the result of a whole stream in a batch without rows, on the lane that has it."""
    key = pa.RecordBatch.from_arrays([pa.array([True])], schema=KEY_OF_ALL)
    entry = _entry_if_on_this_lane(operator, data, key)
    return None if entry is None else operator.finish(entry.keys, entry.values)


def _entry_if_on_this_lane(
    operator: ComputeOperator, data: OperatorInput, entry: pa.RecordBatch
) -> StateRows | None:
    """Return the state of one entry, a new one if it has none; ``None`` on other lanes.

    `entry`: its identity columns.
    """
    hashes = hash_keys(entry.select(KEY_OF_ALL.names))
    places: npt.NDArray[np.int32] = key_groups_of(hashes, data.num_key_groups)
    if data.here is None or not data.here[places[0]]:
        return None
    is_stored, prior = data.state.find(entry, places)
    return StateRows(hashes=hashes, keys=entry, values=operator.prior_or_new(is_stored, prior))
