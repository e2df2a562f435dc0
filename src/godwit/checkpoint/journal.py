"""The journal: events and figures of all runs on a checkpoint, for users and programs.

Append-only and bounded: entries are gathered into numbered segments, ``journal/<number>.rec``, each
a framed record that is replaced as a whole while it grows, so a reader never sees half an entry.  A
full segment is never touched again; of old ones, the oldest are deleted.  Nothing depends on the
journal: lost, damaged or late entries cost only history.

An entry is one kind and its values, such as ``{"event": {...}}`` (`Event.to_dict`), ``{"progress":
{...}}`` (figures of an epoch, as in ``query.recentProgress``), ``{"sources": {...}}`` (lag of the
sources) and, periodically, ``{"load": {...}}`` (`LoadSummary.to_dict`),
``{"stream": {...}}`` (figures of the same epochs, `godwit.engine.run_record`), ``{"flow":
{...}}`` and ``{"placement": {...}}`` (the graph, and the places of key groups,
`godwit.engine.run_record`), and ``{"controller": {...}}`` (the controller's state for the
next run).  Readers ignore unknown kinds.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from godwit.checkpoint.framing import decode_record, encode_record
from godwit.checkpoint.records import JOURNAL, JournalSegment, journal_path, number_in
from godwit.model.errors import GodwitError
from godwit.model.secrets import hidden_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from godwit.checkpoint.storage import CheckpointStorage

_T = TypeVar("_T")
_logger = logging.getLogger("godwit")

_SEGMENT_BYTES = 128 * 2**10
_SEGMENTS_KEPT = 32
_SEGMENTS_UNWRITTEN = 8
"""Segments that are kept in memory while the storage is away."""
_LARGEST_BYTES: Final = 32 * 2**20
"""Maximum size of a segment: an entry is a fraction of this, and a full segment is closed."""
_MOST_BYTES: Final = 2 * _SEGMENTS_KEPT * _SEGMENT_BYTES
_MOST_ENTRIES: Final = 20_000
"""Limits on reading an unknown journal: bytes of its last segments, and entries of each."""
_NUMBERS: Final = 10**11
"""Maximum number of a segment: names have no more digits."""


class _Segment:
    """Entries of one journal file, which is rewritten as it grows."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.size_bytes = 0
        self.number: int | None = None
        self.failures = 0
        self.dirty = False

    def add(self, entry: bytes) -> None:
        """Append an entry, one JSON object, to the segment."""
        self.entries.append(entry)
        self.size_bytes += len(entry)
        self.dirty = True


class JournalWriter:
    """Appends to the journal of one checkpoint; entries become durable with `flush`.

    Errors of its storage do not reach the caller: unwritten entries are kept,
    within a bound, and written with a later `flush`.  An outage is a warning in the log when it
    begins, and an entry ``{"journal": {"lost": n}}`` where entries had to be dropped meanwhile.
    """

    def __init__(self, storage: CheckpointStorage, run_id: str) -> None:
        self._storage, self._run_id = storage, run_id
        self._segment_numbers: list[int] | None = (
            None  # of the segments that are there; None: not listed
        )
        self._segments: deque[_Segment] = deque([_Segment()])  # the last one grows
        self._num_lost = 0
        self._is_failing = False

    def add(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append an entry: plain values under a kind, such as ``"event"`` or ``"progress"``."""
        try:
            entry = json.dumps(
                {kind: hidden_values(values)}, default=str, ensure_ascii=True
            ).encode()
        except (TypeError, ValueError, RecursionError) as error:
            self._warn_not_written(f"an entry of kind {kind!r} is left out", error)
            self._num_lost += 1
            return
        latest = self._segments[-1]
        if latest.entries and latest.size_bytes + len(entry) > _SEGMENT_BYTES:
            self.flush()
            self._segments.append(latest := _Segment())
            while len(self._segments) > _SEGMENTS_UNWRITTEN:
                self._num_lost += len(self._segments.popleft().entries)
        latest.add(entry)

    def flush(self) -> None:
        """Write new entries to the checkpoint, and delete the oldest segments."""
        try:
            self._write_segments()
        except Exception as error:  # noqa: BLE001  history is not worth a query
            if not self._is_failing:
                self._is_failing = True
                self._warn_not_written(
                    "it cannot be written now, and is tried again each second", error
                )
            return
        self._is_failing = False

    def _write_segments(self) -> None:
        """Write the segments that have new entries, and forget those that are full."""
        while self._segments:
            segment = self._segments[0]
            if segment.dirty:
                self._write_segment(segment)
            if len(self._segments) == 1:
                break
            self._segments.popleft()
        if self._num_lost:
            self._segments[0].add(json.dumps({"journal": {"lost": self._num_lost}}).encode())
            self._num_lost = 0
            self._write_segment(self._segments[0])
        while self._segment_numbers is not None and len(self._segment_numbers) > _SEGMENTS_KEPT:
            self._storage.delete(journal_path(self._segment_numbers[0]))
            self._segment_numbers.pop(0)

    def _write_segment(self, segment: _Segment) -> None:
        """Write one segment to its file; raise if that fails, and a later flush tries again.

        After two failures under one number, the segment gets a number above all others: a file
        in the way of its file stays there.
        """
        if self._segment_numbers is None:
            self._segment_numbers = sorted(_segment_sizes(self._storage))
        if segment.number is None or segment.failures > 1:  # an obstructing file may stay
            highest = -1 if segment.number is None else segment.number
            segment.number = max([highest, *self._segment_numbers]) + 1
            segment.failures = 0
        record = JournalSegment(
            number=segment.number, run_id=self._run_id, entries=tuple(segment.entries)
        )
        segment.failures += 1
        self._storage.write_atomic(journal_path(segment.number), encode_record(record))
        segment.failures, segment.dirty = 0, False
        if segment.number not in self._segment_numbers:
            self._segment_numbers.append(segment.number)

    def _warn_not_written(self, step: str, error: Exception) -> None:
        """Log a warning that the journal could not be written; `step`: the step that failed."""
        with suppress(Exception):  # a log handler of the user's
            _logger.warning("The journal of %s: %s: %s", self._storage.uri, step, error)


class JournalReader:
    """Reads the end of a growing journal repeatedly.

    The cost of one poll is bounded: it reads back from the end until it has enough, never more
    segments than a journal keeps; and a segment that has a successor is read once, since it does
    not change any more.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._complete_segments: dict[int, list[dict[str, Any]]] = {}
        # where `new_entries` goes on: segment, its size and run, and number of entries given of it
        self._reading_place: tuple[int, int, str, int] = (-1, -1, "", 0)

    def tail(self, count: int) -> list[dict[str, Any]]:
        """Return the last `count` entries, oldest first; damaged segments are skipped."""
        sizes = _segment_sizes(self._storage)
        latest = sorted(sizes)[-_SEGMENTS_KEPT:]
        tail: list[dict[str, Any]] = []
        full: dict[int, list[dict[str, Any]]] = {}
        for number in reversed(latest):
            if len(tail) >= count:
                break
            entries = self._complete_segments.get(number)
            if entries is None:
                entries = _parse_entries(self._find_segment(number, sizes[number]))
            if number != latest[-1]:
                full[number] = entries
            tail = entries + tail
        self._complete_segments = full
        return tail[-count:] if count > 0 else []

    def new_entries(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the entries added since the last call, oldest first, a segment at a time.

        Only one segment is in memory at a time. Damaged segments are skipped. If the journal was
        started again, it is read from its beginning.
        """
        sizes = _segment_sizes(self._storage)
        latest = sorted(sizes)[-_SEGMENTS_KEPT:]
        while latest[1:] and sum(sizes[number] for number in latest) > _MOST_BYTES:
            latest.pop(0)
        if latest and latest[-1] < self._reading_place[0]:
            self._reading_place = (-1, -1, "", 0)
        for number in latest:
            last, size, run, num_returned = self._reading_place
            if number < last or (number == last and sizes[number] == size):
                continue
            segment = self._find_segment(number, sizes[number])
            if segment is None:
                continue
            entries = _parse_entries(segment)
            if number != last or segment.run_id != run or len(entries) < num_returned:
                num_returned = 0
            self._reading_place = (number, sizes[number], segment.run_id, len(entries))
            yield entries[max(num_returned, len(entries) - _MOST_ENTRIES) :]

    def entries_of_run(self, run: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of one run, oldest first; damaged segments are skipped."""
        sizes = _segment_sizes(self._storage)
        for number in sorted(sizes)[-_SEGMENTS_KEPT:]:
            segment = self._find_segment(number, sizes[number])
            # A journal's runs are named after their query, too.
            if segment is not None and segment.run_id.rpartition("-")[2] == run:
                yield from _parse_entries(segment)

    def _find_segment(self, number: int, size_bytes: int) -> JournalSegment | None:
        """Return segment `number` of the journal; ``None`` if it is deleted or none of ours."""
        if size_bytes > _LARGEST_BYTES:
            return None
        path = journal_path(number)
        # It may have been deleted since it was listed, or be another file.
        with suppress(GodwitError):
            data = memoryview(self._storage.read(path))
            return decode_record(data, JournalSegment, path=path)
        return None


def read_tail(storage: CheckpointStorage, count: int) -> list[dict[str, Any]]:
    """Read the last entries of a journal once; see `JournalReader.tail`."""
    return JournalReader(storage).tail(count)


def read_last(
    storage: CheckpointStorage, count: int, kind: str, decode: Callable[[Any], _T | None]
) -> list[_T]:
    """Decode the journal's last entries of kind `kind`, for a run that continues from them.

    If the journal cannot be read, a warning is logged and the history is lost.

    `count`: number of entries, of all kinds, to look through. `decode`: returns the value of an
    entry; may raise, or return ``None`` to skip it.
    """
    values: list[_T] = []
    fault: object = None
    left_out = 0
    try:
        entries = read_tail(storage, count)
    except Exception as error:  # noqa: BLE001  nothing depends on the journal
        entries, fault = [], error
    for entry in entries:
        if kind not in entry:
            continue
        try:
            value = decode(entry[kind])
        except Exception as error:  # noqa: BLE001  of another version, damaged, or of another program
            left_out, fault = left_out + 1, error
        else:
            values += [] if value is None else [value]
    if fault is not None:
        with suppress(Exception):
            _logger.warning(
                "The journal of %s is damaged or of another version; its entries of kind %r are "
                "left out (%d times): %s",
                storage.uri,
                kind,
                left_out,
                fault,
            )
    return values


def _parse_entries(segment: JournalSegment | None) -> list[dict[str, Any]]:
    """Parse the entries of a journal segment; those that are no JSON objects are skipped."""
    entries = []
    for text in () if segment is None else segment.entries:
        with suppress(ValueError, RecursionError):
            entry = json.loads(text)
            entries += [entry] if isinstance(entry, dict) else []
    return entries


def _segment_sizes(storage: CheckpointStorage) -> dict[int, int]:
    """Return number → size in bytes of each segment of the journal."""
    sizes = {number_in(path): size for path, size in storage.list(JOURNAL).items()}
    return {n: size for n, size in sizes.items() if n is not None and n < _NUMBERS}
