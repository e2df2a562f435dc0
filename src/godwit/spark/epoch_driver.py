"""What Spark calls with every micro-batch, and what is remembered if it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.spark.gate import GateClosedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from godwit.spark.gate import EpochGate
    from godwit.spark.run import Run

__all__ = ["EpochDriver"]


class EpochDriver:
    """Carries out the epochs of a run, one at a time, until the gate closes.

    Parameters
    ----------
    run
        What carries out an epoch.
    gate
        Lets epochs begin, or not.

    Attributes
    ----------
    failure
        Why an epoch failed, if one did; one that was cut short by a stop did not.
    cut_short
        Whether an epoch was turned away, or ended in the middle, because the query is to stop.
    """

    def __init__(self, run: Run, gate: EpochGate) -> None:
        self._run, self._gate = run, gate
        self.failure: BaseException | None = None
        self.cut_short = False

    def micro_batch(self, rows: DataFrame, number: int) -> None:
        """Carry out the epoch of a micro-batch; raise if it was not carried out.

        Returning would let Spark count the micro-batch as done.
        """
        try:
            with self._gate.epoch():
                self._run.epoch(rows, number)
        except BaseException as error:
            if isinstance(error, GateClosedError) or self._gate.interrupted:
                self.cut_short = True
            elif self.failure is None:
                self.failure = error
            raise
