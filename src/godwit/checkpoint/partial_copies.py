"""Partial copies: the local store has the entries of touched keys, the checkpoint all others.

After a restart, the loss of an executor, or a migration on demand, an epoch needs the state of the
keys that have rows.
Reading all state into tables first would let all rows wait.  So the blocks of the checkpoint are
mapped, and the entries of these keys alone enter the tables.  Later epochs fetch the keys that they
touch in the same way, and complete a few key groups each, for as long as their own work took, until
no copy is partial.  A block is verified against its checksum before it is read.

Keys are found by an index of the blocks' rows (`_Part`), which a process makes once: 20 to 80 ns
and 8 bytes a stored entry.  Then a search takes some 0.2 µs a touched key, however many are stored.
Putting a key into a table takes 0.3 to 0.5 µs.

Invariant: the entry of a key that a partial copy at version *v* lacks is that of the checkpoint at
each version from its base up to *v*.  For a change puts its key into the table, and a removal
raises the base.  So chains that are remembered from an earlier epoch serve as long as they reach
the base.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.checkpoint.blocks import check_num_rows
from godwit.checkpoint.entries import BatchCache, latest_entries
from godwit.model.errors import CorruptCheckpointError, EpochFailedError
from godwit.model.key_groups import MAX_NUM_KEY_GROUPS, key_group_mask, key_groups_of
from godwit.store.changes import Changes, StateRows
from godwit.store.image import blank_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from godwit.checkpoint.chains import KeyGroupChain
    from godwit.checkpoint.entries import EntryLayout
    from godwit.checkpoint.records import SegmentRef, SnapshotRef
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.store.changes import EntryRange
    from godwit.store.columns import StateSchema
    from godwit.store.local_store import LocalState

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint64]

FROM_BYTES: int = 16 << 20
"""Bytes of state that a lane lacks from which on it reads touched keys first (`Touched`).

As many has one lane to get for a migration on demand.
"""
_READ_BYTES: Final = 64 << 20  # of blocks, at once
_MAX_BLOCKS: Final = 30_000  # of a process: each is a mapping, of which it may have 65,530
_PART_ROWS: Final = 1 << 21  # of an index; more would take more memory while it is sorted
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFF_FFFF)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Touched:
    """Keys whose entries an epoch reads."""

    hashes: Integers  # of the keys, as they are stored; may repeat
    key_groups: Mask  # key groups of which the epoch reads no other entries
    # bytes of missing state from which on copies begin as partial ones; less is read at once
    min_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Block:
    """A block, and its rows that count."""

    ref: SegmentRef | SnapshotRef
    key_groups: Integers  # that have rows here which no snapshot replaces
    # first, end: of the rows of each
    first: Integers
    end: Integers

    @classmethod
    def of(cls, ref: SegmentRef | SnapshotRef, own: Integers, ends: Integers, use: Mask) -> _Block:
        """Return a block with rows of the key groups `own`, of which those of `use` count."""
        first = np.concatenate(([0], ends[:-1]))
        return cls(ref=ref, key_groups=own[use], first=first[use], end=ends[use])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """Index of the rows of some key groups in blocks.

    `codes`: ascending, one for each row: the rank of its key group among `key_groups` and the upper
    bits of its hash, 32 bits together, above the number of the row.  Rows are numbered from older
    to newer blocks.  So the entries of a key are neighbours, the newest last.
    """

    key_groups: Integers
    codes: Codes
    blocks: Sequence[_Block]
    # starts, firsts, owners: of each run of consecutive rows in a block: number of the first row,
    # its position in the block, and the index of the block.  The first ends with the number of rows
    starts: Integers
    firsts: Integers
    owners: Integers

    @property
    def num_keys(self) -> int:
        """Number of keys with an entry, nearly."""
        return 1 + int(np.count_nonzero(np.diff(self.codes >> _HALF)))

    @classmethod
    def build(cls, key_groups: Integers, blocks: Sequence[_Block], cache: BatchCache) -> _Part:
        """Read the hashes of key groups' rows, and sort them; `blocks`: older ones first."""
        starts, firsts, owners, hashes = [0], list[int](), list[int](), [_NONE]
        codes = [np.empty(0, np.uint64)]
        own: list[_Block] = []
        wanted = key_group_mask(key_groups, MAX_NUM_KEY_GROUPS)
        prefixes = np.arange(len(key_groups), dtype=np.uint64) << _shift(len(key_groups))
        for block in blocks:
            use = wanted[block.key_groups]
            if not use.any():
                continue
            first, end = block.first[use], block.end[use]
            stored = _read(cache, block.ref).column(0).to_numpy()
            gaps = np.flatnonzero(first[1:] != end[:-1]) + 1
            edges = np.concatenate(([0], gaps, [len(first)]))
            for run in zip(first[edges[:-1]].tolist(), end[edges[1:] - 1].tolist(), strict=True):
                hashes.append(stored[slice(*run)])
                starts.append(starts[-1] + run[1] - run[0])
                firsts.append(run[0])
                owners.append(len(own))
            ranks = np.searchsorted(key_groups, block.key_groups[use])
            codes.append(np.repeat(prefixes[ranks], end - first))
            own.append(block)
        assert starts[-1] <= _LOW, "a key group has fewer rows than a table's maximum"
        sorted_codes = np.concatenate(codes)
        sorted_codes |= _suffixes(np.concatenate(hashes), len(key_groups))
        sorted_codes <<= _HALF
        sorted_codes |= np.arange(starts[-1], dtype=np.uint64)
        sorted_codes.sort()
        return cls(
            key_groups=key_groups,
            codes=sorted_codes,
            blocks=own,
            starts=np.array(starts),
            firsts=np.array(firsts, np.int64),
            owners=np.array(owners, np.int64),
        )

    def touched(self, hashes: Integers, of_hashes: npt.NDArray[np.integer]) -> Integers:
        """Return the positions in `codes` of all entries of keys, given by hash and key group.

        A few other keys have the same codes; all their entries are there too.
        """
        ranks = np.searchsorted(self.key_groups, of_hashes)
        codes = ranks.astype(np.uint64) << _shift(len(self.key_groups))
        codes |= _suffixes(hashes, len(self.key_groups))
        codes.sort()
        codes = codes[np.diff(codes, prepend=~codes[:1]) != 0] << _HALF
        first = np.searchsorted(self.codes, codes)
        counts = np.searchsorted(self.codes, codes | _LOW, side="right") - first
        return np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())

    def all_of(self, key_groups: Integers) -> Integers:
        """Return the positions in `codes` of all entries of key groups."""
        bounds = np.arange(len(self.key_groups), dtype=np.uint64) << _shift(len(self.key_groups))
        edges = np.append(np.searchsorted(self.codes, bounds << _HALF), len(self.codes))
        ranks = np.searchsorted(self.key_groups, key_groups).tolist()
        return np.concatenate([_NONE, *(np.arange(edges[r], edges[r + 1]) for r in ranks)])

    def read(self, positions: Integers, layout: EntryLayout, cache: BatchCache) -> StateRows:
        """Read the newest entry of each key, unless it is a removal.

        `positions`: in `codes`, ascending, of all entries of some keys.
        """
        codes = self.codes[positions]
        rows = (codes & _LOW).view(np.int64)
        order = np.argsort(rows)
        newest = _newest(codes >> _HALF)
        newest, rows = np.argsort(order)[newest[order]], rows[order]
        ends = np.searchsorted(rows, self.starts)
        run = np.repeat(np.arange(len(self.owners)), np.diff(ends))
        places = rows + (self.firsts - self.starts[:-1])[run]
        parts: list[tuple[int, pa.RecordBatch]] = []
        blocks = np.arange(len(self.blocks))
        first = 0
        for i, end in enumerate(np.searchsorted(self.owners[run], blocks, "right").tolist()):
            if end > first:
                ref = self.blocks[i].ref
                batch, start = _read(cache, ref), int(places[first])
                if places[end - 1] - start == end - first - 1:  # as where all entries are read
                    batch = batch.slice(start, end - first)
                else:
                    batch = batch.take(pa.array(places[first:end]))
                parts.append((ref.flow, batch))
            first = end
        # Joined first, since a call for each of a thousand blocks would take most of the time.
        alike = groupby(parts, lambda part: (part[0], part[1].schema))
        read = [
            layout.read(pa.concat_batches([batch for _, batch in some]), flow)
            for (flow, _), some in alike
        ]
        entries = StateRows.concat(read or [latest_entries([], layout.schema)])
        present = newest == np.arange(len(newest))
        older = np.flatnonzero(~present)
        if entries.removed is not None:
            present &= ~entries.removed
        other = older[~_equal(entries.keys, older, newest[older], layout.schema)]
        if not other.size:  # as nearly always
            return replace(entries.take(np.flatnonzero(present)), removed=None)
        some = np.isin(newest, newest[other])  # keys of these codes differ
        others = latest_entries([entries.take(np.flatnonzero(some))], layout.schema)
        present = replace(entries.take(np.flatnonzero(present & ~some)), removed=None)
        return present.followed_by(others)


def _newest(codes: Codes) -> Integers:
    """Return the position of the last of equal codes, for each; `codes` ascend."""
    last = np.flatnonzero(np.append(codes[1:] != codes[:-1], np.ones(min(len(codes), 1), np.bool_)))
    return np.repeat(last, np.diff(last, prepend=-1))


def _equal(keys: pa.RecordBatch, some: Integers, others: Integers, schema: StateSchema) -> Mask:
    """Return a mask: where the bits of the keys at positions `some` and `others` are equal."""
    image = blank_image(schema, 1)
    equal = np.ones(len(some), np.bool_)
    pairs = (image.encode_keys(keys.take(pa.array(which))) for which in (some, others))
    for left, right in zip(*pairs, strict=True):
        if isinstance(left.values, np.ndarray):
            same = np.equal(left.values, right.values)
            same = same.all(axis=1) if same.ndim > 1 else same
        else:
            same = pc.equal(left.values, right.values).to_numpy(zero_copy_only=False)
        zero = np.uint8(0)
        same &= (zero if left.nulls is None else left.nulls) == (
            zero if right.nulls is None else right.nulls
        )
        equal &= same
    return equal


_NONE: Final = np.empty(0, np.int64)


def _shift(num_key_groups: int) -> np.uint64:
    """Return the number of a code's bits that are of a hash."""
    return np.uint64(32 - (num_key_groups - 1).bit_length())


def _suffixes(hashes: Integers, num_key_groups: int) -> Codes:
    """Return the codes of hashes without key groups and row numbers."""
    return hashes.view(np.uint64) >> (np.uint64(64) - _shift(num_key_groups))


def _read(cache: BatchCache, ref: SegmentRef | SnapshotRef) -> pa.RecordBatch:
    """Read a block, or return it from the cache; raise if it has not the recorded rows."""
    batch = cache.read(ref.block)
    check_num_rows(cache.storage, ref, batch)
    return batch


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
        after = np.full(len(key_groups), -1, np.int64)
        self.size_bytes = np.zeros(len(key_groups))
        self._num_rows = np.zeros(len(key_groups), np.int64)
        self._blocks: list[_Block] = []
        for g, snapshot in snapshots.items():
            if key_groups[g]:
                after[g] = snapshot.version
                self._add(snapshot, np.array([g]), np.array([snapshot.rows]), np.ones(1, np.bool_))
        self.versions = after.copy()
        for segment in sorted(segments, key=lambda segment: (segment.epoch, segment.lane)):
            own = np.array(segment.key_groups, np.int64)
            use = key_groups[own] & (after[own] < segment.epoch)
            if use.any():
                self.versions[own[use]] = segment.epoch
                self._add(segment, own, np.array(segment.row_ends, np.int64), use)
        self._part_of = np.cumsum(self._num_rows) // _PART_ROWS  # number of each key group's part
        self._parts: dict[int, _Part] = {}
        self._keys_of: dict[int, int] = {}  # number of a part → of its keys

    def _add(self, ref: SegmentRef | SnapshotRef, own: Integers, ends: Integers, use: Mask) -> None:
        """Add a block with rows of the key groups `own`, of which those of `use` count."""
        block = _Block.of(ref, own, ends, use)
        rows = block.end - block.first
        self._num_rows[block.key_groups] += rows
        self.size_bytes[block.key_groups] += rows * (ref.block.length / max(1, int(ends[-1])))
        self._blocks.append(block)

    @property
    def num_blocks(self) -> int:
        """Number of blocks with the entries."""
        return len(self._blocks)

    @property
    def num_keys(self) -> int:
        """Number of keys in key groups that were read from, nearly."""
        return sum(self._keys_of.values())

    def read(
        self,
        key_groups: Integers,
        hashes: Integers | None,
        layout: EntryLayout,
        cache: BatchCache,
    ) -> Changes:
        """Read the present entries of key groups (ascending): all, or of keys with `hashes`."""
        num_key_groups = len(self.versions)
        of_hashes = key_groups_of(_NONE if hashes is None else hashes, num_key_groups)
        parts: list[StateRows] = []
        stored = key_groups[self._num_rows[key_groups] > 0]
        for number in np.unique(self._part_of[stored]).tolist():
            part, own = self._part(number, cache), stored[self._part_of[stored] == number]
            if hashes is None:
                positions = part.all_of(own)
            else:
                some = key_group_mask(own, num_key_groups)[of_hashes]
                positions = part.touched(hashes[some], of_hashes[some])
            parts.append(part.read(positions, layout, cache))
        rows = StateRows.concat(parts or [latest_entries([], layout.schema)])
        of_rows = key_groups_of(rows.hashes, num_key_groups)
        order = np.argsort(of_rows, kind="stable")
        return Changes(
            key_groups=key_groups,
            ends=np.searchsorted(of_rows[order], key_groups, side="right"),
            epochs=self.versions[key_groups],
            rows=rows.take(order),
        )

    def _part(self, number: int, cache: BatchCache) -> _Part:
        """Return a part of the index; build it on first use."""
        if number not in self._parts:
            own = np.flatnonzero((self._part_of == number) & (self._num_rows > 0))
            self._parts[number] = _Part.build(own, self._blocks, cache)
            self._keys_of[number] = self._parts[number].num_keys
        return self._parts[number]

    def release(self, whole: Mask) -> None:
        """Drop the parts of the index that have only key groups that are `whole`."""
        used = np.unique(self._part_of[~whole & (self._num_rows > 0)])
        self._parts = {n: part for n, part in self._parts.items() if n in used}


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
            chains.size_bytes.sum() < max(touched.min_bytes, 1)
            or chains.num_blocks + sum(k.num_blocks for k in _known.values()) > _MAX_BLOCKS
            or not self._storage.maps
        ):
            return
        self.began = True
        known = self._known()
        known.add(chains, chains.versions >= 0)
        present = np.flatnonzero(chains.versions >= 0)
        self._homes = self._local.spare_homes(self._homes)
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
            done = 0
            while done < len(key_groups) and not self.began:
                began_s = time.perf_counter()
                count = int((until_s - began_s) / known.pace_s)
                if done and count < 1:
                    break
                # Not more than twice as many as before: the pace may be of a small one.
                some = key_groups[done : done + max(1, min(count, 2 * done))]
                self._complete(some, known)
                known.pace_s = (time.perf_counter() - began_s) / len(some)
                done += len(some)
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
        for chains, some in known.by_chains(key_groups):
            read = partial(self._read, chains, touched.hashes, known.blocks)
            self._local.fill(some, chains.versions[some], read, self._homes)

    def _complete(self, key_groups: Integers, known: _Known) -> None:
        """Fetch all entries of key groups from chains, a part of them at a time."""
        for chains, own in known.by_chains(key_groups):
            parts = np.cumsum(chains.size_bytes[own]) // _READ_BYTES
            for some in np.split(own, np.flatnonzero(np.diff(parts)) + 1):
                read = partial(self._read, chains, None, known.blocks)
                self._local.fill(some, chains.versions[some], read, self._homes, complete=True)
            chains.release(self._local.bases < 0)

    def _read(
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
        return entries.without(self._gone), chains.num_keys


class _Known:
    """Chains of one state that this process has read from, and their blocks."""

    def __init__(self, storage: CheckpointStorage, num_key_groups: int) -> None:
        self.blocks = BatchCache(storage, counts_mapped=False)
        self.pace_s = math.inf  # seconds that completing a key group took last
        self._chains: list[StoredChains] = []
        self._chain_of = np.full(num_key_groups, -1, np.int32)  # index in `_chains`

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the chains."""
        return sum(chains.num_blocks for chains in self._chains)

    def add(self, chains: StoredChains, key_groups: Mask) -> None:
        """Remember the chains of key groups, instead of older ones."""
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
