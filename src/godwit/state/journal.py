"""The journal: what happened on a checkpoint, run after run, for people and for programs.

Append-only and bounded: entries are gathered into numbered segments, ``journal/<number>.rec``, each
a framed record that is replaced as a whole while it grows, so a reader sees a segment as it was
at some moment and never half an entry.  A full segment is never touched again; of old ones, the
oldest are deleted.  Nothing depends on the journal: whatever of it is lost, damaged or late costs a
line of history and nothing else.

What an entry is: one kind and its values, such as ``{"event": {...}}`` (`Event.to_dict`),
``{"outcome": {...}}`` (`EpochOutcome.to_dict`), ``{"progress": {...}}`` (figures of an epoch, as in
``query.recentProgress``), ``{"sources": {...}}`` (how far behind the sources are) and, now and
then, ``{"load": {...}}`` (what each key group cost, packed: `LoadSummary.to_dict`).  Readers take
what they know and leave the rest.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from godwit.model.errors import GodwitError
from godwit.state.framing import decode_record, encode_record
from godwit.state.paths import JOURNAL, journal_path, number_in
from godwit.state.records import JournalSegment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.state.storage import CheckpointStorage

__all__ = ["JournalReader", "JournalWriter", "read_tail"]

_SEGMENT_BYTES = 128 * 2**10
_SEGMENTS_KEPT = 32
_LARGEST_BYTES: Final = 32 * 2**20
"""A larger segment is none of ours: an entry is a fraction of this, and a segment starts anew."""
_NUMBERS: Final = 10**11
"""A higher number is none of ours either, and none may follow it: names have no room for more."""


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
        self._numbers = sorted(_segments(storage))
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
        self._storage.write_atomic(journal_path(self._number), encode_record(segment))
        self._dirty = False
        if self._number not in self._numbers:
            self._numbers.append(self._number)
        while len(self._numbers) > _SEGMENTS_KEPT:
            self._storage.delete(journal_path(self._numbers.pop(0)))


class JournalReader:
    """Reads the end of a journal, again and again while it grows.

    What one look costs is bounded: it reads back from the end until it has enough, never more
    segments than a journal keeps; and a segment that has a successor is read once, since it does
    not change any more.

    Parameters
    ----------
    storage
        The checkpoint; a query may be running on it.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._full: dict[int, list[dict[str, Any]]] = {}

    def tail(self, count: int) -> list[dict[str, Any]]:
        """Give the last `count` entries, oldest first; a damaged segment is left out."""
        sizes = _segments(self._storage)
        latest = sorted(sizes)[-_SEGMENTS_KEPT:]
        tail: list[dict[str, Any]] = []
        full: dict[int, list[dict[str, Any]]] = {}
        for number in reversed(latest):
            if len(tail) >= count:
                break
            if number not in self._full:
                found = self._read(number) if sizes[number] <= _LARGEST_BYTES else []
            else:
                found = self._full[number]
            if number != latest[-1]:
                full[number] = found
            tail = found + tail
        self._full = full
        return tail[-count:] if count > 0 else []

    def _read(self, number: int) -> list[dict[str, Any]]:
        path = journal_path(number)
        # It may have been deleted since it was listed, or hold what is no journal.
        with suppress(GodwitError, ValueError, RecursionError):
            data = memoryview(self._storage.read(path))
            segment = decode_record(data, JournalSegment, path=path)
            return [e for e in map(json.loads, segment.entries) if isinstance(e, dict)]
        return []


def read_tail(storage: CheckpointStorage, count: int) -> list[dict[str, Any]]:
    """Read the last entries of a journal once; see `JournalReader.tail`."""
    return JournalReader(storage).tail(count)


def _segments(storage: CheckpointStorage) -> dict[int, int]:
    """Give number → size in bytes of each segment."""
    sizes = {number_in(entry.path): entry.size_bytes for entry in storage.list(JOURNAL)}
    return {n: size for n, size in sizes.items() if n is not None and n < _NUMBERS}
