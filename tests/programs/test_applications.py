"""Every application equals its oracle while the controller moves it and executors are killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.programs.applications import APPLICATIONS, KILL_EVERY, PARTS
from tests.support.long_tests import minutes_long

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [
    pytest.mark.spark,
    pytest.mark.campaign,
    minutes_long,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17 or newer"),
]


def played(arguments: Sequence[str]) -> dict[str, int]:
    """Play an application in a process of its own, which fails if a result is wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.applications", *arguments],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-5000:]
    told: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_equals_its_oracle_while_executors_are_killed(
    name: str, tmp_path: Path
) -> None:
    told = played([name, str(tmp_path)])
    assert told["killed"] == PARTS // KILL_EVERY
    assert told["results"] > 0
