"""Base of events: an epoch, a time, a line for people and plain values for files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from godwit.model.secrets import hidden_values

__all__ = ["Event"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(ABC):
    """One thing that happened in a run."""

    # The last epoch committed when it happened; -1 before the first. An event about an epoch itself
    # carries that epoch.
    epoch: int
    at_s: float  # when it happened, in seconds, on the clock of whoever made the event

    @property
    def is_warning(self) -> bool:
        """True if it is logged as a warning too, for those without a listener."""
        return False

    def __post_init__(self) -> None:
        # What libraries say when they fail may hold a password.
        for f in fields(self):
            value = getattr(self, f.name)
            if (shown := hidden_values(value)) != value:
                object.__setattr__(self, f.name, shown)

    def describe(self) -> str:
        """Tell it in one line."""
        return self._line()

    @abstractmethod
    def _line(self) -> str:
        """Tell it, as `describe` does."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values (JSON can hold them); ``kind`` names the class."""
        values: dict[str, Any] = {"kind": type(self).__name__}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Mapping):
                value = dict(value)
            values[f.name] = value
        return values
