"""The cluster's part of adding and removing executors, through the running application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark import SparkContext

__all__ = ["Scheduler", "SparkScheduler"]


class Scheduler(Protocol):
    """What the pool of executors asks of a cluster; calls may take a while."""

    @property
    def refusal(self) -> str:
        """Why executors can never be added or removed, and what to do; empty where they can."""

    @property
    def most(self) -> int | None:
        """Executors that this application can ever have; ``None`` where nothing says so."""

    def request(self, total: int) -> bool:
        """Say how many executors the application is to have; returns whether that was taken."""

    def give_back(self, executors: Sequence[str]) -> bool:
        """End executors. Nothing runs there from the call on; returns whether that was taken."""


class SparkScheduler:
    """The cluster manager behind a SparkContext: standalone, YARN and Kubernetes alike.

    The calls are Spark's developer API: ``requestTotalExecutors`` sets the number that the cluster
    manager keeps up, ``killExecutor`` ends one and lowers that number.

    Parameters
    ----------
    spark
        The context.
    """

    def __init__(self, spark: SparkContext) -> None:
        self._spark = spark

    @property
    def refusal(self) -> str:
        """See `Scheduler.refusal`."""
        if self._jsc.isLocal() and not self._master.startswith("local-cluster"):
            return (
                f"{self._master} is one process, whose executors are its cores. Run on a cluster, "
                "or on one of this machine "
                "(godwit.cluster.spark.platform.local_cluster.LocalCluster)."
            )
        if self._setting("spark.dynamicAllocation.enabled", "false").lower() == "true":
            return (
                "Spark's dynamic allocation adds and removes executors as it sees fit, and takes "
                "idle ones away that hold state. Make the session with "
                "spark.dynamicAllocation.enabled=false."
            )
        return ""

    @property
    def most(self) -> int | None:
        """See `Scheduler.most`."""
        cores, each = (
            self._setting("spark.cores.max", ""),
            self._setting("spark.executor.cores", ""),
        )
        if not (self._master.startswith(("spark://", "local-cluster")) and cores and each):
            return None
        return int(cores) // int(each)

    def request(self, total: int) -> bool:
        """See `Scheduler.request`."""
        jvm: Any = self._spark._jvm  # noqa: SLF001  executors have no public Python API
        return bool(self._jsc.requestTotalExecutors(total, 0, jvm.scala.Predef.Map().empty()))

    def give_back(self, executors: Sequence[str]) -> bool:
        """See `Scheduler.give_back`."""
        taken = [bool(self._jsc.killExecutor(executor)) for executor in executors]
        return all(taken)

    @property
    def _jsc(self) -> Any:
        return self._spark._jsc.sc()  # noqa: SLF001

    @property
    def _master(self) -> str:
        return self._spark.master or ""

    def _setting(self, name: str, default: str) -> str:
        return str(self._spark.getConf().get(name, default) or default)
