"""What a checkpoint is made of: its records, and the names of its files.

The checkpoint is a directory of files that are written once and never changed::

    identity.rec                            whose checkpoint this is
    flows/<number>.rec                      what the flow's operators were, from some epoch on
    plans/<number>.rec                      which operators made a component, from some epoch on
    edits/<number>.rec                      what the next flow version is to rename and drop
    runs/<number>.rec                       who opened it to write; the last one owns it
    commits/<epoch>.rec                     the one record that makes an epoch's files count
    manifests/<epoch>.rec                   all chains as of that epoch, so that few records do
    journal/<number>.rec                    what happened, for people; nothing depends on it
    blocks/<epoch>-<who>-<attempt>.blk      segments, snapshots and staged output of one lane

A record is framed by its length and a checksum of every byte.  Small blocks travel inside the
commit record (``BlockRef.file`` empty, the bytes in ``data``); once written, they have an address
in the record's file like any other block, so nothing downstream knows the difference.

Invariant: the record of epoch *e* names only block files whose names carry *e* or a later epoch.
So a file of a committed epoch that no record names will never be named, and may be collected.

A *flow version* says what the operators' states and the sinks' rows look like.  It counts from the
first commit record that names it, so a start that fails before its first epoch claims nothing.
Every reference carries the version that it was written under, and the operator's name at that time:
bytes are read as what they were written, whatever the flow has become.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

__all__ = [
    "ALIGNMENT",
    "BLOCKS",
    "COMMITS",
    "EDITS",
    "FLOWS",
    "FORMAT",
    "IDENTITY",
    "JOURNAL",
    "MANIFESTS",
    "PLANS",
    "RUNS",
    "BatchRef",
    "BlockRef",
    "CommitRecord",
    "EditRecord",
    "FlowIdentity",
    "JournalSegment",
    "KeyGroupEntry",
    "Manifest",
    "OutputRef",
    "RunRecord",
    "SegmentRef",
    "SnapshotRef",
    "StateId",
    "StateManifest",
    "WaitingManifest",
    "commit_path",
    "edit_path",
    "flow_path",
    "journal_path",
    "manifest_path",
    "number_in",
    "numbered_path",
    "padded",
    "plan_path",
    "run_path",
]

FORMAT: Final = 2
"""Version of all this; another one is refused by name."""

IDENTITY: Final = "identity.rec"
FLOWS: Final = "flows"
PLANS: Final = "plans"
EDITS: Final = "edits"
RUNS: Final = "runs"
COMMITS: Final = "commits"
MANIFESTS: Final = "manifests"
BLOCKS: Final = "blocks"
JOURNAL: Final = "journal"

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


class StateId(msgspec.Struct, frozen=True, order=True):
    """One state of one operator: what has chains, copies and versions of its own.

    Attributes
    ----------
    operator
        Name of the operator.
    state
        Name of the state, unique within the operator; made of lower-case letters and ``_``.
    """

    operator: str
    state: str

    def __str__(self) -> str:
        return f"{self.operator}/{self.state}"


class BatchRef(msgspec.Struct, frozen=True, kw_only=True):
    """The micro-batch of Spark that an epoch covers.

    Attributes
    ----------
    number
        Its number in Spark's progress log.
    digest
        Of its offsets, and of the files behind them: two micro-batches of one number and digest
        hold the same rows.
    offsets
        Its entry of Spark's offset log, so that it can be put back.
    sources
        Path below Spark's log → entry of a source's own log that the offsets count on.
    """

    number: int
    digest: str
    offsets: bytes = b""
    sources: dict[str, bytes] = msgspec.field(default_factory=dict)


class SegmentRef(msgspec.Struct, frozen=True, kw_only=True):
    """What one lane wrote for one operator in one epoch.

    Attributes
    ----------
    operator
        Name of the operator in that epoch; it may have been renamed since.
    state
        Name of the state that it changes. Empty for rows that wait: they are the operator's.
    flow
        The flow version it was written under.
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
    state: str
    flow: int
    epoch: int
    lane: int
    kind: Literal["changes", "waiting"]
    block: BlockRef
    key_groups: tuple[int, ...]
    row_ends: tuple[int, ...]

    @property
    def id(self) -> StateId:
        """Whose state it changed, by the names of its epoch."""
        return StateId(self.operator, self.state)


class SnapshotRef(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state of one key group.

    Attributes
    ----------
    operator, state, key_group
        Whose state, by the names at that time.
    flow
        The flow version it was written under.
    version
        Changes of every epoch up to and including this one are in it.
    rows
        Number of keys.
    block
        The rows, as Arrow IPC.
    """

    operator: str
    state: str
    flow: int
    key_group: int
    version: int
    rows: int
    block: BlockRef

    @property
    def id(self) -> StateId:
        """Whose state it is, by the names of its epoch."""
        return StateId(self.operator, self.state)


class OutputRef(msgspec.Struct, frozen=True, kw_only=True):
    """Output of one lane that is staged for a sink until its epoch is committed.

    Attributes
    ----------
    sink
        Name of the sink.
    flow
        The flow version it was written under.
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
    flow: int
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
    flow
        The flow version it ran under. Set by the commit log.
    plan
        Number of the physical plan it ran under (`godwit.state.physical_plan`). Set by the commit
        log.
    batch
        The micro-batch that it covers; ``None`` for an epoch without input.
    before
        Of an epoch without input: the last micro-batch that an earlier epoch covers, if any.
    segments, snapshots, outputs
        The files that count.
    consumed
        Operator → key groups whose waiting rows, all those of earlier epochs, were processed in
        this epoch.
    assignments
        Component → its assignment in this epoch, as plain values.
    watermarks
        Source → watermark, as the epoch leaves it.
    expired
        State, as text → everything before this moment of event time is gone from it.
    retained_from
        The earliest epoch whose state can still be read once this record is there. Set by the
        commit log.
    manifest
        Epoch of the latest manifest at that time; -1 for none. Set by the commit log.
    """

    epoch: int
    run_id: str
    flow: int = 0
    plan: int = 0
    batch: BatchRef | None = None
    before: BatchRef | None = None
    segments: tuple[SegmentRef, ...] = ()
    snapshots: tuple[SnapshotRef, ...] = ()
    outputs: tuple[OutputRef, ...] = ()
    consumed: dict[str, list[int]] = msgspec.field(default_factory=dict)
    assignments: dict[str, Any] = msgspec.field(default_factory=dict)
    watermarks: dict[str, int] = msgspec.field(default_factory=dict)
    expired: dict[str, int] = msgspec.field(default_factory=dict)
    retained_from: int = 0
    manifest: int = -1

    @property
    def last_batch(self) -> BatchRef | None:
        """The last micro-batch whose rows this epoch or an earlier one has processed."""
        return self.batch if self.batch is not None else self.before

    def blocks(self) -> tuple[BlockRef, ...]:
        """Every block this record names: of segments, then snapshots, then outputs."""
        return (
            *(ref.block for ref in self.segments),
            *(ref.block for ref in self.snapshots),
            *(ref.block for ref in self.outputs),
        )


class FlowIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose checkpoint this is. Never changes once an epoch is committed.

    Attributes
    ----------
    format
        Version of the checkpoint's format.
    name
        Name of the flow.
    num_key_groups
        Fixed at first launch.
    query_id
        Id of the query, the same over restarts; empty if not known.
    """

    format: int = FORMAT
    name: str
    num_key_groups: int
    query_id: str = ""


class EditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants the next flow version to rename and drop.

    Attributes
    ----------
    number
        Edits are taken up in the order of their numbers.
    flow
        The flow version that it is about; it means nothing once there is a later one.
    renamed
        Old name → new name.
    dropped
        Operators whose state is to be forgotten.
    """

    number: int = 0
    flow: int
    renamed: dict[str, str] = msgspec.field(default_factory=dict)
    dropped: tuple[str, ...] = ()


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run that opened the checkpoint for writing."""

    number: int
    run_id: str


class JournalSegment(msgspec.Struct, frozen=True, kw_only=True):
    """Some entries of the journal that follow each other.

    Attributes
    ----------
    number
        Of the segment.
    run_id
        The run that wrote it.
    entries
        JSON objects, oldest first.
    """

    number: int
    run_id: str
    entries: tuple[bytes, ...]


class KeyGroupEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How far one key group of one state is; see `godwit.state.chains` for the words."""

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
    """

    epoch: int
    flow: int
    num_key_groups: int
    states: tuple[StateManifest, ...]
    waiting: tuple[WaitingManifest, ...]


def numbered_path(directory: str, number: int) -> str:
    """Path of the record of that number in a directory."""
    return f"{directory}/{number:012d}.rec"


def commit_path(epoch: int) -> str:
    """Path of the commit record of `epoch`."""
    return numbered_path(COMMITS, epoch)


def manifest_path(epoch: int) -> str:
    """Path of the manifest of `epoch`."""
    return numbered_path(MANIFESTS, epoch)


def edit_path(number: int) -> str:
    """Path of the record of edit `number`."""
    return numbered_path(EDITS, number)


def flow_path(number: int) -> str:
    """Path of the record of flow version `number`."""
    return numbered_path(FLOWS, number)


def plan_path(number: int) -> str:
    """Path of the record of physical plan `number`."""
    return numbered_path(PLANS, number)


def run_path(number: int) -> str:
    """Path of the record of run `number`."""
    return numbered_path(RUNS, number)


def journal_path(number: int) -> str:
    """Path of the journal's segment `number`."""
    return numbered_path(JOURNAL, number)


_NUMBERED = re.compile(
    rf"(?:{RUNS}|{FLOWS}|{PLANS}|{EDITS}|{COMMITS}|{MANIFESTS}|{JOURNAL})"
    rf"/(\d{{12}})\.rec(\.[0-9a-f]+\.tmp)?"
    rf"|{BLOCKS}/(\d{{12}})-[\w.+-]+\.blk"
)


def number_in(path: str, *, temporary: bool = False) -> int | None:
    """Give the number (of epoch, run, flow version, ...) in a file's name; None if it is not ours.

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
