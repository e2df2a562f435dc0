"""What the driver tells the lanes of an epoch, and what a lane reports back.

An instruction tells a lane how to bring each key group to the committed version.  For an executor
that holds a recent version this is a short tail of changelog segments, so the message grows with
what the last epochs changed and not with the state there is.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from godwit.operators.windows.event_time import NO_TIME, Arrivals, Due

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from godwit.checkpoint.records import OutputRef, SegmentRef, SnapshotRef, StateId
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.hot_keys import HotRows
    from godwit.model.errors import GodwitError
    from godwit.model.key_groups import KeyGroupPairs, PerKeyGroup
    from godwit.operators.windows.event_time import EpochTime, WindowWork

__all__ = [
    "EpochInstruction",
    "KeyGroupLoad",
    "LaneReport",
    "OperatorInstruction",
    "OperatorReport",
    "PassedOn",
    "Place",
    "SentLoad",
    "StateInstruction",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One lane task: where it should run, and which lane of that executor it is."""

    executor: str
    lane: int
    location: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInstruction:
    """One state of an operator in one epoch: what brings it to the committed version."""

    state: StateId  # whose
    # Its names as of the committed version; others only until a renaming is committed.
    recorded_as: StateId
    # Shape ``(num_key_groups,)``: `segments` is complete for a table at this version or later. -1:
    # it is complete for an empty table too (with `snapshots`).
    floor: npt.NDArray[np.int64]
    segments: tuple[SegmentRef, ...]  # changelog segments to apply
    snapshots: dict[int, SnapshotRef]  # key group → snapshot, for those that start from nothing
    # Key groups of which a snapshot is taken, at the version before this epoch.
    to_snapshot: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorInstruction:
    """One operator in one epoch."""

    level: int  # level of its component, from 1
    # Shape ``(num_key_groups,)``: place (index into ``EpochInstruction.places``).
    places: npt.NDArray[np.int32]
    states: tuple[StateInstruction, ...]  # one for each of its states
    suspended: npt.NDArray[np.bool_]  # shape ``(num_key_groups,)``: rows go to the wait buffer
    # Shape ``(num_key_groups,)``: key groups whose state is loaded, while the epoch waits, by a
    # lane that does not hold it; others wait for it then.
    load: npt.NDArray[np.bool_]
    waiting: tuple[SegmentRef, ...]  # waiting segments of the key groups in `resumed`
    # Shape ``(num_key_groups,)``: key groups whose waiting rows are processed in this epoch, before
    # its own.
    resumed: npt.NDArray[np.bool_]
    # Key group in `resumed` → epoch of the first segment of which its rows wait still; those of
    # earlier segments, which others may wait in, have been processed.
    waiting_from: Mapping[int, int] = field(default_factory=dict)
    time: EpochTime = NO_TIME  # event time of the operator


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochInstruction:
    """One epoch."""

    epoch: int  # the epoch
    flow: int  # the flow version; what lanes write is of it
    run_id: str  # the run; the local store belongs to it
    places: tuple[Place, ...]  # one lane task each, at every level
    operators: tuple[OperatorInstruction, ...]  # in the flow's order
    storage: CheckpointStorage  # the checkpoint
    local_dir: str | None  # where local stores lie; ``None`` for the executor's own directory
    inline_bytes: int  # what one lane writes up to this size travels in the commit record
    # Arrow IPC compression of segments and outputs, or ``None``.
    compression: Literal["lz4", "zstd"] | None
    # A key is hot that has this much of what a lane gets on average; 0: none is.
    hot_keys: float = 0.0

    @property
    def levels(self) -> int:
        """Number of levels of components."""
        return max(operator.level for operator in self.operators)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyGroupLoad:
    """What one key group cost in one epoch: columns, one entry per key group touched."""

    # key_groups, rows, keys: key group; rows (or partial states) that came in; distinct keys among
    # them
    key_groups: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    # CPU time: what the operator measured for the key group, and its rows' share of what the lane
    # did for all of them at once.
    cpu_ms: npt.NDArray[np.float64]
    # Time that passed: what the operator measured for the key group, and its rows' share of the
    # rest, which is CPU time.
    busy_ms: npt.NDArray[np.float64]

    @classmethod
    def none(cls) -> KeyGroupLoad:
        """Give the load of no key group."""
        no, no_ms = np.empty(0, np.int64), np.empty(0)
        return cls(key_groups=no, rows=no, keys=no, cpu_ms=no_ms, busy_ms=no_ms)


@dataclass(slots=True, kw_only=True)
class OperatorReport:
    """What one lane did for one operator."""

    operator: str  # name of the operator
    # Number of an input of the operator → rows that came in by it, before they were combined.
    rows_in: dict[int, int]
    load: KeyGroupLoad  # per key group
    waited: list[int]  # key groups whose rows were put in the wait buffer
    consumed: list[int]  # key groups whose waiting rows were processed
    versions: dict[StateId, PerKeyGroup]  # state → key group → version its local table is at now
    # What was found of event time while rows were sent here.
    arrivals: Arrivals = field(default_factory=Arrivals)
    # When timers or expiries are due next: of all keys of the lane if this epoch was to look for
    # them, else of those that had rows.
    next_due: Due = field(default_factory=Due)
    windows: WindowWork | None = None  # what windows took, where state could be kept in another way
    twice: int = 0  # partials, of windows that were over, of keys that were held in two slots
    # Keys of which some sender had many rows, and how many that were.
    hot_keys: HotRows = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentLoad:
    """What one lane sent to one operator downstream: columns, one entry per key group there."""

    # sender, operator: the operator that sent it, and the one that it was sent to
    sender: str
    operator: str
    # key_groups, rows, size_bytes: key group of that operator; rows (or partial states) for it, and
    # their share of the bytes that were sent
    key_groups: list[int]
    rows: list[int]
    size_bytes: list[float]
    crossed_bytes: int  # bytes sent to lanes of other executors than the sender's
    # Rows, before any were combined, by key group of the one and of the other operator.
    pairs: KeyGroupPairs
    cpu_ms: float = 0.0  # CPU time for parting and serialising them


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOn:
    """Rows that one operator made for another one, however they get there."""

    # sender, operator: the operator that made them, and the one that they are for
    sender: str
    operator: str
    # rows, size_bytes: rows before any were combined, and their size in memory
    rows: int
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class LaneReport:
    """What one lane task did."""

    # level, place: level of the components, and index of its place
    level: int
    place: int
    executor: str  # name of the executor it really ran on
    # operators, segments, snapshots, outputs: what it did and wrote
    operators: list[OperatorReport] = field(default_factory=list)
    segments: list[SegmentRef] = field(default_factory=list)
    snapshots: list[SnapshotRef] = field(default_factory=list)
    outputs: list[OutputRef] = field(default_factory=list)
    rows_out: int = 0  # rows emitted
    # What went to operators downstream by an exchange, one entry per operator and epoch.
    sent: list[SentLoad] = field(default_factory=list)
    # What was made for operators downstream, one entry each.
    passed_on: list[PassedOn] = field(default_factory=list)
    took_ms: dict[str, float] = field(default_factory=dict)  # phase → milliseconds
    # Why it could not be done, if the reason is in the flow and trying again would not help.
    error: GodwitError | None = None

    def dumps(self) -> bytes:
        """Pickle it; an error's context may hold anything, so it is made plain if need be."""
        try:
            return pickle.dumps(self)
        except Exception:  # noqa: BLE001  a user's exception may refuse pickling in any way
            error = self.error
            assert error is not None
            self.error = type(error)(error.message, remedy=error.remedy)
            return pickle.dumps(self)
