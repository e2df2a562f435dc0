"""Operators over event time: entries per key and pane, and their closing.

Rows are assigned to entries before the exchange, and late rows are left out there.  Entries are
read when the windows that they belong to close, and those before
`EventTimeOperator.first_needed_pane` are dropped in bulk.

Invariant: whether a row is late depends only on the windows that earlier epochs closed.  So it
counts in a window or is too late for it, whichever lane, attempt or executor it meets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np
import pyarrow as pa

from godwit.checkpoint.evolution import StateDescription, columns_of
from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.columns.types import visible_schema
from godwit.model.naming import RESERVED_PREFIX, check_column_names
from godwit.operators.operator import STATE, KeyedOperator
from godwit.operators.window_specs import WINDOW_END, WINDOW_START
from godwit.store.changes import EntryRange, StateRows
from godwit.time.calendar import Calendar, CalendarGrid
from godwit.time.event_time import Arrivals
from godwit.time.grid import BEGINNING, END, PaneGrid, TimeWindow

if TYPE_CHECKING:
    import numpy.typing as npt

    from godwit.operators.operator import OperatorInput
    from godwit.time.event_time import EpochTime, RowTime

PANE: Final = f"{RESERVED_PREFIX}_pane"
"""Column of the state: start of the pane."""
_REASON: Final = "reason"
_ROWS_OF_EPOCH: Final = 1 << 31


class EventTimeOperator(KeyedOperator):
    """A keyed operator with entries per key and pane of event time."""

    over_event_time: ClassVar[bool] = True
    reads_touched: ClassVar[bool] = False

    time: RowTime  # the column of a row's event time
    arriving: pa.Schema  # the rows as they come: key columns, time, and the others that are read
    grid: PaneGrid
    lateness_us: int = 0  # how long windows that have come out take rows, in microseconds
    # rows of event times outside of these are left out: as late, and as too far ahead of the clock
    earliest: int = BEGINNING
    latest: int = END

    @property
    def keys(self) -> pa.Schema:
        """Key columns: the identity columns before the pane."""
        return pa.schema(list(self.schema.keys)[: self.schema.keys.get_field_index(PANE)])

    def unique_keys_of_windows(self, lengths: int) -> tuple[tuple[str, ...], ...]:
        """Return sets of output columns that identify a row: key and window bounds.

        With `lengths` (number of window lengths) 1, either bound suffices.
        """
        own = tuple(self.keys.names)
        both = (*own, WINDOW_START, WINDOW_END)
        return (both, (*own, WINDOW_START), (*own, WINDOW_END)) if lengths == 1 else (both,)

    @property
    def means(self) -> dict[str, Any]:
        """Meaning of the state, for the checkpoint: the event-time column."""
        return {"time": {"column": self.time.column, "is end": self.time.is_end}}

    @property
    def described_windows(self) -> list[dict[str, Any]]:
        """Windows as plain values for the checkpoint, from which `first_needed_pane` reads them."""
        more: dict[str, Any] = {"lateness_us": self.lateness_us} if self.lateness_us else {}
        if isinstance(self.grid, CalendarGrid):
            more["calendar"] = {"unit": self.grid.calendar.unit, "zone": self.grid.calendar.zone}
        return [
            {"length_us": w.length_us, "every_us": w.every_us, "offset_us": w.offset_us, **more}
            for w in self.grid.windows
        ]

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Describe a state, with its identity columns, windows and meaning, for the checkpoint."""
        return msgspec.structs.replace(
            super().describe_state(state),
            entries=columns_of(list(self.schema.keys)[len(self.keys) :]),
            windows=self.described_windows,
            means=self.means,
        )

    @property
    def left_out_schema(self) -> pa.Schema:
        """Columns of left-out rows: those of the input, and the reason."""
        return pa.schema([*self.arriving, pa.field(_REASON, pa.string())])

    @property
    def pane_position(self) -> int:
        """Position of the pane among the identity columns."""
        return len(self.keys)

    # -- rows on their way ---------------------------------------------------------------------

    def arrange(
        self, rows: pa.RecordBatch, time: EpochTime, input_number: int = 0
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals | None]:
        """Assign rows to panes, and split off rows that are late, too far ahead or without time."""
        column = rows.column(self.time.column)
        times, mask = values_of(column) - int(self.time.is_end), mask_of(column)
        is_untimed = np.zeros(len(times), np.bool_) if mask is None else ~mask
        latest_time = min(time.max_event_time(input_number), self.latest)
        is_ahead = (times > latest_time) & ~is_untimed
        is_late = (
            (self.is_late(times, time.closed) | (times < self.earliest)) & ~is_untimed & ~is_ahead
        )
        is_left_out = is_untimed | is_ahead | is_late
        left_out = arrivals = None
        if is_left_out.any():
            left_out_rows = np.flatnonzero(is_left_out)
            reasons = np.array(["late", "ahead", "untimed"])[
                is_ahead[left_out_rows] + 2 * is_untimed[left_out_rows]
            ]
            left_out = pa.RecordBatch.from_arrays(
                [*rows.take(pa.array(left_out_rows)).columns, pa.array(reasons, pa.string())],
                schema=self.left_out_schema,
            )
            accepted_rows = np.flatnonzero(~is_left_out)
            rows, times = rows.take(pa.array(accepted_rows)), times[accepted_rows]
        if left_out is not None or self.time.is_reported:
            reached = np.max(times, initial=BEGINNING) if self.time.is_reported else BEGINNING
            arrivals = Arrivals(
                late=int(np.count_nonzero(is_late)),
                ahead=int(np.count_nonzero(is_ahead)),
                untimed=int(np.count_nonzero(is_untimed)),
                reached=int(reached),
            )
        panes = column_of(self.entry_marks(rows, times), None, column.type)
        return self.with_panes(rows, panes), left_out, arrivals

    def is_late(self, times: npt.NDArray[np.int64], closed: int) -> npt.NDArray[np.bool_]:
        """Return a mask of event times whose windows were all closed by earlier epochs."""
        return self.grid.is_late(times, closed - self.lateness_us)

    def entry_marks(
        self,
        rows: pa.RecordBatch,  # noqa: ARG002
        times: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Return the pane of each row."""
        return self.grid.panes(times)

    def with_panes(self, rows: pa.RecordBatch, panes: pa.Array) -> pa.RecordBatch:
        """Insert the identity columns of the rows' entries."""
        return self.insert_identity(rows, panes)

    def insert_identity(self, rows: pa.RecordBatch, *identity_columns: pa.Array) -> pa.RecordBatch:
        """Insert identity columns (`apart`) behind the key columns of rows."""
        key_names, entry_key_names = self.keys.names, self.schema.keys.names
        input_names = [name for name in self.inputs.names if name not in key_names]
        columns = [
            *rows.select(key_names).columns,
            *identity_columns,
            *rows.select(input_names).columns,
        ]
        return pa.RecordBatch.from_arrays(columns, names=[*entry_key_names, *input_names])

    # -- time ----------------------------------------------------------------------------------

    def closes(self, time: EpochTime) -> bool:
        """Return whether windows close in this epoch."""
        return self.grid.closes(time.closed, time.until)

    def needs_state(self, time: EpochTime) -> bool:
        """Return whether windows close in this epoch, so that it must fail if state is missing."""
        return (
            super().needs_state(time)
            or self.closes(time)
            or self.first_needed_pane(time.until) > self.first_needed_pane(time.closed)
        )

    def closing_panes(self, time: EpochTime) -> tuple[int, int]:
        """Return the first pane, and the end of the last, of windows that close in this epoch."""
        return self.grid.closing(time.closed, time.until)

    def emitted_by(self, moment: int) -> int:
        """Return the end of the last window that contains an event time."""
        return self.grid.end_of(moment)

    def last_emitted(self, newest: int) -> int:
        """Return the maximum event time of emitted windows; `newest`: that of the input's rows."""
        return self.emitted_by(newest) - 1

    def first_needed_pane(self, closed: int) -> int:
        """Return the first pane that open windows need, once windows up to `closed` are emitted."""
        return self.grid.first_open(closed - self.lateness_us) if closed > BEGINNING else BEGINNING

    def expired_entries(self, closed: int) -> EntryRange:
        """Return the range of entries whose panes no window that ends after `closed` needs."""
        return EntryRange(column=self.pane_position, end=self.first_needed_pane(closed))

    # -- entries -------------------------------------------------------------------------------

    def closing_entries(
        self, data: OperatorInput, changed: StateRows | None
    ) -> tuple[StateRows, StateRows | None]:
        """Return the entries of panes that close, stored ones, and those changed in this epoch.

        The changed ones, ``None`` if there are none, replace stored ones.
        """
        first, end = self.closing_panes(data.time)
        part = EntryRange(column=self.pane_position, first=first, end=end)
        return data.state.scan(part), entries_in_range(changed, part)

    def empty_output(self) -> pa.RecordBatch:
        """Return an output batch without rows."""
        return pa.RecordBatch.from_pylist([], self.output)


def entries_in_range(entries: StateRows | None, entry_range: EntryRange) -> StateRows | None:
    """Return the entries whose event time is in a range; ``None`` if none are."""
    if entries is None:
        return None
    inside = entry_range.positions(entries.keys)
    return entries.take(inside) if len(inside) else None


def number_rows(rows: StateRows, column: str, epoch: int) -> StateRows:
    """Set the key column `column` to numbers in order of arrival, which ascend over all epochs."""
    numbers = epoch * _ROWS_OF_EPOCH + np.arange(len(rows.hashes))
    position = rows.keys.schema.get_field_index(column)
    keys = rows.keys.set_column(position, rows.keys.schema.field(position), pa.array(numbers))
    return StateRows(hashes=rows.hashes, keys=keys, values=rows.values)


def first_needed_pane(described: StateDescription, closed: int) -> int | None:
    """Return the first pane of windows that end after `closed`; ``None``: there are no panes."""
    panes = [window for window in described.windows or () if "length_us" in window]
    if not panes:
        return None
    extents = ("length_us", "every_us", "offset_us")
    windows = [TimeWindow(**{name: window[name] for name in extents}) for window in panes]
    closed -= panes[0].get("lateness_us", 0)
    calendar = panes[0].get("calendar")
    if calendar is None:
        return PaneGrid.of(*windows).first_open(closed)
    return CalendarGrid.of_calendar(Calendar(**calendar), *windows).first_open(closed)


def window_bounds(time: pa.DataType) -> list[pa.Field]:
    """Return the fields for a window's start and end; `time`: type of the event-time column."""
    return [pa.field(WINDOW_START, time), pa.field(WINDOW_END, time)]


def output_schema(name: str, bounds: list[pa.Field], results: list[pa.Field]) -> pa.Schema:
    """Return the columns of an operator's output, bounds before results; refuse repeated names."""
    output = pa.schema([*bounds, *results])
    check_column_names(visible_schema(output).names, f"The output of operator {name!r}")
    return output
