"""Bringing an executor's local tables forward to a committed version.

The invariant: a table at version *v* plus every changelog segment of its key group after *v*, in
order of epochs, is the committed state.  What the driver sends along (`segments`) covers tables at
`floor` or later; an executor that turns out to hold less asks the checkpoint itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.state.blocks import read_batch
from godwit.state.commit_log import CommitLog
from godwit.state.entries import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from godwit.state.chains import KeyGroupChain
    from godwit.state.entries import EntryLayout
    from godwit.state.local_store import LocalStore
    from godwit.state.records import SegmentRef, SnapshotRef, StateId
    from godwit.state.storage import CheckpointStorage
    from godwit.state.table import KeyGroupTable

__all__ = ["Hydration", "recover_chains"]


class Hydration:
    """The tables of one state on one executor, brought forward on demand.

    Parameters
    ----------
    store
        The executor's local store.
    state, layout
        Whose, and how its segments and snapshots are read.
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
        state: StateId,
        layout: EntryLayout,
        storage: CheckpointStorage,
        segments: Sequence[SegmentRef],
        snapshots: Mapping[int, SnapshotRef],
        floor: npt.NDArray[np.int64],
        load: npt.NDArray[np.bool_],
        recover: Callable[[Sequence[int]], Mapping[int, KeyGroupChain]],
    ) -> None:
        self._store, self._state, self._layout = store, str(state), layout
        self._storage, self._recover = storage, recover
        self._segments = sorted(segments, key=lambda s: (s.epoch, s.lane))
        self._snapshots, self._floor, self._load = snapshots, floor, load
        self._tables: dict[int, KeyGroupTable] = {}
        self.versions: dict[int, int] = {}

    def table(self, key_group: int) -> KeyGroupTable:
        """Table of a key group that was brought forward."""
        return self._tables[key_group]

    def bring_forward(self, key_groups: Iterable[int]) -> frozenset[int]:
        """Bring tables to the committed version; return the key groups left cold.

        Raises
        ------
        CorruptCheckpointError
            If a file of the checkpoint is missing or damaged.
        CheckpointMismatchError
            If a file has other columns than the flow version that wrote it.
        StorageFullError
            If the local store has no room.
        """
        wanted: dict[int, KeyGroupTable] = {}
        short = []
        for key_group in map(int, key_groups):
            table = self._store.table(self._state, key_group, self._layout.schema)
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
        rows = self._layout.read(read_batch(self._storage, snapshot.block), snapshot.flow)
        table.replace(snapshot.version, rows.hashes, rows.keys, rows.values)

    def _apply(self, segment: SegmentRef, wanted: Mapping[int, KeyGroupTable]) -> None:
        rows = None
        for key_group, start, end in ranges(segment):
            table = wanted.get(key_group)
            if table is None or segment.epoch <= table.version:
                continue
            if rows is None:  # read it only if somebody needs it
                rows = self._layout.read(read_batch(self._storage, segment.block), segment.flow)
            table.apply(
                segment.epoch,
                rows.hashes[start:end],
                rows.keys.slice(start, end - start),
                rows.values.slice(start, end - start),
                None if rows.removed is None else rows.removed[start:end],
            )


def recover_chains(
    storage: CheckpointStorage, state: StateId, epoch: int, key_groups: Iterable[int]
) -> dict[int, KeyGroupChain]:
    """Ask the checkpoint for the whole chains of some key groups, as of a committed epoch.

    `state` goes by its names in that epoch. This reads a manifest and the records after it: for
    executors that turn out to hold less than the driver believed, and only for those.
    """
    if epoch < 0:
        return {}
    chains = CommitLog.open_read_only(storage).chains_at(epoch)
    return {key_group: chains.chain(state, key_group) for key_group in key_groups}
