"""Checkpoints that earlier versions wrote are read, and continued as if nothing had happened."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.golden.flows import FLOWS
from tests.golden.playing import Played, play_all, play_first, play_second, stored, unpack

from godwit.checkpoint.epochs import keep_epoch, take_back
from godwit.checkpoint.records import FORMAT, RELEASES
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main

STORED = stored()
# Of rows that arrive by several lanes; their order follows from the places of key groups.
BY_ARRIVAL = {"groups", "once", "late", "tables"}


@cache
def undisturbed(flow: str) -> Played:
    with TemporaryDirectory() as directory:
        return play_all(flow, Path(directory))


@pytest.mark.parametrize("name", STORED)
def test_a_stored_checkpoint_is_continued_like_an_undisturbed_run(
    name: str, tmp_path: Path
) -> None:
    """Also in another number of key groups."""
    flow, other = name.partition("/")[2], 20 if len(name) % 2 else 3
    for part in ("stored", "other"):
        unpack(STORED[name], tmp_path / part)
    assert main(["checkpoint", "verify", str(tmp_path / "stored")]) == 0
    continued = play_second(flow, tmp_path / "stored")
    assert continued.output == undisturbed(flow).output
    assert continued.states == undisturbed(flow).states
    continued = play_second(flow, tmp_path / "other", num_key_groups=other)
    output = undisturbed(flow).output
    assert continued.output.keys() == output.keys()
    for sink in output.keys() - (BY_ARRIVAL if flow == "changes" else set()):
        assert continued.output[sink] == output[sink]
    assert main(["checkpoint", "verify", str(tmp_path / "other")]) == 0


@pytest.mark.parametrize("flow", ["two_phase", "feedback", "own_sources"])
def test_a_kept_epoch_is_continued_like_an_undisturbed_run_after_later_ones_are_taken_back(
    flow: str, tmp_path: Path
) -> None:
    storage = CheckpointStorage.open(tmp_path / "ck")
    play_first(flow, tmp_path / "ck")
    keep_epoch(storage, "middle")
    play_second(flow, tmp_path / "ck")
    take_back(storage, "middle", "run")
    continued = play_second(flow, tmp_path / "ck")
    assert continued.output == undisturbed(flow).output
    assert continued.states == undisturbed(flow).states


def test_each_release_that_writes_the_format_has_stored_every_flow() -> None:
    assert set(STORED) == {f"{release}/{name}" for release in RELEASES[FORMAT] for name in FLOWS}
