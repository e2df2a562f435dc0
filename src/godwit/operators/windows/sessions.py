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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.aggregates import max as greatest
from godwit.operators.aggregates import min as least
from godwit.operators.compute import ComputeOperator
from godwit.operators.operator import Advance
from godwit.operators.windows.description import describe_windows
from godwit.operators.windows.grid import BEGINNING
from godwit.operators.windows.operator import (
    PANE,
    Closed,
    Entries,
    WindowedOperator,
    output_schema,
    window_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.evolution import StateDescription
    from godwit.operators.aggregates import Aggregate
    from godwit.operators.operator import Step
    from godwit.operators.windows.moments import OperatorTime, RowTime

__all__ = ["SessionCompute", "Settled"]

_FIRST: Final = f"{RESERVED_PREFIX}_first"
_LAST: Final = f"{RESERVED_PREFIX}_last"

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settled:
    """What an epoch makes of the sessions of some keys.

    Attributes
    ----------
    entries, removed
        Entries to write, ordered as the keys were, and which of them are gone.
    key
        Shape ``(n,)``: which key each is of.
    output
        Sessions that are over.
    """

    entries: Entries
    removed: npt.NDArray[np.bool_]
    key: IntArray
    output: pa.RecordBatch


class SessionCompute(ComputeOperator, WindowedOperator):
    """Aggregates of the rows of each key and session.

    Parameters
    ----------
    name, keys, arriving, time, inputs, aggregates
        As of `godwit.operators.windows.compute.WindowedCompute`.
    gap_us
        Two rows of one key that lie at most this apart are of one session.
    """

    def __init__(
        self,
        *,
        name: str,
        keys: tuple[str, ...],
        arriving: pa.Schema,
        time: RowTime,
        inputs: pa.Schema,
        aggregates: Mapping[str, Aggregate],
        gap_us: int,
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
        self.arriving, self.time, self.gap_us, self.update = arriving, time, gap_us, False
        self._before_us = int(time.is_end)
        self.output = self.output_of([*keyed, *window_bounds(moment.type)])

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """Each session of a key has one row, and no two of them overlap."""
        return self.unique_keys_of_windows(1)

    @property
    def kind(self) -> str:
        """What makes one."""
        return "session compute"

    @property
    def last_position(self) -> int:
        """Which column of an entry, key columns first, holds the moment of the last row."""
        return len(self.schema.keys) + 1

    def is_late(self, times: IntArray, closed: int) -> npt.NDArray[np.bool_]:
        """Whether a row's own session would be over already."""
        return times + self.gap_us <= closed

    def marks(self, rows: pa.RecordBatch, times: IntArray) -> IntArray:
        """Beginning of the session, among these rows, that each row is of."""
        keys = rows.select(self.keys.names)
        key = group_rows(hash_keys(keys), keys, 1).of_row
        order = np.lexsort((times, key))
        begins = self._begins(key[order], times[order], times[order])
        marks = np.empty(len(times), np.int64)
        firsts = np.flatnonzero(begins)
        marks[order] = np.repeat(times[order][firsts], np.diff(np.append(firsts, len(order))))
        return marks

    def closes(self, told: OperatorTime) -> bool:
        """Whether any session may be over in this epoch that was not before."""
        return told.until > told.closed

    def end_of(self, moment: int) -> int:
        """End of the session whose last row is of this moment."""
        return moment + self.gap_us

    def gone_before(self, closed: int) -> int:  # noqa: ARG002 - sessions are removed one by one
        """Nothing is dropped in bulk."""
        return BEGINNING

    def advance(self, step: Step) -> Advance:
        """Aggregate an epoch's rows into sessions of their own."""
        return Advance(state=self.updated(step), removed=None, output=self.nothing())

    def close(self, held: Entries, changed: Entries | None, told: OperatorTime) -> Closed:
        """Sessions come out where they are settled."""
        raise NotImplementedError

    def settle(self, own: Entries, key: IntArray, slots: IntArray, told: OperatorTime) -> Settled:
        """Let sessions of keys meet, and part those that are over from those that are not.

        Parameters
        ----------
        own
            Sessions: those of the state first.
        key
            Shape ``(n,)``: which key each is of.
        slots
            Shape ``(m,)``: slots of those of the state, which are the first m.
        told
            The epoch's moments.
        """
        firsts, lasts = (values_of(own.values.column(i)) for i in (0, 1))
        order = np.lexsort((firsts, key))
        begins = np.flatnonzero(self._begins(key[order], firsts[order], lasts[order]))
        starts = np.append(begins, len(order))
        merged = self.merge_in_order(own.values.take(pa.array(order)), starts)
        of_key, some = key[order][begins], order[begins]
        end = self.ends(merged.column(1))
        over = end <= told.until
        open_ = np.flatnonzero(~over)
        # Slots of a key are numbered anew, so that there are no gaps among them.
        new = np.ones(len(open_), np.bool_)
        new[1:] = np.diff(of_key[open_]) != 0
        run = np.flatnonzero(new)
        slot = np.arange(len(open_)) - np.repeat(run, np.diff(np.append(run, len(open_))))
        count = np.bincount(of_key[open_], minlength=int(key.max(initial=0)) + 1)
        left = np.flatnonzero(slots >= count[key[: len(slots)]])
        which = np.concatenate([some[open_], left])
        written = np.concatenate([of_key[open_], key[left]])
        by_key = np.argsort(written, kind="stable")
        taken = pa.array(which[by_key])
        values = pa.concat_batches(
            [merged.take(pa.array(open_)), own.values.take(pa.array(left))]
        ).take(pa.array(by_key))
        return Settled(
            entries=Entries(
                hashes=own.hashes[which[by_key]],
                keys=self.in_slots(
                    own.keys.take(taken), np.concatenate([slot, slots[left]])[by_key]
                ),
                values=values,
            ),
            removed=np.arange(len(which))[by_key] >= len(open_),
            key=written[by_key],
            output=self.emitted(
                own.keys.take(pa.array(some[over])), merged.take(pa.array(np.flatnonzero(over)))
            ),
        )

    def output_of(self, bounds: list[pa.Field]) -> pa.Schema:
        """Columns of the output; those of the key and of the window's bounds are given."""
        return output_schema(self.name, bounds, list(self.output)[len(bounds) + 1 :])

    def emitted(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> pa.RecordBatch:
        """Output of sessions that are over: what tells their entries apart, and their states."""
        first, last, *results = self.results(keys, state)
        own = keys.columns[: self.pane_position]
        bounds = self.bounds(first, last)
        return pa.RecordBatch.from_arrays([*own, *bounds, *results], schema=self.output)

    def ends(self, last: pa.Array) -> IntArray:
        """Give the ends of sessions, from the values of their last rows."""
        found: IntArray = values_of(last) - self._before_us + self.gap_us
        return found

    def last_before(self, until: int) -> int:
        """Give the bound that the value of the last row is below if a session ends by `until`."""
        return until - self.gap_us + self._before_us + 1

    def bounds(self, first: pa.Array, last: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Beginnings and ends of sessions, from the values of their first and last rows."""
        starts = column_of(values_of(first) - self._before_us, None, first.type)
        return starts, column_of(self.ends(last), None, last.type)

    def describe_state(self) -> StateDescription:
        """Say what the partials are, and of what sessions."""
        return describe_windows(super().describe_state(), self, [{"gap_us": self.gap_us}])

    def _begins(self, key: IntArray, first: IntArray, last: IntArray) -> npt.NDArray[np.bool_]:
        """Whether a session begins, where sessions are ordered by key and beginning."""
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

    def in_slots(self, keys: pa.RecordBatch, slots: IntArray) -> pa.RecordBatch:
        """Return what tells the entry of each key in its slot."""
        own = keys.columns[: self.pane_position]
        moment = self.schema.keys.field(self.pane_position).type
        return pa.RecordBatch.from_arrays(
            [*own, column_of(slots, None, moment)], schema=self.schema.keys
        )
