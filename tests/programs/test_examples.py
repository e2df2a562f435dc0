"""Every example runs to its end; each asserts its own result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

QUICK = {"order_book", "testing_a_flow"}
# The others start Spark as well, half a minute each.
EXAMPLES = [
    pytest.param(path, marks=[] if path.stem in QUICK else pytest.mark.campaign, id=path.stem)
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
]


@pytest.mark.spark
@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs_to_its_end(example: Path) -> None:
    done = subprocess.run(
        [sys.executable, example],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
