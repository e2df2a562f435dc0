"""Files and records of a checkpoint, and the rule that makes a commit atomic.

The checkpoint is a directory of files that are written once and never changed::

    identity.rec                            identity of the checkpoint
    offsets.rec                             lines of Spark's log by source
    flows/<number>.rec                      operators of the flow, from some epoch on
    plans/<number>.rec                      components and their operators, from some epoch on
    edits/<number>.rec                      renamings and drops for the next flow version
    runs/<number>.rec                       runs that opened it to write; the last one owns it
    lock, leases/<number>.rec               lease of the running query; a second query is refused
    commits/<epoch>.rec                     commit record of an epoch, which names its files
    manifests/<epoch>.rec                   all chains as of that epoch, so that few records are
    read journal/<number>.rec                    history, for users; nothing depends on it
    blocks/<epoch>-<who>-<attempt>.blk      segments, snapshots and staged output of one lane
    diverted/<epoch>-<sink>.rec             rows that a target rejected in delivery
    carried/<file>.parquet                  of a copy: files for another query's target
    kept/<name>.rec                         epochs that stay readable until they are released
    set-aside/                              what repairs, and starts from an epoch, have replaced

*The rule*: an epoch is committed by the exclusive creation of one file, ``commits/<epoch>.rec``,
after every file that it names is durable.  A failure before it leaves unreferenced files; a failure
after it does not change the commit.  A record names its predecessor by a digest, and its flow
version and physical plan by numbers and digests, which are valid from the first record that names
them: a start that fails before its first epoch claims nothing.

Invariant: the record of epoch *e* names only block files whose names carry *e* or a later epoch.
So an unreferenced file of a committed epoch stays unreferenced, and may be collected.

A record is framed by its length and a checksum of every byte (`godwit.checkpoint.framing`).  Small
blocks travel inside the commit record (``BlockRef.file`` empty, the bytes in ``data``); once
written, they have an address in the record's file like any other block.  Every reference has
the flow version (`godwit.checkpoint.evolution`) and the operator's name at the time of writing, by
which its bytes are read.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from godwit.model.key_groups import MAX_NUM_KEY_GROUPS

FORMAT: Final = 3
"""Version of all this; another one is refused by name."""
RELEASES: Final[dict[int, tuple[str, ...]]] = {3: ("0.1",)}
"""Format → releases of Godwit that write and read it; no release had formats 1 and 2."""

IDENTITY: Final = "identity.rec"
FLOWS: Final = "flows"
PLANS: Final = "plans"
EDITS: Final = "edits"
RUNS: Final = "runs"
COMMITS: Final = "commits"
MANIFESTS: Final = "manifests"
BLOCKS: Final = "blocks"
LEASES: Final = "leases"
JOURNAL: Final = "journal"
DIVERTED: Final = "diverted"
CARRIED: Final = "carried"
KEPT: Final = "kept"

ALIGNMENT: Final = 64
"""Blocks begin at multiples of this many bytes, so that a mapped block is aligned for Arrow."""


def numbered_path(directory: str, number: int) -> str:
    """Return the path, within the checkpoint, of record `number` of a directory."""
    return f"{directory}/{number:012d}.rec"


commit_path = partial(numbered_path, COMMITS)  # by epoch
manifest_path = partial(numbered_path, MANIFESTS)  # by epoch
edit_path = partial(numbered_path, EDITS)
flow_path = partial(numbered_path, FLOWS)
plan_path = partial(numbered_path, PLANS)
run_path = partial(numbered_path, RUNS)
lease_path = partial(numbered_path, LEASES)
journal_path = partial(numbered_path, JOURNAL)  # by segment

_KEPT = re.compile(rf"{KEPT}/([A-Za-z0-9][\w.-]{{0,79}})\.rec")


def kept_path(name: str) -> str:
    """Return the path, within the checkpoint, of the record of a kept epoch."""
    return f"{KEPT}/{name}.rec"


def is_kept(path: str) -> bool:
    """Return whether a path is that of the record of a kept epoch."""
    return _KEPT.fullmatch(path) is not None


_NUMBERED = re.compile(
    rf"(?:{RUNS}|{LEASES}|{FLOWS}|{PLANS}|{EDITS}|{COMMITS}|{MANIFESTS}|{JOURNAL})"
    rf"/(\d{{12}})\.rec(\.[0-9a-f]+\.tmp)?"
    rf"|{BLOCKS}/(\d{{12}})-[\w.+-]+\.blk"
)


def number_in(path: str, *, temporary: bool = False) -> int | None:
    """Return the number (epoch, run, ...) in a file's name; ``None`` if the name has another form.

    `temporary`: accept also the name of a file that was never finished.
    """
    match = _NUMBERED.fullmatch(path)
    if match is None or (match[2] is not None and not temporary):
        return None
    return int(match[1] or match[3])


def padded(length: int) -> int:
    """Round a length in bytes up to a multiple of `ALIGNMENT`."""
    return -(-length // ALIGNMENT) * ALIGNMENT


# Bounds of values, checked where a record is read.

Number: TypeAlias = Annotated[int, Meta(ge=0, le=10**12 - 1)]
"""Number in a file's name, such as an epoch; names have room for no more."""
NumberOrNone: TypeAlias = Annotated[int, Meta(ge=-1, le=10**12 - 1)]
"""The same; -1 for none."""
Size: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
EventTime: TypeAlias = Annotated[int, Meta(ge=-(2**62), le=2**62)]
"""Microseconds: windows, slack and joins may add to it without an overflow."""
Checksum: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
KeyGroup: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_NUM_KEY_GROUPS - 1)]
NumKeyGroups: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_NUM_KEY_GROUPS)]
Digest: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{0,64}\Z")]
"""Hexadecimal digest or id; empty if absent or unknown."""
SlotValues: TypeAlias = tuple[KeyGroup, Annotated[int, Meta(ge=0, le=1)], int, int]
MAX_STATES: Final = 4096


class BlockRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Address of a block's bytes."""

    # Path within the checkpoint. Empty while the bytes have no file yet: `data` holds them.
    file: str
    offset: Annotated[Size, Meta(multiple_of=ALIGNMENT)]  # first byte
    length: Size  # Bytes. The file continues with zeros up to the next multiple of `ALIGNMENT`.
    checksum: Checksum  # CRC-32 of the bytes and the zeros behind them
    # the bytes themselves, where they travel with the reference; may be empty for a block that has
    # a file
    data: bytes = b""


class StateId(msgspec.Struct, frozen=True, order=True):
    """One state of one operator; it has chains, copies and versions of its own."""

    operator: str  # name of the operator
    # name of the state, unique within the operator; made of lower-case letters, digits and ``_``
    state: str

    def __str__(self) -> str:
        return f"{self.operator}/{self.state}"


BROADCAST: Final = "broadcast_"
"""Prefix of the names of states that are tables which every lane has whole: all entries are of
one key, and they are written even while rows wait for the operator."""

PLAYED: Final = "local"
"""Digest of rows given by `godwit.testing`: positions of sources do not identify them."""
POSITIONS: Final = "positions"
"""Digest of rows of Godwit's own sources alone, which the positions identify."""

FED_BACK: Final = "loop:"
"""Prefix of the names that rows fed back to a loop are staged under; no sink's name has a colon."""

ANY_IDENTITY: Final = ""
"""Identity of a source whose position stays valid for any data, as confirmed by a user."""


class BatchRef(msgspec.Struct, frozen=True, kw_only=True):
    """The source rows that an epoch covers: a micro-batch of Spark, rows of own sources, or both.

    Own sources have no other log than this: a query continues from the positions of the last batch.
    """

    number: Size  # its number in Spark's progress log, or among the batches of own sources
    # of its offsets, and of the files behind them: two micro-batches of one number and digest hold
    # the same rows; or `PLAYED`, `POSITIONS`
    digest: str
    offsets: bytes = b""  # its entry of Spark's offset log, so that it can be put back
    # the number of Spark's source that each offset is of; empty if not known
    lines: tuple[Annotated[int, Meta(ge=0, le=MAX_STATES)], ...] = ()
    # path below Spark's log → entry of a source's own log that the offsets count on
    sources: dict[str, bytes] = msgspec.field(default_factory=dict)
    # positions, identities: name of a source of Godwit's own → how far it is read after the batch,
    # and its identity (`godwit.sources.Source`); also of sources that have left the flow since
    positions: dict[str, Any] = msgspec.field(default_factory=dict)
    identities: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def of_spark(self) -> bool:
        """True if the batch has rows of Spark's micro-batch, which Spark's log defines."""
        return self.digest not in {PLAYED, POSITIONS}


class SegmentRef(msgspec.Struct, frozen=True, kw_only=True):
    """Changelog segment: rows that one lane wrote for one operator in one epoch."""

    operator: str  # name of the operator in that epoch; it may have been renamed since
    # Name of the state that it changes. Empty for rows that wait: they are the operator's.
    state: str
    flow: Number  # the flow version it was written under
    epoch: int  # the epoch that wrote it
    lane: Number  # number of the place, one lane task of its epoch, that wrote it
    # ``"changes"``: changed and removed entries of state; ``"waiting"``: rows that arrived for key
    # groups whose state was not there, to be processed by a later epoch
    kind: Literal["changes", "waiting"]
    block: BlockRef  # the rows, as Arrow IPC
    key_groups: tuple[KeyGroup, ...]  # key groups that have rows here, ascending
    # rows of ``key_groups[i]`` are ``row_ends[i - 1]:row_ends[i]`` (from 0 for the first)
    row_ends: tuple[Size, ...]

    @property
    def id(self) -> StateId:
        """Id of the changed state, with the names of the segment's epoch."""
        return StateId(self.operator, self.state)


class SnapshotRef(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state of one key group."""

    # operator, state, key_group: whose state, by the names at that time
    operator: str
    state: str
    flow: Number  # the flow version it was written under
    key_group: KeyGroup
    version: Number  # changes of every epoch up to and including this one are in it
    rows: Size  # number of keys
    block: BlockRef  # the rows, as Arrow IPC

    @property
    def id(self) -> StateId:
        """Id of the state, with the names of the snapshot's epoch."""
        return StateId(self.operator, self.state)


class OutputRef(msgspec.Struct, frozen=True, kw_only=True):
    """Output of one lane that is staged for a sink until its epoch is committed."""

    sink: str  # name of the sink
    flow: Number  # the flow version it was written under
    lane: Number  # number of the place, one lane task of its epoch, that wrote it
    rows: Size  # number of rows
    block: BlockRef  # the rows as Arrow IPC, or those of `godwit.plan.staging`
    # ``"rows"``: the block holds the rows; ``"files"``: the lane wrote the rows to the sink's
    # target, and the block describes the files
    kind: Literal["rows", "files"] = "rows"
    # least event time of the rows in microseconds, where they are fed back and hold the watermark
    oldest_us: int | None = None


class SinkRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of one sink when the rows of an epoch were staged for it."""

    writer: str  # its permanent name at the target
    target: str = ""  # where it writes, without anything confidential; empty if only the sink knows
    complete: bool = False  # the rows are the whole result
    formerly: str = ""  # declared former name; empty without one
    before: NumberOrNone = -1  # the last earlier epoch that had something for it; -1 if none had
    kind: str = ""  # of its rows (`godwit.columns.signed.Kind`); empty for ``"rows"``


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of one hot key of an operator (`godwit.operators.hot_keys`)."""

    # rows, columns: numbers of parts among which rows of the left of a join, and of the right, are
    # divided; other operators have one column
    rows: int
    columns: int
    # numbers of the parts, row by row; each part has a key group of its own
    parts: tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...]
    # of a former grid: watermark that has passed all rows that its rows can match, in microseconds;
    # by default it holds no rows
    over: EventTime = -(2**61)


class HotKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key whose rows are spread over several key groups, or have been until a while ago."""

    hash: int  # of its key columns; keys of one hash are spread together
    key: str  # its values as JSON, for people
    grids: tuple[Grid, ...]  # former grids that still hold rows, and last the present one

    @property
    def grid(self) -> Grid:
        """Present division of the key into parts, to which new rows go."""
        return self.grids[-1]


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All changes of an epoch: its existence is the commit."""

    epoch: int  # epochs are committed in order, without gaps, from 0
    run_id: str  # the run that committed it
    query_id: str = ""  # The query that committed it; empty if not known. Set by the commit log.
    # Id of the history that it continues (`FlowIdentity.history`). Set by the commit log.
    history: Digest = ""
    previous: Digest = (
        ""  # Digest of the record before it; empty in epoch 0. Set by the commit log.
    )
    flow: Number = 0  # The flow version it ran under. Set by the commit log.
    # Number of the physical plan it ran under (`godwit.checkpoint.records`). Set by the
    # commit log.
    plan: Number = 0
    # Number of key groups of all states and waiting rows. 0: as in the epoch before, as in records
    # without it. If it changes, all states and waiting rows are in this record. Set by the commit
    # log.
    num_key_groups: Annotated[int, Meta(ge=0, le=MAX_NUM_KEY_GROUPS)] = 0
    # flow_digest, plan_digest: of the files of those two. Set by the commit log.
    flow_digest: Digest = ""
    plan_digest: Digest = ""
    # the micro-batch that it covers; ``None`` for an epoch without input
    batch: BatchRef | None = None
    # of an epoch without input: the last micro-batch that an earlier epoch covers, if any
    before: BatchRef | None = None
    # segments, snapshots, outputs: the files that count
    segments: tuple[SegmentRef, ...] = ()
    snapshots: tuple[SnapshotRef, ...] = ()
    outputs: tuple[OutputRef, ...] = ()
    # operator → key groups whose waiting rows, all those of earlier epochs, were processed in this
    # epoch
    consumed: dict[str, list[KeyGroup]] = msgspec.field(default_factory=dict)
    # component → its assignment in this epoch, as plain values
    assignments: dict[str, Any] = msgspec.field(default_factory=dict)
    # watermarks, newest: name of a watermark → where it stands, and the greatest event time seen of
    # the rows that move it, as the epoch leaves them; microseconds since 1970-01-01 UTC. A source's
    # has its name; that of a branch whose maps recompute the event time is named
    # ``<source>/<operator>`` after each operator that reads it, or ``<source>/<operator>/<number>``
    # after one of its later inputs.
    watermarks: dict[str, EventTime] = msgspec.field(default_factory=dict)
    newest: dict[str, EventTime] = msgspec.field(default_factory=dict)
    # Watermark of the whole query, in flows that have one (`CompiledFlow.query_watermark`): after a
    # restart it does not follow from `watermarks`, since a run begins to watch the sources again.
    query_watermark: EventTime | None = None
    # State, as text → windows that end by this event time are closed: panes that no other
    # window holds are gone from it. Microseconds.
    expired: dict[str, EventTime] = msgspec.field(default_factory=dict)
    # state, as text → greatest event time of its rows, for operators without source watermarks
    reached: dict[str, EventTime] = msgspec.field(default_factory=dict)
    # state, as text → event time since which closed windows are retained for later ones, and mark
    # of which are (`godwit.library.windows.kept`)
    retained: dict[str, tuple[EventTime, int]] = msgspec.field(default_factory=dict, name="kept")
    # operator whose windows are consolidated apart → of key groups that have migrated without their
    # state: which slot takes rows, of panes from which moment on, and by which moment windows end
    # that hold anything of the other slot (`godwit.operators.slots`)
    slots: dict[str, list[SlotValues]] = msgspec.field(default_factory=dict)
    # operator → its keys whose rows are spread from the next epoch on, as the epoch leaves them
    spreads: dict[str, tuple[HotKey, ...]] = msgspec.field(default_factory=dict)
    # sink with rows → its description
    sinks: dict[str, SinkRecord] = msgspec.field(default_factory=dict)
    # The earliest epoch whose state can still be read once this record is there. Set by the commit
    # log.
    retained_from: Number = 0
    # Epoch of the latest manifest at that time; -1 for none. Set by the commit log.
    manifest: NumberOrNone = -1

    @property
    def last_batch(self) -> BatchRef | None:
        """Last batch of source rows that this epoch or an earlier one processed."""
        return self.batch if self.batch is not None else self.before

    def blocks(self) -> tuple[BlockRef, ...]:
        """Return the references to all blocks: of segments, then snapshots, then outputs."""
        return (
            *(ref.block for ref in self.segments),
            *(ref.block for ref in self.snapshots),
            *(ref.block for ref in self.outputs),
        )


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Query and history that a checkpoint begins with, if it was copied or taken back."""

    # query_id, history: of the checkpoint that was copied, or of this one before
    query_id: str
    history: str
    # the last epoch that was copied, or that stays: records up to here are of that history
    epoch: Number
    # what the start was given that took later epochs back, as text: these count no longer; empty
    # of a copy
    taken_back: str = ""


class FlowIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a checkpoint's flow; never changes once an epoch is committed."""

    format: int = FORMAT  # version of the checkpoint's format
    name: str  # name of the flow
    num_key_groups: NumKeyGroups  # in the first epoch; a later record may have another number
    query_id: Digest = ""  # id of the query, the same over restarts; empty if not known
    # id of the history that the next epoch continues: random, new for every checkpoint and every
    # copy of one
    history: Digest = ""
    # of a copy: the histories that its first epochs are of, in order of epochs
    origins: tuple[Origin, ...] = ()
    # digest of the state that it began with (`godwit.engine.initial_state`); empty without
    initial: Digest = ""
    # batches that the query had before, elsewhere: epoch 1 is the next one after them
    batches_before: Size = 0

    def origin_of(self, epoch: int) -> Origin:
        """Return the query and history to which the record of `epoch` belongs."""
        own = Origin(query_id=self.query_id, history=self.history, epoch=epoch)
        return next((origin for origin in self.origins if epoch <= origin.epoch), own)


class KeptEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch that stays readable under a name until it is released."""

    name: str
    epoch: Number
    # first epoch whose record stays with it: Spark's log is put back from the last two batches
    first: Number
    record: Digest  # digest of the epoch's record
    history: Digest  # that the record belongs to
    at_s: float = 0.0  # Unix time when it was named, by that process's clock

    def __str__(self) -> str:
        return f"{self.epoch} ({self.name!r})"


class EditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Renamings and drops for the next flow version to apply."""

    number: int = 0  # edits are applied in the order of their numbers
    flow: Number  # the flow version that it is about; it means nothing once there is a later one
    renamed: dict[str, str] = msgspec.field(default_factory=dict)  # old name → new name
    dropped: tuple[str, ...] = ()  # operators whose state is to be forgotten
    # history, epoch, record: the checkpoint's history, its latest epoch, and the digest of that
    # epoch's record, when the edit was written
    history: Digest = ""
    epoch: NumberOrNone = -1
    record: Digest = ""
    flow_digest: Digest = ""  # digest of the flow version
    previous: Digest = (
        ""  # digest of the edit of the same flow version before it; empty of the first
    )


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run that opened the checkpoint for writing."""

    number: int
    run_id: str


class JournalSegment(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive entries of the journal."""

    number: int  # of the segment
    run_id: str  # the run that wrote it
    entries: tuple[bytes, ...]  # JSON objects, oldest first


# msgspec reads these names when it first meets a record.


class KeyGroupEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Version and base of one key group in a manifest (see `godwit.checkpoint.chains`)."""

    key_group: KeyGroup
    version: NumberOrNone
    base: NumberOrNone


class StateManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Chains of one state."""

    state: StateId  # whose, by its names as of the manifest's epoch
    # segments that some chain needs, in the order they were committed, without inline bytes
    segments: tuple[SegmentRef, ...]
    snapshots: tuple[SnapshotRef, ...]  # the latest snapshot of each key group that has one
    entries: tuple[KeyGroupEntry, ...]  # key groups that have anything


class WaitingManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting rows of one operator."""

    operator: str  # whose, by its name as of the manifest's epoch
    segments: tuple[SegmentRef, ...]  # in the order they were committed, without inline bytes
    # key group → the last epoch by which all earlier waiting rows had been processed
    consumed: dict[KeyGroup, NumberOrNone]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All chains at one epoch."""

    epoch: int  # the epoch whose record is the last one that is in
    flow: Number  # the flow version of that epoch
    num_key_groups: NumKeyGroups  # as of that epoch
    # states, waiting: in order of states, and of operators
    states: tuple[StateManifest, ...]
    waiting: tuple[WaitingManifest, ...]
    record: Digest = ""  # digest of the record of `epoch`
    # the earliest readable epoch after later epochs were taken back, whose collected files are
    # gone; 0: as in the record of `epoch`
    retained_from: Number = 0


class ComponentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One component: its name and operators."""

    name: str  # unique within the plan
    operators: tuple[str, ...]  # names of its operators, at least one


class PhysicalPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All components of a flow; operators of one share an assignment, and migrate together.

    It may change from one epoch to the next while no state does.
    """

    components: tuple[ComponentPlan, ...] = ()  # in the order in which they run
