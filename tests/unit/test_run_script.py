"""`./run` installs by uv where pip has no index of its own, and by pip otherwise."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PYTHON = """#!/bin/sh
printf '%s\\n' "$*" >>"$CALLS"
case "$*" in
  "-m pip config list") [ -z "$INDEX" ] || printf "global.index-url='%s'\\n" "$INDEX" ;;
  "-m uv "*) exit "$UV_STATUS" ;;
esac
"""
"""An environment's Python that writes down what it is called with, and installs nothing."""


@pytest.mark.parametrize(
    ("index", "uv_status", "installers"),
    [("", 0, ["uv"]), ("", 1, ["uv", "pip"]), ("http://localhost/simple", 0, ["pip"])],
)
def test_the_environment_is_installed_by_uv_or_else_by_pip(
    tmp_path: Path, index: str, uv_status: int, installers: list[str]
) -> None:
    shutil.copy(ROOT / "run", tmp_path)
    for name in ("pyproject.toml", "lab/pyproject.toml", "venv/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(_PYTHON if name.startswith("venv") else "")
    (tmp_path / "venv/bin/python").chmod(0o755)
    calls = tmp_path / "calls"
    settings = {"CALLS": calls, "INDEX": index, "UV_STATUS": uv_status, "VENV": tmp_path / "venv"}
    environment = os.environ | {name: str(value) for name, value in settings.items()}
    for _ in range(2):  # the second call has nothing to install
        done = subprocess.run(["./run", "true"], cwd=tmp_path, env=environment, check=False)
        assert done.returncode == 0
    installs = [call.split() for call in calls.read_text().splitlines() if "-e lab" in call]
    assert [install[1] for install in installs] == installers
    assert all(install[-4:] == ["-e", ".[dev]", "-e", "lab"] for install in installs)
