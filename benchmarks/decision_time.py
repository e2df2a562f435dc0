"""Time of one decision of the loop: 256 executors, 10 operators, 8192 key groups in all.

CPU time of the controller's turns and of what it notes of every epoch, with the default planner,
while keys are shuffled. Nothing else is counted: the simulator's own time is not the loop's.

``python -m benchmarks.decision_time [--executors 256] [--operators 10] [--key-groups 8192]
[--zipf 0.5]``
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import numpy as np

from godwit.adapt import Control
from godwit.adapt.planner_thread import PlannerThread
from godwit.cluster.simulated import (
    Keys,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    UpstreamFeed,
)
from godwit.cluster.simulated.run import controlled_by
from godwit.planning.preview import table

if TYPE_CHECKING:
    from godwit.adapt import Controller, EpochObserved
    from godwit.model.latency import LatencyHistogram


class Timed:
    """A controller whose time is taken."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.turns_s: list[float] = []
        self.observing_s: list[float] = []

    def begun(self, rows: int, backlog_rows: int | None) -> None:
        """See `godwit.adapt.interfaces.Driven`."""
        self._controller.begun(rows, backlog_rows)

    def observe(self, epoch: EpochObserved) -> None:
        """See `godwit.adapt.interfaces.Driven`."""
        began = time.process_time()
        self._controller.observe(epoch)
        self.observing_s.append(time.process_time() - began)

    def delivered(self, latency: LatencyHistogram) -> None:
        """See `godwit.adapt.interfaces.Driven`."""
        self._controller.delivered(latency)

    def step(self) -> None:
        """See `godwit.adapt.interfaces.Driven`."""
        began = time.process_time()
        self._controller.step()
        self.turns_s.append(time.process_time() - began)


def chain(operators: int, key_groups: int) -> tuple[SimulatedComponent, ...]:
    return tuple(
        SimulatedComponent(
            name=f"operator{at}",
            key_groups=key_groups // operators,
            row_ms=1.0,
            feeds=(UpstreamFeed(upstream=f"operator{at - 1}", paired=0.5),) if at else (),
        )
        for at in range(operators)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--executors", type=int, default=256)
    parser.add_argument("--operators", type=int, default=10)
    parser.add_argument("--key-groups", type=int, default=8192)
    parser.add_argument("--planner", default="milp")
    parser.add_argument("--zipf", type=float, default=0.5)
    given = parser.parse_args()
    scenario = Scenario(
        cluster=SimulatedCluster(machines=(Machine(),) * given.executors),
        components=chain(given.operators, given.key_groups),
        rate=Rate(rows_per_s=500 * given.executors / given.operators, noise=0.1),
        keys=Keys(number=50_000, zipf=given.zipf, shifts_s=(12.0, 24.0)),
        duration_s=36.0,
    )
    made: list[Timed] = []

    def timed(simulation: Simulation) -> Timed:
        settings = Control(planner=given.planner, period=5.0)
        made.append(Timed(controlled_by(settings, run_planner=PlannerThread())(simulation)))
        return made[-1]

    history = Simulation(scenario, seed=given.seed, control=timed).run()
    turns, observing = np.array(made[0].turns_s), np.array(made[0].observing_s)
    deciding = np.sort(turns)[::-1][:7]  # once a period
    rows = [
        ("a decision, the longest", f"{1000 * deciding[0]:.0f}"),
        ("a decision, the median of seven", f"{1000 * float(np.median(deciding)):.0f}"),
        ("a turn between decisions, median", f"{1000 * float(np.median(turns)):.2f}"),
        ("an epoch observed, median", f"{1000 * float(np.median(observing)):.2f}"),
    ]
    print(table(("milliseconds of CPU", ""), rows))
    moves, epochs = int(history.column("moves").sum()), len(history.epochs)
    print(f"{epochs} epochs, {moves} key groups moved")


if __name__ == "__main__":
    main()
