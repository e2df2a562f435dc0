"""Compacted topics: a message replaces the previous one of its key, and a tombstone deletes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from godwit.columns.signed import CHANGE
from godwit.columns.types import is_text
from godwit.connect.formats.message_formats import Decoded, JsonMessages, MessageFormat
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import listing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.columns.signed import Kind
    from godwit.connect.formats.message_formats import Value


class UpsertMessages(MessageFormat):
    """Rows by key: columns of the key, then those of the value, and the sign."""

    reads_keys: ClassVar[bool] = True

    def __init__(self, value: MessageFormat, key: MessageFormat) -> None:
        for part in (value, key):
            if not isinstance(part, MessageFormat):
                raise InvalidFlowError(
                    f"gw.formats.upsert: {part!r} is not a format of messages.",
                    remedy='Give one of gw.formats, as in gw.formats.json("price double").',
                )
        if value.schema is None or key.schema is None:
            raise InvalidFlowError(
                "gw.formats.upsert: the columns of its value are unknown.",
                remedy='Name them, as in gw.formats.json("name string, price double").',
            )
        self._value, self._key = value, key
        others = [field for field in value.schema if field.name not in key.schema.names]
        if CHANGE.name in (*key.schema.names, *value.schema.names):
            raise InvalidFlowError(
                f"gw.formats.upsert: two columns would have the name {CHANGE.name!r}.",
                remedy=f"{CHANGE.name!r} is the sign of the row; omit the field.",
            )
        self._schema = pa.schema([*key.schema, *others, CHANGE])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def stream_kind(self) -> Kind:
        return "upserts"

    @property
    def table_keys(self) -> tuple[str, ...]:
        assert self._key.schema is not None, "it was checked"
        return tuple(self._key.schema.names)

    def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
        raise NotImplementedError  # `decode` reads keys too

    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        raise InvalidFlowError(
            f"gw.formats.upsert can only read messages, so it cannot write {rows.num_rows} rows.",
            remedy="Give the sink the format of the values.",
        )

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Raise: the format only reads."""
        del schema
        raise InvalidFlowError(
            f"{where} has the format upsert, which Godwit can only read.",
            remedy="Give the sink the format of the values.",
        )

    def decode(
        self, values: Sequence[Value], names: Sequence[str], keys: Sequence[Value] = ()
    ) -> Decoded:
        """Decode messages to the columns `names`; a message without a value deletes its key."""
        key_names = [name for name in names if name in self.table_keys]
        value_names = [name for name in names if name not in (*key_names, CHANGE.name)]
        bad = {
            message: "ValueError: it has no key" for message, key in enumerate(keys) if key is None
        }
        good_messages = [message for message in range(len(values)) if message not in bad]
        decoded = self._key.decode([keys[message] for message in good_messages], key_names)
        bad |= {good_messages[message]: f"key: {reason}" for message, reason in decoded.bad}
        key_row_of = {
            message: row
            for row, message in enumerate(
                message for message in good_messages if message not in bad
            )
        }
        with_value = [message for message in key_row_of if values[message] is not None]
        rows = self._value.decode([values[message] for message in with_value], value_names)
        bad |= {with_value[message]: reason for message, reason in rows.bad}
        value_row_of = {
            message: row
            for row, message in enumerate(message for message in with_value if message not in bad)
        }
        messages = [message for message in key_row_of if message not in bad]
        key_rows = pa.array([key_row_of[message] for message in messages], pa.int64())
        value_rows = pa.array([value_row_of.get(message) for message in messages], pa.int64())
        arrays = {
            **{name: decoded.rows.column(name).take(key_rows) for name in key_names},
            **{name: rows.rows.column(name).take(value_rows) for name in value_names},
            CHANGE.name: pa.array(
                [1 if message in value_row_of else -1 for message in messages], pa.int8()
            ),
        }
        schema = pa.schema([self._schema.field(name) for name in names])
        if names:
            batch = pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=schema)
        else:
            batch = pa.RecordBatch.from_struct_array(pa.array([{}] * len(messages), pa.struct([])))
        return Decoded(
            rows=batch, bad=tuple(sorted(bad.items())), messages=np.array(messages, np.int64)
        )


class KeyMessages(JsonMessages):
    """Keys as JSON objects, or, if they have one column, as plain text or a number."""

    def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
        """Decode keys; a key that is not an object is the value of the only column."""
        own = self.schema
        if own is not None and len(own) == 1:
            [field] = own
            values = [_as_object(value, field) for value in values]
        return super().columns(values, schema)


def _as_object(value: Value, field: pa.Field) -> Value:
    """Return a key as a JSON object with one field."""
    if value is None or value.lstrip()[:1] == b"{":
        return value
    if is_text(field.type) and value[:1] != b'"':
        return msgspec.json.encode({field.name: value.decode()})
    return msgspec.json.encode({field.name: msgspec.Raw(value)})


def check_key(schema: pa.Schema) -> pa.Schema:
    """Return the columns of keys; raise if there are none."""
    if not len(schema):
        raise InvalidFlowError(
            f"gw.formats.upsert: the key has {listing(schema.names) or 'no columns'}.",
            remedy='Name its columns, as in key="id long".',
        )
    return schema
