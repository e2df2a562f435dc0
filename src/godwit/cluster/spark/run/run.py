"""One run of a flow on the driver: what happens in an epoch.

The epoch protocol, step by step; a crash between any two steps loses nothing:

1. ask the conductor how every component runs; tell the lanes what they need;
2. run the chain of stages: lanes write files that nobody names yet, and report them;
3. commit: one record names the files that count. *This is the moment.*
4. tell the conductor the outcome, and deliver the staged output to the sinks (again after a crash:
   sinks are idempotent by epoch);
5. return, and Spark commits its offsets. A micro-batch that Spark replays but that has its record
   is done: its output was delivered when the run began.

An epoch without input does the same, without a source side: it drains rows that wait and lets
migrations end while no rows arrive (`docs/decisions/0009-epochs-without-input.md`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from godwit.adapt import EpochObserved
from godwit.checkpoint.collection import collect
from godwit.cluster.spark.observe.progress import Stopwatch, progress_of
from godwit.cluster.spark.run.threads import DaemonPool, Guard, close_all
from godwit.cluster.spark.stages.stages import run_stages
from godwit.engine.due import is_due, is_pending
from godwit.engine.outcomes import outcome_of, record_of, told_left_out
from godwit.model import events
from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.lease import CheckpointLease
    from godwit.checkpoint.physical_plan import PhysicalPlan
    from godwit.checkpoint.records import BatchRef, CommitRecord
    from godwit.cluster.spark.platform.executor_pool import SparkExecutorPool
    from godwit.cluster.spark.platform.executor_watch import ExecutorWatch
    from godwit.cluster.spark.platform.lost_executors import LostExecutors
    from godwit.cluster.spark.run.conducting import Conducting
    from godwit.cluster.spark.run.controlling import Controlling
    from godwit.cluster.spark.run.deciding import Deciding
    from godwit.cluster.spark.run.errands import Errands
    from godwit.cluster.spark.run.few_rows import FewRows
    from godwit.cluster.spark.run.gate import EpochGate
    from godwit.cluster.spark.run.micro_batches import MicroBatches
    from godwit.cluster.spark.run.outputs import OpenSinks
    from godwit.cluster.spark.stages.shipping import ShippedProgram
    from godwit.cluster.spark.stages.source_rows import SourceRows
    from godwit.engine.event_time import EventTimes
    from godwit.engine.instructor import Instructor
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.migration import EpochPlan, ProtocolView
    from godwit.plan.compiled import CompiledFlow

__all__ = ["Run"]

_COLLECT_EVERY = 20
_HELD_PAUSE_S = 0.2
_PROGRESS_KEPT = 1000
_CANCELLED = "as part of cancellation of all jobs"
"""What Spark says of jobs that Ctrl-C has cancelled: PySpark cancels those of the application."""


class Run:
    """One run of a flow, from its start to its end. Made by `opening.open_run`.

    Parameters
    ----------
    flow
        The compiled flow.
    log, lease
        The checkpoint's commits, and the claim on it.
    sinks
        The open sinks.
    conducting
        The conductor.
    instructor
        Tells lanes what they need.
    errands, watch, lost
        Threads beside the epochs, and what they have seen.
    pool
        Adds and removes executors.
    batches
        Spark's log of micro-batches.
    note
        Takes kind and values of entries for the journal.
    controlling
        The controller, if there is one.
    deciding
        Has operators share components, and part, by what was measured, as far as that is wanted.
    program
        What executors need of the flow.
    counting
        Operators whose rows are the source's: one for each feed.
    source
        Reads the rows of micro-batches.
    few
        Takes those of small epochs to the driver.
    times
        Event time of sources and operators.
    gate
        Says when the query is to stop.
    spark
        The session.

    Attributes
    ----------
    at_step
        Called with the name of each step of an epoch as it is done, and the epoch: ``"planned"``,
        ``"staged"`` (the lanes have written and reported), ``"committed"``, ``"delivered"``. Does
        nothing; whoever studies crashes puts something else in its place.
    """

    at_step: Callable[[str, int], None] = staticmethod(lambda _step, _epoch: None)

    def __init__(
        self,
        flow: CompiledFlow,
        *,
        log: CommitLog,
        lease: CheckpointLease,
        sinks: OpenSinks,
        conducting: Conducting,
        instructor: Instructor,
        errands: Errands,
        watch: ExecutorWatch,
        lost: LostExecutors,
        pool: SparkExecutorPool,
        batches: MicroBatches,
        note: Callable[[str, Callable[[], Mapping[str, Any]]], None],
        controlling: Controlling | None,
        deciding: Deciding,
        program: ShippedProgram,
        counting: frozenset[tuple[str, int]],
        source: SourceRows,
        few: FewRows,
        times: EventTimes,
        gate: EpochGate,
        spark: SparkSession,
    ) -> None:
        self.flow, self.log, self.conducting, self.pool = flow, log, conducting, pool
        self.run_id = instructor.run_id
        self._lease, self._instructor, self._errands = lease, instructor, errands
        self._sinks = sinks
        self._watch, self._lost, self._batches = watch, lost, batches
        self._note, self._times, self.controlling = note, times, controlling
        self._program, self._counting, self._gate = program, counting, gate
        self._source, self._few, self.deciding = source, few, deciding
        self._spark = spark
        self._beside = DaemonPool(2, "godwit-beside-epochs")
        self._collecting = Guard("collecting files", conducting.background_failed)
        self._progress: deque[dict[str, Any]] = deque(maxlen=_PROGRESS_KEPT)
        self._noting = threading.Lock()

    @property
    def progress(self) -> tuple[dict[str, Any], ...]:
        """Figures of the last epochs, oldest first."""
        with self._noting:
            return tuple(self._progress)

    @property
    def view(self) -> ProtocolView:
        """Where the migration protocol stands, as a value that does not change any more."""
        return self.conducting.view

    def close(self) -> list[tuple[str, str]]:
        """Stop what goes on beside the epochs, and close the sinks; the checkpoint stays claimed.

        Returns
        -------
        list of tuple
            What could not be closed, and why.
        """
        controller = [] if self.controlling is None else [("controller", self.controlling.close)]
        return close_all(
            [
                *controller,
                ("executor pool", self.pool.close),
                ("executor watch", self._watch.close),
                ("background copies", self._errands.close),
                ("work beside the epochs", self._beside.close),
                ("conductor", self.conducting.close),
                ("sinks", self._sinks.close),
                ("program of the executors", self._program.destroy),
            ]
        )

    def release(self) -> None:
        """Let the next query have the checkpoint."""
        self._lease.release()

    def insist_on_lease(self) -> None:
        """Make sure that the checkpoint is still claimed by this run.

        Raises
        ------
        CheckpointInUseError
            If somebody has taken it.
        """
        self._lease.insist()

    def micro_batch(self, rows: DataFrame, number: int) -> None:
        """Carry out the epoch of a micro-batch (Spark offers it again after a crash)."""
        batch = self._batches.identify(number, self._last_batch)
        if batch is not None:  # else it is committed, and was delivered when the run began
            self._epoch(batch, rows)

    def without_input(self) -> None:
        """Carry out an epoch without a micro-batch."""
        self._epoch(None, None)

    @property
    def due(self) -> bool:
        """Whether an epoch has something to do even if it has no input."""
        clock_us, silence_us = time.time_ns() // 1000, time.monotonic_ns() // 1000
        return is_due(self.view, self._times, clock_us=clock_us, silence_us=silence_us)

    @property
    def pending(self) -> bool:
        """Whether it has, or will have once nothing stands in its way."""
        clock_us, silence_us = time.time_ns() // 1000, time.monotonic_ns() // 1000
        return is_pending(self.view, self._times, clock_us=clock_us, silence_us=silence_us)

    def end_input(self) -> None:
        """Take note that no rows will come any more: windows that are open are over."""
        self._times.end_input()

    def let_time_pass(self) -> None:
        """Tell the conductor that nothing runs, and yet time passes."""
        with self.conducting.turn() as conductor:
            conductor.let_time_pass()

    def use_this_thread(self) -> None:
        """Prepare a thread that is not Spark's for jobs of this run."""
        self._spark.sparkContext.setJobGroup(
            self.run_id, f"godwit: epochs of {self.flow.name} without input"
        )

    def cancel_jobs(self) -> None:
        """Break off the jobs of threads that are not Spark's."""
        self._spark.sparkContext.cancelJobGroup(self.run_id)

    @property
    def _last_batch(self) -> BatchRef | None:
        latest = self.log.latest
        return None if latest is None else latest.last_batch

    def _epoch(self, batch: BatchRef | None, rows: DataFrame | None) -> None:
        epoch, watch = self.log.latest_epoch + 1, Stopwatch()
        while (done := self._attempt(epoch, batch, rows, watch)) is None:
            pass  # an executor was lost in it, or its jobs were cancelled: again, at once
        reports, record, plans = done
        took_s = watch.took_ms()["epoch"] / 1e3
        self.at_step("committed", epoch)
        with self.conducting.turn() as conductor:
            outcome = outcome_of(
                record,
                reports,
                flow=self.flow,
                chains=self.log.chains,
                copies=conductor.copies,
                counting=self._counting,
            )
            conductor.commit(outcome)
            loads = conductor.recent_load.due_summary()
        if batch is not None:
            self._few.expect(outcome.rows_in)
        if self.controlling is not None:
            self.controlling.observe(
                EpochObserved(
                    outcome=outcome,
                    assignments={name: plan.assignment for name, plan in plans.items()},
                    took_s=took_s,
                    committed_s=self.controlling.now_s(),
                ),
                batch,
            )
        self.deciding.observe(outcome, self.flow, plans)
        self._note("outcome", outcome.to_dict)
        if loads is not None:
            self._note("load", loads.to_dict)
        with watch.phase("deliver"):
            self._deliver(record)
        self.at_step("delivered", epoch)
        if epoch % _COLLECT_EVERY == _COLLECT_EVERY - 1:
            self._beside.submit(self._collecting, self._collect)
        made = progress_of(outcome, self.view, watch)
        with self._noting:
            self._progress.append(made)
        self._note("progress", lambda: made)
        with self.conducting.turn() as conductor:
            conductor.announce(
                events.EpochCommitted,
                epoch=epoch,
                rows_in=outcome.rows_in,
                rows_out=outcome.rows_out,
                duration_ms=made["durationMs"]["epoch"],
                waiting_key_groups=made["waitingKeyGroups"],
            )
            for values in told_left_out(outcome.left_out, self.flow):
                conductor.announce(events.RowsLeftOut, epoch=epoch, **values)

    def _attempt(
        self, epoch: int, batch: BatchRef | None, rows: DataFrame | None, watch: Stopwatch
    ) -> tuple[list[LaneReport], CommitRecord, Mapping[str, EpochPlan]] | None:
        """Carry out an epoch up to its commit; ``None`` if an executor was lost in the middle."""
        plans, plan = self._begin(epoch)
        try:
            self._go_under(plan)
            forced = self._beside.submit(self._force, batch)
            told = self._times.told(
                clock_us=time.time_ns() // 1000,
                silence_us=time.monotonic_ns() // 1000,
                components=plans,
            )
            with watch.phase("plan"), self.conducting.turn() as conductor:
                instruction = self._instructor.epoch(
                    epoch,
                    plans,
                    view=conductor.view,
                    copies=conductor.copies,
                    executors=self._watch.executors,
                    times=told,
                )
            self.at_step("planned", epoch)
            with watch.phase("stages"):
                reports = self._stages(batch, rows, instruction)
            _raise_first_error(reports)
            self.at_step("staged", epoch)
            times = self._times.after(told, reports)
            record = record_of(
                epoch,
                reports,
                plans,
                run_id=self.run_id,
                batch=batch,
                before=self._last_batch,
                times=times,
                sinks=self._sinks.records(),
            )
            with watch.phase("commit"):
                forced.result()
                record = self.log.commit(record)
            self._times.take(times, told, reports, time.monotonic_ns() // 1000)
        except BaseException as error:
            with self.conducting.turn() as conductor:
                conductor.abort(epoch, str(error) or repr(error))
            if isinstance(error, _BrokenOffError):
                return None
            raise
        return reports, record, plans

    def _begin(self, epoch: int) -> tuple[Mapping[str, EpochPlan], PhysicalPlan]:
        """Ask how the epoch runs, waiting for as long as epochs are held."""
        while True:
            with self.conducting.turn() as conductor:
                plans, plan = conductor.begin(epoch), conductor.plan
            if plans is not None:
                return plans, plan
            self._gate.pause(_HELD_PAUSE_S)

    def _go_under(self, plan: PhysicalPlan) -> None:
        """Go on under a physical plan, from the epoch at hand on."""
        if plan == self.flow.physical_plan:
            return
        self.log.use_plan(plan)
        self.flow = self.flow.under(plan)
        self._instructor.regrouped(self.flow)
        self._times.regrouped(self.flow)
        if self.controlling is not None:
            self.controlling.regrouped(self.flow)

    def _stages(
        self, batch: BatchRef | None, rows: DataFrame | None, instruction: EpochInstruction
    ) -> list[LaneReport]:
        used = [place.executor for place in instruction.places]
        try:
            with self._lost.break_off(used, self._watch.executors):
                source: Any = None
                if rows is not None and batch is not None:
                    source = self._few.take(rows, batch.number)
                    if source is None:
                        source = self._source.batches(rows, batch.number)
                return run_stages(source, self._program, instruction, self._spark.sparkContext)
        except Exception as error:
            gone = self._lost.take()
            if self._gate.closed:
                raise
            if gone is not None:
                raise _BrokenOffError(f"executor {gone} was lost") from error
            if _CANCELLED in str(error):
                raise _BrokenOffError("all jobs of the application were cancelled") from error
            raise

    def _deliver(self, record: CommitRecord) -> None:
        """Deliver an epoch; again where its jobs are cancelled, since sinks know epochs again."""
        while True:
            try:
                self._sinks.deliver(record)
            except GodwitError as error:
                if _CANCELLED not in str(error) or self._gate.closed:
                    raise
            else:
                return

    def _force(self, batch: BatchRef | None) -> None:
        if batch is not None:
            self._batches.force(batch)

    def _collect(self) -> None:
        collected = collect(self.log)
        for error in collected.errors:
            self._collecting.tell(error)
        if collected.removed:
            with self.conducting.turn() as conductor:
                conductor.announce(
                    events.FilesCollected,
                    files=len(collected.removed),
                    freed_bytes=collected.freed_bytes,
                )


class _BrokenOffError(Exception):
    """What broke off an epoch is over: an executor is lost, say. It is carried out again."""


def _raise_first_error(reports: Sequence[LaneReport]) -> None:
    errors = [report.error for report in reports if report.error is not None]
    if errors:
        raise errors[0]
