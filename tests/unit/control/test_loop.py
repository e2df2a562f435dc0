"""The adaptation loop over the real coordinator, in virtual time."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.oracles.controlled import ControlledCluster, Part
from tests.support.controls import control_of

from godwit.control import Budget, Cadence, loop
from godwit.control.interfaces import MeasuredProblem
from godwit.control.memory import ControllerMemory
from godwit.control.planner_thread import PlannerThread, run_without_limit
from godwit.control.rebalancing import busy_lanes
from godwit.control.scaling import WantedExecutors, fixed, latency, scripted, utilisation
from godwit.engine.policies import Topology
from godwit.migration.coordinator import Warmed
from godwit.migration.messages import MigrationRequested
from godwit.migration.regrouping import Regrouping, RegroupingStage
from godwit.model import events
from godwit.placement import Problem
from godwit.placement.solution import make_solution

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.control.interfaces import T
    from godwit.control.settings import Control
    from godwit.placement import Solution

PERIOD_S = 5.0
FOUR = {"e0": 2, "e1": 2, "e2": 2, "e3": 2}


def skewed(factor: float = 2.0, key_groups: int = 64, rows: float = 30.0) -> np.ndarray:
    """Rows of key groups of which every fourth, all on the first of four executors, has more."""
    per_s = np.full(key_groups, rows)
    per_s[::4] *= factor
    return per_s


def control(**changed: object) -> Control:
    return control_of(**({"period": f"{PERIOD_S} seconds", "planner": "flux"} | changed))


def test_one_executor_with_twice_its_share_is_balanced_within_two_periods() -> None:
    world = ControlledCluster({"sum": Part(rows=skewed())}, FOUR, settings=control(planner="milp"))
    before = world.run(PERIOD_S - 1).distance("sum")
    world.run(PERIOD_S + 1)
    assert before > 0.5
    assert world.distance("sum") < 0.05 + 1e-9
    (started,) = world.told(events.RebalancingStarted)
    assert started.distance_before > started.distance_after
    assert started.gain_s > started.cost_s
    world.run(2 * PERIOD_S)
    (judged,) = world.told(events.RebalancingJudged)
    assert (judged.verdict, judged.expected) == ("helped", started.distance_after)
    assert judged.measured < 0.05 + 1e-9


def test_steady_input_with_noise_moves_nothing_any_more() -> None:
    world = ControlledCluster(
        {"sum": Part(rows=skewed())}, FOUR, settings=control(), noise=0.1, seed=3, fixed_s=0.1
    )
    world.run(4 * PERIOD_S)
    settled = len(world.told(events.RebalancingStarted, events.LanesBalanced))
    world.run(20 * PERIOD_S)
    assert len(world.told(events.RebalancingStarted, events.LanesBalanced)) == settled
    assert settled <= 3


def test_an_even_stream_is_left_alone_and_that_is_said_once() -> None:
    even = ControlledCluster({"sum": Part(rows=np.full(64, 30.0))}, FOUR, settings=control())
    even.run(5 * PERIOD_S)
    assert not even.told(events.RebalancingStarted, events.MigrationStarted)
    (skipped,) = even.told(events.DecisionSkipped)
    assert skipped.reason == "the load is balanced enough"


def test_a_slow_drift_is_evened_out_and_then_the_bound_is_what_was_asked_for() -> None:
    """It is wider by a quarter where nothing had to move for long, and no change parts a drift."""
    part = Part(rows=np.full(64, 300.0), row_s=1e-4)
    world = ControlledCluster({"sum": part}, FOUR, settings=control(), fixed_s=0.4)

    def drift(apart: float, periods: int) -> int:
        """Let the first executor's load differ from the mean by a share; return the migrations."""
        at = world.coordinator.view.components["sum"].assignment.executor_of
        factor = 3 * (1 + apart) / (3 - apart)
        each = np.where(at == 0, factor, 1.0) / np.bincount(at)[at]
        part.rows = 300.0 * len(at) * each / each.sum()
        before = len(world.told(events.RebalancingStarted))
        world.run(periods * PERIOD_S)
        return len(world.told(events.RebalancingStarted)) - before

    world.run(35 * PERIOD_S)
    assert not any(drift(percent / 100, 12) for percent in range(1, 12, 2))
    assert drift(0.14, 12) == 1
    assert world.distance("sum") < 0.05
    assert drift(0.0, 3) == 0
    assert drift(0.12, 3) == 1


def test_an_executor_with_too_little_to_do_is_uneven_too() -> None:
    """Nobody has much too much: each of the others is relieved by 4 % of the mean."""
    per_s = np.full(256, 750.0)
    per_s[3::4] *= 0.85
    world = ControlledCluster({"sum": Part(rows=per_s, row_s=1e-5)}, FOUR, settings=control())
    assert world.run(PERIOD_S - 1).distance("sum") > 0.11
    world.run(2 * PERIOD_S)
    assert world.distance("sum") < 0.1


def test_a_stream_with_little_to_do_is_left_alone() -> None:
    idle = ControlledCluster({"sum": Part(rows=skewed(), row_s=1e-6)}, FOUR, settings=control())
    idle.run(3 * PERIOD_S)
    assert not idle.told(events.MigrationStarted)
    assert {e.reason for e in idle.told(events.DecisionSkipped)} == {"the load is too low"}


def test_state_too_large_for_what_it_gains_stays() -> None:
    heavy = Part(rows=skewed(1.5), row_s=3e-4, state_bytes=10**9)
    world = ControlledCluster({"sum": heavy}, FOUR, settings=control(budget=Budget(max_bytes=None)))
    world.run(3 * PERIOD_S)
    assert not world.told(events.MigrationStarted)
    (skipped,) = world.told(events.DecisionSkipped)
    assert skipped.reason == "moving the state costs more than it gains"
    assert skipped.numbers["cost_s"] > skipped.numbers["gain_s"]


def test_the_budget_bounds_every_period_and_the_rest_follows() -> None:
    settings = control(budget=Budget(max_moves=3))
    world = ControlledCluster({"sum": Part(rows=skewed())}, FOUR, settings=settings).run(
        6 * PERIOD_S
    )
    started = world.told(events.RebalancingStarted)
    assert len(started) > 1
    assert max(e.moves for e in started) <= 3
    assert world.distance("sum") <= 0.1 + 1e-9


def test_stages_wait_for_each_other_so_each_is_balanced_by_itself() -> None:
    # The first stage is heavy on one executor, the second on the others: evened out in the sum.
    first, second = skewed(3.0), np.full(64, 30.0 + 20.0)
    second[::4] = 30.0
    world = ControlledCluster(
        {"a": Part(rows=first), "b": Part(rows=second)}, FOUR, settings=control()
    )
    world.run(3 * PERIOD_S)
    assert world.distance("a") < 0.1
    assert world.distance("b") < 0.1


def test_components_made_anew_are_balanced_once_the_controller_is_told_of_them() -> None:
    parts = {"a": Part(rows=skewed()), "b": Part(rows=np.full(64, 30.0))}
    world = ControlledCluster(parts, FOUR, settings=control())
    world.run(1.0)
    stage = RegroupingStage(
        plan="one", parts={"row": ("a", "b")}, states={"row": (("a", "state"), ("b", "state"))}
    )
    world.coordinator.regroup(Regrouping(id="r", stages=(stage,)))
    assert world.control is not None
    world.now += 2 * PERIOD_S
    world.control.step()
    assert not world.told(events.RebalancingStarted, events.PlannerFailed)
    world.parts, world.stages = {"row": Part(rows=skewed())}, [["row"]]
    world.control.regroup(Topology(stages=(("row",),)))
    world.run(3 * PERIOD_S)
    assert world.distance("row") < 0.1


def test_lanes_are_balanced_between_epochs_without_moving_state() -> None:
    rows = np.full(16, 30.0)
    rows[[0, 4]] = 300.0  # both on the first lane of e0
    rows[[1, 5]] = 300.0  # of e1, which has as much to do
    world = ControlledCluster({"sum": Part(rows=rows)}, {"e0": 2, "e1": 2}, settings=control())
    world.run(2.0)
    assert world.told(events.LanesBalanced)
    assert not world.told(events.MigrationStarted)
    busy = {
        lane: rows[world.coordinator.view.components["sum"].assignment.key_groups("e0", lane)].sum()
        for lane in (0, 1)
    }
    assert max(busy.values()) < 1.3 * sum(busy.values()) / 2


@pytest.mark.parametrize("lanes_every", ["0.5 seconds", "30 seconds"])
def test_lanes_that_key_groups_left_uneven_are_balanced_after_one_epoch(lanes_every: str) -> None:
    """Loads of those that stay are known from the epochs before; nothing else is waited for."""
    world = ControlledCluster(
        {"sum": Part(rows=np.full(16, 30.0))},
        {"e0": 2, "e1": 2},
        settings=control(period="60 seconds", cadence=Cadence(lanes_every=lanes_every)),
        fixed_s=0.6,
    )
    world.run(6.0)
    assert not world.told(events.LanesBalanced)
    before = world.coordinator.view.components["sum"].assignment
    leave = dict.fromkeys(before.key_groups("e0", 1).tolist(), "e1")
    world.coordinator.migrate(
        MigrationRequested(id="x", component="sum", target=before.moved(leave), by_hand=False)
    )
    world.run(1.2)  # one epoch under the old assignment, and one under the new one
    assert {e.executors for e in world.told(events.LanesBalanced)} == {("e0",)}
    after = world.coordinator.view.components["sum"].assignment
    assert [len(after.key_groups("e0", lane)) for lane in (0, 1)] == [2, 2]
    # Others leave before enough epochs have shown what these lanes brought.
    leave = dict.fromkeys(after.key_groups("e0", 1).tolist(), "e1")
    world.coordinator.migrate(
        MigrationRequested(id="y", component="sum", target=after.moved(leave), by_hand=False)
    )
    world.run(2.0)
    after = world.coordinator.view.components["sum"].assignment
    assert [len(after.key_groups("e0", lane)) for lane in (0, 1)] == [1, 1]


def test_key_groups_that_come_are_dealt_to_the_lanes_that_others_leave() -> None:
    """The first lane of a has all of its load, which goes to b in the same plan."""
    view = ControlledCluster({"sum": Part(rows=np.ones(4))}, {"a": 2, "b": 2}).coordinator.view
    assignment = view.components["sum"].assignment
    load = np.where(np.isin(np.arange(4), assignment.key_groups("a", 0)), 8.0, 1.0)
    problem = Problem(
        executors=("a", "b"),
        load=load,
        state_bytes=np.zeros(4),
        current=assignment.executor_of,
        cores=np.array([2, 2], np.int32),
        capacity=np.array([2.0, 2.0]),
    )
    measured = MeasuredProblem(
        problem=problem,
        parts={"sum": slice(0, 4)},
        rows_per_s=np.ones(4),
        link_bytes_per_s=1.0,
        held_bytes=np.zeros(4),
    )
    for moving, lanes in (([], [8.0, 1.0]), (assignment.key_groups("a", 0), [0.0, 1.0])):
        busy = busy_lanes(measured, view, np.array(moving, np.int64))
        assert busy["a"].tolist() == lanes


def test_a_slow_executor_counts_as_slow_and_gets_less_to_do() -> None:
    world = ControlledCluster(
        {"sum": Part(rows=np.full(64, 60.0))}, FOUR, settings=control(), speeds={"e1": 1 / 3}
    )
    world.run(3 * PERIOD_S)
    (slow,) = world.told(events.LoadMeasured)[-1].speeds
    assert slow == "e1"
    assert world.distance("sum") < 0.15
    best = 64 * 60.0 * 1e-3 / (3 * 2 + 2 / 3)
    assert max(world.load_index("sum").values()) < best / 0.9


def test_an_executor_that_becomes_fast_again_gets_its_work_back() -> None:
    world = ControlledCluster(
        {"sum": Part(rows=np.full(64, 60.0))}, FOUR, settings=control(), speeds={"e1": 1 / 3}
    )
    world.run(3 * PERIOD_S)
    world.speeds.clear()
    world.run(4 * PERIOD_S)
    assert world.distance("sum") < 0.15


# -- scaling --------------------------------------------------------------------------------------


def test_a_surge_adds_executors_by_at_most_two_decisions_and_they_get_work() -> None:
    part = Part(rows=np.full(64, 20.0))
    world = ControlledCluster(
        {"sum": part}, {"e0": 2, "e1": 2}, settings=control(scaling=utilisation(0.6))
    )
    world.run(3 * PERIOD_S)
    assert not world.told(events.ScaledOut, events.ScaledIn)
    part.rows = part.rows * 4
    world.run(6 * PERIOD_S)
    assert 1 <= len(world.told(events.ScaledOut)) <= 2
    assert not world.told(events.ScaledIn)
    needed = 64 * 80.0 * 1e-3 / (2 * 0.6)
    assert needed <= len(world.executors) <= 1.35 * needed + 1
    assert world.distance("sum") < 0.15


def test_a_step_is_answered_after_two_epochs_and_not_at_the_period_s_end() -> None:
    part = Part(rows=np.full(64, 20.0))
    world = ControlledCluster(
        {"sum": part},
        FOUR,
        settings=control(scaling=utilisation(0.6), period="30 seconds", min_executors=4),
        noise=0.1,
    )
    world.run(65.0)
    assert not world.told(events.ScaledOut)
    stepped_s = world.now
    part.rows *= 4
    world.run(10.0)
    first, *more = world.told(events.ScaledOut)
    assert first.at_s - stepped_s < 3.0
    assert first.wanted >= 64 * 80.0 * 1e-3 / (2 * 0.6) - 1
    assert len(more) <= 1


def test_a_stream_that_calms_down_gives_executors_back_once_they_are_empty() -> None:
    part = Part(rows=np.full(64, 80.0))
    settings = control(scaling=utilisation(0.7))
    world = ControlledCluster({"sum": part}, {f"e{i}": 2 for i in range(6)}, settings=settings)
    world.run(2 * PERIOD_S)
    part.rows = part.rows / 4
    world.run(14 * PERIOD_S)
    assert world.pool.returned
    assert len(world.executors) in (2, 3)
    returned = {name for e in world.told(events.ExecutorsReturned) for name in e.executors}
    assert returned == set(world.pool.returned)
    assert not world.told(events.EpochAborted)


def test_no_decision_is_taken_back_within_the_cool_down() -> None:
    part = Part(rows=np.full(64, 20.0))
    settings = control(scaling=utilisation(0.6), cool_down="40 seconds")
    world = ControlledCluster({"sum": part}, {"e0": 2, "e1": 2}, settings=settings).run(
        2 * PERIOD_S
    )
    for factor in (4.0, 0.25, 4.0, 0.25):
        part.rows = part.rows * factor
        world.run(2 * PERIOD_S)
    decided = world.told(events.ScaledOut, events.ScaledIn)
    for one, other in pairwise(decided):
        assert type(one) is type(other) or other.at_s - one.at_s >= 40.0


@pytest.mark.parametrize(
    ("executors", "rows", "left", "reason"),
    [
        (2, [500.0, 500.0], 1, "the remaining executors would be busy for 100% of the time"),
        (3, [300.0] * 3, 2, "the remaining executors could not be balanced: 1.33 times the mean"),
    ],
)
def test_executors_stay_where_the_rest_would_not_do(
    executors: int, rows: list[float], left: int, reason: str
) -> None:
    world = ControlledCluster(
        {"sum": Part(rows=np.array(rows))},
        {f"e{n}": 1 for n in range(executors)},
        settings=control(scaling=fixed(left)),
    )
    world.run(4 * PERIOD_S)
    (refused,) = world.told(events.ScalingRefused)
    assert (refused.before, refused.wanted, refused.reason) == (executors, left, reason)
    assert len(world.executors) == executors


def test_a_latency_target_out_of_reach_says_what_can_be_had() -> None:
    part = Part(rows=np.full(64, 20.0))
    settings = control(scaling=latency("0.05 seconds"), max_executors=4)
    world = ControlledCluster({"sum": part}, {"e0": 2, "e1": 2}, settings=settings).run(
        5 * PERIOD_S
    )
    refused = world.told(events.ScalingRefused) + world.told(events.ScaledOut)
    assert any("unreachable" in e.reason and e.numbers["best_s"] > 0.05 for e in refused)


def test_a_latency_target_is_met_by_adding_executors() -> None:
    part = Part(rows=np.full(64, 28.0))
    settings = control(scaling=latency("0.4 seconds"), max_executors=12)
    world = ControlledCluster({"sum": part}, {"e0": 2}, settings=settings).run(8 * PERIOD_S)
    assert world.told(events.ScaledOut)
    assert 1.5 * np.mean(world.took[-10:]) < 0.4


def test_a_script_is_followed_to_the_letter() -> None:
    part = Part(rows=np.full(64, 20.0))
    script = scripted({0: 2, "15 seconds": 4, "40 seconds": 2})
    world = ControlledCluster({"sum": part}, {"e0": 2, "e1": 2}, settings=control(scaling=script))
    world.run(14)
    assert len(world.executors) == 2
    world.run(14)
    assert len(world.executors) == 4
    world.run(30)
    assert len(world.executors) == 2


def test_an_executor_that_joins_while_a_decision_is_made_is_not_requested_again() -> None:
    def three(_situation: object) -> int:
        if world.pool.coming and world.now > 5 * PERIOD_S:  # the cool-down is over
            world.pool.coming.clear()
            world.executors["new"] = 2
            world.see()
        return 3

    part = Part(rows=np.full(64, 20.0))
    world = ControlledCluster({"sum": part}, {"e0": 2, "e1": 2}, settings=control(scaling=three))
    world.pool.delay_s = 1e6
    world.run(8 * PERIOD_S)
    assert len(world.executors) == 3
    assert world.pool.asked == [1]


def test_what_dies_is_replaced_where_a_number_was_set() -> None:
    world = ControlledCluster(
        {"sum": Part(rows=np.full(64, 20.0))}, FOUR, settings=control(scaling=fixed(4))
    ).run(PERIOD_S)
    world.kill("e2")
    world.run(3 * PERIOD_S)
    assert len(world.executors) == 4
    assert world.pool.asked == [1]


def test_an_executor_that_comes_late_is_planned_for_as_soon_as_it_is_there() -> None:
    part = Part(rows=np.full(64, 60.0))
    settings = control(scaling=utilisation(0.6))
    world = ControlledCluster({"sum": part}, {"e0": 2, "e1": 2}, settings=settings, fixed_s=0.1)
    world.pool.delay_s = 1.7 * PERIOD_S
    world.run(6 * PERIOD_S)
    joined = world.told(events.ExecutorAdded)[0].at_s
    after = [e.at_s for e in world.told(events.RebalancingStarted) if e.at_s >= joined]
    assert after
    assert min(after) - joined < 1.5


@pytest.mark.parametrize(("copied", "plans"), [(0.2, 2), (0.7, 1)])
def test_copies_that_are_made_count_before_those_for_an_executor_that_came_late(
    copied: float, plans: int
) -> None:
    """An epoch ran at the old places where the last executor joined just before it began.

    `copied`: part of an epoch after which copies for the first one are made, and the last joins.
    """
    part = Part(rows=np.full(64, 20.0))
    world = ControlledCluster({"sum": part}, {"e0": 2, "e1": 2}, settings=control()).run(
        2 * PERIOD_S
    )
    controller, began = world.control, world.now
    assert controller is not None
    world.coordinator.begin(world.epoch + 1)
    controller.begun(100, 0, began)
    for name, share in (("n2", 0.0), ("n3", copied)):
        world.now = began + share * world.took[-1]
        for order in world.ports.warmings:
            reach = dict.fromkeys(order.key_groups, world.epoch)
            world.coordinator.warmed(
                order, Warmed(tables={(order.component, "state"): reach}, reach=reach)
            )
        world.ports.warmings.clear()
        controller.step()
        world.executors[name] = 2
        world.see()
        controller.step()
    assert len(world.told(events.RebalancingStarted)) == plans


def test_an_executor_that_is_still_being_emptied_stays_when_it_is_needed_again() -> None:
    """Before anybody new is asked for; at once, since rows come four times as fast."""
    settings = control(
        scaling=utilisation(0.6),
        cool_down=f"{PERIOD_S} seconds",
        budget=Budget(max_moves=1),
        max_executors=6,
    )
    part = Part(rows=np.full(64, 20.0))
    world = ControlledCluster({"sum": part}, FOUR, settings=settings)
    while not world.told(events.ScaledIn):
        world.run(PERIOD_S)
    (scaled_in,) = world.told(events.ScaledIn)
    part.rows = np.full(64, 90.0)
    world.run(4 * PERIOD_S)
    scaled_out = world.told(events.ScaledOut)[0]
    assert set(scaled_out.kept) == set(scaled_in.executors)
    assert {e.executor for e in world.told(events.ExecutorKept)} == set(scaled_out.kept)
    assert sum(world.pool.asked) == world.told(events.ScaledOut)[-1].wanted - len(FOUR)
    assert not world.told(events.ExecutorsReturned)
    assert not world.coordinator.view.draining


def test_what_was_drained_by_hand_leaves_also_when_load_rises() -> None:
    world = ControlledCluster(
        {"sum": Part(rows=np.full(64, 20.0))}, FOUR, settings=control(scaling=fixed(4))
    )
    world.coordinator.drain("e3")
    world.run(4 * PERIOD_S)
    assert "e3" in world.coordinator.view.draining
    assert world.pool.asked == [1]


def test_a_cluster_that_refuses_is_told_of_once_and_asked_again_after_the_cool_down() -> None:
    part = Part(rows=np.full(64, 60.0))
    world = ControlledCluster(
        {"sum": part}, {"e0": 2, "e1": 2}, settings=control(scaling=utilisation(0.6))
    )
    world.pool.refuses = "no quota"
    world.run(6 * PERIOD_S)
    (refused,) = world.told(events.ScalingRefused)
    assert refused.reason == "no quota"
    world.pool.refuses = ""
    world.run(5 * PERIOD_S)
    assert world.told(events.ScaledOut)


@pytest.mark.parametrize("rows", [2.0, 60.0])  # for one executor, and for more than two
def test_where_executors_are_fixed_nobody_is_drained_or_asked_for_and_that_is_said_once(
    rows: float,
) -> None:
    part = Part(rows=np.full(64, rows))
    world = ControlledCluster(
        {"sum": part}, {"e0": 2, "e1": 2}, settings=control(scaling=utilisation(0.6))
    )
    world.pool.fixed = "they are cores of one process"
    world.run(12 * PERIOD_S)
    assert not world.told(events.ScaledOut, events.ScaledIn, events.ExecutorDraining)
    (refused,) = world.told(events.ScalingRefused)
    assert refused.reason == "they are cores of one process"
    assert refused.wanted != refused.before == 2


def test_draining_ends_whatever_the_planner_does() -> None:
    def moves_nothing(problem: Problem) -> np.ndarray:
        return problem.current

    settings = control(planner=moves_nothing, scaling=fixed(2), budget=Budget(max_moves=5))
    world = ControlledCluster({"sum": Part(rows=np.full(64, 20.0))}, FOUR, settings=settings)
    world.run(20 * PERIOD_S)
    assert len(world.executors) == 2
    assert not world.told(events.PlannerFailed)


# -- hands ----------------------------------------------------------------------------------------


def by_hand(world: ControlledCluster) -> None:
    assignment = world.coordinator.view.components["sum"].assignment
    world.coordinator.migrate(
        MigrationRequested(
            id="mine", component="sum", target=assignment.moved(dict.fromkeys(range(1, 16), "e0"))
        )
    )


def test_what_was_migrated_by_hand_is_left_alone_for_the_stated_time_and_that_is_said() -> None:
    settings = control(respect="30 seconds")
    world = ControlledCluster({"sum": Part(rows=np.full(64, 30.0))}, FOUR, settings=settings).run(
        PERIOD_S
    )
    by_hand(world)
    assert world.control is not None
    world.run(1.0)
    (told,) = world.told(events.ManualOverrideRespected)
    assert told.what == "migration of sum"
    assert told.until_s - told.at_s == pytest.approx(30.0)
    assert "migration of sum" in world.control.status["leftAlone"]
    world.run(20.0)
    assert not world.told(events.RebalancingStarted)
    world.run(30.0)
    assert world.told(events.RebalancingStarted)
    assert world.distance("sum") < 0.1


def test_a_migration_by_hand_that_is_over_before_the_controller_looks_is_left_alone_too() -> None:
    settings = control(respect="30 seconds")
    world = ControlledCluster({"sum": Part(rows=np.full(64, 30.0))}, FOUR, settings=settings).run(
        PERIOD_S
    )
    controller, world.control = world.control, None  # it is busy planning
    by_hand(world)
    world.run(2.0)
    assert world.coordinator.view.components["sum"].migration is None
    world.control = controller
    world.run(1.0)
    (told,) = world.told(events.ManualOverrideRespected)
    assert told.what == "migration of sum"
    world.run(25.0)
    assert not world.told(events.RebalancingStarted)
    world.run(30.0)
    assert world.told(events.RebalancingStarted)
    assert len(world.told(events.ManualOverrideRespected)) == 1


def test_what_the_controller_itself_moves_is_no_manual_override() -> None:
    world = ControlledCluster({"sum": Part(rows=skewed())}, FOUR, settings=control()).run(
        4 * PERIOD_S
    )
    assert world.told(events.RebalancingStarted)
    assert not world.coordinator.view.begun_by_hand
    assert not world.told(events.ManualOverrideRespected)


def test_an_executor_drained_by_hand_is_emptied_and_never_given_back() -> None:
    world = ControlledCluster({"sum": Part(rows=np.full(64, 30.0))}, FOUR, settings=control()).run(
        PERIOD_S
    )
    world.coordinator.drain("e2")
    world.run(4 * PERIOD_S)
    assert not len(world.coordinator.view.components["sum"].assignment.key_groups("e2"))
    assert "e2" in world.executors
    assert [e.what for e in world.told(events.ManualOverrideRespected)] == ["draining of e2"]


def test_a_number_set_by_hand_is_left_alone_for_the_stated_time() -> None:
    settings = control(scaling=utilisation(0.6), respect="25 seconds")
    part, two = Part(rows=np.full(64, 60.0)), {"e0": 2, "e1": 2}
    world = ControlledCluster({"sum": part}, two, settings=settings, fixed_s=0.1)
    assert world.control is not None
    world.control.policy_loop.overrides.record(["scaling"], 0.0)
    world.run(24.0)
    assert not world.told(events.ScaledOut)
    world.run(10.0)
    assert world.told(events.ScaledOut)


def test_a_controller_that_restarts_goes_on_with_cool_down_and_hands() -> None:
    past = [
        events.ScaledOut(epoch=3, at_s=90.0, before=2, wanted=4, reason="more rows"),
        events.ManualOverrideRespected(epoch=3, at_s=95.0, what="migration of sum", until_s=140.0),
    ]
    settings = control(scaling=utilisation(0.6), cool_down="60 seconds")
    world = ControlledCluster(
        {"sum": Part(rows=skewed(rows=10.0))}, FOUR, settings=settings, past=past, start_s=100.0
    )
    world.run(35.0)
    assert not world.told(events.ScaledIn, events.RebalancingStarted)
    world.run(40.0)
    assert world.told(events.ScaledIn)
    assert min(e.at_s for e in world.told(events.ScaledIn)) >= 150.0
    assert min(e.at_s for e in world.told(events.RebalancingStarted)) >= 140.0


# -- what goes wrong ------------------------------------------------------------------------------


def raises(problem: Problem) -> Solution:
    raise KeyError(problem.num_key_groups)


def nonsense(problem: Problem) -> str:
    return f"put them all on {problem.executors[0]}"


def short(problem: Problem) -> list[int]:
    return [0] * (problem.num_key_groups - 1)


def elsewhere(problem: Problem) -> list[float]:
    return [float("nan")] * problem.num_key_groups


def nowhere(problem: Problem) -> np.ndarray:
    return problem.current + problem.num_executors


def ends(problem: Problem) -> None:
    raise SystemExit(problem.num_key_groups)


def imaginary(problem: Problem) -> np.ndarray:
    return problem.current * 1j


class Unreadable:
    """Value that raises once it is looked at."""

    def __array__(self, *_given: object, **_more: object) -> np.ndarray:
        raise RuntimeError("not for you")


def unreadable(_problem: Problem) -> Unreadable:
    return Unreadable()


def another(problem: Problem) -> Solution:
    return make_solution(replace(problem), problem.current, method="another")


@pytest.mark.parametrize(
    ("planner", "reason"),
    [
        (raises, "it raised KeyError: 64"),
        (nonsense, "it returned a str"),
        (short, "instead of a vector of 64 executor indices"),
        (elsewhere, "instead of a vector of 64 executor indices"),
        (imaginary, "it returned complex numbers"),
        (nowhere, "key group 0 is on executor"),
        (ends, "it raised RuntimeError: SystemExit: 64"),
        (unreadable, "it raised RuntimeError: not for you"),
        (another, "its solution belongs to another problem"),
    ],
)
def test_a_planner_that_fails_is_told_of_once_and_the_stream_goes_on(
    planner: Callable[[Problem], object], reason: str
) -> None:
    world = ControlledCluster({"sum": Part(rows=skewed())}, FOUR, settings=control(planner=planner))
    world.run(4 * PERIOD_S)
    (failed,) = world.told(events.PlannerFailed)
    assert reason in failed.reason
    assert not world.told(events.MigrationStarted)


def test_a_planner_that_never_returns_is_given_up_and_the_stream_goes_on() -> None:
    def given_up(plan: Callable[[], T], *, time_limit_s: float) -> T:
        assert time_limit_s == 2.0
        raise TimeoutError

    settings = control(time_limit="2 seconds")
    world = ControlledCluster(
        {"sum": Part(rows=skewed())}, FOUR, settings=settings, run_planner=given_up
    )
    world.run(3 * PERIOD_S)
    (failed,) = world.told(events.PlannerFailed)
    assert failed.reason == "it has not returned after 2 s"


def test_a_planner_that_cannot_take_the_problem_says_why() -> None:
    unlike = FOUR | {"e3": 1}
    world = ControlledCluster(
        {"sum": Part(rows=skewed(4.0))}, unlike, settings=control(planner="intra_executor")
    )
    world.run(4 * PERIOD_S)
    (failed,) = world.told(events.PlannerFailed)
    assert "executors have different capacities" in failed.reason


def test_a_planner_that_never_returns_is_not_waited_for_stage_after_stage() -> None:
    waited: list[float] = []

    def slow(plan: Callable[[], T], *, time_limit_s: float) -> T:
        waited.append(time_limit_s)
        time.sleep(time_limit_s)
        raise TimeoutError

    parts = {name: Part(rows=skewed()) for name in ("one", "two", "three")}
    ControlledCluster(
        parts, FOUR, settings=control(time_limit="0.02 seconds"), run_planner=slow
    ).run(PERIOD_S)
    assert len(waited) == 1


def test_a_scaling_function_that_never_returns_is_given_up_and_the_stream_is_still_balanced() -> (
    None
):
    def thinks(_situation: object) -> int:
        raise TimeoutError  # as whoever runs it would

    settings = control(scaling=thinks, time_limit="2 seconds")
    world = ControlledCluster(
        {"sum": Part(rows=skewed())}, FOUR, settings=settings, run_planner=run_without_limit
    )
    world.run(3 * PERIOD_S)
    (failed,) = world.told(events.PlannerFailed)
    assert (failed.planner, failed.reason) == ("thinks", "it has not returned after 2 s")
    assert world.distance("sum") < 0.1


def test_a_scaling_function_that_hangs_is_no_fault_of_the_planners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They used to share a thread, so every plan after it took too long as well."""
    go_on = threading.Event()
    limits_s = iter([120.0, 0.05])  # of planners, which a busy machine may slow down; of functions

    class Limited(PlannerThread):
        def __init__(self) -> None:
            super().__init__()
            self.limit_s = next(limits_s)

        def __call__(self, plan: Callable[[], T], *, time_limit_s: float) -> T:
            return super().__call__(plan, time_limit_s=self.limit_s)

    monkeypatch.setattr(loop, "PlannerThread", Limited)

    def hangs(_situation: object) -> int:
        go_on.wait(120)  # in a call that waits nothing can be raised
        return 4

    settings = control(scaling=hangs, time_limit="120 seconds")
    world = ControlledCluster({"sum": Part(rows=skewed())}, FOUR, settings=settings, threads=True)
    world.run(4 * PERIOD_S)
    go_on.set()
    assert {failed.planner for failed in world.told(events.PlannerFailed)} == {"hangs"}
    assert world.distance("sum") < 0.1


def test_a_scaling_function_that_raises_is_told_of_and_the_stream_is_still_balanced() -> None:
    def broken(_situation: object) -> int:
        raise RuntimeError("no idea")

    world = ControlledCluster({"sum": Part(rows=skewed())}, FOUR, settings=control(scaling=broken))
    world.run(3 * PERIOD_S)
    (failed,) = world.told(events.PlannerFailed)
    assert failed.reason == "it raised RuntimeError: no idea"
    assert world.distance("sum") < 0.1


def test_a_controller_that_restarts_where_clocks_are_behind_waits_no_longer_than_it_would() -> None:
    settings = control(scaling=utilisation(0.6), cool_down="15 seconds", respect="15 seconds")
    when: dict[str, Any] = {"at_s": 10_000.0, "epoch": 7}
    past = [
        events.ScaledIn(executors=("e2",), before=3, wanted=2, reason="ahead", **when),
        events.ManualOverrideRespected(what="migration of sum", until_s=10_030.0, **when),
        events.ManualOverrideRespected(what="scaling", until_s=10_030.0, **when),
    ]
    busy = Part(rows=skewed(rows=60.0))
    world = ControlledCluster({"sum": busy}, {"e0": 2, "e1": 2}, settings=settings, past=past)
    world.run(30.0)
    assert world.told(events.ScaledOut)
    assert world.told(events.RebalancingStarted)


def says(**rest: Any) -> Callable[[object], WantedExecutors]:
    """A scaling function whose answer has something wrong beside its numbers of executors."""

    def model(_situation: object) -> WantedExecutors:
        given: dict[str, Any] = {"executors": 5, "comfortable": 5, "reason": "it says so"}
        return WantedExecutors(**(given | rest))

    return model


def ended(_situation: object) -> int:
    raise SystemExit(3)


def wants(*counts: object) -> Callable[[object], WantedExecutors]:
    executors, comfortable = counts

    def model(_situation: object) -> WantedExecutors:
        return WantedExecutors(executors=executors, comfortable=comfortable, reason="")  # type: ignore[arg-type]

    return model


class Number:
    """A model that says a number, as functions may."""

    name, paced = "number", True

    def wanted(self, _situation: object) -> int:
        return 3


@pytest.mark.parametrize(
    ("scaling", "reason"),
    [
        (ended, "it raised RuntimeError: SystemExit: 3"),
        (wants("many", 3), "it raised InvalidControlError: The number of executors is 'many'"),
        (wants(2, float("nan")), "it raised InvalidControlError: The number of executors is nan"),
        (wants(-1, 2), "it raised InvalidControlError: The number of executors is -1"),
        (lambda _situation: True, "it raised InvalidControlError: The number of executors is True"),
        (Number(), "it raised InvalidControlError: The scaling model returned 3"),
        (says(reason=7), "it raised InvalidControlError: A scaling model returned 7 as its reason"),
        (says(numbers={"busy": "much"}), "it raised InvalidControlError: A scaling model returned"),
        (says(numbers=None), "it raised InvalidControlError: A scaling model returned None as its"),
        (
            says(unattainable=None),
            "it raised InvalidControlError: A scaling model returned None as",
        ),
        (says(aim=0.5), "it raised InvalidControlError: The number of executors is 0.5"),
    ],
)
def test_a_scaling_model_of_nonsense_is_told_of_and_the_stream_is_still_balanced(
    scaling: Callable[[object], object], reason: str
) -> None:
    world = ControlledCluster({"sum": Part(rows=skewed())}, FOUR, settings=control(scaling=scaling))
    world.run(3 * PERIOD_S)
    (failed,) = world.told(events.PlannerFailed)
    assert failed.reason.startswith(reason)
    assert world.distance("sum") < 0.1
    assert not world.told(events.ScaledOut, events.ScaledIn)


def test_epochs_without_figures_count_as_missing_and_not_as_idle() -> None:
    settings = control(scaling=utilisation(0.7))
    world = ControlledCluster({"sum": Part(rows=np.full(64, 60.0))}, FOUR, settings=settings)
    world.missing = lambda epoch: epoch % 2 == 0
    world.run(4 * PERIOD_S)
    assert world.told(events.LoadMeasured)[-1].missing > 0
    assert not world.told(events.ScaledIn)
    world.missing = lambda _epoch: True
    world.run(12 * PERIOD_S)
    assert not world.told(events.ScaledIn)
    assert any("no epoch has statistics" in e.reason for e in world.told(events.DecisionSkipped))


def test_a_plan_onto_an_executor_that_died_is_abandoned_and_planned_anew() -> None:
    world = ControlledCluster({"sum": Part(rows=skewed(4.0))}, FOUR, settings=control())
    world.warms = False
    while not world.told(events.RebalancingStarted):
        world.run(0.2)
    world.kill("e3")
    world.run(0.2)
    world.warms = True
    world.run(6 * PERIOD_S)
    abandoned = world.told(events.PlanAbandoned)
    assert [e.reason for e in abandoned] == ["executor e3 was lost"]
    assert world.distance("sum") < 0.15


# -- plans that are overtaken while they are carried out -------------------------------------------


def held_up(noise: float = 0.0) -> ControlledCluster:
    """Make a stream whose rebalancing has begun and cannot continue."""
    world = ControlledCluster(
        {"sum": Part(rows=skewed(3.0))}, FOUR, settings=control(), noise=noise
    )
    world.warms = False
    while not world.told(events.RebalancingStarted):
        world.run(0.2)
    return world


def test_a_plan_under_way_is_abandoned_for_one_with_executors_that_have_come() -> None:
    world = held_up()
    world.pool.add(2)
    world.run(3.0)
    (abandoned,) = world.told(events.PlanAbandoned)
    assert abandoned.reason == "executor n4 has joined"
    world.warms = True
    world.run(PERIOD_S)
    assert len(world.executors) == 6
    assert world.distance("sum") < 0.15
    assert len(world.told(events.PlanAbandoned)) == 1


def test_a_plan_under_way_is_abandoned_for_one_that_empties_who_is_to_leave() -> None:
    world = held_up()
    world.coordinator.drain("e0")
    world.run(PERIOD_S)
    (abandoned,) = world.told(events.PlanAbandoned)
    assert abandoned.reason == "executor e0 will leave"
    world.warms = True
    world.run(PERIOD_S)
    assert not len(world.coordinator.view.components["sum"].assignment.key_groups("e0"))


def test_a_plan_under_way_that_leads_nowhere_after_a_shift_is_abandoned() -> None:
    world = held_up()
    world.parts["sum"].rows = np.roll(skewed(3.0), 1)
    world.run(2 * PERIOD_S)
    reasons = [e.reason for e in world.told(events.PlanAbandoned)]
    assert len(reasons) == 1
    assert reasons[0].startswith("it would lead to a load distance of")
    world.warms = True
    world.run(PERIOD_S)
    assert world.distance("sum") < 0.15


def test_a_plan_under_way_is_carried_out_to_its_end_however_long_it_takes_under_noise() -> None:
    world = held_up(noise=0.1)
    world.run(6 * PERIOD_S)
    assert len(world.told(events.RebalancingStarted)) == 1
    world.warms = True
    world.run(PERIOD_S)
    assert not world.told(events.PlanAbandoned)
    assert world.distance("sum") < 0.15


def test_what_was_given_back_and_is_not_gone_yet_was_drained_by_nobody_s_hand() -> None:
    world = ControlledCluster(
        {"sum": Part(rows=np.full(64, 10.0))}, FOUR, settings=control(scaling=utilisation(0.7))
    )
    world.pool.remove = world.pool.returned.extend  # type: ignore[method-assign,assignment]
    world.run(10 * PERIOD_S)
    assert world.pool.returned
    assert not world.told(events.ManualOverrideRespected)


# -- policies -------------------------------------------------------------------------------------


def test_static_moves_nothing_and_resource_centric_evens_it_out() -> None:
    worst = {}
    for elasticity in ("static", "resource_centric"):
        world = ControlledCluster(
            {"sum": Part(rows=skewed(4.0))}, FOUR, settings=control(elasticity=elasticity)
        ).run(6 * PERIOD_S)
        worst[elasticity] = max(world.load_index("sum").values())
        assert bool(world.told(events.MigrationStarted)) == (elasticity != "static")
    assert worst["resource_centric"] < 0.75 * worst["static"]


def test_a_stream_that_is_left_alone_keeps_no_figures_for_longer_than_a_period() -> None:
    world = ControlledCluster(
        {"sum": Part(rows=skewed())}, FOUR, settings=control(elasticity="static")
    )
    world.run(3 * PERIOD_S)
    assert world.control is not None
    assert 0 < world.control.status["epochsObserved"] < PERIOD_S / 0.2
    assert not world.told(events.LoadMeasured, events.MigrationStarted)


def test_what_is_left_alone_is_said_once_and_nothing_else_of_it() -> None:
    """Two reasons that took turns were two events every period, one of them false."""
    world = ControlledCluster(
        {"sum": Part(rows=skewed())}, FOUR, settings=control(respect="1000 seconds")
    )
    world.run(1.0)
    current = world.coordinator.view.components["sum"].assignment
    world.coordinator.migrate(
        MigrationRequested(id="mine", component="sum", target=current.moved({1: "e0"}))
    )
    world.run(10 * PERIOD_S)
    (skipped,) = world.told(events.DecisionSkipped)
    assert skipped.reason == "it was migrated by hand"


def test_executors_that_join_one_after_the_other_share_one_budget() -> None:
    settings = control(budget=Budget(max_moves=5), period="20 seconds")
    world = ControlledCluster(
        {"sum": Part(rows=np.full(64, 60.0))}, {"e0": 2, "e1": 2}, settings=settings
    )
    world.run(21.0)
    for _ in range(4):
        world.pool.add(1)
        world.run(4.0)
    moved = [e.moves for e in world.told(events.RebalancingStarted) if e.at_s < 40.0]
    assert 0 < sum(moved) <= 5


def test_no_executor_drains_under_a_budget_that_moves_nothing() -> None:
    part = Part(rows=np.full(64, 8.0))
    settings = control(scaling=utilisation(0.7), budget=Budget(max_moves=0))
    world = ControlledCluster({"sum": part}, {f"e{n}": 2 for n in range(8)}, settings=settings)
    world.run(10 * PERIOD_S)
    assert not world.told(events.ScaledIn, events.ExecutorDraining, events.MigrationStarted)
    assert {e.reason for e in world.told(events.ScalingRefused)} == {
        "the budget allows no moves of key groups"
    }


def test_what_a_controller_remembers_outlasts_its_run() -> None:
    settings = control(scaling=utilisation(0.6), respect="500 seconds", cool_down="300 seconds")
    world = ControlledCluster(
        {"sum": Part(rows=np.full(64, 20.0))}, {"e0": 2, "e1": 2}, settings=settings
    )
    world.run(4 * PERIOD_S)
    world.parts["sum"].rows *= 4
    world.run(4 * PERIOD_S)
    assert world.told(events.ScaledOut)
    current = world.coordinator.view.components["sum"].assignment
    world.coordinator.migrate(
        MigrationRequested(id="mine", component="sum", target=current.moved({1: "e0"}))
    )
    world.run(2.0)
    assert world.control is not None
    left = ControllerMemory.from_dict(world.control.memory.to_dict())
    assert left is not None
    later = ControlledCluster(
        {"sum": Part(rows=np.full(64, 20.0))},
        dict.fromkeys(world.executors, 2),
        settings=settings,
        memory=left,
        start_s=world.now,
    )
    later.run(6 * PERIOD_S)
    assert later.control is not None
    assert "migration of sum" in later.control.status["leftAlone"]
    assert not later.told(events.ScaledIn)  # cooling down from what the run before decided
    assert left.rates_per_s
    assert len(left.sizes) > 1  # planners that expect further changes go by them
    assert later.control.memory.sizes[: len(left.sizes)] == left.sizes


@pytest.mark.parametrize(
    "damage",
    [
        lambda v: v.pop("scaled"),
        lambda v: v.update(rates_per_s=["many"]),
        lambda v: v.update(rates_per_s=[float("nan")]),
        lambda v: v.update(overrides=[]),
        lambda v: v.update(scaled="up"),
        lambda v: v.update(sizes=["two"]),
    ],
)
def test_a_memory_that_is_damaged_is_none(damage: Callable[[dict[str, Any]], Any]) -> None:
    values = ControllerMemory(scaled="out", rates_per_s=(1.0,)).to_dict()
    damage(values)
    assert ControllerMemory.from_dict(values) is None


def test_a_decision_made_from_too_little_is_corrected_while_executors_are_on_their_way() -> None:
    part = Part(rows=np.full(64, 20.0))
    world = ControlledCluster(
        {"sum": part}, {"e0": 2, "e1": 2}, settings=control(scaling=utilisation(0.6))
    )
    world.pool.delay_s = 40.0
    world.run(4 * PERIOD_S)
    part.rows = part.rows * 2
    world.run(2 * PERIOD_S)
    (first,) = world.told(events.ScaledOut)
    part.rows = part.rows * 2
    stepped_s = world.now
    world.run(3 * PERIOD_S)
    _, second = world.told(events.ScaledOut)
    assert second.wanted > first.wanted
    assert second.at_s - stepped_s < 2 * PERIOD_S < world.pool.delay_s


def test_too_few_key_groups_are_said_once_with_a_number_that_suffices() -> None:
    few = ControlledCluster({"sum": Part(rows=np.full(16, 30.0))}, FOUR, settings=control())
    few.run(4 * PERIOD_S)
    (said,) = few.told(events.KeyGroupsTooFew)
    assert (said.component, said.key_groups, said.suggested) == ("sum", 16, 128)
    assert "8 lanes have 2.0 key groups each" in said.reason
    heavy = np.full(64, 10.0)
    heavy[7] = 1_500.0
    one = ControlledCluster({"sum": Part(rows=heavy)}, FOUR, settings=control())
    one.run(3 * PERIOD_S)
    (said,) = one.told(events.KeyGroupsTooFew)
    assert "times the time of a lane" in said.reason
    assert said.suggested >= 256
    even = ControlledCluster({"sum": Part(rows=np.full(64, 30.0))}, FOUR, settings=control())
    even.run(3 * PERIOD_S)
    assert not even.told(events.KeyGroupsTooFew)
