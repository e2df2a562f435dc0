"""Sinks of adopted queries that the driver delivers to, as Spark's own sinks do.

The rows that the lanes staged are those of the last operator; Spark computes the rest of the query
over them (`godwit.adopt.finish.Finish`), and the sink gets the result.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext

from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import UserFunctionError
from godwit.sinks.simple_sinks import ForeachSink
from godwit.spark.platform.sessions import dataframe_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame

    from godwit.adopt.finish import Finish
    from godwit.sinks.sink import EpochOutput, SinkContext


_LAST: Final = "delivered.json"


class DeliveredResult(ForeachSink):
    """Sink that calls a function with a batch's result, a DataFrame, and the batch's number.

    `checkpoint`: directory in which the last batch is recorded for which the function returned, so
    that another start does not call it again, as Spark would not; by default it is called again.
    """

    def __init__(
        self,
        fn: Callable[[Any, int], object],
        finish: Finish | None,
        *,
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(fn)
        self._finish = finish
        self._error_condition = getattr(fn, "condition", "FOREACH_BATCH_USER_FUNCTION_ERROR")
        self._storage = None if checkpoint is None else CheckpointStorage.open(checkpoint)
        self._recorded_batch: bytes | None = (
            None  # the recorded batch; ``None`` if it is not read yet
        )

    def deliver(self, output: EpochOutput) -> None:
        """Call the user's function with the rows of a batch, unless that has succeeded before."""
        if self._storage is None:
            self._call_function(output)
            return
        point = json.dumps(asdict(output.point)).encode()
        if self._recorded_batch is None:
            recorded = _LAST in self._storage.list("")
            self._recorded_batch = self._storage.read(_LAST).to_pybytes() if recorded else b""
        if self._recorded_batch != point:
            self._call_function(output)
            self._storage.write_atomic(_LAST, point)
            self._recorded_batch = point

    def _call_function(self, output: EpochOutput) -> None:
        """Call the user's function; its error has the same condition as Spark's."""
        try:
            super().deliver(output)
        except UserFunctionError as error:
            message = f"[{self._error_condition}] {error.message}"
            raise UserFunctionError(
                message, remedy=error.remedy, **error.context
            ) from error.__cause__

    def open(self, context: SinkContext) -> None:
        """Store the number of batches that Spark's query had before."""
        super().open(context)
        self._batches_before = context.batches_before
        if isinstance(self._fn, MemoryTable):
            self._fn.show()

    def number_of(self, output: EpochOutput) -> int:
        """Return the number of a batch, continuing the numbers of a Spark query."""
        return output.epoch + max(self._batches_before - 1, 0)

    def argument_of(self, output: EpochOutput) -> DataFrame:
        """Return the result of a batch."""
        rows: DataFrame = output.dataframe()
        return rows if self._finish is None else self._finish(rows)


class MemoryTable:
    """The rows of all batches, or of the last (complete), as a temporary view of a session."""

    def __init__(self, name: str, rows: DataFrame, *, complete: bool) -> None:
        self._name, self._is_complete = name, complete
        self._session, self._schema = rows.sparkSession, rows.schema
        self._batches: dict[int, pa.Table] = {}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Add the rows of a batch, unless they were added before."""
        table = rows.toArrow()
        self._batches = {} if self._is_complete else self._batches
        self._batches[batch] = table
        self.show()

    def show(self) -> None:
        """Show the rows so far as the view, which exists from the start of the query."""
        tables = [self._batches[number] for number in sorted(self._batches)]
        rows = pa.concat_tables(tables) if tables else pa.table({})
        dataframe_of(self._session, rows, self._schema).createOrReplaceTempView(self._name)


def print_batch(rows: DataFrame, batch: int, *, num_rows: int, truncate: bool) -> None:
    """Print a batch as Spark's console does."""
    rule = "-" * 43
    print(f"{rule}\nBatch: {batch}\n{rule}")  # noqa: T201  the console is the sink
    rows.show(num_rows, truncate)


class RowByRow:
    """Sink that calls ``foreach``'s function or object with every row, on the executors."""

    condition = "FOREACH_USER_FUNCTION_ERROR"

    def __init__(self, target: Any) -> None:
        self._target = target

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Process the rows of a batch, partition by partition."""
        target = self._target
        if callable(target) and not hasattr(target, "process"):

            def each(part: Iterable[Any]) -> None:
                """Call the function with every row."""
                for row in part:
                    target(row)

        else:

            def each(part: Iterable[Any]) -> None:
                """Open the object for a partition, give it the rows, and close it."""
                _write_partition(target, part, batch)

        rows.foreachPartition(each)


def _write_partition(target: Any, rows: Iterable[Any], batch: int) -> None:
    """Give the rows of a partition to an object with ``open``, ``process`` and ``close``."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    failure: Exception | None = None
    wanted = target.open(partition, batch) if hasattr(target, "open") else True
    try:
        for row in rows if wanted else ():
            target.process(row)
    except Exception as error:
        failure = error
        raise
    finally:
        if hasattr(target, "close"):
            target.close(failure)
