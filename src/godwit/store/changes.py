"""Entries of many key groups at once, in the order of their key groups."""

from __future__ import annotations

from dataclasses import dataclass
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
    """Entries whose event time lies in a range."""

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
class Changes:
    """Entries of some key groups: the changes of one epoch each, or the content of a version."""

    key_groups: npt.NDArray[np.int64]  # shape ``(G,)``, int64, distinct
    # shape ``(G,)``: rows of group i are ``ends[i - 1]:ends[i]`` (from 0 for the first)
    ends: npt.NDArray[np.int64]
    # shape ``(G,)``: the version of each key group with these changes, or of this content
    epochs: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.int64]  # shape ``(n,)``, int64: the hash that chooses a key's key group
    keys: pa.RecordBatch  # n distinct keys
    values: pa.RecordBatch  # n rows of state columns: the new state of each key
    # shape ``(n,)``: keys whose state was removed (their row of `values` is ignored)
    removed: npt.NDArray[np.bool_] | None = None

    @staticmethod
    def concat(parts: Sequence[Changes]) -> Changes:
        """Concatenate changes that concern different key groups."""
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
        return Changes(
            key_groups=np.concatenate([part.key_groups for part in parts]),
            ends=np.cumsum(np.concatenate([_rows_per_key_group(part.ends) for part in parts])),
            epochs=np.concatenate([part.epochs for part in parts]),
            hashes=np.concatenate([part.hashes for part in parts]),
            keys=pa.concat_batches([part.keys for part in parts]),
            values=pa.concat_batches([part.values for part in parts]),
            removed=removed,
        )

    def where(self, mask: npt.NDArray[np.bool_]) -> Changes:
        """Return the changes of the key groups that `mask` selects."""
        if mask.all():
            return self
        sizes = _rows_per_key_group(self.ends)
        rows = np.flatnonzero(np.repeat(mask, sizes))
        return self._with_rows(
            rows, self.key_groups[mask], np.cumsum(sizes[mask]), self.epochs[mask]
        )

    def without(self, gone: EntryRange | None) -> Changes:
        """Return the changes without entries whose event time is in a range, if any is given."""
        if gone is None:
            return self
        rows = gone.rest.positions(self.keys)
        if len(rows) == len(self.hashes):
            return self
        return self._with_rows(rows, self.key_groups, np.searchsorted(rows, self.ends), self.epochs)

    def _with_rows(
        self,
        rows: npt.NDArray[np.int64],
        key_groups: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        epochs: npt.NDArray[np.int64],
    ) -> Changes:
        """Return changes with the rows at positions `rows`, under the given key groups.

        `ends`: where each key group's rows end among `rows`. `epochs`: version of each key group.
        """
        which = pa.array(rows)
        return Changes(
            key_groups=key_groups,
            ends=ends,
            epochs=epochs,
            hashes=self.hashes[rows],
            keys=self.keys.take(which),
            values=self.values.take(which),
            removed=None if self.removed is None else self.removed[rows],
        )

    def encode(self, image: TableImage) -> tuple[Upserts, Upserts | None]:
        """Encode the changes as rows to write to a table, and rows to remove (``None``: none)."""
        upserts = Upserts(
            hashes=self.hashes,
            key_groups=np.repeat(self.key_groups.astype(np.uint16), _rows_per_key_group(self.ends)),
            keys=image.encode_keys(self.keys),
            values=image.encode_values(self.values),
        )
        if self.removed is None or not self.removed.any():
            return upserts, None
        removals = upserts.take(np.flatnonzero(self.removed))
        return upserts.take(np.flatnonzero(~self.removed)), removals

    def check(self, schema: StateSchema, path: str) -> None:
        """Raise `StateEncodingError` if numbers of rows, columns or key groups disagree."""
        count = len(self.hashes)
        for batch, expected in ((self.keys, schema.keys), (self.values, schema.values)):
            if batch.num_columns != len(expected) or batch.num_rows != count:
                actual = f"{batch.num_rows} rows of {batch.num_columns} columns"
                raise _count_error(count, f"{actual} (expected: {', '.join(expected.names)})", path)
        if self.removed is not None and len(self.removed) != count:
            raise _count_error(count, f"{len(self.removed)} flags of removal", path)
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
