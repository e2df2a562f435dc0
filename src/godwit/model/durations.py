"""Lengths of time as people write them: ``"10 minutes"``, ``"1 hour 30 minutes"``, ``"250 ms"``."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal
from typing import Final, TypeAlias

from godwit.model.errors import InvalidControlError

__all__ = ["UNITS_US", "Duration", "read_duration", "seconds"]

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
_SHORT = {"us": "microsecond", "ms": "millisecond"}
_PART = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([a-z]+)[\s,]*")


def read_duration(text: str) -> int | None:
    """Microseconds that a text spells; ``None`` if it spells none.

    Examples
    --------
    >>> read_duration("1 minute 30 seconds"), read_duration("250 ms"), read_duration("soon")
    (90000000, 250000, None)
    """
    total_us, at, written = 0, 0, text.strip().lower()
    while at < len(written):
        part = _PART.match(written, at)
        if part is None:
            return None
        unit = _SHORT.get(part[2], part[2].removesuffix("s"))
        if unit not in UNITS_US:
            return None
        total_us += round(Decimal(part[1]) * UNITS_US[unit])
        at = part.end()
    return total_us if written else None


Duration: TypeAlias = float | str | dt.timedelta
"""Seconds, text such as ``"10 seconds"``, or a timedelta."""


def seconds(value: Duration, what: str, *, least_s: float = 1e-3) -> float:
    """Give a length of time in seconds.

    value: As the user wrote it.
    what: What it is, for messages.
    least_s: What it must be at least.

    Raises `InvalidControlError` if it is no length of time, or too short.

    Examples
    --------
    >>> seconds("1 minute 30 seconds", "The period"), seconds(2, "The period")
    (90.0, 2.0)
    """
    if isinstance(value, dt.timedelta):
        found = value.total_seconds()
    elif isinstance(value, str):
        spelled_us = read_duration(value)
        found = math.nan if spelled_us is None else spelled_us / 1e6
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value)
    else:
        found = math.nan
    if not least_s <= found < math.inf:
        raise InvalidControlError(
            f"{what} is {value!r}.",
            remedy=f'Give at least {least_s:g} seconds, as a number or as in "10 seconds".',
        )
    return found
