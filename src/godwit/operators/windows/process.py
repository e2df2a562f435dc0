"""``window(...).process``: any Python over the rows of a key and window, once it is over.

The state is the rows themselves, an entry each: told apart by key, pane and a number that grows in
order of arrival.  Rows are kept once, whatever the number of windows that hold them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.checkpoint.evolution import StateDescription, columns_of
from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.columns.zones import UTC
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.operator import Advance
from godwit.operators.windows.calls import WindowFunction
from godwit.operators.windows.description import (
    describe_windows,
    windows_of,
)
from godwit.operators.windows.operator import PANE, Closed, Entries, WindowedOperator
from godwit.store.schema import StateSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from godwit.operators.operator import Step
    from godwit.operators.windows.grid import PaneGrid
    from godwit.operators.windows.moments import OperatorTime, RowTime

__all__ = ["WindowedProcess"]

_NUMBER: Final = f"{RESERVED_PREFIX}_number"
_ROWS_OF_EPOCH: Final = 1 << 31


class WindowedProcess(WindowedOperator):
    """A function of the user, called per key and window; see `WindowedOperator`.

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
        self.time, self.update = time, False
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

    def numbered(self, rows: pa.RecordBatch, epoch: int) -> pa.RecordBatch:
        """Give rows numbers that grow in order of arrival, over all epochs."""
        numbers = epoch * _ROWS_OF_EPOCH + np.arange(rows.num_rows)
        position = rows.schema.get_field_index(_NUMBER)
        return rows.set_column(position, rows.schema.field(position), pa.array(numbers))

    def advance(self, step: Step) -> Advance:
        """Keep an epoch's rows."""
        kept = step.rows.take(pa.array(step.groups.first_row))
        return Advance(state=kept, removed=None, output=self.nothing())

    def close(self, held: Entries, changed: Entries | None, told: OperatorTime) -> Closed:
        """Call the function for every window that is over."""
        if changed is not None:  # an epoch's rows are entries of their own
            held = held.then(changed)
        position = self.pane_position
        panes = values_of(held.keys.column(position))
        numbers = values_of(held.keys.column(position + 1))
        found = self.grid.windows_of(panes, told.closed, told.until)
        own = held.keys.select(list(range(position)))
        key = group_rows(held.hashes, own, 1).of_row[found.pane]
        order = np.lexsort((numbers[found.pane], found.start, found.kind, key))
        row, kind, start = found.pane[order], found.kind[order], found.start[order]
        key, end = key[order], found.end[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (np.diff(key) != 0) | (np.diff(kind) != 0) | (np.diff(start) != 0)
        firsts = np.flatnonzero(begins)
        moment = held.keys.schema.field(position).type
        output = self._function(
            keys=own.take(pa.array(row[firsts])),
            starts=column_of(start[firsts], None, moment),
            ends=column_of(end[firsts], None, moment),
            rows=held.values,
            order=row,
            bounds=np.append(firsts, len(order)),
        )
        return Closed(output=output)

    def describe_state(self) -> StateDescription:
        """Say what columns the rows have, and of what windows they are."""
        described = StateDescription(columns=columns_of(self.schema.values), codec="arrow")
        return describe_windows(described, self, windows_of(self.grid))
