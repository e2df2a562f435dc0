"""CSV files read like by Spark's reader, in mode ``PERMISSIVE`` or ``FAILFAST``.

Spark parses each line by itself.  A line without quotes is cut at its separators; one with quotes
goes through the rules of Spark's parser, as far as they were compared with it.  Too few values are
nulls, and too many are left out.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from godwit.adopt.read_texts import UnsureError, converter, texts_of
from godwit.connect.files.text_formats import TextFormat

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from godwit.connect.files.directory import Directory
    from godwit.connect.files.file_formats import BadLine, FileRange

_QUOTE, _ESCAPE = '"', "\\"
_IN_QUOTES: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r'\\(["\\])')
_DOUBLED: Final = re.compile(r'"((?:[^"]|"")*)"')
_RUN: Final = re.compile(r'"([^"\\]*)("+)')
_BLANK: Final = "".join(map(chr, range(0x21)))  # that Java trims


class SparkCsv(TextFormat):
    """CSV with Spark's quotes and escapes.

    `columns`: names and types of all columns, by position. `separator`: one ASCII character.
    `null_text`: text that is null. `doubled`: two quotes within quotes are a quote, as with
    ``escape='"'``. `fails`: a line without a value for each column is an error.
    """

    name = "CSV"
    has_columns = False

    def __init__(
        self,
        columns: pa.Schema,
        *,
        separator: str,
        header: bool,
        null_text: str,
        doubled: bool,
        fails: bool,
        zone: str,
    ) -> None:
        super().__init__(skips_bad=False)
        self._columns, self._separator, self._header = columns, separator, header
        self._null, self._fails_on_malformed, self._zone = null_text, fails, zone
        self._quotes_are_doubled = doubled

    def read(
        self,
        directory: Directory,
        part: FileRange,
        fields: Sequence[pa.Field],
        known: Container[str] = (),
    ) -> Iterator[pa.RecordBatch | BadLine]:
        del known  # columns are those of positions
        output_fields = [self._columns.field(field.name) for field in fields]
        output_fields = output_fields or [
            self._columns.field(0).with_type(pa.string())
        ]  # it has the rows
        parsed_fields = [*self._columns] if self._fails_on_malformed else output_fields
        has_header = self._header and part.start == 0
        for block in self._blocks(directory, part):
            text = _with_line_feeds(block)
            if has_header:
                lines = text.split(b"\n")
                first = next((n for n, line in enumerate(lines) if _has_text(line)), None)
                text = b"" if first is None else b"\n".join(lines[first + 1 :])
                has_header = first is None
            columns = self._column_texts(text, [field.name for field in parsed_fields])
            values = {
                field.name: self._column_values(texts, field)
                for field, texts in zip(parsed_fields, columns, strict=True)
            }
            arrays = [values[field.name] for field in output_fields]
            yield pa.RecordBatch.from_arrays(arrays, names=[field.name for field in output_fields])

    def _column_values(self, texts: pa.Array, field: pa.Field) -> pa.Array:
        """Return the values of a column's texts."""
        texts = pc.if_else(pc.equal(texts, self._null), pa.scalar(None, pa.string()), texts)
        values = converter(field.type, self._zone)(texts)
        if self._fails_on_malformed and values.null_count > texts.null_count:
            msg = f"the column {field.name!r} has a text that is not of type {field.type}"
            raise ValueError(msg)
        return values

    def _column_texts(self, text: bytes, names: list[str]) -> list[pa.Array]:
        """Return the texts of some columns of lines."""
        if (
            _QUOTE.encode() not in text
            and (columns := self._texts_without_quotes(text, names)) is not None
        ):
            return columns
        places = [self._columns.get_field_index(name) for name in names]
        cells: list[list[str | None]] = [[] for _ in places]
        count = len(self._columns)
        for line in text.decode().split("\n"):
            if not line.strip(_BLANK):
                continue
            parts = self._cut_line(line)
            if self._fails_on_malformed and len(parts) != count:
                msg = f"a line has {len(parts)} values for {count} columns"
                raise ValueError(msg)
            for cell, place in zip(cells, places, strict=True):
                cell.append(parts[place] if place < len(parts) else None)
        return [texts_of(cell) for cell in cells]

    def _texts_without_quotes(self, text: bytes, names: list[str]) -> list[pa.Array] | None:
        """Return the texts of lines without quotes; ``None`` if a line has a wrong number."""
        if not text:
            return None
        try:
            rows = pacsv.read_csv(
                io.BytesIO(text),
                pacsv.ReadOptions(
                    use_threads=False, block_size=len(text) + 1, column_names=self._columns.names
                ),
                pacsv.ParseOptions(delimiter=self._separator, quote_char=False, escape_char=False),
                pacsv.ConvertOptions(
                    column_types=dict.fromkeys(self._columns.names, pa.string()),
                    include_columns=names,
                    strings_can_be_null=False,
                    check_utf8=True,
                ),
            )
        except pa.ArrowInvalid:
            return None
        if len(self._columns) == 1 and _blank_lines(text):
            return None
        return [rows.column(name).combine_chunks() for name in names]

    def _cut_line(self, line: str) -> list[str]:
        """Return the values of a line."""
        parts, place = [], 0
        while True:
            value, end = self._read_cell(line, place)
            parts.append(value)
            if end >= len(line):
                return parts
            place = end + 1

    def _read_cell(self, line: str, position: int) -> tuple[str, int]:
        """Return the value at a place of a line, and the place of the separator after it."""
        cell_end = line.find(self._separator, position)
        cell_end = len(line) if cell_end < 0 else cell_end
        if not line.startswith(_QUOTE, position):
            return line[position:cell_end], cell_end
        match = (_DOUBLED if self._quotes_are_doubled else _IN_QUOTES).match(line, position)
        if match is not None and line[match.end() : match.end() + 1] in {"", self._separator}:
            text = match[1]
            value = (
                text.replace(_QUOTE * 2, _QUOTE)
                if self._quotes_are_doubled
                else _ESCAPED.sub(r"\1", text)
            )
            return value, match.end()
        quoted_start = None if self._quotes_are_doubled else _RUN.match(line, position)
        if quoted_start is None:
            raise UnsureError(line[position:], "a quoted value")
        cell_end = line.find(self._separator, quoted_start.end())
        cell_end = len(line) if cell_end < 0 else cell_end
        cell = line[position:cell_end]
        if quoted_start.end() == cell_end:
            return quoted_start[1] + quoted_start[2][
                1:
            ], cell_end  # the last of several quotes ends the value
        if line[quoted_start.end()] in _BLANK or _ESCAPE in cell:
            raise UnsureError(line[position:], "a quoted value")
        return cell, cell_end  # quotes within a value are part of it

    def _infer(self, block: bytes) -> pa.Schema:
        del block
        return self._columns


def _with_line_feeds(text: bytes) -> bytes:
    """Normalize line ends to line feeds; raise for carriage returns alone."""
    if b"\r" not in text:
        return text
    text = text.replace(b"\r\n", b"\n")
    if b"\r" in text.removesuffix(b"\r"):
        msg = "it has a carriage return within a line"
        raise ValueError(msg)
    return text.removesuffix(b"\r")


def _has_text(line: bytes) -> bool:
    """Return whether a line is more than blanks."""
    return bool(line.strip(_BLANK.encode()))


def _blank_lines(text: bytes) -> bool:
    """Return whether some line is blank but not empty."""
    return any(line and not _has_text(line) for line in text.split(b"\n"))
