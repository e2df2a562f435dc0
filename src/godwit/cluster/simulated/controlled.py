"""The real controller for a simulated run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from godwit.adapt import Control, Controller

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.adapt import PlannerRunner
    from godwit.cluster.simulated.run import Simulation

__all__ = ["controlled_by"]


def controlled_by(
    settings: Control, *, run_planner: PlannerRunner | None = None
) -> Callable[[Simulation], Controller]:
    """Return what makes the controller of a `Simulation`, for its `control`.

    One that is made after the driver was restarted goes on from the events of the runs before.

    Parameters
    ----------
    settings
        What the controller is to do.
    run_planner
        Runs planners within `Control.planning_limit`, in real time. None: they take no time at all,
        and there is no limit: the history is the same on a machine that has other things to do.
    """
    if run_planner is None:
        settings = replace(settings, planning_limit=None)

    def made(simulation: Simulation) -> Controller:
        return Controller(
            settings,
            topology=simulation.topology,
            migrations=simulation.conductor,
            pool=simulation.executors,
            clock=simulation,
            run_planner=run_planner,
            state_bytes={
                name: dict(enumerate(held.state_bytes.astype(int).tolist()))
                for name, held in simulation.flow.holdings.items()
            },
            past=simulation.history.events,
        )

    return made
