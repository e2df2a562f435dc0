"""`godwit run`: pauses and budget of restarts; real processes that crash, err and are stopped."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from godwit.model.errors import CheckpointInUseError, InvalidFlowError, UserFunctionError
from godwit.ops.supervised import CANNOT_MEND, exit_status
from godwit.ops.supervision import OUT_OF_RESTARTS, RestartBudget, Restarts

if TYPE_CHECKING:
    from pathlib import Path

COUNTS_STARTS = """
import os, pathlib, signal, sys
log = pathlib.Path(sys.argv[1])
with log.open("a") as file:
    file.write("start\\n")
starts = len(log.read_text().split())
"""


def started(tmp_path: Path, program: str, *options: str) -> subprocess.Popen[str]:
    path = tmp_path / "app.py"
    path.write_text(COUNTS_STARTS + program)
    command = [sys.executable, "-m", "godwit.cli.main", "run", "--pause", "0", *options]
    return subprocess.Popen(
        [*command, str(path), str(tmp_path / "log"), "--an-option"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(tmp_path: Path, program: str, *options: str) -> tuple[int, int, str]:
    """Return exit status, number of starts and standard error of a supervised program."""
    with started(tmp_path, program, *options) as process:
        _, text = process.communicate(timeout=120)
    return process.returncode, len((tmp_path / "log").read_text().split()), text


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_long_run() -> None:
    restarts = Restarts(budget=RestartBudget(restarts=100), random=random.Random(1))
    pauses = [restarts.pause_s(float(n), 0.5) for n in range(8)]
    for pause, longest in zip(pauses, [0, 1, 2, 4, 8, 16, 32, 60], strict=True):
        assert pause is not None
        assert longest / 2 <= pause <= longest
    again = restarts.pause_s(1000.0, 500.0)
    assert again is not None
    assert again <= 1


def test_restarts_are_counted_within_the_window_alone() -> None:
    restarts = Restarts(budget=RestartBudget(restarts=2, window_s=100.0), random=random.Random(1))
    allowed = [restarts.pause_s(now_s, 1.0) is not None for now_s in (0, 50, 99, 100, 101, 150)]
    assert allowed == [True, True, False, True, False, True]


def test_errors_that_every_start_would_raise_have_a_status_of_their_own() -> None:
    assert exit_status(InvalidFlowError("", remedy="")) == CANNOT_MEND
    assert exit_status(SyntaxError()) == CANNOT_MEND
    assert exit_status(CheckpointInUseError("", remedy="")) == 1
    assert exit_status(UserFunctionError("", remedy="")) == 1
    assert exit_status(OSError()) == 1


def test_a_program_that_is_killed_is_started_again_until_it_ends_well(tmp_path: Path) -> None:
    program = "if starts < 3:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    program += "assert sys.argv[2] == '--an-option' and __name__ == '__main__'\n"
    status, starts, text = ended(tmp_path, program)
    assert (status, starts) == (0, 3)
    assert "app.py ended with signal SIGKILL" in text
    assert "restart 2 of 10" in text


def test_an_error_that_a_restart_cannot_mend_ends_the_supervisor(tmp_path: Path) -> None:
    program = "import godwit as gw\ngw.Flow('')\n"
    status, starts, text = ended(tmp_path, program)
    assert (status, starts) == (CANNOT_MEND, 1)
    assert "InvalidFlowError" in text
    assert "a restart cannot fix this error" in text


def test_without_restarts_left_the_supervisor_ends(tmp_path: Path) -> None:
    status, starts, text = ended(tmp_path, "raise OSError('no')\n", "--restarts", "1")
    assert (status, starts) == (OUT_OF_RESTARTS, 2)
    assert text.count("OSError: no") == 2
    assert "was restarted 1 times" in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_and_no_restart_follows(tmp_path: Path, number: int) -> None:
    program = (
        "def end(number, frame):\n    raise SystemExit(number)\n"
        "for number in (signal.SIGTERM, signal.SIGINT):\n    signal.signal(number, end)\n"
        "print('ready', flush=True)\nimport time\n"
        "for _ in range(2400):\n    time.sleep(0.05)\n"
    )
    with started(tmp_path, program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.communicate(timeout=120)
    assert process.returncode == number
    assert (tmp_path / "log").read_text().split() == ["start"]


def test_a_program_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "godwit.cli.main", "run", str(tmp_path / "no.py")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "does not exist" in refused.stderr
