"""Components are made anew between two epochs: the stages, and the coordinator's steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.oracles.recording_ports import RecordingPorts

from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
from godwit.engine.regrouping import regrouping_stages
from godwit.migration import Policy, messages
from godwit.migration.coordinator import Coordinator, Warmed
from godwit.migration.messages import LanesRequested, MigrationRequested
from godwit.migration.outcome import EpochOutcome
from godwit.migration.regrouping import EndRegrouping, Regrouping, RegroupingStage
from godwit.model.assignment import Assignment, even_assignment
from godwit.model.errors import MigrationError
from godwit.model.key_groups import KeyGroupLoad

if TYPE_CHECKING:
    from collections.abc import Mapping


def plan(**components: str) -> PhysicalPlan:
    return PhysicalPlan(
        components=tuple(
            ComponentPlan(name=n, operators=tuple(o.split())) for n, o in components.items()
        )
    )


APART = plan(a="a", b="b", c="c")
SIZES = {"a": 1, "b": 5, "c": 3}


def stages(before: PhysicalPlan, after: PhysicalPlan) -> tuple[RegroupingStage, ...]:
    return regrouping_stages(
        before,
        after,
        states={name: ((name, "state"),) for name in SIZES},
        state_bytes={name: {0: size} for name, size in SIZES.items()},
    )


def test_components_come_to_the_one_with_most_state() -> None:
    (only,) = stages(APART, plan(row="a b c"))
    assert only.parts == {"row": ("b", "c", "a")}
    assert only.states == {"row": (("a", "state"), ("b", "state"), ("c", "state"))}
    assert only.state_bytes["row"] == {0: 9}


def test_operators_that_part_are_made_of_the_component_they_were_in() -> None:
    (only,) = stages(plan(row="a b", c="c"), APART)
    assert only.plan == APART
    assert only.parts == {"a": ("row",), "b": ("row",)}


def test_an_operator_leaves_one_component_before_it_joins_another() -> None:
    first, second = stages(plan(row="a b", c="c"), plan(a="a", late="b c"))
    assert first.plan == plan(a="a", b="b", c="c")
    assert second.parts == {"late": ("b", "c")}


def test_names_that_would_mean_two_things_on_the_way_are_not_used() -> None:
    first, second = stages(plan(x="a b", y="c"), plan(y="a", x="b c"))
    assert first.plan == plan(a="a", b="b", y="c")
    assert second.parts == {"y": ("a",), "x": ("b", "y")}


def test_a_plan_that_changes_nothing_has_no_stages() -> None:
    assert stages(APART, APART) == ()
    assert stages(plan(x="a b", c="c"), plan(c="c", x="b a")) == ()


class ThreeComponentsRun:
    """Components a, b and c of four key groups each on two executors; each has one state."""

    def __init__(self, **assignments: Assignment) -> None:
        self.ports = RecordingPorts()
        self.first = even_assignment(4, ["x", "y"], [1, 1])
        self.coordinator = Coordinator(
            messages.RunStarted(
                run_id="r",
                executors={"x": 1, "y": 1},
                assignments=dict.fromkeys(SIZES, self.first) | assignments,
            ),
            states={name: [(name, "state")] for name in SIZES},
            policy=Policy(max_attempts=1, patience=1),
            ports=self.ports,
            plan=APART,
        )
        self.epoch = -1

    def run(self) -> None:
        """Carry out an epoch that touches every key group, and all that was ordered."""
        self.epoch += 1
        plans = self.coordinator.begin(self.epoch)
        assert plans is not None
        held: dict[str, dict[str, dict[int, int]]] = {name: {} for name in plans}
        for name, how in plans.items():
            for g in range(4):
                executor = how.assignment.executor(g)
                held[name].setdefault(executor, {})[g] = self.epoch
        self.coordinator.commit(
            EpochOutcome(
                epoch=self.epoch,
                batch=self.epoch,
                reach=held,
                loads={
                    name: KeyGroupLoad(
                        key_groups=np.arange(4),
                        rows=np.ones(4, np.int64),
                        keys=np.ones(4, np.int64),
                        cpu_ms=np.ones(4),
                        state_bytes=np.full(4, 10),
                    )
                    for name in plans
                },
            )
        )

    def warm(self) -> None:
        """Answer every order to warm."""
        orders, self.ports.warmings = self.ports.warmings, []
        for order in orders:
            reach = dict.fromkeys(order.key_groups, self.epoch)
            self.coordinator.warmed(order, Warmed(tables={}, reach=reach))

    def regroup(self, after: PhysicalPlan, before: PhysicalPlan = APART) -> None:
        self.coordinator.regroup(Regrouping(id="r1", stages=stages(before, after)))

    @property
    def components(self) -> Mapping[str, Assignment]:
        return {n: c.assignment for n, c in self.coordinator.view.components.items()}


ELSEWHERE = even_assignment(4, ["x", "y"], [1, 1]).moved({0: "y", 1: "x"})


def test_components_in_the_same_places_are_fused_at_once() -> None:
    story = ThreeComponentsRun()
    story.run()
    story.regroup(plan(row="a b", c="c"))
    assert story.coordinator.plan == plan(row="a b", c="c")
    assert set(story.components) == {"c", "row"}
    assert story.components["row"] == story.first
    assert story.ports.told()[-2:] == ["RegroupingStarted", "ComponentsRegrouped"]
    assert story.coordinator.ended_regrouping("r1") == EndRegrouping(id="r1", done=True)
    assert story.ports.warmings == []


def test_components_come_together_before_they_are_fused_and_no_epoch_waits() -> None:
    story = ThreeComponentsRun(a=ELSEWHERE)
    for _ in range(3):
        story.run()
    story.regroup(plan(row="a b", c="c"))
    assert story.coordinator.plan == APART
    orders = story.ports.warmings
    assert [(o.component, o.executor, o.key_groups) for o in orders] == [
        ("a", "x", (0,)),
        ("a", "y", (1,)),
    ]
    assert orders[0].states == (("a", "state"),)
    story.run()
    assert set(story.components) == set(SIZES)
    story.warm()
    story.run()
    assert story.components == {"row": story.first, "c": story.first}
    assert story.coordinator.ended("r1-a-1") is not None
    story.run()


def test_the_plan_does_not_change_while_an_epoch_runs() -> None:
    story = ThreeComponentsRun()
    story.coordinator.begin(0)
    story.regroup(plan(row="a b", c="c"))
    assert story.coordinator.plan == APART
    story.coordinator.abort(0, "no luck")
    assert story.coordinator.plan == plan(row="a b", c="c")


def test_a_migration_that_is_under_way_ends_first() -> None:
    story = ThreeComponentsRun()
    for _ in range(3):
        story.run()
    story.coordinator.migrate(MigrationRequested(id="m", component="b", target=ELSEWHERE))
    story.regroup(plan(row="a b", c="c"))
    assert not any(event.startswith("Components") for event in story.ports.told())
    for _ in range(4):
        story.warm()
        story.run()
    assert story.components["row"] == ELSEWHERE


def test_what_others_ask_of_components_that_are_regrouped_is_refused() -> None:
    story = ThreeComponentsRun(a=ELSEWHERE)
    for _ in range(3):
        story.run()
    story.regroup(plan(row="a b", c="c"))
    asked = MigrationRequested(id="m", component="b", target=ELSEWHERE)
    with pytest.raises(MigrationError, match="'b' is being regrouped"):
        story.coordinator.migrate(asked)
    with pytest.raises(MigrationError, match="'b' is being regrouped"):
        story.coordinator.change_lanes(LanesRequested(component="b"))
    with pytest.raises(MigrationError, match="'r1' is under way"):
        story.regroup(APART)
    story.coordinator.migrate(MigrationRequested(id="m", component="c", target=ELSEWHERE))
    by_hand = {
        name: c.by_hand for name, c in story.coordinator.view.components.items() if c.migration
    }
    assert by_hand.pop("c") is True
    assert by_hand
    assert not any(by_hand.values())  # what the regrouping itself moves
    assert story.coordinator.view.begun_by_hand == {"c": 1}  # of what was refused, nothing


def test_a_regrouping_that_is_cancelled_ends_its_migrations_and_leaves_the_plan() -> None:
    story = ThreeComponentsRun(a=ELSEWHERE)
    for _ in range(3):
        story.run()
    story.regroup(plan(row="a b", c="c"))
    story.coordinator.cancel("r1", "second thoughts")
    assert story.coordinator.ended_regrouping("r1") == EndRegrouping(
        id="r1", done=False, reason="second thoughts"
    )
    assert all(c.migration is None for c in story.coordinator.view.components.values())
    assert story.coordinator.plan == APART
    assert "RegroupingCancelled" in story.ports.told()


def test_a_draining_executor_that_key_groups_would_go_to_ends_it() -> None:
    story = ThreeComponentsRun(a=ELSEWHERE)
    story.run()
    story.coordinator.drain("y")
    story.regroup(plan(row="a b", c="c"))
    ended = story.coordinator.ended_regrouping("r1")
    assert isinstance(ended, EndRegrouping)
    assert "draining" in ended.reason


def test_what_never_comes_together_is_given_up() -> None:
    story = ThreeComponentsRun(a=ELSEWHERE)
    for _ in range(3):
        story.run()
    story.regroup(plan(row="a b", c="c"))
    for _ in range(12):
        orders, story.ports.warmings = story.ports.warmings, []
        for order in orders:
            story.coordinator.warming_failed(order, "no room")
        story.ports.clock_s += 1
        story.run()
    ended = story.coordinator.ended_regrouping("r1")
    assert isinstance(ended, EndRegrouping)
    assert "could not be moved to those of 'b'" in ended.reason


def test_reports_about_components_that_are_gone_are_passed_over() -> None:
    story = ThreeComponentsRun(a=ELSEWHERE)
    for _ in range(3):
        story.run()
    story.regroup(plan(row="a b", c="c"))
    order = story.ports.warmings[0]
    story.warm()
    story.run()
    assert "row" in story.components
    before = story.coordinator.view
    story.coordinator.warmed(order, Warmed(tables={}, reach={0: 1}))
    story.coordinator.warming_failed(order, "late")
    assert story.coordinator.view == before


def test_operators_that_part_keep_their_places_and_their_copies() -> None:
    story = ThreeComponentsRun(a=ELSEWHERE, b=ELSEWHERE)
    story.run()
    fused = plan(row="a b", c="c")
    story.regroup(fused)
    story.run()
    story.coordinator.regroup(Regrouping(id="r2", stages=stages(fused, APART)))
    assert story.components == {"a": ELSEWHERE, "b": ELSEWHERE, "c": story.first}
    assert story.coordinator.copies.reach("a", "y", 0) == 1
    story.run()
    story.coordinator.see({"x": 1})
    assert story.ports.told().count("KeyGroupsSuspended") <= 3


def test_a_fact_that_comes_at_the_wrong_time_is_refused_and_changes_nothing() -> None:
    story = ThreeComponentsRun(a=ELSEWHERE)
    before = story.coordinator.view
    stage = RegroupingStage(plan=None, parts={"row": ("a", "b")}, states={"row": ()})
    with pytest.raises(MigrationError, match="cannot be made of a, b now"):
        story.coordinator.regrouped(stage)
    story.coordinator.begin(0)
    with pytest.raises(MigrationError, match="while epoch 0 runs"):
        story.coordinator.regrouped(stage)
    assert story.coordinator.view.components == before.components
