"""Sums and means: sums are exact for integers and decimals, means for decimals; else in doubles.

A sum's state is the sum itself, null as long as no value was seen; a mean's is a sum and a count.
As in Spark, the sum behind a mean of integers is a double, so it cannot overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import BoolArray, column_of, mask_of, values_of
from godwit.operators.aggregates.aggregate import BoundAggregate, BuiltIn
from godwit.operators.aggregates.decimals import (
    decimal_of,
    integers_of,
    limbs_of,
    limbs_of_integers,
    outside,
    settle,
)

__all__ = ["SumOverflowError", "bind_mean", "bind_sum"]

_MAX_DIGITS = 38


class SumOverflowError(ArithmeticError):
    """A sum does not fit its type.

    Attributes
    ----------
    group
        Position of the first state that overflowed.
    dtype
        The type that is too small.
    """

    def __init__(self, group: int, dtype: pa.DataType) -> None:
        super().__init__(f"the sum does not fit {dtype}")
        self.group = group
        self.dtype = dtype


def bind_sum(column: pa.Field) -> BoundAggregate | None:
    """Sum a column of numbers."""
    kind = _kind(column.type)
    if kind is None:
        return None
    return _Sum(
        kind=kind,
        state=pa.schema({"sum": kind.dtype}),
        output=kind.dtype,
        identity={"aggregate": "sum", "column": column.name, "type": str(kind.dtype)},
    )


def bind_mean(column: pa.Field) -> BoundAggregate | None:
    """Average a column of numbers."""
    dtype = column.type
    if pa.types.is_decimal128(dtype):
        kind: _Kind = _Decimals(dtype=pa.decimal128(_MAX_DIGITS, dtype.scale))
        scale = min(_MAX_DIGITS, dtype.scale + 4)
        output = pa.decimal128(min(_MAX_DIGITS, dtype.precision + 4), scale)
    elif pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        kind, output = _Floats(dtype=pa.float64()), pa.float64()
    else:
        return None
    return _Mean(
        kind=kind,
        state=pa.schema({"sum": kind.dtype, "count": pa.int64()}),
        output=output,
        identity={"aggregate": "mean", "column": column.name, "type": str(kind.dtype)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """How one kind of number is summed."""

    dtype: pa.DataType

    def add(
        self,
        sums: pa.Array,
        groups: npt.NDArray[np.int64],
        column: pa.Array,
    ) -> pa.Array:
        """Add the values of `column` to the `sums` of their groups."""
        mask = mask_of(column)
        seen = np.zeros(len(sums), np.bool_)
        if mask is None:
            seen[groups] = True
        else:
            seen[groups[mask]] = True
        return self._join(sums, self._sum(sums, groups, column), seen)

    def merge(self, left: pa.Array, right: pa.Array) -> pa.Array:
        """Add two columns of sums, row by row."""
        seen = mask_of(right)
        rows = np.arange(len(left))
        return self._join(
            left,
            self._sum(left, rows, right),
            np.ones(len(left), np.bool_) if seen is None else seen,
        )

    def _join(self, sums: pa.Array, values: Any, seen: BoolArray) -> pa.Array:
        before = mask_of(sums)
        mask = None if before is None else before | seen
        return self._column(values, None if mask is None or mask.all() else mask)

    def _sum(self, sums: pa.Array, groups: npt.NDArray[np.int64], column: pa.Array) -> Any:
        raise NotImplementedError

    def _column(self, values: Any, mask: BoolArray | None) -> pa.Array:
        return column_of(values, mask, self.dtype)


class _Floats(_Kind):
    __slots__ = ()

    def _sum(
        self, sums: pa.Array, groups: npt.NDArray[np.int64], column: pa.Array
    ) -> npt.NDArray[np.float64]:
        values = _zero_where_null(column).astype(np.float64, copy=False)
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, as it should be
            return _zero_where_null(sums) + np.bincount(groups, values, len(sums))


class _Integers(_Kind):
    __slots__ = ()

    def _sum(
        self, sums: pa.Array, groups: npt.NDArray[np.int64], column: pa.Array
    ) -> npt.NDArray[np.int64]:
        values = _zero_where_null(column).astype(np.int64, copy=False)
        total = _zero_where_null(sums).copy()
        if len(values) == 0:
            return total
        # Cheap and almost always enough: not even the largest values, all in one group, overflow.
        if _reach(values) * len(values) + _reach(total) < 1 << 63:
            np.add.at(total, groups, values)
            return total
        limbs = limbs_of_integers(total)
        for limb, added in zip(limbs, limbs_of_integers(values), strict=True):
            np.add.at(limb, groups, added)
        settled = settle(limbs)
        _raise_if_any(outside(settled, -(1 << 63), 1 << 63), self.dtype)
        joined: npt.NDArray[np.int64] = settled[0] | (settled[1] << 32)
        return joined


class _Decimals(_Kind):
    __slots__ = ()

    def _sum(
        self, sums: pa.Array, groups: npt.NDArray[np.int64], column: pa.Array
    ) -> npt.NDArray[np.int64]:
        limbs = limbs_of(sums)
        for limb, added in zip(limbs, limbs_of(column), strict=True):
            np.add.at(limb, groups, added)
        settled = settle(limbs)
        bound = 10**self.dtype.precision
        _raise_if_any(outside(settled, 1 - bound, bound), self.dtype)
        return settled

    def _column(self, values: npt.NDArray[np.int64], mask: BoolArray | None) -> pa.Array:
        return decimal_of(values, mask, self.dtype)


def _kind(dtype: pa.DataType) -> _Kind | None:
    if pa.types.is_floating(dtype):
        return _Floats(dtype=pa.float64())
    if pa.types.is_integer(dtype) and dtype != pa.uint64():
        return _Integers(dtype=pa.int64())
    if pa.types.is_decimal128(dtype):
        digits = min(_MAX_DIGITS, dtype.precision + 10)
        return _Decimals(dtype=pa.decimal128(digits, dtype.scale))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum(BuiltIn):
    commutative: ClassVar[bool] = True
    kind: _Kind

    def create(self, count: int) -> pa.RecordBatch:
        return self.states(pa.nulls(count, self.kind.dtype))

    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        return self.states(self.kind.add(states.column(0), groups, columns[0]))

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self.states(self.kind.merge(left.column(0), right.column(0)))

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return states.column(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mean(BuiltIn):
    commutative: ClassVar[bool] = True
    kind: _Kind

    def create(self, count: int) -> pa.RecordBatch:
        counts = column_of(np.zeros(count, np.int64), None, pa.int64())
        return self.states(pa.nulls(count, self.kind.dtype), counts)

    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        mask = mask_of(columns[0])
        seen = groups if mask is None else groups[mask]
        counts = np.bincount(seen, minlength=states.num_rows)
        return self._states(
            self.kind.add(states.column(0), groups, columns[0]),
            values_of(states.column(1)) + counts,
        )

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._states(
            self.kind.merge(left.column(0), right.column(0)),
            values_of(left.column(1)) + values_of(right.column(1)),
        )

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        sums, counts = states.column(0), values_of(states.column(1))
        if pa.types.is_decimal128(self.output):
            return self._decimal_means(sums, counts)
        some = counts > 0
        means = _zero_where_null(sums) / np.where(some, counts, 1)
        return column_of(means, None if some.all() else some, self.output)

    def _decimal_means(self, sums: pa.Array, counts: npt.NDArray[np.int64]) -> pa.Array:
        # 128 bits divided by 64 in Python: once per key, so it never is what an epoch waits for.
        factor = 10 ** (self.output.scale - sums.type.scale)
        bound = 10**self.output.precision
        means = bytearray()
        for group, (total, count) in enumerate(
            zip(integers_of(sums), counts.tolist(), strict=True)
        ):
            mean = _divided(total * factor, count) if count else 0
            if abs(mean) >= bound:
                raise SumOverflowError(group, self.output)
            means += mean.to_bytes(16, "little", signed=True)
        some = counts > 0
        bitmap = None if some.all() else pa.py_buffer(np.packbits(some, bitorder="little"))
        return pa.Array.from_buffers(self.output, len(counts), [bitmap, pa.py_buffer(means)])

    def _states(self, sums: pa.Array, counts: npt.NDArray[np.int64]) -> pa.RecordBatch:
        return self.states(sums, column_of(counts, None, pa.int64()))


def _divided(numerator: int, denominator: int) -> int:
    """Divide and round half away from zero, as Spark rounds decimals."""
    quotient = (2 * abs(numerator) + denominator) // (2 * denominator)
    return quotient if numerator >= 0 else -quotient


def _zero_where_null(column: pa.Array) -> npt.NDArray[Any]:
    mask = mask_of(column)
    values = values_of(column)
    return values if mask is None else np.where(mask, values, values.dtype.type(0))


def _reach(values: npt.NDArray[np.int64]) -> int:
    """Largest absolute value."""
    return max(int(values.max()), -int(values.min())) if len(values) else 0


def _raise_if_any(overflowed: BoolArray, dtype: pa.DataType) -> None:
    if overflowed.any():
        raise SumOverflowError(int(np.flatnonzero(overflowed)[0]), dtype)
