"""Every scenario in virtual time: the real coordinator over a simulated cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lab.tests.contract.in_simulator import InSimulator
from tests.contract.scenarios import SCENARIOS, drawn
from tests.contract.verdict import play
from tests.support.rounds import rounds

if TYPE_CHECKING:
    from tests.contract.scenario import Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_whatever_happens_each_row_is_processed_once_and_in_order(scenario: Scenario) -> None:
    play(scenario, InSimulator(deep=scenario.deep, policy=scenario.policy))


@pytest.mark.parametrize("seed", range(rounds(10, 40)))
def test_whatever_is_drawn_each_row_is_processed_once_and_in_order(seed: int) -> None:
    scenario = drawn(seed)
    play(scenario, InSimulator(deep=scenario.deep, policy=scenario.policy))
