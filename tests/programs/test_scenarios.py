"""A scenario as a user plays it: real executors, without the controller and with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.long_tests import minutes_long

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.spark,
    pytest.mark.campaign,
    minutes_long,
    pytest.mark.skipif(
        shutil.which("java") is None and "JAVA_HOME" not in os.environ,
        reason="Spark needs Java 17 or newer",
    ),
]


# The others differ in when rows come and in the function alone, which is tested without Spark.
def test_no_row_is_lost_whatever_the_controller_does(tmp_path: Path) -> None:
    measured, work_dir = tmp_path / "measured.json", tmp_path / "work"
    asked = ["--scenario", "skew", "--seconds", "15", "--controller", "on"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "godwit.cli.main", "demo", *asked),
            *("--work-dir", str(work_dir), "--json", str(measured)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "controller on: equal to the batch query" in done.stdout
    assert (work_dir / "scenario.png").read_bytes().startswith(b"\x89PNG")
    (run,) = json.loads(measured.read_text())["runs"]
    assert run["equal"]
    assert run["rows"] == run["rows_in_all"]
    assert len(run["imbalance"]) == len(run["executors"]) == len(run["epochs"])
