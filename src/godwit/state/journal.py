"""The journal: what happened on a checkpoint, run after run, for people and for programs.

Append-only and bounded: entries are gathered into numbered segments, ``journal/<number>.rec``, each
a framed record that is replaced as a whole while it grows, so a reader sees a segment as it was
at some moment and never half an entry.  A full segment is never touched again; of old ones, the
oldest are deleted.  Nothing depends on the journal: whatever of it is lost, damaged or late costs a
line of history and nothing else.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from godwit.model.errors import GodwitError
from godwit.state.framing import decode_record, encode_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.state.storage import CheckpointStorage

__all__ = ["JOURNAL", "JournalSegment", "JournalWriter", "read_tail"]

JOURNAL: Final = "journal"

_SEGMENT_BYTES = 128 * 2**10
_SEGMENTS_KEPT = 32
_NAME = re.compile(rf"{JOURNAL}/(\d{{12}})\.rec")


class JournalSegment(msgspec.Struct, frozen=True, kw_only=True):
    """Some entries that follow each other.

    Attributes
    ----------
    number
        Of the segment.
    run_id
        The run that wrote it.
    entries
        JSON objects, oldest first.
    """

    number: int
    run_id: str
    entries: tuple[bytes, ...]


class JournalWriter:
    """Appends to the journal of one checkpoint; entries become durable with `flush`.

    Parameters
    ----------
    storage
        The checkpoint, which the caller owns.
    run_id
        The run that writes.
    """

    def __init__(self, storage: CheckpointStorage, run_id: str) -> None:
        self._storage, self._run_id = storage, run_id
        self._numbers = _segments(storage)
        self._number = max(self._numbers, default=-1) + 1
        self._entries: list[bytes] = []
        self._size_bytes = 0
        self._dirty = False

    def add(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append an entry: plain values under a kind, such as ``"event"`` or ``"outcome"``."""
        entry = json.dumps({kind: values}, default=str, ensure_ascii=True).encode()
        if self._entries and self._size_bytes + len(entry) > _SEGMENT_BYTES:
            self.flush()
            self._number += 1
            self._entries, self._size_bytes = [], 0
        self._entries.append(entry)
        self._size_bytes += len(entry)
        self._dirty = True

    def flush(self) -> None:
        """Write what has come since the last time, and delete what is too old."""
        if not self._dirty:
            return
        segment = JournalSegment(
            number=self._number, run_id=self._run_id, entries=tuple(self._entries)
        )
        self._storage.write_atomic(_path(self._number), encode_record(segment))
        self._dirty = False
        if self._number not in self._numbers:
            self._numbers.append(self._number)
        while len(self._numbers) > _SEGMENTS_KEPT:
            self._storage.delete(_path(self._numbers.pop(0)))


def read_tail(storage: CheckpointStorage, count: int) -> list[dict[str, Any]]:
    """Read the last entries of a journal, oldest first; a damaged segment is left out.

    Parameters
    ----------
    storage
        The checkpoint; a query may be running on it.
    count
        How many entries, at most.
    """
    tail: list[dict[str, Any]] = []
    for number in reversed(_segments(storage)):
        found: list[dict[str, Any]] = []
        # It may have been deleted since it was listed.
        with suppress(GodwitError, ValueError, RecursionError):
            data = memoryview(storage.read(_path(number)))
            segment = decode_record(data, JournalSegment, path=_path(number))
            found = [e for e in map(json.loads, segment.entries) if isinstance(e, dict)]
        tail = found + tail
        if len(tail) >= count:
            break
    return tail[-count:] if count > 0 else []


def _segments(storage: CheckpointStorage) -> list[int]:
    names = (_NAME.fullmatch(entry.path) for entry in storage.list(JOURNAL))
    return sorted(int(name[1]) for name in names if name is not None)


def _path(number: int) -> str:
    return f"{JOURNAL}/{number:012d}.rec"
