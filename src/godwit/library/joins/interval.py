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
from godwit.operators.hot_keys.grid import PART, measure_work
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
_LEAST_BUCKET_US: Final = 1_000_000

IntArray: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
_INT: Final = pa.int64()


class IntervalJoin(JoinOperator):
    """Join of rows whose event times lie within an interval of one another."""

    marks_of_state: ClassVar = (pa.field(_MET, pa.bool_()), pa.field(_ROWS, pa.int64()))
    kind = "join"
    emits = "pairs, as the second row of each comes"
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
        width = max(latest_us - earliest_us, _LEAST_BUCKET_US)
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
        none = column_of(np.zeros(rows.num_rows, np.int64), None, pa.int64())
        for name in (NUMBER, _ROWS):
            rows = with_column(rows, name, none)
        absent: dict[str, Callable[[int], pa.Array]] = {_MET: lambda count: pa.repeat(False, count)}
        absent |= {field.name: partial(pa.nulls, type=field.type) for field in self.inputs}
        return self.entries_from(state, rows, absent)

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
        alone = arrived.take(np.empty(0, np.int64))
        if self.closes(time):
            alone = self._expired_unmatched(data.state, time)
        number = arrived.keys.num_rows
        hashes = np.concatenate([arrived.hashes, alone.hashes])
        own = pa.concat_batches([e.keys.select(self.keys.names) for e in (arrived, alone)])
        if not len(hashes):
            return OperatorOutput()
        groups = group_rows(hashes, own, data.num_key_groups)
        distinct = own.take(pa.array(groups.first_row))
        new = self._unmatched_in_buckets(arrived, groups.of_row[:number])
        loaded = self._load_matches(new, groups, distinct, data.state, time)
        is_probe = new.number == PROBE
        probes = new.take(np.flatnonzero(is_probe))
        new = new.take(np.flatnonzero(~is_probe)) if len(probes.key) else new
        new = new.numbered_after(loaded)
        every = loaded.followed_by(new)
        meeting = every.followed_by(probes) if len(probes.key) else every
        keyed = without_null(distinct)[meeting.key]
        left, right = self._new_matching_pairs(meeting, len(loaded.key), len(every.key), keyed)
        met = meeting.met.copy()
        met[left] = met[right] = True
        met = met[: len(every.key)]
        rows = every.sizes_after(len(loaded.key))
        changed = rows != every.rows
        for side in (LEFT, RIGHT):
            changed |= (every.side == side) & (met != every.met) & self.emits_unmatched(side)
        changed[len(loaded.key) :] = True
        # A bucket that the watermark has passed by the end of the epoch is gone in the next one.
        changed &= every.bucket >= self.grid.first_open(max(time.until, time.closed))
        write = np.flatnonzero(changed)
        taken = pa.array(write)
        entries = self.entry_keys(
            distinct.take(pa.array(every.key[write])),
            every.bucket[write],
            every.side[write],
            every.number[write],
        )
        marks = (column_of(part[write], None, t) for part, t in ((met, pa.bool_()), (rows, _INT)))
        now = replace(every, met=met)
        stored_alone = self._unmatched_in_buckets(alone, groups.of_row[number:])
        values = self.to_state(every.values.take(taken), *marks)
        return OperatorOutput(
            groups=groups,
            changed=changed_by_key(groups, every.key[write], entries, values),
            output=pa.concat_batches(
                [
                    self.joined(distinct.take(pa.array(meeting.key)), meeting.values, left, right),
                    *self._unmatched_output(stored_alone, now, len(loaded.key), distinct, time),
                ]
            ),
            key_work=self._measure_work(meeting, len(every.key), distinct, left),
        )

    def _measure_work(
        self,
        rows: _Bucketed,  # of state and new, and behind the first `kept` the probes
        num_kept: int,
        distinct: pa.RecordBatch,
        left: IntArray,  # the left row of each pair
    ) -> OperatorWork:
        """Return the numbers of rows and pairs of the epoch per key, to find hot keys.

        The first `kept` rows are stored, the others probes (only matched). `distinct`: the keys.
        `left`: position of the left row of each pair.
        """
        count = distinct.num_rows
        key, side = rows.key[:num_kept], rows.side[:num_kept]
        left_rows, right_rows = (
            np.bincount(key[side == which], minlength=count).astype(np.int64)
            for which in (LEFT, RIGHT)
        )
        parts = np.zeros(count, np.int32)
        if self.spread:
            parts = values_of(distinct.column(PART))
        return measure_work(
            distinct.select(self.user_keys.names),
            parts > 0,
            left_rows,
            right_rows,
            np.bincount(rows.key[left], minlength=count).astype(np.int64),
        )

    def _load_matches(
        self,
        new: _Bucketed,
        groups: Groups,
        distinct: pa.RecordBatch,
        state: StateView,
        time: EpochTime,
    ) -> _Bucketed:
        """Load stored rows that new rows can match, and the first row of the new rows' buckets."""
        moments = event_times_of(new.values)
        shift = np.where(new.side == LEFT, self.earliest_us, -self.latest_us)
        other = 1 - new.side
        first = moments + shift + self.reach_us[other]
        last = first + (self.latest_us - self.earliest_us)
        reached = [(new.key, other, self.grid.panes(bound), True) for bound in (first, last)]
        parts = [(new.key, new.side, new.bucket, False), *reached]

        def find(
            key: IntArray, side: npt.NDArray[np.integer], bucket: IntArray, number: IntArray
        ) -> tuple[Bools, pa.RecordBatch]:
            """Look up entries by key, side, bucket and number."""
            own = distinct.take(pa.array(key))
            return state.find(self.entry_keys(own, bucket, side, number), groups.key_groups[key])

        return _load_buckets(parts, self.grid.first_open(time.closed), find)

    def _new_matching_pairs(
        self, rows: _Bucketed, loaded: int, num_kept: int, keyed: Bools
    ) -> tuple[IntArray, IntArray]:
        """Return the positions of the left and right rows of all matching pairs with a new row.

        The first `loaded` rows are from the state. Rows after the first `kept` are probes, which
        are not matched with one another. `keyed`: mask of rows without a null key.
        """
        moments = event_times_of(rows.values)
        position = np.arange(len(rows.key))
        new, is_kept = position >= loaded, position < num_kept
        lefts, rights = ((rows.side == side) & keyed for side in (LEFT, RIGHT))
        pairs = []
        row_masks = [(lefts & new & is_kept, rights), (lefts & ~new, rights & new)]
        if num_kept < len(position):
            row_masks.append((lefts & ~is_kept, rights & is_kept))
        for left_mask, right_mask in row_masks:
            left, right = np.flatnonzero(left_mask), np.flatnonzero(right_mask)
            slices = within(
                rows.key[left],
                moments[left] + self.earliest_us,
                moments[left] + self.latest_us,
                rows.key[right],
                moments[right],
            )
            own_rows, other_rows = slices.pairs()
            pairs.append((left[own_rows], right[other_rows]))
        first, second = zip(*pairs, strict=True)
        return np.concatenate(first), np.concatenate(second)

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
        moments: IntArray,
        matched: Bools,
        time: EpochTime,
    ) -> Bools:
        """Return a mask of the rows to emit in this epoch without a match."""
        until = moments + self.reach_us[sides]
        wanted = np.array([self.emits_unmatched(LEFT), self.emits_unmatched(RIGHT)])[sides]
        over: Bools = wanted & ~matched & ~is_past(until, time.closed) & is_past(until, time.until)
        return over

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
        now: _Bucketed,
        loaded: int,
        distinct: pa.RecordBatch,
        time: EpochTime,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the output rows of unmatched rows, stored and new.

        `stored`: unmatched rows of keys without new rows. `now`: rows of this epoch, of which the
        first `loaded` are from the state.
        """
        if not self.closes(time):
            return
        still = stored.take(np.flatnonzero(~stored.is_among(now.take(np.flatnonzero(now.met)))))
        fresh = now.take(np.arange(loaded, len(now.key)))
        due = self._is_emitted_unmatched(fresh.side, event_times_of(fresh.values), fresh.met, time)
        alone = still.followed_by(fresh.take(np.flatnonzero(due)))
        indices, none = np.arange(len(alone.key)), np.full(len(alone.key), -1)
        own = distinct.take(pa.array(alone.key))
        left = alone.side == LEFT
        yield self.joined(
            own, alone.values, np.where(left, indices, none), np.where(left, none, indices)
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
        both = loaded.take(np.flatnonzero(loaded.number == 0)).followed_by(self)
        first = len(both.key) - len(self.key)
        bucket = _number_distinct(both.key, both.side, both.bucket)
        before = np.zeros(int(bucket.max(initial=-1)) + 1, np.int64)
        before[bucket[:first]] = both.rows[:first]
        own = bucket[first:]
        order = np.argsort(own, kind="stable")
        ordered = own[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        number = np.empty(len(own), np.int64)
        number[order] = before[ordered] + rank
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
        """Return a mask of the rows that `others` has too: same key, side, bucket and number."""
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
    live = bucket >= first_open
    key, side, bucket, needs_all = key[live], side[live], bucket[live], needs_all[live]
    number = _number_distinct(key, side, bucket)
    count = int(number.max(initial=-1)) + 1
    first_index = np.empty(count, np.int64)  # each bucket once
    first_index[number] = np.arange(len(number))
    loads_all = np.zeros(count, np.bool_)
    loads_all[number[needs_all]] = True

    def loaded(
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

    known, first = loaded(
        key[first_index], side[first_index], bucket[first_index], np.zeros(count, np.int64)
    )
    others = np.where(loads_all[known], first.rows - 1, 0)
    bucket_of, number = expand_ranges(np.ones(len(others), np.int64), others)
    known_rest, rest = loaded(
        first.key[bucket_of], first.side[bucket_of], first.bucket[bucket_of], number
    )
    assert known_rest.all(), "the first row of a bucket says how many there are"
    return first.followed_by(rest)


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
