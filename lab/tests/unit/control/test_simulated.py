"""The controller over the simulated cluster: it loses, doubles and overtakes no row."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.controls import control_of

from godwit.control.planners.allocation import milp as milp_planner
from godwit.control.scaling import utilisation
from godwit.migration import Bounds
from godwit.model import events
from godwit_lab.planners.baselines import plan_flux
from godwit_lab.simulator import (
    CostModel,
    Death,
    Keys,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    Slowdown,
    controlled_by,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.control.loop import Controller
    from godwit.placement import Problem, Solution

COSTS = CostModel(
    fixed_ms=100, source_row_ms=0.0, row_ms=0.0, key_ms=0.0, key_group_ms=0.0, warm_fixed_ms=50
)


def controlled(**settings: Any) -> Callable[[Simulation], Controller]:
    """Make a controller for a simulation."""

    given: dict[str, Any] = {"period": "4 seconds", "planner": "flux"} | settings
    return controlled_by(control_of(**given))


def scenario(**changed: Any) -> Scenario:
    values: dict[str, Any] = {
        "cluster": SimulatedCluster(machines=(Machine(cores=2),) * 4),
        "components": (SimulatedComponent(name="sums", key_groups=64, row_ms=1.0, key_bytes=1000),),
        "rate": Rate(rows_per_s=4000),
        "keys": Keys(number=1000, zipf=0.9),
        "duration_s": 40,
        "costs": COSTS,
    }
    return Scenario(**(values | changed))


def check_rows(simulation: Simulation) -> None:
    """Every row was processed once, in its order."""
    buffers = simulation.flow.buffers["sums"]
    assert np.array_equal(buffers.arrived, buffers.processed)


def told(simulation: Simulation, *kinds: type[events.Event]) -> list[Any]:
    return [event for event in simulation.history.events if isinstance(event, kinds)]


def test_a_plan_that_has_emptied_executors_is_not_abandoned_when_they_are_given_back() -> None:
    cluster = SimulatedCluster(machines=(Machine(),) * 6)
    given = scenario(rate=Rate(rows_per_s=375), cluster=cluster)
    control = controlled(scaling=utilisation(), bounds=Bounds(max_moves=2))
    simulation = Simulation(given, seed=1, control=control)
    simulation.run()
    assert told(simulation, events.ExecutorsReturned)
    assert not told(simulation, events.PlanAbandoned)


def test_where_no_executor_is_left_another_is_asked_for_and_no_row_is_lost() -> None:
    cluster = SimulatedCluster(
        machines=(Machine(cores=2),), deaths=(Death(executor="0", at_s=9.0),)
    )
    given = scenario(cluster=cluster, rate=Rate(rows_per_s=500))
    simulation = Simulation(given, seed=2, control=controlled(scaling=utilisation()))
    simulation.run(settle_s=10)
    (asked, *_) = told(simulation, events.ScaledOut)
    assert (asked.before, asked.wanted, asked.reason) == (0, 1, "no executors are left")
    check_rows(simulation)


@pytest.mark.parametrize("elasticity", ["resource_centric", "executor_centric"])
def test_an_executor_that_dies_with_key_groups_of_others_on_it_loses_no_row(
    elasticity: str,
) -> None:
    cluster = SimulatedCluster(
        machines=(Machine(cores=2),) * 4, deaths=(Death(executor="2", at_s=17.0),)
    )
    simulation = Simulation(
        scenario(cluster=cluster), seed=2, control=controlled(elasticity=elasticity)
    )
    simulation.run(settle_s=10)
    assert told(simulation, events.RebalancingStarted)
    assert told(simulation, events.ExecutorLost)
    check_rows(simulation)


def test_a_straggler_is_relieved_and_the_stream_keeps_up() -> None:
    cluster = SimulatedCluster(
        machines=(Machine(cores=2),) * 4,
        slowdowns=(Slowdown(executor="1", start_s=8.0, factor=3.0),),
    )
    plain = Simulation(scenario(cluster=cluster), seed=3)
    left = plain.run(settle_s=10)
    simulation = Simulation(scenario(cluster=cluster), seed=3, control=controlled())
    helped = simulation.run(settle_s=10)
    check_rows(simulation)
    late = slice(-8, None)
    assert np.mean([e.took_s for e in helped.epochs][late]) < 0.7 * np.mean(
        [e.took_s for e in left.epochs][late]
    )
    assert told(simulation, events.LoadMeasured)[-1].speeds


def test_a_surge_brings_executors_and_every_row_is_processed_once() -> None:
    cluster = SimulatedCluster(machines=(Machine(cores=2),) * 2, added=Machine(cores=2))
    simulation = Simulation(
        scenario(cluster=cluster, rate=Rate(rows_per_s=6000)),
        seed=4,
        control=controlled(scaling=utilisation(0.7), max_executors=8),
    )
    simulation.run(settle_s=10)
    assert told(simulation, events.ScaledOut)
    assert told(simulation, events.ExecutorAdded)
    check_rows(simulation)


def test_equal_seeds_give_equal_decisions() -> None:
    def lines() -> list[str]:
        simulation = Simulation(scenario(duration_s=20), seed=5, control=controlled())
        simulation.run()
        return [event.describe() for event in simulation.history.events]

    assert lines() == lines()


def test_how_long_planners_take_for_real_changes_nothing_in_virtual_time() -> None:
    def slow(problem: Problem) -> Solution:
        time.sleep(0.02)
        return plan_flux(problem)

    def history(asked: Callable[[Problem], Solution]) -> list[str]:
        stream = scenario(duration_s=16)
        control = controlled(planner=asked, time_limit="0.001 seconds")
        told = Simulation(stream, control=control).run().events
        return [event.describe().replace(asked.__name__, "") for event in told]

    def quick(problem: Problem) -> Solution:
        return plan_flux(problem)

    assert history(slow) == history(quick)


def test_solvers_have_no_time_limit_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    solve = vars(milp_planner)["milp"]

    def milp(*args: Any, options: dict[str, Any], **rest: Any) -> Any:
        given.append(options["time_limit"])
        return solve(*args, options=options, **rest)

    monkeypatch.setattr(milp_planner, "milp", milp)
    control = controlled(planner="milp", options={"rounds": 40, "patience": 40, "gap": 0})
    Simulation(scenario(duration_s=8), control=control).run()
    assert set(given) == {float("inf")}


def test_a_shift_of_keys_is_planned_for_long_before_a_long_period_ends() -> None:
    given = scenario(
        keys=Keys(number=1000, zipf=0.9, shifts_s=(65.0,)), duration_s=80, trigger_s=1.0
    )
    simulation = Simulation(given, seed=3, control=controlled(period="60 seconds"))
    simulation.run()
    periods = told(simulation, events.LoadMeasured)
    assert [e for e in periods if e.at_s > 65.0] == []
    after = [e.at_s for e in told(simulation, events.RebalancingStarted) if e.at_s > 65.0]
    assert after
    assert min(after) < 65.0 + 5.0


def test_little_state_of_shifted_keys_is_at_its_new_places_in_the_next_epoch() -> None:
    shifted = scenario(keys=Keys(number=1000, zipf=0.9, shifts_s=(20.0,)))
    history = Simulation(shifted, seed=3, control=controlled()).run()
    started = [e for e in history.of_kind(events.RebalancingStarted) if e.at_s > 20.0]
    assert started
    first = next(epoch for epoch in history.epochs if epoch.ended_s > started[0].at_s)
    assert first.moves == started[0].moves
    (migration,) = started[0].migrations.values()
    strategies = {e.migration: e.strategy for e in history.of_kind(events.MigrationStarted)}
    assert strategies[migration] == "disruptive"
