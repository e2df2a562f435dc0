"""What the conductor asks of whoever realizes it: Spark, a simulator, a test.

Every port returns at once: it notes what is asked, and what comes of it is told to the conductor
later, as a fact.  So the conductor has no threads, no clock and no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from godwit.migration.commands import DropCopies, StartWarming
    from godwit.model.events import Event

__all__ = ["Ports"]


class Ports(Protocol):
    """The world around the conductor."""

    def warm(self, order: StartWarming) -> None:
        """Have copies warmed in the background.

        To be answered by `Conductor.warmed` or `Conductor.warming_failed`; silence counts as a
        failure after a while.
        """

    def drop(self, order: DropCopies) -> None:
        """Have copies deleted, after whatever was ordered for that executor before."""

    def announce(self, event: Event) -> None:
        """Tell people, in the order of the calls."""

    def now_s(self) -> float:
        """Return the time for events, in seconds."""
