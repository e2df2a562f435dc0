"""Events on their way to listeners and journal: one queue, one thread, one order.

The problem: whoever makes an event holds locks and orders that a listener must not meet.  A
listener may be slow, raise, migrate, or stop the query.

The invariant: `EventDispatcher.emit` returns at once and never runs a listener; every listener
hears every event since it was added, once, in order; what a listener does or raises changes
nothing for the others or for the engine.  The same holds for the journal and its disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from godwit.dataflow.naming import error_line, function_name
from godwit.model.errors import InvalidFlowError
from godwit.model.events import ListenerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from godwit.model.events import Event

    Listener = Callable[[Event], None]

__all__ = ["EventDispatcher", "Recorder"]

_MAX_EVENTS = 10_000
_FLUSH_S = 1.0
_MAX_FAILURES = 100
_logger = logging.getLogger("godwit")


class Recorder(Protocol):
    """Takes what happens, entry by entry: a journal, or metrics."""

    def add(self, kind: str, values: Mapping[str, Any]) -> None:
        """Take an entry: plain values of a kind (see `godwit.state.journal`)."""

    def flush(self) -> None:
        """Make durable what has come, where that means anything; about once a second."""


class _Sample:
    """Values that are asked for now and then."""

    def __init__(self, kind: str, ask: Callable[[], Mapping[str, Any] | None]) -> None:
        self.kind, self._ask = kind, ask
        self._latest: Mapping[str, Any] | None = None

    def changed(self) -> Mapping[str, Any] | None:
        """Give the values if they are others than the last time."""
        try:
            values = self._ask()
        except Exception:  # noqa: BLE001  figures are not worth the thread that tells events
            return None
        if values is None or values == self._latest:
            return None
        self._latest = values
        return values


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
        self._reported: set[tuple[int, str]] = set()
        self._recorders: dict[str, Recorder] = {}
        self._samples: list[_Sample] = []
        self._flushed_s = time.monotonic()
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
        """Let `listener` hear of every event from now on.

        Raises
        ------
        InvalidFlowError
            If it cannot be called.
        """
        if not callable(listener):
            raise InvalidFlowError(
                f"add_listener was given a value of type {type(listener).__name__}, which cannot "
                "be called.",
                remedy="Give a function of one event, as in "
                "query.add_listener(lambda event: print(event.describe())).",
            )

        def add() -> bool:
            self._listeners.append(listener)
            return True

        with self._order:
            self._queue.put(add)

    def keep(self, name: str, recorder: Recorder) -> None:
        """Give every event, and whatever else is noted from now on, to a recorder too.

        Parameters
        ----------
        name
            What it is, for the log.
        recorder
            Called on the thread of the listeners. One that raises is given up.
        """

        def keep() -> bool:
            self._recorders[name] = recorder
            return True

        with self._order:
            self._queue.put(keep)

    def note(self, kind: str, values: Callable[[], Mapping[str, Any]]) -> None:
        """Have an entry recorded, after the events so far.

        Parameters
        ----------
        kind
            Of the entry.
        values
            Gives its plain values, on the thread that records.
        """

        def note() -> bool:
            self._record(kind, values())
            return True

        with self._order:
            self._queue.put(note)

    def sample(self, kind: str, ask: Callable[[], Mapping[str, Any] | None]) -> None:
        """Ask for values about once a second, and have them recorded when they change.

        Parameters
        ----------
        kind
            Of the entries.
        ask
            Gives plain values, or ``None`` if there are none now. If it raises, there are none.
        """

        def sample() -> bool:
            self._samples.append(_Sample(kind, ask))
            return True

        with self._order:
            self._queue.put(sample)

    def flush(self, timeout_s: float) -> bool:
        """Wait until listeners have heard of everything so far, and it is recorded.

        Says whether that is so.

        A listener that calls this gets ``False`` at once.
        """
        if threading.current_thread() is self._thread:
            return False
        heard = threading.Event()

        def note() -> bool:
            self._flush()
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
        goes_on = True
        while goes_on:
            try:
                goes_on = self._queue.get(timeout=_FLUSH_S)()
            except Empty:
                self._flush()
            if time.monotonic() - self._flushed_s >= _FLUSH_S:
                self._flush()
        self._flush()

    def _flush(self) -> None:
        for sample in self._samples:
            if (values := sample.changed()) is not None:
                self._record(sample.kind, values)
        for name, recorder in tuple(self._recorders.items()):
            try:
                recorder.flush()
            except Exception as error:  # noqa: BLE001  history is not worth a query
                self._give_up(name, error)
        self._flushed_s = time.monotonic()

    def _record(self, kind: str, values: Mapping[str, Any]) -> None:
        for name, recorder in tuple(self._recorders.items()):
            try:
                recorder.add(kind, values)
            except Exception as error:  # noqa: BLE001  history is not worth a query
                self._give_up(name, error)

    def _give_up(self, name: str, error: Exception) -> None:
        del self._recorders[name]
        with suppress(Exception):  # a log handler of the user's
            _logger.warning(
                "The %s of flow %r cannot be written and ends here: %s", name, self._name, error
            )

    def _tell(self, event: Event) -> bool:
        if event.is_warning:
            with suppress(Exception):  # a log handler of the user's
                _logger.warning("Flow %r: %s", self._name, event.describe())
        self._record("event", event.to_dict())
        for listener in self._listeners:
            try:
                listener(event)
            except BaseException as error:  # noqa: BLE001  it is the user's, and may raise anything
                self._report(listener, event, error)
        return True

    def _report(self, listener: Listener, event: Event, error: BaseException) -> None:
        kind = type(error).__name__
        if (id(listener), kind) in self._reported or len(self._reported) >= _MAX_FAILURES:
            return
        self._reported.add((id(listener), kind))
        try:
            told = error_line(error)
        except Exception:  # noqa: BLE001  an error may not even be told
            told = kind
        # Formatting a stack may fail (of an error that cannot be told, of a module that another
        # thread reloads), and so may a log handler of the user's.
        with suppress(Exception):
            _logger.warning(
                "A listener of flow %r raised %s on %s. It stays, and goes on hearing of events; "
                "this is told once.",
                self._name,
                told,
                type(event).__name__,
                exc_info=error,
            )
        if not isinstance(event, ListenerFailed):  # whose failure would be told of again
            self.emit(
                ListenerFailed(
                    epoch=event.epoch,
                    at_s=time.time(),
                    listener=function_name(listener),
                    error=told,
                    heard=type(event).__name__,
                )
            )
