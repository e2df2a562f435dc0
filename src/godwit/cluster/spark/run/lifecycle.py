"""When epochs begin on Spark, with input and without, and how a query ends.

The problem: Spark calls only for micro-batches with rows, but rows that wait, and migrations that
are to end, need an epoch, not rows.  A query that was stopped by Spark's own handle (``for q in
spark.streams.active: q.stop()``) ends without an error, as one does whose input has ended, and
Spark tells the two apart nowhere in public.

The invariants of epochs without input: a thread of ours carries them out, through the same gate as
micro-batches, so never beside one, and only while Spark has nothing to offer; a query whose input
has ended has not ended before nothing waits, nor while epochs are held or key groups suspended that
would have something to do; and an end counts as one of the input only where that is shown, else
rows are left for the next run.  Whatever is raised here, the query fails by it.

The invariants of the end: there is one, on a thread of its own, whoever asks for it and however
often (`Ending`).  It closes the gate, waits for the epoch that is being carried out, and only then
closes everything, each part whatever becomes of the others; so no checkpoint is let go of while an
epoch commits or delivers.  An epoch's own thread and a listener never wait for the end.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from godwit.cluster.spark.run.threads import GateClosedError, close_all, one_line
from godwit.model.errors import EndingError, StopTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.cluster.spark.observe.dispatcher import EventDispatcher
    from godwit.cluster.spark.run.run import SparkRun
    from godwit.cluster.spark.run.threads import EpochGate

__all__ = ["Ending", "QuietEpochs", "is_bounded"]


_LOOK_S = 0.05
_LOOK_AT_SPARK_S = 0.5
_TICK_S = 1.0


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
        self._run, self._gate, self._trigger = run, gate, trigger
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
        return self._gate.busy or self._run.pending

    def _ended_well(self) -> bool:
        return self._gate.failure is None and not self._gate.closed and self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._run.use_this_thread()
            self._watch()
        except BaseException as error:  # noqa: BLE001  without this thread, rows would wait for ever
            self._gate.fail(error)
        self._ending.finish()

    def _watch(self) -> None:
        quiet = 0
        while self._goes_on():
            due = self._run.due
            quiet = quiet + 1 if (due or self._run.view.awaits) and self._is_quiet() else 0
            # Between two micro-batches Spark looks quiet for a moment.
            if quiet < 2:
                self._gate.wait_for_close(_LOOK_S)
            elif due:
                with suppress(GateClosedError):
                    self._run.without_input(self._is_stopped)
                quiet = 0
            else:
                self._tick()
                self._gate.wait_for_close(_LOOK_S)

    def _goes_on(self) -> bool:
        if self._gate.closed or self._gate.failure is not None:
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
        """Return whether Spark's query has ended, without an error, because its input has."""
        if not is_bounded(self._trigger):
            return False
        if self._trigger is not None and "once" in self._trigger and self._run.micro_batches:
            return True
        try:
            # Set when Spark has looked for more input and found none, which ends such a query.
            execution: Any = self._spark_query._jsq.streamingQuery()  # noqa: SLF001  no public way
            return bool(execution.noNewData())
        except Exception as error:  # noqa: BLE001  whatever Py4J raises: it is not known
            _logger.warning(
                "It cannot be told whether the input has ended or somebody has stopped the query, "
                "so windows stay open: %s",
                str(error).partition("\n")[0],
            )
            return False

    def _is_stopped(self) -> bool:
        return not self._spark_query.isActive and not self._input_has_ended()

    def _is_quiet(self) -> bool:
        if not self._spark_query.isActive:
            return self._spark_query.exception() is None
        status = self._spark_query.status
        return not (status["isTriggerActive"] and status["isDataAvailable"])

    def _tick(self) -> None:
        """Let time pass for the protocol, so that what fell silent is tried again."""
        if time.monotonic() - self._ticked_s >= _TICK_S:
            self._ticked_s = time.monotonic()
            self._run.let_time_pass()


_logger = logging.getLogger("godwit")


def is_bounded(trigger: Mapping[str, object] | None) -> bool:
    """Return whether a query ends with what is available now."""
    return bool(trigger) and not {"availableNow", "once"}.isdisjoint(trigger or ())


_GRACE_S = 5.0
_SPARK_S = 10.0
_LISTENERS_S = 5.0


class Ending:
    """Ends a query once, whoever asks and however often."""

    def __init__(
        self,
        *,
        gate: EpochGate,
        spark_query: StreamingQuery,
        dispatcher: EventDispatcher,  # whose listeners hear of the end
        cancel: Callable[[], None],  # breaks off jobs of ours that Spark's ``stop`` does not know
        # Closes the run, once no epoch runs; from what could not be stopped to that and what could
        # not be closed either.
        close: Callable[[list[tuple[str, str]]], list[tuple[str, str]]],
    ) -> None:
        self._gate, self._spark_query, self._dispatcher = gate, spark_query, dispatcher
        self._cancel, self._close = cancel, close
        self._beginning = threading.Lock()
        self._thread: threading.Thread | None = None
        self._problems: list[tuple[str, str]] = []
        self._finished = False

    @property
    def finished(self) -> bool:
        """True if everything is closed."""
        return self._finished

    def stop(self) -> None:
        """End the query after the epoch that runs now, or in the middle of a long one.

        Raises `StopTimeoutError` if something in the epoch neither ends nor can be interrupted,
        `EndingError` if the query has stopped and a part of it could not be stopped or closed.
        """
        if not self.finish(_GRACE_S + _SPARK_S):
            raise StopTimeoutError(
                "The query was told to stop, but an epoch is still being carried out after "
                f"{_GRACE_S + _SPARK_S:.0f} s.",
                remedy="No further epoch begins, and the query stops once this one is over; a "
                "sink that waits for this call would wait for ever.",
            )
        if self._finished and self._problems:
            told = "; ".join(f"{what}: {error.rstrip('.')}" for what, error in self._problems)
            raise EndingError(
                f"The query has ended, but not everything went well: {told}.",
                remedy="What was committed is safe, and the flow can be started again from its "
                "checkpoint.",
                problems=[list(problem) for problem in self._problems],
            )

    def finish(self, timeout_s: float | None = None) -> bool:
        """End the query, and wait until everything is closed; return whether it is.

        An epoch's own thread, or a listener, does not wait: it will be closed without them.
        """
        self._gate.close()
        with self._beginning:
            if self._thread is None:
                self._thread = threading.Thread(target=self._end, name="godwit-stop", daemon=True)
                self._thread.start()
        if self._gate.is_mine or self._dispatcher.is_mine:
            return True
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._dispatcher.flush(_LISTENERS_S)
        return True

    def _end(self) -> None:
        # An epoch that is nearly over would have to be done again.
        self._gate.drain(_GRACE_S)
        problems: list[tuple[str, str]] = []
        parts = [("stopping Spark's query", self._spark_query.stop)]
        if self._gate.interrupted:
            parts.insert(0, ("breaking off the epoch", self._cancel))
        for what, stop in parts:
            try:
                stop()
            except Exception as error:  # noqa: BLE001  told once everything is closed
                problems.append((what, one_line(error)))
        # One without input, or whose thread Spark has given up, commits and delivers even now.
        self._gate.wait_until_idle()
        try:
            self._problems = self._close(problems)
        except BaseException as error:  # noqa: BLE001  told as well
            self._problems = [*problems, ("closing the query", one_line(error))]
        finally:
            self._finished = True
            close_all([("the thread of events", self._dispatcher.close)])
