"""Sessions with Spark's semantics, where each row determines the end of its own session.

A row is a session from its event time to its end, by a gap of its own; sessions of a key that meet
are one.  A row is dropped if the watermark of earlier batches is at its end or past it, and a
session comes out once the watermark is at its end.

Source: `SessionWindowStateStoreSaveExec` and `MergingSessionsIterator` of Spark.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from godwit.adopt.grouped import leave_out, only_rows
from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.library.windows.sessions import SessionCompute
from godwit.operators.operator import STATE
from godwit.time.event_time import RowTime
from godwit.time.grid import BEGINNING, END

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from godwit.library.windows.sessions import IntArray
    from godwit.operators.aggregate import Aggregate
    from godwit.operators.operator import OperatorInput, OperatorOutput
    from godwit.time.event_time import Arrivals, EpochTime

_EPOCH: Final = 0  # Spark's first watermark, in microseconds


class SparkSessions(SessionCompute):
    """Aggregates per key and session of a query in append or complete mode."""

    def __init__(
        self,
        *,
        name: str,
        keys: tuple[str, ...],
        arriving: pa.Schema,  # columns of the rows as they come: key columns first
        start: str,  # columns of the session that a row alone forms
        end: str,
        only_time: str,  # column that is true in rows that move the watermark and do no more
        inputs: pa.Schema,
        aggregates: Mapping[str, Aggregate],
        complete: bool = False,  # all sessions come out of every batch, and none is removed
    ) -> None:
        super().__init__(
            name=name,
            keys=keys,
            arriving=arriving,
            time=RowTime(column=start),
            inputs=inputs,
            aggregates=aggregates,
            gap_us=0,
            last=end,
        )
        self.output_delay_us = 0
        self._end, self._only_time = end, only_time
        self.complete = complete

    def arrange(
        self,
        rows: pa.RecordBatch,
        time: EpochTime,
        input_number: int = 0,  # noqa: ARG002
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals | None]:
        """Drop rows whose own session earlier batches have closed."""
        rows = only_rows(rows, self._only_time)
        is_late = values_of(rows.column(self._end)) <= max(time.closed, _EPOCH)
        rows, left_out, arrivals = leave_out(rows, is_late, self)
        times = values_of(rows.column(self.time.column))
        time_type = self.schema.keys.field(self.pane_position).type
        marks = column_of(self.entry_marks(rows, times), None, time_type)
        return self.with_panes(rows, marks), left_out, arrivals

    def entry_marks(self, rows: pa.RecordBatch, times: IntArray) -> IntArray:
        """Return a value per row; rows of a key are combined only if their values are equal.

        If the order of rows matters, it is the row's event time.
        """
        if not self.commutative:
            return times
        # Rows less than every gap apart meet.
        shortest = max(int(np.min(values_of(rows.column(self._end)) - times, initial=END)), 1)
        return times // shortest * shortest

    def closes(self, time: EpochTime) -> bool:
        """Return whether the watermark has advanced, so that a batch runs without rows."""
        return not self.complete and max(time.until, _EPOCH) > max(time.closed, _EPOCH)

    def needs_state(self, time: EpochTime) -> bool:
        """Return whether the batch emits sessions without rows."""
        return self.complete or super().needs_state(time)

    def reads_all_keys(self, time: EpochTime) -> bool:
        """Return whether the batch emits sessions without rows."""
        return self.complete or super().reads_all_keys(time)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Merge rows into sessions, and emit those that end at the watermark or before."""
        time = data.time
        if self.complete:
            idle = replace(time, closed=BEGINNING, until=BEGINNING)
            return self._with_all_results(data, super().process(replace(data, time=idle)))
        if time.until > _EPOCH:
            # The watermark is past an end, for `SessionCompute`, a microsecond after it.
            shifted = replace(time, closed=max(time.closed, _EPOCH) + 1, until=time.until + 1)
            data = replace(data, time=shifted)
        return super().process(data)

    def _with_all_results(self, data: OperatorInput, processed: OperatorOutput) -> OperatorOutput:
        """Return a batch's output with the results of all sessions, stored and changed."""
        entries = data.state.scan()
        if processed.changed:
            entries = entries.followed_by(processed.changed[STATE][0])
        groups = group_rows(entries.hashes, entries.keys, data.num_key_groups)
        newest = groups.order[groups.starts[1:] - 1]
        if entries.removed is not None:
            newest = newest[~entries.removed[newest]]
        entries = entries.take(newest)
        return replace(processed, output=self.emitted(entries.keys, entries.values))
