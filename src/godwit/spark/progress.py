"""Lag of a query behind its sources, and Spark's progress of an epoch.

Spark notes a micro-batch's offsets, and what its sources say of themselves, once the micro-batch
has ended.  Into Spark's progress Godwit can put durations only (`SparkProgress`): Spark reads
aggregates of rows out of a plan, and metrics of a connector, and ``foreachBatch`` has neither.
"""

from __future__ import annotations

import json
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def source_lag(query: StreamingQuery) -> dict[str, Any] | None:
    """Return a query's lag behind its sources as plain values; ``None`` before Spark knows it.

    ``batchId`` (the micro-batch that Spark noted last), ``sources`` (`source_figures`).
    """
    progress = query.lastProgress
    if progress is None:
        return None
    return {
        "batchId": progress["batchId"],
        "sources": source_figures(progress["sources"]),
    }


def rows_held_back(query: StreamingQuery) -> int | None:
    """Return the sources' backlog, in rows, at Spark's last recorded micro-batch.

    An offset counts as a row. ``None`` before the first micro-batch, and if no source reports its
    end (file sources do not).
    """
    progress = query.lastProgress
    sources = progress["sources"] if progress else ()
    counts = [offsets_behind(s.get("endOffset"), s.get("latestOffset")) for s in sources]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def add_source_figures(
    progress: Iterable[dict[str, Any]], query: StreamingQuery
) -> list[dict[str, Any]]:
    """Return epochs' progress, with Spark's ``sources`` added to that of micro-batches."""
    sources = {p["batchId"]: p["sources"] for p in query.recentProgress}
    return [
        {**entry, "sources": sources[entry["batchId"]]} if entry["batchId"] in sources else entry
        for entry in progress
    ]


def source_figures(sources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return lag and rates of each source in Spark's progress, as plain values.

    ``description``, ``inputRowsPerSecond``, ``processedRowsPerSecond`` (``None`` if Spark has no
    number), ``behind`` (offsets that the source has and no micro-batch covers; ``None`` if it does
    not report them), ``metrics`` (the source's own, such as Kafka's ``maxOffsetsBehindLatest``).
    """
    return [
        {
            "description": str(source.get("description", "")),
            "inputRowsPerSecond": _finite_float(source.get("inputRowsPerSecond")),
            "processedRowsPerSecond": _finite_float(source.get("processedRowsPerSecond")),
            "behind": offsets_behind(source.get("endOffset"), source.get("latestOffset")),
            "metrics": {str(k): str(v) for k, v in (source.get("metrics") or {}).items()},
        }
        for source in sources
    ]


def offsets_behind(end: Any, latest: Any) -> int | None:
    """Return the number of offsets from `end` to `latest`: numbers or maps of them, also as JSON.

    Of maps, the sum over keys in both. ``None`` if nothing can be compared.

    Examples
    --------
    >>> offsets_behind('{"flights": {"0": 5, "1": 7}}', {"flights": {"0": 9, "1": 7, "2": 3}})
    4
    >>> offsets_behind(5, None) is None
    True
    """
    end, latest = _parse_json(end), _parse_json(latest)
    if isinstance(end, dict) and isinstance(latest, dict):
        counts = [offsets_behind(end[key], latest[key]) for key in end.keys() & latest.keys()]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None
    if _is_number(end) and _is_number(latest):
        return max(0, int(latest) - int(end))
    return None


def _parse_json(value: Any) -> Any:
    """Return a value parsed as JSON, or unchanged if it is not JSON text."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _finite_float(value: Any) -> float | None:
    """Return a value as a float if it is a finite number, else ``None``."""
    return float(value) if _is_number(value) else None


_logger = logging.getLogger("godwit")

_QUERY_ID = "sql.streaming.queryId"


class SparkProgress:
    """Adds durations to Spark's progress of one query's micro-batches."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._execution: Any = None
        self._refused = False

    def add(self, took_ms: Mapping[str, float]) -> None:
        """Add durations (phase → milliseconds) to the current micro-batch's progress in Spark.

        If this version of Spark does not support it, that is logged once.
        """
        if self._refused:
            return
        try:
            context = self._jvm_query().getLatestExecutionContext()
            for phase, ms in took_ms.items():
                context.reportTimeTaken(f"godwit.{phase}", round(ms))
        except Exception as error:  # noqa: BLE001  figures are not worth an epoch
            self._refused = True
            _logger.info("Spark's progress takes no durations of ours: %s", error)

    def _jvm_query(self) -> Any:
        """Return Spark's JVM object for the query that runs on this thread."""
        if self._execution is None:
            query_id = self._spark.sparkContext.getLocalProperty(_QUERY_ID)
            query: Any = self._spark.streams.get(str(query_id))
            self._execution = query._jsq.streamingQuery()  # noqa: SLF001  no public way to add
        return self._execution
