"""Lengths of time in the controller's settings: seconds as a number, or as people write them."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import TypeAlias

from godwit.model.errors import InvalidControlError

__all__ = ["Duration", "seconds"]

Duration: TypeAlias = float | str | dt.timedelta
"""Seconds, text such as ``"10 seconds"``, or a timedelta."""


_UNITS = {
    "ms": 1e-3,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)[\s,]*")


def seconds(value: Duration, what: str, *, least_s: float = 1e-3) -> float:
    """Give a length of time in seconds.

    Parameters
    ----------
    value
        As the user wrote it.
    what
        What it is, for messages.
    least_s
        What it must be at least.

    Raises
    ------
    InvalidControlError
        If it is no length of time, or too short.

    Examples
    --------
    >>> seconds("1 minute 30 seconds", "The period"), seconds(2, "The period")
    (90.0, 2.0)
    """
    if isinstance(value, dt.timedelta):
        found = value.total_seconds()
    elif isinstance(value, str):
        found = _read(value)
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


def _read(text: str) -> float:
    """Seconds that a text spells; NaN if it spells none."""
    total, at, spelled = 0.0, 0, text.strip().lower()
    while at < len(spelled):
        part = _PART.match(spelled, at)
        unit_s = (
            None if part is None else _UNITS.get(part[2], _UNITS.get(part[2].removesuffix("s")))
        )
        if part is None or unit_s is None:
            return math.nan
        total += float(part[1]) * unit_s
        at = part.end()
    return total if spelled else math.nan
