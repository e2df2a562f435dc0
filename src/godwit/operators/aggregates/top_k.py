"""The k largest rows of a key.

A key's state is its k rows so far, packed (`godwit.operators.aggregates.packing`), largest first.
Old rows come before new ones in every comparison, so that of equal rows the earlier one stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import mask_of
from godwit.operators.aggregates.aggregate import BoundAggregate, BuiltIn
from godwit.operators.aggregates.ordering import (
    can_be_held,
    descending_ranks,
    first_of_each,
    order_by,
    starts_of,
)
from godwit.operators.aggregates.packing import PackedColumn, pack, unpack, unpack_rows

__all__ = ["bind_top_k"]

IntArray = npt.NDArray[np.int64]


def bind_top_k(column: pa.Field, by: pa.Field | None = None, *, k: int) -> BoundAggregate | None:
    """Collect the k rows with the largest values of `by`, or of the column itself."""
    fields = [column] if by is None else [column, by]
    if not all(can_be_held(f.type) for f in fields):
        return None
    item = column.type if by is None else pa.struct(fields)
    return _TopK(
        k=k,
        layout=tuple(
            PackedColumn(dtype=f.type, nullable=i < len(fields) - 1) for i, f in enumerate(fields)
        ),
        state=pa.schema({"rows": pa.large_binary()}),
        output=pa.list_(item),
        identity={
            "aggregate": "top_k",
            "columns": [f.name for f in fields],
            "types": [str(f.type) for f in fields],
            "k": k,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopK(BuiltIn):
    """The last column of ``layout`` decides the order."""

    k: int
    layout: tuple[PackedColumn, ...]

    def create(self, count: int) -> pa.RecordBatch:
        nothing = [pa.nulls(0, column.dtype) for column in self.layout]
        return self.states(pack(np.zeros(count + 1, np.int64), nothing, self.layout))

    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        rows = list(columns)
        mask = mask_of(columns[-1])
        if mask is not None:
            counted = np.flatnonzero(mask)
            groups, rows = groups[counted], [column.take(pa.array(counted)) for column in columns]
        held = unpack_rows(states.column(0), self.layout)
        return self._largest(states.num_rows, [held, (groups, rows)])

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        parts = [unpack_rows(states.column(0), self.layout) for states in (left, right)]
        return self._largest(left.num_rows, parts)

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        starts, columns = unpack(states.column(0), self.layout)
        values = columns[0]
        if len(columns) > 1:
            item = self.output.value_type
            values = pa.StructArray.from_arrays(columns, fields=list(item))
        offsets = pa.array(starts.astype(np.int32))
        return pa.ListArray.from_arrays(offsets, values, type=self.output)

    def _largest(self, count: int, parts: list[tuple[IntArray, list[pa.Array]]]) -> pa.RecordBatch:
        """Keep the k largest of the rows of every group; earlier parts arrived earlier."""
        groups = np.concatenate([part[0] for part in parts])
        columns = [
            pa.concat_arrays(pieces) for pieces in zip(*(part[1] for part in parts), strict=True)
        ]
        order = order_by(groups, descending_ranks(columns[-1]))
        kept, starts = first_of_each(order, starts_of(groups, count), self.k)
        taken = [column.take(pa.array(kept)) for column in columns]
        return self.states(pack(starts, taken, self.layout))
