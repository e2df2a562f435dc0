"""Which peer transfers may begin now, so that links are full and nobody shares one.

An executor sends to one other and receives from one other at a time (Ding et al. §3.2).  Orders
come and go while transfers run, so there is no schedule made once: whenever somebody could receive,
the first phase of what is left (`godwit.planning.copy_routes`) says from whom.  That phase has
every link in it that has as much left as the busiest one.  Where it has nobody for a receiver, or
one who is sending, the receiver takes a free sender all the same, since a link that idles now is
lost: if it can, one that the phase has no use for, and of those the one with most left.

Key groups are sent whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.migration.commands import PeerCopies
from godwit.planning.copy_routes import first_phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.migration.commands import StartWarming

__all__ = ["PeerLinks"]


class PeerLinks:
    """What is left to send between executors, and who is sending.

    Not to be used by two threads at once.
    """

    def __init__(self) -> None:
        self._left: dict[
            str, dict[str, dict[int, int]]
        ] = {}  # attempt → source → key group → bytes
        self._to: dict[str, str] = {}  # attempt → who receives
        self._sending: dict[str, str] = {}  # attempt → who sends

    def add(self, order: StartWarming, state_bytes: Mapping[int, int]) -> None:
        """Take note of an order's transfers."""
        self._to[order.attempt] = order.executor
        self._left[order.attempt] = {
            peer.executor: {g: max(state_bytes.get(g, 0), 1) for g in peer.key_groups}
            for peer in order.peers
        }

    def begin(self, order: StartWarming) -> PeerCopies | None:
        """Begin the order's next transfer: ``None`` while all who could send are sending.

        An order whose transfers have all begun gives one without key groups.
        """
        left = self._left.get(order.attempt, {})
        if not left:
            return PeerCopies(executor="", key_groups=())
        busy = set(self._sending.values())
        free = [source for source in left if source not in busy]
        if not free:
            return None
        source, size = self._next(order, free)
        waiting, taken = left[source], dict[int, int]()
        for g, bytes_of in sorted(waiting.items()):
            if taken and sum(taken.values()) + bytes_of > size:
                break
            taken[g] = bytes_of
        for g in taken:
            del waiting[g]
        if not waiting:
            del left[source]
        self._sending[order.attempt] = source
        return PeerCopies(executor=source, key_groups=tuple(taken))

    def ended(self, order: StartWarming) -> None:
        """Take note that the order's transfer is over."""
        self._sending.pop(order.attempt, None)

    def forget(self, order: StartWarming) -> None:
        """Forget what is left of an order."""
        self.ended(order)
        self._left.pop(order.attempt, None)
        self._to.pop(order.attempt, None)

    def _next(self, order: StartWarming, free: list[str]) -> tuple[str, int]:
        """Who is to send, and how much."""
        pairs: dict[tuple[str, str], int] = {}
        for attempt, sources in self._left.items():
            for source, waiting in sources.items():
                pair = source, self._to[attempt]
                pairs[pair] = pairs.get(pair, 0) + sum(waiting.values())
        size, phase = first_phase(pairs)
        for source, destination in phase:
            if destination == order.executor and source in free:
                return source, size
        wanted = {source for source, _ in phase}
        left = dict.fromkeys(free, 0)
        for (source, _), bytes_of in pairs.items():
            if source in left:
                left[source] += bytes_of
        return max(free, key=lambda source: (source not in wanted, left[source], source)), size
