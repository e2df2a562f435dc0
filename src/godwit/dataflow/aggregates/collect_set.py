"""The different values of a key, up to a bound.

A key's state is its values in order of first arrival, packed
(`godwit.dataflow.aggregates.packing`).  Keeping the *first* values makes the bound mergeable: the
first n different values of two parts, one after the other, need only the first n of each part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.dataflow.aggregates.aggregate import BoundAggregate, BuiltIn
from godwit.dataflow.aggregates.ordering import (
    can_be_held,
    first_of_each,
    order_by,
    rows_by_group,
)
from godwit.dataflow.aggregates.packing import PackedColumn, pack, unpack, unpack_rows
from godwit.dataflow.arrays import mask_of
from godwit.dataflow.hashing import canonical_floats

__all__ = ["bind_collect_set"]

IntArray = npt.NDArray[np.int64]


def bind_collect_set(column: pa.Field, *, limit: int) -> BoundAggregate | None:
    """Collect the first different values of a column."""
    if not can_be_held(column.type):
        return None
    return _CollectSet(
        limit=limit,
        layout=(PackedColumn(dtype=column.type, nullable=False),),
        state=pa.schema({"values": pa.large_binary()}),
        output=pa.list_(column.type),
        identity={
            "aggregate": "collect_set",
            "column": column.name,
            "type": str(column.type),
            "limit": limit,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CollectSet(BuiltIn):
    limit: int
    layout: tuple[PackedColumn, ...]

    def create(self, count: int) -> pa.RecordBatch:
        nothing = [pa.nulls(0, self.layout[0].dtype)]
        return self.states(pack(np.zeros(count + 1, np.int64), nothing, self.layout))

    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        column, mask = columns[0], mask_of(columns[0])
        if mask is not None:
            rows = np.flatnonzero(mask)
            groups, column = groups[rows], column.take(pa.array(rows))
        return self._distinct(states.num_rows, [self._held(states), (groups, column)])

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._distinct(left.num_rows, [self._held(left), self._held(right)])

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        starts, (values,) = unpack(states.column(0), self.layout)
        offsets = pa.array(starts.astype(np.int32))
        return pa.ListArray.from_arrays(offsets, values, type=self.output)

    def _held(self, states: pa.RecordBatch) -> tuple[IntArray, pa.Array]:
        groups, (values,) = unpack_rows(states.column(0), self.layout)
        return groups, values

    def _distinct(self, count: int, parts: list[tuple[IntArray, pa.Array]]) -> pa.RecordBatch:
        groups = np.concatenate([part[0] for part in parts])
        values = pa.concat_arrays([part[1] for part in parts])
        if pa.types.is_floating(values.type):
            values = canonical_floats(values)
        codes = values.dictionary_encode().indices.to_numpy().astype(np.int64)
        by_value = order_by(groups, codes)
        same = np.zeros(len(by_value), np.bool_)
        ordered_groups, ordered_codes = groups[by_value], codes[by_value]
        same[1:] = (ordered_groups[1:] == ordered_groups[:-1]) & (
            ordered_codes[1:] == ordered_codes[:-1]
        )
        rows = np.sort(by_value[~same])  # the first of each, back in order of arrival
        order, starts = first_of_each(*rows_by_group(groups[rows], count), self.limit)
        return self.states(pack(starts, [values.take(pa.array(rows[order]))], self.layout))
