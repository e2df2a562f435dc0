"""A realization in virtual time: the real coordinator over the simulator's cluster.

The simulator only counts rows; here someone carries the rows themselves beside it, and moves them
as its epochs say: which key groups run, which rows wait, which of those that wait come first.  So a
row that a plan loses, doubles or lets overtake another shows as it does on the real runtime.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.contract.flow import NUM_KEY_GROUPS, SHARDS, key_group_of

from godwit.migration.messages import LanesRequested, MigrationRequested
from godwit.model.errors import MigrationError
from godwit_lab.simulator import (
    Keys,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    UpstreamFeed,
)
from godwit_lab.simulator.flow import Routed
from godwit_lab.simulator.workload import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.contract.scenario import Misfortune, Policy, Warming

    from godwit.migration import Bounds, Strategy
    from godwit.migration.messages import DropCopies, EndMigration, StartWarming
    from godwit.migration.state import ProtocolView
    from godwit.model.assignment import Assignment
    from godwit.model.events import Event
    from godwit_lab.simulator.flow import ComponentWork, EpochWork

__all__ = ["InSimulator"]

Row = tuple[int, ...]
Rows = dict[int, list[Row]]
"""Key group → rows, in order."""

_PATIENCE = 3000


class _DiedError(Exception):
    """The driver is dead, or an attempt at an epoch is."""


class _Listed:
    """A source that gives what was put, one list of rows a batch."""

    def __init__(self, components: Iterable[str]) -> None:
        self._components, self._put, self._offered = tuple(components), list[list[Row]](), 0
        self._ends = [0]

    def put(self, rows: Sequence[Row]) -> None:
        self._put.append(list(rows))
        self._ends.append(self._ends[-1] + len(rows))

    def arrived_by(self, time_s: float) -> int:
        return self._ends[min(self._offered + 1, len(self._put))]

    def rows(self, batch: Batch) -> Rows:
        return {} if batch.number is None else _by_key_group(self._put[batch.number])

    @property
    def latest(self) -> Rows:
        """Rows of the batch that was offered last."""
        return _by_key_group(self._put[self._offered - 1])

    def batch(self, number: int, first: int, last: int) -> Batch:
        self._offered = number + 1
        assert (first, last) == (self._ends[number], self._ends[number + 1])
        counts = _counts(_by_key_group(self._put[number]))
        return Batch(
            number=number,
            first=first,
            last=last,
            phase=0,
            arrived=np.array([[last - first, 0.0, 0.0]]),
            rows_of=dict.fromkeys(self._components, counts),
        )

    def empty_batch(self, time_s: float, first: int) -> Batch:
        return Batch(
            number=None, first=first, last=first, phase=0, arrived=np.empty((0, 3)), rows_of={}
        )


class _Carried:
    """The rows themselves: what waits, what was processed, what came out."""

    def __init__(self, source: _Listed, *, deep: bool) -> None:
        self._source = source
        self._waiting: dict[str, Rows] = defaultdict(lambda: defaultdict(list))
        self._next: dict[int, int] = defaultdict(int)
        self._passed: Rows = {}
        self._sums: dict[str, dict[int, list[int]]] = {"totals": {}, "shards": {}}
        names = ("order", "totals", *(("shards",) if deep else ()))
        self.out: dict[str, dict[int, list[Row]]] = {name: {} for name in names}

    def deal(
        self, _component: str, feeds: Any, assignment: Assignment, _share: Any, _rng: Any
    ) -> Routed:
        """Send on what `order` is going to process."""
        ((_feed, upstream),) = feeds
        new = self._source.latest if upstream.new.any() else {}
        rows = _counts(_by_shard(self._processed("order", upstream, new)))
        return Routed(
            rows=rows,
            size_bytes=10.0 * rows,
            crossed_rows=np.zeros(assignment.num_key_groups),
            crossed_bytes=0.0,
        )

    def commit(self, work: EpochWork) -> None:
        """Process what an epoch processed, and keep waiting what it left."""
        new = self._source.rows(work.batch)
        for name, part in work.components.items():
            come = self._passed if name == "shards" else new
            done = self._processed(name, part, come)
            for g, rows in come.items():
                if not part.runs[g]:
                    self._waiting[name][g] += rows
            for g in np.flatnonzero(part.runs & part.consumes).tolist():
                self._waiting[name].pop(g, None)
            if name == "order":
                self._passed = _by_shard(done)
            self.out[name][work.epoch] = self._emitted(name, done)

    def _processed(self, name: str, part: ComponentWork, new: Rows) -> Rows:
        done: Rows = {}
        for g in np.flatnonzero(part.runs).tolist():
            waited = self._waiting[name].get(g, []) if part.consumes[g] else []
            if waited or g in new:
                done[g] = [*waited, *new.get(g, [])]
        return done

    def _emitted(self, name: str, done: Rows) -> list[Row]:
        rows = [row for g in sorted(done) for row in done[g]]
        if name == "order":
            for key, number in rows:
                assert number == self._next[key], f"key {key}: {number} for {self._next[key]}"
                self._next[key] += 1
            return [(key, number, key % SHARDS) for key, number in rows]
        sums, touched = self._sums[name], dict[int, None]()
        for row in rows:
            held = sums.setdefault(row[0], [0, 0])
            held[0] += 1
            held[1] += row[1]
            touched[row[0]] = None
        return [(key, *sums[key]) for key in touched]


class InSimulator:
    """See `tests.contract.realization.Realization`.

    Parameters
    ----------
    deep, policy
        As in the scenario.
    """

    def __init__(self, *, deep: bool, policy: Policy) -> None:
        self._deep, self._policy = deep, policy
        self._source = _Listed(("order", "totals"))
        self._carried = _Carried(self._source, deep=deep)
        self._goes, self._migrations = "works", 0
        self._held: list[StartWarming | DropCopies] = []
        self._failed: list[StartWarming] = []
        self._simulation: Simulation | None = None
        self._put = 0

    @property
    def _runs(self) -> Simulation:
        assert self._simulation is not None
        return self._simulation

    # -- a run ------------------------------------------------------------------------------------

    def start(self, executors: Mapping[str, int]) -> None:
        """See `Realization.start`."""
        if self._simulation is not None:
            self._held.clear()
            self._failed.clear()
            self._runs.executors.alive = _machines(executors)
            self._runs.restart()
            return
        components = [
            SimulatedComponent(name=name, key_groups=NUM_KEY_GROUPS) for name in ("order", "totals")
        ]
        if self._deep:
            feeds = (UpstreamFeed(upstream="order"),)
            components.append(
                SimulatedComponent(name="shards", key_groups=NUM_KEY_GROUPS, feeds=feeds)
            )
        simulation = Simulation(
            Scenario(
                cluster=SimulatedCluster(
                    machines=tuple(_machines(executors).values()), names=tuple(executors)
                ),
                components=tuple(components),
                rate=Rate(rows_per_s=0),
                keys=Keys(number=2_000, zipf=0),
                duration_s=1e9,
                policy=self._policy,
                held=False,
            ),
            source=self._source,
        )
        self._simulation = simulation
        commit = simulation.flow.commit

        def carrying(work: EpochWork) -> Any:
            self._carried.commit(work)
            return commit(work)

        for name, replaced in (("commit", carrying), ("deal", self._carried.deal)):
            setattr(simulation.flow, name, replaced)
        for name in ("warm", "drop"):
            setattr(simulation, name, self._order)

    def executor(self, name: str) -> str:
        """See `Realization.executor`."""
        return name

    def stop(self) -> None:
        """See `Realization.stop`."""

    # -- background -------------------------------------------------------------------------------

    def _order(self, order: Any) -> None:
        if self._goes == "held":
            self._held.append(order)
        elif self._goes == "works" or not hasattr(order, "attempt"):
            self._runs._warming.queue_order(order)
        elif self._goes == "fails":
            self._failed.append(order)

    def warming(self, goes: Warming) -> None:
        """See `Realization.warming`."""
        self._goes = goes.goes
        if goes.goes != "held":
            held, self._held = self._held, []
            for order in held:
                self._order(order)

    def forget_store(self, executor: str) -> None:
        """See `Realization.forget_store`."""
        for held in self._runs.flow.holdings.values():
            held.copies.pop(executor)

    # -- epochs -----------------------------------------------------------------------------------

    def epoch(
        self,
        rows: Sequence[tuple[int, int]],
        misfortune: Misfortune | None = None,
        loses: str | None = None,
    ) -> None:
        """See `Realization.epoch`."""
        self._catch_up()
        self._source.put(rows)
        self._put += 1
        befell: list[str] = []

        def at_step(step: str, _epoch: int) -> None:
            if step == "staged" and loses in self._runs.executors.alive:
                self._see({e: m.cores for e, m in self._there.items() if e != loses})
            if step == ("staged" if misfortune == "aborted" else misfortune) and not befell:
                befell.append(step)
                raise _DiedError

        setattr(self._runs.loop, "at_step", at_step)  # noqa: B010  a method of the class
        try:
            with suppress(_DiedError):
                self._catch_up()
            if misfortune == "aborted":
                self._catch_up()
        finally:
            del self._runs.loop.at_step

    @property
    def _there(self) -> Mapping[str, Machine]:
        return self._runs.executors.alive

    def _catch_up(self) -> None:
        for _ in range(_PATIENCE):
            if self._runs._batches >= self._put:
                return
            self._step()
        raise AssertionError(f"the epoch is not committed: {self.view}")

    def _step(self) -> None:
        failed, self._failed = self._failed, []
        for order in failed:
            self._runs.coordinator.warming_failed(order, "no room")
        self._runs.step()

    def quiet(self) -> None:
        """See `Realization.quiet`."""
        self._catch_up()
        for _ in range(5):
            self._step()

    def settle(self) -> None:
        """See `Realization.settle`."""
        self._catch_up()
        for _ in range(_PATIENCE):
            self._step()
            going = any(c.migration or c.transfers for c in self.view.components.values())
            if not (self.view.due or self.view.awaits or self.view.waiting or going):
                return
        raise AssertionError(f"It does not settle: {self.view}")

    # -- what is asked ----------------------------------------------------------------------------

    def see(self, executors: Mapping[str, int]) -> None:
        """See `Realization.see`."""
        self._held = [order for order in self._held if order.executor in executors]
        self._see(executors)

    def _see(self, executors: Mapping[str, int]) -> None:
        self._runs.executors.alive = _machines(executors)
        self._runs._report_executors()

    def migrate(
        self, component: str, target: Assignment, strategy: Strategy, bounds: Bounds
    ) -> str:
        """See `Realization.migrate`."""
        self._migrations += 1
        name = f"m{self._migrations}"
        self._runs.coordinator.migrate(
            MigrationRequested(
                id=name, component=component, target=target, strategy=strategy, bounds=bounds
            )
        )
        return name

    def change_lanes(
        self, component: str, lanes: Mapping[str, int], lane_of: Mapping[int, int]
    ) -> None:
        """See `Realization.change_lanes`."""
        request = LanesRequested(component=component, lanes=lanes, lane_of=lane_of)
        self._runs.coordinator.change_lanes(request)

    def component_of(self, operator: str) -> str:
        """See `Realization.component_of`: there are only components."""
        return operator

    def regroup(self, components: Mapping[str, tuple[str, ...]]) -> None:
        """See `Realization.regroup`."""
        raise NotImplementedError

    def drain(self, executor: str) -> None:
        """See `Realization.drain`."""
        self._runs.coordinator.drain(executor)

    def cancel(self, migration: str) -> None:
        """See `Realization.cancel`."""
        with suppress(MigrationError):
            self._runs.coordinator.cancel(migration, "second thoughts")

    def ended(self, migration: str) -> EndMigration | None:
        """See `Realization.ended`."""
        return self._runs.coordinator.ended(migration)

    @property
    def view(self) -> ProtocolView:
        """See `Realization.view`."""
        return self._runs.coordinator.view

    @property
    def events(self) -> Sequence[Event]:
        """See `Realization.events`."""
        return self._runs.history.events

    @property
    def rows_out(self) -> Mapping[str, Mapping[int, Sequence[tuple[int, ...]]]]:
        """See `Realization.rows_out`."""
        return self._carried.out


def _machines(executors: Mapping[str, int]) -> dict[str, Machine]:
    return {name: Machine(cores=lanes) for name, lanes in executors.items()}


def _by_key_group(rows: Iterable[Row]) -> Rows:
    dealt: Rows = defaultdict(list)
    for row in rows:
        dealt[key_group_of(row[0])].append(row)
    return dict(dealt)


def _by_shard(done: Rows) -> Rows:
    return _by_key_group((key % SHARDS, number) for g in sorted(done) for key, number in done[g])


def _counts(rows: Rows) -> np.ndarray:
    counts = np.zeros(NUM_KEY_GROUPS, np.int64)
    for g, some in rows.items():
        counts[g] = len(some)
    return counts
