"""Names that users know operators and components by.

A two-phase window is three operators to the engine (two slots that compute, one that consolidates),
and may be three components; to whoever wrote the flow it is one operator with one name.  This is
the one place that says so: what people see (explain, events, assignments, status) goes through it,
what the engine and the checkpoint do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.model.events import Event
    from godwit.operators.operator import KeyedOperator

__all__ = ["UserNames"]

_ONE = frozenset({"component", "operator"})
"""Fields of events that name one of them."""
_BY_COMPONENT = frozenset({"components", "migrations"})
"""Fields of events that are mappings whose keys are components, to texts that may name more."""


class UserNames:
    """Operator or component, as the engine names it → the name that users know."""

    def __init__(self, operators: Iterable[KeyedOperator]) -> None:
        self._of = {o.name: o.part_of for o in operators if o.part_of}

    def __getitem__(self, name: str) -> str:
        """Return the name of an operator or component; one that is unknown is its own."""
        if not self._of or name in self._of:
            return self._of.get(name, name)
        return "+".join(dict.fromkeys(self._of.get(part, part) for part in name.split("+")))

    def each(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names of several, each once."""
        return tuple(dict.fromkeys(self[name] for name in names))

    def event(self, event: Event) -> Event:
        """Return an event that names what users know."""
        if not self._of:
            return event
        changed = {
            field.name: self._value(field.name, getattr(event, field.name))
            for field in fields(event)
            if field.name in _ONE | _BY_COMPONENT | {"what"}
        }
        return replace(event, **changed)

    def _value(self, field: str, value: Any) -> Any:
        if field in _ONE and isinstance(value, str):
            return self[value]
        if field == "what" and isinstance(value, str) and " of " in value:
            about, _, names = value.partition(" of ")
            return f"{about} of {', '.join(self.each(names.split(', ')))}"
        if isinstance(value, Mapping):
            merged: dict[str, dict[str, None]] = {}
            for name, text in value.items():
                merged.setdefault(self[name], {}).update(
                    dict.fromkeys(self.each(str(text).split(", ")))
                )
            return {name: ", ".join(texts) for name, texts in merged.items()}
        return value
