"""A virtual environment for each peer, of pinned versions; made once, and kept."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PeerFailedError", "python_of"]


class PeerFailedError(Exception):
    """A peer that cannot be installed, or whose job fails; the table has the reason."""


def python_of(directory: Path, name: str, requirement: str, timeout_s: float = 1800.0) -> Path:
    """Return the Python of an environment, which is made unless it is there."""
    home = directory.absolute() / requirement
    python, complete = home / "bin" / "python", home / "complete"
    if complete.exists():
        return python
    print(f"{name}: installing {requirement} in {home}", flush=True)
    begin_s = time.monotonic()
    commands: tuple[list[str | Path], ...] = (
        [sys.executable, "-m", "venv", "--clear", home],
        [python, "-m", "pip", "install", "--quiet", requirement],
    )
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.CalledProcessError as error:
            last = error.stderr.strip().splitlines()[-1:] or [str(error)]
            raise PeerFailedError(f"cannot install {requirement}: {last[0]}") from error
        except subprocess.TimeoutExpired as error:
            raise PeerFailedError(
                f"cannot install {requirement}: not done after {timeout_s:.0f} s"
            ) from error
    complete.touch()
    print(f"{name}: installed in {time.monotonic() - begin_s:.0f} s", flush=True)
    return python
