"""The coordinator conducts a run through ports that do nothing: no Spark, no threads, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.oracles.recording_ports import RecordingPorts

from godwit.migration import Policy, Strategy, messages
from godwit.migration.coordinator import Coordinator, Warmed
from godwit.migration.messages import MigrationRequested
from godwit.migration.outcome import EpochOutcome
from godwit.model import events
from godwit.model.assignment import even_assignment
from godwit.model.errors import MigrationError
from godwit.model.key_groups import KeyGroupLoad

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE = ("totals", "state")


class OneComponentRun:
    """A run of one component with four key groups on executors a and b; c is there and idle."""

    def __init__(self, *, waiting: tuple[int, ...] = (), committed: int = -1) -> None:
        self.ports = RecordingPorts()
        first = even_assignment(4, ["a", "b"], [1, 1]).on(["a", "b", "c"], [1, 1, 1])
        self.coordinator = Coordinator(
            messages.RunStarted(
                run_id="r",
                executors={"a": 1, "b": 1, "c": 1},
                assignments={"totals": first},
                committed=committed,
                waiting={"totals": waiting},
            ),
            states={"totals": [STATE]},
            policy=Policy(),
            ports=self.ports,
        )
        self.epoch = committed

    def run(self, *, batch: int | None = 0, cpu_ms: float = 1.0) -> None:
        """Carry out an epoch that touches every key group."""
        self.epoch += 1
        plans = self.coordinator.begin(self.epoch)
        assert plans is not None
        plan = plans["totals"]
        held: dict[str, dict[int, int]] = {}
        for g in range(4):
            if g not in plan.suspended:
                held.setdefault(plan.assignment.executor(g), {})[g] = self.epoch - 1
        self.coordinator.commit(
            EpochOutcome(
                epoch=self.epoch,
                batch=batch,
                loads={
                    "totals": KeyGroupLoad(
                        key_groups=np.arange(4),
                        rows=np.ones(4, np.int64),
                        keys=np.ones(4, np.int64),
                        cpu_ms=np.full(4, cpu_ms),
                        state_bytes=np.array([10, 20, 30, 40]),
                    )
                },
                waited={"totals": tuple(sorted(plan.suspended))},
                reach={"totals": held},
                tables={e: {STATE: versions} for e, versions in held.items()},
            )
        )

    def migrate(self, moves: Mapping[int, str], strategy: Strategy = Strategy.LIVE) -> None:
        assignment = self.coordinator.view.components["totals"].assignment
        self.coordinator.migrate(
            MigrationRequested(
                id="m", component="totals", target=assignment.moved(moves), strategy=strategy
            )
        )

    def due(self) -> bool:
        return self.coordinator.view.due

    def waits(self) -> bool:
        return self.coordinator.view.waiting

    def warm(self) -> None:
        """Answer the last order to warm."""
        order = self.ports.warmings[-1]
        versions = dict.fromkeys(order.key_groups, self.epoch)
        self.coordinator.warmed(order, Warmed(tables={STATE: versions}, reach=versions))


def test_a_migration_is_asked_for_warmed_switched_and_ended_through_ports_alone() -> None:
    story = OneComponentRun()
    for _ in range(4):
        story.run()
    story.migrate({0: "c"})
    assert [(o.executor, o.key_groups) for o in story.ports.warmings] == [("c", (0,))]
    story.warm()
    assert story.coordinator.view.components["totals"].assignment.executor(0) == "c"
    assert story.due()
    assert story.coordinator.ended("m") is None
    story.run(batch=None)
    ended = story.coordinator.ended("m")
    assert ended is not None
    assert (ended.outcome, ended.moved) == ("finished", 1)
    assert not story.due()
    assert [(o.executor, o.key_groups) for o in story.ports.drops] == [("a", (0,))]
    assert story.ports.told() == [
        "MigrationStarted",
        "WarmingStarted",
        "KeyGroupsWarmed",
        "AssignmentSwitched",
        "MigrationFinished",
    ]


def test_commands_are_announced_with_what_they_are_about() -> None:
    story = OneComponentRun()
    for _ in range(4):
        story.run()
    story.migrate({0: "c"})
    story.warm()
    story.run(batch=None)
    story.migrate({1: "c"}, Strategy.STOP_THE_WORLD)
    story.coordinator.cancel("m", "no need")
    story.coordinator.see({"a": 1, "b": 1})
    about: dict[str, Any] = {"component": "totals", "epoch": 3, "at_s": 0.0}
    later = about | {"epoch": 4}
    why = "migration m of totals moves everything first"
    told = story.ports.events
    assert [
        e for e in told if not isinstance(e, events.MigrationStarted | events.KeyGroupsWarmed)
    ] == [
        events.WarmingStarted(**about, executor="c", key_groups=(0,)),
        events.AssignmentSwitched(**about, version=2, key_groups=(0,)),
        events.MigrationFinished(**later, migration="m", moved=1),
        events.EpochsHeld(epoch=4, at_s=0.0, reason=why),
        events.WarmingStarted(**later, executor="c", key_groups=(1,)),
        events.MigrationCancelled(**later, migration="m", withdrawn=1, reason="no need"),
        events.EpochsReleased(epoch=4, at_s=0.0),
        events.ExecutorLost(epoch=4, at_s=0.0, executor="c"),
        events.AssignmentSwitched(**later, version=3, key_groups=(0,)),
        events.KeyGroupsSuspended(**later, key_groups=(0,)),
        events.WarmingStarted(**later, executor="a", key_groups=(0,)),
    ]


def test_what_lies_on_an_executor_and_how_fresh_it_is_are_one_record() -> None:
    story = OneComponentRun()
    story.run()
    story.run()
    copies = story.coordinator.copies
    assert copies.versions("a", STATE, 4).tolist() == [0, -1, 0, -1]
    assert copies.reach("totals", "a", 0) == 0
    story.coordinator.see({"b": 1, "c": 1})
    assert copies.versions("a", STATE, 4).tolist() == [-1] * 4
    assert copies.reach("totals", "a", 0) == -1


def test_copies_that_are_to_be_dropped_are_forgotten_with_the_order() -> None:
    story = OneComponentRun()
    for _ in range(4):
        story.run()
    story.migrate({0: "c"}, Strategy.DISRUPTIVE)
    story.run()
    assert story.coordinator.copies.versions("a", STATE, 4).tolist() == [-1, -1, 3, -1]
    assert story.coordinator.copies.holders("totals", 0) == ["c"]


def test_a_loss_suspends_and_the_rows_are_due_once_the_copy_is_warm() -> None:
    story = OneComponentRun()
    for _ in range(5):
        story.run()
    assert story.coordinator.see({"b": 1, "c": 1}) == ("a",)
    assert story.ports.told()[0] == "ExecutorLost"
    lost = story.coordinator.view.components["totals"].suspended
    assert lost == {0, 2}
    story.run()
    assert story.waits()
    assert not story.due()
    while story.coordinator.view.components["totals"].suspended:
        story.warm()
        story.ports.warmings.pop()
    assert story.due()
    story.run(batch=None)
    assert not story.waits()


def test_a_view_is_a_value_that_later_facts_do_not_change() -> None:
    story = OneComponentRun()
    before = story.coordinator.view
    story.run()
    story.coordinator.see({"a": 1})
    assert (before.committed, sorted(before.executors)) == (-1, ["a", "b", "c"])
    assert story.coordinator.view.committed == 0


def test_a_refused_request_changes_and_announces_nothing() -> None:
    story = OneComponentRun()
    story.run()
    story.migrate({0: "c"})
    told, view = story.ports.told(), story.coordinator.view
    with pytest.raises(MigrationError, match="is under way"):
        story.migrate({1: "c"})
    assert story.ports.told() == told
    assert story.coordinator.view is view


def test_epochs_that_are_held_begin_when_the_migration_is_over() -> None:
    story = OneComponentRun()
    for _ in range(4):
        story.run()
    story.migrate({0: "c"}, Strategy.STOP_THE_WORLD)
    assert story.coordinator.begin(story.epoch + 1) is None
    story.warm()
    story.run()
    assert "EpochsHeld" in story.ports.told()
    assert "EpochsReleased" in story.ports.told()


def test_an_epoch_that_came_to_nothing_is_told_and_planned_anew() -> None:
    story = OneComponentRun()
    story.run()
    assert story.coordinator.begin(1) is not None
    story.coordinator.abort(1, "no room")
    last = story.ports.events[-1]
    assert isinstance(last, events.EpochAborted)
    assert (last.epoch, last.reason) == (1, "no room")
    assert story.coordinator.begin(1) is not None


def test_load_is_the_mean_of_the_last_epochs_with_input() -> None:
    story = OneComponentRun()
    story.run(cpu_ms=1.0)
    story.run(cpu_ms=3.0)
    story.run(batch=None, cpu_ms=100.0)
    assert story.coordinator.recent_load.mean_busy_ms("totals") == {0: 2.0, 1: 2.0, 2: 2.0, 3: 2.0}
    assert story.coordinator.recent_load.mean_busy_ms("elsewhere") == {}


def test_lanes_change_from_the_next_epoch_on_and_no_state_moves() -> None:
    story = OneComponentRun()
    story.run()
    story.coordinator.change_lanes(
        messages.LanesRequested(component="totals", lanes={"a": 2}, lane_of={0: 1})
    )
    changed = story.coordinator.view.components["totals"].assignment
    assert changed.lanes[changed.executors.index("a")] == 2
    assert changed.key_groups("a", 1).tolist() == [0]
    assert story.ports.told()[-1] == "AssignmentSwitched"
    assert not story.ports.warmings
    story.run()


def test_draining_is_announced_once_and_only_of_an_executor_that_is_there() -> None:
    story = OneComponentRun()
    story.run()
    for executor in ("b", "b", "nobody"):
        story.coordinator.drain(executor)
    told = [e for e in story.ports.events if isinstance(e, events.ExecutorDraining)]
    assert [(e.executor, e.epoch) for e in told] == [("b", 0)]


def test_silence_is_measured_in_time_however_quickly_epochs_follow_one_another() -> None:
    story = OneComponentRun()
    for _ in range(12):
        story.run()
    story.migrate({0: "c"})
    for _ in range(500):
        story.run()
    assert len(story.ports.warmings) == 1
    story.ports.clock_s += Policy().patience
    story.run()
    assert len(story.ports.warmings) == 2
    story.ports.clock_s -= 1000  # a clock that jumps back is no time that passes
    story.run()
    story.ports.clock_s += Policy().patience
    story.run()
    assert len(story.ports.warmings) == 2
    story.ports.clock_s += Policy().patience
    story.run()
    assert len(story.ports.warmings) == 3
