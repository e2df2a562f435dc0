"""A realization on Spark with executors that are processes, and die by being killed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.contract.on_spark import OnSpark

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession
    from tests.contract.scenario import Policy

    from godwit.ops.local_cluster import LocalCluster

__all__ = ["OnCluster"]


class OnCluster(OnSpark):
    """See `tests.contract.realization.Realization`.

    Executors are called by scenarios in the order of their ids, as they are found at a start. For
    one that is killed the cluster starts another, which no scenario has a name for.

    Parameters
    ----------
    cluster
        Its processes.
    spark
        A session on it.
    directory, patch, deep, policy, resident, own
        As for `OnSpark`.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        spark: SparkSession,
        directory: Path,
        patch: pytest.MonkeyPatch,
        *,
        deep: bool,
        policy: Policy,
        resident: bool = False,
        own: bool = False,
    ) -> None:
        super().__init__(
            spark, directory, patch, deep=deep, policy=policy, resident=resident, own=own
        )
        self._cluster, self._application = cluster, spark.sparkContext.applicationId
        self._ids: dict[str, str] = {}

    def executor(self, name: str) -> str:
        """See `Realization.executor`."""
        return self._ids[name]

    def start(self, executors: Mapping[str, int]) -> None:
        """See `Realization.start`."""
        super().start(executors)
        there = sorted(self.view.executors, key=lambda name: (len(name), name))
        self._ids = dict(zip(executors, there, strict=False))

    def see(self, executors: Mapping[str, int]) -> None:
        """See `Realization.see`."""
        assert executors.keys() <= self._ids.keys()
        for name in [name for name in self._ids if name not in executors]:
            killed = self._ids.pop(name)
            self._cluster.kill_executor(killed, self._application)
            self._until(partial(self._is_gone, killed), f"{killed} to die")

    def _is_gone(self, executor: str) -> bool:
        return executor not in self.view.executors
