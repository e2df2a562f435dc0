"""What a checkpoint is made of: its records, and the names of its files.

The checkpoint is a directory of files that are written once and never changed::

    identity.rec                            whose checkpoint this is
    runs/<number>.rec                       who opened it to write; the last one owns it
    commits/<epoch>.rec                     the one record that makes an epoch's files count
    manifests/<epoch>.rec                   all chains as of that epoch, so that few records do
    blocks/<epoch>-<who>-<attempt>.blk      segments, snapshots and staged output of one lane

A record is framed by its length and a checksum of every byte.  Small blocks travel inside the
commit record (``BlockRef.file`` empty, the bytes in ``data``); once written, they have an address
in the record's file like any other block, so nothing downstream knows the difference.

Invariant: the record of epoch *e* names only block files whose names carry *e* or a later epoch.
So a file of a committed epoch that no record names will never be named, and may be collected.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

__all__ = [
    "ALIGNMENT",
    "BLOCKS",
    "COMMITS",
    "IDENTITY",
    "MANIFESTS",
    "RUNS",
    "BlockRef",
    "CommitRecord",
    "FlowIdentity",
    "KeyGroupEntry",
    "Manifest",
    "OutputRef",
    "RunRecord",
    "SegmentRef",
    "SnapshotRef",
    "commit_path",
    "manifest_path",
    "number_in",
    "padded",
    "run_path",
]

IDENTITY: Final = "identity.rec"
RUNS: Final = "runs"
COMMITS: Final = "commits"
MANIFESTS: Final = "manifests"
BLOCKS: Final = "blocks"

ALIGNMENT: Final = 64
"""Blocks begin at multiples of this many bytes, so that a mapped block is aligned for Arrow."""


class BlockRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a block's bytes are.

    Attributes
    ----------
    file
        Path within the checkpoint. Empty while the bytes have no file yet: `data` holds them.
    offset
        First byte, a multiple of `ALIGNMENT`.
    length
        Bytes. The file goes on with zeros up to the next multiple of `ALIGNMENT`.
    checksum
        CRC-32 of the bytes and the zeros behind them.
    data
        The bytes themselves, where they travel with the reference; may be empty for a block that
        has a file.
    """

    file: str
    offset: int
    length: int
    checksum: int
    data: bytes = b""


class SegmentRef(msgspec.Struct, frozen=True, kw_only=True):
    """What one lane wrote for one operator in one epoch.

    Attributes
    ----------
    operator
        Name of the operator.
    epoch
        The epoch that wrote it.
    lane
        Flat number of the lane that wrote it.
    kind
        ``"changes"``: changed and removed entries of state; ``"waiting"``: rows that arrived for
        key groups whose state was not there, to be processed by a later epoch.
    block
        The rows, as Arrow IPC.
    key_groups
        Key groups that have rows here, ascending.
    row_ends
        Rows of ``key_groups[i]`` are ``row_ends[i - 1]:row_ends[i]`` (from 0 for the first).
    """

    operator: str
    epoch: int
    lane: int
    kind: Literal["changes", "waiting"]
    block: BlockRef
    key_groups: tuple[int, ...]
    row_ends: tuple[int, ...]


class SnapshotRef(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state of one key group.

    Attributes
    ----------
    operator, key_group
        Whose state.
    version
        Changes of every epoch up to and including this one are in it.
    rows
        Number of keys.
    block
        The rows, as Arrow IPC.
    """

    operator: str
    key_group: int
    version: int
    rows: int
    block: BlockRef


class OutputRef(msgspec.Struct, frozen=True, kw_only=True):
    """Output of one lane that is staged for a sink until its epoch is committed.

    Attributes
    ----------
    sink
        Name of the sink.
    lane
        Flat number of the lane that wrote it.
    rows
        Number of rows.
    kind
        ``"rows"``: the block holds the rows; ``"files"``: the lane wrote the rows to the sink's
        target, and the block describes the files.
    block
        The rows as Arrow IPC, or those of `godwit.state.written_files`.
    """

    sink: str
    lane: int
    rows: int
    block: BlockRef
    kind: Literal["rows", "files"] = "rows"


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an epoch changed: its existence is the commit.

    Attributes
    ----------
    epoch
        Epochs are committed in order, without gaps, from 0.
    run_id
        The run that committed it.
    segments, snapshots, outputs
        The files that count.
    consumed
        Operator → key groups whose waiting rows, all those of earlier epochs, were processed in
        this epoch.
    assignments
        Component → its assignment in this epoch, as plain values.
    watermarks
        Source → watermark, as the epoch leaves it.
    metrics
        Plain values for people and the controller.
    retained_from
        The earliest epoch whose state can still be read once this record is there. Set by the
        commit log.
    manifest
        Epoch of the latest manifest at that time; -1 for none. Set by the commit log.
    """

    epoch: int
    run_id: str
    segments: tuple[SegmentRef, ...] = ()
    snapshots: tuple[SnapshotRef, ...] = ()
    outputs: tuple[OutputRef, ...] = ()
    consumed: dict[str, list[int]] = msgspec.field(default_factory=dict)
    assignments: dict[str, Any] = msgspec.field(default_factory=dict)
    watermarks: dict[str, int] = msgspec.field(default_factory=dict)
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    retained_from: int = 0
    manifest: int = -1

    def blocks(self) -> tuple[BlockRef, ...]:
        """Every block this record names: of segments, then snapshots, then outputs."""
        return (
            *(ref.block for ref in self.segments),
            *(ref.block for ref in self.snapshots),
            *(ref.block for ref in self.outputs),
        )


class FlowIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose checkpoint this is; state fits only the flow that wrote it.

    Attributes
    ----------
    name
        Name of the flow.
    num_key_groups
        Fixed at first launch.
    operators
        Operator → its fingerprint: everything that must be the same for old state to fit.
    query_id
        Id of Spark's query, whose progress belongs to this checkpoint; empty if not known.
    """

    name: str
    num_key_groups: int
    operators: dict[str, dict[str, Any]]
    query_id: str = ""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run that opened the checkpoint for writing."""

    number: int
    run_id: str


class KeyGroupEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How far one key group of one operator is; see `godwit.state.chains` for the words."""

    key_group: int
    version: int
    base: int
    consumed: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Every chain as of one epoch.

    Attributes
    ----------
    epoch
        The epoch whose record is the last one that is in.
    num_key_groups
        As in the identity.
    segments
        Segments that some chain needs, in the order they were committed, without inline bytes.
    snapshots
        The latest snapshot of each key group that has one.
    entries
        Operator → entries of its key groups that have anything.
    """

    epoch: int
    num_key_groups: int
    segments: tuple[SegmentRef, ...]
    snapshots: tuple[SnapshotRef, ...]
    entries: dict[str, list[KeyGroupEntry]]


def commit_path(epoch: int) -> str:
    """Path of the commit record of `epoch`."""
    return f"{COMMITS}/{epoch:012d}.rec"


def manifest_path(epoch: int) -> str:
    """Path of the manifest of `epoch`."""
    return f"{MANIFESTS}/{epoch:012d}.rec"


def run_path(number: int) -> str:
    """Path of the record of run `number`."""
    return f"{RUNS}/{number:012d}.rec"


_NUMBERED = re.compile(
    rf"(?:{RUNS}|{COMMITS}|{MANIFESTS})/(\d{{12}})\.rec(\.[0-9a-f]+\.tmp)?"
    rf"|{BLOCKS}/(\d{{12}})-[\w.+-]+\.blk"
)


def number_in(path: str, *, temporary: bool = False) -> int | None:
    """Epoch (or number of the run) in the name of a file, or None if the name is not one of ours.

    Parameters
    ----------
    path
        Path within the checkpoint.
    temporary
        Whether to accept also the name of a file that was never finished.
    """
    match = _NUMBERED.fullmatch(path)
    if match is None or (match[2] is not None and not temporary):
        return None
    return int(match[1] or match[3])


def padded(length: int) -> int:
    """`length`, rounded up to a multiple of `ALIGNMENT`."""
    return -(-length // ALIGNMENT) * ALIGNMENT
