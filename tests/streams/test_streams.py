"""A few drawn flows; `python -m tests.streams` plays as many as there is time for."""

from __future__ import annotations

import pytest
from tests.streams.playing import play, play_by_testing


@pytest.mark.parametrize("seed", [2, 14])
def test_a_drawn_flow_gives_what_plain_python_says(seed: int) -> None:
    assert play(seed) == []


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(1_000, 1_200, 10))
def test_ten_drawn_flows_give_what_plain_python_says(first: int) -> None:
    played = {seed: play(seed) for seed in range(first, first + 10)}
    assert {seed: differences for seed, differences in played.items() if differences} == {}


@pytest.mark.parametrize("seed", [3, 8, 25])
def test_a_drawn_flow_that_is_played_by_testing_gives_what_plain_python_says(seed: int) -> None:
    assert play_by_testing(seed) == []
