"""Tagged encoding of Python values that msgpack lacks.

Where a type leaves open what stands in a place (``list``, ``dict``, ``Any``), msgpack alone would
bring back a tuple or a set as a list, and a date as text.  Here every value that is not msgpack's
own is written as an extension whose code names its type.  Other values are refused.

Invariant: a value of which `TaggedValues.encode` makes bytes comes back equal and of the same type,
at every depth.  Reading makes values of the types below and instances of the classes that the
operator declares, found by name in its own list; it imports nothing and runs no other code.

State of a key as text, for people, from its bytes alone.
"""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import decimal
import enum
import functools
import itertools
import json
import uuid
import zoneinfo
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from godwit.values.checks import (
    UnsupportedValueError,
    check_attributes,
    maker_of,
    plain_hint,
    rebuilt,
    short_repr,
)
from godwit.values.types import fields_of, is_record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


EXTENSION_MARKERS = frozenset([0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8])
"""First bytes of a blob that is one extension."""

# Codes are part of the checkpoint's format: none is ever given another meaning.
(
    _TUPLE,
    _SET,
    _FROZENSET,
    _PAIRS,
    _DECIMAL,
    _DATE,
    _DATETIME,
    _TIME,
    _TIMEDELTA,
    _UUID,
    _INT,
    _BYTEARRAY,
    _COMPLEX,
    _RECORD,
    _MEMBER,
    _DEFAULTDICT,
    _DEQUE,
    _ORDEREDDICT,
    _COUNTER,
    _WHOLE,
) = range(1, 21)

_PLAIN = frozenset([type(None), bool, int, float, str, bytes])
_TEXT = frozenset([str])
_FACTORIES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (bool, int, float, str, bytes, list, tuple, set, frozenset, dict, decimal.Decimal)
}
_SMALL_INT = range(-(2**63), 2**64)


class TaggedValues:
    """Encodes and decodes values of any type that state may hold.

    `classes`: name → class (a record or an enumeration) of which there may be instances.
    `plain`: read instances as plain values: records as dicts, members of enumerations as
    their values. Then no class is needed.
    """

    def __init__(self, classes: Mapping[str, type], *, plain: bool = False) -> None:
        self._classes = dict(classes)
        self._plain = plain
        self._encode = msgspec.msgpack.Encoder().encode
        self.decode: Callable[[Any], Any] = msgspec.msgpack.Decoder(
            ext_hook=self._read_extension
        ).decode
        self._decode_inner = self.decode
        self._handlers: dict[type, Callable[[Any], Any]] = {
            **_HANDLERS,
            list: self._encodable_list,
            dict: self._encodable_dict,
            tuple: functools.partial(self._tagged_list, _TUPLE),
            set: functools.partial(self._tagged_list, _SET),
            frozenset: functools.partial(self._tagged_list, _FROZENSET),
            collections.deque: self._tagged_deque,
            collections.defaultdict: self._tagged_defaultdict,
            collections.OrderedDict: functools.partial(self._tagged_mapping, _ORDEREDDICT),
            collections.Counter: functools.partial(self._tagged_mapping, _COUNTER),
        }
        self._names: dict[type, str] = {}
        self._columns: dict[type, RecordColumns] = {}  # of records that came many at once
        for name, cls in self._classes.items():
            self._names[cls] = name
            if issubclass(cls, enum.Enum):
                self._handlers[cls] = functools.partial(self._tagged_member, name)
            elif is_record(cls):
                fields = fields_of(cls)
                self._handlers[cls] = functools.partial(
                    self._tagged_record, name, fields, frozenset(fields)
                )

    # -- writing ------------------------------------------------------------------------------

    def encode(self, value: Any) -> bytes:
        """Encode a value of state as msgpack; values of other types than msgpack's are tagged.

        Raises `UnsupportedValueError` if it, or a part of it, cannot be state.
        """
        try:
            return self._encode(self._to_msgpack(value))
        except OverflowError:
            return self._encode_with_long_integers(value)
        except RecursionError:
            raise UnsupportedValueError(
                "a value that contains itself, or is nested too deeply"
            ) from None
        except UnicodeEncodeError as error:
            raise UnsupportedValueError(
                f"text that is not valid Unicode ({error.reason})"
            ) from error

    def encode_all(self, values: Sequence[Any]) -> list[bytes]:
        """Encode many values; fast for records, and dicts and lists of msgpack's own types."""
        leaves, kinds = self._leaves, set(map(type, values))
        plain = False
        if len(kinds) == 1:
            (cls,) = kinds
            if is_record(cls) and cls in self._names:
                with contextlib.suppress(Exception):  # then one by one, to report the cause
                    return self._columns_of(cls).encode(
                        self._names[cls], values, leaves, self._to_msgpack
                    )
        if kinds == {dict}:
            plain = all(
                _TEXT.issuperset(map(type, value)) and leaves.issuperset(map(type, value.values()))
                for value in values
            )
        elif kinds == {list}:
            plain = all(leaves.issuperset(map(type, value)) for value in values)
        return list(map(self._encode if plain else self.encode, values))

    def _encode_with_long_integers(self, value: Any) -> bytes:
        """Encode a value with integers beyond 64 bits."""
        careful = TaggedValues(self._classes)
        careful._handlers[int] = _long_integer
        careful._leaves = _PLAIN - {int}
        return careful.encode(value)

    _leaves = _PLAIN

    def _to_msgpack(self, value: Any) -> Any:
        """Return a value as msgpack can encode it, perhaps tagged; raise if it has no form."""
        kind = type(value)
        if kind in self._leaves:
            return value
        handler = self._handlers.get(kind)
        if handler is None:
            raise UnsupportedValueError(_refusal_reason(value))
        return handler(value)

    def _extension_of(self, code: int, lowered: Any) -> msgspec.msgpack.Ext:
        """Return a msgpack extension of a code, with content that msgpack can encode."""
        return msgspec.msgpack.Ext(code, self._encode(lowered))

    def _encodable_list(self, value: list[Any]) -> list[Any]:
        """Return a list whose elements msgpack can encode."""
        if self._leaves.issuperset(map(type, value)):
            return value
        return list(map(self._to_msgpack, value))

    def _encodable_dict(self, value: dict[Any, Any]) -> Any:
        """Return a dict as msgpack can encode it: as a map if all keys are text, else tagged."""
        if not _TEXT.issuperset(map(type, value)):
            return self._tagged_mapping(_PAIRS, value)
        if self._leaves.issuperset(map(type, value.values())):
            return value
        return {key: self._to_msgpack(item) for key, item in value.items()}

    def _tagged_list(self, code: int, value: Any) -> msgspec.msgpack.Ext:
        """Return a container, such as a tuple or set, as a tagged list."""
        return self._extension_of(code, self._encodable_list(list(value)))

    def _keys_and_values(self, value: dict[Any, Any]) -> list[Any]:
        """Return a dict as a list of alternating keys and values that msgpack can encode."""
        return [self._to_msgpack(part) for pair in value.items() for part in pair]

    def _tagged_mapping(self, code: int, value: dict[Any, Any]) -> msgspec.msgpack.Ext:
        """Return a mapping as a tagged list of alternating keys and values."""
        return self._extension_of(code, self._keys_and_values(value))

    def _tagged_deque(self, value: collections.deque[Any]) -> msgspec.msgpack.Ext:
        """Return a deque as a tagged list, with its maximum length."""
        return self._extension_of(_DEQUE, [value.maxlen, *self._encodable_list(list(value))])

    def _tagged_defaultdict(self, value: collections.defaultdict[Any, Any]) -> msgspec.msgpack.Ext:
        """Return a defaultdict as a tagged list, with the name of its factory."""
        factory: Any = value.default_factory
        name: str | None = None
        if factory is not None:
            name = self._names.get(factory) or str(getattr(factory, "__name__", ""))
            if factory not in (_FACTORIES.get(name), self._classes.get(name)):
                raise UnsupportedValueError(
                    f"a defaultdict that makes values by {name or factory!r}; it has to be one of "
                    f"{', '.join(_FACTORIES)}, or a class of the state"
                )
        return self._extension_of(_DEFAULTDICT, [name, *self._keys_and_values(value)])

    def _tagged_member(self, name: str, value: enum.Enum) -> msgspec.msgpack.Ext:
        """Return a member of the enumeration `name` as a tagged name and value."""
        member = None if isinstance(value, enum.Flag) else value.name
        return self._extension_of(_MEMBER, [name, member, self._to_msgpack(value.value)])

    def _tagged_record(
        self, name: str, fields: Sequence[str], known: frozenset[str], value: Any
    ) -> msgspec.msgpack.Ext:
        """Return a record as a tagged class name and fields; `known`: the names of its fields."""
        attributes = getattr(value, "__dict__", None)
        if attributes and not known.issuperset(attributes):
            check_attributes(value, fields)
        contents = {field: self._to_msgpack(getattr(value, field)) for field in fields}
        return self._extension_of(_RECORD, [name, contents])

    def _columns_of(self, cls: type) -> RecordColumns:
        """Return the encoding of many records of a class."""
        columns = self._columns.get(cls)
        if columns is None:
            columns = self._columns[cls] = RecordColumns(cls, _RECORD, self._read_extension)
        return columns

    # -- reading ------------------------------------------------------------------------------

    def decode_all(self, blobs: Sequence[bytes | memoryview], cls: Any = object) -> list[Any]:
        """Decode many values; fast for records of class `cls`."""
        if is_record(cls):
            names = {name for name, named in self._classes.items() if named is cls}
            with contextlib.suppress(Exception):  # then as values of any class
                return self._columns_of(cls).decode(names, blobs)
        values: list[Any] = self.decode(join_blobs(blobs))
        return values

    def _read_extension(self, code: int, data: memoryview) -> Any:
        """Return the value of a msgpack extension with a code."""
        if code == _RECORD:
            return self._read_record(*self._decode_inner(data))
        if code == _MEMBER:
            return self._read_member(*self._decode_inner(data))
        if code == _DEFAULTDICT:
            name, *parts = self._decode_inner(data)
            if self._plain:
                return _dict_if_possible(parts)
            factory = None if name is None else _FACTORIES.get(name) or self._class_named(name)
            return collections.defaultdict(factory, _dict_of_pairs(parts))
        reader = (self._plain and _PLAIN_READERS.get(code)) or _READERS.get(code)
        if reader is None:
            raise ValueError(f"extension {code} is not known")
        return reader(self._decode_inner(data))

    def _read_record(self, name: str, fields: dict[str, Any]) -> Any:
        """Return an instance of the class `name`; in plain mode, its fields as a dict."""
        if self._plain:
            return fields
        return rebuilt(self._class_named(name), fields)

    def _read_member(self, name: str, member: str | None, value: Any) -> Any:
        """Return an enumeration's member; in plain mode, its value."""
        if self._plain:
            return value
        cls: Any = self._class_named(name)
        return cls(value) if member is None else cls[member]

    def _class_named(self, name: str) -> type:
        """Return the class of a name; raise if it is unknown."""
        cls = self._classes.get(name)
        if cls is None:
            raise ValueError(f"class {name!r} is not among the classes of the state")
        return cls


def as_extension(blob: bytes) -> bytes:
    """Return an encoded value as one extension, which begins with one of `EXTENSION_MARKERS`."""
    if blob[0] in EXTENSION_MARKERS:
        return blob
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(_WHOLE, blob))


def without_fields(blob: bytes | memoryview, gone: Mapping[str, frozenset[str]]) -> bytes:
    """Remove fields from an encoded value; `gone`: class name → names of its fields."""

    def read(code: int, data: memoryview) -> msgspec.msgpack.Ext:
        """Decode an extension, and drop the fields of a record that are gone."""
        item = decode(data)
        if code == _RECORD:
            name, fields = item
            lost = gone.get(name, frozenset())
            item = [name, {field: part for field, part in fields.items() if field not in lost}]
        return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(item))

    decode = msgspec.msgpack.Decoder(ext_hook=read).decode
    return msgspec.msgpack.encode(decode(blob))


def _refusal_reason(value: Any) -> str:
    """Return the reason, as text, why state cannot hold a value."""
    cls = type(value)
    name = f"{cls.__module__}.{cls.__qualname__}"
    hint = plain_hint(value)
    if not hint and (isinstance(value, enum.Enum) or is_record(cls)):
        return (
            f"{short_repr(value)} of class {cls.__qualname__}, which the type of the state does "
            f"not mention (declare it, as in gw.ValueState(..., classes=[{cls.__qualname__}]))"
        )
    problem = f"{short_repr(value)} of class {name}, a type that state cannot hold"
    return f"{problem} ({hint})" if hint else problem


def _msgpack_extension(code: int, lowered: Any) -> msgspec.msgpack.Ext:
    """Return a msgpack extension with a code; `lowered`: its content, of msgpack's own types."""
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(lowered))


def _long_integer(value: int) -> Any:
    """Return an integer beyond 64 bits as a tagged value; others unchanged."""
    if value in _SMALL_INT:
        return value
    return _msgpack_extension(_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _zone_to_plain(zone: dt.tzinfo | None) -> Any:
    """Return a time zone as plain values: its name, or its UTC offset."""
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return [offset.days, offset.seconds, offset.microseconds, *name]
    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return zone.key
    raise UnsupportedValueError(
        f"the time zone {zone!r}, which is neither a ZoneInfo nor a timezone"
    )


def _read_zone(zone: Any) -> dt.tzinfo | None:
    """Return the time zone of plain values: a name, or a UTC offset."""
    if zone is None:
        return None
    if isinstance(zone, str):
        return zoneinfo.ZoneInfo(zone)
    days, seconds, micros, *name = zone
    return dt.timezone(dt.timedelta(days, seconds, micros), *name)


def _tag_clock_time(code: int, value: Any) -> msgspec.msgpack.Ext:
    """Return a datetime or time as a tagged ISO text, fold and time zone."""
    text = value.replace(tzinfo=None).isoformat()
    return _msgpack_extension(code, [text, value.fold, _zone_to_plain(value.tzinfo)])


def _read_datetime(parts: Any) -> dt.datetime:
    """Build a datetime from ISO text, fold and time zone."""
    text, fold, zone = parts
    return dt.datetime.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))


def _read_time(parts: Any) -> dt.time:
    """Build a time from ISO text, fold and time zone."""
    text, fold, zone = parts
    return dt.time.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))


def _dict_of_pairs(parts: list[Any]) -> dict[Any, Any]:
    """Create a dict from alternating keys and values."""
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _dict_if_possible(parts: list[Any]) -> Any:
    """Return a dict of alternating keys and values; pairs if keys, as records, are unhashable."""
    try:
        return _dict_of_pairs(parts)
    except TypeError:
        return list(zip(parts[::2], parts[1::2], strict=True))


def _set_if_possible(parts: list[Any]) -> Any:
    """Return a set, or a list if items are unhashable."""
    try:
        return set(parts)
    except TypeError:
        return parts


_HANDLERS: dict[type, Callable[[Any], Any]] = {
    decimal.Decimal: lambda value: _msgpack_extension(_DECIMAL, str(value)),
    dt.date: lambda value: _msgpack_extension(_DATE, value.isoformat()),
    dt.datetime: functools.partial(_tag_clock_time, _DATETIME),
    dt.time: functools.partial(_tag_clock_time, _TIME),
    dt.timedelta: lambda value: _msgpack_extension(
        _TIMEDELTA, [value.days, value.seconds, value.microseconds]
    ),
    uuid.UUID: lambda value: _msgpack_extension(_UUID, value.bytes),
    bytearray: lambda value: _msgpack_extension(_BYTEARRAY, bytes(value)),
    complex: lambda value: _msgpack_extension(_COMPLEX, [value.real, value.imag]),
}

_READERS: dict[int, Callable[[Any], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _PAIRS: _dict_of_pairs,
    _DECIMAL: decimal.Decimal,
    _DATE: dt.date.fromisoformat,
    _DATETIME: _read_datetime,
    _TIME: _read_time,
    _TIMEDELTA: lambda parts: dt.timedelta(*parts),
    _UUID: lambda data: uuid.UUID(bytes=data),
    _INT: lambda data: int.from_bytes(data, "big", signed=True),
    _BYTEARRAY: bytearray,
    _COMPLEX: lambda parts: complex(*parts),
    _DEQUE: lambda parts: collections.deque(parts[1:], parts[0]),
    _ORDEREDDICT: lambda parts: collections.OrderedDict(_dict_of_pairs(parts)),
    _COUNTER: lambda parts: collections.Counter(_dict_of_pairs(parts)),
    _WHOLE: lambda value: value,
}

_PLAIN_READERS: dict[int, Callable[[Any], Any]] = {
    _SET: _set_if_possible,
    _FROZENSET: _set_if_possible,
    **dict.fromkeys((_PAIRS, _ORDEREDDICT, _COUNTER), _dict_if_possible),
}


_AS_PLAIN = TaggedValues({}, plain=True)


def state_as_json(blob: bytes | memoryview) -> str:
    """Return a state as JSON: records and mappings as objects, all other containers as arrays.

    Examples
    --------
    >>> import msgspec
    >>> state_as_json(msgspec.msgpack.encode({"seen": [1, 2.5]}))
    '{"seen":[1,2.5]}'
    """
    ready = _for_json(_AS_PLAIN.decode(blob))
    return json.dumps(ready, ensure_ascii=False, separators=(",", ":"), default=_key_text)


def _for_json(value: Any) -> Any:
    """Return a value for JSON: containers as lists, keys of mappings as text."""
    if isinstance(value, dict):
        return {_key_text(key): _for_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return list(map(_for_json, value))
    return value


def _key_text(value: Any) -> str:
    """Return a key of a mapping as text; bytes in hexadecimal."""
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    return str(value)


_SHORT = 256  # bytes; a longer extension has a longer header

_encode = msgspec.msgpack.Encoder().encode
_extensions = msgspec.msgpack.Decoder(list[msgspec.msgpack.Ext]).decode


class UnlikeRecordsError(Exception):
    """Records, or their bytes, do not go together."""


class RecordColumns:
    """Writes and reads many records of class `cls` at once, as extensions with a code.

    A call, a dict and a look at each field for every record of an epoch's keys take more time than
    the functions that change them. Here a field is a column: its values are read, and written, for
    all records at once. msgspec writes a struct with the class's fields where `TaggedValues` writes
    a dict of them, which are the same bytes, and reads it.

    Invariant: results are those of one record at a time, or an error is raised. Then the caller
    goes one by one: for records of several classes, with attributes that are no fields, without
    fields that have defaults, or whose class runs code.

    `ext_hook`: reads extensions within them.
    """

    def __init__(self, cls: type, code: int, ext_hook: Callable[[int, memoryview], Any]) -> None:
        fields = fields_of(cls)
        self._code, self._struct = code, msgspec.defstruct(cls.__name__, fields, gc=False)
        self._read = msgspec.msgpack.Decoder(
            list[tuple[str, self._struct]],  # type: ignore[name-defined]
            ext_hook=ext_hook,
        ).decode
        self._getters, self._fields = [attrgetter(field) for field in fields], frozenset(fields)
        self._has_attributes = bool(getattr(cls, "__dictoffset__", 0))
        self._make_record = maker_of(cls)

    def encode(
        self,
        name: str,
        records: Sequence[Any],
        leaves: frozenset[type],
        to_msgpack: Callable[[Any], Any],
    ) -> list[bytes]:
        """Encode records under the name of their class.

        `to_msgpack` makes values of types other than `leaves` such that msgpack can encode them.
        """
        if self._has_attributes and not all(
            map(self._fields.issuperset, map(attrgetter("__dict__"), records))
        ):
            raise UnlikeRecordsError
        columns = [list(map(getter, records)) for getter in self._getters]
        for place, column in enumerate(columns):
            if not leaves.issuperset(map(type, column)):
                columns[place] = list(map(to_msgpack, column))
        structs = map(self._struct, *columns) if columns else (self._struct() for _ in records)
        return with_headers(self._code, map(_encode, zip(itertools.repeat(name), structs)))

    def decode(self, names: Collection[str], blobs: Sequence[bytes | memoryview]) -> list[Any]:
        """Decode records whose class goes by any of `names`."""
        if self._make_record is None:
            raise UnlikeRecordsError
        extensions = _extensions(join_blobs(blobs))
        if not {extension.code for extension in extensions} <= {self._code}:
            raise UnlikeRecordsError
        contents: list[Any] = [extension.data for extension in extensions]
        read = self._read(join_blobs(contents))
        if not {name for name, _ in read}.issubset(names):
            raise UnlikeRecordsError
        return list(map(self._make_record, [msgspec.structs.astuple(struct) for _, struct in read]))


def join_blobs(blobs: Sequence[bytes | memoryview]) -> bytes:
    """Join encoded values into one msgpack array, which is decoded by one call."""
    return b"".join([b"\xdd" + len(blobs).to_bytes(4, "big"), *blobs])


def with_headers(code: int, contents: Any) -> list[bytes]:
    """Return encoded contents as msgpack extensions of a code."""
    headers = _extension_headers(code)
    return [
        headers[len(content)] + content
        if len(content) < _SHORT
        else _encode(msgspec.msgpack.Ext(code, content))
        for content in contents
    ]


@functools.lru_cache(maxsize=64)
def _extension_headers(code: int) -> list[bytes]:
    """Return the first bytes of short extensions of a code, by the length of what follows."""
    return [
        _encode(msgspec.msgpack.Ext(code, bytes(length)))[: -length or None]
        for length in range(_SHORT)
    ]
