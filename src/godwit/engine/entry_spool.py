"""Entries of a state on their way to key groups: in memory, or on the driver's disk.

Problem: an epoch that writes a whole state (`godwit.engine.initial_state`,
`godwit.engine.repartition`) gets its entries in any order, and they may be larger than memory.

Entries are added in batches.  Once they exceed a limit, they are written to files, each for a range
of key groups, and come back range by range.
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from godwit.checkpoint.entries import pack_entries
from godwit.model.key_groups import key_groups_of
from godwit.store.changes import StateRows
from godwit.store.columns import take_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    import numpy.typing as npt

_RANGES: Final = 64


def by_key_group(
    entries: StateRows, num_key_groups: int
) -> tuple[npt.NDArray[np.int32], StateRows]:
    """Return entries, without removals, in the order of their key groups, and these."""
    key_groups = key_groups_of(entries.hashes, num_key_groups)
    order = np.argsort(key_groups, kind="stable")
    ordered = StateRows(
        hashes=entries.hashes[order],
        keys=take_rows(entries.keys, order),
        values=take_rows(entries.values, order),
    )
    return key_groups[order], ordered


def slices_of(
    key_groups: npt.NDArray[np.int32], entries: StateRows
) -> Iterator[tuple[int, StateRows]]:
    """Yield each key group with its entries, as `by_key_group` orders them."""
    starts = [*np.flatnonzero(np.diff(key_groups, prepend=-1)).tolist(), len(key_groups)]
    for start, end in pairwise(starts):
        yield (
            int(key_groups[start]),
            StateRows(
                hashes=entries.hashes[start:end],
                keys=entries.keys.slice(start, end - start),
                values=entries.values.slice(start, end - start),
            ),
        )


class EntrySpool:
    """Entries in memory, or, once they are too many, in files by ranges of key groups."""

    def __init__(self, num_key_groups: int, max_bytes: int) -> None:
        self._width = -(-num_key_groups // min(_RANGES, num_key_groups))
        self._num_key_groups, self._max_bytes = num_key_groups, max_bytes
        self._parts: list[StateRows] = []
        self._bytes = 0
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._files: dict[int, pa.ipc.RecordBatchFileWriter] = {}
        self._num_keys = 0

    def add(self, entries: StateRows) -> None:
        """Add entries; write all to files if they exceed the limit."""
        self._num_keys = entries.keys.num_columns
        self._parts.append(entries)
        self._bytes += entries.hashes.nbytes + entries.keys.nbytes + entries.values.nbytes
        if self._bytes > self._max_bytes:
            self._spill()

    def ranges(self) -> Iterator[StateRows]:
        """Yield all entries, by ranges of key groups, ascending."""
        if self._directory is None:
            if self._parts:
                yield StateRows.concat(self._parts)
            return
        self._spill()
        for number, file in sorted(self._files.items()):
            file.close()
            with pa.memory_map(str(self._path(number))) as mapped:
                table = pa.ipc.open_file(mapped).read_all().combine_chunks()
                (batch,) = table.to_batches()
                columns, names = batch.columns, batch.schema.names
                end = 1 + self._num_keys
                yield StateRows(
                    hashes=columns[0].to_numpy(),
                    keys=pa.RecordBatch.from_arrays(columns[1:end], names[1:end]),
                    values=pa.RecordBatch.from_arrays(columns[end:], names[end:]),
                )
            self._path(number).unlink()

    def _path(self, number: int) -> Path:
        """Return the file of a range of key groups."""
        assert self._directory is not None, "entries were written"
        return Path(self._directory.name) / f"{number}.arrow"

    def _spill(self) -> None:
        """Write the entries in memory to files."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="godwit-initial-")
        if not self._parts:
            return
        entries = StateRows.concat(self._parts)
        self._parts, self._bytes = [], 0
        ranges = key_groups_of(entries.hashes, self._num_key_groups) // self._width
        order = np.argsort(ranges, kind="stable")
        batch = take_rows(pack_entries(entries), order)
        starts = np.flatnonzero(np.diff(ranges[order], prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            number = int(ranges[order[start]])
            file = self._files.get(number)
            if file is None:
                file = self._files[number] = pa.ipc.new_file(self._path(number), batch.schema)
            file.write_batch(batch.slice(start, end - start))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        if self._directory is not None:
            self._directory.cleanup()
