"""Values of journal entries, made safe to show.

A journal may be of another version, damaged or forged.  Values that these functions return are
finite, short and printable; a value that is missing, or of another kind, is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from godwit.model.errors import GodwitError
from godwit.model.events import event_from_dict
from godwit.model.text import printable

_MAX_TEXT: Final = 300
_MOST: Final = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """A line about an event: time (seconds, driver's clock), kind and text."""

    at_s: float
    kind: str
    line: str


def event_line(values: Mapping[str, Any]) -> EventLine | None:
    """Return an event as a line of text; ``None`` if it cannot be read."""
    try:
        line = event_from_dict(values).describe()
        datetime.fromtimestamp(values["at_s"])  # noqa: DTZ006  only whether it is a time at all
    except (GodwitError, ArithmeticError, AttributeError, KeyError, OSError, TypeError, ValueError):
        return None  # of another version, or not of Godwit
    return EventLine(at_s=float(values["at_s"]), kind=text(values["kind"]), line=text(line))


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any, limit: int) -> list[Any]:
    """Return the first `limit` items if a value is a list, else none."""
    return value[:limit] if isinstance(value, list) else []


def number(value: Any) -> float:
    """Return a value if it is a finite number, else 0."""
    known = finite(value)
    return 0.0 if known is None else known


def finite(value: Any) -> float | None:
    """Return a value if it is a finite number, else ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _MOST else None  # also false for NaN


def count(value: Any) -> int:
    """Return a value as an integer; 0 if it is not a number."""
    return max(0, int(number(value)))


def text(value: Any, limit: int = _MAX_TEXT) -> str:
    """Return a value as one short line of printable text; it ends with "…" if it was longer."""
    whole = str(value)
    short = whole if len(whole) <= limit else f"{whole[: limit - 1]}…"
    return printable(short).replace("\n", " ")


def unix_time(value: Any) -> float:
    """Return an ISO text as Unix time in seconds; 0 if it is not valid."""
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
