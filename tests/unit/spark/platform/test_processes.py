"""Processes of this machine are found whatever they are called."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from godwit.ops.local_cluster import children_of

if TYPE_CHECKING:
    from pathlib import Path


def test_children_are_found_beside_a_process_whose_name_is_cut_within_a_character(
    tmp_path: Path,
) -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    program = tmp_path / "ééééééééé"  # 18 bytes, of which the kernel keeps 15
    shutil.copy(sleep, program)
    child = subprocess.Popen([str(program), "60"])
    try:
        assert child.pid in children_of(os.getpid())
    finally:
        child.kill()
        child.wait()
