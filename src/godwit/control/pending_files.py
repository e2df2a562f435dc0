"""Backlog of file sources: files that Spark's micro-batches have not read yet.

Spark's file source does not report its backlog. It reads files in the order of their times of
modification, and logs which files a micro-batch read: younger files beside them are pending.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
from pyarrow import fs

from godwit.runtime.source_figures import parse_file_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.checkpoint.records import BatchRef


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


def _visible_files(directory: str) -> list[fs.FileInfo]:
    """Return the files of a directory that Spark would read."""
    store, path = fs.FileSystem.from_uri(directory)
    listed = store.get_file_info(fs.FileSelector(path))
    return [info for info in listed if info.is_file and not info.base_name.startswith(_HIDDEN)]
