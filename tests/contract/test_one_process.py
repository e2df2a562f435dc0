"""Every scenario in one process: the real coordinator, lanes, stores and checkpoint, no Spark."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.contract.one_process import Late, OneProcess
from tests.contract.scenarios import ON_DEMAND, REGROUPED, SCENARIOS, drawn
from tests.contract.verdict import play
from tests.support.bounds import evict_always
from tests.support.rounds import rounds

from godwit.checkpoint import partial_copies
from godwit.checkpoint.chains import choose_snapshots
from godwit.checkpoint.partial_copies import PartialCopies
from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
from godwit.engine import instructions
from godwit.store import local_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.scenario import Scenario

LONG = "GODWIT_LONG" in os.environ


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_whatever_happens_each_row_is_processed_once_and_in_order(
    tmp_path: Path, scenario: Scenario
) -> None:
    play(scenario, OneProcess(tmp_path, deep=scenario.deep, policy=scenario.policy))


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Fetch any state on demand, and in an epoch complete and snapshot one key group of each state.

    Returns for each time that key groups had no copy if they began with partial ones.
    """
    begun: list[bool] = []
    begin, complete = PartialCopies.begin, PartialCopies.complete_some

    def counted(copies: PartialCopies, *arguments: Any) -> None:
        begin(copies, *arguments)
        begun.append(copies.began)

    monkeypatch.setattr(partial_copies, "FROM_BYTES", 0)
    monkeypatch.setattr(local_store, "_MANY_KEYS", 2)
    choose = partial(choose_snapshots, min_changelog_bytes=1)
    monkeypatch.setattr(
        instructions, "choose_snapshots", lambda *a, **o: choose(*a, **{**o, "budget_bytes": 1})
    )
    monkeypatch.setattr(PartialCopies, "begin", counted)
    monkeypatch.setattr(
        PartialCopies, "complete_some", lambda own, here, _, used: complete(own, here, 0, used)
    )
    return begun


@pytest.mark.parametrize(
    "scenario",
    [
        *ON_DEMAND[::2],
        *(pytest.param(s, marks=pytest.mark.campaign) for s in ON_DEMAND[1::2]),
        *(
            pytest.param(drawn(seed, on_demand=True), marks=pytest.mark.campaign)
            for seed in range(300, 300 + rounds(3, 9))
        ),
        *(
            pytest.param(drawn(seed, on_demand=True, regrouped=True), marks=pytest.mark.campaign)
            for seed in range(400, 400 + rounds(1, 4))
        ),
    ],
    ids=str,
)
def test_whatever_happens_to_state_that_is_fetched_on_demand_the_rows_are_the_same(
    tmp_path: Path, scenario: Scenario, begun: list[bool]
) -> None:
    play(
        scenario,
        OneProcess(tmp_path, deep=scenario.deep, again=scenario.again, policy=scenario.policy),
    )
    assert any(begun)


@pytest.mark.parametrize(
    "scenario",
    [
        *ON_DEMAND[1::4],
        *SCENARIOS[3::20],
        *(
            pytest.param(s, marks=pytest.mark.campaign)
            for s in (*ON_DEMAND, *SCENARIOS[1::4], *REGROUPED[::2])
        ),
        *(
            pytest.param(drawn(seed, on_demand=True), marks=pytest.mark.campaign)
            for seed in range(500, 500 + rounds(3, 9))
        ),
    ],
    ids=str,
)
@pytest.mark.usefixtures("begun")
def test_whatever_happens_to_state_that_is_evicted_in_every_epoch_the_rows_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: Scenario
) -> None:
    evicted = evict_always(monkeypatch)
    play(
        replace(scenario, same_epochs=False, told=(), never=()),
        OneProcess(tmp_path, deep=scenario.deep, again=scenario.again, policy=scenario.policy),
    )
    assert sum(evicted) > 0


@pytest.mark.parametrize("scenario", SCENARIOS[::5] if LONG else SCENARIOS[5::10], ids=str)
def test_whatever_happens_before_an_epoch_is_delivered_it_is_delivered_once(
    tmp_path: Path, scenario: Scenario
) -> None:
    play(scenario, Late(tmp_path, deep=scenario.deep, policy=scenario.policy))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(rounds(3, 7)))
def test_whatever_is_drawn_each_row_is_processed_once_and_in_order(
    tmp_path: Path, seed: int
) -> None:
    scenario = drawn(seed)
    play(scenario, OneProcess(tmp_path, deep=scenario.deep, policy=scenario.policy))


def plan(**components: tuple[str, ...]) -> PhysicalPlan:
    return PhysicalPlan(
        components=tuple(ComponentPlan(name=n, operators=o) for n, o in components.items())
    )


DRAWN = range(100, 100 + rounds(5, 9))
DEEP = [scenario for scenario in SCENARIOS if scenario.deep]
SHARED = plan(order=("order", "totals", "again"), shards=("shards",))


@pytest.mark.parametrize(
    "scenario",
    [
        *(DEEP[::2] if LONG else DEEP[2::4]),
        *(
            pytest.param(s, marks=pytest.mark.campaign)
            for s in (
                *DEEP[1::2],
                *(s for s in map(drawn, DRAWN) if s.deep),
            )
        ),
    ],
    ids=str,
)
def test_whatever_happens_to_operators_that_share_a_component_the_rows_are_the_same(
    tmp_path: Path, scenario: Scenario
) -> None:
    run = OneProcess(tmp_path, deep=True, again=True, policy=scenario.policy, plan=SHARED)
    play(replace(scenario, again=True), run)
    assert run.flow.physical_plan == run.log.physical_plan == SHARED


@pytest.mark.parametrize(
    "scenario",
    [
        *REGROUPED,
        *(
            pytest.param(drawn(seed, regrouped=True), marks=pytest.mark.campaign)
            for seed in range(200, 200 + rounds(2, 4))
        ),
    ],
    ids=str,
)
def test_whatever_components_are_made_of_while_the_stream_runs_the_rows_are_the_same(
    tmp_path: Path, scenario: Scenario
) -> None:
    run = OneProcess(tmp_path, deep=scenario.deep, again=True, policy=scenario.policy)
    play(scenario, run)
    run.start(scenario.executors)
    assert run.log.physical_plan == run.flow.physical_plan == run.coordinator.plan
