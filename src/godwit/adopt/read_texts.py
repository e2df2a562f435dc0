"""Parsing of CSV and JSON texts like Spark's readers with their default patterns.

Each converter gives the values, null where Spark has none, and raises `UnsureError` for a text of
which it does not know what Spark makes.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.adopt.casts import LOCAL_ZONES
from godwit.columns.python_values import zone_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Converter = Callable[[pa.Array], pa.Array]

ROWS: Final = pa.field("", pa.string())
"""Column that is read if a scan reads no column, since some column is needed."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_FLOAT: Final = re.compile(
    r"[\x00-\x20]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?)[fFdD]?[\x00-\x20]*"
)
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[ T].*)?")
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_USUAL: Final = {
    "integer": "^-?[0-9]{1,18}$",
    "float": r"^-?[0-9]{1,17}(\.[0-9]{1,17})?$",
    "date": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    "timestamp": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z?$",
}
"""Texts that Arrow parses as Spark does; others are parsed one by one."""
_NAMED: Final = {
    "NaN": np.nan,
    "Infinity": np.inf,
    "-Infinity": -np.inf,
    "Inf": np.inf,
    "-Inf": -np.inf,  # defaults of positiveInf and negativeInf
}
_WIDE: Final = Context(prec=200)
_MAX_EXPONENT: Final = 80
_KNOWN_YEARS: Final = range(1970, 2038)  # whose clocks are the same for Java and Python
_MAX_OFFSET: Final = dt.timedelta(hours=18)


class UnsureError(ValueError):
    """A text that Spark may or may not accept."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__(f"it is unknown whether Spark accepts {text[:60]!r} as {what}")


def converter(dtype: pa.DataType, zone: str) -> Converter:
    """Return the function from texts to values of a type; raise `ValueError` if it has none.

    `zone`: the session's, of timestamps that do not say theirs.
    """
    types = pa.types
    if types.is_string(dtype):
        return lambda texts: texts
    if types.is_boolean(dtype):
        return _booleans_of
    if types.is_signed_integer(dtype):
        return partial(
            _convert_usual_first,
            dtype=dtype,
            kind="integer",
            convert=partial(_integer_of, dtype=dtype),
        )
    if types.is_float64(dtype):
        return partial(_convert_usual_first, dtype=dtype, kind="float", convert=_double_of)
    if types.is_decimal(dtype):
        return partial(_convert_each, dtype=dtype, convert=partial(decimal_of, dtype=dtype))
    if types.is_date(dtype):
        return partial(_convert_usual_first, dtype=dtype, kind="date", convert=date_of)
    if types.is_timestamp(dtype) and dtype.tz is not None:
        return partial(_timestamps_of, dtype=dtype, zone=zone)
    raise ValueError(f"texts as {dtype}")


def _booleans_of(texts: pa.Array) -> pa.Array:
    """Return the texts ``true`` and ``false``, in any case, as booleans."""
    lower = pc.ascii_lower(texts)
    is_boolean = pc.is_in(lower, value_set=pa.array(["true", "false"]))
    return pc.if_else(is_boolean, pc.equal(lower, "true"), pa.scalar(None, pa.bool_()))


def _convert_usual_first(
    texts: pa.Array, *, dtype: pa.DataType, kind: str, convert: Callable[[str], Any]
) -> pa.Array:
    """Return texts as values of a type: the usual ones at once, the others by `convert`."""
    return _usual_first(texts, kind, lambda usual: usual.cast(dtype), dtype, convert)


def _usual_first(
    texts: pa.Array,
    kind: str,
    cast: Callable[[pa.Array], pa.Array],
    dtype: pa.DataType,
    convert: Callable[[str], Any],
) -> pa.Array:
    """Cast the texts that have the usual form of a kind at once, the others one by one."""
    is_usual = pc.match_substring_regex(texts, _USUAL[kind])
    if pc.all(is_usual).as_py() is not False:
        try:
            return cast(texts)
        except pa.ArrowInvalid:  # a number that does not fit, or no date
            return _convert_each(texts, dtype=dtype, convert=convert)
    is_unusual = pc.invert(is_usual)
    try:
        values = cast(pc.if_else(is_usual, texts, pa.scalar(None, texts.type)))
    except pa.ArrowInvalid:
        return _convert_each(texts, dtype=dtype, convert=convert)
    converted = pa.array([convert(text) for text in texts.filter(is_unusual).to_pylist()], dtype)
    return pc.replace_with_mask(values, is_unusual.fill_null(False), converted)


def _convert_each(
    texts: pa.Array, *, dtype: pa.DataType, convert: Callable[[str], Any]
) -> pa.Array:
    """Return texts as values, one by one."""
    return pa.array([None if text is None else convert(text) for text in texts.to_pylist()], dtype)


def _check_digits(text: str, what: str) -> None:
    """Raise for a text with digits of other scripts, which Java accepts in some places."""
    if not text.isascii():
        raise UnsureError(text, what)


def _integer_of(text: str, dtype: pa.DataType) -> int | None:
    """Return a text as an integer."""
    _check_digits(text, "a number")
    bound = 1 << (dtype.bit_width - 1)
    if not _INTEGER.fullmatch(text) or len(text) > 1000:
        return None
    number = int(text)
    return number if -bound <= number < bound else None


def _double_of(text: str) -> float | None:
    """Return a text as a double."""
    if text in _NAMED:
        return _NAMED[text]
    _check_digits(text, "a number")
    if (match := _FLOAT.fullmatch(text)) is not None:
        return float(match[1])
    if re.search("[xX]|NaN|Infinity|[0-9][eE]", text):  # other forms that Java has
        raise UnsureError(text, "a number")
    return None


def decimal_of(text: str, dtype: pa.DataType) -> Decimal | None:
    """Return a text as a decimal, rounded half away from zero; null if it is too large."""
    _check_digits(text, "a number")
    plain = text.replace(",", "")
    if not _DECIMAL.fullmatch(plain):
        if re.search("[0-9][eE]", plain):
            raise UnsureError(text, "a number")
        return None
    decimal = Decimal(plain)
    if len(plain) > dtype.precision + 40 or abs(decimal.adjusted()) > _MAX_EXPONENT:
        raise UnsureError(text, "a number")
    step = Decimal(1).scaleb(-dtype.scale)
    number = decimal.quantize(step, rounding=ROUND_HALF_UP, context=_WIDE)
    return number if abs(number) < Decimal(10) ** (dtype.precision - dtype.scale) else None


def date_of(text: str) -> dt.date | None:
    """Return a text as a date."""
    if (match := _DATE.fullmatch(text)) is None or match[1] == "0000":
        _check_no_time(text, "a date")
        return None
    try:
        return dt.date(*map(int, match.groups()))
    except ValueError:
        return None


def _check_no_time(text: str, what: str) -> None:
    """Raise for a text with a digit, which may be a time in another form."""
    if any(character.isdigit() for character in text):
        raise UnsureError(text, what)


def _timestamps_of(texts: pa.Array, *, dtype: pa.DataType, zone: str) -> pa.Array:
    """Return texts as timestamps."""

    def cast(usual: pa.Array) -> pa.Array:
        """Cast the usual texts; those without a zone are in the session's zone."""
        in_utc = pc.ends_with(usual, "Z")
        without_suffix = pc.if_else(in_utc, pc.replace_substring_regex(usual, "Z$", ""), usual)
        timestamps = without_suffix.cast(pa.timestamp("us"))
        if zone in LOCAL_ZONES or pc.all(in_utc).as_py() is not False:
            return timestamps.cast(pa.int64()).cast(dtype)
        raise pa.ArrowInvalid("time zone rules")

    return _usual_first(texts, "timestamp", cast, dtype, partial(timestamp_of, zone=zone))


def timestamp_of(text: str, zone: str) -> dt.datetime | None:
    """Return a text as an instant; digits below microseconds are truncated."""
    if (match := _TIMESTAMP.fullmatch(text)) is None or text.startswith("0000"):
        _check_no_time(text, "a timestamp")
        return None
    year, month, day, clock, fraction, offset = match.groups()
    try:
        moment = dt.datetime.combine(
            dt.date(int(year), int(month), int(day)), dt.time.fromisoformat(clock or "00:00:00")
        )
        moment = moment.replace(microsecond=int((fraction or "0").ljust(6, "0")[:6]))
        moment = _moment_of_clock_time(moment, offset, zone, text)
    except ValueError as error:
        if isinstance(error, UnsureError):
            raise
        return None
    return moment


def _moment_of_clock_time(
    clock_time: dt.datetime, offset: str | None, zone: str, text: str
) -> dt.datetime:
    """Return the instant of a local time."""
    if offset is not None:
        with_offset = dt.datetime.fromisoformat(
            f"2000-01-01T00:00:00{offset.replace('Z', '+00:00')}"
        )
        if abs(with_offset.utcoffset() or dt.timedelta()) > _MAX_OFFSET:
            raise UnsureError(text, "a timestamp")
        return clock_time.replace(tzinfo=with_offset.tzinfo)
    if zone in LOCAL_ZONES:
        return clock_time.replace(tzinfo=dt.UTC)
    if clock_time.year not in _KNOWN_YEARS:
        raise UnsureError(text, "a timestamp")
    return clock_time.replace(tzinfo=zone_of(zone)).astimezone(dt.UTC)


def texts_of(values: Sequence[str | None]) -> pa.Array:
    """Return texts as a column."""
    return pa.array(values, pa.string())
