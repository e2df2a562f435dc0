"""Results to a function of the user's: the sink for everything that has no sink.

The rows stay on the executors; the function decides what happens to them.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from godwit.model.errors import GodwitError, SinkError, UserFunctionError
from godwit.sinks.sink import EpochOutput, Sink, SinkContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

__all__ = ["ForeachSink"]


class ForeachSink(Sink):
    """Calls ``fn(rows, epoch)`` on the driver with every committed epoch, in order.

    **At least once**: after a crash the last epoch may come again, with the very same rows. A
    function that writes by epoch (overwrites ``.../epoch=7``, or records the epoch in the
    transaction that writes the rows) makes that exactly once. If the function raises, the query
    stops; the epoch stays committed and is delivered again when the query starts again.

    Parameters
    ----------
    fn
        Called with a DataFrame and the number of the epoch; what it returns is ignored.

    Raises
    ------
    SinkError
        If `fn` cannot be called.
    """

    def __init__(self, fn: Callable[[DataFrame, int], object]) -> None:
        if not callable(fn):
            raise SinkError(
                f"The foreach sink was given {fn!r}, which cannot be called.",
                remedy="Give a function of a DataFrame and an epoch.",
            )
        self._fn = fn

    def open(self, context: SinkContext) -> None:
        """Remember the sink's name, for errors."""
        self._name = context.name

    def deliver(self, output: EpochOutput) -> None:
        """Call the function.

        Raises
        ------
        UserFunctionError
            If the function raised; carries its traceback.
        """
        rows = output.dataframe()
        try:
            self._fn(rows, output.epoch)
        except GodwitError:
            raise
        except Exception as error:
            name = getattr(self._fn, "__qualname__", repr(self._fn))
            raise UserFunctionError(
                f"Foreach sink {self._name!r}: function {name} raised {type(error).__name__} on "
                f"epoch {output.epoch}: {error}.",
                remedy="Mend the function and start the query again; the epoch will come again."
                f"\n{''.join(traceback.format_exception(error))}",
                sink=self._name,
                epoch=output.epoch,
            ) from error
