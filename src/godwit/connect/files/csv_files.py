"""CSV files, with the user's delimiters, quotes and escapes."""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from godwit.columns.arrays import values_of
from godwit.columns.types import is_date_or_timestamp, is_temporal
from godwit.connect.files.directory import partitions_of
from godwit.connect.files.file_formats import BadLine, FileRange, check_names
from godwit.connect.files.magic_numbers import check_is_text
from godwit.connect.files.text_formats import (
    EXACT_DOUBLES,
    MARK,
    NEWLINE,
    PROBE_BYTES,
    TextFormat,
    check_calendar,
    inexact_error,
    reason_of,
    to_int,
    usual_first,
)
from godwit.connect.formats.text_values import (
    from_text,
    has_hexadecimals,
    has_small_numbers,
    is_number,
    narrow_floats,
)
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    import numpy.typing as npt

    from godwit.connect.files.directory import Directory
    from godwit.connect.files.text_formats import Separated

    Conversion = Callable[[pa.Array], pa.Array]


_CARRIAGE_RETURNS: Final = (
    "it has a line that ends with a carriage return only (CR); write it with line feeds (LF or "
    "CR LF)"
)
_VALUES_AT_ONCE: Final = 256  # among which those that cannot be read are searched for
_RETURN: Final = 0x0D
_WHOLE_NUMBER: Final = r"^\s*[+-]?\d{16,}\s*$"
_HEXADECIMAL: Final = "^[ \\t]*[+-]?0[xX]"
_LINE: Final = re.compile(rb"[^\r\n][^\n]*")  # that is not blank
_NO_LINES: Final = re.compile(rb"[\r\n]*\Z")


def _cast(dtype: pa.DataType, array: pa.Array) -> pa.Array:
    """Return an array in a type."""
    return array.cast(dtype)


def _convert_readable(
    rows: pa.Table, converters: dict[str, Conversion]
) -> tuple[pa.Table, npt.NDArray[np.bool_], dict[int, str]]:
    """Convert columns, for the rows whose values can be converted.

    Returns them, which rows they are, and the others' reasons, of the first column that has any.
    """
    is_good, reasons = np.ones(rows.num_rows, bool), dict[int, str]()
    later: dict[str, Conversion] = {}
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


def _bad_values(column: pa.Array, convert: Conversion) -> dict[int, str]:
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
                reasons[start] = reason_of(error)
            else:
                half = (len(part) + 1) // 2
                parts += [(start, half), (start + half, len(part) - half)]
    is_bad = np.zeros(len(values) + 1, bool)  # the last is null
    is_bad[[*reasons]] = True
    places = values_of(encoded.indices.fill_null(len(values)))
    return {row: reasons[places[row]] for row in np.flatnonzero(is_bad[places]).tolist()}


def _type_in_csv(dtype: pa.DataType) -> pa.DataType:
    """Return the type that Arrow is to read a CSV column as."""
    return pa.string() if is_temporal(dtype) or pa.types.is_float16(dtype) else dtype


def _is_number_or_truth(dtype: pa.DataType) -> bool:
    """Return whether values of a type are numbers or booleans."""
    return is_number(dtype) or pa.types.is_boolean(dtype)


class CsvFormat(TextFormat):
    """Comma-separated values, or values with another delimiter.

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
                    f"A CSV source has {option}={value!r}.",
                    remedy="Give one ASCII character.",
                )
        if isinstance(null_values, str) or not all(isinstance(v, str) for v in null_values):
            raise SourceError(
                f"A CSV source has null_values={null_values!r}.",
                remedy='Give a list of strings, such as ["", "NA"].',
            )
        if newlines_in_values and skips_bad:
            raise SourceError(
                "A CSV source has newlines_in_values=True, so single lines cannot be skipped.",
                remedy='Omit newlines_in_values=True, or use on_bad="refuse".',
            )
        self._parse = {
            "delimiter": delimiter,
            "quote_char": False if quote is None else quote,
            "escape_char": False if escape is None else escape,
            "newlines_in_values": newlines_in_values,
        }
        self._quote, self._escape = (quote or "").encode(), (escape or "").encode()
        self._joining = [mark for mark in (self._quote, self._escape, b"\r") if mark]
        self._set_patterns(delimiter.encode(), newlines_in_values)
        self._columns = None if columns is None else list(columns)
        self._nulls = list(null_values)
        self.cuttable = not newlines_in_values

    def _set_patterns(self, delimiter: bytes, newlines_in_values: bool) -> None:
        """Compile the patterns for checking lines, which split lines as Arrow's parser does.

        Only a quote at the begin of a value begins quotes, and one within them is doubled.
        """
        mark, escape = re.escape(self._quote), re.escape(self._escape)
        breaks = b"" if newlines_in_values else rb"\n"
        self._escaped, literal = None, b""
        if escape:
            self._escaped = re.compile(escape + rb".", 0 if breaks else re.DOTALL)
            literal = rb"|" + escape + rb"."
        value = rb"(?:[^%b%b\r\n]%b)*+" % (re.escape(delimiter), escape, literal)
        self._quoted = None
        if mark:
            inner = rb"%b(?:[^%b%b%b]|%b%b" % (mark, mark, escape, breaks, mark, mark)
            self._quoted = re.compile(
                rb"(?:\A|(?<=[%b\r\n]))%b)*+%b" % (re.escape(delimiter), inner, mark)
            )
            value = rb"(?:%b%b)*+%b|(?!%b))%b" % (inner, literal, mark, mark, value)
        self._line_shape = re.compile(
            rb"%b(?:%b%b)*+(?:\r?\n)?" % (value, re.escape(delimiter), value)
        )

    def _first_line(self, stream: Any) -> int:
        """Return the offset of the first line after the header."""
        return len(self._header(stream)) if self._columns is None else 0

    def _header(self, stream: Any) -> bytes:
        """Return the bytes of the first line, read from a stream."""
        stream.seek(0)
        parts = list[bytes]()
        while block := stream.read(PROBE_BYTES):
            if not parts:
                check_is_text(block)
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
                if abs(to_int(text.strip())) > EXACT_DOUBLES:
                    raise inexact_error(to_int(text.strip()), name)
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
        """Return the quote and the escape character, which may occur within a value."""
        return self._quote + self._escape

    def read(
        self,
        directory: Directory,
        part: FileRange,
        fields: Sequence[pa.Field],
        known: Container[str] = (),
    ) -> Iterator[pa.RecordBatch | BadLine]:
        file, names, is_text = part.file, self._columns, False
        if names is not None:
            of_directories = partitions_of(file)
            names = [name for name in names if name not in of_directories]
        elif self._is_divisible(directory, file):
            with directory.filesystem.open_input_file(directory.full_path(file.path)) as stream:
                header = self._header(stream)
            self._check_line_ends(header)
            names = self._column_names(header)
            if part.stop is not None and part.stop <= len(header):
                return
            part, is_text = replace(part, start=max(part.start, len(header))), True
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
                    check_calendar(column)
                elif field.name in decimals:
                    column.validate(full=True)  # the parser takes more digits than there may be
            return rows

        def parse_as(types: dict[str, pa.DataType], lines: bytes) -> pa.Table:
            """Parse a block of lines; `types`: those that Arrow is to read the columns as."""
            return convert(self._parse_lines(lines, names or [], types, present))

        from_bytes = {n: t for n, t in texts.items() if pa.types.is_string(t)}
        as_bytes = {**texts, **dict.fromkeys(from_bytes, pa.binary())}

        def separate(text: bytes) -> Separated | None:
            """Return the rows of a block, and its bad lines with reasons; ``None`` if cut badly."""
            lines = [line for line in io.BytesIO(text) if not self._is_blank(line)]
            places, rows = self._parse_structure(lines, names or [], as_bytes, present)
            if rows is None:
                return None
            decode: dict[str, Conversion] = {
                n: partial(_cast, t) for n, t in from_bytes.items() if n in present
            }
            rows, is_text, _ = _convert_readable(rows, decode)
            places = places[is_text]
            parse: dict[str, Conversion] = {
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

        parse_all = usual_first(
            partial(parse_as, types), partial(parse_as, {**types, **usual}) if usual else None
        )

        def parsed(lines: bytes, by_rules: bool) -> pa.Table:
            """Parse a block of lines: numbers by Arrow if it is exact, else as texts."""
            self._check_line_ends(lines)
            if texts == types:
                return parse_all(lines)
            by_rules = by_rules or bool(decimals and has_small_numbers(lines, marks))
            if not by_rules and not (has_integers and has_hexadecimals(lines, marks)):
                with contextlib.suppress(ValueError):
                    return parse_all(lines)
            return parse_as(texts, lines)

        for block in self._blocks(directory, part, is_text=is_text):
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

    def _is_whole(self, line: bytes) -> bool:
        """Return whether a line is one row: its quotes are paired, without a line break inside."""
        if not any(mark in line for mark in self._joining):
            return True
        return self._line_shape.fullmatch(line) is not None and not self._has_odd_quotes(line)

    def _parse_structure(
        self,
        lines: list[bytes],
        names: list[str],
        types: dict[str, pa.DataType],
        columns: list[str],
    ) -> tuple[npt.NDArray[np.intp], pa.Table | None]:
        """Return the places of the lines with a value for each column, and these as a table.

        ``None``: the lines cannot be told apart.
        """
        all_lines = b"".join(lines)
        places = [*range(len(lines))]
        if self._has_odd_quotes(all_lines) or _has_lone_return(all_lines):
            places = [number for number in places if self._is_whole(lines[number])]
        for _ in range(3):
            text = b"".join([lines[place] for place in places])
            if not text:
                return np.array([], np.intp), pa.table(
                    {number: pa.array([], types[number]) for number in columns}
                )
            try:
                return np.array(places, np.intp), self._parse_lines(text, names, types, columns)
            except ValueError:
                bad_positions = [
                    number
                    for number, place in enumerate(places)
                    if not self._is_whole(lines[place])
                ]
                bad_positions = bad_positions or self._wrong_rows(text, names)
                if not bad_positions or max(bad_positions) >= len(places):
                    break
                left_out = {*bad_positions}
                places = [place for number, place in enumerate(places) if number not in left_out]
        return np.array(places, np.intp), None

    def _ends_in_escape(self, text: bytes) -> bool:
        """Return whether a line of a text ends in an escape character, not escaped itself."""
        escape = self._escape
        if not escape or not (escape + b"\n" in text or text.endswith(escape)):
            return False
        pattern = rb"(?<!%b)(?:%b%b)*%b(?:\n|\Z)".replace(b"%b", re.escape(escape))
        return re.search(pattern, text) is not None

    def _wrong_rows(self, text: bytes, names: list[str]) -> list[int]:
        """Return which rows of a text have too few or too many values."""
        row_numbers: list[int] = []

        def skip(row: pacsv.InvalidRow) -> str:
            row_numbers.append(row.number - 1)
            return "skip"

        # The handler gets texts, so it must not meet bytes that are not UTF-8.
        delimiter = str(self._parse["delimiter"]).encode()
        filler = next(byte for byte in b"wxyz" if byte not in self._marks() + delimiter)
        text = text.translate(bytes(range(128)) + bytes([filler]) * 128)
        with contextlib.suppress(pa.ArrowException):
            self._parse_csv(text, names, dict.fromkeys(names, pa.binary()), names[:1], skip)
        return row_numbers

    def check_schema(self, schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_nested(field.type):
                raise SourceError(
                    f"Column {field.name!r} is of type {field.type}, and CSV has no nested values.",
                    remedy="Declare it as string, and parse it in a map.",
                    column=field.name,
                )

    def _check_line_ends(self, text: bytes) -> None:
        """Refuse carriage returns, outside of quotes, without a line feed after them.

        Lines are cut at line feeds, while the parser takes such a carriage return for a line's end.
        """
        if not _has_lone_return(text):
            return
        if self._escaped is not None:
            text = self._escaped.sub(b"x", text)
        if self._quoted is not None:
            text = self._quoted.sub(b"x", text)
        if _has_lone_return(text):
            raise ValueError(_CARRIAGE_RETURNS)

    def _is_blank(self, text: bytes) -> bool:
        """Return whether text has nothing but line breaks."""
        return _NO_LINES.match(text) is not None

    def _check_lines(self, text: bytes) -> None:
        """Refuse text in which a line has an odd number of quotes: it may be half a value."""
        if self._has_odd_quotes(text):
            msg = "it has a quote at only one end of a value"
            raise ValueError(msg)

    def _check_header(self, header: bytes) -> None:
        """Refuse a header line that ends within quotes."""
        if self._has_odd_quotes(header.rstrip(b"\r\n")):
            msg = (
                "the first line ends within quotes, but a name in the header must not have a "
                "line break: write the header on one line"
            )
            raise ValueError(msg)

    def _has_odd_quotes(self, text: bytes) -> bool:
        """Return whether a line of a text has an odd number of quotes that are not escaped."""
        quote = self._quote
        if not quote or quote not in text:
            return False
        if self._escaped is not None and self._escape in text:
            text = self._escaped.sub(b"", text)
        if text.count(quote) % 2:
            return True
        if text.find(b"\n", 0, -1) < 0:
            return False
        data = np.frombuffer(text, np.uint8)
        is_odd = _parities(_packed(data == quote[0]))  # of the quotes up to each byte
        return bool((is_odd & _packed(data == NEWLINE)).any())

    def _column_names(self, header: bytes) -> list[str]:
        """Parse the names of the columns from a header line; raise if two are equal.

        Columns without a name may be several: spreadsheets end lines with further delimiters.
        """
        self._check_header(header)
        line = header.removeprefix(MARK).rstrip(b"\r\n") + b"\n"
        names: list[str] = self._parse_csv(line, None, {}, None).column_names
        twice = sorted(name for name, count in Counter(names).items() if name and count > 1)
        if twice:
            msg = f"several columns are named {twice[0]!r}"
            raise ValueError(msg)
        return names

    def _parse_lines(
        self, text: bytes, names: list[str], types: dict[str, pa.DataType], columns: list[str]
    ) -> pa.Table:
        """Return lines of CSV as a table.

        `names`: columns of the text. `types`: of these. `columns`: those to return. Raises for line
        breaks in values if files may be cut there.
        """
        if self._parse["newlines_in_values"]:
            return self._parse_csv(text, names, types, columns)
        if self._ends_in_escape(text):
            msg = (
                "an escape character precedes a line break; if values have line breaks, pass "
                "newlines_in_values=True"
            )
            raise ValueError(msg)
        if not self._quote or self._quote not in text:
            return self._parse_csv(text, names, types, columns)
        hint = "if quoted values have line breaks, pass newlines_in_values=True"
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
        msg = f"a quoted value has a line break; {hint}"
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
        if text.startswith(MARK):
            text = MARK + text  # Arrow leaves one out
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


def _packed(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """Return a mask as words of 64 bits, from the lowest bit on."""
    octets = np.packbits(mask, bitorder="little")
    return np.pad(octets, (0, -len(octets) % 8)).view("<u8").astype(np.uint64, copy=False)


def _parities(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return bits that are set where the number of bits up to there, in all words, is odd."""
    for shift in (1, 2, 4, 8, 16, 32):
        words = words ^ words << np.uint64(shift)
    before = np.bitwise_xor.accumulate(words >> np.uint64(63))
    words[1:] ^= np.uint64(0) - before[:-1]  # all bits, where the words before have an odd number
    return words


def _has_lone_return(text: bytes) -> bool:
    """Return whether a carriage return is not followed by a line feed."""
    if b"\r" not in text:
        return False
    data = np.frombuffer(text + b" ", np.uint8)
    return bool((data[np.flatnonzero(data == _RETURN) + 1] != NEWLINE).any())


def _check_delimiter(names: list[str], delimiter: str) -> None:
    """Raise if the header seems to have another delimiter."""
    if len(names) == 1 and (others := [mark for mark in ";,\t|" if mark in names[0]]):
        msg = (
            f"its header has only one column, {names[0]!r}, with the delimiter {delimiter!r}; "
            f"pass delimiter={others[0]!r}"
        )
        raise ValueError(msg)
