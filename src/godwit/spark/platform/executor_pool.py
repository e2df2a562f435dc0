"""Adding executors to a running application, and giving them back.

Problem: executors that are asked for may come at once, late or never; one that is to go may die
first, and what runs on it when it goes has to be done again.

Invariants: only executors that own nothing are given back, and only between two epochs, so that no
epoch loses a task or a block by it; after every change the cluster maintains the target number of
executors, so that one that dies is replaced and one that was given back is not; only a thread of
the pool waits for the cluster.
"""

from __future__ import annotations

import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from godwit.engine.cluster import PoolView
from godwit.model import events
from godwit.model.errors import InvalidPlanError, ScalingError
from godwit.model.text import counted
from godwit.runtime.query import open_queries
from godwit.runtime.threads import GateClosedError, Guard, one_line
from godwit.spark.platform.sessions import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark import SparkContext

    from godwit.migration.coordinator import Coordinator
    from godwit.runtime.query import Query
    from godwit.runtime.threads import EpochGate


class SparkScheduler:
    """The cluster manager behind a SparkContext: standalone, YARN and Kubernetes alike.

    Calls may take a while. They are Spark's developer API: ``requestTotalExecutors`` sets the
    number that the cluster manager keeps up, ``killExecutor`` ends one and lowers that number.
    """

    def __init__(self, spark: SparkContext, query: str = "") -> None:
        self._spark, self._query = spark, query

    @cached_property
    def unsupported_reason(self) -> str:
        """Reason why executors can never be added or removed, with a remedy; empty if they can."""
        if self._jsc.isLocal() and not self._master.startswith("local-cluster"):
            return (
                f"{self._master} is one process, whose executors are its cores. Run on a cluster, "
                "or on one of this machine "
                "(gw.testing.LocalCluster)."
            )
        if self._setting("spark.dynamicAllocation.enabled", "false").lower() == "true":
            return (
                "Spark's dynamic allocation adds and removes executors as it sees fit, and takes "
                "idle ones away that hold state. Create the session with "
                "spark.dynamicAllocation.enabled=false."
            )
        return ""

    @property
    def max_executors(self) -> int | None:
        """Maximum number of executors of this application; ``None`` if unknown."""
        cores = self._setting("spark.cores.max", "")
        each = self._setting("spark.executor.cores", "")
        if not (self._master.startswith(("spark://", "local-cluster")) and cores and each):
            return None
        return int(cores) // int(each)

    def request(self, total: int) -> bool:
        """Request a total number of executors; return whether the cluster manager accepted.

        It keeps up at least those that other queries of the session run on.
        """
        total = max([total, *(len(query.executors) for query in self._others())])
        jvm: Any = self._spark._jvm  # noqa: SLF001  executors have no public Python API
        return bool(self._jsc.requestTotalExecutors(total, 0, jvm.scala.Predef.Map().empty()))

    def give_back(self, executors: Sequence[str]) -> bool:
        """Stop idle executors; return whether the cluster manager accepted it.

        Raises `ScalingError` if other queries run on them.
        """
        if other_queries := self._others():
            raise ScalingError(
                f"the session's query {other_queries[0].name!r} runs on the same executors",
                remedy="Stop it first, or give each query that is scaled in an application of its "
                "own.",
            )
        accepted = [bool(self._jsc.killExecutor(executor)) for executor in executors]
        return all(accepted)

    def _others(self) -> list[Query]:
        """Return the other queries of this process, which has one Spark context."""
        return [query for query in open_queries() if query.name != self._query]

    @property
    def _jsc(self) -> Any:
        """Spark context of the JVM."""
        return self._spark._jsc.sc()  # noqa: SLF001

    @property
    def _master(self) -> str:
        """URL of the master, such as ``local[4]`` or ``spark://host:7077``."""
        return self._spark.master or ""

    def _setting(self, name: str, default: str) -> str:
        """Return a setting of the Spark context."""
        return str(settings_of(self._spark).get(name, default) or default)


_LOOK_S = 0.2
_REST_S = 1.0


class SparkExecutorPool:
    """Adds executors to the running application, and gives them back.

    It is the `godwit.engine.cluster.ExecutorPool` of Spark.
    """

    def __init__(
        self,
        scheduler: SparkScheduler,  # the cluster
        *,
        coordinator: Coordinator,  # knows who is there and who owns what
        gate: EpochGate,  # lets no epoch begin while executors are given back
        patience_s: float,  # how long executors that were asked for are waited for
        # A clock that never runs backwards, in seconds
        now_s: Callable[[], float] = time.monotonic,
        # called between two epochs, before executors are given back: Spark keeps busy ones
        before_return: Callable[[], None] = lambda: None,
        # Target number of executors; ``None`` until another number is requested.
        total: int | None = None,
    ) -> None:
        self._before_return = before_return
        self._scheduler, self._coordinator, self._gate = scheduler, coordinator, gate
        self._patience_s = self._waits_s = patience_s
        self._now_s = now_s
        self._changed = threading.Condition()
        self._total = self._announced_total = total
        self._until_s: float | None = None
        self._leaving: tuple[str, ...] = ()
        self._returned: frozenset[str] = frozenset()
        self._refused = self._not_returned = ""
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def view(self) -> PoolView:
        """Number of executors that are still to come, and refusals of the cluster manager."""
        with self._changed:
            return PoolView(
                pending=self._pending(),
                most=self._scheduler.max_executors,
                fixed=self._unsupported_reason()[0],
                refused=self._refused,
                not_returned=self._not_returned,
            )

    @property
    def total(self) -> int | None:
        """Number of executors requested in all; ``None`` before the first request."""
        return self._total

    @property
    def is_changing(self) -> bool:
        """True while requested executors have not joined, or released ones have not ended."""
        with self._changed:
            present = self._coordinator.view.executors.keys()
            return bool(self._pending() or self._leaving or present & self._returned)

    @property
    def returned(self) -> frozenset[str]:
        """Names of executors that were released, whether or not they have ended."""
        return self._returned

    @property
    def staying(self) -> tuple[str, ...]:
        """Names of executors that are neither draining nor being released."""
        view = self._coordinator.view
        staying = view.executors.keys() - view.draining - self._returned
        return tuple(sorted(staying, key=lambda name: (len(name), name)))

    def add(self, count: int, patience_s: float | None = None) -> None:
        """Request `count` more executors; a thread waits for them up to `patience_s` seconds.

        Raises `ScalingError` if executors cannot be added here, or fewer than `count`.
        """
        self.check_can_scale()
        with self._changed:
            total = max(self._total or 0, self._num_staying()) + count
            most = self._scheduler.max_executors
            if most is not None and total > most:
                raise ScalingError(
                    f"{counted(total, 'executor')} were asked for, of which the settings of the "
                    f"session allow {most}.",
                    remedy="Raise spark.cores.max, or ask for fewer.",
                    most=most,
                )
            self._total, self._refused = total, ""
            self._waits_s = self._patience_s if patience_s is None else patience_s
            self._until_s = self._now_s() + self._waits_s
            self._wake_thread()
        self._coordinator.announce(events.ExecutorsRequested, count=count, total=total)

    def remove(self, executors: Sequence[str]) -> None:
        """Remove empty executors, between the next two epochs.

        Raises `InvalidPlanError` if one of them does not exist, or owns key groups; `ScalingError`
        if executors cannot be removed here, or none would be left.
        """
        self.check_can_scale()
        view = self._coordinator.view
        for name in executors:
            if name not in view.executors or not view.owns_nothing(name):
                reason = "owns key groups" if name in view.executors else "is not there"
                raise InvalidPlanError(
                    f"Executor {name!r} cannot be given back: it {reason}.",
                    remedy="Drain it first, and wait for its migrations to end.",
                    executor=name,
                )
        if not view.executors.keys() - self._returned - {*executors}:
            raise ScalingError(
                "No executor would be left.", remedy="Stop the query, or keep one of them."
            )
        with self._coordinator.locked() as coordinator:
            for name in executors:
                coordinator.drain(name)  # nothing moves there meanwhile
        with self._changed:
            total = max(self._total or 0, self._num_staying())
            newly_leaving = [name for name in executors if name not in self._leaving]
            self._leaving = (*self._leaving, *newly_leaving)
            self._total, self._not_returned = max(1, total - len(newly_leaving)), ""
            self._wake_thread()

    def keep(self, executor: str) -> None:
        """Cancel the release of an executor that has not been released yet."""
        with self._changed:
            if executor in self._leaving and self._total is not None:
                self._leaving = tuple(name for name in self._leaving if name != executor)
                self._total += 1
                self._wake_thread()

    def withdraw(self) -> None:
        """Cancel requests for executors that have not joined; one that joins late is used."""
        with self._changed:
            if self._pending():
                self._total = self._num_staying()
                self._wake_thread()

    def check_can_scale(self) -> None:
        """Raise `ScalingError`, with a remedy, if executors cannot be added or removed here."""
        why, remedy = self._unsupported_reason()
        if why:
            raise ScalingError(why, remedy=remedy)

    def _unsupported_reason(self) -> tuple[str, str]:
        """Return why executors can never be added or removed, and a remedy; empty if they can."""
        why, _, remedy = self._scheduler.unsupported_reason.partition(". ")
        return f"Executors can be neither added nor removed: {why}." if why else "", remedy

    def close(self) -> None:
        """Stop the pool's thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    # -- under the lock -----------------------------------------------------------------------

    def _num_staying(self) -> int:
        """Return the number of live executors that are not being removed."""
        leaving = self._returned.union(self._leaving)
        return len(self._coordinator.view.executors.keys() - leaving)

    def _pending(self) -> int:
        """Return the number of requested executors that have not joined yet."""
        return 0 if self._total is None else max(0, self._total - self._num_staying())

    def _wake_thread(self) -> None:
        """Start the pool's thread if it is not running, and wake it."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run_thread, name="godwit-pool", daemon=True
            )
            self._thread.start()
        self._changed.notify_all()

    # -- on its own thread --------------------------------------------------------------------

    def _run_thread(self) -> None:
        """Check the executors periodically until the pool is closed; the body of a thread."""
        guard = Guard("adding and giving back executors", self._coordinator.background_failed)
        while self._wait_for_check():
            try:
                self.check_executors()
            except GateClosedError:
                return
            except Exception as error:  # noqa: BLE001  told, and looked again
                guard.report(error)

    def _wait_for_check(self) -> bool:
        """Wait until the next check is due; return ``False`` once the pool is closed."""
        with self._changed:
            if not self._closed:
                busy = self._pending() or self._leaving or self._total != self._announced_total
                self._changed.wait(_LOOK_S if busy else _REST_S)
            return not self._closed

    def check_executors(self) -> None:
        """Carry out due work: request executors, release some, cancel late requests."""
        self._release_idle()
        with self._changed:
            total, announced = self._total, self._announced_total
        if total is not None and total != announced:
            self._request_total(total)
        if self._is_late():
            self._give_up(f"the cluster had none to give within {self._waits_s:g} s")

    def _is_late(self) -> bool:
        """Return whether requested executors have not joined within the time-out."""
        with self._changed:
            if not self._pending():
                self._until_s = None
            elif self._until_s is None:  # one has died, and the cluster is to replace it
                self._waits_s = self._patience_s
                self._until_s = self._now_s() + self._waits_s
            return self._until_s is not None and self._now_s() > self._until_s

    def _request_total(self, total: int) -> None:
        """Request `total` executors in all from the cluster manager; give up if it refuses."""
        is_accepted, reason = self._call_scheduler(lambda: self._scheduler.request(total))
        with self._changed:
            self._announced_total = total
        if not is_accepted and self.view.pending:
            self._give_up(f"the cluster did not take the request{reason}")

    def _give_up(self, reason: str) -> None:
        """Cancel the request for executors that have not joined, and announce the reason."""
        with self._changed:
            count = self._pending()
            if not count:
                return
            # Else an executor could join an hour later, after the run continued without it.
            self._total = self._num_staying()
            self._refused = reason
            self._changed.notify_all()
        self._coordinator.announce(events.ExecutorsMissing, count=count, reason=reason)

    def _release_idle(self) -> None:
        """Release draining executors that have no key groups; called between two epochs."""
        view = self._coordinator.view
        if all(
            executor in view.executors and not view.owns_nothing(executor)
            for executor in self._leaving
        ):
            return
        with self._gate.between_epochs():
            view = self._coordinator.view
            with self._changed:
                lost = [name for name in self._leaving if name not in view.executors]
                empty = [
                    name
                    for name in self._leaving
                    # The last ones may have got back what executors owned that died meanwhile.
                    if name not in lost and view.owns_nothing(name)
                ]
                self._leaving = tuple(
                    executor for executor in self._leaving if executor not in {*lost, *empty}
                )
                self._returned |= {*empty}
            if empty:
                self._before_return()
                is_accepted, reason = self._call_scheduler(lambda: self._scheduler.give_back(empty))
                with self._changed:
                    self._announced_total = (
                        None  # giving back has changed what the cluster keeps up
                    )
                    if not is_accepted:
                        self._returned -= {*empty}
                        self._not_returned = (
                            f"the cluster did not take back {', '.join(empty)}{reason}"
                        )

    def _call_scheduler(self, call: Callable[[], bool]) -> tuple[bool, str]:
        """Call the cluster manager; return its answer, and the text of an error (empty: none)."""
        try:
            return call(), ""
        except Exception as error:  # noqa: BLE001  whatever Spark may raise while it ends
            return False, f" ({one_line(error)})"
