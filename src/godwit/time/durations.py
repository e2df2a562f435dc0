"""Lengths of time as people write them: ``"10 minutes"``, ``"1 hour 30 minutes"``, ``"250 ms"``."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal
from typing import Final, TypeAlias

from godwit.model.errors import InvalidControlError, InvalidFlowError
from godwit.model.naming import type_name

Duration: TypeAlias = str | dt.timedelta
"""Text such as ``"10 minutes"``, or a timedelta."""

UNITS_US: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
"""Unit → microseconds; every one may stand in the plural."""
_SHORT = {"us": "microsecond", "ms": "millisecond", "s": "second"}
_OF_NO_FIXED_LENGTH = re.compile(r"\b(month|quarter|year)s?\b")
_MAX_US = 10_000 * 365 * UNITS_US["day"]
_MAX_SETTING_S = 36_500 * 86_400  # 100 years; a thread cannot wait for more than 292
_PART = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([a-z]+)[\s,]*")


def read_duration(text: str) -> int | None:
    """Return a text such as ``"250 ms"`` in microseconds; ``None`` if it is not a duration.

    Examples
    --------
    >>> read_duration("1 minute 30 seconds"), read_duration("250 ms"), read_duration("10s")
    (90000000, 250000, 10000000)
    """
    total_us, position, normalized = 0, 0, text.strip().lower()
    while position < len(normalized):
        part = _PART.match(normalized, position)
        if part is None:
            return None
        unit = _SHORT.get(part[2], part[2].removesuffix("s"))
        if unit not in UNITS_US:
            return None
        total_us += round(Decimal(part[1]) * UNITS_US[unit])
        position = part.end()
    return total_us if normalized else None


def seconds(value: Duration, what: str, *, least_s: float = 1e-3) -> float:
    """Return a duration in seconds; `what`: the setting's name, for errors.

    Raises `InvalidControlError` if it is not a duration, lacks a unit, is shorter than `least_s`,
    or longer than 100 years, which threads and libraries cannot wait for.

    Examples
    --------
    >>> seconds("1 minute 30 seconds", "The period"), seconds("2 seconds", "The period")
    (90.0, 2.0)
    """
    spelled_us = read_duration(value) if isinstance(value, str) else None
    length_s = math.nan if spelled_us is None else spelled_us / 1e6
    if isinstance(value, dt.timedelta):
        length_s = value.total_seconds()
    if length_s > _MAX_SETTING_S:
        raise InvalidControlError(
            f"{what} is {value!r}, which is too long.",
            remedy='Give at most 100 years ("36500 days").',
        )
    if not length_s >= least_s:
        raise InvalidControlError(
            f"{what} is {value!r}{', which has no unit' if _is_plain(value) else ''}.",
            remedy=f"Give at least {least_s:g} seconds, as text with a unit, such as "
            f'"{value if _is_plain(value) else 10} seconds", or as a timedelta.',
        )
    return length_s


def _is_plain(value: object) -> bool:
    """Return whether a value is a positive number, which lacks a unit."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def microseconds(value: Duration, what: str, *, least: int) -> int:
    """Return a duration in microseconds; `what`: the setting's name, for errors.

    Raises `InvalidFlowError` if it is not a duration, has no fixed length (months), or is
    shorter than `least` microseconds.

    Examples
    --------
    >>> microseconds("1 minute 30 seconds", "The slack", least=0)
    90000000
    """
    if isinstance(value, dt.timedelta):
        length_us = value // dt.timedelta(microseconds=1)
    elif isinstance(value, str):
        length_us = _parse_duration(value, what)
    else:
        raise InvalidFlowError(
            f"{what} was given as a value of type {type_name(value)}.",
            remedy='Give a text such as "10 minutes", or a timedelta.',
        )
    if not least <= length_us <= _MAX_US:
        raise InvalidFlowError(
            f"{what} is {value!r}, which is "
            + ("negative." if length_us < 0 else "no time." if length_us == 0 else "too long."),
            remedy='Give a positive length, such as "10 minutes".',
        )
    return length_us


def signed_microseconds(value: Duration, what: str) -> int:
    """Return a duration, which may be negative, in microseconds; `what`: the setting's name.

    Raises `InvalidFlowError` as `microseconds` does.

    Examples
    --------
    >>> signed_microseconds("-90 seconds", "A bound")
    -90000000
    """
    if isinstance(value, str) and value.strip().startswith("-"):
        after = value.strip()[1:]
        if "-" in after:
            raise InvalidFlowError(
                f"{what} is {value!r}, which has more than one sign.",
                remedy='Put one before all of it: "-1 hour 30 minutes" is ninety minutes before.',
            )
        return -microseconds(after, what, least=0)
    if isinstance(value, dt.timedelta) and value < dt.timedelta():
        return -microseconds(-value, what, least=0)
    return microseconds(value, what, least=0)


def _parse_duration(text: str, what: str) -> int:
    """Return a duration in microseconds; raise for other texts. `what`: the setting's name."""
    length_us = read_duration(text)
    if length_us is not None:
        return length_us
    if (unit := _OF_NO_FIXED_LENGTH.search(text.lower())) is not None:
        raise InvalidFlowError(
            f"{what} is {text!r}, but a {unit[1]} has no fixed length.",
            remedy='Give days or weeks, such as "30 days". Windows may be of calendar months: '
            'gw.tumbling("1 month", zone="UTC").',
        )
    raise InvalidFlowError(
        f"{what} is {text!r}, which is not a duration.",
        remedy=f'Give a number and a unit, such as "10 minutes"; units are {", ".join(UNITS_US)}.',
    )


def elapsed_text(ms: float) -> str:
    """Return milliseconds as text in a unit that leaves few digits, from ms to years.

    Examples
    --------
    >>> elapsed_text(850), elapsed_text(12_345), elapsed_text(95_886_638_300_000)
    ('850 ms', '12.3 s', '3,040.5 years')
    """
    if abs(ms) < 10_000:
        return f"{ms:,.0f} ms"
    for unit, length_ms, below in _LONG_UNITS:
        if abs(ms) < below * length_ms:
            return f"{ms / length_ms:,.1f} {unit}"
    return f"{ms / _YEAR_MS:,.1f} years"


_YEAR_MS = 365 * 86_400_000
_LONG_UNITS = (
    *(("s", 1_000, 120), ("min", 60_000, 120), ("h", 3_600_000, 48)),
    ("days", 86_400_000, 730),
)


def duration_text(length_us: int) -> str:
    """Return microseconds as text that `microseconds` reads, such as ``"90 seconds"``.

    Examples
    --------
    >>> duration_text(90_000_000)
    '90 seconds'
    """
    for unit, size in reversed(UNITS_US.items()):
        if length_us and length_us % size == 0 and unit != "week":
            number = length_us // size
            return f"{number} {unit}" + ("s" if number != 1 else "")
    return "0 seconds"
