"""Checkpoints that earlier versions wrote are read, and continued as if nothing had happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.golden.flows import FLOWS
from tests.golden.playing import play_all, play_second, stored, unpack

from godwit.checkpoint.records import FORMAT, RELEASES
from godwit.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

STORED = stored()


@pytest.mark.parametrize("name", STORED)
def test_a_stored_checkpoint_is_continued_like_an_undisturbed_run(
    name: str, tmp_path: Path
) -> None:
    unpack(STORED[name], tmp_path / "stored")
    assert main(["checkpoint", "verify", str(tmp_path / "stored")]) == 0
    flow = name.partition("/")[2]
    continued = play_second(flow, tmp_path / "stored")
    undisturbed = play_all(flow, tmp_path / "undisturbed")
    assert continued.output == undisturbed.output
    assert continued.states == undisturbed.states


def test_each_release_that_writes_the_format_has_stored_every_flow() -> None:
    assert set(STORED) == {f"{release}/{name}" for release in RELEASES[FORMAT] for name in FLOWS}
