"""Rows of files that lie there and that no micro-batch has taken yet.

Problem: Spark's file source does not tell what it holds back, so a stream that cannot keep up looks
like one that has just so much to do.

The idea: a file source takes files in the order of their times of modification, and notes in its
log which ones a micro-batch took.  Whatever lies beside them and is younger is still to be taken.
How many rows that is follows from bytes and files, by what the last micro-batches had of each: a
file has something of its own, and each row some bytes.

Invariant: nobody waits for it but the controller's thread, of whose time listing directories may
take a fiftieth; where they cannot be listed, nothing is known, and that is tried again ever more
rarely.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
from pyarrow import fs

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.checkpoint.records import BatchRef

__all__ = ["PendingFiles"]

_logger = logging.getLogger("godwit")

_SHARE = 50
_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 600.0
_HIDDEN = ("_", ".")
_BATCHES = 16
_BYTES_FIRST = 10.0
"""Where all files are alike, rows are put down to bytes and not to files, by so much."""


class PendingFiles:
    """Counts what file sources still have to give.

    now_s: A clock that never runs backwards, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._next_s = float("-inf")
        self._pause_s = 0.0  # after a failure
        self._taken: deque[tuple[int, int, int]] = deque(maxlen=_BATCHES)
        """Rows, bytes and files of the last micro-batches."""

    def rows_after(self, batch: BatchRef, rows: int) -> int | None:
        """Count the rows that lie there and that a micro-batch, the last one, did not take.

        batch: What Spark's logs say of it.
        rows: What it took.

        Returns: ``None`` where that is not known (now), and where not all sources are files.
        """
        began_s = self._now_s()
        if began_s < self._next_s or not _files_only(batch):
            return None
        newest_ms: dict[str, int] = {}
        names: set[str] = set()
        for entry in (entry for log in batch.sources.values() for entry in _entries(log)):
            directory, _, name = str(entry["path"]).rpartition("/")
            newest_ms[directory] = max(newest_ms.get(directory, 0), int(entry["timestamp"]))
            names.add(unquote(name))
        if not names:
            return None
        taken_bytes = pending_bytes = pending = 0
        try:
            for directory, at_ms in newest_ms.items():
                for info in _files(directory):
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
        """Look again later, and tell of the first failure after a success."""
        if not self._pause_s:
            _logger.warning(
                "Files that lie in the sources' directories cannot be listed, so nobody knows how "
                "far behind the sources are: %s. It is tried again every now and then.",
                str(error).partition("\n")[0],
            )
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._next_s = self._now_s() + self._pause_s

    def _rows_of(self, size_bytes: int, files: int) -> int:
        """Say how many rows so many bytes in so many files are, by least squares."""
        rows, sizes, counts = np.array(self._taken, np.float64).T
        scale = np.array([_BYTES_FIRST / max(sizes.mean(), 1.0), 1.0 / max(counts.mean(), 1.0)])
        weight = 1.0 / np.maximum(rows, 1.0)
        columns = np.stack([sizes, counts], axis=1) * scale * weight[:, None]
        per_unit, *_ = np.linalg.lstsq(columns, rows * weight, rcond=1e-3)
        return max(0, round(float((per_unit * scale) @ [size_bytes, files])))


def _files_only(batch: BatchRef) -> bool:
    """Whether all offsets are numbers of entries of the source's own log, as those of files are."""
    offsets = batch.offsets.splitlines()[2:]  # after its version and its settings
    return all(line.startswith(b'{"logOffset"') for line in offsets)


def _entries(log: bytes) -> list[dict[str, Any]]:
    """Files that one entry of a source's log names: its first line is the version."""
    return [json.loads(line) for line in log.splitlines()[1:]]


def _files(directory: str) -> list[fs.FileInfo]:
    """Files of a directory that Spark would read."""
    store, path = fs.FileSystem.from_uri(directory)
    listed = store.get_file_info(fs.FileSelector(path))
    return [info for info in listed if info.is_file and not info.base_name.startswith(_HIDDEN)]
