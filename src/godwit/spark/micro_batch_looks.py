"""Arrival of a micro-batch's rows, from what Spark's logs and progress say of it.

A file's rows arrive when it was written, which Spark's log of a file source has with every file.
Of other sources Spark's progress has the newest offset at each micro-batch; it is available when
the next one begins, so the backlog of rows is known by the time at which they are read.

While there are no rows Spark looks at its sources again and again and says nothing of it.  A gap
between two micro-batches that is longer than that takes it was such a time, and its last look was
the one before the trigger: whatever came, came since.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from godwit.engine.cluster import SourceLook
from godwit.runtime.pending_files import parse_file_log
from godwit.runtime.settings import known_interval_s
from godwit.spark.progress import offsets_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.checkpoint.records import BatchRef
    from godwit.checkpoint.spark_log import OffsetLayout

_BETWEEN_US: Final = 500_000
"""So long after the commit of a micro-batch Spark is at its sources again, on any machine."""
_POLL_US: Final = 100_000
"""About the time from one look at the sources to the next, while they have no rows."""


class MicroBatchLooks:
    """Looks of one query of Spark's at its sources."""

    def __init__(
        self,
        offsets: OffsetLayout,
        trigger: Mapping[str, object] | None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,  # Unix time
    ) -> None:
        self._now_us = now_us
        # by Spark's number of a source: the source of the flow that reads it
        self._names = [readings[0].source if readings else "" for readings in offsets.readings]
        self._interval_us = round(known_interval_s(trigger) * 1e6)
        self._committed_us: int | None = None  # when the last micro-batch of this run was
        self._rows = 0  # it had
        self._last: tuple[int, int] | None = None  # its number, and when Spark looked for it

    def committed(self, rows: int) -> None:
        """Record the commit of the last micro-batch, and its number of rows."""
        self._committed_us, self._rows = self._now_us(), rows

    def look(self, batch: BatchRef, query: StreamingQuery | None) -> SourceLook:
        """Return the known arrival times of a micro-batch's rows."""
        at_us, arrived_us = self._now_us(), {}
        with suppress(ValueError, KeyError, TypeError, IndexError):  # in a form of another version
            at_us = 1000 * int(json.loads(batch.offsets.splitlines()[1])["batchTimestampMs"])
        with suppress(ValueError, KeyError, TypeError, IndexError):
            arrived_us = self._file_times_us(batch)
        before = {}
        if query is not None and self._last is not None and len(arrived_us) < len(self._names):
            with suppress(Exception):  # whatever Py4J raises; these are figures
                before = self._backlogs(query, *self._last)
        self._last = (batch.number, at_us)
        nothing_us: dict[str, int] = {}
        if self._committed_us is not None:
            idle_us = at_us - self._committed_us - self._interval_us
            if idle_us > _BETWEEN_US:
                nothing_us = dict.fromkeys(self._names, at_us - max(self._interval_us, _POLL_US))
        return SourceLook(at_us=at_us, nothing_us=nothing_us, before=before, arrived_us=arrived_us)

    def _file_times_us(self, batch: BatchRef) -> dict[str, list[int]]:
        """Return source → its files' modification times (Unix microseconds) in a micro-batch."""
        written: dict[str, list[int]] = {}
        for path, log in batch.sources.items():
            name = self._names[int(path.split("/")[1])]
            times = (1000 * int(file["timestamp"]) for file in parse_file_log(log))
            written.setdefault(name, []).extend(times)
        return {name: times for name, times in written.items() if times}

    def _backlogs(
        self, query: StreamingQuery, number: int, at_us: int
    ) -> dict[str, list[tuple[int, float]]]:
        """Return source → one pair: `at_us`, and the source's backlog at micro-batch `number`.

        In rows after maps, by the ratio of offsets to rows in that micro-batch. Empty if it is not
        the last one in the query's progress.
        """
        progress = query.lastProgress
        if progress is None or progress["batchId"] != number:
            return {}
        backlogs: dict[str, list[tuple[int, float]]] = {}
        taken = 0
        for name, source in zip(self._names, progress["sources"], strict=True):
            begin, end, latest = (source.get(f"{w}Offset") for w in ("start", "end", "latest"))
            taken += offsets_behind(begin, end) or 0
            behind = offsets_behind(end, latest)
            if behind is not None:
                backlogs[name] = [(at_us, behind + backlogs.get(name, [(0, 0.0)])[0][1])]
        rows_an_offset = self._rows / taken if taken else 1.0
        return {
            name: [(us, n * rows_an_offset) for us, n in points]
            for name, points in backlogs.items()
        }
