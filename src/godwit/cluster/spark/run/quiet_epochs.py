"""Epochs without input, while no rows arrive and after the last have arrived.

The problem: Spark calls only for micro-batches with rows, but rows that wait, and migrations that
are to end, need an epoch, not rows.

The invariants: an epoch without input is carried out by a thread of ours, through the same gate as
micro-batches, so never beside one; it is carried out only while Spark has nothing to offer, since
the epoch of a micro-batch does the same work in passing; a query whose input has ended has not
ended before nothing waits, nor while epochs are held or key groups suspended that would have
something to do; and one that somebody has stopped has not come to the end of its input.
Whatever is raised here, the query fails by it: else it would go on without the epochs that are due.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from godwit.cluster.spark.query.input_end import input_has_ended
from godwit.cluster.spark.run.gate import GateClosedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.cluster.spark.query.ending import Ending
    from godwit.cluster.spark.run.epoch_driver import EpochDriver
    from godwit.cluster.spark.run.run import Run

__all__ = ["QuietEpochs"]

_LOOK_S = 0.05
_LOOK_AT_SPARK_S = 0.5
_TICK_S = 1.0


class QuietEpochs:
    """Watches for epochs that are due although no rows arrive, and carries them out.

    Parameters
    ----------
    run
        Knows what is due.
    driver
        Carries out epochs.
    spark_query
        Knows whether there are rows.
    ending
        What is to happen once Spark's query has ended and nothing waits.
    trigger
        When epochs with input run.
    """

    def __init__(
        self,
        *,
        run: Run,
        driver: EpochDriver,
        spark_query: StreamingQuery,
        ending: Ending,
        trigger: Mapping[str, object] | None,
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
