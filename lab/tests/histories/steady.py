"""Steady streams, which nothing should move: drawn, played and counted.

``python -m lab.tests.histories --steady N [--seed S] [--minutes M]``: of N streams whose keys and
rates stay as they are, how many saw a key group move after the first minutes, and how many key
groups moved an hour, as a share of all. Noise is all that there is: few rows or many, rows of
unequal cost, keys of unequal frequency, machines that do other things besides.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.support.controls import control_of

from godwit.migration import Bounds
from godwit.model import events
from godwit_lab.simulator import (
    CostModel,
    Keys,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    controlled_by,
)
from godwit_lab.simulator.flow import SimulatedFlow

if TYPE_CHECKING:
    from godwit_lab.simulator.flow import ComponentWork

__all__ = ["FIRST_S", "Steady", "UnequalRows", "count_moves", "draw_steady", "moved", "play_steady"]

COSTS = CostModel(fixed_ms=100, source_row_ms=0.0, row_ms=0.0, key_ms=0.0, key_group_ms=0.0)
FIRST_S = 300.0
"""In which a load that is uneven at first may be evened out."""


class UnequalRows(SimulatedFlow):
    """A flow whose rows cost unequally, and whose executors are held up now and then.

    `spread` is the deviation of the logarithm of a row's cost, `busy` that of an executor's in an
    epoch.
    """

    def __init__(self, *args: Any, seed: int, **rest: Any) -> None:
        super().__init__(*args, seed=seed, **rest)
        self.spread, self.busy = 0.0, 0.0
        self._chance = np.random.default_rng([seed, 99])

    def _component_work(self, *args: Any, **rest: Any) -> ComponentWork:
        work = super()._component_work(*args, **rest)
        rows = np.maximum(work.processed, 1)
        # The mean of so many log-normal costs, by its first two moments.
        deviation = np.sqrt(np.expm1(self.spread**2) / rows)
        factor = np.maximum(0.05, 1 + deviation * self._chance.standard_normal(len(rows)))
        held_up = np.exp(self.busy * self._chance.standard_normal(len(work.plan.assignment.lanes)))
        work.cpu_ms[:] = work.cpu_ms * factor * held_up[work.plan.assignment.executor_of]
        return work


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A stream in which nothing changes."""

    seed: int
    scenario: Scenario
    planner: str
    spread: float  # of rows' costs
    busy: float  # of executors' speeds from epoch to epoch

    def describe(self) -> str:
        """One line."""
        component = self.scenario.components[0]
        return (
            f"seed {self.seed}: {self.scenario.rate.rows_per_s:.0f} rows/s of "
            f"{component.row_ms:.1f} ms, {component.key_groups} key groups, "
            f"{len(self.scenario.cluster.machines)} executors, zipf {self.scenario.keys.zipf:.2f}, "
            f"{self.planner}, costs ±{self.spread:.1f}, machines ±{self.busy:.2f}"
        )


def draw_steady(seed: int, minutes: float) -> Steady:
    """Draw a stream."""
    rng = np.random.default_rng([seed, 18])
    executors, cores = int(rng.integers(2, 9)), int(rng.choice([1, 2, 4]))
    rows_per_s = float(np.exp(rng.uniform(np.log(30), np.log(5000))))
    load = float(rng.uniform(0.2, 0.6))
    return Steady(
        seed=seed,
        scenario=Scenario(
            cluster=SimulatedCluster(machines=(Machine(cores=cores),) * executors),
            components=(
                SimulatedComponent(
                    name="work",
                    key_groups=int(rng.choice([64, 128, 256])),
                    row_ms=load * executors * cores * 1000 / rows_per_s,
                    key_bytes=10_000,
                ),
            ),
            rate=Rate(rows_per_s=rows_per_s, noise=float(rng.choice([0.0, 0.1, 0.3]))),
            keys=Keys(
                number=int(rng.choice([1_000, 10_000, 100_000])), zipf=float(rng.uniform(0, 0.8))
            ),
            duration_s=60.0 * minutes,
            trigger_s=float(rng.choice([1.0, 2.0, 3.0])),
            costs=COSTS,
        ),
        planner=str(rng.choice(["milp", "flux"])),
        spread=float(rng.choice([0.0, 0.5, 1.0])),
        busy=float(rng.choice([0.0, 0.0, 0.05, 0.15])),
    )


def play_steady(drawn: Steady, **settings: Any) -> Simulation:
    """Play a stream, under a controller with the default settings but its planner."""
    control = control_of(planner=drawn.planner, bounds=Bounds(max_moves=64), **settings)
    simulation = Simulation(drawn.scenario, seed=drawn.seed, control=controlled_by(control))
    plain = simulation.flow
    flow = UnequalRows(
        drawn.scenario.components,
        drawn.scenario.keys,
        drawn.scenario.costs,
        seed=drawn.seed,
        rng=np.random.default_rng([drawn.seed, 1]),
    )
    flow.spread, flow.busy, flow.holdings = drawn.spread, drawn.busy, plain.holdings
    simulation.flow = flow
    simulation.run()
    return simulation


def moved(simulation: Simulation, since_s: float) -> int:
    """Count the key groups that a controller moved after some time."""
    started = simulation.history.of_kind(events.RebalancingStarted)
    return sum(event.moves for event in started if event.at_s >= since_s)


def count_moves(minutes: float, seed: int) -> tuple[Steady, int, float]:
    """Play one stream; return key groups moved after the first minutes, and CPU time."""
    began_s = time.process_time()
    drawn = draw_steady(seed, minutes)
    return drawn, moved(play_steady(drawn), FIRST_S), time.process_time() - began_s
