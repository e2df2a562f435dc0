"""Broadcast state: a small table that every lane of an operator has whole.

A table is the newest row of each key of a separate stream, such as rates or rules; the operator's
functions read it as a mapping.  Its rows go to every lane, and count from the epoch in which they
arrive, before that epoch's other rows.  Lanes read the table of earlier epochs from the checkpoint
and cache it.

In the checkpoint a table is a state of the operator.  Its rows are entries of one key, whose
columns are all null, and differ in the table's own key columns.  So a table has a changelog,
snapshots, versions of its columns and readers like any other state.  One lane writes it: the owner
of the null key's key group.  It never waits for the state, since the changes follow from the rows
alone.

Invariant: all lanes of an epoch see the same table, which depends on nothing but the table's rows
up to and including that epoch, wherever key groups are.  A snapshot has its entries in the order of
a hash table, so functions iterate over the table in the order of its keys.

Source: the broadcast state pattern of Flink, of which the table is the part that is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.checkpoint.entries import latest_entries
from godwit.checkpoint.evolution import StateDescription, columns_of
from godwit.checkpoint.records import BROADCAST
from godwit.columns.hashing import canonical_keys, hash_keys
from godwit.columns.python_values import row_type, rows_as_tuples
from godwit.model.errors import EpochFailedError
from godwit.model.naming import RESERVED_PREFIX
from godwit.store.changes import StateRows
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MAX_KEYS: Final = 100_000
MAX_BYTES: Final = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """One table of an operator."""

    name: str  # by which functions get it
    operator: str
    keyed_by: pa.Schema  # key columns of the operator
    keys: pa.Schema  # key columns of the table
    values: pa.Schema  # its other columns
    inputs: frozenset[int]  # numbers of the operator's inputs that its rows come by
    # where its rows come from: sources, and a digest of the maps on the way; tables that have
    # changed places are known by it
    origin: Mapping[str, Any]

    @property
    def state(self) -> str:
        """Name of the state that stores the table."""
        return f"{BROADCAST}{self.name}"

    @property
    def input_schema(self) -> pa.Schema:
        """Columns of the table's rows as they arrive."""
        return pa.schema([*self.keys, *self.values])

    @property
    def schema(self) -> StateSchema:
        """Schema of the table's state: the operator's key columns, always null, and the table's."""
        apart = [field.with_name(f"{RESERVED_PREFIX}_{field.name}") for field in self.keys]
        return StateSchema(keys=pa.schema([*self.keyed_by, *apart]), values=self.values)

    def describe(self) -> StateDescription:
        """Describe the table's state for the checkpoint."""
        schema = self.schema
        return StateDescription(
            columns=columns_of(schema.values),
            codec="arrow",
            entries=columns_of(list(schema.keys)[len(self.keyed_by) :]),
        )

    def entries(self, rows: Sequence[pa.RecordBatch]) -> StateRows:
        """Return one entry per key, with its newest row; a row of nulls removes its key."""
        batch = pa.concat_batches(rows)
        own = canonical_keys(batch.select(self.keys.names))
        names = [f"k{i}" for i in range(len(self.keys))]
        numbered = pa.table([*own.columns, pa.array(np.arange(batch.num_rows))], [*names, "row"])
        last = numbered.group_by(names, use_threads=False).aggregate([("row", "max")])
        newest = pa.array(np.sort(last["row_max"].to_numpy()))
        own, values = own.take(newest), batch.select(self.values.names).take(newest)
        count = values.num_rows
        nulls = [pa.nulls(count, field.type) for field in self.keyed_by]
        removed = np.full(count, len(self.values) > 0)
        for column in values.columns:
            removed &= column.is_null().to_numpy(zero_copy_only=False)
        return StateRows(
            hashes=np.full(count, null_hash_of(self.keyed_by)),
            keys=pa.RecordBatch.from_arrays([*nulls, *own.columns], schema=self.schema.keys),
            values=values,
            removed=removed if removed.any() else None,
        )

    def to_python(self, entries: StateRows) -> tuple[list[Any], list[Any]]:
        """Return keys and values of a table's entries as users' functions get them."""
        own = rows_as_tuples(self._table_keys(entries))
        new_row = row_type(tuple(self.values.names))._make
        values = rows_as_tuples(entries.values) if len(self.values) else [()] * len(own)
        return [key for (key,) in own] if len(self.keys) == 1 else own, [*map(new_row, values)]

    def sorted(self, entries: StateRows) -> StateRows:
        """Return entries in the order of the table's keys, nulls last."""
        key_columns = self._table_keys(entries)
        names = [f"k{i}" for i in range(key_columns.num_columns)]
        numbered = pa.RecordBatch.from_arrays(key_columns.columns, names)
        order = pc.sort_indices(numbered, sort_keys=[(name, "ascending") for name in names])
        return entries.take(order.to_numpy())

    def _table_keys(self, entries: StateRows) -> pa.RecordBatch:
        """Return the key columns of the table for some of its entries."""
        columns = entries.keys.num_columns
        return entries.keys.select(list(range(len(self.keyed_by), columns)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastTable:
    """Contents of a table after some epoch."""

    declared: Broadcast
    rows: StateRows  # one for each key
    mapping: Mapping[Any, Any]  # key → its other columns, as functions see it

    @classmethod
    def empty(cls, broadcast: Broadcast) -> BroadcastTable:
        """Return the broadcast table `broadcast` without rows."""
        return cls(
            declared=broadcast,
            rows=latest_entries([], broadcast.schema),
            mapping=MappingProxyType({}),
        )

    def updated_with(self, entries: StateRows) -> BroadcastTable:
        """Return the table with newer entries applied; raise if it exceeds the size limit."""
        rows = latest_entries([self.rows, entries], self.declared.schema)
        size = rows.keys.nbytes + rows.values.nbytes
        if len(rows.hashes) > MAX_KEYS or size > MAX_BYTES:
            raise EpochFailedError(
                f"Broadcast table {self.declared.name!r} of {self.declared.operator!r} has "
                f"{len(rows.hashes)} keys and {size} bytes; a broadcast table has at "
                f"most {MAX_KEYS} keys and {MAX_BYTES} bytes, since every lane holds all of it.",
                remedy="Join with it by key, as in left.key_by(...).join_newest(other.key_by(...))"
                ", or map it to fewer rows and columns.",
                operator=self.declared.operator,
                broadcast=self.declared.name,
            )
        keys, values = self.declared.to_python(entries)
        mapping = dict(self.mapping)
        if all(key in mapping for key in keys):
            removed = [False] * len(keys) if entries.removed is None else entries.removed.tolist()
            for key, value, is_removed in zip(keys, values, removed, strict=True):
                if is_removed:
                    del mapping[key]
                else:
                    mapping[key] = value  # in its place
        else:  # a new key, or not a number, which equals nothing
            mapping = dict(zip(*self.declared.to_python(self.declared.sorted(rows)), strict=True))
        return replace(self, rows=rows, mapping=MappingProxyType(mapping))


def null_hash_of(keys: pa.Schema) -> int:
    """Return the hash of the null key: all columns of `keys` are null."""
    nulls = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in keys], schema=keys)
    return int(hash_keys(nulls)[0])
