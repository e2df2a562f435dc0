"""Scenarios in which resident lanes run the epochs, in turns with others on the same stores."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import pytest
from tests.contract.resident import Resident
from tests.contract.scenarios import SCENARIOS, drawn
from tests.contract.verdict import play
from tests.support.rounds import rounds

from godwit.checkpoint import partial_copies
from godwit.spark.resident import job, lanes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.contract.scenario import Scenario

CHOSEN = SCENARIOS[::6] if "GODWIT_LONG" in os.environ else SCENARIOS[6::12]
WAIT = "tasks of other jobs wait for task slots"


@pytest.mark.parametrize("scenario", CHOSEN, ids=str)
def test_lanes_that_stay_process_each_row_once_and_in_order(
    tmp_path: Path, scenario: Scenario
) -> None:
    run = Resident(tmp_path, deep=scenario.deep, policy=scenario.policy)
    try:
        play(scenario, run)
    finally:
        run.stop()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Resident]:
    scenario = drawn(11)
    run = Resident(tmp_path, deep=scenario.deep, policy=scenario.policy, seed=3, kills=True)
    yield run
    run.stop()


def test_lanes_that_are_killed_at_any_moment_leave_each_row_once_and_in_order(
    killed: Resident,
) -> None:
    play(drawn(11), killed)
    killed.stop()
    kinds = [kind for kind, _ in killed.announced]
    assert killed.worked > 3
    assert "ResidentLanesFailed" in kinds
    assert kinds.count("ResidentLanesStarted") > 1


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(rounds(2, 6)))
def test_lanes_that_are_killed_fetch_state_on_demand_and_leave_each_row_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(partial_copies, "FROM_BYTES", 0)  # which lanes get from the driver
    scenario = drawn(500 + seed, on_demand=True)
    run = Resident(tmp_path, deep=scenario.deep, policy=scenario.policy, seed=seed, kills=True)
    try:
        play(scenario, run)
    finally:
        run.stop()
    assert run.worked > 3


@pytest.mark.parametrize("kills", [False, True])
def test_lanes_that_share_a_task_leave_each_row_once_and_in_order(
    tmp_path: Path, *, kills: bool
) -> None:
    run = Resident(
        tmp_path, deep=drawn(11).deep, policy=drawn(11).policy, seed=3, kills=kills, num_slots=2
    )
    try:
        play(drawn(11), run)
    finally:
        run.stop()
    assert run.worked > 3


@pytest.mark.parametrize("kills", [False, True])
def test_lanes_that_the_system_chose_end_at_any_moment_and_leave_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, kills: bool
) -> None:
    for name, value in (("_CHOSEN_AFTER", 2), ("_WAITING_LOOKS", 1)):
        monkeypatch.setattr(lanes, name, value)
    for name in ("_CHOSEN_WITHIN_S", "_IDLE_S"):
        monkeypatch.setattr(lanes, name, math.inf)
    monkeypatch.setattr(job, "_WATCH_S", 0.005)
    scenario = drawn(11)
    run = Resident(
        tmp_path, deep=scenario.deep, policy=scenario.policy, seed=3, kills=kills, chosen=True
    )
    try:
        play(scenario, run)
    finally:
        run.stop()
    assert run.worked
    assert ("ResidentLanesEnded", {"reason": WAIT}) in run.announced


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(300, 300 + rounds(2, 3)))
def test_whatever_is_drawn_and_killed_lanes_that_stay_process_each_row_once(
    tmp_path: Path, seed: int
) -> None:
    scenario = drawn(seed)
    run = Resident(tmp_path, deep=scenario.deep, policy=scenario.policy, seed=seed, kills=True)
    try:
        play(scenario, run)
    finally:
        run.stop()
