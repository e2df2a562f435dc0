"""`godwit status`: text, JSON and exit status, from the journal and the lease alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.checkpoints import write_checkpoint
from tests.support.journal_story import BEGAN_S, epoch, event, story, write

from godwit.checkpoint.ownership import EXPIRY_S
from godwit.cli.main import main
from godwit.model import events
from godwit.ops.status import status_of

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.checkpoint.storage import CheckpointStorage


@pytest.fixture
def checkpoint(tmp_path: Path) -> CheckpointStorage:
    return write(write_checkpoint(tmp_path / "ck", name="delays", epochs=1), story())


def test_a_running_query_tells_its_epoch_and_how_far_it_is_behind(
    checkpoint: CheckpointStorage,
) -> None:
    write(checkpoint, [event(events.QueryStarted, epoch=5, name="delays"), epoch(6)])
    last_s = status_of(checkpoint)["last_entry_s"]
    status = status_of(checkpoint, now_s=lambda: last_s + 1)
    assert (status["flow"], status["state"], status["epoch"]) == ("delays", "running", 6)
    assert status["epoch_took_ms"] == 250.0
    assert status["epoch_requests"] == "1 list, 5 put"
    assert status["epoch_ended_s_ago"] == pytest.approx(1, abs=1)


def test_a_silent_query_without_a_lease_has_died_and_a_failed_one_says_why(
    checkpoint: CheckpointStorage,
) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    write(checkpoint, [event(events.QueryStarted, epoch=5, name="delays", resumed=True)])
    clocks: dict[str, Any] = {"monotonic_s": lambda: clock[0], "sleep": sleep}
    status = status_of(checkpoint, now_s=lambda: BEGAN_S + 100, **clocks)
    assert status["state"] == "died"
    assert clock[0] <= 2 * EXPIRY_S
    write(checkpoint, [event(events.QueryFailed, epoch=5, name="delays", error="the disk is full")])
    status = status_of(checkpoint, now_s=lambda: BEGAN_S + 100, **clocks)
    assert status["state"] == "failed"
    assert "the disk is full" in status["reason"]


def test_text_and_json_end_with_a_status_for_scripts(
    checkpoint: CheckpointStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(checkpoint, [event(events.QueryStopped, epoch=5, name="delays")])
    assert main(["status", str(tmp_path / "ck")]) == 1
    assert "state:                stopped" in capsys.readouterr().out
    assert main(["status", str(tmp_path / "ck"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "stopped"
    assert main(["status", str(tmp_path / "no")]) == 2
