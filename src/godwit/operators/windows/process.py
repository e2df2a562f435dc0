"""``window(...).process``: any Python over the rows of a key and window, once it is over.

The state is the rows themselves, an entry each: told apart by key, pane and a number that grows in
order of arrival.  Rows are kept once, whatever the number of windows that hold them.
"""

from __future__ import annotations

import time as cpu_clock
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.columns.python_values import UTC
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.operator import STATE, OperatorOutput
from godwit.operators.windows.calls import WindowFunction
from godwit.operators.windows.operator import PANE, EventTimeOperator, number_rows
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from godwit.checkpoint.entries import StateRows
    from godwit.operators.operator import OperatorInput
    from godwit.operators.windows.event_time import EpochTime, RowTime
    from godwit.operators.windows.grid import PaneGrid

__all__ = ["WindowedProcess"]

_NUMBER: Final = f"{RESERVED_PREFIX}_number"


class WindowedProcess(EventTimeOperator):
    """A function of the user, called per key and window.

    Parameters
    ----------
    name, keys, arriving, time, grid
        As of `godwit.operators.windows.compute.WindowedCompute`.
    function
        ``function(key, rows, window)``; returns an iterable of rows, or ``None``.
    output
        Columns of the rows that the function returns.
    zone
        The session's, of datetimes without one that the function returns.
    """

    def __init__(
        self,
        *,
        name: str,
        keys: tuple[str, ...],
        arriving: pa.Schema,
        time: RowTime,
        function: Callable[..., Iterable[Any] | None],
        output: pa.Schema,
        grid: PaneGrid,
        zone: str = UTC,
    ) -> None:
        self.name, self.arriving, self.grid, self.output = name, arriving, grid, output
        self.time = time
        self.inputs = pa.schema([field for field in arriving if field.name not in keys])
        keyed = [arriving.field(key) for key in keys]
        apart = [pa.field(PANE, arriving.field(time.column).type), pa.field(_NUMBER, pa.int64())]
        self.schema = StateSchema(keys=pa.schema([*keyed, *apart]), values=self.inputs)
        self.function = function
        self._function = WindowFunction(operator=name, function=function, output=output, zone=zone)

    @property
    def kind(self) -> str:
        """What makes one."""
        return "windowed process"

    def with_panes(self, rows: pa.RecordBatch, panes: pa.Array) -> pa.RecordBatch:
        """Give rows as they came a pane, and room for a number."""
        numbers = column_of(np.zeros(rows.num_rows, np.int64), None, pa.int64())
        return self.entry_rows(rows, panes, numbers)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Keep an epoch's rows; call the function for every window that is over."""
        groups, changed, output, closing_ms = None, None, None, 0.0
        if len(data.rows.hashes):
            rows = number_rows(data.rows, _NUMBER, data.epoch)
            groups = group_rows(rows.hashes, rows.keys, data.num_key_groups, self.pane_position)
            changed = rows.take(groups.first_row)  # which are all of them: each is an entry
        if self.closes(data.time):
            cpu = cpu_clock.process_time()
            entries, closing = self.closing_entries(data, changed)
            output = self._called(entries if closing is None else entries.then(closing), data.time)
            closing_ms = (cpu_clock.process_time() - cpu) * 1e3
        return OperatorOutput(
            output=output,
            groups=groups,
            changed={}
            if groups is None or changed is None
            else {STATE: (changed, groups.key_groups)},
            closing_ms=closing_ms,
        )

    def _called(self, rows: StateRows, time: EpochTime) -> pa.RecordBatch:
        """Call the function for every window that is over."""
        position = self.pane_position
        panes = values_of(rows.keys.column(position))
        numbers = values_of(rows.keys.column(position + 1))
        found = self.grid.windows_of(panes, time.closed, time.until)
        own = rows.keys.select(list(range(position)))
        key = group_rows(rows.hashes, own, 1).of_row[found.pane]
        order = np.lexsort((numbers[found.pane], found.start, found.kind, key))
        row, kind, start = found.pane[order], found.kind[order], found.start[order]
        key, end = key[order], found.end[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (np.diff(key) != 0) | (np.diff(kind) != 0) | (np.diff(start) != 0)
        firsts = np.flatnonzero(begins)
        moment = rows.keys.schema.field(position).type
        return self._function(
            keys=own.take(pa.array(row[firsts])),
            starts=column_of(self.grid.instants(start[firsts]), None, moment),
            ends=column_of(self.grid.instants(end[firsts]), None, moment),
            rows=rows.values,
            order=row,
            bounds=np.append(firsts, len(order)),
        )
