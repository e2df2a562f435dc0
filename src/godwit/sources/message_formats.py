"""Formats of messages: the bytes of a broker's message, to and from the columns of a row.

A format is given whole batches of messages and makes whole columns of them.  A batch that holds a
message which cannot be read is read again one by one, so that each of those is known by its
position and its reason, and none takes others with it.

A message without a value (a tombstone) becomes a row whose columns are null.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, TypedDict

import msgspec
import pyarrow as pa

from godwit.columns.nested import with_leaves
from godwit.columns.time_texts import is_time
from godwit.columns.types import is_binary, is_text
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import listing, type_name
from godwit.sources.json_values import as_json, from_json

if TYPE_CHECKING:
    from collections.abc import Sequence


Value: TypeAlias = bytes | None
"""A message's value; ``None`` for a tombstone."""


class UnwritableError(Exception):
    """Rows that a format cannot write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A batch of messages as rows."""

    rows: pa.RecordBatch  # those that could be read, in their order
    bad: tuple[tuple[int, str], ...]  # of each of the others: its position, and why


class MessageFormat(ABC):
    """A format of messages; picklable, and made with configuration only."""

    writes_any: ClassVar[bool] = False  # whether all rows of columns that it takes can be written
    failures: ClassVar[tuple[type[Exception], ...]] = (
        *(pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError, EOFError),
    )  # errors that a message which cannot be read raises

    @property
    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """Columns of the rows; ``None`` for a format that can only write."""

    @abstractmethod
    def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
        """Decode messages into columns; raise one of `failures` if a message cannot be read."""

    @abstractmethod
    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        """Encode each row as a message; raise `UnwritableError` if a row has no encoding."""

    def check_columns(self, schema: pa.Schema, where: str) -> None:  # noqa: B027  many take any
        """Raise `InvalidFlowError` if rows with these columns can never be written.

        `where`: the sink, for errors.
        """

    def decode(self, values: Sequence[Value], names: Sequence[str]) -> Decoded:
        """Decode messages to the columns `names`; return rows, and position and error of others."""
        if self.schema is None:
            msg = "the format has no schema"
            raise AssertionError(msg)
        schema = pa.schema([self.schema.field(name) for name in names])
        try:
            return Decoded(
                rows=_make_batch(self.columns(values, schema), schema, len(values)), bad=()
            )
        except self.failures:
            return self._decode_each(values, schema)

    def _decode_each(self, values: Sequence[Value], schema: pa.Schema) -> Decoded:
        """Decode messages one by one; return rows, and the messages that cannot be read."""
        readable: list[pa.RecordBatch] = []
        bad: list[tuple[int, str]] = []
        for position, value in enumerate(values):
            try:
                readable.append(_make_batch(self.columns([value], schema), schema, 1))
            except self.failures as error:
                bad.append((position, _error_text(error)))
        none = _make_batch([pa.array([], field.type) for field in schema], schema, 0)
        return Decoded(rows=pa.concat_batches([none, *readable]), bad=tuple(bad))


def _make_batch(columns: list[pa.Array], schema: pa.Schema, num_rows: int) -> pa.RecordBatch:
    """Build a record batch of `num_rows` rows, which may have no columns."""
    if not columns:  # rows without columns, which are counted all the same
        return pa.RecordBatch.from_struct_array(pa.array([{}] * num_rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _error_text(error: Exception) -> str:
    """Return the text of a decoding error, for messages."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'}"


@dataclass(frozen=True, slots=True)
class PlainMessages(MessageFormat):
    """Values as they are, in one column ``value`` of bytes or of text in UTF-8."""

    writes_any: ClassVar[bool] = True
    kind: Literal["bytes", "text"]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("value", pa.binary() if self.kind == "bytes" else pa.string())])

    def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
        """Return messages as a column of text or bytes; null where there is no value."""
        return [pa.array(values, pa.binary()).cast(field.type) for field in schema]

    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        values: list[Value] = rows.column(0).cast(pa.large_binary()).to_pylist()
        return values

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Raise unless rows have exactly one column, of text or bytes."""
        if len(schema) == 1 and (is_text(schema.field(0).type) or is_binary(schema.field(0).type)):
            return
        raise InvalidFlowError(
            f"{where} is to write values as {self.kind}, which takes one column of text or bytes; "
            f"the rows have {', '.join(f'{f.name} {f.type}' for f in schema) or 'none'}.",
            remedy='Make one column in a map before the sink, or use value="json".',
        )


def check_fields(schema: pa.Schema, fields: pa.Schema, where: str, record: str) -> None:
    """Raise for columns that the record of a format (`fields`) does not have.

    `where`: the sink, for errors.
    """
    unknown = [name for name in schema.names if name not in fields.names]
    if unknown:
        raise InvalidFlowError(
            f"{where} has column {unknown[0]!r}, and {record} has no such field.",
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
        """Decode all messages at once, as an array of JSON objects."""
        if not len(values):
            return [pa.array([], field.type) for field in schema]
        if None in values:
            values = [b"{}" if value is None else value for value in values]
        decoder = _json_decoder(schema)
        rows = decoder.decode(b"[%b]" % b",".join(values))  # type: ignore[arg-type]
        if len(rows) != len(values):
            msg = "a message is no single JSON object"
            raise ValueError(msg)
        if not len(schema):
            return []
        columns = pa.array(list(map(msgspec.structs.astuple, rows)), _tuple_type(schema))
        return [
            column if column.type.equals(field.type) else from_json(column, field)
            for column, field in zip(columns.flatten(), schema, strict=True)
        ]

    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        """Encode each row as a JSON object, in UTF-8."""
        if not rows.num_columns:
            return [b"{}"] * rows.num_rows
        encode = msgspec.json.Encoder().encode
        try:
            columns = [python_values(column) for column in rows.columns]
            return [encode(row) for row in map(_row_type(rows.schema), *columns)]
        except (ArithmeticError, TypeError, ValueError, msgspec.MsgspecError) as error:
            raise UnwritableError(_error_text(error)) from error

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Raise if the type of a column has no form in JSON."""
        del where
        _row_type(schema)


@lru_cache(maxsize=64)
def _json_decoder(schema: pa.Schema) -> msgspec.json.Decoder[list[Any]]:
    """Create the decoder of a list of a schema's JSON objects; cached."""
    return msgspec.json.Decoder(list[_row_type(schema)])  # type: ignore[misc]


@lru_cache(maxsize=64)
def _row_type(schema: pa.Schema) -> Any:
    """Return the msgspec class of a schema's JSON objects, with fields f0, f1, ..."""
    fields = [(f"f{i}", _json_type(field) | None, None) for i, field in enumerate(schema)]
    names = {f"f{i}": field.name for i, field in enumerate(schema)}
    return msgspec.defstruct("Row", fields, rename=names, gc=False)


@lru_cache(maxsize=64)
def _tuple_type(schema: pa.Schema) -> pa.DataType:
    """Return the Arrow struct type of a schema's rows, as JSON holds their values."""
    types = [with_leaves(field.type, as_json) for field in schema]
    return pa.struct([pa.field(str(i), dtype) for i, dtype in enumerate(types)])


_JSON_TYPES: Final = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (is_binary, str),  # Base64
    (is_time, str),  # ISO 8601
    (pa.types.is_decimal, Decimal),
)


def _json_type(field: pa.Field) -> Any:
    """Return the Python type as which msgspec decodes a column; raise if JSON has no such form."""
    dtype = field.type
    for matches, python in _JSON_TYPES:
        if matches(dtype):
            return python
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        item = _json_type(dtype.value_field)
        return list[item | None]  # type: ignore[valid-type]
    if pa.types.is_struct(dtype):
        inner = {part.name: _json_type(part) | None for part in dtype}
        return TypedDict("Inner", inner, total=False)  # type: ignore[operator]
    if pa.types.is_map(dtype):
        key, item = _json_type(dtype.key_field), _json_type(dtype.item_field)
        return dict[key, item | None]  # type: ignore[valid-type]
    raise InvalidFlowError(
        f"Column {field.name!r} of type {dtype} has no form in JSON.",
        remedy="Cast it in a map, or use another format.",
    )


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
    """Return a user's message format, given by name or as an object; raise if it is none.

    `where`: the source or sink, for errors.
    """
    if isinstance(value, MessageFormat):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]  # they hold nothing
    raise InvalidFlowError(
        f"{where}: {value!r} is no format of messages."
        if isinstance(value, str)
        else f"{where}: a value of type {type_name(value)} is no format of messages.",
        remedy=f"Give {listing(sorted(map(repr, _BY_NAME)))}, or a format such as "
        'gw.formats.json("plane string, delay double").',
    )
