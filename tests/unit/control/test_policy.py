"""One loop decides for all policies, with one hysteresis and one rule for manual overrides."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from godwit.control.policy import Hysteresis, ManualOverrides, PolicyLoop
from godwit.engine.policies import Proposal
from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Iterable


class ScriptedPolicy:
    """A policy that proposes what it is told to, and an actor that does it or not."""

    def __init__(self, *proposals: Proposal) -> None:
        self.proposals = list(proposals)
        self.answers: list[str] = []
        self.done: list[Any] = []
        self.able, self.price = True, 0.0
        self.events: list[events.Event] = []
        self.overrides = ManualOverrides(60.0, announce=self.announce, stated=["pinned"])
        self.loop = PolicyLoop(self.overrides, announce=self.announce)

    def step(self, now_s: float) -> None:
        self.loop.step([self], self, now_s)

    def announce(self, kind: type[events.Event], **values: Any) -> None:
        self.events.append(kind(epoch=0, at_s=0.0, **values))

    def observe(self, epoch: int) -> None:
        raise NotImplementedError

    def propose(self, now_s: float) -> Iterable[Proposal]:
        for proposal in self.proposals:
            self.answers.append(f"proposed {proposal.subject}")
            yield proposal

    def answered(self, proposal: Proposal) -> None:
        self.answers.append(f"answered {proposal.subject}")

    def cost(self, proposal: Proposal) -> float:
        return self.price

    def act(self, proposal: Proposal) -> bool:
        if self.able:
            self.done.append(proposal.change)
        return self.able

    @property
    def skipped(self) -> list[tuple[str, str]]:
        return [(e.what, e.reason) for e in self.events if isinstance(e, events.DecisionSkipped)]


def test_proposals_are_decided_one_after_the_other_so_that_the_next_may_build_on_it() -> None:
    story = ScriptedPolicy(Proposal(subject="a", change=1), Proposal(subject="b", change=2))
    story.step(0.0)
    assert story.answers == ["proposed a", "answered a", "proposed b", "answered b"]
    assert story.done == [1, 2]


def test_what_cannot_be_done_now_is_not_answered() -> None:
    story = ScriptedPolicy(Proposal(subject="a", change=1))
    story.able = False
    story.step(0.0)
    assert story.answers == ["proposed a"]
    assert story.loop.skipped == {}


def test_what_costs_more_than_it_gains_is_answered_and_told_once_until_something_is_done() -> None:
    story = ScriptedPolicy(Proposal(subject="a", change=1, gain=5.0, numbers={"rows": 3.0}))
    story.price = 6.0
    story.step(0.0)
    story.step(1.0)
    assert story.skipped == [("a", "it costs more than it gains")]
    (event,) = story.events
    assert isinstance(event, events.DecisionSkipped)
    assert event.numbers == {"rows": 3.0, "gain": 5.0, "cost": 6.0}
    story.price = 5.0
    story.step(2.0)
    assert story.done == [1]
    story.price = 6.0
    story.step(3.0)
    assert len(story.skipped) == 2


def test_a_proposal_without_a_change_tells_why() -> None:
    story = ScriptedPolicy(Proposal(subject="balancing", reason="the load is balanced enough"))
    story.step(0.0)
    assert story.skipped == [("balancing", "the load is balanced enough")]
    assert story.done == []


@pytest.mark.parametrize("operator", ["pinned", "mine"])
def test_what_was_stated_or_decided_by_hand_is_left_alone(operator: str) -> None:
    story = ScriptedPolicy(
        Proposal(subject="a", change=1, reverses=frozenset({f"components of {operator}"}))
    )
    story.overrides.record(["components of mine"], 100.0)
    story.step(159.0)
    assert story.skipped == [("a", "it was decided by hand")]
    story.step(161.0)  # stated at the start: as long as the query runs
    assert story.done == ([1] if operator == "mine" else [])


def test_an_override_is_announced_once_and_lasts_from_when_it_was_last_under_way() -> None:
    story = ScriptedPolicy()
    for now_s in (0.0, 30.0, 60.0):
        story.overrides.record_ongoing(["migration of sum"], now_s)
    assert len(story.events) == 1
    assert story.overrides.holds("migration of sum", 119.0)
    assert not story.overrides.holds("migration of sum", 120.0)
    assert story.overrides.seconds_left(100.0) == {"migration of sum": 20.0}


def test_a_restart_respects_what_was_respected_and_no_clock_that_was_ahead() -> None:
    story = ScriptedPolicy()
    when: Any = {"epoch": 0, "at_s": 0.0}
    for what, until_s in (
        ("components of a", 40.0),
        ("scaling", 10_000.0),
        ("draining of x", 50.0),
    ):
        event = events.ManualOverrideRespected(what=what, until_s=until_s, **when)
        story.overrides.restore_from_event(event, 10.0)
    flow: Any = SimpleNamespace(components=())
    assert story.overrides.operators(flow, 39.0) == {"pinned", "a"}
    assert story.overrides.seconds_left(10.0) == {"components of a": 30.0, "scaling": 60.0}


def test_a_change_counts_once_evaluations_in_a_row_agree() -> None:
    hysteresis = Hysteresis(confirm=2)
    said = [hysteresis.is_confirmed("s", change) for change in ("a", "b", "b", "b", None, "b", "b")]
    assert said == [False, False, True, True, False, False, True]
    hysteresis.reset("s")
    assert not hysteresis.is_confirmed("s", "b")
    assert not hysteresis.is_confirmed("other", "b")


def test_after_a_change_a_subject_rests_and_is_confirmed_anew() -> None:
    hysteresis = Hysteresis(confirm=2, rest_s=30.0)
    assert hysteresis.cooling_down("s", -math.inf) == ""
    hysteresis.is_confirmed("s", "in")
    hysteresis.record("s", "out", 100.0)
    assert (hysteresis.cooling_down("s", 129.0), hysteresis.cooling_down("s", 130.0)) == ("out", "")
    assert not hysteresis.is_confirmed("s", "in")
    assert hysteresis.is_confirmed("s", "in")
