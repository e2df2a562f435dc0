"""JSON lines read like by Spark's reader, in each of its modes.

Blocks are parsed by Arrow as far as it agrees with Spark; other lines are looked at one by one.  A
line that is not JSON is null in each column, and a value of another type is null (``PERMISSIVE``);
such lines are left out (``DROPMALFORMED``), or raise (``FAILFAST``).
"""

from __future__ import annotations

import datetime as dt
import re
from json import JSONDecodeError, JSONDecoder
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.adopt.read_texts import (
    ROWS,
    UnsureError,
    converter,
    date_of,
    decimal_of,
    timestamp_of,
)
from godwit.columns.arrays import has_leaf
from godwit.connect.files.json_files import JsonFormat, lines_of, type_in_json
from godwit.connect.formats.message_formats import json_decoder
from godwit.connect.formats.text_values import has_names_of_numbers, has_small_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from godwit.connect.files.directory import Directory
    from godwit.connect.files.file_formats import BadLine, FileRange

    Fast = Callable[[bytes], pa.Table]

_AT_ONCE: Final = 32  # lines that are looked at one by one
_MAX_LINE: Final = 1 << 20
_MAX_SECONDS: Final = 10**10
_BLANK: Final = re.compile(r"[ \t\r\n]*")
_WORD: Final = re.compile(r"[^\s,:\[\]{}]*")
_LONG_NUMBER: Final = re.compile(r"[0-9]{900}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NAMED: Final = {
    "NaN": np.nan,
    "Infinity": np.inf,
    "-Infinity": -np.inf,
    "INF": np.inf,
    "+INF": np.inf,
    "-INF": -np.inf,
}
_decoder: Final = JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


class _NoObjectError(ValueError):
    """A line in which Spark finds no object."""


class _NoValueError(ValueError):
    """A value that does not fit a type: null in mode ``PERMISSIVE``."""


class SparkJson(JsonFormat):
    """A JSON object in each line; `mode`: Spark's, in lower case. `zone`: the session's."""

    def __init__(self, *, mode: str, zone: str) -> None:
        super().__init__(skips_bad=False)
        self._mode, self._zone = mode, zone

    def read(
        self,
        directory: Directory,
        part: FileRange,
        fields: Sequence[pa.Field],
        known: Container[str] = (),
    ) -> Iterator[pa.RecordBatch | BadLine]:
        del known  # each line has names of its own
        fields = fields or [ROWS]
        schema = pa.schema(fields)
        parse = self._arrow_parser(fields)
        for block in self._blocks(directory, part):
            if b"\r" in block and b"\r" in block.replace(b"\r\n", b"\n").removesuffix(b"\r"):
                msg = "it has a carriage return within a line"
                raise ValueError(msg)
            rows = pa.concat_tables(
                [schema.empty_table(), *self._parse_lines(lines_of(block), parse, schema)]
            )
            yield from rows.combine_chunks().to_batches()

    def _arrow_parser(self, fields: Sequence[pa.Field]) -> Fast:
        """Return the parser of blocks by Arrow; it raises ValueError where it may not agree."""
        convert = {
            f.name: converter(f.type, self._zone)
            for f in fields
            if pa.types.is_date(f.type) or pa.types.is_timestamp(f.type)
        }
        read = [*_without_times(pa.schema(fields))]
        as_text = {f.name: f.with_type(type_in_json(f.type)) for f in read}
        has_decimals = any(has_leaf(f.type, pa.types.is_decimal) for f in fields)

        def parse(text: bytes) -> pa.Table:
            """Parse lines."""
            if b"\0" in text or has_names_of_numbers(text):
                msg = "NaN or an infinity"
                raise ValueError(msg)
            if has_decimals and has_small_numbers(text):
                msg = "a small number"
                raise ValueError(msg)
            rows = self._parse_fields(read, as_text, text)
            columns = [
                convert[f.name](rows.column(f.name).combine_chunks())
                if f.name in convert
                else rows.column(f.name)
                for f in fields
            ]
            if self._mode != "permissive" and any(
                column.null_count > rows.column(f.name).null_count
                for f, column in zip(fields, columns, strict=True)
            ):
                msg = "a text that is not a time"
                raise ValueError(msg)
            return pa.table(columns, schema=pa.schema(fields))

        return parse

    def _parse_lines(
        self, lines: list[bytes], parse: Fast, schema: pa.Schema
    ) -> Iterator[pa.Table]:
        """Yield the rows of lines, in their order: those by Arrow for which it agrees with Spark.

        The others are told apart by their usual types of values, or by halves.
        """
        rows = _parse_by_arrow(lines, parse)
        if rows is not None:
            yield rows
            return
        if len(lines) <= _AT_ONCE:
            yield self._rows_by_one([*range(len(lines))], lines, schema)[1]
            return
        decode = json_decoder(_without_times(schema))
        unusual = [
            number for number, line in enumerate(lines) if not _has_usual_types(decode, line)
        ]
        left_out = {*unusual}
        usual = [number for number in range(len(lines)) if number not in left_out]
        rows = _parse_by_arrow([lines[number] for number in usual], parse) if unusual else None
        if rows is None:
            half = len(lines) // 2
            yield from self._parse_lines(lines[:half], parse, schema)
            yield from self._parse_lines(lines[half:], parse, schema)
            return
        row_numbers, unusual_rows = self._rows_by_one(unusual, lines, schema)
        order = np.argsort([*usual, *row_numbers], kind="stable")
        yield pa.concat_tables([rows, unusual_rows]).take(pa.array(order))

    def _rows_by_one(
        self, numbers: Sequence[int], lines: Sequence[bytes], schema: pa.Schema
    ) -> tuple[list[int], pa.Table]:
        """Return the rows of some lines, parsed one by one, and the numbers of their lines."""
        columns: list[list[Any]] = [[] for _ in schema]
        places = []
        for number in numbers:
            try:
                values = self._line_values(lines[number].decode(), schema)
            except UnicodeDecodeError as error:
                msg = "it has a text that is not UTF-8"
                raise ValueError(msg) from error
            if values is not None:
                places.append(number)
                for column, value in zip(columns, values, strict=True):
                    column.append(value)
        arrays = [pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)]
        return places, pa.table(arrays, schema=schema)

    def _line_values(self, line: str, schema: pa.Schema) -> list[Any] | None:
        """Return the values of a line; ``None`` if the line is skipped."""
        try:
            tokens = _member_texts(line, schema.names)
        except _NoObjectError:
            if self._mode == "failfast":
                msg = f"a line is not a JSON object: {line[:60]!r}"
                raise ValueError(msg) from None
            return None if self._mode == "dropmalformed" else [None] * len(schema)
        values = []
        for field in schema:
            try:
                member = tokens.get(field.name)
                values.append(None if member is None else self._token_value(member, field))
            except _NoValueError:
                if self._mode != "permissive":
                    text = tokens[field.name][:60]
                    msg = f"the column {field.name!r} has {text}, not of type {field.type}"
                    raise ValueError(msg) from None
                values.append(None)
        return values

    def _token_value(self, token: str, field: pa.Field) -> Any:
        """Return the value of a token; raise `_NoValueError` if it does not fit the type."""
        types, dtype = pa.types, field.type
        if token == "null":  # noqa: S105  a word of JSON
            return None
        text = scanstring(token, 1, True)[0] if token[0] == '"' else None
        if types.is_string(dtype):
            return token if text is None else text
        if types.is_boolean(dtype):
            return _not_null({"true": True, "false": False}.get(token))
        if types.is_signed_integer(dtype):
            bound = 1 << (dtype.bit_width - 1)
            if not _INTEGER.fullmatch(token) or not -bound <= int(token) < bound:
                raise _NoValueError
            return int(token)
        if types.is_float64(dtype):
            return _double_of_token(token, text)
        if types.is_decimal(dtype):
            if token[0] in "[{tf" or token in _NAMED:
                raise _NoValueError
            return _not_null(decimal_of(token if text is None else text, dtype))
        if types.is_date(dtype):
            return _not_null(None if text is None else date_of(text))
        if types.is_timestamp(dtype):
            if _INTEGER.fullmatch(token):
                return _seconds_as_timestamp(int(token))
            return _not_null(None if text is None else timestamp_of(text, self._zone))
        if types.is_nested(dtype):
            if token[0] not in "[{":
                raise _NoValueError
            line = f'{{"{field.name}": {token}}}'.encode()
            return self._arrow_parser([field])(line).column(0)[0].as_py()
        raise UnsureError(token, f"a value of type {dtype}")


def _parse_by_arrow(lines: Sequence[bytes], parse: Fast) -> pa.Table | None:
    """Return the rows of lines by Arrow; ``None`` where it may not agree with Spark."""
    if not lines:
        return None
    try:
        return parse(b"\n".join(lines))
    except UnsureError:
        raise
    except (ValueError, pa.ArrowException):
        return None


def _has_usual_types(decode: Callable[[bytes], Any], line: bytes) -> bool:
    """Return whether a line has values of the usual types."""
    try:
        decode(line)
    except Exception:  # noqa: BLE001  it is looked at by all rules
        return False
    return True


def _without_times(schema: pa.Schema) -> pa.Schema:
    """Return a schema with texts instead of dates and timestamps."""
    return pa.schema(
        [f.with_type(pa.string()) if pa.types.is_temporal(f.type) else f for f in schema]
    )


def _not_null(value: Any) -> Any:
    """Return a value that is not null."""
    if value is None:
        raise _NoValueError
    return value


def _seconds_as_timestamp(seconds: int) -> dt.datetime:
    """Return a number of seconds since 1970 as an instant."""
    if abs(seconds) > _MAX_SECONDS:
        raise UnsureError(str(seconds), "a timestamp")
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def _double_of_token(token: str, text: str | None) -> float:
    """Return a token as a double; of texts only the names of numbers are."""
    if text is not None:
        return float(_not_null(_NAMED.get(text)))
    if token in _NAMED:
        return float(_NAMED[token])
    if token[0] in "[{tf":
        raise _NoValueError
    return float(token) if "." in token or "e" in token.lower() else float(int(token))


def _member_texts(line: str, names: Sequence[str]) -> dict[str, str]:
    """Return the texts of some members of the object that a line begins with.

    Raises `_NoObjectError` where Spark's parser fails, or finds another value.
    """
    if (
        len(line) > _MAX_LINE
        or line.count("{") + line.count("[") > 500
        or _LONG_NUMBER.search(line)
    ):
        raise UnsureError(line, "an object, depending on its size")
    place = _skip_blanks(line, 0)
    if line.startswith("[", place):
        raise UnsureError(line, "several objects")
    if not line.startswith("{", place):
        raise _NoObjectError
    tokens: dict[str, str] = {}
    place = _skip_blanks(line, place + 1)
    if line.startswith("}", place):
        return tokens
    while True:
        name, place = _read_member_name(line, place)
        place = _skip_mark(line, _skip_blanks(line, place), ":")
        value, place = _read_value_text(line, _skip_blanks(line, place))
        if name in names:
            if name in tokens:
                raise UnsureError(line, "an object with a duplicate name")
            tokens[name] = value
        place = _skip_blanks(line, place)
        if line.startswith("}", place):
            return tokens
        place = _skip_blanks(line, _skip_mark(line, place, ","))


def _skip_blanks(line: str, place: int) -> int:
    """Return the place after blanks."""
    match = _BLANK.match(line, place)
    assert match is not None, "blanks are optional"
    return match.end()


def _skip_mark(line: str, place: int, mark: str) -> int:
    """Return the place after a required sign."""
    if not line.startswith(mark, place):
        raise _line_error(line, place)
    return place + 1


def _read_member_name(line: str, place: int) -> tuple[str, int]:
    """Return the name of a member, and the place after it."""
    if not line.startswith('"', place):
        raise _line_error(line, place)
    try:
        name, end = scanstring(line, place + 1, True)
    except JSONDecodeError as error:
        raise _line_error(line, error.pos) from None
    if _SURROGATE.search(name):
        raise UnsureError(line[place:], "text")
    return name, end


def _read_value_text(line: str, place: int) -> tuple[str, int]:
    """Return the text of a value, and the place after it."""
    try:
        value, end = _decoder.scan_once(line, place)  # type: ignore[attr-defined]
    except (JSONDecodeError, StopIteration) as error:
        where = error.pos if isinstance(error, JSONDecodeError) else error.value
        in_text = line.startswith('"', place) and not str(error).startswith("Unterminated")
        if in_text or line[place : place + 1] in {"[", "{"}:
            raise UnsureError(line, "an object") from None  # Spark reads on after some of them
        raise _line_error(line, where) from None
    if _SURROGATE.search(str(value)):
        raise UnsureError(line[place:], "text")
    if line[place] not in '"[{' and _WORD.match(line, end).end() > end:  # type: ignore[union-attr]
        raise _line_error(line, end)
    return line[place:end], end


def _line_error(line: str, place: int) -> ValueError:
    """Return the error of a line that is not JSON, or that only Spark might accept."""
    around = line[max(place - 1, 0) : place + 12]
    if any(mark in around for mark in ("'", "INF", "Inf", "NaN", "+")):
        return UnsureError(line, "an object")
    return _NoObjectError()
