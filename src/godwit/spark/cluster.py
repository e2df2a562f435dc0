"""Spark's executors as the engine's cluster (`godwit.engine.cluster.Cluster`), and its session."""

from __future__ import annotations

import pickle
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from godwit.checkpoint.blocks import decode_batch, read_block
from godwit.engine.cluster import AttemptLostError
from godwit.engine.lane.source_side import check_repeated_reads
from godwit.model.errors import GodwitError
from godwit.runtime.threads import GateClosedError
from godwit.spark.platform.pyspark_versions import spark_schema_of
from godwit.spark.platform.sessions import dataframe_of, settings_of
from godwit.spark.resident.job import is_on
from godwit.spark.stages.stages import FilesLostError, run_stages

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from godwit.checkpoint.records import BlockRef, CommitRecord, SinkRecord
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.cluster import Executor, SourceBatch
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.engine.outputs import OpenSinks
    from godwit.migration.messages import DropCopies, StartWarming
    from godwit.model.events import Event
    from godwit.runtime.threads import DaemonPool, EpochGate
    from godwit.spark.batch_rows import BatchRows
    from godwit.spark.micro_batch_epochs import MicroBatchRows
    from godwit.spark.resident.lanes import ResidentLanes
    from godwit.spark.stages.source_plans import Program
    from godwit.spark.stages.stages import Shipped

_HELD_PAUSE_S = 0.2
_CANCELLED = "as part of cancellation of all jobs"
"""Text of Spark's error for jobs that Ctrl-C cancelled: PySpark cancels the application's."""


class SparkCluster:
    """Runs epochs as Spark jobs."""

    def __init__(
        self,
        spark: SparkContext,
        executors: Sequence[Executor],
        *,
        program: Shipped[Program],  # what executors need of the flow
        source: BatchRows,  # the rows of batches, as jobs take them
        micro_batches: MicroBatchRows | None,  # the same, if Spark's micro-batches have rows
        sinks: OpenSinks,
        announce: Callable[[Event], None],  # takes every event, and returns at once
        lost: LostExecutors,  # cancels the jobs of an epoch that has lost an executor
        gate: EpochGate,  # says when the query is to stop
        beside: DaemonPool,
    ) -> None:
        self.executors: Mapping[str, Executor] = {e.name: e for e in executors}
        self.background: SimpleQueue[StartWarming | DropCopies | None] = SimpleQueue()
        """Orders to warm and to drop, in the order they were given; ``None``: there are no more."""
        self.source, self.micro_batches = source, micro_batches
        self.sinks, self.announce, self.lost = sinks, announce, lost
        self.spark, self.program, self.beside = spark, program, beside
        # Spark encrypts what its shuffle writes to local disks, if it is set to.
        encrypts = is_on(settings_of(spark).get("spark.io.encryption.enabled", "false"))
        self._gate, self._by_files = gate, not encrypts
        self.resident: ResidentLanes | None = None
        """Lanes that stay, if the query may have any; set once they can announce events."""
        self.not_resident = "gw.Lanes(resident=False)"
        """Why the query has no such lanes."""

    def location_of(self, executor: str) -> str | None:
        """Return an executor as a preferred location of Spark tasks; ``None`` if it is gone."""
        live = self.executors.get(executor)
        return None if live is None else live.location

    def run_stages(
        self, instruction: EpochInstruction, batch: SourceBatch[DataFrame] | None
    ) -> list[LaneReport]:
        """Run an epoch's stages, as Spark jobs or on resident lanes; return the lanes' reports.

        Before it returns, Spark's log entries that define the batch's rows are durable.
        """
        forced_log = None
        if batch is not None and self.micro_batches is not None:
            forced_log = self.beside.submit(self.micro_batches.force_log, batch.ref)
        used = [executor for executor, _ in instruction.places]
        try:
            with self.lost.cancel_if_lost(used, self.executors):
                rows = None if batch is None else self.source.read(batch, instruction)
                reports = run_stages(
                    rows,
                    self.program,
                    instruction,
                    self.spark,
                    self.resident,
                    locate=self.location_of,
                    jobs=self.lost.spark_jobs,
                    by_files=self._by_files,
                )
        except FilesLostError:
            self._by_files = False
            raise
        except Exception as error:
            lost_executor = self.lost.pop_lost()
            if self._gate.closed:
                raise
            if (explained := self._gate.explain(error)) is not error:
                raise explained from None
            if lost_executor is not None:
                raise AttemptLostError(f"executor {lost_executor} was lost") from error
            if _CANCELLED in str(error):
                raise AttemptLostError("all jobs of the application were cancelled") from error
            raise
        if batch is not None:
            # of own sources alone: Spark reads the same rows of a micro-batch again, by its log
            check_repeated_reads(reports, batch.splits)
        if forced_log is not None:
            forced_log.result()
        return reports

    def batch_committed(self, rows: int) -> int | None:
        """Record the commit of the last batch; return how many of its `rows` a micro-batch had.

        ``None`` if it has no micro-batch.
        """
        return None if self.micro_batches is None else self.micro_batches.committed(rows)

    def resident_status(self) -> dict[str, Any]:
        """Return the fields of resident lanes in the status of a query.

        ``residentLanes`` is their present number, ``residentEpochs`` the number of epochs that they
        ran, and ``residentReason`` says why they did not run the last one; empty if they did.
        """
        lanes = self.resident
        return {
            "residentLanes": 0 if lanes is None else lanes.lanes,
            "residentEpochs": 0 if lanes is None else lanes.epochs,
            "residentReason": self.not_resident if lanes is None else lanes.reason,
        }

    def end_resident(self, reason: str) -> None:
        """End the resident lanes, if there are any."""
        if self.resident is not None:
            self.resident.end(reason)

    def stop_waiting_reason(self) -> str:
        """Return the reason to stop waiting for the epoch's lanes; empty to continue.

        Raises `GateClosedError` if the epoch is aborted.
        """
        if self._gate.interrupted or self._gate.is_stopped():
            raise GateClosedError
        return "an executor was lost" if self.lost.has_lost else ""

    def deliver(self, record: CommitRecord, *, again: bool = False) -> None:
        """Deliver a committed epoch to every sink; retried if its Spark jobs are cancelled."""
        while True:
            try:
                self.sinks.deliver(record, again=again)
            except GodwitError as error:
                if _CANCELLED not in str(error) or self._gate.closed:
                    raise
            else:
                return

    @property
    def delivery_s(self) -> Mapping[str, float]:
        """Sink → seconds that the last epoch's delivery to it took."""
        return self.sinks.took_s

    def sink_records(self) -> Mapping[str, SinkRecord]:
        """Return sink → its description for the next commit record."""
        return self.sinks.records()

    def wait_while_held(self) -> bool:
        """Wait briefly while epochs are held; raise `GateClosedError` once the query stops."""
        self._gate.pause(_HELD_PAUSE_S)
        return True

    def warm(self, order: StartWarming) -> None:
        """Queue an order to copy state of key groups to an executor, or update its copies."""
        self.background.put(order)

    def drop(self, order: DropCopies) -> None:
        """Queue an order to delete an executor's copies of state."""
        self.background.put(order)

    def now_s(self) -> float:
        """Return Unix time in seconds, for events."""
        return self.now_us() / 1e6

    def now_us(self) -> int:
        """Return Unix time in microseconds: processing time."""
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        """Return a monotonic time in microseconds, to measure how long sources have had no rows."""
        return time.monotonic_ns() // 1000


class LostExecutors:
    """Executors that are lost while an epoch runs on them, whose jobs are then cancelled.

    Spark counts the lanes of a dead executor as placeable there until
    ``spark.locality.wait.process`` is over, as if it were busy, and the whole epoch waits for them.
    The next attempt is planned without the executor, and costs no more than an epoch.
    """

    def __init__(self, tag: str, spark: SparkContext) -> None:  # `tag` marks the epochs' jobs
        self._tag, self._spark = tag, spark
        self._lock = threading.Lock()
        self._used: frozenset[str] = frozenset()
        self._lost: str | None = None

    @contextmanager
    def cancel_if_lost(self, executors: Iterable[str], present: Container[str]) -> Iterator[None]:
        """Context for an epoch's stages that cancels their jobs if one of `executors` is lost.

        Raises `ConnectionError` if one is not among the live executors `there`: it was lost since
        the epoch was planned.
        """
        used = frozenset(executors)
        missing = sorted(name for name in used if name not in present)
        with self._lock:
            self._used = frozenset() if missing else used
            self._lost = missing[0] if missing else None
        if missing:
            raise ConnectionError(missing[0])
        try:
            yield
        finally:
            with self._lock:
                self._used = frozenset()

    @contextmanager
    def spark_jobs(self) -> Iterator[None]:
        """Context in which Spark jobs are tagged, so that `cancel_jobs` can cancel them.

        Tagging takes a call to the JVM; resident lanes do not need it.
        """
        self._spark.addJobTag(self._tag)
        try:
            yield
        finally:
            self._spark.removeJobTag(self._tag)

    def record_loss(self, executor: str) -> None:
        """Record the loss of an executor; if the running epoch uses it, cancel the epoch's jobs."""
        with self._lock:
            if executor not in self._used:
                return
            self._lost = executor
        self.cancel_jobs()

    def cancel_jobs(self) -> None:
        """Cancel the jobs of an epoch that has lost an executor, if it is still running.

        Called more than once: the first time they may not have been submitted yet.
        """
        with self._lock:
            broken = self._lost is not None and bool(self._used)
        if broken:
            self._spark.cancelJobsWithTag(self._tag)

    @property
    def has_lost(self) -> bool:
        """True if the running epoch has lost an executor."""
        with self._lock:
            return self._lost is not None

    def pop_lost(self) -> str | None:
        """Return the executor that the last epoch lost, and clear it; ``None`` if there is none."""
        with self._lock:
            lost, self._lost = self._lost, None
            return lost


@dataclass(frozen=True, slots=True)
class SinkSession:
    """Makes DataFrames and temporary views in a Spark session."""

    spark: SparkSession

    def show(self, name: str, rows: pa.Table) -> None:
        """Create or replace the temporary view `name` of rows."""
        dataframe_of(self.spark, rows).createOrReplaceTempView(name)

    def dataframe(self, rows: pa.Table) -> DataFrame:
        """Return a DataFrame of local rows."""
        return dataframe_of(self.spark, rows, spark_schema_of(rows.schema))

    def stored_dataframe(
        self, storage: CheckpointStorage, blocks: Sequence[BlockRef], schema: pa.Schema
    ) -> DataFrame:
        """Return a DataFrame of rows in the checkpoint, which executors read."""

        def read(pickled: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            """Read the blocks of this task from the checkpoint."""
            for batch in pickled:
                for block in batch.column(0).to_pylist():
                    yield decode_batch(read_block(storage, pickle.loads(block)))  # noqa: S301  our own

        rows = [(pickle.dumps(block),) for block in blocks]
        frame = self.spark.createDataFrame(rows, "block binary").repartition(len(rows))
        return frame.mapInArrow(read, spark_schema_of(schema))
