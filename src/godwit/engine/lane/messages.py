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

from godwit.operators.windows.moments import NO_TIME, Arrivals, Due

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from godwit.checkpoint.records import OutputRef, SegmentRef, SnapshotRef, StateId
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.hot_keys import HotRows
    from godwit.model.errors import GodwitError
    from godwit.model.pairs import KeyGroupPairs
    from godwit.model.per_key_group import PerKeyGroup
    from godwit.operators.windows.moments import OperatorTime, WindowWork

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
    """One state of an operator in one epoch: what brings it to the committed version.

    Attributes
    ----------
    state
        Whose.
    recorded_as
        Its names as of the committed version; others only until a renaming is committed.
    floor
        Shape ``(num_key_groups,)``: `segments` is complete for a table at this version or later.
        -1: it is complete for an empty table too (with `snapshots`).
    segments
        Changelog segments to apply.
    snapshots
        Key group → snapshot, for those that start from nothing.
    to_snapshot
        Key groups of which a snapshot is taken, at the version before this epoch.
    """

    state: StateId
    recorded_as: StateId
    floor: npt.NDArray[np.int64]
    segments: tuple[SegmentRef, ...]
    snapshots: dict[int, SnapshotRef]
    to_snapshot: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorInstruction:
    """One operator in one epoch.

    Attributes
    ----------
    level
        Level of its component, from 1.
    places
        Shape ``(num_key_groups,)``: place (index into ``EpochInstruction.places``).
    states
        One for each of its states.
    suspended
        Shape ``(num_key_groups,)``: rows go to the wait buffer.
    load
        Shape ``(num_key_groups,)``: key groups whose state is loaded, while the epoch waits, by a
        lane that does not hold it; others wait for it then.
    waiting
        Waiting segments of the key groups in `resumed`.
    waiting_from
        Key group in `resumed` → epoch of the first segment of which its rows wait still; those of
        earlier segments, which others may wait in, have been processed.
    resumed
        Shape ``(num_key_groups,)``: key groups whose waiting rows are processed in this epoch,
        before its own.
    time
        Event time of the operator.
    """

    level: int
    places: npt.NDArray[np.int32]
    states: tuple[StateInstruction, ...]
    suspended: npt.NDArray[np.bool_]
    load: npt.NDArray[np.bool_]
    waiting: tuple[SegmentRef, ...]
    resumed: npt.NDArray[np.bool_]
    waiting_from: Mapping[int, int] = field(default_factory=dict)
    time: OperatorTime = NO_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochInstruction:
    """One epoch.

    Attributes
    ----------
    epoch
        The epoch.
    flow
        The flow version; what lanes write is of it.
    run_id
        The run; the local store belongs to it.
    places
        One lane task each, at every level.
    operators
        In the flow's order.
    storage
        The checkpoint.
    local_dir
        Where local stores lie; ``None`` for the executor's own directory.
    inline_bytes
        What one lane writes up to this size travels in the commit record.
    compression
        Arrow IPC compression of segments and outputs, or ``None``.
    hot_keys
        A key is hot that has this much of what a lane gets on average; 0: none is.
    """

    epoch: int
    flow: int
    run_id: str
    places: tuple[Place, ...]
    operators: tuple[OperatorInstruction, ...]
    storage: CheckpointStorage
    local_dir: str | None
    inline_bytes: int
    compression: Literal["lz4", "zstd"] | None
    hot_keys: float = 0.0

    @property
    def levels(self) -> int:
        """Number of levels of components."""
        return max(operator.level for operator in self.operators)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyGroupLoad:
    """What one key group cost in one epoch: columns, one entry per key group touched.

    Attributes
    ----------
    key_groups, rows, keys
        Key group; rows (or partial states) that came in; distinct keys among them.
    cpu_ms
        CPU time: what the operator measured for the key group, and its rows' share of what the
        lane did for all of them at once.
    busy_ms
        Time that passed: what the operator measured for the key group, and its rows' share of the
        rest, which is CPU time.
    """

    key_groups: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    cpu_ms: npt.NDArray[np.float64]
    busy_ms: npt.NDArray[np.float64]

    @classmethod
    def none(cls) -> KeyGroupLoad:
        """Give the load of no key group."""
        no, no_ms = np.empty(0, np.int64), np.empty(0)
        return cls(key_groups=no, rows=no, keys=no, cpu_ms=no_ms, busy_ms=no_ms)


@dataclass(slots=True, kw_only=True)
class OperatorReport:
    """What one lane did for one operator.

    Attributes
    ----------
    operator
        Name of the operator.
    rows_in
        Number of an input of the operator → rows that came in by it, before they were combined.
    load
        Per key group.
    waited
        Key groups whose rows were put in the wait buffer.
    consumed
        Key groups whose waiting rows were processed.
    versions
        State → key group → version its local table is at now.
    arrivals
        What was found of event time while rows were sent here.
    next_due
        When timers or expiries are due next: of all keys of the lane if this epoch was to look for
        them, else of those that had rows.
    windows
        What windows took, where state could be kept in another way.
    twice
        Partials, of windows that were over, of keys that were held in two slots.
    hot_keys
        Keys of which some sender had many rows, and how many that were.
    """

    operator: str
    rows_in: dict[int, int]
    load: KeyGroupLoad
    waited: list[int]
    consumed: list[int]
    versions: dict[StateId, PerKeyGroup]
    arrivals: Arrivals = field(default_factory=Arrivals)
    next_due: Due = field(default_factory=Due)
    windows: WindowWork | None = None
    twice: int = 0
    hot_keys: HotRows = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentLoad:
    """What one lane sent to one operator downstream: columns, one entry per key group there.

    Attributes
    ----------
    sender, operator
        The operator that sent it, and the one that it was sent to.
    key_groups, rows, size_bytes
        Key group of that operator; rows (or partial states) for it, and their share of the bytes
        that were sent.
    crossed_bytes
        Bytes sent to lanes of other executors than the sender's.
    pairs
        Rows, before any were combined, by key group of the one and of the other operator.
    cpu_ms
        CPU time for parting and serialising them.
    """

    sender: str
    operator: str
    key_groups: list[int]
    rows: list[int]
    size_bytes: list[float]
    crossed_bytes: int
    pairs: KeyGroupPairs
    cpu_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOn:
    """Rows that one operator made for another one, however they get there.

    Attributes
    ----------
    sender, operator
        The operator that made them, and the one that they are for.
    rows, size_bytes
        Rows before any were combined, and their size in memory.
    """

    sender: str
    operator: str
    rows: int
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class LaneReport:
    """What one lane task did.

    Attributes
    ----------
    level, place
        Level of the components, and index of its place.
    executor
        Name of the executor it really ran on.
    operators, segments, snapshots, outputs
        What it did and wrote.
    rows_out
        Rows emitted.
    sent
        What went to operators downstream by an exchange, one entry per operator and epoch.
    passed_on
        What was made for operators downstream, one entry each.
    took_ms
        Phase → milliseconds.
    error
        Why it could not be done, if the reason is in the flow and trying again would not help.
    """

    level: int
    place: int
    executor: str
    operators: list[OperatorReport] = field(default_factory=list)
    segments: list[SegmentRef] = field(default_factory=list)
    snapshots: list[SnapshotRef] = field(default_factory=list)
    outputs: list[OutputRef] = field(default_factory=list)
    rows_out: int = 0
    sent: list[SentLoad] = field(default_factory=list)
    passed_on: list[PassedOn] = field(default_factory=list)
    took_ms: dict[str, float] = field(default_factory=dict)
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
