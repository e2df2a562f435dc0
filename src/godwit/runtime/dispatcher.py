"""Dispatch of events to listeners and recorders, on their own threads, in order.

The problem: an event is emitted by a thread that holds locks, under which no listener may run.  A
listener may be slow, raise, block for ever, migrate, or stop the query.

The invariant: `EventDispatcher.emit` returns at once and never runs a listener; every listener
hears every event since it was added, once, in order; what a listener does or raises changes
nothing for the others, for the journal or for the engine.  The same holds for the journal and its
disk.  Nothing grows without bound: of a listener that is 10,000 events behind, or a journal whose
disk is as slow, the oldest are dropped, and that is told.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from heapq import merge
from operator import itemgetter
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

from godwit.checkpoint.journal import read_last
from godwit.model.errors import InvalidFlowError
from godwit.model.events import (
    BackgroundFailed,
    EpochCommitted,
    FilesCollected,
    ListenerFailed,
    event_from_dict,
)
from godwit.model.log_lines import add_to_log_context
from godwit.model.naming import function_name
from godwit.model.secrets import hidden_values
from godwit.model.signatures import check_signature
from godwit.runtime.threads import Guard, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.model.events import Event
    from godwit.plan.explain import UserNames

    Listener = Callable[[Event], None]

_MAX_WAITING = 10_000
_MAX_BEHIND = 10_000
_FLUSH_S = 1.0
_MAX_FAILURES = 100
_logger = logging.getLogger("godwit")


class Recorder(Protocol):
    """Port to a recorder of entries: the journal, or metrics."""

    def add(self, kind: str, values: Mapping[str, Any]) -> None:
        """Add an entry of a kind, such as ``"progress"``, with plain values, as in the journal."""

    def flush(self) -> None:
        """Make the entries added so far durable, if the recorder stores them.

        Called every second.
        """


class _ListenerQueue:
    """A listener with its thread and its queue of events."""

    def __init__(
        self,
        listener: Listener,
        name: str,
        report: Callable[[Listener, Event, str], None],  # called for every new kind of failure
    ) -> None:
        self._listener, self._report_listener = listener, report
        self._changed = threading.Condition()
        self._pending: deque[Event | threading.Event | None] = deque()
        self._behind = False
        self._failures: set[str] = set()
        self.thread = threading.Thread(target=self._run_thread, name=name, daemon=True)
        self.thread.start()

    def put(self, item: Event | threading.Event | None) -> None:
        """Queue an event; or a flag to set once it is reached; or ``None``, the end."""
        with self._changed:
            self._pending.append(item)
            dropped = self._pending.popleft() if len(self._pending) > _MAX_BEHIND else None
            self._changed.notify_all()
        if isinstance(dropped, threading.Event):
            dropped.set()
        elif dropped is not None and not self._behind:
            self._behind = True
            self._report_listener(
                self._listener, dropped, f"{_MAX_BEHIND} events behind; the oldest are dropped"
            )

    def _run_thread(self) -> None:
        """Pass queued events to the listener until the end; the body of a thread."""
        while (item := self._next()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                self._listener(item)
            except BaseException as error:  # noqa: BLE001  it is the user's, and may raise anything
                self._report_failure(item, error)

    def _next(self) -> Event | threading.Event | None:
        """Wait for the next event, or the flag of a `flush`; ``None`` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending)
            return self._pending.popleft()

    def _report_failure(self, event: Event, error: BaseException) -> None:
        """Log and report a listener's failure, once per kind of error."""
        kind = type(error).__name__
        if kind in self._failures or len(self._failures) >= _MAX_FAILURES:
            return
        self._failures.add(kind)
        # Formatting a stack may fail (of an error without a text, of a module that another
        # thread reloads), and so may a log handler of the user's.
        with suppress(Exception):
            _logger.warning(
                "A listener raised %s on %s. It stays, and continues receiving events; this is "
                "reported once.",
                one_line(error),
                type(event).__name__,
                exc_info=error,
            )
        if not isinstance(event, ListenerFailed):  # its failure would be reported again
            self._report_listener(self._listener, event, one_line(error))


class EventDispatcher:
    """Keeps the latest events, and dispatches them to listeners and recorders."""

    def __init__(self, name: str, names: UserNames | None = None, *, query: str = "") -> None:
        self._name, self._names = name, names
        self._query = query or name
        self._recent = RecentEvents()
        self._order = threading.RLock()  # recent and queued events have the same order
        self._queue: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self._listener_queues: list[_ListenerQueue] = []
        self._recorders: dict[str, Recorder] = {}
        self._recording = True
        self._guards: dict[str, Guard] = {}
        self._samples: dict[str, Callable[[], Mapping[str, Any] | None]] = {}
        self._sampled: dict[str, Mapping[str, Any]] = {}  # the last values of each kind
        self._flushed_s = time.monotonic()
        self._closed = False
        self._thread = threading.Thread(target=self._run_thread, name=f"godwit-events-{name}")
        self._thread.daemon = True
        self._thread.start()

    @property
    def events(self) -> tuple[Event, ...]:
        """The latest events, oldest first."""
        with self._order:
            return self._recent.all()

    @property
    def events_dropped(self) -> int:
        """Number of events that `events` no longer has."""
        with self._order:
            return self._recent.dropped

    @property
    def is_own_thread(self) -> bool:
        """True if the calling thread is one of the dispatcher's."""
        current = threading.current_thread()
        return current is self._thread or any(h.thread is current for h in self._listener_queues)

    def emit(self, event: Event) -> None:
        """Log an event with users' names of operators; queue it for recorders and listeners."""
        if self._names is not None:
            event = self._names.event(event)
        with self._order:
            self._recent.add(event)
            if self._closed:
                return
            self._queue_record(lambda: self._record_event(event))
            for queue in self._listener_queues:
                queue.put(event)

    def add_listener(self, listener: Listener) -> None:
        """Add a listener for all later events.

        Raises `InvalidFlowError` if it cannot be called.
        """
        if not callable(listener):
            raise InvalidFlowError(
                f"add_listener was given a value of type {type(listener).__name__}, which cannot "
                "be called.",
                remedy="Give a function of one event, as in "
                "query.add_listener(lambda event: print(event.describe())).",
            )
        check_signature("add_listener", listener, "listener(event)")
        with self._order:
            if not self._closed:
                name = f"godwit-listener-{len(self._listener_queues)}-{self._name}"
                self._listener_queues.append(_ListenerQueue(listener, name, self._report_listener))

    def add_recorder(self, name: str, recorder: Recorder) -> None:
        """Add a recorder for all later entries; its failures are announced under `name`.

        After a failure it gets the next entry.
        """

        def keep() -> bool:
            """Add the recorder, on the recorders' thread."""
            self._recorders[name] = recorder
            return True

        with self._order:
            self._queue.put(keep)

    def record(self, kind: str, values: Callable[[], Mapping[str, Any]]) -> None:
        """Queue a journal entry for the recorders, whose thread calls `values` for its content."""
        with self._order:
            self._queue_record(lambda: self._record_entry(kind, values))

    def record_samples(self, kind: str, ask: Callable[[], Mapping[str, Any] | None]) -> None:
        """Call `ask` about once a second; record a new result as `kind`, unless it is ``None``."""

        def sample() -> bool:
            """Add the sampled function on the recorders' thread."""
            self._samples[kind] = ask
            return True

        with self._order:
            self._queue.put(sample)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all events so far are dispatched and recorded; return ``False`` if time is up.

        A listener that calls this gets ``False`` at once.
        """
        if self.is_own_thread:
            return False
        until_s = time.monotonic() + timeout_s
        flushed = [threading.Event() for _ in self._listener_queues]
        with self._order:
            recorded = None if self._closed else self._queue_flush()
            if recorded is not None:
                for queue, event in zip(self._listener_queues, flushed, strict=False):
                    queue.put(event)
                flushed = [recorded, *flushed]
        if recorded is not None:
            return all(event.wait(max(0.0, until_s - time.monotonic())) for event in flushed)
        threads = [self._thread, *(queue.thread for queue in self._listener_queues)]
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def stop_recording(self, timeout_s: float) -> None:
        """Record everything so far, then nothing more.

        Raises `TimeoutError` after `timeout_s`; entries that are not written by then are lost.
        """
        with self._order:
            done = self._queue_flush(last=True)
        if not done.wait(timeout_s):
            self._recording = False
            message = f"the last entries could not be written within {timeout_s:g} s"
            raise TimeoutError(message)

    def close(self) -> None:
        """Let the threads end once all events so far are dispatched; returns at once."""
        with self._order:
            if not self._closed:
                self._closed = True
                self._queue.put(lambda: False)
                for queue in self._listener_queues:
                    queue.put(None)

    # -- under the lock -----------------------------------------------------------------------

    def _queue_record(self, record: Callable[[], bool]) -> None:
        """Queue an entry for the recorders; if the queue is full, drop it and report that.

        `record`: writes it, and returns true.
        """
        if self._closed:
            return
        if self._queue.qsize() < _MAX_WAITING:
            self._queue.put(record)
        else:
            error = TimeoutError(f"{_MAX_WAITING} entries wait to be written; more are dropped")
            self._guard_of("recording").report(error)

    def _queue_flush(self, *, last: bool = False) -> threading.Event:
        """Queue a flush of the recorders (`last`: then their end); return an event set after it."""
        mark = threading.Event()

        def flush() -> bool:
            """Flush the recorders, and set the event."""
            try:
                self._flush()
            finally:
                if last:
                    self._recording = False
                mark.set()
            return True

        self._queue.put(flush)
        return mark

    # -- on the thread that records -----------------------------------------------------------

    def _run_thread(self) -> None:
        """Write queued entries, and flush periodically; the body of a thread."""
        add_to_log_context(query=self._query)
        guard, goes_on = self._guard_of("recording"), True
        while goes_on:
            try:
                step = self._queue.get(timeout=_FLUSH_S)
            except Empty:
                step = None
            try:
                goes_on = step is None or step()
                if step is None or time.monotonic() - self._flushed_s >= _FLUSH_S:
                    self._flush()
            except Exception as error:  # noqa: BLE001  reported; the next entry may succeed
                guard.report(error)
        guard(self._flush)

    def _flush(self) -> None:
        """Record samples, and then flush the recorders."""
        self._flushed_s = time.monotonic()
        for kind, ask in self._samples.items():
            values = None
            with suppress(Exception):  # figures are not worth the thread that tells events
                values = ask()
            if values is not None and values != self._sampled.get(kind):
                self._sampled[kind] = values
                self._record_entry(kind, lambda values=values: values)  # type: ignore[misc]
        for name, recorder in tuple(self._recorders.items()):
            if self._recording:
                self._guard_of(f"writing the {name}")(recorder.flush)

    def _record_event(self, event: Event) -> bool:
        """Log an event, and pass it to the recorders."""
        level = logging.INFO
        if event.is_warning:
            level = logging.WARNING
        elif isinstance(event, (EpochCommitted, FilesCollected)):  # many
            level = logging.DEBUG
        if _logger.isEnabledFor(level):
            with suppress(Exception):  # a log handler of the user's
                more = {"event": hidden_values(event.to_dict())}
                _logger.log(level, "Flow %r: %s", self._name, event.describe(), extra=more)
        return self._record_entry("event", event.to_dict)

    def _record_entry(self, kind: str, values: Callable[[], Mapping[str, Any]]) -> bool:
        """Pass an entry to every recorder, each under its guard; always return true."""
        if self._recording and self._recorders:
            entry = values()
            for name, recorder in tuple(self._recorders.items()):
                self._guard_of(f"writing the {name}")(recorder.add, kind, entry)
        return True

    # -- what fails ---------------------------------------------------------------------------

    def _guard_of(self, what: str) -> Guard:
        """Return the guard that logs and announces errors in `what`, such as "recording"."""
        return self._guards.setdefault(what, Guard(what, self._background_failed))

    def _background_failed(self, what: str, error: str) -> None:
        """Emit `BackgroundFailed` for the work `what`."""
        with self._order:
            epoch = -1 if self._recent.last is None else self._recent.last.epoch
            self.emit(BackgroundFailed(epoch=epoch, at_s=time.time(), what=what, error=error))

    def _report_listener(self, listener: Listener, event: Event, error: str) -> None:
        """Emit `ListenerFailed` for a listener that raised an error."""
        self.emit(
            ListenerFailed(
                epoch=event.epoch,
                at_s=time.time(),
                listener=function_name(listener),
                error=error,
                heard=type(event).__name__,
            )
        )


MAX_EVENTS: Final = 10_000
EPOCH_BYTES: Final = 2 << 20
OTHER_BYTES: Final = 4 << 20
"""Memory for events of committed epochs, and for all others."""
_JOURNAL_ENTRIES: Final = 2000
_PLACE_BYTES: Final = 128  # of an event's number, size and place in the queue


@dataclass(slots=True)
class _Kept:
    """Events of one kind, oldest first: number, size in bytes, event."""

    max_bytes: int
    size_bytes: int = 0
    events: deque[tuple[int, int, Event]] = field(default_factory=deque)

    def add(self, number: int, event: Event) -> int:
        """Add an event; return how many of the oldest had to go. The latest always stays."""
        size = size_of(event) + _PLACE_BYTES
        self.events.append((number, size, event))
        self.size_bytes += size
        dropped = 0
        while len(self.events) > 1 and self.size_bytes > self.max_bytes:
            self.drop_oldest()
            dropped += 1
        return dropped

    def drop_oldest(self) -> None:
        """Drop the oldest event."""
        _, size, _ = self.events.popleft()
        self.size_bytes -= size


class RecentEvents:
    """The latest events, in order, within a bound of memory; not for several threads.

    An epoch has an event of its own, so these are many and of one kind, and the others are few and
    say more. Each kind has a share of the memory, and loses its own oldest.
    """

    def __init__(self) -> None:
        self._epochs, self._others = _Kept(EPOCH_BYTES), _Kept(OTHER_BYTES)
        self._number = 0
        self._last: Event | None = None
        self.dropped = 0  # events that are no longer there

    def __len__(self) -> int:
        return len(self._epochs.events) + len(self._others.events)

    @property
    def last(self) -> Event | None:
        """The latest event; ``None`` before the first."""
        return self._last

    @property
    def size_bytes(self) -> int:
        """Memory that the events take, as far as their fields tell."""
        return self._epochs.size_bytes + self._others.size_bytes

    def add(self, event: Event) -> None:
        """Add an event, and drop the oldest ones that have no room."""
        ring = self._epochs if isinstance(event, EpochCommitted) else self._others
        self.dropped += ring.add(self._number, event)
        self._number, self._last = self._number + 1, event
        if len(self) > MAX_EVENTS:
            first = (ring.events for ring in (self._epochs, self._others) if ring.events)
            oldest = min(first, key=lambda events: events[0][0])
            (self._epochs if oldest is self._epochs.events else self._others).drop_oldest()
            self.dropped += 1

    def all(self) -> tuple[Event, ...]:
        """Return the events, oldest first."""
        both = merge(self._epochs.events, self._others.events, key=itemgetter(0))
        return tuple(event for _, _, event in both)


def size_of(value: Any) -> int:
    """Return the bytes of a value and of all that it holds; shared parts count each time."""
    size = sys.getsizeof(value)
    if isinstance(value, (str, bytes, int, float)) or value is None:
        return size
    if isinstance(value, Mapping):
        # A read-only view is small itself, and keeps a dict.
        size = max(size, sys.getsizeof(dict(value)))
        return size + sum(size_of(key) + size_of(item) for key, item in value.items())
    if isinstance(value, (tuple, list, set, frozenset)):
        return size + sum(map(size_of, value))
    if is_dataclass(value):
        return size + sum(size_of(getattr(value, field.name)) for field in fields(value))
    return size


def past_decisions(storage: CheckpointStorage) -> list[Event]:
    """Return the latest events in a checkpoint's journal, oldest first, with decisions."""
    return read_last(storage, _JOURNAL_ENTRIES, "event", event_from_dict)
