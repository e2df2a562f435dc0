"""State as rows, from the checkpoint alone: no local store, no running query.

Invariant: snapshot, then segments in order of epochs; of several entries of one key the latest
wins, and a key whose latest entry is a removal is gone.  Keys are compared exactly, by their bits.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from godwit.checkpoint.blocks import read_batch
from godwit.checkpoint.entries import StateRows
from godwit.checkpoint.state_chains import rows_of

if TYPE_CHECKING:
    from godwit.checkpoint.chains import KeyGroupChain
    from godwit.checkpoint.entries import EntryLayout
    from godwit.checkpoint.records import BlockRef
    from godwit.checkpoint.storage.storage import CheckpointStorage
    from godwit.store.schema import StateSchema

__all__ = ["BatchCache", "read_chain"]


class BatchCache:
    """Reads batches, and keeps the last ones, since the key groups of a lane share a segment."""

    def __init__(self, storage: CheckpointStorage, *, max_bytes: int = 256 << 20) -> None:
        self.storage = storage
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: OrderedDict[tuple[str, int], pa.RecordBatch] = OrderedDict()

    def read(self, ref: BlockRef) -> pa.RecordBatch:
        """Read a block as a record batch."""
        key = (ref.file, ref.offset)
        found = self._batches.get(key)
        if found is not None:
            self._batches.move_to_end(key)
            return found
        batch = read_batch(self.storage, ref)
        if ref.file:
            self._batches[key] = batch
            self._bytes += batch.nbytes
            while self._bytes > self._max_bytes:
                _, dropped = self._batches.popitem(last=False)
                self._bytes -= dropped.nbytes
        return batch


def read_chain(
    storage: CheckpointStorage,
    chain: KeyGroupChain,
    layout: EntryLayout,
    *,
    cache: BatchCache | None = None,
) -> StateRows:
    """Read the whole state of one key group."""
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
    return _latest(parts, layout.schema)


def _latest(parts: list[StateRows], schema: StateSchema) -> StateRows:
    hashes = np.concatenate([part.hashes for part in parts] or [np.empty(0, np.int64)])
    keys = _stack([part.keys for part in parts], schema.keys)
    values = _stack([part.values for part in parts], schema.values)
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


def _stack(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if batches and len(schema):
        return pa.concat_batches(batches)
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
