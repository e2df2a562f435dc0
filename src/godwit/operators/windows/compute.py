"""``window(...).compute``: mergeable aggregates per key and window.

The state is a partial per key and pane.  Windows are made of them when they are over
(`godwit.operators.windows.closing`), or, where output is wanted as windows grow, whenever one of
their panes changes: the panes of a window are merged in order of event time, so what an aggregate
sees within a pane is in order of arrival, and across panes in order of time.

Where windows overlap, rows of an epoch may go to a partial per key and window instead, as the
epoch's time says (`EpochTime.duplicated`).  A window is then its own partial, and its panes from
epochs without: so the layout may change at any time.

Invariant: every row is in the partial of its pane, or in those of all its windows that were open;
never in both.
"""

from __future__ import annotations

import time as cpu_clock
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.entries import StateRows
from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.compute import ComputeOperator
from godwit.operators.operator import STATE, OperatorOutput, SharedWindows
from godwit.operators.windows.calendar import CalendarGrid
from godwit.operators.windows.closing import closed_windows
from godwit.operators.windows.description import (
    describe_windows,
    windows_of,
)
from godwit.operators.windows.grid import END
from godwit.operators.windows.meter import Closed, WindowMeter
from godwit.operators.windows.operator import (
    PANE,
    EventTimeOperator,
    output_schema,
    window_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.evolution import StateDescription
    from godwit.columns.groups import Groups
    from godwit.operators.aggregates import Aggregate
    from godwit.operators.operator import OperatorInput, StateView
    from godwit.operators.windows.event_time import EpochTime, RowTime
    from godwit.operators.windows.grid import PaneGrid

__all__ = ["SPAN", "WINDOWED", "WindowedCompute"]

IntArray = npt.NDArray[np.int64]

WINDOWED: Final = "windowed compute"
"""What makes such operators, as the checkpoint says it."""
SPAN: Final = f"{RESERVED_PREFIX}_span"
"""Column of the state: microseconds of a window that has a state of its own, 0 of a pane."""
SPAN_TYPE: Final = pa.int64()


class WindowedCompute(ComputeOperator, EventTimeOperator):
    """Aggregates of the rows of each key and window.

    Parameters
    ----------
    name, inputs, aggregates
        As of `ComputeOperator`.
    arriving
        Columns of the rows as they come: key columns first.
    keys
        Names of the key columns.
    time
        Where in `arriving` the event time is.
    grid
        The windows, and their panes.
    update
        Whether windows are emitted as they grow.
    share
        Whether windows that overlap share panes; ``None``: as measured costs say.
    lateness_us
        How long a window that has come out takes rows, and comes out again with them.
    lengths
        Column of the output that says how long a row's window is, and length → text.
    """

    def __init__(
        self,
        *,
        name: str,
        keys: tuple[str, ...],
        arriving: pa.Schema,
        time: RowTime,
        inputs: pa.Schema,
        aggregates: Mapping[str, Aggregate],
        grid: PaneGrid,
        update: bool,
        share: bool | None = None,
        lateness_us: int = 0,
        lengths: tuple[str, Mapping[int, str]] | None = None,
    ) -> None:
        moment = arriving.field(time.column).type
        keyed = [arriving.field(key) for key in keys]
        apart = [pa.field(PANE, moment)]
        overlap = grid.panes_per_window > 1 and not isinstance(grid, CalendarGrid)
        if overlap and not update and not lateness_us:
            apart.append(pa.field(SPAN, SPAN_TYPE))
        panes = pa.schema([*keyed, *apart])
        super().__init__(name=name, keys=panes, inputs=inputs, aggregates=aggregates)
        self.arriving, self.time, self.grid, self.update = arriving, time, grid, update
        self.share, self.lateness_us, self.lengths = share, lateness_us, lengths
        self.output_delay_us = lateness_us  # a window that comes out again is that old
        bounds = window_bounds(moment)
        if lengths is not None:
            bounds.append(pa.field(lengths[0], pa.string()))
        results = list(self.output)[len(panes) :]
        self.output = output_schema(name, [*keyed, *bounds], results)

    @property
    def may_duplicate(self) -> bool:
        """Whether there may be states of windows beside those of panes."""
        return SPAN in self.schema.keys.names

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """Each window of a key has one row."""
        return self.unique_keys_of_windows(len(self.grid.windows))

    @property
    def kind(self) -> str:
        """What makes one."""
        return WINDOWED

    @property
    def shared_windows(self) -> SharedWindows | None:
        """Its windows, where they may share panes or not."""
        if not (self.may_duplicate and self.commutative):
            return None
        return SharedWindows(grid=self.grid, share=self.share)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Update the partials of an epoch's keys and panes; emit windows that are over, or grew."""
        meter, time = WindowMeter(), data.time
        groups, changed, output, closing_ms = None, None, None, 0.0
        if len(data.rows.hashes):
            groups, changed = self._updated(data, meter)
        if self.update and groups is not None and changed is not None:
            after = time.closed - self.lateness_us
            output = self._grown(groups, changed, data.state, after, END)
        elif not self.update and self.closes(time):
            cpu = cpu_clock.process_time()
            entries, closing = self.closing_entries(data, changed)
            meter.scanned(len(entries.hashes), cpu)
            closed = self.close(entries, closing, time)
            meter.closed(closed, sees_all_keys=False)
            output, closing_ms = closed.output, (cpu_clock.process_time() - cpu) * 1e3
        if self.lateness_us and not self.update and groups is not None and changed is not None:
            after = time.closed - self.lateness_us
            again = self._grown(groups, changed, data.state, after, time.closed)
            output = again if output is None else pa.concat_batches([again, output])
        return OperatorOutput(
            output=output,
            groups=groups,
            changed={}
            if groups is None or changed is None
            else {STATE: (changed, groups.key_groups)},
            closing_ms=closing_ms,
            windows=meter.work if self.may_duplicate else None,
        )

    def _updated(self, data: OperatorInput, meter: WindowMeter) -> tuple[Groups, StateRows]:
        """Update the partials of keys and panes, or keys and windows, that have rows."""
        duplicated = data.time.duplicated
        if self.may_duplicate and duplicated:
            partials = self.combined(data)
            meter.saw(partials.keys.column(self.pane_position), partials.hashes)
            with meter.spreading(duplicated=True):
                keys, which = self._spread(partials.keys, data.time.closed)
                values = partials.values.take(pa.array(which))
                rows = StateRows(hashes=partials.hashes[which], keys=keys, values=values)
                data = replace(data, rows=rows, is_partial=True)
            meter.spread(len(which))
        with meter.spreading(duplicated=duplicated):
            groups, keys = data.grouped(self.pane_position)
            rows_of = data.rows.values
            if data.is_partial:
                rows_of = self.merge_partials(groups, rows_of)
        with meter.writing():
            known, prior = data.state.find(keys, groups.key_groups)
        state = self.updated(groups, keys, rows_of, known, prior, are_partial=data.is_partial)
        meter.wrote(groups.count)
        if self.may_duplicate and not duplicated:
            meter.saw(keys.column(self.pane_position), groups.hashes)
        return groups, StateRows(hashes=groups.hashes, keys=keys, values=state)

    def close(self, entries: StateRows, changed: StateRows | None, time: EpochTime) -> Closed:
        """Output of the windows that are over, of entries as of `closing_entries`."""
        return closed_windows(self, entries, changed, time)

    def with_panes(self, rows: pa.RecordBatch, panes: pa.Array) -> pa.RecordBatch:
        """Give rows as they came the pane that they go to."""
        if not self.may_duplicate:
            return self.entry_rows(rows, panes)
        no_span = column_of(np.zeros(len(panes), np.int64), None, SPAN_TYPE)
        return self.entry_rows(rows, panes, no_span)

    def _spread(self, keys: pa.RecordBatch, closed: int) -> tuple[pa.RecordBatch, IntArray]:
        """Windows that hold panes and end after `closed`: what tells each, and its pane."""
        position = self.pane_position
        panes = keys.column(position)
        found = self.grid.windows_of(values_of(panes), closed, END)
        own = keys.select(list(range(position))).take(pa.array(found.pane))
        starts = column_of(found.start, None, panes.type)
        spans = column_of(found.end - found.start, None, SPAN_TYPE)
        columns = [*own.columns, starts, spans]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.keys), found.pane

    def _grown(
        self, groups: Groups, changed: StateRows, state: StateView, after: int, until: int
    ) -> pa.RecordBatch:
        """Output of the windows that end after the one, by the other, and whose panes changed."""
        others, touched = changed, np.ones(len(changed.hashes), np.bool_)
        if self.grid.panes_per_window > 1:
            others, touched = self._with_neighbours(groups, changed, state, after)
        return self._growing(others, after, until, touched)

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Say what the partials are, and of what windows."""
        windows = windows_of(self.grid, self.lateness_us)
        return describe_windows(super().describe_state(state), self, windows)

    @property
    def means(self) -> dict[str, Any]:
        """Where the time is, and whether panes are needed as windows grow."""
        return {**super().means, "output": "update" if self.update else "append"}

    def window_rows(
        self, keys: pa.RecordBatch, starts: IntArray, ends: IntArray, state: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Output rows of some windows: n keys, windows and states."""
        moment = self.schema.keys.field(self.pane_position).type
        bounds = [column_of(self.grid.instants(of), None, moment) for of in (starts, ends)]
        if self.lengths is not None:
            different, of_row = np.unique(ends - starts, return_inverse=True)
            texts = [self.lengths[1][length] for length in different.tolist()]
            bounds.append(pa.array(texts, pa.string()).take(pa.array(of_row)))
        columns = [*keys.columns, *bounds]
        windows = pa.RecordBatch.from_arrays(columns, names=self.output.names[: len(columns)])
        return self.finish(windows, state)

    def _growing(
        self, entries: StateRows, after: int, until: int, touched: npt.NDArray[np.bool_]
    ) -> pa.RecordBatch:
        """Merge panes into the windows that end after `after`, by `until`, and hold one touched.

        Parameters
        ----------
        entries
            n of them, every key and pane once.
        touched
            Shape ``(n,)``.
        """
        panes = values_of(entries.keys.column(self.pane_position))
        found = self.grid.windows_of(panes, after, until)
        own = entries.keys.select(list(range(self.pane_position)))
        keys = group_rows(entries.hashes, own, 1).of_row[found.pane]
        order = np.lexsort((panes[found.pane], found.start, found.kind, keys))
        pane, kind, start = found.pane[order], found.kind[order], found.start[order]
        key = keys[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (key[1:] != key[:-1]) | (kind[1:] != kind[:-1]) | (start[1:] != start[:-1])
        firsts = np.flatnonzero(begins)
        sizes = np.diff(np.append(firsts, len(order)))
        if len(order):
            wanted = np.logical_or.reduceat(touched[pane], firsts)
            pane = pane[np.repeat(wanted, sizes)]
            sizes, firsts = sizes[wanted], firsts[wanted]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        state = self.merge_in_order(entries.values.take(pa.array(pane)), starts)
        keys = own.take(pa.array(pane[starts[:-1]]))
        return self.window_rows(keys, start[firsts], found.end[order][firsts], state)

    def _with_neighbours(
        self, groups: Groups, changed: StateRows, state: StateView, closed: int
    ) -> tuple[StateRows, npt.NDArray[np.bool_]]:
        """All entries of the windows that hold a changed one, and which of them changed."""
        width, position = self.grid.width_us, self.pane_position
        panes = values_of(changed.keys.column(position))
        own = changed.keys.select(list(range(position)))
        of_key = group_rows(changed.hashes, own, 1)
        most = self.grid.panes_per_window - 1
        reach = np.arange(-most, most + 1) * width
        # What changed comes first: of two alike the one at hand stays, and is not looked up.
        near = np.concatenate([panes, (panes[:, None] + reach).ravel()])
        key = np.concatenate([of_key.of_row, np.repeat(of_key.of_row, len(reach))])
        order = np.lexsort((near, key))
        new = np.ones(len(order), np.bool_)
        new[1:] = (np.diff(near[order]) != 0) | (np.diff(key[order]) != 0)
        wanted = order[new]
        wanted = wanted[(wanted >= len(panes)) & (near[wanted] >= self.grid.first_open(closed))]
        rows = of_key.first_row[key[wanted]]
        moment = self.schema.keys.field(position).type
        keys = pa.RecordBatch.from_arrays(
            [*own.take(pa.array(rows)).columns, column_of(near[wanted], None, moment)],
            schema=self.schema.keys,
        )
        known, values = state.find(keys, groups.key_groups[rows])
        there = pa.array(np.flatnonzero(known))
        entries = changed.then(
            StateRows(
                hashes=changed.hashes[rows[known]],
                keys=keys.take(there),
                values=values.take(there),
            )
        )
        return entries, np.arange(len(entries.hashes)) < len(panes)
