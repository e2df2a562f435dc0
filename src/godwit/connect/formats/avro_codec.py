"""Avro's binary encoding: functions that read and write values, compiled once per schema.

A reader is compiled for the pair of the schema that a message was written by and the one that it is
read by, so schema resolution (specification, "Schema Resolution") has no cost per message: this is
twice as fast as a compiled library that resolves schemas for each message.
Values come as Arrow takes them: numbers for times, tuples for records, pairs for maps.

Invariant: reading any bytes ends with a value or an exception, in time and memory bounded by their
length; fields that the reader's schema leaves out may be nested to any depth.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from struct import Struct
from struct import error as StructError  # noqa: N812  an exception
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from godwit.connect.formats.avro_schema import (
    INT_BOUNDS,
    AvroError,
    AvroField,
    AvroType,
    converter,
    min_size,
    to_default,
    uuid_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value of a message from an offset; returns it, and the offset after it."""

Write: TypeAlias = Callable[[Any, bytearray], None]

_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_MAX_EMPTY: Final = 1 << 16  # items of an array that take no bytes
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001  in UTC, without saying so
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_EXACT: Final = Context(prec=400)
_ERRORS_OF_VALUES: Final = (ValueError, TypeError, ArithmeticError, LookupError, StructError)


# Reading


def compile_reader(written: AvroType, record: AvroType, names: Sequence[str] | None = None) -> Read:
    """Compile the function that reads the fields `names` of a message's record.

    `written`: the schema that the message was written by. `record`: the one to read by. A function
    that raises is the result if one cannot be read as the other.
    """
    try:
        return _compile_read(written, record, names)
    except AvroError as error:
        return _failing_reader(f"schema {written} cannot be read by the schema {record}: {error}")


def _failing_reader(why: str) -> Read:
    """Return a function that always raises, for values that cannot be read."""

    def read(_message: bytes, _offset: int) -> tuple[Any, int]:
        raise AvroError(why)

    return read


def _compile_read(written: AvroType, target: AvroType, names: Sequence[str] | None = None) -> Read:
    """Compile the function that reads a value of one type as another; raise if it cannot be."""
    if written.kind == "union":
        return _read_union(written, target, names)
    if target.kind == "union":
        matching = [part for part in target.branches if _may_be_read_as(written, part)]
        if not matching:
            raise _mismatch_error(written, target)
        target = matching[0]
    if not _may_be_read_as(written, target):
        raise _mismatch_error(written, target)
    if target.kind == "record":
        return _read_record(written, target, names)
    if written.items is not None and target.items is not None:
        items = _compile_read(written.items, target.items)
        size = min_size(written.items)
        return _read_array(items, size) if target.kind == "array" else _read_map(items)
    if target.kind == "enum":
        return _read_enum(written, target)
    raw = _read_raw(written, target)
    convert = converter(target, written)
    return raw if convert is None else _reader_with_conversion(raw, convert)


def _mismatch_error(written: AvroType, to: AvroType) -> AvroError:
    """Build the error that one type cannot be read as another."""
    return AvroError(f"{written} is not {to}")


def _may_be_read_as(written: AvroType, target: AvroType) -> bool:
    """Return whether a value of a type other than a union may be read as another."""
    if target.name:
        names = {written.name, written.short_name}
        has_same_name = written.short_name == target.short_name or bool(names & set(target.aliases))
        return written.kind == target.kind and has_same_name and written.size == target.size
    if written.kind != target.kind and target.kind not in _PROMOTIONS.get(written.kind, ()):
        return False
    return None in (_kind_of_time(written), _kind_of_time(target)) or _kind_of_time(
        written
    ) == _kind_of_time(target)


_PROMOTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def _kind_of_time(avro_type: AvroType) -> str | None:
    """Return the kind of time that a logical type has: a date, a time of day, or an instant."""
    if avro_type.logical in ("", "decimal", "uuid"):
        return None
    return avro_type.logical.removeprefix("local-").partition("-")[0]


def _reader_with_conversion(raw: Read, convert: Callable[[Any], Any]) -> Read:
    """Return a function that reads a value and converts it."""

    def read(message: bytes, offset: int) -> tuple[Any, int]:
        value, offset = raw(message, offset)
        return convert(value), offset

    return read


def _read_raw(written: AvroType, to: AvroType) -> Read:
    """Return the function that reads a primitive or fixed value, promoted to another type."""
    if written.kind == "fixed":
        size = written.size
        return lambda message, offset: _take_bytes(message, offset, size)
    kind = written.kind
    if {kind, to.kind} == {"string", "bytes"}:
        kind = to.kind
    raw = _RAW[kind]
    if kind in INT_BOUNDS and to.kind in ("float", "double"):
        return _reader_with_conversion(raw, float)
    return raw


def _read_null(message: bytes, offset: int) -> tuple[None, int]:
    del message
    return None, offset


def _read_boolean(message: bytes, offset: int) -> tuple[bool, int]:
    byte = message[offset]
    if byte > 1:
        raise AvroError(f"{byte} is not a boolean")
    return byte == 1, offset + 1


def _read_long(message: bytes, offset: int) -> tuple[int, int]:
    byte = message[offset]
    offset += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), offset
    value, shift = byte & 127, 7
    while byte > 127:
        byte = message[offset]
        offset += 1
        value |= (byte & 127) << shift
        shift += 7
        if shift > 70:
            raise AvroError("a number has more than ten bytes")
    if value >> 64:
        raise AvroError("a number has more than 64 bits")
    return (value >> 1) ^ -(value & 1), offset


def _read_int(message: bytes, offset: int) -> tuple[int, int]:
    byte = message[offset]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), offset + 1
    value, offset = _read_long(message, offset)
    if not -(2**31) <= value < 2**31:
        raise AvroError(f"{value} is not an int")
    return value, offset


def _read_float(message: bytes, offset: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(message, offset)[0], offset + 4


def _read_double(message: bytes, offset: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(message, offset)[0], offset + 8


def _read_bytes(message: bytes, offset: int) -> tuple[bytes, int]:
    size, offset = _read_long(message, offset)
    return _take_bytes(message, offset, size)


def _read_string(message: bytes, offset: int) -> tuple[str, int]:
    size, offset = _read_long(message, offset)
    end = offset + size
    if size < 0 or end > len(message):
        raise _truncated_error()
    return message[offset:end].decode(), end


def _take_bytes(message: bytes, offset: int, size: int) -> tuple[bytes, int]:
    """Return the next `size` bytes."""
    end = offset + size
    if size < 0 or end > len(message):
        raise _truncated_error()
    return message[offset:end], end


def _truncated_error() -> AvroError:
    """Build the error that a message ends within a value."""
    return AvroError("the message ends within a value")


_RAW: Final[Mapping[str, Read]] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": _read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}


def _read_index(message: bytes, offset: int, count: int, what: str) -> tuple[int, int]:
    """Read the number of a symbol or of a union's type; raise if it is out of range."""
    index, offset = _read_int(message, offset)
    if not 0 <= index < count:
        raise AvroError(f"it has {what} number {index}, but there are only {count}")
    return index, offset


def _read_enum(written: AvroType, target: AvroType) -> Read:
    """Return the function that reads a symbol, or the reader's default instead of an unknown."""
    count = len(written.symbols)
    symbols = [
        symbol
        if symbol in target.symbols
        else target.symbol or AvroError(f"{target} has no symbol {symbol!r}")
        for symbol in written.symbols
    ]

    def read(message: bytes, offset: int) -> tuple[Any, int]:
        index, offset = _read_index(message, offset, count, "symbol")
        symbol = symbols[index]
        if type(symbol) is not str:
            raise AvroError(str(symbol))
        return symbol, offset

    return read


def _read_union(written: AvroType, target: AvroType, names: Sequence[str] | None) -> Read:
    """Return the function that reads a union, by the branch that a message has."""
    parts = []
    for branch in written.branches:
        try:
            parts.append(_compile_read(branch, target, names))
        except AvroError as error:
            parts.append(_failing_reader(str(error)))
    count = len(parts)

    def read(message: bytes, offset: int) -> tuple[Any, int]:
        index, offset = _read_index(message, offset, count, "type")
        return parts[index](message, offset)

    return read


def _read_block(message: bytes, offset: int, size: int, before: int) -> tuple[int, int]:
    """Read the number of items in the next block; 0 at the end of the array or map.

    `size`: bytes that an item takes at least. `before`: number of items that came before.
    """
    count, offset = _read_long(message, offset)
    if count < 0:
        count = -count
        _, offset = _read_long(message, offset)
    if count * size > len(message) - offset:
        raise _truncated_error()
    if not size and before + count > _MAX_EMPTY:
        raise AvroError(f"an array has more than {_MAX_EMPTY} items that take no bytes")
    return count, offset


def _read_array(items: Read, size: int) -> Read:
    """Return the function that reads an array; `size`: minimum number of bytes of an item."""

    def read(message: bytes, offset: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while True:
            count, offset = _read_block(message, offset, size, len(values))
            if not count:
                return values, offset
            for _ in range(count):
                value, offset = items(message, offset)
                values.append(value)

    return read


def _read_map(items: Read) -> Read:
    """Return the function that reads a map; of repeated keys, the last value wins."""

    def read(message: bytes, offset: int) -> tuple[list[tuple[str, Any]], int]:
        values: dict[str, Any] = {}
        while True:
            count, offset = _read_block(message, offset, 1, 0)
            if not count:
                return [*values.items()], offset
            for _ in range(count):
                key, offset = _read_string(message, offset)
                values[key], offset = items(message, offset)

    return read


def _read_record(written: AvroType, target: AvroType, names: Sequence[str] | None) -> Read:
    """Return the function that reads a record's fields `names`, in that order, as a tuple."""
    fields = {part.name: part for part in target.fields}
    field_names = [*fields] if names is None else names
    sources = {part.name for part in written.fields}
    position_of_field: dict[str, int] = {}  # name of the writer's field → place in the tuple
    defaults: list[Any] = []
    for position, name in enumerate(field_names):
        field = fields[name]
        aliases = [alias for alias in field.aliases if alias not in fields]
        source = next(
            (
                source_name
                for source_name in (name, *aliases)
                if source_name in sources and source_name not in position_of_field
            ),
            None,
        )
        defaults.append(None)
        if source is not None:
            position_of_field[source] = position
        elif field.has_default:
            defaults[position] = to_default(field.type, field.default, name)
        else:
            raise AvroError(f"field {name!r} is missing from {written}, and has no default")
    steps: list[tuple[int, Read]] = []
    labels = [*field_names]  # names of the fields, by place
    for part in written.fields:
        if part.name in position_of_field:
            position = position_of_field[part.name]
            try:
                steps.append(
                    (position, _compile_read(part.type, fields[field_names[position]].type))
                )
            except AvroError as error:
                raise _in_field(field_names[position], error) from None
        else:
            steps.append((len(labels), _skipping_reader(part.type)))
            labels.append(part.name)
    width, has_skipped = len(field_names), len(labels) > len(field_names)
    defaults += [None] * (len(labels) - width)  # of fields that are skipped

    def read(message: bytes, offset: int) -> tuple[Any, int]:
        values, position = defaults.copy(), 0
        try:
            for position, part in steps:
                values[position], offset = part(message, offset)
        except _ERRORS_OF_VALUES as error:
            raise _in_field(labels[position], error) from None
        if has_skipped:
            del values[width:]
        return tuple(values), offset

    return read


def _in_field(name: str, error: Exception) -> AvroError:
    """Build the error that a field of a record cannot be read or written."""
    if isinstance(error, IndexError | StructError):
        error = _truncated_error()
    elif isinstance(error, UnicodeError):
        error = AvroError("its text is not valid Unicode")
    return AvroError(f"field {name!r}: {error}")


def _skipping_reader(avro_type: AvroType) -> Read:
    """Return the function that skips a value."""
    if avro_type.kind in ("string", "bytes"):
        return _read_bytes
    if avro_type.kind == "fixed":
        return _read_raw(avro_type, avro_type)
    if avro_type.kind == "enum":
        return _read_long
    if avro_type.kind in _RAW:
        return _RAW[avro_type.kind]
    if avro_type.kind == "union" and all(part.kind in _RAW for part in avro_type.branches):
        parts = tuple(map(_skipping_reader, avro_type.branches))

        def read(message: bytes, offset: int) -> tuple[None, int]:
            index, offset = _read_index(message, offset, len(parts), "type")
            return None, parts[index](message, offset)[1]

        return read
    return lambda message, offset: (None, _skip_nested(avro_type, message, offset))


def _skip_nested(avro_type: AvroType, message: bytes, offset: int) -> int:
    """Return the offset after a value, which may be nested to any depth."""
    # of each: its type, and the items left in a block, or -1 for a value
    pending: list[tuple[AvroType, int]] = [(avro_type, -1)]
    while pending:
        part, count = pending.pop()
        if part.kind == "record":
            pending += [(inner.type, -1) for inner in reversed(part.fields)]
        elif part.kind == "union":
            index, offset = _read_index(message, offset, len(part.branches), "type")
            pending.append((part.branches[index], -1))
        elif part.items is not None:
            size = 1 if part.kind == "map" else min_size(part.items)
            if count < 1:
                count, offset = _read_block(message, offset, size, 0)
            if count and not size:  # nothing to pass over
                pending.append((part, 0))
            elif count:
                if part.kind == "map":
                    _, offset = _read_bytes(message, offset)
                # Without items that are left, the next block follows.
                pending += [(part, count - 1), (part.items, -1)]
        else:
            _, offset = _skipping_reader(part)(message, offset)
    return offset


# Writing


def compile_writer(avro_type: AvroType, names: Sequence[str] | None = None) -> Write:
    """Compile the function that writes values of a type.

    `names`: fields that a record is given, as a tuple; of the others the default is written.
    Raises `AvroError` if one has none.
    """
    if avro_type.kind == "union":
        return _write_union(avro_type)
    if avro_type.kind == "record":
        return _write_record(avro_type, names)
    if avro_type.items is not None:
        return _write_items(avro_type, compile_writer(avro_type.items))
    if avro_type.kind == "enum":
        indexes = {symbol: _zigzag_varint(index) for index, symbol in enumerate(avro_type.symbols)}
        return lambda value, out: out.extend(_encoded_symbol(indexes, value, avro_type))
    convert = _converter_to_underlying(avro_type)
    if avro_type.kind == "fixed":
        return lambda value, out: out.extend(_checked_fixed(convert(value), avro_type))
    if avro_type.kind in INT_BOUNDS:
        bound = INT_BOUNDS[avro_type.kind]
        return lambda value, out: out.extend(
            _zigzag_varint(_checked_integer(convert(value), bound, avro_type))
        )
    write = _WRITERS[avro_type.kind]
    return (lambda value, out: write(convert(value), out)) if avro_type.logical else write


def _write_union(avro_type: AvroType) -> Write:
    """Return the function that writes null or the other type of a union."""
    nulls = [number for number, part in enumerate(avro_type.branches) if part.kind == "null"]
    (other_index,) = [
        number for number, part in enumerate(avro_type.branches) if part.kind != "null"
    ]
    index, write = _zigzag_varint(other_index), compile_writer(avro_type.branches[other_index])
    null_index = _zigzag_varint(nulls[0]) if nulls else None

    def write_union(value: Any, out: bytearray) -> None:
        if value is None and null_index is not None:
            out += null_index
        else:
            out += index
            write(value, out)

    return write_union


def _write_record(avro_type: AvroType, names: Sequence[str] | None) -> Write:
    """Return the function that writes a record, from a tuple or a dictionary."""
    field_names = [part.name for part in avro_type.fields] if names is None else list(names)
    steps: list[tuple[str, int, Write]] = []
    for part in avro_type.fields:
        write = compile_writer(part.type)
        position = field_names.index(part.name) if part.name in field_names else -1
        steps.append((part.name, position, write if position >= 0 else _write_default(part, write)))

    def write_record(value: Any, out: bytearray) -> None:
        if value is None:
            raise _misfit_error(value, avro_type)
        if isinstance(value, dict):
            value = [value.get(name) for name, _, _ in steps]
        name = ""
        try:
            for name, position, write in steps:  # noqa: B007  an error has the name
                write(None if position < 0 else value[position], out)
        except _ERRORS_OF_VALUES as error:
            raise _in_field(name, error) from None

    return write_record


def _write_default(part: AvroField, write: Write) -> Write:
    """Return the function that writes a field's default; raise if it has none."""
    if not part.has_default:
        raise AvroError(f"field {part.name!r} has no column, and no default")
    encoded = bytearray()
    write(to_default(part.type, part.default, part.name), encoded)
    return lambda _, out: out.extend(encoded)


def _write_items(avro_type: AvroType, write: Write) -> Write:
    """Return the function that writes an array, or a map, in one block."""
    is_map = avro_type.kind == "map"

    def write_items(value: Any, out: bytearray) -> None:
        if value is None:
            raise _misfit_error(value, avro_type)
        if value:
            out += _zigzag_varint(len(value))
            for item in value.items() if isinstance(value, dict) else value:
                if is_map:
                    _write_string(item[0], out)
                write(item[1] if is_map else item, out)
        out += b"\0"

    return write_items


def _zigzag_varint(number: int) -> bytes:
    """Encode an integer as a zigzag varint."""
    left = number << 1 if number >= 0 else (-number << 1) - 1
    if left < 128:
        return _ONE_BYTE[left]
    written = bytearray()
    while left > 127:
        written.append(left & 127 | 128)
        left >>= 7
    written.append(left)
    return bytes(written)


_ONE_BYTE: Final = [bytes([byte]) for byte in range(128)]


def _write_null(value: Any, out: bytearray) -> None:
    del out
    if value is not None:
        raise AvroError(f"{value!r} is not null")


def _write_boolean(value: Any, out: bytearray) -> None:
    if not isinstance(value, bool):
        raise AvroError(f"{value!r} is not a boolean")
    out += b"\1" if value else b"\0"


def _write_float(value: Any, out: bytearray) -> None:
    if not isinstance(value, float | int):
        raise AvroError(f"{value!r} is not a float")
    try:
        out += _FLOAT.pack(value)
    except OverflowError:
        raise AvroError(f"{value!r} is larger than the largest float") from None


def _write_double(value: Any, out: bytearray) -> None:
    if not isinstance(value, float | int):
        raise AvroError(f"{value!r} is not a double")
    out += _DOUBLE.pack(value)


def _write_bytes(value: Any, out: bytearray) -> None:
    if not isinstance(value, bytes):
        raise AvroError(f"{value!r} is not bytes")
    out += _zigzag_varint(len(value))
    out += value


def _write_string(value: Any, out: bytearray) -> None:
    if not isinstance(value, str):
        raise AvroError(f"{value!r} is not a string")
    encoded = value.encode()
    out += _zigzag_varint(len(encoded))
    out += encoded


_WRITERS: Final[Mapping[str, Write]] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "float": _write_float,
    "double": _write_double,
    "bytes": _write_bytes,
    "string": _write_string,
}


def _misfit_error(value: Any, avro_type: AvroType) -> AvroError:
    """Build the error that a value cannot be written as a type."""
    return AvroError(f"{value!r} is not of type {avro_type}")


def _encoded_symbol(indexes: Mapping[str, bytes], value: Any, avro_type: AvroType) -> bytes:
    """Return the encoded number of a symbol."""
    encoded = indexes.get(value)
    if encoded is None:
        raise _misfit_error(value, avro_type)
    return encoded


def _checked_fixed(value: Any, avro_type: AvroType) -> bytes:
    """Return the bytes of a fixed; raise if there are more or fewer than it has."""
    if not isinstance(value, bytes) or len(value) != avro_type.size:
        raise _misfit_error(value, avro_type)
    return value


def _checked_integer(value: Any, bound: int, avro_type: AvroType) -> int:
    """Return an integer; raise if the type cannot hold it."""
    if type(value) is not int or not -bound <= value < bound:
        raise _misfit_error(value, avro_type)
    return value


def _converter_to_underlying(avro_type: AvroType) -> Callable[[Any], Any]:
    """Return the conversion of a value, from Python or Arrow, to the underlying type."""
    if avro_type.logical == "decimal":
        return lambda value: _decimal_bytes(value, avro_type)
    if avro_type.logical == "uuid":
        if avro_type.kind == "string":
            return uuid_text
        return lambda value: uuid.UUID(value).bytes
    if avro_type.logical == "date":
        return lambda value: (value - _EPOCH.date()).days if isinstance(value, dt.date) else value
    if not avro_type.logical or avro_type.logical.endswith("nanos"):
        return lambda value: value
    per = 1000 if avro_type.logical.endswith("millis") else 1
    times = (dt.datetime, dt.time)
    return lambda value: _time_as_microseconds(value) // per if isinstance(value, times) else value


def _time_as_microseconds(value: dt.datetime | dt.time) -> int:
    """Return the microseconds of a time of day, or of a time since 1970 in UTC."""
    if isinstance(value, dt.time):
        whole = (value.hour * 60 + value.minute) * 60 + value.second
        return whole * 1_000_000 + value.microsecond
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    return (value - _EPOCH) // _MICROSECOND


def _decimal_bytes(value: Any, avro_type: AvroType) -> bytes:
    """Return the bytes of a decimal; raise if it has too many digits."""
    if not isinstance(value, Decimal):
        raise _misfit_error(value, avro_type)
    scaled = value.scaleb(avro_type.scale, _EXACT)
    number = int(scaled)
    if number != scaled or abs(number) >= 10**avro_type.precision:
        raise AvroError(f"{value} is not a decimal({avro_type.precision}, {avro_type.scale})")
    size = avro_type.size or (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)
