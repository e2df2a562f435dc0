"""The migration protocol against an adversary (the runtime it plays with: `UnreliableRuntime`).

Two drivers of one simulation: a Hypothesis state machine, whose failures shrink to short stories,
and long seeded walks with weights, which come much further into rare combinations.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.oracles.migration_runtime import ACTIONS, UnreliableRuntime
from tests.support.rounds import rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


class Drawn:
    """Choices of Hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def among(self, options: Sequence[T]) -> T:
        return self.data.draw(st.sampled_from(list(options)))

    def up_to(self, most: int) -> int:
        return self.data.draw(st.integers(0, most))


class Seeded:
    """Choices of a seeded generator."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)

    def among(self, options: Sequence[T]) -> T:
        return self.generator.choice(options)

    def up_to(self, most: int) -> int:
        return self.generator.randint(0, most)


class Adversary(RuleBasedStateMachine):
    runtime: UnreliableRuntime | None = None

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.runtime = UnreliableRuntime(Drawn(data))

    @rule(data=st.data(), action=st.sampled_from(sorted(ACTIONS)))
    def act(self, data: st.DataObject, action: str) -> None:
        getattr(self.runtime, action)(Drawn(data))

    @rule(data=st.data())
    def warm_and_report(self, data: st.DataObject) -> None:
        assert self.runtime is not None
        self.runtime.run_job(Drawn(data))
        self.runtime.deliver_report(Drawn(data))

    @rule(data=st.data())
    def run_an_epoch(self, data: st.DataObject) -> None:
        assert self.runtime is not None
        self.runtime.start_epoch(Drawn(data))
        self.runtime.commit_epoch(Drawn(data))

    def teardown(self) -> None:
        if self.runtime is not None:
            self.runtime.calm_down(Seeded(0))


Adversary.TestCase.settings = settings(
    derandomize=True, deadline=None, max_examples=rounds(8, 40), stateful_step_count=40
)
TestTheProtocolWithstandsAnAdversary = Adversary.TestCase


def walk(seed: int, *, steps: int, trouble: float) -> UnreliableRuntime:
    """Take `steps` weighted actions; `trouble` scales the weight of everything that destroys."""
    choices = Seeded(seed)
    runtime = UnreliableRuntime(choices)
    destructive = {"kill_executor", "restart_driver", "drain_executor", "lose_job", "lose_report"}
    weights = [w * trouble if name in destructive else w for name, w in ACTIONS.items()]
    for action in choices.generator.choices(list(ACTIONS), weights, k=steps):
        getattr(runtime, action)(choices)
    runtime.calm_down(choices)
    return runtime


@pytest.mark.parametrize("trouble", [0.1, 0.4, 1.0])
def test_long_walks_lose_nothing_and_come_to_rest(trouble: float) -> None:
    seen: Counter[str] = Counter()
    for seed in range(rounds(20, 40)):
        try:
            seen += walk(seed, steps=300, trouble=trouble).seen
        except Exception as error:
            error.add_note(f"walk(seed={seed}, steps=300, trouble={trouble})")
            raise
    # An adversary that never gets there proves nothing.
    for kind in (
        "KeyGroupsResumed",
        "KeyGroupsLoaded",
        "DropCopies",
        "EpochsReleased",
        "consumed",
        "stray",
        "rounds",
        "withdrawn",
        "report repeated",
        "lost in an epoch that committed",
        "live finished",
        "disruptive finished",
        "on_demand finished",
        "fetched on demand",
        "indexed",
        "stop_the_world finished",
        "live cancelled",
    ):
        assert seen[kind] >= 5, f"{kind} happened {seen[kind]} times: {seen}"
