"""Indexes of few rows that grow in steps, as those of millions do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.store import image, index

if TYPE_CHECKING:
    import pytest


def index_grows_in_steps_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let indexes from four slots on move their entries two home slots at a time."""
    monkeypatch.setattr(image, "_FEWEST_SLOTS", 4)
    monkeypatch.setattr(image, "_GROWS_IN_STEPS", 4)
    monkeypatch.setattr(image, "_STEP_SLOTS", 2)
    monkeypatch.setattr(index, "_COPIED_SLOTS", 2)
