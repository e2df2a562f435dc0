"""Operators over event time: what their kinds share.

Their state is many entries a key, told apart by columns behind the key columns: one of them is a
moment, the pane or the row's time.  Rows are arranged on their way (which entry they belong to, and
which rows belong to none), entries are read when time closes what they are of, and those before
`gone_before` are dropped in bulk.

Invariant: whether a row is late depends on what earlier epochs closed and on nothing else, so a row
counts in a window or comes too late for it, whichever lane, attempt or executor it meets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from godwit.checkpoint.entries import StateRows
from godwit.checkpoint.evolution import StateDescription, columns_of
from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.model.naming import RESERVED_PREFIX, check_column_names
from godwit.operators.operator import STATE, Arranged, KeyedOperator
from godwit.operators.windows.description import describe_windows, windows_of
from godwit.operators.windows.event_time import Arrivals
from godwit.operators.windows.grid import BEGINNING
from godwit.store.changes import EntryRange

if TYPE_CHECKING:
    import numpy.typing as npt

    from godwit.operators.operator import OperatorInput
    from godwit.operators.windows.event_time import EpochTime, RowTime
    from godwit.operators.windows.grid import PaneGrid

__all__ = [
    "PANE",
    "WINDOW_END",
    "WINDOW_START",
    "EventTimeOperator",
    "number_rows",
    "output_schema",
    "window_bounds",
]

PANE: Final = f"{RESERVED_PREFIX}_pane"
"""Column of the state: start of the pane."""
WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
_REASON: Final = "reason"
_ROWS_OF_EPOCH: Final = 1 << 31


class EventTimeOperator(KeyedOperator):
    """A keyed operator whose entries are told apart by panes of event time."""

    over_event_time: ClassVar[bool] = True

    time: RowTime  # where a row's event time is
    arriving: pa.Schema  # the rows as they come: key columns, time, and the others that are read
    grid: PaneGrid
    update: bool = False  # whether windows are emitted as they grow, not when they are over
    lateness_us: int = 0  # how long windows that have come out take rows, in microseconds

    @property
    def keys(self) -> pa.Schema:
        """Key columns."""
        return pa.schema(list(self.schema.keys)[: self.schema.keys.get_field_index(PANE)])

    def unique_keys_of_windows(self, lengths: int) -> tuple[tuple[str, ...], ...]:
        """Name columns that tell windows apart: where all have one length, one bound will do."""
        own = tuple(self.keys.names)
        both = (*own, WINDOW_START, WINDOW_END)
        return (both, (*own, WINDOW_START), (*own, WINDOW_END)) if lengths == 1 else (both,)

    @property
    def means(self) -> dict[str, Any]:
        """What the meaning of entries depends on besides their windows, as plain values."""
        return {"time": {"column": self.time.column, "is end": self.time.is_end}}

    def describe_state(self, state: str = STATE) -> StateDescription:  # noqa: ARG002
        """Describe the entries, and what they mean."""
        described = StateDescription(columns=columns_of(self.schema.values), codec="arrow")
        return describe_windows(described, self, windows_of(self.grid))

    @property
    def left_out(self) -> pa.Schema:
        """Columns of rows that are left out: as they came, and why."""
        return left_out_schema(self.arriving)

    @property
    def pane_position(self) -> int:
        """Which of the columns that tell entries apart holds the pane."""
        return len(self.keys)

    # -- rows on their way ---------------------------------------------------------------------

    def arrange(self, rows: pa.RecordBatch, time: EpochTime, given: int = 0) -> Arranged:
        """Find the pane of every row of `arriving`, and leave out what belongs to none."""
        column = rows.column(rows.schema.get_field_index(self.time.column))
        times, mask = values_of(column) - int(self.time.is_end), mask_of(column)
        untimed = np.zeros(len(times), np.bool_) if mask is None else ~mask
        not_after = time.latest(given)
        ahead = (times > not_after) & ~untimed
        late = (self.is_late(times, time.closed) | (times < BEGINNING)) & ~untimed & ~ahead
        out = untimed | ahead | late
        left_out = None
        if out.any():
            which = np.flatnonzero(out)
            reasons = np.array(["late", "ahead", "untimed"])[ahead[which] + 2 * untimed[which]]
            left_out = pa.RecordBatch.from_arrays(
                [*rows.take(pa.array(which)).columns, pa.array(reasons, pa.string())],
                schema=self.left_out,
            )
            counting = np.flatnonzero(~out)
            rows, times = rows.take(pa.array(counting)), times[counting]
        return Arranged(
            rows=self.with_panes(rows, column_of(self.marks(rows, times), None, column.type)),
            left_out=left_out,
            arrivals=Arrivals(
                late=int(np.count_nonzero(late)),
                ahead=int(np.count_nonzero(ahead)),
                untimed=int(np.count_nonzero(untimed)),
                reached=int(np.max(times, initial=BEGINNING)) if self.time.is_told else BEGINNING,
            ),
        )

    def is_late(self, times: npt.NDArray[np.int64], closed: int) -> npt.NDArray[np.bool_]:
        """Whether all windows of rows of these event times were closed by earlier epochs."""
        return self.grid.is_late(times, closed - self.lateness_us)

    def marks(self, rows: pa.RecordBatch, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:  # noqa: ARG002
        """Moment by which the entry of each row is told apart from others of its key: its pane."""
        return self.grid.panes(times)

    def with_panes(self, rows: pa.RecordBatch, panes: pa.Array) -> pa.RecordBatch:
        """Give rows as they came the columns that tell their entry."""
        return self.entry_rows(rows, panes)

    def entry_rows(self, rows: pa.RecordBatch, *apart: pa.Array) -> pa.RecordBatch:
        """Put the columns that tell entries apart behind the key columns."""
        own, entry = self.keys.names, self.schema.keys.names
        others = [name for name in self.inputs.names if name not in own]
        columns = [*rows.select(own).columns, *apart, *rows.select(others).columns]
        return pa.RecordBatch.from_arrays(columns, names=[*entry, *others])

    # -- time ----------------------------------------------------------------------------------

    def closes(self, time: EpochTime) -> bool:
        """Whether any window is over in this epoch that was not before."""
        return self.grid.closes(time.closed, time.until)

    def needs_state(self, time: EpochTime) -> bool:
        """Whether windows come out in this epoch, or it is the last that finds some panes."""
        return (
            super().needs_state(time)
            or self.closes(time)
            or self.gone_before(time.until) > self.gone_before(time.closed)
        )

    def closing(self, time: EpochTime) -> tuple[int, int]:
        """Panes from the one up to the other may be of windows that are over in this epoch."""
        return self.grid.closing(time.closed, time.until)

    def end_of(self, moment: int) -> int:
        """End of the last window that holds a row of this event time."""
        return self.grid.end_of(moment)

    def last_emitted(self, newest: int) -> int:
        """Greatest event time of what it emits: just before the window's end."""
        return self.end_of(newest) - 1

    def gone_before(self, closed: int) -> int:
        """Panes before this one are of no window that takes rows once `closed` has passed."""
        return self.grid.first_open(closed - self.lateness_us) if closed > BEGINNING else BEGINNING

    def gone(self, closed: int) -> EntryRange:
        """Panes that nobody asks for any more."""
        return EntryRange(column=self.pane_position, end=self.gone_before(closed))

    # -- entries -------------------------------------------------------------------------------

    def closing_entries(
        self, data: OperatorInput, changed: StateRows | None
    ) -> tuple[StateRows, StateRows | None]:
        """Entries of panes that are `closing`: those in the store, and those that an epoch changed.

        The latter count in the place of the former; ``None`` if there are none.
        """
        first, end = self.closing(data.time)
        if changed is not None:
            panes = values_of(changed.keys.column(self.pane_position))
            closing = (panes >= first) & (panes < end)
            changed = changed.take(np.flatnonzero(closing)) if closing.any() else None
        part = EntryRange(column=self.pane_position, first=first, end=end)
        return data.state.scan(part), changed

    def nothing(self) -> pa.RecordBatch:
        """Output without rows."""
        empty = [pa.array([], field.type) for field in self.output]
        return pa.RecordBatch.from_arrays(empty, schema=self.output)


def number_rows(rows: StateRows, column: str, epoch: int) -> StateRows:
    """Give rows numbers in order of arrival, over all epochs, in one of their key columns."""
    numbers = epoch * _ROWS_OF_EPOCH + np.arange(len(rows.hashes))
    position = rows.keys.schema.get_field_index(column)
    keys = rows.keys.set_column(position, rows.keys.schema.field(position), pa.array(numbers))
    return StateRows(hashes=rows.hashes, keys=keys, values=rows.values)


def left_out_schema(arriving: pa.Schema) -> pa.Schema:
    """Columns of rows that are left out: as they came, and why."""
    return pa.schema([*arriving, pa.field(_REASON, pa.string())])


def window_bounds(moment: pa.DataType) -> list[pa.Field]:
    """Columns that say which window a row of output is of."""
    return [pa.field(WINDOW_START, moment), pa.field(WINDOW_END, moment)]


def output_schema(name: str, bounds: list[pa.Field], results: list[pa.Field]) -> pa.Schema:
    """Columns of an operator's output: key and window, then the results.

    Raises
    ------
    InvalidFlowError
        If two have one name, or a name is taken.
    """
    output = pa.schema([*bounds, *results])
    check_column_names(output.names, f"The output of operator {name!r}")
    return output
