"""The conductor of a run behind one lock, for all threads of the driver."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.migration import (
        Conductor,
        EndMigration,
        EndRegrouping,
        LanesRequested,
        MigrationRequested,
        ProtocolView,
    )

_T = TypeVar("_T")


class SharedConductor:
    """The conductor of a run behind one lock, for all its threads.

    The lock is held for as long as the conductor thinks, never while anything is read, written or
    waited for.
    """

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    @contextmanager
    def locked(self) -> Iterator[Conductor]:
        """Context with the conductor under its lock.

        Waiting threads check their condition afterwards.
        """
        with self._changed:
            try:
                yield self._conductor
            finally:
                self._changed.notify_all()

    @property
    def view(self) -> ProtocolView:
        """State of the migration protocol, as an immutable value."""
        return self._conductor.view

    def background_failed(self, what: str, error: str) -> None:
        """Announce that the background work `what` has failed."""
        self.announce(events.BackgroundFailed, what=what, error=error)

    def announce(self, kind: type[events.Event], **values: Any) -> None:
        """Announce an event.

        This and the following methods implement `godwit.adapt.interfaces.Migrations`.
        """
        with self.locked() as conductor:
            conductor.announce(kind, **values)

    def migrate(self, request: MigrationRequested) -> None:
        """Start a migration."""
        with self.locked() as conductor:
            conductor.migrate(request)

    def change_lanes(self, request: LanesRequested) -> None:
        """Request that key groups change lane within their executors, from the next epoch on."""
        with self.locked() as conductor:
            conductor.change_lanes(request)

    def drain(self, executor: str) -> None:
        """Mark an executor as draining: key groups no longer move to it."""
        with self.locked() as conductor:
            conductor.drain(executor)

    def stay(self, executor: str) -> None:
        """Cancel the draining of an executor."""
        with self.locked() as conductor:
            conductor.stay(executor)

    def cancel(self, change: str, reason: str) -> None:
        """Cancel a migration or regrouping; key groups that have switched stay there."""
        with self.locked() as conductor:
            conductor.cancel(change, reason)

    @property
    def closed(self) -> bool:
        """True once the run is over."""
        return self._closed

    def ended(self, migration: str, timeout_s: float | None) -> EndMigration | None:
        """Wait for the end of a migration and return it; ``None`` if it has not ended by then."""
        return self._wait_for_end(lambda conductor: conductor.ended(migration), timeout_s)

    def ended_regrouping(self, regrouping: str, timeout_s: float | None) -> EndRegrouping | None:
        """Wait for the end of a regrouping and return it; ``None`` if it has not ended by then."""
        return self._wait_for_end(
            lambda conductor: conductor.ended_regrouping(regrouping), timeout_s
        )

    def _wait_for_end(
        self, ended: Callable[[Conductor], _T | None], timeout_s: float | None
    ) -> _T | None:
        """Wait until `ended` returns a result, and return it.

        ``None`` after the time-out or the end of the run.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: ended(self._conductor) is not None or self._closed, timeout_s
            )
            return ended(self._conductor)

    def close(self) -> None:
        """Wake all waiting threads; later waits return at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
