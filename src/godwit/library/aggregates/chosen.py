"""Aggregates that keep a value of one row: smallest, largest, first, last, or by another column.

Primitive values go through NumPy's scatter operations.  Strings, binary and decimals are played off
in pairs, row against row of the same key, in rounds: log2 of the largest group, about two
comparisons for every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import BoolArray, column_of, mask_of, numpy_type, values_of
from godwit.operators.aggregate import BoundAggregate, BuiltIn
from godwit.operators.ordering import (
    descending_ranks,
    first_of_each,
    order_by,
    pairing,
    rows_by_group,
    starts_of,
)
from godwit.store.columns import can_be_state

IntArray = npt.NDArray[np.int64]


def bind_extreme(column: pa.Field, *, largest: bool) -> BoundAggregate | None:
    """Bind ``max`` (`largest`) or ``min`` to a column; ``None`` if it cannot take its type."""
    dtype = column.type
    if not can_be_state(dtype):
        return None
    identity = {
        "aggregate": "max" if largest else "min",
        "column": column.name,
        "type": str(dtype),
    }
    aggregate_class = _PrimitiveExtreme if numpy_type(dtype) is not None else _ComparedExtreme
    return aggregate_class(
        largest=largest, state=pa.schema({"value": dtype}), output=dtype, identity=identity
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extreme(BuiltIn):
    """Base of ``max`` (`largest`) and ``min``; the state is the value, null before the first."""

    commutative = True
    idempotent = True
    largest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _PrimitiveExtreme(_Extreme):
    """``max`` or ``min`` of values that NumPy can compare."""

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        values, mask = _orderable_array(columns[0]), mask_of(columns[0])
        if mask is not None:
            groups, values = groups[mask], values[mask]
        extremes, seen = self._identity_where_null(states.column(0))
        first = extremes.copy() if extremes.dtype.kind == "f" else None
        with np.errstate(invalid="ignore"):  # NaN is a value here
            self._extreme_of_two().at(extremes, groups, values)
        if first is not None and not extremes.all():
            rows = np.flatnonzero(values == 0)[::-1]  # the last that is written is the first row
            zeros = np.zeros_like(extremes)
            zeros[groups[rows]] = values[rows]
            _keep_sign(extremes, np.where(first == 0, first, zeros))
        seen[groups] = True
        return self._to_state(extremes, seen)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        extremes, seen = self._identity_where_null(left.column(0))
        other_extremes, others_seen = self._identity_where_null(right.column(0))
        with np.errstate(invalid="ignore"):
            merged = self._extreme_of_two()(extremes, other_extremes)
        if merged.dtype.kind == "f":
            _keep_sign(merged, np.where(extremes == 0, extremes, other_extremes))
        return self._to_state(merged, seen | others_seen)

    def _extreme_of_two(self) -> np.ufunc:
        """Return the NumPy function for the larger or the smaller of two values."""
        # NaN is the largest value: maximum() takes it, fmin() takes anything rather than it.
        return np.maximum if self.largest else np.fmin

    def _identity_where_null(self, column: pa.Array) -> tuple[npt.NDArray[Any], BoolArray]:
        """Return a copy of the values with nulls replaced, and a mask of the other values.

        Nulls become the identity of the extreme, such as the smallest integer for a maximum.
        """
        values, mask = _orderable_array(column).copy(), mask_of(column)
        if mask is None:
            return values, np.ones(len(column), np.bool_)
        if values.dtype.kind == "f":
            values[~mask] = -np.inf if self.largest else np.nan
        else:
            limits = np.iinfo(values.dtype)
            values[~mask] = limits.min if self.largest else limits.max
        return values, mask.copy()

    def _to_state(self, values: npt.NDArray[Any], seen: BoolArray) -> pa.RecordBatch:
        """Build states from values, null where `seen` is false."""
        return self.states(column_of(values, None if seen.all() else seen, self.output))


def _keep_sign(extremes: npt.NDArray[Any], first: npt.NDArray[Any]) -> None:
    """Give extremes that are zero the sign of the first zero, which NumPy leaves to the machine."""
    np.copyto(extremes, first, where=extremes == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComparedExtreme(_Extreme):
    """``max`` or ``min`` of values that only Arrow can compare, such as text."""

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Return the states with each group's rows included, found by comparing pairs in rounds."""
        column, mask = columns[0], mask_of(columns[0])
        rows = np.arange(len(column)) if mask is None else np.flatnonzero(mask)
        order, starts = rows_by_group(groups[rows], states.num_rows)
        rows = rows[order]
        for first_rows, challenging, paired in pairing(starts):
            winners = rows[first_rows]
            challengers = rows[challenging]
            is_better = self._is_more_extreme(
                column.take(pa.array(challengers)), column.take(pa.array(winners[paired]))
            )
            winners[paired] = np.where(values_of(is_better), challengers, winners[paired])
            rows = winners
        best_rows = np.full(states.num_rows, -1)
        best_rows[groups[rows]] = rows
        extremes = column.take(pa.array(best_rows, mask=best_rows < 0))
        return self._better_of_pairs(states.column(0), extremes)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._better_of_pairs(left.column(0), right.column(0))

    def _is_more_extreme(self, challengers: pa.Array, holders: pa.Array) -> pa.Array:
        """Return a mask: where a challenger is larger (for ``min``: smaller) than its holder."""
        return (pc.greater if self.largest else pc.less)(challengers, holders)

    def _better_of_pairs(self, holders: pa.Array, challengers: pa.Array) -> pa.RecordBatch:
        """Return states with the better value of each pair; either value may be null."""
        wins = self._is_more_extreme(challengers, holders).fill_null(False)
        wins = pc.or_(wins, pc.and_(holders.is_null(), challengers.is_valid()))
        return self.states(pc.if_else(wins, challengers, holders))


def _orderable_array(column: pa.Array) -> npt.NDArray[Any]:
    """Return a column's values as a NumPy array that can be ordered; booleans become bytes."""
    values = values_of(column)
    return values.view(np.uint8) if values.dtype == np.bool_ else values


def bind_extreme_by(
    column: pa.Field, by: pa.Field | None = None, *, largest: bool, latest: bool = False
) -> BoundAggregate | None:
    """Bind ``max_by`` (`largest`) or ``min_by``; ``None`` if it cannot take the columns' types.

    `latest`: of rows that are equal in `by`, take the one that arrived last, not first.
    """
    by = column if by is None else by
    if not (can_be_state(column.type) and can_be_state(by.type)):
        return None
    return _ExtremeBy(
        largest=largest,
        latest=latest,
        state=pa.schema({"value": column.type, "by": by.type}),
        output=column.type,
        identity={
            "aggregate": "max_by" if largest else "min_by",
            "columns": [column.name, by.name],
            "types": [str(column.type), str(by.type)],
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExtremeBy(BuiltIn):
    """``max_by`` (`largest`) or ``min_by``; the state is the value and its order."""

    largest: bool
    latest: bool

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Return the states with rows included: the best row of each group by the column `by`."""
        value, by = columns[0], columns[-1]
        mask = mask_of(by)
        rows = np.arange(len(by)) if mask is None else np.flatnonzero(mask)
        rows = rows[::-1] if self.latest else rows
        groups = groups[rows]
        order = order_by(groups, self._ranks_by(by.take(pa.array(rows))))
        best_positions, _ = first_of_each(order, starts_of(groups, states.num_rows), 1)
        best_rows = np.full(states.num_rows, -1)
        best_rows[groups[best_positions]] = rows[best_positions]
        indices = pa.array(best_rows, mask=best_rows < 0)
        return self.merge(states, self.states(value.take(indices), by.take(indices)))

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Return the better row of each pair of states; of equal rows, as `latest` says."""
        count = left.num_rows
        earlier, later = left.column(1), right.column(1)
        ranks = self._ranks_by(pa.concat_arrays([earlier, later]))
        right_wins = ranks[count:] < ranks[:count] + self.latest
        for mask, if_null in ((mask_of(earlier), True), (mask_of(later), False)):
            right_wins = right_wins if mask is None else np.where(mask, right_wins, if_null)
        takes_right = column_of(right_wins, None, pa.bool_())
        pairs = zip(right.columns, left.columns, strict=True)
        return self.states(
            *(pc.if_else(takes_right, from_right, from_left) for from_right, from_left in pairs)
        )

    def _ranks_by(self, by: pa.Array) -> IntArray:
        """Return the rank of each value of the column `by`, 0 for the best; arbitrary for nulls."""
        ranks = descending_ranks(by)
        return ranks if self.largest else ranks.max(initial=0) - ranks


def bind_position(column: pa.Field, *, last: bool, ignore_nulls: bool) -> BoundAggregate | None:
    """Bind ``last``, or ``first``, to a column; ``None`` if it cannot take the column's type.

    `ignore_nulls`: take the last (or first) value that is not null.
    """
    dtype = column.type
    if not can_be_state(dtype):
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
    """Aggregate of the first or last value; its state may have a second column: any row seen."""

    last: bool
    ignore_nulls: bool

    def create(self, count: int) -> pa.RecordBatch:
        return self._to_state(pa.nulls(count, self.output), np.zeros(count, np.bool_))

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Return the states, each with the value of its group's first or last row so far."""
        column = columns[0]
        mask = mask_of(column) if self.ignore_nulls else None
        rows = np.arange(len(column)) if mask is None else np.flatnonzero(mask)
        if not self.last:
            rows = rows[::-1]
        chosen = np.full(states.num_rows, -1)
        chosen[groups[rows]] = rows  # of several rows of one group, the one assigned last stays
        seen = chosen >= 0
        return self.merge(states, self._to_state(column.take(pa.array(chosen, mask=~seen)), seen))

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Return the state of each pair that has the first (or the last) row."""
        has_value = self._has_value(right) if self.last else self._has_value(left)
        preferred, other = (right, left) if self.last else (left, right)
        return self.states(
            *(
                pc.if_else(has_value, preferred_column, other_column)
                for preferred_column, other_column in zip(
                    preferred.columns, other.columns, strict=True
                )
            )
        )

    def _has_value(self, states: pa.RecordBatch) -> pa.Array:
        """Return a mask of the states that have a value."""
        return states.column(0).is_valid() if self.ignore_nulls else states.column(1)

    def _to_state(self, values: pa.Array, seen: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        """Build states from values and a mask of the states that have seen a row."""
        if self.ignore_nulls:
            return self.states(values)
        return self.states(values, column_of(seen, None, pa.bool_()))
