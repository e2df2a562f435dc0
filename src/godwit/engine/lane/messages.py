"""Messages of an epoch: the driver's instruction to all lanes, and the report of each lane.

An instruction says how to bring each key group to the committed version.  For an executor
that holds a recent version this is a short tail of changelog segments, so the message grows with
what the last epochs changed and not with the state there is.
"""

from __future__ import annotations

import functools
import pickle
import time
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np

from godwit.checkpoint.records import OutputRef, SegmentRef, SnapshotRef, StateId
from godwit.model.key_groups import NO_LOAD, NO_PAIRS, KeyGroupLoad, KeyGroupPairs, PerKeyGroup
from godwit.time.event_time import NO_ARRIVALS, NO_TIME, NOTHING_DUE, Arrivals, Due

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import numpy.typing as npt

    from godwit.checkpoint.chains import KeyGroupChain
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.packing import HotRows
    from godwit.model.errors import GodwitError
    from godwit.model.key_work import OperatorWork
    from godwit.model.latency import LatencyHistogram
    from godwit.time.event_time import EpochTime, WindowWork


Place: TypeAlias = tuple[str, int]
"""One lane task: its executor, and the lane's number there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInstruction:
    """Instruction for one state of an operator: chains to the committed version."""

    state: StateId
    # its names as of the committed version; others only until a renaming is committed
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
    """Instruction for one operator in one epoch."""

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
    # what brings tables that every lane has whole to the committed version
    tables: tuple[StateInstruction, ...] = ()
    # of `KeyedOperator.part_states`: chains of the key groups that keys leave parts in, which every
    # lane reads
    left_parts: tuple[KeyGroupChain, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochInstruction:
    """Instruction of one epoch to all lanes."""

    epoch: int
    flow: int  # the flow version that lanes write under
    run_id: str  # the local store belongs to the run
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
        """Number of levels of components in the epoch."""
        return max(operator.level for operator in self.operators)


@dataclass(slots=True, kw_only=True)
class OperatorReport:
    """Work of one lane for one operator."""

    operator: str  # name of the operator
    # number of an input of the operator → rows that came in by it, before they were combined
    rows_in: dict[int, int] = field(default_factory=dict)
    # key groups whose rows were put in the wait buffer, and whose waiting rows were processed
    waited: list[int] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    # state → key group → version its local table is at now
    versions: dict[StateId, PerKeyGroup] = field(default_factory=dict)
    load: KeyGroupLoad = NO_LOAD  # no bytes of state
    # event times of the rows, and rows that were left out, as their senders report them
    arrivals: Arrivals = NO_ARRIVALS
    # when timers or expiries are due next: of all keys of the lane if this epoch was to look for
    # them, else of those that had rows
    next_due: Due = NOTHING_DUE
    windows: WindowWork | None = None  # cost of windows, where state could be kept in another way
    # partials, of windows that were over, of keys that were held in two slots
    duplicate_partials: int = 0
    # keys of which some sender had many rows, and how many that were
    hot_keys: HotRows = field(default_factory=dict)
    key_work: OperatorWork | None = None  # which keys have most work, where one can be hot


@dataclass(slots=True, kw_only=True)
class PassedOn:
    """Rows that one lane passed from an operator to another.

    Where the two share a component the rows stay in their lane; where not, they go through an
    exchange, and `exchanged` is true: only then the fields below it say anything.
    """

    sender: str  # the operator that made the rows
    operator: str  # the operator that they are for
    rows: int  # before any were combined
    size_bytes: int  # of the rows, in memory
    exchanged: bool = False
    # shape ``(3, n)``: key groups of the receiver that something was sent to, the rows (or partial
    # states) sent to each, and their share of the bytes sent
    sent: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty((3, 0)))
    crossed_bytes: int = 0  # bytes sent to lanes of other executors
    cpu_ms: float = 0.0  # CPU time for splitting and serialising them
    # rows, before any were combined, by key group of the sender and of the receiver
    pairs: KeyGroupPairs = NO_PAIRS


@dataclass(slots=True, kw_only=True)
class LaneReport:
    """Work of one lane task."""

    level: int  # level of the components
    place: int  # index of the lane task's place
    executor: str  # name of the executor it really ran on
    operators: list[OperatorReport] = field(default_factory=list)
    # what it wrote
    segments: list[SegmentRef] = field(default_factory=list)
    snapshots: list[SnapshotRef] = field(default_factory=list)
    outputs: list[OutputRef] = field(default_factory=list)
    rows_out: int = 0  # rows emitted
    passed_on: list[PassedOn] = field(default_factory=list)  # to operators downstream
    took_ms: dict[str, float] = field(default_factory=dict)  # phase → milliseconds
    # level 0 and number of a split, or level and place of a lane → digest of what it had read when
    # it sent rows here
    digests: dict[tuple[int, int], int] = field(default_factory=dict)
    # source → rows of it that could not be read
    unreadable: dict[str, int] = field(default_factory=dict)
    # source → ages of its rows by the driver's clock of the epoch, where it says when they arrived;
    # each row is in one report
    ages: dict[str, LatencyHistogram] = field(default_factory=dict)
    # why it could not be done, if the reason is in the flow and trying again would not help
    error: GodwitError | None = None

    def lap(self, phase: str, since_s: float) -> float:
        """Add the time since `since_s` (`time.perf_counter`) to a phase.

        Return the present time.
        """
        now_s = time.perf_counter()
        self.took_ms[phase] = self.took_ms.get(phase, 0.0) + (now_s - since_s) * 1e3
        return now_s

    def dumps(self) -> bytes:
        """Encode the report as bytes; an error's context becomes text if pickling it fails."""
        try:
            return _ENCODER.encode(_encodable(self))
        except Exception:  # noqa: BLE001  a user's exception may refuse pickling in any way
            error = self.error
            assert error is not None
            self.error = type(error)(error.message, remedy=error.remedy)
            return _ENCODER.encode(_encodable(self))

    @classmethod
    def loads(cls, data: bytes) -> LaneReport:
        """Decode the bytes of `dumps`, which come from an authenticated lane."""
        usual, operators, rest = _DECODER.decode(data)
        values: dict[str, Any] = dict(zip(_USUAL, usual, strict=True))
        reports = [
            OperatorReport(
                operator=operator,
                rows_in=rows_in,
                versions={state: PerKeyGroup.unpacked(of) for state, of in versions},
                load=KeyGroupLoad.unpacked(load) if load else NO_LOAD,
                **_unpickle_other_fields(more),
            )
            for operator, rows_in, versions, load, more in operators
        ]
        return cls(**values, operators=reports, **_unpickle_other_fields(rest))


# One report comes from every lane in every epoch, and the driver reads all of them: what each of
# them says is encoded by its type, columns as bytes; what few say is pickled where they do.
_OperatorParts: TypeAlias = tuple[
    str,  # operator
    dict[int, int],  # rows_in
    list[tuple[StateId, bytes]],  # versions
    bytes,  # load; empty: nothing
    bytes,  # all else
]


_USUAL = ["level", "place", "executor", "segments", "snapshots", "outputs", "rows_out", "took_ms"]
"""Fields that every lane's report has, in the order in which they are encoded."""
_UsualParts: TypeAlias = tuple[
    int, int, str, list[SegmentRef], list[SnapshotRef], list[OutputRef], int, dict[str, float]
]
_ENCODER = msgspec.msgpack.Encoder(enc_hook=lambda number: number.item())  # NumPy's numbers
_DECODER = msgspec.msgpack.Decoder(tuple[_UsualParts, list[_OperatorParts], bytes])


def _encodable(report: LaneReport) -> tuple[_UsualParts, list[_OperatorParts], bytes]:
    """Return a report as values that msgspec encodes, and the pickled rest."""
    operators = [
        (
            of.operator,
            of.rows_in,
            [(state, PerKeyGroup.of(held).packed()) for state, held in of.versions.items()],
            of.load.packed() if len(of.load.key_groups) else b"",
            _pickle_other_fields(of, ("operator", "rows_in", "versions", "load")),
        )
        for of in report.operators
    ]
    usual: Any = tuple(getattr(report, name) for name in _USUAL)
    return usual, operators, _pickle_other_fields(report, ("operators", *_USUAL))


def _pickle_other_fields(report: OperatorReport | LaneReport, without: Collection[str]) -> bytes:
    """Pickle a report's fields that differ from their defaults, except `without`.

    Empty if there are none.
    """
    kind: Any = type(report)
    rest = {
        name: value
        for name, default in _defaults(kind)
        if name not in without
        and (value := getattr(report, name)) is not default
        and not _is_same(value, default)
    }
    return pickle.dumps(rest) if rest else b""


def _unpickle_other_fields(rest: bytes) -> dict[str, Any]:
    """Return field → value of the bytes of `_pickle_other_fields`."""
    return pickle.loads(rest) if rest else {}  # noqa: S301  our own lanes'


def _is_same(value: Any, default: Any) -> bool:
    """Return whether a value of a plain type equals its default; values of other types never do."""
    return type(value) is type(default) and isinstance(value, _PLAIN) and value == default


_PLAIN = (int, float, dict, list, Arrivals, Due)


@functools.cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a report class, each with its default."""
    return tuple(
        (of.name, of.default if of.default_factory is MISSING else of.default_factory())
        for of in fields(kind)
    )


def senders_that_differ(reports: Iterable[LaneReport]) -> set[tuple[int, int]]:
    """Return the senders (as numbers) whose repeated attempts sent other rows to other lanes."""
    digests: dict[tuple[int, int], int] = {}
    return {
        sender
        for report in reports
        for sender, digest in report.digests.items()
        if digests.setdefault(sender, digest) != digest
    }
