"""Every example runs to its end; each asserts its own result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

# As users run them. The others start Spark as well, which takes longer than what they do with it.
ALONE = ("order_book", "testing_a_flow")
EXAMPLES = {path.stem: path for path in (Path(__file__).parents[2] / "examples").glob("*.py")}
_IN_TURN = """
import runpy
import sys

for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
    print("ended:", path, flush=True)
"""


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
    )


@pytest.mark.parametrize("example", ALONE)
def test_example_runs_to_its_end(example: str) -> None:
    done = ran(str(EXAMPLES[example]))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.campaign
def test_the_other_examples_run_to_their_ends_one_after_another() -> None:
    """They share a JVM, and each starts and stops a session of its own."""
    others = [str(EXAMPLES[name]) for name in sorted(EXAMPLES.keys() - {*ALONE})]
    assert len(others) >= 3
    done = ran("-c", _IN_TURN, *others)
    ended = [line[7:] for line in done.stdout.splitlines() if line.startswith("ended: ")]
    assert (done.returncode, ended) == (0, others), done.stderr[-3000:]
