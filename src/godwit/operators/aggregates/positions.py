"""First and last values, by order of arrival."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import column_of, mask_of
from godwit.operators.aggregates.aggregate import BoundAggregate, BuiltIn
from godwit.operators.aggregates.ordering import can_be_held

__all__ = ["bind_position"]


def bind_position(column: pa.Field, *, last: bool, ignore_nulls: bool) -> BoundAggregate | None:
    """First or last value of a column."""
    dtype = column.type
    if not can_be_held(dtype):
        return None
    columns = {"value": dtype} if ignore_nulls else {"value": dtype, "seen": pa.bool_()}
    return _Position(
        last=last,
        ignore_nulls=ignore_nulls,
        state=pa.schema(columns),
        output=dtype,
        identity={
            "aggregate": "last" if last else "first",
            "column": column.name,
            "type": str(dtype),
            "ignore_nulls": ignore_nulls,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Position(BuiltIn):
    """State: the value, and, where a null counts as a value, whether there is one."""

    last: bool
    ignore_nulls: bool

    def create(self, count: int) -> pa.RecordBatch:
        return self._states(pa.nulls(count, self.output), np.zeros(count, np.bool_))

    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        column = columns[0]
        mask = mask_of(column) if self.ignore_nulls else None
        rows = np.arange(len(column)) if mask is None else np.flatnonzero(mask)
        if not self.last:
            rows = rows[::-1]
        chosen = np.full(states.num_rows, -1)
        chosen[groups[rows]] = rows  # of several rows of one group, the one assigned last stays
        seen = chosen >= 0
        return self.merge(states, self._states(column.take(pa.array(chosen, mask=~seen)), seen))

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        preferred = self._seen(right) if self.last else self._seen(left)
        holder, other = (right, left) if self.last else (left, right)
        return self.states(
            *(
                pc.if_else(preferred, one, another)
                for one, another in zip(holder.columns, other.columns, strict=True)
            )
        )

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return states.column(0)

    def _seen(self, states: pa.RecordBatch) -> pa.Array:
        return states.column(0).is_valid() if self.ignore_nulls else states.column(1)

    def _states(self, values: pa.Array, seen: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        if self.ignore_nulls:
            return self.states(values)
        return self.states(values, column_of(seen, None, pa.bool_()))
