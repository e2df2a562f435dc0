"""Lag of a query behind its sources, and Spark's progress of an epoch.

Spark notes a micro-batch's offsets, and what its sources say of themselves, once the micro-batch
has ended.  Its file source does not tell what it holds back, but it takes files in the order of
their times of modification and notes which ones a micro-batch took: whatever lies beside them and
is younger is pending (`PendingFiles`).

Into Spark's progress Godwit can put durations only (`SparkProgress`): Spark reads aggregates of
rows out of a plan, and metrics of a connector, and ``foreachBatch`` has neither.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
from pyarrow import fs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.checkpoint.records import BatchRef


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
    told = [offsets_behind(s.get("endOffset"), s.get("latestOffset")) for s in sources]
    known = [count for count in told if count is not None]
    return sum(known) if known else None


def add_source_figures(
    progress: Iterable[dict[str, Any]], query: StreamingQuery
) -> list[dict[str, Any]]:
    """Return epochs' progress, with Spark's ``sources`` added to that of micro-batches."""
    sources = {p["batchId"]: p["sources"] for p in query.recentProgress}
    return [
        {**made, "sources": sources[made["batchId"]]} if made["batchId"] in sources else made
        for made in progress
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
        told = [offsets_behind(end[key], latest[key]) for key in end.keys() & latest.keys()]
        known = [count for count in told if count is not None]
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

_SHARE = 50
_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 600.0
_HIDDEN = ("_", ".")
_BATCHES = 16
_BYTES_FIRST = 10.0
"""Weight of bytes against files in the estimate of rows, which decides where files are alike."""


class PendingFiles:
    """Estimates the rows of files that file sources have not read yet."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._next_s = float("-inf")
        self._pause_s = 0.0  # after a failure
        self._taken: deque[tuple[int, int, int]] = deque(maxlen=_BATCHES)
        """Rows, bytes and files of the last micro-batches."""

    def rows_after(self, batch: BatchRef, rows: int) -> int | None:
        """Estimate the rows in files that the last micro-batch did not read.

        `batch`: the micro-batch in Spark's logs. `rows`: the rows that it read. ``None`` if no
        estimate is due or possible now, or not all sources are files.
        """
        began_s = self._now_s()
        if began_s < self._next_s or not _files_only(batch):
            return None
        newest_ms: dict[str, int] = {}
        names: set[str] = set()
        for entry in (entry for log in batch.sources.values() for entry in parse_file_log(log)):
            directory, _, name = str(entry["path"]).rpartition("/")
            newest_ms[directory] = max(newest_ms.get(directory, 0), int(entry["timestamp"]))
            names.add(unquote(name))
        if not names:
            return None
        taken_bytes = pending_bytes = pending = 0
        try:
            for directory, at_ms in newest_ms.items():
                for info in _visible_files(directory):
                    if info.base_name in names:
                        taken_bytes += info.size
                    elif info.mtime_ns // 10**6 > at_ms:
                        pending_bytes += info.size
                        pending += 1
        except Exception as error:  # noqa: BLE001  a store that cannot be reached, or not from here
            self._postpone(error)
            return None
        self._pause_s = 0.0
        ended_s = self._now_s()
        self._next_s = ended_s + _SHARE * (ended_s - began_s)
        self._taken.append((rows, taken_bytes, len(names)))
        return self._rows_of(pending_bytes, pending)

    def _postpone(self, error: Exception) -> None:
        """Postpone the next estimate after an error; log the first failure after a success."""
        if not self._pause_s:
            _logger.warning(
                "Files that lie in the sources' directories cannot be listed, so nobody knows how "
                "far behind the sources are: %s. It is tried again every now and then.",
                str(error).partition("\n")[0],
            )
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._next_s = self._now_s() + self._pause_s

    def _rows_of(self, size_bytes: int, files: int) -> int:
        """Estimate the rows of files from their bytes and number, by least squares."""
        rows, sizes, counts = np.array(self._taken, np.float64).T
        scale = np.array([_BYTES_FIRST / max(sizes.mean(), 1.0), 1.0 / max(counts.mean(), 1.0)])
        weight = 1.0 / np.maximum(rows, 1.0)
        columns = np.stack([sizes, counts], axis=1) * scale * weight[:, None]
        per_unit, *_ = np.linalg.lstsq(columns, rows * weight, rcond=1e-3)
        return max(0, round(float((per_unit * scale) @ [size_bytes, files])))


def _files_only(batch: BatchRef) -> bool:
    """Return whether all sources of a micro-batch are file sources, by their offsets."""
    offsets = batch.offsets.splitlines()[2:]  # after its version and its settings
    return all(line.startswith(b'{"logOffset"') for line in offsets)


def parse_file_log(log: bytes) -> list[dict[str, Any]]:
    """Return the files in one entry of a file source's log."""
    return [json.loads(line) for line in log.splitlines()[1:]]


def _visible_files(directory: str) -> list[fs.FileInfo]:
    """Return the files of a directory that Spark would read."""
    store, path = fs.FileSystem.from_uri(directory)
    listed = store.get_file_info(fs.FileSelector(path))
    return [info for info in listed if info.is_file and not info.base_name.startswith(_HIDDEN)]


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
