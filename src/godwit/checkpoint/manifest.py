"""All chains as of one epoch, as a record: opening reads one of these and few commit records."""

from __future__ import annotations

import msgspec

# msgspec reads these names when it first meets a record.
from godwit.checkpoint.records import SegmentRef, SnapshotRef, StateId  # noqa: TC001

__all__ = [
    "KeyGroupEntry",
    "Manifest",
    "StateManifest",
    "WaitingManifest",
]


class KeyGroupEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How far one key group of one state is; see `godwit.checkpoint.chains` for the words."""

    key_group: int
    version: int
    base: int


class StateManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The chains of one state."""

    state: StateId  # whose, by its names as of the manifest's epoch
    # segments that some chain needs, in the order they were committed, without inline bytes
    segments: tuple[SegmentRef, ...]
    snapshots: tuple[SnapshotRef, ...]  # the latest snapshot of each key group that has one
    entries: tuple[KeyGroupEntry, ...]  # key groups that have anything


class WaitingManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that wait for one operator."""

    operator: str  # whose, by its name as of the manifest's epoch
    segments: tuple[SegmentRef, ...]  # in the order they were committed, without inline bytes
    # key group → the last epoch by which all earlier waiting rows had been processed
    consumed: dict[int, int]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Every chain as of one epoch."""

    epoch: int  # the epoch whose record is the last one that is in
    flow: int  # the flow version of that epoch
    num_key_groups: int  # as in the identity
    # states, waiting: in order of states, and of operators
    states: tuple[StateManifest, ...]
    waiting: tuple[WaitingManifest, ...]
    record: str = ""  # digest of the record of `epoch`; empty in format 2
