"""Spark's streaming query, as those see it that work beside it.

A query that was stopped by Spark's own handle (``for q in spark.streams.active: q.stop()``) ends
without an error, as one does whose input has ended, and Spark tells the two apart nowhere in
public.  So an end counts as one of the input only where that is shown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from godwit.runtime.settings import is_bounded, is_once, known_interval_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_logger = logging.getLogger("godwit")


class SparkStream:
    """Spark's streaming query, as those see it that work beside it."""

    def __init__(
        self,
        query: StreamingQuery,
        trigger: Mapping[str, object] | None,  # when its micro-batches run
        *,
        batches: Callable[[], int],  # micro-batches that were carried out in this run
    ) -> None:
        self._query, self._trigger, self._batches = query, trigger, batches

    @property
    def is_active(self) -> bool:
        """True while Spark's query is active."""
        return self._query.isActive

    @property
    def has_failed(self) -> bool:
        """True if Spark's query has ended by an error."""
        return self._query.exception() is not None

    def input_has_ended(self) -> bool:
        """Return whether Spark's query has ended without an error, because its input has."""
        if not is_bounded(self._trigger):
            return False
        if is_once(self._trigger) and self._batches():
            return True
        try:
            return self._has_seen_no_rows()  # which ends such a query
        except Exception as error:  # noqa: BLE001  whatever Py4J raises: it is not known
            _logger.warning(
                "It cannot be told whether the input has ended or somebody has stopped the query, "
                "so windows stay open: %s",
                str(error).partition("\n")[0],
            )
            return False

    def is_stopped(self) -> bool:
        """Return whether Spark's query was stopped from outside."""
        return not self.is_active and not self.input_has_ended()

    def is_quiet(self) -> bool:
        """Return whether Spark has no micro-batch to run, so far as it has looked.

        Between two triggers it has none. Without an interval between them, only a look that has
        shown no rows says so: Spark's status is the same while it looks.
        """
        if not self.is_active:
            return not self.has_failed
        if known_interval_s(self._trigger):
            return not self._query.status["isTriggerActive"] or self._has_seen_no_rows()
        return self._has_seen_no_rows()

    def _has_seen_no_rows(self) -> bool:
        """Return whether Spark's last look at its sources has shown no rows."""
        execution: Any = self._query._jsq.streamingQuery()  # noqa: SLF001  no public way
        return bool(execution.noNewData())


def query_of(spark: SparkSession) -> StreamingQuery | None:
    """Return the streaming query whose micro-batch this thread runs; ``None`` if unknown."""
    try:
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        return spark.streams.get(query_id) if query_id else None
    except Exception:  # noqa: BLE001  whatever Py4J raises; no epoch needs it
        return None


def is_stopped(spark: SparkSession) -> bool:
    """Return whether the query whose micro-batch this thread runs is being stopped."""
    query = query_of(spark)
    try:
        return query is not None and not query.isActive
    except Exception:  # noqa: BLE001  asked because of an error, which is told in place of this one
        return False
