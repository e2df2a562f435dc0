"""A few drawn flows under the real coordinator, whatever happens to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.contract.drawn_flows import play
from tests.streams.covering import covering
from tests.support.rounds import rounds

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", [10, 23, 24, 32][: rounds(2, 4)])
def test_a_drawn_flow_gives_what_plain_python_says_whatever_happens_to_it(
    tmp_path: Path, seed: int
) -> None:
    assert play(seed, tmp_path) == []


GROUPS = 5
DRAWN = rounds(12, 50)


@pytest.mark.campaign
@pytest.mark.parametrize("group", range(GROUPS))
def test_drawn_flows_give_what_plain_python_says_whatever_happens_to_them(
    tmp_path: Path, group: int
) -> None:
    seeds = covering(DRAWN, most_operators=2)[group::GROUPS]
    played = {seed: play(seed, tmp_path / str(seed)) for seed in seeds}
    assert {seed: differences for seed, differences in played.items() if differences} == {}
