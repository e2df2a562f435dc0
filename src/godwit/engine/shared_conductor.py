"""One conductor, shared between the threads of a run.

The lock is held for as long as the conductor thinks, never while anything is read, written or
waited for.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from godwit.model.events import BackgroundFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.migration import Conductor, EndMigration, EndRegrouping, ProtocolView

__all__ = ["SharedConductor"]

_T = TypeVar("_T")


class SharedConductor:
    """A conductor and the one lock around it."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    @contextmanager
    def locked(self) -> Iterator[Conductor]:
        """Have the conductor to oneself; whoever waits for an end looks again afterwards."""
        with self._changed:
            try:
                yield self._conductor
            finally:
                self._changed.notify_all()

    @property
    def view(self) -> ProtocolView:
        """State of the migration protocol, as a value that does not change any more."""
        return self._conductor.view

    def background_failed(self, what: str, error: str) -> None:
        """Announce that something beside the epochs has failed."""
        with self.locked() as conductor:
            conductor.announce(BackgroundFailed, what=what, error=error)

    @property
    def closed(self) -> bool:
        """Whether the run is over."""
        return self._closed

    def ended(self, migration: str, timeout_s: float | None) -> EndMigration | None:
        """Wait for the end of a migration and return it; ``None`` if it has not ended by then."""
        return self._once(lambda conductor: conductor.ended(migration), timeout_s)

    def ended_regrouping(self, regrouping: str, timeout_s: float | None) -> EndRegrouping | None:
        """Wait for the end of a regrouping and return it; ``None`` if it has not ended by then."""
        return self._once(lambda conductor: conductor.ended_regrouping(regrouping), timeout_s)

    def _once(self, ended: Callable[[Conductor], _T | None], timeout_s: float | None) -> _T | None:
        with self._changed:
            self._changed.wait_for(
                lambda: ended(self._conductor) is not None or self._closed, timeout_s
            )
            return ended(self._conductor)

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
