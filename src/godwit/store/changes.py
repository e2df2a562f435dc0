"""Entries of many key groups at once, in the order of their key groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.model.errors import StateEncodingError
from godwit.store.image import TableImage, Upserts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.store.columns import StateSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRange:
    """Entries whose event time is in a range."""

    # position of the column that holds the event time, a timestamp of microseconds: among the key
    # columns, which come first, and the state columns
    column: int
    # first, end: from `first` up to, but not including, `end`; microseconds since 1970-01-01 UTC
    first: int = -(2**63)
    end: int = 2**63 - 1

    @property
    def rest(self) -> EntryRange:
        """Range of the event times after this one."""
        return EntryRange(column=self.column, first=self.end)

    def rows_of(self, image: TableImage, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the given rows of a table whose event time is in the range."""
        return rows[self._inside(image.columns[self.column].gather(rows).values.view(np.int64))]

    def positions(self, keys: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the positions of the entries in a batch whose event time is in the range."""
        event_times = keys.column(self.column).cast(pa.int64()).to_numpy(zero_copy_only=False)
        return np.flatnonzero(self._inside(event_times))

    def _inside(self, event_times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a mask of event times that are in the range."""
        inside: npt.NDArray[np.bool_] = (event_times >= self.first) & (event_times < self.end)
        return inside


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateRows:
    """Entries of state; one per key unless stated otherwise."""

    hashes: npt.NDArray[np.int64]  # shape ``(n,)``: the hash that chooses a key's key group
    keys: pa.RecordBatch  # n rows of key columns
    values: pa.RecordBatch  # n rows of state columns: the state of each key
    # shape ``(n,)``: entries that are removals, whose row of `values` is ignored; ``None``: none
    removed: npt.NDArray[np.bool_] | None = None

    @staticmethod
    def concat(parts: Sequence[StateRows]) -> StateRows:
        """Concatenate entries; at least one part."""
        if len(parts) == 1:
            return parts[0]
        removed = None
        if any(part.removed is not None for part in parts):
            removed = np.concatenate(
                [
                    np.zeros(len(p.hashes), np.bool_) if p.removed is None else p.removed
                    for p in parts
                ]
            )
        return StateRows(
            hashes=np.concatenate([part.hashes for part in parts]),
            keys=pa.concat_batches([part.keys for part in parts]),
            values=pa.concat_batches([part.values for part in parts]),
            removed=removed,
        )

    def followed_by(self, others: StateRows) -> StateRows:
        """Return these entries, then `others`."""
        return StateRows.concat([self, others])

    def take(self, positions: npt.NDArray[np.integer]) -> StateRows:
        """Return the entries at the given positions."""
        rows = pa.array(positions)
        return StateRows(
            hashes=self.hashes[positions],
            keys=self.keys.take(rows),
            values=self.values.take(rows),
            removed=None if self.removed is None else self.removed[positions],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """Entries of some key groups: the changes of one epoch each, or the content of a version."""

    key_groups: npt.NDArray[np.int64]  # shape ``(G,)``, int64, distinct
    # shape ``(G,)``: rows of group i are ``ends[i - 1]:ends[i]`` (from 0 for the first)
    ends: npt.NDArray[np.int64]
    # shape ``(G,)``: the version of each key group with these changes, or of this content
    epochs: npt.NDArray[np.int64]
    rows: StateRows  # n distinct keys

    @staticmethod
    def concat(parts: Sequence[Changes]) -> Changes:
        """Concatenate changes that concern different key groups."""
        if len(parts) == 1:
            return parts[0]
        return Changes(
            key_groups=np.concatenate([part.key_groups for part in parts]),
            ends=np.cumsum(np.concatenate([_rows_per_key_group(part.ends) for part in parts])),
            epochs=np.concatenate([part.epochs for part in parts]),
            rows=StateRows.concat([part.rows for part in parts]),
        )

    def where(self, mask: npt.NDArray[np.bool_]) -> Changes:
        """Return the changes of the key groups that `mask` selects."""
        if mask.all():
            return self
        sizes = _rows_per_key_group(self.ends)
        return Changes(
            key_groups=self.key_groups[mask],
            ends=np.cumsum(sizes[mask]),
            epochs=self.epochs[mask],
            rows=self.rows.take(np.flatnonzero(np.repeat(mask, sizes))),
        )

    def without(self, gone: EntryRange | None) -> Changes:
        """Return the changes without entries whose event time is in a range, if any is given."""
        if gone is None:
            return self
        return self.at(gone.rest.positions(self.rows.keys))

    def at(self, rows: npt.NDArray[np.int64]) -> Changes:
        """Return the same key groups with the entries at the given positions, ascending."""
        if len(rows) == len(self.rows.hashes):
            return self
        return replace(self, ends=np.searchsorted(rows, self.ends), rows=self.rows.take(rows))

    def encode(self, image: TableImage) -> tuple[Upserts, Upserts | None]:
        """Encode the changes as rows to write to a table, and rows to remove (``None``: none)."""
        rows = self.rows
        upserts = Upserts(
            hashes=rows.hashes,
            key_groups=np.repeat(self.key_groups.astype(np.uint16), _rows_per_key_group(self.ends)),
            keys=image.encode_keys(rows.keys),
            values=image.encode_values(rows.values),
        )
        if rows.removed is None or not rows.removed.any():
            return upserts, None
        removals = upserts.take(np.flatnonzero(rows.removed))
        return upserts.take(np.flatnonzero(~rows.removed)), removals

    def check(self, schema: StateSchema, path: str) -> None:
        """Raise `StateEncodingError` if numbers of rows, columns or key groups disagree."""
        count, removed = len(self.rows.hashes), self.rows.removed
        for batch, expected in ((self.rows.keys, schema.keys), (self.rows.values, schema.values)):
            if batch.num_columns != len(expected) or batch.num_rows != count:
                actual = f"{batch.num_rows} rows of {batch.num_columns} columns"
                raise _count_error(count, f"{actual} (expected: {', '.join(expected.names)})", path)
        if removed is not None and len(removed) != count:
            raise _count_error(count, f"{len(removed)} flags of removal", path)
        groups = len(self.key_groups)
        rows = int(self.ends[-1]) if groups else 0
        if not (len(self.ends) == len(self.epochs) == groups and rows == count):
            raise _count_error(count, f"{rows} rows of {groups} key groups", path)


def _rows_per_key_group(ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of rows of each key group; `ends`: end of each one's rows."""
    sizes = ends.copy()
    sizes[1:] -= ends[:-1]
    return sizes


def _count_error(hashes: int, actual: str, path: str) -> StateEncodingError:
    """Return the error that `actual`, such as "3 rows of 2 columns", does not match the hashes."""
    return StateEncodingError(
        f"{hashes} hashes come with {actual} for table {path}.",
        remedy="Pass one row, with every column of the schema, for each hash.",
        path=path,
    )
