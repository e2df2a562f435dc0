"""A few drawn flows under the real coordinator, whatever happens to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.contract.drawn_flows import play

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", [10, 23, 24, 32])
def test_a_drawn_flow_gives_what_plain_python_says_whatever_happens_to_it(
    tmp_path: Path, seed: int
) -> None:
    assert play(seed, tmp_path) == []


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(2_000, 2_050, 5))
def test_five_drawn_flows_give_what_plain_python_says_whatever_happens_to_them(
    tmp_path: Path, first: int
) -> None:
    played = {seed: play(seed, tmp_path / str(seed)) for seed in range(first, first + 5)}
    assert {seed: differences for seed, differences in played.items() if differences} == {}
