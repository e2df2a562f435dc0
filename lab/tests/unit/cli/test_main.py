from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from godwit_lab.cli.plan_json import EXAMPLES

if TYPE_CHECKING:
    from pathlib import Path


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m godwit.cli.main plan schema assignment | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


def test_a_package_that_is_missed_only_when_it_is_used_says_what_to_install_too(
    tmp_path: Path,
) -> None:
    example = tmp_path / "example.json"
    example.write_text(json.dumps(EXAMPLES["assignment"]))
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from godwit.cli.main import main\n"
        f"raise SystemExit(main(['plan', 'ssm', {str(example)!r}, '--plot', 'plan.png']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install matplotlib" in done.stderr
    assert "Traceback" not in done.stderr
