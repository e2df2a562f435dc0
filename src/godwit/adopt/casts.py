"""Casts between types of columns, only those that are proven equal to Spark's.

A value that the new type cannot hold is an error in ANSI mode (``CAST_OVERFLOW``,
``CAST_INVALID_INPUT``), null in ``try_cast``, and without ANSI wraps if it is an integer that
becomes an integer, and is null else.  `CASTS` has the pairs of types; others are refused when an
expression is read.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.adopt.java_numbers import text_of
from godwit.columns.arrays import BoolArray, column_of, mask_of, values_of
from godwit.columns.python_values import zone_of
from godwit.library.aggregates.arithmetic import (
    EvaluationError,
    Overflow,
    TypesError,
    as_doubles,
    decimals_of,
    rounded,
    unscaled,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_SECOND_US, _DAY_US = 1_000_000, 86_400_000_000


class FunctionSpec(Protocol):
    """Type, zone and options of a function of columns."""

    @property
    def dtype(self) -> pa.DataType:
        """Type of the result."""

    @property
    def zone(self) -> str:
        """Time zone of the session."""

    @property
    def options(self) -> tuple[Any, ...]:
        """Constant arguments, such as a pattern."""


LOCAL_ZONES = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00", "UTC+00:00", "GMT+00:00"})
"""Names of time zones that equal UTC."""
_FIRST_KNOWN, _LAST_KNOWN = -2_208_988_800_000_000, 2_145_916_800_000_000  # 1900 to 2038
"""Range of times for which Arrow knows the rules of a zone."""
_BELOW_FLOATS = (1 << 29) - 1  # bits of a double that a float does not have
_WIDE = Context(prec=80)
_LONG = Context(prec=400)  # of any double
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_PERIOD_US = 146_097 * _DAY_US
_FIRST_SHOWN = -62_135_510_400_000_000  # the second day of year 1
_WHOLE = re.compile(r"[+-]?\d+(\.\d*)?|[+-]?\.\d+|[+-]?\.")
_USUAL_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_DATE = re.compile(
    r"(?P<sign>[+-]?)(?P<year>[0-9]{4,7})"
    r"(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})(?:[ T].*)?)?)?",
    re.DOTALL,
)
_TRUE = frozenset({"t", "true", "y", "yes", "1"})
_FALSE = frozenset({"f", "false", "n", "no", "0"})
_SPACE = "".join(map(chr, range(0x21))) + "\x7f"  # that Spark trims from text before a cast


def without(
    mask: BoolArray | None, wrong: BoolArray, overflow: Overflow, condition: str, reason: str
) -> BoolArray | None:
    """Return a mask of values without the wrong ones; in ANSI mode raise for the first of them.

    `mask`: shape ``(N,)``, true where no operand is null; ``None``: everywhere.
    """
    if mask is not None:
        wrong = wrong & mask
    if not wrong.any():
        return mask
    if overflow == "error":
        raise EvaluationError(int(np.argmax(wrong)), reason, condition)
    return ~wrong if mask is None else mask & ~wrong


def local_times(values: pa.Array, zone: str) -> npt.NDArray[np.int64]:
    """Return timestamps as local times of a zone, in microseconds since 1970."""
    instants = values_of(values)
    if values.type.tz is None or zone in LOCAL_ZONES:
        return instants
    valid = mask_of(values)
    is_known_year = (instants >= _FIRST_KNOWN) & (instants < _LAST_KNOWN)
    known_instants = column_of(np.where(is_known_year, instants, 0), None, pa.timestamp("us", zone))
    local = values_of(pc.local_timestamp(known_instants)).copy()
    time_zone = zone_of(zone)
    for row in np.flatnonzero(~is_known_year if valid is None else ~is_known_year & valid).tolist():
        # The rules of the present continue, and calendars repeat after 400 years.
        periods = max((int(instants[row]) - _LAST_KNOWN) // _PERIOD_US, 0)
        mapped = max(int(instants[row]) - periods * _PERIOD_US, _FIRST_SHOWN)
        mapped_utc = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=mapped)
        offset = mapped_utc.astimezone(time_zone).utcoffset() or dt.timedelta()
        local[row] = instants[row] + offset // dt.timedelta(microseconds=1)
    return local


def instants_of(
    local: npt.NDArray[np.int64], zone: str, preferred: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int64]:
    """Return local times of a zone as instants, in microseconds since 1970.

    A time that the clock shows twice is the first of both, or the one at the `preferred` difference
    from UTC; one that it skips is as much later as it skips.  So Java resolves them.
    """
    if zone in LOCAL_ZONES:
        return local
    offset_before, offset_after = (offsets_at(local + step, zone) for step in (-_DAY_US, _DAY_US))
    first, second = local - offset_before, local - offset_after
    is_second = (offsets_at(first, zone) != offset_before) & (
        offsets_at(second, zone) == offset_after
    )
    result = np.where(is_second, second, first)
    if preferred is None:
        return result
    preferred_instants = local - preferred
    return np.where(offsets_at(preferred_instants, zone) == preferred, preferred_instants, result)


def offsets_at(moments: npt.NDArray[np.int64], zone: str) -> npt.NDArray[np.int64]:
    """Return the UTC offsets of a zone at instants, in microseconds."""
    return local_times(column_of(moments, None, pa.timestamp("us", "UTC")), zone) - moments


def days_begin(days: npt.NDArray[np.int64], zone: str) -> npt.NDArray[np.int64]:
    """Return the instants at which days since 1970 begin in a zone."""
    midnight = days * _DAY_US
    begins = instants_of(midnight, zone)
    if zone in LOCAL_ZONES:
        return begins
    for row in np.flatnonzero(begins + offsets_at(begins, zone) != midnight).tolist():
        low, high = begins[row] - _DAY_US, begins[row]  # the clock skips midnight in between
        shown = offsets_at(np.array([high]), zone)
        while high - low > 1:
            middle = (low + high) // 2
            is_after = offsets_at(np.array([middle]), zone) == shown
            low, high = (low, middle) if is_after else (middle, high)
        begins[row] = high
    return begins


def saturated(numbers: npt.NDArray[np.floating], dtype: np.dtype[Any]) -> npt.NDArray[np.int64]:
    """Return doubles as integers as Java does: NaN is 0, and others are cut to the type's range."""
    info = np.iinfo(dtype)
    wide = numbers.astype(np.float64)
    low, high = wide <= float(info.min), wide >= float(info.max)
    safe = np.where(low | high | np.isnan(wide), 0, wide).astype(np.int64)
    return np.where(low, info.min, np.where(high, info.max, safe))


def is_proven(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a cast is supported, with the same result as Spark's."""
    if source == target or pa.types.is_null(source):
        return True
    pair = (_kind_of_type(source), _kind_of_type(target))
    return pair in CASTS or pair in FROM_FLOATS


def cast(
    values: pa.Array, dtype: pa.DataType, overflow: Overflow, zone: str, *, shortest: bool = False
) -> pa.Array:
    """Return values in type `dtype`, null where they are.

    `zone`: the session's, for timestamps. `shortest`: of Java's texts of floats.
    """
    if values.type == dtype:
        return values
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), dtype)
    pair = (_kind_of_type(values.type), _kind_of_type(dtype))
    if pair in FROM_FLOATS:
        return FROM_FLOATS[pair](values, dtype, overflow, shortest)
    if pair not in CASTS:
        raise TypesError(f"{values.type} as {dtype}")
    if "timestamp" in pair:
        return _TIMED[pair](values, dtype, zone)
    return CASTS[pair](values, dtype, overflow)


def _kind_of_type(dtype: pa.DataType) -> str:
    """Return the kind of a type, which determines how it is cast."""
    if pa.types.is_signed_integer(dtype):
        return "integer"
    for kind, test in (
        ("double", pa.types.is_floating),
        ("decimal", pa.types.is_decimal),
        ("boolean", pa.types.is_boolean),
        ("string", pa.types.is_string),
        ("binary", pa.types.is_binary),
        ("date", pa.types.is_date),
        ("interval", pa.types.is_duration),
    ):
        if test(dtype):
            return kind
    if pa.types.is_timestamp(dtype):
        return "timestamp" if dtype.tz else "timestamp_ntz"
    return str(dtype)


def _integer_bounds(dtype: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type."""
    return -(1 << (dtype.bit_width - 1)), (1 << (dtype.bit_width - 1)) - 1


def _integers_to_integers(values: pa.Array, dtype: pa.DataType, overflow: Overflow) -> pa.Array:
    """Cast integers to integers."""
    numbers, mask = values_of(values), mask_of(values)
    low, high = _integer_bounds(dtype)
    if dtype.bit_width < values.type.bit_width and overflow != "wrap":
        wrong = (numbers < low) | (numbers > high)
        mask = without(mask, wrong, overflow, "CAST_OVERFLOW", f"a number does not fit {dtype}")
    return column_of(numbers, mask, dtype)


def _to_floats(values: pa.Array, dtype: pa.DataType, _overflow: Overflow) -> pa.Array:
    """Cast integers, booleans and floats to floats."""
    with np.errstate(over="ignore"):
        return column_of(values_of(values), mask_of(values), dtype)


def _floats_to_integers(values: pa.Array, dtype: pa.DataType, overflow: Overflow) -> pa.Array:
    """Cast floats to integers, towards zero."""
    numbers, mask = values_of(values).astype(np.float64), mask_of(values)
    low, high = _integer_bounds(dtype)
    if overflow == "wrap":
        size = np.dtype(np.int64 if dtype.bit_width == 64 else np.int32)
        return column_of(saturated(numbers, size), mask, dtype)
    with np.errstate(invalid="ignore"):
        inside = (np.floor(numbers) <= float(high)) & (np.ceil(numbers) >= float(low))
    mask = without(mask, ~inside, overflow, "CAST_OVERFLOW", f"a number does not fit {dtype}")
    return column_of(saturated(np.where(inside, numbers, 0), np.dtype(np.int64)), mask, dtype)


def _numbers_to_booleans(values: pa.Array, dtype: pa.DataType, _overflow: Overflow) -> pa.Array:
    """Cast numbers to booleans."""
    return column_of(values_of(values) != 0, mask_of(values), dtype)


def _decimals_to_truth(values: pa.Array, dtype: pa.DataType, _overflow: Overflow) -> pa.Array:
    """Cast decimals to booleans."""
    truth = np.array([value != 0 for value in unscaled(values)], np.bool_)
    return column_of(truth, mask_of(values), dtype)


def _to_decimals(values: pa.Array, dtype: pa.DataType, overflow: Overflow) -> pa.Array:
    """Cast integers and booleans to decimals."""
    step = 10**dtype.scale
    return _decimals_that_fit(
        [int(v) * step for v in values_of(values).tolist()], values, dtype, overflow
    )


def _between_decimals(values: pa.Array, dtype: pa.DataType, overflow: Overflow) -> pa.Array:
    """Cast decimals to decimals, rounded half away from zero."""
    drop = values.type.scale - dtype.scale
    return _decimals_that_fit([rounded(v, drop) for v in unscaled(values)], values, dtype, overflow)


def _decimals_that_fit(
    integers: list[int], values: pa.Array, dtype: pa.DataType, overflow: Overflow
) -> pa.Array:
    """Return decimals from their unscaled integers, if they fit."""
    bound = 10**dtype.precision
    overflows = np.array([not -bound < value < bound for value in integers], np.bool_)
    reason = f"a number does not fit decimal({dtype.precision}, {dtype.scale})"
    mask = without(mask_of(values), overflows, overflow, "NUMERIC_VALUE_OUT_OF_RANGE", reason)
    safe = [
        0 if is_overflow else value for value, is_overflow in zip(integers, overflows, strict=True)
    ]
    return decimals_of(safe, mask, dtype)


def _decimals_to_integers(values: pa.Array, dtype: pa.DataType, overflow: Overflow) -> pa.Array:
    """Cast decimals to integers, towards zero."""
    step = 10**values.type.scale
    truncated = [abs(value) // step * (1 if value >= 0 else -1) for value in unscaled(values)]
    low, high = _integer_bounds(dtype)
    mask = mask_of(values)
    if overflow != "wrap":
        overflows = np.array([not low <= value <= high for value in truncated], np.bool_)
        mask = without(mask, overflows, overflow, "CAST_OVERFLOW", f"a number does not fit {dtype}")
    wrapped = [(value + (1 << 63)) % (1 << 64) - (1 << 63) for value in truncated]
    return column_of(np.array(wrapped, np.int64), mask, dtype)


def _decimals_to_doubles(values: pa.Array, dtype: pa.DataType, _overflow: Overflow) -> pa.Array:
    """Cast decimals to floats."""
    doubles = as_doubles(values)
    if pa.types.is_float64(dtype):
        return doubles
    numbers, mask = values_of(doubles), mask_of(values)
    floats = numbers.astype(np.float32)
    halves = numbers.view(np.int64) & _BELOW_FLOATS == (_BELOW_FLOATS + 1) // 2
    for row in np.flatnonzero(halves if mask is None else halves & mask).tolist():
        exact, half = values[row].as_py(), Decimal(float(numbers[row]))
        if exact == half:
            continue
        is_upper = float(floats[row]) > half  # the neighbour that the double was rounded to
        if is_upper != (exact > half):  # and the decimal is on the other side of the half
            floats[row] = np.nextafter(floats[row], np.float32(np.inf if exact > half else -np.inf))
    return column_of(floats, mask, dtype)


def _text_to_integers(values: pa.Array, dtype: pa.DataType, overflow: Overflow) -> pa.Array:
    """Cast text to integers; digits after a point count only without ANSI, and are dropped."""
    low, high = _integer_bounds(dtype)
    numbers, is_invalid = np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    for row, text in enumerate(values.to_pylist()):
        if text is None:
            continue
        trimmed = text.strip(_SPACE)
        is_strict = overflow != "wrap"
        number = None
        if trimmed.isascii() and _WHOLE.fullmatch(trimmed) and not (is_strict and "." in trimmed):
            whole_digits = trimmed.split(".")[0]
            number = int(whole_digits) if whole_digits.strip("+-") else 0
        if number is None or not low <= number <= high:
            is_invalid[row] = True
        else:
            numbers[row] = number
    reason = f"a text cannot be cast to {dtype}"
    return column_of(
        numbers, without(mask_of(values), is_invalid, overflow, "CAST_INVALID_INPUT", reason), dtype
    )


def _text_to_dates(values: pa.Array, dtype: pa.DataType, overflow: Overflow) -> pa.Array:
    """Cast text to dates: a year, a month and a day, of which the last two may be missing."""
    if pc.all(pc.match_substring_regex(values, _USUAL_DATE)).as_py() is not False:
        try:
            return values.cast(dtype)
        except pa.ArrowInvalid:  # such as the 30th of February
            pass
    read = [None if text is None else _day_of(text.strip(_SPACE)) for text in values.to_pylist()]
    days = np.array([day or 0 for day in read], np.int64)
    wrong = np.array([day is None for day in read], np.bool_)
    reason = "a text cannot be cast to a date"
    mask = without(mask_of(values), wrong, overflow, "CAST_INVALID_INPUT", reason)
    return column_of(days, mask, dtype)


def _day_of(text: str) -> int | None:
    """Return the days since 1970 of a date, which a time may follow."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    year, month, day = (int(match[part] or 1) for part in ("year", "month", "day"))
    periods, year = divmod(-year if match["sign"] == "-" else year, 400)  # as calendars repeat
    try:
        first = dt.date(year + 400, month, day)
    except ValueError:
        return None
    days = first.toordinal() - _EPOCH_DAY + (periods - 1) * (_PERIOD_US // _DAY_US)
    return days if abs(days) < 1 << 31 else None


def _text_to_truth(values: pa.Array, dtype: pa.DataType, overflow: Overflow) -> pa.Array:
    """Cast text to booleans."""
    words = [None if text is None else text.strip(_SPACE).lower() for text in values.to_pylist()]
    truth = np.array([word in _TRUE for word in words], np.bool_)
    wrong = np.array([w is not None and w not in _TRUE | _FALSE for w in words], np.bool_)
    reason = "a text cannot be cast to a boolean"
    mask = without(mask_of(values), wrong, overflow, "CAST_INVALID_INPUT", reason)
    return column_of(truth, mask, dtype)


def _to_text(show: Callable[..., list[str]]) -> Callable[..., pa.Array]:
    """Return a cast to text by a function of values, some of which are arbitrary."""

    def apply(values: pa.Array, dtype: pa.DataType, overflow: Overflow) -> pa.Array:
        mask = mask_of(values)
        texts = show(values, overflow)
        return pa.array(texts, dtype, mask=None if mask is None else ~mask)

    return apply


def year_as_text(year: int) -> str:
    """Format a year as Java's ``uuuu``: with a plus if it has five digits."""
    return f"+{year}" if year > 9999 else f"{year:0{4 + (year < 0)}d}"


def dates_as_text(days: npt.NDArray[np.int64]) -> list[str]:
    """Return days since 1970 as text."""
    texts = np.datetime_as_string(days.astype("M8[D]")).tolist()
    return [f"{year_as_text(int(text[:-6]))}{text[-6:]}" for text in texts]


def _times_as_text(times: npt.NDArray[np.int64]) -> list[str]:
    """Return microseconds since 1970 as text, without zeros at the end of the fraction."""
    dates = dates_as_text(times // _DAY_US)
    texts = []
    for date, time_of_day_us in zip(dates, (times % _DAY_US).tolist(), strict=True):
        seconds, fraction = divmod(time_of_day_us, _SECOND_US)
        text = f"{date} {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        texts.append(f"{text}.{fraction:06}".rstrip("0") if fraction else text)
    return texts


def decimals_as_text(values: pa.Array, overflow: Overflow) -> list[str]:
    """Return decimals as text, without ANSI with an exponent if they are small."""
    scale, texts = values.type.scale, []
    if overflow == "wrap":
        return [str(Decimal(value).scaleb(-scale, _WIDE)) for value in unscaled(values)]
    for value in unscaled(values):
        digits = str(abs(value)).zfill(scale + 1)
        text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
        texts.append(f"-{text}" if value < 0 else text)
    return texts


def _floats_as_text(
    values: pa.Array, dtype: pa.DataType, _overflow: Overflow, shortest: bool
) -> pa.Array:
    """Return floats as Java writes them."""
    single, mask = pa.types.is_float32(values.type), mask_of(values)
    numbers = values_of(values).tolist()
    texts = [text_of(number, is_single=single, shortest=shortest) for number in numbers]
    return pa.array(texts, dtype, mask=None if mask is None else ~mask)


def _floats_to_decimals(
    values: pa.Array, dtype: pa.DataType, overflow: Overflow, shortest: bool
) -> pa.Array:
    """Return floats as decimals, of their texts; NaN and infinities are null."""
    numbers = values_of(values).astype(np.float64)
    is_finite = np.isfinite(numbers)
    texts = [
        text_of(number, shortest=shortest) for number in np.where(is_finite, numbers, 0.0).tolist()
    ]
    scaled = [_LONG.scaleb(Decimal(text), dtype.scale) for text in texts]
    integers = [int(number.to_integral_value(ROUND_HALF_UP, _LONG)) for number in scaled]
    finite_values = values if is_finite.all() else pc.if_else(pa.array(is_finite), values, None)
    return _decimals_that_fit(integers, finite_values, dtype, overflow)


FROM_FLOATS: dict[tuple[str, str], Callable[..., pa.Array]] = {
    ("double", "string"): _floats_as_text,
    ("double", "decimal"): _floats_to_decimals,
}
"""Casts that depend on the texts that Java writes."""


def intervals_as_text(micros: npt.NDArray[np.int64]) -> list[str]:
    """Format day-to-second intervals as SQL literals."""
    return [f"INTERVAL '{_shown_interval(number)}' DAY TO SECOND" for number in micros.tolist()]


def _shown_interval(micros: int) -> str:
    """Return an interval as days, a space and a time of day."""
    days, time_of_day_us = divmod(abs(micros), _DAY_US)
    seconds, fraction = divmod(time_of_day_us, _SECOND_US)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    fraction_text = f".{fraction:06}".rstrip("0") if fraction else ""
    return f"{'-' if micros < 0 else ''}{days} {clock}{fraction_text}"


CASTS: dict[tuple[str, str], Callable[..., pa.Array]] = {
    ("integer", "integer"): _integers_to_integers,
    ("integer", "double"): _to_floats,
    ("integer", "boolean"): _numbers_to_booleans,
    ("integer", "decimal"): _to_decimals,
    ("integer", "string"): _to_text(lambda values, _: list(map(str, values_of(values).tolist()))),
    ("boolean", "integer"): lambda values, dtype, _: column_of(
        values_of(values), mask_of(values), dtype
    ),
    ("boolean", "double"): _to_floats,
    ("boolean", "decimal"): _to_decimals,
    ("boolean", "string"): _to_text(
        lambda values, _: [str(value).lower() for value in values_of(values).tolist()]
    ),
    ("double", "double"): _to_floats,
    ("double", "integer"): _floats_to_integers,
    ("double", "boolean"): _numbers_to_booleans,
    ("decimal", "decimal"): _between_decimals,
    ("decimal", "integer"): _decimals_to_integers,
    ("decimal", "double"): _decimals_to_doubles,
    ("decimal", "boolean"): _decimals_to_truth,
    ("decimal", "string"): _to_text(decimals_as_text),
    ("string", "integer"): _text_to_integers,
    ("string", "boolean"): _text_to_truth,
    ("string", "date"): _text_to_dates,
    ("string", "binary"): lambda values, dtype, _: values.cast(dtype),
    ("date", "string"): _to_text(
        lambda values, _: dates_as_text(values_of(values).astype(np.int64))
    ),
    ("interval", "string"): _to_text(lambda values, _: intervals_as_text(values_of(values))),
    ("timestamp_ntz", "string"): _to_text(lambda values, _: _times_as_text(values_of(values))),
    ("timestamp_ntz", "date"): lambda values, dtype, _: column_of(
        values_of(values) // _DAY_US, mask_of(values), dtype
    ),
    ("date", "timestamp_ntz"): lambda values, dtype, _: column_of(
        values_of(values).astype(np.int64) * _DAY_US, mask_of(values), dtype
    ),
}
"""Kinds of types → the cast from the first to the second."""

_TIMED: dict[tuple[str, str], Callable[[pa.Array, pa.DataType, str], pa.Array]] = {
    ("timestamp", "date"): lambda values, dtype, zone: column_of(
        local_times(values, zone) // _DAY_US, mask_of(values), dtype
    ),
    ("timestamp", "timestamp_ntz"): lambda values, dtype, zone: column_of(
        local_times(values, zone), mask_of(values), dtype
    ),
    ("timestamp", "string"): lambda values, dtype, zone: pa.array(
        _times_as_text(local_times(values, zone)),
        dtype,
        mask=values.is_null().to_numpy(zero_copy_only=False),
    ),
    ("timestamp", "integer"): lambda values, dtype, _: column_of(
        values_of(values) // _SECOND_US, mask_of(values), dtype
    ),
    ("timestamp", "double"): lambda values, dtype, _: column_of(
        values_of(values) / float(_SECOND_US), mask_of(values), dtype
    ),
    ("date", "timestamp"): lambda values, dtype, zone: column_of(
        days_begin(values_of(values.fill_null(0)).astype(np.int64), zone), mask_of(values), dtype
    ),
    ("timestamp_ntz", "timestamp"): lambda values, dtype, zone: column_of(
        instants_of(values_of(values.fill_null(0)), zone), mask_of(values), dtype
    ),
}
"""Casts that depend on the session's time zone, or have a timestamp with one."""
CASTS.update(dict.fromkeys(_TIMED, _TIMED[("timestamp", "date")]))
