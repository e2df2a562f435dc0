"""When epochs begin on Spark: for each micro-batch, and without input while no rows arrive.

The problem: Spark calls only for micro-batches with rows, but rows that wait, and migrations that
are to end, need an epoch, not rows.  And windows that are open come out at the end of the input, if
that is asked for; but a query that was stopped by Spark's own handle (``for q in
spark.streams.active: q.stop()``) has ended without an error as well, and Spark tells the two apart
nowhere in public.

The invariants: an epoch without input is carried out by a thread of ours, through the same gate as
micro-batches, so never beside one; it is carried out only while Spark has nothing to offer, since
the epoch of a micro-batch does the same work in passing; a query whose input has ended has not
ended before nothing waits, nor while epochs are held or key groups suspended that would have
something to do; and an end counts as one of the input only where that is shown, else rows are left
for the next run.  Whatever is raised here, the query fails by it: else it would go on without the
epochs that are due.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from godwit.cluster.spark.run.gate import GateClosedError
from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.cluster.spark.query.ending import Ending
    from godwit.cluster.spark.run.gate import EpochGate
    from godwit.cluster.spark.run.run import Run

__all__ = ["EpochDriver", "QuietEpochs", "input_has_ended", "is_bounded", "is_stopped"]


class EpochDriver:
    """Carries out the epochs of a run, one at a time, until the gate closes.

    run: What carries out an epoch.
    gate: Lets epochs begin, or not.
    stopped: Says, on the thread of a micro-batch, whether Spark's query was told to stop.
    """

    def __init__(
        self, run: Run, gate: EpochGate, *, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self._run, self._gate, self._stopped = run, gate, stopped
        # why an epoch failed, if one did; one that was cut short by a stop did not
        self.failure: BaseException | None = None
        # whether an epoch was turned away, or ended in the middle, because the query is to stop
        self.cut_short = False
        self.micro_batches = 0  # how many micro-batches are done in this run

    @property
    def closed(self) -> bool:
        """Whether no epoch begins any more."""
        return self._gate.closed

    @property
    def busy(self) -> bool:
        """Whether an epoch is being carried out."""
        return self._gate.busy

    def micro_batch(self, rows: DataFrame, number: int) -> dict[str, float]:
        """Carry out the epoch of a micro-batch; raise if it was not carried out.

        Returning would let Spark count the micro-batch as done.

        Returns: Phase → milliseconds; empty if it had been carried out before.
        """
        self._carry_out(
            lambda: self._run.micro_batch(rows, number),
            held_until=self._stopped,
            broken_off=self._stopped,
        )
        self.micro_batches += 1
        latest = self._run.progress[-1:]
        if not latest or latest[0]["batchId"] != number:
            return {}
        return {phase: ms for phase, ms in latest[0]["durationMs"].items() if phase != "epoch"}

    def without_input(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Carry out an epoch without input, unless nothing is due any more.

        stopped: Says whether Spark's query was told to stop; asked while the epoch is held.

        Raises `GateClosedError` if the query is to stop.
        """

        def epoch() -> None:
            if self._run.due:
                self._run.without_input()

        # An error is one of the epoch: Spark's stop breaks off no job of this thread.
        self._carry_out(epoch, held_until=stopped)

    def pause(self, seconds: float) -> None:
        """Wait a moment, or until the gate closes."""
        self._gate.wait_for_close(seconds)

    def _carry_out(
        self,
        epoch: Callable[[], None],
        *,
        held_until: Callable[[], bool],
        broken_off: Callable[[], bool] = lambda: False,
    ) -> None:
        try:
            with self._gate.epoch(held_until):
                epoch()
        except BaseException as error:
            breaking_off = self._gate.interrupted or broken_off()
            if isinstance(error, GateClosedError) or (breaking_off and not _is_its_own(error)):
                self.cut_short = True
            else:
                self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Let the query fail with an error, unless it has failed with another one before."""
        if self.failure is None:
            self.failure = error
        # What comes after it may not be committed: only the last epoch is delivered again.
        self._gate.close()


def _is_its_own(error: BaseException) -> bool:
    """Whether an epoch that is being broken off has failed all the same, by an error of its own.

    Breaking it off cancels jobs of Spark's, which Py4J tells.
    """
    if not isinstance(error, GodwitError):
        return False
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, Py4JError):
        cause = cause.__cause__ or cause.__context__
    return cause is None


_LOOK_S = 0.05
_LOOK_AT_SPARK_S = 0.5
_TICK_S = 1.0


class QuietEpochs:
    """Watches for epochs that are due although no rows arrive, and carries them out."""

    def __init__(
        self,
        *,
        run: Run,  # knows what is due
        driver: EpochDriver,  # carries out epochs
        spark_query: StreamingQuery,  # knows whether there are rows
        ending: Ending,  # what is to happen once Spark's query has ended and nothing waits
        trigger: Mapping[str, object] | None,  # when epochs with input run
    ) -> None:
        self._run, self._driver, self._trigger = run, driver, trigger
        self._spark_query, self._ending = spark_query, ending
        self._looked_s = self._ticked_s = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="godwit-quiet", daemon=True)
        self._thread.start()

    def wait_until_nothing_waits(self) -> None:
        """Return once nothing is to be done without rows, or the query has failed or is to stop."""
        while self._ended_well() and self._is_busy():
            time.sleep(_LOOK_S)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the query has ended altogether; says whether it has."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _is_busy(self) -> bool:
        return self._driver.busy or self._run.pending

    def _ended_well(self) -> bool:
        return self._driver.failure is None and not self._driver.closed and self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._run.use_this_thread()
            self._watch()
        except BaseException as error:  # noqa: BLE001  without this thread, rows would wait for ever
            self._driver.fail(error)
        self._ending.finish()

    def _watch(self) -> None:
        quiet = 0
        while self._goes_on():
            due = self._run.due
            quiet = quiet + 1 if (due or self._run.view.awaits) and self._is_quiet() else 0
            # Between two micro-batches Spark looks quiet for a moment.
            if quiet < 2:
                self._driver.pause(_LOOK_S)
            elif due:
                self._carry_out()
                quiet = 0
            else:
                self._tick()
                self._driver.pause(_LOOK_S)

    def _goes_on(self) -> bool:
        if self._driver.closed or self._driver.failure is not None:
            return False
        if time.monotonic() - self._looked_s < _LOOK_AT_SPARK_S:
            return True
        self._looked_s = time.monotonic()
        self._run.insist_on_lease()
        if self._spark_query.isActive:
            return True
        if self._spark_query.exception() is not None:
            return False
        if not self._input_has_ended():
            return False
        self._run.end_input()
        return self._run.pending

    def _input_has_ended(self) -> bool:
        return input_has_ended(
            self._spark_query, self._trigger, micro_batches=self._driver.micro_batches
        )

    def _is_stopped(self) -> bool:
        return not self._spark_query.isActive and not self._input_has_ended()

    def _is_quiet(self) -> bool:
        if not self._spark_query.isActive:
            return self._spark_query.exception() is None
        status = self._spark_query.status
        return not (status["isTriggerActive"] and status["isDataAvailable"])

    def _carry_out(self) -> None:
        with suppress(GateClosedError):
            self._driver.without_input(self._is_stopped)

    def _tick(self) -> None:
        """Let time pass for the protocol, so that what fell silent is tried again."""
        if time.monotonic() - self._ticked_s >= _TICK_S:
            self._ticked_s = time.monotonic()
            self._run.let_time_pass()


_QUERY_ID = "sql.streaming.queryId"
_logger = logging.getLogger("godwit")


def is_bounded(trigger: Mapping[str, object] | None) -> bool:
    """Whether a query ends with what is available now."""
    return bool(trigger) and not {"availableNow", "once"}.isdisjoint(trigger or ())


def input_has_ended(
    query: StreamingQuery, trigger: Mapping[str, object] | None, *, micro_batches: int
) -> bool:
    """Whether a query that has ended without an error has done so because its input has.

    query: Spark's query, which is no longer active.
    trigger: When its epochs run.
    micro_batches: How many of them are done in this run.
    """
    if not is_bounded(trigger):
        return False
    if trigger is not None and "once" in trigger and micro_batches:
        return True
    try:
        # Set when Spark has looked for more input and found none, which ends such a query.
        execution: Any = query._jsq.streamingQuery()  # noqa: SLF001  no public way to ask for it
        return bool(execution.noNewData())
    except Exception as error:  # noqa: BLE001  whatever Py4J raises: it is not known
        _logger.warning(
            "It cannot be told whether the input has ended or somebody has stopped the query, so "
            "windows stay open: %s",
            str(error).partition("\n")[0],
        )
        return False


def is_stopped(spark: SparkSession) -> bool:
    """Whether the streaming query whose micro-batch this thread carries out was told to stop."""
    try:
        query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
        query = spark.streams.get(query_id) if query_id else None
    except Exception:  # noqa: BLE001  asked because of an error, which is told in place of this one
        return False
    return query is not None and not query.isActive
