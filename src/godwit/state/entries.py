"""The layout of segments and snapshots: the one place that knows where in a batch what is.

A batch of entries has the hash of each key, the key columns, the state columns, and, only where
some entry says that its key is gone, a column that says which.  Columns are told by position, so
that a user's column may have any name; names and types must be those of the flow version that the
batch was written under, and what is read is brought to today's columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from godwit.model.errors import CheckpointMismatchError, GodwitError
from godwit.state.evolution import Columns, columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from godwit.state.evolution import StateUpgrade
    from godwit.state.records import SegmentRef
    from godwit.state.schema import StateSchema

__all__ = [
    "ColumnsByName",
    "EntryLayout",
    "Former",
    "StateRows",
    "WaitingLayout",
    "is_entries_of",
    "pack_entries",
    "ranges",
]

_HASH = "__godwit_hash"
_REMOVED = "__godwit_removed"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateRows:
    """Entries of state, one a key unless said otherwise.

    Attributes
    ----------
    hashes
        Shape ``(n,)``, int64: the key's hash.
    keys
        n rows of key columns.
    values
        n rows of state columns.
    removed
        Shape ``(n,)``: entries that say that the key is gone; ``None`` where there are none.
    """

    hashes: npt.NDArray[np.int64]
    keys: pa.RecordBatch
    values: pa.RecordBatch
    removed: npt.NDArray[np.bool_] | None = None

    def take(self, which: npt.NDArray[np.int64]) -> StateRows:
        """Return the entries at `which`."""
        rows = pa.array(which)
        return StateRows(
            hashes=self.hashes[which],
            keys=self.keys.take(rows),
            values=self.values.take(rows),
            removed=None if self.removed is None else self.removed[which],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """Columns of an earlier flow version.

    Attributes
    ----------
    columns
        As they were written.
    upgrade
        Brings them to today's; ``None`` if they are the same.
    """

    columns: Columns
    upgrade: StateUpgrade | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryLayout:
    """Where in a batch of one state what is, whichever flow version wrote it. Picklable.

    Attributes
    ----------
    name
        Whose state, for messages.
    schema
        Key columns and state columns of today.
    former
        Flow version → its state columns, where they are not today's.
    """

    name: str
    schema: StateSchema
    former: Mapping[int, Former] = field(default_factory=dict)

    def read(
        self, batch: pa.RecordBatch, flow: int, *, first: int = 0, end: int | None = None
    ) -> StateRows:
        """Take rows ``first:end`` of a batch apart; copies nothing unless it has to be upgraded.

        Parameters
        ----------
        batch
            Of a segment or a snapshot.
        flow
            The flow version that it was written under.

        Raises
        ------
        CheckpointMismatchError
            If the columns are not those of that version.
        """
        former = self.former.get(flow)
        written = columns_of(self.schema.values) if former is None else former.columns
        split = len(self.schema.keys) + 1
        last = split + len(written)
        self._check(batch, (*columns_of(self.schema.keys), *written), flow)
        columns = batch.columns
        length = (batch.num_rows if end is None else end) - first
        if (first, length) != (0, batch.num_rows):
            columns = [column.slice(first, length) for column in columns]
        values = _batch(columns[split:last], batch.schema.names[split:last])
        if former is None or former.upgrade is None:
            values = _batch(columns[split:last], self.schema.values)
        else:
            values = self._upgraded(values, former.upgrade, columns)
        return StateRows(
            hashes=columns[0].to_numpy(),
            keys=_batch(columns[1:split], self.schema.keys),
            values=values,
            removed=columns[last].to_numpy(zero_copy_only=False) if len(columns) > last else None,
        )

    def _upgraded(
        self, values: pa.RecordBatch, upgrade: StateUpgrade, columns: Sequence[pa.Array]
    ) -> pa.RecordBatch:
        """Upgrade states; whatever goes wrong with one of them names its key."""
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

    def _check(self, batch: pa.RecordBatch, expected: Columns, flow: int) -> None:
        found = columns_of(batch.schema)
        if not is_entries_of(found, expected):
            raise _mismatch(
                f"State of {self.name!r} has", found[1 : len(expected) + 1], flow, expected
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLayout:
    """Columns of the rows that wait for one operator, whichever flow version wrote them. Picklable.

    Attributes
    ----------
    operator
        Whose rows, for messages.
    schema
        Columns of today.
    former
        Flow version → its columns, where they are not today's.
    """

    operator: str
    schema: pa.Schema
    former: Mapping[int, Former] = field(default_factory=dict)

    def read(self, batch: pa.RecordBatch, flow: int) -> pa.RecordBatch:
        """Give the rows of a waiting segment as rows of today.

        Raises
        ------
        CheckpointMismatchError
            If the columns are not those of the flow version that wrote them.
        """
        former = self.former.get(flow)
        expected = columns_of(self.schema) if former is None else former.columns
        found = columns_of(batch.schema)
        if found != expected:
            raise _mismatch(f"Rows that wait for {self.operator!r} have", found, flow, expected)
        if former is None or former.upgrade is None:
            return _batch(batch.columns, self.schema)
        return former.upgrade(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsByName:
    """A `StateUpgrade` that finds columns by name, with nulls for those that are not there.

    Attributes
    ----------
    schema
        Columns of today.
    live
        Names of the written columns that count; ``None`` for all.
    """

    schema: pa.Schema
    live: frozenset[str] | None = None

    def __call__(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Give as many rows, in the same order."""
        names = values.schema.names
        columns = [
            values.column(names.index(field.name))
            if field.name in names and (self.live is None or field.name in self.live)
            else pa.nulls(values.num_rows, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def is_entries_of(found: Columns, expected: Columns) -> bool:
    """Whether a batch with the columns `found` has entries of key and state columns `expected`."""
    inner, rest = found[1 : len(expected) + 1], found[len(expected) + 1 :]
    framed = [dtype for _, dtype in (*found[:1], *rest)]
    return inner == expected and framed in (["int64"], ["int64", "bool"])


def pack_entries(rows: StateRows) -> pa.RecordBatch:
    """Make a batch of entries, as a segment or snapshot holds it."""
    arrays = [pa.array(rows.hashes), *rows.keys.columns, *rows.values.columns]
    names = [_HASH, *rows.keys.schema.names, *rows.values.schema.names]
    if rows.removed is not None:
        arrays.append(pa.array(rows.removed))
        names.append(_REMOVED)
    return pa.RecordBatch.from_arrays(arrays, names)


def ranges(segment: SegmentRef) -> Iterator[tuple[int, int, int]]:
    """(key group, first row, row after the last) of a segment's key groups."""
    start = 0
    for key_group, end in zip(segment.key_groups, segment.row_ends, strict=True):
        yield key_group, start, end
        start = end


def _batch(columns: list[pa.Array], schema: pa.Schema | list[str]) -> pa.RecordBatch:
    if isinstance(schema, list):
        return pa.RecordBatch.from_arrays(columns, names=schema)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _mismatch(what: str, found: Columns, flow: int, expected: Columns) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"{what} the columns {_listed(found)}, but flow version {flow}, which wrote them, has "
        f"{_listed(expected)}.",
        remedy="Run `godwit checkpoint verify` on the checkpoint, and restore the file from a "
        "copy.",
        flow=flow,
    )


def _listed(columns: Columns) -> str:
    return ", ".join(f"{name}: {dtype}" for name, dtype in columns) or "(none)"
