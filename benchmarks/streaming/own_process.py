"""Measurements that take a process of their own, since a process has one Spark context."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.options import temporary_directory

if TYPE_CHECKING:
    from pathlib import Path


def until_epoch(query: Any, epoch: int, timeout_s: float = 600) -> None:
    """Wait until a query has committed an epoch."""
    deadline = time.monotonic() + timeout_s
    while query.lastProgress is None or query.lastProgress["epoch"] < epoch:
        if query.exception() is not None:
            raise query.exception()
        if time.monotonic() > deadline:
            raise TimeoutError(f"epoch {epoch} was not reached in {timeout_s} s")
        time.sleep(0.02)


def in_a_process_of_its_own(module: str, name: str, source: Path, preload: int) -> dict[str, Any]:
    """Call a function of a module beside this one, and return what it measured."""
    program = (
        "import json, sys; from pathlib import Path\n"
        f"from benchmarks.streaming import {module}\n"
        "source, preload, work = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])\n"
        f"print('MEASURED ' + json.dumps({module}.{name}(source, preload, work)))"
    )
    with temporary_directory() as work:
        done = subprocess.run(
            [sys.executable, "-c", program, source, str(preload), work],
            capture_output=True,
            text=True,
            timeout=1200,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            check=False,
        )
        for line in done.stdout.splitlines():
            if line.startswith("MEASURED "):
                result: dict[str, Any] = json.loads(line.removeprefix("MEASURED "))
                return result
        raise RuntimeError(done.stderr[-3000:])
