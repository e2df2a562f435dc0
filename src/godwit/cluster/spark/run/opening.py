"""How a run begins: everything that it is made of, one after the other."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING

from godwit.adapt.fusing import Fusing, by_attributes
from godwit.adapt.policy import RESPECT_S
from godwit.adapt.sharing import SharePanes
from godwit.adapt.splitting import ExchangeCosts, SplitOrCombine, splitting_of
from godwit.checkpoint.journal import JournalWriter, recollect
from godwit.checkpoint.ownership import acquire_lease
from godwit.checkpoint.spark_log import update_layout
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cluster.spark.observe.progress_log import give_id, remove_leftovers
from godwit.cluster.spark.platform.executor_pool import SparkExecutorPool
from godwit.cluster.spark.platform.executor_watch import ExecutorWatch
from godwit.cluster.spark.platform.executors import insist_on_placement, wait_for
from godwit.cluster.spark.platform.lost_executors import LostExecutors
from godwit.cluster.spark.platform.scheduler import SparkScheduler
from godwit.cluster.spark.run.cluster import SparkCluster
from godwit.cluster.spark.run.controlling import Controlling, past_decisions
from godwit.cluster.spark.run.deciding import Deciding
from godwit.cluster.spark.run.errands import Errands
from godwit.cluster.spark.run.feeds import arrow_schema, feeds_of
from godwit.cluster.spark.run.few_rows import FewRows
from godwit.cluster.spark.run.micro_batches import MicroBatches
from godwit.cluster.spark.run.run import Run
from godwit.cluster.spark.run.session import SinkSession
from godwit.cluster.spark.run.threads import DaemonPool
from godwit.cluster.spark.stages.shipping import Program, ShippedProgram
from godwit.cluster.spark.stages.source_rows import SourceRows
from godwit.engine.cluster import ConductorPorts
from godwit.engine.flow_epochs import FlowEpochs
from godwit.engine.lane.lane import lane_flow
from godwit.engine.outputs import OpenSinks, staged_sinks
from godwit.engine.shared_conductor import SharedConductor
from godwit.engine.takeover import remembered_load, run_started, take_up
from godwit.migration import Conductor, LoadSummary
from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from godwit.adapt.policy import AdaptationPolicy, Announce, FlowEpoch, ManualOverrides
    from godwit.checkpoint.spark_log import OffsetLayout
    from godwit.cluster.spark.observe.dispatcher import EventDispatcher
    from godwit.cluster.spark.query.options import Options
    from godwit.cluster.spark.run.gate import EpochGate
    from godwit.engine.sharing import PaneMeter
    from godwit.plan.compiled import CompiledFlow

__all__ = ["open_run"]

_EXCHANGE = ExchangeCosts(byte_ms=15 / 2**20, lane_ms=15.0)
"""As Spark adds them to what lanes measure (docs/decisions/0043)."""
_REMEMBERED = 500
"""Entries of the journal among which the last loads are looked for."""


def open_run(
    flow: CompiledFlow,
    rows: DataFrame,
    offsets: OffsetLayout,
    options: Options,
    spark: SparkSession,
    *,
    dispatcher: EventDispatcher,
    gate: EpochGate,
) -> Run:
    """Claim the checkpoint, open the sinks, wait for executors, take up where it left off.

    Parameters
    ----------
    flow
        The compiled flow.
    rows
        The one streaming DataFrame (see `godwit.cluster.spark.run.feeds`).
    offsets
        Whose the offsets are that Spark keeps of it.
    options
        As the user gave them.
    spark
        The session.
    dispatcher
        Takes events and outcomes to listeners and to the checkpoint's journal.
    gate
        Says when the query is to stop.
    """
    storage = CheckpointStorage.open(
        options.checkpoint, access=options.access, single_driver=options.single_driver
    )
    run = uuid.uuid4().hex[:12]
    with ExitStack() as undo:
        lease = acquire_lease(storage, run)
        undo.callback(lease.release)
        log, taken_up = take_up(
            flow,
            storage,
            run,
            retain_epochs=options.retain_epochs,
            components=_components(flow, options),
        )
        flow = taken_up.flow
        run_id = f"{log.identity.query_id[:12]}-{run}"
        query_id = log.identity.query_id
        update_layout(storage, offsets, committed=log.latest is not None)
        give_id(storage, query_id)
        remove_leftovers(storage)
        sinks = OpenSinks(
            flow,
            log,
            SinkSession(spark),
            renamed=taken_up.changes.renamed,
            on_divergence=options.on_divergence,
        )
        undo.callback(sinks.close)
        feeds, schema = feeds_of(flow), arrow_schema(rows)
        program = ShippedProgram(
            Program(
                feeds=tuple(tuple(feed.inputs) for feed in feeds),
                lanes=lane_flow(flow, taken_up.layouts, staged_sinks(flow)),
                schema=schema,
            ),
            run_id,
            spark.sparkContext,
        )
        undo.callback(program.destroy)
        insist_on_placement(spark.sparkContext)
        found = wait_for(spark.sparkContext, options.executors, options.executors_timeout_s)

        dispatcher.keep("journal", JournalWriter(storage, run_id))
        source = SourceRows()
        lost = LostExecutors(run_id, spark.sparkContext)
        batches, beside = (
            MicroBatches(storage, offsets.lines),
            DaemonPool(2, "godwit-beside-epochs"),
        )
        undo.callback(beside.close)
        cluster = SparkCluster(
            spark.sparkContext,
            found,
            program=program,
            source=source,
            few=FewRows(source, schema),
            batches=batches,
            sinks=sinks,
            lost=lost,
            gate=gate,
            beside=beside,
        )
        resumed = log.latest_epoch >= 0
        adapts = options.control or options.fusion or splitting_of(flow, options.splitting)
        past = past_decisions(storage) if adapts else []
        started = run_started(flow, log, taken_up, options.assignments, found, run_id=run_id)
        conductor = Conductor(
            started,
            states={c.name: c.states for c in flow.components},
            policy=options.policy,
            ports=ConductorPorts(cluster, dispatcher.emit),
            remembered=remembered_load(
                recollect(storage, _REMEMBERED, "load", LoadSummary.from_dict), flow, taken_up
            ),
            plan=flow.physical_plan,
        )
        conductor.announce(events.QueryStarted, name=flow.name, resumed=resumed)
        if resumed and (told := taken_up.told(*sinks.changes())) is not None:
            conductor.announce(events.FlowChanged, **told)
        if log.latest is not None:
            sinks.deliver(log.latest, again=True)

        conducting = SharedConductor(conductor)
        pool = SparkExecutorPool(
            SparkScheduler(spark.sparkContext),
            conducting=conducting,
            gate=gate,
            patience_s=options.executors_timeout_s,
        )
        undo.callback(pool.close)
        controlling = None
        if options.control is not None:
            controlling = Controlling(
                options.control,
                flow,
                conducting=conducting,
                pool=pool,
                state_bytes=started.state_bytes,
                past=past,
            )
            undo.callback(controlling.close)
        epochs = FlowEpochs(
            taken_up,
            log,
            cluster,
            settings=options.lanes,
            policy=options.policy,
            run_id=run_id,
            close_at_end=options.close_at_end,
            on_regroup=(lambda _: None) if controlling is None else controlling.regrouped,
        )
        watch = ExecutorWatch(
            cluster, conducting=conducting, lost=lost, pool=pool, source=source, spark=spark
        )
        undo.callback(watch.close)
        errands = Errands(cluster, conducting=conducting, instructor=epochs.instructor, spark=spark)
        undo.callback(errands.close)
        made = Run(
            epochs,
            cluster,
            conducting,
            batches=batches,
            pool=pool,
            controlling=controlling,
            deciding=Deciding(
                flow,
                _policies(flow, options, epochs.times.sharing),
                conducting=conducting,
                log=log,
                meters=epochs.times.sharing,
                stated=[name for of in options.components.values() for name in of],
                respect_s=RESPECT_S if options.control is None else options.control.respect_s,
                past=past,
            ),
            note=dispatcher.note,
            beside=beside,
            closing=[
                *([] if controlling is None else [("controller", controlling.close)]),
                ("executor pool", pool.close),
                ("executor watch", watch.close),
                ("background copies", errands.close),
                ("work beside the epochs", beside.close),
                ("conductor", conducting.close),
                ("sinks", sinks.close),
                ("program of the executors", program.destroy),
            ],
            lease=lease,
            spark=spark,
        )
        undo.pop_all()  # the run closes it all
    return made


def _policies(
    flow: CompiledFlow, options: Options, meters: Mapping[str, PaneMeter]
) -> Callable[[ManualOverrides, Announce], list[AdaptationPolicy[FlowEpoch]]]:
    """Policies that look at operators: those that are switched on."""
    splitting = splitting_of(flow, options.splitting)

    def policies(
        overrides: ManualOverrides, announce: Announce
    ) -> list[AdaptationPolicy[FlowEpoch]]:
        chosen: list[AdaptationPolicy[FlowEpoch]] = [SharePanes(meters)] if meters else []
        if splitting is not None:
            chosen.append(
                SplitOrCombine(flow, splitting, _EXCHANGE, overrides=overrides, announce=announce)
            )
        if options.fusion is not None and options.fusion.by == "traffic":
            chosen.append(Fusing(flow, options.fusion, overrides=overrides))
        return chosen

    return policies


def _components(flow: CompiledFlow, options: Options) -> dict[str, tuple[str, ...]]:
    """Components to start with: those that the user names, and operators fused by attributes."""
    named = dict(options.components)
    if options.fusion is None or options.fusion.by != "attributes":
        return named
    return by_attributes(flow, {name for of in named.values() for name in of}) | named
