"""Scenarios by name."""

from __future__ import annotations

import pytest

from godwit.control.settings import Control
from godwit.model import events
from godwit.model.errors import InvalidProblemError
from godwit_lab.simulator import Simulation, controlled_by
from godwit_lab.simulator.scenario import SCENARIOS, Size, scenario

SIZE = Size(executors=3, key_groups=64, keys=1000, duration_s=15)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_runs_and_loses_nothing(name: str) -> None:
    simulation = Simulation(scenario(name, SIZE), seed=1)
    history = simulation.run(settle_s=120)
    assert history.epochs[-1].lag_rows == 0
    for buffer in simulation.flow.buffers.values():
        assert (buffer.arrived == buffer.processed).all()


def test_a_scenario_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="skew, surge"):
        scenario("nothing", SIZE)


def test_a_controller_goes_on_after_the_driver_was_restarted() -> None:
    size = Size(executors=3, key_groups=64, keys=1000, zipf=0.8, duration_s=60)
    settings = Control(planner="elb", period="5 seconds")
    simulation = Simulation(scenario("straggler", size), seed=1, control=controlled_by(settings))
    simulation.run(12.0)
    simulation.restart()
    history = simulation.run(settle_s=60)
    assert history.epochs[-1].lag_rows == 0
    assert [e for e in history.of_kind(events.RebalancingStarted) if e.at_s > 12]
    for buffer in simulation.flow.buffers.values():
        assert (buffer.arrived == buffer.processed).all()
