"""Spark's micro-batch engine as what calls for epochs, and a thread beside it.

Spark calls only for micro-batches with rows of DataFrames.  But rows that wait, and migrations that
are to end, need an epoch, not rows; and own sources have rows when Spark has none.  So while Spark
has nothing to offer, the thread here carries out the epochs that are due, through the same gate as
micro-batches: of own rows alone (`godwit.spark.micro_batch_epochs`), and without input.

Invariants: a bounded query ends once Spark's query has ended because its input has, own sources
have nothing more up to where they reached when it began, and nothing waits, nor would wait if
epochs were not held; if Spark's query ends before its input, ours ends too, and leaves rows for the
next run.  An error here fails the query.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from godwit.runtime.lifecycle import EpochDriver
from godwit.runtime.settings import is_bounded, is_once
from godwit.runtime.source_loop import ReadPace, Waiters
from godwit.runtime.threads import GateClosedError
from godwit.spark.batch_rows import SparkStream, remove_leftovers
from godwit.spark.platform.sessions import session_stopped
from godwit.spark.progress import add_source_figures, rows_held_back, source_lag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.runtime.run import QueryRun
    from godwit.spark.micro_batch_epochs import MicroBatchEpochs

_LOOK_S: Final = 0.05
_LOOK_AT_SPARK_S: Final = 0.5
_STOP_S: Final = 10.0
_DRAIN: Final = {"availableNow": True}
_QUIET_LOOKS: Final = 2
"""Between two micro-batches Spark looks quiet for a moment."""


class MicroBatchQuery(EpochDriver):
    """A Spark query, whose micro-batches are epochs, and epochs between them."""

    what = "Spark's query"
    stop_s = 2 * _STOP_S  # with the time that sources take to close

    def __init__(
        self,
        spark_query: StreamingQuery,
        epochs: MicroBatchEpochs,
        *,
        run: QueryRun,
        trigger: Mapping[str, object] | None,
        # starts Spark's query again, with a trigger that reads what there is now, and ends
        start_bounded: Callable[[], StreamingQuery],
    ) -> None:
        super().__init__(run)
        self._start_bounded = start_bounded
        self.spark_query = spark_query
        self._epochs, self._figures, self._ask = epochs, epochs.figures, epochs.thread.call
        self._stream = SparkStream(spark_query, trigger, batches=lambda: run.batches)
        self._bounded = is_bounded(trigger)
        self._once = is_once(trigger)
        self._has_sources = bool(epochs.positions.sources)
        self._own_ended = not self._has_sources
        # Without own sources, an interval that only Spark can read is not checked here.
        self._pace = ReadPace(trigger if self._has_sources else None)
        self._waiters = Waiters(epochs.positions)
        self._stream_ended = self._input_ended = self._has_own = False
        self._quiet = 0  # looks in a row at which Spark had nothing to offer
        self._looked_s = time.monotonic()  # whether Spark's query is active

    # -- EpochDriver ------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Identifier of Spark's query, the same over restarts from one checkpoint."""
        return str(self.spark_query.id)

    @property
    def is_active(self) -> bool:
        """True until neither DataFrames nor Godwit's own sources can have another epoch."""
        if self._over.is_set():
            return False
        try:
            return self._stream_ended or self._stream.is_active
        except Exception:  # noqa: BLE001  whatever Py4J raises when its JVM is gone
            return False

    def failure(self) -> BaseException | None:
        """Return the error that ended Spark's query or the loop outside of any epoch.

        ``None`` if there is none.
        """
        with suppress(Exception):  # a JVM that is gone says nothing any more
            return self.spark_query.exception()
        return None

    def status(self) -> dict[str, Any]:
        """Return the status of Spark's query; rows of Godwit's sources are available data too."""
        if self._run.session.is_stopped:
            return self._status_of_end()
        status = dict(self.spark_query.status)
        if self._over.is_set():
            return status
        if self._stream_ended and self._has_sources:
            status["message"] = "Reading the remaining rows of Godwit's own sources"
        status["isDataAvailable"] = bool(status["isDataAvailable"] or self._has_own)
        status["isTriggerActive"] = bool(status["isTriggerActive"] or self._gate.busy)
        return status

    def process_all_available(self) -> None:
        """Wait until all rows that sources of both kinds have now are processed."""
        if self._bounded:
            self._over.wait()
            return
        self.spark_query.processAllAvailable()
        if self._has_sources:
            self._waiters.wait(self._over)
        while not self._over.is_set() and (self._gate.busy or self._run.is_pending):
            self._over.wait(_LOOK_S)

    def stop(self) -> None:
        """Stop Spark's query, and wait until the loop that reads Godwit's own sources has ended.

        The loop's own thread does not wait. Raises `StopTimeoutError` if the loop continues.
        """
        if not self._run.session.is_stopped:
            self.spark_query.stop()
        self._wait_for_end(self._epochs.positions)

    def sources(self) -> dict[str, Any] | None:
        """Return ``batchId``, and lag by source in ``sources``, of both kinds of sources.

        ``None`` before Spark knows it.
        """
        spark_lag, own_sources = source_lag(self.spark_query), self._figures.sources()
        if spark_lag is None and not own_sources:
            return None
        batch, spark_sources = (
            (-1, []) if spark_lag is None else (spark_lag["batchId"], spark_lag["sources"])
        )
        return {"batchId": batch, "sources": [*spark_sources, *own_sources]}

    def rows_held_back(self) -> int | None:
        """Return the number of unread rows in sources of both kinds; ``None`` if unknown."""
        counts = (rows_held_back(self.spark_query), self._figures.rows_held_back())
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    def add_source_figures(self, progress: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return epochs' progress with the figures of sources of both kinds."""
        recorded, entries = self._figures.recorded(), list(progress)
        filled = []
        for entry, with_spark_figures in zip(
            entries, add_source_figures(entries, self.spark_query), strict=True
        ):
            epoch = entry["epoch"]
            figures = with_spark_figures if self._epochs.had_micro_batch(epoch) else entry
            own_figures = recorded[epoch][0] if epoch in recorded else []
            if own_figures:
                figures = {**figures, "sources": [*figures.get("sources", ()), *own_figures]}
            filled.append(figures)
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
        """Run epochs of Godwit's sources, and those without input, between micro-batches."""
        while not self._gate.closed:
            self._go_round()
            if self._has_stream_ended():
                return
            if self._waiters:
                self._ask(self._waiters.set_targets)
                if not self._run.is_pending:
                    self._ask(self._waiters.release_finished)
            self._quiet = self._quiet + 1 if self._is_quiet() else 0
            if self._quiet >= _QUIET_LOOKS and (self._run_own_epoch() or self._run_quiet_epoch()):
                continue
            if self._stream_ended and self._own_ended and self._quiet >= _QUIET_LOOKS:
                if not self._input_ended:
                    self._input_ended = True
                    self._run.end_input()
                    continue
                if not self._run.is_pending:
                    self.drained = True
                    return
            if self._has_sources:
                self._ask(self._figures.measure_lag)
            self._gate.wait_for_close(self._pause_s())

    def _end_input_at(self, ends: Mapping[str, Any]) -> str:
        """Let the input end; return the reason why that is refused, or an empty text.

        Spark cannot change the trigger of a query that runs, so its query is stopped between two
        epochs and started again: it takes what the sources have then, within their limits.
        """
        if self._bounded:
            return "its input is bounded already" if ends else ""
        positions = self._epochs.positions
        if problem := self._ask(positions.problem_of_ends, ends):
            return problem
        self._gate.close_after_epoch()
        while not self._gate.wait_until_idle(_LOOK_S):
            if self._gate.closed:
                raise GateClosedError
        self.spark_query.stop()
        remove_leftovers(self._run.log.storage)  # of a first micro-batch that was cut short
        self._gate.open_again()
        self._ask(positions.fix_ends, ends)
        self.spark_query = self._start_bounded()
        if self._gate.closed:  # by a stop meanwhile, which has stopped Spark's former query
            self.spark_query.stop()
            raise GateClosedError
        self._stream = SparkStream(self.spark_query, _DRAIN, batches=lambda: self._run.batches)
        self._bounded, self._own_ended = True, not self._has_sources
        self._pace = ReadPace(None)
        return ""

    def _has_stream_ended(self) -> bool:
        """Return whether Spark's query has ended before its input did; record its end."""
        if self._stream_ended or time.monotonic() - self._looked_s < _LOOK_AT_SPARK_S:
            return False
        self._looked_s = time.monotonic()
        if self._stream.is_active:
            return False
        if self._run.session.is_stopped:
            raise session_stopped(self._run.flow.name)
        if self._stream.has_failed or not self._stream.input_has_ended():
            return True
        self._stream_ended = True
        return False

    def _is_quiet(self) -> bool:
        """Return whether an epoch may be due here while Spark has no micro-batch to run."""
        if self._stream_ended:
            return True
        if self._bounded and not self._has_sources and not self._run.view.awaits:
            return False  # Spark has a micro-batch to run until its query ends
        wanted = self._has_sources or self._run.is_due or self._run.view.awaits
        return bool(wanted) and self._stream.is_quiet()

    def _run_own_epoch(self) -> bool:
        """Run an epoch over Godwit's sources if due and they have rows; return whether it ran."""
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
        """Run an epoch over rows that wait in feedback loops, if any; return whether it ran.

        `due`: an epoch is due anyway, so it runs even if the loops pause.
        """
        with suppress(GateClosedError):
            return self._has_sources and self._epochs.run_round(self._is_stopped, due=due)
        return False

    def _is_stopped(self) -> bool:
        """Return whether Spark's query was stopped from outside."""
        return not self._stream_ended and self._stream.is_stopped()

    def _pause_s(self) -> float:
        """Return the seconds that the loop waits before it checks again whether epochs are due."""
        return _LOOK_S if self._own_ended else min(max(self._pace.seconds_to_poll, 0.001), _LOOK_S)
