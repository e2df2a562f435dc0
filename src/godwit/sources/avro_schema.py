"""Avro schemas as trees of types: names resolved, logical types checked, defaults as values.

As the specification (1.12) says, a logical type that is not known, or does not fit the type that
it annotates, is ignored.  So an `AvroType` has a logical type only if that type holds.
"""

from __future__ import annotations

import math
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.model.errors import InvalidFlowError
from godwit.sources.text_values import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
INT_BOUNDS: Final = {"int": 2**31, "long": 2**63}
DAY: Final = {"time-millis": 86_400_000, "time-micros": 86_400_000_000}
_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
# logical type → the type that it annotates, and Arrow's
_TIMES: Final = {
    "date": ("int", pa.date32()),
    "time-millis": ("int", pa.time32("ms")),
    "time-micros": ("long", pa.time64("us")),
    "timestamp-millis": ("long", pa.timestamp("ms", "UTC")),
    "timestamp-micros": ("long", pa.timestamp("us", "UTC")),
    "local-timestamp-millis": ("long", pa.timestamp("ms")),
    "local-timestamp-micros": ("long", pa.timestamp("us")),
    "timestamp-nanos": ("long", pa.int64()),
    "local-timestamp-nanos": ("long", pa.int64()),
}
_PER_SECOND: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_SIZES: Final = {"null": 0, "float": 4, "double": 8}  # in bytes; of the others at least 1
_COUNTING: Final = -2
_MAX_DIGITS: Final = 38  # of Arrow's and Spark's decimals
_SURROGATE: Final = re.compile("[\ud800-\udfff]")  # half of a character, which UTF-8 does not have
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_BITS: Final = 1024  # of a decimal, which has a tenth of them
_EXACT: Final = Context(prec=400)


class AvroError(ValueError):
    """A schema that is not valid, or a value that does not fit its type; says which field."""


@dataclass(slots=True, kw_only=True, eq=False)
class AvroType:
    """A type of a schema; named types may be part of themselves."""

    kind: str  # a primitive type, "enum", "fixed", "array", "map", "record" or "union"
    logical: str = ""  # if it is known and fits: "decimal", "uuid", or one of a time
    name: str = ""  # full name of an enum, fixed or record
    aliases: tuple[str, ...] = ()  # as written, and full
    symbols: tuple[str, ...] = ()
    symbol: str | None = None  # that an enum has for symbols that it does not know
    size: int = 0  # of a fixed, in bytes
    precision: int = 0  # of a decimal
    scale: int = 0
    items: AvroType | None = None  # of an array, or values of a map
    fields: list[AvroField] = field(default_factory=list)
    branches: tuple[AvroType, ...] = ()  # of a union
    min_size: int = -1  # see `min_size`; -1: not known yet

    @property
    def short_name(self) -> str:
        """Name without the namespace."""
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        if self.kind == "union":
            return f"[{', '.join(map(str, self.branches))}]"
        what = f"{self.kind} {self.name}".rstrip()
        return f"{what} ({self.logical})" if self.logical else what


@dataclass(slots=True, kw_only=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    aliases: tuple[str, ...]
    type: AvroType
    has_default: bool
    default: Any  # as in the schema, see `to_default`


def parse_schema(text: str) -> AvroType:
    """Parse a schema's JSON text; raise `AvroError`, with the field's path, if it is not valid.

    The text may be an object of ``references`` and ``schema``: texts of schemas whose types the
    last one refers to, and its own.
    """
    parser = _Parser()
    try:
        schema = load_json(text)
        if isinstance(schema, dict) and "references" in schema and "schema" in schema:
            for reference in schema["references"]:
                parser.parse(load_json(reference), "", "")
            schema = load_json(schema["schema"])
        found = parser.parse(schema, "", "")
        min_size(found)
    except RecursionError:
        raise AvroError("it is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, AvroError) else AvroError(str(error)) from None
    return found


def min_size(of: AvroType) -> int:
    """Return the number of bytes that a value takes at least; raise if values have no end."""
    if of.kind == "record" and of.min_size < 0:
        if of.min_size == _COUNTING:
            raise AvroError(f"each record {of.name} holds another one")
        of.min_size = _COUNTING
        of.min_size = sum(min_size(part.type) for part in of.fields)
    if of.kind == "record":
        return of.min_size
    return of.size if of.kind == "fixed" else _SIZES.get(of.kind, 1)


class _Parser:
    """Parser of one schema: knows the named types that came so far."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def parse(self, schema: Any, namespace: str, where: str) -> AvroType:
        """Parse a schema within a namespace; `where`: path of the field, for errors."""
        if isinstance(schema, str):
            return self._reference(schema, namespace, where)
        if isinstance(schema, list):
            return self._union(schema, namespace, where)
        if not isinstance(schema, dict):
            raise _invalid(where, f"a schema is text, a list or an object, not {schema!r}")
        kind = schema.get("type")
        if isinstance(kind, dict | list):  # a type in brackets of its own
            return self.parse(kind, namespace, where)
        if kind in PRIMITIVES:
            return _annotated(AvroType(kind=kind), schema)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            if part not in schema:
                raise _invalid(where, f"the {kind} has no {part!r}")
            return AvroType(kind=kind, items=self.parse(schema[part], namespace, f"{where}[]"))
        if kind in ("record", "error", "enum", "fixed"):
            return self._named_type(schema, kind, namespace, where)
        return self._reference(kind, namespace, where)

    def _reference(self, name: Any, namespace: str, where: str) -> AvroType:
        """Return the primitive or named type `name`."""
        if name in PRIMITIVES:
            return AvroType(kind=name)
        known = self._named.get(_full_name(name, namespace)) if isinstance(name, str) else None
        if known is None:
            raise _invalid(where, f"the type {name!r} is not known there")
        return known

    def _union(self, schema: list[Any], namespace: str, where: str) -> AvroType:
        """Parse a union; raise if it has a union, or a type twice."""
        branches = tuple(self.parse(part, namespace, where) for part in schema)
        names = [part.name or part.kind for part in branches]
        if "union" in names or len(set(names)) < len(names):
            raise _invalid(where, f"the union of {', '.join(names)} has a union, or a type twice")
        return AvroType(kind="union", branches=branches)

    def _named_type(
        self, schema: dict[str, Any], kind: str, namespace: str, where: str
    ) -> AvroType:
        """Parse a record, enum or fixed, and remember it by its name."""
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise _invalid(where, f"the {kind} has no name")
        within = schema.get("namespace", namespace) or ""
        full = _full_name(name, within)
        if full in self._named or full in PRIMITIVES:
            raise _invalid(where, f"the name {full!r} stands for another type already")
        namespace = full.rpartition(".")[0]
        written = _names(schema.get("aliases") or [], where)
        aliases = (*written, *(_full_name(alias, namespace) for alias in written))
        found = AvroType(kind="record" if kind == "error" else kind, name=full, aliases=aliases)
        self._named[full] = found
        if kind == "fixed":
            found.size = schema.get("size", -1)
            if type(found.size) is not int or found.size < 0:
                raise _invalid(where, f"the fixed {full} has no valid size")
            return _annotated(found, schema)
        if kind == "enum":
            found.symbols = _names(schema.get("symbols"), where)
            found.symbol = schema.get("default")
            if len(set(found.symbols)) < len(found.symbols):
                raise _invalid(where, f"the enum {full} has a symbol twice")
            if found.symbol is not None and found.symbol not in found.symbols:
                raise _invalid(
                    where, f"the enum {full} has no symbol {found.symbol!r}, its default"
                )
            return found
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise _invalid(where, f"the record {full} has no fields")
        for part in fields:
            found.fields.append(self._field(part, namespace, where or found.short_name))
        names = [part.name for part in found.fields]
        if len(set(names)) < len(names):
            raise _invalid(where, f"the record {full} has a field twice")
        return found

    def _field(self, schema: Any, namespace: str, where: str) -> AvroField:
        """Parse a field of a record."""
        if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
            raise _invalid(where, "a field has no name")
        name = schema["name"]
        path = f"{where}.{name}"
        if "type" not in schema:
            raise _invalid(path, "the field has no type")
        return AvroField(
            name=name,
            aliases=_names(schema.get("aliases") or [], path),
            type=self.parse(schema["type"], namespace, path),
            has_default="default" in schema,
            default=schema.get("default"),
        )


def _full_name(name: str, namespace: str) -> str:
    """Return a name with its namespace: its own, if it has a dot, or that in which it stands."""
    if "." in name:
        return name.removeprefix(".")
    return f"{namespace}.{name}" if namespace else name


def _names(value: Any, where: str) -> tuple[str, ...]:
    """Return a list of names as a tuple; raise if it is none."""
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise _invalid(where, f"{value!r} is no list of names")
    return tuple(value)


def _annotated(found: AvroType, schema: Mapping[str, Any]) -> AvroType:
    """Add the logical type of a schema to its type, if it fits."""
    logical = schema.get("logicalType")
    as_uuid = found.kind == "string" or (found.kind, found.size) == ("fixed", 16)
    as_time = isinstance(logical, str) and found.kind == _TIMES.get(logical, ("",))[0]
    if as_time or (logical == "uuid" and as_uuid):
        found.logical = str(logical)
    elif logical == "decimal" and found.kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        room = math.floor(math.log10(2) * (8 * found.size - 1)) if found.size else 0
        if (
            type(precision) is int
            and type(scale) is int
            and 0 <= scale <= precision
            and precision > 0
            and (found.kind == "bytes" or precision <= room)
        ):
            found.logical, found.precision, found.scale = logical, precision, scale
    return found


def _invalid(where: str, why: str) -> AvroError:
    """Build the error that a schema is not valid; `where`: path of the field, if known."""
    return AvroError(f"{where}: {why}" if where else why)


def to_arrow_schema(record: AvroType) -> pa.Schema:
    """Convert an Avro record to columns; raise `InvalidFlowError` if a type has no counterpart."""
    return pa.schema(list(_arrow_type(record, record.short_name, ())))


def _arrow_type(of: AvroType, where: str, within: tuple[AvroType, ...]) -> Any:
    """Convert a type to Arrow's; `within`: enclosing records, to refuse recursion."""
    if of.kind == "union":
        others = [part for part in of.branches if part.kind != "null"]
        if len(others) != 1:
            raise _no_column(where, f"a union of {len(others)} types")
        return _arrow_type(others[0], where, within)
    if of.kind == "null":
        raise _no_column(where, "the type null")
    if of in within:
        raise _no_column(where, f"the record {of.name}, which holds itself")
    if of.logical == "decimal":
        if of.precision > _MAX_DIGITS:
            raise _no_column(where, f"a decimal of {of.precision} digits, more than {_MAX_DIGITS},")
        return pa.decimal128(of.precision, of.scale)
    if of.logical == "uuid":
        return pa.string()
    if of.logical:
        return _TIMES[of.logical][1]
    if of.kind == "record":
        inner = (*within, of)
        parts = [(part.name, f"{where}.{part.name}", part.type) for part in of.fields]
        return pa.struct([(name, _arrow_type(part, path, inner)) for name, path, part in parts])
    if of.items is None:
        return _PLAIN[of.kind]
    items = _arrow_type(of.items, f"{where}[]", within)
    return pa.list_(items) if of.kind == "array" else pa.map_(pa.string(), items)


def _no_column(where: str, what: str) -> InvalidFlowError:
    """Build the error that the Avro type at `where` has no counterpart in Arrow; `what`: why."""
    return InvalidFlowError(
        f"The Avro schema has {what} at {where}, and Arrow has no type for it.",
        remedy="Leave the field out of the schema that you read with.",
    )


def converter(of: AvroType, written: AvroType | None = None) -> Callable[[Any], Any] | None:
    """Return the conversion of a type's underlying value to the one that Arrow is given.

    ``None``: Arrow takes it as it is. `written`: the type by which it was written, whose unit and
    scale count, as they say what the number means.
    """
    source = of if written is None else written
    if of.logical == "decimal":
        scale = source.scale if source.logical == "decimal" else of.scale
        return lambda raw: _to_decimal(raw, scale, of.scale)
    if of.logical == "uuid":
        return uuid_text if of.kind == "string" else lambda raw: str(uuid.UUID(bytes=raw))
    if of.logical in DAY:
        factor = 1000 if of.logical == "time-micros" and source.logical == "time-millis" else 1
        return lambda raw: _time_of_day(raw * factor, DAY[of.logical], of.logical)
    given, wanted = source.logical.rpartition("-")[2], of.logical.rpartition("-")[2]
    if "timestamp" in of.logical and "timestamp" in source.logical and given != wanted:
        return lambda raw: raw * _PER_SECOND[wanted] // _PER_SECOND[given]
    return None


def _to_decimal(raw: bytes, scale: int, to_scale: int) -> Decimal:
    """Return the decimal that bytes stand for, with `to_scale` digits after the point; or raise."""
    number = int.from_bytes(raw, "big", signed=True)
    if number.bit_length() > _MAX_BITS:
        raise AvroError("a decimal has more digits than its type")
    if scale > to_scale and number:
        number, rest = divmod(number, 10 ** min(scale - to_scale, _MAX_BITS))
        if rest:
            raise AvroError(f"a decimal has more than {to_scale} digits after the point")
    elif scale < to_scale:
        number *= 10 ** (to_scale - scale)
    return Decimal(number).scaleb(-to_scale, _EXACT)


def _time_of_day(raw: int, day: int, logical: str) -> int:
    """Return a time of day; raise if it is not within a day."""
    if not 0 <= raw < day:
        raise AvroError(f"{raw} is no time of day ({logical})")
    return raw


def uuid_text(text: str) -> str:
    """Return a UUID in its usual form; raise `ValueError` if it is none."""
    return text if _UUID.fullmatch(text) else str(uuid.UUID(text))


def to_default(of: AvroType, default: Any, where: str) -> Any:
    """Convert a default, as JSON has it, to the value that Arrow is given.

    The characters of a text stand for the bytes of bytes and fixed. A union takes the first of its
    types that the default fits. Raises `AvroError` if it fits none.
    """
    if of.kind == "union":
        for branch in of.branches:
            try:
                return to_default(branch, default, where)
            except AvroError:
                continue
        raise _invalid(where, f"the default {default!r} is of no type of the union")
    convert = converter(of)
    raw = _raw_default(of, default, where)
    try:
        return raw if convert is None else convert(raw)
    except ValueError as error:
        raise _invalid(where, f"the default {default!r}: {error}") from None


def _raw_default(of: AvroType, default: Any, where: str) -> Any:
    """Return a default as a value of the underlying type."""
    kind = of.kind
    if kind == "record" and isinstance(default, dict):
        return tuple(_field_default(part, default, where) for part in of.fields)
    if kind == "array" and isinstance(default, list) and of.items:
        return [to_default(of.items, item, f"{where}[]") for item in default]
    if kind == "map" and isinstance(default, dict) and of.items:
        items = of.items
        return [(key, to_default(items, item, f"{where}[]")) for key, item in default.items()]
    if kind in ("bytes", "fixed") and isinstance(default, str) and max(default, default="") <= "ÿ":
        raw = default.encode("latin-1")
        if kind == "bytes" or len(raw) == of.size:
            return raw
    number = isinstance(default, int | float) and not isinstance(default, bool)
    if kind in ("float", "double") and (number or default in ("NaN", "Infinity", "-Infinity")):
        with suppress(OverflowError):  # of a whole number; others are infinite
            return float(default)
    bound = INT_BOUNDS.get(kind, 0)
    if (
        (kind == "null" and default is None)
        or (kind == "boolean" and isinstance(default, bool))
        or (kind == "string" and isinstance(default, str) and not _SURROGATE.search(default))
        or (kind == "enum" and default in of.symbols)
        or (bound and type(default) is int and -bound <= default < bound)
    ):
        return default
    raise _invalid(where, f"the default {default!r} is no {of}")


def _field_default(part: AvroField, default: Mapping[str, Any], where: str) -> Any:
    """Return a field's value in a record's default: its own default where that says nothing."""
    path = f"{where}.{part.name}"
    if part.name in default:
        return to_default(part.type, default[part.name], path)
    if part.has_default:
        return to_default(part.type, part.default, path)
    raise _invalid(path, "the record's default has no value for the field")


def check_defaults(record: AvroType) -> None:
    """Raise `AvroError` for a field, also of a record within, whose default is not valid."""
    _check_fields(record, record.short_name)


def _check_fields(of: AvroType, where: str) -> None:
    """Check the defaults of all records within a type that does not hold itself."""
    for part in of.fields:
        path = f"{where}.{part.name}"
        if part.has_default:
            to_default(part.type, part.default, path)
        _check_fields(part.type, path)
    for branch in of.branches:
        _check_fields(branch, where)
    if of.items is not None:
        _check_fields(of.items, f"{where}[]")
