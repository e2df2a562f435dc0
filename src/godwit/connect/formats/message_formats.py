"""Formats of messages: conversion between the bytes of a message and the columns of a row.

A format is given whole batches of messages and makes whole columns of them.  A batch that holds a
message which cannot be read is halved until that message is alone, so that each is known by its
position and its reason, and none takes others with it.  Whatever a format raises counts as the
fault of a message, except for `NOT_OF_MESSAGES`; damaged compression is a message's fault.

A message without a value (a tombstone) becomes a row whose columns are null.
"""

from __future__ import annotations

import gzip
import itertools
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, TypedDict, TypeVar

import msgspec
import pyarrow as pa

from godwit.columns.arrays import has_leaf, with_leaves
from godwit.columns.types import is_binary, is_temporal, is_text
from godwit.connect.formats.text_values import (
    TextsNeededError,
    as_json,
    exact_numbers,
    from_json,
    has_equal_keys,
    is_narrow_float,
    is_number,
)
from godwit.model.errors import GodwitError, InvalidFlowError
from godwit.model.naming import listing, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from godwit.columns.signed import Kind

Part = TypeVar("Part")

Value: TypeAlias = bytes | None
"""A message's value; ``None`` for a tombstone."""


NOT_OF_MESSAGES: Final = (GodwitError, MemoryError, OSError)
"""Errors that no message causes, such as a schema registry that does not respond."""


class UnwritableError(Exception):
    """Rows that a format cannot write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A batch of messages as rows."""

    rows: pa.RecordBatch  # those that could be read, in their order
    bad: tuple[tuple[int, str], ...]  # of each of the others: its position, and why
    # position of the message of each row; ``None``: every message that is not bad has one row
    messages: npt.NDArray[np.int64] | None = None


class MessageFormat(ABC):
    """A format of messages; picklable, with configuration only."""

    writes_any: ClassVar[bool] = False  # whether all rows of columns that it takes can be written
    reads_keys: ClassVar[bool] = False  # whether `decode` needs the keys of messages
    # Whether `encode` takes changes: rows with a sign, and the former row of each key.
    writes_changes: ClassVar[bool] = False
    max_rows: int = 1  # that a message may have
    has_tombstones: bool = False  # whether a message without a value follows each delete

    @property
    def stream_kind(self) -> Kind:
        """Kind of the rows: changes and upserts have a sign."""
        return "rows"

    @property
    def table_keys(self) -> tuple[str, ...]:
        """Columns that identify a row of the table that the messages are changes of."""
        return ()

    @property
    def writes_former(self) -> bool:
        """True if messages may also have the former row of their key."""
        return False

    @property
    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """Columns of the rows; ``None`` for a format that can only write."""

    @abstractmethod
    def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
        """Decode messages into columns; raise if a message cannot be read.

        An error of `NOT_OF_MESSAGES` stops the query, and any other goes by ``on_bad=``.
        """

    @abstractmethod
    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        """Encode each row as a message; raise `UnwritableError` if a row has no encoding."""

    def check_columns(self, schema: pa.Schema, where: str) -> None:  # noqa: B027  many take any
        """Raise `InvalidFlowError` if rows with these columns can never be written.

        `where`: the sink, for errors.
        """

    def decode(
        self,
        values: Sequence[Value],
        names: Sequence[str],
        keys: Sequence[Value] = (),  # noqa: ARG002  for formats that read them
    ) -> Decoded:
        """Decode messages to the columns `names`; return rows, and position and error of others.

        `keys`: keys of the messages, if the format `reads_keys`.
        """
        if self.schema is None:
            msg = "the format has no schema"
            raise AssertionError(msg)
        schema = pa.schema([self.schema.field(name) for name in names])

        def read(begin: int, end: int) -> pa.RecordBatch:
            return _make_batch(self.columns(values[begin:end], schema), schema, end - begin)

        readable, bad = decode_by_halves(len(values), read)
        if len(readable) == 1:
            return Decoded(rows=readable[0], bad=bad)
        no_rows = _make_batch([pa.array([], field.type) for field in schema], schema, 0)
        return Decoded(rows=pa.concat_batches([no_rows, *readable]), bad=bad)


def decode_by_halves(
    count: int, read: Callable[[int, int], Part]
) -> tuple[list[Part], tuple[tuple[int, str], ...]]:
    """Decode messages; halve a part that cannot be read until each bad message is alone.

    `read`: decodes messages from one position up to another. Returns what it returned, in order,
    and position and error of each bad message.
    """
    readable: list[Part] = []
    bad: list[tuple[int, str]] = []
    pending = [(0, count)]  # parts yet to be decoded, the next one last
    while pending:
        begin, end = pending.pop()
        try:
            readable.append(read(begin, end))
        except Exception as error:
            is_message_error = not isinstance(error, NOT_OF_MESSAGES) or _is_damage(error)
            if begin == end or not is_message_error:
                raise
            if end - begin == 1:
                bad.append((begin, error_text(error)))
            else:
                middle = (begin + end) // 2
                pending += [(middle, end), (begin, middle)]
    return readable, tuple(bad)


def _is_damage(error: Exception) -> bool:
    """Return whether an error means damaged compressed bytes, and not failed I/O.

    gzip, bz2 and Arrow say so by an `OSError` without a number.
    """
    return type(error) in (OSError, gzip.BadGzipFile) and error.errno is None  # type: ignore[attr-defined]


def _make_batch(columns: list[pa.Array], schema: pa.Schema, num_rows: int) -> pa.RecordBatch:
    """Build a record batch of `num_rows` rows, which may have no columns."""
    if not columns:  # rows without columns, which are counted anyway
        return pa.RecordBatch.from_struct_array(pa.array([{}] * num_rows, pa.struct([])))
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    if rows.num_rows != num_rows:
        msg = f"{num_rows} messages were decoded to {rows.num_rows} rows"
        raise ValueError(msg)
    return rows


def error_text(error: Exception) -> str:
    """Return the first line of a decoding error, for messages; valid as UTF-8."""
    line = next(iter(str(error).splitlines()), "") or "no reason"
    return f"{type(error).__name__}: {line[:_MAX_REASON]}".encode(errors="replace").decode()


@dataclass(frozen=True, slots=True)
class PlainMessages(MessageFormat):
    """Values as they are, in one column ``value`` of bytes or of text in UTF-8."""

    writes_any: ClassVar[bool] = True
    kind: Literal["bytes", "text"]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("value", pa.binary() if self.kind == "bytes" else pa.string())])

    def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
        """Return messages as a column of text or bytes; null for messages without a value."""
        return [pa.array(values, pa.binary()).cast(field.type) for field in schema]

    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        values: list[Value] = rows.column(0).cast(pa.large_binary()).to_pylist()
        return values

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Raise unless rows have exactly one column, of text or bytes."""
        if len(schema) == 1 and (is_text(schema.field(0).type) or is_binary(schema.field(0).type)):
            return
        raise InvalidFlowError(
            f"{where} writes values as {self.kind}, which needs exactly one column of text or "
            f"bytes; the rows have {', '.join(f'{f.name} {f.type}' for f in schema) or 'none'}.",
            remedy='Combine the columns to one in a map before the sink, or use value="json".',
        )


def check_fields(schema: pa.Schema, fields: pa.Schema, where: str, record: str) -> None:
    """Raise for columns that the record of a format (`fields`) does not have.

    `where`: the sink, for errors.
    """
    unknown = [name for name in schema.names if name not in fields.names]
    if unknown:
        raise InvalidFlowError(
            f"{where} has column {unknown[0]!r}, but {record} has no such field.",
            remedy=f"Its fields are {', '.join(fields.names)}.",
        )


class JsonMessages(MessageFormat):
    """Values as JSON objects, one field for each column.

    A field that a message lacks is null, and one that the schema lacks is left out.
    """

    writes_any: ClassVar[bool] = True

    def __init__(self, schema: pa.Schema | None) -> None:
        if schema is not None:
            _row_type(schema)  # refuses types that JSON has no form for
        self._schema = schema

    @property
    def schema(self) -> pa.Schema | None:
        return self._schema

    def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
        """Decode each message as a JSON object; fields not in the schema may have any depth."""
        if None in values:
            values = [b"{}" if value is None else value for value in values]
        try:
            return _columns_of(values, schema, "usual")
        except TextsNeededError:
            return _columns_of(values, schema, "exact")
        except msgspec.ValidationError as error:
            if "Expected `int" not in str(error) or "got `float`" not in str(error):
                raise
        try:
            return _columns_of(values, schema, "any")
        except TextsNeededError:
            return _columns_of(values, schema, "exact")

    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        """Encode each row as a JSON object, in UTF-8."""
        if not rows.num_columns:
            return [b"{}"] * rows.num_rows
        encode = msgspec.json.Encoder().encode
        try:
            columns = [python_values(column) for column in rows.columns]
            return [encode(row) for row in map(_row_type(rows.schema), *columns)]
        except NOT_OF_MESSAGES:
            raise
        except Exception as error:
            raise UnwritableError(error_text(error)) from error

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Raise if the type of a column cannot be written as JSON."""
        del where
        _row_type(schema)


_Numbers: TypeAlias = Literal["usual", "any", "exact"]
"""The decoding of numbers: integers as such; integers with a point or an exponent, too; the same,
with texts instead of narrow floats, for messages whose decoding has raised `TextsNeededError`."""


def _columns_of(values: Sequence[Value], schema: pa.Schema, numbers: _Numbers) -> list[pa.Array]:
    """Decode JSON objects into columns; raise `TextsNeededError` if only ``exact`` is right."""
    rows = _decode_objects(values, schema, numbers)
    columns = []
    for position, (field, dtype) in enumerate(zip(schema, _types_in_json(schema), strict=True)):
        cells = list(map(attrgetter(f"f{position}"), rows))
        if _needs_exact_numbers(field.type, numbers):
            cells = exact_numbers(cells, field)
        try:
            column = to_array(cells, field.name, dtype)
        except ValueError:
            exact_numbers(cells, field)  # raises for the number that does not fit
            raise
        column = column if dtype.equals(field.type) else from_json(column, field)
        if numbers != "exact" and _has_keys(field.type, _is_in_text) and has_equal_keys(column):
            raise TextsNeededError
        columns.append(column)
    return columns


def _decode_objects(values: Sequence[Value], schema: pa.Schema, numbers: _Numbers) -> list[Any]:
    """Decode messages as JSON objects."""
    decode = _json_decoder(schema, numbers).decode
    try:
        return list(map(decode, values))  # type: ignore[arg-type]
    except InvalidOperation:
        msg = "a number has an exponent of more digits than any type holds"
        raise ValueError(msg) from None
    except RecursionError:
        levels = 1 + max((_num_levels(field.type) for field in schema), default=0)
        return [_decode_deep(decode, value, levels) for value in values if value is not None]


def _needs_exact_numbers(dtype: pa.DataType, numbers: _Numbers) -> bool:
    """Return whether decoded values of a type need a conversion for Arrow."""
    if has_leaf(dtype, pa.types.is_decimal) or _has_keys(dtype, _is_number_or_truth):
        return True
    if numbers == "exact" and (has_leaf(dtype, is_narrow_float) or _has_keys(dtype, _is_in_text)):
        return True
    return numbers != "usual" and has_leaf(dtype, pa.types.is_integer)


def _has_keys(dtype: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type contains a map whose type of keys passes a test."""
    if pa.types.is_map(dtype) and test(dtype.key_type):
        return True
    return any(_has_keys(dtype.field(n).type, test) for n in range(dtype.num_fields))


def _is_number_or_truth(dtype: pa.DataType) -> bool:
    """Return whether map keys of a type are decoded to values, not to names of fields."""
    return is_number(dtype) or bool(pa.types.is_boolean(dtype))


def _is_in_text(dtype: pa.DataType) -> bool:
    """Return whether names of fields are converted to map keys of a type as a column."""
    return is_temporal(dtype) or is_binary(dtype)


class _Name(str):
    """Name of a field, unequal to any other, so that equal keys of a map are kept in order."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def json_decoder(schema: pa.Schema) -> Callable[[bytes], Any]:
    """Return the decoder of single JSON objects with a schema's usual values.

    It raises for others, also for some that `JsonMessages.columns` takes, such as ``1.0`` for an
    integer. Not every value that it decodes has the column's type.
    """
    return _json_decoder(schema, "usual").decode


@lru_cache(maxsize=64)
def _json_decoder(schema: pa.Schema, numbers: _Numbers) -> msgspec.json.Decoder[Any]:
    """Create the decoder of a schema's JSON objects; cached."""
    row = _row_type(schema, numbers)
    return msgspec.json.Decoder(row, float_hook=Decimal, dec_hook=_to_name)


def _to_name(to: type, text: str) -> Any:
    """Convert a text to `_Name`, the only type that msgspec does not support itself."""
    return to(text)


def _decode_deep(decode: Callable[[bytes], Any], value: bytes, levels: int) -> Any:
    """Decode a message of any depth; `levels`: depth of the schema."""
    try:
        return decode(value)
    except RecursionError:
        return decode(_without_levels(value, levels))


def _num_levels(dtype: pa.DataType) -> int:
    """Return how deeply lists, maps and structs are nested in a type, itself included."""
    inner = [_num_levels(dtype.field(i).type) for i in range(dtype.num_fields)]
    if pa.types.is_map(dtype):  # its field is a struct, which JSON does not have
        return max(inner)
    return 1 + max(inner, default=0) if inner or pa.types.is_struct(dtype) else 0


_MAX_REASON: Final = 500  # characters of an error
# A text without an end goes to the end, lest each of its quotes begin another one.
_MARKS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{\]}]', re.DOTALL)
_CUT: Final = 32  # levels that are decoded together, of those that are not kept


def max_level(text: bytes) -> int:
    """Return how deeply lists and objects are nested in a JSON text."""
    level = highest = 0
    for mark in _MARKS.finditer(text):
        if mark[0] in b"[{":
            level += 1
            highest = max(highest, level)
        elif mark[0] in b"]}":
            level -= 1
    return highest


def _without_levels(text: bytes, levels: int) -> bytes:
    """Return a JSON text without values deeper than `levels`; raise if it is not valid.

    No recursion: the nested parts are decoded `_CUT` levels at a time, the innermost first.
    """
    parts: list[list[bytes]] = [[]]
    level = done = 0
    for mark in _MARKS.finditer(text):
        sign = mark[0]
        if sign in b"[{":
            level += 1
            if level > levels and (level - levels) % _CUT == 1:
                parts[-1].append(text[done : mark.start()])
                parts.append([])
                done = mark.start()
        elif sign in b"]}":
            if level > levels and (level - levels) % _CUT == 1:
                inner = b"".join([*parts.pop(), text[done : mark.end()]])
                msgspec.json.decode(inner, type=msgspec.Raw)
                parts[-1].append(b"[]" if inner[:1] == b"[" else b"{}")
                done = mark.end()
            level -= 1
    return b"".join([*itertools.chain.from_iterable(parts), text[done:]])


@lru_cache(maxsize=64)
def _row_type(schema: pa.Schema, numbers: _Numbers = "usual") -> Any:
    """Return the msgspec class of a schema's JSON objects, with fields f0, f1, ..."""
    types = [_json_type(field, numbers) for field in schema]
    fields = [(f"f{i}", _or_null(python), None) for i, python in enumerate(types)]
    names = {f"f{i}": field.name for i, field in enumerate(schema)}
    return msgspec.defstruct("Row", fields, rename=names, gc=False)


def _or_null(python: Any) -> Any:
    """Return a msgspec type that also accepts null."""
    return python if python is msgspec.Raw else python | None  # the text of null is one


@lru_cache(maxsize=64)
def _types_in_json(schema: pa.Schema) -> list[pa.DataType]:
    """Return the types of a schema's columns, as they are in JSON."""
    return [with_leaves(field.type, as_json) for field in schema]


_JSON_TYPES: Final = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (is_binary, str),  # Base64
    (is_temporal, str),  # ISO 8601
    (pa.types.is_decimal, Any),  # a number or a text; `exact_numbers` has the rule
)


def _json_type(field: pa.Field, numbers: _Numbers) -> Any:
    """Return the Python type that msgspec decodes a column to; raise if JSON has none."""
    dtype = field.type
    if pa.types.is_integer(dtype) and numbers != "usual":
        return Any
    if is_narrow_float(dtype) and numbers == "exact":
        return msgspec.Raw
    for matches, python in _JSON_TYPES:
        if matches(dtype):
            return python
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        item = _json_type(dtype.value_field, numbers)
        return list[_or_null(item)]  # type: ignore[misc]
    if pa.types.is_struct(dtype):
        inner = {part.name: _or_null(_json_type(part, numbers)) for part in dtype}
        return TypedDict("Inner", inner, total=False)  # type: ignore[operator]
    if pa.types.is_map(dtype):
        _json_type(dtype.key_field, numbers)  # raises if a name has no such form
        is_ordered = numbers == "exact" or _is_number_or_truth(dtype.key_type)
        key: type[str] = _Name if is_ordered else str
        item = _json_type(dtype.item_field, numbers)
        return dict[key, _or_null(item)]  # type: ignore[misc,valid-type]
    raise InvalidFlowError(
        f"Column {field.name!r} of type {dtype} cannot be written as JSON.",
        remedy="Cast it in a map, or use another format.",
    )


def to_array(values: Sequence[Any], name: str, dtype: pa.DataType) -> pa.Array:
    """Return a column's values as an array; raise with its name if one does not fit the type."""
    try:
        return pa.array(values, dtype)
    except MemoryError:
        raise
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        msg = f"field {name!r}: {error}"
        raise ValueError(msg) from None


def python_values(column: pa.Array) -> list[Any]:
    """Return a column's values as Python values that msgspec can encode."""
    if not _has_maps(column.type):
        values: list[Any] = column.to_pylist()
        return values
    return [_maps_to_dicts(value, column.type) for value in column.to_pylist()]


def _has_maps(dtype: pa.DataType) -> bool:
    """Return whether a type contains maps."""
    if pa.types.is_map(dtype):
        return True
    return any(_has_maps(dtype.field(i).type) for i in range(dtype.num_fields))


def _maps_to_dicts(value: Any, dtype: pa.DataType) -> Any:
    """Return a value of Arrow type `dtype` with its maps, which are lists of pairs, as dicts."""
    if value is None:
        return None
    if pa.types.is_map(dtype):
        return {key: _maps_to_dicts(item, dtype.item_type) for key, item in value}
    if pa.types.is_struct(dtype):
        return {field.name: _maps_to_dicts(value[field.name], field.type) for field in dtype}
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        return [_maps_to_dicts(item, dtype.value_type) for item in value]
    return value


_BY_NAME: Final[dict[str, MessageFormat]] = {
    "bytes": PlainMessages("bytes"),
    "text": PlainMessages("text"),
    "json": JsonMessages(None),
}


def as_format(value: object, where: str) -> MessageFormat:
    """Return a user's message format, given by name or as an object; raise if it is not one.

    `where`: the source or sink, for errors.
    """
    if isinstance(value, MessageFormat):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]  # they hold nothing
    raise InvalidFlowError(
        f"{where}: {value!r} is not a format of messages."
        if isinstance(value, str)
        else f"{where}: a value of type {type_name(value)} is not a format of messages.",
        remedy=f"Give {listing(sorted(map(repr, _BY_NAME)))}, or a format such as "
        'gw.formats.json("plane string, delay double").',
    )
