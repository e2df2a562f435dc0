"""Protocol Buffers messages, with or without a schema registry's framing.

The format carries the message's descriptors, as bytes, so that any process can read it, with or
without the generated module.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from godwit.connect.formats.message_formats import (
    NOT_OF_MESSAGES,
    MessageFormat,
    UnwritableError,
    Value,
    check_fields,
    error_text,
    python_values,
    to_array,
)
from godwit.connect.formats.registry import frame_header, parse_frame
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

_TYPES: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.uint32(),
    FieldDescriptor.CPPTYPE_UINT64: pa.uint64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class ProtobufMessages(MessageFormat):
    """Values as messages of one type, one field for each column."""

    def __init__(
        self,
        message: type[Message] | str,
        *,
        descriptors: bytes | Path | None,
        framed: bool,
        schema_id: int | None,
    ) -> None:
        if isinstance(message, str):
            if descriptors is None:
                raise InvalidFlowError(
                    f"The Protobuf format has the message name {message!r}, but no descriptors.",
                    remedy="Give descriptors=, or the generated class.",
                )
            descriptor_bytes = (
                descriptors.read_bytes() if isinstance(descriptors, Path) else descriptors
            )
            self._name, self._files = message, descriptor_bytes
        else:
            described = message.DESCRIPTOR
            self._name, self._files = described.full_name, _descriptor_files(described.file)
        self._framed, self._schema_id = framed, schema_id
        try:
            fields = _message_descriptor(self._files, self._name).fields
        except (KeyError, TypeError, DecodeError) as error:
            raise InvalidFlowError(
                f"The Protobuf format cannot find message {self._name!r}: {error}.",
                remedy="Give its full name, with the package; and a descriptor set from protoc "
                "with --include_imports.",
            ) from None
        self._schema = pa.schema([(f.name, _field_type(f, ())) for f in fields])

    def __repr__(self) -> str:
        return f"gw.formats.protobuf({self._name!r})"

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
        """Decode messages into columns; null where a message has no value."""
        read = _message_class(self._files, self._name).FromString
        place = _message_indexes(_message_descriptor(self._files, self._name))
        messages: list[Any] = []
        for value in values:
            if value is None:
                messages.append(None)
                continue
            messages.append(read(_strip_indexes(value, place) if self._framed else value))
        fields = _message_descriptor(self._files, self._name).fields_by_name
        return [
            to_array(
                [None if m is None else _field_to_python(m, fields[f.name]) for m in messages],
                f.name,
                f.type,
            )
            for f in schema
        ]

    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        """Encode each row as a message, with the framing of a schema registry if ``framed``."""
        message_class = _message_class(self._files, self._name)
        header = b""
        if self._framed:
            indexes = _message_indexes(_message_descriptor(self._files, self._name))
            header = frame_header(self._schema_id or 0) + _encode_indexes(indexes)
        fields = _message_descriptor(self._files, self._name).fields_by_name
        messages: list[Value] = []
        try:
            columns = [
                (name, _values_for_field(column, fields[name]))
                for name, column in zip(rows.schema.names, rows.columns, strict=True)
            ]
            for row in range(rows.num_rows):
                present = {name: values[row] for name, values in columns if values[row] is not None}
                messages.append(header + message_class(**present).SerializeToString())
        except NOT_OF_MESSAGES:
            raise
        except Exception as error:
            raise UnwritableError(error_text(error)) from error
        return messages

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Raise for columns that the message does not have, or if no schema id is given."""
        check_fields(schema, self._schema, where, f"message {self._name}")
        if self._framed and self._schema_id is None:
            raise InvalidFlowError(
                f"{where} writes framed messages, but has no schema_id=.",
                remedy="Give schema_id=, the id of the schema in the registry.",
            )


def _descriptor_files(file: Any) -> bytes:
    """Serialise the descriptors of a file and all that it imports, as a descriptor set."""
    files: dict[str, Any] = {}

    def add(file: Any) -> None:
        """Add a file's descriptor, after its imports."""
        if file.name not in files:
            for dependency in file.dependencies:
                add(dependency)
            files[file.name] = file

    add(file)
    descriptor_set = descriptor_pb2.FileDescriptorSet()
    for descriptor in files.values():
        descriptor.CopyToProto(descriptor_set.file.add())
    return bytes(descriptor_set.SerializeToString(deterministic=True))


@lru_cache(maxsize=64)
def _message_descriptor(files: bytes, name: str) -> Any:
    """Return the descriptor of the message `name` in a serialised descriptor set; cached."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        pool.Add(file)
    return pool.FindMessageTypeByName(name)


@lru_cache(maxsize=64)
def _message_class(files: bytes, name: str) -> Any:
    """Return the class of the message `name` in a serialised descriptor set; cached."""
    return message_factory.GetMessageClass(_message_descriptor(files, name))


def _message_indexes(descriptor: Any) -> list[int]:
    """Return the indexes of a message and its enclosing messages in their file."""
    outer = descriptor.containing_type
    if outer is None:
        names = list(descriptor.file.message_types_by_name)
        return [names.index(descriptor.name)]
    return [*_message_indexes(outer), [d.name for d in outer.nested_types].index(descriptor.name)]


def _encode_indexes(indexes: list[int]) -> bytes:
    """Encode message indexes as in the framing of a schema registry."""
    if indexes == [0]:
        return b"\0"
    return b"".join(_zigzag_varint(number) for number in (len(indexes), *indexes))


def _zigzag_varint(number: int) -> bytes:
    """Encode an integer as a zigzag varint."""
    left, written = number * 2, bytearray()
    while left >= 0x80:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    written.append(left)
    return bytes(written)


def _strip_indexes(value: bytes, indexes: list[int]) -> bytes:
    """Return a framed payload without its message indexes; raise if these differ from `indexes`."""
    _, begin = parse_frame(value)
    for expected in (
        _encode_indexes(indexes),
        b"\2\0" if indexes == [0] else _encode_indexes(indexes),
    ):
        if value.startswith(expected, begin):
            return value[begin + len(expected) :]
    msg = "its framing says that it is a different message type of the schema"
    raise ValueError(msg)


def _is_repeated(field: Any) -> bool:
    """Return whether a field of a message is a list."""
    return bool(field.is_repeated)


def _is_map(field: Any) -> bool:
    """Return whether a field of a message is a map."""
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _field_type(field: Any, within: tuple[str, ...]) -> Any:
    """Return Arrow's type of a field, with lists and maps; `within`: enclosing messages."""
    if _is_map(field):
        parts = field.message_type.fields_by_name
        return pa.map_(_value_type(parts["key"], within), _value_type(parts["value"], within))
    dtype = _value_type(field, within)
    return pa.list_(dtype) if _is_repeated(field) else dtype


def _value_type(field: Any, within: tuple[str, ...]) -> Any:
    """Return Arrow's type of one value of a field; raise if a message contains itself.

    `within`: full names of the enclosing messages.
    """
    kind = field.message_type
    if kind is None:
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            is_bytes = field.type == FieldDescriptor.TYPE_BYTES
            return pa.binary() if is_bytes else pa.string()
        return _TYPES[field.cpp_type]
    if kind.full_name == _TIMESTAMP:
        return pa.timestamp("us", "UTC")
    if kind.full_name in within:
        raise InvalidFlowError(
            f"Protobuf message {kind.full_name} contains itself, for which Arrow has no type.",
            remedy="Read values as bytes, and parse them in a map.",
        )
    inner = (*within, kind.full_name)
    return pa.struct([(part.name, _field_type(part, inner)) for part in kind.fields])


def _field_to_python(message: Any, field: Any) -> Any:
    """Convert a field of a message to a Python value, lists and maps included."""
    if _is_map(field):
        item = field.message_type.fields_by_name["value"]
        return [(k, _value_to_python(v, item)) for k, v in getattr(message, field.name).items()]
    if _is_repeated(field):
        return [_value_to_python(item, field) for item in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value_to_python(getattr(message, field.name), field)


def _value_to_python(value: Any, field: Any) -> Any:
    """Convert one value of a field, which may be repeated, to a Python value."""
    kind = field.message_type
    if kind is None:
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return str(value) if known is None else known.name
        return value
    if kind.full_name == _TIMESTAMP:
        return value.seconds * 1_000_000 + value.nanos // 1000
    return {part.name: _field_to_python(value, part) for part in kind.fields}


def _values_for_field(column: pa.Array, field: Any) -> list[Any]:
    """Return a column's values in the form that the library takes for a field."""
    values = python_values(column)
    if not _has_map_of_times(field):
        return values
    return [_to_protobuf_value(value, field) for value in values]


def _has_map_of_times(field: Any) -> bool:
    """Return whether a field has a map of timestamps, which the library takes in parts."""
    kind = field.message_type
    if kind is None:
        return False
    if _is_map(field):
        item = kind.fields_by_name["value"]
        inner = item.message_type
        return (inner is not None and inner.full_name == _TIMESTAMP) or _has_map_of_times(item)
    return any(map(_has_map_of_times, kind.fields))


def _to_protobuf_value(value: Any, field: Any) -> Any:
    """Return the value of a field with the seconds and nanoseconds of its timestamps."""
    kind = field.message_type
    if value is None or kind is None:
        return value
    if _is_map(field):
        item = kind.fields_by_name["value"]
        return {key: _to_protobuf_value(part, item) for key, part in value.items()}
    if isinstance(value, list):
        return [_to_protobuf_value(part, field) for part in value]
    if kind.full_name == _TIMESTAMP:
        since = (value if value.tzinfo else value.replace(tzinfo=dt.UTC)) - _EPOCH
        seconds, micros = divmod(since, dt.timedelta(seconds=1))
        return {"seconds": seconds, "nanos": micros.microseconds * 1000}
    fields = kind.fields_by_name
    return {name: _to_protobuf_value(part, fields[name]) for name, part in value.items()}
