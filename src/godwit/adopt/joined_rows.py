"""Joins of two streams, with the semantics of Spark's symmetric hash join.

Both streams send their rows with columns of the same names: the join keys, and columns that say
when a row is late, from which watermark on no row can meet it, and whether it can meet one at all.
Every row meets the stored rows of the other stream with its key; a condition over both keeps some
of the pairs.  A row is an entry of state under its key, its side and a number; the numbers of a key
and side have no gaps, and the entry with number 0 has their count.

At the end of a batch the rows are dropped that no later one can meet.  In outer joins, those of
them that have met none come out, with nulls for the other side; in a semi join a left row comes out
when it meets its first.

Invariant: a row is dropped in the batch in which Spark drops it, so it comes out in that batch.

Source: `StreamingSymmetricHashJoinExec` and `SymmetricHashJoinStateManager` of Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.adopt.encoding import decoded, encoded, is_nested
from godwit.adopt.lanes import ONLY_TIME
from godwit.checkpoint.evolution import columns_of
from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.columns.groups import group_rows
from godwit.library.joins.sides import without_null
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.initial import numbers_in_runs, with_column
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput, changed_by_key
from godwit.operators.ordering import expand_ranges
from godwit.store.changes import EntryRange
from godwit.store.columns import StateSchema
from godwit.time.event_time import Arrivals
from godwit.time.grid import END

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.checkpoint.evolution import StateDescription
    from godwit.columns.groups import Groups
    from godwit.operators.operator import EntryColumns, OperatorInput, StateView
    from godwit.store.changes import StateRows
    from godwit.time.event_time import EpochTime

How: TypeAlias = Literal["inner", "left", "right", "full", "semi"]
Bools: TypeAlias = npt.NDArray[np.bool_]
IntArray: TypeAlias = npt.NDArray[np.int64]

LATE_BY: Final = "late_by"
"""Column of a stream: the time by which a row is late; null: it is never late."""
EXPIRES: Final = "expires"
"""Column of a stream: watermark from which on no row can match this one, if any."""
PASSES_OWN_CONDITION: Final = "passes"
"""Column of a stream: whether its row meets the conditions that concern only its side."""
IS_LEFT: Final = "is_left"
"""Column that only the left stream has."""

SIDE: Final = f"{RESERVED_PREFIX}_side"
_NUMBER: Final = f"{RESERVED_PREFIX}_number"
MET: Final = f"{RESERVED_PREFIX}_met"
_COUNT: Final = f"{RESERVED_PREFIX}_count"
_MOMENT: Final = pa.timestamp("us", "UTC")
_EPOCH: Final = 0
LEFT: Final = 0
RIGHT: Final = 1


class JoinedRows(KeyedOperator):
    """Join of two streams without watermarks."""

    kind = "joined rows"
    emits = "pairs, when the second row of each arrives"

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        left: pa.Schema,  # columns of rows of the left stream that come out
        right: pa.Schema,
        how: How,
        condition: Callable[[pa.Table], pa.Table] | None,  # of the columns of both sides
        # of each side: how long before the time in `EXPIRES` its rows expire, in microseconds
        reach_us: tuple[int, int],
        forgets: bool,  # rows of a side are dropped some time
        delay_us: int,  # how far the event times of the output are behind the watermark
    ) -> None:
        self.name, self.how, self.condition, self.forgets = name, how, condition, forgets
        self.reach_us = reach_us
        self.output_delay_us = delay_us
        self.own_keys, self.sides = keys, (left, right)
        self.shown = pa.schema([*left, *right])
        # Arrays and maps are encoded on their way and in the state.
        self.rows = pa.schema(
            [
                pa.field(column.name, pa.large_binary()) if is_nested(column.type) else column
                for column in self.shown
            ]
        )
        self.inputs = pa.schema(
            [pa.field(EXPIRES, _MOMENT), pa.field(PASSES_OWN_CONDITION, pa.bool_()), *self.rows]
        )
        self.schema = StateSchema(
            keys=pa.schema([*keys, pa.field(SIDE, pa.int8()), pa.field(_NUMBER, pa.int64())]),
            values=pa.schema(
                [
                    pa.field(EXPIRES, _MOMENT),
                    pa.field(MET, pa.bool_()),
                    pa.field(_COUNT, pa.int64()),
                    *self.rows,
                ]
            ),
        )
        self.output = left if how == "semi" else self.shown

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Describe the state for the checkpoint, with the columns that identify rows of a key."""
        return msgspec.structs.replace(
            super().describe_state(state),
            entries=columns_of(list(self.schema.keys)[len(self.own_keys) :]),
        )

    def initial_entries(self, state: str, rows: pa.RecordBatch) -> EntryColumns:
        """Return entries for stored rows, with a ``side`` (0: left, 1: right); see `MET`."""
        zero = column_of(np.zeros(rows.num_rows, np.int64), None, pa.int64())
        for name in (_NUMBER, _COUNT):
            rows = with_column(rows, name, zero)
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if is_nested(column.type):
                rows = with_column(rows, name, encoded(column))
        absent = {field.name: partial(pa.nulls, type=field.type) for field in self.rows}
        return self.entries_from(state, rows, absent)

    def complete_entries(self, state: str, entries: StateRows) -> StateRows:  # noqa: ARG002
        """Assign numbers to the rows of each key and side; the first one has their count."""
        user_keys = entries.keys.select(self.own_keys.names)
        key = group_rows(entries.hashes, user_keys, 1).of_row
        key_and_side = key * 2 + values_of(entries.keys.column(len(self.own_keys)))
        _, key_and_side = np.unique(key_and_side, return_inverse=True)
        number = numbers_in_runs(key_and_side)
        count = np.where(number == 0, np.bincount(key_and_side)[key_and_side], 0)
        keys, values = entries.keys, entries.values
        index = values.schema.get_field_index(_COUNT)
        numbers, counts = (column_of(column, None, pa.int64()) for column in (number, count))
        return replace(
            entries,
            keys=keys.set_column(len(self.own_keys) + 1, keys.schema.field(_NUMBER), numbers),
            values=values.set_column(index, values.schema.field(_COUNT), counts),
        )

    @property
    def keys(self) -> pa.Schema:
        """Join keys, by which rows are hashed."""
        return self.own_keys

    # -- rows on their way ---------------------------------------------------------------------

    def unify_columns(self, rows: pa.RecordBatch, input_number: int) -> pa.RecordBatch:  # noqa: ARG002
        """Convert the rows of a stream to the columns that both share."""
        names, count = rows.schema.names, rows.num_rows
        side = LEFT if IS_LEFT in names else RIGHT
        columns = {field.name: pa.nulls(count, field.type) for field in self.rows}
        columns |= {
            name: encoded(column) if is_nested(column.type) else column
            for name, column in zip(names, rows.columns, strict=True)
            if name in self.rows.names
        }
        key_columns = {name: rows.column(name) for name in self.own_keys.names}
        fixed = {name: rows.column(name) for name in (LATE_BY, EXPIRES, PASSES_OWN_CONDITION)}
        no_row_is_time = pa.array(np.zeros(count, np.bool_))
        fixed[ONLY_TIME] = rows.column(ONLY_TIME) if ONLY_TIME in names else no_row_is_time
        entry_columns = {
            SIDE: column_of(np.full(count, side, np.int8), None, pa.int8()),
            _NUMBER: column_of(np.zeros(count, np.int64), None, pa.int64()),
        }
        return pa.RecordBatch.from_pydict({**key_columns, **entry_columns, **fixed, **columns})

    def arrange(
        self,
        rows: pa.RecordBatch,
        time: EpochTime,
        input_number: int = 0,  # noqa: ARG002
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals | None]:
        """Drop late rows, and rows that only advance the watermark."""
        rows = rows.filter(pc.invert(rows.column(ONLY_TIME)))
        column = rows.column(LATE_BY)
        is_late = values_of(column) <= max(time.closed, _EPOCH)
        mask = mask_of(column)
        is_late = is_late if mask is None else is_late & mask
        left_out = arrivals = None
        names = [*self.schema.keys.names, *self.inputs.names]
        if is_late.any():
            late_rows = rows.filter(pa.array(is_late)).select(
                [*self.own_keys.names, *self.rows.names]
            )
            reasons = pa.array(["late"] * late_rows.num_rows, pa.string())
            late_columns = self._decode_nested(late_rows).columns
            left_out = pa.RecordBatch.from_arrays(
                [*late_columns, reasons], schema=self.left_out_schema
            )
            rows = rows.filter(pa.array(~is_late))
            arrivals = Arrivals(late=late_rows.num_rows)
        return rows.select(names), left_out, arrivals

    @property
    def left_out_schema(self) -> pa.Schema:
        """Columns of left-out rows: keys, columns of both sides, and the reason."""
        return pa.schema([*self.own_keys, *self.shown, pa.field("reason", pa.string())])

    # -- time ----------------------------------------------------------------------------------

    def closes(self, time: EpochTime) -> bool:
        """Return whether rows may be dropped because the watermark has advanced."""
        return self.forgets and time.until > max(time.closed, _EPOCH)

    def needs_state(self, time: EpochTime) -> bool:
        """Return whether the batch drops rows."""
        return self.closes(time)

    def reads_all_keys(self, time: EpochTime) -> bool:
        """Return whether the batch drops rows."""
        return self.closes(time)

    # -- a batch -------------------------------------------------------------------------------

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Join a batch's rows with each other and with the state, then drop rows."""
        until = max(data.time.until, _EPOCH)
        arrived, hashes = data.rows, [data.rows.hashes]
        user_keys = [arrived.keys.select(self.own_keys.names)]
        if self.closes(data.time):
            expired_range = EntryRange(column=len(self.schema.keys), end=until + 1)
            expired = data.state.scan(expired_range)
            hashes.append(expired.hashes)
            user_keys.append(expired.keys.select(self.own_keys.names))
        every_hash = np.concatenate(hashes)
        if not len(every_hash):
            return OperatorOutput()
        groups = group_rows(every_hash, pa.concat_batches(user_keys), data.num_key_groups)
        distinct_keys = pa.concat_batches(user_keys).take(pa.array(groups.first_row))
        loaded = self._load_stored_rows(distinct_keys, groups, data.state)
        new, unjoinable = self._split_by_joinable(arrived, groups.of_row[: len(arrived.hashes)])
        rows = loaded.followed_by(new)
        num_loaded = len(loaded.key)
        # Spark finds nulls equal where its optimizer puts no filter before the join.
        has_key = np.ones(distinct_keys.num_rows, np.bool_)
        if self.how != "full":
            has_key = without_null(distinct_keys)
        left, right = self._pairs_with_new_rows(rows, num_loaded, has_key, until)
        is_matched = rows.met.copy()
        is_matched[left] = is_matched[right] = True
        output = [self._output_of_pairs(rows, left, right, is_matched)]
        is_dropped = rows.expires <= until
        is_unmatched = is_dropped & ~is_matched & self._comes_out_alone(rows.side)
        output += [
            self._output_of_unmatched(unmatched_rows, mask)
            for unmatched_rows, mask in (
                (rows, is_unmatched),
                (unjoinable, self._comes_out_alone(unjoinable.side)),
            )
            if self.how != "semi"
        ]
        if self.how == "semi":
            is_dropped |= is_matched & (rows.side == LEFT)
        return OperatorOutput(
            output=pa.concat_batches(output),
            groups=groups,
            changed=self._state_changes(rows, is_matched, is_dropped, groups, distinct_keys),
        )

    def _split_by_joinable(self, arrived: StateRows, key: IntArray) -> tuple[_Rows, _Rows]:
        """Return the rows of a batch that can match others, and those that cannot."""
        column = arrived.values.column(EXPIRES)
        times, mask = values_of(column), mask_of(column)
        side = values_of(arrived.keys.column(len(self.own_keys)))
        expires = times - np.array(self.reach_us)[side]
        count = len(key)
        rows = _Rows(
            key=key,
            side=side,
            number=np.full(count, -1),
            expires=expires if mask is None else np.where(mask, expires, END),
            met=np.zeros(count, np.bool_),
            count=np.zeros(count, np.int64),
            values=arrived.values.select(self.rows.names),
        )
        passes = values_of(arrived.values.column(PASSES_OWN_CONDITION).fill_null(False))
        return rows.take(np.flatnonzero(passes)), rows.take(np.flatnonzero(~passes))

    def _load_stored_rows(
        self, distinct_keys: pa.RecordBatch, groups: Groups, state: StateView
    ) -> _Rows:
        """Return all stored rows of keys, of both sides."""
        count = distinct_keys.num_rows
        key = np.repeat(np.arange(count), 2)
        side = np.tile(np.array([LEFT, RIGHT], np.int8), count)
        first_rows = self._find_stored_rows(
            (key, side, np.zeros(2 * count, np.int64)), distinct_keys, groups, state
        )
        first_of_row, number = expand_ranges(
            np.ones(len(first_rows.key), np.int64), first_rows.count - 1
        )
        further = self._find_stored_rows(
            (first_rows.key[first_of_row], first_rows.side[first_of_row], number),
            distinct_keys,
            groups,
            state,
        )
        return first_rows.followed_by(further)

    def _find_stored_rows(
        self,
        position: tuple[IntArray, npt.NDArray[np.int8], IntArray],
        distinct: pa.RecordBatch,
        groups: Groups,
        state: StateView,
    ) -> _Rows:
        """Return the stored rows that exist; `position`: keys, sides and numbers."""
        key, side, number = position
        entry_keys = self._entry_keys(distinct, key, side, number)
        is_stored, values = state.find(entry_keys, groups.key_groups[key])
        values = values.filter(pa.array(is_stored))
        return _Rows(
            key=key[is_stored],
            side=side[is_stored],
            number=number[is_stored],
            expires=values_of(values.column(0)),
            met=values_of(values.column(1)),
            count=values_of(values.column(2)),
            values=values.select(list(range(3, values.num_columns))),
        )

    def _entry_keys(
        self,
        distinct: pa.RecordBatch,
        key: IntArray,
        side: npt.NDArray[np.int8],
        number: IntArray,
    ) -> pa.RecordBatch:
        """Return the identity columns of entries."""
        columns = [
            *distinct.take(pa.array(key)).columns,
            column_of(side, None, pa.int8()),
            column_of(number, None, pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.keys)

    def _pairs_with_new_rows(
        self, rows: _Rows, num_loaded: int, has_key: Bools, until: int
    ) -> tuple[IntArray, IntArray]:
        """Return the positions of the left and right rows of all pairs with a new row.

        In a semi join Spark stores the right rows of a batch first, but for those that expire in
        it, and its left rows meet stored ones alone.
        """
        is_new = np.arange(len(rows.key)) >= num_loaded
        is_left = (rows.side == LEFT) & has_key[rows.key]
        is_right = (rows.side == RIGHT) & has_key[rows.key]
        parts = [
            _same_key(rows.key, np.flatnonzero(chosen_left), np.flatnonzero(chosen_right))
            for chosen_left, chosen_right in (
                (is_left & is_new, is_right),
                (is_left & ~is_new, is_right & is_new),
            )
        ]
        left, right = (np.concatenate(side) for side in zip(*parts, strict=True))
        if self.how == "semi":
            not_stored = is_new[left] & is_new[right] & (rows.expires[right] <= until)
            is_first_match = ~rows.met[left] & ~not_stored
            left, right = left[is_first_match], right[is_first_match]
        if self.condition is None or not len(left):
            return left, right
        pairs = self._side_by_side(rows, left, right)
        holds = self.condition(pa.Table.from_batches([self._decode_nested(pairs)])).column(0)
        holding = np.flatnonzero(values_of(holds.combine_chunks().fill_null(False)))
        return left[holding], right[holding]

    def _decode_nested(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Decode the arrays and maps of rows."""
        names = rows.schema.names
        columns = [
            decoded(column, self.shown.field(name).type)
            if name in self.shown.names and is_nested(self.shown.field(name).type)
            else column
            for name, column in zip(names, rows.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _output_of_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the output of rows with its columns."""
        columns = self._decode_nested(rows.select(self.output.names)).columns
        return pa.RecordBatch.from_arrays(columns, schema=self.output)

    def _side_by_side(self, rows: _Rows, left: IntArray, right: IntArray) -> pa.RecordBatch:
        """Return pairs of rows as one batch; -1: no row."""
        split = len(self.sides[LEFT])
        places = [pa.array(place, mask=place < 0) for place in (left, right)]
        columns = [
            column.take(places[LEFT if number < split else RIGHT])
            for number, column in enumerate(rows.values.columns)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.rows)

    def _output_of_pairs(
        self, rows: _Rows, left: IntArray, right: IntArray, met: Bools
    ) -> pa.RecordBatch:
        """Return the output of pairs; of a semi join, left rows with their first match."""
        if self.how != "semi":
            return self._output_of_rows(self._side_by_side(rows, left, right))
        first = np.flatnonzero(met & ~rows.met & (rows.side == LEFT))
        return self._output_of_rows(rows.values.take(pa.array(first)))

    def _comes_out_alone(self, side: npt.NDArray[np.int8]) -> Bools:
        """Return a mask of rows that are emitted if they have no match."""
        outer = np.array([self.how in ("left", "full"), self.how in ("right", "full")])
        return outer[side]

    def _output_of_unmatched(self, rows: _Rows, pick: Bools) -> pa.RecordBatch:
        """Return the output of rows without a match."""
        picked = np.flatnonzero(pick)
        none = np.full(len(picked), -1)
        is_left = rows.side[picked] == LEFT
        pairs = np.where(is_left, picked, none), np.where(is_left, none, picked)
        return self._output_of_rows(self._side_by_side(rows, *pairs))

    def _state_changes(
        self,
        rows: _Rows,
        met: Bools,
        is_dropped: Bools,
        groups: Groups,
        distinct: pa.RecordBatch,
    ) -> dict[str, tuple[StateRows, npt.NDArray[np.int32]]]:
        """Return the entries to write and to delete; remaining rows are numbered without gaps."""
        key_and_side = rows.key * 2 + rows.side
        kept_rows = np.flatnonzero(~is_dropped)
        is_numbered = rows.number[kept_rows] >= 0
        order = kept_rows[
            np.lexsort(
                (np.where(is_numbered, rows.number[kept_rows], END), key_and_side[kept_rows])
            )
        ]
        starts = np.flatnonzero(np.diff(key_and_side[order], prepend=-1))
        sizes = np.diff(starts, append=len(order))
        number = np.arange(len(order)) - np.repeat(starts, sizes)
        count = np.where(number == 0, np.repeat(sizes, sizes), 0)
        changed = (
            (rows.number[order] != number)
            | (rows.count[order] != count)
            | (met[order] != rows.met[order])
        )
        written = np.flatnonzero(changed)
        count_before = np.bincount(key_and_side[rows.number >= 0], minlength=2 * distinct.num_rows)
        count_after = np.bincount(key_and_side[kept_rows], minlength=2 * distinct.num_rows)
        surplus_key_and_side, surplus_numbers = expand_ranges(
            count_after, np.maximum(count_before - count_after, 0)
        )
        key = np.concatenate([rows.key[order[written]], surplus_key_and_side // 2])
        side = np.concatenate(
            [rows.side[order[written]], (surplus_key_and_side % 2).astype(np.int8)]
        )
        numbers = np.concatenate([number[written], surplus_numbers])
        source_rows = np.concatenate([order[written], np.zeros(len(surplus_numbers), np.int64)])
        counts = np.concatenate([count[written], surplus_numbers * 0])
        values = pa.RecordBatch.from_arrays(
            [
                column_of(rows.expires[source_rows], None, _MOMENT),
                column_of(met[source_rows], None, pa.bool_()),
                column_of(counts, None, pa.int64()),
                *rows.values.take(pa.array(source_rows)).columns,
            ],
            schema=self.schema.values,
        )
        removed = np.arange(len(key)) >= len(written)
        entries = self._entry_keys(distinct, key, side, numbers)
        return changed_by_key(groups, key, entries, values, removed)


class JoinedRowsInTime(JoinedRows):
    """Join of two streams with watermarks."""

    kind = "joined rows in time"
    over_event_time: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Rows of both sides."""

    key: IntArray  # number of its key
    side: npt.NDArray[np.int8]
    number: IntArray  # among the rows of its key and side; -1: it has none
    expires: IntArray
    met: Bools
    count: IntArray  # of the rows of its key and side, if its number is 0
    values: pa.RecordBatch

    def followed_by(self, others: _Rows) -> _Rows:
        """Return these rows, followed by others."""
        joined = {
            name: np.concatenate([getattr(self, name), getattr(others, name)])
            for name in ("key", "side", "number", "expires", "met", "count")
        }
        return _Rows(**joined, values=pa.concat_batches([self.values, others.values]))

    def take(self, rows: IntArray) -> _Rows:
        """Return the rows at positions."""
        taken = {
            name: getattr(self, name)[rows]
            for name in ("key", "side", "number", "expires", "met", "count")
        }
        return _Rows(**taken, values=self.values.take(pa.array(rows)))


def _same_key(key: IntArray, left: IntArray, right: IntArray) -> tuple[IntArray, IntArray]:
    """Return all pairs of two lists of rows that have the same key."""
    order = right[np.argsort(key[right], kind="stable")]
    begins = np.searchsorted(key[order], key[left], "left")
    ends = np.searchsorted(key[order], key[left], "right")
    row, place = expand_ranges(begins, ends - begins)
    return left[row], order[place]
