"""``window(...).process``: a user's function over the rows of a key and window that closes.

Bounds of windows are datetimes, so rows are left out whose windows no datetimes bound.

The state is the rows themselves: an entry per row, identified by key, pane and a number that grows
in order of arrival.  A row is stored once, however many windows it belongs to.
"""

from __future__ import annotations

import time as cpu_clock
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.columns.python_values import (
    FIRST,
    LAST,
    UTC,
    Columns,
    KeyRows,
    KeysOfRows,
    rows_as_tuples,
)
from godwit.columns.types import visible_schema
from godwit.library.aggregates import kept_rows
from godwit.library.aggregates.collected import rows_of
from godwit.library.emitted import emitted_batch, emitted_or_undone
from godwit.library.windows.operator import PANE, EventTimeOperator, number_rows
from godwit.library.windows.sessions import SessionCompute
from godwit.model.frames import function_failed
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.failed_calls import FailedCalls, is_divertible
from godwit.operators.operator import STATE, OperatorOutput
from godwit.operators.ordering import starts_run
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from godwit.model.errors import UserFunctionError
    from godwit.operators.operator import OperatorInput
    from godwit.store.changes import StateRows
    from godwit.time.event_time import EpochTime, RowTime
    from godwit.time.grid import PaneGrid
    from godwit.values.records import RowClass

IntArray = npt.NDArray[np.int64]

_NUMBER: Final = f"{RESERVED_PREFIX}_number"
_ROWS: Final = f"{RESERVED_PREFIX}_rows"


@dataclass(frozen=True, slots=True)
class Window:
    """A window of event time.

    Godwit makes it: functions of ``window(...).process`` get it.

    Attributes
    ----------
    start, end
        Bounds of the window: `start` is inclusive, `end` exclusive. They are datetimes in UTC, with
        a time zone if the event-time column is a ``timestamp``, and without one if it is a
        ``timestamp_ntz``. Rows whose windows would begin before the year 1, or end after 9999, are
        left out: as late, and as too far ahead of the clock.

    Examples
    --------
    >>> window = gw.types.Window(dt.datetime(2024, 5, 1, 8), dt.datetime(2024, 5, 1, 9))
    >>> window.end - window.start
    datetime.timedelta(seconds=3600)
    """

    start: dt.datetime
    end: dt.datetime


def call_for_windows(
    operator: WindowedProcess | SessionProcess,
    *,
    keys: pa.RecordBatch,
    starts: pa.Array,
    ends: pa.Array,
    rows: pa.RecordBatch,
    order: IntArray,
    bounds: IntArray,
) -> dict[str, Any]:
    """Call the user's function for n windows; return fields of an `OperatorOutput`.

    They are the rows that it emits, and those of calls that failed.

    `keys`, `starts` and `ends`: n rows, key and bounds of each window. `order`, `bounds`: window i
    has the rows ``order[bounds[i]:bounds[i + 1]]`` of `rows`.
    """
    key_tuples = rows_as_tuples(keys)
    windows = rows_as_tuples(pa.RecordBatch.from_arrays([starts, ends], names=["start", "end"]))
    row_bounds = bounds.tolist()
    key_names = visible_schema(keys.schema).names
    columns = Columns(rows, rows.schema, order, KeysOfRows(key_names, key_tuples, row_bounds))
    failed = FailedCalls(operator.name, rows, key_names, order) if operator.failures_to else None
    emitted: list[Any] = []
    counts: list[int] = []
    for number, (key, window) in enumerate(zip(key_tuples, windows, strict=True)):
        window_rows = KeyRows(columns, row_bounds[number], row_bounds[number + 1])
        try:
            result = operator.function(key, window_rows, Window(*window))
            if result is not None:
                emitted.extend(result)
        except BaseException as error:
            if failed is None or not is_divertible(error):
                raise function_failed(
                    operator.name,
                    operator.function,
                    key,
                    error,
                    called="function(key, rows, window)",
                ) from error
            failed.add(operator.function, error, (row_bounds[number], row_bounds[number + 1]), key)
            del emitted[counts[-1] if counts else 0 :]
        counts.append(len(emitted))
    if failed is None:
        return {"output": emitted_batch(operator, emitted, counts, key_tuples)}

    def undo(number: int, error: UserFunctionError) -> None:
        """Divert the rows of a window for which the function emitted rows that do not fit."""
        failed.add(
            operator.function,
            error,
            (row_bounds[number], row_bounds[number + 1]),
            key_tuples[number],
        )

    output = emitted_or_undone(operator, emitted, counts, key_tuples, undo)
    return {"output": output, "failed": failed.to_batch()}


class WindowedProcess(EventTimeOperator):
    """A user's function called per key and window when it closes."""

    kind = "windowed process"

    def __init__(
        self,
        *,
        name: str,
        keys: tuple[str, ...],
        arriving: pa.Schema,
        time: RowTime,
        function: Callable[..., Iterable[Any] | None],  # ``function(key, rows, window)``
        output: pa.Schema,  # columns of the rows that it returns
        grid: PaneGrid,
        zone: str = UTC,
        output_class: RowClass | None = None,  # of these rows
    ) -> None:
        self.name, self.arriving, self.grid, self.output = name, arriving, grid, output
        self.time = self.window_time = time
        self.inputs = pa.schema([field for field in arriving if field.name not in keys])
        keyed = [arriving.field(key) for key in keys]
        apart = [pa.field(PANE, arriving.field(time.column).type), pa.field(_NUMBER, pa.int64())]
        self.schema = StateSchema(keys=pa.schema([*keyed, *apart]), values=self.inputs)
        self.function, self.zone, self.output_class = function, zone, output_class
        self.earliest, self.latest = FIRST + grid.longest_us, LAST - grid.longest_us

    def with_panes(self, rows: pa.RecordBatch, panes: pa.Array) -> pa.RecordBatch:
        """Insert the identity columns of the rows' entries: pane and number."""
        numbers = column_of(np.zeros(rows.num_rows, np.int64), None, pa.int64())
        return self.insert_identity(rows, panes, numbers)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Store an epoch's rows; call the user's function for every window that closes."""
        groups, changed, closing_ms = None, None, 0.0
        emission: dict[str, Any] = {}
        if len(data.rows.hashes):
            rows = number_rows(data.rows, _NUMBER, data.epoch)
            groups = group_rows(rows.hashes, rows.keys, data.num_key_groups, self.pane_position)
            changed = rows.take(groups.first_row)  # which are all of them: each is an entry
        if self.closes(data.time):
            cpu = cpu_clock.process_time()
            entries, closing = self.closing_entries(data, changed)
            emission = self._call_for_closing(
                entries if closing is None else entries.followed_by(closing), data.time
            )
            closing_ms = (cpu_clock.process_time() - cpu) * 1e3
        return OperatorOutput(
            **emission,
            groups=groups,
            changed={}
            if groups is None or changed is None
            else {STATE: (changed, groups.key_groups)},
            closing_ms=closing_ms,
        )

    def _call_for_closing(self, rows: StateRows, time: EpochTime) -> dict[str, Any]:
        """Call the user's function for every window that closes; see `call_for_windows`."""
        position = self.pane_position
        panes = values_of(rows.keys.column(position))
        numbers = values_of(rows.keys.column(position + 1))
        windows = self.grid.windows_of(panes, time.closed, time.until)
        user_keys = rows.keys.select(list(range(position)))
        key_of_row = group_rows(rows.hashes, user_keys, 1).of_row[windows.pane]
        order = np.lexsort((numbers[windows.pane], windows.start, windows.kind, key_of_row))
        row, kind, start = windows.pane[order], windows.kind[order], windows.start[order]
        key_of_row, end = key_of_row[order], windows.end[order]
        first_rows = np.flatnonzero(starts_run(key_of_row, kind, start))
        time_type = rows.keys.schema.field(position).type
        return call_for_windows(
            self,
            keys=user_keys.take(pa.array(row[first_rows])),
            starts=column_of(self.grid.instants(start[first_rows]), None, time_type),
            ends=column_of(self.grid.instants(end[first_rows]), None, time_type),
            rows=rows.values,
            order=row,
            bounds=np.append(first_rows, len(order)),
        )


class SessionProcess(SessionCompute):
    """A user's function called per key and session when it closes.

    A session is not known before: the next row may join two.  So its rows are a state that merges
    like an aggregate's: they are in the session's entry, and are written again whenever it grows.
    The function gets them in order of event time.
    """

    kind = "session process"

    def __init__(
        self,
        *,
        name: str,
        keys: tuple[str, ...],
        arriving: pa.Schema,
        time: RowTime,
        function: Callable[..., Iterable[Any] | None],
        output: pa.Schema,
        gap_us: int,
        zone: str = UTC,
        output_class: RowClass | None = None,
    ) -> None:
        self._rows = pa.schema([field for field in arriving if field.name not in keys])
        self.function, self.zone, self.output_class = function, zone, output_class
        super().__init__(
            name=name,
            keys=keys,
            arriving=arriving,
            time=time,
            inputs=self._rows,
            aggregates={_ROWS: kept_rows(*self._rows.names)},
            gap_us=gap_us,
            output=output,
        )
        self.earliest, self.latest = FIRST, LAST - gap_us

    def emission(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> dict[str, Any]:
        """Call the user's function for the sessions that close; see `call_for_windows`."""
        first, last, packed = self.results(keys, state)
        opens, ends = self.bounds(first, last)
        starts, rows = rows_of(packed, self._rows)
        session = np.repeat(np.arange(len(first)), np.diff(starts))
        times = values_of(rows.column(self.time.column))
        return call_for_windows(
            self,
            keys=keys.select(list(range(self.pane_position))),
            starts=opens,
            ends=ends,
            rows=rows,
            order=np.lexsort((times, session)),
            bounds=starts,
        )
