"""A known sequence of numbers of executors, planned at once and followed by a running stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from tests.oracles.controlled import ControlledCluster, Part
from tests.support.controls import control_of

from godwit.control.scaling import scripted
from godwit.engine.policies import Topology
from godwit.model import events
from godwit.model.assignment import Assignment
from godwit.model.errors import InvalidControlError
from godwit.placement import Limits

if TYPE_CHECKING:
    from godwit.time.durations import Duration

PERIOD_S = 5.0
STEPS: dict[Duration | Literal[0], int] = {0: 2, "20 seconds": 3, "1 minute": 4}


def by_ranges(*sizes: int) -> Assignment:
    """Assign to executors e0, e1, … of one lane so many key groups each."""
    return Assignment(
        version=0,
        executors=tuple(f"e{at}" for at in range(len(sizes))),
        lanes=(1,) * len(sizes),
        executor_of=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        lane_of=np.zeros(sum(sizes), np.int32),
    )


def table_3(planner: str = "oms", steps: Any = None, **changed: Any) -> ControlledCluster:
    """Return the paper's example: 20 equal key groups, τ = 0.4, 13 and 7 on two executors."""
    settings = control_of(
        planner=planner,
        period=f"{PERIOD_S} seconds",
        limits=Limits(tau=0.4),
        scaling=None if steps == {} else scripted(steps or STEPS),
        **changed.pop("settings", {}),
    )
    values: dict[str, Any] = {"assignments": {"sum": by_ranges(13, 7)}} | changed
    world = ControlledCluster(
        {"sum": Part(rows=np.full(20, 50.0))}, {"e0": 1, "e1": 1}, settings=settings, **values
    )
    world.pool.lanes = 1
    return world


def cuts(world: ControlledCluster) -> list[int]:
    """First key group of every range but the first; fails where there are no ranges."""
    assignment = world.coordinator.view.components["sum"].assignment
    changes = np.flatnonzero(np.diff(assignment.executor_of)) + 1
    owners = assignment.executor_of[[0, *changes]]
    assert len(np.unique(owners)) == len(owners)
    return [int(at) for at in changes]


def moves(world: ControlledCluster) -> list[int]:
    return [event.moves for event in world.told(events.RebalancingStarted)]


def test_a_sequence_planned_at_once_moves_six_key_groups_where_single_steps_move_eight() -> None:
    planned, single = table_3().run(80), table_3("ssm").run(80)
    assert len(planned.executors) == len(single.executors) == 4
    assert sum(moves(single)) == 8
    assert sum(moves(planned)) == 6  # the paper's better sequence moves nine


def test_each_step_takes_the_ranges_that_were_planned_for_it() -> None:
    world = table_3().run(10)
    (plan,) = world.told(events.MigrationsPlanned)
    assert plan.executors == (2, 3, 4)
    assert plan.reason == "it is the first plan"
    for step in plan.cuts:
        assert cuts(world) == list(step)
        world.run(40)
    assert world.told(events.MigrationsPlanned) == [plan]
    state_bytes = world.parts["sum"].state_bytes
    assert [0, *(state_bytes * n for n in moves(world))] == list(plan.moved_bytes)


def test_executors_leave_by_the_plan_too() -> None:
    world = table_3(steps={0: 2, "10 seconds": 4, "40 seconds": 3, "70 seconds": 2}).run(110)
    (plan,) = world.told(events.MigrationsPlanned)
    assert plan.executors == (2, 4, 3, 2)
    assert len(world.executors) == 2
    assert cuts(world) == list(plan.cuts[3])


def test_a_step_is_made_once_all_have_come_that_it_is_planned_for() -> None:
    world = table_3(steps={0: 2, "20 seconds": 4})
    world.run(21)
    first, second = world.pool.coming
    world.pool.coming = [first, second + 10]
    world.run(8)
    assert len(world.executors) == 3
    assert cuts(world) == [13]
    world.run(15)
    assert len(cuts(world)) == 3
    assert len(moves(world)) == 1


def test_an_executor_that_is_lost_has_the_rest_planned_anew() -> None:
    world = table_3().run(50)
    world.pool.never = True  # nobody comes in its place
    world.kill("e1")
    world.run(9)
    world.pool.never = False
    world.run(60)
    first, *later = world.told(events.MigrationsPlanned)
    assert first.executors == (2, 3, 4)
    assert later[0].reason == "ranges were laid out again"
    assert len(world.executors) == 4
    assert len(cuts(world)) == 3
    assert not world.told(events.PlannerFailed)


def test_a_load_that_leaves_tau_has_the_rest_planned_anew() -> None:
    world = table_3().run(50)
    world.parts["sum"].rows[:4] *= 4
    world.run(60)
    second = world.told(events.MigrationsPlanned)[1]
    assert second.executors == (3, 4)
    assert "would have more load than tau allows" in second.reason
    assert max(world.load_index("sum").values()) <= 1.4 * 32 * 0.05 / 4 + 1e-9


def test_what_no_ranges_keep_within_tau_is_not_planned_anew_in_every_period() -> None:
    world = table_3()
    world.parts["sum"].rows[10] *= 12  # alone more than 1.4 times a third of all
    world.run(55)
    assert len(world.told(events.MigrationsPlanned)) == 2  # one for each number of executors
    assert len(moves(world)) == 2
    assert len(cuts(world)) == 2


def test_numbers_to_come_may_be_given_without_their_times() -> None:
    world = table_3(steps={}, settings={"options": {"targets": (3, 4)}}, pool=False)
    for name in ("e2", "e3"):
        world.run(15)
        world.executors[name] = 1
        world.see()
    world.run(15)
    (plan,) = world.told(events.MigrationsPlanned)
    assert plan.executors == (2, 3, 4)
    assert sum(moves(world)) == 6
    assert cuts(world) == list(plan.cuts[2])


@pytest.mark.parametrize("planner", ["ssm", "oms", "mtm"])
def test_a_stream_that_has_no_ranges_gets_them_first(planner: str) -> None:
    world = table_3(planner, assignments={}).run(50)
    assert not world.told(events.PlannerFailed)
    assert len(world.executors) == 3
    assert len(cuts(world)) == 2
    assert max(world.load_index("sum").values()) <= 1.4 * 20 * 0.05 / 3 + 1e-9


@pytest.mark.parametrize("planner", ["ssm", "oms"])
def test_ranges_that_a_loss_has_broken_are_laid_out_anew(planner: str) -> None:
    world = table_3(planner, steps={0: 3}).run(30)
    world.kill("e0")
    world.run(30)
    assert len(world.executors) == 3
    assert len(cuts(world)) == 2
    assert not world.told(events.PlannerFailed)


def test_components_of_a_stage_are_lines_of_their_own() -> None:
    settings = control_of(
        planner="oms",
        period=f"{PERIOD_S} seconds",
        limits=Limits(tau=0.4),
        scaling=scripted({0: 2, "20 seconds": 3}),
    )
    parts = {name: Part(rows=np.full(20, 25.0)) for name in ("one", "two")}
    world = ControlledCluster(parts, {"e0": 1, "e1": 1}, stages=[["one", "two"]], settings=settings)
    world.pool.lanes = 1
    world.run(50)
    assert not world.told(events.PlannerFailed)
    for name in parts:
        owners = world.coordinator.view.components[name].assignment.executor_of
        assert np.count_nonzero(np.diff(owners)) == 2


def test_a_script_goes_on_when_components_are_made_anew() -> None:
    world = table_3(steps={0: 2, "30 seconds": 3})
    world.run(20)
    assert world.control is not None
    world.control.regroup(Topology(stages=(("sum",),)))
    world.run(20)
    assert len(world.executors) == 3


def test_numbers_that_are_over_do_not_come_again_when_components_are_made_anew() -> None:
    world = table_3(steps={}, settings={"options": {"targets": (3, 4, 2)}}, pool=False)
    for name in ("e2", "e3"):
        world.run(15)
        world.executors[name] = 1
        world.see()
    world.run(15)
    assert world.control is not None
    world.control.regroup(Topology(stages=(("sum",),)))
    world.parts["sum"].rows[:4] *= 4
    world.run(30)
    assert [plan.executors for plan in world.told(events.MigrationsPlanned)] == [
        (2, 3, 4, 2),
        (4, 2),
    ]


def test_taus_of_single_steps_are_refused_for_a_stream() -> None:
    with pytest.raises(InvalidControlError, match="option taus"):
        control_of(planner="oms", options={"targets": (3, 4), "taus": (0.4, 0.4)})
