"""The other mechanism: stop the query, place key groups by their number, and start again.

So do Flink, Heron and Spark rescale.  The same controller decides, with the same rule; as soon as
it has decided, the stream stops after the running epoch, until executors that were asked for have
come, tasks have started, and all state is read again from files.  Key groups are then in ranges of
equal number, as Flink has them, however uneven their loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.model import events
from godwit.model.assignment import Assignment
from godwit_lab.arena.queries import KEY_GROUPS
from godwit_lab.simulator.run import Simulation

if TYPE_CHECKING:
    from collections.abc import Collection

    from godwit.placement import Problem
    from godwit.placement.arrays import IntArray
    from godwit_lab.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Cost of a restart."""

    # without state: to cancel tasks, and to schedule and begin them again
    fixed_s: float = 10.0
    bytes_per_s: float = 100e6  # of the store of files that state is read from


def _in_order(executors: Collection[str]) -> list[str]:
    """Return names of executors in the order in which they came."""
    return sorted(executors, key=lambda name: (len(name), name))


def _ranges(count: int, executors: int) -> IntArray:
    """Return the executor of each of `count` key groups: ranges of equal number."""
    placed: IntArray = (np.arange(count) % KEY_GROUPS * executors // KEY_GROUPS).astype(np.int32)
    return placed


def plan_by_number(problem: Problem) -> IntArray:
    """Return each key group's executor by its number; a planner for `gw.Control`."""
    index = {name: i for i, name in enumerate(problem.executors)}
    names = _in_order([problem.executors[e] for e in problem.available.tolist()])
    places = np.array([index[name] for name in names], np.int32)
    chosen: IntArray = places[_ranges(problem.num_key_groups, len(names))]
    return chosen


def place_by_number(executors: Collection[str]) -> Assignment:
    """Return the assignment of a component to executors of a core each, after a restart."""
    names = _in_order(executors)
    return Assignment(
        version=0,
        executors=tuple(names),
        lanes=(1,) * len(names),
        executor_of=_ranges(KEY_GROUPS, len(names)),
        lane_of=np.zeros(KEY_GROUPS, np.int32),
    )


class RestartingSimulation(Simulation):
    """A simulated run in which every decision on the number of executors stops the stream."""

    def __init__(self, scenario: Scenario, *, restart: Restart | None = None, **more: Any) -> None:
        self._restart = restart or Restart()
        self._seen, self._draw = 0, np.random.default_rng([more.get("seed", 0), 3])
        self.read_bytes = 0.0  # state that restarts read
        super().__init__(scenario, **more)

    def step(self) -> None:
        """Run the next epoch; then stop and restart, if the controller has decided to scale."""
        super().step()
        new = self.history.events[self._seen :]
        self._seen = len(self.history.events)
        decided = [e for e in new if isinstance(e, events.ScaledOut | events.ScaledIn)]
        if decided:
            self._stop_and_restart(decided[-1].wanted)

    def _stop_and_restart(self, count: int) -> None:
        """Stop for as long as a restart takes, and start on `count` executors."""
        state_bytes = sum(float(h.state_bytes.sum()) for h in self.flow.holdings.values())
        more = count - len(self.executors.alive)
        starts_s = self._draw.uniform(*self.scenario.cluster.pool.start_s, max(more, 0))
        self.executors.replace_all(count)
        self._now_s += (
            max([0.0, *starts_s.tolist()])
            + self._restart.fixed_s
            + state_bytes / self._restart.bytes_per_s
        )
        self.executors.advance(self._now_s)
        self.read_bytes += state_bytes
        placed = place_by_number(self.executors.alive)
        self._durable = dict.fromkeys(self._durable, placed)
        self._offered, self._next_trigger_s = None, self._now_s
        self.restart()
