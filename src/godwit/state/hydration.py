"""Bringing an executor's local tables forward to a committed version.

The invariant: a table at version *v* plus every changelog segment of its key group after *v*, in
order of epochs, is the committed state.  What the driver sends along (`segments`) covers tables at
`floor` or later; an executor that turns out to hold less asks the checkpoint itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.state.blocks import read_batch
from godwit.state.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from godwit.state.chains import KeyGroupChain
    from godwit.state.local_store import LocalStore
    from godwit.state.records import BlockRef, SegmentRef, SnapshotRef
    from godwit.state.schema import StateSchema
    from godwit.state.storage import CheckpointStorage
    from godwit.state.table import KeyGroupTable

__all__ = ["HASH", "REMOVED", "Hydration", "ranges", "recover_chains", "state_columns"]


HASH = "__godwit_hash"
"""First column of a segment and of a snapshot: the hash of the key."""

REMOVED = "__godwit_removed"
"""Last column of a segment, if it removes keys."""


def state_columns(
    batch: pa.RecordBatch, schema: StateSchema
) -> tuple[npt.NDArray[np.int64], pa.RecordBatch, pa.RecordBatch, npt.NDArray[np.bool_] | None]:
    """Split a segment's or snapshot's batch into hashes, keys, values and what was removed."""
    first = 1 + len(schema.keys)
    last = first + len(schema.values)
    removed = None
    if batch.num_columns > last:
        removed = batch.column(last).to_numpy(zero_copy_only=False)
    keys = batch.select(list(range(1, first)))
    values = batch.select(list(range(first, last)))
    return batch.column(0).to_numpy(), keys, values, removed


class Hydration:
    """The tables of one operator on one executor, brought forward on demand.

    Parameters
    ----------
    store
        The executor's local store.
    operator, schema
        Whose state.
    storage
        The checkpoint.
    segments
        Changelog segments, in any order.
    snapshots
        Key group → snapshot to start from.
    floor
        Shape ``(num_key_groups,)``: `segments` is complete for tables at this version or later;
        -1 where it is complete for an empty table (after the snapshot, if there is one).
    load
        Shape ``(num_key_groups,)``: key groups that are loaded from the checkpoint if the table is
        short of `floor`; others are left cold then.
    recover
        Gives the whole chains of key groups.
    """

    def __init__(
        self,
        *,
        store: LocalStore,
        operator: str,
        schema: StateSchema,
        storage: CheckpointStorage,
        segments: Sequence[SegmentRef],
        snapshots: Mapping[int, SnapshotRef],
        floor: npt.NDArray[np.int64],
        load: npt.NDArray[np.bool_],
        recover: Callable[[Sequence[int]], Mapping[int, KeyGroupChain]],
    ) -> None:
        self._store, self._operator, self._schema = store, operator, schema
        self._storage, self._recover = storage, recover
        self._segments = sorted(segments, key=lambda s: (s.epoch, s.lane))
        self._snapshots, self._floor, self._load = snapshots, floor, load
        self._tables: dict[int, KeyGroupTable] = {}
        self.versions: dict[int, int] = {}

    def table(self, key_group: int) -> KeyGroupTable:
        """Table of a key group that was brought forward."""
        return self._tables[key_group]

    def read(self, block: BlockRef) -> pa.RecordBatch:
        """Read a block of the checkpoint as a record batch."""
        return read_batch(self._storage, block)

    def bring_forward(self, key_groups: Iterable[int]) -> frozenset[int]:
        """Bring tables to the committed version; return the key groups left cold.

        Raises
        ------
        CorruptCheckpointError
            If a file of the checkpoint is missing or damaged.
        StorageFullError
            If the local store has no room.
        """
        wanted: dict[int, KeyGroupTable] = {}
        short = []
        for key_group in map(int, key_groups):
            table = self._store.table(self._operator, key_group, self._schema)
            self._tables[key_group] = table
            if table.version < self._floor[key_group]:
                short.append(key_group)
            else:
                wanted[key_group] = table
                if key_group in self._snapshots:
                    self._restore(table, self._snapshots[key_group])
        for segment in self._segments:
            self._apply(segment, wanted)
        missing = [key_group for key_group in short if self._load[key_group]]
        if missing:
            for key_group, chain in self._recover(missing).items():
                table = wanted[key_group] = self._tables[key_group]
                if chain.snapshot is not None:
                    self._restore(table, chain.snapshot)
                for segment in chain.segments:
                    self._apply(segment, {key_group: table})
        self.versions.update((g, table.version) for g, table in wanted.items())
        return frozenset(short) - frozenset(missing)

    def _restore(self, table: KeyGroupTable, snapshot: SnapshotRef) -> None:
        if table.version >= snapshot.version:
            return
        hashes, keys, values, _ = state_columns(self.read(snapshot.block), self._schema)
        table.replace(snapshot.version, hashes, keys, values)

    def _apply(self, segment: SegmentRef, wanted: Mapping[int, KeyGroupTable]) -> None:
        parts = None
        for key_group, start, end in ranges(segment):
            table = wanted.get(key_group)
            if table is None or segment.epoch <= table.version:
                continue
            if parts is None:  # read it only if somebody needs it
                parts = state_columns(self.read(segment.block), self._schema)
            hashes, keys, values, removed = parts
            table.apply(
                segment.epoch,
                hashes[start:end],
                keys.slice(start, end - start),
                values.slice(start, end - start),
                None if removed is None else removed[start:end],
            )


def ranges(segment: SegmentRef) -> Iterator[tuple[int, int, int]]:
    """(key group, first row, row after the last) of a segment's key groups."""
    start = 0
    for key_group, end in zip(segment.key_groups, segment.row_ends, strict=True):
        yield key_group, start, end
        start = end


def recover_chains(
    storage: CheckpointStorage, operator: str, epoch: int, key_groups: Iterable[int]
) -> dict[int, KeyGroupChain]:
    """Ask the checkpoint for the whole chains of some key groups, as of a committed epoch.

    This reads a manifest and the records after it: for executors that turn out to hold less than
    the driver believed, and only for those.
    """
    if epoch < 0:
        return {}
    chains = CommitLog.open_read_only(storage).chains_at(epoch)
    return {key_group: chains.chain(operator, key_group) for key_group in key_groups}
