from __future__ import annotations

import subprocess
import sys

import pytest

import godwit
from godwit.cli.main import main, parser
from godwit.model.errors import CheckpointError


def test_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"godwit {godwit.__version__}\n"


def test_help_names_every_command_with_what_it_is_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    told = capsys.readouterr().out
    for command in ("godwit demo", "godwit checkpoint verify PATH", "godwit plan compare"):
        assert command in told


def test_no_command_shows_the_help_and_is_status_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "start here:" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["demo", "checkpoint", "plan"])
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args([command, "--help"])
    assert stopped.value.code == 0
    assert f"usage: godwit {command}" in capsys.readouterr().out


def test_an_error_is_one_message_and_its_traceback_comes_on_request(
    tmp_path: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["checkpoint", "inspect", str(tmp_path)]
    assert main(asked) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "Traceback" not in told
    with pytest.raises(CheckpointError):
        main(["--traceback", *asked])


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m godwit.cli.main plan schema problem | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")
