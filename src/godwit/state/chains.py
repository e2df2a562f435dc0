"""Chains: what brings each key group of each operator to its committed version.

The durable truth of a key group is a snapshot plus the changelog segments after it.  `Chains` says
which, as of one epoch, and grows by one commit record at a time: work is in proportion to what the
record names, never to the number of key groups.

Words, per key group:

- *version*: the last epoch whose changes are in; -1 if there never were any.  An epoch that had
  nothing for the key group leaves its version behind, and waiting rows postpone it.
- *base*: the last epoch whose changes the snapshot has taken out of the changelog.  The segments
  alone bring forward a table at this version or later; an older one starts from the snapshot.
- *consumed*: the last epoch by which all earlier waiting rows had been processed.

Invariant: snapshot, then segments in order, give the state of `version`; and rows wait exactly if
their waiting segment's epoch is not before *consumed*.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import CheckpointError
from godwit.state.framing import without_bytes
from godwit.state.records import (
    BlockRef,
    CommitRecord,
    KeyGroupEntry,
    Manifest,
    SegmentRef,
    SnapshotRef,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

__all__ = ["Chains", "KeyGroupChain", "rows_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupChain:
    """What brings one key group to `version`.

    Attributes
    ----------
    operator, key_group
        Whose state.
    snapshot
        Where to start; ``None``: from nothing (or from what one has, see `Chains.since`).
    segments
        Changelog segments to apply after it, in order of epochs. Other key groups have rows in
        them too, see `rows_of`.
    waiting
        Segments with rows that are yet to be processed, in order of epochs.
    version
        The last epoch whose changes are in; -1 if there never were any.
    """

    operator: str
    key_group: int
    snapshot: SnapshotRef | None
    segments: tuple[SegmentRef, ...]
    waiting: tuple[SegmentRef, ...]
    version: int


def rows_of(segment: SegmentRef, key_group: int) -> tuple[int, int]:
    """First row of a key group in a segment, and the row after its last."""
    try:
        i = segment.key_groups.index(key_group)
    except ValueError:
        return 0, 0
    return (segment.row_ends[i - 1] if i else 0), segment.row_ends[i]


class Chains:
    """All chains as of one epoch.

    Parameters
    ----------
    num_key_groups
        As in the flow's identity.

    Attributes
    ----------
    epoch
        The last epoch whose record is in; -1 before the first.
    """

    def __init__(self, num_key_groups: int) -> None:
        self.num_key_groups = num_key_groups
        self.epoch = -1
        self._operators: dict[str, _OperatorChains] = {}

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the operators that have written anything, in order."""
        return tuple(sorted(self._operators))

    def check(self, record: CommitRecord) -> None:
        """Raise if `record` cannot be the next one.

        Raises
        ------
        CheckpointError
            If it is not of the next epoch, names a key group that does not exist, changes one
            twice, or lets rows overtake rows that wait.
        """
        for problem in self.problems(record):
            raise CheckpointError(
                f"The commit record of epoch {record.epoch} contradicts itself or the epochs "
                f"before it: {problem}.",
                remedy="Nothing was committed. This is an error in Godwit: please report it with "
                "this text.",
                epoch=record.epoch,
            )

    def problems(self, record: CommitRecord) -> Iterator[str]:
        """Say what is wrong with `record` as the next one, if anything."""
        if record.epoch != self.epoch + 1:
            yield f"it is of epoch {record.epoch} but the next one is {self.epoch + 1}"
        changed: dict[str, npt.NDArray[np.bool_]] = {}
        for segment in record.segments:
            wrong = list(self._segment_problems(segment, record.epoch))
            yield from wrong
            if segment.kind == "changes" and not wrong:
                seen = changed.setdefault(segment.operator, np.zeros(self.num_key_groups, np.bool_))
                groups = np.array(segment.key_groups, np.int64)
                for key_group in groups[seen[groups]].tolist():
                    yield f"two segments change key group {key_group} of {segment.operator!r}"
                seen[groups] = True
        for operator, seen in sorted(changed.items()):
            for key_group, waiting in sorted(self._read(operator).waiting.items()):
                if seen[key_group] and key_group not in record.consumed.get(operator, ()):
                    yield (
                        f"key group {key_group} of {operator!r} is changed while its rows of epoch "
                        f"{waiting[0].epoch} wait"
                    )
        for operator, key_groups in record.consumed.items():
            for key_group in key_groups:
                if not 0 <= key_group < self.num_key_groups:
                    yield f"key group {key_group} of {operator!r} does not exist"
        for snapshot in record.snapshots:
            if not 0 <= snapshot.key_group < self.num_key_groups:
                yield f"key group {snapshot.key_group} of {snapshot.operator!r} does not exist"
            if not 0 <= snapshot.version <= record.epoch:
                yield (
                    f"the snapshot of key group {snapshot.key_group} of {snapshot.operator!r} has "
                    f"version {snapshot.version}"
                )

    def _segment_problems(self, segment: SegmentRef, epoch: int) -> Iterator[str]:
        where = f"the {segment.kind} segment of {segment.operator!r}, lane {segment.lane},"
        if segment.epoch != epoch:
            yield f"{where} is of epoch {segment.epoch}"
        groups, ends = np.array(segment.key_groups, np.int64), np.array(segment.row_ends, np.int64)
        if len(groups) != len(ends):
            yield f"{where} has {len(groups)} key groups and {len(ends)} ends of rows"
        if (groups[1:] <= groups[:-1]).any():
            yield f"{where} does not list its key groups in order"
        if (ends[1:] < ends[:-1]).any() or (ends < 0).any():
            yield f"{where} has ends of rows that go backwards"
        if ((groups < 0) | (groups >= self.num_key_groups)).any():
            yield f"{where} names a key group that does not exist"

    def apply(self, record: CommitRecord) -> None:
        """Go on by one epoch; `record` must have passed `check`."""
        for operator, key_groups in record.consumed.items():
            self._of(operator).consume(key_groups, record.epoch)
        for segment in record.segments:
            self._of(segment.operator).add_segment(segment)
        for snapshot in record.snapshots:
            self._of(snapshot.operator).add_snapshot(snapshot)
        self.epoch = record.epoch

    def chain(self, operator: str, key_group: int) -> KeyGroupChain:
        """Everything that brings an empty table to the version of this epoch."""
        return self.since(operator, key_group, -1)

    def since(self, operator: str, key_group: int, version: int) -> KeyGroupChain:
        """Give what brings a table at `version` forward: no more than that, often nothing.

        A table that starts from the snapshot is to be replaced by it, not merged with it.
        """
        chains = self._read(operator)
        segments = chains.segments.get(key_group, [])
        snapshot = chains.snapshots.get(key_group)
        if snapshot is not None and version >= int(chains.base[key_group]):
            snapshot = None
        if snapshot is None:
            first = len(segments)
            while first and segments[first - 1].epoch > version:
                first -= 1
            segments = segments[first:]
        return KeyGroupChain(
            operator=operator,
            key_group=key_group,
            snapshot=snapshot,
            segments=tuple(segments),
            waiting=tuple(chains.waiting.get(key_group, ())),
            version=int(chains.version[key_group]),
        )

    def versions(self, operator: str) -> npt.NDArray[np.int64]:
        """Shape ``(num_key_groups,)``: the version of each key group (a copy)."""
        return self._read(operator).version.copy()

    def snapshot_bytes(self, operator: str) -> npt.NDArray[np.int64]:
        """Shape ``(num_key_groups,)``: size of each key group's snapshot (a copy)."""
        return self._read(operator).snapshot_bytes.copy()

    def changelog_bytes(self, operator: str) -> npt.NDArray[np.int64]:
        """Shape ``(num_key_groups,)``: size of the rows in each key group's segments (a copy)."""
        return self._read(operator).changelog_bytes.copy()

    def num_segments(self, operator: str) -> npt.NDArray[np.int64]:
        """Shape ``(num_key_groups,)``: number of each key group's segments (a copy)."""
        return self._read(operator).num_segments.copy()

    def waiting_key_groups(self, operator: str) -> list[int]:
        """Key groups with rows that wait, ascending."""
        return sorted(self._read(operator).waiting)

    def segments(self) -> list[SegmentRef]:
        """Every segment that some chain needs, once, in order of epochs, operators and lanes."""
        distinct = {
            id(segment): segment
            for chains in self._operators.values()
            for lists in (chains.segments, chains.waiting)
            for segments in lists.values()
            for segment in segments
        }
        return sorted(distinct.values(), key=lambda s: (s.epoch, s.operator, s.lane, s.kind))

    def snapshots(self) -> list[SnapshotRef]:
        """Give the latest snapshot of each key group, by operator and key group."""
        return [
            chains.snapshots[key_group]
            for _, chains in sorted(self._operators.items())
            for key_group in sorted(chains.snapshots)
        ]

    def blocks(self) -> Iterator[BlockRef]:
        """Every block that some chain needs."""
        for segment in self.segments():
            yield segment.block
        for snapshot in self.snapshots():
            yield snapshot.block

    def forget_inline_bytes(self, *, before: int) -> None:
        """Drop bytes that travel with references of epochs earlier than `before`.

        They are in the checkpoint anyway; this bounds the driver's memory.
        """
        for chains in self._operators.values():
            chains.forget_inline_bytes(before)

    def manifest(self) -> Manifest:
        """Write everything down."""
        return Manifest(
            epoch=self.epoch,
            num_key_groups=self.num_key_groups,
            segments=tuple(without_bytes(segment) for segment in self.segments()),
            snapshots=tuple(without_bytes(snapshot) for snapshot in self.snapshots()),
            entries={name: chains.entries() for name, chains in sorted(self._operators.items())},
        )

    @classmethod
    def restore(cls, manifest: Manifest) -> Chains:
        """Undo `manifest`."""
        chains = cls(manifest.num_key_groups)
        chains.epoch = manifest.epoch
        for operator, entries in manifest.entries.items():
            of = chains._of(operator)
            for entry in entries:
                of.consumed[entry.key_group] = entry.consumed
        for snapshot in manifest.snapshots:
            chains._of(snapshot.operator).add_snapshot(snapshot)
        for segment in manifest.segments:
            chains._of(segment.operator).add_segment(segment)
        for operator, entries in manifest.entries.items():
            of = chains._of(operator)
            for entry in entries:
                of.version[entry.key_group] = entry.version
                of.base[entry.key_group] = entry.base
        return chains

    def _read(self, operator: str) -> _OperatorChains:
        return self._operators.get(operator) or _OperatorChains.empty(self.num_key_groups)

    def _of(self, operator: str) -> _OperatorChains:
        chains = self._operators.get(operator)
        if chains is None:
            chains = self._operators[operator] = _OperatorChains.empty(self.num_key_groups)
        return chains


@dataclass(slots=True, kw_only=True)
class _OperatorChains:
    """The chains of one operator. Arrays have shape ``(num_key_groups,)``."""

    version: npt.NDArray[np.int64]
    base: npt.NDArray[np.int64]
    consumed: npt.NDArray[np.int64]
    snapshot_version: npt.NDArray[np.int64]
    snapshot_bytes: npt.NDArray[np.int64]
    changelog_bytes: npt.NDArray[np.int64]
    num_segments: npt.NDArray[np.int64]
    snapshots: dict[int, SnapshotRef] = field(default_factory=dict)
    segments: dict[int, list[SegmentRef]] = field(default_factory=dict)
    waiting: dict[int, list[SegmentRef]] = field(default_factory=dict)

    @classmethod
    def empty(cls, num_key_groups: int) -> _OperatorChains:
        return cls(
            version=np.full(num_key_groups, -1, np.int64),
            base=np.full(num_key_groups, -1, np.int64),
            consumed=np.full(num_key_groups, -1, np.int64),
            snapshot_version=np.full(num_key_groups, -1, np.int64),
            snapshot_bytes=np.zeros(num_key_groups, np.int64),
            changelog_bytes=np.zeros(num_key_groups, np.int64),
            num_segments=np.zeros(num_key_groups, np.int64),
        )

    def add_segment(self, segment: SegmentRef) -> None:
        """Append a segment to the chains of its key groups that do not have its rows yet."""
        if segment.kind == "waiting":
            for key_group in segment.key_groups:
                if segment.epoch >= self.consumed[key_group]:
                    self.waiting.setdefault(key_group, []).append(segment)
            return
        groups, shares = np.array(segment.key_groups, np.int64), _shares(segment)
        taken = self.snapshot_version[groups] < segment.epoch
        self.version[groups] = np.maximum(self.version[groups], segment.epoch)
        self.changelog_bytes[groups[taken]] += shares[taken]
        self.num_segments[groups[taken]] += 1
        for key_group in groups[taken].tolist():
            self.segments.setdefault(key_group, []).append(segment)

    def add_snapshot(self, snapshot: SnapshotRef) -> None:
        """Let a snapshot take the place of the segments that it covers."""
        g = snapshot.key_group
        if snapshot.version <= self.snapshot_version[g]:
            return  # a later one is here already
        known = self.version[g] >= 0
        segments = self.segments.get(g, [])
        kept = [s for s in segments if s.epoch > snapshot.version]
        covered = segments[: len(segments) - len(kept)]
        if covered:
            self.base[g] = covered[-1].epoch
        elif not known:
            # State that no epoch here has written: nobody can have it without the snapshot.
            self.base[g] = self.version[g] = snapshot.version
        self.segments[g] = kept
        if not kept:
            del self.segments[g]
        self.num_segments[g] = len(kept)
        self.changelog_bytes[g] = sum(_share(s, g) for s in kept)
        self.snapshots[g] = snapshot
        self.snapshot_version[g] = snapshot.version
        self.snapshot_bytes[g] = snapshot.block.length

    def consume(self, key_groups: Iterable[int], epoch: int) -> None:
        """Forget rows that waited before `epoch`."""
        for key_group in key_groups:
            self.consumed[key_group] = epoch
            self.waiting.pop(key_group, None)

    def entries(self) -> list[KeyGroupEntry]:
        """Whatever segments and snapshots alone do not say."""
        some = (self.version >= 0) | (self.consumed >= 0)
        return [
            KeyGroupEntry(
                key_group=g,
                version=int(self.version[g]),
                base=int(self.base[g]),
                consumed=int(self.consumed[g]),
            )
            for g in np.flatnonzero(some).tolist()
        ]

    def forget_inline_bytes(self, before: int) -> None:
        """Replace references of epochs earlier than `before` by ones without their bytes."""
        lighter: dict[int, SegmentRef] = {}
        for lists in (self.segments, self.waiting):
            for segments in lists.values():
                for i, segment in enumerate(segments):
                    if segment.epoch < before and segment.block.data:
                        if id(segment) not in lighter:
                            lighter[id(segment)] = without_bytes(segment)
                        segments[i] = lighter[id(segment)]
        for key_group, snapshot in self.snapshots.items():
            if snapshot.version < before:
                self.snapshots[key_group] = without_bytes(snapshot)


def _shares(segment: SegmentRef) -> npt.NDArray[np.int64]:
    """Bytes of a segment that each of its key groups answers for, by rows."""
    ends = np.array((0, *segment.row_ends), np.int64)
    return (ends[1:] - ends[:-1]) * segment.block.length // max(1, int(ends[-1]))


def _share(segment: SegmentRef, key_group: int) -> int:
    first, end = rows_of(segment, key_group)
    return (end - first) * segment.block.length // max(1, segment.row_ends[-1])
