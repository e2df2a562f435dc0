"""Watches executors come and go."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target

from godwit.spark.executors import live_executors
from godwit.spark.warming import start_python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from godwit.epoch.executor import Executor
    from godwit.spark.conducting import Conducting
    from godwit.spark.executor_pool import SparkExecutorPool
    from godwit.spark.lost_executors import LostExecutors

__all__ = ["ExecutorWatch"]

_LOOK_S = 0.2


class ExecutorWatch:
    """Looks which executors there are, and tells the conductor of those that came or went.

    Those that come start their Python at once, by a task of its own that keeps the epochs' tasks
    away meanwhile: it takes seconds, and an epoch would wait for it.

    Parameters
    ----------
    found
        Those that were there when the run began.
    conducting
        Is told.
    lost
        Is told of each executor that is gone, once the conductor knows.
    pool
        Knows which ones were given back.
    spark
        The session.

    Attributes
    ----------
    executors
        Name → executor; replaced as a whole, so whoever reads it reads one moment.
    """

    def __init__(
        self,
        found: Sequence[Executor],
        *,
        conducting: Conducting,
        lost: LostExecutors,
        pool: SparkExecutorPool,
        spark: SparkSession,
    ) -> None:
        self.executors: Mapping[str, Executor] = {e.name: e for e in found}
        self._conducting, self._lost, self._spark = conducting, lost, spark
        self._pool = pool
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="godwit-executors", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def look(self) -> None:
        """Look now."""
        found = {e.name: e for e in live_executors(self._spark.sparkContext)}
        if found.keys() == self.executors.keys():
            return
        new = [found[name] for name in found.keys() - self.executors.keys()]
        # New ones are known before the conductor can order anything for them, and lost ones after.
        self.executors = {**self.executors, **found}
        with self._conducting.turn() as conductor:
            gone = conductor.see({e.name: e.lanes for e in found.values()}, self._pool.returned)
        self.executors = found
        for name in gone:
            self._lost.lost(name)
        for executor in new:
            threading.Thread(
                target=inheritable_thread_target(self._spark)(self._greet),
                args=(executor,),
                name=f"godwit-greeting-{executor.name}",
                daemon=True,
            ).start()

    def _greet(self, executor: Executor) -> None:
        with suppress(Exception):  # it may be gone again, and its first lane would start it as well
            start_python(executor, self._spark.sparkContext)

    def _work(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                self.look()
                self._lost.cancel()
            except Exception:  # noqa: BLE001  the context may be stopping under us
                if self._spark.sparkContext._jsc is None:  # noqa: SLF001
                    return
