"""Filters of the first row of each key: ``dropDuplicates`` and ``...WithinWatermark`` of Spark.

========================  ================================  ===============================
call                      a row is late                     a key is forgotten
========================  ================================  ===============================
without a watermark       never                             never
dropDuplicates            event time at the watermark       event time, if it is a key, at the
                          or before                         watermark or before; else never
... WithinWatermark       event time at the watermark       event time and delay at the
                          or before                         watermark or before
========================  ================================  ===============================

A batch judges rows late by the watermark of the batch before, and forgets keys behind its rows, by
its own (`godwit.engine.event_time`).

Source: `StreamingDeduplicateExec` and `StreamingDeduplicateWithinWatermarkExec` of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.adopt.lanes import ONLY_TIME
from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.columns.groups import group_rows
from godwit.library.duplicates import merge_columns
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput, changed_by_key
from godwit.store.changes import EntryRange
from godwit.store.columns import StateSchema
from godwit.time.event_time import Arrivals
from godwit.time.grid import END

if TYPE_CHECKING:
    from godwit.operators.operator import OperatorInput
    from godwit.time.event_time import EpochTime

EXPIRES: Final = f"{RESERVED_PREFIX}_expires"
_EPOCH: Final = 0  # Spark's first watermark, in microseconds
_MOMENT: Final = pa.timestamp("us", "UTC")


class FirstRows(KeyedOperator):
    """Filter that passes the first row of each key of a query without a watermark."""

    kind = "first rows"
    emits = "the first row of each key, when it arrives"

    def __init__(self, *, name: str, keys: tuple[str, ...], columns: pa.Schema) -> None:
        self.name, self.output = name, columns
        self.inputs = pa.schema([field for field in columns if field.name not in keys])
        self.schema = StateSchema(
            keys=pa.schema([columns.field(key) for key in keys]),
            values=pa.schema([pa.field(EXPIRES, _MOMENT)]),
        )

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Emit the first row of every key that has no state."""
        if not len(data.rows.hashes):
            return OperatorOutput()
        groups, keys = data.grouped(len(self.keys))
        is_stored, _ = data.state.find(keys, groups.key_groups)
        new_groups = np.flatnonzero(~is_stored)
        rows = groups.first_row[new_groups]
        by_arrival = pa.array(np.argsort(rows, kind="stable"))
        first_rows = data.rows.values.take(pa.array(rows))
        new_keys = keys.take(pa.array(new_groups))
        output = merge_columns(new_keys.take(by_arrival), first_rows.take(by_arrival), self.output)
        expiries = self._expiry_watermarks(first_rows)
        stored = np.flatnonzero(expiries >= self._first_expiry_kept(data.time))
        entries = pa.RecordBatch.from_arrays(
            [column_of(expiries[stored], None, _MOMENT)], schema=self.schema.values
        )
        changed = changed_by_key(
            groups, new_groups[stored], new_keys.take(pa.array(stored)), entries
        )
        return OperatorOutput(output=output, groups=groups, changed=changed)

    def _first_expiry_kept(self, time: EpochTime) -> int:  # noqa: ARG002
        """Return the earliest expiry of a key that the batch does not drop."""
        return _EPOCH

    def _expiry_watermarks(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the watermark at which each row's key is dropped."""
        return np.full(rows.num_rows, END)


class FirstRowsInTime(FirstRows):
    """Filter that passes the first row of each key of a query with a watermark."""

    kind = "first rows in time"
    over_event_time: ClassVar[bool] = True

    def __init__(
        self,
        *,
        name: str,
        keys: tuple[str, ...],
        arriving: pa.Schema,  # columns of the rows as they come: key columns first
        late_by: str,  # column of the time, in microseconds, by which a row is late
        passing: tuple[str, ...],  # columns of the output
        within_us: int | None,  # keys are forgotten this long after their time; ``None``: never
        null_us: int = END,  # keys whose event time is null are forgotten at this watermark
    ) -> None:
        columns = pa.schema([arriving.field(column) for column in passing])
        super().__init__(name=name, keys=keys, columns=columns)
        self.arriving, self.late_by = arriving, late_by
        self.within_us, self.null_us = within_us, null_us

    @property
    def left_out_schema(self) -> pa.Schema:
        """Columns of left-out rows: those of the input, and the reason."""
        return pa.schema([*self.arriving, pa.field("reason", pa.string())])

    def arrange(
        self,
        rows: pa.RecordBatch,
        time: EpochTime,
        input_number: int = 0,  # noqa: ARG002
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals | None]:
        """Drop late rows, and rows that only advance the watermark."""
        rows = rows.filter(pc.invert(rows.column(ONLY_TIME)))
        column = rows.column(self.late_by)
        late = values_of(column) <= max(time.closed, _EPOCH)
        mask = mask_of(column)
        if mask is not None:
            late = late & mask
        left_out = arrivals = None
        if late.any():
            lost = rows.filter(pa.array(late))
            reasons = pa.array(["late"] * lost.num_rows, pa.string())
            left_out = pa.RecordBatch.from_arrays(
                [*lost.select(self.arriving.names).columns, reasons], schema=self.left_out_schema
            )
            rows = rows.filter(pa.array(~late))
            arrivals = Arrivals(late=lost.num_rows)
        return rows.select([*self.keys.names, *self.inputs.names]), left_out, arrivals

    def closes(self, time: EpochTime) -> bool:
        """Return whether the watermark has advanced, so that a batch runs without rows."""
        return time.until > max(time.closed, _EPOCH)

    def needs_state(self, time: EpochTime) -> bool:
        """Return whether the batch drops keys."""
        return self.within_us is not None and self.closes(time)

    def reads_all_keys(self, time: EpochTime) -> bool:
        """Return whether the batch drops keys."""
        return self.needs_state(time)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Emit the first row of every key that has no state, then drop expired keys."""
        emitted = super().process(data)
        if not self.needs_state(data.time):
            return emitted
        expired_range = EntryRange(column=len(self.keys), end=self._first_expiry_kept(data.time))
        entries = data.state.scan(expired_range)
        removed = np.ones(len(entries.hashes), np.bool_)
        if STATE in emitted.changed:
            new = emitted.changed[STATE][0]
            entries = entries.followed_by(new)
            removed = np.concatenate([removed, np.zeros(len(new.hashes), np.bool_)])
        if not len(removed):
            return OperatorOutput(output=emitted.output, groups=emitted.groups)
        groups = group_rows(entries.hashes, entries.keys, data.num_key_groups)
        changed = changed_by_key(groups, groups.of_row, entries.keys, entries.values, removed)
        return OperatorOutput(output=emitted.output, groups=groups, changed=changed)

    def _first_expiry_kept(self, time: EpochTime) -> int:
        """Return the first time after the watermark, since Spark also drops keys of the batch.

        Those are keys without an event time, since rows at the watermark are late.
        """
        return max(time.until, _EPOCH) + 1

    def _expiry_watermarks(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the watermark at which each row's key is dropped."""
        if self.within_us is None:
            return super()._expiry_watermarks(rows)
        column = rows.column(self.late_by)
        times, mask = values_of(column), mask_of(column)
        expiries = times + self.within_us
        return expiries if mask is None else np.where(mask, expiries, self.null_us)
