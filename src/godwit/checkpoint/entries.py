"""Layout of segments and snapshots, and state as rows, read from the checkpoint alone.

A batch of entries has the hash of each key, the key columns, the state columns, and, only if some
entries are removals, a boolean column that marks them.  State columns are found by position, so a
user's column may have any name; names and types must be those of the flow version under which the
batch was written.

Invariants: rows are read with the present columns, found by name (`select_columns`).  Instants are
written in UTC, and read in the program's time zone.  A key group is its
snapshot, then its segments in order of epochs; of several entries of one key the latest wins, and a
key whose latest entry is a removal is gone.  Keys are compared exactly, by their bits.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from godwit.checkpoint.blocks import decode_batch, read_batch
from godwit.checkpoint.chains import rows_of
from godwit.checkpoint.evolution import Columns, columns_of, type_text
from godwit.model.errors import CheckpointMismatchError, GodwitError
from godwit.store.changes import StateRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from godwit.checkpoint.chains import KeyGroupChain
    from godwit.checkpoint.evolution import StateUpgrade
    from godwit.checkpoint.records import BlockRef, SegmentRef
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.checkpoint.stored_index import VerifiedBlocks
    from godwit.store.columns import StateSchema

_HASH = "__godwit_hash"
_REMOVED = "__godwit_removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """Columns of an earlier flow version, and how to upgrade from them."""

    columns: Columns  # as they were written
    # gives today's columns, in any order; ``None`` if the same ones were written
    upgrade: StateUpgrade | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryLayout:
    """Reader of one state's batches of any flow version. Picklable."""

    name: str  # whose state, for messages
    schema: StateSchema  # key columns and state columns of today
    # flow version → its state columns, where they are not today's
    former: Mapping[int, Former] = field(default_factory=dict)

    def read(
        self, batch: pa.RecordBatch, flow: int, *, first: int = 0, end: int | None = None
    ) -> StateRows:
        """Return rows ``first:end`` of a segment or snapshot as entries of today's columns.

        `flow`: the flow version under which `batch` was written. Columns are copied only if they
        are upgraded.
        """
        former_layout = self.former.get(flow)
        written = columns_of(self.schema.values) if former_layout is None else former_layout.columns
        first_value = len(self.schema.keys) + 1
        after_values = first_value + len(written)
        expected = (*columns_of(self.schema.keys), *written)
        if not is_entries_of(columns_of(batch.schema), expected):
            actual = columns_of(batch.schema)[1 : len(expected) + 1]
            raise _columns_mismatch(f"State of {self.name!r} has", actual, flow, expected)
        columns = batch.columns
        length = (batch.num_rows if end is None else end) - first
        if (first, length) != (0, batch.num_rows):
            columns = [column.slice(first, length) for column in columns]
        values = pa.RecordBatch.from_arrays(
            columns[first_value:after_values], batch.schema.names[first_value:after_values]
        )
        if former_layout is not None and former_layout.upgrade is not None:
            values = self._upgrade_values(values, former_layout.upgrade, columns)
        keys = pa.RecordBatch.from_arrays(columns[1:first_value], self.schema.keys.names)
        return StateRows(
            hashes=columns[0].to_numpy(),
            keys=select_columns(keys, self.schema.keys, self.name),
            values=select_columns(values, self.schema.values, self.name),
            removed=columns[after_values].to_numpy(zero_copy_only=False)
            if len(columns) > after_values
            else None,
        )

    def _upgrade_values(
        self, values: pa.RecordBatch, upgrade: StateUpgrade, columns: Sequence[pa.Array]
    ) -> pa.RecordBatch:
        """Convert state columns of an earlier flow version to today's.

        `columns`: all columns of the batch, from which an error takes the key of the bad row.
        """
        try:
            return upgrade(values)
        except GodwitError as error:
            row = error.context.pop("row", None)
            if row is None:
                raise
            key = tuple(column[row].as_py() for column in columns[1 : len(self.schema.keys) + 1])
            raise type(error)(
                f"Key {key!r}: {error.message}", remedy=error.remedy, **error.context, key=key
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLayout:
    """Reader of one operator's waiting rows of any flow version."""

    operator: str  # whose rows, for messages
    schema: pa.Schema  # columns of today
    # flow version → its columns, where they are not today's
    former: Mapping[int, Former] = field(default_factory=dict)

    def read(self, batch: pa.RecordBatch, flow: int) -> pa.RecordBatch:
        """Return a batch of flow version `flow` with today's columns; raise if it has others."""
        former = self.former.get(flow)
        expected = columns_of(self.schema) if former is None else former.columns
        columns = columns_of(batch.schema)
        if columns != expected:
            raise _columns_mismatch(
                f"Rows that wait for {self.operator!r} have", columns, flow, expected
            )
        if former is not None and former.upgrade is not None:
            batch = former.upgrade(batch)
        return select_columns(batch, self.schema, self.operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsByName:
    """A `StateUpgrade` that matches columns by name, and fills new ones."""

    schema: pa.Schema  # columns of today
    live: frozenset[str] | None = None  # names of the written columns that count; ``None`` for all
    # brings the values of the written columns forward first; ``None``: they stay as they are
    values: StateUpgrade | None = None
    # number of rows → default rows of the present columns, for missing columns; ``None``:
    # they are null
    new: Callable[[int], pa.RecordBatch] | None = None

    def __call__(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `values` in today's columns, in the same order."""
        if self.values is not None:
            values = self.values(values)
        names = values.schema.names
        present = {n for n in names if self.live is None or n in self.live}.intersection(
            self.schema.names
        )
        defaults: pa.RecordBatch | None = None
        if self.new is not None and len(present) < len(self.schema):
            defaults = self.new(values.num_rows)
        columns = [
            _as_type(values.column(names.index(field.name)), field.type)
            if field.name in present
            else pa.nulls(values.num_rows, field.type)
            if defaults is None
            else defaults.column(number)
            for number, field in enumerate(self.schema)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def select_columns(batch: pa.RecordBatch, schema: pa.Schema, name: str) -> pa.RecordBatch:
    """Return the columns of `schema` from a batch with any order; raise if they do not fit.

    Timestamps may have any time zone. `name`: the state or operator, for errors.
    """
    if batch.schema.equals(schema):
        return batch
    names = batch.schema.names
    try:
        columns = [_as_type(batch.column(names.index(field.name)), field.type) for field in schema]
    except (ValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CheckpointMismatchError(
            f"The stored rows of {name!r} have the columns "
            f"{_columns_text(columns_of(batch.schema))}; "
            f"expected: {_columns_text(columns_of(schema))}.",
            remedy="Start the program that wrote the checkpoint, and report this.",
        ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose timestamps have time zone UTC, as they are stored; no copy."""
    types = [type_in_utc(field.type) for field in batch.schema]
    if types == batch.schema.types:
        return batch
    columns = [_as_type(*pair) for pair in zip(batch.columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def type_in_utc(dtype: pa.DataType) -> pa.DataType:
    """Return a timestamp type in UTC if it has a time zone; other types unchanged."""
    if pa.types.is_timestamp(dtype) and dtype.tz is not None:
        return pa.timestamp(dtype.unit, tz="UTC")
    return dtype


def _as_type(column: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return a column with another time zone; raise for any other difference of types."""
    if column.type == dtype:
        return column
    if type_text(column.type) != type_text(dtype):
        raise ValueError(f"{column.type} is not {dtype}")
    return column.cast(dtype)


def is_entries_of(columns: Columns, expected: Columns) -> bool:
    """Return true if a batch with these columns has entries with the columns `expected`.

    Before these (key and state columns) it has a hash; after them, perhaps a flag for removals.
    """
    inner, rest = columns[1 : len(expected) + 1], columns[len(expected) + 1 :]
    framed = [dtype for _, dtype in (*columns[:1], *rest)]
    return inner == expected and framed in (["int64"], ["int64", "bool"])


def pack_entries(rows: StateRows) -> pa.RecordBatch:
    """Build the batch of a segment or snapshot from entries."""
    keys, values = in_utc(rows.keys), in_utc(rows.values)
    arrays = [pa.array(rows.hashes), *keys.columns, *values.columns]
    names = [_HASH, *keys.schema.names, *values.schema.names]
    if rows.removed is not None:
        arrays.append(pa.array(rows.removed))
        names.append(_REMOVED)
    return pa.RecordBatch.from_arrays(arrays, names)


def key_group_ranges(segment: SegmentRef) -> Iterator[tuple[int, int, int]]:
    """Yield each key group of a segment with its first row and the row after its last."""
    start = 0
    for key_group, end in zip(segment.key_groups, segment.row_ends, strict=True):
        yield key_group, start, end
        start = end


def _columns_mismatch(
    subject: str, columns: Columns, flow: int, expected: Columns
) -> CheckpointMismatchError:
    """Return the error that stored columns are not those of their flow version.

    `subject`: the segment or snapshot that has them, as text. `flow`: number of the version.
    """
    return CheckpointMismatchError(
        f"{subject} the columns {_columns_text(columns)}, but flow version {flow} that wrote them "
        f"has {_columns_text(expected)}.",
        remedy="Run `godwit checkpoint verify` on the checkpoint, and restore the file from a "
        "copy.",
        flow=flow,
    )


def _columns_text(columns: Columns) -> str:
    """Return the name and the type of each column as text for messages."""
    return ", ".join(f"{name}: {dtype}" for name, dtype in columns) or "(none)"


class BatchCache:
    """Cache of the last batches read, since key groups of a lane share segments.

    `counts_mapped`: false if `max_bytes` limits memory alone, and not the bytes of mapped files.
    `verified`: blocks that need not be verified again.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        *,
        max_bytes: int = 256 << 20,
        counts_mapped: bool = True,
    ) -> None:
        self.storage = storage
        self.verified: VerifiedBlocks | None = None
        self._counts_mapped = counts_mapped
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: OrderedDict[tuple[str, int], tuple[pa.RecordBatch, int]] = OrderedDict()

    def read(self, ref: BlockRef) -> pa.RecordBatch:
        """Read a block as a record batch, or return it from the cache."""
        key = (ref.file, ref.offset)
        cached = self._batches.get(key)
        if cached is not None:
            self._batches.move_to_end(key)
            return cached[0]
        allocated_before = pa.total_allocated_bytes()
        verified_bytes = None if self.verified is None else self.verified.read(ref)
        if verified_bytes is None:
            batch = read_batch(self.storage, ref)
        else:
            batch = decode_batch(verified_bytes, is_verified=True)
        size = batch.nbytes
        if not self._counts_mapped:  # what Arrow allocated, as for a block that is compressed
            size = min(size, max(0, pa.total_allocated_bytes() - allocated_before))
        if ref.file:
            self._batches[key] = batch, size
            self._bytes += size
            while self._bytes > self._max_bytes:
                _, (_, dropped) = self._batches.popitem(last=False)
                self._bytes -= dropped
        return batch

    def retain(self, blocks: Iterable[BlockRef]) -> None:
        """Drop all batches but those of some blocks."""
        retained_places = {(ref.file, ref.offset) for ref in blocks}
        for key in self._batches.keys() - retained_places:
            self._bytes -= self._batches.pop(key)[1]


def read_chain(
    storage: CheckpointStorage,
    chain: KeyGroupChain,
    layout: EntryLayout,
    *,
    cache: BatchCache | None = None,
) -> StateRows:
    """Return all entries of one key group, read from its snapshot and the segments after it."""
    cache = BatchCache(storage) if cache is None else cache
    parts = []
    if chain.snapshot is not None:
        parts.append(layout.read(cache.read(chain.snapshot.block), chain.snapshot.flow))
    for segment in chain.segments:
        first, end = rows_of(segment, chain.key_group)
        batch = cache.read(segment.block)
        parts.append(layout.read(batch, segment.flow, first=first, end=end))
    if len(parts) == 1 and parts[0].removed is None:
        return parts[0]
    return latest_entries(parts, layout.schema)


def latest_entries(parts: Sequence[StateRows], schema: StateSchema) -> StateRows:
    """Concatenate entries, oldest first; of each key keep the last, unless it is a removal."""
    hashes = np.concatenate([part.hashes for part in parts] or [np.empty(0, np.int64)])
    keys = _concatenate_batches([part.keys for part in parts], schema.keys)
    values = _concatenate_batches([part.values for part in parts], schema.values)
    removed = np.concatenate(
        [
            np.zeros(len(part.hashes), np.bool_) if part.removed is None else part.removed
            for part in parts
        ]
        or [np.empty(0, np.bool_)]
    )
    # The names of grouped columns are ours, since a user's may be "row" or "hash".
    columns = [pa.array(hashes), *keys.columns]
    names = [f"k{i}" for i in range(len(columns))]
    table = pa.table([*columns, pa.array(np.arange(len(hashes)))], names=[*names, "row"])
    grouped = table.group_by(names, use_threads=False).aggregate([("row", "max")])
    rows = np.sort(grouped["row_max"].to_numpy())
    rows = rows[~removed[rows]]
    return StateRows(
        hashes=hashes[rows],
        keys=keys.take(rows) if len(schema.keys) else keys,
        values=values.take(rows) if len(schema.values) else values,
    )


def _concatenate_batches(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Concatenate record batches; without any, return an empty one of `schema`."""
    if batches and len(schema):
        return pa.concat_batches(batches)
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
