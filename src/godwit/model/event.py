"""An event as a value: described in a line, turned into plain values and read back from them.

The kinds of events are in `godwit.model.events`.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from godwit.model.errors import GodwitError
from godwit.model.secrets import hidden_values

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(ABC):
    """One thing that happened in a run.

    Examples
    --------
    >>> event = gw.events.ExecutorLost(epoch=4, at_s=1.0, executor="2", reason="killed")
    >>> event.describe(), event.to_dict()["kind"]
    ('executor 2 lost: killed', 'ExecutorLost')
    """

    # The last epoch committed when it happened; -1 before the first. An event about an epoch itself
    # carries that epoch.
    epoch: int
    at_s: float  # when it happened, in seconds, on the clock of whoever made the event

    @property
    def is_warning(self) -> bool:
        """True if it is logged as a warning too, for those without a listener.

        Examples
        --------
        >>> gw.events.ExecutorLost(epoch=4, at_s=1.0, executor="2").is_warning
        False
        """
        return False

    def __post_init__(self) -> None:
        # What libraries say when they fail may hold a password.
        for f in fields(self):
            value = getattr(self, f.name)
            if (shown := hidden_values(value)) != value:
                object.__setattr__(self, f.name, shown)

    def describe(self) -> str:
        """Describe the event in one line, for people.

        Examples
        --------
        >>> gw.events.EpochAborted(epoch=5, at_s=1.0, reason="executor 2 lost").describe()
        'epoch 5 aborted: executor 2 lost'
        """
        return self._one_line_text()

    @abstractmethod
    def _one_line_text(self) -> str:
        """Return the text of `describe`."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them; ``kind`` names the class.

        Examples
        --------
        >>> gw.events.ExecutorLost(epoch=4, at_s=1.0, executor="2").to_dict()
        {'kind': 'ExecutorLost', 'epoch': 4, 'at_s': 1.0, 'executor': '2', 'reason': ''}
        """
        values: dict[str, Any] = {"kind": type(self).__name__}
        for f in fields(self):
            values[f.name] = _plain(getattr(self, f.name))
        return values


def _plain(value: Any) -> Any:
    """Return a field's value as JSON has it."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return dict(value) if isinstance(value, Mapping) else value


def read_event(kinds: Mapping[str, type[Event]], values: Any) -> Event:
    """Undo `Event.to_dict` of an event of some kinds, by name; refuse any other values."""
    kind = values.get("kind") if isinstance(values, dict) else None
    known = kinds.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise _no_event(f"There is no event of kind {kind!r:.100}.", kind)
    readers = {field.name: _reader(str(field.type)) for field in fields(known)}
    try:
        named = {name: readers[name](value) for name, value in values.items() if name != "kind"}
        event = known(**named)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _no_event(f"These are not the values of an event {kind}: {error}.", kind) from None
    if not math.isfinite(event.at_s):
        raise _no_event(f"An event {kind} happened at {event.at_s} s.", kind)
    return event


@functools.cache
def _reader(annotation: str) -> Callable[[Any], Any]:
    """Return a function that reads a plain value as a field of that annotation, or raises."""
    if annotation == "float | None":
        return lambda value: None if value is None else float(value)
    outer, _, of = annotation.rstrip("]").partition("[")
    if outer == "tuple":
        item = _reader(of.removesuffix(", ..."))
        return lambda value: tuple(map(item, _checked(value, list, "list")))
    if outer == "Mapping":
        name, item = map(_reader, of.split(", "))
        return lambda value: {
            name(key): item(one) for key, one in _checked(value, dict, "object").items()
        }
    if outer == "str":
        return lambda value: _checked(value, str, "text")
    plain: dict[str, Callable[[Any], Any]] = {"int": _whole, "float": float, "bool": bool}
    return plain[outer]


def _checked(value: Any, kind: type, noun: str) -> Any:
    """Return a value of that type, or refuse it."""
    if not isinstance(value, kind):
        msg = f"{value!r:.100} is no {noun}"
        raise TypeError(msg)
    return value


def _whole(value: Any) -> int:
    """Read a whole number."""
    if isinstance(value, float | list | dict):
        msg = f"{value!r:.100} is no whole number"
        raise TypeError(msg)
    return int(value)


def _no_event(problem: str, kind: Any) -> GodwitError:
    """Return the error of values that are no event."""
    return GodwitError(
        problem,
        remedy="Read the log with the version of Godwit that wrote it.",
        kind=kind,
    )
