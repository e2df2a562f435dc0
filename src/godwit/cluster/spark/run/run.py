"""One run of a flow on Spark's driver: the epoch loop, what goes on beside it, and what looks on.

What happens in an epoch is in `godwit.engine.loop`; how Spark runs it, in
`godwit.cluster.spark.run.cluster`. Here a micro-batch of Spark's becomes an epoch, and a committed
epoch is shown to the controller, the policies and the journal.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from godwit.adapt import EpochObserved
from godwit.checkpoint.collection import collect
from godwit.cluster.spark.run.threads import Guard, close_all
from godwit.engine.cluster import SourceBatch
from godwit.engine.loop import EpochLoop
from godwit.engine.progress import progress_of
from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.ownership import CheckpointLease
    from godwit.cluster.spark.platform.executor_pool import SparkExecutorPool
    from godwit.cluster.spark.run.cluster import SparkCluster
    from godwit.cluster.spark.run.controlling import Controlling
    from godwit.cluster.spark.run.deciding import Deciding
    from godwit.cluster.spark.run.micro_batches import MicroBatches
    from godwit.cluster.spark.run.threads import DaemonPool
    from godwit.engine.flow_epochs import FlowAttempt, FlowEpochs
    from godwit.engine.loop import CommittedEpoch
    from godwit.engine.shared_conductor import SharedConductor
    from godwit.migration import ProtocolView
    from godwit.plan.compiled import CompiledFlow

__all__ = ["Run"]

_COLLECT_EVERY = 20  # epochs
_PROGRESS_KEPT = 1000


class Run:
    """One run of a flow, from its start to its end. Made by `opening.open_run`.

    `note` takes kind and values of entries for the journal; `closing` is what goes on beside the
    epochs, by name, in the order in which it is closed.
    """

    def __init__(
        self,
        epochs: FlowEpochs[DataFrame],
        cluster: SparkCluster,
        conducting: SharedConductor,
        *,
        batches: MicroBatches,
        pool: SparkExecutorPool,
        controlling: Controlling | None,
        deciding: Deciding,
        note: Callable[[str, Callable[[], Mapping[str, Any]]], None],
        beside: DaemonPool,
        closing: list[tuple[str, Callable[[], object]]],
        lease: CheckpointLease,
        spark: SparkSession,
    ) -> None:
        self.epochs, self.cluster, self.conducting = epochs, cluster, conducting
        self.loop = EpochLoop(epochs, conducting, self)
        self.pool, self.controlling, self.deciding = pool, controlling, deciding
        self._batches, self._note, self._beside = batches, note, beside
        self._closing, self._lease, self._spark = closing, lease, spark
        self._collecting = Guard("collecting files", conducting.background_failed)
        self._progress: deque[dict[str, Any]] = deque(maxlen=_PROGRESS_KEPT)
        self._noting = threading.Lock()

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self.epochs.run_id

    @property
    def flow(self) -> CompiledFlow:
        """The flow under its physical plan of now."""
        return self.epochs.flow

    @property
    def log(self) -> CommitLog:
        """The checkpoint's commits."""
        return self.epochs.log

    @property
    def progress(self) -> tuple[dict[str, Any], ...]:
        """Figures of the last epochs, oldest first."""
        with self._noting:
            return tuple(self._progress)

    @property
    def view(self) -> ProtocolView:
        """State of the migration protocol, as a value that does not change any more."""
        return self.conducting.view

    def close(self) -> list[tuple[str, str]]:
        """Stop what goes on beside the epochs, and close the sinks; the checkpoint stays claimed.

        Returns what could not be closed, and why.
        """
        return close_all(self._closing)

    def release(self) -> None:
        """Let the next query have the checkpoint."""
        self._lease.release()

    def insist_on_lease(self) -> None:
        """Raise `CheckpointInUseError` if somebody else has claimed the checkpoint."""
        self._lease.insist()

    # -- epochs -----------------------------------------------------------------------------------

    def micro_batch(self, rows: DataFrame, number: int) -> None:
        """Carry out the epoch of a micro-batch (Spark offers it again after a crash)."""
        ref = self._batches.identify(number, self.epochs.last_batch)
        if ref is not None:  # else it is committed, and was delivered when the run began
            self.loop.run(SourceBatch(ref=ref, rows=rows))

    def without_input(self) -> None:
        """Carry out an epoch without a micro-batch."""
        self.loop.run(None)

    @property
    def due(self) -> bool:
        """Whether an epoch has something to do even if it has no input."""
        return self.epochs.is_due(self.view)

    @property
    def pending(self) -> bool:
        """Whether it has, or will have once nothing stands in its way."""
        return self.epochs.is_pending(self.view)

    def end_input(self) -> None:
        """Take note that no rows will come any more: windows that are open are over."""
        self.epochs.end_input()

    def let_time_pass(self) -> None:
        """Tell the conductor that nothing runs, and yet time passes."""
        with self.conducting.locked() as conductor:
            conductor.let_time_pass()

    def use_this_thread(self) -> None:
        """Prepare a thread that is not Spark's for jobs of this run."""
        self._spark.sparkContext.setJobGroup(
            self.run_id, f"godwit: epochs of {self.flow.name} without input"
        )

    def cancel_jobs(self) -> None:
        """Break off the jobs of threads that are not Spark's."""
        self._spark.sparkContext.cancelJobGroup(self.run_id)

    # -- what looks on ----------------------------------------------------------------------------

    def committed(self, epoch: CommittedEpoch[FlowAttempt[DataFrame]]) -> None:
        """See `godwit.engine.loop.EpochObserver`."""
        outcome, attempt, load = epoch.outcome, epoch.attempt, epoch.load
        if attempt.batch is not None:
            self.cluster.few.expect(outcome.rows_in)
        if self.controlling is not None:
            self.controlling.observe(
                EpochObserved(
                    outcome=outcome,
                    assignments={name: plan.assignment for name, plan in epoch.plans.items()},
                    took_s=epoch.took_s,
                    committed_s=self.controlling.now_s(),
                ),
                attempt.batch,
            )
        self.deciding.observe(outcome, attempt.flow, epoch.plans)
        self._note("outcome", outcome.to_dict)
        if load is not None:
            self._note("load", load.to_dict)

    def delivered(self, epoch: CommittedEpoch[FlowAttempt[DataFrame]]) -> None:
        """See `godwit.engine.loop.EpochObserver`."""
        if epoch.outcome.epoch % _COLLECT_EVERY == _COLLECT_EVERY - 1:
            self._beside.submit(self._collecting, self._collect)
        progress = progress_of(epoch.outcome, self.view, epoch.stopwatch)
        with self._noting:
            self._progress.append(progress)
        self._note("progress", lambda: progress)

    def _collect(self) -> None:
        collected = collect(self.log)
        for error in collected.errors:
            self._collecting.tell(error)
        if collected.removed:
            with self.conducting.locked() as conductor:
                conductor.announce(
                    events.FilesCollected,
                    files=len(collected.removed),
                    freed_bytes=collected.freed_bytes,
                )
