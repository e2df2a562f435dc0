"""One epoch at a time, and none any more once the query is to stop."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["EpochGate", "GateClosedError"]


class GateClosedError(Exception):
    """The query is to stop: no epoch begins any more."""


class EpochGate:
    """Lets one thread at a time carry out an epoch, until it is closed.

    Whoever waits to get in is turned away when the gate closes, so nobody who closes it and then
    waits for the threads outside can wait for ever.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._interrupted = False
        self._inside: int | None = None
        self._stopped: Callable[[], bool] = lambda: False

    @property
    def interrupted(self) -> bool:
        """Whether an epoch that was under way is being broken off."""
        return self._interrupted

    @property
    def closed(self) -> bool:
        """Whether no epoch begins any more."""
        return self._closed

    @property
    def busy(self) -> bool:
        """Whether an epoch is being carried out."""
        return self._inside is not None

    @property
    def is_mine(self) -> bool:
        """Whether the epoch that is carried out is carried out by the thread that asks."""
        return self._inside == threading.get_ident()

    @contextmanager
    def epoch(self, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Carry out an epoch inside, once no other one is being carried out.

        stopped: Says whether the query was stopped by another way than through this gate; asked
        while the epoch cannot begin yet (see `pause`).

        Raises `GateClosedError` if the gate is closed, or closes while others are before this one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._inside is None)
            if self._closed:
                raise GateClosedError
            self._inside, self._stopped = threading.get_ident(), stopped
        try:
            yield
        finally:
            with self._changed:
                self._inside = None
                self._changed.notify_all()

    def between_epochs(self) -> AbstractContextManager[None]:
        """Do something inside while no epoch is carried out and none begins.

        Raises `GateClosedError` as `epoch`.
        """
        return self.epoch()

    def pause(self, seconds: float) -> None:
        """Wait a moment within an epoch that cannot begin yet.

        Raises `GateClosedError` if the gate closes meanwhile, or the query is stopped in another
        way.
        """
        if self.wait_for_close(seconds) or self._stopped():
            raise GateClosedError

    def wait_for_close(self, seconds: float) -> bool:
        """Wait until the gate closes, for some seconds at most; says whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, seconds)

    def close(self) -> None:
        """Let no epoch begin any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def drain(self, patience_s: float) -> None:
        """Wait for the epoch that is being carried out, if any; then it counts as broken off."""
        with self._changed:
            self._interrupted = not self._changed.wait_for(lambda: self._inside is None, patience_s)

    def wait_until_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until no epoch is being carried out; says whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._inside is None, timeout_s)
