"""Facts about key groups that migrate by turning to their other slot."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.migration import Policy, Strategy, messages
from godwit.migration.coordinator import Coordinator
from godwit.migration.messages import MigrationRequested, SlotPair
from godwit.model.assignment import even_assignment
from godwit.model.errors import MigrationError

FIRST, SECOND = ("w", "first"), ("w", "second")
GROUPS = range(6)


class Ports:
    """Take note of what is asked for."""

    def __init__(self) -> None:
        self.warmed: list[Any] = []

    def warm(self, order: Any) -> None:
        self.warmed.append(order)

    def drop(self, order: Any) -> None: ...

    def announce(self, event: Any) -> None: ...

    def now_s(self) -> float:
        return 0.0


def coordinator(**empty: set[int]) -> tuple[Coordinator, Ports]:
    """Two slots of six key groups on three executors, and sums that have none."""
    executors = {"a": 1, "b": 1, "c": 1}
    first = even_assignment(len(GROUPS), list(executors), [1, 1, 1])
    ports = Ports()
    pair = SlotPair(
        states=(FIRST, SECOND), empty=(empty.get("first", set()), empty.get("second", set(GROUPS)))
    )
    started = messages.RunStarted(
        run_id="r",
        executors=executors,
        assignments={"w": first, "w_second": first, "sums": first},
        slots=(pair,),
    )
    states = {"w": (FIRST,), "w_second": (SECOND,), "sums": (("sums", "state"),)}
    return Coordinator(started, states=states, policy=Policy(), ports=ports), ports


def migrate(run: Coordinator, component: str, to: str, strategy: Strategy) -> None:
    current = run.view.components[component].assignment
    target = current.moved(dict.fromkeys(GROUPS, to))
    run.migrate(MigrationRequested(id="m", component=component, target=target, strategy=strategy))


def taken(run: Coordinator, component: str) -> set[int]:
    return set(run.view.components[component].takes or ())


def test_key_groups_turn_between_two_epochs_and_nothing_is_warmed() -> None:
    run, ports = coordinator()
    run.begin(0)
    there = set(run.view.components["w"].assignment.key_groups("c").tolist())
    migrate(run, "w", "c", Strategy.INSTANT)
    assert taken(run, "w") == set(GROUPS)  # an epoch runs
    run.abort(0, "to see the next one")
    assert taken(run, "w") == there
    assert taken(run, "w_second") == set(GROUPS) - there
    plans = run.begin(0)
    assert plans is not None
    assert plans["w_second"].takes == frozenset(GROUPS) - there
    assert plans["w_second"].smooth == set()
    assert plans["sums"].takes is None
    second = plans["w_second"].assignment
    assert {second.executor(g) for g in set(GROUPS) - there} == {"c"}
    assert ports.warmed == []


def test_a_plan_says_which_key_groups_turned_smoothly() -> None:
    run, _ = coordinator()
    migrate(run, "w", "c", Strategy.SMOOTH)
    plans = run.begin(0)
    assert plans is not None
    assert plans["w_second"].takes
    assert plans["w_second"].smooth == plans["w_second"].takes


@pytest.mark.parametrize(
    "why", ["its other slot is not empty", "its executor is draining", "its other slot is cold"]
)
def test_what_cannot_turn_migrates_live(why: str) -> None:
    run, _ = coordinator(second=set() if "not empty" in why else set(GROUPS))
    if "draining" in why:
        run.drain("a")
        run.drain("b")
    if "cold" in why:
        run.begin(0)
        run.abort(0, "nothing")
        run._protocol._components["w_second"].suspended.update(dict.fromkeys(GROUPS, -1))
    migrate(run, "w", "c", Strategy.INSTANT)
    assert taken(run, "w") == set(GROUPS)
    assert run.view.components["w"].migration == "m" or run.ended("m") is not None


def test_others_see_which_key_groups_would_migrate_without_their_state() -> None:
    run, _ = coordinator(second={0, 1, 2})
    seen = run.view.components
    assert seen["w"].instant == {0, 1, 2}
    assert seen["w_second"].instant == seen["sums"].instant == set()
    run.drain("a")
    assert run.view.components["w"].instant == {
        g for g in (0, 1, 2) if seen["w"].assignment.executor(g) != "a"
    }


@pytest.mark.parametrize("strategy", [Strategy.INSTANT, Strategy.SMOOTH])
def test_components_without_slots_refuse(strategy: Strategy) -> None:
    run, _ = coordinator()
    with pytest.raises(MigrationError, match=f"by strategy '{strategy}'") as refused:
        migrate(run, "sums", "c", strategy)
    assert "consolidate='apart'" in refused.value.remedy
    assert run.view.components["sums"].migration is None
    assert run.view.components["sums"].default_strategy is Strategy.LIVE
    assert run.view.components["w"].default_strategy is Strategy.INSTANT
