"""Which executor this Python process belongs to, and where its local store lies."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["current_executor", "local_store_root"]


def current_executor(expected: str) -> str:
    """Name of the executor this Python process belongs to.

    Spark does not tell Python; the executor's own command line does (standalone, YARN and
    Kubernetes start it with ``--executor-id``).  Where it cannot be read, `expected` is believed.
    """
    if expected.startswith("local-"):
        return expected
    pid = os.getpid()
    for _ in range(4):  # this process, the forking daemon, the executor's JVM
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return expected
        if b"--executor-id" in arguments:
            return arguments[arguments.index(b"--executor-id") + 1].decode()
        pid = int(re.sub(r"^.*\) ", "", status, flags=re.DOTALL).split()[1])
        if pid <= 1:
            break
    return expected


def local_store_root(local_dir: str | None, run_id: str, executor: str) -> Path:
    """Directory of the local store of one executor in one run.

    By default it lies in the executor's own block directory (which Spark names to its Python
    processes, and removes with the executor).  ``<query>-<run>`` is the form of `run_id`: all runs
    of one query are neighbours, so a later run can remove what an earlier one left behind.
    """
    query, _, run = run_id.partition("-")
    if local_dir is None:
        block_dirs = os.environ.get("SPARK_LOCAL_DIRS", "")
        local_dir = block_dirs.split(",")[0] or "/tmp"  # noqa: S108  Spark's own last resort
    return Path(local_dir) / f"godwit-{query}" / run / executor
