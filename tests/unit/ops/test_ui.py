"""`godwit ui` and `godwit report` on a checkpoint."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from tests.support.checkpoints import write_checkpoint
from tests.support.journal_story import story, write

from godwit.cli.main import main
from godwit.ops.arguments import opened_checkpoint
from godwit.ops.page.live_page import PageFeed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write(write_checkpoint(tmp_path / "ck", name="delays", epochs=1), story())
    return tmp_path / "ck"


def test_a_report_is_one_file(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run.html"
    assert main(["report", str(checkpoint), "-o", str(output)]) == 0
    assert capsys.readouterr().out.startswith(f"{output}: 6 points in time, ")
    page = output.read_text()
    assert "page.js" not in page
    assert "by_plane" in page


def test_a_report_needs_a_checkpoint_a_journal_and_a_place(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a checkpoint" in capsys.readouterr().err
    write_checkpoint(tmp_path / "new", name="delays", epochs=1)
    assert main(["report", str(tmp_path / "new")]) == 2
    assert "no journal" in capsys.readouterr().err
    assert main(["report", str(checkpoint), "-o", str(tmp_path / "no" / "run.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_ports_and_tokens_that_will_not_do_are_refused(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["ui", str(checkpoint), "--port", "70000"])
    assert "not between 0 and 65535" in capsys.readouterr().err
    assert main(["ui", str(checkpoint), "--port", "0", "--token", "short"]) == 2
    assert "The token of the live page" in capsys.readouterr().err
    assert main(["ui", str(checkpoint), "--host", "192.0.2.1", "--port", "0"]) == 2
    assert "cannot be served at 192.0.2.1" in capsys.readouterr().err


@pytest.mark.parametrize("others", [False, True])
def test_the_page_is_served_until_ctrl_c(checkpoint: Path, *, others: bool) -> None:
    host = ["--host", "0.0.0.0"] if others else []
    command = [sys.executable, "-m", "godwit.cli.main", "ui", str(checkpoint), "--port", "0", *host]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        found = re.search(r"at http://[^/]+:(\d+)/(\?token=\S+)? \(Ctrl-C ends it\)", said)
        assert found is not None, said
        assert (found[2] is not None) is others
        url = f"http://127.0.0.1:{found[1]}/frame?epoch=3{(found[2] or '').replace('?', '&')}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.status == 200
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("name", ["a b", "50%", "a%20b", "ünï", "[bold]x", "a;b&c?d=e#f", "'\"<i>"])
@pytest.mark.parametrize("spelling", ["{}", "file:{}", "./{}/"])
def test_awkward_paths_are_taken_as_they_are(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    spelling: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(write_checkpoint(tmp_path / name, name="delays", epochs=1), story())
    path = spelling.format(quote(str(tmp_path / name)) if spelling[0] == "f" else name)
    output = tmp_path / f"{name}.html"
    assert main(["report", path, "-o", str(output)]) == 0
    assert capsys.readouterr().out.startswith(f"{output}: 6 points in time, ")
    assert "by_plane" in output.read_text()
    assert main(["top", path, "--once"]) == 0
    assert capsys.readouterr().out.startswith("delays  stopped")
    feed = PageFeed(opened_checkpoint(path), flow="delays")
    assert [point.epoch for point in feed.look().state.points] == [0, 1, 2, 3, 4, 5]
