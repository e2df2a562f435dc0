"""Avro's binary encoding: functions that read and write values, compiled once for their schemas.

A reader is compiled for the pair of the schema that a message was written by and the one that it is
read by, so that resolving them (specification, "Schema Resolution") costs messages nothing: with
what it spares, this is twice as fast as a compiled library that resolves them message by message.
Values come as Arrow takes them: numbers for times, tuples for records, pairs for maps.

Whatever bytes a message has, reading it ends with a value or an exception, in time and memory that
its length bounds; what the reader's schema leaves out may be nested to any depth.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from struct import Struct
from struct import error as StructError  # noqa: N812  an exception
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from godwit.sources.avro_schema import (
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
        return _read(written, record, names)
    except AvroError as error:
        return _failing(f"schema {written} cannot be read by the schema {record}: {error}")


def _failing(why: str) -> Read:
    """Return the function for values that cannot be read."""

    def read(_message: bytes, _at: int) -> tuple[Any, int]:
        raise AvroError(why)

    return read


def _read(written: AvroType, to: AvroType, names: Sequence[str] | None = None) -> Read:
    """Compile the function that reads a value of one type as another; raise if it cannot be."""
    if written.kind == "union":
        return _read_union(written, to, names)
    if to.kind == "union":
        matching = [part for part in to.branches if _resolves(written, part)]
        if not matching:
            raise _mismatch(written, to)
        to = matching[0]
    if not _resolves(written, to):
        raise _mismatch(written, to)
    if to.kind == "record":
        return _read_record(written, to, names)
    if written.items is not None and to.items is not None:
        items = _read(written.items, to.items)
        size = min_size(written.items)
        return _read_array(items, size) if to.kind == "array" else _read_map(items)
    if to.kind == "enum":
        return _read_enum(written, to)
    raw = _read_raw(written, to)
    convert = converter(to, written)
    return raw if convert is None else _converted(raw, convert)


def _mismatch(written: AvroType, to: AvroType) -> AvroError:
    """Build the error that one type cannot be read as another."""
    return AvroError(f"{written} is not {to}")


def _resolves(written: AvroType, to: AvroType) -> bool:
    """Return whether a value of a type, which is no union, may be read as another."""
    if to.name:
        names = {written.name, written.short_name}
        same = written.short_name == to.short_name or bool(names & set(to.aliases))
        return written.kind == to.kind and same and written.size == to.size
    if written.kind != to.kind and to.kind not in _PROMOTIONS.get(written.kind, ()):
        return False
    return None in (_family(written), _family(to)) or _family(written) == _family(to)


_PROMOTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def _family(of: AvroType) -> str | None:
    """Return what a number with a logical type is of: a date, a time of day, or an instant."""
    if of.logical in ("", "decimal", "uuid"):
        return None
    return of.logical.removeprefix("local-").partition("-")[0]


def _converted(raw: Read, convert: Callable[[Any], Any]) -> Read:
    """Return a function that reads a value and converts it."""

    def read(message: bytes, at: int) -> tuple[Any, int]:
        value, at = raw(message, at)
        return convert(value), at

    return read


def _read_raw(written: AvroType, to: AvroType) -> Read:
    """Return the function that reads a primitive or fixed value, promoted to another type."""
    if written.kind == "fixed":
        size = written.size
        return lambda message, at: _take(message, at, size)
    kind = written.kind
    if {kind, to.kind} == {"string", "bytes"}:
        kind = to.kind
    raw = _RAW[kind]
    if kind in INT_BOUNDS and to.kind in ("float", "double"):
        return _converted(raw, float)
    return raw


def _read_null(message: bytes, at: int) -> tuple[None, int]:
    del message
    return None, at


def _read_boolean(message: bytes, at: int) -> tuple[bool, int]:
    byte = message[at]
    if byte > 1:
        raise AvroError(f"{byte} is no boolean")
    return byte == 1, at + 1


def _read_long(message: bytes, at: int) -> tuple[int, int]:
    byte = message[at]
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 127, 7
    while byte > 127:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if shift > 70:
            raise AvroError("a number has more than ten bytes")
    if value >> 64:
        raise AvroError("a number has more than 64 bits")
    return (value >> 1) ^ -(value & 1), at


def _read_int(message: bytes, at: int) -> tuple[int, int]:
    byte = message[at]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, at = _read_long(message, at)
    if not -(2**31) <= value < 2**31:
        raise AvroError(f"{value} is no int")
    return value, at


def _read_float(message: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(message, at)[0], at + 4


def _read_double(message: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(message, at)[0], at + 8


def _read_bytes(message: bytes, at: int) -> tuple[bytes, int]:
    size, at = _read_long(message, at)
    return _take(message, at, size)


def _read_string(message: bytes, at: int) -> tuple[str, int]:
    size, at = _read_long(message, at)
    end = at + size
    if size < 0 or end > len(message):
        raise _truncated()
    return message[at:end].decode(), end


def _take(message: bytes, at: int, size: int) -> tuple[bytes, int]:
    """Return the next `size` bytes."""
    end = at + size
    if size < 0 or end > len(message):
        raise _truncated()
    return message[at:end], end


def _truncated() -> AvroError:
    """Build the error that a message ends within a value."""
    return AvroError("it ends within a value")


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


def _read_index(message: bytes, at: int, count: int, what: str) -> tuple[int, int]:
    """Read the number of a symbol or of a union's type; raise if there is none such."""
    index, at = _read_int(message, at)
    if not 0 <= index < count:
        raise AvroError(f"it has {what} {index} of {count}")
    return index, at


def _read_enum(written: AvroType, to: AvroType) -> Read:
    """Return the function that reads a symbol, or the reader's default in place of an unknown."""
    count = len(written.symbols)
    symbols = [
        symbol if symbol in to.symbols else to.symbol or AvroError(f"{to} has no symbol {symbol!r}")
        for symbol in written.symbols
    ]

    def read(message: bytes, at: int) -> tuple[Any, int]:
        index, at = _read_index(message, at, count, "symbol")
        symbol = symbols[index]
        if type(symbol) is not str:
            raise AvroError(str(symbol))
        return symbol, at

    return read


def _read_union(written: AvroType, to: AvroType, names: Sequence[str] | None) -> Read:
    """Return the function that reads the type of a union that a message has."""
    parts = []
    for branch in written.branches:
        try:
            parts.append(_read(branch, to, names))
        except AvroError as error:
            parts.append(_failing(str(error)))
    count = len(parts)

    def read(message: bytes, at: int) -> tuple[Any, int]:
        index, at = _read_index(message, at, count, "type")
        return parts[index](message, at)

    return read


def _read_block(message: bytes, at: int, size: int, before: int) -> tuple[int, int]:
    """Read the number of items that come next; 0 at the end of the array or map.

    `size`: bytes that an item takes at least. `before`: number of items that came before.
    """
    count, at = _read_long(message, at)
    if count < 0:
        count = -count
        _, at = _read_long(message, at)
    if count * size > len(message) - at:
        raise _truncated()
    if not size and before + count > _MAX_EMPTY:
        raise AvroError(f"an array has more than {_MAX_EMPTY} items that take no bytes")
    return count, at


def _read_array(items: Read, size: int) -> Read:
    """Return the function that reads an array; `size`: bytes that an item takes at least."""

    def read(message: bytes, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while True:
            count, at = _read_block(message, at, size, len(values))
            if not count:
                return values, at
            for _ in range(count):
                value, at = items(message, at)
                values.append(value)

    return read


def _read_map(items: Read) -> Read:
    """Return the function that reads a map, of which the last value of a key counts."""

    def read(message: bytes, at: int) -> tuple[list[tuple[str, Any]], int]:
        values: dict[str, Any] = {}
        while True:
            count, at = _read_block(message, at, 1, 0)
            if not count:
                return [*values.items()], at
            for _ in range(count):
                key, at = _read_string(message, at)
                values[key], at = items(message, at)

    return read


def _read_record(written: AvroType, to: AvroType, names: Sequence[str] | None) -> Read:
    """Return the function that reads a record's fields `names`, in that order, as a tuple."""
    fields = {part.name: part for part in to.fields}
    wanted = [*fields] if names is None else names
    sources = {part.name for part in written.fields}
    places: dict[str, int] = {}  # name of the writer's field → place in the tuple
    blank: list[Any] = []
    for place, name in enumerate(wanted):
        field = fields[name]
        aliases = [alias for alias in field.aliases if alias not in fields]
        source = next((n for n in (name, *aliases) if n in sources and n not in places), None)
        blank.append(None)
        if source is not None:
            places[source] = place
        elif field.has_default:
            blank[place] = to_default(field.type, field.default, name)
        else:
            raise AvroError(f"field {name!r} is not in {written}, and has no default")
    steps: list[tuple[int, Read]] = []
    labels = [*wanted]  # names of the fields, by place
    for part in written.fields:
        if part.name in places:
            place = places[part.name]
            try:
                steps.append((place, _read(part.type, fields[wanted[place]].type)))
            except AvroError as error:
                raise _in_field(wanted[place], error) from None
        else:
            steps.append((len(labels), _skipping(part.type)))
            labels.append(part.name)
    width, has_skipped = len(wanted), len(labels) > len(wanted)
    blank += [None] * (len(labels) - width)  # of fields that are skipped

    def read(message: bytes, at: int) -> tuple[Any, int]:
        values, place = blank.copy(), 0
        try:
            for place, part in steps:
                values[place], at = part(message, at)
        except _ERRORS_OF_VALUES as error:
            raise _in_field(labels[place], error) from None
        if has_skipped:
            del values[width:]
        return tuple(values), at

    return read


def _in_field(name: str, error: Exception) -> AvroError:
    """Build the error that a field of a record cannot be read or written."""
    if isinstance(error, IndexError | StructError):
        error = _truncated()
    elif isinstance(error, UnicodeError):
        error = AvroError("its text is not valid Unicode")
    return AvroError(f"field {name!r}: {error}")


def _skipping(of: AvroType) -> Read:
    """Return the function that passes over a value."""
    if of.kind in ("string", "bytes"):
        return _read_bytes
    if of.kind == "fixed":
        return _read_raw(of, of)
    if of.kind == "enum":
        return _read_long
    if of.kind in _RAW:
        return _RAW[of.kind]
    if of.kind == "union" and all(part.kind in _RAW for part in of.branches):
        parts = tuple(map(_skipping, of.branches))

        def read(message: bytes, at: int) -> tuple[None, int]:
            index, at = _read_index(message, at, len(parts), "type")
            return None, parts[index](message, at)[1]

        return read
    return lambda message, at: (None, _skip_nested(of, message, at))


def _skip_nested(of: AvroType, message: bytes, at: int) -> int:
    """Return the offset after a value, which may be nested to any depth."""
    pending: list[tuple[AvroType, int]] = [(of, -1)]  # type; items left in a block, -1: a value
    while pending:
        part, count = pending.pop()
        if part.kind == "record":
            pending += [(inner.type, -1) for inner in reversed(part.fields)]
        elif part.kind == "union":
            index, at = _read_index(message, at, len(part.branches), "type")
            pending.append((part.branches[index], -1))
        elif part.items is not None:
            size = 1 if part.kind == "map" else min_size(part.items)
            if count < 1:
                count, at = _read_block(message, at, size, 0)
            if count and not size:  # nothing to pass over
                pending.append((part, 0))
            elif count:
                if part.kind == "map":
                    _, at = _read_bytes(message, at)
                # Without items that are left, the next block follows.
                pending += [(part, count - 1), (part.items, -1)]
        else:
            _, at = _skipping(part)(message, at)
    return at


# Writing


def compile_writer(of: AvroType, names: Sequence[str] | None = None) -> Write:
    """Compile the function that writes values of a type.

    `names`: fields that a record is given, as a tuple; of the others the default is written.
    Raises `AvroError` if one has none.
    """
    if of.kind == "union":
        return _write_union(of)
    if of.kind == "record":
        return _write_record(of, names)
    if of.items is not None:
        return _write_items(of, compile_writer(of.items))
    if of.kind == "enum":
        indexes = {symbol: _varint(index) for index, symbol in enumerate(of.symbols)}
        return lambda value, out: out.extend(_known(indexes, value, of))
    convert = _unconverter(of)
    if of.kind == "fixed":
        return lambda value, out: out.extend(_sized(convert(value), of))
    if of.kind in INT_BOUNDS:
        bound = INT_BOUNDS[of.kind]
        return lambda value, out: out.extend(_varint(_bounded(convert(value), bound, of)))
    write = _WRITERS[of.kind]
    return (lambda value, out: write(convert(value), out)) if of.logical else write


def _write_union(of: AvroType) -> Write:
    """Return the function that writes null or the other type of a union."""
    nulls = [i for i, part in enumerate(of.branches) if part.kind == "null"]
    (other,) = [i for i, part in enumerate(of.branches) if part.kind != "null"]
    index, write = _varint(other), compile_writer(of.branches[other])
    null = _varint(nulls[0]) if nulls else None

    def write_union(value: Any, out: bytearray) -> None:
        if value is None and null is not None:
            out += null
        else:
            out += index
            write(value, out)

    return write_union


def _write_record(of: AvroType, names: Sequence[str] | None) -> Write:
    """Return the function that writes a record, from a tuple or a dictionary."""
    wanted = [part.name for part in of.fields] if names is None else list(names)
    steps: list[tuple[str, int, Write]] = []
    for part in of.fields:
        write = compile_writer(part.type)
        place = wanted.index(part.name) if part.name in wanted else -1
        steps.append((part.name, place, write if place >= 0 else _constant(part, write)))

    def write_record(value: Any, out: bytearray) -> None:
        if value is None:
            raise _misfit(value, of)
        if isinstance(value, dict):
            value = [value.get(name) for name, _, _ in steps]
        name = ""
        try:
            for name, place, write in steps:  # noqa: B007  an error has the name
                write(None if place < 0 else value[place], out)
        except _ERRORS_OF_VALUES as error:
            raise _in_field(name, error) from None

    return write_record


def _constant(part: AvroField, write: Write) -> Write:
    """Return the function that writes a field's default; raise if it has none."""
    if not part.has_default:
        raise AvroError(f"field {part.name!r} has no column, and no default")
    encoded = bytearray()
    write(to_default(part.type, part.default, part.name), encoded)
    return lambda _, out: out.extend(encoded)


def _write_items(of: AvroType, write: Write) -> Write:
    """Return the function that writes an array, or a map, in one block."""
    is_map = of.kind == "map"

    def write_items(value: Any, out: bytearray) -> None:
        if value is None:
            raise _misfit(value, of)
        if value:
            out += _varint(len(value))
            for item in value.items() if isinstance(value, dict) else value:
                if is_map:
                    _write_string(item[0], out)
                write(item[1] if is_map else item, out)
        out += b"\0"

    return write_items


def _varint(number: int) -> bytes:
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
        raise AvroError(f"{value!r} is no boolean")
    out += b"\1" if value else b"\0"


def _write_float(value: Any, out: bytearray) -> None:
    if not isinstance(value, float | int):
        raise AvroError(f"{value!r} is no float")
    try:
        out += _FLOAT.pack(value)
    except OverflowError:
        raise AvroError(f"{value!r} is beyond the largest float") from None


def _write_double(value: Any, out: bytearray) -> None:
    if not isinstance(value, float | int):
        raise AvroError(f"{value!r} is no double")
    out += _DOUBLE.pack(value)


def _write_bytes(value: Any, out: bytearray) -> None:
    if not isinstance(value, bytes):
        raise AvroError(f"{value!r} is not bytes")
    out += _varint(len(value))
    out += value


def _write_string(value: Any, out: bytearray) -> None:
    if not isinstance(value, str):
        raise AvroError(f"{value!r} is no string")
    encoded = value.encode()
    out += _varint(len(encoded))
    out += encoded


_WRITERS: Final[Mapping[str, Write]] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "float": _write_float,
    "double": _write_double,
    "bytes": _write_bytes,
    "string": _write_string,
}


def _misfit(value: Any, of: AvroType) -> AvroError:
    """Build the error that a value cannot be written as a type."""
    return AvroError(f"{value!r} is no {of}")


def _known(indexes: Mapping[str, bytes], value: Any, of: AvroType) -> bytes:
    """Return the encoded number of a symbol."""
    found = indexes.get(value)
    if found is None:
        raise _misfit(value, of)
    return found


def _sized(value: Any, of: AvroType) -> bytes:
    """Return the bytes of a fixed; raise if there are more or fewer than it has."""
    if not isinstance(value, bytes) or len(value) != of.size:
        raise _misfit(value, of)
    return value


def _bounded(value: Any, bound: int, of: AvroType) -> int:
    """Return an integer; raise if the type cannot hold it."""
    if type(value) is not int or not -bound <= value < bound:
        raise _misfit(value, of)
    return value


def _unconverter(of: AvroType) -> Callable[[Any], Any]:
    """Return the conversion of a value, as Python or Arrow has it, to the underlying type's."""
    if of.logical == "decimal":
        return lambda value: _decimal_bytes(value, of)
    if of.logical == "uuid":
        if of.kind == "string":
            return uuid_text
        return lambda value: uuid.UUID(value).bytes
    if of.logical == "date":
        return lambda value: (value - _EPOCH.date()).days if isinstance(value, dt.date) else value
    if not of.logical or of.logical.endswith("nanos"):
        return lambda value: value
    per = 1000 if of.logical.endswith("millis") else 1
    times = (dt.datetime, dt.time)
    return lambda value: _micros(value) // per if isinstance(value, times) else value


def _micros(value: dt.datetime | dt.time) -> int:
    """Return the microseconds of a time of day, or of a time since 1970 in UTC."""
    if isinstance(value, dt.time):
        whole = (value.hour * 60 + value.minute) * 60 + value.second
        return whole * 1_000_000 + value.microsecond
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    return (value - _EPOCH) // _MICROSECOND


def _decimal_bytes(value: Any, of: AvroType) -> bytes:
    """Return the bytes of a decimal; raise if it has too many digits."""
    if not isinstance(value, Decimal):
        raise _misfit(value, of)
    scaled = value.scaleb(of.scale, _EXACT)
    number = int(scaled)
    if number != scaled or abs(number) >= 10**of.precision:
        raise AvroError(f"{value} is no decimal({of.precision}, {of.scale})")
    size = of.size or (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)
