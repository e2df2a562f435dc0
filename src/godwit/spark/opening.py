"""Opening of a run: everything over one recovery of its checkpoint, and in which order it closes.

It is done at the start, and once more whenever other columns are to place the state of the running
query (`godwit.runtime.run`).  If a part cannot be opened, none stays open.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from godwit.checkpoint.epochs import take_back
from godwit.checkpoint.journal import JournalWriter, read_last
from godwit.checkpoint.ownership import acquire_lease
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.flow_epochs import FlowEpochs
from godwit.engine.lane.lane_flow import lane_flow
from godwit.engine.outputs import OpenSinks, staged_sinks
from godwit.engine.recovery import begin_run, last_loads, recover_flow, run_started
from godwit.migration.coordinator import Coordinator
from godwit.migration.outcome import LoadSummary
from godwit.model import events
from godwit.model.errors import InvalidFlowError
from godwit.model.log_lines import chosen_format
from godwit.runtime.dispatcher import past_decisions
from godwit.runtime.entry_points import opener_of
from godwit.runtime.run import NUM_RECENT, SOURCES, QueryRun, RunParts
from godwit.runtime.settings import known_interval_s
from godwit.runtime.threads import DaemonPool, close_all
from godwit.spark.background_copies import BackgroundCopies
from godwit.spark.cluster import LostExecutors, SinkSession, SparkCluster
from godwit.spark.micro_batch_epochs import MicroBatchRows
from godwit.spark.platform.executor_pool import SparkExecutorPool, SparkScheduler
from godwit.spark.platform.executors import (
    ExecutorWatch,
    check_spare_slots,
    set_locality_wait,
    slots_of_process,
    wait_for_executors,
)
from godwit.spark.platform.sessions import RunSession, context_is_stopped
from godwit.spark.resident.job import SparkTasks, check_settings
from godwit.spark.resident.lanes import (
    ResidentLanes,
    pause_collection,
    resume_collection,
    shares_of,
)
from godwit.spark.stages.stages import lanes_of, ship_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.epochs import TakenBack
    from godwit.engine.initial_state import InitialState
    from godwit.engine.recovery import Recovery
    from godwit.migration.messages import RunStarted
    from godwit.plan.compiled import CompiledFlow
    from godwit.runtime.dispatcher import EventDispatcher
    from godwit.runtime.ports import RunController, RunPolicies
    from godwit.runtime.settings import Options
    from godwit.runtime.threads import EpochGate
    from godwit.spark.batch_rows import BatchRows

_RECENT: Final = "spark.sql.streaming.numRecentProgressUpdates"
_REMEMBERED = 500
"""Entries of the journal among which the last loads are looked for."""
_CLOSED: Final = (
    *("controller", "resident lanes", "garbage collection"),
    *("executor pool", "executor watch", "background copies", "work beside the epochs"),
    *("coordinator", "deliveries", "sinks", SOURCES, "program of the executors"),
)
"""Parts of a run in the order in which they are closed, at its end and after a start that fails."""


def open_run(
    flow: CompiledFlow,
    compiled_again: Callable[[], CompiledFlow],  # the same flow, where parts are opened again
    # makes what has the source rows, from what the checkpoint says of them
    rows_of: Callable[[Recovery, CommitLog], BatchRows],
    options: Options,  # as the user gave them
    spark: SparkSession,
    *,
    # takes events and outcomes to listeners and to the checkpoint's journal
    dispatcher: EventDispatcher,
    gate: EpochGate,  # says when the query is to stop
    initial: InitialState | None = None,  # that a checkpoint without epochs begins with
) -> tuple[QueryRun, BatchRows]:
    """Acquire the lease, recover the state, open sinks and wait for executors.

    Returns the run, and its source rows.
    """
    if options.lanes.resident is True:
        check_settings(spark.sparkContext)
        check_spare_slots(spark.sparkContext)
    opener = _Opener(rows_of, options, spark, dispatcher=dispatcher, gate=gate, initial=initial)
    lease = acquire_lease(opener.storage, opener.run)
    try:
        opener.taken_back = take_back(opener.storage, options.asked_epoch, opener.run)
        opener.remember(flow)
        parts = opener.open(flow)
    except BaseException:
        lease.release()
        raise
    run = QueryRun(
        parts,
        reopen=lambda before, columns: opener.open(compiled_again(), before, columns),
        note=dispatcher.record,
        gate=gate,
        lease=lease,
        session=RunSession(spark.sparkContext, parts.epochs.run_id),
        name=options.name or flow.name,
        trigger_s=known_interval_s(options.trigger),
        num_recent=max(0, int(spark.conf.get(_RECENT, None) or NUM_RECENT)),
    )
    return run, opener.source


class _Opener:
    """Opens the parts of one run, and opens them again."""

    def __init__(
        self,
        rows_of: Callable[[Recovery, CommitLog], BatchRows],
        options: Options,
        spark: SparkSession,
        *,
        dispatcher: EventDispatcher,
        gate: EpochGate,
        initial: InitialState | None,
    ) -> None:
        self._initial = initial
        self._rows_of, self._options, self._spark = rows_of, options, spark
        self._dispatcher, self._gate = dispatcher, gate
        self._controllers = opener_of(options)
        self.storage = CheckpointStorage.open(
            options.checkpoint,
            access=options.checkpointing.access,
            single_driver=options.checkpointing.single_driver,
        )
        self.run = uuid.uuid4().hex[:12]
        self._past: list[events.Event] = []  # events of earlier runs
        self.taken_back: TakenBack | None = None  # by this start
        # operator → columns that were asked for in this run
        self._placed: dict[str, tuple[str, ...]] = {}
        # Of the parts that are being opened: each as soon as it is open.
        self._closing: dict[str, Callable[[], object]] = {}
        self._run_id = ""
        self.source: BatchRows  # opened by the first start, and stays open

    def remember(self, flow: CompiledFlow) -> None:
        """Read the events of earlier runs, if a controller or policies are to know them."""
        if self._controllers is not None and self._controllers.needs_past(flow):
            self._past = past_decisions(self.storage)

    def open(
        self,
        flow: CompiledFlow,
        before: RunParts | None = None,
        columns: Mapping[str, tuple[str, ...]] | None = None,
    ) -> RunParts:
        """Recover the state and open everything over it; if that fails, nothing is open.

        `before`: former parts of this run, closed but for sources that stay open; ``None``: a first
        start. `columns`: operator → key columns that select its key groups from now on.
        """
        self._placed.update(columns or {})
        self._closing = {}
        compared: list[dict[str, Any]] = []

        def components(
            compiled: CompiledFlow, free: frozenset[str], may_rewrite: Callable[[], bool]
        ) -> dict[str, tuple[str, ...]]:
            """Choose the components to start with; parameters: see `_place`."""
            if before is None:
                compared.extend(self._place(compiled, free, may_rewrite))
            return self._components(compiled, changed_only=before is not None)

        try:
            log, recovery = recover_flow(
                flow,
                self.storage,
                self.run,
                retain_epochs=self._options.checkpointing.retain_epochs,
                components=components,
                repartition=self._options.checkpointing.repartition,
                placed=self._placed,
                delivered=before is not None,
                initial=self._initial if before is None else None,
            )
            parts = self._open_over(recovery, log, before)
        except BaseException:
            close_all(self._in_closing_order())
            raise
        with parts.coordinator.locked() as coordinator:
            for fields in compared:
                coordinator.announce(events.PartitioningCompared, **fields)
        return parts

    def _in_closing_order(self) -> list[tuple[str, Callable[[], object]]]:
        """Return the names and closing functions of open parts, in the order of closing."""
        return [(part, self._closing[part]) for part in _CLOSED if part in self._closing]

    # -- parts ------------------------------------------------------------------------------------

    def _open_over(self, recovery: Recovery, log: CommitLog, before: RunParts | None) -> RunParts:
        """Open sinks, sources, cluster, coordinator and controller over a recovered checkpoint.

        `before`: former parts of this run, as for `open`.
        """
        options, dispatcher, flow = self._options, self._dispatcher, recovery.flow
        past = [*self._past, *dispatcher.events]
        # What executors hold by the former columns lies under another id, and is removed.
        part = self.run if before is None else uuid.uuid4().hex[:12]
        self._run_id = f"{log.identity.query_id[:12]}-{part}"
        if before is None:
            self.source = self._rows_of(recovery, log)
        source = self.source
        self._closing[SOURCES] = source.positions.close
        if before is None:
            source.open()
        else:
            source.positions.read_loops_of(log)
        # Executors that were there a moment ago: another number was perhaps asked for since.
        cluster = self._cluster(
            recovery, log, source, executors=options.executors if before is None else 1
        )
        if before is None:
            dispatcher.add_recorder("journal", JournalWriter(log.storage, self._run_id))
        started = run_started(
            flow,
            log,
            recovery,
            options.sizing.assignments,
            tuple(cluster.executors.values()),
            run_id=self._run_id,
            settings=options.lanes,
        )
        coordinator = self._coordinator(started, recovery, log, cluster, starts=before is None)
        self._closing["coordinator"] = coordinator.close
        if before is not None:
            _announce_executor_changes(coordinator, before.coordinator.view.executors)
        self._prepare_lanes(cluster, coordinator, flow.name)
        pool = SparkExecutorPool(
            SparkScheduler(self._spark.sparkContext, self._options.name or flow.name),
            coordinator=coordinator,
            gate=self._gate,
            patience_s=options.sizing.executors_timeout_s,
            before_return=partial(cluster.end_resident, "executors are given back"),
            total=None if before is None else before.pool.total,
        )
        self._closing["executor pool"] = pool.close
        controller: RunController | None = None
        policies: RunPolicies | None = None

        def regrouped(flow: CompiledFlow) -> None:
            """Report to the controller that components have changed."""
            if controller is not None:
                controller.regrouped(flow)

        epochs = FlowEpochs(
            recovery,
            log,
            cluster,
            settings=options.lanes,
            policy=options.policy,
            run_id=self._run_id,
            close_at_end=options.close_at_end,
            on_regroup=regrouped,
            meter=None if before is None else before.epochs.meter,
        )
        if self._controllers is not None:
            controller, policies = self._controllers.open(
                epochs,
                coordinator=coordinator,
                pool=pool,
                state_bytes=started.state_bytes,
                past=past,
                former=None if before is None else before.controller,
                note=dispatcher.record,
                trigger_s=known_interval_s(options.trigger),
                limits_epochs=cluster.micro_batches is None,
            )
        if controller is not None:
            self._closing["controller"] = controller.close
        self._closing["executor watch"] = ExecutorWatch(
            cluster,
            coordinator=coordinator,
            lost=cluster.lost,
            pool=pool,
            spark=self._spark,
        ).close
        self._closing["background copies"] = BackgroundCopies(
            cluster, coordinator=coordinator, instructor=epochs.instructor, spark=self._spark
        ).close
        return RunParts(
            epochs=epochs,
            cluster=cluster,
            coordinator=coordinator,
            pool=pool,
            controller=controller,
            delivering=self._concurrent_delivery(cluster),
            policies=policies,
            closing=self._in_closing_order(),
        )

    def _cluster(
        self,
        recovery: Recovery,
        log: CommitLog,
        source: BatchRows,
        *,
        executors: int,  # that are waited for
    ) -> SparkCluster:
        """Open the sinks, broadcast the program, and wait for executors; return the cluster."""
        flow, context = recovery.flow, self._spark.sparkContext
        sinks = OpenSinks(
            flow,
            log,
            SinkSession(self._spark),
            renamed=recovery.changes.renamed,
            on_divergence=self._options.on_divergence,
        )
        self._closing["sinks"] = sinks.close
        lanes = replace(
            lane_flow(flow, recovery.layouts, staged_sinks(flow)),
            query=self._options.name or flow.name,
            log=chosen_format(self._options.observability.log),
        )
        program = ship_program(source.program(lanes), self._run_id, context)
        self._closing["program of the executors"] = lambda: (
            None if context_is_stopped(context) else program.destroy()
        )
        set_locality_wait(context)
        started = wait_for_executors(
            context,
            executors,
            self._options.sizing.executors_timeout_s,
        )
        beside = DaemonPool(2, "godwit-beside-epochs")
        self._closing["work beside the epochs"] = beside.close
        return SparkCluster(
            context,
            started,
            program=program,
            source=source,
            micro_batches=source if isinstance(source, MicroBatchRows) else None,
            sinks=sinks,
            announce=self._dispatcher.emit,
            lost=LostExecutors(self._run_id, context),
            gate=self._gate,
            beside=beside,
        )

    def _coordinator(
        self,
        started: RunStarted,
        recovery: Recovery,
        log: CommitLog,
        cluster: SparkCluster,
        *,
        starts: bool,  # false: the run continues
    ) -> Coordinator:
        """Create the coordinator, announce a query that `starts`, repeat the last delivery."""
        flow = recovery.flow
        load = read_last(log.storage, _REMEMBERED, "load", LoadSummary.from_dict)
        coordinator = Coordinator(
            started,
            states={c.name: c.states for c in flow.components},
            policy=self._options.policy,
            ports=cluster,
            remembered=last_loads(load, flow, recovery),
            plan=flow.physical_plan,
        )
        begin_run(
            coordinator,
            cluster,
            log,
            recovery,
            starts=starts,
            changed_sinks=cluster.sinks.describe_changes(),
            taken_back=self.taken_back,
        )
        return coordinator

    def _prepare_lanes(self, cluster: SparkCluster, coordinator: Coordinator, flow: str) -> None:
        """Set up the resident lanes of small epochs, unless they are unwanted or impossible."""
        context, resident = self._spark.sparkContext, self._options.lanes.resident
        if resident is False:
            return
        try:
            check_settings(context)
        except InvalidFlowError as error:  # chosen by the system, so no reason to fail
            cluster.not_resident = error.message
            return
        slots = slots_of_process(context)

        def slots_of(executor: str) -> tuple[str, int]:
            """Return what an executor's task slots belong to, and their number."""
            if slots is not None:
                return "", slots
            live = cluster.executors.get(executor)
            return executor, 0 if live is None else live.lanes

        cluster.resident = ResidentLanes(
            partial(lanes_of, cluster.program),
            SparkTasks(
                context,
                group=f"{self._run_id}-resident",
                description=f"godwit: resident lanes of {flow}",
                locate=cluster.location_of,
            ).of_job,
            slots=shares_of(context.applicationId).join(slots_of, time.monotonic),
            chosen=resident == "auto",
            announce=coordinator.announce,
            given_up=cluster.stop_waiting_reason,
            on_start=partial(pause_collection, self._run_id),
        )
        self._closing["resident lanes"] = cluster.resident.close
        self._closing["garbage collection"] = partial(resume_collection, self._run_id)

    def _concurrent_delivery(
        self, cluster: SparkCluster
    ) -> Callable[[Callable[[], None]], Callable[[], object]] | None:
        """Return a function that starts a concurrent delivery; ``None`` if sinks forbid it."""
        # Where a micro-batch's epoch has ended, Spark takes it for delivered.
        if cluster.micro_batches is not None or not cluster.sinks.deliver_concurrently:
            return None
        thread = DaemonPool(1, "godwit-delivery")
        self._closing["deliveries"] = thread.close
        return lambda deliver: thread.submit(self._gate.register_delivery(deliver)).result

    # -- operators --------------------------------------------------------------------------------

    def _place(
        self, flow: CompiledFlow, free: frozenset[str], may_rewrite: Callable[[], bool]
    ) -> list[dict[str, Any]]:
        """Choose the key columns that select operators' key groups, as options enable it.

        `free`: operators without state in the checkpoint. `may_rewrite`: returns whether the state
        of others can be rewritten now. Returns fields of the events `PartitioningCompared` to
        announce.
        """
        if self._controllers is None:
            return []
        rewrites = self._options.checkpointing.repartition
        return self._controllers.place(
            flow,
            free,
            lanes=self._spark.sparkContext.defaultParallelism,
            measured=lambda: past_decisions(self.storage) if rewrites and may_rewrite() else [],
        )

    def _components(self, flow: CompiledFlow, *, changed_only: bool) -> dict[str, tuple[str, ...]]:
        """Return component → its operators: as the user says, or fused as options enable it.

        `changed_only`: only those with operators whose partitioning columns have changed.
        """
        named, fused = dict(self._options.components), {}
        if self._controllers is not None:
            members = {name for group in named.values() for name in group}
            fused = self._controllers.fused(flow, members)
        if changed_only:
            return {
                name: members for name, members in fused.items() if {*self._placed} & {*members}
            }
        return fused | named


def _announce_executor_changes(
    coordinator: Coordinator, executors_before: Mapping[str, int]
) -> None:
    """Announce executors that came or were lost while the parts of a run were closed.

    `executors_before`: executor → lanes, of those before.
    """
    executors_now = coordinator.view.executors
    for name in sorted(executors_before.keys() - executors_now.keys()):
        coordinator.announce(events.ExecutorLost, executor=name)
    for name in sorted(executors_now.keys() - executors_before.keys()):
        coordinator.announce(events.ExecutorAdded, executor=name, lanes=executors_now[name])
