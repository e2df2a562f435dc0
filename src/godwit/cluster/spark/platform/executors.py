"""The executors of the application: who is there, what they are called, where a task can be put.

In a cluster an executor's name is Spark's executor id.  In ``local[n]`` there is one process; there
each core counts as an executor of its own, with a local store of its own, so that a flow behaves
the same on a laptop: ``local-0``, ``local-1``, ...
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from godwit.engine.cluster import Executor
from godwit.model.errors import EpochFailedError

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = [
    "insist_on_placement",
    "live_executors",
    "wait_for",
]


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
                f"{spark.master} after {timeout_s:g} s.",
                remedy="Check that the cluster has free cores and memory for this application.",
                executors=[e.name for e in executors],
            )
        time.sleep(0.1)
