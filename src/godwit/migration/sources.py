"""Sources of copies: other executors or the checkpoint, by measured throughput.

The checkpoint is complete and costs the old executor no time; but its throughput depends on the
storage, the number of readers and the length of chains, while an executor with a copy sends each
row once.  So both are measured: recent bytes of state per second, from the order to the finished
copy. An unmeasured source is tried, the checkpoint first; the slower source is tried again
periodically, since both change.  Orders of little state always read the checkpoint: they would
measure the cost of a Spark job, not a link.

A peer sends only key groups of which the destination has no copy; changes that a copy lacks are in
the changelog's last segments, which are read anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from godwit.migration.messages import PeerCopies, StartWarming
from godwit.migration.strategy import CopiesFrom
from godwit.model.text import human_bytes
from godwit.placement.copy_routes import CopyRoute, first_phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from godwit.migration.copies import Copies
    from godwit.model.assignment import Assignment

_MIN_BYTES: Final = 2**20
_MEMORY: Final = 0.7
"""Weight of earlier deliveries when another one from the same source is added."""
_RETRY_AFTER: Final = 16
"""Orders from the quicker source, before the slower one is measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Copies that one source delivered for an order."""

    source: str | None  # sending executor; ``None``: the checkpoint
    key_groups: tuple[int, ...]
    duration_ms: float  # from the request to the finished copies
    failure: str = ""  # reason of a failure; empty if the copies came


@dataclass(slots=True)
class _Rate:
    """Moving average of one source's throughput, in bytes per second."""

    size_bytes: float = 0.0
    seconds: float = 0.0
    passed_over: int = 0  # orders that went to the other source since

    @property
    def bytes_per_s(self) -> float | None:
        """Recent throughput in bytes per second; ``None`` if nothing was measured."""
        return self.size_bytes / self.seconds if self.seconds else None

    def add(self, size_bytes: float, seconds: float) -> None:
        """Add a delivery of bytes in a number of seconds to the moving average."""
        self.size_bytes = _MEMORY * self.size_bytes + size_bytes
        self.seconds = _MEMORY * self.seconds + seconds
        self.passed_over = 0


class Sources:
    """Chooses the sources of copies by their measured throughput."""

    def __init__(self, setting: CopiesFrom = CopiesFrom.QUICKER) -> None:
        self._source_setting = setting
        self._checkpoint, self._peers = _Rate(), _Rate()

    @property
    def bytes_per_s(self) -> tuple[float | None, float | None]:
        """Recent throughput of the checkpoint, and of peers; ``None`` if not measured."""
        return self._checkpoint.bytes_per_s, self._peers.bytes_per_s

    def choose(
        self,
        order: StartWarming,
        *,
        copies: Copies,
        assignment: Assignment,
        state_bytes: Mapping[int, int],
        dry_run: bool = False,
    ) -> StartWarming:
        """Return an order with the executors that send copies, and the reason for the choice.

        `assignment`: of the component: the owner of a key group sends it, if it has a copy.
        `state_bytes`: key group → bytes of state. `dry_run`: only predict; nothing changes.
        """
        holders: dict[str, list[int]] = {}
        for key_group in order.key_groups:
            if copies.reach(order.component, order.executor, key_group) < 0:
                holder = _best_holder(order, key_group, copies, assignment.executor(key_group))
                if holder is not None:
                    holders.setdefault(holder, []).append(key_group)
        size = sum(
            state_bytes.get(key_group, 0)
            for key_groups in holders.values()
            for key_group in key_groups
        )
        if not holders or self._source_setting is CopiesFrom.CHECKPOINT:
            return order
        if self._source_setting is CopiesFrom.PEERS:
            peers, reason = True, "by setting"
        elif size < _MIN_BYTES:
            return order
        else:
            peers, reason = self._are_peers_faster(dry_run=dry_run)
        sent = tuple(
            PeerCopies(executor=name, key_groups=tuple(key_groups))
            for name, key_groups in sorted(holders.items())
        )
        return replace(order, peers=sent if peers else (), why=reason)

    def record(self, deliveries: Iterable[Delivery], state_bytes: Mapping[int, int]) -> None:
        """Add deliveries to the measured throughput; a failed one counts its time only."""
        for delivery in deliveries:
            size = sum(state_bytes.get(key_group, 0) for key_group in delivery.key_groups)
            if size >= _MIN_BYTES:
                rate = self._checkpoint if delivery.source is None else self._peers
                rate.add(0 if delivery.failure else size, delivery.duration_ms / 1e3)

    def foresee(
        self,
        component: str,
        places: Mapping[int, str],
        *,
        copies: Copies,
        assignment: Assignment,
        state_bytes: Mapping[int, int],
    ) -> tuple[CopyRoute, ...]:
        """Return the routes of copies if key groups moved now; `places`: key group → executor."""
        moving: dict[str, list[int]] = {}
        for key_group, executor in places.items():
            moving.setdefault(executor, []).append(key_group)
        routes: list[CopyRoute] = []
        for executor, key_groups in sorted(moving.items()):
            order = self.choose(
                StartWarming(
                    component=component,
                    executor=executor,
                    key_groups=tuple(sorted(key_groups)),
                    attempt="",
                ),
                copies=copies,
                assignment=assignment,
                state_bytes=state_bytes,
                dry_run=True,
            )
            routes += self._routes_of_chosen_sources(order, copies, state_bytes)
        return tuple(routes)

    def _routes_of_chosen_sources(
        self, order: StartWarming, copies: Copies, state_bytes: Mapping[int, int]
    ) -> Iterator[CopyRoute]:
        """Yield the routes of the copies of an order whose sources are chosen."""
        already_here = [
            key_group
            for key_group in order.key_groups
            if copies.reach(order.component, order.executor, key_group) >= 0
        ]
        sent = {key_group for peer in order.peers for key_group in peer.key_groups}
        from_checkpoint = [
            key_group
            for key_group in order.key_groups
            if key_group not in sent and key_group not in already_here
        ]
        checkpoint, peers = self.bytes_per_s
        for source, key_groups, rate in (
            *((peer.executor, list(peer.key_groups), peers) for peer in order.peers),
            (None, from_checkpoint, checkpoint),
            (order.executor, already_here, checkpoint),
        ):
            if key_groups:
                is_local = source == order.executor
                yield CopyRoute(
                    component=order.component,
                    source=source,
                    destination=order.executor,
                    key_groups=tuple(key_groups),
                    size_bytes=0.0
                    if is_local
                    else sum(state_bytes.get(key_group, 0) for key_group in key_groups),
                    bytes_per_s=rate,
                    why="" if is_local else order.why,
                )

    def _are_peers_faster(self, *, dry_run: bool) -> tuple[bool, str]:
        """Return true if peers send the copies, and the reason; a `dry_run` changes nothing."""
        checkpoint, peers = self.bytes_per_s
        if checkpoint is None:
            return False, "measured first"
        if peers is None:
            return True, f"to be measured, the checkpoint gives {_rate_text(checkpoint)}"
        why = f"peers give {_rate_text(peers)}, the checkpoint {_rate_text(checkpoint)}"
        faster = peers > checkpoint
        slower = self._checkpoint if faster else self._peers
        slower.passed_over += not dry_run
        if slower.passed_over + dry_run > _RETRY_AFTER:
            return not faster, f"to be measured again, {why}"
        return faster, why


def _best_holder(order: StartWarming, key_group: int, copies: Copies, owner: str) -> str | None:
    """Return the executor to copy from: the owner, else that with the freshest copy, if any."""
    if owner != order.executor and copies.reach(order.component, owner, key_group) >= 0:
        return owner  # quick; most executors have no copy
    holders = [
        (-reach, name)
        for name in copies.holders(order.component, key_group)
        if name != order.executor and (reach := copies.reach(order.component, name, key_group)) >= 0
    ]
    return min(holders)[1] if holders else None


def _rate_text(bytes_per_s: float) -> str:
    """Format a throughput as text."""
    return f"{human_bytes(bytes_per_s)}/s"


class PeerLinks:
    """Schedules peer transfers so that no two share an up- or downlink.

    An executor sends to one other and receives from one other at a time (Ding et al. §3.2). Orders
    come and go while transfers run, so the schedule is not fixed: whenever an executor could
    receive, its sender is that of the first phase of the remaining transfers
    (`godwit.placement.copy_routes`). This phase includes every link with as many remaining bytes as
    the busiest one. If the phase has no sender for a receiver, or a busy one, the receiver takes a
    free sender, since an idle link is wasted: preferably one outside of the phase, and of those the
    one with most remaining bytes. Key groups are sent whole. Not thread-safe.
    """

    def __init__(self) -> None:
        # attempt → source → key group → bytes
        self._remaining_bytes: dict[str, dict[str, dict[int, int]]] = {}
        self._receiver_of_attempt: dict[str, str] = {}  # attempt → receiver
        self._sender_of_attempt: dict[str, str] = {}  # attempt → sender

    def add(self, order: StartWarming, state_bytes: Mapping[int, int]) -> None:
        """Add the transfers of an order; `state_bytes`: key group → bytes."""
        self._receiver_of_attempt[order.attempt] = order.executor
        self._remaining_bytes[order.attempt] = {
            peer.executor: {
                key_group: max(state_bytes.get(key_group, 0), 1) for key_group in peer.key_groups
            }
            for peer in order.peers
        }

    def begin(self, order: StartWarming) -> PeerCopies | None:
        """Begin and return the next transfer of an order; ``None`` while all its senders are busy.

        If all transfers have begun, the result has no key groups.
        """
        remaining = self._remaining_bytes.get(order.attempt, {})
        if not remaining:
            return PeerCopies(executor="", key_groups=())
        busy = set(self._sender_of_attempt.values())
        idle_sources = [source for source in remaining if source not in busy]
        if not idle_sources:
            return None
        source, size = self._choose_sender(order, idle_sources)
        remaining_of_source, chosen = remaining[source], dict[int, int]()
        for key_group, size_bytes in sorted(remaining_of_source.items()):
            if chosen and sum(chosen.values()) + size_bytes > size:
                break
            chosen[key_group] = size_bytes
        for key_group in chosen:
            del remaining_of_source[key_group]
        if not remaining_of_source:
            del remaining[source]
        self._sender_of_attempt[order.attempt] = source
        return PeerCopies(executor=source, key_groups=tuple(chosen))

    def ended(self, order: StartWarming) -> None:
        """Record that the running transfer of an order has ended."""
        self._sender_of_attempt.pop(order.attempt, None)

    def forget(self, order: StartWarming) -> None:
        """Remove an order with its remaining transfers."""
        self.ended(order)
        self._remaining_bytes.pop(order.attempt, None)
        self._receiver_of_attempt.pop(order.attempt, None)

    def _choose_sender(self, order: StartWarming, free: list[str]) -> tuple[str, int]:
        """Choose an order's next sender; return it, and the bytes that it sends."""
        pairs: dict[tuple[str, str], int] = {}
        for attempt, sources in self._remaining_bytes.items():
            for source, waiting in sources.items():
                pair = source, self._receiver_of_attempt[attempt]
                pairs[pair] = pairs.get(pair, 0) + sum(waiting.values())
        size, phase = first_phase(pairs)
        for source, destination in phase:
            if destination == order.executor and source in free:
                return source, size
        in_phase = {source for source, _ in phase}
        remaining = dict.fromkeys(free, 0)
        for (source, _), size_bytes in pairs.items():
            if source in remaining:
                remaining[source] += size_bytes
        return max(
            free, key=lambda source: (source not in in_phase, remaining[source], source)
        ), size
