"""A few drawn flows; `python -m tests.streams` plays as many as there is time for."""

from __future__ import annotations

import pytest
from tests.streams.playing import play, play_by_testing


@pytest.mark.parametrize(
    "seed", [2, 14, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in (34, 59, 19, 21))]
)
def test_a_drawn_flow_gives_what_plain_python_says(seed: int) -> None:
    assert play(seed) == []


@pytest.mark.parametrize("seed", [3, 8, 25])
def test_a_drawn_flow_that_is_played_by_testing_gives_what_plain_python_says(seed: int) -> None:
    assert play_by_testing(seed) == []
