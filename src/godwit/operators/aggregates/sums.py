"""Counts, sums and means: exact for integers and decimals (but means of integers), else in doubles.

A sum's state is the sum itself, null as long as no value was seen; a mean's is a sum and a count.
As in Spark, the sum behind a mean of integers is a double, so it cannot overflow.

Sums of decimals are of 128-bit integers as four *limbs* of 32 bits each, held in int64, so up to
2**31 values add up without a carry; carries are carried once at the end.  A value is
``limbs[0] + limbs[1] * 2**32 + limbs[2] * 2**64 + limbs[3] * 2**96``: the last limb has the sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import BoolArray, bitmap_of, column_of, mask_of, values_of, words_of
from godwit.operators.aggregates.aggregate import BoundAggregate, BuiltIn

IntArray: TypeAlias = npt.NDArray[np.int64]
Limbs: TypeAlias = IntArray
"""Shape ``(4, N)``."""

_MAX_DIGITS = 38
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class SumOverflowError(ArithmeticError):
    """The sum of a group (the first such one) does not fit its type."""

    def __init__(self, group: int, dtype: pa.DataType) -> None:
        super().__init__(f"the sum does not fit {dtype}")
        self.group = group
        self.dtype = dtype


def bind_sum(column: pa.Field) -> BoundAggregate | None:
    """Bind ``sum`` to a column; ``None`` if the column's type is no number."""
    dtype = column.type
    if pa.types.is_floating(dtype):
        total = pa.float64()
    elif pa.types.is_integer(dtype) and dtype != pa.uint64():
        total = pa.int64()
    elif pa.types.is_decimal128(dtype):
        total = pa.decimal128(min(_MAX_DIGITS, dtype.precision + 10), dtype.scale)
    else:
        return None
    return _Sum(
        state=pa.schema({"sum": total}),
        output=total,
        identity={"aggregate": "sum", "column": column.name, "type": str(total)},
    )


def bind_mean(column: pa.Field) -> BoundAggregate | None:
    """Bind ``mean`` to a column; ``None`` if the column's type is no number."""
    dtype = column.type
    if pa.types.is_decimal128(dtype):
        total = pa.decimal128(_MAX_DIGITS, dtype.scale)
        scale = min(_MAX_DIGITS, dtype.scale + 4)
        output = pa.decimal128(min(_MAX_DIGITS, dtype.precision + 4), scale)
    elif pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        total = output = pa.float64()
    else:
        return None
    return _Mean(
        state=pa.schema({"sum": total, "count": pa.int64()}),
        output=output,
        identity={"aggregate": "mean", "column": column.name, "type": str(total)},
    )


def _add_to_sums(sums: pa.Array, groups: IntArray, column: pa.Array) -> pa.Array:
    """Return the sums with the values of `column` added, each to the sum of its group."""
    mask = mask_of(column)
    seen = np.zeros(len(sums), np.bool_)
    seen[groups if mask is None else groups[mask]] = True
    return _sum(sums, groups, column, seen)


def _add_pairwise(left: pa.Array, right: pa.Array) -> pa.Array:
    """Add two columns of sums row by row; null only where both are null."""
    seen = mask_of(right)
    rows = np.arange(len(left))
    return _sum(left, rows, right, np.ones(len(left), np.bool_) if seen is None else seen)


def _sum(sums: pa.Array, groups: IntArray, column: pa.Array, seen: BoolArray) -> pa.Array:
    """Return integer, decimal or float sums with the values of `column` added per group.

    `seen`: mask of the groups with a value in `column`; a null sum of another group stays null.
    """
    before = mask_of(sums)
    mask = None if before is None else before | seen
    mask = None if mask is None or mask.all() else mask
    if pa.types.is_decimal128(sums.type):
        return _decimal_of(_decimal_sums(sums, groups, column), mask, sums.type)
    add = _float_sums if pa.types.is_floating(sums.type) else _integer_sums
    return column_of(add(sums, groups, column), mask, sums.type)


def _float_sums(sums: pa.Array, groups: IntArray, column: pa.Array) -> npt.NDArray[np.float64]:
    """Return float sums with the values of `column` added to those of their groups."""
    values = _zero_where_null(column).astype(np.float64, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, as it should be
        return _zero_where_null(sums) + np.bincount(groups, values, len(sums))


def _integer_sums(sums: pa.Array, groups: IntArray, column: pa.Array) -> IntArray:
    """Return integer sums with values added per group; raise `SumOverflowError` beyond 64 bits."""
    values = _zero_where_null(column).astype(np.int64, copy=False)
    total = _zero_where_null(sums).copy()
    if len(values) == 0:
        return total
    # Cheap and almost always enough: not even the largest values, all in one group, overflow.
    if _largest_absolute(values) * len(values) + _largest_absolute(total) < 1 << 63:
        np.add.at(total, groups, values)
        return total
    limbs, others = (_limbs_of_words(v >> 63, v.view(np.uint64)) for v in (total, values))
    for limb, added in zip(limbs, others, strict=True):
        np.add.at(limb, groups, added)
    carried = _propagate_carries(limbs)
    _raise_if_any(_is_outside(carried, -(1 << 63), 1 << 63), sums.type)
    joined: IntArray = carried[0] | (carried[1] << 32)
    return joined


def _decimal_sums(sums: pa.Array, groups: IntArray, column: pa.Array) -> Limbs:
    """Return decimal sums with values added per group, as limbs of 128-bit integers."""
    limbs = _limbs_of(sums)
    for limb, added in zip(limbs, _limbs_of(column), strict=True):
        np.add.at(limb, groups, added)
    carried = _propagate_carries(limbs)
    bound = 10**sums.type.precision
    _raise_if_any(_is_outside(carried, 1 - bound, bound), sums.type)
    return carried


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum(BuiltIn):
    """``sum``; the state is the sum, null without values."""

    commutative = True

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        return self.states(_add_to_sums(states.column(0), groups, columns[0]))

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self.states(_add_pairwise(left.column(0), right.column(0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mean(BuiltIn):
    """``mean``; the state is the sum and the count of values."""

    commutative = True

    def create(self, count: int) -> pa.RecordBatch:
        counts = column_of(np.zeros(count, np.int64), None, pa.int64())
        return self.states(pa.nulls(count, self.state.field(0).type), counts)

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Add rows' values to the sums and counts of their groups."""
        mask = mask_of(columns[0])
        seen = groups if mask is None else groups[mask]
        counts = np.bincount(seen, minlength=states.num_rows)
        return self._to_states(
            _add_to_sums(states.column(0), groups, columns[0]),
            values_of(states.column(1)) + counts,
        )

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._to_states(
            _add_pairwise(left.column(0), right.column(0)),
            values_of(left.column(1)) + values_of(right.column(1)),
        )

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return each state's sum divided by its count; null without values."""
        sums, counts = states.column(0), values_of(states.column(1))
        if pa.types.is_decimal128(self.output):
            return self._decimal_means(sums, counts)
        some = counts > 0
        means = _zero_where_null(sums) / np.where(some, counts, 1)
        return column_of(means, None if some.all() else some, self.output)

    def _decimal_means(self, sums: pa.Array, counts: IntArray) -> pa.Array:
        """Divide decimal sums by counts, rounding half up as Spark does; raise if one overflows."""
        # 128 bits divided by 64 in Python: once per key, so it never is what an epoch waits for.
        factor = 10 ** (self.output.scale - sums.type.scale)
        bound = 10**self.output.precision
        means = bytearray()
        for group, (total, count) in enumerate(
            zip(_integers_of(sums), counts.tolist(), strict=True)
        ):
            mean = _divided(total * factor, count) if count else 0
            if abs(mean) >= bound:
                raise SumOverflowError(group, self.output)
            means += mean.to_bytes(16, "little", signed=True)
        some = counts > 0
        bitmap = bitmap_of(None if some.all() else some)
        return pa.Array.from_buffers(self.output, len(counts), [bitmap, pa.py_buffer(means)])

    def _to_states(self, sums: pa.Array, counts: IntArray) -> pa.RecordBatch:
        """Build states from sums and counts."""
        return self.states(sums, column_of(counts, None, pa.int64()))


def _divided(numerator: int, denominator: int) -> int:
    """Return the quotient rounded half away from zero, as Spark rounds decimals."""
    quotient = (2 * abs(numerator) + denominator) // (2 * denominator)
    return quotient if numerator >= 0 else -quotient


def _zero_where_null(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a column, 0 for nulls."""
    mask = mask_of(column)
    values = values_of(column)
    return values if mask is None else np.where(mask, values, values.dtype.type(0))


def _largest_absolute(values: IntArray) -> int:
    """Return the largest absolute value; 0 without any."""
    return max(int(values.max()), -int(values.min())) if len(values) else 0


def _raise_if_any(overflowed: BoolArray, dtype: pa.DataType) -> None:
    """Raise `SumOverflowError` if the sum of any group overflowed; the error names the first."""
    if overflowed.any():
        raise SumOverflowError(int(np.flatnonzero(overflowed)[0]), dtype)


def bind_count(column: pa.Field | None = None) -> BoundAggregate:
    """Bind ``count``: of rows, or of the non-null values of a column of any type."""
    return _Count(
        state=pa.schema({"count": pa.int64()}),
        output=pa.int64(),
        identity={"aggregate": "count", "column": None if column is None else column.name},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count(BuiltIn):
    """``count``; the state is the number of rows, or of non-null values of a column."""

    commutative = True

    def create(self, count: int) -> pa.RecordBatch:
        return self._to_states(np.zeros(count, np.int64))

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        mask = mask_of(columns[0]) if columns else None
        seen = groups if mask is None else groups[mask]
        counts = np.bincount(seen, minlength=states.num_rows)
        return self._to_states(values_of(states.column(0)) + counts)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._to_states(values_of(left.column(0)) + values_of(right.column(0)))

    def _to_states(self, counts: IntArray) -> pa.RecordBatch:
        """Build states from counts."""
        return self.states(column_of(counts, None, pa.int64()))


def _limbs_of(column: pa.Array) -> Limbs:
    """Split the values of a decimal column into 32-bit limbs; zero where null."""
    limbs = _limbs_of_words(*words_of(column))
    mask = mask_of(column)
    if mask is not None:
        limbs *= mask
    return limbs


def _limbs_of_words(high: IntArray, low: npt.NDArray[np.uint64]) -> Limbs:
    """Split 128-bit integers, given as high and low 64-bit words, into 32-bit limbs."""
    halves = ((low & _LOW).view(np.int64), (low >> _HALF).view(np.int64))
    return np.stack([*halves, high & 0xFFFFFFFF, high >> 32])


def _propagate_carries(limbs: Limbs) -> Limbs:
    """Return limbs of at most 32 bits, with carries added to the next limb.

    The last limb shows if the value overflows 128 bits.
    """
    carried = limbs.copy()
    for i in range(3):
        carried[i + 1] += carried[i] >> 32
        carried[i] &= 0xFFFFFFFF
    return carried


def _is_outside(carried: Limbs, low: int, high: int) -> BoolArray:
    """Return a mask of the values, given as limbs, that are not in ``[low, high)``."""
    return _is_at_least(carried, high) | ~_is_at_least(carried, low)


def _decimal_of(carried: Limbs, mask: BoolArray | None, dtype: pa.DataType) -> pa.Array:
    """Build a decimal column from limbs of 128-bit integers; `mask`: false where null."""
    words = np.empty((carried.shape[1], 2), np.uint64)
    unsigned = carried.view(np.uint64)
    words[:, 0] = unsigned[0] | (unsigned[1] << _HALF)
    words[:, 1] = unsigned[2] | (unsigned[3] << _HALF)
    return pa.Array.from_buffers(dtype, len(words), [bitmap_of(mask), pa.py_buffer(words)])


def _integers_of(column: pa.Array) -> list[int]:
    """Return the unscaled values of a decimal column as Python integers; arbitrary where null."""
    high, low = words_of(column)
    return [(h << 64) + w for h, w in zip(high.tolist(), low.tolist(), strict=True)]


def _is_at_least(carried: Limbs, bound: int) -> BoolArray:
    """Return a mask of the values, given as limbs, that are at least `bound`."""
    result = np.ones(carried.shape[1], np.bool_)
    for i in range(4):  # from the lowest limb: a higher one decides over all below it
        limb = (bound >> (32 * i)) & 0xFFFFFFFF if i < 3 else bound >> 96
        result = (carried[i] > limb) | ((carried[i] == limb) & result)
    return result
