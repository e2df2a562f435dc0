"""How a query ends: when it is told to, when Spark's query has ended, or when an epoch has failed.

The problem: Spark's ``stop`` waits for the stream's thread, which may be waiting for an epoch,
which may be waiting for whoever called ``stop``; an epoch without input runs on a thread that Spark
does not know at all; and whatever is closed may raise.

The invariants: there is one ending, on a thread of its own, whoever asks for it and however often.
It closes the gate, so that no further epoch begins, waits for the epoch that is being carried out,
and only then closes everything, once, each part whatever becomes of the others; so no checkpoint is
let go of while an epoch commits or delivers. An epoch's own thread and a listener never wait for
the end; every other wait has an end; and what could not be stopped or closed is told.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from godwit.cluster.spark.run.threads import close_all, one_line
from godwit.model.errors import EndingError, StopTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.cluster.spark.observe.dispatcher import EventDispatcher
    from godwit.cluster.spark.run.gate import EpochGate

__all__ = ["Ending"]

_GRACE_S = 5.0
_SPARK_S = 10.0
_LISTENERS_S = 5.0


class Ending:
    """Ends a query once, whoever asks and however often.

    Parameters
    ----------
    gate
        Through which epochs begin.
    spark_query
        Spark's query.
    dispatcher
        Whose listeners hear of the end.
    cancel
        Breaks off jobs of ours that Spark's ``stop`` does not know.
    close
        Closes the run and tells the end, given what could not be stopped; returns what could not be
        closed either. Called once, when no epoch runs any more.
    """

    def __init__(
        self,
        *,
        gate: EpochGate,
        spark_query: StreamingQuery,
        dispatcher: EventDispatcher,
        cancel: Callable[[], None],
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
        """Whether everything is closed."""
        return self._finished

    def stop(self) -> None:
        """End the query after the epoch that runs now, or in the middle of a long one.

        Raises
        ------
        StopTimeoutError
            If the query still has not stopped after some seconds: something in the epoch neither
            ends nor can be interrupted. It stops once that is over.
        EndingError
            If it has stopped, and a part of it could not be stopped or closed.
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
        """End the query, and wait until everything is closed.

        Returns
        -------
        bool
            Whether that is so, or will be without this thread: an epoch's own thread, or a
            listener, does not wait.
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
