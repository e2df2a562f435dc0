"""Rows of two streams as rows of one operator.

Rows of either side become rows of the columns of both, those of the other side null, with a column
that says which side and one that holds the moment.  So they take the way of all rows: through the
exchange, the wait buffer, and into one state.

Null keys are values to an operator, but to a join they equal nothing, as in SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.windows.event_time import RowTime
from godwit.operators.windows.operator import PANE, EventTimeOperator
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.operators.operator import StateView
    from godwit.operators.windows.grid import PaneGrid

__all__ = ["LEFT", "MOMENT", "NUMBER", "RIGHT", "SIDE", "How", "JoinOperator", "JoinSide"]

How: TypeAlias = Literal["inner", "left", "right", "full"]

LEFT: Final = 0
RIGHT: Final = 1
SIDE: Final = f"{RESERVED_PREFIX}_side"
"""Column that says which stream a row is of."""
NUMBER: Final = f"{RESERVED_PREFIX}_number"
"""Column that tells entries of one key, pane and side apart."""
MOMENT: Final = f"{RESERVED_PREFIX}_moment"
"""Column of a row's event time, in microseconds."""

IntArray: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSide:
    """One of the two streams."""

    keys: tuple[str, ...]  # names of its key columns
    columns: tuple[str, ...]  # its other columns, under the names that they have there
    named: pa.Schema  # the same columns, under the names that they have in the output
    time: RowTime  # where its event time is
    inputs: frozenset[int]  # numbers of the operator's inputs that its rows come by
    # Where its rows come from, as plain values: their sources, and a digest of the way from there,
    # which is another one for another way.
    origin: Mapping[str, Any]


class JoinOperator(EventTimeOperator):
    """A join of two keyed streams by event time.

    Parameters
    ----------
    name
        The operator's name.
    keys
        Key columns, under their names in the output.
    left, right
        The streams.
    how
        Whose rows come out that met none: nobody's, or those of a side, or of both.
    """

    marks_of_state: ClassVar[tuple[pa.Field, ...]] = ()
    """Columns of the state beside those of the rows."""

    grid: PaneGrid

    def __init__(
        self, *, name: str, keys: pa.Schema, left: JoinSide, right: JoinSide, how: How
    ) -> None:
        self.name, self.how, self.sides = name, how, (left, right)
        self.time = RowTime(column=MOMENT, is_told=left.time.is_told or right.time.is_told)
        self._moment = pa.timestamp("us", tz="UTC")
        moment = pa.field(MOMENT, self._moment)
        self.inputs = pa.schema([moment, *left.named, *right.named])
        self.arriving = pa.schema([*keys, pa.field(SIDE, pa.int8()), *self.inputs])
        apart = [
            pa.field(PANE, self._moment),
            pa.field(SIDE, pa.int8()),
            pa.field(NUMBER, pa.int64()),
        ]
        self.schema = StateSchema(
            keys=pa.schema([*keys, *apart]),
            values=pa.schema([*self.marks_of_state, *self.inputs]),
        )
        self.output = pa.schema([*keys, *left.named, *right.named])

    @property
    def left_out(self) -> pa.Schema:
        """Columns of rows that are left out: of both sides, which side it is, when, and why."""
        names = {SIDE: "side", MOMENT: "moment"}
        return pa.schema(
            [field.with_name(names.get(field.name, field.name)) for field in super().left_out]
        )

    @property
    def means(self) -> dict[str, Any]:
        """What the sides are made of: rows that wait are of one of them."""
        named = dict(zip(("left", "right"), self.sides, strict=True))
        return {
            "time": {
                name: {"column": side.time.column, "is end": side.time.is_end}
                for name, side in named.items()
            },
            "keys": {name: list(side.keys) for name, side in named.items()},
            "side of column": {
                column: name for name, side in named.items() for column in side.named.names
            },
            "origins": {name: side.origin for name, side in named.items()},
        }

    def received(self, rows: pa.RecordBatch, given: int) -> pa.RecordBatch:
        """Give rows of one side the columns of both."""
        which = self._side_of(given)
        side, count = self.sides[which], rows.num_rows
        at = rows.schema.get_field_index
        times = rows.column(at(side.time.column))
        moments = column_of(values_of(times) - int(side.time.is_end), mask_of(times), self._moment)
        own = [rows.column(at(name)) for name in side.columns]
        none = [pa.nulls(count, field.type) for field in self.sides[1 - which].named]
        columns = [
            *(rows.column(at(key)) for key in side.keys),
            column_of(np.full(count, which, np.int8), None, pa.int8()),
            moments,
            *(own + none if which == LEFT else none + own),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.arriving)

    def _side_of(self, given: int) -> int:
        return LEFT if given in self.sides[LEFT].inputs else RIGHT

    def with_panes(self, rows: pa.RecordBatch, panes: pa.Array) -> pa.RecordBatch:
        """Give rows as they came a pane, and room for a number."""
        numbers = column_of(np.zeros(rows.num_rows, np.int64), None, pa.int64())
        side = rows.column(rows.schema.get_field_index(SIDE))
        return self.entry_rows(rows, panes, side, numbers)

    def is_late(self, times: IntArray, closed: int) -> npt.NDArray[np.bool_]:
        """Whether rows are older than the watermark that earlier epochs acted on."""
        return times < closed

    def last_emitted(self, newest: int) -> int:
        """No row that comes out is newer than those that came in."""
        return newest

    def keeps(self, side: int) -> bool:
        """Whether rows of a side come out that met none."""
        return self.how in (("left", "full"), ("right", "full"))[side]

    def sides_of(self, keys: pa.RecordBatch) -> npt.NDArray[np.int8]:
        """Give the side of each entry."""
        found: npt.NDArray[np.int8] = values_of(keys.column(self.pane_position + 1))
        return found

    def numbers_of(self, keys: pa.RecordBatch) -> IntArray:
        """Give the number of each entry."""
        found: IntArray = values_of(keys.column(self.pane_position + 2))
        return found

    def entry_keys(
        self,
        own: pa.RecordBatch,
        panes: IntArray,
        sides: npt.NDArray[np.integer],
        numbers: IntArray,
    ) -> pa.RecordBatch:
        """Give what tells some entries."""
        columns = [
            *own.columns,
            column_of(panes, None, self._moment),
            column_of(sides.astype(np.int8), None, pa.int8()),
            column_of(numbers, None, pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.keys)

    def stored(self, rows: pa.RecordBatch, *marks: pa.Array) -> pa.RecordBatch:
        """Give rows of `inputs` as state columns."""
        return pa.RecordBatch.from_arrays([*marks, *rows.columns], schema=self.schema.values)

    def rows_of(self, state: pa.RecordBatch) -> pa.RecordBatch:
        """Give state columns as rows of `inputs`."""
        first = len(self.marks_of_state)
        return pa.RecordBatch.from_arrays(state.columns[first:], schema=self.inputs)

    def joined(
        self, own: pa.RecordBatch, rows: pa.RecordBatch, left: IntArray, right: IntArray
    ) -> pa.RecordBatch:
        """Make rows of the output.

        Parameters
        ----------
        own, rows
            Key columns, and `inputs`, of n rows of either side.
        left, right
            Shape ``(p,)``: position of each pair's rows; -1 for none, on one of the two sides.
        """
        split = 1 + len(self.sides[LEFT].named)
        some = pa.array(np.where(left < 0, right, left))
        columns = [
            *own.take(some).columns,
            *rows.select(list(range(1, split))).take(_or_null(left)).columns,
            *rows.select(list(range(split, rows.num_columns))).take(_or_null(right)).columns,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)


def without_null(keys: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Shape ``(n,)``: keys of which no column is null, which alone can equal others."""
    found = np.ones(keys.num_rows, np.bool_)
    for column in keys.columns:
        mask = mask_of(column)
        if mask is not None:
            found &= mask
    return found


def find_some(
    state: StateView, keys: pa.RecordBatch, key_groups: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
    """Find entries: positions of those that are there, and their state columns."""
    known, values = state.find(keys, key_groups)
    there = np.flatnonzero(known)
    return there, values.take(pa.array(there))


def event_times_of(rows: pa.RecordBatch) -> IntArray:
    """Event time of rows of `JoinOperator.inputs`."""
    found: IntArray = values_of(rows.column(0))
    return found


def _or_null(which: IntArray) -> pa.Array:
    """Positions to take, null where negative."""
    return pa.array(which, mask=which < 0)
