"""One run of a flow on Spark: how it is opened, its epoch loop, and what goes on beside it.

What happens in an epoch is in `godwit.engine.loop`; how Spark runs it, in
`godwit.cluster.spark.run.cluster`. Here a batch of source rows becomes an epoch, and a committed
epoch is shown to the controller, the policies and the journal.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from godwit.adapt import EpochObserved
from godwit.adapt.fusing import Fusing, by_attributes
from godwit.adapt.placing import ComparePlacing, place_as_measured, place_by_attributes
from godwit.adapt.policy import RESPECT_S
from godwit.adapt.run_record import RunRecorder
from godwit.adapt.spreading import SpreadHotKeys, spreading_of
from godwit.adapt.windows import ExchangeCosts, SharePanes, SplitOrCombine, splitting_of
from godwit.checkpoint.collection import collect_garbage
from godwit.checkpoint.journal import JournalWriter, read_last
from godwit.checkpoint.ownership import acquire_lease
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cluster.spark.platform.executor_pool import SparkExecutorPool, SparkScheduler
from godwit.cluster.spark.platform.executors import (
    ExecutorWatch,
    check_spare_slots,
    lanes_fit,
    set_locality_wait,
    wait_for_executors,
)
from godwit.cluster.spark.resident import garbage
from godwit.cluster.spark.resident.epoch_lanes import EpochLanes
from godwit.cluster.spark.resident.job import (
    SparkTasks,
    check_unencrypted_network,
    encrypting_setting,
    is_on,
)
from godwit.cluster.spark.resident.lanes import ResidentLanes
from godwit.cluster.spark.run.background_copies import BackgroundCopies
from godwit.cluster.spark.run.cluster import LostExecutors, SinkSession, SparkCluster
from godwit.cluster.spark.run.controller import (
    ControllerThread,
    last_memory,
    past_decisions,
)
from godwit.cluster.spark.run.policies import OperatorPolicies
from godwit.cluster.spark.run.repartitioning import Repartitioning
from godwit.cluster.spark.run.source_loop import known_interval_s
from godwit.cluster.spark.run.threads import DaemonPool, GateClosedError, Guard, close_all
from godwit.cluster.spark.stages.stages import lanes_of, ship_program
from godwit.engine.flow_epochs import FlowEpochs
from godwit.engine.lane.lane import lane_flow
from godwit.engine.latency import latency_entry, merged_latency
from godwit.engine.loop import EpochLoop, SharedConductor
from godwit.engine.outcomes import progress_of
from godwit.engine.outputs import OpenSinks, staged_sinks
from godwit.engine.recovery import last_loads, recover_flow, run_started
from godwit.migration import Conductor, LoadSummary
from godwit.model import events
from godwit.plan.explain import UserNames

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from godwit.adapt.policy import AdaptationPolicy, Announce, FlowEpoch, ManualOverrides
    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.ownership import CheckpointLease
    from godwit.checkpoint.records import BatchRef
    from godwit.cluster.spark.observe.dispatcher import EventDispatcher
    from godwit.cluster.spark.query.settings import Options
    from godwit.cluster.spark.run.cluster import BatchRows
    from godwit.cluster.spark.run.threads import EpochGate
    from godwit.engine.cluster import SourceBatch
    from godwit.engine.latency import SourceLatency
    from godwit.engine.loop import Stopwatch
    from godwit.engine.recovery import Recovery
    from godwit.engine.spreading import SpreadOrders
    from godwit.migration import ComponentView, EpochOutcome, Policy, ProtocolView, RunStarted
    from godwit.plan.compiled import CompiledFlow

_COLLECT_EVERY, _COLLECT_EVERY_S = 20, 10.0
"""Epochs and seconds between collections, at least: one replays some epochs of the log, which small
epochs in a row would wait for."""
_PROGRESS_KEPT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """Parts of a run that are opened over one recovery of its checkpoint, and closed together."""

    epochs: FlowEpochs[Any]
    cluster: SparkCluster
    conducting: SharedConductor
    pool: SparkExecutorPool
    controller: ControllerThread | None
    policies: OperatorPolicies
    # see `EpochLoop`
    delivering: Callable[[Callable[[], None]], Callable[[], object]] | None
    closing: list[tuple[str, Callable[[], object]]]  # in the order in which they are closed


class SparkRun:
    """One run of a flow, from its start to its end. Made by `open_run`.

    Its parts are opened when it starts, and again, all but the sources, when other columns are to
    place its state (`godwit.cluster.spark.run.repartitioning`).
    """

    # whether somebody's change of the number of executors is under way; whoever knows replaces it
    is_scaling: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(
        self,
        parts: RunParts,
        *,
        # opens parts again whose predecessors are closed, by operators' columns
        reopen: Callable[[RunParts, Mapping[str, tuple[str, ...]]], RunParts],
        note: Callable[[str, Callable[[], Mapping[str, Any]]], None],  # adds to the journal
        gate: EpochGate,
        lease: CheckpointLease,
        spark: SparkSession,
        trigger_s: float = 0.0,  # least time between the beginnings of epochs with input
    ) -> None:
        self.run_id = parts.epochs.run_id
        self._reopen, self._note = reopen, note
        self._lease, self._spark, self.gate = lease, spark, gate
        self.batches = 0  # carried out in this run
        self._collecting = Guard("collecting files", self.background_failed)
        # epoch and time of the last collection
        self._collected = parts.epochs.log.latest_epoch, time.monotonic() - _COLLECT_EVERY_S
        self._progress: deque[dict[str, Any]] = deque(maxlen=_PROGRESS_KEPT)
        self._noting = threading.Lock()
        self._record = RunRecorder(note, trigger_s=trigger_s)
        self._input_ended = False
        self._backlog_rows: Callable[[], int | None] = lambda: None
        self._use(parts)
        self.repartitioning = Repartitioning(self)

    def _use(self, parts: RunParts) -> None:
        """Run epochs by these parts from now on."""
        self.epochs, self.cluster, self.conducting = parts.epochs, parts.cluster, parts.conducting
        self.pool, self.controller, self.policies = parts.pool, parts.controller, parts.policies
        self.loop = EpochLoop(parts.epochs, parts.conducting, self, beside=parts.delivering)
        self._parts, self._closing = parts, parts.closing
        self.ask_backlog(self._backlog_rows)
        if self._input_ended:
            self.epochs.end_input()

    def place_by(self, columns: Mapping[str, tuple[str, ...]]) -> None:
        """Close the run's parts but the sources, and open them with other columns of operators.

        Called between two epochs, once the last one is delivered; what it raises fails the query,
        whose checkpoint has either the former columns or these.

        Raises `GateClosedError` if the query is to stop.
        """
        parts = self._parts
        self._closing = [part for part in parts.closing if part[0] == _SOURCES]
        problems = close_all(part for part in parts.closing if part[0] != _SOURCES)
        if self.gate.closed:
            raise GateClosedError
        self._use(self._reopen(parts, columns))
        for what, error in problems:
            self.background_failed(what, error)

    def ask_backlog(self, backlog_rows: Callable[[], int | None]) -> None:
        """Have the controller ask the sources' backlog in rows by this function."""
        self._backlog_rows = backlog_rows
        if self.controller is not None:
            self.controller.backlog_rows = backlog_rows

    def background_failed(self, what: str, error: str) -> None:
        """Announce that background work has failed."""
        self.conducting.background_failed(what, error)

    @property
    def flow(self) -> CompiledFlow:
        """The flow, under its present physical plan."""
        return self.epochs.flow

    @property
    def spreading(self) -> Mapping[str, SpreadOrders]:
        """Operator → requests to divide its hot keys, for operators that allow it."""
        return self.epochs.times.spreading

    @property
    def names(self) -> UserNames:
        """Names of operators and components as users know them."""
        return UserNames(self.epochs.flow.operators)

    @property
    def log(self) -> CommitLog:
        """Commit log of the checkpoint."""
        return self.epochs.log

    @property
    def progress(self) -> tuple[dict[str, Any], ...]:
        """Figures of the last epochs, oldest first."""
        with self._noting:
            return tuple(self._progress)

    @property
    def view(self) -> ProtocolView:
        """State of the migration protocol, as an immutable value."""
        return self.conducting.view

    def close(self) -> list[tuple[str, str]]:
        """Stop background work and close the sinks; the lease on the checkpoint is kept.

        Returns the parts that could not be closed, with their errors.
        """
        self.repartitioning.close()
        with suppress(Exception):  # the query has failed by it
            self.loop.finish_delivery()
        return close_all(self._closing)

    def release(self) -> None:
        """Release the checkpoint's lease for the next query."""
        self._lease.release()

    def check_lease(self) -> None:
        """Raise `CheckpointInUseError` if another query has taken the lease on the checkpoint."""
        self._lease.check_held()

    # -- epochs -----------------------------------------------------------------------------------

    def epoch_begun(self, rows: int, held_back: int) -> None:
        """Report an epoch's rows, and the sources' backlog (`held_back`), to the controller."""
        if self.controller is not None:
            self.controller.epoch_begun(rows, held_back)

    def with_input(
        self,
        # identifies a batch, from the last one that is committed; None if it is committed already
        offered: Callable[[BatchRef | None], SourceBatch[Any] | None],
        stopped: Callable[[], bool] = lambda: False,
        *,
        # what stops the query also breaks off its epoch in the middle: see `EpochGate.epoch`
        broken_off: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """Run the epoch of a batch of source rows, which may be offered again after a crash.

        `offered`: returns the batch after the last committed one. `stopped`, `broken_off`: return
        whether Spark's query is being stopped, and whether the epoch is to be aborted. Raises if
        the epoch failed. Returns phase → milliseconds; empty if the batch was committed before.
        """
        with self.gate.epoch(stopped, broken_off=broken_off):
            batch = offered(self.epochs.last_batch)
            if batch is not None:  # else it was delivered when the run began
                self.loop.run(batch)
        self.batches += 1
        latest = self.progress[-1:]
        if batch is None or not latest:
            return {}
        return {phase: ms for phase, ms in latest[0]["durationMs"].items() if phase != "epoch"}

    def without_input(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Run an epoch without input, if one is still due.

        `stopped`: called while the epoch is held. Raises `GateClosedError` if the query stops.
        """
        # An error is one of the epoch: Spark's stop breaks off no job of this thread.
        with self.gate.epoch(stopped):
            if self.is_due:
                self.loop.run(None)

    @property
    def is_due(self) -> bool:
        """True if an epoch without input has work to do."""
        return self.epochs.is_due(self.view)

    @property
    def is_pending(self) -> bool:
        """True if epochs without input are due, or will be once they are not held."""
        return self.epochs.is_pending(self.view)

    def end_input(self) -> None:
        """Mark the input as ended, so that open windows close."""
        self._input_ended = True
        self.epochs.end_input()

    def advance_clock(self) -> None:
        """Advance the conductor's clock without an epoch, so that it retries lost orders."""
        with self.conducting.locked() as conductor:
            conductor.let_time_pass()

    def use_this_thread(self) -> None:
        """Prepare the calling thread, which is not Spark's, to start jobs of this run."""
        self._spark.sparkContext.setJobGroup(self.run_id, f"godwit: epochs of {self.flow.name}")

    def cancel_jobs(self) -> None:
        """Cancel the jobs started by threads that are not Spark's."""
        self._spark.sparkContext.cancelJobGroup(self.run_id)

    # -- what looks on ----------------------------------------------------------------------------

    def committed(
        self, outcome: EpochOutcome, plans: Mapping[str, ComponentView], took_s: float
    ) -> None:
        """Observe an epoch that is committed and not delivered yet."""
        batch, of_frames = self.epochs.batch, None
        if batch is not None:
            of_frames = self.cluster.source.micro_batch_rows(outcome.rows_in)
        if of_frames is not None:
            self.cluster.source.expect_rows(of_frames)
        observed = EpochObserved(
            outcome=outcome,
            assignments={name: plan.assignment for name, plan in plans.items()},
            took_s=took_s,
            committed_s=None if self.controller is None else self.controller.now_s(),
        )
        if self.controller is not None:
            self.controller.epoch_committed(
                observed, None if of_frames is None else batch, of_frames or 0
            )
        self._record.committed(self.flow, observed, time.time())
        self.policies.observe(outcome, self.flow, plans)
        if (proposed := self.policies.take_repartitioning()) is not None:
            self.repartitioning.begin_proposed(proposed)
        with self.conducting.locked() as conductor:
            load = conductor.recent_load.due_summary()
        self._record.loads(load)

    def delivered(
        self, outcome: EpochOutcome, stopwatch: Stopwatch, latencies: Mapping[str, SourceLatency]
    ) -> None:
        """Observe an epoch that is delivered, just before its event."""
        self._collect_if_due(outcome.epoch)
        progress = progress_of(outcome, self.view, stopwatch, latencies)
        with self._noting:
            self._progress.append(progress)
        self._note("progress", lambda: progress)
        if latencies and self.controller is not None:
            self.controller.epoch_delivered(merged_latency(latencies))
        if latencies:
            self._note("latency", lambda: latency_entry(outcome.epoch, latencies))

    def _collect_if_due(self, epoch: int) -> None:
        """Queue the deletion of unneeded files, every few epochs."""
        last, last_s = self._collected
        now_s = time.monotonic()
        if epoch - last >= _COLLECT_EVERY and now_s - last_s >= _COLLECT_EVERY_S:
            self._collected = epoch, now_s
            self.cluster.beside.submit(self._collecting, self._collect_garbage)

    def _collect_garbage(self) -> None:
        """Delete files of the checkpoint that nothing needs, and announce it."""
        collected = collect_garbage(self.log)
        for error in collected.errors:
            self._collecting.report(error)
        if collected.removed:
            with self.conducting.locked() as conductor:
                conductor.announce(
                    events.FilesCollected,
                    files=len(collected.removed),
                    freed_bytes=collected.freed_bytes,
                )


_EXCHANGE = ExchangeCosts(byte_ms=15 / 2**20, lane_ms=15.0)
"""As Spark adds them to what lanes measure (docs/decisions/0043)."""
_REMEMBERED = 500
"""Entries of the journal among which the last loads are looked for."""
_ENDING_JOBS = 4
"""Jobs of lanes at a time: that of the next epoch, and those whose lanes end."""


def open_run(
    flow: CompiledFlow,
    compiled_again: Callable[[], CompiledFlow],  # the same flow, where parts are opened again
    # makes what has the source rows, from what the checkpoint says of them
    rows_of: Callable[[Recovery, CommitLog], BatchRows],
    options: Options,  # as the user gave them
    spark: SparkSession,  # the session
    *,
    # takes events and outcomes to listeners and to the checkpoint's journal
    dispatcher: EventDispatcher,
    gate: EpochGate,  # says when the query is to stop
) -> SparkRun:
    """Acquire the lease, recover the state, open the sinks and wait for executors; return the run.

    `rows_of`: returns the sources' rows, for the recovered checkpoint.
    """
    if options.lanes.resident:
        check_spare_slots(spark.sparkContext, options.executors, _spare_slots(options))
        check_unencrypted_network(spark.sparkContext)
    storage = CheckpointStorage.open(
        options.checkpoint,
        access=options.checkpointing.access,
        single_driver=options.checkpointing.single_driver,
    )
    run = uuid.uuid4().hex[:12]
    lease = acquire_lease(storage, run)
    past: list[events.Event] = []
    placed: dict[str, tuple[str, ...]] = {}  # operator → columns that were asked for in this run

    def reopened(before: RunParts, columns: Mapping[str, tuple[str, ...]]) -> RunParts:
        """Open the parts again, with other columns of some operators."""
        placed.update(columns)
        return _opened(
            compiled_again(), storage, rows_of, options, spark,
            run=run, dispatcher=dispatcher, gate=gate, past=[*past, *dispatcher.events],
            before=before, placed=placed,
        )  # fmt: skip

    try:
        past += _past_decisions(flow, storage, options)
        parts = _opened(
            flow, storage, rows_of, options, spark,
            run=run, dispatcher=dispatcher, gate=gate, past=past,
        )  # fmt: skip
    except BaseException:
        lease.release()
        raise
    return SparkRun(
        parts,
        reopen=reopened,
        note=dispatcher.record,
        gate=gate,
        lease=lease,
        spark=spark,
        trigger_s=known_interval_s(options.trigger),
    )


def _opened(
    flow: CompiledFlow,
    storage: CheckpointStorage,
    rows_of: Callable[[Recovery, CommitLog], BatchRows],  # returns the epochs' source of rows
    options: Options,
    spark: SparkSession,
    *,
    run: str,  # its id
    dispatcher: EventDispatcher,
    gate: EpochGate,
    past: list[events.Event],  # of earlier runs, and of this one so far
    before: RunParts | None = None,  # closed parts of this run, whose sources go on
    placed: Mapping[str, tuple[str, ...]] | None = None,  # operator → columns, if asked for
) -> RunParts:
    """Recover the state and open everything over it; if that fails, nothing is open."""
    closing: dict[str, Callable[[], object]] = {}
    compared: list[dict[str, Any]] = []

    def components(
        compiled: CompiledFlow, free: frozenset[str], may_rewrite: Callable[[], bool]
    ) -> dict[str, tuple[str, ...]]:
        """Choose the components to start with.

        `free`: operators without state in the checkpoint. `may_rewrite`: returns whether the state
        of others can be rewritten now.
        """
        fusion, lanes = options.adaptation.fusion, spark.sparkContext.defaultParallelism
        if before is not None:
            return _components_of(compiled, placed or {}, options)
        if fusion is not None and fusion.by == "attributes":
            compared.extend(place_by_attributes(compiled, free, fusion, lanes))
        if fusion is not None and options.checkpointing.repartition and may_rewrite():
            compared.extend(place_as_measured(compiled, past_decisions(storage), fusion.confirm))
        return _initial_components(compiled, options)

    try:
        log, recovery = recover_flow(
            flow,
            storage,
            run,
            retain_epochs=options.checkpointing.retain_epochs,
            components=components,
            repartition=options.checkpointing.repartition,
            placed=placed,
            delivered=before is not None,
        )
        source = rows_of(recovery, log) if before is None else before.cluster.source
        closing[_SOURCES] = source.close
        if before is None:
            source.open()
        else:
            source.use_log(log)
        # What executors hold by the former columns lies under another id, and is removed.
        part = run if before is None else uuid.uuid4().hex[:12]
        parts = _open_parts(
            recovery, log, source, options, spark,
            run_id=f"{log.identity.query_id[:12]}-{part}", dispatcher=dispatcher, gate=gate,
            closing=closing, past=past, before=before,
        )  # fmt: skip
    except BaseException:
        close_all(_closing_order(closing))
        raise
    with parts.conducting.locked() as conductor:
        for fields in compared:
            conductor.announce(events.PartitioningCompared, **fields)
    return parts


_SOURCES: Final = "source rows"
_CLOSED: Final = (
    *("controller", "resident lanes", "lanes of the next epoch", "garbage collection"),
    *("executor pool", "executor watch", "background copies", "work beside the epochs"),
    *("conductor", "deliveries", "sinks", _SOURCES, "program of the executors"),
)
"""Parts of a run in the order in which they are closed, at its end and after a start that fails."""


def _closing_order(
    closing: Mapping[str, Callable[[], object]],
) -> list[tuple[str, Callable[[], object]]]:
    """Return the names and closing functions of open parts, in the order of closing."""
    return [(part, closing[part]) for part in _CLOSED if part in closing]


def _spare_slots(options: Options) -> int:
    """Return the number of task slots per executor that resident lanes leave free."""
    return int(options.lanes.resident)


def _open_parts(
    recovery: Recovery,
    log: CommitLog,
    source: BatchRows,
    options: Options,
    spark: SparkSession,
    *,
    run_id: str,
    dispatcher: EventDispatcher,
    gate: EpochGate,
    closing: dict[str, Callable[[], object]],  # gets a function per part, once it is open
    past: list[events.Event],
    before: RunParts | None,
) -> RunParts:
    """Open all parts of a run, whose sources are open.

    `past`: events until now. `before`: closed parts, whose work these go on with.
    """
    flow = recovery.flow
    cluster = _open_cluster(
        recovery, log, source, options, spark,
        # Those that were there a moment ago: another number was perhaps asked for since the start.
        executors=options.executors if before is None else 1,
        run_id=run_id, announce=dispatcher.emit, gate=gate, closing=closing,
    )  # fmt: skip
    if before is None:
        dispatcher.add_recorder("journal", JournalWriter(log.storage, run_id))
    executors = tuple(cluster.executors.values())
    started = run_started(flow, log, recovery, options.sizing.assignments, executors, run_id=run_id)
    conductor = _create_conductor(
        started, recovery, log, cluster, options.policy, starts=before is None
    )
    conducting = SharedConductor(conductor)
    closing["conductor"] = conducting.close
    if before is not None:
        _announce_executor_changes(conducting, before.conducting.view.executors)
    if options.lanes.resident:
        cluster.resident = _resident_lanes(cluster, conducting, run_id, flow.name)
        closing["resident lanes"] = cluster.resident.close
        garbage.pause_collection()
        closing["garbage collection"] = garbage.resume_collection
    elif _may_wait(spark.sparkContext):
        cluster.epoch_lanes = _epoch_lanes(cluster, run_id, flow.name, closing)
    pool = SparkExecutorPool(
        SparkScheduler(spark.sparkContext),
        conducting=conducting,
        gate=gate,
        patience_s=options.sizing.executors_timeout_s,
        before_return=partial(cluster.end_resident, "executors are given back"),
        total=None if before is None else before.pool.total,
    )
    closing["executor pool"] = pool.close
    controller = _start_controller(
        started, flow, log, options, before,
        conducting=conducting, pool=pool, past=past, note=dispatcher.record, closing=closing,
    )  # fmt: skip
    epochs = FlowEpochs(
        recovery,
        log,
        cluster,
        settings=options.lanes,
        policy=options.policy,
        run_id=run_id,
        close_at_end=options.close_at_end,
        on_regroup=(lambda _: None) if controller is None else controller.regrouped,
        meter=None if before is None else before.epochs.meter,
    )
    _start_background_threads(
        epochs, cluster,
        conducting=conducting, pool=pool, options=options, spark=spark, closing=closing,
    )  # fmt: skip
    delivering = _concurrent_delivery(cluster, gate, closing)
    return RunParts(
        epochs=epochs,
        cluster=cluster,
        conducting=conducting,
        pool=pool,
        controller=controller,
        policies=_enabled_policies(options, epochs, conducting, past),
        delivering=delivering,
        closing=_closing_order(closing),
    )


def _announce_executor_changes(conducting: SharedConductor, former: Mapping[str, int]) -> None:
    """Announce executors that came or were lost while the parts of a run were closed.

    `former`: executor → lanes, of those before.
    """
    present = conducting.view.executors
    for name in sorted(former.keys() - present.keys()):
        conducting.announce(events.ExecutorLost, executor=name)
    for name in sorted(present.keys() - former.keys()):
        conducting.announce(events.ExecutorAdded, executor=name, lanes=present[name])


def _start_controller(
    started: RunStarted,
    flow: CompiledFlow,
    log: CommitLog,
    options: Options,
    before: RunParts | None,
    *,
    conducting: SharedConductor,
    pool: SparkExecutorPool,
    past: list[events.Event],
    note: Callable[[str, Callable[[], Mapping[str, Any]]], None],
    closing: dict[str, Callable[[], object]],
) -> ControllerThread | None:
    """Start the controller and return it; ``None`` if the user set none.

    `past`: events of earlier runs. `note`: adds journal entries. `closing`: gets its closing
    function.
    """
    if options.control is None:
        return None
    former = None if before is None else before.controller
    controller = ControllerThread(
        options.control,
        flow,
        conducting=conducting,
        pool=pool,
        state_bytes=started.state_bytes,
        past=past,
        memory=last_memory(log.storage) if former is None else former.memory,
        note=note,
        trigger_s=known_interval_s(options.trigger),
    )
    closing["controller"] = controller.close
    return controller


def _start_background_threads(
    epochs: FlowEpochs[Any],
    cluster: SparkCluster,
    *,
    conducting: SharedConductor,
    pool: SparkExecutorPool,
    options: Options,
    spark: SparkSession,
    closing: dict[str, Callable[[], object]],
) -> None:
    """Start the threads that watch executors and make copies in the background."""
    closing["executor watch"] = ExecutorWatch(
        cluster,
        conducting=conducting,
        lost=cluster.lost,
        pool=pool,
        spark=spark,
        spare_slots=_spare_slots(options),
    ).close
    closing["background copies"] = BackgroundCopies(
        cluster, conducting=conducting, instructor=epochs.instructor, spark=spark
    ).close


def _concurrent_delivery(
    cluster: SparkCluster, gate: EpochGate, closing: dict[str, Callable[[], object]]
) -> Callable[[Callable[[], None]], Callable[[], object]] | None:
    """Return a function that starts a concurrent delivery; ``None`` if sinks do not allow it."""
    # Where a micro-batch's epoch has ended, Spark takes it for delivered.
    if cluster.source.has_log or not cluster.sinks.deliver_concurrently:
        return None
    thread = DaemonPool(1, "godwit-delivery")
    closing["deliveries"] = thread.close
    return lambda deliver: thread.submit(gate.register_delivery(deliver)).result


def _open_cluster(
    recovery: Recovery,
    log: CommitLog,
    source: BatchRows,
    options: Options,
    spark: SparkSession,
    *,
    executors: int,  # that are waited for
    run_id: str,
    announce: Callable[[events.Event], None],
    gate: EpochGate,
    closing: dict[str, Callable[[], object]],
) -> SparkCluster:
    """Open the sinks, broadcast the program, and wait for executors; return the cluster."""
    flow, context = recovery.flow, spark.sparkContext
    sinks = OpenSinks(
        flow,
        log,
        SinkSession(spark),
        renamed=recovery.changes.renamed,
        on_divergence=options.on_divergence,
    )
    closing["sinks"] = sinks.close
    lanes = lane_flow(flow, recovery.layouts, staged_sinks(flow))
    program = ship_program(source.program(lanes), run_id, context)
    closing["program of the executors"] = program.destroy
    set_locality_wait(context)
    there = wait_for_executors(
        context,
        executors,
        options.sizing.executors_timeout_s,
        spare_slots=_spare_slots(options),
    )
    beside = DaemonPool(2, "godwit-beside-epochs")
    closing["work beside the epochs"] = beside.close
    return SparkCluster(
        context,
        there,
        program=program,
        source=source,
        sinks=sinks,
        announce=announce,
        lost=LostExecutors(run_id, context),
        gate=gate,
        beside=beside,
    )


def _resident_lanes(
    cluster: SparkCluster, conducting: SharedConductor, run_id: str, flow: str
) -> ResidentLanes:
    """Return the resident lanes: tasks of long Spark jobs that stay between epochs."""
    return ResidentLanes(
        partial(lanes_of, cluster.program),
        SparkTasks(
            cluster.spark,
            group=f"{run_id}-resident",
            description=f"godwit: resident lanes of {flow}",
        ).of_job,
        announce=conducting.announce,
        given_up=cluster.stop_waiting_reason,
    )


def _may_wait(spark: SparkContext) -> bool:
    """Return whether tasks may wait for their rows: all run at once, each once, unencrypted."""
    speculates = is_on(spark.getConf().get("spark.speculation", "false"))
    return lanes_fit(spark) and not speculates and encrypting_setting(spark) is None


def _epoch_lanes(
    cluster: SparkCluster, run_id: str, flow: str, closing: dict[str, Callable[[], object]]
) -> EpochLanes:
    """Return the lanes that are started before the rows of an epoch are chosen."""
    threads = DaemonPool(_ENDING_JOBS, "godwit-lanes")
    lanes = EpochLanes(
        partial(lanes_of, cluster.program),
        SparkTasks(
            cluster.spark,
            group=f"{run_id}-lanes",
            description=f"godwit: lanes of {flow}",
            threads=threads,
        ).of_job,
        given_up=cluster.stop_waiting_reason,
    )

    def close() -> None:
        """End lanes that are ready, and the threads of their jobs."""
        lanes.close()
        threads.close()

    closing["lanes of the next epoch"] = close
    return lanes


def _create_conductor(
    started: RunStarted,
    recovery: Recovery,
    log: CommitLog,
    cluster: SparkCluster,
    policy: Policy,
    *,
    starts: bool,  # false: the run goes on
) -> Conductor:
    """Create the conductor, announce the run, and repeat the delivery of the last epoch."""
    flow, sinks, resumed = recovery.flow, cluster.sinks, log.latest_epoch >= 0
    load = read_last(log.storage, _REMEMBERED, "load", LoadSummary.from_dict)
    conductor = Conductor(
        started,
        states={c.name: c.states for c in flow.components},
        policy=policy,
        ports=cluster,
        remembered=last_loads(load, flow, recovery),
        plan=flow.physical_plan,
    )
    if starts:
        conductor.announce(events.QueryStarted, name=flow.name, resumed=resumed)
    if resumed and (changes := recovery.changes_event(*sinks.describe_changes())) is not None:
        conductor.announce(events.FlowChanged, **changes)
    if log.latest is not None:
        sinks.deliver(log.latest, again=True)
    return conductor


def _past_decisions(
    flow: CompiledFlow, storage: CheckpointStorage, options: Options
) -> list[events.Event]:
    """Return the events of earlier runs; empty without controller and policies."""
    adapts = (
        options.control
        or options.adaptation.fusion
        or splitting_of(flow, options.adaptation.splitting)
        or options.adaptation.spreading
    )
    return past_decisions(storage) if adapts else []


def _enabled_policies(
    options: Options, epochs: FlowEpochs[Any], conducting: SharedConductor, past: list[events.Event]
) -> OperatorPolicies:
    """Return the policies that may change operators of the query, as options enable them."""
    flow, times = epochs.flow, epochs.times
    splitting = splitting_of(flow, options.adaptation.splitting)
    spreading = spreading_of(flow, options.adaptation.spreading)

    def chosen(overrides: ManualOverrides, announce: Announce) -> list[AdaptationPolicy[FlowEpoch]]:
        """Create the policies that the options enable."""
        policies: list[AdaptationPolicy[FlowEpoch]] = []
        if times.sharing:
            policies.append(SharePanes(times.sharing))
        if spreading is not None:
            policies.append(SpreadHotKeys(times.spreading, spreading, overrides=overrides))
        if splitting is not None:
            policies.append(
                SplitOrCombine(flow, splitting, _EXCHANGE, overrides=overrides, announce=announce)
            )
        fusion = options.adaptation.fusion
        if fusion is not None and fusion.by == "traffic":
            policies.append(Fusing(flow, fusion, overrides=overrides))
        if fusion is not None and (fusion.by == "traffic" or fusion.repartition):
            policies.append(ComparePlacing(flow, fusion, _EXCHANGE, announce=announce))
        return policies

    return OperatorPolicies(
        flow,
        chosen,
        conducting=conducting,
        log=epochs.log,
        meters=times.sharing,
        spreading=times.spreading,
        stated=[name for of in options.components.values() for name in of],
        respect_s=RESPECT_S if options.control is None else options.control.respect_s,
        past=past,
    )


def _initial_components(flow: CompiledFlow, options: Options) -> dict[str, tuple[str, ...]]:
    """Return component → operators to start with: as the user says, or fused by attributes."""
    named = dict(options.components)
    if options.adaptation.fusion is None or options.adaptation.fusion.by != "attributes":
        return named
    return by_attributes(flow, {name for of in named.values() for name in of}) | named


def _components_of(
    flow: CompiledFlow, placed: Collection[str], options: Options
) -> dict[str, tuple[str, ...]]:
    """Return component → operators, by attributes, for components with operators in `placed`.

    Empty unless operators are fused by attributes.
    """
    if options.adaptation.fusion is None or options.adaptation.fusion.by != "attributes":
        return {}
    named = {name for of in options.components.values() for name in of}
    return {name: of for name, of in by_attributes(flow, named).items() if {*placed} & {*of}}
