"""Floats as texts, digit for digit as in Java and Spark.

Since Java 19, a text has the fewest digits that tell a number from its neighbours, as in Python.
Before, digits come out one by one until the rest is less than half the distance to a neighbour,
so that some texts have a digit more, or another last one; whole numbers are rounded by how many of
their digits a float can have.  `digits_of` does the same with Python's integers; where Java's own
32 or 64 bits overflow, it lets them.
"""

from __future__ import annotations

import math
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_UP, Decimal, localcontext
from functools import cache

import numpy as np

_WHOLE_BITS = 62  # binary exponent up to which whole numbers are written by their own rule
_LONG_POWERS = 27  # powers of five that fit 64 bits
SINCE_SHORTEST = 19
"""First version of Java that writes the shortest texts."""


def text_of(value: float, *, is_single: bool = False, shortest: bool = False) -> str:
    """Return the text of a float as Java writes it.

    `is_single`: the float has 32 bits. `shortest`: as since Java 19.

    Examples
    --------
    >>> text_of(0.1), text_of(1e7), text_of(-123456.75)
    ('0.1', '1.0E7', '-123456.75')
    >>> text_of(2e23), text_of(2e23, shortest=True)
    ('1.9999999999999998E23', '2.0E23')
    """
    if not is_single and 1e-3 <= abs(value) < 1e7:
        # Half the distance to a neighbour has more decimal places than texts have, so both rules
        # end at the same digit.
        return repr(value)
    if not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if value == 0:
        return f"{sign}0.0"
    digits, point = (
        _shortest_digits(abs(value), is_single) if shortest else digits_of(value, is_single)
    )
    if 0 < point < 8:
        whole, fraction = digits[:point].ljust(point, "0"), digits[point:] or "0"
        return f"{sign}{whole}.{fraction}"
    if -3 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - 1}"


def grouped_text(value: float | Decimal, places: int) -> str:
    """Return the text of Java's ``DecimalFormat`` with commas, of numbers rounded half to even.

    A float has the digits of its text, and is rounded by its exact value.

    Examples
    --------
    >>> grouped_text(-1234567.125, 2), grouped_text(2.675, 2), grouped_text(2e23, 0)
    ('-1,234,567.12', '2.67', '199,999,999,999,999,980,000,000')
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    exact = Decimal(value)
    with localcontext() as context:
        context.prec = 1200
        shown = Decimal(text_of(value)) if isinstance(value, float) else exact
        step = Decimal(1).scaleb(-places)
        rounded = shown.quantize(step, ROUND_HALF_EVEN)
        if abs(shown - rounded) * 2 == step and exact != shown:  # its text is half, and it is not
            towards_zero = (exact < shown) == (shown > 0)
            rounded = shown.quantize(step, ROUND_DOWN if towards_zero else ROUND_UP)
    is_negative = value < 0 or (isinstance(value, float) and math.copysign(1.0, value) < 0)
    return f"{'-' if is_negative else ''}{rounded.copy_abs():,.{places}f}"


def _shortest_digits(value: float, is_single: bool) -> tuple[str, int]:
    """Return the fewest digits of a number, and the place of its point after the first of them."""
    number = np.float32(value) if is_single else np.float64(value)
    text = np.format_float_scientific(number, unique=True, trim="-")
    mantissa, exponent = text.split("e")
    if len(mantissa) == 1:  # of texts of two digits, the nearest
        longer = f"{float(number):.1e}"
        if type(number)(longer) == number:
            mantissa, exponent = longer.split("e")
    digits = mantissa.replace(".", "").rstrip("0")
    return digits, int(exponent) + 1


def digits_of(value: float, is_single: bool) -> tuple[str, int]:
    """Return the digits that Java before 19 prints, and the number before the point."""
    mantissa, exponent = math.frexp(abs(value))
    bits, lowest = (24, -149) if is_single else (53, -1074)
    unit = max(exponent - bits, lowest)  # the value is a whole number of 2**unit
    whole = int(math.ldexp(mantissa, exponent - unit))
    precision, binary = whole.bit_length(), exponent - 1
    odd_part = whole >> ((whole & -whole).bit_length() - 1)
    small_bits = max(0, odd_part.bit_length() - binary - 1)  # after the point
    if not small_bits and binary <= _WHOLE_BITS:
        return _whole_digits(whole << unit if unit >= 0 else whole >> -unit, binary, precision)
    return _fraction_digits(odd_part, binary, precision, small_bits)


def _whole_digits(number: int, binary: int, precision: int) -> tuple[str, int]:
    """Return the digits of a whole number, without those that are not exact."""
    inexact = binary - precision - 1
    dropped = len(str(1 << inexact)) - 1 if binary > precision and inexact > 1 else 0
    step = 10**dropped
    number, rest = divmod(number, step)
    if dropped and rest >= step >> 1:
        number += 1
    text = str(number)
    return text.rstrip("0"), len(text) + dropped


@cache
def _bits_of_power(power: int) -> int:
    """Estimate the number of bits of a power of five."""
    return (5**power).bit_length() if 0 < power < _LONG_POWERS else 3 * power


def _fraction_digits(odd: int, binary: int, precision: int, small_bits: int) -> tuple[str, int]:
    """Return the digits of ``odd * 2**n`` whose first bit is 2**`binary`."""
    mantissa = odd / (1 << (odd.bit_length() - 1))
    estimate = (mantissa - 1.5) * 0.289529654 + 0.176091259 + binary * 0.301029995663981
    exponent = math.floor(estimate)
    fives, tens = max(0, -exponent), max(0, exponent)
    shift, scale = fives + small_bits + binary, tens + small_bits
    half = shift - precision  # exponent of half the distance to a neighbour
    shift -= odd.bit_length() - 1
    common = min(shift, scale)
    shift, scale, half = shift - common, scale - common, half - common
    if odd == 1:
        half -= 1  # the lower neighbour is nearer
    if half < 0:
        shift, scale, half = shift - half, scale - half, 0
    size = odd.bit_length() + shift + _bits_of_power(fives)
    size_of_ten = scale + 1 + _bits_of_power(tens + 1)
    width = 0  # of Java's integers; 0: as wide as it takes
    if size < 64 and size_of_ten < 64:
        width = 32 if size < 32 and size_of_ten < 32 else 64
    remainder, divisor, margin = odd * 5**fives << shift, 5**tens << scale, 5**fives << half
    ten_divisors = 10 * divisor
    digits: list[int] = []
    first, is_low, is_high = True, False, False
    while not (is_low or is_high):
        digit, remainder = divmod(remainder, divisor)
        remainder, margin = 10 * remainder, _wrap_to_width(10 * margin, width)
        above = _wrap_to_width(remainder + margin, width)
        is_low, is_high = (
            remainder < margin,
            above > ten_divisors if width else above >= ten_divisors,
        )
        if margin <= 0:  # it did not fit
            is_low = is_high = True
        if first and digit == 0 and not is_high:
            exponent -= 1
        else:
            digits.append(digit)
        if first and not -3 <= exponent < 8:
            is_low = is_high = False  # a text with an exponent has two digits
        first = False
    distance_to_half = 2 * remainder - ten_divisors
    rounds_up = is_high and (
        not is_low or distance_to_half > 0 or (distance_to_half == 0 and digits[-1] % 2 == 1)
    )
    number = int("".join(map(str, digits))) + rounds_up
    text = str(number).zfill(len(digits))
    point = exponent + 1 + (len(text) - len(digits))
    return text.rstrip("0") or "0", point


def _wrap_to_width(number: int, width: int) -> int:
    """Wrap an integer to a signed integer of some bits; 0: unlimited."""
    if not width:
        return number
    half = 1 << (width - 1)
    return (number + half) % (2 * half) - half
