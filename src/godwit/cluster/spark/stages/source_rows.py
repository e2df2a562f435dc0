"""The rows of an epoch as Arrow batches, straight from the plan that makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.cluster.spark.stages.jvm_classes import jvm_classes
from godwit.cluster.spark.stages.python_stage import fetch

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

__all__ = ["SourceRows"]

_QUERY = "sql.streaming.queryId"
_EXECUTION = "spark.sql.execution.id"


class SourceRows:
    """Reads the rows of micro-batches as Arrow batches.

    Spark hands ``foreachBatch`` the RDD of its plan, and would plan that anew and copy every row
    once more.  The plan itself is one step back, at the query that runs; where it is not found,
    the longer way is taken.

    Attributes
    ----------
    latest
        The RDD of the JVM that was last read; ``None`` before the first.
    """

    def __init__(self) -> None:
        self.latest: Any = None

    def batches(self, rows: DataFrame, epoch: int) -> Any:
        """Rows of a micro-batch as an RDD of the JVM, of record batches (without their schema)."""
        frame = rows._jdf  # noqa: SLF001  no public way gives bytes
        plan = _plan_of(frame, epoch, rows.sparkSession.sparkContext)
        self.latest = frame.toArrowBatchRdd() if plan is None else frame.toArrowBatchRdd(plan)
        return self.latest

    def limited(self, rows: DataFrame, epoch: int, limit: int) -> list[bytes] | None:
        """Rows of a micro-batch, at most `limit` of each partition, brought here by Spark's job.

        Returns
        -------
        list of bytes or None
            As of `batches`, in the order of partitions; ``None`` if the plan is not found.
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
