"""The chains of one state, and the rows that wait for one operator, as they grow.

`godwit.checkpoint.chains` says what the words mean and keeps these together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.checkpoint.framing import without_bytes
from godwit.checkpoint.manifest import KeyGroupEntry, StateManifest, WaitingManifest

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from godwit.checkpoint.records import SegmentRef, SnapshotRef, StateId

_RECENT_EPOCHS = 64
"""What was changed so long ago is looked up key group by key group."""

__all__ = ["StateChains", "WaitingRows", "forget_inline_bytes", "order_of", "rows_of"]


def rows_of(segment: SegmentRef, key_group: int) -> tuple[int, int]:
    """First row of a key group in a segment, and the row after its last."""
    try:
        i = segment.key_groups.index(key_group)
    except ValueError:
        return 0, 0
    return (segment.row_ends[i - 1] if i else 0), segment.row_ends[i]


@dataclass(slots=True, kw_only=True)
class WaitingRows:
    """Rows of one operator that wait: key group → segments, and → epoch last consumed in."""

    segments: dict[int, list[SegmentRef]] = field(default_factory=dict)
    consumed: dict[int, int] = field(default_factory=dict)

    def sorted(self) -> list[tuple[int, list[SegmentRef]]]:
        """Key groups that wait, ascending, and their segments."""
        return sorted(self.segments.items())

    def add(self, segment: SegmentRef) -> None:
        """Append a segment to the rows of its key groups, where they were not processed since."""
        for key_group in segment.key_groups:
            if segment.epoch >= self.consumed.get(key_group, -1):
                self.segments.setdefault(key_group, []).append(segment)

    def consume(self, key_groups: Iterable[int], epoch: int) -> None:
        """Forget rows that waited before `epoch`."""
        for key_group in key_groups:
            self.consumed[key_group] = epoch
            self.segments.pop(key_group, None)

    def distinct(self) -> list[SegmentRef]:
        """Every segment once, in order of epochs and lanes."""
        return _distinct(self.segments.values())

    def manifest(self, operator: str) -> WaitingManifest:
        """Write everything down."""
        return WaitingManifest(
            operator=operator,
            segments=tuple(map(without_bytes, self.distinct())),
            consumed=dict(sorted(self.consumed.items())),
        )


@dataclass(slots=True, kw_only=True)
class StateChains:
    """The chains of one state. Arrays, and `segments`, have shape ``(num_key_groups,)``.

    `recent` holds every segment after the epoch `recent_from`, in order, with its key groups.
    """

    version: npt.NDArray[np.int64]
    base: npt.NDArray[np.int64]
    snapshot_version: npt.NDArray[np.int64]
    snapshot_bytes: npt.NDArray[np.int64]
    changelog_bytes: npt.NDArray[np.int64]
    num_segments: npt.NDArray[np.int64]
    segments: list[list[SegmentRef]]
    snapshots: dict[int, SnapshotRef] = field(default_factory=dict)
    recent: list[tuple[SegmentRef, npt.NDArray[np.int64]]] = field(default_factory=list)
    recent_from: int = -1

    @classmethod
    def empty(cls, num_key_groups: int) -> StateChains:
        """Of a state that nothing was written of."""
        return cls(
            version=np.full(num_key_groups, -1, np.int64),
            base=np.full(num_key_groups, -1, np.int64),
            snapshot_version=np.full(num_key_groups, -1, np.int64),
            snapshot_bytes=np.zeros(num_key_groups, np.int64),
            changelog_bytes=np.zeros(num_key_groups, np.int64),
            num_segments=np.zeros(num_key_groups, np.int64),
            segments=[[] for _ in range(num_key_groups)],
        )

    def add_segment(self, segment: SegmentRef) -> None:
        """Append a segment to the chains of its key groups that do not have its rows yet."""
        groups, shares = np.array(segment.key_groups, np.int64), _shares(segment)
        taken = self.snapshot_version[groups] < segment.epoch
        self.version[groups] = np.maximum(self.version[groups], segment.epoch)
        self.changelog_bytes[groups[taken]] += shares[taken]
        self.num_segments[groups[taken]] += 1
        for chain in map(self.segments.__getitem__, groups[taken].tolist()):  # by the ten thousand
            chain.append(segment)
        self.recent.append((segment, groups))
        if self.recent[0][0].epoch < segment.epoch - 2 * _RECENT_EPOCHS:
            self.recent_from = segment.epoch - _RECENT_EPOCHS
            self.recent = [pair for pair in self.recent if pair[0].epoch > self.recent_from]

    def tail(
        self, floor: npt.NDArray[np.int64], behind: npt.NDArray[np.bool_]
    ) -> tuple[list[SegmentRef], npt.NDArray[np.int64]]:
        """Find what was changed of key groups since they were at `floor`, all at once."""
        apart = behind & (
            (floor < self.recent_from) | ((self.snapshot_version >= 0) & (floor < self.base))
        )
        behind = behind & ~apart
        found = []
        if behind.any():
            lowest = int(floor[behind].min())
            for segment, groups in reversed(self.recent):
                if segment.epoch <= lowest:
                    break
                if (behind[groups] & (floor[groups] < segment.epoch)).any():
                    found.append(segment)
        return found, np.flatnonzero(apart)

    def add_snapshot(self, snapshot: SnapshotRef) -> None:
        """Let a snapshot take the place of the segments that it covers."""
        g = snapshot.key_group
        if snapshot.version <= self.snapshot_version[g]:
            return  # a later one is here already
        known = self.version[g] >= 0
        segments = self.segments[g]
        kept = [s for s in segments if s.epoch > snapshot.version]
        covered = segments[: len(segments) - len(kept)]
        if covered:
            self.base[g] = covered[-1].epoch
        elif not known:
            # State that no epoch here has written: nobody can have it without the snapshot.
            self.base[g] = self.version[g] = snapshot.version
        self.segments[g] = kept
        self.num_segments[g] = len(kept)
        self.changelog_bytes[g] = sum(_share(s, g) for s in kept)
        self.snapshots[g] = snapshot
        self.snapshot_version[g] = snapshot.version
        self.snapshot_bytes[g] = snapshot.block.length

    def distinct(self) -> list[SegmentRef]:
        """Every segment once, in order of epochs and lanes."""
        return _distinct(self.segments)

    def manifest(self, state: StateId) -> StateManifest:
        """Write everything down."""
        return StateManifest(
            state=state,
            segments=tuple(map(without_bytes, self.distinct())),
            snapshots=tuple(without_bytes(self.snapshots[g]) for g in sorted(self.snapshots)),
            # Whatever segments and snapshots alone do not say.
            entries=tuple(
                KeyGroupEntry(key_group=g, version=int(self.version[g]), base=int(self.base[g]))
                for g in np.flatnonzero(self.version >= 0).tolist()
            ),
        )

    def restore(self, manifest: StateManifest) -> None:
        """Take up what `manifest` wrote down; nothing may have been added yet."""
        for snapshot in manifest.snapshots:
            self.add_snapshot(snapshot)
        for segment in manifest.segments:
            self.add_segment(segment)
        for entry in manifest.entries:
            self.version[entry.key_group] = entry.version
            self.base[entry.key_group] = entry.base

    def forget_inline_bytes(self, before: int) -> None:
        """Drop bytes that travel with references of epochs earlier than `before`."""
        lighter = forget_inline_bytes(self.segments, before)
        self.recent = [
            (lighter.get(id(segment)) or _lighter(segment, before), groups)
            for segment, groups in self.recent
        ]
        for key_group, snapshot in self.snapshots.items():
            if snapshot.version < before:
                self.snapshots[key_group] = without_bytes(snapshot)


def order_of(segment: SegmentRef) -> tuple[int, str, str, int, str]:
    """Sort by epoch, then by whose it is and who wrote it."""
    return segment.epoch, segment.operator, segment.state, segment.lane, segment.kind


def _distinct(lists: Iterable[list[SegmentRef]]) -> list[SegmentRef]:
    """Every segment once, in order of epochs and lanes."""
    distinct = {id(segment): segment for segments in lists for segment in segments}
    return sorted(distinct.values(), key=order_of)


def _lighter(segment: SegmentRef, before: int) -> SegmentRef:
    return without_bytes(segment) if segment.epoch < before else segment


def forget_inline_bytes(lists: Iterable[list[SegmentRef]], before: int) -> dict[int, SegmentRef]:
    """Replace references of epochs earlier than `before` by ones without their bytes."""
    lighter: dict[int, SegmentRef] = {}
    for segments in lists:
        for i, segment in enumerate(segments):
            if segment.epoch < before and segment.block.data:
                if id(segment) not in lighter:
                    lighter[id(segment)] = without_bytes(segment)
                segments[i] = lighter[id(segment)]
    return lighter


def _shares(segment: SegmentRef) -> npt.NDArray[np.int64]:
    """Bytes of a segment that each of its key groups answers for, by rows."""
    ends = np.array((0, *segment.row_ends), np.int64)
    return (ends[1:] - ends[:-1]) * segment.block.length // max(1, int(ends[-1]))


def _share(segment: SegmentRef, key_group: int) -> int:
    first, end = rows_of(segment, key_group)
    return (end - first) * segment.block.length // max(1, segment.row_ends[-1])
