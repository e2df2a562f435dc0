"""The executors of the application: who is there, what they are called, where a task can be put.

In a cluster an executor's name is Spark's executor id.  In ``local[n]`` there is one process; there
each core counts as an executor of its own, with a local store of its own, so that a flow behaves
the same on a laptop: ``local-0``, ``local-1``, ...
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from godwit.model.errors import EpochFailedError

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = [
    "Executor",
    "current_executor",
    "insist_on_placement",
    "live_executors",
    "local_store_root",
    "wait_for",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """One executor.

    Attributes
    ----------
    name
        Spark's executor id, or ``local-<n>``.
    lanes
        Lanes it runs: its cores divided by ``spark.task.cpus``.
    location
        How a task's preferred location names it; ``None`` in local mode.
    """

    name: str
    lanes: int
    location: str | None


def live_executors(spark: SparkContext) -> tuple[Executor, ...]:
    """Executors that are registered and alive now, in the order of their names."""
    jsc: Any = spark._jsc.sc()  # noqa: SLF001  executors have no public Python API
    if jsc.isLocal() and not (spark.master or "").startswith("local-cluster"):
        return tuple(
            Executor(name=f"local-{i}", lanes=1, location=None)
            for i in range(spark.defaultParallelism)
        )
    cpus = max(1, int(spark.getConf().get("spark.task.cpus", "1") or 1))
    summaries = jsc.statusStore().executorList(True)
    registered = jsc.getExecutorIds()
    alive = {registered.apply(i) for i in range(registered.size())}
    found = []
    for i in range(summaries.size()):
        summary = summaries.apply(i)
        name = summary.id()
        if name == "driver" or name not in alive:
            continue
        host = summary.hostPort().rsplit(":", 1)[0]
        found.append(
            Executor(
                name=name,
                lanes=max(1, summary.totalCores() // cpus),
                location=f"executor_{host}_{name}",
            )
        )
    return tuple(sorted(found, key=lambda e: (len(e.name), e.name)))


def insist_on_placement(spark: SparkContext) -> None:
    """Let Spark wait for the executor a lane prefers, unless the user has said how long.

    A lane that runs elsewhere finds no state there, which costs more than waiting for a busy core.
    The wait is bounded, since Spark may also wait for an executor that dies between the planning
    of an epoch and the start of its lanes.  Spark reads this setting for every set of tasks.
    """
    conf = spark._jsc.sc().conf()  # noqa: SLF001  the public copy cannot be changed any more
    if not conf.contains("spark.locality.wait") and not conf.contains(_WAIT):
        conf.set(_WAIT, "10s")


_WAIT = "spark.locality.wait.process"


def wait_for(spark: SparkContext, minimum: int, timeout_s: float = 60.0) -> tuple[Executor, ...]:
    """Executors, once there are at least `minimum`.

    Raises
    ------
    EpochFailedError
        If fewer have registered after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        executors = live_executors(spark)
        if len(executors) >= minimum:
            return executors
        if time.monotonic() > deadline:
            raise EpochFailedError(
                f"Only {len(executors)} of {minimum} executors have registered with "
                f"{spark.master} after {timeout_s:.0f} s.",
                remedy="Check that the cluster has free cores and memory for this application.",
                executors=[e.name for e in executors],
            )
        time.sleep(0.1)


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
