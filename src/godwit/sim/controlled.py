"""The real controller for a simulated run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.control import Control, Controller

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.sim.run import Simulation

__all__ = ["controlled_by"]


def controlled_by(settings: Control) -> Callable[[Simulation], Controller]:
    """Return what makes the controller of a `Simulation`, for its `control`.

    One that is made after the driver was restarted goes on from the events of the runs before.
    """

    def made(simulation: Simulation) -> Controller:
        return Controller(
            settings,
            topology=simulation.topology,
            migrations=simulation.conductor,
            pool=simulation.executors,
            clock=simulation,
            state_bytes={
                name: dict(enumerate(held.state_bytes.astype(int).tolist()))
                for name, held in simulation.flow.holdings.items()
            },
            past=simulation.history.events,
        )

    return made
