"""The contract between an operator over event time and the lane that runs it.

Its state is many entries a key, told apart by columns behind the key columns: one of them is a
moment, the pane or the row's time.  Beside what every keyed operator does::

    rows as they come ──arrange──▶ rows that tell their entry, and rows that are left out
    entries whose moment is in `closing` ──close──▶ output of the windows that are over
    entries before `gone_before` ──▶ dropped in bulk

Invariant: whether a row is late depends on what earlier epochs closed and on nothing else, so a row
counts in a window or comes too late for it, whichever lane, attempt or executor it meets.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.model.naming import RESERVED_PREFIX, check_column_names
from godwit.operators.operator import KeyedOperator
from godwit.operators.windows.grid import BEGINNING
from godwit.operators.windows.moments import Arrivals

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from godwit.columns.groups import Groups
    from godwit.operators.windows.grid import PaneGrid
    from godwit.operators.windows.moments import OperatorTime, RowTime

    Find: TypeAlias = Callable[
        [pa.RecordBatch, npt.NDArray[np.integer]], tuple[npt.NDArray[np.bool_], pa.RecordBatch]
    ]

__all__ = [
    "PANE",
    "WINDOW_END",
    "WINDOW_START",
    "Arranged",
    "Closed",
    "Entries",
    "WindowedOperator",
    "output_schema",
    "window_bounds",
]

PANE: Final = f"{RESERVED_PREFIX}_pane"
"""Column of the state: start of the pane."""
WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
_REASON: Final = "reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """Rows on their way to an operator over event time.

    Attributes
    ----------
    rows
        Those that count, with the columns that tell their entry.
    left_out
        The others as they came, and why; ``None`` if there are none.
    found
        Counts.
    """

    rows: pa.RecordBatch
    left_out: pa.RecordBatch | None
    found: Arrivals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entries:
    """Entries of state.

    Attributes
    ----------
    hashes
        Shape ``(n,)``: hash of the key columns.
    keys, values
        n rows of the columns that tell entries apart, and of the state columns.
    """

    hashes: npt.NDArray[np.int64]
    keys: pa.RecordBatch
    values: pa.RecordBatch

    def then(self, others: Entries) -> Entries:
        """Put others behind these."""
        return Entries(
            hashes=np.concatenate([self.hashes, others.hashes]),
            keys=pa.concat_batches([self.keys, others.keys]),
            values=pa.concat_batches([self.values, others.values]),
        )

    def take(self, which: npt.NDArray[np.integer]) -> Entries:
        """Return some of them."""
        rows = pa.array(which)
        return Entries(
            hashes=self.hashes[which], keys=self.keys.take(rows), values=self.values.take(rows)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Closed:
    """Windows that are over.

    Attributes
    ----------
    output
        Rows of them.
    keys
        Keys of the largest.
    merged, merge_ms
        Keys in the parts that were merged into them, and CPU time for it.
    twice
        Partials of a key that was held in two slots.
    """

    output: pa.RecordBatch
    keys: int = 0
    merged: int = 0
    merge_ms: float = 0.0
    twice: int = 0


class WindowedOperator(KeyedOperator):
    """A keyed operator over windows of event time that are made of panes.

    Attributes
    ----------
    time
        Where a row's event time is.
    arriving
        Columns of the rows as they come: key columns, time, and the others that are read.
    grid
        The panes.
    update
        Whether windows are emitted as they grow, and not when they are over.
    """

    time: RowTime
    arriving: pa.Schema
    grid: PaneGrid
    update: bool

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

    @property
    def left_out(self) -> pa.Schema:
        """Columns of rows that are left out: as they came, and why."""
        return left_out_schema(self.arriving)

    @property
    def pane_position(self) -> int:
        """Which of the columns that tell entries apart holds the pane."""
        return len(self.keys)

    def arrange(self, rows: pa.RecordBatch, told: OperatorTime, given: int = 0) -> Arranged:
        """Find the pane of every row, and leave out what belongs to none.

        Parameters
        ----------
        rows
            N rows of `arriving`.
        told
            The epoch's moments.
        given
            Number of the input that they came by.
        """
        column = rows.column(rows.schema.get_field_index(self.time.column))
        times, mask = values_of(column) - int(self.time.is_end), mask_of(column)
        untimed = np.zeros(len(times), np.bool_) if mask is None else ~mask
        not_after = told.latest(given)
        ahead = (times > not_after) & ~untimed
        late = (self.is_late(times, told.closed) | (times < BEGINNING)) & ~untimed & ~ahead
        out = untimed | ahead | late
        left_out = None
        if out.any():
            which = np.flatnonzero(out)
            reasons = np.array(["late", "ahead", "untimed"])[ahead[which] + 2 * untimed[which]]
            left_out = pa.RecordBatch.from_arrays(
                [*rows.take(pa.array(which)).columns, pa.array(reasons, pa.string())],
                schema=self.left_out,
            )
            kept = np.flatnonzero(~out)
            rows, times = rows.take(pa.array(kept)), times[kept]
        return Arranged(
            rows=self.with_panes(rows, column_of(self.marks(rows, times), None, column.type)),
            left_out=left_out,
            found=Arrivals(
                late=int(np.count_nonzero(late)),
                ahead=int(np.count_nonzero(ahead)),
                untimed=int(np.count_nonzero(untimed)),
                reached=int(np.max(times, initial=BEGINNING)) if self.time.is_told else BEGINNING,
            ),
        )

    def is_late(self, times: npt.NDArray[np.int64], closed: int) -> npt.NDArray[np.bool_]:
        """Whether all windows of rows of these moments were closed by earlier epochs."""
        late: npt.NDArray[np.bool_] = times < self.grid.first_open(closed)  # where a pane begins
        return late

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

    def numbered(self, rows: pa.RecordBatch, epoch: int) -> pa.RecordBatch:  # noqa: ARG002
        """Give rows that have arrived numbers, if they are told apart by them."""
        return rows

    def nothing(self) -> pa.RecordBatch:
        """Output without rows."""
        empty = [pa.array([], field.type) for field in self.output]
        return pa.RecordBatch.from_arrays(empty, schema=self.output)

    def closes(self, told: OperatorTime) -> bool:
        """Whether any window is over in this epoch that was not before."""
        return self.grid.closes(told.closed, told.until)

    def needs_state(self, told: OperatorTime) -> bool:
        """Whether windows come out in this epoch, or it is the last that finds some panes."""
        return (
            super().needs_state(told)
            or self.closes(told)
            or self.gone_before(told.until) > self.gone_before(told.closed)
        )

    def closing(self, told: OperatorTime) -> tuple[int, int]:
        """Panes from the one up to the other may be of windows that are over in this epoch."""
        return self.grid.closing(told.closed, told.until)

    def end_of(self, moment: int) -> int:
        """End of the last window that holds a row of this moment."""
        return self.grid.end_of(moment)

    def last_emitted(self, newest: int) -> int:
        """Greatest event time of what it emits, where that of its rows is `newest`."""
        return self.end_of(newest) - 1  # just before the window's end

    @property
    def output_delay_us(self) -> int:
        """How far behind the watermark what it emits may be, in microseconds."""
        return 0

    def gone_before(self, closed: int) -> int:
        """Panes before this one are of no window that ends after `closed`."""
        return self.grid.first_open(closed) if closed > BEGINNING else BEGINNING

    @abstractmethod
    def close(self, held: Entries, changed: Entries | None, told: OperatorTime) -> Closed:
        """Output of the windows that are over in this epoch and were not before.

        Parameters
        ----------
        held
            All entries whose panes are `closing`, as the last epoch left them.
        changed
            Those of them that this epoch changed or added, if any: they count in the others' place.
        told
            The epoch's moments.
        """

    def grown(
        self,
        groups: Groups,
        changed: Entries,
        find: Find,
        told: OperatorTime,
    ) -> pa.RecordBatch:
        """Output of the windows that hold an entry which this epoch changed.

        Parameters
        ----------
        groups, changed
            The entries.
        find
            Finds other entries by what tells them apart, and their key groups.
        told
            The epoch's moments.
        """
        raise NotImplementedError


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
