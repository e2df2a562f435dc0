"""Events on their way to listeners: one queue, one thread, the order in which they happened.

The problem: whoever makes an event holds locks and orders that a listener must not meet.  A
listener may be slow, raise, migrate, or stop the query.

The invariant: `EventDispatcher.emit` returns at once and never runs a listener; every listener
hears every event since it was added, once, in order; what a listener does or raises changes
nothing for the others or for the engine.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.model.events import Event

    Listener = Callable[[Event], None]

__all__ = ["EventDispatcher"]

_MAX_EVENTS = 10_000
_logger = logging.getLogger("godwit")


class EventDispatcher:
    """Keeps the latest events and tells listeners of them on a thread of its own.

    Parameters
    ----------
    name
        Of the flow, for the thread and for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._recent: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self._order = threading.Lock()  # what is recent and what is queued come in one order
        self._queue: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self._listeners: list[Listener] = []
        self._reported: set[int] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"godwit-events-{name}")
        self._thread.daemon = True
        self._thread.start()

    @property
    def events(self) -> tuple[Event, ...]:
        """The latest events, oldest first."""
        with self._order:
            return tuple(self._recent)

    def emit(self, event: Event) -> None:
        """Note an event; listeners hear of it soon."""
        with self._order:
            self._recent.append(event)
            self._queue.put(lambda: self._tell(event))

    def add_listener(self, listener: Listener) -> None:
        """Let `listener` hear of every event from now on."""

        def add() -> bool:
            self._listeners.append(listener)
            return True

        with self._order:
            self._queue.put(add)

    def flush(self, timeout_s: float) -> bool:
        """Wait until listeners have heard of everything so far; says whether they have.

        A listener that calls this gets ``False`` at once.
        """
        if threading.current_thread() is self._thread:
            return False
        heard = threading.Event()

        def note() -> bool:
            heard.set()
            return True

        with self._order:
            if not self._closed:
                self._queue.put(note)
        if self._closed:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return heard.wait(timeout_s)

    def close(self) -> None:
        """End the thread once listeners have heard of everything so far; returns at once."""
        with self._order:
            if not self._closed:
                self._closed = True
                self._queue.put(lambda: False)

    def _work(self) -> None:
        while self._queue.get()():
            pass

    def _tell(self, event: Event) -> bool:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001  it is the user's, and may raise anything
                self._report(listener, event, error)
        return True

    def _report(self, listener: Listener, event: Event, error: Exception) -> None:
        if id(listener) in self._reported:
            return
        self._reported.add(id(listener))
        _logger.warning(
            "A listener of flow %r raised %s: %s on %s. It stays, and goes on hearing of events; "
            "this is told once.",
            self._name,
            type(error).__name__,
            error,
            type(event).__name__,
            exc_info=error,
        )
