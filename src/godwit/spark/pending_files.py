"""Rows of files that lie there and that no micro-batch has taken yet.

Problem: Spark's file source does not tell what it holds back, so a stream that cannot keep up looks
like one that has just so much to do.

The idea: a file source takes files in the order of their times of modification, and notes in its
log which ones a micro-batch took.  Whatever lies beside them and is younger is still to be taken.
A file counts as many rows as those of the micro-batch had on average.

Invariant: nobody waits for it but the controller's thread, of whose time listing directories may
take a fiftieth; where they cannot be listed, nothing is known, and nothing is tried again.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from pyarrow import fs

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.state.records import BatchRef

__all__ = ["PendingFiles"]

_SHARE = 50
_HIDDEN = ("_", ".")


class PendingFiles:
    """Counts what file sources still have to give.

    Parameters
    ----------
    now_s
        A clock that never runs backwards, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._next_s = float("-inf")
        self._given_up = False

    def rows_after(self, batch: BatchRef, rows: int) -> int | None:
        """Count the rows that lie there and that a micro-batch, the last one, did not take.

        Parameters
        ----------
        batch
            What Spark's logs say of it.
        rows
            What it took.

        Returns
        -------
        int
            ``None`` where that is not known (now), and where not all sources are files.
        """
        taken = [entry for log in batch.sources.values() for entry in _entries(log)]
        if not taken or not _files_only(batch) or self._given_up or self._now_s() < self._next_s:
            return None
        began_s = self._now_s()
        newest_ms: dict[str, int] = {}
        for entry in taken:
            directory = str(entry["path"]).rpartition("/")[0]
            newest_ms[directory] = max(newest_ms.get(directory, 0), int(entry["timestamp"]))
        try:
            pending = sum(_younger(d, at_ms) for d, at_ms in newest_ms.items())
        except Exception:  # noqa: BLE001  a store that is reached in another way, or not from here
            self._given_up = True
            return None
        ended_s = self._now_s()
        self._next_s = ended_s + _SHARE * (ended_s - began_s)
        return round(pending * rows / len(taken))


def _files_only(batch: BatchRef) -> bool:
    """Whether all offsets are numbers of entries of the source's own log, as those of files are."""
    offsets = batch.offsets.splitlines()[2:]  # after its version and its settings
    return all(line.startswith(b'{"logOffset"') for line in offsets)


def _entries(log: bytes) -> list[dict[str, Any]]:
    """Files that one entry of a source's log names: its first line is the version."""
    return [json.loads(line) for line in log.splitlines()[1:]]


def _younger(directory: str, than_ms: int) -> int:
    """Count the files of a directory that are younger."""
    store, path = fs.FileSystem.from_uri(directory)
    listed = store.get_file_info(fs.FileSelector(path))
    return sum(
        info.is_file and not info.base_name.startswith(_HIDDEN) and info.mtime_ns // 10**6 > than_ms
        for info in listed
    )
