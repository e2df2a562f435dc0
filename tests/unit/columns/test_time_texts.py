"""Times as text: one grammar, whose every form has one value, and digits that are cut."""

from __future__ import annotations

import datetime as dt
import re
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rounds import rounds

from godwit.connect.formats.time_texts import parse_times

INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
EPOCH = dt.date(1970, 1, 1)
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def microseconds(text: str, dtype: pa.DataType = INSTANT) -> int:
    return int(parse_times(pa.array([text]), dtype).cast(pa.int64())[0].as_py())


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("2024-01-01T00:00Z", "2024-01-01T00:00:00"),  # java.time leaves out zero seconds
        ("2024-01-01", "2024-01-01T00:00:00"),
        ("2024-01-01T07", "2024-01-01T07:00:00"),
        ("2024-01-01 00:00:00+00", "2024-01-01T00:00:00"),  # PostgreSQL
        ("2024-01-01 00:00:00-04", "2024-01-01T04:00:00"),
        ("1800-01-01 00:00:00-04:56:02", "1800-01-01T04:56:02"),  # PostgreSQL, of New York
        ("2024-01-01T00:00:00+0200", "2023-12-31T22:00:00"),
        ("2024-01-01T00:00:00+02:00", "2023-12-31T22:00:00"),
        ("2024-01-01 00:00:00.000 +0000", "2024-01-01T00:00:00"),
        ("2024-01-01 00:00:00 UTC", "2024-01-01T00:00:00"),
        ("2024-01-01t00:00:00z", "2024-01-01T00:00:00"),
        ("2024-01-01 10:11:12,345", "2024-01-01T10:11:12.345000"),  # Python's logging
        ("2024-01-01T00:00:00.1234560Z", "2024-01-01T00:00:00.123456"),  # .NET
        ("2024-01-01T23:59:59.999999999Z", "2024-01-01T23:59:59.999999"),
        ("1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999"),
        ("0001-01-01T00:00:00.0000009Z", "0001-01-01T00:00:00"),
        ("9999-12-31T23:59:59.999999999999Z", "9999-12-31T23:59:59.999999"),
        ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00"),
        ("  2024-01-01T00:00:00Z ", "2024-01-01T00:00:00"),
    ],
)
def test_a_form_that_a_writer_prints_has_one_value(text: str, right: str) -> None:
    assert parse_times(pa.array([text]), INSTANT)[0].as_py().isoformat()[:-6] == right


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2024-01-01T24:00Z", "hour above 23"),
        ("2016-12-31T23:59:60Z", "second above 59"),
        ("2024-01-01T00:60Z", "minute above 59"),
        ("2023-02-29", "day that the month lacks"),
        ("1900-02-29", "day that the month lacks"),
        ("2024-00-01", "no month"),
        ("2024-13-01T00:00Z", "no month"),
        ("0000-12-31T00:00Z", "year 0"),
        ("0001-01-01T00:00:00+00:01", "years 1 to 9999"),
        ("9999-12-31T23:59:59-00:01", "years 1 to 9999"),
        ("2024-01-01T00:00+24", "offset above"),
        ("2024-01-01T00:00+02:60", "offset above"),
        ("10000-01-01T00:00Z", "not as in"),
        ("2024-1-1", "not as in"),
        ("20240101T000000Z", "not as in"),
        ("2024-01-01Z", "not as in"),
        ("2024-01-01T00:00:00.Z", "not as in"),
        ("2024-01-01T00:00:00Z[UTC]", "not as in"),
        ("١٢٣٤-01-01", "not as in"),
        ("infinity", "not as in"),
        ("", "not as in"),
        ("2024-01-01" + 5000 * "0", "not as in"),
    ],
)
def test_what_is_no_time_is_refused_by_its_reason(text: str, reason: str) -> None:
    for texts in ([text], [None, "2024-01-01T00:00Z", text]):
        with pytest.raises(ValueError, match=rf"{re.escape(repr(text[:9])[:-1])}.*{reason}"):
            parse_times(pa.array(texts), INSTANT)


def test_a_column_without_a_zone_takes_no_offset() -> None:
    assert parse_times(pa.array(["2024-01-01T02:00"]), LOCAL)[0].as_py() == dt.datetime(  # noqa: DTZ001
        2024, 1, 1, 2
    )
    for offset in ("Z", "z", "+00", "+02:00", " UTC"):
        with pytest.raises(ValueError, match="has none: declare it as timestamp"):
            parse_times(pa.array(["2024-01-01T02:00" + offset]), LOCAL)
    with pytest.raises(ValueError, match="declare it as timestamp"):
        parse_times(pa.array(["2024-01-01T02:00"]), pa.date32())


@pytest.mark.parametrize("unit", UNITS)
def test_digits_below_the_unit_are_cut(unit: str) -> None:
    texts = pa.array(["2024-01-01T00:00:00.1999999999", "1960-01-01T00:00:00.9999999999", None])
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]
    seconds = [1704067200, -315619200]
    parts = [int("199999999"[:digits] or 0), int("999999999"[:digits] or 0)]
    right = [s * UNITS[unit] + p for s, p in zip(seconds, parts, strict=True)]
    for zone in (None, "UTC", "Asia/Tokyo"):  # without an offset: UTC
        times = parse_times(texts, pa.timestamp(unit, zone))
        assert times.type == pa.timestamp(unit, zone)
        assert times.cast(pa.int64()).to_pylist() == [*right, None]


def test_nanoseconds_end_in_2262() -> None:
    for text in ("1600-01-01T00:00Z", "2300-01-01T00:00Z"):
        with pytest.raises(ValueError, match="2262"):
            parse_times(pa.array([text]), pa.timestamp("ns", "UTC"))


def test_times_of_day_and_durations() -> None:
    times = parse_times(pa.array(["12:00", "23:59:59.9999999", None]), pa.time64("us"))
    assert times.to_pylist() == [dt.time(12), dt.time(23, 59, 59, 999999), None]
    for text in ("24:00", "12", "12:00Z", "12:60", "12:00:60"):
        with pytest.raises(ValueError, match="is not a time"):
            parse_times(pa.array([text]), pa.time64("ns"))
    texts = [
        "PT1S",
        "-P1DT2H",
        "P1W",
        "PT1.5H",
        "-PT0.0000019S",
        "INTERVAL '1 02:03:04.5' DAY TO SECOND",
    ]
    spans = parse_times(pa.array([*texts, None]), pa.duration("us"))
    assert spans.cast(pa.int64()).to_pylist() == [
        *(10**6, -26 * 3600 * 10**6, 7 * 86400 * 10**6, 5400 * 10**6, -1, 93_784_500_000, None)
    ]
    for text in ("P", "PT", "P1DT", "P1Y", "1", "P99999999999999D", ""):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_times(pa.array([text]), pa.duration("us"))


def oracle(text: str) -> int:
    """Microseconds of a text since 1970, by Python's arithmetic of whole numbers."""
    found = re.fullmatch(
        r"(\d+)-(\d+)-(\d+)(?:[Tt ](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d+))?)?)?"
        r"(?: ?(?:[Zz]|UTC|([+-])(\d\d):?(\d\d)?))?)?",
        text,
    )
    assert found
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = found.groups()
    days = (dt.date(int(year), int(month), int(day)) - EPOCH).days
    offset = int(hours or 0) * 60 + int(minutes or 0)
    seconds = days * 86400 + int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0)
    seconds -= (-offset if sign == "-" else offset) * 60
    cut = Fraction(int(fraction or 0), 10 ** len(fraction or "")) * 10**6
    return seconds * 10**6 + cut.numerator // cut.denominator


@st.composite
def time_texts(draw: st.DrawFn) -> str:
    text = draw(st.dates(dt.date(1, 1, 2), dt.date(9999, 12, 30))).isoformat()
    if draw(st.integers(0, 9)) == 0:
        return text
    text += draw(st.sampled_from("Tt ")) + f"{draw(st.integers(0, 23)):02}"
    if draw(st.booleans()):
        text += f":{draw(st.integers(0, 59)):02}"
        if draw(st.booleans()):
            text += f":{draw(st.integers(0, 59)):02}"
            text += draw(st.from_regex(r"\A([.,][0-9]{1,12})?\Z"))
    return text + draw(
        st.sampled_from(["", "", "Z", "z", "+02", "-0430", "+05:45", " UTC", " -01"])
    )


@settings(deadline=None, max_examples=rounds(30, 150))
@given(st.lists(st.none() | time_texts(), max_size=30))
def test_any_mixture_of_forms_has_the_values_of_whole_arithmetic(texts: list[str | None]) -> None:
    right = [None if text is None else oracle(text) for text in texts]
    column = pa.array([None, *texts, "x"], pa.string())[1:-1]  # a slice
    assert parse_times(column, INSTANT).cast(pa.int64()).to_pylist() == right
    for text, value in zip(texts, right, strict=True):
        if text is not None:
            assert microseconds(text) == value


def test_many_texts_of_one_form_are_as_one_of_them() -> None:
    forms = [
        "2024-01-01T00:00:00.5Z",
        "2024-01-01 00:00:00",
        "2024-01-01 00:00:00.25+02",
        "2024-01-01",
    ]
    for form in forms:
        for others in ([form], forms):
            column = pa.array([*[form] * 20_000, None, *others])
            got = parse_times(column, INSTANT).cast(pa.int64()).to_pylist()
            assert got == [*[oracle(form)] * 20_000, None, *map(oracle, others)]
