"""``join``: all pairs of rows of two streams with equal keys, within an interval of event time.

A pair is emitted in the epoch in which its second row arrives.  In outer joins, an unmatched row is
emitted once the watermark has passed all rows that it could match.

Rows are stored in *buckets*: slices of event time, as long as the interval, per key and side.  The
bucket of a row follows from the last time at which it can match others, so all its matches are in
two buckets of the other side, and a bucket is dropped as a whole once the watermark has passed it.
The rows of a bucket are numbered without gaps, and the first row has their count.  So two rounds of
look-ups find them, and only buckets that the epoch's rows can match are read.

Invariant: a row that is not late meets all rows that it should, whichever came first: none of them
is dropped before the watermark has passed it.

Source: bounds on state of interval joins as in Spark's `StreamingSymmetricHashJoinHelper`, whose
rows are numbered per key likewise (`SymmetricHashJoinStateManager`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.library.joins.sides import (
    LEFT,
    MOMENT,
    NUMBER,
    PROBE,
    RIGHT,
    SIDE,
    JoinOperator,
    JoinSide,
    event_times_of,
    within,
    without_null,
)
from godwit.library.windows.operator import PANE
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.hot_keys import PART, measure_work
from godwit.operators.initial import (
    check_no_nulls,
    numbers_in_runs,
    stored_columns,
    times_of,
    with_column,
)
from godwit.operators.operator import OperatorOutput, changed_by_key
from godwit.operators.ordering import expand_ranges
from godwit.store.changes import EntryRange, StateRows
from godwit.time.grid import BEGINNING, PaneGrid, TimeWindow, is_past

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from godwit.columns.groups import Groups
    from godwit.model.key_groups import OperatorWork
    from godwit.operators.operator import EntryColumns, OperatorInput, StateView
    from godwit.plan.nodes import How
    from godwit.time.event_time import EpochTime

_MET: Final = f"{RESERVED_PREFIX}_met"
_ROWS: Final = f"{RESERVED_PREFIX}_rows"
_MIN_BUCKET_US: Final = 1_000_000

IntArray: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
_INT: Final = pa.int64()


class IntervalJoin(JoinOperator):
    """Join of rows whose event times lie within an interval of one another."""

    marks_of_state: ClassVar = (pa.field(_MET, pa.bool_()), pa.field(_ROWS, pa.int64()))
    kind = "join"
    emits = "pairs, when the second row of each arrives"
    reads_touched = True

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        left: JoinSide,
        right: JoinSide,
        how: How,
        earliest_us: int,  # a row of the right may happen from this long after the one of the left
        latest_us: int,  # up to that long after; negative for before
        spread: int = 0,  # only for inner joins: a part cannot see the matches of another
    ) -> None:
        super().__init__(name=name, keys=keys, left=left, right=right, how=how, spread=spread)
        self.max_parts = spread
        self.earliest_us, self.latest_us = earliest_us, latest_us
        self.reach_us = np.array([max(latest_us, 0), max(-earliest_us, 0)])
        self.output_delay_us = int(self.reach_us.max())
        width = max(latest_us - earliest_us, _MIN_BUCKET_US)
        self.grid = PaneGrid.of(TimeWindow(length_us=width, every_us=width))

    @property
    def means(self) -> dict[str, Any]:
        """Meaning of the state for the checkpoint: sides, interval, and marks of matched rows."""
        interval = {"earliest_us": self.earliest_us, "latest_us": self.latest_us, "how": self.how}
        return {**super().means, **interval}

    def parts_expire_at(self, newest: int) -> int:
        """Return the watermark past which no row up to event time `newest` can be matched."""
        return BEGINNING if newest == BEGINNING else newest + int(self.reach_us.max()) + 1

    def closes(self, time: EpochTime) -> bool:
        """Return whether the epoch may emit unmatched rows because time has passed."""
        return self.how != "inner" and time.until > time.closed

    def emitted_by(self, moment: int) -> int:
        """Return the watermark at which a row with event time `moment` can match no further row."""
        return BEGINNING if self.how == "inner" else moment + int(self.reach_us.max()) + 1

    def entry_marks(self, rows: pa.RecordBatch, times: IntArray) -> IntArray:
        """Return the bucket (slice of event time) of each row."""
        sides = values_of(rows.column(SIDE))
        return self.grid.panes(times + self.reach_us[sides])

    def initial_entries(self, state: str, rows: pa.RecordBatch) -> EntryColumns:
        """Return entries for stored rows with a ``side`` (0: left, 1: right) and a ``moment``.

        ``met`` says which rows have had a match, by default none.
        """
        (side,) = stored_columns(self.name, rows, [pa.field(SIDE, pa.int8())])
        check_no_nulls(self.name, SIDE, side)
        times = times_of(self.name, rows, MOMENT, self._time_type)
        panes = self.grid.panes(times + self.reach_us[values_of(side)])
        rows = with_column(rows, PANE, column_of(panes, None, self._time_type))
        zeros = column_of(np.zeros(rows.num_rows, np.int64), None, pa.int64())
        for name in (NUMBER, _ROWS):
            rows = with_column(rows, name, zeros)
        missing_columns: dict[str, Callable[[int], pa.Array]] = {
            _MET: lambda count: pa.repeat(False, count)
        }
        missing_columns |= {field.name: partial(pa.nulls, type=field.type) for field in self.inputs}
        return self.entries_from(state, rows, missing_columns)

    def complete_entries(self, state: str, entries: StateRows) -> StateRows:  # noqa: ARG002
        """Assign numbers to the rows of each bucket; the first row has their count."""
        own = entries.keys.select(self.user_keys.names)
        key = group_rows(entries.hashes, own, 1).of_row
        bucket = _number_distinct(
            key, self.sides_of(entries.keys), values_of(entries.keys.column(self.pane_position))
        )
        numbers = numbers_in_runs(bucket)
        counts = np.where(numbers == 0, np.bincount(bucket)[bucket], 0)
        keys, values = entries.keys, entries.values
        index = values.schema.get_field_index(_ROWS)
        return replace(
            entries,
            keys=keys.set_column(
                self.pane_position + 2, keys.schema.field(NUMBER), column_of(numbers, None, _INT)
            ),
            values=values.set_column(
                index, values.schema.field(_ROWS), column_of(counts, None, _INT)
            ),
        )

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Join an epoch's rows with each other and with the state."""
        arrived, time = data.rows, data.time
        expired = arrived.take(np.empty(0, np.int64))
        if self.closes(time):
            expired = self._expired_unmatched(data.state, time)
        num_arrived = arrived.keys.num_rows
        hashes = np.concatenate([arrived.hashes, expired.hashes])
        user_keys = pa.concat_batches(
            [state_rows.keys.select(self.keys.names) for state_rows in (arrived, expired)]
        )
        if not len(hashes):
            return OperatorOutput()
        groups = group_rows(hashes, user_keys, data.num_key_groups)
        distinct_keys = user_keys.take(pa.array(groups.first_row))
        new_rows = self._unmatched_in_buckets(arrived, groups.of_row[:num_arrived])
        loaded = self._load_matches(new_rows, groups, distinct_keys, data.state, time)
        is_probe = new_rows.number == PROBE
        probes = new_rows.take(np.flatnonzero(is_probe))
        new_rows = new_rows.take(np.flatnonzero(~is_probe)) if len(probes.key) else new_rows
        new_rows = new_rows.numbered_after(loaded)
        kept_rows = loaded.followed_by(new_rows)
        joinable = kept_rows.followed_by(probes) if len(probes.key) else kept_rows
        has_key = without_null(distinct_keys)[joinable.key]
        left, right = self._new_matching_pairs(
            joinable, len(loaded.key), len(kept_rows.key), has_key
        )
        is_matched = joinable.met.copy()
        is_matched[left] = is_matched[right] = True
        is_matched = is_matched[: len(kept_rows.key)]
        bucket_sizes = kept_rows.sizes_after(len(loaded.key))
        changed = bucket_sizes != kept_rows.rows
        for side in (LEFT, RIGHT):
            changed |= (
                (kept_rows.side == side)
                & (is_matched != kept_rows.met)
                & self.emits_unmatched(side)
            )
        changed[len(loaded.key) :] = True
        # A bucket that the watermark has passed by the end of the epoch is gone in the next one.
        changed &= kept_rows.bucket >= self.grid.first_open(max(time.until, time.closed))
        written = np.flatnonzero(changed)
        written_indices = pa.array(written)
        entry_keys = self.entry_keys(
            distinct_keys.take(pa.array(kept_rows.key[written])),
            kept_rows.bucket[written],
            kept_rows.side[written],
            kept_rows.number[written],
        )
        mark_columns = (
            column_of(marks[written], None, dtype)
            for marks, dtype in ((is_matched, pa.bool_()), (bucket_sizes, _INT))
        )
        marked_rows = replace(kept_rows, met=is_matched)
        expired_rows = self._unmatched_in_buckets(expired, groups.of_row[num_arrived:])
        values = self.to_state(kept_rows.values.take(written_indices), *mark_columns)
        return OperatorOutput(
            groups=groups,
            changed=changed_by_key(groups, kept_rows.key[written], entry_keys, values),
            output=pa.concat_batches(
                [
                    self.joined(
                        distinct_keys.take(pa.array(joinable.key)), joinable.values, left, right
                    ),
                    *self._unmatched_output(
                        expired_rows, marked_rows, len(loaded.key), distinct_keys, time
                    ),
                ]
            ),
            key_work=self._measure_work(joinable, len(kept_rows.key), distinct_keys, left),
        )

    def _measure_work(
        self,
        rows: _Bucketed,  # of state and new, and behind the first `kept` the probes
        num_kept: int,
        distinct_keys: pa.RecordBatch,
        left: IntArray,  # the left row of each pair
    ) -> OperatorWork:
        """Return the numbers of rows and pairs of the epoch per key, to find hot keys.

        The first `kept` rows are stored, the others probes (only matched). `distinct_keys`: the
        keys.
        `left`: position of the left row of each pair.
        """
        count = distinct_keys.num_rows
        key, side = rows.key[:num_kept], rows.side[:num_kept]
        left_rows, right_rows = (
            np.bincount(key[side == side_number], minlength=count).astype(np.int64)
            for side_number in (LEFT, RIGHT)
        )
        parts = np.zeros(count, np.int32)
        if self.spread:
            parts = values_of(distinct_keys.column(PART))
        return measure_work(
            distinct_keys.select(self.user_keys.names),
            parts > 0,
            left_rows,
            right_rows,
            np.bincount(rows.key[left], minlength=count).astype(np.int64),
        )

    def _load_matches(
        self,
        new: _Bucketed,
        groups: Groups,
        distinct_keys: pa.RecordBatch,
        state: StateView,
        time: EpochTime,
    ) -> _Bucketed:
        """Load stored rows that new rows can match, and the first row of the new rows' buckets."""
        times = event_times_of(new.values)
        shift = np.where(new.side == LEFT, self.earliest_us, -self.latest_us)
        other_side = 1 - new.side
        first_time = times + shift + self.reach_us[other_side]
        last_time = first_time + (self.latest_us - self.earliest_us)
        reached_buckets = [
            (new.key, other_side, self.grid.panes(bound), True) for bound in (first_time, last_time)
        ]
        parts = [(new.key, new.side, new.bucket, False), *reached_buckets]

        def find(
            key: IntArray, side: npt.NDArray[np.integer], bucket: IntArray, number: IntArray
        ) -> tuple[Bools, pa.RecordBatch]:
            """Look up entries by key, side, bucket and number."""
            user_keys = distinct_keys.take(pa.array(key))
            return state.find(
                self.entry_keys(user_keys, bucket, side, number), groups.key_groups[key]
            )

        return _load_buckets(parts, self.grid.first_open(time.closed), find)

    def _new_matching_pairs(
        self, rows: _Bucketed, num_loaded: int, num_kept: int, has_key: Bools
    ) -> tuple[IntArray, IntArray]:
        """Return the positions of the left and right rows of all matching pairs with a new row.

        The first `num_loaded` rows are from the state. Rows after the first `kept` are probes,
        which are not matched with one another. `has_key`: mask of rows without a null key.
        """
        times = event_times_of(rows.values)
        position = np.arange(len(rows.key))
        is_new, is_kept = position >= num_loaded, position < num_kept
        is_left, is_right = ((rows.side == side) & has_key for side in (LEFT, RIGHT))
        pairs = []
        row_masks = [(is_left & is_new & is_kept, is_right), (is_left & ~is_new, is_right & is_new)]
        if num_kept < len(position):
            row_masks.append((is_left & ~is_kept, is_right & is_kept))
        for left_mask, right_mask in row_masks:
            left, right = np.flatnonzero(left_mask), np.flatnonzero(right_mask)
            slices = within(
                rows.key[left],
                times[left] + self.earliest_us,
                times[left] + self.latest_us,
                rows.key[right],
                times[right],
            )
            left_positions, right_positions = slices.pairs()
            pairs.append((left[left_positions], right[right_positions]))
        left_parts, right_parts = zip(*pairs, strict=True)
        return np.concatenate(left_parts), np.concatenate(right_parts)

    def _expired_unmatched(self, state: StateView, time: EpochTime) -> StateRows:
        """Return stored rows that had no match, and can get none after this epoch."""
        first = self.grid.panes(np.array([time.closed]))[0]
        expired = state.scan(
            EntryRange(column=self.pane_position, first=int(first), end=time.until)
        )
        sides, rows = self.sides_of(expired.keys), self.from_state(expired.values)
        over = self._is_emitted_unmatched(
            sides, event_times_of(rows), values_of(expired.values.column(0)), time
        )
        expired_rows = pa.array(np.flatnonzero(over))
        return StateRows(
            hashes=expired.hashes[over],
            keys=expired.keys.take(expired_rows),
            values=rows.take(expired_rows),
        )

    def _is_emitted_unmatched(
        self,
        sides: npt.NDArray[np.integer],
        times: IntArray,
        matched: Bools,
        time: EpochTime,
    ) -> Bools:
        """Return a mask of the rows to emit in this epoch without a match."""
        match_until = times + self.reach_us[sides]
        side_is_emitted = np.array([self.emits_unmatched(LEFT), self.emits_unmatched(RIGHT)])[sides]
        is_over: Bools = (
            side_is_emitted
            & ~matched
            & ~is_past(match_until, time.closed)
            & is_past(match_until, time.until)
        )
        return is_over

    def _unmatched_in_buckets(self, entries: StateRows, key: IntArray) -> _Bucketed:
        """Convert entries of unmatched rows, with their keys' numbers, to rows in buckets."""
        return _Bucketed(
            key=key,
            side=self.sides_of(entries.keys),
            bucket=values_of(entries.keys.column(self.pane_position)),
            number=self.numbers_of(entries.keys),
            met=np.zeros(len(key), np.bool_),
            rows=np.zeros(len(key), np.int64),
            values=entries.values,
        )

    def _unmatched_output(
        self,
        stored: _Bucketed,
        current: _Bucketed,
        num_loaded: int,
        distinct_keys: pa.RecordBatch,
        time: EpochTime,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the output rows of unmatched rows, stored and new.

        `stored`: unmatched rows of keys without new rows. `current`: rows of this epoch; the first
        `num_loaded` of them are from the state.
        """
        if not self.closes(time):
            return
        still_unmatched = stored.take(
            np.flatnonzero(~stored.is_among(current.take(np.flatnonzero(current.met))))
        )
        new_rows = current.take(np.arange(num_loaded, len(current.key)))
        is_due = self._is_emitted_unmatched(
            new_rows.side, event_times_of(new_rows.values), new_rows.met, time
        )
        unmatched = still_unmatched.followed_by(new_rows.take(np.flatnonzero(is_due)))
        indices, no_rows = np.arange(len(unmatched.key)), np.full(len(unmatched.key), -1)
        keys = distinct_keys.take(pa.array(unmatched.key))
        is_left = unmatched.side == LEFT
        yield self.joined(
            keys,
            unmatched.values,
            np.where(is_left, indices, no_rows),
            np.where(is_left, no_rows, indices),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Bucketed:
    """Rows in buckets, numbered from 0; the first row of a bucket holds their count."""

    # key, side, bucket: shape ``(n,)``: the bucket that each row is in
    key: IntArray
    side: npt.NDArray[np.integer]
    bucket: IntArray
    number: IntArray  # shape ``(n,)``: its number there
    met: Bools  # shape ``(n,)``: whether it has met a row of the other side
    # Shape ``(n,)``: how many rows the bucket has, at the first of them; 0 at others.
    rows: IntArray
    values: pa.RecordBatch  # n rows

    def take(self, positions: IntArray) -> _Bucketed:
        """Return the rows at the given positions."""
        arrays = {name: getattr(self, name)[positions] for name in _ARRAYS}
        return _Bucketed(**arrays, values=self.values.take(pa.array(positions)))

    def followed_by(self, later: _Bucketed) -> _Bucketed:
        """Return these rows, then the rows of `later`."""
        arrays = {
            name: np.concatenate([getattr(self, name), getattr(later, name)]) for name in _ARRAYS
        }
        return _Bucketed(**arrays, values=pa.concat_batches([self.values, later.values]))

    def numbered_after(self, loaded: _Bucketed) -> _Bucketed:
        """Return the rows numbered in order of arrival, after the `loaded` rows of the buckets."""
        all_rows = loaded.take(np.flatnonzero(loaded.number == 0)).followed_by(self)
        num_first = len(all_rows.key) - len(self.key)
        bucket = _number_distinct(all_rows.key, all_rows.side, all_rows.bucket)
        count_before = np.zeros(int(bucket.max(initial=-1)) + 1, np.int64)
        count_before[bucket[:num_first]] = all_rows.rows[:num_first]
        own_buckets = bucket[num_first:]
        order = np.argsort(own_buckets, kind="stable")
        sorted_buckets = own_buckets[order]
        starts = np.flatnonzero(np.diff(sorted_buckets, prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        number = np.empty(len(own_buckets), np.int64)
        number[order] = count_before[sorted_buckets] + rank
        return replace(self, number=number)

    def sizes_after(self, loaded: int) -> IntArray:
        """Return at the first row of each bucket its number of rows, with those after `loaded`."""
        bucket = _number_distinct(self.key, self.side, self.bucket)
        added = np.bincount(bucket[loaded:], minlength=int(bucket.max(initial=-1)) + 1)
        counts = self.rows.copy()
        firsts = np.flatnonzero(self.number == 0)
        counts[firsts] += added[bucket[firsts]]
        return counts

    def is_among(self, others: _Bucketed) -> Bools:
        """Return a mask of the rows that `others` also has: same key, side, bucket and number."""
        every = self.followed_by(others)
        row = _number_distinct(every.key, every.side, every.bucket, every.number)
        split = len(self.key)
        return np.isin(row[:split], row[split:])


_ARRAYS: Final = ("key", "side", "bucket", "number", "met", "rows")


def _load_buckets(
    parts: Sequence[tuple[IntArray, npt.NDArray[np.integer], IntArray, bool]],
    first_open: int,
    find: Callable[
        [IntArray, npt.NDArray[np.integer], IntArray, IntArray], tuple[Bools, pa.RecordBatch]
    ],
) -> _Bucketed:
    """Load rows of buckets (slices of event time of a key and side) from the state.

    `parts`: key, side and bucket, and a flag that all rows of the bucket are needed, not only the
    first. Buckets before `first_open` are left out. `find`: looks up entries by key, side, bucket
    and number; their state columns are the flag that a row was matched, the number of rows of its
    bucket (in the first row), and the row.
    """
    *columns, all_rows = zip(*parts, strict=True)
    key, side, bucket = (np.concatenate(column) for column in columns)
    needs_all = np.repeat(all_rows, [len(part[0]) for part in parts])
    is_open = bucket >= first_open
    key, side, bucket, needs_all = key[is_open], side[is_open], bucket[is_open], needs_all[is_open]
    number = _number_distinct(key, side, bucket)
    count = int(number.max(initial=-1)) + 1
    first_index = np.empty(count, np.int64)  # each bucket once
    first_index[number] = np.arange(len(number))
    loads_all = np.zeros(count, np.bool_)
    loads_all[number[needs_all]] = True

    def load(
        key: IntArray, side: npt.NDArray[np.integer], bucket: IntArray, number: IntArray
    ) -> tuple[Bools, _Bucketed]:
        """Look up entries; return a mask of those that exist, and their rows."""
        known, state = find(key, side, bucket, number)
        state = state.take(pa.array(np.flatnonzero(known)))
        names = state.schema.names[2:]
        values = pa.RecordBatch.from_arrays(
            state.columns[2:], schema=pa.schema([state.schema.field(name) for name in names])
        )
        return known, _Bucketed(
            key=key[known],
            side=side[known],
            bucket=bucket[known],
            number=number[known],
            met=values_of(state.column(0)),
            rows=values_of(state.column(1)),
            values=values,
        )

    known, first_rows = load(
        key[first_index], side[first_index], bucket[first_index], np.zeros(count, np.int64)
    )
    num_further = np.where(loads_all[known], first_rows.rows - 1, 0)
    bucket_of, number = expand_ranges(np.ones(len(num_further), np.int64), num_further)
    is_known, further_rows = load(
        first_rows.key[bucket_of], first_rows.side[bucket_of], first_rows.bucket[bucket_of], number
    )
    assert is_known.all(), "the first row of a bucket says how many there are"
    return first_rows.followed_by(further_rows)


def _number_distinct(*columns: npt.NDArray[np.integer]) -> IntArray:
    """Return the number, from 0, of each distinct row of some columns."""
    count = len(columns[0])
    order = np.lexsort(columns[::-1])
    new = np.zeros(count, np.bool_)
    for column in columns:
        new[1:] |= np.diff(column[order]) != 0
    numbers = np.empty(count, np.int64)
    numbers[order] = np.cumsum(new)
    return numbers
