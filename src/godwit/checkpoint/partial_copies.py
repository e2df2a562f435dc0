"""Partial copies: the local store has the entries of touched keys, the checkpoint all others.

After a restart, or the loss of an executor, an epoch needs the state of the keys that have rows.
Reading all state into tables first would let all rows wait.  So the blocks of the checkpoint, which
are mapped, are searched for the hashes of these keys, and their entries alone enter the tables.
Later epochs fetch the keys that they touch in the same way, and complete a few key groups each, for
as long as their own work took, until no copy is partial.  A block is verified against its checksum
before it is searched.

Invariant: the entry of a key that a partial copy at version *v* lacks is that of the checkpoint at
each version from its base up to *v*.  For a change puts its key into the table, and a removal
raises the base.  So chains that are remembered from an earlier epoch serve as long as they reach
the base.

Searching costs 5 to 12 ns for each stored key, putting a key into a table 500 ns.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.blocks import check_num_rows
from godwit.checkpoint.entries import BatchCache, latest_entries
from godwit.model.errors import CorruptCheckpointError, EpochFailedError
from godwit.model.key_groups import key_group_mask, key_groups_of
from godwit.store.changes import Changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from godwit.checkpoint.chains import KeyGroupChain
    from godwit.checkpoint.entries import EntryLayout
    from godwit.checkpoint.records import SegmentRef, SnapshotRef
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.store.changes import EntryRange
    from godwit.store.local_store import LocalState

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FROM_BYTES: int = 64 << 20
"""Bytes of missing state from which on copies begin as partial ones; less is read at once."""
_READ_BYTES: Final = 64 << 20  # of blocks, at once
_MAX_BLOCKS: Final = 10_000  # each is a mapping of a process, which may have 65,530
_AT_ONCE: Final = 1 << 17  # hashes that are searched at once, so that they stay in the cache
_MIX: Final = np.uint64(0x9E37_79B9_7F4A_7C15)  # odd; spreads hashes over the filter


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Touched:
    """Keys whose entries an epoch reads."""

    hashes: Integers  # of the keys, as they are stored; may repeat
    key_groups: Mask  # key groups of which the epoch reads no other entries


class _HashFilter:
    """Finder of some hashes in long arrays."""

    def __init__(self, hashes: Integers) -> None:
        self._hashes = np.unique(hashes)
        bits = min(max(12, 6 + len(self._hashes).bit_length()), 24)
        self._shift = np.uint64(64 - bits)
        self._present = np.zeros(1 << bits, np.bool_)
        self._present[self._places(self._hashes)] = True

    def _places(self, hashes: Integers) -> Integers:
        """Return the place of each hash in the filter."""
        return ((hashes.view(np.uint64) * _MIX) >> self._shift).view(np.int64)

    def positions(self, stored: Integers) -> Integers:
        """Return the positions in `stored` with one of the hashes, ascending."""
        matches = [np.empty(0, np.int64)]
        for first in range(0, len(stored) if len(self._hashes) else 0, _AT_ONCE):
            some = stored[first : first + _AT_ONCE]
            likely = np.flatnonzero(self._present.take(self._places(some)))
            hashes = some[likely]
            places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
            matches.append(first + likely[self._hashes[places] == hashes])
        return np.concatenate(matches)


class StoredChains:
    """Chains of some key groups, for reading many of them at once.

    Arrays have shape ``(num_key_groups,)``. `versions`: to which the chains lead; -1 for key groups
    without entries, and for others. `size_bytes`: of the blocks, by the key groups' rows.
    """

    def __init__(
        self,
        segments: Iterable[SegmentRef],
        snapshots: Mapping[int, SnapshotRef],
        key_groups: Mask,
    ) -> None:
        self._snapshots = {g: s for g, s in snapshots.items() if key_groups[g]}
        self._after = np.full(len(key_groups), -1, np.int64)
        self.size_bytes = np.zeros(len(key_groups))
        for g, snapshot in self._snapshots.items():
            self._after[g], self.size_bytes[g] = snapshot.version, snapshot.block.length
        self.versions = self._after.copy()
        self._segments: list[tuple[SegmentRef, Integers, Integers]] = []
        for segment in sorted(segments, key=lambda segment: (segment.epoch, segment.lane)):
            own = np.array(segment.key_groups, np.int64)
            ends = np.array(segment.row_ends, np.int64)
            some = own[key_groups[own] & (self._after[own] < segment.epoch)]
            if not some.size:
                continue
            self._segments.append((segment, own, ends))
            self.versions[some] = segment.epoch
            sizes = np.diff(ends, prepend=0) * (segment.block.length / max(1, int(ends[-1])))
            self.size_bytes[own] += np.where(np.isin(own, some), sizes, 0.0)

    @property
    def num_blocks(self) -> int:
        """Number of blocks with the entries."""
        return len(self._segments) + len(self._snapshots)

    def layers(
        self,
        key_groups: Integers,
        touched: _HashFilter | None,
        layout: EntryLayout,
        cache: BatchCache,
    ) -> Iterator[Changes]:
        """Yield entries of key groups (ascending), newest first; `touched`: of these keys alone."""
        mask = key_group_mask(key_groups, len(self.versions))

        def read(
            ref: SegmentRef | SnapshotRef, own: Integers, use: Mask, ends: Integers
        ) -> Changes:
            """Read a block, with rows of the key groups `own`; `use`: those to read."""
            batch = cache.read(ref.block)
            check_num_rows(cache.storage, ref, batch)
            rows = _rows_in(batch, use, ends, touched)
            if len(rows) < batch.num_rows:
                batch = batch.take(pa.array(rows))
            return Changes(
                key_groups=own[use],
                ends=np.searchsorted(rows, ends[use]),
                epochs=self.versions[own[use]],
                rows=layout.read(batch, ref.flow),
            )

        for segment, own, ends in reversed(self._segments):
            use = mask[own] & (self._after[own] < segment.epoch)
            if use.any():
                yield read(segment, own, use, ends)
        for g in key_groups.tolist():
            snapshot = self._snapshots.get(g)
            if snapshot is not None:
                ends = np.array([snapshot.rows])
                yield read(snapshot, np.array([g]), np.ones(1, np.bool_), ends)


def _rows_in(
    batch: pa.RecordBatch, use: Mask, ends: Integers, touched: _HashFilter | None
) -> Integers:
    """Return the rows of a block that are of touched keys, in the key groups of `use`."""
    edges = np.flatnonzero(np.diff(use, prepend=False, append=False))
    starts = np.concatenate(([0], ends))
    hashes = batch.column(0).to_numpy()
    rows = [np.empty(0, np.int64)]
    for first, end in zip(starts[edges[::2]].tolist(), starts[edges[1::2]].tolist(), strict=True):
        if touched is None:
            rows.append(np.arange(first, end))
        else:
            rows.append(first + touched.positions(hashes[first:end]))
    return np.concatenate(rows)


class PartialCopies:
    """Partial copies of one state on an executor; see the module.

    `recover`: returns key group → its full chain at the last committed epoch. `gone`: range of
    event time whose entries have expired and are left out. `began`: true once `begin` has fetched
    entries.
    """

    def __init__(
        self,
        local: LocalState,
        *,
        layout: EntryLayout,
        storage: CheckpointStorage,
        recover: Callable[[Sequence[int]], Mapping[int, KeyGroupChain]],
        homes: npt.NDArray[np.int32],
        gone: EntryRange | None,
    ) -> None:
        self._local, self._layout, self._storage = local, layout, storage
        self._recover, self._homes, self._gone = recover, homes, gone
        self.began = False

    def begin(
        self,
        key_groups: Mask,
        touched: Touched,
        segments: Iterable[SegmentRef],
        snapshots: Mapping[int, SnapshotRef],
    ) -> None:
        """Fetch touched entries of absent key groups, if much is missing.

        `segments`, `snapshots`: from the beginning to the committed version of the key groups.
        """
        if not key_groups.any():
            return
        chains = StoredChains(segments, snapshots, key_groups)
        if (
            chains.size_bytes.sum() < max(FROM_BYTES, 1)
            or chains.num_blocks > _MAX_BLOCKS
            or not self._storage.maps
        ):
            return
        self.began = True
        known = self._known()
        known.add(chains, chains.versions >= 0)
        present = np.flatnonzero(chains.versions >= 0)
        self._fetch(present, known, touched=touched)
        self._check_reached(present, known)

    def begin_loaded(self, key_groups: Mask, touched: Touched) -> None:
        """Do as `begin` does, with chains from the checkpoint."""
        if key_groups.any() and self._storage.maps:
            self.begin(key_groups, touched, *self._recovered(key_groups))

    def fetch(self, key_groups: Mask, touched: Touched) -> None:
        """Fetch the touched entries of partial copies that they lack."""
        self._reading(np.flatnonzero(key_groups), partial(self._fetch, touched=touched))

    def release(self, used: Mask) -> None:
        """Forget chains and unmap blocks if no copy is partial: they may have been collected.

        `used`: key groups of the epoch. Others may have been completed or dropped by other
        processes of the executor since this one used them.
        """
        bases = self._local.bases
        others = np.flatnonzero((bases >= 0) & ~used)
        if others.size and not (bases[used] >= 0).any():
            self._local.refresh(others)
        if not (bases >= 0).any():
            _known.pop(self._local, None)

    def complete(self, key_groups: Mask) -> None:
        """Fetch all entries that partial copies lack."""
        self._reading(np.flatnonzero(key_groups), self._complete)

    def complete_some(self, key_groups: Mask, until_s: float) -> int:
        """Complete one partial copy, and more until a time; return the bytes that are missing then.

        None is completed in the epoch that begins with partial copies. `until_s`: as
        `time.perf_counter` has it.
        """
        missing = 0

        def complete(key_groups: Integers, known: _Known) -> None:
            """Complete the first of the key groups."""
            nonlocal missing
            began_s, done = time.perf_counter(), 0
            count = 0 if self.began else 1
            while count:
                self._complete(key_groups[done : done + count], known)
                done = min(done + count, len(key_groups))
                now_s = time.perf_counter()
                fits = int((until_s - now_s) * done / max(now_s - began_s, 1e-6))
                count = max(0, min(fits, done, len(key_groups) - done))
            missing = int(known.values(key_groups[done:], "size_bytes").sum())

        self._reading(np.flatnonzero(key_groups & (self._local.bases >= 0)), complete)
        self.release(key_groups)
        return missing

    def _reading(self, key_groups: Integers, read: Callable[[Integers, _Known], None]) -> None:
        """Call `read` for key groups, with chains that reach their bases."""
        if not key_groups.size:
            return
        known, bases = self._known(), self._local.bases[key_groups]
        short = key_groups[known.values(key_groups, "versions") < bases]
        if short.size:
            self._look_up_chains(short, known)
        try:
            read(key_groups, known)
        except CorruptCheckpointError:
            if short.size == key_groups.size:
                raise
            # Compaction has removed blocks that this process had not mapped.
            self._look_up_chains(key_groups, known)
            read(key_groups, known)
        self._check_reached(key_groups, known)

    def _check_reached(self, key_groups: Integers, known: _Known) -> None:
        """Raise if the base of a partial copy has passed its chain since the chain was read."""
        late = key_groups[known.values(key_groups, "versions") < self._local.bases[key_groups]]
        if late.size:
            raise EpochFailedError(
                f"Key group {int(late[0])} of {self._layout.name!r} has changed in the local store "
                "while its entries were read from the checkpoint.",
                remedy="The next attempt reads them again.",
            )

    def _known(self) -> _Known:
        """Return the state's chains that this process has read from."""
        known = _known.get(self._local)
        if known is None:
            known = _known[self._local] = _Known(self._storage, self._local.num_key_groups)
        return known

    def _look_up_chains(self, key_groups: Integers, known: _Known) -> None:
        """Read the present chains of key groups from the checkpoint, and remember them."""
        mask = key_group_mask(key_groups, self._local.num_key_groups)
        known.add(StoredChains(*self._recovered(mask), mask), mask)

    def _recovered(self, key_groups: Mask) -> tuple[list[SegmentRef], dict[int, SnapshotRef]]:
        """Return the segments and snapshots of key groups in the checkpoint."""
        chains = self._recover(np.flatnonzero(key_groups).tolist())
        distinct = {id(s): s for chain in chains.values() for s in chain.segments}
        snapshots = {g: c.snapshot for g, c in chains.items() if c.snapshot is not None}
        return list(distinct.values()), snapshots

    def _fetch(self, key_groups: Integers, known: _Known, *, touched: Touched) -> None:
        """Fetch the touched entries of key groups from chains."""
        mask = key_group_mask(key_groups, self._local.num_key_groups)
        own = mask[key_groups_of(touched.hashes, len(mask))]
        only = _HashFilter(touched.hashes[own])
        for chains, some in known.by_chains(key_groups):
            layers = partial(self._touched, chains, only, known.blocks)
            self._local.fill(some, chains.versions[some], layers, self._homes)

    def _complete(self, key_groups: Integers, known: _Known) -> None:
        """Fetch all entries of key groups from chains, a part of them at a time."""
        for chains, own in known.by_chains(key_groups):
            parts = np.cumsum(chains.size_bytes[own]) // _READ_BYTES
            for some in np.split(own, np.flatnonzero(np.diff(parts)) + 1):
                layers = partial(self._layers, chains, known.blocks)
                self._local.fill(some, chains.versions[some], layers, self._homes, complete=True)

    def _layers(
        self, chains: StoredChains, blocks: BatchCache, key_groups: Integers
    ) -> Sequence[Changes]:
        """Return all entries of key groups, newest first, without removals."""
        layers = [*chains.layers(key_groups, None, self._layout, blocks)]
        if any(layer.rows.removed is not None for layer in layers):
            return [self._merge(layers, key_groups, chains)]
        return [layer.without(self._gone) for layer in layers]

    def _touched(
        self, chains: StoredChains, only: _HashFilter, blocks: BatchCache, key_groups: Integers
    ) -> Sequence[Changes]:
        """Return the entries of touched keys, each once."""
        layers = [*chains.layers(key_groups, only, self._layout, blocks)]
        return [self._merge(layers, key_groups, chains)]

    def _merge(
        self, layers: Sequence[Changes], key_groups: Integers, chains: StoredChains
    ) -> Changes:
        """Merge layers of key groups to one, which has each key once, and no removals."""
        rows = latest_entries([layer.rows for layer in reversed(layers)], self._layout.schema)
        of_rows = key_groups_of(rows.hashes, self._local.num_key_groups)
        order = np.argsort(of_rows, kind="stable")
        merged = Changes(
            key_groups=key_groups,
            ends=np.searchsorted(of_rows[order], key_groups, side="right"),
            epochs=chains.versions[key_groups],
            rows=rows.take(order),
        )
        return merged.without(self._gone)


class _Known:
    """Chains of one state that this process has read from, and their blocks."""

    def __init__(self, storage: CheckpointStorage, num_key_groups: int) -> None:
        self.blocks = BatchCache(storage, counts_mapped=False)
        self._chains: list[StoredChains] = []
        self._chain_of = np.full(num_key_groups, -1, np.int32)  # index in `_chains`

    def add(self, chains: StoredChains, key_groups: Mask) -> None:
        """Remember the chains of key groups, in place of older ones."""
        self._chain_of[key_groups] = len(self._chains)
        used = np.unique(self._chain_of[self._chain_of >= 0])
        self._chains = [[*self._chains, chains][i] for i in used.tolist()]
        known = self._chain_of >= 0
        self._chain_of[known] = np.searchsorted(used, self._chain_of[known])

    def by_chains(self, key_groups: Integers) -> Iterator[tuple[StoredChains, Integers]]:
        """Yield chains, each with its key groups among these."""
        for i, chains in enumerate(self._chains):
            some = key_groups[self._chain_of[key_groups] == i]
            if some.size:
                yield chains, some

    def values(self, key_groups: Integers, name: str) -> npt.NDArray[Any]:
        """Return an array of the chains (`name`) at key groups, -1 for unknown ones."""
        values = np.full(len(self._chain_of), -1.0)
        for chains, some in self.by_chains(key_groups):
            values[some] = getattr(chains, name)[some]
        return values[key_groups]


_known: WeakKeyDictionary[LocalState, _Known] = WeakKeyDictionary()
