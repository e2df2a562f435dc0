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
    """The chains of one state.

    Attributes
    ----------
    state
        Whose, by its names as of the manifest's epoch.
    segments
        Segments that some chain needs, in the order they were committed, without inline bytes.
    snapshots
        The latest snapshot of each key group that has one.
    entries
        Key groups that have anything.
    """

    state: StateId
    segments: tuple[SegmentRef, ...]
    snapshots: tuple[SnapshotRef, ...]
    entries: tuple[KeyGroupEntry, ...]


class WaitingManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that wait for one operator.

    Attributes
    ----------
    operator
        Whose, by its name as of the manifest's epoch.
    segments
        In the order they were committed, without inline bytes.
    consumed
        Key group → the last epoch by which all earlier waiting rows had been processed.
    """

    operator: str
    segments: tuple[SegmentRef, ...]
    consumed: dict[int, int]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Every chain as of one epoch.

    Attributes
    ----------
    epoch
        The epoch whose record is the last one that is in.
    flow
        The flow version of that epoch.
    num_key_groups
        As in the identity.
    states, waiting
        In order of states, and of operators.
    record
        Digest of the record of `epoch`; empty in format 2.
    """

    epoch: int
    flow: int
    num_key_groups: int
    states: tuple[StateManifest, ...]
    waiting: tuple[WaitingManifest, ...]
    record: str = ""
