"""Smallest and largest values, of every type that has an order.

Primitive types go through NumPy's scatter operations.  Strings, binary and decimals are played off
in pairs, row against row of the same key, in rounds: log2 of the largest group, about two
comparisons for every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import BoolArray, column_of, mask_of, numpy_type, values_of
from godwit.operators.aggregates.aggregate import BoundAggregate, BuiltIn
from godwit.operators.aggregates.ordering import can_be_held, pairing, rows_by_group

__all__ = ["bind_extreme"]


def bind_extreme(column: pa.Field, *, largest: bool) -> BoundAggregate | None:
    """Smallest or largest value of a column."""
    dtype = column.type
    if not can_be_held(dtype):
        return None
    identity = {
        "aggregate": "max" if largest else "min",
        "column": column.name,
        "type": str(dtype),
    }
    make = _PrimitiveExtreme if numpy_type(dtype) is not None else _ComparedExtreme
    return make(largest=largest, state=pa.schema({"value": dtype}), output=dtype, identity=identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extreme(BuiltIn):
    commutative: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True
    largest: bool

    def create(self, count: int) -> pa.RecordBatch:
        return self.states(pa.nulls(count, self.output))

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return states.column(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PrimitiveExtreme(_Extreme):
    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        values, mask = _comparable(columns[0]), mask_of(columns[0])
        if mask is not None:
            groups, values = groups[mask], values[mask]
        extremes, seen = self._identity_where_null(states.column(0))
        with np.errstate(invalid="ignore"):  # NaN is a value here
            self._choose().at(extremes, groups, values)
        seen[groups] = True
        return self._column(extremes, seen)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        extremes, seen = self._identity_where_null(left.column(0))
        others, others_seen = self._identity_where_null(right.column(0))
        with np.errstate(invalid="ignore"):
            chosen = self._choose()(extremes, others)
        return self._column(chosen, seen | others_seen)

    def _choose(self) -> np.ufunc:
        # NaN is the largest value: maximum() takes it, fmin() takes anything rather than it.
        return np.maximum if self.largest else np.fmin

    def _identity_where_null(self, column: pa.Array) -> tuple[npt.NDArray[Any], BoolArray]:
        """Return values that may be written to, and which of them there are."""
        values, mask = _comparable(column).copy(), mask_of(column)
        if mask is None:
            return values, np.ones(len(column), np.bool_)
        if values.dtype.kind == "f":
            values[~mask] = -np.inf if self.largest else np.nan
        else:
            limits = np.iinfo(values.dtype)
            values[~mask] = limits.min if self.largest else limits.max
        return values, mask.copy()

    def _column(self, values: npt.NDArray[Any], seen: BoolArray) -> pa.RecordBatch:
        return self.states(column_of(values, None if seen.all() else seen, self.output))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComparedExtreme(_Extreme):
    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        column, mask = columns[0], mask_of(columns[0])
        rows = np.arange(len(column)) if mask is None else np.flatnonzero(mask)
        order, starts = rows_by_group(groups[rows], states.num_rows)
        rows = rows[order]
        for left, right, paired in pairing(starts):
            winners = rows[left]
            challengers = rows[right]
            better = self._beats(
                column.take(pa.array(challengers)), column.take(pa.array(winners[paired]))
            )
            winners[paired] = np.where(values_of(better), challengers, winners[paired])
            rows = winners
        best = np.full(states.num_rows, -1)
        best[groups[rows]] = rows
        found = column.take(pa.array(best, mask=best < 0))
        return self._better(states.column(0), found)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._better(left.column(0), right.column(0))

    def _beats(self, challengers: pa.Array, holders: pa.Array) -> pa.Array:
        return (pc.greater if self.largest else pc.less)(challengers, holders)

    def _better(self, holders: pa.Array, challengers: pa.Array) -> pa.RecordBatch:
        wins = self._beats(challengers, holders).fill_null(False)
        wins = pc.or_(wins, pc.and_(holders.is_null(), challengers.is_valid()))
        return self.states(pc.if_else(wins, challengers, holders))


def _comparable(column: pa.Array) -> npt.NDArray[Any]:
    """Values under an order that NumPy has: booleans as bytes."""
    values = values_of(column)
    return values.view(np.uint8) if values.dtype == np.bool_ else values
