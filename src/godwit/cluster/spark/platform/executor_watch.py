"""Watches executors come and go."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target

from godwit.cluster.spark.platform.executors import live_executors
from godwit.cluster.spark.run.threads import Guard
from godwit.cluster.spark.stages.rehearsal import rehearse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from godwit.cluster.spark.platform.executor_pool import SparkExecutorPool
    from godwit.cluster.spark.platform.lost_executors import LostExecutors
    from godwit.cluster.spark.run.cluster import SparkCluster
    from godwit.cluster.spark.run.source_rows import SourceRows
    from godwit.engine.cluster import Executor
    from godwit.engine.loop import SharedConductor

__all__ = ["ExecutorWatch"]

_LOOK_S = 0.2
_logger = logging.getLogger("godwit")


class ExecutorWatch:
    """Looks which executors there are, and tells the conductor of those that came or went.

    Those that come count once they have rehearsed an epoch: that takes seconds, and keeps the tasks
    of epochs away meanwhile.  Where there is no other executor, they count at once.

    Parameters
    ----------
    cluster
        Its `executors` are kept up to date: replaced as a whole, so whoever reads it reads one
        moment.
    conducting
        Is told.
    lost
        Is told of each executor that is gone, once the conductor knows.
    pool
        Knows which ones were given back.
    source
        Has what they rehearse with.
    spark
        The session.
    """

    def __init__(
        self,
        cluster: SparkCluster,
        *,
        conducting: SharedConductor,
        lost: LostExecutors,
        pool: SparkExecutorPool,
        source: SourceRows,
        spark: SparkSession,
    ) -> None:
        self._cluster = cluster
        self._conducting, self._lost, self._spark = conducting, lost, spark
        self._pool, self._source = pool, source
        self._rehearsing: set[str] = set()
        self._rehearsed: set[str] = set()
        self._stopping = threading.Event()
        self._guard = Guard("watching executors", conducting.background_failed)
        self._thread = threading.Thread(target=self._work, name="godwit-executors", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def look(self) -> None:
        """Look now."""
        found = {e.name: e for e in live_executors(self._spark.sparkContext)}
        self._rehearsed &= found.keys()  # those that are gone never come back by their names
        self._rehearsing &= found.keys()
        for name in found.keys() - self._cluster.executors.keys() - self._rehearsing:
            self._rehearsing.add(name)
            threading.Thread(
                target=inheritable_thread_target(self._spark)(self._rehearse),
                args=(found[name],),
                name=f"godwit-rehearsal-{name}",
                daemon=True,
            ).start()
        ready = {
            name: executor
            for name, executor in found.items()
            if name in self._cluster.executors or name in self._rehearsed
        }
        found = ready or found
        if found.keys() == self._cluster.executors.keys():
            return
        # New ones are known before the conductor can order anything for them, and lost ones after.
        self._cluster.executors = {**self._cluster.executors, **found}
        with self._conducting.locked() as conductor:
            gone = conductor.see({e.name: e.lanes for e in found.values()}, self._pool.returned)
        self._cluster.executors = found
        for name in gone:
            self._lost.lost(name)

    def _rehearse(self, executor: Executor) -> None:
        try:
            rehearse(executor, self._source.latest, self._spark.sparkContext)
        except Exception:
            _logger.debug("Executor %s has not rehearsed", executor.name, exc_info=True)
        self._rehearsed.add(executor.name)

    def _work(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                self.look()
                self._lost.cancel()
            except Exception as error:  # noqa: BLE001  told, and looked again
                if self._stopping.is_set() or self._spark.sparkContext._jsc is None:  # noqa: SLF001
                    return  # the context is stopping under us
                self._guard.tell(error)
