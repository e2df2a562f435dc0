"""Liveness of the query that a checkpoint belongs to, as seen from outside.

Its last word in the journal says whether it lives; when the journal is silent, the lease on the
checkpoint does.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from godwit.checkpoint.ownership import EXPIRY_S, inspect_lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.ops.entries import EventLine

LIFECYCLE: Final = frozenset({"QueryStarted", "QueryStopped", "QueryFailed"})
"""Kinds of events that show the state of a query."""
_SILENT_S: Final = 5.0


class QueryLife(NamedTuple):
    """State of a query, as seen from outside."""

    # "running", "silent" (perhaps ended), "stopped", "failed" or "died"; of a live page, also
    # "reading" and "out of reach"
    state: str
    evidence: str  # why, as text


class Liveness:
    """Observer of a query by its checkpoint.

    `now_s`: seconds of Unix time: journals carry the driver's. `monotonic_s`: seconds, from any
    start.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        *,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._now_s, self._monotonic_s = storage, now_s, monotonic_s
        self._last_beat: tuple[int, int] | None = None
        self._beat_seen_s = 0.0
        self._beat_moves = False

    def look(self, last_word: EventLine | None, last_s: float | None) -> QueryLife:
        """Return the query's state, such as ``"running"`` or ``"died"``, with a reason.

        `last_word`: the last event in the journal about the query's start or end. `last_s`: time of
        the journal's last entry.
        """
        if last_word is not None and last_word.kind != "QueryStarted":
            state = "stopped" if last_word.kind == "QueryStopped" else "failed"
            return QueryLife(state, last_word.line)
        silent_s = self._now_s() - (last_s or 0.0)
        ago = f"last entry {_age_text(silent_s)} ago"
        if abs(silent_s) < _SILENT_S:
            return QueryLife("running", "")
        if silent_s < 0:
            ago = f"the driver's clock is {_age_text(-silent_s)} ahead of this machine's"
        leased = self._is_leased()
        if leased:
            return QueryLife("running", ago)
        if leased is None:
            return QueryLife("silent", f"{ago}; it is not yet known whether it is alive")
        return QueryLife("died", f"{ago}, and the lease on the checkpoint is free")

    def _is_leased(self) -> bool | None:
        """Return whether the query runs, by its lease, and remember the lease's heartbeat.

        ``None`` if that is unknown: until a second look has seen the heartbeat change.
        """
        sight, now_s = inspect_lease(self._storage), self._monotonic_s()
        if sight.beat is None:
            return sight.is_held
        if sight.beat != self._last_beat:
            self._beat_moves = self._last_beat is not None
            self._last_beat, self._beat_seen_s = sight.beat, now_s
        if now_s - self._beat_seen_s >= EXPIRY_S:
            return False
        return True if self._beat_moves else None


def _age_text(seconds: float) -> str:
    """Return a duration as text in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
