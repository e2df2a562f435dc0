"""What carries out epochs one at a time, and what is remembered if one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from godwit.cluster.spark.run.gate import GateClosedError
from godwit.model.errors import GodwitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from godwit.cluster.spark.run.gate import EpochGate
    from godwit.cluster.spark.run.run import Run

__all__ = ["EpochDriver"]


class EpochDriver:
    """Carries out the epochs of a run, one at a time, until the gate closes.

    Parameters
    ----------
    run
        What carries out an epoch.
    gate
        Lets epochs begin, or not.
    stopped
        Says, on the thread of a micro-batch, whether Spark's query was told to stop.

    Attributes
    ----------
    failure
        Why an epoch failed, if one did; one that was cut short by a stop did not.
    cut_short
        Whether an epoch was turned away, or ended in the middle, because the query is to stop.
    micro_batches
        How many micro-batches are done in this run.
    """

    def __init__(
        self, run: Run, gate: EpochGate, *, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self._run, self._gate, self._stopped = run, gate, stopped
        self.failure: BaseException | None = None
        self.cut_short = False
        self.micro_batches = 0

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

        Returns
        -------
        dict
            Phase → milliseconds; empty if it had been carried out before.
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

        Parameters
        ----------
        stopped
            Says whether Spark's query was told to stop; asked while the epoch is held.

        Raises
        ------
        GateClosedError
            If the query is to stop.
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
