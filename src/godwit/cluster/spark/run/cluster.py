"""Spark's executors as the engine's cluster (`godwit.engine.cluster.Cluster`), and its session."""

from __future__ import annotations

import pickle
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from godwit.checkpoint.blocks import decode_batch, read_block
from godwit.cluster.spark.stages.stages import run_stages
from godwit.engine.cluster import AttemptLostError
from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from godwit.checkpoint.records import BlockRef, CommitRecord, SinkRecord
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.cluster.spark.run.micro_batches import MicroBatches
    from godwit.cluster.spark.run.threads import DaemonPool, EpochGate
    from godwit.cluster.spark.stages.source_rows import SourceRows
    from godwit.cluster.spark.stages.stages import Program, Shipped
    from godwit.engine.cluster import Executor, SourceBatch
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.engine.outputs import OpenSinks
    from godwit.migration import DropCopies, StartWarming

__all__ = ["LostExecutors", "SinkSession", "SparkCluster"]

_HELD_PAUSE_S = 0.2
_CANCELLED = "as part of cancellation of all jobs"
"""What Spark says of jobs that Ctrl-C has cancelled: PySpark cancels those of the application."""


class SparkCluster:
    """Runs epochs as Spark jobs; rows come as the DataFrames of micro-batches."""

    def __init__(
        self,
        spark: SparkContext,
        executors: Sequence[Executor],
        *,
        program: Shipped[Program],  # what executors need of the flow
        source: SourceRows,  # reads the rows of micro-batches
        batches: MicroBatches,  # Spark's log of them
        sinks: OpenSinks,
        lost: LostExecutors,  # cancels the jobs of an epoch that has lost an executor
        gate: EpochGate,  # says when the query is to stop
        beside: DaemonPool,
    ) -> None:
        self.executors: Mapping[str, Executor] = {e.name: e for e in executors}
        self.background: SimpleQueue[StartWarming | DropCopies | None] = SimpleQueue()
        """Orders to warm and to drop, in the order they were given; ``None``: there are no more."""
        self.source, self.sinks, self.lost = source, sinks, lost
        self._spark, self._program = spark, program
        self._batches, self._gate, self._beside = batches, gate, beside

    def run_stages(
        self, instruction: EpochInstruction, batch: SourceBatch[DataFrame] | None
    ) -> list[LaneReport]:
        """See `Cluster.run_stages`; Spark's log of the batch is durable when it returns."""
        forced = None if batch is None else self._beside.submit(self._batches.force, batch.ref)
        used = [place.executor for place in instruction.places]
        try:
            with self.lost.break_off(used, self.executors):
                rows = None if batch is None else self.source.read(batch.rows, batch.ref.number)
                reports = run_stages(rows, self._program, instruction, self._spark)
        except Exception as error:
            gone = self.lost.take()
            if self._gate.closed:
                raise
            if gone is not None:
                raise AttemptLostError(f"executor {gone} was lost") from error
            if _CANCELLED in str(error):
                raise AttemptLostError("all jobs of the application were cancelled") from error
            raise
        if forced is not None:
            forced.result()
        return reports

    def deliver(self, record: CommitRecord) -> None:
        """See `Cluster.deliver`; again where its jobs are cancelled, since sinks know epochs."""
        while True:
            try:
                self.sinks.deliver(record)
            except GodwitError as error:
                if _CANCELLED not in str(error) or self._gate.closed:
                    raise
            else:
                return

    def sink_records(self) -> Mapping[str, SinkRecord]:
        """See `Cluster.sink_records`."""
        return self.sinks.records()

    def wait_while_held(self) -> bool:
        """See `Cluster.wait_while_held`; ends the query once its gate closes."""
        self._gate.pause(_HELD_PAUSE_S)
        return True

    def warm(self, order: StartWarming) -> None:
        """See `Cluster.warm`."""
        self.background.put(order)

    def drop(self, order: DropCopies) -> None:
        """See `Cluster.drop`."""
        self.background.put(order)

    def now_us(self) -> int:
        """See `Cluster.now_us`."""
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        """See `Cluster.monotonic_us`."""
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
    def break_off(self, executors: Iterable[str], there: Container[str]) -> Iterator[None]:
        """Run an epoch's jobs inside, until one of these executors is lost.

        Raises `ConnectionError` if one of them is not `there`: it was lost since the epoch's plan.
        """
        used = frozenset(executors)
        gone = sorted(name for name in used if name not in there)
        with self._lock:
            self._used = frozenset() if gone else used
            self._lost = gone[0] if gone else None
        if gone:
            raise ConnectionError(gone[0])
        self._spark.addJobTag(self._tag)
        try:
            yield
        finally:
            self._spark.removeJobTag(self._tag)
            with self._lock:
                self._used = frozenset()

    def lost(self, executor: str) -> None:
        """Note a loss."""
        with self._lock:
            if executor not in self._used:
                return
            self._lost = executor
        self.cancel()

    def cancel(self) -> None:
        """Cancel the jobs of an epoch that has lost an executor, if it is still under way.

        Called more than once: the first time they may not have been submitted yet.
        """
        with self._lock:
            broken = self._lost is not None and bool(self._used)
        if broken:
            self._spark.cancelJobsWithTag(self._tag)

    def take(self) -> str | None:
        """Return the executor that the last epoch lost, if any, and forget it."""
        with self._lock:
            lost, self._lost = self._lost, None
            return lost


@dataclass(frozen=True, slots=True)
class SinkSession:
    """Makes DataFrames and temporary views in a Spark session."""

    spark: SparkSession

    def show(self, name: str, rows: pa.Table) -> None:
        """Keep a temporary view."""
        self.spark.createDataFrame(rows).createOrReplaceTempView(name)

    def dataframe(self, rows: pa.Table) -> DataFrame:
        """Make a DataFrame of rows that are here."""
        return self.spark.createDataFrame(rows)

    def stored_dataframe(
        self, storage: CheckpointStorage, blocks: Sequence[BlockRef], schema: pa.Schema
    ) -> DataFrame:
        """Make a DataFrame of rows in the checkpoint, which executors read."""

        def read(pickled: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in pickled:
                for block in batch.column(0).to_pylist():
                    yield decode_batch(read_block(storage, pickle.loads(block)))  # noqa: S301  our own

        rows = [(pickle.dumps(block),) for block in blocks]
        frame = self.spark.createDataFrame(rows, "block binary").repartition(len(rows))
        return frame.mapInArrow(read, from_arrow_schema(schema))
