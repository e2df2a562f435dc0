"""Spark's event logs as a stream of lines, in every form that Spark writes.

One file, or a directory ``eventlog_v2_<application>`` of numbered ones; plain or compressed by
zstd (the default since Spark 4.0), lz4 or snappy in the framing of Spark's codecs, or packed with
gzip by hand; complete, still being written, or cut short by a crash.  The codec is told by the
first bytes, not by the name.

The invariant: memory does not grow with the log.  Files are read in pieces, and no piece, block or
line is believed to be larger than it may be.
"""

from __future__ import annotations

import re
import struct
import zlib
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
_BLOCK_BYTES: Final = 64 * 2**20
_LINE_BYTES: Final = 64 * 2**20
_ROLLED = re.compile(r"events_(\d{1,9})_.+")
_LOGS = re.compile(r"(eventlog_v2_|local-|app-|application_|spark-).+")
_LZ4: Final = struct.Struct("<8sBiii")  # magic, token, compressed, plain, checksum
_LZ4_MAGIC: Final = b"LZ4Block"
_LZ4_PLAIN: Final = 0x10
_SNAPPY_MAGIC: Final = b"\x82SNAPPY\x00"
_SNAPPY_HEADER_BYTES: Final = 16
_DAMAGE = (OSError, pa.ArrowException, EOFError, ValueError, zlib.error)


class EventLogError(GodwitError):
    """An event log of Spark cannot be read, or says nothing of what is asked."""


@dataclass(slots=True, kw_only=True)
class EventLog:
    """One application's log.

    Attributes
    ----------
    filesystem, files
        Where it is, and the paths there, in order.
    unfinished
        Whether the application was still running when it was written, by its name.
    notes
        What is wrong with the log, in sentences; complete once all lines are read.
    cut_short
        Files of which not all could be read; likewise.
    """

    filesystem: Any
    files: tuple[str, ...]
    unfinished: bool
    notes: list[str] = field(default_factory=list)
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

    Parameters
    ----------
    path
        A file, or a directory of rolled ones; a path, or a URI that ``pyarrow.fs`` opens.

    Raises
    ------
    EventLogError
        If there is no event log there, or several.
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
    kept = [
        (number, file)
        for number, plain, file in numbered
        if number > compacted or (number == compacted and not plain)
    ]
    notes = [
        f"Of the rolled log {path}, file {missing} is missing."
        for (before, _), (after, _) in pairwise(kept)
        for missing in range(before + 1, min(after, before + 10))
    ]
    if compacted:
        notes.append(f"The rolled log {path} was compacted: what Spark dropped is missing.")
    return [file for _, file in kept], notes


def _decompressed(path: str, file: Any, start: bytes) -> Iterator[bytes]:
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        yield from _pieces_of(pa.CompressedInputStream(file, "zstd"), _SMALL_PIECE)
    elif start.startswith(b"\x1f\x8b"):
        yield from _gzip(file)
    elif start.startswith(_LZ4_MAGIC):
        yield from _lz4(file)
    elif start.startswith(_SNAPPY_MAGIC):
        yield from _snappy(file)
    elif start.startswith(b"ZV"):
        raise EventLogError(
            f"The event log {path!r} is compressed by LZF, which is not read here.",
            remedy="Unpack it, or let Spark write it by spark.eventLog.compression.codec=zstd.",
            path=path,
        )
    else:
        yield from _pieces_of(file, _PIECE)


def _pieces_of(file: Any, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece


def _gzip(file: Any) -> Iterator[bytes]:
    inflate, begun = zlib.decompressobj(wbits=31), False
    for piece in _pieces_of(file, _PIECE):
        rest = piece
        while rest:
            begun = True
            yield inflate.decompress(rest, _PIECE)
            rest = inflate.unconsumed_tail
            if inflate.eof:  # another member may follow
                rest, inflate, begun = inflate.unused_data, zlib.decompressobj(wbits=31), False
    yield inflate.flush()
    if begun and not inflate.eof:
        msg = "the file ends within what was packed"
        raise EOFError(msg)


def _lz4(file: Any) -> Iterator[bytes]:
    """Undo ``LZ4BlockOutputStream``: blocks with a header each; an empty one ends a stream."""
    codec = pa.Codec("lz4_raw")
    while head := file.read(_LZ4.size):
        magic, token, packed_bytes, plain_bytes, _ = _LZ4.unpack(_whole(head, _LZ4.size))
        if magic != _LZ4_MAGIC or not 0 <= packed_bytes <= _BLOCK_BYTES:
            msg = "a block of lz4 does not begin like one"
            raise ValueError(msg)
        if plain_bytes == 0:
            continue
        packed = _whole(file.read(packed_bytes), packed_bytes)
        yield packed if token & 0xF0 == _LZ4_PLAIN else _unpacked(codec, packed, plain_bytes)


def _snappy(file: Any) -> Iterator[bytes]:
    """Undo ``SnappyOutputStream``: a header, then blocks with their length before them."""
    codec = pa.Codec("snappy")
    _whole(file.read(_SNAPPY_HEADER_BYTES), _SNAPPY_HEADER_BYTES)
    while head := file.read(4):
        if _whole(head, 4) == _SNAPPY_MAGIC[:4]:  # of a stream that was appended
            _whole(file.read(_SNAPPY_HEADER_BYTES - 4), _SNAPPY_HEADER_BYTES - 4)
            continue
        length = int.from_bytes(head, "big")
        if length > _BLOCK_BYTES:
            msg = f"a block of snappy is said to have {length} bytes"
            raise ValueError(msg)
        packed = _whole(file.read(length), length)
        yield _unpacked(codec, packed, _varint(packed))


def _varint(data: bytes) -> int:
    """Read how long a block of snappy is unpacked, which it begins with."""
    value = 0
    for place, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value
    raise EOFError


def _unpacked(codec: Any, packed: bytes, plain_bytes: int) -> bytes:
    if not 0 <= plain_bytes <= _BLOCK_BYTES:
        msg = f"a block is said to have {plain_bytes} bytes"
        raise ValueError(msg)
    plain: bytes = codec.decompress(packed, decompressed_size=plain_bytes, asbytes=True)
    return plain


def _whole(data: bytes, size: int) -> bytes:
    if len(data) != size:
        msg = "the file ends within a block"
        raise EOFError(msg)
    return data
