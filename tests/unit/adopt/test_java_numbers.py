"""Floats have the texts that Java 17 writes, and since Java 19 the shortest ones."""

from __future__ import annotations

import random
import struct

import pytest

from godwit.adopt.java_numbers import text_of

_DOUBLES = {
    0.1: "0.1",
    1 / 3: "0.3333333333333333",
    -123456.75: "-123456.75",
    9999999.0: "9999999.0",
    1e7: "1.0E7",
    0.001: "0.001",
    0.00099: "9.9E-4",
    2.0**-44: "5.6843418860808015E-14",
    2e23: "1.9999999999999998E23",
    1e23: "9.999999999999999E22",
    8.41e21: "8.409999999999999E21",
    1e22: "1.0E22",
    2.0**63: "9.223372036854776E18",
    2.0**53: "9.007199254740992E15",
    5e-324: "4.9E-324",
    2.2250738585072014e-308: "2.2250738585072014E-308",
    1.7976931348623157e308: "1.7976931348623157E308",
    1.6534532126024502e18: "1.65345321260245018E18",
    4.452627444598449e16: "4.4526274445984488E16",
    -0.0: "-0.0",
    float("inf"): "Infinity",
}  # as OpenJDK 17 wrote them
_FLOATS = {
    0.1: "0.1",
    16777217.0: "1.6777216E7",
    1e38: "1.0E38",
    3.4028235e38: "3.4028235E38",
    1.4e-45: "1.4E-45",
    1.17549435e-38: "1.17549435E-38",
}


@pytest.mark.parametrize("value", _DOUBLES)
def test_a_double_has_the_text_of_java_17(value: float) -> None:
    assert text_of(value) == _DOUBLES[value]


@pytest.mark.parametrize("value", _FLOATS)
def test_a_float_of_32_bits_has_the_text_of_java_17(value: float) -> None:
    (single,) = struct.unpack("f", struct.pack("f", value))
    assert text_of(single, is_single=True) == _FLOATS[value]


@pytest.mark.parametrize("shortest", [True, False])
def test_a_text_is_read_as_the_number_that_it_is_of(shortest: bool) -> None:
    draw = random.Random(3)
    for _ in range(500):
        (value,) = struct.unpack("d", draw.randbytes(8))
        if value == value:  # noqa: PLR0124  not NaN
            assert float(text_of(value, shortest=shortest)) == value


def test_the_shortest_text_has_two_digits_at_least_and_the_nearest() -> None:
    assert text_of(2e23, shortest=True) == "2.0E23"
    assert text_of(5e-324, shortest=True) == "4.9E-324"
    assert text_of(float("nan"), shortest=True) == "NaN"
