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
from godwit.operators.hot_keys import EvenSpread
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
"""Its pane: the largest event time, which no watermark passes."""


class NewestJoin(JoinOperator):
    """Join of each row with the newest row of another stream."""

    kind = "join newest"
    emits = "left rows with the newest right row, once the watermark has passed them"

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
        later_rows = arrived.take(np.flatnonzero(~is_due))
        due_rows = arrived.take(np.flatnonzero(is_due))
        stale_rows = arrived.take(np.empty(0, np.int64))
        if self.closes(time):
            first, end = self.closing_panes(time)
            waiting_rows = data.state.scan(
                EntryRange(column=self.pane_position, first=first, end=end)
            )
            due_rows = replace(
                waiting_rows, values=self.from_state(waiting_rows.values)
            ).followed_by(due_rows)
            if self.within_us is not None:
                stale_rows = self._expired_right_rows(data.state, time.until - self.within_us)
        all_rows = due_rows.followed_by(later_rows).followed_by(stale_rows)
        if not all_rows.keys.num_rows:
            return OperatorOutput()
        user_keys = all_rows.keys.select(self.keys.names)
        groups = group_rows(all_rows.hashes, user_keys, data.num_key_groups)
        distinct_keys = user_keys.take(pa.array(groups.first_row))
        num_due, num_later = due_rows.keys.num_rows, later_rows.keys.num_rows
        key = groups.of_row
        newest, output = self._join_due(
            due_rows, key[:num_due], distinct_keys, groups.key_groups, data.state
        )
        newest_indices = pa.array(newest)
        keys_with_newest = key[newest]
        expired_keys = np.setdiff1d(key[num_due + num_later :], keys_with_newest)
        head_keys = np.concatenate([keys_with_newest, expired_keys])
        entries = self._newest_keys(distinct_keys.take(pa.array(head_keys)))
        nulls = [pa.nulls(len(expired_keys), field.type) for field in self.inputs]
        null_rows = pa.RecordBatch.from_arrays(nulls, schema=self.inputs)
        changed = changed_by_key(
            groups,
            key=np.concatenate([key[num_due : num_due + num_later], head_keys]),
            keys=pa.concat_batches([later_rows.keys, entries]),
            values=pa.concat_batches(
                [
                    self.to_state(rows)
                    for rows in (later_rows.values, due_rows.values.take(newest_indices), null_rows)
                ]
            ),
            removed=np.arange(num_later + len(head_keys)) >= num_later + len(keys_with_newest),
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
        times = event_times_of(due.values)
        has_key = without_null(distinct)[key]
        left = np.flatnonzero(sides == LEFT)
        left = left[np.lexsort((numbers[left], times[left], key[left]))]
        right = np.flatnonzero((sides == RIGHT) & has_key)
        right = right[np.argsort(numbers[right], kind="stable")]

        left_keys = np.unique(key[left])
        newest_keys = self._newest_keys(distinct.take(pa.array(left_keys)))
        known, values = state.find(newest_keys, key_groups[left_keys])
        stored = np.flatnonzero(known)
        stored_rows = self.from_state(values.take(pa.array(stored)))
        # Rows of the state are older than the due rows.
        rows = pa.concat_batches([due.values, stored_rows])
        stored_positions = len(times) + np.arange(len(stored))
        candidates = np.concatenate([stored_positions, right])
        all_times = np.concatenate([times, event_times_of(stored_rows)])
        all_keys = np.concatenate([key, left_keys[stored]])
        left_times = times[left]
        earliest_match = (
            np.full(len(left), BEGINNING) if self.within_us is None else left_times - self.within_us
        )
        newest = within(
            key[left], earliest_match, left_times, all_keys[candidates], all_times[candidates]
        ).last
        match = np.where(newest < 0, -1, candidates[newest] if len(candidates) else -1)
        match[~has_key[left]] = -1
        if not self.emits_unmatched(LEFT):
            left, match = left[match >= 0], match[match >= 0]
        user_keys = due.keys.select(self.keys.names)
        output = self.joined(user_keys, rows, left, match)

        order = right[np.lexsort((times[right], key[right]))]
        is_last = np.ones(len(order), np.bool_)
        is_last[:-1] = np.diff(key[order]) != 0
        return order[is_last], output

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
