"""Copies are warmed in the background: what is ordered of each executor, one order after another.

As on Spark, an executor carries out orders to warm and to drop in the order in which they were
given.  An order reads what the executor's copies miss, over its downlink and the checkpoint's
uplink, which all share; the copies then are at the version that was committed when the order began.
Executors send one another nothing here, so nothing is measured of it, and it is never chosen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.migration import DropCopies, StartWarming, Warmed
from godwit.sim.links import Links

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.planning.arrays import FloatArray
    from godwit.sim.cluster import Machine
    from godwit.sim.holdings import Holdings

__all__ = ["Warming"]

_CHECKPOINT = "the checkpoint"


@dataclass(slots=True, kw_only=True)
class _Job:
    order: StartWarming
    began_s: float
    reads_from_s: float
    committed: int = -1
    written_bytes: FloatArray = field(default_factory=lambda: np.empty(0))


@dataclass(slots=True, kw_only=True)
class Warming:
    """Background work of all executors.

    Attributes
    ----------
    holdings
        Component → its state and copies.
    fixed_s
        What an order takes besides the transfer.
    checkpoint_bytes_per_s
        How fast all executors together can read the checkpoint.
    now_s
        The time to begin with.
    read_bytes
        Bytes that have been read so far.
    """

    holdings: Mapping[str, Holdings]
    fixed_s: float
    checkpoint_bytes_per_s: float
    now_s: InitVar[float] = 0.0
    read_bytes: float = 0.0
    _links: Links[str] = field(init=False)
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
        """Forget an executor; whatever it was doing is never answered."""
        self._orders.pop(executor, None)
        self._jobs.pop(executor, None)
        self._links.stop(executor)
        for held in self.holdings.values():
            held.copies.pop(executor, None)

    def order(self, order: StartWarming | DropCopies) -> None:
        """Take an order; one for an executor that is gone is forgotten."""
        if order.executor in self._orders:
            self._orders[order.executor].append(order)

    def next_s(self) -> float:
        """When something ends next, if nothing is ordered; infinity if nothing is under way."""
        times = [job.reads_from_s for job in self._jobs.values() if job.committed < 0]
        return min([self._links.next_end_s(), *times])

    def advance(self, until_s: float, committed: int) -> list[tuple[StartWarming, Warmed]]:
        """Let time pass up to `until_s` or to the next end; return what was warmed then."""
        self._begin_orders()
        until_s = min(until_s, self.next_s())
        done: list[tuple[StartWarming, Warmed]] = []
        for executor in self._links.advance(until_s):
            job = self._jobs.pop(executor)
            done.append((job.order, self._end(job)))
        for executor, job in self._jobs.items():
            if job.committed < 0 and job.reads_from_s <= self._links.now_s:
                self._start_reading(executor, job, committed)
        self._begin_orders()
        return done

    def _begin_orders(self) -> None:
        for executor, orders in self._orders.items():
            while orders and executor not in self._jobs:
                order = orders.popleft()
                if isinstance(order, DropCopies):
                    self.holdings[order.component].drop(executor, order.key_groups)
                else:
                    now_s = self._links.now_s
                    self._jobs[executor] = _Job(
                        order=order, began_s=now_s, reads_from_s=now_s + self.fixed_s
                    )

    def _start_reading(self, executor: str, job: _Job, committed: int) -> None:
        held = self.holdings[job.order.component]
        groups = list(job.order.key_groups)
        size = float(held.missing_bytes(executor)[groups].sum())
        job.committed = max(committed, 0)
        job.written_bytes = held.written_bytes[groups].copy()
        self.read_bytes += size
        self._links.start(executor, _CHECKPOINT, executor, size)

    def _end(self, job: _Job) -> Warmed:
        held = self.holdings[job.order.component]
        groups = np.array(job.order.key_groups, np.int32)
        held.bring_forward(job.order.executor, groups, job.written_bytes)
        return Warmed(
            tables={},
            reach=dict.fromkeys(groups.tolist(), job.committed),
            duration_ms=1000 * (self._links.now_s - job.began_s),
        )
