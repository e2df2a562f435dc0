"""Triggers of epochs, as users give them to start and Spark spells them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from godwit.model.errors import InvalidFlowError
from godwit.time.durations import read_duration

if TYPE_CHECKING:
    from collections.abc import Mapping


def is_bounded(trigger: Mapping[str, object] | None) -> bool:
    """Return whether a trigger ends the query with the available input."""
    return bool(trigger) and not {"availableNow", "once"}.isdisjoint(trigger or ())


def is_once(trigger: Mapping[str, object] | None) -> bool:
    """Return whether a trigger is ``once``: one epoch over the available input."""
    return "once" in (trigger or {})


def interval_s(trigger: Mapping[str, object] | None) -> float:
    """Return the trigger's interval in seconds; 0 if it has none.

    Raises `InvalidFlowError` if the interval is not a length of time.
    """
    text = (trigger or {}).get("processingTime")
    if text is None:
        return 0.0
    length_us = read_duration(str(text).strip().lower().removeprefix("interval "))
    if length_us is None or length_us < 0:
        raise InvalidFlowError(
            f"The trigger processingTime of start is {text!r}, which is not a length of time.",
            remedy='Give an interval such as "500 milliseconds", "1 second" or "2 minutes".',
        )
    return length_us / 1e6


def known_interval_s(trigger: Mapping[str, object] | None) -> float:
    """Return the trigger's interval in seconds; 0 also if only Spark can parse it."""
    with suppress(InvalidFlowError):
        return interval_s(trigger)
    return 0.0
