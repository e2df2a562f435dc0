"""Arithmetic on columns as in Spark's ANSI mode: its types, its decimals and its errors.

Integers of two sizes give the larger size, and a result beyond it is an error.  ``/`` gives a
double, or of decimals a decimal.  A decimal meets an integer as a decimal, and a float as a double.
Precision and scale of decimals follow Spark's ``DecimalPrecision``: digits before the point are
kept, and at least 6 behind it, if 38 do not suffice.  A null operand gives null, also where
something is divided by zero.

Spark has two more modes, which `Overflow` names: a result that does not fit is null
(``try_add``), or, as without ANSI, wraps if it is an integer and is null if it is a decimal.  Both
give null for a division by zero.

Invariant: types depend on types alone, never on values, so a column of no rows tells them.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import column_of, mask_of, values_of, words_of
from godwit.columns.types import is_date_or_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

BoolArray = npt.NDArray[np.bool_]
Overflow: TypeAlias = Literal["error", "wrap", "null"]
"""Handling of a result that does not fit its type: ANSI mode, non-ANSI mode, or ``try_``."""

_MAX_DIGITS, _DECIMAL_BITS = 38, 128
_KEPT_SCALE = 6  # digits behind the point that are kept in any case
_EXACT_FLOAT = 1 << 53
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_DIGITS = dict(zip(_INTEGERS, (3, 5, 10, 20), strict=True))
_AS_IN_SPARK = {  # types that Spark has not, and those that hold their values
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
}
_CHECKED = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
_PLAIN = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}


class EvaluationError(ArithmeticError):
    """A value of a row cannot be computed, such as a division by zero."""

    def __init__(self, row: int, reason: str, condition: str = "ARITHMETIC_OVERFLOW") -> None:
        super().__init__(reason)
        self.row, self.reason = row, reason
        self.condition = condition  # Spark's name of the error


class TypesError(ValueError):
    """Something is not defined for the types of its operands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """N values, and whether they are one literal, which has its own number of digits."""

    values: pa.Array
    literal: bool | int | float | Decimal | str | None = None


def spark_column(column: pa.Array) -> pa.Array:
    """Return a column in the type that Spark reads it as, such as int64 for uint32."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    dtype = _AS_IN_SPARK.get(column.type)
    if pa.types.is_decimal(column.type) and column.type.bit_width < _DECIMAL_BITS:
        dtype = pa.decimal128(column.type.precision, column.type.scale)
    return column if dtype is None else column.cast(dtype)


def is_number(dtype: pa.DataType) -> bool:
    """Return whether a type is one of Spark's numbers."""
    return bool(dtype in _DIGITS or pa.types.is_floating(dtype) or pa.types.is_decimal128(dtype))


def calculate(symbol: str, left: Operand, right: Operand, overflow: Overflow = "error") -> pa.Array:
    """Return ``left sign right`` for every row, null where an operand is.

    `symbol`: ``+ - * / %``. `overflow`: answer to a row without a result. Raises `TypesError` for
    types that have no such operation, and `EvaluationError` for the first row without a result.
    """
    first, second = left.values, right.values
    if is_number(first.type) and is_number(second.type):
        first, second = _as_decimals(left, right) or _as_one_number(first, second, symbol)
        if pa.types.is_decimal128(first.type):
            return _calculate_decimals(symbol, first, second, overflow)
        if symbol in "/%":
            return _quotient_or_remainder(symbol, first, second, overflow)
        return _calculate_numbers(symbol, first, second, overflow)
    if symbol == "-" and first.type == second.type and is_date_or_timestamp(first.type):
        return _durations_between(first, second)
    if symbol in "+-" and first.type == second.type and pa.types.is_duration(first.type):
        return _calculate_numbers(symbol, first, second)
    raise TypesError(symbol)


def negate(values: pa.Array, overflow: Overflow = "error") -> pa.Array:
    """Return the values with the other sign."""
    if not is_number(values.type) and not pa.types.is_duration(values.type):
        raise TypesError("-")
    if pa.types.is_decimal(values.type) or pa.types.is_floating(values.type):
        return pc.negate(values)
    number = values.cast(pa.int64()) if pa.types.is_duration(values.type) else values
    zero = column_of(np.zeros(len(number), np.int64), None, number.type)
    return _calculate_numbers("-", zero, number, overflow).cast(values.type)


def absolute(values: pa.Array, overflow: Overflow = "error") -> pa.Array:
    """Return the values without their sign."""
    if not is_number(values.type):
        raise TypesError("abs")
    if pa.types.is_decimal(values.type) or pa.types.is_floating(values.type):
        return pc.abs(values)
    below = pc.less(values, pa.scalar(0, values.type))
    return pc.if_else(below, negate(pc.if_else(below, values, None), overflow), values)


def common_type(types: Iterable[pa.DataType]) -> pa.DataType:
    """Return the type that values of all `types` have in common, as in Spark's ``coalesce``."""
    return reduce(_common_type, types, pa.null())


def as_type(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return values as a type that `common_type` found for them."""
    if values.type == dtype:
        return values
    if pa.types.is_float64(dtype) and pa.types.is_decimal(values.type):
        return as_doubles(values)
    if pa.types.is_floating(dtype) and values.type in _DIGITS:
        return column_of(values_of(values).astype(np.float64), mask_of(values), dtype)
    return values.cast(dtype)


# -- types


def _common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return the narrowest type for values of two types; raise `TypesError` if there is none."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if not (is_number(first) and is_number(second)):
        raise TypesError(f"{first} and {second}")
    if pa.types.is_decimal(first) or pa.types.is_decimal(second):
        if pa.types.is_floating(first) or pa.types.is_floating(second):
            return pa.float64()
        (first_precision, first_scale), (second_precision, second_scale) = (
            _digits_of(first),
            _digits_of(second),
        )
        digits, scale = (
            max(first_precision - first_scale, second_precision - second_scale),
            max(first_scale, second_scale),
        )
        if digits + scale > _MAX_DIGITS:
            raise TypesError(f"{first} and {second}")
        return pa.decimal128(digits + scale, scale)
    return _wider_number(first, second)


def _wider_number(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return the wider type of two numbers, neither a decimal; float and integer give double."""
    if first == second:
        return first
    if pa.types.is_floating(first) or pa.types.is_floating(second):
        return pa.float64()
    return max(first, second, key=lambda dtype: dtype.bit_width)


def _digits_of(dtype: pa.DataType) -> tuple[int, int]:
    """Return precision and scale of a decimal, or of the decimal that holds an integer type."""
    return (_DIGITS[dtype], 0) if dtype in _DIGITS else (dtype.precision, dtype.scale)


def _as_decimals(left: Operand, right: Operand) -> tuple[pa.Array, pa.Array] | None:
    """Return two operands as decimals, if one is one and the other is exact too; else ``None``."""
    types = left.values.type, right.values.type
    if not any(map(pa.types.is_decimal128, types)) or any(map(pa.types.is_floating, types)):
        return None
    return _as_decimal(left), _as_decimal(right)


def _as_decimal(operand: Operand) -> pa.Array:
    """Return integers as decimals; a literal has the digits that it is written with."""
    values = operand.values
    if pa.types.is_decimal128(values.type):
        return values
    digits = _DIGITS[values.type]
    if operand.literal is not None:
        digits = max(len(str(abs(int(operand.literal)))), 1)
    return values.cast(pa.decimal128(_DIGITS[values.type], 0)).cast(pa.decimal128(digits, 0))


def _as_one_number(first: pa.Array, second: pa.Array, symbol: str) -> tuple[pa.Array, pa.Array]:
    """Return two operands as numbers of one type; to divide, as doubles."""
    decimals = pa.types.is_decimal(first.type) or pa.types.is_decimal(second.type)
    as_doubles = symbol == "/" or decimals
    dtype = pa.float64() if as_doubles else _wider_number(first.type, second.type)
    return as_type(first, dtype), as_type(second, dtype)


# -- numbers and times


def _calculate_numbers(
    symbol: str, first: pa.Array, second: pa.Array, overflow: Overflow = "error"
) -> pa.Array:
    """Add, subtract or multiply numbers of one type; raise where an integer overflows."""
    if overflow == "wrap" or pa.types.is_floating(first.type):
        return _PLAIN[symbol](first, second)
    try:
        return _CHECKED[symbol](first, second)
    except pa.ArrowInvalid:
        overflowing = []
        low, high = _integer_bounds(first.type)
        apply = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[symbol]
        integers = [values.cast(pa.int64()).to_pylist() for values in (first, second)]
        for row, (value, other) in enumerate(zip(*integers, strict=True)):
            if value is not None and other is not None and not low <= apply(value, other) <= high:
                if overflow == "error":
                    reason = f"{value} {symbol} {other} does not fit {first.type}"
                    raise EvaluationError(row, reason) from None
                overflowing.append(row)
    valid = np.ones(len(first), np.bool_)
    valid[overflowing] = False
    return pc.if_else(column_of(valid, None, pa.bool_()), _PLAIN[symbol](first, second), None)


def _integer_bounds(dtype: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type."""
    return -(1 << (dtype.bit_width - 1)), (1 << (dtype.bit_width - 1)) - 1


def _quotient_or_remainder(
    symbol: str, first: pa.Array, second: pa.Array, overflow: Overflow
) -> pa.Array:
    """Divide numbers of one type, or return the remainder, which has the sign of the dividend."""
    valid = both_valid(first, second)
    dividend, divisor = values_of(first), values_of(second)
    zero = divisor == 0
    valid = _rows_with_divisor(zero, valid, symbol, overflow)
    with np.errstate(all="ignore"):
        safe = np.where(zero, divisor.dtype.type(1), divisor)
        result = dividend / safe if symbol == "/" else np.fmod(dividend, safe)
    return column_of(result, None if valid is None else valid, first.type)


def _rows_with_divisor(
    is_zero: BoolArray, valid: BoolArray | None, symbol: str, overflow: Overflow
) -> BoolArray | None:
    """Return the mask of the rows that do not divide by zero; raise for the first that does.

    `valid`: mask of the rows without a null; ``None``: all.
    """
    divides_by_zero = is_zero if valid is None else is_zero & valid
    if not divides_by_zero.any():
        return valid
    if overflow == "error":
        condition = "DIVIDE_BY_ZERO" if symbol == "/" else "REMAINDER_BY_ZERO"
        raise EvaluationError(int(np.argmax(divides_by_zero)), "division by zero", condition)
    return ~divides_by_zero if valid is None else valid & ~divides_by_zero


def both_valid(left: pa.Array, right: pa.Array) -> BoolArray | None:
    """Return a mask of the rows in which neither operand is null; ``None``: all."""
    first, second = mask_of(left), mask_of(right)
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _durations_between(first: pa.Array, second: pa.Array) -> pa.Array:
    """Return the time from dates or timestamps to others, as durations of microseconds."""
    moments = [
        values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
        if pa.types.is_timestamp(values.type)
        else pc.multiply(values.cast(pa.int32()).cast(pa.int64()), 86_400_000_000)
        for values in (first, second)
    ]
    return _calculate_numbers("-", *moments).cast(pa.duration("us"))


# -- decimals


def _calculate_decimals(
    symbol: str, first: pa.Array, second: pa.Array, overflow: Overflow
) -> pa.Array:
    """Calculate with decimals; the result has Spark's precision and scale."""
    (first_precision, first_scale), (second_precision, second_scale) = (
        _digits_of(first.type),
        _digits_of(second.type),
    )
    precision, scale = _RESULT[symbol](first_precision, first_scale, second_precision, second_scale)
    if symbol in "+-*" and precision <= _MAX_DIGITS:  # exact, and of the same type as Arrow's
        return _PLAIN[symbol](first, second)
    if precision > _MAX_DIGITS:
        whole_digits = precision - scale
        precision, scale = _MAX_DIGITS, max(_MAX_DIGITS - whole_digits, min(scale, _KEPT_SCALE))
    valid = both_valid(first, second)
    if symbol in "/%":
        high, low = words_of(second)
        valid = _rows_with_divisor((high == 0) & (low == 0), valid, symbol, overflow)
    apply = _EXACT[symbol]
    rows = range(len(first)) if valid is None else np.flatnonzero(valid).tolist()
    first_integers, second_integers = unscaled(first), unscaled(second)
    bound, results, overflowing = 10**precision, [0] * len(first), []
    for row in rows:
        results[row] = value = apply(
            first_integers[row], first_scale, second_integers[row], second_scale, scale
        )
        if not -bound < value < bound:
            if overflow != "error":
                results[row] = 0
                overflowing.append(row)
                continue
            texts = (
                Decimal(integer).scaleb(-exponent, None)
                for integer, exponent in (
                    (first_integers[row], first_scale),
                    (second_integers[row], second_scale),
                )
            )
            reason = f" {symbol} ".join(map(str, texts))
            raise EvaluationError(
                row,
                f"{reason} does not fit decimal({precision}, {scale})",
                "NUMERIC_VALUE_OUT_OF_RANGE",
            )
    if overflowing:
        valid = np.ones(len(first), np.bool_) if valid is None else valid.copy()
        valid[overflowing] = False
    return decimals_of(results, valid, pa.decimal128(precision, scale))


def unscaled(column: pa.Array) -> list[int]:
    """Return decimals as integers, without their point; arbitrary where null."""
    high, low = words_of(column)
    return [(upper << 64) | lower for upper, lower in zip(high.tolist(), low.tolist(), strict=True)]


def decimals_of(integers: Sequence[int], valid: BoolArray | None, dtype: pa.DataType) -> pa.Array:
    """Return decimals from their integers without a point; the inverse of `unscaled`."""
    data = b"".join(value.to_bytes(16, "little", signed=True) for value in integers)
    plain = pa.Array.from_buffers(dtype, len(integers), [None, pa.py_buffer(data)])
    return plain if valid is None else pc.if_else(column_of(valid, None, pa.bool_()), plain, None)


def rounded(value: int, drop: int) -> int:
    """Return a value without its last `drop` digits, rounded half away from zero."""
    if drop <= 0:
        raised: int = value * 10**-drop
        return raised
    step: int = 10**drop
    magnitude: int = (abs(value) + step // 2) // step
    return magnitude if value >= 0 else -magnitude


def _sum_of(a: int, s: int, b: int, t: int, scale: int) -> int:
    """Return a + b; `s`, `t`: scales of both, and `scale` that of the result."""
    wide = max(s, t)
    return rounded(a * 10 ** (wide - s) + b * 10 ** (wide - t), wide - scale)


def _product_of(a: int, s: int, b: int, t: int, scale: int) -> int:
    """Return a * b, which Spark rounds to 39 digits first; see `_sum_of`."""
    product, wide = a * b, s + t
    spare = max(len(str(abs(product))) - _MAX_DIGITS - 1, 0)
    return rounded(rounded(product, spare), wide - spare - scale)


def _quotient_of(a: int, s: int, b: int, t: int, scale: int) -> int:
    """Return a / b, which Spark rounds to 39 digits behind the point first; see `_sum_of`."""
    shift = _MAX_DIGITS + 1 + t - s
    over, under = a * 10 ** max(shift, 0), b * 10 ** max(-shift, 0)
    quotient = (2 * abs(over) + abs(under)) // (2 * abs(under))
    return rounded(quotient if (a < 0) == (b < 0) else -quotient, _MAX_DIGITS + 1 - scale)


def _remainder_of(a: int, s: int, b: int, t: int, scale: int) -> int:
    """Return the remainder of a / b, with the sign of a; see `_sum_of`."""
    wide = max(s, t)
    over, under = abs(a) * 10 ** (wide - s), abs(b) * 10 ** (wide - t)
    return rounded(over % under if a >= 0 else -(over % under), wide - scale)


_RESULT: dict[str, Callable[[int, int, int, int], tuple[int, int]]] = {
    "+": lambda p, s, q, t: (max(p - s, q - t) + max(s, t) + 1, max(s, t)),
    "-": lambda p, s, q, t: (max(p - s, q - t) + max(s, t) + 1, max(s, t)),
    "*": lambda p, s, q, t: (p + q + 1, s + t),
    "/": lambda p, s, q, t: (p - s + t + max(_KEPT_SCALE, s + q + 1), max(_KEPT_SCALE, s + q + 1)),
    "%": lambda p, s, q, t: (min(p - s, q - t) + max(s, t), max(s, t)),
}
"""Precision and scale of a result, from those of both operands, before they are cut to 38."""
_EXACT: dict[str, Callable[[int, int, int, int, int], int]] = {
    "+": _sum_of,
    "-": lambda a, s, b, t, scale: _sum_of(a, s, -b, t, scale),
    "*": _product_of,
    "/": _quotient_of,
    "%": _remainder_of,
}


def as_doubles(column: pa.Array) -> pa.Array:
    """Return decimals as the nearest doubles; Arrow's cast is sometimes off by one bit."""
    high, low = words_of(column)
    small = low.view(np.int64)
    mask, scale = mask_of(column), column.type.scale
    exact = (
        (high == small >> 63)
        & (np.abs(small) <= _EXACT_FLOAT)
        & (small != np.iinfo(small.dtype).min)
    )
    result = small.astype(np.float64)
    if 0 <= scale <= 22:  # 10**22 is a double too, so one division rounds once
        result = result / 10.0**scale
    else:
        exact[:] = False
    for row in np.flatnonzero(~exact if mask is None else ~exact & mask).tolist():
        result[row] = float(column[row].as_py())
    return column_of(result, mask, pa.float64())
