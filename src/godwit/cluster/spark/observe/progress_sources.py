"""How far behind its sources a query is, as far as Spark tells.

Spark notes a micro-batch's offsets, and what its sources say of themselves, once the micro-batch
has ended.  Godwit's own figures of that epoch are complete by then, so this is told beside them,
about once a second and whenever it has changed.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["offsets_behind", "rows_held_back", "source_figures", "sources_of", "with_sources"]


def sources_of(query: StreamingQuery) -> dict[str, Any] | None:
    """Say how far behind the sources a query is, as plain values; ``None`` before Spark knows.

    Returns
    -------
    dict
        ``batchId`` (the micro-batch that Spark noted last) and ``sources``: for each of them
        `source_figures`.
    """
    progress = query.lastProgress
    if progress is None:
        return None
    return {
        "batchId": progress["batchId"],
        "sources": source_figures(progress["sources"]),
    }


def rows_held_back(query: StreamingQuery) -> int | None:
    """Count the rows that sources had for the last micro-batch that Spark noted, and held back.

    An offset counts as a row, which Kafka's are.

    Returns
    -------
    int
        ``None`` before Spark knows, and where no source tells what it has (files do not).
    """
    progress = query.lastProgress
    sources = progress["sources"] if progress else ()
    told = [offsets_behind(s.get("endOffset"), s.get("latestOffset")) for s in sources]
    known = [count for count in told if count is not None]
    return sum(known) if known else None


def with_sources(progress: Iterable[dict[str, Any]], query: StreamingQuery) -> list[dict[str, Any]]:
    """Add to epochs' figures what Spark has noted of their micro-batches' sources, as it is."""
    sources = {p["batchId"]: p["sources"] for p in query.recentProgress}
    return [
        {**made, "sources": sources[made["batchId"]]} if made["batchId"] in sources else made
        for made in progress
    ]


def source_figures(sources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Say how far behind each source a query is.

    Parameters
    ----------
    sources
        As in Spark's ``StreamingQueryProgress.sources``.

    Returns
    -------
    list of dict
        ``description``, ``inputRowsPerSecond``, ``processedRowsPerSecond`` (``None`` where Spark
        has no number), ``behind`` (offsets that the source has and no micro-batch has covered;
        ``None`` where it does not tell) and ``metrics``, which the source gives itself: name →
        value, such as Kafka's ``maxOffsetsBehindLatest``.
    """
    return [
        {
            "description": str(source.get("description", "")),
            "inputRowsPerSecond": _finite(source.get("inputRowsPerSecond")),
            "processedRowsPerSecond": _finite(source.get("processedRowsPerSecond")),
            "behind": offsets_behind(source.get("endOffset"), source.get("latestOffset")),
            "metrics": {str(k): str(v) for k, v in (source.get("metrics") or {}).items()},
        }
        for source in sources
    ]


def offsets_behind(end: Any, latest: Any) -> int | None:
    """Count the offsets between two, of any source whose offsets are numbers, or maps of numbers.

    Parameters
    ----------
    end, latest
        Where the last micro-batch ended, and what the source has: JSON values, or their text.

    Examples
    --------
    >>> offsets_behind('{"flights": {"0": 5, "1": 7}}', {"flights": {"0": 9, "1": 7, "2": 3}})
    4
    >>> offsets_behind(5, None) is None
    True
    """
    end, latest = _parsed(end), _parsed(latest)
    if isinstance(end, dict) and isinstance(latest, dict):
        told = [offsets_behind(end[key], latest[key]) for key in end.keys() & latest.keys()]
        known = [count for count in told if count is not None]
        return sum(known) if known else None
    if _is_number(end) and _is_number(latest):
        return max(0, int(latest) - int(end))
    return None


def _parsed(value: Any) -> Any:
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _finite(value: Any) -> float | None:
    return float(value) if _is_number(value) else None
