"""Chains: snapshot and segments that lead each key group to its committed version.

The durable state of a key group is a snapshot plus the changelog segments after it.  `Chains` has
them as of one epoch, and grows by one commit record at a time: the work is proportional to the size
of the record, not to the number of key groups.

Terms, per key group:

- *version*: the last epoch with changes of the key group; -1: none.  Epochs without rows of the key
  group, or whose rows wait, do not change it.
- *base*: the last epoch whose segments the snapshot has replaced.  The segments
  alone bring forward a table at this version or later; an older one starts from the snapshot.
- *consumed*: the last epoch that processed all earlier waiting rows.  Waiting rows belong to an
  operator, not to its states.

A record with another number of key groups replaces all chains: it has a snapshot of every key group
with entries, and all waiting rows.

- *oldest*: the first epoch whose commit record, or file of changes, the chain reads.

A file stays while one chain reads it, so a key group that rarely changes would keep the changes of
all others in the epochs in which it did. `Chains.log_from` and `choose_snapshots` bound that.

Invariant: snapshot, then segments in order, give the state of `version`; and rows wait if and
only if their segment's epoch is not before *consumed*.  Chains use the names of `flow`, the flow
version of the latest record; references keep the names under which they were written.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from godwit.checkpoint.framing import (
    concatenate,
    key_group_columns,
    row_problems,
    rows_are_sound,
    without_bytes,
)
from godwit.checkpoint.records import (
    BROADCAST,
    COMMITS,
    BlockRef,
    CommitRecord,
    KeyGroupEntry,
    Manifest,
    SegmentRef,
    SnapshotRef,
    StateId,
    StateManifest,
    WaitingManifest,
    number_in,
)
from godwit.model.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.evolution import FlowVersion

    _Integers = npt.NDArray[np.int64]

_RECENT_EPOCHS = 64
"""Older changes are looked up by key group."""
_NEVER: Final = np.iinfo(np.int64).max
"""*Oldest* of a key group that reads no commit record and no file of changes."""


def rows_of(segment: SegmentRef, key_group: int) -> tuple[int, int]:
    """Return the range of a key group's rows in a segment: first row, and the row after the last.

    ``(0, 0)`` if it has none.
    """
    try:
        i = segment.key_groups.index(key_group)
    except ValueError:
        return 0, 0
    return (segment.row_ends[i - 1] if i else 0), segment.row_ends[i]


@dataclass(slots=True, kw_only=True)
class WaitingRows:
    """Wait buffer of one operator: key group → segments, and → epoch last consumed in."""

    segments: dict[int, list[SegmentRef]] = field(default_factory=dict)
    consumed: dict[int, int] = field(default_factory=dict)

    def add(self, segment: SegmentRef) -> None:
        """Add a segment of rows that wait for state, for key groups that have yet to process it."""
        for key_group in segment.key_groups:
            if segment.epoch >= self.consumed.get(key_group, -1):
                self.segments.setdefault(key_group, []).append(segment)

    def distinct(self) -> list[SegmentRef]:
        """Return the segments of all key groups, each once, in order of epochs and lanes."""
        return _distinct_segments(self.segments.values())


@dataclass(slots=True, kw_only=True)
class StateChains:
    """The chains of one state. Arrays, and `segments`, have shape ``(num_key_groups,)``.

    `recent`: epoch → its segments and their `key_group_columns`, for all after `recent_from`.
    """

    version: npt.NDArray[np.int64]
    base: npt.NDArray[np.int64]
    snapshot_version: npt.NDArray[np.int64]
    snapshot_bytes: npt.NDArray[np.int64]
    changelog_bytes: npt.NDArray[np.int64]
    num_segments: npt.NDArray[np.int64]
    oldest: npt.NDArray[np.int64]
    segments: list[list[SegmentRef]]
    snapshots: dict[int, SnapshotRef] = field(default_factory=dict)
    recent: dict[int, tuple[list[SegmentRef], _Integers, _Integers]] = field(default_factory=dict)
    recent_from: int = -1

    @classmethod
    def empty(cls, num_key_groups: int) -> StateChains:
        """Create the chains of a state that was never written."""
        return cls(
            version=np.full(num_key_groups, -1, np.int64),
            base=np.full(num_key_groups, -1, np.int64),
            snapshot_version=np.full(num_key_groups, -1, np.int64),
            snapshot_bytes=np.zeros(num_key_groups, np.int64),
            changelog_bytes=np.zeros(num_key_groups, np.int64),
            num_segments=np.zeros(num_key_groups, np.int64),
            oldest=np.full(num_key_groups, _NEVER),
            segments=[[] for _ in range(num_key_groups)],
        )

    def add_segments(self, segments: Sequence[SegmentRef]) -> None:
        """Append an epoch's segments to the chains of key groups without a newer snapshot."""
        epoch, (numbers, key_groups) = segments[0].epoch, key_group_columns(segments)
        is_new = self.snapshot_version[key_groups] < epoch
        self.version[key_groups] = np.maximum(self.version[key_groups], epoch)
        changed = key_groups[is_new]
        np.add.at(self.changelog_bytes, changed, _shares_of_bytes(segments, numbers)[is_new])
        np.add.at(self.num_segments, changed, 1)
        self.oldest[changed] = np.minimum(self.oldest[changed], epoch)
        for key_group, number in zip(changed.tolist(), numbers[is_new].tolist(), strict=True):
            self.segments[key_group].append(segments[number])
        self.recent[epoch] = list(segments), numbers, key_groups
        if next(iter(self.recent)) < epoch - 2 * _RECENT_EPOCHS:
            self.recent_from = epoch - _RECENT_EPOCHS
            self.recent = {
                recent_epoch: epoch_segments
                for recent_epoch, epoch_segments in self.recent.items()
                if recent_epoch > self.recent_from
            }

    def segments_since(
        self, floor: npt.NDArray[np.int64], behind: npt.NDArray[np.bool_]
    ) -> tuple[list[SegmentRef], npt.NDArray[np.int64]]:
        """Find the segments that bring copies of key groups up to date.

        `floor`, `behind`: shape ``(num_key_groups,)``: versions of the copies, and a mask of the
        key groups to bring up to date. Returns the segments, and the key groups for which they are
        not enough: copies that are far behind, or older than a snapshot.
        """
        one_by_one = behind & (
            (floor < self.recent_from) | ((self.snapshot_version >= 0) & (floor < self.base))
        )
        behind = behind & ~one_by_one
        segments: list[SegmentRef] = []
        lowest_floor = floor[behind].min(initial=np.iinfo(np.int64).max)
        for epoch, (epoch_segments, numbers, key_groups) in reversed(self.recent.items()):
            if epoch <= lowest_floor:
                break
            is_needed = behind[key_groups] & (floor[key_groups] < epoch)
            num_needed = np.bincount(numbers[is_needed], minlength=len(epoch_segments))
            segments += [
                epoch_segments[index] for index in np.flatnonzero(num_needed)[::-1].tolist()
            ]
        return segments, np.flatnonzero(one_by_one)

    def add_snapshot(self, snapshot: SnapshotRef) -> None:
        """Add a key group's snapshot unless there is a newer one; drop the segments before it.

        One of the same version replaces that in an older file.
        """
        key_group = snapshot.key_group
        if snapshot.version < self.snapshot_version[key_group]:
            return  # a later one is here already
        segments = self.segments[key_group]
        later = [s for s in segments if s.epoch > snapshot.version]
        covered = segments[: len(segments) - len(later)]
        if snapshot.version > self.version[key_group]:
            # This state is in the snapshot only, not in any segment.
            self.base[key_group] = self.version[key_group] = snapshot.version
        elif covered:
            self.base[key_group] = covered[-1].epoch
        self.segments[key_group] = later
        self.num_segments[key_group] = len(later)
        self.changelog_bytes[key_group] = sum(_share_of_bytes(s, key_group) for s in later)
        self.oldest[key_group] = min(
            [_epoch_of_record(snapshot.block), *(s.epoch for s in later[:1])]
        )
        self.snapshots[key_group] = snapshot
        self.snapshot_version[key_group] = snapshot.version
        self.snapshot_bytes[key_group] = snapshot.block.length

    def distinct(self) -> list[SegmentRef]:
        """Return the segments of all key groups, each once, in order of epochs and lanes."""
        return _distinct_segments(self.segments)

    def manifest(self, state: StateId) -> StateManifest:
        """Return the chains as the entry of a manifest for the state `state`."""
        return StateManifest(
            state=state,
            segments=tuple(map(without_bytes, self.distinct())),
            snapshots=tuple(
                without_bytes(self.snapshots[key_group]) for key_group in sorted(self.snapshots)
            ),
            # Versions and bases do not follow from segments and snapshots alone.
            entries=tuple(
                KeyGroupEntry(
                    key_group=key_group,
                    version=int(self.version[key_group]),
                    base=int(self.base[key_group]),
                )
                for key_group in np.flatnonzero(self.version >= 0).tolist()
            ),
        )

    def restore(self, manifest: StateManifest) -> None:
        """Fill empty chains from a manifest's entry for their state."""
        for snapshot in manifest.snapshots:
            self.add_snapshot(snapshot)
        for _, of_epoch in groupby(manifest.segments, lambda segment: segment.epoch):
            self.add_segments(list(of_epoch))
        for entry in manifest.entries:
            self.version[entry.key_group] = entry.version
            self.base[entry.key_group] = entry.base

    def forget_inline_bytes(self, before: int) -> None:
        """Drop the inline bytes of blocks that epochs earlier than `before` wrote."""
        lighter = _forget_inline_bytes(self.segments, before)
        for epoch, (of_epoch, _, _) in self.recent.items():
            if epoch < before:
                of_epoch[:] = [lighter.get(id(s)) or without_bytes(s) for s in of_epoch]
        for key_group, snapshot in self.snapshots.items():
            if snapshot.version < before:
                self.snapshots[key_group] = without_bytes(snapshot)


def _epoch_of_record(block: BlockRef) -> int:
    """Return the epoch whose commit record holds a block; `_NEVER` if it is in another file."""
    number = number_in(block.file) if block.file.startswith(COMMITS) else None
    return _NEVER if number is None else number


def _sort_key(segment: SegmentRef) -> tuple[int, str, str, int, str]:
    """Return the sort key of a segment: epoch, state, lane and kind."""
    return segment.epoch, segment.operator, segment.state, segment.lane, segment.kind


def _distinct_segments(lists: Iterable[list[SegmentRef]]) -> list[SegmentRef]:
    """Return the segments of several lists, each once, in order of epochs and lanes."""
    distinct = {id(segment): segment for segments in lists for segment in segments}
    return sorted(distinct.values(), key=_sort_key)


def _forget_inline_bytes(lists: Iterable[list[SegmentRef]], before: int) -> dict[int, SegmentRef]:
    """Replace references of epochs earlier than `before` by references without inline bytes.

    Returns ``id()`` of a replaced reference → the reference in its place.
    """
    lighter: dict[int, SegmentRef] = {}
    for segments in lists:
        for i, segment in enumerate(segments):
            if segment.epoch < before and segment.block.data:
                if id(segment) not in lighter:
                    lighter[id(segment)] = without_bytes(segment)
                segments[i] = lighter[id(segment)]
    return lighter


def _group_by_state(segments: Iterable[SegmentRef]) -> list[tuple[StateId, list[SegmentRef]]]:
    """Group changelog segments by the state that they change.

    Segments of waiting rows are left out.
    """
    by_names: dict[tuple[str, str], list[SegmentRef]] = {}
    for segment in segments:
        if segment.kind == "changes":
            by_names.setdefault((segment.operator, segment.state), []).append(segment)
    return [(StateId(*names), own) for names, own in by_names.items()]


def _shares_of_bytes(segments: Sequence[SegmentRef], numbers: _Integers) -> _Integers:
    """Divide the bytes of each segment among its key groups, in proportion to their rows.

    `numbers`: index in `segments`, for each key group of each segment; see `key_group_columns`.
    Returns the bytes of each, in the same order.
    """
    ends = concatenate((segment.row_ends for segment in segments), len(numbers))
    rows = np.diff(ends, prepend=0)
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
    rows[firsts] = ends[firsts]
    all_rows = np.array([max((1, *segment.row_ends[-1:])) for segment in segments], np.int64)
    lengths = np.array([segment.block.length for segment in segments], np.int64)
    return rows * lengths[numbers] // all_rows[numbers]


def _share_of_bytes(segment: SegmentRef, key_group: int) -> int:
    """Return the bytes of a segment that belong to a key group, in proportion to its rows."""
    first, end = rows_of(segment, key_group)
    return (end - first) * segment.block.length // max(1, segment.row_ends[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupChain:
    """Snapshot and segments that bring one key group to `version`."""

    # state, key_group: whose state
    state: StateId
    key_group: int
    # start of the chain; ``None``: an empty table (or the present copy, see `Chains.chain_since`)
    snapshot: SnapshotRef | None
    # Changelog segments to apply after it, in order of epochs. Other key groups have rows in them
    # too, see `rows_of`.
    segments: tuple[SegmentRef, ...]
    version: int  # the last epoch with changes; -1: none


class Chains:
    """All chains as of one epoch."""

    def __init__(self, num_key_groups: int) -> None:
        self.num_key_groups = num_key_groups
        self.epoch = -1  # the last epoch whose record is in; -1 before the first
        self.flow = -1  # the flow version whose names are used; -1 before the first
        self._states: dict[StateId, StateChains] = {}
        self._waiting_rows: dict[str, WaitingRows] = {}
        self._empty_chains = StateChains.empty(num_key_groups)
        # Epochs, each with the bytes of its changes and of its snapshots in the commit record.
        self._log: deque[tuple[int, int]] = deque()
        self._log_bytes = 0  # their sum

    @property
    def states(self) -> tuple[StateId, ...]:
        """States that have chains, in order."""
        return tuple(sorted(self._states))

    def upgrade(self, number: int, version: FlowVersion) -> None:
        """Apply the renamings, drops and deletions of flow version `number` to the chains."""
        if number == self.flow:
            return

        def name(operator: str) -> str:
            """Present name of an operator."""
            return version.renamed.get(operator, operator)

        dropped = set(version.dropped)
        self._states = {
            StateId(name(state.operator), state.state): chains
            for state, chains in self._states.items()
            if state.operator not in dropped
            and state.state not in version.deleted_states.get(state.operator, ())
        }
        self._waiting_rows = {
            name(operator): waiting
            for operator, waiting in self._waiting_rows.items()
            if operator not in dropped
        }
        self.flow = number

    def check(self, record: CommitRecord) -> None:
        """Raise `CheckpointError` if a commit record cannot follow the epochs before it."""
        for problem in self.problems(record):
            raise CheckpointError(
                f"The commit record of epoch {record.epoch} contradicts itself or the epochs "
                f"before it: {problem}.",
                remedy="Nothing was committed. This is an error in Godwit: please report it with "
                "this text.",
                epoch=record.epoch,
            )

    def problems(self, record: CommitRecord) -> Iterator[str]:
        """Yield the reasons why a commit record cannot follow the epochs before it."""
        if self._changes_num_key_groups(record):
            if record.consumed or any(segment.kind == "changes" for segment in record.segments):
                yield "it changes state that it places in other key groups"
            empty = Chains(record.num_key_groups)
            empty.epoch, empty.flow = self.epoch, self.flow
            yield from empty.problems(record)
            return
        if record.epoch != self.epoch + 1:
            yield f"it is of epoch {record.epoch} but the next one is {self.epoch + 1}"
        if record.flow != self.flow:
            yield f"it is of flow version {record.flow} but the current one is {self.flow}"
        sound_segments: Sequence[SegmentRef] = record.segments
        if not rows_are_sound(sound_segments, self.num_key_groups) or any(
            segment.epoch != record.epoch for segment in sound_segments
        ):
            problems_of_segment = {
                id(segment_): list(self._segment_problems(segment_, record))
                for segment_ in sound_segments
            }
            for problems in problems_of_segment.values():
                yield from problems
            sound_segments = [
                segment for segment in sound_segments if not problems_of_segment[id(segment)]
            ]
        changed: dict[StateId, npt.NDArray[np.bool_]] = {}
        for state, segments in _group_by_state(sound_segments):
            num_changes = np.bincount(key_group_columns(segments)[1], None, self.num_key_groups)
            for key_group in np.flatnonzero(num_changes > 1).tolist():
                yield f"two segments change key group {key_group} of '{state}'"
            changed[state] = num_changes > 0
        for state, is_changed in sorted(changed.items()):
            if state.state.startswith(BROADCAST):
                continue
            for key_group, waiting in sorted(self._waiting_by_key_group(state.operator).items()):
                if is_changed[key_group] and key_group not in record.consumed.get(
                    state.operator, ()
                ):
                    yield (
                        f"key group {key_group} of '{state}' is changed while its rows of epoch "
                        f"{waiting[0].epoch} wait"
                    )
        for operator, key_groups in record.consumed.items():
            for key_group in key_groups:
                if not 0 <= key_group < self.num_key_groups:
                    yield f"key group {key_group} of {operator!r} does not exist"
        for snapshot in record.snapshots:
            if not 0 <= snapshot.key_group < self.num_key_groups:
                yield f"key group {snapshot.key_group} of '{snapshot.id}' does not exist"
            if not 0 <= snapshot.version <= record.epoch:
                yield (
                    f"the snapshot of key group {snapshot.key_group} of '{snapshot.id}' has "
                    f"version {snapshot.version}"
                )
        flow_versions = [ref.flow for ref in record.segments]
        flow_versions += [ref.flow for ref in record.snapshots] + [
            ref.flow for ref in record.outputs
        ]
        for flow in sorted({*flow_versions} - {record.flow}):
            yield f"its files were written under flow version {flow}, not {record.flow}"

    def _segment_problems(self, segment: SegmentRef, record: CommitRecord) -> Iterator[str]:
        """Yield the reasons why one segment of a commit record is not valid."""
        where = f"the {segment.kind} segment of '{segment.id}', lane {segment.lane},"
        if segment.epoch != record.epoch:
            yield f"{where} is of epoch {segment.epoch}"
        for problem in row_problems(segment, self.num_key_groups):
            yield f"{where} is wrong: {problem}"

    def _changes_num_key_groups(self, record: CommitRecord) -> bool:
        """Return true if a record places all state in another number of key groups."""
        return record.num_key_groups not in (0, self.num_key_groups)

    def apply(self, record: CommitRecord) -> None:
        """Add the next epoch's commit record, which has passed `check`, to the chains."""
        if self._changes_num_key_groups(record):
            self.num_key_groups = record.num_key_groups
            self._states, self._waiting_rows = {}, {}
            self._empty_chains = StateChains.empty(self.num_key_groups)
            self._log.clear()
            self._log_bytes = 0
        for operator, key_groups in record.consumed.items():
            waiting = self._waiting_rows.setdefault(operator, WaitingRows())
            for key_group in key_groups:
                waiting.consumed[key_group] = record.epoch
                waiting.segments.pop(key_group, None)
        for segment in record.segments:
            if segment.kind == "waiting":
                self._waiting_rows.setdefault(segment.operator, WaitingRows()).add(segment)
        for state, segments in _group_by_state(record.segments):
            self._writable_chains(state).add_segments(segments)
        for snapshot in record.snapshots:
            self._writable_chains(snapshot.id).add_snapshot(snapshot)
        self._extend_log(record.segments, record.snapshots)
        self.epoch = record.epoch

    def _extend_log(self, segments: Iterable[SegmentRef], snapshots: Iterable[SnapshotRef]) -> None:
        """Add the epochs, and the bytes, of segments and snapshots to the log."""
        sizes: Counter[int] = Counter()
        for segment in segments:
            sizes[segment.epoch] += segment.block.length
        for snapshot in snapshots:
            sizes[_epoch_of_record(snapshot.block)] += snapshot.block.length
        sizes.pop(_NEVER, None)
        self._log.extend(sorted(sizes.items()))
        self._log_bytes += sizes.total()

    def log_from(self, growth: float) -> int:
        """Return the epoch from which on chains may read commit records and files of changes.

        These have about `growth` times as many bytes as all snapshots, or `MIN_LOG_BYTES` more. It
        never returns to an earlier epoch.
        """
        snapshot_bytes = sum(
            int(state_chains.snapshot_bytes.sum()) for state_chains in self._states.values()
        )
        while len(self._log) > 1 and self._log_bytes > growth * snapshot_bytes + MIN_LOG_BYTES:
            self._log_bytes -= self._log.popleft()[1]
        return self._log[0][0] if self._log else 0

    def chains_of(self, state: StateId) -> StateChains:
        """Return the chains of one state, read-only."""
        return self._states.get(state) or self._empty_chains

    def chain(self, state: StateId, key_group: int) -> KeyGroupChain:
        """Return a key group's whole chain: its snapshot and all segments after it."""
        return self.chain_since(state, key_group, -1)

    def chain_since(self, state: StateId, key_group: int, version: int) -> KeyGroupChain:
        """Return a key group's chain from `version` to its present version; empty if up to date.

        If the chain has a snapshot, it replaces the entries of the key group.
        """
        chains = self.chains_of(state)
        segments = chains.segments[key_group]
        snapshot = chains.snapshots.get(key_group)
        if snapshot is not None and version >= int(chains.base[key_group]):
            snapshot = None
        if snapshot is None:
            first = len(segments)
            while first and segments[first - 1].epoch > version:
                first -= 1
            segments = segments[first:]
        return KeyGroupChain(
            state=state,
            key_group=key_group,
            snapshot=snapshot,
            segments=tuple(segments),
            version=int(chains.version[key_group]),
        )

    def segments_since(
        self, state: StateId, floor: npt.NDArray[np.int64], needed: npt.NDArray[np.bool_]
    ) -> tuple[list[SegmentRef], dict[int, KeyGroupChain]]:
        """Return the segments and chains that bring copies of many key groups up to date.

        `floor`: shape ``(num_key_groups,)``: version of each key group's copy. `needed`: shape
        ``(num_key_groups,)``: mask of key groups to bring up to date. Returns all segments that
        these need, each once; and key group → its chain (see `chain_since`), for those that begin
        with a snapshot or are far behind.
        """
        chains = self.chains_of(state)
        segments, chained_key_groups = chains.segments_since(
            floor, (chains.version > floor) & needed
        )
        chains_of_key_groups = {
            key_group: self.chain_since(state, key_group, int(floor[key_group]))
            for key_group in chained_key_groups.tolist()
        }
        distinct = {id(segment): segment for segment in segments}
        for chain in chains_of_key_groups.values():
            distinct.update((id(segment), segment) for segment in chain.segments)
        return list(distinct.values()), chains_of_key_groups

    def versions(self, state: StateId) -> npt.NDArray[np.int64]:
        """Return the version of each key group, shape ``(num_key_groups,)``, as a copy."""
        return self.chains_of(state).version.copy()

    def is_empty(self, state: StateId) -> npt.NDArray[np.bool_]:
        """Return a mask, shape ``(num_key_groups,)``: true for those that surely have no entry."""
        chains = self.chains_of(state)
        empty: npt.NDArray[np.bool_] = chains.num_segments == 0
        for key_group, snapshot in chains.snapshots.items():
            empty[key_group] &= snapshot.rows == 0
        return empty

    def waiting_rows_of(self, operator: str, key_group: int) -> tuple[SegmentRef, ...]:
        """Return segments of rows that wait for the state of a key group, in order of epochs."""
        return tuple(self._waiting_by_key_group(operator).get(key_group, ()))

    @property
    def waiting_operators(self) -> tuple[str, ...]:
        """Operators for whose state rows wait, in order."""
        return tuple(sorted(name for name, rows in self._waiting_rows.items() if rows.segments))

    def waiting_key_groups(self, operator: str) -> list[int]:
        """Return the key groups of an operator for whose state rows wait, ascending."""
        return sorted(self._waiting_by_key_group(operator))

    def segments(self, state: StateId | None = None) -> list[SegmentRef]:
        """Return the segments that chains need, of one state or of all, in order of epochs.

        For all states, segments of wait buffers are included.
        """
        if state is not None:
            return self.chains_of(state).distinct()
        segments = [s for chains in self._states.values() for s in chains.distinct()]
        segments += [s for waiting in self._waiting_rows.values() for s in waiting.distinct()]
        return sorted(segments, key=_sort_key)

    def waiting_segments(self, operator: str) -> list[SegmentRef]:
        """Return the segments of rows that wait for an operator's state, in order of epochs."""
        return _distinct_segments(self._waiting_by_key_group(operator).values())

    def snapshots(self, state: StateId | None = None) -> list[SnapshotRef]:
        """Return the latest snapshot of each key group, of one state or of all."""
        return [
            chains.snapshots[key_group]
            for name, chains in sorted(self._states.items())
            if state in (None, name)
            for key_group in sorted(chains.snapshots)
        ]

    def flows_of(self, state: StateId) -> frozenset[int]:
        """Return the numbers of the flow versions that wrote a state's segments and snapshots."""
        changelog = {segment.flow for segment in self.segments(state)}
        return frozenset(changelog | {snapshot.flow for snapshot in self.snapshots(state)})

    def written_under(self) -> frozenset[int]:
        """Return the numbers of the flow versions that wrote segments or snapshots.

        The current version's number is always among them.
        """
        segments, snapshots = self.segments(), self.snapshots()
        return frozenset({self.flow, *(s.flow for s in segments), *(s.flow for s in snapshots)})

    def blocks(self) -> Iterator[BlockRef]:
        """Yield the blocks of all segments and snapshots that a chain needs."""
        for segment in self.segments():
            yield segment.block
        for snapshot in self.snapshots():
            yield snapshot.block

    def forget_inline_bytes(self, *, before: int) -> None:
        """Drop the inline bytes of blocks that epochs earlier than `before` wrote.

        The checkpoint has them in files; dropping them bounds the driver's memory.
        """
        for chains in self._states.values():
            chains.forget_inline_bytes(before)
        for waiting in self._waiting_rows.values():
            _forget_inline_bytes(waiting.segments.values(), before)

    def manifest(self) -> Manifest:
        """Return the chains of all states, and all wait buffers, as a manifest."""
        return Manifest(
            epoch=self.epoch,
            flow=self.flow,
            num_key_groups=self.num_key_groups,
            states=tuple(chains.manifest(state) for state, chains in sorted(self._states.items())),
            waiting=tuple(
                WaitingManifest(
                    operator=operator,
                    segments=tuple(map(without_bytes, waiting.distinct())),
                    consumed=dict(sorted(waiting.consumed.items())),
                )
                for operator, waiting in sorted(self._waiting_rows.items())
            ),
        )

    @classmethod
    def restore(cls, manifest: Manifest) -> Chains:
        """Build the chains of all states from a manifest."""
        chains = cls(manifest.num_key_groups)
        chains.epoch, chains.flow = manifest.epoch, manifest.flow
        for state_manifest in manifest.states:
            chains._writable_chains(state_manifest.state).restore(state_manifest)
        for operator_manifest in manifest.waiting:
            waiting = chains._waiting_rows[operator_manifest.operator] = WaitingRows()
            waiting.consumed.update(operator_manifest.consumed)
            for segment in operator_manifest.segments:
                waiting.add(segment)
        chains._extend_log(chains.segments(), chains.snapshots())
        return chains

    def _writable_chains(self, state: StateId) -> StateChains:
        """Return the chains of one state for writing, created if need be."""
        chains = self._states.get(state)
        if chains is None:
            chains = self._states[state] = StateChains.empty(self.num_key_groups)
        return chains

    def _waiting_by_key_group(self, operator: str) -> Mapping[int, list[SegmentRef]]:
        """Return key group → segments with waiting rows of an operator."""
        waiting = self._waiting_rows.get(operator)
        return {} if waiting is None else waiting.segments


DEFAULT_SEGMENT_OVERHEAD_BYTES: Final = 4096
DEFAULT_MIN_CHANGELOG_BYTES: Final = 64 * 1024
MIN_LOG_BYTES: Final = 2**20
"""Bytes of commit records and files of changes that may stay, however small the state is."""


def choose_snapshots(
    chains: Chains,
    state: StateId,
    key_groups: Sequence[int] | npt.NDArray[np.integer],
    *,
    budget_bytes: int,
    growth: float = 1.0,
    log_from: int = 0,
    segment_overhead_bytes: int = DEFAULT_SEGMENT_OVERHEAD_BYTES,
    min_changelog_bytes: int = DEFAULT_MIN_CHANGELOG_BYTES,
) -> list[int]:
    """Choose key groups of one state to write a snapshot of in the next epoch.

    A snapshot is due once reading a key group's changelog costs `growth` times as much as reading
    its last snapshot. Rewriting then costs at most ``1 + 1 / growth`` times the bytes written to
    the changelog since the last snapshot, so in the long run the bytes of snapshots are a constant
    factor of the bytes of changes, for any size of state and pattern of changes (the
    argument of logarithmic methods and LSM trees; O'Neil et al., Acta Informatica 1996).

    It is also due if the chain reads a commit record, or a file of changes, of an epoch before
    `log_from` (see `Chains.log_from`): the file has changes of other key groups too, which have a
    snapshot since. While the log grows by `growth` times the bytes of all snapshots, each key group
    is rewritten once at most for this.

    `budget_bytes`: maximum bytes to write. The most urgent key group is chosen even if it alone is
    larger, so that it is not postponed forever; a budget of 0 chooses nothing. `growth`: ratio of
    changelog to snapshot at which a snapshot is due. `segment_overhead_bytes`: fixed cost of
    opening a segment, in bytes that could be read in the same time. Returns key groups by
    descending ratio; ties in order of key groups. `min_changelog_bytes`: less changelog is left as
    it is, unless it is before `log_from`.
    """
    is_candidate = np.zeros(chains.num_key_groups, np.bool_)
    is_candidate[key_groups] = True
    candidates = np.flatnonzero(is_candidate)
    if budget_bytes <= 0 or not len(candidates):
        return []
    state_chains = chains.chains_of(state)
    changelog_bytes, snapshot_bytes = (
        state_chains.changelog_bytes[candidates],
        state_chains.snapshot_bytes[candidates],
    )
    read_bytes = changelog_bytes + segment_overhead_bytes * state_chains.num_segments[candidates]
    ratio = read_bytes / np.maximum(snapshot_bytes, 1)
    is_due = (read_bytes >= min_changelog_bytes) & (ratio >= growth)
    is_due |= state_chains.oldest[candidates] < log_from
    order = np.flatnonzero(is_due)[np.argsort(-ratio[is_due], kind="stable")]
    # A snapshot has at most the entries of the old one and of the changelog.
    written_bytes = np.cumsum((snapshot_bytes + changelog_bytes)[order])
    chosen = order[: max(1, int(np.searchsorted(written_bytes, budget_bytes, side="right")))]
    return [int(key_group) for key_group in candidates[chosen]]
