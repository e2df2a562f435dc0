"""``drop_duplicates``: the first row of a key passes, later ones within a given time are dropped.

A row is a duplicate if a row of the same key has passed whose event time is at most *within* away,
before or after; of two such rows the first that arrived passes.  So rows that passed are more than
*within* apart, and a pane of that width has at most one of them.  An entry of state is the event
time of one row that passed, found by key and pane.  It is dropped with its pane, once the watermark
has passed all rows that it could exclude.

Invariant: which rows pass depends on the order of arrival alone, not on when epochs begin or on the
watermark, as long as no row is late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.library.joins.sides import within
from godwit.library.windows.operator import PANE, EventTimeOperator
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.initial import times_of, with_column
from godwit.operators.operator import KeyedOperator, OperatorOutput, changed_by_key
from godwit.operators.ordering import starts_run
from godwit.store.columns import StateSchema
from godwit.time.grid import BEGINNING, PaneGrid, TimeWindow, is_past

if TYPE_CHECKING:
    from godwit.columns.groups import Groups
    from godwit.operators.operator import EntryColumns, OperatorInput, StateView
    from godwit.store.changes import StateRows
    from godwit.time.event_time import EpochTime, RowTime

_SEEN = f"{RESERVED_PREFIX}_seen"
_ROUNDS = 16  # vectorised; remaining rows are then handled one by one

IntArray = npt.NDArray[np.int64]


class DropDuplicates(KeyedOperator):
    """Filter that passes the first row of every key, and remembers all keys."""

    kind = "drop duplicates"
    emits = "the first row of each key"
    reads_touched = True

    def __init__(self, *, name: str, keys: tuple[str, ...], columns: pa.Schema) -> None:
        self.name, self.output = name, columns
        self.inputs = pa.schema([field for field in columns if field.name not in keys])
        seen = pa.schema([pa.field(_SEEN, pa.bool_())])
        self.schema = StateSchema(keys=pa.schema([columns.field(k) for k in keys]), values=seen)

    def initial_entries(self, state: str, rows: pa.RecordBatch) -> EntryColumns:
        """Return entries for keys that have been seen; other columns are not read."""
        return self.entries_from(state, rows, {_SEEN: lambda count: pa.repeat(True, count)})

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Emit the first row of every key that has no state yet."""
        if not len(data.rows.hashes):
            return OperatorOutput()
        groups, keys = data.grouped(len(self.keys))
        known, _ = data.state.find(keys, groups.key_groups)
        new_groups = np.flatnonzero(~known)
        rows = groups.first_row[new_groups]
        by_arrival = np.argsort(rows, kind="stable")
        output = merge_columns(
            keys.take(pa.array(new_groups[by_arrival])),
            data.rows.values.take(pa.array(rows[by_arrival])),
            self.output,
        )
        seen = pa.array(np.ones(groups.count, np.bool_))
        values = pa.RecordBatch.from_arrays([seen], schema=self.schema.values)
        return OperatorOutput.of_groups(groups, keys, values, output=output)


class DropDuplicatesWithin(EventTimeOperator):
    """Filter that passes the first row of a key within some event time."""

    kind = "drop duplicates within a time"
    emits = "the first row of each key, when it arrives"
    reads_touched = True

    def __init__(
        self,
        *,
        name: str,
        keys: tuple[str, ...],
        columns: pa.Schema,
        time: RowTime,
        within_us: int,
    ) -> None:
        self.name, self.output, self.time, self.within_us = name, columns, time, within_us
        key_fields = [columns.field(key) for key in keys]
        self.inputs = pa.schema([field for field in columns if field.name not in keys])
        self.arriving = pa.schema([*key_fields, *self.inputs])
        time_type = columns.field(time.column).type
        self.schema = StateSchema(
            keys=pa.schema([*key_fields, pa.field(PANE, time_type)]),
            values=pa.schema([pa.field(_SEEN, time_type)]),
        )
        width = within_us + 1
        # A moment keeps others out up to `within_us` after it: two panes from the start of its own.
        self.grid = PaneGrid.of(TimeWindow(length_us=2 * width, every_us=width))

    @property
    def means(self) -> dict[str, Any]:
        """Meaning of the state, for the checkpoint: event-time column and interval."""
        return {**super().means, "within_us": self.within_us}

    def initial_entries(self, state: str, rows: pa.RecordBatch) -> EntryColumns:
        """Return entries for the event times, in the column ``seen``, of rows that have passed."""
        moment = self.schema.values.field(0).type
        panes = self.grid.panes(times_of(self.name, rows, _SEEN, moment))
        return self.entries_from(state, with_column(rows, PANE, column_of(panes, None, moment)), {})

    def is_late(self, times: IntArray, closed: int) -> npt.NDArray[np.bool_]:
        """Return a mask of event times older than `closed`, the watermark of earlier epochs."""
        return is_past(times, closed)

    def closes(self, time: EpochTime) -> bool:  # noqa: ARG002
        """Return False: time alone emits nothing."""
        return False

    def emitted_by(self, moment: int) -> int:  # noqa: ARG002
        """Return `BEGINNING`: rows are emitted at once, without waiting for a watermark."""
        return BEGINNING

    def last_emitted(self, newest: int) -> int:
        """Return `newest`: rows keep their event times."""
        return newest

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Emit rows whose key had no row within the last `within_us` microseconds of event time."""
        arrived = data.rows
        if not arrived.keys.num_rows:
            return OperatorOutput()
        keys = arrived.keys.select(self.keys.names)
        groups = group_rows(arrived.hashes, keys, data.num_key_groups)
        group_of_row = groups.of_row
        times = self._event_times(arrived) - int(self.time.is_end)
        panes = values_of(arrived.keys.column(self.pane_position))
        distinct_keys = keys.take(pa.array(groups.first_row))
        seen_key, seen = self._earlier_rows(
            groups, panes, distinct_keys, data.state, data.time.closed
        )
        within_us = self.within_us
        is_free = ~within(
            group_of_row, times - within_us, times + within_us, seen_key, seen
        ).is_nonempty
        passing = first_within(group_of_row, times, is_free, within_us)
        passing_indices = pa.array(passing)
        time_type = self.schema.values.field(0).type
        values = pa.RecordBatch.from_arrays(
            [column_of(times[passing], None, time_type)], schema=self.schema.values
        )
        return OperatorOutput(
            groups=groups,
            changed=changed_by_key(
                groups, group_of_row[passing], arrived.keys.take(passing_indices), values
            ),
            output=merge_columns(
                keys.take(passing_indices), arrived.values.take(passing_indices), self.output
            ),
        )

    def _event_times(self, rows: StateRows) -> IntArray:
        """Return the event times of rows; the event-time column may be a key column."""
        column = self.time.column
        batch = rows.keys if column in rows.keys.schema.names else rows.values
        return values_of(batch.column(column))

    def _earlier_rows(
        self,
        groups: Groups,
        panes: IntArray,
        distinct_keys: pa.RecordBatch,
        state: StateView,
        closed: int,
    ) -> tuple[IntArray, IntArray]:
        """Return key number and event time of stored rows in new rows' panes or adjacent panes.

        `panes`: pane of each new row. `distinct_keys`: key of each group.
        """
        width = self.grid.width_us
        nearby_panes = (panes[:, None] + np.array([-width, 0, width])).ravel()
        group = np.repeat(groups.of_row, 3)
        order = np.lexsort((nearby_panes, group))
        distinct_pairs = order[starts_run(nearby_panes[order], group[order])]
        distinct_pairs = distinct_pairs[
            nearby_panes[distinct_pairs] >= self.grid.first_open(closed)
        ]
        group, nearby_panes = group[distinct_pairs], nearby_panes[distinct_pairs]
        time_type = self.schema.keys.field(self.pane_position).type
        keys_to_find = pa.RecordBatch.from_arrays(
            [
                *distinct_keys.take(pa.array(group)).columns,
                column_of(nearby_panes, None, time_type),
            ],
            schema=self.schema.keys,
        )
        known, values = state.find(keys_to_find, groups.key_groups[group])
        return group[known], values_of(values.column(0))[known]


def first_within(
    keys: IntArray, times: IntArray, is_free: npt.NDArray[np.bool_], within_us: int
) -> IntArray:
    """Return the positions of the `is_free` rows that pass, ascending.

    A row passes unless an earlier row of its key has passed whose time is at most `within_us` from
    its own. Rows that are not free passed in earlier epochs. `keys`: key number of each row.
    """
    passing = [np.empty(0, np.int64)]
    undecided = np.flatnonzero(is_free)
    latest = np.empty(int(keys.max(initial=-1)) + 1, np.int64)
    # Round by round, the first row of every key that is left; each keeps others of its key out.
    for _ in range(_ROUNDS):
        if not undecided.size:
            break
        first_keys, first_row = np.unique(keys[undecided], return_index=True)
        passing.append(undecided[first_row])
        latest[first_keys] = times[undecided[first_row]]
        undecided = undecided[np.abs(times[undecided] - latest[keys[undecided]]) > within_us]
    if undecided.size:
        # Few keys with many such rows: one row after the other. Rows that come through are more
        # than `within_us` apart, so slices of that width hold one each, and neighbours are enough.
        width = within_us + 1
        passed_times: dict[tuple[int, int], int] = {}
        passing_rest = []
        slices = times[undecided] // width
        rows = zip(undecided.tolist(), keys[undecided].tolist(), slices.tolist(), strict=True)
        for (row, key, time_slice), time in zip(rows, times[undecided].tolist(), strict=True):
            nearby_times = (passed_times.get((key, time_slice + step)) for step in (-1, 0, 1))
            if all(
                nearby_time is None or abs(time - nearby_time) > within_us
                for nearby_time in nearby_times
            ):
                passed_times[key, time_slice] = time
                passing_rest.append(row)
        passing.append(np.array(passing_rest, np.int64))
    return np.sort(np.concatenate(passing))


def merge_columns(
    keys: pa.RecordBatch, others: pa.RecordBatch, schema: pa.Schema
) -> pa.RecordBatch:
    """Build rows of a schema from key columns and other columns."""
    columns = dict(zip(keys.schema.names, keys.columns, strict=True))
    columns |= dict(zip(others.schema.names, others.columns, strict=True))
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
