"""Plays a history and judges it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lab.tests.histories.promises import Watched, broken, uneven

from godwit_lab.simulator import Simulation, controlled_by

if TYPE_CHECKING:
    from lab.tests.histories.drawing import Drawn

__all__ = ["Played", "play"]

_SETTLE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A history that has happened, and the promises that it broke."""

    drawn: Drawn
    simulation: Simulation
    faults: list[str]
    balance: bool
    """Whether it continued for long enough after everything that its balance could be judged."""


def play(drawn: Drawn) -> Played:
    """Let a history happen."""
    watching: list[Watched] = []

    def control(simulation: Simulation) -> Watched:
        controller = controlled_by(drawn.settings)(simulation)
        watching.append(Watched(drawn, simulation, controller))
        return watching[-1]

    simulation = Simulation(drawn.scenario, seed=drawn.seed, control=control)
    balance: list[str] | None = None
    try:
        simulation.run()
        balance = uneven(drawn, simulation)
        end_s = simulation.now_s() + _SETTLE_S
        while simulation.now_s() < end_s and _goes_on(simulation):
            simulation.step()
        faults = [*broken(drawn, simulation, watching[0]), *(balance or [])]
    except Exception:  # noqa: BLE001  nothing may stop the loop: that is a promise too
        faults = [traceback.format_exc()]
    return Played(drawn=drawn, simulation=simulation, faults=faults, balance=balance is not None)


def _goes_on(simulation: Simulation) -> bool:
    view, last = simulation.coordinator.view, simulation.history.epochs[-1]
    moving = any(c.migration for c in view.components.values())
    return bool(last.lag_rows or last.waiting_rows or moving or view.draining)
