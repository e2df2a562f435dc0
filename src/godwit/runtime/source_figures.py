"""Figures of sources: what each epoch read of them, and how far behind a query is.

Godwit's own sources report their lag (`SourceProgress`).  Spark's file source does not: it reads
files in the order of their times of modification, and logs which files a micro-batch read; younger
files beside them are pending (`PendingFiles`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np
from pyarrow import fs

from godwit.engine.cluster import SourceLook

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.checkpoint.records import BatchRef
    from godwit.engine.cluster import SourceBatch
    from godwit.engine.source_positions import SourcePositions
    from godwit.sources.source import Lag


_LAG_SHARE: Final = 20
"""The lag of the sources is asked for in as small a part of the time."""
_LAG_PAUSE_S: Final = 0.05
_TOLD: Final = ("name", "description", "inputRowsPerSecond", "processedRowsPerSecond")


def now_us() -> int:
    """Return Unix time in microseconds: the clock of arrivals."""
    return time.time_ns() // 1000


class SourceProgress:
    """Figures of the sources of one run, in the words of Spark's progress.

    `record_epoch` and `measure_lag` ask the sources, so they are called on the thread that calls
    these; figures may be read on any thread.
    """

    def __init__(self, positions: SourcePositions, num_recent: int) -> None:
        self._positions = positions
        self._lock = threading.Lock()
        self._lags: dict[str, Lag] = {}
        # Unix time of the lags, if they are of the position of now; and of the last look at the
        # sources that found no rows
        self._lags_us: int | None = None
        self._nothing_us: int | None = None
        self._kept: deque[tuple[int, list[dict[str, Any]], float]] = deque(maxlen=num_recent)
        self._noted_s = self._lag_s = time.monotonic()

    def record_epoch(
        self, number: int, batch: SourceBatch[Any], began_s: float, ended_s: float
    ) -> None:
        """Record the sources' offsets, rows and rates of an epoch.

        `number`: its key in `recorded`.
        """
        since_s, self._noted_s = max(ended_s - self._noted_s, 1e-9), ended_s
        self._lags_us = None
        self.measure_lag()
        before = self._positions.described(batch.begins)
        after = self._positions.described(batch.ref.positions)
        figures: list[dict[str, Any]] = []
        for name, source in self._positions.sources.items():
            count = batch.rows_of(name)
            figures.append(
                {
                    "name": name,
                    "description": source.identity,
                    "startOffset": before.get(name),
                    "endOffset": after.get(name),
                    "numInputRows": count,
                    "inputRowsPerSecond": None if count is None else count / since_s,
                    "processedRowsPerSecond": None
                    if count is None
                    else count / max(ended_s - began_s, 1e-9),
                    "metrics": _lag_as_text(self._lags.get(name)),
                }
            )
        with self._lock:
            self._kept.append((number, figures, (ended_s - began_s) * 1e3))

    def measure_lag(self) -> None:
        """Measure the sources' lag, unless it was measured recently."""
        now_s = time.monotonic()
        if now_s < self._lag_s:
            return
        self._lags_us = now_us()
        self._lags = self._positions.lags()
        ended_s = time.monotonic()
        self._lag_s = ended_s + max(_LAG_SHARE * (ended_s - now_s), _LAG_PAUSE_S)

    def backlog_without(self, planned: SourceBatch[Any]) -> int | None:
        """Return the sources' backlog in rows without those of a batch; ``None`` if unknown.

        It is known if the lag was measured since the last epoch.
        """
        had, rows = self.rows_held_back(), planned.split_rows
        if self._lags_us is None or had is None or rows is None:
            return None
        return max(had - rows, 0)

    def record_no_rows(self) -> None:
        """Record that the sources have no rows now."""
        self._nothing_us = now_us()

    def observe(self, planned: SourceBatch[Any], asked_us: int) -> SourceLook:
        """Return the arrival times of a batch's rows, estimated from the polls of the sources.

        `asked_us`: time of the last poll.
        """
        at_us, names = self._lags_us, self._positions.sources
        return SourceLook(
            at_us=asked_us,
            nothing_us={} if self._nothing_us is None else dict.fromkeys(names, self._nothing_us),
            before={
                name: ((at_us, lag.rows),)
                for name, lag in self._lags.items()
                if at_us is not None and lag.rows is not None
            },
            rows={name: n for name in names if (n := planned.rows_of(name)) is not None},
        )

    @property
    def last_number(self) -> int | None:
        """Number of the last recorded epoch; ``None`` before the first."""
        with self._lock:
            return self._kept[-1][0] if self._kept else None

    def sources(self) -> list[dict[str, Any]]:
        """Return lag and rates of each source, as of the last recorded epoch."""
        with self._lock:
            figures = self._kept[-1][1] if self._kept else []
        lags = self._lags
        return [
            {
                **{key: figure[key] for key in _TOLD},
                "behind": lags[figure["name"]].rows if figure["name"] in lags else None,
                "metrics": _lag_as_text(lags.get(figure["name"])),
            }
            for figure in figures
        ]

    def rows_held_back(self) -> int | None:
        """Return the sources' backlog in rows; ``None`` if no source reports it."""
        known = [lag.rows for lag in self._lags.values() if lag.rows is not None]
        return sum(known) if known else None

    def recorded(self) -> dict[int, tuple[list[dict[str, Any]], float]]:
        """Return epoch number → figures of each source, and total milliseconds of the epoch."""
        with self._lock:
            return {number: (figures, took_ms) for number, figures, took_ms in self._kept}


def _lag_as_text(lag: Lag | None) -> dict[str, str]:
    """Return a source's lag as text, in the fields of Spark's progress."""
    if lag is None:
        return {}
    figures = {"lagRows": lag.rows, "lagBytes": lag.size_bytes, "oldestUs": lag.oldest_us}
    return {name: str(value) for name, value in figures.items() if value is not None}


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
        self._past_batches: deque[tuple[int, int, int]] = deque(maxlen=_BATCHES)
        """Rows, bytes and files of the last micro-batches."""

    def estimate_rows(self, batch: BatchRef, rows: int) -> int | None:
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
        read_bytes = pending_bytes = pending = 0
        try:
            for directory, at_ms in newest_ms.items():
                for info in _visible_files(directory):
                    if info.base_name in names:
                        read_bytes += info.size
                    elif info.mtime_ns // 10**6 > at_ms:
                        pending_bytes += info.size
                        pending += 1
        except Exception as error:  # noqa: BLE001  a store that cannot be reached, or not from here
            self._postpone(error)
            return None
        self._pause_s = 0.0
        ended_s = self._now_s()
        self._next_s = ended_s + _SHARE * (ended_s - began_s)
        self._past_batches.append((rows, read_bytes, len(names)))
        return self._fit_rows(pending_bytes, pending)

    def _postpone(self, error: Exception) -> None:
        """Postpone the next estimate after an error; log the first failure after a success."""
        if not self._pause_s:
            _logger.warning(
                "Files in the directories of the sources cannot be listed, so the lag of the "
                "sources is unknown: %s. Godwit tries again from time to time.",
                str(error).partition("\n")[0],
            )
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._next_s = self._now_s() + self._pause_s

    def _fit_rows(self, size_bytes: int, files: int) -> int:
        """Estimate the rows of files from their bytes and number, by least squares."""
        rows, sizes, counts = np.array(self._past_batches, np.float64).T
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
