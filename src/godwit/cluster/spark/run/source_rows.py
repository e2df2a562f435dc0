"""The rows of a micro-batch as Arrow batches, straight from the plan that makes them.

A Python stage and the exchange behind it take the same time however few rows there are, and a small
epoch takes little else.  So where few rows are expected, Spark's plan alone runs on the executors,
the driver does what the source side does, and the lanes are handed what an exchange would bring.

The invariant: all rows of a micro-batch go this way, or none.  The plan runs under a limit, and if
there is a single row more, they all go the ordinary way.  What is expected decides about time only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.cluster.spark.stages.jvm_classes import jvm_classes
from godwit.cluster.spark.stages.python_stage import fetch

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

__all__ = ["FewRows", "SourceRows"]

_QUERY = "sql.streaming.queryId"
_EXECUTION = "spark.sql.execution.id"


class SourceRows:
    """Reads the rows of micro-batches as Arrow batches.

    Spark hands ``foreachBatch`` the RDD of its plan, and would plan that anew and copy every row
    once more.  The plan itself is one step back, at the query that runs; where it is not found,
    the longer way is taken.
    """

    def __init__(self) -> None:
        self.latest: Any = None  # the RDD of the JVM that was last read; ``None`` before the first

    def batches(self, rows: DataFrame, epoch: int) -> Any:
        """Rows of a micro-batch as an RDD of the JVM, of record batches (without their schema)."""
        frame = rows._jdf  # noqa: SLF001  no public way gives bytes
        plan = _plan_of(frame, epoch, rows.sparkSession.sparkContext)
        self.latest = frame.toArrowBatchRdd() if plan is None else frame.toArrowBatchRdd(plan)
        return self.latest

    def limited(self, rows: DataFrame, epoch: int, limit: int) -> list[bytes] | None:
        """Rows of a micro-batch, at most `limit` of each partition, brought here by Spark's job.

        Returns: As of `batches`, in the order of partitions; ``None`` if the plan is not found.
        """
        frame = rows._jdf  # noqa: SLF001  no public way gives bytes
        spark = rows.sparkSession.sparkContext
        plan = _plan_of(frame, epoch, spark)
        if plan is None:
            return None
        self.latest = frame.toArrowBatchRdd(jvm_classes(spark).local_limit(limit, plan))
        return fetch(self.latest, spark)


def _plan_of(frame: Any, epoch: int, spark: SparkContext) -> Any:
    """Physical plan of the micro-batch that this thread is in; ``None`` if that is not certain."""
    query = spark.getLocalProperty(_QUERY)
    # Without an execution's settings in its properties, a task would not see the session's.
    if query is None or spark.getLocalProperty(_EXECUTION) is None:
        return None
    running = frame.sparkSession().sharedState().activeStreamingQueries()
    stream = running.get(jvm_classes(spark).uuid_of(query))
    execution = None if stream is None else stream.lastExecution()
    if execution is None or execution.currentBatchId() != epoch:
        return None
    return execution.executedPlan()


_ROWS_AT_MOST: Final = 10_000
_BYTES_AT_MOST: Final = 2**20


class FewRows:
    """Takes the rows of small epochs to the driver."""

    def __init__(
        self,
        source: SourceRows,  # reads them
        schema: pa.Schema,  # their Arrow schema
        *,
        # rows_at_most, bytes_at_most: What the driver takes, and what it expects to be worth
        # taking
        rows_at_most: int = _ROWS_AT_MOST,
        bytes_at_most: int = _BYTES_AT_MOST,
    ) -> None:
        self._source, self._schema = source, schema
        self._rows_at_most, self._bytes_at_most = rows_at_most, bytes_at_most
        self._rows_expected: int | None = None
        self._bytes_a_row = 0.0

    @property
    def expected(self) -> bool:
        """Whether the next epoch is likely to be small."""
        rows = self._rows_expected
        return (
            rows is not None
            and rows <= self._rows_at_most // 2
            and rows * self._bytes_a_row <= self._bytes_at_most
        )

    def expect(self, rows: int) -> None:
        """Expect the next epoch to have about as many rows as the last one had."""
        self._rows_expected = rows

    def take(self, rows: DataFrame, number: int) -> list[bytes] | None:
        """Bring the rows of a micro-batch to the driver if they are few, as Arrow batches.

        Returns: As of `SourceRows.batches`; ``None`` if they are not expected to be few, or are
        not.
        """
        if not self.expected:
            return None
        batches = self._source.limited(rows, number, self._rows_at_most + 1)
        if batches is None:
            return None
        num_rows = sum(self._rows_of(batch) for batch in batches)
        self._rows_expected = num_rows
        self._bytes_a_row = sum(map(len, batches)) / max(num_rows, 1)
        return None if num_rows > self._rows_at_most else batches

    def _rows_of(self, batch: bytes) -> int:
        return int(pa.ipc.read_record_batch(pa.py_buffer(batch), self._schema).num_rows)
