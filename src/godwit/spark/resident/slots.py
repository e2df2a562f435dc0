"""Task slots that the resident lanes of a session's queries may occupy.

The problem: a resident lane occupies a slot also while it has nothing to do, and Spark gives a slot
to the first job that asks.  So the queries of a session, all in this process, agree here.

The invariants: one slot of every executor stays free; queries whose epochs run now have equal
shares of the others; and no query takes a slot that another one still occupies.  A task may run
several lanes, so a share needs no more than one slot.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.engine.lane.messages import Place

_SPARE: Final = 1
"""Slots of an executor that stay free for other tasks: reading, copying state, writing."""
RECENT_S: Final = 10.0
"""Time after its last epoch for which a query counts as one whose epochs run."""


Groups: TypeAlias = "list[list[Place]]"


class SlotsTakenError(Exception):
    """No slot is left for the resident lanes of a query; its text says why."""


class SlotShares:
    """The queries of a session that have resident lanes, or may have some."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queries: list[QuerySlots] = []

    def join(
        self,
        # executor → what its slots belong to (itself, or in local mode the one process), and their
        # number
        slots_of: Callable[[str], tuple[str, int]],
        now_s: Callable[[], float],
    ) -> QuerySlots:
        """Return the part of a query that starts."""
        query = QuerySlots(self, slots_of, now_s)
        with self.lock:
            self.queries.append(query)
        return query

    def leave(self, query: QuerySlots) -> None:
        """Remove a query that ends."""
        with self.lock:
            self.queries = [other for other in self.queries if other is not query]


class QuerySlots:
    """The part of one query; other queries read its attributes."""

    def __init__(
        self,
        shares: SlotShares,
        slots_of: Callable[[str], tuple[str, int]],
        now_s: Callable[[], float],
    ) -> None:
        self._shares, self._slots_of, self._now_s = shares, slots_of, now_s
        self.occupied: Counter[str] = Counter()  # pool of slots → tasks of the present job
        self.epoch_s = self.large_epoch_s = -RECENT_S  # when the last one began

    def record_epoch(self, *, large: bool) -> None:
        """Record that an epoch begins, and whether it has many rows."""
        self.epoch_s = now_s = self._now_s()
        if large:
            self.large_epoch_s = now_s

    def claim(self, places: Sequence[Place], *, yields: bool) -> Groups:
        """Return the lanes of each task for these places, whose slots are the query's now.

        `yields`: claim no slots while another query has epochs with many rows. Raises
        `SlotsTakenError` if the query's share of an executor is empty.
        """
        with self._shares.lock:
            groups: Groups = []
            for lanes, share in self._shares_of(places, yields=yields).values():
                count = min(len(lanes), share)
                groups += [lanes[n::count] for n in range(count)]
            self.occupied = Counter(self._slots_of(group[0][0])[0] for group in groups)
            return groups

    def has_changed(self, places: Sequence[Place], *, yields: bool) -> bool:
        """Return whether a claim for these places would get fewer slots, or twice as many."""
        with self._shares.lock:
            try:
                shares = self._shares_of(places, yields=yields)
            except SlotsTakenError:
                return True
            return any(
                not self.occupied[pool] <= share
                or 2 * self.occupied[pool] <= min(len(lanes), share)
                for pool, (lanes, share) in shares.items()
            )

    def free(self) -> None:
        """Free the slots: the query's tasks have ended."""
        self.occupied = Counter()

    def leave(self) -> None:
        """Free the slots at the end of the query."""
        self.free()
        self._shares.leave(self)

    def _shares_of(
        self, places: Sequence[Place], *, yields: bool
    ) -> dict[str, tuple[list[Place], int]]:
        """Return the lanes of each pool, and the slots that they may occupy. See `claim`."""
        since_s = self._now_s() - RECENT_S
        other_queries = [query for query in self._shares.queries if query is not self]
        if yields and any(other.large_epoch_s > since_s for other in other_queries):
            raise SlotsTakenError("another query of the session has epochs with many rows")
        pools: dict[str, tuple[list[Place], int]] = {}
        for place in places:
            pool, slots = self._slots_of(place[0])
            pools.setdefault(pool, ([], slots))[0].append(place)
        shares: dict[str, tuple[list[Place], int]] = {}
        for pool, (lanes, slots) in pools.items():
            if slots <= _SPARE:
                raise SlotsTakenError(
                    f"executor {lanes[0][0]} has {slots} task slot, and one is to stay free"
                )
            sharing = [
                sharing_query
                for sharing_query in other_queries
                if sharing_query.epoch_s > since_s or sharing_query.occupied[pool]
            ]
            share = (slots - _SPARE) // (len(sharing) + 1)
            free = slots - _SPARE - sum(sharing_query.occupied[pool] for sharing_query in sharing)
            shares[pool] = (lanes, min(share, free))
            if shares[pool][1] < 1:
                raise SlotsTakenError(
                    f"{len(sharing) + 1} queries share {slots} task slots of executor "
                    f"{lanes[0][0]}, one of which stays free"
                )
        return shares


def shares_of(session: str) -> SlotShares:
    """Return the shares of a session's slots, by the id of its Spark application."""
    return _sessions.setdefault(session, SlotShares())


_sessions: Final[dict[str, SlotShares]] = {}
