"""Simulated executors that slow down, die, or join; and the pool that they come from."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from godwit.engine.cluster import PoolView
from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Cores, speed and bandwidth of one executor."""

    cores: int = 1  # lanes that run at once
    speed: float = 1.0  # of each core; work takes 1/speed of its time
    bytes_per_s: float = 125e6  # of its uplink and of its downlink


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """An executor takes `factor` times as long for everything, from `start_s` to `end_s`."""

    executor: str
    start_s: float
    factor: float
    end_s: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """An executor dies."""

    executor: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Executors come, whether anybody asked or not."""

    at_s: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A cluster's answer to requests for executors: limit, delay and failures."""

    # maximum number of executors; requests beyond it are refused at once
    most: int | None = None
    # least and greatest time until one comes, evenly spread
    start_s: tuple[float, float] = (1.0, 1.0)
    never: float = 0.0  # share of those that never come
    # after this time one that has not come is given up, which the pool then says
    patience_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCluster:
    """A cluster for simulated streams: its executors, and what befalls them."""

    machines: tuple[Machine, ...]  # one for each executor there is at the start
    names: tuple[str, ...] = ()  # their names; 0, 1, ... if left out.
    added: Machine = Machine()  # what executors that come later are like
    checkpoint_bytes_per_s: float = 1e9  # how fast all executors together can read the checkpoint
    slowdowns: tuple[Slowdown, ...] = ()
    deaths: tuple[Death, ...] = ()
    joins: tuple[Join, ...] = ()
    pool: Pool = Pool()  # how it answers when executors are asked for

    def __post_init__(self) -> None:
        every = (*self.machines, self.added)
        slow = [s for s in self.slowdowns if s.factor <= 0]
        if slow or not self.machines or any(m.cores < 1 or m.speed <= 0 for m in every):
            raise InvalidProblemError(
                f"A cluster of {len(self.machines)} machines cannot be simulated.",
                remedy="Give at least one machine, each with a core, a speed above 0, and "
                "slowdowns by a factor above 0.",
                field="cluster",
            )


@dataclass(slots=True, kw_only=True)
class Executors:
    """The executors of a simulated run over time, as a pool for the controller."""

    cluster: SimulatedCluster  # what happens to them
    rng: np.random.Generator  # draws how long new ones take
    now_s: float = 0.0  # the time; advanced by the simulation
    alive: dict[str, Machine] = field(init=False)  # name → machine of those that are there
    _coming: list[tuple[float, int, str, str]] = field(init=False, default_factory=list)
    _named: int = field(init=False, default=0)
    _happened: int = field(init=False, default=0)
    _pending: int = field(init=False, default=0)
    _refused: str = field(init=False, default="")

    def __post_init__(self) -> None:
        machines = self.cluster.machines
        names = self.cluster.names or tuple(map(str, range(len(machines))))
        self.alive = dict(zip(names, machines, strict=True))
        self._named = len(self.alive)
        for death in self.cluster.deaths:
            self._schedule(death.at_s, "dies", death.executor)
        for join in self.cluster.joins:
            for _ in range(join.count):
                self._schedule(join.at_s, "joins", "")

    # -- as time passes ---------------------------------------------------------------------------

    def next_s(self) -> float:
        """Return the time of the next change of executors; infinity if none is planned."""
        return self._coming[0][0] if self._coming else float("inf")

    def advance(self, until_s: float) -> bool:
        """Advance time to `until_s`; return whether executors joined or left."""
        before = dict(self.alive)
        while self._coming and self._coming[0][0] <= until_s:
            _, _, what, name = heapq.heappop(self._coming)
            if what == "dies":
                self.alive.pop(name, None)
            elif what == "is given up":
                self._pending -= 1
                self._refused = f"it did not come within {self.cluster.pool.patience_s:g} s"
            else:
                self._pending -= what == "comes"
                self.alive[str(self._named)] = self.cluster.added
                self._named += 1
        self.now_s = max(self.now_s, until_s)
        return before != self.alive

    def speed(self, executor: str) -> float:
        """Return the relative speed of an executor's cores now: the machine's, or slowed down."""
        speed = self.alive[executor].speed
        for slow in self.cluster.slowdowns:
            if slow.executor == executor and slow.start_s <= self.now_s < slow.end_s:
                speed /= slow.factor
        return speed

    def _schedule(self, at_s: float, what: str, name: str) -> None:
        """Schedule that executor `name` comes, dies or is given up (`what`), at `at_s`."""
        self._happened += 1
        heapq.heappush(self._coming, (at_s, self._happened, what, name))

    # -- as a pool --------------------------------------------------------------------------------

    @property
    def view(self) -> PoolView:
        """Number of executors that are still to come, and refusals of the cluster."""
        return PoolView(pending=self._pending, most=self.cluster.pool.most, refused=self._refused)

    def add(self, count: int) -> None:
        """Request `count` more executors."""
        pool = self.cluster.pool
        room = count if pool.most is None else pool.most - len(self.alive) - self._pending
        granted = max(min(count, room), 0)
        self._refused = "" if granted == count else f"the cluster has {pool.most} executors at most"
        for _ in range(granted):
            self._pending += 1
            comes = self.rng.random() >= pool.never
            takes_s = self.rng.uniform(*pool.start_s) if comes else pool.patience_s
            self._schedule(self.now_s + takes_s, "comes" if comes else "is given up", "")

    def replace_all(self, count: int) -> None:
        """Have `count` executors at once, as after a restart; those on their way are forgotten."""
        self._coming = [entry for entry in self._coming if entry[2] not in {"comes", "is given up"}]
        heapq.heapify(self._coming)
        self._pending, self._refused = 0, ""
        for name in sorted(self.alive, key=lambda name: (len(name), name))[count:]:
            del self.alive[name]
        while len(self.alive) < count:
            self.alive[str(self._named)] = self.cluster.added
            self._named += 1

    def remove(self, executors: Sequence[str]) -> None:
        """Remove executors, which own no key group, at once."""
        for name in executors:
            self._schedule(self.now_s, "dies", name)
