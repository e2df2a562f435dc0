"""Copies are warmed in the background: what is ordered of each executor, one order after another.

As on Spark, an executor carries out orders to warm and to drop in the order in which they were
given.  What an order has from peers comes first, one transfer after the other, each when its links
are free (`godwit.migration.PeerLinks`) and over uplinks and downlinks that all share; a peer that
dies, or holds nothing, has sent nothing.  Then the order reads what the executor's copies miss,
over its downlink and the checkpoint's uplink; the copies then are at the version that was committed
when this reading began.  What came from where, and how quickly, is told to the conductor, which
chooses the quicker way by it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.cluster.simulated.links import Links
from godwit.migration import Delivery, DropCopies, PeerLinks, StartWarming, Warmed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.cluster.simulated.cluster import Machine
    from godwit.cluster.simulated.holdings import Holdings
    from godwit.migration import PeerCopies
    from godwit.planning.arrays import FloatArray

__all__ = ["Warming"]

_CHECKPOINT = "the checkpoint"


@dataclass(slots=True, kw_only=True)
class _Job:
    """An order that is carried out: a step (a transfer, or the reading) after the other.

    Attributes
    ----------
    order, began_s
        What, and since when.
    nothing_here
        Key groups of which the executor held nothing when it began.
    step_s, starts_s
        When the step began, and when its bytes begin to flow: infinity while they do, and while
        all who could send are sending.
    peer
        Who sends; ``None`` while the checkpoint is read, or nobody is free.
    written_bytes
        What copies will have seen when the step is over.
    committed
        Version that they are brought to; -1 before the reading.
    """

    order: StartWarming
    began_s: float
    nothing_here: frozenset[int]
    step_s: float = 0.0
    starts_s: float = float("inf")
    peer: PeerCopies | None = None
    written_bytes: FloatArray = field(default_factory=lambda: np.empty(0))
    committed: int = -1
    reading: bool = False
    deliveries: list[Delivery] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Warming:
    """Background work of all executors.

    Attributes
    ----------
    holdings
        Component → its state and copies.
    fixed_s
        What each step of an order takes besides the transfer.
    checkpoint_bytes_per_s
        How fast all executors together can read the checkpoint.
    now_s
        The time to begin with.
    read_bytes
        Bytes that have been read from the checkpoint so far.
    sent_bytes
        Bytes that executors have sent one another.
    """

    holdings: Mapping[str, Holdings]
    fixed_s: float
    checkpoint_bytes_per_s: float
    now_s: InitVar[float] = 0.0
    read_bytes: float = 0.0
    sent_bytes: float = 0.0
    _links: Links[str] = field(init=False)
    _peers: PeerLinks = field(init=False, default_factory=PeerLinks)
    _orders: dict[str, deque[StartWarming | DropCopies]] = field(init=False, default_factory=dict)
    _jobs: dict[str, _Job] = field(init=False, default_factory=dict)

    def __post_init__(self, now_s: float) -> None:
        self._links = Links(now_s=now_s)
        rate = self.checkpoint_bytes_per_s
        self._links.connect(_CHECKPOINT, up_bytes_per_s=rate, down_bytes_per_s=rate)

    def join(self, executor: str, machine: Machine) -> None:
        """Take note of an executor with nothing on it."""
        rate = machine.bytes_per_s
        self._links.connect(executor, up_bytes_per_s=rate, down_bytes_per_s=rate)
        self._orders[executor] = deque()

    def leave(self, executor: str) -> None:
        """Forget an executor; whatever it was doing is never answered, what it sent has failed."""
        job = self._jobs.pop(executor, None)
        ordered = self._orders.pop(executor, ())
        for order in (*ordered, *([] if job is None else [job.order])):
            if isinstance(order, StartWarming):
                self._peers.forget(order)
        self._links.stop(executor)
        for held in self.holdings.values():
            held.copies.pop(executor, None)
        for name, other in self._jobs.items():
            if other.peer is not None and other.peer.executor == executor:
                self._links.stop(name)
                self._end_transfer(other, f"executor {executor} was lost")

    def order(self, order: StartWarming | DropCopies) -> None:
        """Take an order; one for an executor that is gone is forgotten."""
        if order.executor in self._orders:
            self._orders[order.executor].append(order)
            if isinstance(order, StartWarming) and order.peers:
                sizes = self.holdings[order.component].copied_bytes
                self._peers.add(order, {g: int(sizes[g]) for g in order.key_groups})

    @property
    def moved_bytes(self) -> float:
        """Bytes that have come to executors so far, from wherever."""
        return self.read_bytes + self.sent_bytes

    def next_s(self) -> float:
        """When something ends next, if nothing is ordered; infinity if nothing is under way."""
        if not self._jobs:
            return float("inf")
        return min([self._links.next_end_s(), *(job.starts_s for job in self._jobs.values())])

    def advance(self, until_s: float, committed: int) -> list[tuple[StartWarming, Warmed]]:
        """Let time pass up to `until_s` or to the next end; return what was warmed then."""
        self._begin_orders()
        until_s = min(until_s, self.next_s())
        done: list[tuple[StartWarming, Warmed]] = []
        for executor in self._links.advance(until_s):
            job = self._jobs[executor]
            if job.peer is not None:
                self._end_transfer(job, "")
            else:
                del self._jobs[executor]
                done.append((job.order, self._end(job)))
        for executor, job in self._jobs.items():
            if job.starts_s <= self._links.now_s:
                self._start_step(executor, job, committed)
        self._begin_orders()
        return done

    # -- orders -----------------------------------------------------------------------------------

    def _begin_orders(self) -> None:
        for executor, orders in self._orders.items():
            while orders and executor not in self._jobs:
                order = orders.popleft()
                if isinstance(order, DropCopies):
                    self.holdings[order.component].drop(executor, order.key_groups)
                else:
                    there = self.holdings[order.component].copy(executor).there
                    self._jobs[executor] = _Job(
                        order=order,
                        began_s=self._links.now_s,
                        nothing_here=frozenset(g for g in order.key_groups if not there[g]),
                    )
        for job in self._jobs.values():
            if not job.reading and job.peer is None:
                self._begin_step(job)

    def _begin_step(self, job: _Job) -> None:
        """Begin the next transfer, or the reading where all have begun; nothing while none can."""
        begun = self._peers.begin(job.order)
        if begun is not None:
            job.peer = begun if begun.key_groups else None
            job.reading = job.peer is None
            job.step_s = self._links.now_s
            job.starts_s = job.step_s + self.fixed_s

    def _start_step(self, executor: str, job: _Job, committed: int) -> None:
        """Let a step's bytes flow."""
        job.starts_s = float("inf")
        held = self.holdings[job.order.component]
        if job.peer is None:
            groups = list(job.order.key_groups)
            size = float(held.missing_bytes(executor)[groups].sum())
            job.committed = max(committed, 0)
            job.written_bytes = held.written_bytes[groups].copy()
            self.read_bytes += size
            self._links.start(executor, _CHECKPOINT, executor, size)
            return
        groups = list(job.peer.key_groups)
        source = held.copies.get(job.peer.executor)
        if source is None or not source.there[groups].all():
            self._end_transfer(job, "it does not hold all of them")
            return
        size = float(held.copied_bytes[groups].sum())
        job.written_bytes = source.seen_bytes[groups].copy()
        self.sent_bytes += size
        self._links.start(executor, job.peer.executor, executor, size)

    def _end_transfer(self, job: _Job, failure: str) -> None:
        assert job.peer is not None, "only a transfer ends here"
        peer, job.peer, job.starts_s = job.peer, None, float("inf")
        self._peers.ended(job.order)
        if not failure:
            self.holdings[job.order.component].bring_forward(
                job.order.executor, np.array(peer.key_groups, np.int32), job.written_bytes
            )
        job.deliveries.append(
            Delivery(
                source=peer.executor,
                key_groups=peer.key_groups,
                duration_ms=1000 * (self._links.now_s - job.step_s),
                failure=failure,
            )
        )

    def _end(self, job: _Job) -> Warmed:
        held = self.holdings[job.order.component]
        groups = np.array(job.order.key_groups, np.int32)
        held.bring_forward(job.order.executor, groups, job.written_bytes)
        self._peers.forget(job.order)
        sent = {g for d in job.deliveries if not d.failure for g in d.key_groups}
        rest = tuple(sorted(job.nothing_here - sent))
        read = Delivery(
            source=None,
            key_groups=rest,
            duration_ms=1000 * (self._links.now_s - job.step_s),
        )
        return Warmed(
            tables={},
            reach=dict.fromkeys(groups.tolist(), job.committed),
            duration_ms=1000 * (self._links.now_s - job.began_s),
            deliveries=(*job.deliveries, *([read] if rest else ())),
        )
