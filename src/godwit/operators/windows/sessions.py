"""``window(gw.session(...)).compute``: aggregates per key and session.

A session is an entry of state: its first and last moment and its partials.  Sessions of one key
are told apart by *slots* 0, 1, ... without gaps, so that all of them are found by looking for one
slot after the other; a key rarely has more than two.  Rows become sessions where they are sent
from, which are told apart by their beginnings, and meet those of the state in the lane: what lies
at most a gap apart becomes one.

Invariant: two sessions of a key lie more than a gap apart, so whatever order rows arrive in, as
long as they are not late, the sessions are the same.

Source: session windows as Spark has them (`MergingSessionsIterator`): a row that begins exactly
when a session ends is part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.entries import StateRows
from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.aggregates import max as greatest
from godwit.operators.aggregates import min as least
from godwit.operators.compute import ComputeOperator
from godwit.operators.operator import STATE, OperatorOutput, changed_by_key
from godwit.operators.ordering import run_begins
from godwit.operators.windows.grid import BEGINNING
from godwit.operators.windows.operator import (
    PANE,
    EventTimeOperator,
    output_schema,
    window_bounds,
)
from godwit.store.changes import EntryRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.evolution import StateDescription
    from godwit.columns.groups import Groups
    from godwit.operators.aggregates import Aggregate
    from godwit.operators.operator import OperatorInput, StateView
    from godwit.operators.windows.event_time import EpochTime, RowTime

_FIRST: Final = f"{RESERVED_PREFIX}_first"
_LAST: Final = f"{RESERVED_PREFIX}_last"

IntArray = npt.NDArray[np.int64]


class SessionCompute(ComputeOperator, EventTimeOperator):
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
        output: pa.Schema | None = None,  # of what is emitted in place of windows and results
        gap_us: int,  # two rows of one key that lie at most this apart are of one session
    ) -> None:
        moment = arriving.field(time.column)
        keyed = [arriving.field(key) for key in keys]
        if time.column not in inputs.names:
            inputs = inputs.append(moment)
        ends = {_FIRST: least(time.column), _LAST: greatest(time.column)}
        super().__init__(
            name=name,
            keys=pa.schema([*keyed, pa.field(PANE, moment.type)]),
            inputs=inputs,
            aggregates={**ends, **aggregates},
        )
        self.arriving, self.time, self.gap_us = arriving, time, gap_us
        self._before_us = int(time.is_end)
        bounds = [*keyed, *window_bounds(moment.type)]
        results = list(self.output)[len(bounds) + 1 :]
        self.output = output_schema(name, bounds, results) if output is None else output

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """The key and a bound of the session: sessions of a key do not overlap."""
        return self.unique_keys_of_windows(1)

    @property
    def _last_position(self) -> int:
        """Position, key columns first, of the column with a session's last event time."""
        return len(self.schema.keys) + 1

    def is_late(self, times: IntArray, closed: int) -> npt.NDArray[np.bool_]:
        """Return whether a row would form a session that is closed already."""
        return times + self.gap_us <= closed

    def marks(self, rows: pa.RecordBatch, times: IntArray) -> IntArray:
        """Return the beginning of each row's session among these rows."""
        keys = rows.select(self.keys.names)
        key = group_rows(hash_keys(keys), keys, 1).of_row
        order = np.lexsort((times, key))
        begins = self._begins(key[order], times[order], times[order])
        marks = np.empty(len(times), np.int64)
        firsts = np.flatnonzero(begins)
        marks[order] = np.repeat(times[order][firsts], np.diff(np.append(firsts, len(order))))
        return marks

    def closes(self, time: EpochTime) -> bool:
        """Return whether any session may close in this epoch."""
        return time.until > time.closed

    def end_of(self, moment: int) -> int:
        """Return the end of a session whose last row has this time."""
        return moment + self.gap_us

    def gone_before(self, closed: int) -> int:  # noqa: ARG002
        """Return no pane: sessions are removed one by one."""
        return BEGINNING

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Merge an epoch's rows with the sessions of their keys, and emit those that close.

        The keys that are looked at are those that have rows or whose sessions are over; which
        those are is found by one scan of one column.
        """
        time, names = data.time, self.keys.names
        arrived = self.combined(data)
        hashes, keys = [arrived.hashes], [arrived.keys.select(names)]
        if self.closes(time):
            over = EntryRange(column=self._last_position, end=self._last_before(time.until))
            entries = data.state.scan(over)
            hashes.append(entries.hashes)
            keys.append(entries.keys.select(names))
        every = pa.concat_batches(keys)
        if not every.num_rows:
            return OperatorOutput()
        groups = group_rows(np.concatenate(hashes), every, data.num_key_groups)
        distinct = every.take(pa.array(groups.first_row))
        stored, of_key, slots = self._stored(groups, distinct, data.state)
        key = np.concatenate([of_key, groups.of_row[: len(arrived.hashes)]])
        return self._merge_sessions(groups, stored.then(arrived), key, slots, time)

    def _stored(
        self, groups: Groups, keys: pa.RecordBatch, state: StateView
    ) -> tuple[StateRows, IntArray, IntArray]:
        """Return stored sessions of some keys, with the key and the slot of each."""
        pending, first, width = np.arange(groups.count), 0, 1
        entries, values, of_key, slots = [], [], [], []
        while pending.size:
            # Slots of a key have no gaps: twice as many are looked for each time, until one is
            # free.
            key = np.repeat(pending, width)
            slot = np.tile(np.arange(first, first + width), len(pending))
            wanted = self._in_slots(keys.take(pa.array(key)), slot)
            known, prior = state.find(wanted, groups.key_groups[key])
            there = pa.array(np.flatnonzero(known))
            entries.append(wanted.take(there))
            values.append(prior.take(there))
            of_key.append(key[known])
            slots.append(slot[known])
            pending = pending[known[width - 1 :: width]]
            first, width = first + width, 2 * width
        every = np.concatenate(of_key)
        rows = StateRows(
            hashes=groups.hashes[every],
            keys=pa.concat_batches(entries),
            values=pa.concat_batches(values),
        )
        return rows, every, np.concatenate(slots)

    def _merge_sessions(
        self, groups: Groups, own: StateRows, key: IntArray, slots: IntArray, time: EpochTime
    ) -> OperatorOutput:
        """Merge sessions that touch, emit those that close, and write the others.

        `key` is the key of each session, those of the state first, whose slots are `slots`.
        """
        firsts, lasts = (values_of(own.values.column(i)) for i in (0, 1))
        order = np.lexsort((firsts, key))
        begins = np.flatnonzero(self._begins(key[order], firsts[order], lasts[order]))
        starts = np.append(begins, len(order))
        merged = self.merge_in_order(own.values.take(pa.array(order)), starts)
        of_key, some = key[order][begins], order[begins]
        over = self._ends(merged.column(1)) <= time.until
        open_ = np.flatnonzero(~over)
        # Slots of a key are numbered anew, so that there are no gaps among them.
        run = np.flatnonzero(run_begins(of_key[open_]))
        slot = np.arange(len(open_)) - np.repeat(run, np.diff(np.append(run, len(open_))))
        count = np.bincount(of_key[open_], minlength=int(key.max(initial=0)) + 1)
        free = np.flatnonzero(slots >= count[key[: len(slots)]])
        which = np.concatenate([some[open_], free])
        return OperatorOutput(
            groups=groups,
            changed=changed_by_key(
                groups,
                key=np.concatenate([of_key[open_], key[free]]),
                keys=self._in_slots(
                    own.keys.take(pa.array(which)), np.concatenate([slot, slots[free]])
                ),
                values=pa.concat_batches(
                    [merged.take(pa.array(open_)), own.values.take(pa.array(free))]
                ),
                removed=np.arange(len(which)) >= len(open_),
            ),
            output=self.emitted(
                own.keys.take(pa.array(some[over])), merged.take(pa.array(np.flatnonzero(over)))
            ),
        )

    def emitted(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> pa.RecordBatch:
        """Return the output of sessions that close."""
        first, last, *results = self.results(keys, state)
        own = keys.columns[: self.pane_position]
        bounds = self.bounds(first, last)
        return pa.RecordBatch.from_arrays([*own, *bounds, *results], schema=self.output)

    def _ends(self, last: pa.Array) -> IntArray:
        """Return the ends of sessions from their last event times."""
        found: IntArray = values_of(last) - self._before_us + self.gap_us
        return found

    def _last_before(self, until: int) -> int:
        """Return the bound on last event times of sessions that end by `until`."""
        return until - self.gap_us + self._before_us + 1

    def bounds(self, first: pa.Array, last: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return bounds of sessions from their first and last event times."""
        starts = column_of(values_of(first) - self._before_us, None, first.type)
        return starts, column_of(self._ends(last), None, last.type)

    @property
    def described_windows(self) -> list[dict[str, Any]]:
        """Sessions as plain values for the checkpoint."""
        return [{"gap_us": self.gap_us}]

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Describe the partials and sessions for the checkpoint."""
        return self.with_windows(super().describe_state(state))

    def _begins(self, key: IntArray, first: IntArray, last: IntArray) -> npt.NDArray[np.bool_]:
        """Return which parts, ordered by key and beginning, start a session."""
        count = len(key)
        begins = np.ones(count, np.bool_)
        if count > 1:
            # The latest end so far within a key: ends are ranked, so that a key's ranks come after
            # those of the keys before it.
            rank = np.empty(count, np.int64)
            by_last = np.argsort(last, kind="stable")
            rank[by_last] = np.arange(count)
            reached = np.maximum.accumulate(key * count + rank) % count
            begins[1:] = key[1:] != key[:-1]
            begins[1:] |= first[1:] > last[by_last[reached[:-1]]] + self.gap_us
        return begins

    def _in_slots(self, keys: pa.RecordBatch, slots: IntArray) -> pa.RecordBatch:
        """Return the identity of each key's entry in its slot."""
        own = keys.columns[: self.pane_position]
        moment = self.schema.keys.field(self.pane_position).type
        return pa.RecordBatch.from_arrays(
            [*own, column_of(slots, None, moment)], schema=self.schema.keys
        )
