"""What reaches Spark's own ``StreamingQueryProgress``: the phases of the epoch, as durations.

Spark makes a micro-batch's progress from the physical plan that it believes to have run and from
durations noted while it ran.  Aggregates of rows (``Dataset.observe``) are read out of that plan,
and metrics of a sink are asked of a connector, which ``foreachBatch`` is not; so durations are all
that a query of ours can add.  They are noted on the thread that runs the micro-batch, while Spark
waits for it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["SparkProgress"]

_QUERY_ID = "sql.streaming.queryId"
_logger = logging.getLogger("godwit")


class SparkProgress:
    """Adds to the progress of one query's micro-batches.

    Parameters
    ----------
    spark
        The session that the query was started in.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._execution: Any = None
        self._refused = False

    def add(self, took_ms: Mapping[str, float]) -> None:
        """Add durations to the micro-batch that the calling thread runs.

        Where Spark has no such thing any more, that is logged once and the query goes on without.

        Parameters
        ----------
        took_ms
            Phase → milliseconds.
        """
        if self._refused:
            return
        try:
            context = self._found().getLatestExecutionContext()
            for phase, ms in took_ms.items():
                context.reportTimeTaken(f"godwit.{phase}", round(ms))
        except Exception as error:  # noqa: BLE001  figures are not worth an epoch
            self._refused = True
            _logger.info("Spark's progress takes no durations of ours: %s", error)

    def _found(self) -> Any:
        if self._execution is None:
            query_id = self._spark.sparkContext.getLocalProperty(_QUERY_ID)
            query: Any = self._spark.streams.get(str(query_id))
            self._execution = query._jsq.streamingQuery()  # noqa: SLF001  no public way to add
        return self._execution
