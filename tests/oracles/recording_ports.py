"""Ports that take notes and do nothing, and a clock that stands still."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from godwit.migration.messages import DropCopies, StartWarming
    from godwit.model.events import Event

__all__ = ["RecordingPorts"]


@dataclass(slots=True, kw_only=True)
class RecordingPorts:
    """Ports that record a coordinator's requests, in order."""

    warmings: list[StartWarming] = field(default_factory=list)
    drops: list[DropCopies] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    clock_s: float = 0.0

    def warm(self, order: StartWarming) -> None:
        """See `Ports.warm`."""
        self.warmings.append(order)

    def drop(self, order: DropCopies) -> None:
        """See `Ports.drop`."""
        self.drops.append(order)

    def announce(self, event: Event) -> None:
        """See `Ports.announce`."""
        self.events.append(event)

    def now_s(self) -> float:
        """See `Ports.now_s`."""
        return self.clock_s

    def told(self) -> list[str]:
        """Kinds of the events so far."""
        return [type(event).__name__ for event in self.events]
