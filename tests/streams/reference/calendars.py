"""Days and months of a time zone, by looking at the clock of the zone, second by second."""

from __future__ import annotations

import datetime as dt
from functools import cache
from zoneinfo import ZoneInfo

__all__ = ["begins", "number_of", "spelled"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LENGTHS = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}


def spelled(length: int, unit: str | None) -> str:
    """Write a length in the largest unit of which it is a whole number, as results show it."""
    sizes = _LENGTHS
    if unit is not None:
        sizes = {"day": 1} if unit == "day" else {"year": 12, "quarter": 3, "month": 1}
    name, size = next((name, size) for name, size in sizes.items() if length % size == 0)
    return f"{length // size} {name}{'' if length == size else 's'}"


@cache
def begins(unit: str, zone: str, number: int) -> int:
    """First moment at which the clock shows that day or month since 1970-01, or a later one."""
    first = _EPOCH.date() + dt.timedelta(days=number)
    if unit == "month":
        first = dt.date(1970 + number // 12, number % 12 + 1, 1)
    at = dt.datetime(first.year, first.month, first.day, tzinfo=dt.UTC) - dt.timedelta(hours=26)
    for step in (dt.timedelta(minutes=15), dt.timedelta(seconds=1)):
        while at.astimezone(ZoneInfo(zone)).date() < first:
            at += step
        at -= step
    return (at + step - _EPOCH) // dt.timedelta(microseconds=1)


def number_of(unit: str, zone: str, at: int) -> int:
    """Last day or month since 1970-01 that has begun."""
    date = (_EPOCH + dt.timedelta(microseconds=at)).astimezone(ZoneInfo(zone)).date()
    number = (date - _EPOCH.date()).days
    if unit == "month":
        number = (date.year - 1970) * 12 + date.month - 1
    while begins(unit, zone, number + 1) <= at:  # of a clock that was turned back across midnight
        number += 1
    return number
