"""Driver of the epochs of a flow that mixes DataFrames with Godwit's own sources.

Spark's micro-batch engine calls for epochs while DataFrames have rows, and each of them takes what
own sources have (`godwit.cluster.spark.run.mixed_rows`).  While Spark has nothing to offer, the
thread here carries out epochs of own rows alone, and those without input that are due.

Invariants: a bounded query ends once Spark's query has ended because its input has, own sources
have nothing more up to where they reached when it began, and nothing waits; an end of Spark's query
that is no end of its input ends ours, and leaves rows for the next run.  Whatever is raised here,
the query fails by it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from godwit.cluster.spark.observe.progress import add_source_figures, rows_held_back, source_lag
from godwit.cluster.spark.run.lifecycle import LoopThread, is_bounded
from godwit.cluster.spark.run.micro_batch_query import SparkStream
from godwit.cluster.spark.run.source_loop import ReadPace, Waiters, unanswered_error
from godwit.cluster.spark.run.threads import GateClosedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.cluster.spark.run.mixed_rows import MixedEpochs
    from godwit.cluster.spark.run.run import SparkRun

_LOOK_S: Final = 0.05
_LEASE_S: Final = 0.5
_TICK_S: Final = 1.0
_STOP_S: Final = 10.0
_QUIET_LOOKS: Final = 2
"""Between two micro-batches Spark looks quiet for a moment."""


class MixedQuery:
    """A query of Spark's, and own sources read beside it (`EpochDriver`)."""

    what = "Spark's query, and the thread of its own sources,"

    def __init__(
        self,
        spark_query: StreamingQuery,
        epochs: MixedEpochs,
        *,
        run: SparkRun,
        trigger: Mapping[str, object] | None,
    ) -> None:
        self.spark_query, self._run, self._gate = spark_query, run, run.gate
        self._epochs, self._figures, self._ask = epochs, epochs.figures, epochs.thread.call
        self._stream = SparkStream(spark_query, trigger, batches=lambda: run.batches)
        self._bounded = is_bounded(trigger)
        self._once = trigger is not None and "once" in trigger
        self._pace, self._waiters = ReadPace(trigger), Waiters(epochs.positions)
        self._stream_ended = self._own_ended = self._input_ended = self._has_own = False
        self._quiet = 0  # looks in a row at which Spark had nothing to offer
        now_s = time.monotonic()
        self._lease_s, self._tick_s = now_s + _LEASE_S, now_s + _TICK_S
        self._thread = LoopThread(run, self._run_loop, self._close_sources)
        self.begin, self.wait = self._thread.begin, self._thread.wait
        self._over = self._thread.over

    # -- EpochDriver ------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Identifier of Spark's query, the same over restarts from one checkpoint."""
        return str(self.spark_query.id)

    @property
    def is_active(self) -> bool:
        """True until no more epochs can run, of either kind of source."""
        return not self._over.is_set()

    def failure(self) -> BaseException | None:
        """Return the error that ended Spark's query or the loop outside of any epoch.

        ``None`` if there is none.
        """
        with suppress(Exception):  # a JVM that is gone says nothing any more
            return self.spark_query.exception()
        return None

    def status(self) -> dict[str, Any]:
        """Return the status of Spark's query; rows of own sources count as available data."""
        status = dict(self.spark_query.status)
        if self._over.is_set():
            return status
        if self._stream_ended:
            status["message"] = "Reading what is left of Godwit's own sources"
        status["isDataAvailable"] = bool(status["isDataAvailable"] or self._has_own)
        status["isTriggerActive"] = bool(status["isTriggerActive"] or self._gate.busy)
        return status

    def process_all_available(self) -> None:
        """Wait until all rows that sources of both kinds have now are processed."""
        if self._bounded:
            self._over.wait()
            return
        self.spark_query.processAllAvailable()
        self._waiters.wait(self._over)
        while not self._over.is_set() and (self._gate.busy or self._run.is_pending):
            self._over.wait(_LOOK_S)

    def stop(self) -> None:
        """Stop Spark's query, and wait until the loop that reads Godwit's own sources has ended.

        The loop's own thread does not wait. Raises `StopTimeoutError` if the loop goes on.
        """
        self.spark_query.stop()
        if self._thread.is_own_thread:
            return
        self._gate.wait_until_idle()
        if self._over.wait(2 * _STOP_S):
            return
        raise unanswered_error(self._epochs.positions, 2 * _STOP_S)

    def sources(self) -> dict[str, Any] | None:
        """Return the lag of sources of both kinds as plain values.

        ``None`` before Spark knows it.
        """
        of_spark, own = source_lag(self.spark_query), self._figures.sources()
        if of_spark is None and not own:
            return None
        batch, frames = (-1, []) if of_spark is None else (of_spark["batchId"], of_spark["sources"])
        return {"batchId": batch, "sources": [*frames, *own]}

    def rows_held_back(self) -> int | None:
        """Return the number of unread rows in sources of both kinds; ``None`` if unknown."""
        counts = (rows_held_back(self.spark_query), self._figures.rows_held_back())
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    def add_source_figures(self, progress: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return epochs' progress with the figures of sources of both kinds."""
        noted, filled = self._figures.recorded(), []
        for made in progress:
            of_both = made
            if self._epochs.had_micro_batch(made["epoch"]):
                (of_both,) = add_source_figures([made], self.spark_query)
            if made["epoch"] in noted:
                own = noted[made["epoch"]][0]
                of_both = {**of_both, "sources": [*of_both.get("sources", ()), *own]}
            filled.append(of_both)
        return filled

    # -- the thread -------------------------------------------------------------------------------

    def _close_sources(self) -> None:
        """Close Godwit's own sources; report a source that does not close within 10 s."""
        if not self._epochs.thread.close(self._epochs.positions.close, _STOP_S):
            self._run.background_failed(
                "closing the sources", f"a source has not answered for {_STOP_S:.0f} s"
            )
        self._has_own = False

    def _run_loop(self) -> None:
        """Run epochs of own rows and epochs without input between micro-batches, until the end."""
        while not self._gate.closed:
            self._check_lease()
            if self._has_stream_ended():
                return
            if self._waiters:
                self._ask(self._waiters.set_targets)
                if not self._run.is_pending:
                    self._ask(self._waiters.release_finished)
            self._quiet = self._quiet + 1 if self._stream_ended or self._stream.is_quiet() else 0
            if self._quiet >= _QUIET_LOOKS and (self._run_own_epoch() or self._run_quiet_epoch()):
                continue
            if self._stream_ended and self._own_ended and self._quiet >= _QUIET_LOOKS:
                if not self._input_ended:
                    self._input_ended = True
                    self._run.end_input()
                    continue
                if not self._run.is_pending:
                    return
            self._ask(self._figures.measure_lag)
            self._gate.wait_for_close(self._pause_s())

    def _has_stream_ended(self) -> bool:
        """Return whether Spark's query has ended before its input did; record its end."""
        if self._stream_ended or self._stream.is_active:
            return False
        if self._stream.has_failed or not self._stream.input_has_ended():
            return True
        self._stream_ended = True
        return False

    def _run_own_epoch(self) -> bool:
        """Run an epoch over own sources if it is due and they have rows; return whether it ran."""
        # With a trigger of one epoch, the rows of a micro-batch are to be in it too.
        waits = self._once and not self._stream_ended
        if self._own_ended or waits or self._pace.seconds_to_poll > 0:
            return self._run_round(due=False)
        if self._once and self._epochs.read_own:
            self._own_ended = True
            return self._run_round(due=False)
        began_s = time.monotonic()
        self._has_own = self._epochs.has_own_rows()
        self._pace.record_poll(began_s, has_rows=self._has_own)
        if not self._has_own:
            self._own_ended = self._bounded
            return False
        with suppress(GateClosedError):
            self._epochs.run_own_epoch(self._is_stopped)
        return True

    def _run_round(self, *, due: bool) -> bool:
        """Run an epoch over rows waiting in loops, if there are any; return whether it ran.

        `due`: an epoch is due anyway, so it runs even if the loops pause.
        """
        with suppress(GateClosedError):
            return self._epochs.run_round(self._is_stopped, due=due)
        return False

    def _run_quiet_epoch(self) -> bool:
        """Run an epoch without source rows if one is due; return whether it ran.

        It reads rows waiting in loops, even if these pause.
        """
        if self._run.is_due:
            if self._run_round(due=True):
                return True
            with suppress(GateClosedError):
                self._run.without_input(self._is_stopped)
            return True
        if self._run.view.awaits and time.monotonic() >= self._tick_s:
            self._tick_s = time.monotonic() + _TICK_S
            self._run.advance_clock()
        return False

    def _is_stopped(self) -> bool:
        """Return whether Spark's query was stopped from outside."""
        return not self._stream_ended and self._stream.is_stopped()

    def _pause_s(self) -> float:
        """Return the seconds until the next check."""
        return _LOOK_S if self._own_ended else min(max(self._pace.seconds_to_poll, 0.001), _LOOK_S)

    def _check_lease(self) -> None:
        """Raise if another query has taken the lease; checked every half second."""
        if time.monotonic() >= self._lease_s:
            self._lease_s = time.monotonic() + _LEASE_S
            self._run.check_lease()
