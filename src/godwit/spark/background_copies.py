"""Carries out the coordinator's orders on executors: warming copies, and dropping them.

What executors are to send one another begins as their links become free (`PeerLinks`).

Nothing here is needed for correctness: late, failed and lost copies are reported to the
coordinator, which orders them again or does without.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target

from godwit.engine.copies import warm_states
from godwit.migration.messages import DropCopies, StartWarming
from godwit.migration.sources import PeerLinks
from godwit.model.errors import MigrationError
from godwit.runtime.threads import DaemonPool, Guard
from godwit.spark.stages.warming import CopyRequest, drop_copies, fetch_copies, warm_copies

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from numpy import int64
    from pyspark.sql import SparkSession

    from godwit.checkpoint.records import StateId
    from godwit.engine.instructions import Instructor
    from godwit.engine.lane.messages import StateInstruction
    from godwit.migration.coordinator import Coordinator, Warmed
    from godwit.migration.messages import PeerCopies
    from godwit.spark.cluster import SparkCluster


class BackgroundCopies:
    """Threads that warm and drop copies: one to hand orders out, and one per executor.

    An executor's copies are warmed and dropped in the order in which that was ordered.
    """

    def __init__(
        self,
        cluster: SparkCluster,  # where orders come from, and where executors are
        *,
        coordinator: Coordinator,  # told what came of them
        instructor: Instructor,  # knows what brings a copy forward
        spark: SparkSession,  # the session
    ) -> None:
        self._cluster, self._orders = cluster, cluster.background
        self._coordinator, self._instructor, self._spark = coordinator, instructor, spark
        self._stopping = threading.Event()
        self._pools: dict[str, DaemonPool] = {}
        self._guard = Guard("background copies", coordinator.background_failed)
        self._links, self._link_is_free = PeerLinks(), threading.Condition()
        self._thread = threading.Thread(
            target=self._run_orders, name="godwit-background", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Accept no more orders to make or drop copies; those in progress may finish."""
        self._stopping.set()
        self._orders.put(None)
        self._thread.join(timeout=5)
        for pool in self._pools.values():
            pool.close()

    def _run_orders(self) -> None:
        """Queue each order for its executor's thread until closed; the body of a thread."""
        while (order := self._orders.get()) is not None:
            self._guard(self._start_order, order)

    def _start_order(self, order: StartWarming | DropCopies) -> None:
        """Queue an order on the thread of its executor, and note the peers that it copies from."""
        if isinstance(order, StartWarming) and order.peers:
            component = self._coordinator.view.components.get(order.component)
            transfers = () if component is None else component.transfers  # regrouped since
            with self._link_is_free:
                self._links.add(order, {t.key_group: t.state_bytes for t in transfers})
        for gone in self._pools.keys() - self._cluster.executors.keys() - {order.executor}:
            self._pools.pop(gone).close(cancel=False)  # what waits fails, and is told
        pool = self._pools.get(order.executor)
        if pool is None:
            pool = DaemonPool(1, f"godwit-copies-{order.executor}")
            self._pools[order.executor] = pool
        work = self._warm if isinstance(order, StartWarming) else self._drop
        # The future is not read, and would drop an error: `_guard` reports it.
        pool.submit(self._guard, inheritable_thread_target(self._spark)(work), order)

    def _warm(self, order: StartWarming) -> None:
        """Bring an order's copies up to date, and report the result to the coordinator."""
        started = time.perf_counter()
        try:
            warmed = self._make_copies(order)
        except Exception as error:  # noqa: BLE001  whatever it is, the coordinator deals with it
            if not self._stopping.is_set():
                self._coordinator.warming_failed(order, str(error).split("\n", 1)[0])
            return
        finally:
            with self._link_is_free:
                self._links.forget(order)
                self._link_is_free.notify_all()
        spent_ms = (time.perf_counter() - started) * 1e3
        self._coordinator.warmed(order, replace(warmed, duration_ms=spent_ms))

    def _make_copies(self, order: StartWarming) -> Warmed:
        """Bring an order's copies up to date by Spark jobs, or raise; return their versions."""
        if order.executor not in self._cluster.executors:
            raise MigrationError(f"Executor {order.executor} is gone.")

        def held_versions(state: StateId) -> npt.NDArray[int64]:
            """Versions of the copies of one state that the executor has."""
            with self._coordinator.locked() as coordinator:
                return coordinator.copies.versions(
                    order.executor, state, self._instructor.num_key_groups
                )

        def catch_up(instruction: StateInstruction, committed: int) -> dict[int, int]:
            """Bring copies of one state up to the committed version, in a Spark job."""
            return warm_copies(
                self._copy_request(instruction.state, order.executor),
                order.key_groups,
                instruction,
                layout=self._instructor.layout_of(instruction.state),
                storage=self._instructor.storage,
                committed=committed,
                index_only=order.index_only,
                spark=self._spark.sparkContext,
            )

        def fetch(request: PeerCopies) -> dict[StateId, dict[int, int]]:
            """Copy key groups from a peer, in a Spark job; return state → key group → version."""
            source = self._cluster.executors.get(request.executor)
            if source is None:
                raise MigrationError(f"Executor {request.executor} is gone.")
            return {
                state: fetch_copies(
                    self._copy_request(state, order.executor),
                    source.name,
                    source.location,
                    request.key_groups,
                    self._spark.sparkContext,
                )
                for state in order.states
            }

        return warm_states(
            order,
            self._instructor,
            held_versions=held_versions,
            transfers=self._transfers(order),
            fetch=fetch,
            catch_up=catch_up,
            now_s=time.perf_counter,
        )

    def _transfers(self, order: StartWarming) -> Iterator[PeerCopies]:
        """Yield the peers to copy from for an order, each once its network links are free."""
        while True:
            with self._link_is_free:
                self._links.ended(order)
                self._link_is_free.notify_all()
                while (begun := self._links.begin(order)) is None:
                    self._link_is_free.wait()
            if not begun.key_groups:
                return
            yield begun

    def _drop(self, order: DropCopies) -> None:
        """Delete the copies of an order; a failure only leaves files on the disk."""
        if order.executor not in self._cluster.executors:
            return
        for state in order.states:
            with suppress(Exception):  # a copy too many costs room, nothing else
                drop_copies(
                    self._copy_request(state, order.executor),
                    order.key_groups,
                    self._spark.sparkContext,
                )

    def _copy_request(self, state: StateId, executor: str) -> CopyRequest:
        """Return the parameters of a Spark job on the copies of one state on an executor."""
        destination = self._cluster.executors[executor]
        return CopyRequest(
            state=state,
            schema=self._instructor.layout_of(state).schema,
            num_key_groups=self._instructor.num_key_groups,
            executor=executor,
            location=destination.location,
            lanes=destination.lanes,
            run_id=self._instructor.run_id,
            local_dir=self._instructor.local_dir,
        )
