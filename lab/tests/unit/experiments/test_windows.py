"""Windows of paper 3's figure 7."""

from __future__ import annotations

import pytest

from godwit_lab.experiments.paper3.figure7 import consolidated

FOUR = [(5, 5), (10, 10), (15, 15), (20, 20)]


@pytest.mark.parametrize(
    ("kinds", "minutes", "most"),
    [(FOUR, 1, 86), ([(20, 1)], 2, 420), ([(20, 20), (30, 30)], 7, 66)],
)
def test_partials_of_an_hour_are_few(kinds: list[tuple[int, int]], minutes: int, most: int) -> None:
    partials = consolidated(minutes, *kinds, stay=True)
    assert partials <= most < consolidated(minutes, *kinds, stay=False)
