"""Rows as messages of Kafka: key, value, headers, topic and partition of each.

Rows that are too large for the broker are found before their epoch is committed (`SizeCheck`).  The
columns' bytes give an upper bound of a message's size; rows are written to be measured only if the
bound exceeds the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.signed import CHANGE, signs_of
from godwit.columns.types import is_binary, is_text
from godwit.connect.formats.message_formats import (
    NOT_OF_MESSAGES,
    JsonMessages,
    MessageFormat,
    UnwritableError,
    Value,
    error_text,
)
from godwit.connect.row_checks import KNOWN_YEARS
from godwit.plan.staging import Rejections
from godwit.sinks.changes import NO_SIGN

if TYPE_CHECKING:
    from collections.abc import Iterator

# What a message takes beside its key, value and headers: Kafka's batch header and its own.
_OVERHEAD_BYTES: Final = 256
_LONGEST_NUMBER: Final = 80  # as text: a decimal of 76 digits


class Outgoing(NamedTuple):
    """A message."""

    topic: str
    partition: int  # -1: as the partitioner says
    key: Value
    value: Value
    headers: list[tuple[str, bytes | None]] | None
    needs_tombstone: bool = False  # a message of the same key without a value follows

    @property
    def size_bytes(self) -> int:
        """Approximate size of the message, as the broker counts it, in bytes."""
        size = _OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"")
        return size + sum(len(k.encode()) + len(v or b"") + 10 for k, v in self.headers or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLayout:
    """Columns of a row that form the parts of its message; picklable."""

    topic: str
    value: MessageFormat
    key: tuple[str, ...]  # columns of the key; none: messages have no key
    key_format: MessageFormat | None  # ``None``: text of a single column, JSON of several
    headers: str | None  # column of a map, or of a list of structs of key and value
    topics: str | None  # column of topics; null stands for `topic`
    partitions: str | None  # column of partitions; null: as the partitioner says
    deletes: bool = False  # rows have a sign; a message for -1 has a key, but no value

    def value_columns(self, names: list[str]) -> list[str]:
        """Return the names of the columns that are part of the message's value."""
        others = {self.headers, self.topics, self.partitions}
        if self.deletes and not self.value.writes_changes:
            others.add(CHANGE.name)
        return [name for name in names if name not in others]

    def messages(self, rows: pa.RecordBatch) -> Iterator[Outgoing]:
        """Yield a message for each row; raise `UnwritableError` if one cannot be encoded."""
        values = self._message_values(rows)
        nulls = [None] * rows.num_rows
        keys = self._message_keys(rows) if self.key else nulls
        if self.deletes and None in keys:
            raise UnwritableError("its key is null, but a message can delete only a row with a key")
        if self.deletes and signs_of(rows) is None:
            raise UnwritableError(NO_SIGN)
        headers = map(_message_headers, rows[self.headers].to_pylist()) if self.headers else nulls
        topics = rows[self.topics].to_pylist() if self.topics else nulls
        partitions = rows[self.partitions].to_pylist() if self.partitions else nulls
        is_deleted: list[bool] = [False] * rows.num_rows
        if self.deletes and self.value.has_tombstones:
            is_deleted = pc.less(rows.column(CHANGE.name), 0).to_pylist()
        for topic, partition, key, value, header, deleted in zip(
            topics, partitions, keys, values, headers, is_deleted, strict=True
        ):
            yield Outgoing(
                self.topic if topic is None else topic,
                -1 if partition is None else partition,
                key,
                value,
                header,
                deleted,
            )

    def _message_values(self, rows: pa.RecordBatch) -> list[Value]:
        """Return the encoded value of each message; ``None`` for deleted rows."""
        columns = rows.select(self.value_columns(rows.schema.names))
        if not self.deletes or self.value.writes_changes:
            return _encode_rows(self.value, columns)
        is_upsert = pc.greater(rows.column(CHANGE.name), 0)
        encoded = iter(_encode_rows(self.value, columns.filter(is_upsert)))
        return [next(encoded) if stays else None for stays in is_upsert.to_pylist()]

    def _message_keys(self, rows: pa.RecordBatch) -> list[Value]:
        """Return the encoded key of each message; ``None`` if messages have no key."""
        if self.key_format is not None:
            return _encode_rows(self.key_format, rows.select(list(self.key)))
        if len(self.key) > 1:
            return JsonMessages(None).encode(rows.select(list(self.key)))
        column = rows[self.key[0]]
        if not (is_text(column.type) or is_binary(column.type)):
            try:
                column = column.cast(pa.string())
            except pa.ArrowException as error:
                raise UnwritableError(f"key {self.key[0]!r}: {error}") from error
        keys: list[Value] = column.cast(pa.large_binary()).to_pylist()
        return keys


def _encode_rows(message_format: MessageFormat, rows: pa.RecordBatch) -> list[Value]:
    """Encode rows; errors of a format are the fault of a row, except for `NOT_OF_MESSAGES`."""
    try:
        values = message_format.encode(rows)
    except (UnwritableError, *NOT_OF_MESSAGES):
        raise
    except Exception as error:
        raise UnwritableError(error_text(error)) from error
    if len(values) != rows.num_rows:
        raise UnwritableError(f"{rows.num_rows} rows were encoded to {len(values)} messages")
    return values


def _message_headers(headers: Any) -> list[tuple[str, bytes | None]] | None:
    """Return the headers of a row's message, from a map (pairs) or a list of structs."""
    if headers is None:
        return None
    pairs = [(h["key"], h["value"]) if isinstance(h, dict) else h for h in headers if h is not None]
    return [(k or "", v.encode() if isinstance(v, str) else v) for k, v in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCheck:
    """Finds rows that cannot be encoded, or are larger than the broker accepts; picklable."""

    layout: MessageLayout
    schema: pa.Schema
    max_bytes: int

    def __call__(self, rows: pa.RecordBatch) -> Rejections | None:
        """Return the rows that the topic would not accept."""
        batch = rows.cast(self.schema) if rows.schema != self.schema else rows
        try:
            if (
                self._takes_any(batch)
                and self._messages_per_row * _bound_bytes(batch) <= self.max_bytes
            ):
                return None
            sizes = [self._messages_per_row * m.size_bytes for m in self.layout.messages(batch)]
            large = np.flatnonzero(np.asarray(sizes, np.int64) > self.max_bytes)
            if not large.size:
                return None
            reasons = [self._too_large_reason(sizes[row]) for row in large]
            return Rejections(rows=large, reasons=reasons)
        except UnwritableError:
            return self._rows_too_large_or_bad(batch)

    @property
    def _messages_per_row(self) -> int:
        """Maximum number of rows in a message: two with the former row, of unknown size."""
        return 2 if self.layout.deletes and self.layout.value.writes_former else 1

    def _takes_any(self, batch: pa.RecordBatch) -> bool:
        """Return whether the formats can encode every row that these columns may hold."""
        layout = self.layout
        if layout.deletes and (
            signs_of(batch) is None or any(batch.column(key).null_count for key in layout.key)
        ):
            return False
        formats = (self.layout.value, self.layout.key_format)
        if not all(item is None or item.writes_any for item in formats):
            return False
        beyond_known_years = map(KNOWN_YEARS.bad, batch.columns)  # which ISO 8601 text cannot have
        return not any(mask is not None and pc.any(mask).as_py() for mask in beyond_known_years)

    def _rows_too_large_or_bad(self, batch: pa.RecordBatch) -> Rejections | None:
        """Return the rows of a batch whose messages are too large or cannot be encoded."""
        rows, reasons = [], []
        for row in range(batch.num_rows):
            try:
                (message,) = self.layout.messages(batch.slice(row, 1))
            except UnwritableError as error:
                rows.append(row)
                reasons.append(f"it cannot be written: {error}")
            else:
                size = self._messages_per_row * message.size_bytes
                if size > self.max_bytes:
                    rows.append(row)
                    reasons.append(self._too_large_reason(size))
        return Rejections(rows=np.asarray(rows, np.int64), reasons=reasons) if rows else None

    def _too_large_reason(self, size_bytes: int) -> str:
        """Return why a message of `size_bytes` is refused, as text."""
        return (
            f"its message would have {size_bytes} bytes, but the topic accepts {self.max_bytes} "
            "(max.message.bytes)"
        )


def _bound_bytes(batch: pa.RecordBatch) -> int:
    """Return an upper bound of the bytes of one message of a batch."""
    fields = sum(
        _text_bytes(c) + 6 * len(f.name) + 4
        for c, f in zip(batch.columns, batch.schema, strict=True)
    )
    return 2 * fields + _OVERHEAD_BYTES  # as key and as value


def _text_bytes(values: pa.Array) -> int:
    """Return an upper bound of a value's bytes as JSON text, with escapes."""
    dtype = values.type
    if is_text(dtype) or is_binary(dtype):
        if pa.types.is_fixed_size_binary(dtype):
            return 2 * int(dtype.byte_width) + 4
        return 6 * int(pc.max(pc.binary_length(values)).as_py() or 0) + 4
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        longest = int(pc.max(pc.list_value_length(values)).as_py() or 0)
        return longest * (_text_bytes(values.flatten()) + 1) + 4
    if pa.types.is_map(dtype):
        entries = values.cast(pa.list_(pa.struct([dtype.key_field, dtype.item_field])))
        return _text_bytes(entries)
    if pa.types.is_struct(dtype):
        parts = [
            _text_bytes(part) + 6 * len(f.name)
            for part, f in zip(values.flatten(), dtype, strict=True)
        ]
        return sum(parts) + 4 * len(parts) + 4
    return _LONGEST_NUMBER
