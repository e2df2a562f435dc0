"""Spark's event logs as a stream of lines.

One file, or a directory ``eventlog_v2_<application>`` of numbered ones; plain or compressed by
zstd (the default since Spark 4.0), or packed with gzip by hand; complete, still being written, or
cut short by a crash.  The codec is told by the first bytes, not by the name.

The invariant: memory does not grow with the log.  Files are read in pieces, and no line is believed
to be larger than it may be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.fs

from godwit.model.errors import GodwitError
from godwit.model.naming import listing
from godwit.model.wording import human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EventLog", "EventLogError", "open_event_log"]

_PIECE: Final = 2**20
# What is decompressed is lost from the piece on in which the file is cut short.
_SMALL_PIECE: Final = 2**14
_LINE_BYTES: Final = 64 * 2**20
_ROLLED = re.compile(r"events_(\d{1,9})_.+")
_LOGS = re.compile(r"(eventlog_v2_|local-|app-|application_|spark-).+")
_COMPRESSED: Final = {"zstd": b"\x28\xb5\x2f\xfd", "gzip": b"\x1f\x8b"}
# In a framing of Spark's own, which no library for Python reads.
_REFUSED: Final = {"lz4": b"LZ4Block", "snappy": b"\x82SNAPPY\x00", "LZF": b"ZV"}
_DAMAGE = (OSError, pa.ArrowException, EOFError, ValueError)


class EventLogError(GodwitError):
    """An event log of Spark cannot be read, or says nothing of what is asked."""


@dataclass(slots=True, kw_only=True)
class EventLog:
    """One application's log."""

    # where it is, and the paths there, in order
    filesystem: Any
    files: tuple[str, ...]
    unfinished: bool  # whether the application was still running when it was written, by its name
    # what is wrong with the log, in sentences; complete once all lines are read
    notes: list[str] = field(default_factory=list)
    # files of which not all could be read; likewise
    cut_short: set[str] = field(default_factory=set)

    def lines(self) -> Iterator[bytes]:
        """Give the lines, without their ends; what comes after damage is left out, and noted."""
        for path in self.files:
            yield from self._lines_of(path)

    def _lines_of(self, path: str) -> Iterator[bytes]:
        rest = bytearray()
        too_long = False
        for piece in self._pieces(path):
            *ended, last = piece.split(b"\n")
            for part in ended:
                line = bytes(rest) + part
                rest.clear()
                if line.strip() and not too_long:
                    yield line
                too_long = False
            rest += last
            if len(rest) > _LINE_BYTES:
                rest.clear()
                too_long = True
                self.notes.append(
                    f"{path} has an event of more than {human_bytes(_LINE_BYTES)}, which is left "
                    "out."
                )
        if rest.strip() and not too_long and path not in self.cut_short:
            yield bytes(rest)

    def _pieces(self, path: str) -> Iterator[bytes]:
        try:
            with self.filesystem.open_input_stream(path, compression=None) as file:
                start = file.read(8)
            with self.filesystem.open_input_stream(path, compression=None) as file:
                yield from _decompressed(path, file, start)
        except _DAMAGE as error:
            self.cut_short.add(path)
            self.notes.append(f"{path} is cut short or damaged: {error}. What follows is missing.")


def open_event_log(path: str) -> EventLog:
    """Find the files of an event log.

    `path`: a file, or a directory of rolled ones; a path, or a URI that ``pyarrow.fs`` opens.
    Raises `EventLogError` if there is no event log there, or several.
    """
    try:
        filesystem, root = _resolved(path)
        info = filesystem.get_file_info(root)
        if info.type == pa.fs.FileType.NotFound:
            raise EventLogError(
                f"There is nothing at {path!r}.",
                remedy="Give a file or directory that Spark wrote under spark.eventLog.dir.",
                path=path,
            )
        if info.type == pa.fs.FileType.File:
            files, unfinished = [info], root.endswith(".inprogress")
            notes: list[str] = []
        else:
            inside = filesystem.get_file_info(pa.fs.FileSelector(root))
            files, notes = _rolled(path, inside)
            unfinished = any(
                i.base_name.startswith("appstatus_") and i.base_name.endswith(".inprogress")
                for i in inside
            )
    except (OSError, pa.ArrowException) as error:
        raise EventLogError(
            f"The event log {path!r} cannot be read: {error}.",
            remedy="Give a path that can be read, or a URI that pyarrow.fs opens.",
            path=path,
        ) from error
    if not any(file.size for file in files):
        raise EventLogError(
            f"The event log {path!r} is empty.",
            remedy="Spark writes it in pieces while the application runs; look again later.",
            path=path,
        )
    return EventLog(
        filesystem=filesystem,
        files=tuple(file.path for file in files),
        unfinished=unfinished,
        notes=notes,
    )


def _resolved(path: str) -> tuple[Any, str]:
    if "://" in path or path.startswith("file:"):
        filesystem, root = pa.fs.FileSystem.from_uri(path)
        return filesystem, root
    return pa.fs.LocalFileSystem(), str(Path(path).absolute())


def _rolled(path: str, inside: list[Any]) -> tuple[list[Any], list[str]]:
    """Give the files of a rolled log in order, and what is missing of them."""
    numbered = sorted(
        (int(match[1]), not file.base_name.endswith(".compact"), file)
        for file in inside
        if (match := _ROLLED.fullmatch(file.base_name))
    )
    if not numbered:
        logs = sorted(i.base_name for i in inside if _LOGS.fullmatch(i.base_name))
        raise EventLogError(
            f"{path!r} holds {'several event logs' if logs else 'no event log'}.",
            remedy=f"Give one of them: {listing(logs)}."
            if logs
            else "Give a file or directory that Spark wrote under spark.eventLog.dir.",
            path=path,
        )
    # A compacted file stands for itself and all before it.
    compacted = max((n for n, plain, _ in numbered if not plain), default=0)
    current = [
        (number, file)
        for number, plain, file in numbered
        if number > compacted or (number == compacted and not plain)
    ]
    notes = [
        f"Of the rolled log {path}, file {missing} is missing."
        for (before, _), (after, _) in pairwise(current)
        for missing in range(before + 1, min(after, before + 10))
    ]
    if compacted:
        notes.append(f"The rolled log {path} was compacted: what Spark dropped is missing.")
    return [file for _, file in current], notes


def _decompressed(path: str, file: Any, start: bytes) -> Iterator[bytes]:
    for codec, magic in _REFUSED.items():
        if start.startswith(magic):
            raise EventLogError(
                f"The event log {path!r} is compressed by {codec}, which is not read here.",
                remedy="Have Spark write the log by spark.eventLog.compression.codec=zstd, its "
                "default, or by spark.eventLog.compress=false; or unpack the file.",
                path=path,
            )
    for codec, magic in _COMPRESSED.items():
        if start.startswith(magic):
            yield from _pieces_of(pa.CompressedInputStream(file, codec), _SMALL_PIECE)
            return
    yield from _pieces_of(file, _PIECE)


def _pieces_of(file: Any, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece
