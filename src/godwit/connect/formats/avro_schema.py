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

from godwit.connect.formats.text_values import load_json
from godwit.model.errors import InvalidFlowError

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
    connect_name: str = ""  # of a schema of Kafka Connect, that it was made of
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
        parsed = parser.parse(schema, "", "")
        min_size(parsed)
    except RecursionError:
        raise AvroError("it is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, AvroError) else AvroError(str(error)) from None
    return parsed


def min_size(avro_type: AvroType) -> int:
    """Return the minimum number of bytes of a value; raise if its type contains itself."""
    if avro_type.kind == "record" and avro_type.min_size < 0:
        if avro_type.min_size == _COUNTING:
            raise AvroError(f"the record {avro_type.name} always contains itself")
        avro_type.min_size = _COUNTING
        avro_type.min_size = sum(min_size(part.type) for part in avro_type.fields)
    if avro_type.kind == "record":
        return avro_type.min_size
    return avro_type.size if avro_type.kind == "fixed" else _SIZES.get(avro_type.kind, 1)


class _Parser:
    """Parser of one schema, with the named types so far."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def parse(self, schema: Any, namespace: str, where: str) -> AvroType:
        """Parse a schema within a namespace; `where`: path of the field, for errors."""
        if isinstance(schema, str):
            return self._resolve_name(schema, namespace, where)
        if isinstance(schema, list):
            return self._parse_union(schema, namespace, where)
        if not isinstance(schema, dict):
            raise _invalid_schema_error(
                where, f"a schema must be a string, a list or an object, not {schema!r}"
            )
        kind = schema.get("type")
        if isinstance(kind, dict | list):  # a type in brackets of its own
            return self.parse(kind, namespace, where)
        if kind in PRIMITIVES:
            return _with_logical_type(AvroType(kind=kind), schema)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            if part not in schema:
                raise _invalid_schema_error(where, f"the {kind} has no {part!r}")
            return AvroType(kind=kind, items=self.parse(schema[part], namespace, f"{where}[]"))
        if kind in ("record", "error", "enum", "fixed"):
            return self._named_type(schema, kind, namespace, where)
        return self._resolve_name(kind, namespace, where)

    def _resolve_name(self, name: Any, namespace: str, where: str) -> AvroType:
        """Return the primitive or named type `name`."""
        if name in PRIMITIVES:
            return AvroType(kind=name)
        known = self._named.get(_full_name(name, namespace)) if isinstance(name, str) else None
        if known is None:
            raise _invalid_schema_error(where, f"the type {name!r} is unknown")
        return known

    def _parse_union(self, schema: list[Any], namespace: str, where: str) -> AvroType:
        """Parse a union; raise if it contains a union, or the same type twice."""
        branches = tuple(self.parse(part, namespace, where) for part in schema)
        names = [part.name or part.kind for part in branches]
        if "union" in names or len(set(names)) < len(names):
            raise _invalid_schema_error(
                where, f"the union of {', '.join(names)} contains a union, or the same type twice"
            )
        return AvroType(kind="union", branches=branches)

    def _named_type(
        self, schema: dict[str, Any], kind: str, namespace: str, where: str
    ) -> AvroType:
        """Parse a record, enum or fixed, and remember it by its name."""
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise _invalid_schema_error(where, f"the {kind} has no name")
        enclosing_namespace = schema.get("namespace", namespace) or ""
        full_name = _full_name(name, enclosing_namespace)
        if full_name in self._named or full_name in PRIMITIVES:
            raise _invalid_schema_error(
                where, f"the name {full_name!r} is already used for another type"
            )
        namespace = full_name.rpartition(".")[0]
        own_aliases = _checked_names(schema.get("aliases") or [], where)
        aliases = (*own_aliases, *(_full_name(alias, namespace) for alias in own_aliases))
        parsed = AvroType(
            kind="record" if kind == "error" else kind, name=full_name, aliases=aliases
        )
        parsed.connect_name = _connect_name(schema)
        self._named[full_name] = parsed
        if kind == "fixed":
            parsed.size = schema.get("size", -1)
            if type(parsed.size) is not int or parsed.size < 0:
                raise _invalid_schema_error(where, f"the fixed {full_name} has no valid size")
            return _with_logical_type(parsed, schema)
        if kind == "enum":
            parsed.symbols = _checked_names(schema.get("symbols"), where)
            parsed.symbol = schema.get("default")
            if len(set(parsed.symbols)) < len(parsed.symbols):
                raise _invalid_schema_error(
                    where, f"the enum {full_name} has the same symbol twice"
                )
            if parsed.symbol is not None and parsed.symbol not in parsed.symbols:
                raise _invalid_schema_error(
                    where, f"the enum {full_name} has no symbol {parsed.symbol!r}, its default"
                )
            return parsed
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise _invalid_schema_error(where, f"the record {full_name} has no fields")
        for part in fields:
            parsed.fields.append(self._parse_field(part, namespace, where or parsed.short_name))
        names = [part.name for part in parsed.fields]
        if len(set(names)) < len(names):
            raise _invalid_schema_error(where, f"the record {full_name} has the same field twice")
        return parsed

    def _parse_field(self, schema: Any, namespace: str, where: str) -> AvroField:
        """Parse a field of a record."""
        if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
            raise _invalid_schema_error(where, "a field has no name")
        name = schema["name"]
        path = f"{where}.{name}"
        if "type" not in schema:
            raise _invalid_schema_error(path, "the field has no type")
        return AvroField(
            name=name,
            aliases=_checked_names(schema.get("aliases") or [], path),
            type=self.parse(schema["type"], namespace, path),
            has_default="default" in schema,
            default=schema.get("default"),
        )


def _full_name(name: str, namespace: str) -> str:
    """Return a name with its namespace: its own, if it has a dot, else the enclosing one."""
    if "." in name:
        return name.removeprefix(".")
    return f"{namespace}.{name}" if namespace else name


def _checked_names(value: Any, where: str) -> tuple[str, ...]:
    """Return a list of names as a tuple; raise if it is not a list."""
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise _invalid_schema_error(where, f"{value!r} is not a list of names")
    return tuple(value)


def _with_logical_type(parsed: AvroType, schema: Mapping[str, Any]) -> AvroType:
    """Add the logical type of a schema to its type, if it fits, and Connect's name."""
    parsed.connect_name = _connect_name(schema)
    logical = schema.get("logicalType")
    as_uuid = parsed.kind == "string" or (parsed.kind, parsed.size) == ("fixed", 16)
    as_time = isinstance(logical, str) and parsed.kind == _TIMES.get(logical, ("",))[0]
    if as_time or (logical == "uuid" and as_uuid):
        parsed.logical = str(logical)
    elif logical == "decimal" and parsed.kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        room = math.floor(math.log10(2) * (8 * parsed.size - 1)) if parsed.size else 0
        if (
            type(precision) is int
            and type(scale) is int
            and 0 <= scale <= precision
            and precision > 0
            and (parsed.kind == "bytes" or precision <= room)
        ):
            parsed.logical, parsed.precision, parsed.scale = logical, precision, scale
    return parsed


def _connect_name(schema: Mapping[str, Any]) -> str:
    """Return the name that Kafka Connect has for a schema; empty if it has none."""
    name = schema.get("connect.name")
    return name if isinstance(name, str) else ""


def _invalid_schema_error(where: str, why: str) -> AvroError:
    """Build the error that a schema is not valid; `where`: path of the field, if known."""
    return AvroError(f"{where}: {why}" if where else why)


def to_arrow_schema(record: AvroType) -> pa.Schema:
    """Convert an Avro record to columns; raise `InvalidFlowError` if a type has no counterpart."""
    return pa.schema(list(_arrow_type(record, record.short_name, ())))


def _arrow_type(avro_type: AvroType, where: str, enclosing: tuple[AvroType, ...]) -> Any:
    """Convert a type to Arrow's; `enclosing`: enclosing records, to refuse recursion."""
    if avro_type.kind == "union":
        other_branches = [part for part in avro_type.branches if part.kind != "null"]
        if len(other_branches) != 1:
            raise _no_column(where, f"a union of {len(other_branches)} types")
        return _arrow_type(other_branches[0], where, enclosing)
    if avro_type.kind == "null":
        raise _no_column(where, "the type null")
    if avro_type in enclosing:
        raise _no_column(where, f"the record {avro_type.name}, which contains itself")
    if avro_type.logical == "decimal":
        if avro_type.precision > _MAX_DIGITS:
            raise _no_column(
                where, f"a decimal of {avro_type.precision} digits, more than {_MAX_DIGITS},"
            )
        return pa.decimal128(avro_type.precision, avro_type.scale)
    if avro_type.logical == "uuid":
        return pa.string()
    if avro_type.logical:
        return _TIMES[avro_type.logical][1]
    if avro_type.kind == "record":
        enclosing_records = (*enclosing, avro_type)
        parts = [(part.name, f"{where}.{part.name}", part.type) for part in avro_type.fields]
        return pa.struct(
            [(name, _arrow_type(part, path, enclosing_records)) for name, path, part in parts]
        )
    if avro_type.items is None:
        return _PLAIN[avro_type.kind]
    items = _arrow_type(avro_type.items, f"{where}[]", enclosing)
    return pa.list_(items) if avro_type.kind == "array" else pa.map_(pa.string(), items)


def _no_column(where: str, what: str) -> InvalidFlowError:
    """Build the error that the Avro type at `where` has no counterpart in Arrow; `what`: why."""
    return InvalidFlowError(
        f"The Avro schema has {what} at {where}, for which Arrow has no type.",
        remedy="Leave the field out of the reader's schema.",
    )


def converter(avro_type: AvroType, written: AvroType | None = None) -> Callable[[Any], Any] | None:
    """Return the conversion of a type's underlying value to its value for Arrow.

    ``None``: Arrow takes it as it is. `written`: the type by which it was written, whose unit and
    scale count, as they say what the number means.
    """
    source = avro_type if written is None else written
    if avro_type.logical == "decimal":
        scale = source.scale if source.logical == "decimal" else avro_type.scale
        return lambda raw: _to_decimal(raw, scale, avro_type.scale)
    if avro_type.logical == "uuid":
        return uuid_text if avro_type.kind == "string" else lambda raw: str(uuid.UUID(bytes=raw))
    if avro_type.logical in DAY:
        factor = (
            1000 if avro_type.logical == "time-micros" and source.logical == "time-millis" else 1
        )
        return lambda raw: _time_of_day(raw * factor, DAY[avro_type.logical], avro_type.logical)
    source_unit, target_unit = (
        source.logical.rpartition("-")[2],
        avro_type.logical.rpartition("-")[2],
    )
    if (
        "timestamp" in avro_type.logical
        and "timestamp" in source.logical
        and source_unit != target_unit
    ):
        return lambda raw: raw * _PER_SECOND[target_unit] // _PER_SECOND[source_unit]
    return None


def _to_decimal(raw: bytes, scale: int, to_scale: int) -> Decimal:
    """Decode a decimal from bytes, with `to_scale` digits after the point; or raise."""
    number = int.from_bytes(raw, "big", signed=True)
    if number.bit_length() > _MAX_BITS:
        raise AvroError("a decimal has more digits than its type allows")
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
        raise AvroError(f"{raw} is not a time of day ({logical})")
    return raw


def uuid_text(text: str) -> str:
    """Return a UUID in its usual form; raise `ValueError` if it is not one."""
    return text if _UUID.fullmatch(text) else str(uuid.UUID(text))


def to_default(avro_type: AvroType, default: Any, where: str) -> Any:
    """Convert a default from JSON to its value for Arrow.

    The characters of a text stand for the bytes of bytes and fixed. A union takes the first of its
    types that the default fits. Raises `AvroError` if it fits none.
    """
    if avro_type.kind == "union":
        for branch in avro_type.branches:
            try:
                return to_default(branch, default, where)
            except AvroError:
                continue
        raise _invalid_schema_error(where, f"the default {default!r} matches no type of the union")
    convert = converter(avro_type)
    raw = _raw_default(avro_type, default, where)
    try:
        return raw if convert is None else convert(raw)
    except ValueError as error:
        raise _invalid_schema_error(where, f"the default {default!r}: {error}") from None


def _raw_default(avro_type: AvroType, default: Any, where: str) -> Any:
    """Return a default as a value of the underlying type."""
    kind = avro_type.kind
    if kind == "record" and isinstance(default, dict):
        return tuple(_field_default(part, default, where) for part in avro_type.fields)
    if kind == "array" and isinstance(default, list) and avro_type.items:
        return [to_default(avro_type.items, item, f"{where}[]") for item in default]
    if kind == "map" and isinstance(default, dict) and avro_type.items:
        items = avro_type.items
        return [(key, to_default(items, item, f"{where}[]")) for key, item in default.items()]
    if kind in ("bytes", "fixed") and isinstance(default, str) and max(default, default="") <= "ÿ":
        raw = default.encode("latin-1")
        if kind == "bytes" or len(raw) == avro_type.size:
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
        or (kind == "enum" and default in avro_type.symbols)
        or (bound and type(default) is int and -bound <= default < bound)
    ):
        return default
    raise _invalid_schema_error(where, f"the default {default!r} is not of type {avro_type}")


def _field_default(part: AvroField, default: Mapping[str, Any], where: str) -> Any:
    """Return a field's value in a record's default, or else the field's own default."""
    path = f"{where}.{part.name}"
    if part.name in default:
        return to_default(part.type, default[part.name], path)
    if part.has_default:
        return to_default(part.type, part.default, path)
    raise _invalid_schema_error(path, "the record's default has no value for the field")


def check_defaults(record: AvroType) -> None:
    """Raise `AvroError` for a field, also of a record within, whose default is not valid."""
    _check_fields(record, record.short_name)


def _check_fields(avro_type: AvroType, where: str) -> None:
    """Check the defaults of all records within a type that does not hold itself."""
    for part in avro_type.fields:
        path = f"{where}.{part.name}"
        if part.has_default:
            to_default(part.type, part.default, path)
        _check_fields(part.type, path)
    for branch in avro_type.branches:
        _check_fields(branch, where)
    if avro_type.items is not None:
        _check_fields(avro_type.items, f"{where}[]")
