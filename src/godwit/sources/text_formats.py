"""CSV and line-delimited JSON: ranges of bytes, each with the lines that begin in it.

Offsets are bytes. A range may begin and end in the midst of a line: the line belongs to the range
that it begins in, so ranges that share their ends have every line once, wherever they were cut.
Files that are compressed, and CSV with line breaks within quotes, cannot be cut.

Lines are parsed in large blocks.  Where the user wants to go on without those that cannot be read,
a block of JSON that fails is halved until they are found, so a few of them cost little.  A block of
CSV is parsed once more as texts, and its bad lines are searched for column by column; it is halved
only if values in it seem to have line breaks.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from abc import abstractmethod
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from godwit.columns.arrays import values_of
from godwit.columns.nested import has_leaf, leaves_of, with_leaves
from godwit.columns.time_texts import has_offset, in_calendar
from godwit.columns.types import is_date_or_timestamp, is_instant, is_list, is_temporal
from godwit.model.errors import SourceError
from godwit.sources.directory import partitions_of
from godwit.sources.file_formats import BadLine, FileFormat, FileRange, check_names
from godwit.sources.message_formats import (
    NOT_OF_MESSAGES,
    JsonMessages,
    error_text,
    max_level,
)
from godwit.sources.text_values import (
    as_json,
    from_json,
    from_text,
    has_hexadecimals,
    has_names_of_numbers,
    has_negative_zeros,
    has_small_numbers,
    has_whole_negative_zeros,
    is_number,
    narrow_floats,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    import numpy.typing as npt

    from godwit.sources.directory import Directory, File
    from godwit.sources.file_formats import FileLayout

    _Conversion = Callable[[pa.Array], pa.Array]
    _Separated = tuple[pa.Table, list[tuple[bytes, str | None]]]  # rows; bad lines, reasons

_BLOCK_BYTES: Final = 8 << 20
_PROBE_BYTES: Final = 64 << 10
_NO_LINES_OF_OBJECTS: Final = (
    "a line is not one JSON object in braces: each line must have exactly one, and all of it"
)
_CARRIAGE_RETURNS: Final = (
    "it has a line that ends with a carriage return alone (CR), as old programs for Macintosh "
    "write them; write it with line feeds (LF or CR LF)"
)
_COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4", ".br")
_VALUES_AT_ONCE: Final = 256  # among which those that cannot be read are searched for
_MARK: Final = b"\xef\xbb\xbf"  # some programs begin UTF-8 with it
_NEWLINE: Final = 0x0A
_RETURN: Final = 0x0D
_WHOLE_NUMBER: Final = r"^\s*[+-]?\d{16,}\s*$"
_EXACT_DOUBLES: Final = 1 << 53  # up to here every whole number is a double
_MAX_LEVELS: Final = 100  # of a type that is inferred
_MAX_DIGITS: Final = 400  # of whole numbers from which a type is inferred; no type has as many
_HEXADECIMAL: Final = "^[ \\t]*[+-]?0[xX]"
_LINE: Final = re.compile(rb"[^\r\n]+")
_NO_LINES: Final = re.compile(rb"[\r\n]*\Z")
_NOT_OBJECT: Final = re.compile(rb"\s*[^{\s]")
_NOT_OBJECT_LATER: Final = re.compile(rb"\n[ \t\r]*[^{\s]")


class _TextFormat(FileFormat):
    """Offsets are bytes."""

    unit = "byte"
    cuttable = True

    def __init__(self, *, skips_bad: bool) -> None:
        self.skips_bad = skips_bad  # lines that cannot be read are `BadLine`s

    def _is_divisible(self, file: File) -> bool:
        """Return whether a file may be divided: no compression, no line breaks in values."""
        return self.cuttable and not file.path.endswith(_COMPRESSED)

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
        if not self._is_divisible(file):
            return file.size, rows
        left, ends_within_a_line = rows, False
        with directory.filesystem.open_input_file(directory.full_path(file.path)) as stream:
            place = max(start, self._first_line(stream))
            stream.seek(place)
            while block := stream.read(_PROBE_BYTES if left < 1000 else _BLOCK_BYTES):
                breaks = block.count(b"\n")
                if breaks >= left:
                    data = np.frombuffer(block, np.uint8)
                    return place + int(np.flatnonzero(data == _NEWLINE)[left - 1]) + 1, rows
                left, place = left - breaks, place + len(block)
                ends_within_a_line = not block.endswith(b"\n")
        return file.size, rows - left + ends_within_a_line

    def cut_offsets(
        self, file: File, layout: FileLayout | None, start: int, stop: int, num_bytes: float
    ) -> list[int]:
        """Return byte offsets that cut a range into parts of about `num_bytes` bytes."""
        del layout
        if not self._is_divisible(file):
            return []
        parts = max(1, int((stop - start) / max(num_bytes, 1)))
        return [start + (stop - start) * part // parts for part in range(1, parts)]

    def _first_line(self, stream: Any) -> int:
        """Return the offset of the first line of data."""
        del stream
        return 0

    def max_rows(self, directory: Directory, part: FileRange) -> int | None:
        """Count the lines that begin in a range; ``None`` if the file cannot be divided."""
        file = part.file
        if not self._is_divisible(file):
            return None
        with directory.filesystem.open_input_file(directory.full_path(file.path)) as stream:
            part = replace(part, start=max(part.start, self._first_line(stream)))
        return sum(
            block.count(b"\n") + (not block.endswith(b"\n"))
            for block in self._blocks(directory, part)
        )

    def _blocks(self, directory: Directory, part: FileRange) -> Iterator[bytes]:
        """Yield the lines that begin in a range of a file, in blocks of whole lines."""
        file, path = part.file, directory.full_path(part.file.path)
        if not self._is_divisible(file):
            compression = "brotli" if path.endswith(".br") else "detect"  # which lacks it
            with directory.filesystem.open_input_stream(path, compression=compression) as stream:
                yield from _whole_lines(stream, None if self.cuttable else -1)
            return
        with directory.filesystem.open_input_file(path) as stream:
            begin = _next_line_start(stream, part.start, file.size)
            end = file.size if part.stop is None else _next_line_start(stream, part.stop, file.size)
            stream.seek(begin)
            yield from _whole_lines(stream, end - begin)

    def _parse_readable(
        self,
        text: bytes,
        parse: Callable[[bytes, bool], pa.Table],
        separate: Callable[[bytes], _Separated | None] | None = None,
        *,
        halved: bool = False,
    ) -> Iterator[pa.RecordBatch | BadLine]:
        """Yield the rows of lines parsed by `parse`, and bad lines if these are not refused.

        `parse`: its second argument says to go by the rules of `text_values` at once, since Arrow's
        fast parser has failed. `separate`: searches for the bad lines; where it returns ``None``,
        they are found by bisection. `halved`: `text` is a part of a block, so a value with line
        breaks may be cut.
        """
        if self._is_blank(text):
            return
        try:
            if halved:
                self._check_whole_lines(text)
            rows = parse(text, halved)
        except (ValueError, pa.ArrowException) as error:
            if not self.skips_bad:
                raise
            middle = text.rfind(b"\n", 0, len(text) // 2) + 1 or text.find(b"\n") + 1
            if middle in {0, len(text)}:
                yield BadLine(text, _reason(error))
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
                    yield from self._parse_readable(line, parse, halved=True)
            return
        for half in (text[:middle], text[middle:]):
            yield from self._parse_readable(half, parse, separate, halved=True)

    def _is_blank(self, text: bytes) -> bool:
        """Return whether a text has nothing to parse."""
        return text.isspace()

    def _check_whole_lines(self, text: bytes) -> None:
        """Raise if a halved block may begin or end within a value."""

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


def _reason(error: Exception) -> str:
    """Return the reason for which a line cannot be read."""
    return str(error).partition("\n")[0]


def _cast(dtype: pa.DataType, array: pa.Array) -> pa.Array:
    """Return an array in a type."""
    return array.cast(dtype)


def _convert_readable(
    rows: pa.Table, converters: dict[str, _Conversion]
) -> tuple[pa.Table, npt.NDArray[np.bool_], dict[int, str]]:
    """Convert columns of the rows in which this is possible.

    Returns them, which rows they are, and the others' reasons, of the first column that has any.
    """
    is_good, reasons = np.ones(rows.num_rows, bool), dict[int, str]()
    later: dict[str, _Conversion] = {}
    for name, convert in converters.items():
        place = rows.schema.get_field_index(name)
        column = rows.column(place).combine_chunks()
        try:
            rows = rows.set_column(place, name, convert(column))
        except (ValueError, pa.ArrowException):
            later[name] = convert
            bad = _bad_values(column, convert)
            is_good[[*bad]] = False
            reasons = bad | reasons
    if later:
        rows, _, _ = _convert_readable(rows.filter(pa.array(is_good)), later)
    return rows, is_good, reasons


def _bad_values(column: pa.Array, convert: _Conversion) -> dict[int, str]:
    """Return the rows with values that cannot be converted, with the reasons.

    Equal values are converted once.
    """
    encoded = column.dictionary_encode()
    values, reasons = encoded.dictionary, dict[int, str]()
    parts = [(start, _VALUES_AT_ONCE) for start in range(0, len(values), _VALUES_AT_ONCE)]
    while parts:
        start, length = parts.pop()
        part = values[start : start + length]
        try:
            convert(part)
        except (ValueError, pa.ArrowException) as error:
            if len(part) == 1:
                reasons[start] = _reason(error)
            else:
                half = (len(part) + 1) // 2
                parts += [(start, half), (start + half, len(part) - half)]
    is_bad = np.zeros(len(values) + 1, bool)  # the last is null
    is_bad[[*reasons]] = True
    places = values_of(encoded.indices.fill_null(len(values)))
    return {row: reasons[places[row]] for row in np.flatnonzero(is_bad[places]).tolist()}


def _next_line_start(stream: Any, offset: int, size: int) -> int:
    """Return the offset of the first line that begins at `offset` or later; `size`: of the file."""
    if offset <= 0 or offset >= size:
        return min(max(offset, 0), size)
    begin = offset - 1
    stream.seek(begin)
    while block := stream.read(_PROBE_BYTES):
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


class _LinesError(ValueError):
    """A text whose lines are not JSON objects."""


class JsonFormat(_TextFormat):
    """One JSON object a line: refused otherwise, whether or not a file is cut there."""

    name = "JSON"
    has_columns = False

    def check_schema(self, schema: pa.Schema) -> None:
        JsonMessages(schema)  # refuses types that JSON has no form for

    def _parse_fields(
        self, fields: Sequence[pa.Field], read_as: dict[str, pa.Field], text: bytes
    ) -> pa.Table:
        """Parse lines; `read_as`: the fields as Arrow is to read them.

        Raises ValueError if a value may be another one by the rules of `text_values`.
        """
        parse = pajson.ParseOptions(
            explicit_schema=pa.schema(list(read_as.values())), unexpected_field_behavior="ignore"
        )
        rows = _parse_objects(text, parse)
        for field in fields:
            place = rows.schema.get_field_index(field.name)
            column = rows.column(place)
            has_floats = has_leaf(field.type, pa.types.is_floating)
            if has_floats or not column.type.equals(field.type):
                column = from_json(column.combine_chunks(), field)
                rows = rows.set_column(place, field.name, column)
                if has_floats and _has_negative_zeros(column) and has_whole_negative_zeros(text):
                    msg = "Arrow reads -0 as a negative zero"
                    raise ValueError(msg)
            elif is_instant(field.type):
                _check_calendar(column)
        return rows

    def _infer(self, block: bytes) -> pa.Schema:
        text = block.removeprefix(_MARK)
        if any(map(_is_deep, text.split(b"\n"))):
            raise SourceError(
                f"The first file has values that are nested over more than {_MAX_LEVELS} levels.",
                remedy="Give schema=, with the columns that you need.",
            )
        try:
            schema = _parse_objects(text, None).schema
        except pa.ArrowInvalid as error:
            if "specified twice" not in str(error):
                raise
            objects = [_loads(line) for line in _lines_of(text)]  # the last of two values counts
            text = b"\n".join(json.dumps(each).encode() for each in objects)
            schema = _parse_objects(text, None).schema
        unclear = [f.name for f in schema if has_leaf(f.type, _is_inferred_otherwise)]
        if not unclear:
            return schema
        objects = [_loads(line) for line in _lines_of(text)]
        for name in unclear:
            place, values = schema.get_field_index(name), [row.get(name) for row in objects]
            dtype = _infer_exactly(schema.field(place).type, values, name)
            schema = schema.set(place, pa.field(name, dtype))
        return schema

    def read(
        self,
        directory: Directory,
        part: FileRange,
        fields: Sequence[pa.Field],
        known: Container[str] = (),
    ) -> Iterator[pa.RecordBatch | BadLine]:
        del known  # each line has names of its own
        schema = pa.schema(fields)
        messages = JsonMessages(schema)
        has_maps = any(map(_has_maps, fields))  # Arrow's parser has none
        has_decimals = any(has_leaf(field.type, pa.types.is_decimal) for field in fields)
        as_text = {f.name: f.with_type(with_leaves(f.type, _type_in_json)) for f in fields}
        usual = {f.name: f for f in fields if is_instant(f.type)}
        parse_all = _usual_first(
            partial(self._parse_fields, fields, as_text),
            partial(self._parse_fields, fields, {**as_text, **usual}) if usual else None,
        )

        def parsed(text: bytes, by_rules: bool) -> pa.Table:
            """Parse a block of lines: by Arrow where it is sure, else as messages are."""
            by_rules = by_rules or has_maps or (has_decimals and has_small_numbers(text))
            if not by_rules and not has_names_of_numbers(text):
                try:
                    return parse_all(text)
                except _LinesError:
                    raise
                except ValueError:
                    pass  # messages have the rule
            try:
                columns = messages.columns(_lines_of(text), schema)
            except NOT_OF_MESSAGES:
                raise
            except UnicodeDecodeError as error:
                msg = "it has a text that is not UTF-8"
                raise ValueError(msg) from error
            except Exception as error:
                raise ValueError(error_text(error).partition(": ")[2]) from error
            return pa.table(columns, schema=schema)

        for block in self._blocks(directory, part):
            text = block.removeprefix(_MARK)
            if not fields:  # only the number of rows is asked for
                yield pa.RecordBatch.from_arrays([pa.nulls(len(_lines_of(text)))], [""])
                continue
            yield from self._parse_readable(text, parsed)


def _usual_first(
    parse: Callable[[bytes], pa.Table], parse_usual: Callable[[bytes], pa.Table] | None
) -> Callable[[bytes], pa.Table]:
    """Return a parser of blocks in which times are as Arrow's parsers have them, or otherwise.

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


def _check_calendar(column: pa.ChunkedArray) -> None:
    """Raise ValueError for dates and timestamps of other years than 1 to 9999."""
    if not all(map(in_calendar, column.chunks)):
        msg = "a time is not in the years 1 to 9999"
        raise ValueError(msg)


def _has_negative_zeros(column: pa.Array) -> bool:
    """Return whether a column has a negative zero, at any depth."""
    return any(
        has_negative_zeros(leaf) for leaf in leaves_of(column) if pa.types.is_floating(leaf.type)
    )


def _type_in_json(dtype: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow is to read leaves of JSON."""
    return dtype if pa.types.is_float32(dtype) else as_json(dtype)


def _type_in_csv(dtype: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow is to read a column of CSV."""
    return pa.string() if is_temporal(dtype) or pa.types.is_float16(dtype) else dtype


def _is_number_or_truth(dtype: pa.DataType) -> bool:
    """Return whether values of a type are numbers or booleans."""
    return is_number(dtype) or pa.types.is_boolean(dtype)


def _has_maps(field: pa.Field) -> bool:
    """Return whether a column is, or contains, a map."""
    inner = field.type
    return pa.types.is_map(inner) or any(_has_maps(inner.field(n)) for n in range(inner.num_fields))


def _is_inferred_otherwise(dtype: pa.DataType) -> bool:
    """Return whether Arrow infers a type for values in JSON that it does not hold exactly."""
    return bool(pa.types.is_floating(dtype) or pa.types.is_timestamp(dtype))


def _is_deep(line: bytes) -> bool:
    """Return whether values of a line are nested more deeply than a type that is inferred."""
    count = line.count(b"[") + line.count(b"{")
    return count > _MAX_LEVELS and max_level(line) > _MAX_LEVELS


def _infer_exactly(dtype: pa.DataType, values: list[Any], column: str) -> pa.DataType:
    """Return the type of JSON values for which Arrow infers `dtype`.

    Arrow takes long whole numbers for doubles, which are refused here, and leaves out the offsets
    of timestamps. Timestamps of which only some have an offset are text, as in CSV.
    """
    if is_list(dtype):
        elements = [each for value in values if isinstance(value, list) for each in value]
        return pa.list_(_infer_exactly(dtype.value_type, elements, column))
    if pa.types.is_struct(dtype):
        objects = [value for value in values if isinstance(value, dict)]
        fields = [dtype.field(n) for n in range(dtype.num_fields)]
        parts = {f.name: [each.get(f.name) for each in objects] for f in fields}
        types = [_infer_exactly(f.type, parts[f.name], f"{column}.{f.name}") for f in fields]
        return pa.struct([f.with_type(t) for f, t in zip(fields, types, strict=True)])
    if pa.types.is_floating(dtype):
        long = [n for n in values if isinstance(n, int) and abs(n) > _EXACT_DOUBLES]
        if long:
            raise _inexact_error(long[0], column)
    elif pa.types.is_timestamp(dtype):
        offsets = {has_offset(text) for text in values if isinstance(text, str)}
        if len(offsets) > 1:
            return pa.string()
        return pa.timestamp("us", "UTC") if offsets == {True} else dtype
    return dtype


def _inexact_error(value: int, column: str) -> SourceError:
    """Return the error that a column cannot be inferred since a whole number needs more digits."""
    text = str(value)
    text = text if len(text) <= 50 else f"{text[:50]}..."
    return SourceError(
        f"Column {column!r} of the first file has the whole number {text}, which neither bigint "
        "nor double holds exactly together with its other values.",
        remedy="Give schema=, with decimal(20, 0) or string for identifiers, or double if the last "
        "digits do not matter.",
        column=column,
    )


def _parse_objects(text: bytes, parse: pajson.ParseOptions | None) -> pa.Table:
    """Parse lines of JSON objects; refuse other values, and text that is not UTF-8."""
    # Arrow would take nulls for rows.
    if _NOT_OBJECT.match(text) or _NOT_OBJECT_LATER.search(text):
        raise _LinesError(_NO_LINES_OF_OBJECTS)
    options = pajson.ReadOptions(use_threads=False, block_size=len(text) + 1)
    try:
        rows = pajson.read_json(io.BytesIO(text), options, parse)
    except pa.ArrowInvalid as error:
        if _count_objects(text) is None:
            raise _LinesError(_NO_LINES_OF_OBJECTS) from error
        raise
    rows.validate(full=True)  # the parser takes any bytes for text
    if _count_objects(text) != rows.num_rows:
        raise _LinesError(_NO_LINES_OF_OBJECTS)
    return rows


def _lines_of(text: bytes) -> list[bytes]:
    """Return the lines of a text that are not blank."""
    return [line for line in text.split(b"\n") if line and not line.isspace()]


def _loads(line: bytes) -> Any:
    """Parse a line of JSON; of integers with very many digits only the first ones."""
    return json.loads(line, parse_int=_to_int)


def _to_int(text: str) -> int:
    """Return a text as an integer, or its first digits; Python refuses more than 4,300 digits."""
    return int(text[:_MAX_DIGITS])


def _count_objects(text: bytes) -> int | None:
    """Return the number of lines if each begins and ends with a brace; else ``None``.

    If there are as many objects, each line has one: within an object, or a list of them, a comma or
    a bracket follows a brace, never another brace.
    """
    last = not text.endswith(b"\n")
    if (count := text.count(b"\n") + last) == text.count(b"}\n") + text.endswith(b"}"):
        return count
    lines = [line for line in map(bytes.strip, text.split(b"\n")) if line]
    return len(lines) if all(line.endswith(b"}") for line in lines) else None


class CsvFormat(_TextFormat):
    """Comma-separated values, or separated otherwise.

    `columns`: their names where files have no header.
    """

    name = "CSV"

    def __init__(
        self,
        *,
        delimiter: str,
        quote: str | None,
        escape: str | None,
        columns: Sequence[str] | None,
        null_values: Sequence[str],
        newlines_in_values: bool,
        skips_bad: bool = False,
    ) -> None:
        super().__init__(skips_bad=skips_bad)
        for option, value in (("delimiter", delimiter), ("quote", quote), ("escape", escape)):
            if value is None and option != "delimiter":
                continue
            if not isinstance(value, str) or len(value.encode()) != 1:
                raise SourceError(
                    f"The option {option} of a CSV source is {value!r}.",
                    remedy="Give one ASCII character.",
                )
        if isinstance(null_values, str) or not all(isinstance(v, str) for v in null_values):
            raise SourceError(
                f"The option null_values of a CSV source is {null_values!r}.",
                remedy='Give a list of texts, such as ["", "NA"].',
            )
        if newlines_in_values and skips_bad:
            raise SourceError(
                "A CSV source has newlines_in_values=True, so single lines cannot be left out.",
                remedy='Leave out newlines_in_values=True, or let on_bad be "refuse".',
            )
        self._parse = {
            "delimiter": delimiter,
            "quote_char": False if quote is None else quote,
            "escape_char": False if escape is None else escape,
            "newlines_in_values": newlines_in_values,
        }
        self._columns = None if columns is None else list(columns)
        self._nulls = list(null_values)
        self.cuttable = not newlines_in_values

    def _first_line(self, stream: Any) -> int:
        """Return the offset of the first line after the header."""
        return len(self._header(stream)) if self._columns is None else 0

    def _header(self, stream: Any) -> bytes:
        """Return the bytes of the first line, read from a stream."""
        stream.seek(0)
        parts = []
        while block := stream.read(_PROBE_BYTES):
            line, newline, _ = block.partition(b"\n")
            parts += [line, newline]
            if newline:
                break
        return b"".join(parts)

    def _infer(self, block: bytes) -> pa.Schema:
        """Return the schema inferred from lines of CSV.

        Names are from the header, if there is one.
        """
        self._check_line_ends(block)
        if self._columns is None:
            self._check_header(block.partition(b"\n")[0])
        rows = self._parse_csv(block, self._columns, {}, None)
        doubles = [f.name for f in rows.schema if pa.types.is_floating(f.type)]
        texts = self._parse_csv(block, self._columns, dict.fromkeys(doubles, pa.string()), doubles)
        for name in doubles:
            whole = texts.filter(pc.match_substring_regex(texts[name], _WHOLE_NUMBER))
            for text in whole[name].to_pylist():
                if abs(_to_int(text.strip())) > _EXACT_DOUBLES:
                    raise _inexact_error(_to_int(text.strip()), name)
        schema = rows.schema
        if has_hexadecimals(block, self._marks()):  # which Arrow takes for integers
            wholes = [f.name for f in schema if pa.types.is_integer(f.type)]
            texts = self._parse_csv(
                block, self._columns, dict.fromkeys(wholes, pa.string()), wholes
            )
            for name in wholes:
                if pc.any(pc.match_substring_regex(texts[name], _HEXADECIMAL)).as_py():
                    place = schema.get_field_index(name)
                    schema = schema.set(place, pa.field(name, pa.string()))
        return schema

    def _marks(self) -> bytes:
        """Return the quote and the escape character, which may stand within a value."""
        marks = (self._parse[part] for part in ("quote_char", "escape_char"))
        return "".join(str(mark or "") for mark in marks).encode()

    def read(
        self,
        directory: Directory,
        part: FileRange,
        fields: Sequence[pa.Field],
        known: Container[str] = (),
    ) -> Iterator[pa.RecordBatch | BadLine]:
        file, names = part.file, self._columns
        if names is not None:
            of_directories = partitions_of(file)
            names = [name for name in names if name not in of_directories]
        elif self._is_divisible(file):
            with directory.filesystem.open_input_file(directory.full_path(file.path)) as stream:
                header = self._header(stream)
            self._check_line_ends(header)
            names = self._column_names(header)
            if part.stop is not None and part.stop <= len(header):
                return
            part = replace(part, start=max(part.start, len(header)))
        types = {f.name: _type_in_csv(f.type) for f in fields}
        texts = {
            f.name: pa.string() if _is_number_or_truth(f.type) else types[f.name] for f in fields
        }
        usual = {f.name: f.type for f in fields if is_date_or_timestamp(f.type)}
        decimals = [f.name for f in fields if pa.types.is_decimal(f.type)]
        has_integers = any(pa.types.is_integer(f.type) for f in fields)
        marks = self._marks()
        present: list[str] = []

        def convert(rows: pa.Table) -> pa.Table:
            """Return rows that Arrow has read, with their columns in the types of the fields."""
            for field in fields:
                if field.name not in present:
                    continue
                place = rows.schema.get_field_index(field.name)
                column = rows.column(place)
                if pa.types.is_floating(column.type):
                    values = narrow_floats(column.combine_chunks(), field.type)
                    rows = rows.set_column(place, field.name, values)
                elif not column.type.equals(field.type):
                    values = from_text(column.combine_chunks(), field)
                    rows = rows.set_column(place, field.name, values)
                elif is_temporal(field.type):
                    _check_calendar(column)
                elif field.name in decimals:
                    column.validate(full=True)  # the parser takes more digits than there may be
            return rows

        def parse_as(types: dict[str, pa.DataType], lines: bytes) -> pa.Table:
            """Parse a block of lines; `types`: as which Arrow is to read the columns."""
            return convert(self._parse_lines(lines, names or [], types, present))

        from_bytes = {n: t for n, t in texts.items() if pa.types.is_string(t)}
        as_bytes = {**texts, **dict.fromkeys(from_bytes, pa.binary())}

        def separate(text: bytes) -> _Separated | None:
            """Return the rows of a block, and its bad lines with reasons; ``None`` if cut badly."""
            if self._has_escaped_ends(text):
                return None
            lines, cut = self._cut_lines(text)
            places, rows = self._parse_structure(lines, cut, names or [], as_bytes, present)
            if rows is None:
                return None
            decode: dict[str, _Conversion] = {
                n: partial(_cast, t) for n, t in from_bytes.items() if n in present
            }
            rows, is_text, _ = _convert_readable(rows, decode)
            places = places[is_text]
            parse: dict[str, _Conversion] = {
                f.name: partial(from_text, field=f)
                for f in fields
                if f.name in present and not f.type.equals(texts[f.name])
            }
            rows, is_value, reasons = _convert_readable(rows, parse)
            reasons = {places[row]: reason for row, reason in reasons.items()}
            is_good = np.zeros(len(lines), bool)
            is_good[places[is_value]] = True
            bad = [(lines[n], reasons.get(n)) for n in np.flatnonzero(~is_good).tolist()]
            return rows, bad

        parse_all = _usual_first(
            partial(parse_as, types), partial(parse_as, {**types, **usual}) if usual else None
        )

        def parsed(lines: bytes, by_rules: bool) -> pa.Table:
            """Parse a block of lines: numbers by Arrow where it is sure, else as texts."""
            self._check_line_ends(lines)
            if texts == types:
                return parse_all(lines)
            by_rules = by_rules or bool(decimals and has_small_numbers(lines, marks))
            if not by_rules and not (has_integers and has_hexadecimals(lines, marks)):
                with contextlib.suppress(ValueError):
                    return parse_all(lines)
            return parse_as(texts, lines)

        for block in self._blocks(directory, part):
            text = block
            if names is None:
                header, newline, text = block.partition(b"\n")
                self._check_line_ends(header + newline)
                names = self._column_names(header + newline)
            if self._is_blank(text):
                continue
            check_names(names, fields, known)
            present[:] = [name for name in types if name in names] or names[:1]
            if fields and present[0] not in types:
                _check_delimiter(names, str(self._parse["delimiter"]))
            yield from self._parse_readable(text, parsed, separate)

    def _cut_lines(self, text: bytes) -> tuple[list[bytes], npt.NDArray[np.intp]]:
        """Return the lines of a text that are not blank, and the places of the whole ones."""
        lines = [line for line in io.BytesIO(text) if not self._is_blank(line)]
        if not (self._has_open_quote(text) or _has_lone_return(text)):
            return lines, np.arange(len(lines))
        places = [n for n, line in enumerate(lines) if self._is_whole(line)]
        return lines, np.array(places, np.intp)

    def _has_escaped_ends(self, text: bytes) -> bool:
        """Return whether an escape character may join lines of a text."""
        escape = str(self._parse["escape_char"] or "").encode()
        return bool(escape) and (escape + b"\n" in text or escape + b"\r" in text)

    def _is_whole(self, line: bytes) -> bool:
        """Return whether a line neither begins nor ends within a value."""
        try:
            self._check_line_ends(line)
        except ValueError:
            return False
        return not self._has_open_quote(line)

    def _parse_structure(
        self,
        lines: list[bytes],
        places: npt.NDArray[np.intp],  # of the whole lines
        names: list[str],
        types: dict[str, pa.DataType],
        columns: list[str],
    ) -> tuple[npt.NDArray[np.intp], pa.Table | None]:
        """Return the places of the lines with a value for each column, and these as a table.

        ``None``: the lines cannot be told apart.
        """
        for _ in range(2):
            text = b"".join([lines[place] for place in places.tolist()])
            if not text:
                return places, pa.table({name: pa.array([], types[name]) for name in columns})
            try:
                return places, self._parse_lines(text, names, types, columns)
            except ValueError:
                wrong = self._wrong_rows(text, names)
                if not wrong or max(wrong) >= len(places):
                    break
                places = np.delete(places, wrong)
        return places, None

    def _wrong_rows(self, text: bytes, names: list[str]) -> list[int]:
        """Return which rows of a text have too few or too many values."""
        wrong: list[int] = []

        def skip(row: pacsv.InvalidRow) -> str:
            wrong.append(row.number - 1)
            return "skip"

        # The handler gets texts, so it must not meet bytes that are not UTF-8.
        delimiter = str(self._parse["delimiter"]).encode()
        letter = next(each for each in b"wxyz" if each not in self._marks() + delimiter)
        text = text.translate(bytes(range(128)) + bytes([letter]) * 128)
        with contextlib.suppress(pa.ArrowException):
            self._parse_csv(text, names, dict.fromkeys(names, pa.binary()), names[:1], skip)
        return wrong

    def check_schema(self, schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_nested(field.type):
                raise SourceError(
                    f"Column {field.name!r} is of type {field.type}, and CSV has no nested values.",
                    remedy="Declare it as string, and take it apart in a map.",
                    column=field.name,
                )

    def _check_line_ends(self, text: bytes) -> None:
        """Refuse carriage returns outside of quotes that no line feed follows.

        Lines are cut at line feeds, while the parser takes such a carriage return for a line's end.
        """
        if not _has_lone_return(text):
            return
        quote, escape = self._parse["quote_char"], self._parse["escape_char"]
        if quote and str(quote).encode() in text:
            if escape:
                text = re.sub(re.escape(str(escape).encode()) + rb".", b"", text, flags=re.DOTALL)
            mark = re.escape(str(quote).encode())
            text = re.sub(mark + rb"[^" + mark + rb"]*" + mark, b"x", text)
        if _has_lone_return(text):
            raise ValueError(_CARRIAGE_RETURNS)

    def _is_blank(self, text: bytes) -> bool:
        """Return whether text has nothing but line breaks."""
        return _NO_LINES.match(text) is not None

    def _check_whole_lines(self, text: bytes) -> None:
        """Refuse text in which a line has an odd number of quotes: a value may be cut in two."""
        if self._has_open_quote(text):
            msg = "it has a quote at one end of a value alone"
            raise ValueError(msg)

    def _check_header(self, header: bytes) -> None:
        """Refuse a header line that ends within quotes."""
        if self._has_open_quote(header.rstrip(b"\r\n")):
            msg = (
                "the first line ends within quotes, and a name of the header must not have a line "
                "break: write the header on one line"
            )
            raise ValueError(msg)

    def _has_open_quote(self, text: bytes) -> bool:
        """Return whether a line of a text has an odd number of quotes."""
        quote, escape = str(self._parse["quote_char"] or "").encode(), self._parse["escape_char"]
        if not quote or quote not in text:
            return False
        if escape:
            text = text.replace(str(escape).encode() + quote, b"")
        return any(line.count(quote) % 2 for line in text.split(b"\n"))

    def _column_names(self, header: bytes) -> list[str]:
        """Parse the names of the columns from a header line; raise if two are equal.

        Columns without a name may be several: spreadsheets end lines with further delimiters.
        """
        self._check_header(header)
        names: list[str] = self._parse_csv(
            header.rstrip(b"\r\n") + b"\n", None, {}, None
        ).column_names
        twice = sorted(name for name, count in Counter(names).items() if name and count > 1)
        if twice:
            msg = f"it has several columns named {twice[0]!r}"
            raise ValueError(msg)
        return names

    def _parse_lines(
        self, text: bytes, names: list[str], types: dict[str, pa.DataType], columns: list[str]
    ) -> pa.Table:
        """Return lines of CSV as a table.

        `names`: columns of the text. `types`: of these. `columns`: those to return. Raises for line
        breaks in values if files may be cut there.
        """
        quote = self._parse["quote_char"]
        has_breaks = self._parse["newlines_in_values"]
        if has_breaks or not quote or str(quote).encode() not in text:
            return self._parse_csv(text, names, types, columns)
        hint = "if values in quotes have line breaks, give newlines_in_values=True"
        try:
            rows = self._parse_csv(text, names, types, columns)
        except pa.ArrowInvalid as error:
            msg = f"{str(error).splitlines()[0]} ({hint})"
            raise ValueError(msg) from error
        lines = text.count(b"\n") + (not text.endswith(b"\n"))
        if rows.num_rows != lines:  # of those that are blank
            lines = len(_LINE.findall(text))
        # A range that ends within quotes is parsed as if they were closed.
        last = text.rstrip(b"\r\n").rpartition(b"\n")[2] + b"\n"
        if rows.num_rows == lines:
            try:
                if self._parse_csv(last * 2, names, {}, columns[:1]).num_rows == 2:
                    return rows
            except pa.ArrowInvalid:
                pass  # two halves of lines
        msg = f"a value in quotes has a line break; {hint}"
        raise ValueError(msg)

    def _parse_csv(
        self,
        text: bytes,
        names: list[str] | None,  # of the columns in the text; ``None``: in its first line
        types: dict[str, pa.DataType],  # column → type
        columns: list[str] | None,  # those to return; ``None``: all
        handle_wrong: Callable[[pacsv.InvalidRow], str] | None = None,  # rows of other lengths
    ) -> pa.Table:
        """Return lines of CSV as a table, parsed by Arrow."""
        return pacsv.read_csv(
            io.BytesIO(text),
            pacsv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
            pacsv.ParseOptions(**self._parse, invalid_row_handler=handle_wrong),
            pacsv.ConvertOptions(
                column_types=types,
                include_columns=columns,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=self._nulls,
            ),
        )


def _has_lone_return(text: bytes) -> bool:
    """Return whether a carriage return is not followed by a line feed."""
    if b"\r" not in text:
        return False
    data = np.frombuffer(text + b" ", np.uint8)
    return bool((data[np.flatnonzero(data == _RETURN) + 1] != _NEWLINE).any())


def _check_delimiter(names: list[str], delimiter: str) -> None:
    """Raise if a header seems to have another delimiter, since no column would be found."""
    if len(names) == 1 and (others := [mark for mark in ";,\t|" if mark in names[0]]):
        msg = (
            f"its header is one column, {names[0]!r}, as columns are separated by {delimiter!r}; "
            f"give delimiter={others[0]!r}"
        )
        raise ValueError(msg)
