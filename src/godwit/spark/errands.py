"""Carries out the conductor's orders on executors: warming copies, and dropping them.

Nothing here is needed for correctness: whatever is late, fails or is lost is told to the conductor,
which orders it again or does without.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target

from godwit.migration import DropCopies, StartWarming, Warmed
from godwit.model.errors import MigrationError
from godwit.spark.warming import Errand, drop_copies, warm_copies

if TYPE_CHECKING:
    from collections.abc import Mapping
    from queue import SimpleQueue

    from pyspark.sql import SparkSession

    from godwit.spark.conducting import Conducting
    from godwit.spark.executor_watch import ExecutorWatch
    from godwit.spark.instructor import Instructor
    from godwit.state.records import StateId

__all__ = ["Errands"]


class Errands:
    """Threads that run errands: one to hand them out, and one per executor.

    An executor's copies are warmed and dropped in the order in which that was ordered.

    Parameters
    ----------
    orders
        Where orders come from; ``None`` ends the work.
    conducting
        Told what came of them.
    instructor
        Knows what brings a copy forward.
    watch
        Knows where executors are.
    spark
        The session.
    """

    def __init__(
        self,
        orders: SimpleQueue[StartWarming | DropCopies | None],
        *,
        conducting: Conducting,
        instructor: Instructor,
        watch: ExecutorWatch,
        spark: SparkSession,
    ) -> None:
        self._orders, self._conducting = orders, conducting
        self._instructor, self._watch, self._spark = instructor, watch, spark
        self._stopping = threading.Event()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._thread = threading.Thread(target=self._hand_out, name="godwit-errands", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more orders; what runs may finish by itself."""
        self._stopping.set()
        self._orders.put(None)
        self._thread.join(timeout=5)
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _hand_out(self) -> None:
        while (order := self._orders.get()) is not None:
            pool = self._pools.get(order.executor)
            if pool is None:
                pool = self._pools[order.executor] = ThreadPoolExecutor(
                    1, thread_name_prefix=f"godwit-copies-{order.executor}"
                )
            work = self._warm if isinstance(order, StartWarming) else self._drop
            pool.submit(inheritable_thread_target(self._spark)(work), order)

    def _warm(self, order: StartWarming) -> None:
        started = time.perf_counter()
        try:
            tables, reach = self._warmed(order)
        except Exception as error:  # noqa: BLE001  whatever it is, the conductor deals with it
            if not self._stopping.is_set():
                with self._conducting.turn() as conductor:
                    conductor.warming_failed(order, str(error).split("\n", 1)[0])
            return
        spent_ms = (time.perf_counter() - started) * 1e3
        with self._conducting.turn() as conductor:
            conductor.warmed(order, Warmed(tables=tables, reach=reach, duration_ms=spent_ms))

    def _warmed(
        self, order: StartWarming
    ) -> tuple[Mapping[StateId, Mapping[int, int]], dict[int, int]]:
        """Warm the copies; return what is there now, and how far it reaches in all its states."""
        executor = self._watch.executors.get(order.executor)
        if executor is None:
            raise MigrationError(f"Executor {order.executor} is gone.")
        tables, reached = {}, []
        for state in self._instructor.states_of(order.component):
            with self._conducting.turn() as conductor:
                floor = conductor.copies.held(
                    order.executor, state, self._instructor.num_key_groups
                )
            told, committed = self._instructor.catching_up(state, floor, order.key_groups)
            versions = tables[state] = warm_copies(
                self._errand(state, order.executor),
                order.key_groups,
                told,
                layout=self._instructor.layout_of(state),
                storage=self._instructor.storage,
                committed=committed,
                spark=self._spark.sparkContext,
            )
            # A key group that has no state at all is as warm as can be: its copy misses nothing.
            reached.append({g: max(versions.get(g, -1), committed) for g in order.key_groups})
        return tables, {g: min(epochs[g] for epochs in reached) for g in order.key_groups}

    def _drop(self, order: DropCopies) -> None:
        if order.executor not in self._watch.executors:
            return
        for state in self._instructor.states_of(order.component):
            with suppress(Exception):  # a copy too many costs room, nothing else
                drop_copies(
                    self._errand(state, order.executor), order.key_groups, self._spark.sparkContext
                )

    def _errand(self, state: StateId, executor: str) -> Errand:
        there = self._watch.executors[executor]
        return Errand(
            state=state,
            schema=self._instructor.layout_of(state).schema,
            num_key_groups=self._instructor.num_key_groups,
            executor=executor,
            location=there.location,
            lanes=there.lanes,
            run_id=self._instructor.run_id,
            local_dir=self._instructor.local_dir,
        )
