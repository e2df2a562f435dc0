"""Every example runs to its end; each asserts its own result.  So does the tutorial."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.spark_programs import environment_of_readers

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.stem: path for path in (ROOT / "examples").glob("*.py")}
ALONE = "testing_a_flow"  # without Spark, which takes longer to start than what others do with it
_IN_TURN = """
import json
import runpy
import sys

for command in sys.argv[1:]:
    sys.argv = json.loads(command)
    runpy.run_path(sys.argv[0], run_name="__main__")
    print("ended:", command, flush=True)
"""


def ran(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=directory,
        env=environment_of_readers(directory),
        check=False,
    )


def test_the_example_without_spark_runs_to_its_end(tmp_path: Path) -> None:
    done = ran(tmp_path, str(EXAMPLES[ALONE]))
    assert done.returncode == 0, done.stderr[-3000:]


def tutorial(directory: Path) -> Path:
    """Write the tutorial as a program: every block of Python, in order."""
    page = (ROOT / "docs/tutorial.md").read_text()
    program = directory / "tutorial.py"
    program.write_text("\n\n".join(re.findall(r"(?ms)^```python\n(.*?)^```$", page)))
    return program


@pytest.mark.campaign
@pytest.mark.postgres
def test_the_other_examples_and_the_tutorial_run_to_their_ends_one_after_another(
    tmp_path: Path, postgres: str
) -> None:
    """They share a JVM, and each starts and stops a session of its own.

    Real job 4 runs on Spark, too, stopped halfway and started again; it stores its results in a
    database, reads the tables and compares.
    """
    others = [[str(EXAMPLES[name])] for name in sorted(EXAMPLES.keys() - {ALONE})]
    assert len(others) >= 3
    to_postgres = ["--spark", "--postgres", postgres, "--days", "3", "--epochs", "3"]
    delays = [str(EXAMPLES["delays"]), *to_postgres]
    commands = [json.dumps(c) for c in (*others, delays, [str(tutorial(tmp_path))])]
    done = ran(tmp_path, "-c", _IN_TURN, *commands)
    ended = [line[7:] for line in done.stdout.splitlines() if line.startswith("ended: ")]
    assert (done.returncode, ended) == (0, commands), done.stderr[-3000:]
    *_, by_delays, by_tutorial, _ = done.stdout.split("ended: ")
    assert "rows couriers" in by_delays
    assert "zone 7" in by_tutorial
