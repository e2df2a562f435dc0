"""Logarithms, exponentials and powers, bit for bit as in Java's ``StrictMath``.

``StrictMath`` is defined as the results of fdlibm, which differ from other libraries in the last
bit.  Here are its formulas: an argument is divided into a power of two and a rest near 1 or 0, of
which a polynomial is taken; which operations follow each other decides the last bit.

Source: fdlibm 5.3 (``e_log.c``, ``e_log10.c``, ``e_exp.c``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LOG = (
    *(6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01),
    *(2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01),
    1.479819860511658591e-01,
)
_IVLN10 = 4.34294481903251816668e-01
_LOG10_2_HIGH, _LOG10_2_LOW = 3.01029995663611771306e-01, 3.69423907715893078616e-13
_EXP = (
    *(1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05),
    *(-1.65339022054652515390e-06, 4.13813679705723846039e-08),
)
_INVLN2 = 1.44269504088896338700e00
_TWO54 = 1.80143985094819840000e16


def _high_bits_and_exponents(
    values: Doubles,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the upper 32 bits of doubles, and the exponent of two that small ones were given."""
    small = values < 2.2250738585072014e-308
    scaled = values * np.where(small, _TWO54, 1.0)
    return scaled.view(np.int64), np.where(small, -54, 0)


def log(values: Doubles) -> Doubles:
    """Return natural logarithms of positive numbers, infinity and NaN."""
    bits, exponent = _high_bits_and_exponents(values)
    high, low = bits >> 32, bits & 0xFFFFFFFF
    exponent = exponent + (high >> 20) - 1023
    high = high & 0x000FFFFF
    lower = (high + 0x95F64) & 0x100000
    mantissa = (((high | (lower ^ 0x3FF00000)) << 32) | low).view(np.float64)
    exponent = exponent + (lower >> 20)
    fraction, power = mantissa - 1.0, exponent.astype(np.float64)
    is_near_one = (0x000FFFFF & (2 + high)) < 3  # |f| < 2**-20
    with np.errstate(all="ignore"):
        correction = fraction * fraction * (0.5 - 0.33333333333333333 * fraction)
        result_near_one = np.where(
            exponent == 0,
            fraction - correction,
            power * _LN2_HIGH - ((correction - power * _LN2_LOW) - fraction),
        )
        result_near_one = np.where(
            fraction == 0,
            np.where(exponent == 0, 0.0, power * _LN2_HIGH + power * _LN2_LOW),
            result_near_one,
        )
        s = fraction / (2.0 + fraction)
        z = s * s
        w = z * z
        t1 = w * (_LOG[1] + w * (_LOG[3] + w * _LOG[5]))
        t2 = z * (_LOG[0] + w * (_LOG[2] + w * (_LOG[4] + w * _LOG[6])))
        r = t2 + t1
        in_middle = ((high - 0x6147A) | (0x6B851 - high)) > 0
        half = 0.5 * fraction * fraction
        middle = np.where(
            exponent == 0,
            fraction - (half - s * (half + r)),
            power * _LN2_HIGH - ((half - (s * (half + r) + power * _LN2_LOW)) - fraction),
        )
        outer = np.where(
            exponent == 0,
            fraction - s * (fraction - r),
            power * _LN2_HIGH - ((s * (fraction - r) - power * _LN2_LOW) - fraction),
        )
    result = np.where(is_near_one, result_near_one, np.where(in_middle, middle, outer))
    return np.where(np.isfinite(values), result, values + values)


def log10(values: Doubles) -> Doubles:
    """Return decimal logarithms of positive numbers, infinity and NaN."""
    bits, exponent = _high_bits_and_exponents(values)
    exponent = exponent + (bits >> 52) - 1023
    is_negative = (exponent < 0).astype(np.int64)
    mantissa = (bits & 0x000FFFFFFFFFFFFF) | ((0x3FF - is_negative) << 52)
    power = (exponent + is_negative).astype(np.float64)
    low_part = power * _LOG10_2_LOW + _IVLN10 * log(mantissa.view(np.float64))
    return np.where(np.isfinite(values), low_part + power * _LOG10_2_HIGH, values + values)


def log2(values: Doubles) -> Doubles:
    """Return binary logarithms as Spark computes them: as quotients of natural ones."""
    quotients: Doubles = log(values) / log(np.array([2.0]))
    return quotients


def exp(values: Doubles) -> Doubles:
    """Return powers of e."""
    high = (values.view(np.int64) >> 32) & 0x7FFFFFFF
    with np.errstate(all="ignore"):
        finite = np.where(np.isfinite(values) & (abs(values) < 800), values, 0.0)
        sign = np.where(finite < 0, -1.0, 1.0)
        reduced, near_one = high > 0x3FD62E42, high < 0x3FF0A2B2
        power = np.where(near_one, sign, np.trunc(_INVLN2 * finite + sign * 0.5))
        power = np.where(reduced, power, 0.0)
        upper = np.where(reduced, finite - power * _LN2_HIGH, finite)
        lower = power * _LN2_LOW
        x = np.where(reduced, upper - lower, finite)
        t = x * x
        c = x - t * (_EXP[0] + t * (_EXP[1] + t * (_EXP[2] + t * (_EXP[3] + t * _EXP[4]))))
        unscaled = 1.0 - ((x * c) / (c - 2.0) - x)
        y = 1.0 - ((lower - (x * c) / (2.0 - c)) - upper)
        whole = power.astype(np.int64)
        is_subnormal = whole < -1021
        scaled = (y.view(np.int64) + ((whole + np.where(is_subnormal, 1000, 0)) << 52)).view(
            np.float64
        )
        scaled = np.where(is_subnormal, scaled * 9.33263618503218878990e-302, scaled)
        result = np.where(power == 0, unscaled, scaled)
        result = np.where(high < 0x3E300000, 1.0 + finite, result)
        result = np.where(values > 7.09782712893383973096e02, np.inf, result)
        result = np.where(values < -7.45133219101941108420e02, 0.0, result)
    return np.where(np.isnan(values), values, result)
