"""Spark's micro-batch engine as what calls for epochs, and epochs without input beside it.

The problem: Spark calls only for micro-batches with rows, but rows that wait, and migrations that
are to end, need an epoch, not rows.  A query that was stopped by Spark's own handle (``for q in
spark.streams.active: q.stop()``) ends without an error, as one does whose input has ended, and
Spark tells the two apart nowhere in public.

The invariants: a thread of ours carries out epochs without input, through the same gate as
micro-batches, so never beside one, and only while Spark has nothing to offer; a query whose input
has ended has not ended before nothing waits, nor while epochs are held or key groups suspended that
would have something to do; and an end counts as one of the input only where that is shown, else
rows are left for the next run.  Whatever is raised here, the query fails by it.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from godwit.checkpoint.spark_log import update_layout
from godwit.cluster.spark.observe.progress import add_source_figures, rows_held_back, source_lag
from godwit.cluster.spark.run.cluster import BatchRows
from godwit.cluster.spark.run.lifecycle import is_bounded
from godwit.cluster.spark.run.micro_batch_looks import MicroBatchLooks
from godwit.cluster.spark.run.micro_batches import MicroBatches, give_id, remove_leftovers
from godwit.cluster.spark.run.threads import GateClosedError
from godwit.cluster.spark.stages.program import Program
from godwit.cluster.spark.stages.source_rows import SourceRows, arrow_schema, feeds_of
from godwit.cluster.spark.stages.stages import EpochRows
from godwit.engine.cluster import SourceBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import BatchRef
    from godwit.checkpoint.spark_log import OffsetLayout
    from godwit.cluster.spark.run.lifecycle import Ending
    from godwit.cluster.spark.run.run import SparkRun
    from godwit.cluster.spark.run.threads import EpochGate
    from godwit.engine.cluster import SourceLook
    from godwit.engine.lane.lane import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.recovery import Recovery


class MicroBatchRows(BatchRows):
    """Rows of Spark's micro-batches, and the log that says which they are."""

    has_log = True

    def __init__(
        self,
        recovery: Recovery,
        log: CommitLog,
        *,
        rows: DataFrame,  # the one streaming DataFrame (`godwit.cluster.spark.stages.source_rows`)
        offsets: OffsetLayout,  # whose the offsets are that Spark keeps of it
        trigger: Mapping[str, object] | None = None,  # when micro-batches begin
    ) -> None:
        self._log, self._offsets = log, offsets
        self._batches = MicroBatches(log.storage, offsets.lines)
        self._looks = MicroBatchLooks(offsets, trigger)
        self._schema = arrow_schema(rows)
        self._rows = SourceRows(self._schema)
        self._feeds = tuple(replace(feed, maps=()) for feed in feeds_of(recovery.flow))

    @property
    def latest(self) -> Any:
        """JVM RDD that was last read; new executors read it in a trial epoch."""
        return self._rows.latest

    def program(self, lanes: LaneFlow) -> Program:
        """Return the program of executors for rows of DataFrames."""
        return Program(lanes=lanes, feeds=self._feeds, schema=self._schema)

    def open(self) -> None:
        """Check Spark's offset log against the checkpoint, and reorder it for this run's plan.

        Its lines follow the sources of the flow, which may have changed since the last run.
        """
        log = self._log
        self._batches.check_last(None if log.latest is None else log.latest.last_batch)
        update_layout(log.storage, self._offsets, committed=log.latest is not None)
        give_id(log.storage, log.identity.query_id)
        remove_leftovers(log.storage)

    def to_batch(
        self, rows: DataFrame, number: int, last: BatchRef | None
    ) -> SourceBatch[DataFrame] | None:
        """Return the micro-batch that Spark offers, identified.

        ``None`` if it is committed already.

        `last`: last committed batch.
        """
        ref = self.identify(number, last)
        if ref is None:
            return None
        return SourceBatch(ref=ref, rows=rows, look=self.look(ref, rows.sparkSession))

    def look(self, ref: BatchRef, spark: SparkSession) -> SourceLook:
        """Return the known arrival times of a micro-batch's rows; called on Spark's thread."""
        return self._looks.look(ref, query_of(spark))

    def identify(self, number: int, last: BatchRef | None) -> BatchRef | None:
        """Return the reference to a micro-batch; ``None`` if it is committed already.

        Own sources that have left the flow, or are read beside it, keep their positions. `last`:
        last committed batch.
        """
        of_spark = None if last is None or not last.of_spark else last
        ref = self._batches.identify(number, of_spark)
        if ref is None or last is None or not last.positions:
            return ref
        return msgspec.structs.replace(ref, positions=last.positions, identities=last.identities)

    def read(self, batch: SourceBatch[DataFrame], instruction: EpochInstruction) -> EpochRows:
        """Return a micro-batch's rows: few on the driver, many as an RDD of the JVM."""
        del instruction
        assert batch.rows is not None, "Spark calls for epochs with rows of DataFrames"
        read = self._rows.read(batch.rows, batch.ref.number)
        return EpochRows(here=read) if isinstance(read, list) else EpochRows(rdd=read)

    def force_log(self, ref: BatchRef) -> None:
        """Make Spark's own log entries of a micro-batch durable."""
        self._batches.force_log(ref)

    def micro_batch_rows(self, rows: int) -> int:
        """Return `rows`: all of a batch's rows come from the micro-batch."""
        return rows

    def expect_rows(self, rows: int) -> None:
        """Set the expected number of rows of the next micro-batch."""
        self._rows.expect(rows)
        self._looks.committed(rows)


class MicroBatchQuery:
    """A query of Spark's whose micro-batches are epochs (`EpochDriver`)."""

    what = "Spark's query"

    def __init__(
        self,
        spark_query: StreamingQuery,
        *,
        run: SparkRun,
        trigger: Mapping[str, object] | None,
    ) -> None:
        self.spark_query, self._run, self._trigger = spark_query, run, trigger
        self._ending: Ending
        self._quiet: QuietEpochs

    @property
    def id(self) -> str:
        """Identifier of Spark's query, the same over restarts from one checkpoint."""
        return str(self.spark_query.id)

    @property
    def is_active(self) -> bool:
        """True until the query has ended completely."""
        try:
            return self.spark_query.isActive
        except Exception:  # noqa: BLE001  whatever Py4J raises when its JVM is gone
            return False

    def failure(self) -> BaseException | None:
        """Return the error that ended Spark's query outside of any epoch.

        ``None`` if there is none.
        """
        with suppress(Exception):  # a JVM that is gone says nothing any more
            return self.spark_query.exception()
        return None

    def status(self) -> dict[str, Any]:
        """Return Spark's status: ``message``, ``isDataAvailable``, ``isTriggerActive``."""
        return dict(self.spark_query.status)

    def begin(self, ending: Ending) -> None:
        """Start the thread for epochs without input; Spark's micro-batches run already."""
        self._ending = ending
        self._quiet = QuietEpochs(
            run=self._run,
            gate=self._run.gate,
            spark_query=self.spark_query,
            ending=ending,
            trigger=self._trigger,
        )

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the query has ended, failed or not; return whether it has."""
        began = time.monotonic()
        try:
            if timeout_s is None:
                self.spark_query.awaitTermination()
            # Spark refuses what is no number of seconds.
            elif not self.spark_query.awaitTermination(timeout_s):  # type: ignore[arg-type]
                return False
        except Exception:
            if self.is_active:
                raise  # Spark did not take the argument
            self._ending.finish(_seconds_left(began, timeout_s))
            return True
        return self._quiet.join(_seconds_left(began, timeout_s))

    def process_all_available(self) -> None:
        """Wait until all available rows are processed, or the query has failed."""
        if is_bounded(self._trigger):  # Spark's own would hide whether the input has ended
            self.spark_query.awaitTermination()
        else:
            self.spark_query.processAllAvailable()
        self._quiet.wait_until_idle()

    def stop(self) -> None:
        """Stop Spark's query, and wait for the running micro-batch."""
        self.spark_query.stop()

    def sources(self) -> dict[str, Any] | None:
        """Return the lag of the sources as plain values; ``None`` before Spark knows it."""
        return source_lag(self.spark_query)

    def rows_held_back(self) -> int | None:
        """Return the number of rows in sources after the last micro-batch; ``None`` if unknown."""
        return rows_held_back(self.spark_query)

    def add_source_figures(self, progress: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return epochs' progress with Spark's figures of their sources."""
        return add_source_figures(progress, self.spark_query)


def query_of(spark: SparkSession) -> StreamingQuery | None:
    """Return the streaming query whose micro-batch this thread runs; ``None`` if unknown."""
    try:
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        return spark.streams.get(query_id) if query_id else None
    except Exception:  # noqa: BLE001  whatever Py4J raises; no epoch needs it
        return None


def is_stopped(spark: SparkSession) -> bool:
    """Return whether the query whose micro-batch this thread runs is being stopped."""
    query = query_of(spark)
    try:
        return query is not None and not query.isActive
    except Exception:  # noqa: BLE001  asked because of an error, which is told in place of this one
        return False


def _seconds_left(began_s: float, timeout_s: float | None) -> float | None:
    """Return the seconds left of a time-out; ``None`` without one."""
    return None if timeout_s is None else max(0.0, began_s + timeout_s - time.monotonic())


_LOOK_S = 0.05
_LOOK_AT_SPARK_S = 0.5
_TICK_S = 1.0


class SparkStream:
    """Spark's streaming query, as those see it that work beside it."""

    def __init__(
        self,
        query: StreamingQuery,
        trigger: Mapping[str, object] | None,  # when its micro-batches run
        *,
        batches: Callable[[], int],  # micro-batches that were carried out in this run
    ) -> None:
        self._query, self._trigger, self._batches = query, trigger, batches

    @property
    def is_active(self) -> bool:
        """True while Spark's query is active."""
        return self._query.isActive

    @property
    def has_failed(self) -> bool:
        """True if Spark's query has ended by an error."""
        return self._query.exception() is not None

    def input_has_ended(self) -> bool:
        """Return whether Spark's query has ended without an error, because its input has."""
        if not is_bounded(self._trigger):
            return False
        if self._trigger is not None and "once" in self._trigger and self._batches():
            return True
        try:
            # Set when Spark has looked for more input and found none, which ends such a query.
            execution: Any = self._query._jsq.streamingQuery()  # noqa: SLF001  no public way
            return bool(execution.noNewData())
        except Exception as error:  # noqa: BLE001  whatever Py4J raises: it is not known
            _logger.warning(
                "It cannot be told whether the input has ended or somebody has stopped the query, "
                "so windows stay open: %s",
                str(error).partition("\n")[0],
            )
            return False

    def is_stopped(self) -> bool:
        """Return whether Spark's query was stopped from outside."""
        return not self.is_active and not self.input_has_ended()

    def is_quiet(self) -> bool:
        """Return whether Spark has no micro-batch to run."""
        if not self.is_active:
            return not self.has_failed
        status = self._query.status
        return not (status["isTriggerActive"] and status["isDataAvailable"])


class QuietEpochs:
    """Watches for epochs that are due although no rows arrive, and carries them out."""

    def __init__(
        self,
        *,
        run: SparkRun,  # knows what is due, and carries it out
        gate: EpochGate,
        spark_query: StreamingQuery,  # knows whether there are rows
        ending: Ending,  # what is to happen once Spark's query has ended and nothing waits
        trigger: Mapping[str, object] | None,  # when epochs with input run
    ) -> None:
        self._run, self._gate, self._ending = run, gate, ending
        self._stream = SparkStream(spark_query, trigger, batches=lambda: run.batches)
        self._looked_s = self._ticked_s = time.monotonic()
        self._thread = threading.Thread(target=self._run_thread, name="godwit-quiet", daemon=True)
        self._thread.start()

    def wait_until_idle(self) -> None:
        """Wait until no epoch without input is due, or the query fails or stops."""
        while self._can_run() and self._is_busy():
            time.sleep(_LOOK_S)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the query has ended; return whether it has."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _is_busy(self) -> bool:
        """Return whether an epoch runs, or is about to run."""
        return self._gate.busy or self._run.is_pending

    def _can_run(self) -> bool:
        """Return whether epochs without input can still run."""
        return self._gate.failure is None and not self._gate.closed and self._thread.is_alive()

    def _run_thread(self) -> None:
        """Run epochs without input while they are due; the body of the thread."""
        try:
            self._run.use_this_thread()
            self._run_due_epochs()
        except BaseException as error:  # noqa: BLE001  without this thread, rows would wait for ever
            self._gate.fail(error)
        self._ending.finish()

    def _run_due_epochs(self) -> None:
        """Run due epochs without input while Spark has no micro-batch, until the query ends."""
        quiet = 0
        while self._should_continue():
            due = self._run.is_due
            quiet = quiet + 1 if (due or self._run.view.awaits) and self._stream.is_quiet() else 0
            # Between two micro-batches Spark looks quiet for a moment.
            if quiet < 2:
                self._gate.wait_for_close(_LOOK_S)
            elif due:
                with suppress(GateClosedError):
                    self._run.without_input(self._stream.is_stopped)
                quiet = 0
            else:
                self._advance_clock()
                self._gate.wait_for_close(_LOOK_S)

    def _should_continue(self) -> bool:
        """Return whether to continue: not closed or failed, and Spark's query or work remains."""
        if self._gate.closed or self._gate.failure is not None:
            return False
        if time.monotonic() - self._looked_s < _LOOK_AT_SPARK_S:
            return True
        self._looked_s = time.monotonic()
        self._run.check_lease()
        if self._stream.is_active:
            return True
        if self._stream.has_failed or not self._stream.input_has_ended():
            return False
        self._run.end_input()
        return self._run.is_pending

    def _advance_clock(self) -> None:
        """Advance the migration protocol's clock, so that unanswered orders time out."""
        if time.monotonic() - self._ticked_s >= _TICK_S:
            self._ticked_s = time.monotonic()
            self._run.advance_clock()


_logger = logging.getLogger("godwit")
