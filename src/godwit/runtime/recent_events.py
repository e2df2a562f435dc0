"""The latest events of a query, within a bound of memory.

An epoch has an event of its own, so these are many and of one kind, and the others are few and say
more.  Each kind has a share of the memory, and loses its own oldest.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from godwit.checkpoint.journal import read_last
from godwit.model.events import EpochCommitted, event_from_dict

if TYPE_CHECKING:
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.model.events import Event

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
    """The latest events, in order; not for several threads."""

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
