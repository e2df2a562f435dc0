"""Files of CSV, with delimiters, quotes and escapes of the user's."""

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
from godwit.model.errors import SourceError
from godwit.sources.directory import partitions_of
from godwit.sources.file_formats import BadLine, FileRange, check_names
from godwit.sources.text_formats import (
    EXACT_DOUBLES,
    NEWLINE,
    PROBE_BYTES,
    TextFormat,
    check_calendar,
    inexact_error,
    reason_of,
    to_int,
    usual_first,
)
from godwit.sources.text_values import (
    from_text,
    has_hexadecimals,
    has_small_numbers,
    is_number,
    narrow_floats,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    import numpy.typing as npt

    from godwit.sources.directory import Directory
    from godwit.sources.text_formats import Separated

    Conversion = Callable[[pa.Array], pa.Array]


_CARRIAGE_RETURNS: Final = (
    "it has a line that ends with a carriage return alone (CR), as old programs for Macintosh "
    "write them; write it with line feeds (LF or CR LF)"
)
_VALUES_AT_ONCE: Final = 256  # among which those that cannot be read are searched for
_RETURN: Final = 0x0D
_WHOLE_NUMBER: Final = r"^\s*[+-]?\d{16,}\s*$"
_HEXADECIMAL: Final = "^[ \\t]*[+-]?0[xX]"
_LINE: Final = re.compile(rb"[^\r\n]+")
_NO_LINES: Final = re.compile(rb"[\r\n]*\Z")


def _cast(dtype: pa.DataType, array: pa.Array) -> pa.Array:
    """Return an array in a type."""
    return array.cast(dtype)


def _convert_readable(
    rows: pa.Table, converters: dict[str, Conversion]
) -> tuple[pa.Table, npt.NDArray[np.bool_], dict[int, str]]:
    """Convert columns of the rows in which this is possible.

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
    """Return the type as which Arrow is to read a column of CSV."""
    return pa.string() if is_temporal(dtype) or pa.types.is_float16(dtype) else dtype


def _is_number_or_truth(dtype: pa.DataType) -> bool:
    """Return whether values of a type are numbers or booleans."""
    return is_number(dtype) or pa.types.is_boolean(dtype)


class CsvFormat(TextFormat):
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
        while block := stream.read(PROBE_BYTES):
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
                    check_calendar(column)
                elif field.name in decimals:
                    column.validate(full=True)  # the parser takes more digits than there may be
            return rows

        def parse_as(types: dict[str, pa.DataType], lines: bytes) -> pa.Table:
            """Parse a block of lines; `types`: as which Arrow is to read the columns."""
            return convert(self._parse_lines(lines, names or [], types, present))

        from_bytes = {n: t for n, t in texts.items() if pa.types.is_string(t)}
        as_bytes = {**texts, **dict.fromkeys(from_bytes, pa.binary())}

        def separate(text: bytes) -> Separated | None:
            """Return the rows of a block, and its bad lines with reasons; ``None`` if cut badly."""
            if self._has_escaped_ends(text):
                return None
            lines, cut = self._cut_lines(text)
            places, rows = self._parse_structure(lines, cut, names or [], as_bytes, present)
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
    return bool((data[np.flatnonzero(data == _RETURN) + 1] != NEWLINE).any())


def _check_delimiter(names: list[str], delimiter: str) -> None:
    """Raise if a header seems to have another delimiter, since no column would be found."""
    if len(names) == 1 and (others := [mark for mark in ";,\t|" if mark in names[0]]):
        msg = (
            f"its header is one column, {names[0]!r}, as columns are separated by {delimiter!r}; "
            f"give delimiter={others[0]!r}"
        )
        raise ValueError(msg)
