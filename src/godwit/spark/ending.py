"""How a query ends: when it is told to, or when Spark's query has ended.

The problem: Spark's ``stop`` waits for the stream's thread, which may be waiting for an epoch,
which may be waiting for whoever called ``stop``.

The invariants: whoever stops closes the gate first, so that the stream's thread never waits for
us; an epoch's own thread never waits for its end, another thread does that; every wait has an end.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from godwit.model.errors import StopTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.spark.dispatcher import EventDispatcher
    from godwit.spark.gate import EpochGate

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
        Tells the end and closes the run; called once, when no epoch runs any more.
    """

    def __init__(
        self,
        *,
        gate: EpochGate,
        spark_query: StreamingQuery,
        dispatcher: EventDispatcher,
        cancel: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        self._gate, self._spark_query, self._dispatcher = gate, spark_query, dispatcher
        self._cancel, self._close = cancel, close
        self._closing = threading.Lock()
        self._closed = self._finished = False
        self._stopping: threading.Thread | None = None
        self._asking = threading.Lock()

    @property
    def finished(self) -> bool:
        """Whether everything is closed."""
        return self._finished

    def stop(self) -> None:
        """Stop Spark's query after the epoch that runs now, or in the middle of a long one.

        Raises
        ------
        StopTimeoutError
            If the query still has not stopped after some seconds: something in the epoch neither
            ends nor can be interrupted. It stops once that is over.
        """
        self._gate.close()
        mine = self._gate.is_mine
        with self._asking:
            if self._stopping is None:
                self._stopping = threading.Thread(
                    target=self._stop_spark, name="godwit-stop", daemon=True
                )
                self._stopping.start()
        if mine:
            return  # Spark waits for the thread that this is
        self._stopping.join(_GRACE_S + _SPARK_S)
        if self._stopping.is_alive():
            raise StopTimeoutError(
                "The query was told to stop, but an epoch is still being carried out after "
                f"{_GRACE_S + _SPARK_S:.0f} s.",
                remedy="No further epoch begins, and the query stops once this one is over; a "
                "sink that waits for this call would wait for ever.",
            )
        self._dispatcher.flush(_LISTENERS_S)

    def _stop_spark(self) -> None:
        # An epoch that is nearly over would have to be done again.
        self._gate.drain(_GRACE_S)
        if self._gate.interrupted:
            self._cancel()
        self._spark_query.stop()
        self.finish()

    def finish(self) -> None:
        """Close what is still open, now that Spark's query has ended; does so once."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._gate.close()
            self._close()
            self._finished = True
            self._dispatcher.close()
        self._dispatcher.flush(_LISTENERS_S)
