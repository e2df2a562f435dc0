"""The tutorial, as its reader runs it: every block of Python, in order, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.spark_programs import environment_of_readers

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.mark.campaign
@pytest.mark.spark
def test_every_block_of_the_tutorial_runs_in_its_order(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    program = tmp_path / "tutorial.py"
    program.write_text("\n\n".join(blocks))
    ended = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=environment_of_readers(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-5000:]
    assert "zone 7" in ended.stdout
