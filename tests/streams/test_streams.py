"""A few drawn flows; `python -m tests.streams` plays as many as there is time for."""

from __future__ import annotations

import pytest
from tests.streams.covering import covering
from tests.streams.playing import play, play_by_testing


@pytest.mark.parametrize("seed", [2, 14])
def test_a_drawn_flow_gives_what_plain_python_says(seed: int) -> None:
    assert play(seed) == []


GROUPS = 12


@pytest.mark.campaign
@pytest.mark.parametrize("group", range(GROUPS))
def test_ten_drawn_flows_give_what_plain_python_says(group: int) -> None:
    """Twelve times ten flows, which have every pair of things that two hundred have."""
    played = {seed: play(seed) for seed in covering(1_000, 200)[group::GROUPS]}
    assert {seed: differences for seed, differences in played.items() if differences} == {}


@pytest.mark.parametrize("seed", [3, 8, 25])
def test_a_drawn_flow_that_is_played_by_testing_gives_what_plain_python_says(seed: int) -> None:
    assert play_by_testing(seed) == []
