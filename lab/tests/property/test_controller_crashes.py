"""A driver that dies at any call of its controller's: the next one continues from what was told."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from tests.support.controls import control_of
from tests.support.rounds import rounds

from godwit.control.loop import Controller
from godwit.control.scaling import utilisation
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
    Surge,
)

if TYPE_CHECKING:
    from collections.abc import Callable

COSTS = CostModel(fixed_ms=100, source_row_ms=0, row_ms=0, key_ms=0, key_group_ms=0)
COOL_DOWN_S = 9.0
RUN_S, SETTLED_S = 34.0, 60.0
ORDERS = frozenset({"migrate", "drain", "stay", "cancel", "announce", "add", "remove"})


class DriverDiedError(Exception):
    """The driver is gone, in the middle of a decision."""


class Mortal:
    """A port through which the driver dies, right after one order was given."""

    def __init__(self, port: Any, dying: Callable[[], bool]) -> None:
        self._port, self._dying = port, dying

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._port, name)
        if name not in ORDERS:
            return value

        def order(*args: Any, **values: Any) -> Any:
            made = value(*args, **values)
            if self._dying():
                raise DriverDiedError
            return made

        return order


def play(surge: Surge, dies_at: int) -> tuple[Simulation, int]:
    """Let the rate step, and the driver die at its controller's order of that number."""
    given = 0

    def dying() -> bool:
        nonlocal given
        given += 1
        return given == dies_at

    def control(simulation: Simulation) -> Controller:
        return Controller(
            control_of(
                planner="flux",
                period="3 seconds",
                cool_down=f"{COOL_DOWN_S} seconds",
                scaling=utilisation(0.7),
                time_limit=None,
            ),
            topology=simulation.topology,
            migrations=cast("Any", Mortal(simulation.coordinator, dying)),
            pool=Mortal(simulation.executors, dying),
            clock=simulation,
            past=simulation.history.events,
        )

    scenario = Scenario(
        cluster=SimulatedCluster(machines=(Machine(cores=2),) * 4, added=Machine(cores=2)),
        components=(SimulatedComponent(name="sums", key_groups=32, row_ms=1.0, key_bytes=1000),),
        rate=Rate(rows_per_s=4500, surges=(surge,)),
        keys=Keys(number=1000, zipf=0.5),
        duration_s=RUN_S,
        trigger_s=0.5,
        costs=COSTS,
    )
    simulation = Simulation(scenario, seed=3, control=control)
    while simulation.now_s() < RUN_S or (simulation.now_s() < SETTLED_S and moves(simulation)):
        try:
            simulation.step()
        except DriverDiedError:
            simulation.restart()
    return simulation, given


@pytest.mark.parametrize(
    "surge",
    [
        Surge(start_s=7.0, end_s=float("inf"), factor=1.8),
        pytest.param(
            Surge(start_s=7.0, end_s=float("inf"), factor=0.4), marks=pytest.mark.campaign
        ),
        pytest.param(Surge(start_s=7.0, end_s=14.0, factor=0.4), marks=pytest.mark.campaign),
    ],
    ids=["up", "down", "down and up again"],
)
def test_wherever_the_driver_dies_the_next_controller_goes_on(surge: Surge) -> None:
    undisturbed, orders = play(surge, 0)
    executors, most = len(undisturbed.executors.alive), len(decisions(undisturbed))
    assert most
    for dies_at in range(1, orders + 1, rounds(5, 1)):
        simulation, _ = play(surge, dies_at)
        where = f"the driver died after order {dies_at} of {orders}"
        buffers = simulation.flow.buffers["sums"]
        assert np.array_equal(buffers.arrived, buffers.processed), where
        assert not moves(simulation), where
        # The next one measures in other periods, so its rate and what a row costs differ a little.
        assert abs(len(simulation.executors.alive) - executors) <= 1, where
        told = decisions(simulation)
        assert len(told) <= most + 1, where
        for one, other in pairwise(told):
            taken_back = type(one) is not type(other)
            # Rates that have really changed since are answered at once.
            changed = any(one.at_s < at < other.at_s for at in (surge.start_s, surge.end_s))
            assert not taken_back or changed or other.at_s - one.at_s >= COOL_DOWN_S, where


def moves(simulation: Simulation) -> bool:
    """True if rows or key groups are on their way, or an executor leaves."""
    view, last = simulation.coordinator.view, simulation.history.epochs[-1]
    component = view.components["sums"]
    on_their_way = component.transfers or component.moves or component.suspended
    return bool(view.draining or on_their_way or last.lag_rows or last.waiting_rows)


def decisions(simulation: Simulation) -> list[events.Event]:
    return list(simulation.history.of_kind(events.ScaledOut, events.ScaledIn))
