"""Lengths of time as users write them: ``"10 minutes"``, ``"1 hour 30 minutes"``, a timedelta."""

from __future__ import annotations

import datetime as dt
import re
from typing import TypeAlias

from godwit.model.durations import UNITS_US, read_duration
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import type_name

__all__ = ["Duration", "microseconds", "signed_microseconds", "spelled"]

Duration: TypeAlias = str | dt.timedelta
"""Text such as ``"10 minutes"``, or a timedelta."""

_OF_NO_FIXED_LENGTH = re.compile(r"\b(month|quarter|year)s?\b")
_MAX_US = 10_000 * 365 * UNITS_US["day"]


def microseconds(value: Duration, what: str, *, least: int) -> int:
    """Give a length of time in microseconds.

    `least`: microseconds that it must have at least.
    Raises `InvalidFlowError` if it is no length of time, has no fixed length (months), or is too
    short.

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


def signed_microseconds(value: Duration, what: str) -> int:
    """Give a distance in time, which may be negative, in microseconds.

    Raises `InvalidFlowError` as of `microseconds`, but for the sign.

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


def _read(text: str, what: str) -> int:
    found = read_duration(text)
    if found is not None:
        return found
    if (unit := _OF_NO_FIXED_LENGTH.search(text.lower())) is not None:
        raise InvalidFlowError(
            f"{what} is {text!r}, but a {unit[1]} has no fixed length.",
            remedy='Give days or weeks, such as "30 days". Windows may be of calendar months: '
            'gw.tumbling("1 month", zone="UTC").',
        )
    raise InvalidFlowError(
        f"{what} is {text!r}, which is no length of time.",
        remedy=f'Give a number and a unit, such as "10 minutes"; units are {", ".join(UNITS_US)}.',
    )


def spelled(length_us: int) -> str:
    """Write a length of time as `microseconds` reads it.

    Examples
    --------
    >>> spelled(90_000_000)
    '90 seconds'
    """
    for unit, size in reversed(UNITS_US.items()):
        if length_us and length_us % size == 0 and unit != "week":
            number = length_us // size
            return f"{number} {unit}" + ("s" if number != 1 else "")
    return "0 seconds"
