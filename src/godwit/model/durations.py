"""Lengths of time as people write them: ``"10 minutes"``, ``"1 hour 30 minutes"``, ``"250 ms"``."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

__all__ = ["UNITS_US", "read_duration"]

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
