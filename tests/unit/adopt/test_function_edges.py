"""Offsets from UTC in JSON, and digits of rounded doubles, at their edges."""

from __future__ import annotations

import pyarrow as pa

from godwit.adopt.functions import Function
from godwit.operators.aggregates.expressions import Column, Rows


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


def test_a_double_may_be_rounded_to_more_digits_than_it_has() -> None:
    values = pa.array([1.7976931348623157e308, 5e-324, -2.5])
    for digits in (320, 401, 100_000):
        call = Function(
            name="Round", arguments=(Column("d"),), dtype=pa.float64(), options=(digits, False)
        )
        rounded = call.evaluate(Rows(columns={"d": values})).to_pylist()
        assert rounded == ([values[0].as_py(), 0.0, -2.5] if digits == 320 else values.to_pylist())
