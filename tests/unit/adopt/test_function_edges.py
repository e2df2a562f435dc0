"""Offsets from UTC and years as text, and digits of rounded doubles, at their edges."""

from __future__ import annotations

import pyarrow as pa

from godwit.adopt.functions import Function
from godwit.adopt.text_functions import date_format_of
from godwit.library.aggregates.expressions import Column, Rows


def test_an_offset_from_before_time_zones_has_seconds() -> None:
    moments = pa.array([-2_524_521_599_000_000, 0], pa.timestamp("us", "UTC"))
    call = Function(
        name="StructsToJson",
        arguments=(Column("t"),),
        dtype=pa.string(),
        zone="Europe/Berlin",
        options=(False,),
    )
    texts = call.evaluate(Rows(columns={"t": moments})).to_pylist()
    assert texts == ['"1890-01-01T00:53:29.000+00:53:28"', '"1970-01-01T01:00:00.000+01:00"']


def test_years_before_1_and_after_9999_are_texts_as_java_writes_them() -> None:
    seconds = (327_403_382_400, -62_135_683_200, -62_325_072_000)
    moments = pa.array([1_000_000 * second for second in seconds] + [None], pa.timestamp("us"))
    columns = {"t": moments, "d": moments.cast(pa.date32())}

    def texts(name: str, column: str, option: object) -> list[str | None]:
        call = Function(
            name=name, arguments=(Column(column),), dtype=pa.string(), options=(option,)
        )
        result: list[str | None] = call.evaluate(Rows(columns=columns)).to_pylist()
        return result

    days = ["+12345-01-01", "0000-12-31", "-0006-12-31"]
    parts = date_format_of("yyyy-MM-dd y yy")
    expected = [f"{days[0]} 12345 45", f"{days[1]} 0 00", f"{days[2]} -6 06", None]
    assert texts("DateFormatClass", "t", parts) == expected
    assert texts("StructsToJson", "d", False) == [*(f'"{day}"' for day in days), None]
    times = [f'"{day}T00:00:00.000"' for day in days]
    assert texts("StructsToJson", "t", False) == [*times, None]


def test_a_double_may_be_rounded_to_more_digits_than_it_has() -> None:
    values = pa.array([1.7976931348623157e308, 5e-324, -2.5])
    for digits in (320, 401, 100_000):
        call = Function(
            name="Round", arguments=(Column("d"),), dtype=pa.float64(), options=(digits, False)
        )
        rounded = call.evaluate(Rows(columns={"d": values})).to_pylist()
        assert rounded == ([values[0].as_py(), 0.0, -2.5] if digits == 320 else values.to_pylist())
