"""Rows of two joined streams as rows of one operator.

Rows of both sides get the columns of both, null for the other side, and columns for the side and
the event time.  So they are handled like all rows in the exchange, the wait buffer and the state.

`within` matches rows of equal keys within a range of event time, without a loop over rows: rows are
sorted by key and time once, and the matches of a row are a slice, found by binary search.

A null key is a value to an operator; in a join it matches nothing, as in SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.evolution import ORIGINS
from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.library.windows.operator import PANE, EventTimeOperator
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.hot_keys import PART, hash_undivided
from godwit.operators.ordering import expand_ranges
from godwit.store.columns import StateSchema
from godwit.time.event_time import RowTime
from godwit.time.grid import is_past

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.operators.hot_keys import EvenSpread, Spreads
    from godwit.plan.nodes import How
    from godwit.time.event_time import Arrivals, EpochTime
    from godwit.time.grid import PaneGrid


LEFT: Final = 0
RIGHT: Final = 1
SIDE: Final = f"{RESERVED_PREFIX}_side"
"""Column that says which stream a row comes from."""
NUMBER: Final = f"{RESERVED_PREFIX}_number"
"""Column that tells entries of one key, pane and side apart."""
PROBE: Final = -1
"""Number of a row that is matched with others but not stored."""
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
    """A join of two keyed streams by event time."""

    marks_of_state: ClassVar[tuple[pa.Field, ...]] = ()
    """Columns of the state beside those of the rows."""

    grid: PaneGrid
    hashes_whole = True

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,  # under their names in the output
        left: JoinSide,
        right: JoinSide,
        how: How,  # which unmatched rows are emitted: none, those of a side, or of both
        # parts that rows of a key may be spread over at most; 0: none are, and there is no column
        # that says which part a row is of
        spread: int = 0,
    ) -> None:
        self.name, self.how, self.sides, self.spread = name, how, (left, right), spread
        # How far rows have come must be known to the row where former parts are to be left.
        reported = left.time.is_reported or right.time.is_reported or bool(spread)
        self.time = RowTime(column=MOMENT, is_reported=reported)
        self._time_type = pa.timestamp("us", tz="UTC")
        time_field = pa.field(MOMENT, self._time_type)
        self.inputs = pa.schema([time_field, *left.named, *right.named])
        self.arriving = pa.schema([*keys, pa.field(SIDE, pa.int8()), *self.inputs])
        entry_fields = [
            pa.field(PANE, self._time_type),
            pa.field(SIDE, pa.int8()),
            pa.field(NUMBER, pa.int64()),
        ]
        part = [pa.field(PART, pa.int32())] if spread else []
        self.schema = StateSchema(
            keys=pa.schema([*keys, *part, *entry_fields]),
            values=pa.schema([*self.marks_of_state, *self.inputs]),
        )
        self.output = pa.schema([*keys, *left.named, *right.named])

    @property
    def left_out_schema(self) -> pa.Schema:
        """Columns of left-out rows: columns of both sides, then side, event time and reason."""
        names = {SIDE: "side", MOMENT: "moment"}
        return pa.schema(
            [
                field.with_name(names.get(field.name, field.name))
                for field in super().left_out_schema
            ]
        )

    @property
    def means(self) -> dict[str, Any]:
        """Meaning of the state, for the checkpoint: time, keys, columns, origins of the sides."""
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
            ORIGINS: {name: side.origin for name, side in named.items()},
        }

    def unify_columns(self, rows: pa.RecordBatch, input_number: int) -> pa.RecordBatch:
        """Convert rows of one side to the columns that both sides share."""
        side_number = self._side_of(input_number)
        side, count = self.sides[side_number], rows.num_rows
        times = rows.column(side.time.column)
        event_times = column_of(
            values_of(times) - int(side.time.is_end), mask_of(times), self._time_type
        )
        own_columns = [rows.column(name) for name in side.columns]
        null_columns = [pa.nulls(count, field.type) for field in self.sides[1 - side_number].named]
        columns = [
            *(rows.column(key) for key in side.keys),
            column_of(np.full(count, side_number, np.int8), None, pa.int8()),
            event_times,
            *(own_columns + null_columns if side_number == LEFT else null_columns + own_columns),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.arriving)

    def _side_of(self, input_number: int) -> int:
        """Return the side, `LEFT` or `RIGHT`, of input number `input_number` of the operator."""
        return LEFT if input_number in self.sides[LEFT].inputs else RIGHT

    def arrange(
        self, rows: pa.RecordBatch, time: EpochTime, input_number: int = 0
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals | None]:
        """Assign rows to panes, split off late rows, and divide rows of hot keys among parts."""
        rows, left_out, arrivals = super().arrange(rows, time, input_number)
        if self.spread and rows.num_rows:
            rows = self._divide_among_parts(rows, time, self._side_of(input_number))
        return rows, left_out, arrivals

    def _divide_among_parts(
        self, rows: pa.RecordBatch, time: EpochTime, side: int
    ) -> pa.RecordBatch:
        """Return a copy of each row for every part of a hot key that it goes to.

        A copy that is only matched, and not stored, has the number `PROBE`.
        """
        routing = self.routing(time)
        if routing is None:
            return rows
        hashes = hash_undivided(rows.select(self.user_keys.names))
        routes = routing.route_rows(hashes, side, rows.select(self.inputs.names))
        if routes is None:
            return rows
        row, parts, probes = routes
        rows = rows.take(pa.array(row))
        for name, values in ((PART, parts), (NUMBER, np.where(probes, PROBE, 0).astype(np.int64))):
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, rows.schema.field(index), pa.array(values))
        return rows

    def routing(self, time: EpochTime) -> Spreads | EvenSpread | None:
        """Return how rows of hot keys are divided among parts; ``None`` if no key is divided."""
        return time.spreads if time.spreads is not None and time.spreads.keys else None

    def with_panes(self, rows: pa.RecordBatch, panes: pa.Array) -> pa.RecordBatch:
        """Add to rows the identity columns of their entries: part, pane, side and number."""
        zeros = np.zeros(rows.num_rows, np.int64)
        part = [column_of(zeros.astype(np.int32), None, pa.int32())] if self.spread else []
        side = rows.column(SIDE)
        numbers = column_of(zeros, None, pa.int64())
        key_columns = rows.select(self.user_keys.names).columns
        input_columns = rows.select(self.inputs.names).columns
        names = [*self.schema.keys.names, *self.inputs.names]
        return pa.RecordBatch.from_arrays(
            [*key_columns, *part, panes, side, numbers, *input_columns], names=names
        )

    def is_late(self, times: IntArray, closed: int) -> npt.NDArray[np.bool_]:
        """Return a mask of event times that are older than the watermark of earlier epochs."""
        return is_past(times, closed)

    def last_emitted(self, newest: int) -> int:
        """Return `newest`: no output row is newer than the input."""
        return newest

    def emits_unmatched(self, side: int) -> bool:
        """Return whether unmatched rows of a side are emitted."""
        return self.how in (("left", "full"), ("right", "full"))[side]

    def sides_of(self, keys: pa.RecordBatch) -> npt.NDArray[np.int8]:
        """Return the side of each entry from its key columns."""
        sides: npt.NDArray[np.int8] = values_of(keys.column(self.pane_position + 1))
        return sides

    def numbers_of(self, keys: pa.RecordBatch) -> IntArray:
        """Return the number of each entry from its key columns."""
        numbers: IntArray = values_of(keys.column(self.pane_position + 2))
        return numbers

    def entry_keys(
        self,
        keys: pa.RecordBatch,
        panes: IntArray,
        sides: npt.NDArray[np.integer],
        numbers: IntArray,
    ) -> pa.RecordBatch:
        """Build the key columns of state entries from key, pane, side and number."""
        columns = [
            *keys.columns,
            column_of(panes, None, self._time_type),
            column_of(sides.astype(np.int8), None, pa.int8()),
            column_of(numbers, None, pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.keys)

    def to_state(self, rows: pa.RecordBatch, *marks: pa.Array) -> pa.RecordBatch:
        """Convert rows of both sides' columns to state columns: `marks`, then the rows' columns.

        `marks`: what the kind of join stores besides the rows; one array per `marks_of_state`.
        """
        return pa.RecordBatch.from_arrays([*marks, *rows.columns], schema=self.schema.values)

    def from_state(self, state: pa.RecordBatch) -> pa.RecordBatch:
        """Convert state columns back to rows of both sides' columns."""
        first = len(self.marks_of_state)
        return pa.RecordBatch.from_arrays(state.columns[first:], schema=self.inputs)

    def joined(
        self, keys: pa.RecordBatch, rows: pa.RecordBatch, left: IntArray, right: IntArray
    ) -> pa.RecordBatch:
        """Return the output rows of pairs of rows.

        `left`, `right`: positions of each pair's rows in `rows`, -1 for no row. `keys`: key columns
        of `rows`.
        """
        first_right = 1 + len(self.sides[LEFT].named)
        row_with_keys = pa.array(np.where(left < 0, right, left))
        columns = [
            *keys.select(self.user_keys.names).take(row_with_keys).columns,
            *rows.select(list(range(1, first_right))).take(_null_if_negative(left)).columns,
            *rows.select(list(range(first_right, rows.num_columns)))
            .take(_null_if_negative(right))
            .columns,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)


def without_null(keys: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return a mask of keys that have no null; a key with a null matches nothing in a join."""
    without = np.ones(keys.num_rows, np.bool_)
    for column in keys.columns:
        mask = mask_of(column)
        if mask is not None:
            without &= mask
    return without


def event_times_of(rows: pa.RecordBatch) -> IntArray:
    """Return the event times of rows of a join."""
    times: IntArray = values_of(rows.column(0))
    return times


def _null_if_negative(positions: IntArray) -> pa.Array:
    """Return positions for Arrow's ``take``; -1, which stands for no row, becomes null."""
    return pa.array(positions, mask=positions < 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slices:
    """For each of n rows, a range of other rows."""

    order: IntArray  # shape ``(m,)``: the others by key, time, and as they came
    # begins, ends: shape ``(n,)``: those of row i are ``order[begins[i]:ends[i]]``
    begins: IntArray
    ends: IntArray

    @property
    def is_nonempty(self) -> npt.NDArray[np.bool_]:
        """Shape ``(n,)``: true where the range of matching rows is not empty."""
        return self.ends > self.begins

    @property
    def last(self) -> IntArray:
        """Shape ``(n,)``: position of the last row of each range, -1 where the range is empty."""
        last = np.full(len(self.ends), -1, np.int64)
        last[self.is_nonempty] = self.order[self.ends[self.is_nonempty] - 1]
        return last

    def pairs(self) -> tuple[IntArray, IntArray]:
        """Return all matching pairs as two arrays of positions, ordered by row, key and time."""
        row, place = expand_ranges(self.begins, self.ends - self.begins)
        return row, self.order[place]


def within(
    key: IntArray, first: IntArray, last: IntArray, other_key: IntArray, moment: IntArray
) -> Slices:
    """Find, for n rows, the range of other rows with the same key and a time in an interval.

    Row i matches other rows with ``first[i] <= moment <= last[i]``. `key`, `first`, `last`: shape
    ``(n,)``. `other_key`, `moment`: key and time of the other rows.

    Examples
    --------
    >>> one = np.array
    >>> found = within(one([7, 7]), one([0, 5]), one([9, 6]), one([7, 8, 7]), one([4, 4, 9]))
    >>> [part.tolist() for part in found.pairs()]
    [[0, 0], [0, 2]]
    """
    order = np.lexsort((moment, other_key))
    # Moments become ranks, so that key and rank fit in one integer that can be searched for.
    ranks = np.unique(moment)
    width = len(ranks) + 1
    place = other_key[order] * width + np.searchsorted(ranks, moment[order])
    begins = np.searchsorted(place, key * width + np.searchsorted(ranks, first, side="left"))
    ends = np.searchsorted(place, key * width + np.searchsorted(ranks, last, side="right"))
    return Slices(order=order, begins=begins, ends=np.maximum(begins, ends))
