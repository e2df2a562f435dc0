"""Lengths of time in the controller's settings: seconds as a number, or as people write them."""

from __future__ import annotations

import datetime as dt
import math
from typing import TypeAlias

from godwit.model.durations import read_duration
from godwit.model.errors import InvalidControlError

__all__ = ["Duration", "seconds"]

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
