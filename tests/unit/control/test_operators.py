"""Proposals of policies reach the coordinator if they are worth it, and give way to users."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.oracles.recording_ports import RecordingPorts
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.storage import CheckpointStorage
from godwit.control.fusing import Fusing
from godwit.control.operators import OperatorPolicies
from godwit.control.policy import ManualOverrides, PolicyLoop, reversed_by_regrouping
from godwit.engine import outcomes
from godwit.engine.cluster import Executor
from godwit.engine.policies import FlowEpoch, Proposal, Regroup, Repartition
from godwit.engine.recovery import recover_flow, run_started
from godwit.engine.settings import Lanes
from godwit.migration import Policy
from godwit.migration.coordinator import Coordinator
from godwit.migration.messages import MigrationRequested
from godwit.migration.outcome import EpochOutcome
from godwit.model.events import (
    BackgroundFailed,
    DecisionSkipped,
    ManualOverrideRespected,
    RegroupingCancelled,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from godwit.control.policy import AdaptationPolicy

SETTINGS = gw.control.Fusion(epochs=1, confirm=1, payback_epochs=10)


class TwoOperators:
    """Two operators in a row, in the same places or not."""

    def __init__(self, directory: Path, *, apart: bool = False) -> None:
        made = LogicalFlow("flow", 4)
        frame: Any = FakeDataFrame(pa.schema({"k": pa.string(), "v": pa.int64()}))
        a = made.source("rows", frame).key_by("k").compute(name="a", v=gw.sum("v"))
        made.sink("out", a.key_by("k").compute(name="b", v=gw.sum("v")), FakeSink())
        storage = CheckpointStorage.open(str(directory))
        self.log, recovery = recover_flow(
            made.compile(resolver(made)), storage, "r", retain_epochs=3
        )
        self.flow, self.ports = recovery.flow, RecordingPorts()
        there = [Executor(name=name, location=None, lanes=1) for name in ("x", "y")]
        first = gw.migration.even_assignment(4, ["x", "y"], [1, 1])
        given = {"b": first.moved({0: "y"})} if apart else {}
        started = run_started(
            self.flow, self.log, recovery, given, there, run_id="r", settings=Lanes()
        )
        self.coordinator = Coordinator(
            started,
            states={c.name: c.states for c in self.flow.components},
            policy=Policy(),
            ports=self.ports,
            plan=self.flow.physical_plan,
        )
        self.overrides = ManualOverrides(announce=self.coordinator.announce)
        self.decide_by(Fusing(self.flow, SETTINGS, overrides=self.overrides))

    def decide_by(self, policy: AdaptationPolicy[FlowEpoch]) -> None:
        self.deciding = OperatorPolicies(
            self.flow,
            [policy],
            loop=PolicyLoop(self.overrides, announce=self.coordinator.announce),
            coordinator=self.coordinator,
            log=self.log,
            meters={},
        )

    def observe(self, rows: int, at_s: float | None = None) -> None:
        outcome = EpochOutcome(epoch=0, batch=0, rows_in=10, streams={("a", "b"): (rows, rows)})
        epoch = FlowEpoch(
            outcome=outcome,
            took_s=0.0,
            at_s=time.time() if at_s is None else at_s,
            flow=self.flow,
            component_views={},
        )
        self.deciding.observe(epoch)


def test_operators_that_send_each_other_much_are_fused_and_the_event_says_why(
    tmp_path: Path,
) -> None:
    story = TwoOperators(tmp_path)
    story.observe(10)
    assert [c.name for c in story.coordinator.plan.components] == ["a+b"]
    (started,) = (e for e in story.ports.events if type(e).__name__ == "RegroupingStarted")
    assert "since a → b is 50.0% of all rows" in started.describe()


def test_state_is_not_moved_for_less_than_it_is_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = TwoOperators(tmp_path, apart=True)
    moved = 1000
    monkeypatch.setattr(outcomes, "state_bytes", lambda *_: pa.array([moved] * 4).to_numpy())
    story.observe(10)
    assert "RegroupingStarted" not in story.ports.told()
    (skipped,) = (e for e in story.ports.events if isinstance(e, DecisionSkipped))
    assert (skipped.what, skipped.reason) == ("fusion", "it costs more than it gains")
    assert (skipped.numbers["gain"], skipped.numbers["cost"]) == (100.0, moved)
    story.observe(moved)
    assert "RegroupingStarted" in story.ports.told()


def test_a_regrouping_by_hand_that_is_under_way_goes_on(tmp_path: Path) -> None:
    story = TwoOperators(tmp_path)
    story.coordinator.begin(0)
    story.observe(10)
    story.observe(10)  # refused by the coordinator, since the first waits for the epoch's end
    assert story.ports.told().count("RegroupingStarted") == 1


def test_somebody_who_regroups_goes_first(tmp_path: Path) -> None:
    story = TwoOperators(tmp_path)
    story.coordinator.begin(0)
    story.observe(10)
    assert story.ports.told().count("RegroupingStarted") == 1
    began_s = time.time()
    with story.deciding.manual_change(["components of a"]) as record:
        (cancelled,) = (e for e in story.ports.events if isinstance(e, RegroupingCancelled))
        assert cancelled.reason == "superseded by a manual regrouping"
        record()
    (respected,) = (e for e in story.ports.events if isinstance(e, ManualOverrideRespected))
    assert respected.what == "components of a"
    assert respected.until_s - began_s > 50
    story.coordinator.abort(0, "it was to come to nothing")
    story.observe(10)
    assert [c.name for c in story.coordinator.plan.components] == ["a", "b"]
    with story.deciding.manual_change(["components of b"]):
        pass  # there is nothing left that would have to give way
    assert story.ports.told().count("RegroupingCancelled") == 1


def test_components_that_a_user_has_migrated_are_not_fused_for_a_while(tmp_path: Path) -> None:
    story = TwoOperators(tmp_path)
    target = story.coordinator.view.components["b"].assignment.moved({0: "y"})
    by_hand = MigrationRequested(id="by hand", component="b", target=target)
    story.coordinator.migrate(by_hand)
    began_s = time.time()
    story.observe(10, at_s=began_s)
    (respected,) = (e for e in story.ports.events if isinstance(e, ManualOverrideRespected))
    assert respected.what == "migration of b"
    story.coordinator.cancel("by hand", "the test has seen it")
    story.observe(10, at_s=began_s + 59.0)
    assert "RegroupingStarted" not in story.ports.told()
    story.observe(10, at_s=began_s + 61.0)
    assert "RegroupingStarted" in story.ports.told()


@pytest.mark.parametrize("change", ["migration of a", "components of a"])
def test_no_policy_reverses_what_a_user_did_while_it_was_deciding(
    tmp_path: Path, change: str
) -> None:
    story, policy = TwoOperators(tmp_path), Columns()
    policy.gain = 1e9
    story.decide_by(policy)
    story.overrides.record([change], time.time())
    story.observe(10)
    assert story.deciding.take_repartitioning() is None
    (skipped,) = (e for e in story.ports.events if isinstance(e, DecisionSkipped))
    assert skipped.reason == "it was decided by hand"


def test_changes_that_fail_are_not_left_alone(tmp_path: Path) -> None:
    story = TwoOperators(tmp_path)
    with story.deciding.manual_change(["hot keys of a"]):
        pass  # the change was refused
    assert story.overrides.seconds_left(time.time()) == {}


def test_what_was_decided_on_other_components_is_not_asked_for(tmp_path: Path) -> None:
    story = TwoOperators(tmp_path)
    before = story.flow
    story.observe(10)
    (made,) = story.coordinator.plan.components
    assert made.name == "a+b"
    story.decide_by(Parting())
    story.observe(10)  # of the epoch that ran before the plan changed
    assert story.flow is before
    assert [c.name for c in story.coordinator.plan.components] == ["a+b"]
    story.flow = before.with_plan(story.coordinator.plan)
    story.observe(10)
    assert [c.name for c in story.coordinator.plan.components] == ["a", "b"]


def test_columns_are_changed_where_epochs_gain_more_than_they_wait(tmp_path: Path) -> None:
    story, policy = TwoOperators(tmp_path), Columns()
    story.decide_by(policy)
    story.observe(10)
    assert story.deciding.take_repartitioning() is None
    (skipped,) = (e for e in story.ports.events if isinstance(e, DecisionSkipped))
    assert skipped.reason == "it costs more than it gains"
    policy.gain = 1e9
    story.observe(10)
    proposal = story.deciding.take_repartitioning()
    assert proposal is not None
    assert proposal.change == Repartition(operator="a", columns=("k",))
    assert story.deciding.take_repartitioning() is None


def test_a_policy_that_raises_is_told_of_and_the_epoch_goes_on(tmp_path: Path) -> None:
    class Broken(Parting):
        def observe(self, epoch: FlowEpoch) -> None:
            raise KeyError(epoch.outcome.epoch)

    story = TwoOperators(tmp_path)
    story.decide_by(Broken())
    story.observe(10)  # it is committed, and would not be delivered
    (failed,) = (e for e in story.ports.events if isinstance(e, BackgroundFailed))
    assert (failed.what, failed.error) == ("deciding on components", "KeyError: 0")


class Parting:
    """Always wants operators apart."""

    def observe(self, epoch: FlowEpoch) -> None:
        self.plan = epoch.flow.physical_plan

    def propose(self, now_s: float) -> Iterator[Proposal]:
        apart = Regroup(components={"a": ("a",), "b": ("b",)}, plan=self.plan)
        yield Proposal(subject="components", change=apart, reason="it says so")

    def answered(self, proposal: Proposal) -> None: ...


class Columns(Parting):
    """Always wants other key columns to place an operator."""

    gain = 1.0

    def observe(self, epoch: FlowEpoch) -> None:
        self.reverses = reversed_by_regrouping(epoch.flow, "a")

    def propose(self, now_s: float) -> Iterator[Proposal]:
        yield Proposal(
            subject="columns",
            change=Repartition(operator="a", columns=("k",)),
            reason="it pays",
            gain=self.gain,
            reverses=self.reverses,
        )
