"""Counts, sums and means: exact for integers and decimals (but means of integers), else in doubles.

A sum's state is the sum itself, null as long as no value was seen; a mean's is a sum and a count.
As in Spark, the sum behind a mean of integers is a double, so it cannot overflow.

A sum may leave its type on the way and come back, as the rows of an epoch, a lane or a pane do.  So
sums that can get there have a state column `HIGH`: by how many times 2**63, or 10**38 of decimals,
the sum is greater than the column beside says; null while it fits, which is nearly always.  Whether
a sum fits is asked of the result alone.

Invariant: a state is a function of the sum, so it does not depend on how rows were combined.

Sums that may be too wide are of integers as *limbs* of 32 bits each, held in int64, so up to 2**31
values add up without a carry; carries are carried once at the end.  A value is
``limbs[0] + limbs[1] * 2**32 + ...``: the last limb has the sign, and all bits above its own 32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import BoolArray, bitmap_of, column_of, mask_of, values_of, words_of
from godwit.library.aggregates.signed import signed_floats
from godwit.operators.aggregate import HIGH, BoundAggregate, BuiltIn

if TYPE_CHECKING:
    from godwit.library.aggregates.arithmetic import Overflow

IntArray: TypeAlias = npt.NDArray[np.int64]
Limbs: TypeAlias = IntArray
"""Shape ``(2, N)`` for sums of 64 bits, ``(4, N)`` for sums of decimals."""

_MAX_DIGITS = 38
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_HIGH: Final = pa.field(HIGH, pa.int32())


class SumOverflowError(ArithmeticError):
    """The sum or mean of a group (the first such one) does not fit its type."""

    def __init__(self, group: int, dtype: pa.DataType, what: str = "sum") -> None:
        super().__init__(f"the {what} does not fit {dtype}")
        self.group = group
        self.dtype = dtype
        self.what = what

    @property
    def remedy(self) -> str:
        """Casts of the column after which the result fits."""
        if not pa.types.is_decimal128(self.dtype):
            return "Cast the column in a map: to decimal(28, 0), or to double."
        if self.what == "mean":
            return "Cast the column in a map: to a decimal of at most 34 digits, or to double."
        if self.dtype.scale:
            return (
                "Cast the column in a map: to a decimal with fewer than "
                f"{self.dtype.scale} digits after the point, or to double."
            )
        return "Cast the column in a map to double."


def bind_sum(column: pa.Field, *, overflow: Overflow = "error") -> BoundAggregate | None:
    """Bind ``sum`` to a column; ``None`` unless the column is numeric.

    `overflow`: sums that do not fit fail, are null, or wrap (integers; decimals are null).
    """
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
        state=pa.schema([pa.field("sum", total), *_high_of(dtype)]),
        output=total,
        identity={"aggregate": "sum", "column": column.name, "type": str(total)},
        overflow=overflow,
    )


def bind_mean(column: pa.Field) -> BoundAggregate | None:
    """Bind ``mean`` to a column; ``None`` unless the column is numeric."""
    dtype = column.type
    if pa.types.is_decimal128(dtype):
        total = pa.decimal128(_MAX_DIGITS, dtype.scale)
        scale = min(_MAX_DIGITS, dtype.scale + 4)
        output = pa.decimal128(min(_MAX_DIGITS, dtype.precision + 4), scale)
    elif pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        total = output = pa.float64()
    else:
        return None
    high = _high_of(dtype) if pa.types.is_decimal128(dtype) else []
    return _Mean(
        state=pa.schema([pa.field("sum", total), pa.field("count", pa.int64()), *high]),
        output=output,
        identity={"aggregate": "mean", "column": column.name, "type": str(total)},
    )


def _high_of(dtype: pa.DataType) -> list[pa.Field]:
    """Return the state column for a sum's high part, if sums of the type may need one.

    The sum of narrower values leaves its type after 2**31 rows at the earliest.
    """
    if pa.types.is_decimal128(dtype):
        return [_HIGH] if dtype.precision > _MAX_DIGITS - 10 else []
    return [_HIGH] if dtype == pa.int64() else []


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums of some groups: state columns."""

    low: pa.Array  # the sums, or their lower part; null without values
    high: pa.Array | None  # the part above, as `HIGH`; None for sums that have none

    @classmethod
    def of(cls, states: pa.RecordBatch) -> _Sums:
        """Return the sums in states: their first column, and `HIGH` if they have one."""
        last = states.num_columns - 1
        has_high = states.schema.field(last).name == HIGH
        return cls(states.column(0), states.column(last) if has_high else None)

    @property
    def are_narrow(self) -> bool:
        """True if all sums are in `low`."""
        return self.high is None or self.high.null_count == len(self.high)

    @property
    def columns(self) -> list[pa.Array]:
        """State column of the part above the sums, if there is one."""
        return [] if self.high is None else [self.high]

    def limbs(self) -> Limbs:
        """Return the sums as limbs; zero where null."""
        limbs = _limbs_of(self.low)
        if self.high is None or self.are_narrow:
            return limbs
        above = self.high.fill_null(0).to_pylist()
        for row in np.flatnonzero(values_of(self.high.is_valid())).tolist():
            _set_limbs(limbs, row, _value_of(limbs, row) + above[row] * _base_of(self.low.type))
        return limbs

    def plus(
        self, groups: IntArray, others: _Sums, seen: BoolArray, signs: IntArray | None = None
    ) -> _Sums:
        """Return the sums with other ones added, each to the sum of its group.

        `seen`: mask of the groups that have a value in `others`; a null sum of another group stays
        null. `signs`: -1 for each of `others` that is subtracted, else 1; not of floats.
        """
        own_mask, dtype = mask_of(self.low), self.low.type
        mask = None if own_mask is None else own_mask | seen
        mask = None if mask is None or mask.all() else mask
        if pa.types.is_floating(dtype):
            return _Sums(column_of(_float_sums(self.low, groups, others.low), mask, dtype), None)
        if dtype == pa.int64() and self.are_narrow and others.are_narrow:
            total = _narrow_sums(self.low, groups, others.low, signs)
            if total is not None:
                return _Sums(column_of(total, mask, dtype), self.high)
        limbs = self.limbs()
        for limb, other_limb in zip(limbs, others.limbs(), strict=True):
            np.add.at(limb, groups, other_limb if signs is None else other_limb * signs)
        return self._of_limbs(_propagate_carries(limbs), mask)

    def _of_limbs(self, carried: Limbs, mask: BoolArray | None) -> _Sums:
        """Build sums of the types of these from limbs; `mask`: false where null."""
        dtype, last = self.low.type, carried[-1]
        fits = (last >= -(1 << 31)) & (last < 1 << 31)
        if pa.types.is_decimal128(dtype):
            fits &= _has_digits(carried, dtype.precision)
        if self.high is None:
            _raise_unless(fits, dtype)
        high = None if self.high is None else pa.nulls(len(fits), pa.int32())
        if not fits.all():
            _raise_unless(
                np.abs(last) < 1 << 60, dtype
            )  # so that limbs of two of them can be added
            overflows, base = np.zeros(len(fits), np.int32), _base_of(dtype)
            for row in np.flatnonzero(~fits).tolist():
                value = _value_of(carried, row)
                overflows[row] = abs(value) // base * (1 if value > 0 else -1)
                _set_limbs(carried, row, value - int(overflows[row]) * base)
            high = column_of(overflows, ~fits, pa.int32())
        if pa.types.is_decimal128(dtype):
            return _Sums(_decimal_of(carried, mask, dtype), high)
        return _Sums(column_of(carried[0] | (carried[1] << 32), mask, dtype), high)


def _with_values(
    sums: _Sums, groups: IntArray, column: pa.Array, signs: IntArray | None = None
) -> _Sums:
    """Return the sums with the values of `column` added, each to the sum of its group.

    `signs`: -1 for each value that is subtracted, else 1.
    """
    mask = mask_of(column)
    seen = np.zeros(len(sums.low), np.bool_)
    seen[groups if mask is None else groups[mask]] = True
    return sums.plus(groups, _Sums(column, None), seen, signs)


def _add_sums_by_row(left: _Sums, right: _Sums) -> _Sums:
    """Add two columns of sums row by row; null only where both are null."""
    seen, count = mask_of(right.low), len(left.low)
    return left.plus(np.arange(count), right, np.ones(count, np.bool_) if seen is None else seen)


def _float_sums(sums: pa.Array, groups: IntArray, column: pa.Array) -> npt.NDArray[np.float64]:
    """Return float sums with the values of `column` added to those of their groups."""
    values = _zero_where_null(column).astype(np.float64, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, as it should be
        return _zero_where_null(sums) + np.bincount(groups, values, len(sums))


def _narrow_sums(
    sums: pa.Array, groups: IntArray, column: pa.Array, signs: IntArray | None
) -> IntArray | None:
    """Return integer sums with values added per group; ``None`` if any may leave 64 bits.

    Cheap and almost always enough: not even the largest values, all in one group, overflow.
    """
    values = _zero_where_null(column).astype(np.int64, copy=False)
    total = _zero_where_null(sums).copy()
    if len(values) == 0:
        return total
    if _largest_absolute(values) * len(values) + _largest_absolute(total) >= 1 << 63:
        return None
    np.add.at(total, groups, values if signs is None else values * signs)
    return total


def _signed_form(name: Literal["sum", "mean"], aggregate: _Sum | _Mean) -> BoundAggregate:
    """Return the variant of an aggregate that subtracts: with two doubles, or exact."""
    if pa.types.is_floating(aggregate.output):
        return signed_floats(name, aggregate.identity)
    return _SignedSum.of(aggregate)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum(BuiltIn):
    """``sum``; the state is the sum, null without values."""

    commutative = True
    overflow: Overflow = "error"

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        return self._to_states(_with_values(_Sums.of(states), groups, columns[0]))

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._to_states(_add_sums_by_row(_Sums.of(left), _Sums.of(right)))

    @property
    def narrow(self) -> BoundAggregate:
        """The aggregate with states of 64 bits, where every state is a result that must fit."""
        if self.output != pa.int64() or self.overflow != "error":
            return self
        return replace(self, state=pa.schema([self.state.field(0)]))

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the sums; raise if one does not fit its type and has to."""
        sums = _Sums.of(states)
        if sums.high is None or sums.are_narrow:
            return sums.low
        fits = values_of(sums.high.is_null())
        if self.overflow == "error":
            _raise_unless(fits, self.output)
        if self.overflow == "wrap" and self.output == pa.int64():
            lowest_bit = values_of(sums.high.fill_null(0)).astype(np.int64) & 1
            return column_of(
                values_of(sums.low) ^ (lowest_bit << 63), mask_of(sums.low), self.output
            )
        return pc.if_else(pa.array(fits), sums.low, pa.scalar(None, self.output))

    def _to_states(self, sums: _Sums) -> pa.RecordBatch:
        """Build states from sums."""
        return self.states(sums.low, *sums.columns)

    @property
    def signed(self) -> BoundAggregate:
        return _signed_form("sum", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mean(BuiltIn):
    """``mean``; the state is the sum and the count of values."""

    commutative = True

    def create(self, count: int) -> pa.RecordBatch:
        sums = [pa.nulls(count, field.type) for field in self.state if field.name != "count"]
        counts = column_of(np.zeros(count, np.int64), None, pa.int64())
        return self.states(sums[0], counts, *sums[1:])

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Add rows' values to the sums and counts of their groups."""
        mask = mask_of(columns[0])
        seen = groups if mask is None else groups[mask]
        counts = np.bincount(seen, minlength=states.num_rows)
        return self._to_states(
            _with_values(_Sums.of(states), groups, columns[0]),
            values_of(states.column(1)) + counts,
        )

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._to_states(
            _add_sums_by_row(_Sums.of(left), _Sums.of(right)),
            values_of(left.column(1)) + values_of(right.column(1)),
        )

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return each state's sum divided by its count; null without values."""
        sums, counts = _Sums.of(states), values_of(states.column(1))
        if pa.types.is_decimal128(self.output):
            return self._decimal_means(sums, counts)
        is_nonempty = counts > 0
        means = _zero_where_null(sums.low) / np.where(is_nonempty, counts, 1)
        return column_of(means, None if is_nonempty.all() else is_nonempty, self.output)

    def _decimal_means(self, sums: _Sums, counts: IntArray) -> pa.Array:
        """Divide decimal sums by counts, rounding half up as Spark does; raise if one overflows."""
        # 160 bits divided by 64 in Python: once per key, so it never is what an epoch waits for.
        factor = 10 ** (self.output.scale - sums.low.type.scale)
        bound = 10**self.output.precision
        means = bytearray()
        for group, (total, count) in enumerate(
            zip(_integers_of(sums), counts.tolist(), strict=True)
        ):
            mean = _rounded_quotient(total * factor, count) if count else 0
            if abs(mean) >= bound:
                raise SumOverflowError(group, self.output, "mean")
            means += mean.to_bytes(16, "little", signed=True)
        is_nonempty = counts > 0
        bitmap = bitmap_of(None if is_nonempty.all() else is_nonempty)
        return pa.Array.from_buffers(self.output, len(counts), [bitmap, pa.py_buffer(means)])

    def _to_states(self, sums: _Sums, counts: IntArray) -> pa.RecordBatch:
        """Build states from sums and counts."""
        return self.states(sums.low, column_of(counts, None, pa.int64()), *sums.columns)

    @property
    def signed(self) -> BoundAggregate:
        return _signed_form("mean", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SignedSum(BuiltIn):
    """Exact ``sum`` or ``mean`` of changes; the state is the sum and the count of values.

    The last column is the sign of each row.
    """

    commutative = True
    plain: _Sum | _Mean  # the aggregate of rows without a sign

    @classmethod
    def of(cls, plain: _Sum | _Mean) -> _SignedSum:
        """Return the counterpart over changes of an aggregate over rows."""
        total, *high = [field for field in plain.state if field.name != "count"]
        return cls(
            plain=plain,
            state=pa.schema([total, pa.field("count", pa.int64()), *high]),
            output=plain.output,
            identity={**plain.identity, "signed": True},
        )

    def create(self, count: int) -> pa.RecordBatch:
        sums = [pa.nulls(count, field.type) for field in self.state if field.name != "count"]
        counts = column_of(np.zeros(count, np.int64), None, pa.int64())
        return self.states(sums[0], counts, *sums[1:])

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Add the values of rows with sign 1, and subtract those of rows with -1."""
        column, signs = columns[0], values_of(columns[1]).astype(np.int64)
        counts = values_of(states.column(1)).copy()
        mask = mask_of(column)
        np.add.at(counts, groups, signs if mask is None else signs * mask)
        return self._to_states(_with_values(_Sums.of(states), groups, column, signs), counts)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._to_states(
            _add_sums_by_row(_Sums.of(left), _Sums.of(right)),
            values_of(left.column(1)) + values_of(right.column(1)),
        )

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the sum or mean of the remaining values; null if there are none."""
        counts = values_of(states.column(1))
        is_nonempty = column_of(counts > 0, None, pa.bool_())
        low = pc.if_else(is_nonempty, states.column(0), pa.scalar(None, states.column(0).type))
        if isinstance(self.plain, _Mean):
            return self.plain.finish(self._plain_states(low, states, counts))
        return self.plain.finish(self._plain_states(low, states))

    def _plain_states(self, low: pa.Array, states: pa.RecordBatch, *counts: IntArray) -> Any:
        """Return states of the plain aggregate with these sums."""
        columns = [low, *(column_of(n, None, pa.int64()) for n in counts), *states.columns[2:]]
        return pa.RecordBatch.from_arrays(columns, schema=self.plain.state)

    def _to_states(self, sums: _Sums, counts: IntArray) -> pa.RecordBatch:
        """Build states from sums and counts."""
        return self.states(sums.low, column_of(counts, None, pa.int64()), *sums.columns)


def _rounded_quotient(numerator: int, denominator: int) -> int:
    """Return the quotient rounded half away from zero, as Spark rounds decimals."""
    quotient = (2 * abs(numerator) + denominator) // (2 * denominator)
    return quotient if numerator >= 0 else -quotient


def _zero_where_null(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a column, 0 for nulls."""
    mask = mask_of(column)
    values = values_of(column)
    return values if mask is None else np.where(mask, values, values.dtype.type(0))


def _largest_absolute(values: IntArray) -> int:
    """Return the largest absolute value; 0 if there are no values."""
    return max(int(values.max()), -int(values.min())) if len(values) else 0


def _raise_unless(fits: BoolArray, dtype: pa.DataType) -> None:
    """Raise `SumOverflowError` unless the sums of all groups fit; the error names the first."""
    if not fits.all():
        raise SumOverflowError(int(np.flatnonzero(~fits)[0]), dtype)


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

    @property
    def signed(self) -> BoundAggregate:
        return _SignedCount(
            state=self.state, output=self.output, identity={**self.identity, "signed": True}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SignedCount(_Count):
    """``count`` of changes, whose last column is the sign of each row."""

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        signs = values_of(columns[-1]).astype(np.int64)
        mask = mask_of(columns[0]) if len(columns) > 1 else None
        counts = values_of(states.column(0)).copy()
        np.add.at(counts, groups, signs if mask is None else signs * mask)
        return self._to_states(counts)


def _limbs_of(column: pa.Array) -> Limbs:
    """Split the values of an integer or decimal column into limbs; zero where null."""
    if pa.types.is_decimal128(column.type):
        high, low = words_of(column)
        below = [(low & _LOW).view(np.int64), (low >> _HALF).view(np.int64)]
    else:
        high, below = values_of(column).astype(np.int64, copy=False), []
    limbs = np.stack([*below, high & 0xFFFFFFFF, high >> 32])
    mask = mask_of(column)
    if mask is not None:
        limbs *= mask
    return limbs


def _base_of(dtype: pa.DataType) -> int:
    """Return the value of one unit in the column `HIGH`, for sums of a type."""
    return 10**_MAX_DIGITS if pa.types.is_decimal128(dtype) else 1 << 63


def _value_of(limbs: Limbs, row: int) -> int:
    """Return the value that a row of limbs represents."""
    return sum(limb << (32 * i) for i, limb in enumerate(limbs[:, row].tolist()))


def _set_limbs(limbs: Limbs, row: int, value: int) -> None:
    """Set the limbs of a row to a value."""
    last = len(limbs) - 1
    for i in range(last):
        limbs[i, row] = (value >> (32 * i)) & 0xFFFFFFFF
    limbs[last, row] = value >> (32 * last)


def _propagate_carries(limbs: Limbs) -> Limbs:
    """Return limbs of at most 32 bits, except the last, with carries added to the next limb."""
    carried = limbs.copy()
    for i in range(len(limbs) - 1):
        carried[i + 1] += carried[i] >> 32
        carried[i] &= 0xFFFFFFFF
    return carried


def _has_digits(carried: Limbs, digits: int) -> BoolArray:
    """Return a mask of the values, as limbs, that have at most `digits` digits."""
    bound = 10**digits
    return _is_at_least(carried, 1 - bound) & ~_is_at_least(carried, bound)


def _decimal_of(carried: Limbs, mask: BoolArray | None, dtype: pa.DataType) -> pa.Array:
    """Build a decimal column from the lowest 128 bits of limbs; `mask`: false where null."""
    words = np.empty((carried.shape[1], 2), np.uint64)
    unsigned = carried.view(np.uint64)
    words[:, 0] = unsigned[0] | (unsigned[1] << _HALF)
    words[:, 1] = unsigned[2] | (unsigned[3] << _HALF)
    return pa.Array.from_buffers(dtype, len(words), [bitmap_of(mask), pa.py_buffer(words)])


def _integers_of(sums: _Sums) -> list[int]:
    """Return the unscaled values of decimal sums as Python integers; 0 where null."""
    parts = (limb.tolist() for limb in sums.limbs())
    return [a + (b << 32) + (c << 64) + (d << 96) for a, b, c, d in zip(*parts, strict=True)]


def _is_at_least(carried: Limbs, bound: int) -> BoolArray:
    """Return a mask of the values, given as limbs, that are at least `bound`."""
    result, last = np.ones(carried.shape[1], np.bool_), len(carried) - 1
    for i in range(len(carried)):  # from the lowest limb: a higher one decides over all below it
        limb = (bound >> (32 * i)) & 0xFFFFFFFF if i < last else bound >> (32 * i)
        result = (carried[i] > limb) | ((carried[i] == limb) & result)
    return result
