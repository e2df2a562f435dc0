"""CSV and line-delimited JSON: ranges of bytes, each with the lines that begin in it.

Offsets are bytes. A range may begin and end in the midst of a line: the line belongs to the range
that it begins in, so ranges that share their ends have every line once, wherever they were cut.
Files that are compressed, and CSV with line breaks within quotes, cannot be cut.

Lines are parsed in large blocks.  Where the user wants to go on without those that cannot be read,
and a block has some, the lines of JSON are decoded one by one, and those of CSV are parsed as texts
and converted column by column; the others are parsed again, all at once.  A block is halved only if
its bad lines cannot be told so.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.connect.files.file_formats import BadLine, FileFormat, FileRange
from godwit.connect.files.magic_numbers import (
    NUM_FIRST_BYTES,
    check_ending,
    check_is_text,
    codec_of,
)
from godwit.connect.formats.time_texts import in_calendar
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.connect.files.directory import Directory, File
    from godwit.connect.files.file_formats import FileLayout

    Separated = tuple[pa.Table, list[tuple[bytes, str | None]]]  # rows; bad lines, reasons

_BLOCK_BYTES: Final = 8 << 20
PROBE_BYTES: Final = 64 << 10
MARK: Final = b"\xef\xbb\xbf"  # some programs begin UTF-8 with it
NEWLINE: Final = 0x0A
EXACT_DOUBLES: Final = 1 << 53  # up to here every whole number is a double
_MAX_DIGITS: Final = 400  # of whole numbers from which a type is inferred; no type has as many


class TextFormat(FileFormat):
    """Offsets are bytes."""

    unit = "byte"
    cuttable = True

    def __init__(self, *, skips_bad: bool) -> None:
        self.skips_bad = skips_bad  # lines that cannot be read are `BadLine`s

    def _is_divisible(self, directory: Directory, file: File) -> bool:
        """Return whether a file can be split: no compression, no line breaks in values."""
        return self.cuttable and codec_of(directory.full_path(file.path)) is None

    def check_path(self, path: str) -> None:
        check_ending(path)

    def end(self, file: File, layout: FileLayout | None) -> int:
        del layout
        return file.size

    def advance(
        self, directory: Directory, file: File, layout: FileLayout | None, start: int, rows: int
    ) -> tuple[int, int]:
        """Return the offset `rows` line breaks after `start`, and the number of rows in between.

        A file that cannot be divided is read whole.
        """
        del layout
        if not self._is_divisible(directory, file):
            return file.size, rows
        left, ends_within_a_line = rows, False
        with directory.filesystem.open_input_file(directory.full_path(file.path)) as stream:
            place = max(start, self._first_line(stream))
            stream.seek(place)
            while block := stream.read(PROBE_BYTES if left < 1000 else _BLOCK_BYTES):
                breaks = block.count(b"\n")
                if breaks >= left:
                    data = np.frombuffer(block, np.uint8)
                    return place + int(np.flatnonzero(data == NEWLINE)[left - 1]) + 1, rows
                left, place = left - breaks, place + len(block)
                ends_within_a_line = not block.endswith(b"\n")
        return file.size, rows - left + ends_within_a_line

    def cut_offsets(
        self, directory: Directory, piece: FileRange, layout: FileLayout | None, num_bytes: float
    ) -> list[int]:
        """Return byte offsets that cut a range into parts of about `num_bytes` bytes."""
        del layout
        if not self._is_divisible(directory, piece.file):
            return []
        assert piece.stop is not None, "called only for ranges with an end"
        start, stop = piece.start, piece.stop
        parts = max(1, int((stop - start) / max(num_bytes, 1)))
        return [start + (stop - start) * part // parts for part in range(1, parts)]

    def _first_line(self, stream: Any) -> int:
        """Return the offset of the first line of data."""
        del stream
        return 0

    def max_rows(self, directory: Directory, part: FileRange) -> int | None:
        """Count the lines that begin in a range; ``None`` if the file cannot be divided."""
        file = part.file
        if not self._is_divisible(directory, file):
            return None
        with directory.filesystem.open_input_file(directory.full_path(file.path)) as stream:
            part = replace(part, start=max(part.start, self._first_line(stream)))
        return sum(
            block.count(b"\n") + (not block.endswith(b"\n"))
            for block in self._blocks(directory, part)
        )

    def _blocks(
        self, directory: Directory, part: FileRange, *, is_text: bool = False
    ) -> Iterator[bytes]:
        """Yield the lines that begin in a range of a file, in blocks of whole lines.

        Raises ValueError for a file that is not text, whichever range of it is read; `is_text`:
        that is known.
        """
        file, path = part.file, directory.full_path(part.file.path)
        codec = codec_of(path)
        if codec is not None or not self.cuttable:
            with directory.filesystem.open_input_stream(path, compression=codec) as stream:
                yield from _from_begin(_whole_lines(stream, None if self.cuttable else -1))
            return
        with directory.filesystem.open_input_file(path) as stream:
            if part.start and not is_text:
                check_is_text(stream.read(NUM_FIRST_BYTES))
            begin = _next_line_start(stream, part.start, file.size)
            end = file.size if part.stop is None else _next_line_start(stream, part.stop, file.size)
            stream.seek(begin)
            blocks = _whole_lines(stream, end - begin)
            yield from blocks if part.start else _from_begin(blocks)

    def _parse_readable(
        self,
        text: bytes,
        parse: Callable[[bytes, bool], pa.Table],
        separate: Callable[[bytes], Separated | None] | None = None,
        *,
        by_rules: bool = False,
    ) -> Iterator[pa.RecordBatch | BadLine]:
        """Yield the rows of lines parsed by `parse`, and bad lines if these are not refused.

        `parse`: its second argument, first `by_rules`, says to go by the rules of `text_values` at
        once, since Arrow's fast parser has failed. `separate`: searches for the bad lines; where it
        returns ``None``, they are found by bisection.

        A line is bad whichever lines are parsed with it, so that it does not matter where files and
        blocks are cut.
        """
        if self._is_blank(text):
            return
        try:
            if self.skips_bad:
                self._check_lines(text)
            rows = parse(text, by_rules)
        except (ValueError, pa.ArrowException) as error:
            if not self.skips_bad:
                raise
            middle = text.rfind(b"\n", 0, len(text) // 2) + 1 or text.find(b"\n") + 1
            if middle in {0, len(text)}:
                yield BadLine(text, reason_of(error))
                return
        else:
            yield from rows.combine_chunks().to_batches()
            return
        if separate is not None and (separated := separate(text)) is not None:
            rows, bad = separated
            yield from rows.combine_chunks().to_batches()
            for line, reason in bad:
                if reason is not None:
                    yield BadLine(line, reason)
                else:
                    yield from self._parse_readable(line, parse, by_rules=True)
            return
        for half in (text[:middle], text[middle:]):
            yield from self._parse_readable(half, parse, separate, by_rules=True)

    def _is_blank(self, text: bytes) -> bool:
        """Return whether a text has nothing to parse."""
        return text.isspace()

    def _check_lines(self, text: bytes) -> None:
        """Raise for a line that may begin or end within a value, if bad lines are skipped."""

    def schema(self, directory: Directory, file: File) -> pa.Schema:
        """Infer the schema from the first lines of a file; raise if it has no rows."""
        for block in self._blocks(directory, FileRange(file=file, stop=min(file.size, 1 << 20))):
            return self._infer(block)
        raise SourceError(
            f"The file {directory.file_name(file)!r} has no rows to infer a schema from.",
            remedy="Give schema=.",
        )

    @abstractmethod
    def _infer(self, block: bytes) -> pa.Schema:
        """Return the schema inferred from a block of lines."""


def reason_of(error: Exception) -> str:
    """Return why a line cannot be read."""
    return str(error).partition("\n")[0]


def _from_begin(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the blocks of a file's text, from its beginning, without a byte order mark."""
    for number, block in enumerate(blocks):
        text = block
        if number == 0:
            check_is_text(block)
            text = block.removeprefix(MARK)
        if text:
            yield text


def _next_line_start(stream: Any, offset: int, size: int) -> int:
    """Return the offset of the first line that begins at `offset` or later; `size`: of the file."""
    if offset <= 0 or offset >= size:
        return min(max(offset, 0), size)
    begin = offset - 1
    stream.seek(begin)
    while block := stream.read(PROBE_BYTES):
        newline = block.find(b"\n")
        if newline >= 0:
            return begin + int(newline) + 1
        begin += len(block)
    return size


def _whole_lines(stream: Any, length: int | None) -> Iterator[bytes]:
    """Yield `length` bytes in blocks of whole lines (``None``: all; -1: all as one block)."""
    if length == -1:
        if block := stream.read():
            yield block
        return
    rest: list[bytes] = []  # of a line that goes on
    while length is None or length > 0:
        block = stream.read(_BLOCK_BYTES if length is None else min(length, _BLOCK_BYTES))
        if not block:
            break
        length = None if length is None else length - len(block)
        lines, newline, rest_of = block.rpartition(b"\n")
        if newline:
            yield b"".join([*rest, lines, newline])
            rest = [rest_of] if rest_of else []
        else:
            rest.append(block)
    if rest:
        yield b"".join(rest)


def usual_first(
    parse: Callable[[bytes], pa.Table], parse_usual: Callable[[bytes], pa.Table] | None
) -> Callable[[bytes], pa.Table]:
    """Return a parser of blocks that tries Arrow's parser of times first.

    `parse_usual`, which is faster, raises ValueError for times that it does not know. After the
    first one, `parse` has all blocks.
    """

    def parse_block(text: bytes) -> pa.Table:
        nonlocal parse_usual
        if parse_usual is not None:
            with contextlib.suppress(ValueError):
                return parse_usual(text)
            parse_usual = None
        return parse(text)

    return parse_block


def check_calendar(column: pa.ChunkedArray) -> None:
    """Raise ValueError for dates and timestamps of other years than 1 to 9999."""
    if not all(map(in_calendar, column.chunks)):
        msg = "a time is outside of the years 1 to 9999"
        raise ValueError(msg)


def inexact_error(value: int, column: str) -> SourceError:
    """Return the error that a column cannot be inferred since a whole number needs more digits."""
    text = str(value)
    text = text if len(text) <= 50 else f"{text[:50]}..."
    return SourceError(
        f"Column {column!r} of the first file has the whole number {text}, which neither bigint "
        "nor double can hold exactly together with its other values.",
        remedy="Give schema=, with decimal(20, 0) or string for identifiers, or double if the last "
        "digits do not matter.",
        column=column,
    )


def to_int(text: str) -> int:
    """Return a text as an integer, or its first digits; Python refuses more than 4,300 digits."""
    return int(text[:_MAX_DIGITS])
