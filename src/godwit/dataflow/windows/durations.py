"""Lengths of time as users write them: ``"10 minutes"``, ``"1 hour 30 minutes"``, a timedelta."""

from __future__ import annotations

import datetime as dt
import re
from typing import TypeAlias

from godwit.dataflow.naming import type_name
from godwit.model.errors import InvalidFlowError

__all__ = ["Duration", "microseconds", "spelled"]

Duration: TypeAlias = str | dt.timedelta
"""Text such as ``"10 minutes"``, or a timedelta."""

_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"(-?\d+)\s*([a-z]+)")
_MAX_US = 10_000 * 365 * _UNITS["day"]


def microseconds(value: Duration, what: str, *, least: int) -> int:
    """Give a length of time in microseconds.

    Parameters
    ----------
    value
        As the user wrote it.
    what
        What it is, for messages.
    least
        Microseconds that it must have at least.

    Raises
    ------
    InvalidFlowError
        If it is no length of time, has no fixed length (months), or is too short.

    Examples
    --------
    >>> microseconds("1 minute 30 seconds", "The slack", least=0)
    90000000
    """
    if isinstance(value, dt.timedelta):
        found = value // dt.timedelta(microseconds=1)
    elif isinstance(value, str):
        found = _read(value, what)
    else:
        raise InvalidFlowError(
            f"{what} was given as a value of type {type_name(value)}.",
            remedy='Give a text such as "10 minutes", or a timedelta.',
        )
    if not least <= found <= _MAX_US:
        raise InvalidFlowError(
            f"{what} is {value!r}, which is "
            + ("negative." if found < 0 else "no time." if found == 0 else "too long."),
            remedy='Give a positive length, such as "10 minutes".',
        )
    return found


def _read(text: str, what: str) -> int:
    total, rest = 0, text.strip().lower()
    while rest:
        part = _PART.match(rest)
        if part is None:
            break
        unit = part[2].removesuffix("s")
        if unit in ("month", "year", "quarter"):
            raise InvalidFlowError(
                f"{what} is {text!r}, but a {unit} has no fixed length.",
                remedy='Give days or weeks, such as "30 days".',
            )
        if unit not in _UNITS:
            break
        total += int(part[1]) * _UNITS[unit]
        rest = rest[part.end() :].lstrip(" ,")
    if rest or not text.strip():
        raise InvalidFlowError(
            f"{what} is {text!r}, which is no length of time.",
            remedy='Give a number and a unit, such as "10 minutes"; units are '
            f"{', '.join(_UNITS)}.",
        )
    return total


def spelled(length_us: int) -> str:
    """Write a length of time as `microseconds` reads it.

    Examples
    --------
    >>> spelled(90_000_000)
    '90 seconds'
    """
    for unit, size in reversed(_UNITS.items()):
        if length_us and length_us % size == 0 and unit != "week":
            number = length_us // size
            return f"{number} {unit}" + ("s" if number != 1 else "")
    return "0 seconds"
