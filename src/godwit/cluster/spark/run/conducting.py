"""The conductor on the driver: one lock around it, and ports that only take notes."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from godwit.model.events import BackgroundFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.migration import Conductor, EndMigration, EndRegrouping, ProtocolView
    from godwit.migration.commands import DropCopies, StartWarming
    from godwit.model.events import Event

__all__ = ["Conducting", "SparkPorts"]

_T = TypeVar("_T")


class SparkPorts:
    """What the conductor asks for, noted for the threads that do it.

    Parameters
    ----------
    emit
        Takes every event, and returns at once.

    Attributes
    ----------
    errands
        Orders to warm and to drop, in the order they were given; ``None``: there are no more.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self.errands: SimpleQueue[StartWarming | DropCopies | None] = SimpleQueue()

    def warm(self, order: StartWarming) -> None:
        """See `Ports.warm`."""
        self.errands.put(order)

    def drop(self, order: DropCopies) -> None:
        """See `Ports.drop`."""
        self.errands.put(order)

    def announce(self, event: Event) -> None:
        """See `Ports.announce`."""
        self._emit(event)

    def now_s(self) -> float:
        """See `Ports.now_s`."""
        return time.time()


class Conducting:
    """Shares one conductor between threads.

    The lock is held for as long as the conductor thinks, never while anything is read, written or
    waited for.
    """

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    @contextmanager
    def turn(self) -> Iterator[Conductor]:
        """Have the conductor for oneself."""
        with self._changed:
            try:
                yield self._conductor
            finally:
                self._changed.notify_all()

    @property
    def view(self) -> ProtocolView:
        """Where the protocol stands, as a value that does not change any more."""
        return self._conductor.view

    def background_failed(self, what: str, error: str) -> None:
        """Announce that something beside the epochs has failed."""
        with self.turn() as conductor:
            conductor.announce(BackgroundFailed, what=what, error=error)

    @property
    def closed(self) -> bool:
        """Whether the run is over."""
        return self._closed

    def ended(self, migration: str, timeout_s: float | None) -> EndMigration | None:
        """How a migration ended, once it has; ``None`` if it has not by then."""
        return self._once(lambda conductor: conductor.ended(migration), timeout_s)

    def ended_regrouping(self, regrouping: str, timeout_s: float | None) -> EndRegrouping | None:
        """How a regrouping ended, once it has; ``None`` if it has not by then."""
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
