"""Change events of Debezium in JSON or Avro, as upserts or changes.

An event has the row before and after a change.  A database sends the row before only if it is told
to (PostgreSQL: ``REPLICA IDENTITY FULL``), so by default events become upserts and deletes by key,
which ``latest`` makes changes of.

A message without a value follows each delete.  It deletes its key, too, since a topic that is
compacted may have lost the event before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np
import pyarrow as pa

from godwit.columns.signed import CHANGE, UNCHANGED
from godwit.connect.formats.debezium_events import AvroEvents, EventLayout, JsonEvents
from godwit.connect.formats.debezium_values import (
    ENCODINGS,
    TYPE_NAMES,
    Types,
    converted,
    has_unavailable,
    is_semantic_type,
    is_unavailable,
    text_of,
    type_in_event,
)
from godwit.connect.formats.debezium_writer import EventWriter
from godwit.connect.formats.message_formats import (
    NOT_OF_MESSAGES,
    Decoded,
    MessageFormat,
    UnwritableError,
    check_fields,
    decode_by_halves,
    error_text,
)
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import did_you_mean, listing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.columns.signed import Kind
    from godwit.connect.formats.message_formats import Value
    from godwit.connect.formats.registry import Schemas

INCLUDED: Final[Mapping[str, pa.DataType]] = {
    "op": pa.string(),
    "time": pa.timestamp("us", "UTC"),
    "snapshot": pa.bool_(),
    "position": pa.int64(),
    "transaction": pa.string(),
    "order": pa.int64(),
}
"""Further columns that events have; see `gw.formats.debezium`."""

_READ: Final[Mapping[str, tuple[str, ...]]] = {
    "time": ("source.ts_us", "source.ts_ms"),
    "snapshot": ("source.snapshot",),
    "position": ("source.file", "source.pos", "source.lsn", "source.scn"),
    "transaction": ("transaction.id", "source.txId"),
    "order": ("transaction.total_order",),
}
"""Fields of events that they are made of."""

_WITH_ROW: Final = frozenset("cru")
_FIELD: Final = re.compile(r"(source|transaction)\.([A-Za-z_][A-Za-z0-9_]*)")
_NUMBERS: Final = frozenset(
    {
        *("ts_ms", "ts_us", "ts_ns", "lsn", "xmin", "pos", "row", "server_id", "thread"),
        *("event_serial_no", "total_order", "data_collection_order"),
    }
)
"""Fields of ``source`` and ``transaction`` that are numbers; others are read as text."""


class DebeziumMessages(MessageFormat):
    """Change events of one table."""

    reads_keys: ClassVar[bool] = True
    writes_changes: ClassVar[bool] = True
    writes_any: ClassVar[bool] = True

    def __init__(
        self,
        schema: pa.Schema,
        *,
        key: tuple[str, ...],
        has_before: bool,
        include: Mapping[str, str],  # `INCLUDED`, or a field of events → name of the column
        types: Mapping[str, str],
        schemas: Schemas | None,  # of events in Avro; ``None``: they are JSON
        tombstones: bool,
    ) -> None:
        self.has_tombstones = tombstones
        self.max_rows = 2 if has_before else 1  # an update is two changes
        self._table, self._key, self._has_before = schema, key, has_before
        self._included_fields, self._schemas = dict(include), schemas
        self._check_columns_and_types(types)
        extra = [
            pa.field(name, _type_of(event_field))
            for event_field, name in self._included_fields.items()
        ]
        signs = [CHANGE] if has_before else [CHANGE, UNCHANGED]
        self._schema = pa.schema([*schema, *extra, *signs])
        for field in schema:
            type_in_event(field)  # which refuses types that events do not have
        fields = {
            field_name
            for event_field in self._included_fields
            for field_name in _READ.get(event_field, (event_field,))
        }
        self._layout = EventLayout(
            table=schema,
            source=_names_in("source", fields),
            transaction=_names_in("transaction", fields),
            usual=tuple(types.items()),
        )
        self._writer = EventWriter(schema, key, dict(types), has_before=has_before)

    def _check_columns_and_types(self, types: Mapping[str, str]) -> None:
        """Raise for keys that are not columns, duplicate names, and unknown types."""
        names = self._table.names
        where = "gw.formats.debezium"
        if not self._key or (unknown := [name for name in self._key if name not in names]):
            given_text = repr(unknown[0]) if self._key else "none"
            raise InvalidFlowError(
                f"{where}: the key has {given_text}, which is not one of the columns.",
                remedy=(
                    'Give the columns of the primary key, as in key="id"; the columns are '
                    f"{listing(names)}."
                ),
            )
        reserved = [CHANGE.name] if self._has_before else [CHANGE.name, UNCHANGED.name]
        conflicting = [
            name_ for name_ in (*names, *self._included_fields.values()) if name_ in reserved
        ]
        all_names = [*names, *self._included_fields.values()]
        conflicting += [
            name for name in self._included_fields.values() if all_names.count(name) > 1
        ]
        if conflicting:
            raise InvalidFlowError(
                f"{where}: two columns would have the name {conflicting[0]!r}.",
                remedy=f"{listing(reserved)} are columns of changes. Omit a column of this name, "
                "or rename it by a view or Debezium's transforms; rename columns of include= "
                "there.",
            )
        if unknown := [
            field
            for field in self._included_fields
            if field not in INCLUDED and not _FIELD.fullmatch(field)
        ]:
            raise InvalidFlowError(
                f"{where}: include= has {unknown[0]!r}, which events do not have.",
                remedy=f"They have {listing(list(INCLUDED))}, and fields such as 'source.table' "
                "and 'transaction.data_collection_order'.",
            )
        if unknown := [name for name in types if name not in names]:
            raise InvalidFlowError(
                f"{where}: types= has {unknown[0]!r}, which is not one of the columns.",
                remedy=f"The columns are {listing(names)}.",
            )
        if unknown := [
            type_name for type_name in types.values() if not is_semantic_type(type_name)
        ]:
            raise InvalidFlowError(
                f"{where}: types= has {unknown[0]!r}, which is not a semantic type of Debezium.",
                remedy=f"{did_you_mean(unknown[0], TYPE_NAMES)}Give one such as "
                f"{TYPE_NAMES[0]!r}, or the encoding of bytes: {listing(ENCODINGS)}.",
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

    @property
    def writes_former(self) -> bool:
        return self._has_before

    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        """Encode each row as an event; see `EventWriter.events`."""
        try:
            return self._writer.events(rows)
        except NOT_OF_MESSAGES:
            raise
        except Exception as error:
            raise UnwritableError(error_text(error)) from error

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Raise for columns that events do not have; `include=` columns are left out of them."""
        if self._schemas is not None:
            raise InvalidFlowError(
                f"{where} would have to write Debezium events in Avro, which Godwit can only read.",
                remedy="Leave registry= out of its format, so that events are JSON.",
            )
        skipped = (CHANGE.name, UNCHANGED.name, *self._included_fields.values())
        rest = pa.schema([field for field in schema if field.name not in skipped])
        check_fields(rest, self._table, where, "the table of the events")
        self._writer.check(where)

    def decode(
        self, values: Sequence[Value], names: Sequence[str], keys: Sequence[Value] = ()
    ) -> Decoded:
        """Decode events to the columns `names`; see `MessageFormat.decode`."""
        schema = pa.schema([self._schema.field(name) for name in names])

        def read(begin: int, end: int) -> tuple[pa.RecordBatch, np.ndarray[Any, Any]]:
            events = self._signed_rows_of_events(values[begin:end], keys[begin:end])
            columns = [self._row_column(events, field) for field in schema]
            messages = begin + np.array(events.messages, np.int64)
            if not columns:
                empty_structs = pa.array([{}] * len(messages), pa.struct([]))
                return pa.RecordBatch.from_struct_array(empty_structs), messages
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

    def _event_reader(self) -> JsonEvents | AvroEvents:
        """Return the reader of events."""
        if self._schemas is None:
            return JsonEvents(self._layout)
        return AvroEvents(self._layout, self._schemas)

    def _signed_rows_of_events(self, values: Sequence[Value], keys: Sequence[Value]) -> _Events:
        """Return the rows, with a sign, that events insert and delete."""
        reader = self._event_reader()
        envelopes, every_type = reader.events(values)
        events = _Events([], [], [], [], [])
        add = events.adding()
        has_before = self._has_before
        for message, (envelope, types) in enumerate(zip(envelopes, every_type, strict=True)):
            if envelope is None:
                if values[message] is None and keys and not has_before:
                    self._add_tombstone(events, message, keys, reader)
                continue
            op = envelope.op
            if op in _WITH_ROW:
                after = envelope.after
                if after is None:
                    msg = f"an event of op {op!r} has no row in 'after'"
                    raise ValueError(msg)
                if has_before and op == "u":
                    add(message, envelope, self._row_before(envelope), -1, types)
                add(message, envelope, after, 1, types)
            elif op == "d" and has_before:
                add(message, envelope, self._row_before(envelope), -1, types)
            elif op == "d":
                key = keys[message] if keys else None
                row, types = self._deleted_row(envelope, key, types, reader)  # noqa: PLW2901
                add(message, envelope, row, -1, types)
            elif op != "m":  # which is text that a program has put in the log
                raise ValueError(_unknown_op(op))
        self._check_keys(events, values, keys, reader)
        return events

    def _check_keys(
        self,
        events: _Events,
        values: Sequence[Value],
        keys: Sequence[Value],
        reader: JsonEvents | AvroEvents,
    ) -> None:
        """Raise if an event does not have a column of the key, which would be null in all rows."""
        for name in self._key:
            of_row = list(map(attrgetter(f"f{self._table.names.index(name)}"), events.rows))
            if None not in of_row:
                continue
            for value, message, types in zip(of_row, events.messages, events.types, strict=True):
                texts = [values[message], keys[message] if keys else None]
                if value is None and not reader.names(texts, types, name):
                    msg = f"it has no column {name!r}, which is part of the key: was it renamed?"
                    raise ValueError(msg)

    def _row_before(self, envelope: Any) -> Any:
        """Return the row before an update or delete; raise if the event lacks it."""
        if envelope.before is None:
            msg = (
                f"an event of op {envelope.op!r} has no row in 'before': set REPLICA IDENTITY "
                "FULL, or omit before=True"
            )
            raise ValueError(msg)
        return envelope.before

    def _deleted_row(
        self, envelope: Any, key: Value, types: Types, reader: JsonEvents | AvroEvents
    ) -> tuple[Any, Types]:
        """Return the row that a delete identifies: from 'before', or from the message's key."""
        if envelope.before is not None and self._has_key(envelope.before):
            return envelope.before, types
        if key is None:
            msg = "a delete has neither a row in 'before' nor a key"
            raise ValueError(msg)
        return reader.key(key)

    def _has_key(self, row: Any) -> bool:
        """Return whether a row has a value in a column of the key."""
        return any(value is not None for value in self._key_values(row))

    def _key_values(self, row: Any) -> list[Any]:
        """Return the values of a row in the columns of the key."""
        names = self._table.names
        return [getattr(row, f"f{names.index(name)}") for name in self._key]

    def _add_tombstone(
        self,
        events: _Events,
        message: int,
        keys: Sequence[Value],
        reader: JsonEvents | AvroEvents,
    ) -> None:
        """Add the delete of a message without a value, unless the event before it is a delete.

        A key that cannot be read, such as plain text, or is of other columns says nothing.
        """
        key = keys[message]
        if key is None:
            return
        last = events.messages[-1] if events.messages else -1
        if last >= 0 and last == message - 1 and events.signs[-1] < 0 and keys[last] == key:
            return
        try:
            row, types = reader.key(key)
        except NOT_OF_MESSAGES:
            raise
        except Exception:  # noqa: BLE001  see above
            return
        if None not in self._key_values(row):
            events.adding()(message, _TOMBSTONE, row, -1, types)

    # Columns

    def _row_column(self, events: _Events, field: pa.Field) -> pa.Array:
        """Return a column of the rows of events."""
        name = field.name
        if name in self._table.names:
            return self._table_column(events, field)
        if name == CHANGE.name:
            return pa.array(events.signs, pa.int8())
        if name == UNCHANGED.name:
            return pa.array(self._left_out(events), pa.string())
        what = next(what for what, other in self._included_fields.items() if other == name)
        return pa.array(list(map(_metadata_reader(what), events.envelopes)), field.type)

    def _table_column(self, events: _Events, field: pa.Field) -> pa.Array:
        """Return a column of the table."""
        attribute = f"f{self._table.names.index(field.name)}"
        values = list(map(attrgetter(attribute), events.rows))
        signs = events.signs
        if field.name not in self._key and not self._has_before and -1 in signs:
            # which a delete may not have
            values = [
                row_value if sign > 0 else None
                for row_value, sign in zip(values, signs, strict=True)
            ]
        if has_unavailable(values, field.type):
            values = [
                self._value_or_former(value, events, number, attribute)
                if is_unavailable(value)
                else value
                for number, value in enumerate(values)
            ]
        types = events.types
        if not types or types.count(types[0]) == len(types):
            return converted(values, field, types[0] if types else {})
        parts: list[pa.Array] = []
        begin = 0
        for end in range(1, len(types) + 1):  # the schema has changed between two events
            if end == len(types) or types[end] is not types[begin]:
                parts.append(converted(values[begin:end], field, types[begin]))
                begin = end
        return pa.concat_arrays(parts)

    def _value_or_former(self, value: Any, events: _Events, number: int, attribute: str) -> Any:
        """Return the value of a column that an event omits, from the former row if it has it."""
        before = events.envelopes[number].before
        if not self._has_before or events.signs[number] < 0 or before is None:
            return None
        former_value = getattr(before, attribute)
        if is_unavailable(former_value):
            msg = f"neither 'after' nor 'before' has the value of a column: {value!r}"
            raise ValueError(msg)
        return former_value

    def _left_out(self, events: _Events) -> list[str | None]:
        """Return the names of columns that each upsert leaves unchanged, one per line."""
        names: list[str | None] = [None] * len(events.rows)
        for position, field in enumerate(self._table):
            values = list(map(attrgetter(f"f{position}"), events.rows))
            if not has_unavailable(values, field.type):
                continue
            for number, value in enumerate(values):
                if events.signs[number] > 0 and is_unavailable(value):
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

    def adding(self) -> Callable[[int, Any, Any, int, Types], None]:
        """Return the function that adds a row; its attributes are looked up once."""
        message_to, envelope_to = self.messages.append, self.envelopes.append
        row_to, sign_to, types_to = self.rows.append, self.signs.append, self.types.append

        def add(message: int, envelope: Any, row: Any, sign: int, types: Types) -> None:
            """Add a row."""
            message_to(message)
            envelope_to(envelope)
            row_to(row)
            sign_to(sign)
            types_to(types)

        return add


class _Tombstone(msgspec.Struct, gc=False):
    """Envelope of a message without a value."""

    before: None = None
    op: None = None
    source: None = None
    transaction: None = None


_TOMBSTONE: Final = _Tombstone()


def _unknown_op(op: object) -> str:
    """Return the reason why an event cannot be read."""
    if op == "t":
        return (
            "the table was truncated (op 't'), and the event does not list the deleted rows; "
            "make Debezium skip truncations (skipped.operations=t), or start again from a "
            "snapshot"
        )
    return f"it is not a change event: its op is {op!r}"


# Columns about the change


def _names_in(part: str, fields: set[str]) -> tuple[str, ...]:
    """Return the names of fields of ``source`` or ``transaction`` among paths of fields."""
    return tuple(sorted(f.partition(".")[2] for f in fields if f.startswith(f"{part}.")))


def _type_of(what: str) -> pa.DataType:
    """Return the type of an included column."""
    if what in INCLUDED:
        return INCLUDED[what]
    return pa.int64() if what.partition(".")[2] in _NUMBERS else pa.string()


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
    position = source.lsn if source.lsn is not None else source.scn
    return int(position) if isinstance(position, int) or str(position).isdigit() else None


def _transaction_of(envelope: Any) -> str | None:
    """Return the id of a change's transaction; ``None`` if unknown."""
    if envelope.transaction is not None:
        return text_of(envelope.transaction.id)
    return None if envelope.source is None else text_of(envelope.source.txId)


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


def _metadata_reader(what: str) -> Callable[[Any], Any]:
    """Return the function that reads an included column from an envelope."""
    if what in _METADATA:
        return _METADATA[what]
    part, _, name = what.partition(".")
    convert = int if name in _NUMBERS else text_of

    def read(envelope: Any) -> Any:
        """Return the field; ``None`` if the event does not have it."""
        values = getattr(envelope, part)
        value = None if values is None else getattr(values, name)
        return None if value is None else convert(value)

    return read
