"""A stream in virtual time for a controller to control: the real coordinator, and arithmetic.

Epochs follow each other as in Spark: each takes the rows that arrived since the one before began,
lasts as long as its busiest lanes (stage after stage) and a fixed part, and is committed.  Copies
are warmed at once.  Nothing is drawn at random but noise, by a seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.oracles.recording_ports import RecordingPorts

from godwit.control.loop import Controller
from godwit.engine.cluster import PoolView
from godwit.engine.policies import CommittedEpoch, Topology
from godwit.migration import Policy, messages
from godwit.migration.coordinator import Coordinator, Warmed
from godwit.migration.outcome import ComponentTraffic, EpochOutcome
from godwit.model.assignment import Assignment, even_assignment
from godwit.model.errors import GodwitError
from godwit.model.key_groups import KeyGroupLoad, KeyGroupPairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from godwit.control.interfaces import PlannerRunner
    from godwit.control.memory import ControllerMemory
    from godwit.control.settings import Control
    from godwit.migration.state import ComponentView
    from godwit.model import events

__all__ = ["ControlledCluster", "Part"]


@dataclass(kw_only=True)
class Part:
    """One component of the flow.

    Attributes
    ----------
    rows
        Shape ``(G,)``: rows a second that reach each key group.
    row_s
        Seconds that a row keeps a lane of a standard executor busy.
    state_bytes
        Of each key group.
    """

    rows: np.ndarray
    row_s: float = 1e-3
    state_bytes: int = 10_000


@dataclass(kw_only=True)
class Pool:
    """A pool whose executors come after a while, or never."""

    world: ControlledCluster
    delay_s: float = 2.0
    most: int | None = None
    lanes: int = 2
    never: bool = False
    fixed: str = ""
    refuses: str = ""
    coming: list[float] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)

    @property
    def view(self) -> PoolView:
        return PoolView(
            pending=0 if self.never else len(self.coming),
            most=self.most,
            fixed=self.fixed,
            refused=self.refuses,
        )

    def add(self, count: int) -> None:
        if self.refuses and not self.never:
            raise GodwitError(self.refuses)
        self.asked.append(count)
        if not self.never:
            self.coming += [self.world.now + self.delay_s] * count

    def remove(self, executors: Sequence[str]) -> None:
        for name in executors:
            self.returned.append(name)
            del self.world.executors[name]
        self.world.see()


class ControlledCluster:
    """See the module; `run` lets time pass."""

    def __init__(
        self,
        parts: Mapping[str, Part],
        executors: Mapping[str, int],
        *,
        stages: Sequence[Sequence[str]] | None = None,
        chains: Sequence[tuple[str, str]] = (),
        settings: Control | None = None,
        assignments: Mapping[str, Assignment] | None = None,
        speeds: Mapping[str, float] | None = None,
        fixed_s: float = 0.2,
        noise: float = 0.0,
        seed: int = 0,
        pool: bool = True,
        run_planner: PlannerRunner | None = None,
        threads: bool = False,
        past: Iterable[events.Event] = (),
        memory: ControllerMemory | None = None,
        start_s: float = 0.0,
    ) -> None:
        self.parts, self.executors = dict(parts), dict(executors)
        self.speeds, self.fixed_s, self.noise = dict(speeds or {}), fixed_s, noise
        self.stages = [list(s) for s in (stages or [[name] for name in parts])]
        self.chains = tuple(chains)
        self.rng = np.random.default_rng(seed)
        self.now, self.epoch, self.batch = start_s, -1, -1
        self._last_began = start_s
        self._names = len(executors)
        self.missing: Callable[[int], bool] = lambda _epoch: False
        self.warms = True
        self.row_bytes = 1000
        self.ports = RecordingPorts()
        names, lanes = list(executors), list(executors.values())
        sizes = {n: dict.fromkeys(range(len(p.rows)), p.state_bytes) for n, p in parts.items()}
        first = {n: even_assignment(len(p.rows), names, lanes) for n, p in parts.items()}
        self.coordinator = Coordinator(
            messages.RunStarted(
                run_id="r",
                executors=dict(executors),
                assignments=first | dict(assignments or {}),
                state_bytes=sizes,
            ),
            states={name: [(name, "state")] for name in parts},
            policy=Policy(),
            ports=self.ports,
        )
        self.pool = Pool(world=self)
        self.control: Controller | None = None
        if settings is not None:
            if run_planner is None and not threads:
                settings = replace(settings, search=replace(settings.search, time_limit=None))
            self.control = Controller(
                settings,
                topology=Topology(
                    stages=tuple(tuple(s) for s in self.stages), downstream=self.chains
                ),
                migrations=self.coordinator,
                pool=self.pool if pool else None,
                clock=self,
                run_planner=run_planner,
                state_bytes=sizes,
                past=past,
                memory=memory,
            )
        self.took: list[float] = []

    def now_s(self) -> float:
        return self.now

    # -- what happens -----------------------------------------------------------------------------

    def run(self, seconds: float) -> ControlledCluster:
        """Let time pass."""
        until = self.now + seconds
        while self.now < until:
            self._epoch()
        return self

    def kill(self, executor: str) -> None:
        del self.executors[executor]
        self.see()

    def see(self) -> None:
        self.coordinator.see(dict(self.executors))

    def _epoch(self) -> None:
        self.ports.clock_s = self.now
        self._join()
        self.epoch += 1
        component_views = self.coordinator.begin(self.epoch)
        assert component_views is not None
        since, self._last_began = self.now - self._last_began, self.now
        since = max(since, 0.05)
        took = self.fixed_s
        loads: dict[str, KeyGroupLoad] = {}
        held: dict[str, dict[str, dict[int, int]]] = {}
        rows_in = 0
        for stage in self.stages:
            busiest: dict[tuple[str, int], float] = {}
            for name in stage:
                part, assignment = self.parts[name], component_views[name].assignment
                rows = np.rint(part.rows * since * self._jitter(len(part.rows)))
                slow = np.array([1 / self.speeds.get(e, 1.0) for e in assignment.executors])
                busy = rows * part.row_s * slow[assignment.executor_of]
                busy *= self._jitter(len(part.rows))
                for g, seconds in enumerate(busy.tolist()):
                    place = (assignment.executor(g), int(assignment.lane_of[g]))
                    busiest[place] = busiest.get(place, 0.0) + seconds
                    held.setdefault(name, {}).setdefault(place[0], {})[g] = self.epoch
                loads[name] = _load(rows, busy, part.state_bytes)
                rows_in = max(rows_in, int(rows.sum()))
            took += max(busiest.values(), default=0.0)
        self.now += took
        self.took.append(took)
        self.batch += 1
        self.ports.clock_s = self.now
        lost = self.missing(self.epoch)
        outcome = EpochOutcome(
            epoch=self.epoch,
            batch=self.batch,
            rows_in=rows_in,
            loads={} if lost else loads,
            traffic={down: self._sent(up, component_views, loads) for up, down in self.chains},
            reach=held,
        )
        self.coordinator.commit(outcome)
        self._warm()
        if self.control is not None:
            self.control.observe(
                CommittedEpoch(
                    outcome=outcome,
                    component_views=component_views,
                    took_s=took,
                )
            )
            self.control.step()
            self._warm()

    def _sent(
        self,
        upstream: str,
        component_views: Mapping[str, ComponentView],
        loads: Mapping[str, KeyGroupLoad],
    ) -> ComponentTraffic:
        """Every key group sends its rows to the one of the same number downstream."""
        load = loads[upstream]
        (down,) = (down for up, down in self.chains if up == upstream)
        apart = [
            component_views[upstream].assignment.executor(g)
            != component_views[down].assignment.executor(g)
            for g in load.key_groups.tolist()
        ]
        return ComponentTraffic(
            key_groups=tuple(load.key_groups.tolist()),
            rows=tuple(load.rows.tolist()),
            size_bytes=tuple((load.rows * self.row_bytes).tolist()),
            crossed_bytes=int((load.rows * apart).sum()) * self.row_bytes,
            pairs={
                upstream: KeyGroupPairs.counted(
                    load.key_groups, load.key_groups, load.rows.astype(np.float64)
                )
            },
        )

    def _jitter(self, size: int) -> np.ndarray:
        return self.rng.uniform(1 - self.noise, 1 + self.noise, size)

    def _join(self) -> None:
        due = [t for t in self.pool.coming if t <= self.now]
        self.pool.coming = [t for t in self.pool.coming if t > self.now]
        for _ in due:
            self.executors[f"n{self._names}"] = self.pool.lanes
            self._names += 1
        if due:
            self.see()

    def _warm(self) -> None:
        while self.warms and self.ports.warmings:
            order = self.ports.warmings.pop(0)
            self.coordinator.warmed(
                order,
                Warmed(
                    tables={
                        (order.component, "state"): dict.fromkeys(order.key_groups, self.epoch)
                    },
                    reach=dict.fromkeys(order.key_groups, self.epoch),
                ),
            )

    # -- what can be seen -------------------------------------------------------------------------

    def load_index(self, name: str) -> dict[str, float]:
        """Executor → lanes' worth of work per lane and speed, without noise."""
        part, assignment = self.parts[name], self.coordinator.view.components[name].assignment
        work = np.bincount(
            assignment.executor_of, part.rows * part.row_s, len(assignment.executors)
        )
        index = {
            e: w / n / self.speeds.get(e, 1.0)
            for e, n, w in zip(assignment.executors, assignment.lanes, work.tolist(), strict=True)
        }
        return {e: index.get(e, 0.0) for e in self.executors}

    def distance(self, name: str) -> float:
        """Load distance as a share of the mean."""
        index = np.array(list(self.load_index(name).values()))
        weight = np.array([n * self.speeds.get(e, 1.0) for e, n in self.executors.items()])
        mean = float((index * weight).sum() / weight.sum())
        return float(np.abs(index - mean).max() / mean)

    def told(self, *kinds: type[events.Event]) -> list[Any]:
        """Events of some kinds."""
        return [event for event in self.ports.events if isinstance(event, kinds)]


def _load(rows: np.ndarray, busy: np.ndarray, state_bytes: int) -> KeyGroupLoad:
    touched = np.flatnonzero(rows)
    return KeyGroupLoad(
        key_groups=touched,
        rows=rows[touched].astype(np.int64),
        keys=np.ones(len(touched), np.int64),
        cpu_ms=busy[touched] * 1e3,
        state_bytes=np.full(len(touched), state_bytes),
        busy_ms=busy[touched] * 1e3,
    )
