"""An event as a value: described in a line, turned into plain values and read back from them.

The kinds of events are in `godwit.model.events`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import msgspec

from godwit.model.errors import GodwitError
from godwit.model.secrets import hidden_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base class of events: reports of what happened in a run of a query.

    Godwit makes events: get them by ``query.events`` or ``query.add_listener``.

    Attributes
    ----------
    epoch
        Number of the epoch that the event is about, or of the last committed epoch; -1 before the
        first.
    at_s
        Time of the event, in seconds since 1970-01-01 UTC; in the simulator, since its start.

    Examples
    --------
    >>> event = gw.events.ExecutorLost(epoch=4, at_s=1.0, executor="2", reason="killed")
    >>> event.describe(), event.to_dict()["kind"]
    ('executor 2 lost: killed', 'ExecutorLost')
    """

    # The last epoch committed when it happened; -1 before the first. An event about an epoch itself
    # carries that epoch.
    epoch: int
    at_s: float  # time of the event, in seconds, on the emitter's clock

    _TEXT: ClassVar[str] = ""  # format of the text of `describe`, where that needs no code
    _WARNS: ClassVar[bool] = False  # whether it is a warning, unless a sink has the rows

    @property
    def is_warning(self) -> bool:
        """True if Godwit also logs the event as a warning, as for rows that are lost.

        Examples
        --------
        >>> gw.events.ExecutorLost(epoch=4, at_s=1.0, executor="2").is_warning
        False
        """
        return self._WARNS and not getattr(self, "sink", "")

    def __post_init__(self) -> None:
        # What libraries say when they fail may hold a password.
        for field in fields(self):
            value = getattr(self, field.name)
            if (shown := hidden_values(value)) != value:
                object.__setattr__(self, field.name, shown)

    def describe(self) -> str:
        """Return the event as one line of text for people, such as for a log.

        Examples
        --------
        >>> gw.events.EpochAborted(epoch=5, at_s=1.0, reason="executor 2 lost").describe()
        'epoch 5 aborted: executor 2 lost'
        """
        return self._one_line_text()

    def _one_line_text(self) -> str:
        """Return the text of `describe`: the template `_TEXT` with the event's fields filled in."""
        return self._TEXT.format(event=self)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a dict of plain values, for JSON.

        It has the event's fields, and under ``kind`` the name of its class.
        `godwit.events.event_from_dict` makes an event of it again.

        Examples
        --------
        >>> gw.events.ExecutorLost(epoch=4, at_s=1.0, executor="2").to_dict()
        {'kind': 'ExecutorLost', 'epoch': 4, 'at_s': 1.0, 'executor': '2', 'reason': ''}
        """
        values: dict[str, Any] = {"kind": type(self).__name__}
        for f in fields(self):
            values[f.name] = _to_json(getattr(self, f.name))
        return values


def _to_json(value: Any) -> Any:
    """Return a field's value for JSON: a tuple as a list, a mapping as a dict."""
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def read_event(kinds: Mapping[str, type[Event]], values: Any) -> Event:
    """Return the event from the `values` that `Event.to_dict` returned.

    `kinds`: name → class of events.
    """
    kind = values.get("kind") if isinstance(values, dict) else None
    event_class = kinds.get(kind) if isinstance(kind, str) else None
    if event_class is None:
        raise _invalid_event(f"There is no event of kind {kind!r:.100}.", kind)
    field_values = {name: value for name, value in values.items() if name != "kind"}
    for name in field_values.keys() - {field.name for field in fields(event_class)}:
        raise _invalid_event(f"An event {kind} has no field {name!r:.100}.", kind)
    try:
        event = msgspec.convert(field_values, event_class, strict=False)
    except (msgspec.ValidationError, OverflowError) as error:
        raise _invalid_event(
            f"These are not the values of an event {kind}: {error}.", kind
        ) from None
    if not math.isfinite(event.at_s):
        raise _invalid_event(f"An event {kind} happened at {event.at_s} s.", kind)
    return event


def _invalid_event(problem: str, kind: Any) -> GodwitError:
    """Return the error for values that are no event; `kind`: the event's name in them."""
    return GodwitError(
        problem,
        remedy="Read the log with the version of Godwit that wrote it.",
        kind=kind,
    )
