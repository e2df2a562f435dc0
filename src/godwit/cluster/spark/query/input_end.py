"""Why Spark's query has ended: its input has, or somebody has stopped it.

The problem: windows that are open come out at the end of the input, if that is asked for, and what
comes later for them is late. A query that was stopped by Spark's own handle (``for q in
spark.streams.active: q.stop()``) has ended without an error as well, and Spark tells the two apart
nowhere in public.

The invariant: an end counts as one of the input only where that is shown; else rows are left for
the next run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["input_has_ended", "is_bounded", "is_stopped"]

_QUERY_ID = "sql.streaming.queryId"
_logger = logging.getLogger("godwit")


def is_bounded(trigger: Mapping[str, object] | None) -> bool:
    """Whether a query ends with what is available now."""
    return bool(trigger) and not {"availableNow", "once"}.isdisjoint(trigger or ())


def input_has_ended(
    query: StreamingQuery, trigger: Mapping[str, object] | None, *, micro_batches: int
) -> bool:
    """Whether a query that has ended without an error has done so because its input has.

    Parameters
    ----------
    query
        Spark's query, which is no longer active.
    trigger
        When its epochs run.
    micro_batches
        How many of them are done in this run.
    """
    if not is_bounded(trigger):
        return False
    if trigger is not None and "once" in trigger and micro_batches:
        return True
    try:
        # Set when Spark has looked for more input and found none, which ends such a query.
        execution: Any = query._jsq.streamingQuery()  # noqa: SLF001  no public way to ask for it
        return bool(execution.noNewData())
    except Exception as error:  # noqa: BLE001  whatever Py4J raises: it is not known
        _logger.warning(
            "It cannot be told whether the input has ended or somebody has stopped the query, so "
            "windows stay open: %s",
            str(error).partition("\n")[0],
        )
        return False


def is_stopped(spark: SparkSession) -> bool:
    """Whether the streaming query whose micro-batch this thread carries out was told to stop."""
    try:
        query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
        query = spark.streams.get(query_id) if query_id else None
    except Exception:  # noqa: BLE001  asked because of an error, which is told in place of this one
        return False
    return query is not None and not query.isActive
