"""Partial copies: the local store has the entries of touched keys, the checkpoint all others.

After a restart, the loss of an executor, a migration on demand, or an eviction, an epoch needs the
state of the keys that have rows.
Reading all state into tables first would let all rows wait.  So the blocks of the checkpoint are
mapped, and the entries of these keys alone enter the tables (`godwit.checkpoint.stored_chains`).
Later epochs fetch the keys that they touch in the same way, and complete a few key groups each, for
a share of the time that their own work took, until no copy is partial; unless a bound on the memory
of state leaves no room for that.  A block is verified against its checksum before it is read.

Invariant: the entry of a key that a partial copy at version *v* lacks is that of the checkpoint at
each version from its base up to *v*.  For a change puts its key into the table, and a removal
raises the base.  So chains that are remembered from an earlier epoch serve as long as they reach
the base.

Under a bound on the memory of state, blocks are verified and indexed in steps before entries are
evicted, and again once the chains have doubled, so that no epoch does all of it.

A process remembers which keys it has fetched, by their hashes: while the serial number of a key
group stays, its table has their entries, or they have none.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from godwit.checkpoint.entries import BatchCache
from godwit.checkpoint.fetched_keys import FetchedKeys
from godwit.checkpoint.stored_chains import StoredChains
from godwit.checkpoint.stored_index import PreparedIndex, VerifiedBlocks
from godwit.model.errors import CorruptCheckpointError, EpochFailedError
from godwit.model.key_groups import key_group_mask, key_groups_of
from godwit.store.changes import Changes
from godwit.store.index import distinct

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

FROM_BYTES: int = 16 << 20
"""Bytes of state that a lane lacks from which on it reads touched keys first (`Touched`).

As many has one lane to get for a migration on demand.
"""
_READ_BYTES: Final = 64 << 20  # of blocks, at once
_MAX_BLOCKS: Final = 30_000  # of a process: each is a mapping, of which it may have 65,530
_MAX_NEWER: Final = 64  # segments that are remembered without being part of chains
_CACHE_BYTES: Final = 256 << 20  # of blocks that are in memory, such as decompressed ones
_AHEAD_SHARE: Final = 2
"""Inverse of the part of the bound that tables have when blocks are indexed ahead."""
_DOUBLED: Final = 2
"""Times their rows, or blocks, at first, from which on chains are looked up and indexed again."""
_FORGOTTEN: Final = 4
"""Likewise, from which on chains are forgotten if that is not done."""
_TABLE_SHARE: Final = 2
"""Bytes that state takes in tables, at most, times its bytes in the checkpoint; nearly."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Touched:
    """Keys whose entries an epoch reads."""

    hashes: Integers  # of the keys, as they are stored; may repeat
    key_groups: Mask  # key groups of which the epoch reads no other entries
    # bytes of missing state from which on copies begin as partial ones; less is read at once
    min_bytes: int


class PartialCopies:
    """Partial copies of one state on an executor; see the module.

    `recover`: returns key group → its full chain at the last committed epoch. `gone`: range of
    event time whose entries have expired and are left out. `bound_bytes`: maximum bytes of memory
    for tables that this lane may use; 0: no maximum. `began`: true once `begin` has fetched
    entries. `num_fetched`: number of keys whose entries were fetched.
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
        bound_bytes: int = 0,
    ) -> None:
        self._bound_bytes = bound_bytes
        # of the index: under a bound it is in mapped files, whose memory the kernel can take back
        self._directory = local.path if bound_bytes else None
        self._local, self._layout, self._storage = local, layout, storage
        self._recover, self._homes, self._are_keys_gone = recover, homes, gone
        self.began = False
        self.num_fetched = 0

    def follow(
        self,
        key_groups: Mask,
        segments: Iterable[SegmentRef],
        snapshots: Mapping[int, SnapshotRef],
        floor: Integers,
    ) -> None:
        """Remember newer segments of chains that this process knows.

        `segments`, `snapshots`: of some `key_groups`, from versions `floor` to the committed one.
        """
        known = _known.get(self._local)
        if known is not None:
            reached = floor.copy()
            for key_group, snapshot in snapshots.items():
                reached[key_group] = snapshot.version
            known.follow(key_groups, segments, reached)

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
        chains = StoredChains(segments, snapshots, key_groups, self._directory)
        if (
            chains.size_bytes.sum() < max(touched.min_bytes, 1)
            or chains.num_blocks + sum(chains_.num_blocks for chains_ in _known.values())
            > _MAX_BLOCKS
            or not self._storage.maps
        ):
            return
        self.began = True
        known = self._chains_read_from()
        prepared = PreparedIndex.load(self._local.path, self._directory)
        if prepared is not None:
            chains.adopt(prepared)
            known.blocks.verified = VerifiedBlocks(self._storage, prepared)
        known.add(chains, chains.versions >= 0)
        loaded_groups = np.flatnonzero(chains.versions >= 0)
        group_of_hash = key_groups_of(touched.hashes, len(key_groups))
        hashes = distinct(touched.hashes[(chains.versions >= 0)[group_of_hash]])
        if not self._bound_bytes:
            self._homes = self._local.spare_homes(self._homes)
        try:
            self._fetch_entries_of_keys(loaded_groups, known, hashes)
        finally:
            known.blocks.verified = None  # of most blocks, which are mapped now
        self._check_reached(loaded_groups, known)
        known.remember_fetched(loaded_groups, self._local.serials, hashes)

    def begin_loaded(self, key_groups: Mask, touched: Touched) -> None:
        """Do as `begin` does, with chains from the checkpoint."""
        if key_groups.any() and self._storage.maps:
            self.begin(key_groups, touched, *self._checkpointed_chains(key_groups))

    def fetch(self, key_groups: Mask, touched: Touched) -> None:
        """Fetch the touched entries of partial copies that they lack."""
        if not key_groups.any():
            return
        known, serials = self._chains_read_from(), self._local.serials
        known.forget_fetched(np.flatnonzero(key_groups), serials)
        group_of_hash = key_groups_of(touched.hashes, len(key_groups))
        hashes = distinct(touched.hashes[key_groups[group_of_hash]])
        hashes = hashes[~known.fetched.contains(hashes)]
        missing_groups = np.flatnonzero(
            key_group_mask(key_groups_of(hashes, len(key_groups)), len(key_groups))
        )
        serials_before = serials.copy()
        self._read_with_chains(missing_groups, partial(self._fetch_entries_of_keys, hashes=hashes))
        changed = np.flatnonzero(key_groups & (serials != serials_before))
        if changed.size:
            raise self._changed_elsewhere_error(int(changed[0]))
        known.remember_fetched(missing_groups, serials, hashes)

    def release(self, used: Mask) -> None:
        """Forget chains and unmap blocks if no copy is partial: they may have been collected.

        `used`: key groups of the epoch. Others may have been completed or dropped by other
        processes of the executor since this one used them.
        """
        bases = self._local.bases
        others = np.flatnonzero((bases >= 0) & ~used)
        if others.size and not (bases[used] >= 0).any():
            self._local.refresh(others)
        known = _known.get(self._local)
        if known is not None and not (bases >= 0).any():
            PreparedIndex.remove(self._local.path)
            if not known.is_ahead:
                del _known[self._local]

    def complete(self, key_groups: Mask) -> None:
        """Fetch all entries that partial copies lack."""
        self._read_with_chains(np.flatnonzero(key_groups), self._fetch_all_entries)

    def complete_some(self, key_groups: Mask, until_s: float, used_bytes: int = 0) -> int:
        """Complete a partial copy, and more until the time is up; return the bytes still missing.

        None is completed in the epoch that begins with partial copies, or if there is a bound that
        all of them would exceed; then 0 is returned. `until_s`: as `time.perf_counter` has it.
        `used_bytes`: of the memory that the bound is for.
        """
        missing = 0

        def complete(key_groups: Integers, known: _Known) -> None:
            """Complete the first of the key groups."""
            nonlocal missing
            missing = int(known.values(key_groups, "size_bytes").sum())
            if self._bound_bytes and used_bytes + _TABLE_SHARE * missing > self._bound_bytes:
                missing = 0
                return
            for chains, _ in known.by_chains(key_groups):
                if not self.began:
                    chains.merge_some(until_s)
            done = 0
            while done < len(key_groups) and not self.began:
                began_s = time.perf_counter()
                count = int((until_s - began_s) / known.pace_s)
                if done and count < 1:
                    break
                # Not more than twice as many as before: the pace may be of a small one.
                next_key_groups = key_groups[done : done + max(1, min(count, 2 * done))]
                self._fetch_all_entries(next_key_groups, known)
                known.pace_s = (time.perf_counter() - began_s) / len(next_key_groups)
                done += len(next_key_groups)
            missing = int(known.values(key_groups[done:], "size_bytes").sum())

        self._read_with_chains(np.flatnonzero(key_groups & (self._local.bases >= 0)), complete)
        if self._bound_bytes and used_bytes * _AHEAD_SHARE >= self._bound_bytes:
            self._index_ahead(key_groups, until_s)
        self.release(key_groups)
        return missing

    def _index_ahead(self, key_groups: Mask, until_s: float) -> None:
        """Verify and index blocks from which later epochs will fetch entries, in steps."""
        if not self._storage.maps:
            return
        known = self._chains_read_from()
        if known.coming is None:
            some = known.to_index(np.flatnonzero(key_groups & (self._local.versions >= 0)))
            if not some.size:
                return
            mask = key_group_mask(some, len(key_groups))
            chains = StoredChains(*self._checkpointed_chains(mask), mask, self._directory)
            if chains.num_blocks + known.num_blocks > _MAX_BLOCKS:
                known.has_too_many_blocks = True
                return
            known.coming = chains
        chains = known.coming
        try:
            is_indexed = chains.index_some(known.blocks, until_s)
        except CorruptCheckpointError:  # compaction has removed a block that was not mapped yet
            known.coming = None
            return
        if is_indexed:
            some = known.add_coming(chains)
            # Newer segments extend them, which the next instructions will follow without a gap.
            self._look_up_chains(some, known, self._local.versions[some])

    def contents(self, key_groups: Integers, versions: Integers) -> Iterator[Changes]:
        """Yield all entries of key groups from the checkpoint alone, some of them at a time.

        `versions`: minimum version of each. Key groups without entries are left out.
        """
        contents = list[Changes]()

        def read(key_groups: Integers, known: _Known) -> None:
            """Read the entries of some key groups."""
            contents.clear()
            for chains, chain_groups in known.by_chains(key_groups):
                contents.append(self._read_entries(chains, None, known.blocks, chain_groups)[0])

        sizes = self._chains_read_from().values(key_groups, "size_bytes")
        parts = np.cumsum(np.maximum(sizes, 0)) // _READ_BYTES
        edges = np.flatnonzero(np.diff(parts)) + 1
        for part_groups, part_versions in zip(
            np.split(key_groups, edges), np.split(versions, edges), strict=True
        ):
            self._read_with_chains(part_groups, read, np.maximum(part_versions, 0))
            yield from contents

    def _read_with_chains(
        self,
        key_groups: Integers,
        read: Callable[[Integers, _Known], None],
        reach: Integers | None = None,
    ) -> None:
        """Call `read` for key groups, with chains that reach versions; by default their bases."""
        if not key_groups.size:
            return
        known = self._chains_read_from()
        reach = self._local.bases[key_groups] if reach is None else reach
        is_short = known.values(key_groups, "versions") < reach
        if is_short.any():
            known.extend()
            known.forget_grown()
            is_short = known.values(key_groups, "versions") < reach
        if is_short.any():
            self._look_up_chains(key_groups[is_short], known, reach[is_short])
        try:
            read(key_groups, known)
        except CorruptCheckpointError:
            # Compaction has removed blocks that this process had not mapped.
            self._look_up_chains(key_groups, known)
            read(key_groups, known)
        self._check_reached(key_groups, known)

    def _check_reached(self, key_groups: Integers, known: _Known) -> None:
        """Raise if the base of a partial copy has passed its chain since the chain was read."""
        late = key_groups[known.values(key_groups, "versions") < self._local.bases[key_groups]]
        if late.size:
            raise self._changed_elsewhere_error(int(late[0]))

    def _changed_elsewhere_error(self, key_group: int) -> EpochFailedError:
        """Return the error that another process has changed a key group."""
        return EpochFailedError(
            f"Key group {key_group} of {self._layout.name!r} has changed in the local store while "
            "its entries were read from the checkpoint.",
            remedy="The next attempt reads them again.",
        )

    def _chains_read_from(self) -> _Known:
        """Return the state's chains that this process has read from."""
        known = _known.get(self._local)
        if known is None:
            cache_bytes = min(self._bound_bytes // 8 or _CACHE_BYTES, _CACHE_BYTES)
            known = _Known(self._storage, self._local.num_key_groups, cache_bytes)
            _known[self._local] = known
        return known

    def _look_up_chains(
        self, key_groups: Integers, known: _Known, reach: Integers | None = None
    ) -> None:
        """Read the present chains of key groups from the checkpoint, and remember them.

        `reach`: versions; chains that newer segments lead there are extended, and not replaced.
        """
        mask = key_group_mask(key_groups, self._local.num_key_groups)
        segments, snapshots = self._checkpointed_chains(mask)
        if reach is not None:
            self.follow(mask, segments, snapshots, np.full(len(mask), -1))
            known.extend()
            mask[key_groups[known.values(key_groups, "versions") >= reach]] = False
        if mask.any():
            known.add(StoredChains(segments, snapshots, mask, self._directory), mask)

    def _checkpointed_chains(
        self, key_groups: Mask
    ) -> tuple[list[SegmentRef], dict[int, SnapshotRef]]:
        """Return the segments and snapshots of key groups in the checkpoint."""
        chains = self._recover(np.flatnonzero(key_groups).tolist())
        distinct = {id(s): s for chain in chains.values() for s in chain.segments}
        snapshots = {
            key_group: c.snapshot for key_group, c in chains.items() if c.snapshot is not None
        }
        return list(distinct.values()), snapshots

    def _fetch_entries_of_keys(self, key_groups: Integers, known: _Known, hashes: Integers) -> None:
        """Fetch the entries of some keys of key groups from chains."""
        self.num_fetched += len(hashes)
        for chains, chain_groups in known.by_chains(key_groups):
            read = partial(self._read_entries, chains, hashes, known.blocks)
            self._local.fill(chain_groups, chains.versions[chain_groups], read, self._homes)

    def _fetch_all_entries(self, key_groups: Integers, known: _Known) -> None:
        """Fetch all entries of key groups from chains, a part of them at a time."""
        for chains, chain_groups in known.by_chains(key_groups):
            parts = np.cumsum(chains.size_bytes[chain_groups]) // _READ_BYTES
            for part_groups in np.split(chain_groups, np.flatnonzero(np.diff(parts)) + 1):
                read = partial(self._read_entries, chains, None, known.blocks)
                self._local.fill(
                    part_groups, chains.versions[part_groups], read, self._homes, complete=True
                )
            chains.release(self._local.bases < 0)

    def _read_entries(
        self,
        chains: StoredChains,
        hashes: Integers | None,
        blocks: BatchCache,
        key_groups: Integers,
    ) -> tuple[Changes, int]:
        """Read entries of key groups, without expired ones; `hashes`: see `StoredChains.read`.

        Also return the number of all keys that later calls may read.
        """
        entries = chains.read(key_groups, hashes, self._layout, blocks)
        return entries.without(self._are_keys_gone), 0 if self._bound_bytes else chains.num_keys


def prepare(
    local: LocalState,
    key_groups: Mask,
    segments: Iterable[SegmentRef],
    snapshots: Mapping[int, SnapshotRef],
    *,
    storage: CheckpointStorage,
    epoch: int,
) -> None:
    """Verify and index the blocks of absent key groups, for lanes that will begin partial copies.

    `segments`, `snapshots`: from the beginning to the committed `epoch`. Nothing remains if lanes
    have made whole copies meanwhile, as after key groups have switched without an index.
    """
    requested = np.flatnonzero(key_groups)
    absent = key_group_mask(requested[local.refresh(requested) < 0], local.num_key_groups)
    chains = StoredChains(segments, snapshots, absent, local.path)
    if not storage.maps or not 0 < chains.num_blocks <= _MAX_BLOCKS:
        return
    cache = BatchCache(storage, max_bytes=_CACHE_BYTES, counts_mapped=False)
    chains.prepare(cache, epoch).save(local.path)
    requested = np.flatnonzero(absent)
    if (local.refresh(requested) >= 0).all() and (local.bases[requested] < 0).all():
        PreparedIndex.remove(local.path)


def drop(local: LocalState, key_groups: Integers) -> None:
    """Delete copies of key groups; without partial copies then, the index is deleted too."""
    local.drop(key_groups)
    local.refresh(np.arange(local.num_key_groups))
    if not (local.bases >= 0).any():
        PreparedIndex.remove(local.path)


class _Known:
    """Chains of one state that this process has read from, and their blocks.

    `fetched`: hashes of the keys that were fetched while key groups have the serial numbers
    `_table_serials`. `_newer_segments`: segments after the chains, which lead key groups to the
    epochs `_reached_epoch`. `coming`: chains that are being indexed, to be added. `is_ahead`: true
    if chains are indexed before their entries are evicted; `has_too_many_blocks`: or would be.
    """

    def __init__(self, storage: CheckpointStorage, num_key_groups: int, cache_bytes: int) -> None:
        self.blocks = BatchCache(storage, max_bytes=cache_bytes, counts_mapped=False)
        self.pace_s = math.inf  # seconds that completing a key group took last
        self.fetched = FetchedKeys(num_key_groups)
        self._table_serials = np.full(num_key_groups, -1, np.int64)
        self._chains: list[StoredChains] = []
        self._chain_of = np.full(num_key_groups, -1, np.int32)  # index in `_chains`
        self._newer_segments: list[SegmentRef] = []
        self._reached_epoch = np.full(num_key_groups, -1, np.int64)
        self.coming: StoredChains | None = None
        self.is_ahead = False
        self.has_too_many_blocks = False
        self._has_no_chain = np.zeros(num_key_groups, np.bool_)

    def to_index(self, key_groups: Integers) -> Integers:
        """Return those of some key groups whose chains are unknown, or have doubled."""
        if self.has_too_many_blocks:
            return key_groups[:0]
        self.is_ahead = True
        known = (self._chain_of >= 0) | self._has_no_chain
        for number, chains in enumerate(self._chains):
            if chains.has_grown(_DOUBLED):
                known[self._chain_of == number] = False
        return key_groups[~known[key_groups]]

    def add_coming(self, chains: StoredChains) -> Integers:
        """Remember chains that are indexed, instead of older ones; return their key groups."""
        self.coming, present = None, chains.versions >= 0
        self._has_no_chain |= chains.key_groups & ~present
        self.add(chains, present)
        return np.flatnonzero(present)

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the chains."""
        return sum(chains.num_blocks for chains in self._chains)

    def add(self, chains: StoredChains, key_groups: Mask) -> None:
        """Remember the chains of key groups, instead of older ones."""
        self.extend()
        self._reached_epoch[key_groups] = chains.versions[key_groups]
        self._chain_of[key_groups] = len(self._chains)
        self._chains.append(chains)
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop chains without key groups, and unmap the blocks that only they have."""
        used = np.unique(self._chain_of[self._chain_of >= 0])
        if len(used) == len(self._chains):
            return
        self._chains = [self._chains[i] for i in used.tolist()]
        known = self._chain_of >= 0
        self._chain_of[known] = np.searchsorted(used, self._chain_of[known])
        every = self._chains if self.coming is None else [*self._chains, self.coming]
        self.blocks.retain(block for chains in every for block in chains.blocks)

    def follow(self, key_groups: Mask, segments: Iterable[SegmentRef], after: Integers) -> None:
        """Remember newer segments, which are all after some versions of key groups."""
        follows = key_groups & (self._chain_of >= 0) & (self._reached_epoch >= after)
        newest = -1
        for segment in segments:
            own = np.array(segment.key_groups, np.int64)
            if (follows[own] & (self._reached_epoch[own] < segment.epoch)).any():
                self._newer_segments.append(segment)
                newest = max(newest, segment.epoch)
        self._reached_epoch[follows] = np.maximum(self._reached_epoch[follows], newest)
        if len(self._newer_segments) > _MAX_NEWER:
            self.extend()
            self.forget_grown()

    def extend(self) -> None:
        """Add the newer segments to the chains."""
        for number, chains in enumerate(self._chains):
            reach = np.where(self._chain_of == number, self._reached_epoch, -1)
            chains.extend(self._newer_segments, reach)
        self._newer_segments.clear()

    def forget_grown(self) -> None:
        """Forget chains that have grown much, since snapshots have replaced many of their blocks.

        They are looked up when they are needed.
        """
        for number, chains in enumerate(self._chains):
            if chains.has_grown(_FORGOTTEN if self.is_ahead else _DOUBLED):
                self._chain_of[self._chain_of == number] = -1
        self._drop_unused()

    def forget_fetched(self, key_groups: Integers, serials: Integers) -> None:
        """Forget the fetched keys of key groups that have other serial numbers than before."""
        others = key_groups[self._table_serials[key_groups] != serials[key_groups]]
        self.fetched.forget(others[self._table_serials[others] >= 0])
        self._table_serials[others] = serials[others]

    def remember_fetched(self, key_groups: Integers, serials: Integers, hashes: Integers) -> None:
        """Remember that keys of key groups were fetched."""
        self.forget_fetched(key_groups, serials)
        self.fetched.add(hashes)

    def by_chains(self, key_groups: Integers) -> Iterator[tuple[StoredChains, Integers]]:
        """Yield chains, each with its key groups among these."""
        for i, chains in enumerate(self._chains):
            of_chains = key_groups[self._chain_of[key_groups] == i]
            if of_chains.size:
                yield chains, of_chains

    def values(self, key_groups: Integers, name: str) -> npt.NDArray[Any]:
        """Return an array of the chains (`name`) at key groups, -1 for unknown ones."""
        values = np.full(len(self._chain_of), -1.0)
        for chains, of_chains in self.by_chains(key_groups):
            values[of_chains] = getattr(chains, name)[of_chains]
        return values[key_groups]


_known: WeakKeyDictionary[LocalState, _Known] = WeakKeyDictionary()
