"""``window(gw.session(...)).compute``: aggregates per key and session.

A session is one entry of state: its first and last event time and its partial states.  Sessions of
a key are in *slots* 0, 1, ... in order of time, without gaps.  Sessions that are over have the
lowest slots, and one scan finds them; the others are found by looking up slot after slot.

Rows of a key within one interval of the gap's length belong to one session.  So rows are combined
by key and interval before the exchange, where that saves enough, and need not be ordered there.  In
the lane they meet the stored sessions: whatever lies at most a gap apart becomes one session.

Invariant: two sessions of a key lie more than a gap apart, so the sessions do not depend on the
order in which rows arrive, as long as no row is late.

Source: session windows as in Spark (`MergingSessionsIterator`): a row whose event time is exactly
the end of a session is part of it.  So a session is over once the watermark is past its end, as in
Kafka Streams since KAFKA-8289: at the end itself, a row of that very time is not late.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.library.aggregates import max as greatest
from godwit.library.aggregates import min as least
from godwit.library.compute import ComputeOperator
from godwit.library.windows.operator import PANE, EventTimeOperator, output_schema, window_bounds
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.initial import column_or_none, numbers_in_runs, times_of, with_column
from godwit.operators.operator import OperatorOutput, changed_by_key
from godwit.operators.ordering import order_by, rows_by_group, starts_run
from godwit.operators.window_specs import WINDOW_END, WINDOW_START
from godwit.store.changes import EntryRange, StateRows
from godwit.store.columns import take_rows
from godwit.time.grid import BEGINNING, END, is_past

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.columns.groups import Groups
    from godwit.operators.aggregate import Aggregate
    from godwit.operators.operator import EntryColumns, OperatorInput, StateView
    from godwit.time.event_time import EpochTime, RowTime

_FIRST: Final = f"{RESERVED_PREFIX}_first"
_LAST: Final = f"{RESERVED_PREFIX}_last"

IntArray = npt.NDArray[np.int64]


class SessionCompute(EventTimeOperator, ComputeOperator):
    """Operator of aggregates per key and session."""

    kind = "session compute"

    def __init__(
        self,
        *,
        name: str,
        keys: tuple[str, ...],
        arriving: pa.Schema,  # columns of the rows as they come: key columns first
        time: RowTime,  # one of them
        inputs: pa.Schema,
        aggregates: Mapping[str, Aggregate],
        output: pa.Schema | None = None,  # columns to emit, if not windows and results
        gap_us: int,  # two rows of one key that lie at most this apart are of one session
        # column with the end of the session that a row alone forms, less the gap; ``None``: its
        # event time
        last: str | None = None,
    ) -> None:
        time_field = arriving.field(time.column)
        key_fields = [arriving.field(key) for key in keys]
        self._extent = (time.column, time.column if last is None else last)
        for column in self._extent:
            if column not in inputs.names:
                inputs = inputs.append(arriving.field(column))
        ends = {_FIRST: least(self._extent[0]), _LAST: greatest(self._extent[1])}
        super().__init__(
            name=name,
            keys=pa.schema([*key_fields, pa.field(PANE, time_field.type)]),
            inputs=inputs,
            aggregates={**ends, **aggregates},
            narrow=False,
        )
        # A result is just before the end of its session, which the watermark has passed.
        self.output_delay_us = 1
        self.arriving, self.gap_us = arriving, gap_us
        self.time = self.window_time = time
        self._before_us = int(time.is_end)
        bounds = [*key_fields, *window_bounds(time_field.type)]
        results = list(self.output)[len(bounds) + 1 :]
        self.output = output_schema(name, bounds, results) if output is None else output

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """The key and a bound of the session: sessions of a key do not overlap."""
        return self.unique_keys_of_windows(1)

    def initial_entries(self, state: str, rows: pa.RecordBatch) -> EntryColumns:
        """Return entries for open sessions: ``first`` and ``last``, or the window's bounds.

        The number of a session among those of its key is filled in by `complete_entries`.
        """
        time_type = self.schema.keys.field(self.pane_position).type
        if column_or_none(rows, _FIRST) is None:
            first = times_of(self.name, rows, WINDOW_START, time_type) + self._before_us
            last = times_of(self.name, rows, WINDOW_END, time_type) - self.gap_us + self._before_us
            for name, times in ((_FIRST, first), (_LAST, last)):
                rows = with_column(rows, name, column_of(times, None, time_type))
        numbers = column_of(np.zeros(rows.num_rows, np.int64), None, time_type)
        return super().initial_entries(state, with_column(rows, PANE, numbers))

    def complete_entries(self, state: str, entries: StateRows) -> StateRows:  # noqa: ARG002
        """Assign numbers to the sessions of each key, in order of time."""
        own = entries.keys.select(self.keys.names)
        key = group_rows(entries.hashes, own, 1).of_row
        order = np.lexsort((values_of(entries.values.column(0)), key))
        slots = np.empty(len(order), np.int64)
        slots[order] = numbers_in_runs(key[order])
        return replace(entries, keys=self._in_slots(entries.keys, slots))

    def is_late(self, times: IntArray, closed: int) -> npt.NDArray[np.bool_]:
        """Return a mask of event times whose row alone would form a closed session."""
        return is_past(times + self.gap_us, closed)

    def entry_marks(self, rows: pa.RecordBatch, times: IntArray) -> IntArray:
        """Return a value per row; rows of a key are combined only if their values are equal.

        If the order of rows matters, it is the start of the row's session among these rows.
        """
        if self.commutative:
            return times // self.gap_us * self.gap_us
        keys = rows.select(self.keys.names)
        key = group_rows(hash_keys(keys), keys, 1).of_row
        order = order_by(key, times - times.min(initial=END))
        times = times[order]
        firsts = np.flatnonzero(self._starts_session(key[order], times, times))
        marks = np.empty(len(times), np.int64)
        marks[order] = np.repeat(times[firsts], np.diff(np.append(firsts, len(order))))
        return marks

    def closes(self, time: EpochTime) -> bool:
        """Return whether any session may close in this epoch."""
        return time.until > time.closed

    def emitted_by(self, moment: int) -> int:
        """Return the watermark past the end of a session whose last row is at `moment`."""
        return moment + self.gap_us + 1

    def last_emitted(self, newest: int) -> int:
        """Return the event time, just before its end, of a session whose last row is `newest`."""
        return newest + self.gap_us - 1

    def first_needed_pane(self, closed: int) -> int:  # noqa: ARG002
        """Return `BEGINNING`: sessions are removed one by one, not in bulk."""
        return BEGINNING

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Merge an epoch's rows into the sessions of their keys, and emit sessions that close.

        Keys with rows, and keys whose sessions are over, are processed; one scan of one column
        finds the latter.
        """
        time, names = data.time, self.keys.names
        # Raw rows are combined when it is known which session each is of.
        raw = not data.is_partial and self.commutative
        arrived = data.rows if raw else self.as_partials(data)
        closing_sessions: StateRows | None = None
        hashes, keys = [arrived.hashes], [arrived.keys.select(names)]
        if self.closes(time):
            last_column = len(self.schema.keys) + 1
            end = time.until - self.gap_us + self._before_us  # of last event times
            closing_sessions = data.state.scan(EntryRange(column=last_column, end=end))
            hashes.append(closing_sessions.hashes)
            keys.append(closing_sessions.keys.select(names))
        all_keys = pa.concat_batches(keys)
        if not all_keys.num_rows:
            return OperatorOutput()
        groups = group_rows(np.concatenate(hashes), all_keys, data.num_key_groups)
        count = len(arrived.hashes)
        stored, key_of_stored, slots = self._stored_sessions(
            groups, all_keys, data.state, closing_sessions, count
        )
        key = np.concatenate([key_of_stored, groups.of_row[:count]])
        return self._merge_sessions(
            groups, stored=stored, arrived=arrived, key=key, slots=slots, time=time, raw=raw
        )

    def _stored_sessions(
        self,
        groups: Groups,
        keys: pa.RecordBatch,  # of arrived rows, `count` of them, and of `closing_sessions`
        state: StateView,
        closing_sessions: StateRows | None,  # stored sessions that close
        count: int,
    ) -> tuple[StateRows, IntArray, IntArray]:
        """Return the stored sessions of all keys, and the key number and slot of each.

        A slot is the number of the session among its key's, from 0. `closing_sessions`: sessions
        that close;
        `keys`: of `count` new rows, then of these.
        """
        entries, values, group_numbers, slots = [], [], [], []
        next_slot = np.zeros(groups.count, np.int64)
        if closing_sessions is not None:
            key, slot = (
                groups.of_row[count:],
                values_of(closing_sessions.keys.column(self.pane_position)),
            )
            num_closing, highest = (
                np.bincount(key, minlength=groups.count),
                np.full(groups.count, -1),
            )
            np.maximum.at(highest, key, slot)
            is_whole = highest + 1 == num_closing  # they have the lowest slots
            next_slot[is_whole] = num_closing[is_whole]
            if not is_whole.all():  # of other keys all slots are looked up
                positions = np.flatnonzero(is_whole[key])
                closing_sessions, key, slot = (
                    closing_sessions.take(positions),
                    key[positions],
                    slot[positions],
                )
            entries, values, group_numbers, slots = (
                [closing_sessions.keys],
                [closing_sessions.values],
                [key],
                [slot],
            )
        incomplete, width = np.arange(groups.count), 1
        while incomplete.size:
            # Slots of a key have no gaps: twice as many are looked for each time, until one is
            # free.
            key = np.repeat(incomplete, width)
            slot = np.repeat(next_slot[incomplete], width) + np.tile(
                np.arange(width), len(incomplete)
            )
            session_keys = self._in_slots(take_rows(keys, groups.first_row[key]), slot)
            known, prior = state.find(session_keys, groups.key_groups[key])
            stored = np.flatnonzero(known)
            entries.append(take_rows(session_keys, stored))
            values.append(take_rows(prior, stored))
            group_numbers.append(key[stored])
            slots.append(slot[stored])
            incomplete = incomplete[known[width - 1 :: width]]
            next_slot[incomplete] += width
            width *= 2
        all_groups = np.concatenate(group_numbers)
        rows = StateRows(
            hashes=groups.hashes[all_groups],
            keys=pa.concat_batches(entries),
            values=pa.concat_batches(values),
        )
        return rows, all_groups, np.concatenate(slots)

    def _merge_sessions(
        self,
        groups: Groups,
        *,
        stored: StateRows,
        arrived: StateRows,  # partial states, or rows where `raw`
        key: IntArray,  # key number of each session: first of the stored ones
        slots: IntArray,  # what tells stored sessions of one key apart
        time: EpochTime,
        raw: bool,
    ) -> OperatorOutput:
        """Merge sessions that are at most the gap apart; emit those that close, store the rest."""
        extent_columns = self._extent if raw else (_FIRST, _LAST)
        firsts, lasts = (
            np.concatenate(
                [values_of(stored.values.column(number)), values_of(arrived.values.column(name))]
            )
            for number, name in enumerate(extent_columns)
        )
        order = order_by(key, firsts - firsts.min())
        begins = self._starts_session(key[order], firsts[order], lasts[order])
        starts = np.append(np.flatnonzero(begins), len(order))
        key_of_session, first_row = key[order[starts[:-1]]], order[starts[:-1]]
        if raw:
            session = np.empty(len(order), np.int64)
            session[order] = np.cumsum(begins) - 1
            merged = self._merged_states(stored.values, arrived, session, len(first_row))
        else:
            parts = pa.concat_batches([stored.values, arrived.values])
            merged = self.merge_in_order(take_rows(parts, order), starts)
        keys = pa.concat_batches([stored.keys, arrived.keys])
        is_over = is_past(self._session_ends(merged.column(1)), time.until)
        open_sessions = np.flatnonzero(~is_over)
        # Renumber the slots of a key without gaps.
        first_of_key = np.flatnonzero(starts_run(key_of_session[open_sessions]))
        slot = np.arange(len(open_sessions)) - np.repeat(
            first_of_key, np.diff(np.append(first_of_key, len(open_sessions)))
        )
        count = np.bincount(key_of_session[open_sessions], minlength=int(key.max(initial=0)) + 1)
        freed = np.flatnonzero(slots >= count[key[: len(slots)]])
        key_of_changed = np.concatenate([key_of_session[open_sessions], key[freed]])
        changed = order_by(key_of_changed)
        source_rows = np.concatenate([first_row[open_sessions], freed])[changed]
        # Of a slot that is free again no values count: any will do.
        source_states = np.concatenate([open_sessions, np.zeros_like(freed)])[changed]
        return OperatorOutput(
            groups=groups,
            changed=changed_by_key(
                groups,
                key=key_of_changed[changed],
                keys=self._in_slots(
                    take_rows(keys, source_rows), np.concatenate([slot, slots[freed]])[changed]
                ),
                values=take_rows(merged, source_states),
                removed=changed >= len(open_sessions),
            ),
            **self.emission(
                take_rows(keys, first_row[is_over]), take_rows(merged, np.flatnonzero(is_over))
            ),
        )

    def _merged_states(
        self,
        stored: pa.RecordBatch,  # states of stored sessions
        rows: StateRows,  # new rows, not yet aggregated
        session: IntArray,  # session number of each stored session, then of each new row
        count: int,  # number of sessions
    ) -> pa.RecordBatch:
        """Aggregate new rows and merge them with stored sessions; return a state per number."""
        session_of_stored, session_of_row = session[: stored.num_rows], session[stored.num_rows :]
        with_rows = np.bincount(session_of_row, minlength=count) > 0
        state_of_row = (np.cumsum(with_rows) - 1)[session_of_row]
        new_states = self.aggregate_rows(
            rows.values,
            state_of_row,
            int(np.count_nonzero(with_rows)),
            lambda: rows.keys.take(pa.array(np.unique(state_of_row, return_index=True)[1])),
        )
        if not len(session_of_stored):
            return new_states
        session_of_part = np.concatenate([session_of_stored, np.flatnonzero(with_rows)])
        parts, starts = rows_by_group(session_of_part, count)
        return self.merge_in_order(
            take_rows(pa.concat_batches([stored, new_states]), parts), starts
        )

    def emission(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> dict[str, Any]:
        """Return the fields of an `OperatorOutput` that have the rows of sessions that close."""
        return {"output": self.emitted(keys, state)}

    def emitted(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> pa.RecordBatch:
        """Return the output rows of sessions that close, from their keys and states."""
        first, last, *results = self.results(keys, state)
        own = keys.columns[: self.pane_position]
        bounds = self.bounds(first, last)
        return pa.RecordBatch.from_arrays([*own, *bounds, *results], schema=self.output)

    def _session_ends(self, last: pa.Array) -> IntArray:
        """Return the ends of sessions: the gap after their last event times."""
        ends: IntArray = values_of(last) - self._before_us + self.gap_us
        return ends

    def bounds(self, first: pa.Array, last: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return starts and ends of sessions as columns, from their first and last event times."""
        starts = column_of(values_of(first) - self._before_us, None, first.type)
        return starts, column_of(self._session_ends(last), None, last.type)

    @property
    def described_windows(self) -> list[dict[str, Any]]:
        """The session gap as plain values for the checkpoint."""
        return [{"gap_us": self.gap_us}]

    def _starts_session(
        self, key: IntArray, first: IntArray, last: IntArray
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the first rows (or sessions) of each merged session.

        They are ordered by key and start; `first`, `last`: event times.
        """
        count = len(key)
        begins = np.ones(count, np.bool_)
        if count > 1:
            np.not_equal(key[1:], key[:-1], out=begins[1:])
            reached = last[:-1]
            if np.any((last[1:] < reached) & ~begins[1:]):
                # The latest end so far within a key: ends are ranked, so that a key's ranks come
                # after those of the keys before it.
                rank = np.empty(count, np.int64)
                by_last = order_by(last - last.min())
                rank[by_last] = np.arange(count)
                reached = last[by_last[np.maximum.accumulate(key * count + rank)[:-1] % count]]
            begins[1:] |= first[1:] > reached + self.gap_us
        return begins

    def _in_slots(self, keys: pa.RecordBatch, slots: IntArray) -> pa.RecordBatch:
        """Return the identity columns of sessions: key, and slot (number within the key)."""
        key_columns = keys.columns[: self.pane_position]
        time_type = self.schema.keys.field(self.pane_position).type
        return pa.RecordBatch.from_arrays(
            [*key_columns, column_of(slots, None, time_type)], schema=self.schema.keys
        )
