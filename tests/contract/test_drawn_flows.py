"""A few drawn flows under the real conductor, whatever happens to them."""

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
