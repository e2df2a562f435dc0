"""The values of a key, all or the different ones, up to a bound; and the number of these.

A key's state is its values in order of (first) arrival, packed
(`godwit.operators.aggregates.packing`).  Keeping the *first* values makes the bound mergeable: the
first n values of two parts, one after the other, need only the first n of each part.  Where only
their number counts, there is no bound, and they lie in descending order, so that a state depends on
nothing but the set of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import mask_of
from godwit.columns.hashing import canonical_floats
from godwit.operators.aggregates.aggregate import BoundAggregate, BuiltIn
from godwit.operators.aggregates.ordering import (
    can_be_held,
    descending_ranks,
    first_of_each,
    order_by,
    rows_by_group,
    starts_of,
)
from godwit.operators.aggregates.packing import PackedColumn, pack, unpack, unpack_rows

__all__ = ["bind_collect_list", "bind_collect_set", "bind_count_distinct"]

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


def bind_collect_list(column: pa.Field, *, limit: int) -> BoundAggregate | None:
    """Collect the first values of a column."""
    if not can_be_held(column.type):
        return None
    return _CollectList(
        limit=limit,
        layout=(PackedColumn(dtype=column.type, nullable=False),),
        state=pa.schema({"values": pa.large_binary()}),
        output=pa.list_(column.type),
        identity={
            "aggregate": "collect_list",
            "column": column.name,
            "type": str(column.type),
            "limit": limit,
        },
    )


def bind_count_distinct(column: pa.Field) -> BoundAggregate | None:
    """Count the different values of a column."""
    if not can_be_held(column.type):
        return None
    return _CountDistinct(
        layout=(PackedColumn(dtype=column.type, nullable=False),),
        state=pa.schema({"values": pa.large_binary()}),
        output=pa.int64(),
        identity={
            "aggregate": "count_distinct",
            "column": column.name,
            "type": str(column.type),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values(BuiltIn):
    """State: values, packed; subclasses say which of them stay."""

    canonical: ClassVar[bool] = True
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
        return self._joined(states.num_rows, [self._held(states), (groups, column)])

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._joined(left.num_rows, [self._held(left), self._held(right)])

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        starts, (values,) = unpack(states.column(0), self.layout)
        offsets = pa.array(starts.astype(np.int32))
        return pa.ListArray.from_arrays(offsets, values, type=self.output)

    def _held(self, states: pa.RecordBatch) -> tuple[IntArray, pa.Array]:
        groups, (values,) = unpack_rows(states.column(0), self.layout)
        return groups, values

    def _joined(self, count: int, parts: list[tuple[IntArray, pa.Array]]) -> pa.RecordBatch:
        groups = np.concatenate([part[0] for part in parts])
        values = pa.concat_arrays([part[1] for part in parts])
        if pa.types.is_floating(values.type) and self.canonical:
            values = canonical_floats(values)  # equal ones are one value
        rows, starts = self._stay(count, groups, values)
        return self.states(pack(starts, [values.take(pa.array(rows))], self.layout))

    def _stay(self, count: int, groups: IntArray, values: pa.Array) -> tuple[IntArray, IntArray]:
        """Rows that stay, ordered by group, and where each group starts."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class _CollectList(_Values):
    canonical: ClassVar[bool] = False
    limit: int

    def _stay(self, count: int, groups: IntArray, values: pa.Array) -> tuple[IntArray, IntArray]:  # noqa: ARG002
        return first_of_each(*rows_by_group(groups, count), self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CollectSet(_Values):
    limit: int

    def _stay(self, count: int, groups: IntArray, values: pa.Array) -> tuple[IntArray, IntArray]:
        codes = values.dictionary_encode().indices.to_numpy().astype(np.int64)
        # The first of each, back in order of arrival.
        rows = np.sort(_first_of_equal(groups, codes))
        order, starts = first_of_each(*rows_by_group(groups[rows], count), self.limit)
        return rows[order], starts


@dataclass(frozen=True, slots=True, kw_only=True)
class _CountDistinct(_Values):
    commutative: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        starts, _ = unpack(states.column(0), self.layout)
        return pa.array(np.diff(starts), pa.int64())

    def _stay(self, count: int, groups: IntArray, values: pa.Array) -> tuple[IntArray, IntArray]:
        rows = _first_of_equal(groups, descending_ranks(values))
        return rows, starts_of(groups[rows], count)


def _first_of_equal(groups: IntArray, codes: IntArray) -> IntArray:
    """First row of every group and code, ordered by both."""
    order = order_by(groups, codes)
    groups, codes = groups[order], codes[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (groups[1:] != groups[:-1]) | (codes[1:] != codes[:-1])
    return order[new]
