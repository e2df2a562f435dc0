"""``join_newest``: every row of one stream with the newest row of another at its event time.

A row of the left at time t is joined with the row of the right, of the same key, whose event time
is the latest at or before t; of several at one time, with the one that arrived last.  The result is
known once the watermark has passed t, since no row of the right at or before t can follow.

Rows of both sides wait, each as an entry identified by its event time, until the watermark passes
them; then they are removed in bulk.  The newest row of the right of each key is kept in a separate
entry.  One scan of one column finds the rows that are due, so the cost of an epoch grows with these
rows, not with all that wait.

Invariant: all waiting rows of the right are newer than the kept one, and no waiting row is older
than the watermark.

Source: the enrichment by weather of Real Job 4, Madsen et al. (ALBIC) §5; event-time temporal joins
as in Flink (`TemporalRowTimeJoinOperator`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.columns.groups import group_rows
from godwit.library.joins.sides import (
    LEFT,
    NUMBER,
    RIGHT,
    JoinOperator,
    JoinSide,
    event_times_of,
    within,
    without_null,
)
from godwit.library.windows.operator import number_rows
from godwit.operators.hot_keys.grid import EvenSpread
from godwit.operators.operator import OperatorOutput, changed_by_key
from godwit.store.changes import EntryRange
from godwit.time.grid import BEGINNING, PaneGrid, TimeWindow, is_past

if TYPE_CHECKING:
    import numpy.typing as npt

    from godwit.operators.operator import OperatorInput, StateView
    from godwit.plan.nodes import How
    from godwit.store.changes import StateRows
    from godwit.time.event_time import EpochTime

_STAYS: Final = 2
"""Side of the entry that holds the newest row of the right before the watermark."""
_NO_PANE: Final = 253_402_300_799_999_999
"""Its pane: the last moment that can be shown, which no watermark passes."""


class NewestJoin(JoinOperator):
    """Join of each row with the newest row of another stream."""

    kind = "join newest"
    emits = "rows of the left with the newest of the right, once the watermark has passed them"

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        left: JoinSide,
        right: JoinSide,
        how: How,  # ``"left"`` or ``"inner"``
        within_us: int | None,  # how much older the row of the right may be; None: however old
        spread: int = 0,  # parts that rows of every key are spread over
    ) -> None:
        super().__init__(name=name, keys=keys, left=left, right=right, how=how, spread=spread)
        self.within_us = within_us
        # A row's pane is its moment.
        self.grid = PaneGrid.of(TimeWindow(length_us=1, every_us=1))

    @property
    def means(self) -> dict[str, Any]:
        """Meaning of the state for the checkpoint: sides, maximum age of a match, and parts."""
        parts = {"parts of a key": self.spread} if self.spread else {}
        return {**super().means, "within_us": self.within_us, **parts}

    def routing(self, time: EpochTime) -> EvenSpread:  # noqa: ARG002
        """Return the division of rows: left rows among all parts of a key, right rows to all parts.

        It applies from the first epoch on: the newest right row may be arbitrarily old, so a part
        that is added later would lack it.
        """
        return EvenSpread(parts=self.spread)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Store rows until the watermark has passed them, then join them."""
        time = data.time
        arrived = number_rows(data.rows, NUMBER, data.epoch)
        is_due = is_past(event_times_of(arrived.values), time.until)
        later = arrived.take(np.flatnonzero(~is_due))
        due = arrived.take(np.flatnonzero(is_due))
        stale = arrived.take(np.empty(0, np.int64))
        if self.closes(time):
            first, end = self.closing_panes(time)
            waited = data.state.scan(EntryRange(column=self.pane_position, first=first, end=end))
            due = replace(waited, values=self.from_state(waited.values)).followed_by(due)
            if self.within_us is not None:
                stale = self._expired_right_rows(data.state, time.until - self.within_us)
        every = due.followed_by(later).followed_by(stale)
        if not every.keys.num_rows:
            return OperatorOutput()
        own = every.keys.select(self.keys.names)
        groups = group_rows(every.hashes, own, data.num_key_groups)
        distinct = own.take(pa.array(groups.first_row))
        count, waiting = due.keys.num_rows, later.keys.num_rows
        key = groups.of_row
        newest, output = self._join_due(due, key[:count], distinct, groups.key_groups, data.state)
        stay = pa.array(newest)
        stays = key[newest]
        over = np.setdiff1d(key[count + waiting :], stays)
        ended = np.concatenate([stays, over])
        entries = self._newest_keys(distinct.take(pa.array(ended)))
        nulls = [pa.nulls(len(over), field.type) for field in self.inputs]
        none = pa.RecordBatch.from_arrays(nulls, schema=self.inputs)
        changed = changed_by_key(
            groups,
            key=np.concatenate([key[count : count + waiting], ended]),
            keys=pa.concat_batches([later.keys, entries]),
            values=pa.concat_batches(
                [self.to_state(rows) for rows in (later.values, due.values.take(stay), none)]
            ),
            removed=np.arange(waiting + len(ended)) >= waiting + len(stays),
        )
        return OperatorOutput(groups=groups, changed=changed, output=output)

    def _join_due(
        self,
        due: StateRows,
        key: npt.NDArray[np.int64],
        distinct: pa.RecordBatch,
        key_groups: npt.NDArray[np.int32],
        state: StateView,
    ) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
        """Join the rows that the watermark has passed with the newest right rows.

        `key`: number of each due row's key in `distinct`, whose key groups are `key_groups`.
        Returns the positions of due right rows to store as their key's newest, and the output.
        """
        sides, numbers = self.sides_of(due.keys), self.numbers_of(due.keys)
        moments = event_times_of(due.values)
        keyed = without_null(distinct)[key]
        left = np.flatnonzero(sides == LEFT)
        left = left[np.lexsort((numbers[left], moments[left], key[left]))]
        right = np.flatnonzero((sides == RIGHT) & keyed)
        right = right[np.argsort(numbers[right], kind="stable")]

        asked = np.unique(key[left])
        newest_keys = self._newest_keys(distinct.take(pa.array(asked)))
        known, values = state.find(newest_keys, key_groups[asked])
        stored = np.flatnonzero(known)
        before = self.from_state(values.take(pa.array(stored)))
        # Rows of the state are older than the due rows.
        rows = pa.concat_batches([due.values, before])
        places = len(moments) + np.arange(len(stored))
        others = np.concatenate([places, right])
        all_moments = np.concatenate([moments, event_times_of(before)])
        all_keys = np.concatenate([key, asked[stored]])
        last = moments[left]
        first = np.full(len(left), BEGINNING) if self.within_us is None else last - self.within_us
        newest = within(key[left], first, last, all_keys[others], all_moments[others]).last
        met = np.where(newest < 0, -1, others[newest] if len(others) else -1)
        met[~keyed[left]] = -1
        if not self.emits_unmatched(LEFT):
            left, met = left[met >= 0], met[met >= 0]
        own = due.keys.select(self.keys.names)
        output = self.joined(own, rows, left, met)

        order = right[np.lexsort((moments[right], key[right]))]
        ends = np.ones(len(order), np.bool_)
        ends[:-1] = np.diff(key[order]) != 0
        return order[ends], output

    def _newest_keys(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the key columns of the state entries with the newest right row of each key."""
        n = keys.num_rows
        return self.entry_keys(
            keys, np.full(n, _NO_PANE), np.full(n, _STAYS), np.zeros(n, np.int64)
        )

    def _expired_right_rows(self, state: StateView, before: int) -> StateRows:
        """Return stored right rows older than `before`, too old for any future left row."""
        column = len(self.schema.keys) + len(self.marks_of_state)
        old = state.scan(EntryRange(column=column, end=before))
        stale = old.take(np.flatnonzero(self.sides_of(old.keys) == _STAYS))
        return replace(stale, values=self.from_state(stale.values))
