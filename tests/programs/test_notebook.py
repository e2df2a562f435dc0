"""The example notebook runs in a kernel of Jupyter, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples/first_flow.ipynb"
EXECUTE = Path(sys.executable).with_name("jupyter-execute")


@pytest.mark.skipif(not EXECUTE.exists(), reason="a notebook needs nbclient and ipykernel")
def test_the_notebook_runs_in_a_kernel_and_shows_graph_plan_and_rows(tmp_path: Path) -> None:
    done = tmp_path / "done.ipynb"
    options = ["--timeout=300", "--startup_timeout=300", f"--output={done}"]
    ran = subprocess.run(
        [EXECUTE, *options, NOTEBOOK], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    cells = json.loads(done.read_text())["cells"]
    shown = [output for cell in cells for output in cell.get("outputs", [])]
    assert all(output["output_type"] != "error" for output in shown)
    pages = ["".join(output.get("data", {}).get("text/html", "")) for output in shown]
    assert sum("<svg" in page for page in pages) == 2  # the flow, and its plan
    assert any("Ada" in json.dumps(output) for output in shown)
