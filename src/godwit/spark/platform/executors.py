"""Executors of the application: discovery, names, rehearsal, watching.

In a cluster an executor's name is Spark's executor id.  In ``local[n]`` there is one process; there
each core counts as an executor of its own, with a local store of its own, so that a flow behaves
the same on a laptop: ``local-0``, ``local-1``, ...
"""

from __future__ import annotations

import logging
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pyspark import inheritable_thread_target

from godwit.engine.cluster import Executor
from godwit.model.errors import EpochFailedError, InvalidFlowError
from godwit.runtime.threads import Guard
from godwit.spark.platform.sessions import context_is_stopped, settings_of
from godwit.spark.stages.exchange import (
    PythonStage,
    exchange,
    fetch,
    on_executors,
    pair_with_locations,
    python_rdd,
    run_at_lanes,
)
from godwit.spark.stages.warming import POOL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from godwit.engine.lane.wire import Blob
    from godwit.migration.coordinator import Coordinator
    from godwit.spark.cluster import LostExecutors, SparkCluster
    from godwit.spark.platform.executor_pool import SparkExecutorPool


def live_executors(spark: SparkContext) -> tuple[Executor, ...]:
    """Return the registered live executors, by name.

    Executors whose cores are not known yet are left out.
    """
    jsc: Any = spark._jsc.sc()  # noqa: SLF001  executors have no public Python API
    cpus = max(1, int(settings_of(spark).get("spark.task.cpus", "1") or 1))
    if is_one_process(spark):
        return tuple(
            Executor(name=f"local-{i}", lanes=1, location=None)
            for i in range(spark.defaultParallelism)
        )
    summaries = jsc.statusStore().executorList(True)
    registered = jsc.getExecutorIds()
    alive = {registered.apply(i) for i in range(registered.size())}
    executors = []
    for i in range(summaries.size()):
        summary = summaries.apply(i)
        name, cores = summary.id(), summary.totalCores()
        # It has no cores as long as only its block manager has registered.
        if name == "driver" or name not in alive or not cores:
            continue
        host = summary.hostPort().rsplit(":", 1)[0]
        lanes = max(1, cores // cpus)
        executors.append(Executor(name=name, lanes=lanes, location=location_of(host, name)))
    return tuple(sorted(executors, key=lambda e: (len(e.name), e.name)))


def location_of(host: str, executor: str) -> str:
    """Return an executor as a preferred location of Spark tasks.

    Spark takes the part after the first underscore for the executor, by which alone it places the
    task, so the host must have none; machines of Docker often do.

    Examples
    --------
    >>> location_of("worker_2", "7")
    'executor_worker-2_7'
    """
    return f"executor_{host.replace('_', '-')}_{executor}"


def warn_of_settings(spark: SparkContext) -> None:
    """Log a warning for each setting by which Spark takes executors away that hold state."""
    if is_one_process(spark):
        return
    conf = settings_of(spark)
    for setting, consequence in _HARMFUL.items():
        if (conf.get(setting) or "false").lower() == "true":
            _logger.warning(
                "%s=true: %s. Results stay right; create the session with %s=false.",
                setting,
                consequence,
                setting,
            )


_HARMFUL: Final = {
    "spark.dynamicAllocation.enabled": "Spark removes executors that have been idle for a while, "
    "with the state that they hold, which is loaded again elsewhere, and Godwit cannot scale",
    "spark.excludeOnFailure.enabled": "Spark gives no tasks to an executor that it excludes, and "
    "every epoch waits in vain for its lanes until the locality wait is over",
}
"""Setting → what follows from it. Some platforms, such as EMR, set them by default."""


def slots_of_process(spark: SparkContext) -> int | None:
    """Return the number of task slots in local mode, where all executors are one process.

    ``None`` in a cluster, where an executor has as many slots as lanes.
    """
    if not is_one_process(spark):
        return None
    cores = spark._jsc.sc().statusStore().executorList(True).apply(0).totalCores()  # noqa: SLF001
    return int(cores) // max(1, int(settings_of(spark).get("spark.task.cpus", "1") or 1))


def registered_executors(spark: SparkContext) -> frozenset[str]:
    """Return the names of the executors that are registered now; takes two calls of the JVM.

    Executors that are too small, or whose cores are not known yet, are among them: see
    `live_executors`.
    """
    jsc: Any = spark._jsc.sc()  # noqa: SLF001  as above
    return frozenset(jsc.getExecutorIds().mkString("\n").split("\n")) - {""}


def is_one_process(spark: SparkContext) -> bool:
    """Return whether Spark runs in local mode, where each core counts as an executor."""
    jsc: Any = spark._jsc.sc()  # noqa: SLF001  as above
    return bool(jsc.isLocal()) and not (spark.master or "").startswith("local-cluster")


def check_spare_slots(spark: SparkContext) -> None:
    """Raise `InvalidFlowError` if an executor has no task slot beside one for resident lanes."""
    slots = slots_of_process(spark)
    if slots is not None:
        if slots < _MIN_SLOTS:
            raise InvalidFlowError(
                f"{spark.master} has too few cores: resident lanes take one, and one more has to "
                "be free for everything else.",
                remedy=f'Create the session with master("local[{_MIN_SLOTS}]") or more (they may '
                "be more than the machine has), or start without lanes=gw.Lanes(resident=True).",
                master=spark.master,
            )
        return
    # Of one listing, since executors come and go between two.
    small = [e.name for e in live_executors(spark) if e.lanes < _MIN_SLOTS]
    if small:
        raise InvalidFlowError(
            f"Executor {small[0]!r} can run one task at a time, and a resident lane would take "
            "its place permanently.",
            remedy="Give executors two cores or more, as in spark.executor.cores=2 (they may be "
            "more than the machine has), with spark.task.cpus=1; or start without "
            "lanes=gw.Lanes(resident=True).",
            executor=small[0],
        )


_MIN_SLOTS = 2


def check_executors(spark: SparkContext, minimum: int) -> None:
    """Raise `InvalidFlowError` if the session can never have `minimum` executors."""
    conf = settings_of(spark)
    if is_one_process(spark):
        most, remedy = spark.defaultParallelism, f'master("local[{minimum}]")'
    elif (conf.get("spark.dynamicAllocation.enabled") or "false").lower() == "true":
        return
    else:
        most = int(conf.get("spark.executor.instances", "0") or 0)
        remedy = f'config("spark.executor.instances", "{minimum}")'
    if 0 < most < minimum:
        raise InvalidFlowError(
            f"start was given executors={minimum}, and the Spark session on {spark.master} has "
            f"{most}.",
            remedy=f"Give executors={most} or fewer, or make the session with {remedy}.",
            master=spark.master,
        )


def set_locality_wait(spark: SparkContext) -> None:
    """Let Spark wait up to 10 s for a lane's own executor, unless the user set another wait.

    A lane that runs elsewhere finds no state there, which costs more than waiting for a busy core.
    The wait is bounded, since Spark may also wait for an executor that dies between the planning
    of an epoch and the start of its lanes.  Spark reads this setting for every set of tasks.
    """
    conf = spark._jsc.sc().conf()  # noqa: SLF001  the public copy cannot be changed any more
    if not conf.contains("spark.locality.wait") and not conf.contains(_WAIT):
        conf.set(_WAIT, "10s")


_WAIT = "spark.locality.wait.process"


def wait_for_executors(
    spark: SparkContext, minimum: int, timeout_s: float = 60.0
) -> tuple[Executor, ...]:
    """Wait until there are at least `minimum` executors, and return them.

    Raises `EpochFailedError` if fewer have registered after `timeout_s` seconds.
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


def run_trial_epoch(executor: Executor, source: Any, spark: SparkContext) -> None:
    """Run a trial epoch without lanes on every core of an executor; blocks.

    The JVM of an executor that has just joined has compiled nothing and its Python has not started:
    the first epoch that used it would wait five to ten seconds. So the partitions of the last
    micro-batch (`source`, an RDD of the JVM) are read again and discarded, through Python and an
    exchange, which is the same as Spark running a task twice. Without any, only Python starts.
    """
    spark.setLocalProperty("spark.scheduler.pool", POOL)
    spark.setJobDescription(f"godwit: rehearsal of executor {executor.name}")
    locations = [executor.location] * executor.lanes
    num_partitions = 0 if source is None else source.getNumPartitions()
    if num_partitions == 0:
        read = on_executors(locations, lambda lane: _discard_rows(lane, iter(())), spark)
    else:
        read = PythonStage(
            pair_with_locations(source.toJavaRDD(), locations, spark, count=num_partitions),
            _discard_rows,
        )
    exchanged = exchange(read, executor.lanes, spark)
    fetch(
        python_rdd(run_at_lanes(exchanged, locations, lambda _lane, _came: [b""], spark), spark),
        spark,
    )


def _discard_rows(lane: int, batches: Iterator[bytes]) -> Iterator[Blob]:
    """Read rows and send nothing; the task of a trial epoch."""
    for module in ("godwit.spark.stages.stages", "godwit.library.binding"):
        import_module(module)
    for _ in batches:
        pass
    yield lane, b""


_LOOK_S = 0.2
_logger = logging.getLogger("godwit")


class ExecutorWatch:
    """Watches the executors, and reports those that came or went to the coordinator.

    Those that come count once they have rehearsed an epoch: that takes seconds, and keeps the tasks
    of epochs away meanwhile.  Where there is no other executor, they count at once.
    """

    def __init__(
        self,
        # its `executors` are kept up to date: replaced as a whole, so readers see one consistent
        # version
        cluster: SparkCluster,
        *,
        coordinator: Coordinator,  # gets the events
        lost: LostExecutors,  # is told of each executor that is gone, once the coordinator knows
        pool: SparkExecutorPool,  # knows which ones were given back
        spark: SparkSession,
    ) -> None:
        self._cluster = cluster
        self._coordinator, self._lost, self._spark = coordinator, lost, spark
        self._pool = pool
        self._rehearsing: set[str] = set()
        self._rehearsed: set[str] = set()
        self._is_one_process: bool | None = None  # not asked yet
        self._parallelism: int | None = None  # of the one process, when it was last looked at
        self._stopping = threading.Event()
        self._guard = Guard("watching executors", coordinator.background_failed)
        self._thread = threading.Thread(
            target=self._run_thread, name="godwit-executors", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop watching executors."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def check_executors(self) -> None:
        """Compare the live executors with the known ones; report changes to the coordinator."""
        live = live_executors(self._spark.sparkContext)
        by_name = {e.name: e for e in live}
        self._rehearsed &= by_name.keys()  # those that are gone never come back by their names
        self._rehearsing &= by_name.keys()
        for name in by_name.keys() - self._cluster.executors.keys() - self._rehearsing:
            self._rehearsing.add(name)
            threading.Thread(
                target=inheritable_thread_target(self._spark)(self._run_trial_epoch),
                args=(by_name[name],),
                name=f"godwit-rehearsal-{name}",
                daemon=True,
            ).start()
        ready = {
            name: executor
            for name, executor in by_name.items()
            if name in self._cluster.executors or name in self._rehearsed
        }
        by_name = ready or by_name
        if by_name.keys() == self._cluster.executors.keys():
            return
        # New ones are known before the coordinator can order anything for them, lost ones after.
        self._cluster.executors = {**self._cluster.executors, **by_name}
        gone = self._coordinator.see(
            {e.name: e.lanes for e in by_name.values()}, self._pool.returned
        )
        self._cluster.executors = by_name
        for name in gone:
            self._lost.record_loss(name)

    def _run_trial_epoch(self, executor: Executor) -> None:
        """Run a trial of the last epoch on a new executor; a failure is only logged."""
        try:
            rows = self._cluster.micro_batches
            latest = None if rows is None else rows.latest
            run_trial_epoch(executor, latest, self._spark.sparkContext)
        except Exception:
            _logger.debug("Executor %s has not rehearsed", executor.name, exc_info=True)
        self._rehearsed.add(executor.name)

    def _check_if_changed(self) -> None:
        """Compare the executors if Spark's registrations have changed."""
        spark = self._spark.sparkContext
        if self._is_one_process is None:
            self._is_one_process = is_one_process(spark)
        if self._is_one_process:  # a look at it is a hundred questions to the JVM
            parallelism = spark.defaultParallelism
            joining = self._rehearsing - self._cluster.executors.keys()
            if parallelism != self._parallelism or joining:
                self.check_executors()
                self._parallelism = parallelism
        elif registered_executors(spark) != self._cluster.executors.keys():
            self.check_executors()

    def _run_thread(self) -> None:
        """Detect new and lost executors periodically; the body of a thread."""
        while not self._stopping.wait(_LOOK_S):
            try:
                self._check_if_changed()
                self._lost.cancel_jobs()
            except Exception as error:  # noqa: BLE001  told, and looked again
                if self._stopping.is_set() or context_is_stopped(self._spark.sparkContext):
                    return  # the context is stopping under us
                self._guard.report(error)
