"""JSON files with one object per line."""

from __future__ import annotations

import io
import json
import re
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.json as pajson

from godwit.columns.arrays import has_leaf, leaves_of, with_leaves
from godwit.columns.types import is_instant, is_list
from godwit.connect.files.text_formats import (
    EXACT_DOUBLES,
    TextFormat,
    check_calendar,
    inexact_error,
    reason_of,
    to_int,
    usual_first,
)
from godwit.connect.formats.message_formats import (
    NOT_OF_MESSAGES,
    JsonMessages,
    error_text,
    json_decoder,
    max_level,
)
from godwit.connect.formats.text_values import (
    as_json,
    from_json,
    has_names_of_numbers,
    has_negative_zeros,
    has_small_numbers,
    has_whole_negative_zeros,
)
from godwit.connect.formats.time_texts import has_offset
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from godwit.connect.files.directory import Directory
    from godwit.connect.files.file_formats import BadLine, FileRange
    from godwit.connect.files.text_formats import Separated


_NO_LINES_OF_OBJECTS: Final = (
    "a line is not one JSON object in braces: each line must have exactly one complete object"
)
_MAX_LEVELS: Final = 100  # of a type that is inferred
_NOT_OBJECT: Final = re.compile(rb"\s*[^{\s]")
_NOT_OBJECT_LATER: Final = re.compile(rb"\n[ \t\r]*[^{\s]")


class _LinesError(ValueError):
    """A text whose lines are not JSON objects."""


class JsonFormat(TextFormat):
    """One JSON object per line; other lines are refused, wherever a file is split."""

    name = "JSON"
    has_columns = False

    def check_schema(self, schema: pa.Schema) -> None:
        JsonMessages(schema)  # refuses types that JSON has no form for

    def _parse_fields(
        self, fields: Sequence[pa.Field], read_as: dict[str, pa.Field], text: bytes
    ) -> pa.Table:
        """Parse lines; `read_as`: the fields with the types that Arrow is to read.

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
                check_calendar(column)
        return rows

    def _infer(self, block: bytes) -> pa.Schema:
        text = block
        if any(map(_is_deep, text.split(b"\n"))):
            raise SourceError(
                f"The first file has values that are nested more than {_MAX_LEVELS} levels deep.",
                remedy="Give schema=, with the columns that you need.",
            )
        try:
            schema = _parse_objects(text, None).schema
        except pa.ArrowInvalid as error:
            if "specified twice" not in str(error):
                raise
            objects = [_loads(line) for line in lines_of(text)]  # the last of two values counts
            text = b"\n".join(json.dumps(each).encode() for each in objects)
            schema = _parse_objects(text, None).schema
        unclear = [f.name for f in schema if has_leaf(f.type, _is_inferred_otherwise)]
        if not unclear:
            return schema
        objects = [_loads(line) for line in lines_of(text)]
        for name in unclear:
            place, values = schema.get_field_index(name), [row.get(name) for row in objects]
            dtype = _infer_exactly(schema.field(place).type, values, name)
            schema = schema.set(place, pa.field(name, dtype))
        return schema

    def _block_parser(self, fields: Sequence[pa.Field]) -> Callable[[bytes, bool], pa.Table]:
        """Return the parser of blocks of lines, see `_parse_readable`."""
        schema = pa.schema(fields)
        messages = JsonMessages(schema)
        has_maps = any(map(_has_maps, fields))  # Arrow's parser has none
        has_decimals = any(has_leaf(field.type, pa.types.is_decimal) for field in fields)
        as_text = {column.name: column.with_type(type_in_json(column.type)) for column in fields}
        instants = {column.name: column for column in fields if is_instant(column.type)}
        parse_all = usual_first(
            partial(self._parse_fields, fields, as_text),
            partial(self._parse_fields, fields, {**as_text, **instants}) if instants else None,
        )

        def parsed(text: bytes, by_rules: bool) -> pa.Table:
            """Parse a block of lines: by Arrow if it is exact, else as messages are parsed."""
            by_rules = by_rules or has_maps or (has_decimals and has_small_numbers(text))
            # Arrow takes a NUL for the end of the text.
            if not by_rules and b"\0" not in text and not has_names_of_numbers(text):
                try:
                    return parse_all(text)
                except _LinesError:
                    raise
                except ValueError:
                    pass  # messages have the rule
            try:
                columns = messages.columns(lines_of(text), schema)
            except NOT_OF_MESSAGES:
                raise
            except UnicodeDecodeError as error:
                msg = "it has a text that is not UTF-8"
                raise ValueError(msg) from error
            except Exception as error:
                raise ValueError(error_text(error).partition(": ")[2]) from error
            return pa.table(columns, schema=schema)

        return parsed

    def read(
        self,
        directory: Directory,
        part: FileRange,
        fields: Sequence[pa.Field],
        known: Container[str] = (),
    ) -> Iterator[pa.RecordBatch | BadLine]:
        del known  # each line has names of its own
        schema = pa.schema(fields)
        parsed = self._block_parser(fields)
        decode = json_decoder(schema)

        def is_usual(line: bytes) -> bool:
            """Return whether a line is an object whose values have the usual form."""
            try:
                decode(line)
            except NOT_OF_MESSAGES:
                raise
            except Exception:  # noqa: BLE001  the line is parsed by all rules
                return False
            return True

        def separate(text: bytes) -> Separated:
            """Return the rows of a block, and its bad lines with reasons."""
            lines, reasons = lines_of(text), dict[int, str]()

            def parse_readable(places: list[int], by_rules: bool) -> Iterator[pa.Table]:
                """Yield the rows of lines; halve them if one of them is bad."""
                try:
                    if places:
                        yield parsed(b"\n".join([lines[place] for place in places]), by_rules)
                except (ValueError, pa.ArrowException) as error:
                    if len(places) == 1:
                        reasons[places[0]] = reason_of(error)
                        return
                    half = len(places) // 2
                    yield from parse_readable(places[:half], True)
                    yield from parse_readable(places[half:], True)

            unusual = [number for number, line in enumerate(lines) if not is_usual(line)]
            deque(parse_readable(unusual, True), maxlen=0)  # for the reasons alone
            readable = [number for number in range(len(lines)) if number not in reasons]
            rows = pa.concat_tables([schema.empty_table(), *parse_readable(readable, False)])
            return rows, [(lines[number], reason) for number, reason in sorted(reasons.items())]

        for block in self._blocks(directory, part):
            if not fields:  # only the number of rows is asked for
                yield pa.RecordBatch.from_arrays([pa.nulls(len(lines_of(block)))], [""])
                continue
            yield from self._parse_readable(block, parsed, separate)


def _has_negative_zeros(column: pa.Array) -> bool:
    """Return whether a column has a negative zero, at any depth."""
    return any(
        has_negative_zeros(leaf) for leaf in leaves_of(column) if pa.types.is_floating(leaf.type)
    )


def type_in_json(dtype: pa.DataType) -> pa.DataType:
    """Return the type that Arrow is to read a JSON column as."""
    return with_leaves(dtype, lambda leaf: leaf if pa.types.is_float32(leaf) else as_json(leaf))


def _has_maps(field: pa.Field) -> bool:
    """Return whether a column is, or contains, a map."""
    inner = field.type
    return pa.types.is_map(inner) or any(_has_maps(inner.field(n)) for n in range(inner.num_fields))


def _is_inferred_otherwise(dtype: pa.DataType) -> bool:
    """Return whether Arrow infers a type for JSON values that does not hold them exactly."""
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
        elements = [element for value in values if isinstance(value, list) for element in value]
        return pa.list_(_infer_exactly(dtype.value_type, elements, column))
    if pa.types.is_struct(dtype):
        objects = [value for value in values if isinstance(value, dict)]
        fields = [dtype.field(number) for number in range(dtype.num_fields)]
        parts = {field.name: [element.get(field.name) for element in objects] for field in fields}
        types = [
            _infer_exactly(field.type, parts[field.name], f"{column}.{field.name}")
            for field in fields
        ]
        return pa.struct(
            [field.with_type(inferred) for field, inferred in zip(fields, types, strict=True)]
        )
    if pa.types.is_floating(dtype):
        inexact = [
            number for number in values if isinstance(number, int) and abs(number) > EXACT_DOUBLES
        ]
        if inexact:
            raise inexact_error(inexact[0], column)
    elif pa.types.is_timestamp(dtype):
        offsets = {has_offset(text) for text in values if isinstance(text, str)}
        if len(offsets) > 1:
            return pa.string()
        return pa.timestamp("us", "UTC") if offsets == {True} else dtype
    return dtype


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


def lines_of(text: bytes) -> list[bytes]:
    """Return the lines of a text that are not blank."""
    return [line for line in text.split(b"\n") if line and not line.isspace()]


def _loads(line: bytes) -> Any:
    """Parse a line of JSON; very long integers are cut to their first digits."""
    return json.loads(line, parse_int=to_int)


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
