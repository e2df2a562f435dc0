"""Maintenance of the targets of a query, beside its epochs.

After a delivery, a sink whose policy is due is asked to maintain its target, on a thread that is
the same for all sinks: there is one step at a time, and no epoch waits for it.  What it did is an
event, and so is what failed; neither ends the query.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Final

from godwit.model import events
from godwit.runtime.threads import DaemonPool, Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from godwit.sinks.sink import Sink

_CLOSING_S: Final = 10.0


class TargetMaintenance:
    """Maintains targets; `sinks`: name → sink, `announce`: takes the kind and values of an event.

    `failed` takes the name of the step, and the error.
    """

    def __init__(
        self,
        sinks: Iterable[tuple[str, Sink]],
        *,
        announce: Callable[..., Any],
        failed: Callable[[str, str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._announce, self._now_s = announce, now_s
        self._sinks = {name: sink for name, sink in sinks if sink.maintenance is not None}
        self._guards = {
            name: Guard(f"maintaining the target of sink {name!r}", failed) for name in self._sinks
        }
        self._due_s = {name: now_s() + _every_s(sink) for name, sink in self._sinks.items()}
        self._running: dict[str, Future[Any]] = {}
        self._pool = DaemonPool(1, "godwit-maintenance")

    def delivered(self) -> None:
        """Begin the steps that are due, after the delivery of an epoch."""
        for name, sink in self._sinks.items():
            running = self._running.get(name)
            if self._now_s() < self._due_s[name] or (running is not None and not running.done()):
                continue
            self._due_s[name] = self._now_s() + _every_s(sink)
            self._running[name] = self._pool.submit(self._guards[name], self._maintain, name, sink)

    def close(self) -> None:
        """Begin nothing more, and give what runs a few seconds; it may end anywhere."""
        self._pool.close()
        wait(self._running.values(), _CLOSING_S)

    def _maintain(self, name: str, sink: Sink) -> None:
        """Maintain a target, and announce the result."""
        done = sink.maintain()
        if done:
            self._announce(
                events.TargetMaintained,
                sink=name,
                compacted=done.compacted,
                written=done.written,
                expired=done.expired,
                removed=done.removed,
            )


def _every_s(sink: Sink) -> float:
    """Return the seconds from one look at a target to the next."""
    return 0.0 if sink.maintenance is None else sink.maintenance.every_s
