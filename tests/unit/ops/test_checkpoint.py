from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.checkpoints import write_checkpoint

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.journal import JournalWriter
from godwit.checkpoint.ownership import acquire_lease
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.model import events

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Make a checkpoint with two epochs, each in a block file of its own."""
    write_checkpoint(tmp_path / "ck", name="[bold]flow", epochs=2)
    return tmp_path / "ck"


def damage(checkpoint: Path) -> None:
    path = next(p for p in sorted((checkpoint / "blocks").rglob("*")) if p.is_file())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def test_inspect_says_whose_it_is_and_what_state_it_holds(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "inspect", str(checkpoint)]) == 0
    told = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "flow [bold]flow" in told
    assert "last run some-run" in told
    assert "retained epochs 0 to 1" in told
    (state,) = [line for line in told if line.startswith("op ")]
    assert state.startswith("op state 2 0 0 B ")
    assert state.endswith(" 2.0 2 0")


def test_inspect_as_json_has_the_same_figures(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "inspect", str(checkpoint), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["flow"], values["num_key_groups"]) == ("[bold]flow", 4)
    assert values["epochs"] == [0, 1]
    (operator,) = values["states"]
    assert (operator["key_groups"], operator["max_segments"]) == (2, 2)


def test_inspect_shows_the_tail_of_the_journal_and_leaves_out_what_it_cannot_tell(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = JournalWriter(CheckpointStorage.open(checkpoint), "some-run")
    for number in range(30):
        stopped = events.QueryStopped(epoch=number, at_s=1.5 + number, name="[bold]q\x1b[2J")
        writer.add("event", stopped.to_dict())
    for strange in (
        {"kind": "OfTheFuture"},
        {"kind": "QueryStopped"},
        {"kind": "QueryStopped", "epoch": 1, "at_s": 1e300, "name": "q"},
        {"kind": "QueryStopped", "epoch": 1, "at_s": "soon", "name": "q"},
    ):
        writer.add("event", strange)
    writer.add("outcome", {"epoch": 3})
    writer.flush()
    assert main(["checkpoint", "inspect", str(checkpoint)]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "stopped after" in line]
    assert len(told) == 15  # of the last twenty entries
    assert told[-1] == (
        "1970-01-01T00:00:30.500+00:00 query [bold]q\\x1b[2J stopped after epoch 29"
    )
    assert main(["checkpoint", "inspect", str(checkpoint), "--json"]) == 0
    journal = json.loads(capsys.readouterr().out)["journal"]
    assert len(journal) == 20
    assert journal[-1] == {"outcome": {"epoch": 3}}


def test_a_whole_checkpoint_is_status_zero(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "verify", str(checkpoint)]) == 0
    assert "whole; epochs 0 to 1; checked" in capsys.readouterr().out
    assert main(["checkpoint", "verify", str(checkpoint), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["ok"], values["findings"], values["blocks"]) == (True, [], 2)


def test_a_damaged_checkpoint_is_status_one_and_names_the_file(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(checkpoint)
    assert main(["checkpoint", "verify", str(checkpoint)]) == 1
    told = capsys.readouterr().out
    assert "1 problem;" in told
    assert "blocks/" in told
    assert main(["checkpoint", "verify", str(checkpoint), "--json"]) == 1
    values = json.loads(capsys.readouterr().out)
    assert not values["ok"]
    assert values["findings"][0]["file"].startswith("blocks/")


@pytest.mark.parametrize("action", ["inspect", "verify"])
def test_a_directory_that_is_no_checkpoint_is_status_two(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nothing"
    for path in (tmp_path, missing):
        assert main(["checkpoint", action, str(path)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"godwit checkpoint: '{path}' is not a checkpoint")
    assert not missing.exists()


@pytest.mark.parametrize("action", ["inspect", "verify"])
def test_a_name_cannot_give_orders_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    hostile = "\x1b[2Jflow\x07\x9b31m\u202egpj"
    write_checkpoint(tmp_path / "ck", name=hostile, epochs=2)
    for name in ("ck", "nowhere\x1b[2J"):
        main(["checkpoint", action, str(tmp_path / name)])
        said = capsys.readouterr()
        assert all(char.isprintable() or char == "\n" for char in said.out + said.err)


def test_unlock_says_who_holds_it_and_takes_it_only_by_force(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = acquire_lease(CheckpointStorage.open(checkpoint), "the-run")
    assert main(["checkpoint", "unlock", str(checkpoint)]) == 1
    assert "held by run 'the-run' (process" in capsys.readouterr().out
    assert main(["checkpoint", "unlock", str(checkpoint), "--force"]) == 0
    assert main(["checkpoint", "unlock", str(checkpoint)]) == 0
    assert "no query holds it" in capsys.readouterr().out
    lease.release()


def test_repair_says_what_it_would_do_and_does_it_only_when_told(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "repair", str(checkpoint)]) == 0
    assert "nothing to repair" in capsys.readouterr().out
    stray = checkpoint / "commits/000000000099.rec"
    stray.write_bytes(b"")
    assert main(["checkpoint", "repair", str(checkpoint)]) == 1
    said = capsys.readouterr().out
    assert "commits/000000000099.rec: It is later than epoch 1" in said
    assert "Nothing was changed; use --apply to do it." in said
    assert stray.exists()
    lease = acquire_lease(CheckpointStorage.open(checkpoint), "the-run")
    assert main(["checkpoint", "repair", str(checkpoint), "--apply"]) == 2
    assert "in use by run 'the-run'" in capsys.readouterr().err
    lease.release()
    assert main(["checkpoint", "repair", str(checkpoint), "--apply"]) == 0
    assert not stray.exists()
    assert main(["checkpoint", "verify", str(checkpoint)]) == 0


def test_repair_says_which_epochs_it_takes_back_and_that_the_rest_can_be_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "ck"
    write_checkpoint(checkpoint, name="flow", epochs=5)
    (checkpoint / "commits/000000000003.rec").unlink()
    assert main(["checkpoint", "repair", str(checkpoint)]) == 1
    said = capsys.readouterr().out
    assert "This takes back epochs 3 to 4, whose output was delivered." in said
    assert main(["checkpoint", "repair", str(checkpoint), "--apply"]) == 0
    assert "can be started" in capsys.readouterr().out
    assert CommitLog.open_read_only(CheckpointStorage.open(checkpoint)).latest_epoch == 2
    assert main(["checkpoint", "verify", str(checkpoint)]) == 0


def test_repair_fails_where_the_checkpoint_cannot_be_started_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "ck"
    write_checkpoint(checkpoint, name="flow", epochs=2)
    lost = min((checkpoint / "blocks").iterdir())
    lost.unlink()
    for apply in ([], ["--apply"]):
        assert main(["checkpoint", "repair", str(checkpoint), *apply]) == 1
        assert f"cannot be started: blocks/{lost.name}" in capsys.readouterr().out


def test_a_damaged_last_record_is_given_up_only_where_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "ck"
    write_checkpoint(checkpoint, name="flow", epochs=5)
    last = checkpoint / "commits/000000000004.rec"
    last.write_bytes(last.read_bytes()[:-9])
    for apply in ([], ["--apply"]):
        assert main(["checkpoint", "repair", str(checkpoint), *apply]) == 1
        said = capsys.readouterr().out
        assert "nothing was done, since nothing can be repaired" in said
        assert "give up its epoch by --back-to" in said
        assert "step" not in said
    for epoch in ("2", "4", "-1"):
        assert main(["checkpoint", "repair", str(checkpoint), f"--back-to={epoch}"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"cannot be taken back to epoch {epoch}, only to epoch 3" in said
    assert last.exists()
    assert main(["checkpoint", "repair", str(checkpoint), "--back-to=3"]) == 1
    said = capsys.readouterr().out
    assert "This takes back epoch 4, whose output was delivered." in said
    assert last.exists()
    assert main(["checkpoint", "repair", str(checkpoint), "--back-to=3", "--apply"]) == 0
    assert "can be started" in capsys.readouterr().out
    log = CommitLog.open_read_only(CheckpointStorage.open(checkpoint))
    assert (log.latest_epoch, log.retained_epochs) == (3, range(3, 4))
    assert main(["checkpoint", "verify", str(checkpoint)]) == 0


def test_a_whole_checkpoint_cannot_be_taken_back(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "repair", str(checkpoint), "--back-to=0", "--apply"]) == 2
    assert "to no epoch" in " ".join(capsys.readouterr().err.split())
    assert main(["checkpoint", "repair", str(checkpoint)]) == 0
