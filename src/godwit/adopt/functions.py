"""Functions of Spark over Arrow columns, with Spark's values, nulls and errors.

A `Function` has the name of Spark's expression class, since its meaning is Spark's: ``Upper``,
``GetStructField``, ``TruncTimestamp``.  Conditions, choices and arithmetic are those of
`godwit.library.aggregates.expressions`, the one evaluator of expressions; this module adds what
the text of an aggregate cannot say.

Invariant: a function fails for a row only if none of its operands is null there, and rows that
need no value are null before it is computed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, localcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.adopt import java_math
from godwit.adopt.array_functions import ARRAYS, lists_of_rows, rows_and_elements
from godwit.adopt.casts import (
    LOCAL_ZONES,
    cast,
    days_begin,
    instants_of,
    local_times,
    saturated,
    without,
)
from godwit.adopt.java_numbers import text_of
from godwit.adopt.spark_hashes import murmur3, xxhash64
from godwit.adopt.text_functions import TEXTS, each, named_day, named_month, part_of_text
from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.columns.hashing import canonical_floats
from godwit.library.aggregates.arithmetic import (
    EvaluationError,
    Operand,
    Overflow,
    TypesError,
    absolute,
    calculate,
    decimals_of,
    negate,
    rounded,
    unscaled,
)
from godwit.library.aggregates.expressions import Expression, Rows, compare, truth, values_after
from godwit.model.errors import EpochFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

Integers = npt.NDArray[np.int64]

_DAY_US = 86_400_000_000
_UNITS_US = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": _DAY_US,
    "DD": _DAY_US,
}
_MONTHS = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), 12),
    "QUARTER": 3,
    **dict.fromkeys(("MONTH", "MM", "MON"), 1),
}
DIFFERENCES_US = {**_UNITS_US, "WEEK": 7 * _DAY_US}
"""Unit of ``timestampdiff`` → its microseconds."""
DATE_UNITS = frozenset({*_MONTHS, "WEEK"})
"""Units that ``trunc`` truncates a date to."""
TIME_UNITS = frozenset({*DATE_UNITS, *_UNITS_US})
"""Units that ``date_trunc`` truncates a timestamp to."""


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    """A value of any type."""

    value: pa.Scalar

    def __str__(self) -> str:
        return str(self.value)

    def evaluate(self, rows: Rows) -> pa.Array:
        length = len(next(iter(rows.columns.values())))
        if not length or not self.value.is_valid:  # arrays cannot be repeated no times
            return self._null_array(length)
        return pa.repeat(self.value, length)

    def _null_array(self, length: int) -> pa.Array:
        return pa.nulls(length, self.value.type)

    @property
    def can_fail(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Function(Expression):
    """A function of Spark that is null for a null operand."""

    name: str  # of Spark's expression class
    arguments: tuple[Expression, ...]
    dtype: pa.DataType
    overflow: Overflow = "error"
    zone: str = "UTC"
    options: tuple[Any, ...] = ()  # what does not come from columns, such as a field's number

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"

    @property
    def can_fail(self) -> bool:
        return True

    def evaluate(self, rows: Rows) -> pa.Array:
        """Evaluate the operands from left to right (of a division: the divisor first).

        The operand that is evaluated last is null in every row in which one of them is.
        """
        order = list(self.arguments)
        if self.name in _DIVISIONS:
            order.reverse()
        columns: list[pa.Array] = []
        if self.name in _DIVISIONS and self.overflow != "error":  # which then needs no dividend
            divisor = order[0] = _Evaluated(rows.needed(order[0].evaluate(rows)))
            rows = rows.where(divisor.is_not_zero())
        for argument in order:
            column = (
                values_after(columns[-1], argument, rows) if columns else argument.evaluate(rows)
            )
            if columns:
                column = pc.if_else(columns[-1].is_valid(), column, None)
            columns.append(rows.needed(column))
        if self.name in _DIVISIONS:
            columns.reverse()
        return _check_result_type(FUNCTIONS[self.name](self, *columns), self)


@dataclass(frozen=True, slots=True)
class _Evaluated(Expression):
    """A divisor whose values are known."""

    values: pa.Array

    def evaluate(self, _rows: Rows) -> pa.Array:
        return self.values

    def is_not_zero(self) -> pa.Array:
        """Return a mask of the rows whose divisor is not zero."""
        return pc.not_equal(self.values, pa.scalar(0, self.values.type))

    @property
    def can_fail(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Expression):
    """A function of Spark that has its own rule for null operands."""

    name: str
    arguments: tuple[Expression, ...]
    dtype: pa.DataType
    options: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"

    def evaluate(self, rows: Rows) -> pa.Array:
        return _check_result_type(FORMS[self.name](self, rows), self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lambda(Expression):
    """A function of Spark that computes an expression for every element of an array."""

    name: str
    argument: Expression
    body: Expression
    variables: tuple[str, ...]  # columns of the element, and of its number
    dtype: pa.DataType

    def __str__(self) -> str:
        return f"{self.name}({self.argument}, {self.body})"

    def evaluate(self, rows: Rows) -> pa.Array:
        """Compute the body over the elements of all rows."""
        lists = rows.needed(self.argument.evaluate(rows))
        row_of_element, elements = rows_and_elements(lists)
        indices = pa.array(row_of_element)
        columns = {name: column.take(indices) for name, column in rows.columns.items()}
        columns[self.variables[0]] = elements
        first_elements = np.flatnonzero(np.diff(row_of_element, prepend=-1))
        position_in_row = np.arange(len(row_of_element)) - np.repeat(
            first_elements, np.diff(first_elements, append=len(row_of_element))
        )
        if len(self.variables) > 1:
            columns[self.variables[1]] = pa.array(position_in_row.astype(np.int32))
        try:
            values = self._evaluate_body(columns, row_of_element)
        except EvaluationError:
            if self.name not in _DECIDED_BY:
                raise
            values = self._until_decided(columns, row_of_element, position_in_row)
        if self.name == "ArrayTransform":
            return lists_of_rows(row_of_element, values, lists, self.dtype)
        is_true = values_of(values.fill_null(False))
        if self.name == "ArrayFilter":
            matches = np.flatnonzero(is_true)
            return lists_of_rows(
                row_of_element[matches], elements.take(pa.array(matches)), lists, self.dtype
            )
        count = len(lists)
        if self.name == "ArrayForAll":
            is_true = values_of(pc.invert(values).fill_null(False))  # that one is false decides
        has_match = np.bincount(row_of_element[is_true], minlength=count) > 0
        has_null = np.bincount(row_of_element[values_of(values.is_null())], minlength=count) > 0
        is_true_for_row = ~has_match if self.name == "ArrayForAll" else has_match
        result = pa.array(is_true_for_row, mask=has_null & ~has_match)
        return pc.if_else(lists.is_valid(), result, pa.scalar(None, pa.bool_()))

    def _evaluate_body(self, columns: dict[str, pa.Array], numbers: Integers) -> pa.Array:
        """Return the body of elements; `numbers`: their rows, for errors."""
        try:
            return self.body.evaluate(Rows(columns=columns))
        except EvaluationError as error:
            row = int(numbers[error.row])
            raise EvaluationError(row, error.reason, error.condition) from error

    def _until_decided(
        self, columns: dict[str, pa.Array], rows: Integers, position_in_row: Integers
    ) -> pa.Array:
        """Return the body of elements, null after the first of a row that decides."""
        decides = _DECIDED_BY[self.name]
        is_open = np.ones(int(rows.max()) + 1, np.bool_)
        values = pa.nulls(len(rows), pa.bool_())
        for position in range(int(position_in_row.max()) + 1):
            active = (position_in_row == position) & is_open[rows]
            active_elements = np.flatnonzero(active)
            active_columns = {
                name: column.take(pa.array(active_elements)) for name, column in columns.items()
            }
            results = self._evaluate_body(active_columns, rows[active_elements])
            values = pc.replace_with_mask(values, pa.array(active), results)
            is_open[rows[active_elements[values_of(results.fill_null(not decides)) == decides]]] = (
                False
            )
        return values


_DECIDED_BY = {"ArrayExists": True, "ArrayForAll": False}
"""Function → the value of an element that decides the result, so that later ones are skipped."""


def _check_result_type(result: pa.Array, call: Function | Form) -> pa.Array:
    """Return a result; raise if it is of a different type than Spark's."""
    if result.type != call.dtype:
        raise TypesError(f"{call} returns {result.type}, but Spark returns {call.dtype}")
    return result


# -- numbers


def _arithmetic_function(sign: str) -> Callable[[Function, pa.Array, pa.Array], pa.Array]:
    """Return the function ``left sign right``."""

    def evaluate(call: Function, left: pa.Array, right: pa.Array) -> pa.Array:
        return calculate(sign, Operand(values=left), Operand(values=right), call.overflow)

    return evaluate


def _integral_divide(call: Function, left: pa.Array, right: pa.Array) -> pa.Array:
    """Return the whole quotients of 64-bit integers, rounded towards zero."""
    dividend, divisor, mask = values_of(left), values_of(right), mask_of(left)
    overflows = (dividend == np.iinfo(np.int64).min) & (divisor == -1)
    mask = without(mask, divisor == 0, call.overflow, "DIVIDE_BY_ZERO", "division by zero")
    if call.overflow != "wrap":
        mask = without(
            mask, overflows, call.overflow, "ARITHMETIC_OVERFLOW", "the quotient is 2**63"
        )
    safe_divisor = np.where((divisor == 0) | overflows, 1, divisor)
    quotient = dividend // safe_divisor
    quotient += (quotient < 0) & (quotient * safe_divisor != dividend)
    return column_of(quotient, mask, pa.int64())


def _pmod(call: Function, left: pa.Array, right: pa.Array) -> pa.Array:
    """Return the remainders with the sign of the divisor where the dividend is negative."""
    if not pa.types.is_integer(left.type):
        raise TypesError("pmod")
    dividend, divisor = values_of(left), values_of(right)
    reason = "division by zero"
    mask = without(mask_of(left), divisor == 0, call.overflow, "REMAINDER_BY_ZERO", reason)
    wide_type = np.promote_types(dividend.dtype, np.int32)  # in which Java adds
    dividend, safe_divisor = (
        dividend.astype(wide_type),
        np.where(divisor == 0, 1, divisor).astype(wide_type),
    )
    with np.errstate(all="ignore"):
        remainder = np.fmod(dividend, safe_divisor)
        return column_of(
            np.where(remainder < 0, np.fmod(remainder + safe_divisor, safe_divisor), remainder),
            mask,
            left.type,
        )


def _bitwise_function(
    apply: Callable[[Any, Any], Any],
) -> Callable[[Function, pa.Array, pa.Array], pa.Array]:
    """Return a function of the bits of two integers."""

    def evaluate(_call: Function, left: pa.Array, right: pa.Array) -> pa.Array:
        return column_of(apply(values_of(left), values_of(right)), mask_of(right), left.type)

    return evaluate


def _round(call: Function, values: pa.Array) -> pa.Array:
    """Return numbers rounded to ``options[0]`` digits, half away from zero."""
    return _rounded_by(ROUND_HALF_UP, call, values)


def _bround(call: Function, values: pa.Array) -> pa.Array:
    """Return numbers rounded to ``options[0]`` digits, half to the even neighbour."""
    return _rounded_by(ROUND_HALF_EVEN, call, values)


def _rounded_by(rounding: str, call: Function, values: pa.Array) -> pa.Array:
    """Return numbers rounded to ``options[0]`` digits."""
    digits, shortest = call.options
    if pa.types.is_integer(values.type):
        return values  # digits are not negative
    if pa.types.is_decimal(values.type):
        drop = values.type.scale - call.dtype.scale
        half = rounded if rounding == ROUND_HALF_UP else _half_even
        return _decimals_of_integers(
            [half(value, drop) for value in unscaled(values)], values, call.dtype
        )
    with localcontext() as context:
        context.prec = 800
        step = Decimal(1).scaleb(-min(digits, 400))  # no double has more
        exact = float if pa.types.is_float64(values.type) else _short_float

        def apply(value: float) -> float:
            if not math.isfinite(value):
                return value
            text = text_of(exact(value), shortest=shortest)
            return float(Decimal(text).quantize(step, rounding)) + 0.0

        return each(apply, values.type, values)


def _short_float(value: float) -> float:
    """Return the double with the decimal digits of a 32-bit float."""
    return float(str(np.float32(value)))


def _half_even(value: int, drop: int) -> int:
    """Return an integer without its last digits, rounded half to the even neighbour."""
    step: int = 10**drop
    quotient, remainder = divmod(value, step)
    rounds_up: int = 2 * remainder > step or (2 * remainder == step and quotient % 2 == 1)
    return quotient + rounds_up


def _decimals_of_integers(integers: list[int], values: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return decimals of integers, which are valid where `values` are."""
    mask = mask_of(values)
    safe = (
        integers if mask is None else [v if ok else 0 for v, ok in zip(integers, mask, strict=True)]
    )
    return decimals_of(safe, mask, dtype)


def _ceil_or_floor(upwards: bool) -> Callable[[Function, pa.Array], pa.Array]:
    """Return ``ceil`` or ``floor``."""

    def evaluate(call: Function, values: pa.Array) -> pa.Array:
        if pa.types.is_integer(values.type):
            return values
        if pa.types.is_decimal(values.type):
            step = 10**values.type.scale
            rounded = [
                -(-integer // step) if upwards else integer // step for integer in unscaled(values)
            ]
            return _decimals_of_integers(rounded, values, call.dtype)
        numbers = values_of(values)
        numbers = np.ceil(numbers) if upwards else np.floor(numbers)
        mask = mask_of(values)
        if call.overflow != "wrap":
            overflows = np.abs(numbers.astype(np.float64)) >= float(1 << 63)
            overflows &= numbers != -float(1 << 63)
            reason = "a number does not fit 64 bits"
            mask = without(mask, overflows, call.overflow, "ARITHMETIC_OVERFLOW", reason)
        return column_of(saturated(numbers, np.dtype(np.int64)), mask, pa.int64())

    return evaluate


def _signum(_call: Function, values: pa.Array) -> pa.Array:
    """Return the sign of doubles; that of a zero or NaN is itself."""
    numbers = values_of(values)
    with np.errstate(invalid="ignore"):
        signs = np.where((numbers == 0) | np.isnan(numbers), numbers, np.sign(numbers))
    return column_of(signs, mask_of(values), values.type)


def _square_root(_call: Function, values: pa.Array) -> pa.Array:
    """Return square roots; NaN for negative numbers."""
    with np.errstate(invalid="ignore"):
        return column_of(np.sqrt(values_of(values)), mask_of(values), pa.float64())


def _logarithm_function(apply: Callable[[Any], Any]) -> Callable[[Function, pa.Array], pa.Array]:
    """Return a logarithm, which is null for numbers that are not positive."""

    def evaluate(_call: Function, values: pa.Array) -> pa.Array:
        numbers = values_of(values)
        mask = without(mask_of(values), numbers <= 0, "null", "", "")
        return column_of(apply(np.where(numbers <= 0, 1.0, numbers)), mask, pa.float64())

    return evaluate


def _exponential(_call: Function, values: pa.Array) -> pa.Array:
    """Return powers of e."""
    return column_of(java_math.exp(values_of(values)), mask_of(values), pa.float64())


def _power(call: Function, values: pa.Array) -> pa.Array:
    """Return powers of doubles; the exponent is ``options[0]``."""
    with np.errstate(all="ignore"):
        powers = POWERS[call.options[0]](values_of(values))
    return column_of(powers, mask_of(values), pa.float64())


POWERS: dict[float, Callable[[Any], Any]] = {
    -1.0: lambda x: 1.0 / x,
    0.0: np.ones_like,
    0.5: lambda x: np.where(np.isneginf(x), np.inf, np.sqrt(x + 0.0)),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
}
"""Exponent → the power of doubles, where Java takes no logarithm."""


def _width_bucket(call: Function, *columns: pa.Array) -> pa.Array:
    """Return the number of the bucket, of equal width, that contains a number."""
    value, low, high, count = (values_of(column) for column in columns)
    mask = mask_of(columns[-1])
    is_invalid = (count <= 0) | (count == np.iinfo(np.int64).max) | np.isnan(value) | (low == high)
    is_invalid |= ~np.isfinite(low) | ~np.isfinite(high)
    mask = without(mask, is_invalid, "null", "", "")
    first, last = np.minimum(low, high), np.maximum(low, high)
    with np.errstate(all="ignore"):
        distance = np.where(low < high, value - first, last - value)
        bucket = saturated(count.astype(np.float64) * distance / (last - first), np.dtype(np.int64))
        is_below = np.where(low < high, value < first, value > last)
        is_above = np.where(low < high, value >= last, value <= first)
        numbers = np.where(is_below, 0, np.where(is_above, count + 1, bucket + 1))
    return column_of(numbers, mask, call.dtype)


# -- text


def _upper(_call: Function, values: pa.Array) -> pa.Array:
    """Return text in upper case."""
    return _change_case(values, pc.ascii_upper, str.upper)


def _lower(_call: Function, values: pa.Array) -> pa.Array:
    """Return text in lower case."""
    return _change_case(values, pc.ascii_lower, str.lower)


def _change_case(
    values: pa.Array, plain: Callable[[pa.Array], pa.Array], full: Callable[[str], str]
) -> pa.Array:
    """Return text in another case: by `plain` if all of it is ASCII."""
    if pc.all(pc.string_is_ascii(values)).as_py() is not False:
        return plain(values)
    return each(full, values.type, values)


def _length(_call: Function, values: pa.Array) -> pa.Array:
    """Return the number of characters, or of bytes."""
    count = pc.binary_length if pa.types.is_binary(values.type) else pc.utf8_length
    return count(values).cast(pa.int32())


def _substring(_call: Function, values: pa.Array, position: pa.Array, length: pa.Array) -> pa.Array:
    """Return parts of text; a negative position counts from the end."""
    return each(part_of_text, pa.string(), values, position, length)


def _like(call: Function, values: pa.Array) -> pa.Array:
    """Return whether text matches the regular expression ``options[0]``."""
    pattern = re.compile(call.options[0], re.DOTALL)
    return each(lambda text: pattern.fullmatch(text) is not None, pa.bool_(), values)


def _text_function(apply: Callable[..., Any]) -> Callable[..., pa.Array]:
    """Return a function of texts that Python has too."""
    return lambda call, *columns: each(apply, call.dtype, *columns)


# -- structs and arrays


def _struct_field(call: Function, values: pa.Array) -> pa.Array:
    """Return the field number ``options[0]`` of structs."""
    return pc.struct_field(values, call.options[0])


def _array_item(call: Function, values: pa.Array, index: pa.Array) -> pa.Array:
    """Return an element of every array, counted from 0."""
    return _elements_at(call, values, index, values_of(index).astype(np.int64))


def _element_at(call: Function, values: pa.Array, index: pa.Array) -> pa.Array:
    """Return an element of every array, counted from 1, or from the end by negative numbers."""
    numbers = values_of(index).astype(np.int64)
    mask = mask_of(index)
    zero = numbers == 0 if mask is None else (numbers == 0) & mask
    if zero.any():
        raise EvaluationError(
            int(np.argmax(zero)), "element numbers begin at 1", "INVALID_INDEX_OF_ZERO"
        )
    lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    return _elements_at(call, values, index, np.where(numbers < 0, lengths + numbers, numbers - 1))


def _elements_at(call: Function, values: pa.Array, index: pa.Array, numbers: Integers) -> pa.Array:
    """Return elements by their numbers from 0; outside of the array: an error or null."""
    lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    outside = (numbers < 0) | (numbers >= lengths)
    condition = "INVALID_ARRAY_INDEX"
    if call.name == "ElementAt":
        condition += "_IN_ELEMENT_AT"
    reason = "the array has no such element"
    mask = without(mask_of(index), outside, call.overflow, condition, reason)
    starts = values.offsets.to_numpy()[:-1].astype(np.int64)
    positions = np.where(outside, 0, starts + numbers)
    if mask is not None:
        positions = np.where(mask, positions, 0)
    elements = values.values.take(pa.array(positions, mask=None if mask is None else ~mask))
    if not call.options:
        return elements
    return pc.if_else(pc.and_(pa.array(outside), index.is_valid()), call.options[0], elements)


# -- dates and times


def _days_of(values: pa.Array) -> Integers:
    """Return dates as days since 1970."""
    return values_of(values).astype(np.int64)


def _months_of(days: Integers) -> Integers:
    """Return the months since 1970 of days since 1970."""
    return days.astype("M8[D]").astype("M8[M]").astype(np.int64)


def _first_days(months: Integers) -> Integers:
    """Return the first days of months since 1970."""
    return months.astype("M8[M]").astype("M8[D]").astype(np.int64)


def _date_function(
    apply: Callable[[Integers], Integers],
) -> Callable[[Function, pa.Array], pa.Array]:
    """Return a function of a date's days since 1970."""

    def evaluate(call: Function, values: pa.Array) -> pa.Array:
        return column_of(apply(_days_of(values)), mask_of(values), call.dtype)

    return evaluate


def _time_of_day_field(unit: int, size: int) -> Callable[[Function, pa.Array], pa.Array]:
    """Return a field of the time of day: of `unit` microseconds, `size` of which make the next."""

    def evaluate(call: Function, values: pa.Array) -> pa.Array:
        local = local_times(values, call.zone)
        return column_of(local // unit % size, mask_of(values), pa.int32())

    return evaluate


def _add_days(sign: int) -> Callable[[Function, pa.Array, pa.Array], pa.Array]:
    """Return ``date_add`` or ``date_sub``, which wrap."""

    def evaluate(_call: Function, dates: pa.Array, days: pa.Array) -> pa.Array:
        moved = _days_of(dates) + sign * values_of(days).astype(np.int64)
        return column_of(moved.astype(np.int32), mask_of(days), pa.date32())

    return evaluate


def _date_difference(call: Function, end: pa.Array, start: pa.Array) -> pa.Array:
    """Return the days between dates, as a number or as an interval."""
    days = _days_of(end) - _days_of(start)
    if pa.types.is_duration(call.dtype):
        return column_of(days * _DAY_US, mask_of(start), call.dtype)
    return column_of(days.astype(np.int32), mask_of(start), call.dtype)


def _time_difference(call: Function, end: pa.Array, start: pa.Array) -> pa.Array:
    """Return the time between timestamps, by local time."""
    between = local_times(end, call.zone) - local_times(start, call.zone)
    return column_of(between, mask_of(start), call.dtype)


def _zero_where_null(times: pa.Array, numbers: Integers) -> Integers:
    """Return numbers that come from timestamps, with zeros where these are null."""
    mask = mask_of(times)
    return numbers if mask is None else np.where(mask, numbers, 0)


def _add_interval(call: Function, times: pa.Array, interval: pa.Array) -> pa.Array:
    """Return timestamps plus ``options[0]`` calendar days and an interval of microseconds."""
    start_us, added_us = (values_of(column).astype(np.int64) for column in (times, interval))
    days_us, by_local_clock = (
        call.options[0] * _DAY_US,
        times.type.tz and call.zone not in LOCAL_ZONES,
    )
    if days_us and by_local_clock:
        start_us, local = (
            _zero_where_null(times, v) for v in (start_us, local_times(times, call.zone))
        )
        start_us = instants_of(local + days_us, call.zone, preferred=local - start_us)
    else:
        added_us = added_us + days_us
    with np.errstate(over="ignore"):
        ends_us = start_us + added_us
    overflows = ((start_us ^ ends_us) & (added_us ^ ends_us)) < 0
    reason = "the timestamp does not fit 64 bits"
    mask = without(mask_of(interval), overflows, "error", "DATETIME_OVERFLOW", reason)
    return column_of(ends_us, mask, call.dtype)


def _add_months(_call: Function, dates: pa.Array, months: pa.Array) -> pa.Array:
    """Return dates some months later, on the last day of the month at most."""
    days = _days_of(dates)
    before = _months_of(days)
    after = before + values_of(months).astype(np.int64)
    first = _first_days(after)
    day = np.minimum(days - _first_days(before), _first_days(after + 1) - first - 1)
    return column_of(first + day, mask_of(months), pa.date32())


def _months_between(call: Function, *columns: pa.Array) -> pa.Array:
    """Return the months between timestamps, counting 31 days per month in fractions."""
    (years, days, seconds, is_last), other_parts = (
        _split_into_months(column, call.zone) for column in columns[:2]
    )
    whole_months = years - other_parts[0]
    same_day = (days == other_parts[1]) | (is_last & other_parts[3])
    fraction = ((days - other_parts[1]) * 86_400 + seconds - other_parts[2]) / (31 * 86_400.0)
    months = np.where(same_day, whole_months, whole_months + fraction)
    rounded_off = np.floor(months * 1e8 + 0.5) / 1e8
    rounds = ~same_day & values_of(columns[2])
    return column_of(np.where(rounds, rounded_off, months), mask_of(columns[2]), pa.float64())


def _split_into_months(times: pa.Array, zone: str) -> tuple[Integers, Integers, Integers, Any]:
    """Return the month since 1970, its day, the seconds of that, and whether it is the last day."""
    days = _zero_where_null(times, local_times(times, zone)) // _DAY_US
    months = _months_of(days)
    seconds = (_zero_where_null(times, values_of(times)) - days_begin(days, zone)) // 1_000_000
    return months, days - _first_days(months) + 1, seconds, days == _last_day(days)


def _last_day(days: Integers) -> Integers:
    """Return the last day of the month of every day."""
    return _first_days(_months_of(days) + 1) - 1


def _week_of_year(days: Integers) -> Integers:
    """Return the ISO week number of every day."""
    thursdays = days - (days + 3) % 7 + 3
    return (thursdays - _truncated_days(thursdays, "YEAR")) // 7 + 1


def _next_day(call: Function, dates: pa.Array) -> pa.Array:
    """Return the first later date that is day ``options[0]`` of the week, from Thursday on."""
    days = _days_of(dates)
    return column_of(days + 1 + (call.options[0] - 1 - days) % 7, mask_of(dates), pa.date32())


def _to_utc(call: Function, times: pa.Array) -> pa.Array:
    """Return the instants whose local time in zone ``options[0]`` is the given UTC time."""
    moments = instants_of(_zero_where_null(times, values_of(times)), call.options[0])
    return column_of(moments, mask_of(times), times.type)


def _from_utc(call: Function, times: pa.Array) -> pa.Array:
    """Return the instants whose UTC time is the given local time in zone ``options[0]``."""
    return column_of(local_times(times, call.options[0]), mask_of(times), times.type)


def _truncated_days(days: Integers, unit: str) -> Integers:
    """Return the first day of the week, month, quarter or year of every day."""
    if unit == "WEEK":
        return days - (days + 3) % 7
    months = _months_of(days)
    return _first_days(months - months % _MONTHS[unit])


def _truncate_date(call: Function, dates: pa.Array) -> pa.Array:
    """Return the first day of the unit ``options[0]``."""
    days = _truncated_days(_days_of(dates), call.options[0])
    return column_of(days, mask_of(dates), pa.date32())


def _truncate_time(call: Function, times: pa.Array) -> pa.Array:
    """Return the first instant of the unit ``options[0]``, by local time."""
    moments, unit = _zero_where_null(times, values_of(times)), call.options[0]
    local = _zero_where_null(times, local_times(times, call.zone))
    if unit not in _UNITS_US:
        moments = days_begin(_truncated_days(local // _DAY_US, unit), call.zone)
    elif _UNITS_US[unit] <= _UNITS_US["SECOND"]:
        moments = moments - moments % _UNITS_US[unit]
    else:
        first = local - local % _UNITS_US[unit]
        moments = instants_of(first, call.zone, preferred=local - moments)
    return column_of(moments, mask_of(times), times.type)


def _unix_time(
    unit: int, *, towards_zero: bool = False
) -> Callable[[Function, pa.Array], pa.Array]:
    """Return a timestamp as a number of units since 1970, rounded down or towards zero."""

    def evaluate(_call: Function, times: pa.Array) -> pa.Array:
        times_us = values_of(times)
        numbers = times_us // unit
        if towards_zero:
            numbers += (times_us < 0) & (times_us % unit != 0)
        return column_of(numbers, mask_of(times), pa.int64())

    return evaluate


def _from_unix(unit: int) -> Callable[[Function, pa.Array], pa.Array]:
    """Return the timestamp of a number of units since 1970."""

    def evaluate(call: Function, values: pa.Array) -> pa.Array:
        if not pa.types.is_integer(values.type):
            raise TypesError(call.name)
        numbers = values_of(values).astype(np.int64)
        limit = np.iinfo(np.int64).max // unit
        reason = "the timestamp does not fit 64 bits"
        overflows = (numbers > limit) | (numbers < -limit - (unit == 1))
        mask = without(mask_of(values), overflows, "error", "DATETIME_OVERFLOW", reason)
        with np.errstate(over="ignore"):
            return column_of(numbers * unit, mask, call.dtype)

    return evaluate


def _whole_difference(call: Function, start: pa.Array, end: pa.Array) -> pa.Array:
    """Return the whole units of ``options[0]`` microseconds, by local time."""
    unit = call.options[0]
    difference = local_times(end, call.zone) - local_times(start, call.zone)
    numbers = difference // unit
    numbers += (difference < 0) & (difference % unit != 0)
    return column_of(numbers, mask_of(end), pa.int64())


def _same_bits(call: Function, values: pa.Array) -> pa.Array:
    """Return timestamps as their microseconds, or the reverse."""
    return values.cast(pa.int64()).cast(call.dtype) if values.type != call.dtype else values


def _cast(call: Function, values: pa.Array) -> pa.Array:
    """Return values, or the elements of arrays, in another type."""
    convert = partial(cast, overflow=call.overflow, zone=call.zone, shortest=any(call.options))
    if not pa.types.is_list(call.dtype):
        return convert(values, call.dtype)
    rows, elements = rows_and_elements(values)
    try:
        converted = convert(elements, call.dtype.value_type)
    except EvaluationError as error:
        raise EvaluationError(int(rows[error.row]), error.reason, error.condition) from error
    return lists_of_rows(rows, converted, values, call.dtype)


def _negated(values: pa.Array, overflow: Overflow) -> pa.Array:
    """Return values with the other sign; Spark rounds decimals to 34 digits, half to even."""
    result = negate(values, overflow)
    if not pa.types.is_decimal(values.type) or values.type.precision <= _EXACT_DIGITS:
        return result
    mask = mask_of(values)
    numbers = unscaled(result)
    for row in range(len(numbers)) if mask is None else np.flatnonzero(mask).tolist():
        step = 10 ** max(len(str(abs(numbers[row]))) - _EXACT_DIGITS, 0)
        kept_digits, dropped_digits = divmod(numbers[row], step)
        numbers[row] = (kept_digits + (2 * dropped_digits + kept_digits % 2 > step)) * step
    fits = np.array([abs(number) < 10**values.type.precision for number in numbers], np.bool_)
    is_known = fits if mask is None else fits & mask
    safe_numbers = [
        number if is_fitting else 0
        for number, is_fitting in zip(numbers, is_known.tolist(), strict=True)
    ]
    return decimals_of(safe_numbers, is_known, values.type)


def _absolute(values: pa.Array, overflow: Overflow) -> pa.Array:
    """Return values without their sign; of decimals, Spark negates those below zero."""
    if not pa.types.is_decimal(values.type):
        return absolute(values, overflow)
    below = pc.less(values, pa.scalar(0, values.type))
    return pc.if_else(below, _negated(values, overflow), values)


_EXACT_DIGITS = 34
_DIVISIONS = frozenset({"Divide", "Remainder", "IntegralDivide", "Pmod"})
FUNCTIONS: dict[str, Callable[..., pa.Array]] = {
    **ARRAYS,
    **TEXTS,
    "Abs": lambda call, values: _absolute(values, call.overflow),
    "Add": _arithmetic_function("+"),
    "AddMonths": _add_months,
    "BRound": _bround,
    "BitwiseAnd": _bitwise_function(np.bitwise_and),
    "BitwiseNot": lambda _, v: column_of(~values_of(v), mask_of(v), v.type),
    "BitwiseOr": _bitwise_function(np.bitwise_or),
    "BitwiseXor": _bitwise_function(np.bitwise_xor),
    "Cast": _cast,
    "Ceil": _ceil_or_floor(upwards=True),
    "Contains": _text_function(lambda text, part: part in text),
    "DateAdd": _add_days(1),
    "DateDiff": _date_difference,
    "DateSub": _add_days(-1),
    "DayOfMonth": _date_function(lambda days: days - _first_days(_months_of(days)) + 1),
    "DayOfWeek": _date_function(lambda days: (days + 4) % 7 + 1),
    "DayName": lambda _, dates: named_day(_days_of(dates), mask_of(dates)),
    "DayOfYear": _date_function(lambda days: days - _truncated_days(days, "YEAR") + 1),
    "Divide": _arithmetic_function("/"),
    "Exp": _exponential,
    "ElementAt": _element_at,
    "EndsWith": _text_function(str.endswith),
    "Floor": _ceil_or_floor(upwards=False),
    "FromUTCTimestamp": _from_utc,
    "GetArrayItem": _array_item,
    "GetStructField": _struct_field,
    "Hour": _time_of_day_field(_UNITS_US["HOUR"], 24),
    "IntegralDivide": _integral_divide,
    "KnownFloatingPointNormalized": lambda _, values: values,
    "KnownNotContainsNull": lambda _, values: values,
    "KnownNotNull": lambda _, values: values,
    "KnownNullable": lambda _, values: values,
    "LastDay": _date_function(_last_day),
    "Length": _length,
    "Like": _like,
    "Log": _logarithm_function(java_math.log),
    "Log10": _logarithm_function(java_math.log10),
    "Log2": _logarithm_function(java_math.log2),
    "Lower": _lower,
    "MicrosToTimestamp": _from_unix(1),
    "MillisToTimestamp": _from_unix(1_000),
    "Minute": _time_of_day_field(_UNITS_US["MINUTE"], 60),
    "Month": _date_function(lambda days: _months_of(days) % 12 + 1),
    "MonthsBetween": _months_between,
    "MonthName": lambda _, dates: named_month(_months_of(_days_of(dates)), mask_of(dates)),
    "Multiply": _arithmetic_function("*"),
    "NextDay": _next_day,
    "NormalizeNaNAndZero": lambda _, values: canonical_floats(values),
    "Pmod": _pmod,
    "Pow": _power,
    "PreciseTimestampConversion": _same_bits,
    "Quarter": _date_function(lambda days: _months_of(days) % 12 // 3 + 1),
    "Remainder": _arithmetic_function("%"),
    "Round": _round,
    "Second": _time_of_day_field(_UNITS_US["SECOND"], 60),
    "SecondsToTimestamp": _from_unix(1_000_000),
    "Signum": _signum,
    "Sqrt": _square_root,
    "StartsWith": _text_function(str.startswith),
    "StringReplace": _text_function(lambda text, old, new: text.replace(old, new) if old else text),
    "StringTrim": _text_function(lambda text: text.strip(" ")),
    "StringTrimLeft": _text_function(lambda text: text.lstrip(" ")),
    "StringTrimRight": _text_function(lambda text: text.rstrip(" ")),
    "Substring": _substring,
    "Subtract": _arithmetic_function("-"),
    "SubtractDates": _date_difference,
    "SubtractTimestamps": _time_difference,
    "TimestampAddInterval": _add_interval,
    "TimestampDiff": _whole_difference,
    "ToUTCTimestamp": _to_utc,
    "TruncDate": _truncate_date,
    "TruncTimestamp": _truncate_time,
    "UnaryMinus": lambda call, values: _negated(values, call.overflow),
    "UnixDate": lambda _, values: column_of(values_of(values), mask_of(values), pa.int32()),
    "UnixMicros": _unix_time(1),
    "UnixMillis": _unix_time(1_000),
    "UnixSeconds": _unix_time(1_000_000),
    "UnixTimestamp": _unix_time(1_000_000, towards_zero=True),
    "Upper": _upper,
    "WeekOfYear": _date_function(_week_of_year),
    "WidthBucket": _width_bucket,
    "WeekDay": _date_function(lambda days: (days + 3) % 7),
    "Year": _date_function(
        lambda days: days.astype("M8[D]").astype("M8[Y]").astype(np.int64) + 1970
    ),
}
"""Spark's expression class → its function of columns that are null where an operand is."""


# -- forms


def _comparison_function(sign: str) -> Callable[[Form, Rows], pa.Array]:
    """Return a comparison, null for a null operand."""

    def evaluate(call: Form, rows: Rows) -> pa.Array:
        left = call.arguments[0].evaluate(rows)
        return compare(sign, left, values_after(left, call.arguments[1], rows))

    return evaluate


def _null_safe_equal(call: Form, rows: Rows) -> pa.Array:
    """Return whether two values are equal, or both null."""
    left, right = (argument.evaluate(rows) for argument in call.arguments)
    both_null = pc.and_(left.is_null(), right.is_null())
    return pc.or_(compare("=", left, right).fill_null(False), both_null)


def _is_in(call: Form, rows: Rows) -> pa.Array:
    """Return whether the first value is one of the others; null if that depends on a null."""
    value, *others = call.arguments
    values = value.evaluate(rows)
    result = pc.if_else(values.is_valid(), pa.scalar(False), pa.scalar(None, pa.bool_()))
    rows = rows.where(values.is_valid())
    for other in others:
        equal = compare("=", values, other.evaluate(rows))
        result = pc.or_kleene(result, equal)
        rows = rows.where(pc.invert(equal.fill_null(False)))
    return pc.if_else(values.is_valid(), result, None)


def _coalesce(call: Form, rows: Rows) -> pa.Array:
    """Return the first value that is not null."""
    result = call.arguments[0].evaluate(rows)
    for argument in call.arguments[1:]:
        rows = rows.where(result.is_null())
        result = pc.if_else(result.is_valid(), result, argument.evaluate(rows))
    return result


def _least_or_greatest(sign: str) -> Callable[[Form, Rows], pa.Array]:
    """Return the smallest (``<``) or largest (``>``) of values that are not null."""

    def evaluate(call: Form, rows: Rows) -> pa.Array:
        best, *others = (argument.evaluate(rows) for argument in call.arguments)
        for values in others:
            is_better = pc.or_kleene(best.is_null(), compare(sign, values, best))
            best = pc.if_else(
                pc.and_kleene(is_better, values.is_valid()).fill_null(False), values, best
            )
        return best

    return evaluate


def _is_nan(call: Form, rows: Rows) -> pa.Array:
    """Return whether numbers are NaN; false for null."""
    return pc.is_nan(call.arguments[0].evaluate(rows)).fill_null(False)


def _unless_nan(call: Form, rows: Rows) -> pa.Array:
    """Return the first number, or the second where the first is NaN."""
    first = call.arguments[0].evaluate(rows)
    is_nan = pc.is_nan(first).fill_null(False)
    return pc.if_else(is_nan, call.arguments[1].evaluate(rows.where(is_nan)), first)


def _concat(call: Form, rows: Rows) -> pa.Array:
    """Concatenate texts or arrays; null if one of them is null."""
    if not pa.types.is_list(call.dtype):
        texts = [argument.evaluate(rows) for argument in call.arguments]
        return pc.binary_join_element_wise(*texts, pa.scalar("", pa.string()))
    columns = [call.arguments[0].evaluate(rows)]
    is_valid = columns[0].is_valid()
    for argument in call.arguments[1:]:  # after a null, Spark looks at no further one
        columns.append(argument.evaluate(rows.where(is_valid)))
        is_valid = pc.and_(is_valid, columns[-1].is_valid())
    parts = [rows_and_elements(column) for column in columns]
    row_of_element = np.concatenate([number for number, _ in parts])
    elements = pa.concat_arrays([part.cast(call.dtype.value_type) for _, part in parts])
    row_is_valid = values_of(is_valid)[row_of_element]
    order = np.argsort(row_of_element, kind="stable")
    order = order[row_is_valid[order]]
    validity = pc.if_else(is_valid, True, None)
    return lists_of_rows(
        row_of_element[order], elements.take(pa.array(order)), validity, call.dtype
    )


def _concat_with(call: Form, rows: Rows) -> pa.Array:
    """Join texts, and the texts in arrays, with the first as separator; nulls are skipped."""
    delimiter, *columns = (argument.evaluate(rows) for argument in call.arguments)
    rows_of_columns, texts = [np.empty(0, np.int64)], [pa.array([], pa.string())]
    for column in columns:
        is_list = pa.types.is_list(column.type)
        row_of_text, values = (
            rows_and_elements(column) if is_list else (np.arange(len(column)), column)
        )
        not_null = np.flatnonzero(values_of(values.is_valid()))
        rows_of_columns.append(row_of_text[not_null])
        texts.append(values.take(pa.array(not_null)).cast(pa.string()))
    row_of_text_all = np.concatenate(rows_of_columns)
    order = np.argsort(row_of_text_all, kind="stable")
    ordered = pa.concat_arrays(texts).take(pa.array(order))
    return pc.binary_join(
        lists_of_rows(row_of_text_all[order], ordered, delimiter, pa.list_(pa.string())), delimiter
    )


def _named_struct(call: Form, rows: Rows) -> pa.Array:
    """Return structs of all values."""
    columns = [argument.evaluate(rows) for argument in call.arguments]
    return pa.StructArray.from_arrays(columns, fields=list(call.dtype))


def _array(call: Form, rows: Rows) -> pa.Array:
    """Return arrays of all values."""
    columns = [argument.evaluate(rows) for argument in call.arguments]
    width, length = len(columns), len(columns[0])
    positions = np.arange(width * length).reshape(width, length).T.ravel()
    offsets = pa.array(np.arange(length + 1, dtype=np.int32) * width)
    values = pa.concat_arrays(columns).take(pa.array(positions))
    return pa.ListArray.from_arrays(offsets, values, type=call.dtype)


def _array_repeat(call: Form, rows: Rows) -> pa.Array:
    """Return arrays that repeat one value; null where the count is null."""
    element, number = call.arguments
    times = rows.needed(number.evaluate(rows))
    values = element.evaluate(rows.where(times.is_valid()))
    counts = np.maximum(values_of(times.fill_null(0)).astype(np.int64), 0)
    repeated_rows = np.repeat(np.arange(len(counts)), counts)
    return lists_of_rows(repeated_rows, values.take(pa.array(repeated_rows)), times, call.dtype)


def _append_or_prepend(call: Form, rows: Rows) -> pa.Array:
    """Return arrays with another element: first or last, by ``options[0]``."""
    lists = call.arguments[0].evaluate(rows)
    items = call.arguments[1].evaluate(rows.where(lists.is_valid()))
    row_of_element, elements = rows_and_elements(lists)
    valid_rows = np.flatnonzero(values_of(lists.is_valid()))
    parts = [
        (row_of_element, elements),
        (valid_rows, items.take(pa.array(valid_rows)).cast(elements.type)),
    ]
    if not call.options[0]:
        parts.reverse()
    all_rows = np.concatenate([number for number, _ in parts])
    order = np.argsort(all_rows, kind="stable")
    values = pa.concat_arrays([values for _, values in parts]).take(pa.array(order))
    return lists_of_rows(all_rows[order], values, lists, call.dtype)


def _hash_function(
    apply: Callable[[list[pa.Array], int], pa.Array],
) -> Callable[[Form, Rows], pa.Array]:
    """Return a hash of all values, ignoring nulls; its seed: ``options[0]``."""
    return lambda call, rows: apply([a.evaluate(rows) for a in call.arguments], call.options[0])


FORMS: dict[str, Callable[[Form, Rows], pa.Array]] = {
    "ArrayInsert": _append_or_prepend,
    "ArrayRepeat": _array_repeat,
    "Coalesce": _coalesce,
    "Concat": _concat,
    "ConcatWs": _concat_with,
    "CreateArray": _array,
    "CreateNamedStruct": _named_struct,
    "EqualNullSafe": _null_safe_equal,
    "EqualTo": _comparison_function("="),
    "GreaterThan": _comparison_function(">"),
    "GreaterThanOrEqual": _comparison_function(">="),
    "Greatest": _least_or_greatest(">"),
    "In": _is_in,
    "InSet": _is_in,
    "IsNaN": _is_nan,
    "Least": _least_or_greatest("<"),
    "LessThan": _comparison_function("<"),
    "LessThanOrEqual": _comparison_function("<="),
    "Murmur3Hash": _hash_function(murmur3),
    "NaNvl": _unless_nan,
    "XxHash64": _hash_function(xxhash64),
}
"""Spark's expression class → its function of rows."""


# -- rows without a value


def evaluated(expression: Expression, text: str, rows: Rows) -> pa.Array:
    """Evaluate an expression; raise `EpochFailedError` where a row has no value."""
    try:
        return expression.evaluate(rows)
    except EvaluationError as error:
        raise EpochFailedError(
            f"[{error.condition}] {text} has no value for a row: {error.reason}.",
            remedy="Correct the row or the expression, as for Spark in ANSI mode: try_add, "
            "try_divide, try_cast and similar functions return null instead.",
            condition=error.condition,
            expression=text,
        ) from error


def truth_of(condition: Expression, text: str, rows: Rows) -> pa.Array:
    """Evaluate a condition, with errors as in `evaluated`."""
    evaluated(condition, text, rows)
    return truth(condition, rows)


__all__ = [
    "DATE_UNITS",
    "DIFFERENCES_US",
    "FORMS",
    "FUNCTIONS",
    "LOCAL_ZONES",
    "TIME_UNITS",
    "Constant",
    "Form",
    "Function",
    "Lambda",
    "evaluated",
    "truth_of",
]
