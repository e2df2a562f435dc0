"""Breaks off an epoch in which an executor is lost.

The problem: Spark counts the lanes of a dead executor as placeable there until
``spark.locality.wait.process`` is over, as if it were busy; the whole epoch waits for them.  The
next attempt is planned without the executor, and costs no more than an epoch.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from pyspark import SparkContext

__all__ = ["LostExecutors"]


class LostExecutors:
    """Notes executors that are lost while an epoch runs on them, and cancels its jobs.

    Parameters
    ----------
    tag
        Tells the jobs of the epoch from others.
    spark
        The context.
    """

    def __init__(self, tag: str, spark: SparkContext) -> None:
        self._tag, self._spark = tag, spark
        self._lock = threading.Lock()
        self._used: frozenset[str] = frozenset()
        self._lost: str | None = None

    @contextmanager
    def break_off(self, executors: Iterable[str], there: Container[str]) -> Iterator[None]:
        """Run an epoch's jobs inside, until one of these executors is lost.

        Raises
        ------
        ConnectionError
            If one of them is not `there` any more: it was lost since the epoch was planned.
        """
        used = frozenset(executors)
        gone = sorted(name for name in used if name not in there)
        with self._lock:
            self._used = frozenset() if gone else used
            self._lost = gone[0] if gone else None
        if gone:
            raise ConnectionError(gone[0])
        self._spark.addJobTag(self._tag)
        try:
            yield
        finally:
            self._spark.removeJobTag(self._tag)
            with self._lock:
                self._used = frozenset()

    def lost(self, executor: str) -> None:
        """Note a loss."""
        with self._lock:
            if executor not in self._used:
                return
            self._lost = executor
        self.cancel()

    def cancel(self) -> None:
        """Cancel the jobs of an epoch that has lost an executor, if it is still under way.

        Called more than once: the first time they may not have been submitted yet.
        """
        with self._lock:
            broken = self._lost is not None and bool(self._used)
        if broken:
            self._spark.cancelJobsWithTag(self._tag)

    def take(self) -> str | None:
        """Executor that the last epoch lost, if any; it is not told twice."""
        with self._lock:
            lost, self._lost = self._lost, None
            return lost
