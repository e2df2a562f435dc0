"""Policies that paper 5 compares, in the simulator, and its resource-centric system.

Key groups move between two epochs here, and copies of their state go ahead.  A stream without
epochs has to stop the senders of a key group, empty the network of its rows, and tell all senders
the new place, for one key group after the other (paper 5 §2.2); no executor processes rows
meanwhile. How long that takes is the paper's number: within an executor it is 2 ms, and here 2 to 3
orders of magnitude more (figure 12).  `SYNCHRONISED` is that system; Godwit's own is
"resource-centric".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from godwit.control.settings import Budget, Control, Search
from godwit.migration import CopiesFrom, Policy, Strategy
from godwit.migration.coordinator import Coordinator
from godwit.migration.strategy import UNBOUNDED
from godwit_lab.simulator import Simulation, controlled_by

if TYPE_CHECKING:
    from godwit.control.loop import Controller
    from godwit.migration.messages import MigrationRequested
    from godwit_lab.cli.reproduce.figure import FigureRun
    from godwit_lab.simulator import History, Scenario

SYNCHRONISED = "resource-centric, synchronised"
POLICIES: dict[str, str] = {
    "static": "static",
    "resource-centric": "resource_centric",
    "naive executor-centric": "naive_executor_centric",
    "executor-centric": "executor_centric",
    SYNCHRONISED: "resource_centric",
}
SYNCHRONISATION_S = 0.002 * 10**2.5
REASON = (
    "The paper's resource-centric system is the synchronised one. Godwit's own moves key groups "
    "between two epochs, after their state, and so does as well as the executor-centric policy."
)


class _Synchronised(Simulation):
    """Key groups change places one after another, and no rows are processed meanwhile."""

    def __init__(self, scenario: Scenario, settings: Control, seed: int) -> None:
        make = controlled_by(settings)

        def control(simulation: Simulation) -> Controller:
            simulation.coordinator.migrate = self.migrate  # type: ignore[method-assign]
            return make(simulation)

        stopped = replace(scenario, policy=Policy(copies_from=CopiesFrom.CHECKPOINT))
        super().__init__(stopped, seed=seed, control=control)

    def migrate(self, request: MigrationRequested) -> None:
        """Begin a migration."""
        components = self.coordinator.view.components
        moves = components[request.component].assignment.moves_to(request.target)
        before = sum(len(component.transfers) for component in components.values())
        self._warming.fixed_s = (before + len(moves)) * SYNCHRONISATION_S
        stopped = replace(request, strategy=Strategy.STOP_THE_WORLD, bounds=UNBOUNDED)
        Coordinator.migrate(self.coordinator, stopped)


def play(scenario: Scenario, policy: str, run: FigureRun, *, period_s: float) -> History:
    """Run a scenario under a policy; switched off, the executor-centric ones are the static one."""
    elasticity = POLICIES[policy]
    if run.off and elasticity.endswith("executor_centric"):
        elasticity = "static"
    settings = Control(
        planner="milp",
        elasticity=elasticity,
        period=f"{period_s} seconds",
        search=Search(options={"node_limit": 1, "rounds": 1}),
        budget=Budget(max_bytes=None),
    )
    if policy == SYNCHRONISED:
        return _Synchronised(scenario, settings, run.seed).run()
    return Simulation(scenario, seed=run.seed, control=controlled_by(settings)).run()
