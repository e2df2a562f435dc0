"""Times as text: one grammar and one rule for CSV, JSON files, JSON messages and partitions.

A time is written as in ISO 8601, in the variants that databases and languages print::

    timestamp = date [("T" | blank) hours [":" minutes [":" seconds [fraction]]] [offset]]
    offset    = [blank] ("Z" | "UTC" | ("+" | "-") hours [[":"] minutes [[":"] seconds]])
    time      = hours ":" minutes [":" seconds [fraction]]
    duration  = [sign] "P" [weeks "W"] [days "D"] ["T" [hours "H"] [minutes "M"] [seconds "S"]]
    fraction  = ("." | ",") digit {digit}

Digits of a fraction below the unit of the column are cut, never rounded: a rounded time may be in
the next day.  A timestamp without an offset is in UTC.  A column without a time zone takes no
offset, since both ways of leaving it out are wrong for someone.  Days have 24 hours of 60 minutes
of 60 seconds, and years are 1 to 9999: other values are refused.

Texts are parsed by *shape*: the text with every digit replaced by ``0``.  A column has few shapes,
so the grammar is matched once per shape, and the digits of all its texts are read as one matrix.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import blob_bytes, boundaries_of, column_of, mask_of

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

_DATE: Final = r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
_SECONDS: Final = r":(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)"
_OFFSET: Final = (
    r" ?(?P<offset>[Zz]|UTC|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d)"
    r"(?::?(?P<seconds>\d\d))?)?)"
)
_TIMESTAMP_SHAPE: Final = re.compile(
    rf"\s*{_DATE}(?:[Tt ](?P<hour>\d\d)(?:{_SECONDS}?)?(?:{_OFFSET})?)?\s*", re.ASCII
)
_USUAL: Final = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.(?P<fraction>\d+))?)?"
    r"(?P<offset>Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)  # all of which Arrow parses alike
_DATE_SHAPE: Final = re.compile(rf"\s*{_DATE}\s*", re.ASCII)
_TIME_SHAPE: Final = re.compile(rf"\s*(?P<hour>\d\d){_SECONDS}?\s*", re.ASCII)
_NUMBER: Final = r"(\d+(?:[.,]\d+)?)"
_DURATION: Final = re.compile(
    rf"\s*([+-])?P(?=[\dT])(?:{_NUMBER}W)?(?:{_NUMBER}D)?"
    rf"(?:T(?=\d)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?\s*",
    re.ASCII,
)
_SPARK_DURATION: Final = re.compile(
    r"INTERVAL '([+-])?(\d+) (\d\d):(\d\d):(\d\d(?:\.\d+)?)' DAY TO SECOND", re.ASCII
)
_DAY_S: Final = 86_400
_UNIT_S: Final = (7 * _DAY_S, _DAY_S, 3600, 60, 1)  # of the numbers of a duration
_LONGEST: Final = 100  # bytes of a text; longer texts are not times, and need a wide matrix
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}  # of a fraction of a second, by unit
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31
_ZERO: Final = ord("0")
_SAMPLE: Final = 16  # texts that say how all are written
_ROWS_AT_ONCE: Final = 1 << 13  # whose texts are in the processor's cache


def parse_times(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return texts parsed as dates, timestamps, times of day or durations.

    `dtype`: a type for which `is_temporal` is true. Raises ValueError, with the first text that is
    none and the reason.

    Examples
    --------
    >>> texts = pa.array(["2024-01-01T23:59:59.999999999+02"])
    >>> str(parse_times(texts, pa.timestamp("us", "UTC"))[0])
    '2024-01-01 21:59:59.999999+00:00'
    """
    if not pa.types.is_string(texts.type):
        texts = texts.cast(pa.string())
    if pa.types.is_duration(dtype):
        values = [_duration(text, dtype) for text in texts.to_pylist()]
        return pa.array(values, pa.int64()).cast(dtype)
    return _Texts(texts, dtype).parse()


def has_offset(text: str) -> bool:
    """Return whether a text is a timestamp with an offset from UTC."""
    match = _TIMESTAMP_SHAPE.fullmatch(text)
    return match is not None and match["offset"] is not None


def in_calendar(times: pa.Array) -> bool:
    """Return whether all dates or timestamps are in the years 1 to 9999."""
    dtype, a_day = times.type, 1
    if pa.types.is_timestamp(dtype):
        a_day = _DAY_S * 10 ** _DIGITS[dtype.unit]
    elif dtype.bit_width == 64:
        a_day = _DAY_S * 1000
    ends = pc.min_max(times.view(pa.int32() if dtype.bit_width == 32 else pa.int64()))
    low, high = ends["min"].as_py(), ends["max"].as_py()
    return low is None or (low >= _FIRST_DAY * a_day and high < (_LAST_DAY + 1) * a_day)


class _Texts:
    """A column of texts to be parsed as times."""

    def __init__(self, texts: pa.Array, dtype: pa.DataType) -> None:
        self._texts, self._type = texts, dtype
        if pa.types.is_timestamp(dtype):
            self._shape, self._name = _TIMESTAMP_SHAPE, "timestamp"
        elif pa.types.is_date(dtype):
            self._shape, self._name = _DATE_SHAPE, "date"
        else:
            self._shape, self._name = _TIME_SHAPE, "time"

    def parse(self) -> pa.Array:
        """Return the texts as a column of times."""
        if (times := self._parse_usual()) is not None:
            return times
        bounds = boundaries_of(self._texts)
        self._starts, self._lengths = bounds[:-1].astype(np.int64), np.diff(bounds)
        self._bytes, self._mask = blob_bytes(self._texts), mask_of(self._texts)
        if pa.types.is_date(self._type):
            days = self._each_shape(self._days)
            return column_of(days, self._mask, pa.date32()).cast(self._type)
        read = self._instants if self._name == "timestamp" else self._times_of_day
        return column_of(self._each_shape(read), self._mask, self._type)

    def _usual_type(self) -> pa.DataType | None:
        """Return the type as which Arrow seems to parse all texts; ``None``: there is none.

        Arrow is fast, but trying it in vain costs more than parsing the texts by shape.
        """
        if self._name == "time":
            return None
        sample = self._texts[:: max(1, len(self._texts) // _SAMPLE) | 1].drop_null().to_pylist()
        matches = [_USUAL.fullmatch(text) for text in sample]
        forms = [form for form in matches if form is not None]
        if not forms or len(forms) < len(matches):
            return None
        if self._name == "date":
            return self._type if all(len(text) == 10 for text in sample) else None
        digits, have_offsets = _DIGITS[self._type.unit], {bool(form["offset"]) for form in forms}
        if len(have_offsets) > 1 or any(len(form["fraction"] or "") > digits for form in forms):
            return None
        if not have_offsets.pop():
            return pa.timestamp(self._type.unit)
        return self._type if self._type.tz is not None else None

    def _parse_usual(self) -> pa.Array | None:
        """Return times parsed by Arrow; ``None`` if not all texts are usual and in the calendar."""
        if (dtype := self._usual_type()) is None:
            return None
        try:
            times = self._texts.cast(dtype)
        except pa.ArrowInvalid:
            return None
        return times.cast(self._type) if in_calendar(times) else None

    def _each_shape(self, read: Any) -> Integers:
        """Return the values of all texts; `read` is called with the rows and fields of a shape."""
        values = np.zeros(len(self._texts), np.int64)
        rows = np.arange(len(values)) if self._mask is None else np.flatnonzero(self._mask)
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[first : first + _ROWS_AT_ONCE]
            lengths = self._lengths[some]
            for length in np.unique(lengths).tolist():
                self._read_length(some[lengths == length], length, values, read)
        return values

    def _read_length(self, rows: Integers, length: int, values: Integers, read: Any) -> None:
        """Set the values of rows whose texts have the same length."""
        if not 0 < length <= _LONGEST:
            self._refuse_shape(rows[0])
        windows = np.lib.stride_tricks.sliding_window_view(self._bytes, length)
        places = np.ascontiguousarray(windows[self._starts[rows]].T)  # by place in the text, by row
        digits = places - _ZERO  # above 9 if it is none
        shapes = np.where(digits <= 9, np.uint8(_ZERO), places)
        while rows.size:
            same = (shapes == shapes[:, :1]).all(axis=0)
            match = self._shape.fullmatch(shapes[:, 0].tobytes().decode(errors="replace"))
            if match is None:
                self._refuse_shape(rows[0])
            if same.all():
                values[rows] = read(rows, _Fields(match, digits))
                return
            values[rows[same]] = read(rows[same], _Fields(match, digits[:, same]))
            rows, shapes, digits = rows[~same], shapes[:, ~same], digits[:, ~same]

    def _days(self, rows: Integers, fields: _Fields) -> Integers:
        """Return days since 1970."""
        year, month, day = fields["year"], fields["month"], fields["day"]
        self._check(rows, year >= 1, "has the year 0")
        self._check(rows, (month >= 1) & (month <= 12), "has no month of 1 to 12")
        months, first_days = year * 12 + month - 13, _first_days()
        days = first_days[months] + day - 1
        is_within = (day >= 1) & (days < first_days[months + 1])
        self._check(rows, is_within, "has a day that the month lacks")
        return np.asarray(days)

    def _seconds(self, rows: Integers, fields: _Fields) -> Integers:
        """Return seconds since midnight."""
        hour, minute, second = fields["hour"], fields["minute"], fields["second"]
        self._check(rows, hour < 24, "has an hour above 23; midnight is 00:00")
        self._check(rows, minute < 60, "has a minute above 59")
        self._check(rows, second < 60, "has a second above 59 (leap seconds have no value)")
        return np.asarray(hour * 3600 + minute * 60 + second)

    def _times_of_day(self, rows: Integers, fields: _Fields) -> Integers:
        digits = _DIGITS[self._type.unit]
        return np.asarray(self._seconds(rows, fields) * 10**digits + fields.fraction(digits))

    def _instants(self, rows: Integers, fields: _Fields) -> Integers:
        """Return timestamps in the unit of the type, in UTC or without a zone."""
        days, seconds = self._days(rows, fields), self._seconds(rows, fields)
        if fields.text("offset"):
            if self._type.tz is None:
                self._refuse(rows[0], "has an offset from UTC, and its column has none: declare it")
            offset = fields["hours"] * 3600 + fields["minutes"] * 60 + fields["seconds"]
            is_offset = (fields["hours"] < 24) & (fields["minutes"] < 60) & (fields["seconds"] < 60)
            self._check(rows, is_offset, "has an offset above 23:59")
            seconds = seconds + (offset if fields.text("sign") == "-" else -offset)
        days, digits = days + seconds // _DAY_S, _DIGITS[self._type.unit]
        is_within = (days >= _FIRST_DAY) & (days <= _LAST_DAY)
        self._check(rows, is_within, "is not in the years 1 to 9999 of UTC")
        if digits == 9:
            is_within = np.abs(days) < (1 << 63) // (_DAY_S * 10**digits)
            self._check(rows, is_within, f"is not a {self._type}, which ends in 2262")
        seconds = days * _DAY_S + seconds % _DAY_S
        return np.asarray(seconds * 10**digits + fields.fraction(digits))

    def _check(self, rows: Integers, is_valid: npt.NDArray[np.bool_], reason: str) -> None:
        """Raise, with the first text of `rows` that is not valid, unless all are."""
        if not is_valid.all():
            self._refuse(rows[int(np.argmin(is_valid))], reason)

    def _refuse_shape(self, row: int) -> NoReturn:
        """Raise for a text that the grammar does not have."""
        example = {
            "timestamp": "2024-01-31T23:59:59.5+02:00",
            "date": "2024-01-31",
            "time": "23:59:59.5",
        }
        text = self._texts[int(row)].as_py()
        if self._name == "date" and len(text) <= _LONGEST and _TIMESTAMP_SHAPE.fullmatch(text):
            self._refuse(row, "has a time of day, and its column has none: declare it")
        self._refuse(row, f"is not as in {example[self._name]}")

    def _refuse(self, row: int, reason: str) -> NoReturn:
        """Raise for the text of a row."""
        if reason.endswith("declare it"):
            reason += " as timestamp"
        text = self._texts[int(row)].as_py()
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        msg = f"{text!r} is not a {self._name}: it {reason}"
        raise ValueError(msg)


class _Fields:
    """Numbers of texts of one shape, by name; zero where the shape lacks them."""

    def __init__(self, shape: re.Match[str], digits: npt.NDArray[np.uint8]) -> None:
        self._shape, self._digits = shape, digits  # by place in the text, by row

    def text(self, name: str) -> str | None:
        """Return a part of the shape; ``None`` if it lacks it."""
        return self._shape.groupdict().get(name)

    def __getitem__(self, name: str) -> Integers:
        return self._number(*self._shape.span(name)) if self.text(name) else self._number(0, 0)

    def fraction(self, digits: int) -> Integers:
        """Return the first digits after the point as a whole number of that many digits."""
        if not self.text("fraction"):
            return self._number(0, 0)
        start, stop = self._shape.span("fraction")
        stop = min(stop, start + digits)
        return np.asarray(self._number(start, stop) * 10 ** (digits - stop + start))

    def _number(self, start: int, stop: int) -> Integers:
        """Return the decimal numbers between two columns of the matrix of bytes."""
        number = np.zeros(self._digits.shape[1], np.int64)
        for place in self._digits[start:stop]:
            number *= 10
            number += place
        return number


@cache
def _first_days() -> Integers:
    """Return the first day of every month of the calendar, in days since 1970."""
    months = np.arange("0001-01", "10000-02", dtype="datetime64[M]")
    return months.astype("datetime64[D]").astype(np.int64)


def _duration(text: str | None, dtype: pa.DurationType) -> int | None:
    """Return a duration in the unit of its type; raise if the text is none."""
    if text is None:
        return None
    match = None
    if len(text) <= _LONGEST:
        match = _DURATION.fullmatch(text)
        if match is None and (match := _SPARK_DURATION.fullmatch(text)) is not None:
            sign, *numbers = match.groups()
            numbers = [None, *numbers]
    if match is None:
        msg = f"{text[:_LONGEST]!r} is not a duration: it is not as in P1DT23H59M59.5S"
        raise ValueError(msg)
    if match.re is _DURATION:
        sign, *numbers = match.groups()
    seconds = sum(
        Decimal(number.replace(",", ".")) * unit_s
        for number, unit_s in zip(numbers, _UNIT_S, strict=True)
        if number is not None
    )
    value = int(seconds * 10 ** _DIGITS[dtype.unit])  # cut towards zero: the digits of the text
    if value >= 1 << 63:
        msg = f"{text!r} is not a duration: it is too long"
        raise ValueError(msg)
    return -value if sign == "-" else value
