"""Rows as change events of Debezium, in JSON without schemas, for `gw.sinks.kafka`.

Values have the semantic types that Debezium has by default, so that the events can be read by the
format that wrote them, and by other readers of such events.
"""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from godwit.columns.signed import CHANGE, FORMER
from godwit.columns.types import is_binary, is_temporal
from godwit.connect.formats.debezium_values import TEXT
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.connect.formats.message_formats import Value

_ENCODE: Final = msgspec.json.Encoder(decimal_format="string").encode


class _Event(msgspec.Struct, gc=False):
    """An event as it is written."""

    before: Any
    after: Any
    op: str


class EventWriter:
    """Writer of events of a table."""

    def __init__(
        self, table: pa.Schema, key: tuple[str, ...], types: Mapping[str, str], *, has_before: bool
    ) -> None:
        self._table, self._key, self._types = table, key, types
        self._has_before = has_before

    def check(self, where: str) -> None:
        """Raise for semantic types that can be read but not written; `where`: the sink."""
        for name, semantic in self._types.items():
            if semantic not in _writable_semantic_types(self._table.field(name).type):
                raise InvalidFlowError(
                    f"{where} would have to write column {name!r} as {semantic}, which Godwit "
                    "can only read.",
                    remedy="Give the sink a format without this entry in types=.",
                    column=name,
                )

    def events(self, rows: pa.RecordBatch) -> list[Value]:
        """Return an event for each row.

        Rows without a sign are inserts. The column of the former row says whether a row with 1
        replaces another one; without that column it may.
        """
        names = rows.schema.names
        after = self._rows_of_events(
            rows.select([number for number in self._table.names if number in names])
        )
        if CHANGE.name not in names:
            return [_ENCODE(_Event(None, row, "c")) for row in after]
        signs = rows.column(CHANGE.name).to_pylist()
        if FORMER in names:
            column = rows.column(FORMER)
            replaces = column.is_valid().to_pylist()
            parts = pa.RecordBatch.from_arrays(
                column.flatten(), schema=pa.schema(list(column.type))
            )
            before = self._rows_of_events(parts) if self._has_before else [None] * len(signs)
        else:
            replaces, before = [True] * len(signs), [None] * len(signs)
        deleted = after
        if -1 in signs and not (self._has_before and FORMER in names):  # upserts may have no more
            deleted = self._rows_of_events(rows.select(list(self._key)))
        return [
            _ENCODE(
                _Event(deleted[number], None, "d")
                if sign < 0
                else _Event(before[number], after[number], "u")
                if replaces[number]
                else _Event(None, after[number], "c")
            )
            for number, sign in enumerate(signs)
        ]

    def _rows_of_events(self, rows: pa.RecordBatch) -> list[Any]:
        """Return the rows in the form of events."""
        named = [(f"f{i}", Any) for i in range(rows.num_columns)]
        renamed = {f"f{i}": name for i, name in enumerate(rows.schema.names)}
        row = msgspec.defstruct("Row", named, rename=renamed, gc=False)
        columns = [
            _values_for_event(column.cast(self._table.field(name).type), self._types.get(name, ""))
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        return list(map(row, *columns))


def _writable_semantic_types(dtype: pa.DataType) -> frozenset[str]:
    """Return the semantic types that columns of a type can be written as."""
    if pa.types.is_decimal(dtype):
        return frozenset({TEXT, "org.apache.kafka.connect.data.Decimal"})
    if is_binary(dtype):
        return frozenset(_BYTES)
    return frozenset({"io.debezium.time.MicroTimestamp", "io.debezium.time.Date"})


_BYTES: Final[Mapping[str, Callable[[bytes], str]]] = {
    "base64": lambda value: base64.b64encode(value).decode(),
    "base64-url-safe": lambda value: base64.urlsafe_b64encode(value).decode(),
    "hex": bytes.hex,
}


def _values_for_event(column: pa.Array, semantic: str) -> list[Any]:
    """Return a column's values in the form of events."""
    dtype = column.type
    if pa.types.is_list(dtype):
        items = iter(_values_for_event(column.flatten(), ""))
        return [
            None if size is None else [next(items) for _ in range(size)]
            for size in _list_lengths(column)
        ]
    if is_temporal(dtype) or pa.types.is_duration(dtype):
        if pa.types.is_date(dtype):
            return list(column.cast(pa.date32()).cast(pa.int32()).to_pylist())
        micros = pa.timestamp("us") if pa.types.is_timestamp(dtype) else pa.duration("us")
        return list(column.cast(micros).cast(pa.int64()).to_pylist())
    values: list[Any] = column.to_pylist()
    if is_binary(dtype):
        encode = _BYTES[semantic or "base64"]
        return [None if value is None else encode(value) for value in values]
    if pa.types.is_decimal(dtype) and semantic != TEXT:
        return [
            None if value is None else _base64_of_unscaled(value, dtype.scale) for value in values
        ]
    if pa.types.is_floating(dtype):
        return [v if v is None or math.isfinite(v) else _not_finite(v) for v in values]
    return values


def _list_lengths(column: pa.Array) -> list[int | None]:
    """Return the number of items of each list."""
    lengths: list[int | None] = pa.compute.list_value_length(column).to_pylist()
    return lengths


def _not_finite(value: float) -> str:
    """Return NaN or an infinity as Kafka Connect writes it."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _base64_of_unscaled(value: Any, scale: int) -> str:
    """Return a decimal as Base64 of its unscaled value, in as few bytes as possible."""
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits)) or "0") * 10 ** (scale + exponent)
    number = -number if sign else number
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()
