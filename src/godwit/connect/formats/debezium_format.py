"""Change events of Debezium in JSON, with or without their schema, as upserts or changes.

An event has the row before and after a change.  A database sends the row before only if it is told
to (PostgreSQL: ``REPLICA IDENTITY FULL``), so by default events become upserts and deletes by key,
which ``latest`` makes changes of.  Values have Debezium's *semantic types*, such as days or
microseconds since 1970: each event with a schema names them, and for others they follow from the
type of the column, as Debezium is set up by default.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.signed import CHANGE, UNCHANGED
from godwit.columns.types import is_binary, is_temporal, is_text
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import listing
from godwit.sources.message_formats import Decoded, MessageFormat, decode_by_halves
from godwit.sources.text_values import as_json, from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.columns.signed import Kind
    from godwit.sources.message_formats import Value

Types: TypeAlias = Mapping[str, tuple[str, int | None]]
"""Column → its semantic type, and its scale if it is a decimal."""

UNAVAILABLE: Final = "__debezium_unavailable_value"
_UNAVAILABLE_BYTES: Final = base64.b64encode(UNAVAILABLE.encode()).decode()
INCLUDED: Final[Mapping[str, pa.DataType]] = {
    "op": pa.string(),
    "time": pa.timestamp("us", "UTC"),
    "snapshot": pa.bool_(),
    "position": pa.int64(),
    "transaction": pa.string(),
    "order": pa.int64(),
}
"""Further columns that events have; see `gw.formats.debezium`."""

_DEBEZIUM: Final = "io.debezium.time"
_CONNECT: Final = "org.apache.kafka.connect.data"
_DAYS: Final = (f"{_DEBEZIUM}.Date", f"{_CONNECT}.Date")
_MILLISECONDS: Final = (
    *(f"{_DEBEZIUM}.Timestamp", f"{_DEBEZIUM}.Time"),
    *(f"{_CONNECT}.Timestamp", f"{_CONNECT}.Time"),
)
_NANOSECONDS: Final = tuple(
    f"{_DEBEZIUM}.{name}" for name in ("NanoTimestamp", "NanoTime", "NanoDuration")
)
_MICROSECONDS: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(_DAYS, (86_400_000_000, 1)),
    **dict.fromkeys(_MILLISECONDS, (1000, 1)),
    **dict.fromkeys(_NANOSECONDS, (1, 1000)),
}
"""Semantic type → microseconds of its unit, as multiplier and divisor; others have microseconds."""


class _Source(msgspec.Struct, gc=False):
    """Position of an event in its database's log; each database has other fields."""

    ts_ms: int | None = None
    ts_us: int | None = None
    snapshot: Any = None
    lsn: Any = None
    scn: Any = None
    file: str | None = None
    pos: int | None = None
    txId: Any = None  # noqa: N815  Debezium's name


class _Transaction(msgspec.Struct, gc=False):
    """Transaction of an event, if Debezium tells it."""

    id: str | None = None
    total_order: int | None = None


class DebeziumMessages(MessageFormat):
    """Change events of one table."""

    reads_keys: ClassVar[bool] = True

    def __init__(
        self,
        schema: pa.Schema,
        *,
        key: tuple[str, ...],
        has_before: bool,
        include: Mapping[str, str],  # `INCLUDED` → name of the column
        types: Mapping[str, str],
    ) -> None:
        self._table, self._key, self._has_before = schema, key, has_before
        self._include, self._types = dict(include), dict(types)
        self._usual_types: Types = {name: (text, None) for name, text in types.items()}
        self._check()
        extra = [pa.field(name, INCLUDED[what]) for what, name in self._include.items()]
        signs = [CHANGE] if has_before else [CHANGE, UNCHANGED]
        self._schema = pa.schema([*schema, *extra, *signs])
        for field in schema:
            _json_type(field)  # which refuses types that events do not have

    def _check(self) -> None:
        """Raise for keys that are not columns, names that are taken, and unknown types."""
        names = self._table.names
        where = "gw.formats.debezium"
        if not self._key or (unknown := [name for name in self._key if name not in names]):
            given = repr(unknown[0]) if self._key else "none"
            raise InvalidFlowError(
                f"{where}: the key has {given}, which is not among the columns.",
                remedy=f'Name the columns of the primary key, as in key="id", of {listing(names)}.',
            )
        reserved = [CHANGE.name] if self._has_before else [CHANGE.name, UNCHANGED.name]
        taken = [n for n in (*names, *self._include.values()) if n in reserved]
        every = [*names, *self._include.values()]
        taken += [name for name in self._include.values() if every.count(name) > 1]
        if taken:
            raise InvalidFlowError(
                f"{where}: two columns would be called {taken[0]!r}.",
                remedy=f"{listing(reserved)} are columns of changes. Leave a column of this name "
                "out, or rename it by a view or Debezium's transforms; name others in include=.",
            )
        if unknown := [what for what in self._include if what not in INCLUDED]:
            raise InvalidFlowError(
                f"{where}: include names {unknown[0]!r}, which events do not have.",
                remedy=f"They have {listing(list(INCLUDED))}.",
            )
        if unknown := [name for name in self._types if name not in names]:
            raise InvalidFlowError(
                f"{where}: types= names {unknown[0]!r}, which is not among the columns.",
                remedy=f"The columns are {listing(names)}.",
            )

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def stream_kind(self) -> Kind:
        return "changes" if self._has_before else "upserts"

    @property
    def table_keys(self) -> tuple[str, ...]:
        return self._key

    def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
        raise NotImplementedError  # `decode` makes fewer or more rows than messages

    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        raise InvalidFlowError(
            f"gw.formats.debezium reads events, and cannot write {rows.num_rows} rows.",
            remedy="Write them as gw.formats.json() or gw.formats.avro(...).",
        )

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Raise: the format only reads."""
        del schema
        raise InvalidFlowError(
            f"{where} is to write events of Debezium, which Godwit only reads.",
            remedy="Write the rows as gw.formats.json() or gw.formats.avro(...).",
        )

    def decode(
        self, values: Sequence[Value], names: Sequence[str], keys: Sequence[Value] = ()
    ) -> Decoded:
        """Decode events to the columns `names`; see `MessageFormat.decode`."""
        schema = pa.schema([self._schema.field(name) for name in names])

        def read(begin: int, end: int) -> tuple[pa.RecordBatch, np.ndarray[Any, Any]]:
            events = self._events(values[begin:end], keys[begin:end])
            columns = [self._column(events, field) for field in schema]
            messages = begin + np.array(events.messages, np.int64)
            if not columns:
                nothing = pa.array([{}] * len(messages), pa.struct([]))
                return pa.RecordBatch.from_struct_array(nothing), messages
            return pa.RecordBatch.from_arrays(columns, schema=schema), messages

        parts, bad = decode_by_halves(len(values), read)
        rows = [part for part, _ in parts]
        messages = [part for _, part in parts]
        return Decoded(
            rows=pa.concat_batches(rows) if rows else read(0, 0)[0],
            bad=bad,
            messages=np.concatenate(messages) if messages else np.empty(0, np.int64),
        )

    # Events

    def _events(self, values: Sequence[Value], keys: Sequence[Value]) -> _Events:
        """Return the rows, with a sign, that events insert and delete."""
        decode = _envelope_decoder(self._table, bool(self._include)).decode
        events = _Events([], [], [], [], [])
        usual = self._usual_types
        for message, value in enumerate(values):
            if value is None:  # a tombstone, behind the delete
                continue
            envelope = decode(value)
            types = usual
            if envelope.schema is not msgspec.UNSET:
                types = self._types_in(envelope.schema, "after")
            if envelope.payload is not msgspec.UNSET:
                envelope = envelope.payload
                if envelope is None:
                    continue
            op = envelope.op
            if op in ("c", "r", "u"):
                if envelope.after is None:
                    msg = f"an event of op {op!r} has no row in 'after'"
                    raise ValueError(msg)
                if self._has_before and op == "u":
                    events.add(message, envelope, self._before(envelope), -1, types)
                events.add(message, envelope, envelope.after, 1, types)
            elif op == "d" and self._has_before:
                events.add(message, envelope, self._before(envelope), -1, types)
            elif op == "d":
                row, types = self._deleted(envelope, keys[message] if keys else None, types)
                events.add(message, envelope, row, -1, types)
            elif op != "m":  # which is text that a program has put in the log
                raise ValueError(_unknown_op(op))
        return events

    def _before(self, envelope: Any) -> Any:
        """Return the row before an update or delete; raise if it is not sent."""
        if envelope.before is None:
            msg = (
                f"an event of op {envelope.op!r} has no row in 'before': set REPLICA IDENTITY "
                "FULL, or leave before=True out"
            )
            raise ValueError(msg)
        return envelope.before

    def _deleted(self, envelope: Any, key: Value, types: Types) -> tuple[Any, Types]:
        """Return the row that a delete names: that of 'before', or of the message's key."""
        positions = [self._table.names.index(name) for name in self._key]
        before = envelope.before
        if before is not None and any(getattr(before, f"f{p}") is not None for p in positions):
            return before, types
        if key is None:
            msg = "a delete has neither a row in 'before' nor a key"
            raise ValueError(msg)
        decoded = _key_decoder(self._table).decode(key)
        if decoded.payload is not msgspec.UNSET and decoded.payload is not None:
            return decoded.payload, self._types_in(decoded.schema, None)
        return _key_row_decoder(self._table).decode(key), types

    def _types_in(self, schema: Any, part: str | None) -> Types:
        """Return the semantic types of a schema; `part`: field of it that is the row's."""
        if schema is msgspec.UNSET:
            return self._usual_types
        return _types_of_schema(bytes(schema), part) or self._usual_types

    # Columns

    def _column(self, events: _Events, field: pa.Field) -> pa.Array:
        """Return a column of the rows of events."""
        name = field.name
        if name in self._table.names:
            return self._values(events, field)
        if name == CHANGE.name:
            return pa.array(events.signs, pa.int8())
        if name == UNCHANGED.name:
            return pa.array(self._left_out(events), pa.string())
        what = next(what for what, other in self._include.items() if other == name)
        return pa.array(list(map(_METADATA[what], events.envelopes)), field.type)

    def _values(self, events: _Events, field: pa.Field) -> pa.Array:
        """Return a column of the table."""
        place = f"f{self._table.names.index(field.name)}"
        values = list(map(attrgetter(place), events.rows))
        signs = events.signs
        if field.name not in self._key and not self._has_before and -1 in signs:
            # which a delete may not have
            values = [v if sign > 0 else None for v, sign in zip(values, signs, strict=True)]
        if _has_unavailable(values, field.type):
            values = [
                self._available(value, events, number, place) if _is_unavailable(value) else value
                for number, value in enumerate(values)
            ]
        types = events.types
        if not types or types.count(types[0]) == len(types):
            return _converted(values, field, *_type_of(types[:1], field))
        parts: list[pa.Array] = []
        begin = 0
        for end in range(1, len(types) + 1):  # the schema has changed between two events
            if end == len(types) or types[end] is not types[begin]:
                kind = _type_of(types[begin : begin + 1], field)
                parts.append(_converted(values[begin:end], field, *kind))
                begin = end
        return pa.concat_arrays(parts)

    def _available(self, value: Any, events: _Events, number: int, place: str) -> Any:
        """Return the value of a column that an event leaves out, if its former row has it."""
        before = events.envelopes[number].before
        if not self._has_before or events.signs[number] < 0 or before is None:
            return None
        former = getattr(before, place)
        if _is_unavailable(former):
            msg = f"neither 'after' nor 'before' has the value of a column: {value!r}"
            raise ValueError(msg)
        return former

    def _left_out(self, events: _Events) -> list[str | None]:
        """Return the names of columns that each upsert leaves as they are, one a line."""
        names: list[str | None] = [None] * len(events.rows)
        for position, field in enumerate(self._table):
            values = list(map(attrgetter(f"f{position}"), events.rows))
            if not _has_unavailable(values, field.type):
                continue
            for number, value in enumerate(values):
                if events.signs[number] > 0 and _is_unavailable(value):
                    before = names[number]
                    names[number] = field.name if before is None else f"{before}\n{field.name}"
        return names


@dataclass(frozen=True, slots=True)
class _Events:
    """Rows that events insert or delete, by column."""

    messages: list[int]  # position of the message of each row
    envelopes: list[Any]
    rows: list[Any]
    signs: list[int]
    types: list[Types]

    def add(self, message: int, envelope: Any, row: Any, sign: int, types: Types) -> None:
        """Add a row."""
        self.messages.append(message)
        self.envelopes.append(envelope)
        self.rows.append(row)
        self.signs.append(sign)
        self.types.append(types)


def _type_of(types: Sequence[Types], field: pa.Field) -> tuple[str, int | None]:
    """Return the semantic type of a column; empty for the usual one."""
    return types[0].get(field.name, ("", None)) if types else ("", None)


def _unknown_op(op: object) -> str:
    """Return the reason why an event cannot be read."""
    if op == "t":
        return (
            "the table was truncated (op 't'), and an event does not name the deleted rows; let "
            "Debezium leave truncations out (skipped.operations=t), or start again from a snapshot"
        )
    return f"it is not a change event: its op is {op!r}"


def _time_of(envelope: Any) -> int | None:
    """Return when a change happened in the database, in microseconds; ``None`` if unknown."""
    source = envelope.source
    if source is None or (source.ts_us is None and source.ts_ms is None):
        return None
    microseconds: int = source.ts_us if source.ts_us is not None else source.ts_ms * 1000
    return microseconds


def _position_of(envelope: Any) -> int | None:
    """Return the position of a change in the database's log, which grows; ``None`` if unknown."""
    source = envelope.source
    if source is None:
        return None
    if source.file is not None and source.pos is not None:  # of MySQL
        number = re.search(r"(\d+)$", source.file)
        return None if number is None else (int(number[1]) << 40) + int(source.pos)
    known = source.lsn if source.lsn is not None else source.scn
    return int(known) if isinstance(known, int) or str(known).isdigit() else None


def _transaction_of(envelope: Any) -> str | None:
    """Return the id of a change's transaction; ``None`` if unknown."""
    if envelope.transaction is not None:
        identity: str | None = envelope.transaction.id
        return identity
    known = None if envelope.source is None else envelope.source.txId
    return None if known is None else str(known)


_METADATA: Final[Mapping[str, Callable[[Any], Any]]] = {
    "op": lambda envelope: envelope.op,
    "time": _time_of,
    "snapshot": lambda envelope: (
        envelope.op == "r"
        or (envelope.source is not None and envelope.source.snapshot not in (None, False, "false"))
    ),
    "position": _position_of,
    "transaction": _transaction_of,
    "order": lambda envelope: (
        None if envelope.transaction is None else envelope.transaction.total_order
    ),
}


@lru_cache(maxsize=64)
def _row_class(schema: pa.Schema) -> Any:
    """Return the msgspec class of a table's rows, with fields f0, f1, ..."""
    fields = [(f"f{i}", _json_type(field), None) for i, field in enumerate(schema)]
    names = {f"f{i}": field.name for i, field in enumerate(schema)}
    return msgspec.defstruct("Row", fields, rename=names, gc=False)


@lru_cache(maxsize=64)
def _envelope_decoder(schema: pa.Schema, reads_source: bool) -> msgspec.json.Decoder[Any]:
    """Return the decoder of events of a table, with or without a schema around them.

    `reads_source`: whether position and transaction are read.
    """
    row = _row_class(schema)
    fields: list[tuple[str, Any, Any]] = [
        ("before", row | None, None),
        ("after", row | None, None),
        ("op", str | None, None),
    ]
    if reads_source:
        fields += [
            ("source", _Source | None, None),
            ("transaction", _Transaction | None, None),
        ]
    inner = msgspec.defstruct("Payload", fields, gc=False)
    outer = msgspec.defstruct(
        "Envelope",
        [
            *fields,
            ("schema", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET),
            ("payload", inner | None | msgspec.UnsetType, msgspec.UNSET),
        ],
        gc=False,
    )
    return msgspec.json.Decoder(outer, float_hook=Decimal)


@lru_cache(maxsize=64)
def _key_decoder(schema: pa.Schema) -> msgspec.json.Decoder[Any]:
    """Return the decoder of keys with a schema around them."""
    key = msgspec.defstruct(
        "Key",
        [
            ("schema", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET),
            ("payload", _row_class(schema) | None | msgspec.UnsetType, msgspec.UNSET),
        ],
        gc=False,
    )
    return msgspec.json.Decoder(key, float_hook=Decimal)


@lru_cache(maxsize=64)
def _key_row_decoder(schema: pa.Schema) -> msgspec.json.Decoder[Any]:
    """Return the decoder of keys without a schema."""
    return msgspec.json.Decoder(_row_class(schema), float_hook=Decimal)


class _SchemaField(msgspec.Struct, gc=False):
    """A field of a schema of Kafka Connect."""

    field: str | None = None
    name: str | None = None
    fields: list[_SchemaField] | None = None
    parameters: dict[str, str] | None = None


_schema_decoder: Final = msgspec.json.Decoder(_SchemaField | None)


@lru_cache(maxsize=256)
def _types_of_schema(text: bytes, part: str | None) -> Types | None:
    """Return the semantic types of a schema's columns; ``None`` of a null schema.

    `part`: field of the schema that is the row's; ``None``: it is the row's itself.
    """
    schema = _schema_decoder.decode(text)
    if schema is None:
        return None
    if part is not None:
        schema = next((f for f in schema.fields or () if f.field == part), _SchemaField())
    return {
        field.field: (field.name or "plain", _scale_of(field))
        for field in schema.fields or ()
        if field.field is not None
    }


def _scale_of(field: _SchemaField) -> int | None:
    """Return the scale of a decimal in a schema, if it has one."""
    scale = (field.parameters or {}).get("scale")
    return None if scale is None else int(scale)


# Values


def _json_type(field: pa.Field) -> Any:
    """Return the Python type as which msgspec decodes a column; raise if events have no such."""
    dtype = field.type
    if pa.types.is_boolean(dtype):
        return bool | None
    if pa.types.is_integer(dtype):
        return int | None
    if pa.types.is_floating(dtype):
        return float | str | None  # a text is NaN, or an infinity
    if (
        is_text(dtype)
        or is_binary(dtype)
        or is_temporal(dtype)
        or pa.types.is_duration(dtype)
        or pa.types.is_decimal128(dtype)
        or (pa.types.is_list(dtype) and not pa.types.is_nested(dtype.value_type))
    ):
        return Any
    raise InvalidFlowError(
        f"gw.formats.debezium: column {field.name!r} has type {dtype}, which events do not have.",
        remedy="Read structs, maps and times of day as text, numbers or lists.",
    )


def _may_be_unavailable(dtype: pa.DataType) -> bool:
    """Return whether a column may be so large that an update leaves it out."""
    return not (
        pa.types.is_boolean(dtype) or pa.types.is_integer(dtype) or pa.types.is_floating(dtype)
    )


def _has_unavailable(values: list[Any], dtype: pa.DataType) -> bool:
    """Return whether a column has values that updates leave out."""
    if not _may_be_unavailable(dtype):
        return False
    return UNAVAILABLE in values or _UNAVAILABLE_BYTES in values or [UNAVAILABLE] in values


def _is_unavailable(value: Any) -> bool:
    """Return whether a value is the one that stands for a value that an update leaves out."""
    if isinstance(value, str):
        return value in (UNAVAILABLE, _UNAVAILABLE_BYTES)
    return isinstance(value, list) and value == [UNAVAILABLE]


def _converted(values: list[Any], field: pa.Field, semantic: str, scale: int | None) -> pa.Array:
    """Return JSON values of a semantic type as a column; empty `semantic`: the usual one."""
    dtype = field.type
    try:
        if pa.types.is_decimal128(dtype):
            return pa.array([_decimal_of(v, dtype, semantic, scale) for v in values], dtype)
        if is_temporal(dtype) or pa.types.is_duration(dtype):
            return _times(values, field, semantic)
        if is_binary(dtype):
            return pa.array([None if v is None else base64.b64decode(v) for v in values], dtype)
        try:
            return pa.array(values, dtype)
        except pa.ArrowException:
            if pa.types.is_floating(dtype):
                return pa.array([None if v is None else float(v) for v in values], dtype)
            if is_text(dtype):
                return pa.array([_text_of(v) for v in values], dtype)
            raise
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        msg = f"column {field.name!r}: {error}"
        raise ValueError(msg) from None


def _text_of(value: Any) -> str | None:
    """Return a value as text: a text as it is, others as JSON."""
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _decimal_of(value: Any, dtype: pa.DataType, semantic: str, scale: int | None) -> Decimal | None:
    """Return a decimal: bytes in Base64, a number or text, as the semantic type says."""
    if value is None:
        return None
    if isinstance(value, dict):  # io.debezium.data.VariableScaleDecimal
        return _unscaled(value["value"], int(value["scale"]))
    if not isinstance(value, str):
        return Decimal(value)
    if semantic in ("plain", "string"):
        return Decimal(value)
    return _unscaled(value, dtype.scale if scale is None else scale)


def _unscaled(text: str, scale: int) -> Decimal:
    """Return the decimal that Base64 of its unscaled value, as two's complement, stands for."""
    number = int.from_bytes(base64.b64decode(text, validate=True), "big", signed=True)
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))


def _times(values: list[Any], field: pa.Field, semantic: str) -> pa.Array:
    """Return dates, timestamps and durations: numbers of the semantic type's unit, or texts."""
    dtype = field.type
    try:
        numbers = pa.array(values, pa.int64())
    except pa.ArrowException:
        return from_json(pa.array(values, as_json(dtype)), field)
    multiplier, divisor = _MICROSECONDS.get(semantic, (1, 1))
    if pa.types.is_date32(dtype):
        days = semantic in ("", "plain", *_DAYS)
        if not days:
            numbers = _floor_divided(numbers, 86_400_000_000 * divisor // multiplier)
        return numbers.cast(pa.int32()).cast(dtype)
    if divisor > 1:
        numbers = _floor_divided(numbers, divisor)
    elif multiplier > 1:
        numbers = pc.multiply_checked(numbers, multiplier)
    return numbers.cast(dtype)


def _floor_divided(numbers: pa.Array, by: int) -> pa.Array:
    """Return integers divided, rounded down: a time before 1970 stays in its microsecond."""
    mask = np.asarray(numbers.is_null())
    values = np.asarray(numbers.fill_null(0)) // by
    return pa.array(values, pa.int64(), mask=mask)
