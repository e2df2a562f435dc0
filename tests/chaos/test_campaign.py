"""A short campaign; ``python -m tests.chaos.campaign`` runs long ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.chaos.campaign import timed
from tests.chaos.campaign.__main__ import run_history
from tests.chaos.campaign.histories import draw_history

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.campaign]


def test_a_history_is_the_same_whenever_it_is_drawn() -> None:
    assert draw_history(3, 10) == draw_history(3, 10)
    assert draw_history(3, 10) != draw_history(4, 10)
    assert timed.draw_rounds(3, 10) == timed.draw_rounds(3, 10)
    assert timed.draw_rounds(3, 10) != timed.draw_rounds(4, 10)


def test_a_checkpoint_that_was_changed_stopped_and_killed_ends_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    assert run_history(7, 6, tmp_path) == []
