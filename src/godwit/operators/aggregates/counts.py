"""Counting rows and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.operators.aggregates.aggregate import BoundAggregate, BuiltIn

__all__ = ["bind_count"]


def bind_count(column: pa.Field | None = None) -> BoundAggregate:
    """Count rows, or, of a column of any type, the values that are not null."""
    return _Count(
        state=pa.schema({"count": pa.int64()}),
        output=pa.int64(),
        identity={"aggregate": "count", "column": None if column is None else column.name},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count(BuiltIn):
    commutative: ClassVar[bool] = True

    def create(self, count: int) -> pa.RecordBatch:
        return self._states(np.zeros(count, np.int64))

    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        mask = mask_of(columns[0]) if columns else None
        seen = groups if mask is None else groups[mask]
        counts = np.bincount(seen, minlength=states.num_rows)
        return self._states(values_of(states.column(0)) + counts)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._states(values_of(left.column(0)) + values_of(right.column(0)))

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return states.column(0)

    def _states(self, counts: npt.NDArray[np.int64]) -> pa.RecordBatch:
        return self.states(column_of(counts, None, pa.int64()))
