"""Chains of many key groups, for reading the entries of some keys, or of whole key groups.

The blocks of the chains are mapped (`BatchCache`), and their rows are found by an index, which is
made when it is first used, in parts of key groups with some 2 M rows.  Then large segments have
runs of their own, so that the epoch which makes it need not merge them; later ones do
(`StoredChains.merge_some`).  Chains grow by newer segments, whose rows get runs of their own, and
are merged as those of an LSM tree.  An index that was prepared before is adopted.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.checkpoint.blocks import check_num_rows
from godwit.checkpoint.entries import latest_entries
from godwit.checkpoint.records import SegmentRef, SnapshotRef
from godwit.checkpoint.stored_index import (
    IndexedBlock,
    IndexedPart,
    KeyGroupRange,
    PreparedIndex,
    SortedRun,
    consecutive,
    estimate_num_keys,
)
from godwit.model.key_groups import key_group_mask, key_groups_of
from godwit.store.changes import Changes, StateRows
from godwit.store.image import blank_image
from godwit.store.index import distinct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from godwit.checkpoint.entries import BatchCache, EntryLayout
    from godwit.checkpoint.records import BlockRef
    from godwit.checkpoint.stored_index import Address
    from godwit.store.columns import StateSchema

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_Spans: TypeAlias = tuple[int, Integers, Integers, Integers]

_PART_ROWS: Final = 1 << 21  # of an index; more would take more memory while it is sorted
_RUN_ROWS: Final = 1 << 16  # of a segment that has a run of its own at first
_MERGED_FROM: Final = 4  # times the rows of the next run, a run stays apart from it
_MIN_ROWS: Final = 1 << 17  # of chains that have doubled; fewer take less time than a look-up
_MIN_BLOCKS: Final = 256  # likewise
_LONG_SPAN: Final = 128  # rows of a span, on average, from which on slices take less time
_NONE: Final = np.empty(0, np.int64)
_HALF: Final = 32


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

    def spans(self, key_groups: Mask) -> tuple[Integers, Integers]:
        """Return the spans of consecutive rows of some key groups: their firsts and numbers."""
        use = key_groups[self.key_groups]
        first, end = self.first[use], self.end[use]
        if not first.size:
            return _NONE, _NONE
        gaps = np.flatnonzero(first[1:] != end[:-1])
        first = first[np.append(0, gaps + 1)]
        return first, end[np.append(gaps, -1)] - first


@dataclass(slots=True)
class _Part:
    """Index of some key groups: runs over the first `covered` blocks of their chains."""

    runs: list[SortedRun] = field(default_factory=list)
    covered: int = 0
    num_keys: int = 0  # nearly

    def merge(self, index: int, directory: Path | None) -> None:
        """Merge a run and the next."""
        newer = self.runs.pop(index + 1)
        self.runs[index] = self.runs[index].followed_by(newer, directory)


class StoredChains:
    """Chains of some key groups, for reading many of them at once.

    Arrays have shape ``(num_key_groups,)``. `key_groups`: mask of these. `versions`: to which the
    chains lead; -1 for key groups without entries, and for others. `size_bytes`: of the blocks, by
    the key groups' rows. `directory`: of files with the index; ``None``: it is in memory.
    """

    def __init__(
        self,
        segments: Iterable[SegmentRef],
        snapshots: Mapping[int, SnapshotRef],
        key_groups: Mask,
        directory: Path | None,
    ) -> None:
        self.key_groups, self._directory = key_groups, directory
        self.versions = np.full(len(key_groups), -1, np.int64)
        self.size_bytes = np.zeros(len(key_groups))
        self._num_rows = np.zeros(len(key_groups), np.int64)
        self._blocks: list[_Block] = []  # older ones first
        for g, snapshot in sorted(snapshots.items()):
            if key_groups[g]:
                self.versions[g] = snapshot.version
                self._add_block(
                    snapshot, np.array([g]), np.array([snapshot.rows]), np.ones(1, np.bool_)
                )
        self.extend(segments, np.full(len(key_groups), np.iinfo(np.int64).max))
        self._part_of = np.cumsum(self._num_rows) // _PART_ROWS  # number of each key group's part
        self._parts: dict[int, _Part] = {}
        self._counts_before = int(self._num_rows.sum()), len(self._blocks)
        self._num_verified = 0  # of the first blocks, by `index_some`

    def extend(self, segments: Iterable[SegmentRef], reach: Integers) -> None:
        """Add the segments of later epochs than those of the chains, in any order.

        `reach`: epoch of each key group up to which the segments are complete.
        """
        for segment in sorted(segments, key=lambda segment: (segment.epoch, segment.lane)):
            own = np.array(segment.key_groups, np.int64)
            use = self.key_groups[own] & (self.versions[own] < segment.epoch)
            use &= reach[own] >= segment.epoch
            if use.any():
                self.versions[own[use]] = segment.epoch
                self._add_block(segment, own, np.array(segment.row_ends, np.int64), use)

    def _add_block(
        self, ref: SegmentRef | SnapshotRef, own: Integers, ends: Integers, use: Mask
    ) -> None:
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
    def blocks(self) -> list[BlockRef]:
        """Blocks with the entries."""
        return [block.ref.block for block in self._blocks]

    @property
    def num_keys(self) -> int:
        """Number of keys in key groups that were read from, nearly."""
        return sum(part.num_keys for part in self._parts.values())

    def has_grown(self, factor: int) -> bool:
        """Return true if there are more rows, or blocks, than `factor` times those at first."""
        rows, blocks = self._counts_before
        return int(self._num_rows.sum()) > factor * max(rows, _MIN_ROWS) or (
            self.num_blocks > factor * max(blocks, _MIN_BLOCKS)
        )

    def read(
        self,
        key_groups: Integers,
        hashes: Integers | None,
        layout: EntryLayout,
        cache: BatchCache,
    ) -> Changes:
        """Read the present entries of key groups (ascending): all, or of keys with `hashes`.

        `hashes`: distinct, ascending.
        """
        num_key_groups = len(self.versions)
        if hashes is None:
            owners, places = self._all_of(key_group_mask(key_groups, num_key_groups))
        else:
            own = key_group_mask(key_groups, num_key_groups)
            hashes = hashes[own[key_groups_of(hashes, num_key_groups)]]
            owners, places = self._find_rows(key_groups, hashes, cache)
        entries = self._read_rows(owners, places, layout, cache)
        if hashes is not None and len(entries.hashes):
            nearest = np.minimum(np.searchsorted(hashes, entries.hashes), len(hashes) - 1)
            asked = hashes[nearest] == entries.hashes
            entries = entries if asked.all() else entries.take(np.flatnonzero(asked))
        rows = newest_entries(entries, layout.schema)
        of_rows = key_groups_of(rows.hashes, num_key_groups)
        order = np.argsort(of_rows, kind="stable")
        return Changes(
            key_groups=key_groups,
            ends=np.searchsorted(of_rows[order], key_groups, side="right"),
            epochs=self.versions[key_groups],
            rows=rows.take(order),
        )

    def _all_of(self, key_groups: Mask) -> tuple[Integers, Integers]:
        """Return numbers of blocks, and positions there, of all rows of key groups."""
        owners, places = [_NONE], [_NONE]
        for number, block in enumerate(self._blocks):
            rows = consecutive(*block.spans(key_groups))
            if rows.size:
                owners.append(np.full(len(rows), number))
                places.append(rows)
        return np.concatenate(owners), np.concatenate(places)

    def _find_rows(
        self, key_groups: Integers, hashes: Integers, cache: BatchCache
    ) -> tuple[Integers, Integers]:
        """Return numbers of blocks, and positions there, of the rows of keys, older ones first."""
        owners, places = [_NONE], [_NONE]
        for number, of_part in self._by_part(key_groups, hashes):
            runs = self._index_part(number, cache).runs
            codes = distinct(runs[0].key_groups.prefixes(of_part))
            for run in runs:
                of_run, positions = run.find(codes)
                present = of_run >= 0  # an adopted run may have blocks of other key groups
                owners.append(of_run[present])
                places.append(positions[present])
        owner, place = np.concatenate(owners), np.concatenate(places)
        if len(owners) > 2:  # of several runs, each of which is in order
            order = np.argsort((owner << _HALF) | place, kind="stable")
            owner, place = owner[order], place[order]
        return owner, place

    def _by_part(self, key_groups: Integers, hashes: Integers) -> Iterator[tuple[int, Integers]]:
        """Yield the parts of the index that may have rows of hashes, each with these hashes."""
        stored = key_groups[self._num_rows[key_groups] > 0]
        part_of = np.full(len(self.versions), -1)
        part_of[stored] = self._part_of[stored]
        numbers, ranks = np.unique(part_of, return_inverse=True)
        of_hashes = ranks.astype(np.uint16)[key_groups_of(hashes, len(part_of))]
        ends = np.cumsum(np.bincount(of_hashes, minlength=len(numbers)))
        every = np.split(np.argsort(of_hashes, kind="stable"), ends[:-1])
        for number, some in zip(numbers.tolist(), every, strict=True):
            if number >= 0 and some.size:
                yield number, hashes[some]

    def _index_part(self, number: int, cache: BatchCache) -> _Part:
        """Return a part of the index, made or extended so that it covers all blocks."""
        part = self._parts.setdefault(number, _Part())
        if part.covered < len(self._blocks):
            of_part = np.flatnonzero(self._part_of == number)
            own = (self._part_of == number) & (self._num_rows > 0)
            first, last = int(of_part[0]), int(of_part[-1])
            key_groups = KeyGroupRange(
                num_key_groups=len(self.versions), first=first, count=last - first + 1
            )
            is_new = not part.runs
            if not is_new:
                key_groups = part.runs[0].key_groups  # of an adopted run: of more key groups
            for spans in self._spans_of_runs(own, part.covered, cache):
                part.runs.append(SortedRun.build(spans, key_groups, self._directory))
            part.covered = len(self._blocks)
            if is_new and part.runs:
                part.num_keys = estimate_num_keys(part.runs)
            while (
                not is_new
                and len(part.runs) > 1
                and (part.runs[-2].num_rows <= _MERGED_FROM * part.runs[-1].num_rows)
            ):
                part.merge(len(part.runs) - 2, self._directory)
        return part

    def _spans_of_runs(
        self, key_groups: Mask, from_block: int, cache: BatchCache
    ) -> Iterator[list[_Spans]]:
        """Yield the spans of key groups in blocks from a number on, those of a run at a time.

        Snapshots of several key groups are in order already, if each of them is.
        """
        spans, before = list[_Spans](), 0
        for number, first, counts, hashes in self._key_hash_spans(key_groups, from_block, cache):
            rows = -1 if isinstance(self._blocks[number].ref, SnapshotRef) else len(hashes)
            if spans and (max(rows, before) >= _RUN_ROWS or before < 0 <= rows):
                yield spans
                spans = []
            spans.append((number, first, counts, hashes))
            before = rows
        if spans:
            yield spans

    def merge_some(self, until_s: float) -> None:
        """Merge runs of the index: two, and further ones until the time is up.

        `until_s`: as `time.perf_counter` has it.
        """
        begun = False
        for part in self._parts.values():
            while len(part.runs) > 1 and not (begun and time.perf_counter() >= until_s):
                rows = np.array([run.num_rows for run in part.runs])
                part.merge(int(np.argmin(rows[1:] + rows[:-1])), self._directory)
                begun = True

    def index_some(self, cache: BatchCache, until_s: float) -> bool:
        """Verify blocks, then index parts, until the time is up; return true once all is done.

        At least one block or part is done. `until_s`: as `time.perf_counter` has it.
        """
        numbers = np.unique(self._part_of[self._num_rows > 0]).tolist()
        steps: list[Callable[[], object]] = [
            partial(_read_block, cache, block.ref) for block in self._blocks[self._num_verified :]
        ]
        num_blocks = len(steps)
        steps += [partial(self._index_part, n, cache) for n in numbers if n not in self._parts]
        for number, step in enumerate(steps):
            step()
            self._num_verified += number < num_blocks
            if time.perf_counter() >= until_s:
                return number == len(steps) - 1
        return True

    def prepare(self, cache: BatchCache, epoch: int) -> PreparedIndex:
        """Verify all blocks, index all rows, and return the index; the chains lead to `epoch`."""
        files = {block.file for block in self.blocks if block.file}
        identities = {file: cache.storage.identity(file) for file in files}
        numbers = np.unique(self._part_of[self._num_rows > 0]).tolist()
        parts = {number: self._index_part(number, cache) for number in numbers}
        for block in self._blocks:
            _read_block(cache, block.ref)
        self.merge_some(math.inf)
        return PreparedIndex(
            epoch=epoch,
            blocks=[
                IndexedBlock(
                    address=_address(block.ref),
                    key_groups=tuple(block.key_groups.tolist()),
                    identity=identities.get(block.ref.block.file),
                )
                for block in self._blocks
            ],
            parts=[
                IndexedPart(
                    key_groups=np.flatnonzero((self._part_of == number) & (self._num_rows > 0)),
                    num_keys=part.num_keys,
                    run=part.runs[0],
                )
                for number, part in parts.items()
            ],
        )

    def adopt(self, prepared: PreparedIndex) -> None:
        """Use an index for the key groups whose blocks up to its epoch are those that it is of."""
        covered = 0
        for block in self._blocks:
            if isinstance(block.ref, SegmentRef) and block.ref.epoch > prepared.epoch:
                break
            covered += 1
        numbers = {_address(block.ref): n for n, block in enumerate(self._blocks[:covered])}
        same, num_key_groups = self._num_rows > 0, len(self.versions)
        renumbered = np.full(len(prepared.blocks), -1)
        for i, indexed in enumerate(prepared.blocks):
            renumbered[i] = number = numbers.pop(indexed.address, -1)
            own = self._blocks[number].key_groups if number >= 0 else _NONE
            in_index = key_group_mask(indexed.key_groups, num_key_groups)
            same &= in_index == key_group_mask(own, num_key_groups)
        for number in numbers.values():
            same[self._blocks[number].key_groups] = False
        for indexed_part in prepared.parts:
            own = indexed_part.key_groups
            some = own[same[own]]
            if not some.size:
                continue
            number = int(self._part_of.max()) + 1
            self._part_of[some] = number
            self._parts[number] = _Part(
                runs=[indexed_part.run.renumbered(renumbered)],
                covered=covered,
                num_keys=indexed_part.num_keys * len(some) // len(own),
            )

    def _key_hash_spans(
        self, key_groups: Mask, from_block: int, cache: BatchCache
    ) -> Iterator[_Spans]:
        """Yield the spans of key groups in blocks from a number on; see `SortedRun.build`."""
        for number, block in enumerate(self._blocks[from_block:], start=from_block):
            first, counts = block.spans(key_groups)
            if not counts.any():
                continue
            stored = _read_block(cache, block.ref).column(0).to_numpy()
            if counts.sum() < _LONG_SPAN * len(first):
                own = stored[consecutive(first, counts)]
            else:
                ends = (first + counts).tolist()
                slices = [stored[f:end] for f, end in zip(first.tolist(), ends, strict=True)]
                own = slices[0] if len(slices) == 1 else np.concatenate(slices)
            yield number, first, counts, own

    def _read_rows(
        self, owners: Integers, places: Integers, layout: EntryLayout, cache: BatchCache
    ) -> StateRows:
        """Read rows of blocks, given by ascending numbers of blocks and positions there."""
        parts: list[tuple[int, pa.RecordBatch]] = []
        used, counts = np.unique(owners, return_counts=True)
        ends = np.cumsum(counts)
        firsts = (ends - counts).tolist()
        for number, first, end in zip(used.tolist(), firsts, ends.tolist(), strict=True):
            ref = self._blocks[number].ref
            batch, start = _read_block(cache, ref), int(places[first])
            if places[end - 1] - start == end - first - 1:  # as where all entries are read
                batch = batch.slice(start, end - first)
            else:
                batch = batch.take(pa.array(places[first:end]))
            parts.append((ref.flow, batch))
        # Joined first, since a call for each of a thousand blocks would take most of the time.
        alike = groupby(parts, lambda part: (part[0], part[1].schema))
        read = [
            layout.read(pa.concat_batches([batch for _, batch in some]), flow)
            for (flow, _), some in alike
        ]
        return StateRows.concat(read or [latest_entries([], layout.schema)])

    def release(self, whole: Mask) -> None:
        """Drop the parts of the index that have only key groups that are `whole`."""
        used = np.unique(self._part_of[~whole & (self._num_rows > 0)])
        self._parts = {n: part for n, part in self._parts.items() if n in used}


def newest_entries(entries: StateRows, schema: StateSchema) -> StateRows:
    """Return the newest entry of each key, unless it is a removal; `entries`: older ones first."""
    hashes = _numbers_of_equal_hashes(entries.hashes)
    order = np.argsort(hashes, kind="stable")
    ascending = hashes[order]
    last = np.flatnonzero(np.append(ascending[1:] != ascending[:-1], np.ones(1, np.bool_)))
    last = last[: len(hashes)]
    newest = np.empty(len(hashes), np.int64)
    newest[order] = order[np.repeat(last, np.diff(last, prepend=-1))]
    present = newest == np.arange(len(newest))
    older = np.flatnonzero(~present)
    if entries.removed is not None:
        present &= ~entries.removed
    other = older[~_keys_equal(entries.keys, older, newest[older], schema)]
    if not other.size:  # as nearly always
        return replace(entries.take(np.flatnonzero(present)), removed=None)
    differing = np.isin(newest, newest[other])  # keys of these hashes differ
    others = latest_entries([entries.take(np.flatnonzero(differing))], schema)
    first = replace(entries.take(np.flatnonzero(present & ~differing)), removed=None)
    return first.followed_by(others)


def _numbers_of_equal_hashes(hashes: Integers) -> Integers:
    """Return numbers that are equal for equal hashes."""
    return hashes


def _keys_equal(
    keys: pa.RecordBatch, some: Integers, others: Integers, schema: StateSchema
) -> Mask:
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


def _read_block(cache: BatchCache, ref: SegmentRef | SnapshotRef) -> pa.RecordBatch:
    """Read a block, or return it from the cache; raise if it has not the recorded rows."""
    batch = cache.read(ref.block)
    check_num_rows(cache.storage, ref, batch)
    return batch


def _address(ref: SegmentRef | SnapshotRef) -> Address:
    """Return the address of a block, which no other block of its state has."""
    block = ref.block
    by = (ref.epoch, ref.lane) if isinstance(ref, SegmentRef) else (ref.version, -1 - ref.key_group)
    return (*by, block.file, block.offset, block.length, block.checksum)
