"""Transfers over fairly shared links, and the warming of copies over them.

Every place has an uplink and a downlink of some bandwidth.  Transfers that run at once get max-min
fair rates (none can get more without another, no faster one, getting less), which is what TCP
comes to on a network whose core is not the bottleneck.  Between two ends of transfers rates stand
still, so the time of every end is exact.
"""

from __future__ import annotations

from collections import deque
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from godwit.migration.coordinator import Warmed
from godwit.migration.messages import DropCopies, PeerCopies, StartWarming
from godwit.migration.sources import Delivery, PeerLinks
from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.placement.arrays import FloatArray
    from godwit_lab.simulator.cluster import Machine
    from godwit_lab.simulator.holdings import Holdings

Name = TypeVar("Name")
_DONE_BYTES = 1e-6


def fair_rates(ends: np.ndarray, capacity: FloatArray) -> FloatArray:
    """Return the max-min fair rate of each transfer, shape ``(n,)``, by progressive filling.

    `ends`: shape ``(n, 2)``: the two links that each transfer uses. `capacity`: shape ``(l,)``:
    bandwidth of each link. O(transfers · links) time.

    Examples
    --------
    >>> fair_rates(np.array([[0, 2], [0, 3], [1, 3]]), np.array([1.0, 1.0, 1.0, 1.0])).tolist()
    [0.5, 0.5, 0.5]
    """
    rates = np.zeros(len(ends))
    free = np.ones(len(ends), np.bool_)
    left = capacity.astype(np.float64).copy()
    while free.any():
        users = np.bincount(ends[free].ravel(), minlength=len(left))
        share = np.where(users > 0, left / np.maximum(users, 1), np.inf)
        tightest = int(share.argmin())
        fixed = free & (ends == tightest).any(axis=1)
        rates[fixed] = share[tightest]
        left -= np.bincount(ends[fixed].ravel(), minlength=len(left)) * share[tightest]
        left = left.clip(min=0)
        free &= ~fixed
    return rates


@dataclass(slots=True, kw_only=True)
class _Flow(Generic[Name]):
    name: Name
    ends: tuple[int, int]
    left_bytes: float


class Links(Generic[Name]):
    """Links between executors, and the transfers under way.

    now_s: The time to begin with.
    """

    def __init__(self, *, now_s: float = 0.0) -> None:
        self._link: dict[str, int] = {}
        self._capacity: list[float] = []
        self._flows: list[_Flow[Name]] = []
        self._rates: FloatArray | None = None  # while none begins and none ends
        self.now_s = now_s

    def connect(self, place: str, *, up_bytes_per_s: float, down_bytes_per_s: float) -> None:
        """Add the uplink and the downlink of an executor, or of the checkpoint, by its name.

        Raises `InvalidProblemError` if a bandwidth is not positive.
        """
        if not min(up_bytes_per_s, down_bytes_per_s) > 0:
            raise InvalidProblemError(
                f"The links of {place!r} carry {up_bytes_per_s} and {down_bytes_per_s} bytes/s.",
                remedy="Give every link a positive number of bytes per second.",
                field="bandwidth",
            )
        self._link[place] = len(self._capacity)
        self._capacity += [up_bytes_per_s, down_bytes_per_s]

    @property
    def busy(self) -> bool:
        """True if any transfer is in progress."""
        return bool(self._flows)

    def start(self, name: Name, source: str, destination: str, size_bytes: float) -> None:
        """Start a transfer of `size_bytes` from one place to another now, under a name."""
        ends = (self._link[source], self._link[destination] + 1)
        self._flows.append(_Flow(name=name, ends=ends, left_bytes=max(size_bytes, 0.0)))
        self._rates = None

    def stop(self, name: Name) -> None:
        """Cancel the transfer of this name; no-op if there is none."""
        self._flows = [flow for flow in self._flows if flow.name != name]
        self._rates = None

    def next_end_s(self) -> float:
        """Return the time of the next transfer's end if no other starts; infinity without any."""
        if not self._flows:
            return float("inf")
        left = np.array([flow.left_bytes for flow in self._flows])
        return self.now_s + float((left / self._fair_rates()).min())

    def advance(self, until_s: float) -> list[Name]:
        """Advance time to `until_s`, or to the next end before it; return the transfers that ended.

        Transfers that end at the same time are returned together, in the order of their starts.
        """
        end_s = self.next_end_s()
        step = max(min(until_s, end_s) - self.now_s, 0.0)
        if self._flows:
            for flow, rate in zip(self._flows, self._fair_rates().tolist(), strict=True):
                flow.left_bytes -= rate * step
        self.now_s = max(self.now_s, min(until_s, end_s))
        ended = [f.name for f in self._flows if f.left_bytes <= _DONE_BYTES]
        if end_s <= until_s and not ended:  # rounding: the one that was to end has ended
            ended = [min(self._flows, key=lambda f: f.left_bytes).name]
        if ended:
            self._flows = [f for f in self._flows if f.name not in ended]
            self._rates = None
        return ended

    def _fair_rates(self) -> FloatArray:
        """Return the max-min fair rate of each transfer in progress."""
        if self._rates is None:
            ends = np.array([flow.ends for flow in self._flows])
            self._rates = fair_rates(ends, np.array(self._capacity))
        return self._rates


_CHECKPOINT = "the checkpoint"


@dataclass(slots=True, kw_only=True)
class _Job:
    """An order under way: transfers from peers, then the checkpoint."""

    order: StartWarming
    began_s: float
    nothing_here: frozenset[int]  # key groups of which the executor held nothing when it began
    step_s: float = 0.0  # when the step began
    # when its bytes begin to flow: infinity while they do, and while all who could send are sending
    starts_s: float = float("inf")
    # sender; ``None`` while the checkpoint is read, or no sender is free
    peer: PeerCopies | None = None
    # changelog bytes in the copies at the end of the step
    written_bytes: FloatArray = field(default_factory=lambda: np.empty(0))
    committed: int = -1  # version that they are brought to; -1 before the reading
    reading: bool = False
    deliveries: list[Delivery] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Warming:
    """Background copies of all executors, each of which carries out its orders in turn.

    What an order has from peers comes first, one transfer after the other, each when its links are
    free (`godwit.migration.sources.PeerLinks`); a peer that dies, or holds nothing, has sent
    nothing.  Then the order reads what the copies miss, over the executor's downlink and the
    checkpoint's uplink; they come to the version that was committed when this reading began.
    """

    holdings: Mapping[str, Holdings]  # component → its state and copies
    fixed_s: float  # what each step of an order takes besides the transfer
    checkpoint_bytes_per_s: float  # how fast all executors together can read the checkpoint
    now_s: InitVar[float] = 0.0  # the time to begin with
    read_bytes: float = 0.0  # bytes that have been read from the checkpoint so far
    sent_bytes: float = 0.0  # bytes that executors have sent one another
    _links: Links[str] = field(init=False)
    _peers: PeerLinks = field(init=False, default_factory=PeerLinks)
    _orders: dict[str, deque[StartWarming | DropCopies]] = field(init=False, default_factory=dict)
    _jobs: dict[str, _Job] = field(init=False, default_factory=dict)

    def __post_init__(self, now_s: float) -> None:
        self._links = Links(now_s=now_s)
        rate = self.checkpoint_bytes_per_s
        self._links.connect(_CHECKPOINT, up_bytes_per_s=rate, down_bytes_per_s=rate)

    def add_executor(self, executor: str, machine: Machine) -> None:
        """Add an executor without copies, and its network links."""
        rate = machine.bytes_per_s
        self._links.connect(executor, up_bytes_per_s=rate, down_bytes_per_s=rate)
        self._orders[executor] = deque()

    def remove_executor(self, executor: str) -> None:
        """Remove a lost executor, with its background copies and queued warming orders.

        Its orders are never reported as done; transfers that it was sending to others fail.
        """
        job = self._jobs.pop(executor, None)
        ordered = self._orders.pop(executor, ())
        for order in (*ordered, *([] if job is None else [job.order])):
            if isinstance(order, StartWarming):
                self._peers.forget(order)
        self._links.stop(executor)
        for holdings in self.holdings.values():
            holdings.copies.pop(executor)
        for name, other in self._jobs.items():
            if other.peer is not None and other.peer.executor == executor:
                self._links.stop(name)
                self._end_transfer(other, f"executor {executor} was lost")

    def queue_order(self, order: StartWarming | DropCopies) -> None:
        """Queue an order to make or drop copies for its executor; ignore it if that is lost."""
        if order.executor in self._orders:
            self._orders[order.executor].append(order)
            if isinstance(order, StartWarming) and order.peers:
                sizes = self.holdings[order.component].copied_bytes
                self._peers.add(order, {g: int(sizes[g]) for g in order.key_groups})

    @property
    def moved_bytes(self) -> float:
        """Bytes transferred to executors so far."""
        return self.read_bytes + self.sent_bytes

    def next_s(self) -> float:
        """Return the time at which the next transfer starts or ends; infinity without any."""
        if not self._jobs:
            return float("inf")
        return min([self._links.next_end_s(), *(job.starts_s for job in self._jobs.values())])

    def advance(self, until_s: float, committed: int) -> list[tuple[StartWarming, Warmed]]:
        """Advance time to `until_s` or the next event before it; return ended orders with results.

        `committed`: last committed epoch.
        """
        self._begin_orders()
        until_s = min(until_s, self.next_s())
        ended: list[tuple[StartWarming, Warmed]] = []
        for executor in self._links.advance(until_s):
            job = self._jobs[executor]
            if job.peer is not None:
                self._end_transfer(job, "")
            else:
                del self._jobs[executor]
                ended.append((job.order, self._finish_order(job)))
        for executor, job in self._jobs.items():
            if job.starts_s <= self._links.now_s:
                self._start_step(executor, job, committed)
        self._begin_orders()
        return ended

    # -- orders -----------------------------------------------------------------------------------

    def _begin_orders(self) -> None:
        """Start the next queued order of every executor that is carrying out none."""
        for executor, orders in self._orders.items():
            while orders and executor not in self._jobs:
                order = orders.popleft()
                if isinstance(order, DropCopies):
                    self.holdings[order.component].drop(executor, order.key_groups)
                else:
                    exists = self.holdings[order.component].copy(executor).exists
                    self._jobs[executor] = _Job(
                        order=order,
                        began_s=self._links.now_s,
                        nothing_here=frozenset(g for g in order.key_groups if not exists[g]),
                    )
        for job in self._jobs.values():
            if not job.reading and job.peer is None:
                self._begin_step(job)

    def _begin_step(self, job: _Job) -> None:
        """Plan an order's next step, a transfer from a peer or the checkpoint, if links allow."""
        begun = self._peers.begin(job.order)
        if begun is not None:
            job.peer = begun if begun.key_groups else None
            job.reading = job.peer is None
            job.step_s = self._links.now_s
            job.starts_s = job.step_s + self.fixed_s

    def _start_step(self, executor: str, job: _Job, committed: int) -> None:
        """Start a step's transfer; end it as failed if the peer does not have all copies.

        `executor`: the receiver. `committed`: last committed epoch.
        """
        job.starts_s = float("inf")
        holdings = self.holdings[job.order.component]
        if job.peer is None:
            groups = list(job.order.key_groups)
            size = float(holdings.missing_bytes(executor)[groups].sum())
            job.committed = max(committed, 0)
            job.written_bytes = holdings.written_bytes[groups].copy()
            self.read_bytes += size
            self._links.start(executor, _CHECKPOINT, executor, size)
            return
        groups = list(job.peer.key_groups)
        source = holdings.copies.get(job.peer.executor)
        if source is None or not source.exists[groups].all():
            self._end_transfer(job, "it does not hold all of them")
            return
        size = float(holdings.copied_bytes[groups].sum())
        job.written_bytes = source.seen_bytes[groups].copy()
        self.sent_bytes += size
        self._links.start(executor, job.peer.executor, executor, size)

    def _end_transfer(self, job: _Job, failure: str) -> None:
        """End a transfer from a peer, and record its result for the order.

        `failure`: reason; empty if the copies have arrived.
        """
        assert job.peer is not None, "only a transfer ends here"
        peer, job.peer, job.starts_s = job.peer, None, float("inf")
        self._peers.ended(job.order)
        if not failure:
            self.holdings[job.order.component].catch_up(
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

    def _finish_order(self, job: _Job) -> Warmed:
        """End an order, whose copies are up to date now, and return its result."""
        holdings = self.holdings[job.order.component]
        groups = np.array(job.order.key_groups, np.int32)
        holdings.catch_up(job.order.executor, groups, job.written_bytes)
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
