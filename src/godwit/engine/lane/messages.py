"""Messages of an epoch: the driver's instruction to all lanes, and the report of each lane.

An instruction has the chains of each key group to the committed version.  For an executor with a
recent version this is a short tail of changelog segments, so the message grows with the recent
changes and not with the size of the state.

Most of an instruction are references to changelog segments, with the bytes of small ones, and each
is needed only on the executors of its key groups.  So it travels in parts (`InstructionParts`):
segments are packed by executor; the routes of rows, which every lane needs, are packed once,
run-length encoded.  Each part is unpacked once per Python process, and only where it is needed.

Invariant: for the key groups of a place, `InstructionParts.for_place` equals the whole instruction.
Other key groups are not brought forward by it.
"""

from __future__ import annotations

import functools
import pickle
import time
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from godwit.checkpoint.framing import key_group_columns
from godwit.checkpoint.records import OutputRef, SegmentRef, SnapshotRef, StateId
from godwit.model.key_groups import (
    NO_LOAD,
    NO_PAIRS,
    KeyGroupLoad,
    KeyGroupPairs,
    PerKeyGroup,
    from_runs,
    runs_of,
)
from godwit.time.event_time import NO_ARRIVALS, NO_TIME, NOTHING_DUE, Arrivals, Due

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import pyarrow as pa

    from godwit.checkpoint.chains import KeyGroupChain
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.packing import HotRows
    from godwit.model.errors import GodwitError
    from godwit.model.key_groups import OperatorWork
    from godwit.model.latency import LatencyHistogram
    from godwit.time.event_time import EpochTime, WindowWork


Place: TypeAlias = tuple[str, int]
"""One lane task: its executor, and the lane's number there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInstruction:
    """Instruction for one state of an operator: chains to the committed version."""

    state: StateId
    # its id as of the committed version; differs only until a renaming is committed
    recorded_as: StateId
    # shape ``(num_key_groups,)``: `segments` is complete for a table at this version or later; -1:
    # also for an empty table (with `snapshots`)
    floor: npt.NDArray[np.int64]
    segments: tuple[SegmentRef, ...]  # changelog segments to apply
    snapshots: dict[int, SnapshotRef]  # key group → snapshot, for key groups without a table
    # key groups to snapshot, at the version before this epoch
    to_snapshot: tuple[int, ...]

    def versions(self) -> npt.NDArray[np.int64]:
        """Return the committed version of each key group for which the instruction has chains."""
        versions = self.floor.copy()
        for key_group, snapshot in self.snapshots.items():
            versions[key_group] = snapshot.version
        for segment in self.segments:
            own = np.array(segment.key_groups, np.int64)
            versions[own] = np.maximum(versions[own], segment.epoch)
        return versions


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorInstruction:
    """Instruction for one operator in one epoch."""

    level: int  # level of its component, from 1
    # Shape ``(num_key_groups,)``: place (index into ``EpochInstruction.places``).
    places: npt.NDArray[np.int32]
    states: tuple[StateInstruction, ...]  # one for each of its states
    suspended: npt.NDArray[np.bool_]  # shape ``(num_key_groups,)``: rows go to the wait buffer
    # shape ``(num_key_groups,)``: key groups whose missing state the lane loads during the epoch;
    # rows of other key groups without state go to the wait buffer
    load: npt.NDArray[np.bool_]
    # shape ``(num_key_groups,)``: key groups whose missing state is loaded whole
    whole: npt.NDArray[np.bool_]
    waiting: tuple[SegmentRef, ...]  # waiting segments of the key groups in `resumed`
    # shape ``(num_key_groups,)``: key groups whose waiting rows are processed in this epoch, before
    # its own
    resumed: npt.NDArray[np.bool_]
    # key group in `resumed` → first epoch whose waiting rows are not yet processed
    waiting_from: Mapping[int, int] = field(default_factory=dict)
    time: EpochTime = NO_TIME  # event time of the operator
    # instructions for broadcast tables, which every lane has whole
    tables: tuple[StateInstruction, ...] = ()
    # chains of `KeyedOperator.part_states` in key groups with former parts of hot keys, read by
    # every lane
    left_parts: tuple[KeyGroupChain, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochInstruction:
    """Instruction of one epoch to all lanes."""

    epoch: int
    flow: int  # flow version of written files
    run_id: str  # owner of the local store
    places: tuple[Place, ...]  # one lane task each, at every level
    operators: tuple[OperatorInstruction, ...]  # in the flow's order
    storage: CheckpointStorage  # the checkpoint
    local_dir: str | None  # of local stores; ``None`` for the executor's own directory
    inline_bytes: int  # maximum size of a lane's data inside the commit record
    # Arrow IPC compression of segments and outputs, or ``None``.
    compression: Literal["lz4", "zstd"] | None
    # a key is hot with this share of a lane's average rows; 0: no key is
    hot_keys: float = 0.0
    # the part of much missing state that is read first: the touched keys, or their key groups
    restore: Literal["touched", "whole"] = "touched"
    # bytes of missing state from which on entries are fetched on demand
    fetch_from_bytes: int = 0
    state_memory: int = 0  # bound on the bytes of tables of an executor; 0: none

    @property
    def levels(self) -> int:
        """Number of levels of components in the epoch."""
        return max(operator.level for operator in self.operators)


@dataclass(slots=True, kw_only=True)
class OperatorReport:
    """Work of one lane for one operator."""

    operator: str  # name of the operator
    # number of an input of the operator → its rows, before any combining
    rows_in: dict[int, int] = field(default_factory=dict)
    # key groups whose rows were put in the wait buffer, and whose waiting rows were processed
    waited: list[int] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    # state → key group → present version of its local table
    versions: dict[StateId, PerKeyGroup] = field(default_factory=dict)
    load: KeyGroupLoad = NO_LOAD  # without state bytes
    # event times and left-out rows, as reported by senders
    arrivals: Arrivals = NO_ARRIVALS
    # next due time of timers or expiries: of all keys of the lane if this epoch searched for it,
    # else of keys with rows
    next_due: Due = NOTHING_DUE
    windows: WindowWork | None = None  # cost of windows that could have another layout
    # partials of closed windows whose key was in two slots
    duplicate_partials: int = 0
    waiting_deletes: int = 0  # of the keys with changes, those that wait for their rows
    unread_bytes: int = 0  # of state that partial copies lack
    fetched_keys: int = 0  # number of keys whose entries were read from the checkpoint
    # hot keys of senders → number of their rows
    hot_keys: HotRows = field(default_factory=dict)
    key_work: OperatorWork | None = None  # keys with most work, if keys can be hot


@dataclass(slots=True, kw_only=True)
class PassedOn:
    """Rows that one lane passed from an operator to another.

    Within a component the rows stay in their lane; else they go through an exchange, and
    `exchanged` is true: only then the fields below it are set.
    """

    sender: str  # sending operator
    operator: str  # receiving operator
    rows: int  # before any combining
    size_bytes: int  # of the rows, in memory
    exchanged: bool = False
    # shape ``(3, n)``: key groups of the receiver with sent rows, rows (or partial states) sent to
    # each, and their share of the sent bytes
    sent: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty((3, 0)))
    crossed_bytes: int = 0  # bytes sent to lanes of other executors
    cpu_ms: float = 0.0  # CPU time for splitting and serialising them
    # rows, before any combining, by key group of the sender and of the receiver
    pairs: KeyGroupPairs = NO_PAIRS


@dataclass(slots=True, kw_only=True)
class FailedRows:
    """Failed calls of a user's function, in one lane or over all lanes."""

    rows: int = 0  # of these calls
    calls: int = 0
    # rows that the function got, where they are not those of the operator
    rows_in: int = 0
    first: Mapping[str, str] = field(default_factory=dict)  # first row, by column

    def add(self, other: FailedRows) -> None:
        """Add the failed calls of another lane, or of another part of the rows."""
        self.rows, self.calls = self.rows + other.rows, self.calls + other.calls
        self.rows_in += other.rows_in
        self.first = self.first or other.first

    @classmethod
    def of(cls, failed: pa.RecordBatch, rows_in: int = 0) -> FailedRows:
        """Count calls and their rows, in the columns `failed_calls.FAILED`."""
        rows, calls = (
            failed.num_rows - pc.sum(pc.equal(failed.column(name), "")).as_py()
            for name in ("row", "traceback")
        )
        first = {name: str(column[0]) for name, column in failed.to_pydict().items()}
        return cls(rows=rows, calls=calls, rows_in=rows_in, first=first)


@dataclass(slots=True, kw_only=True)
class LaneReport:
    """Work of one lane task."""

    level: int  # level of the components
    place: int  # index of the lane task's place
    executor: str  # actual executor
    operators: list[OperatorReport] = field(default_factory=list)
    # references to its written files
    segments: list[SegmentRef] = field(default_factory=list)
    snapshots: list[SnapshotRef] = field(default_factory=list)
    outputs: list[OutputRef] = field(default_factory=list)
    rows_out: int = 0  # rows emitted
    # if there is a bound on the memory of state: bytes of tables that the lane accounts for, at all
    # levels, and operator → number of key groups whose entries left them
    table_bytes: int = 0
    evicted: dict[str, int] = field(default_factory=dict)
    passed_on: list[PassedOn] = field(default_factory=list)  # to operators downstream
    took_ms: dict[str, float] = field(default_factory=dict)  # phase → milliseconds
    # sender (level 0 and number of a split, or level and place of a lane) → digest of the rows it
    # had read when it sent rows here
    digests: dict[tuple[int, int], int] = field(default_factory=dict)
    # kind → requests to the checkpoint's object store
    requests: dict[str, int] = field(default_factory=dict)
    # source → number of unreadable rows
    unreadable: dict[str, int] = field(default_factory=dict)
    # sink of rows of failed calls → these calls
    failed: dict[str, FailedRows] = field(default_factory=dict)
    # source with arrival times → ages of its rows by the driver's clock of the epoch; each row is
    # in one report
    ages: dict[str, LatencyHistogram] = field(default_factory=dict)
    # error of the flow, which a retry would not avoid
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
            return _REPORT_ENCODER.encode(_encodable(self))
        except Exception:  # noqa: BLE001  a user's exception may refuse pickling in any way
            error = self.error
            assert error is not None
            self.error = type(error)(error.message, remedy=error.remedy)
            return _REPORT_ENCODER.encode(_encodable(self))

    @classmethod
    def loads(cls, data: bytes) -> LaneReport:
        """Decode the bytes of `dumps`, which come from an authenticated lane."""
        usual_values, operators, other_values = _REPORT_DECODER.decode(data)
        values: dict[str, Any] = dict(zip(_USUAL, usual_values, strict=True))
        reports = [
            OperatorReport(
                operator=operator,
                rows_in=rows_in,
                versions={state: PerKeyGroup.unpacked(packed) for state, packed in versions},
                load=KeyGroupLoad.unpacked(load) if load else NO_LOAD,
                **_unpickle_other_fields(other_fields),
            )
            for operator, rows_in, versions, load, other_fields in operators
        ]
        return cls(**values, operators=reports, **_unpickle_other_fields(other_values))


# The driver reads a report from every lane in every epoch: fields that all of them have are encoded
# by type, columns as bytes; rare fields are pickled.
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
_REPORT_ENCODER = msgspec.msgpack.Encoder(enc_hook=lambda number: number.item())  # NumPy's numbers
_REPORT_DECODER = msgspec.msgpack.Decoder(tuple[_UsualParts, list[_OperatorParts], bytes])


def _encodable(report: LaneReport) -> tuple[_UsualParts, list[_OperatorParts], bytes]:
    """Return a report as values that msgspec encodes, and the pickled rest."""
    operators = [
        (
            work.operator,
            work.rows_in,
            [
                (state, PerKeyGroup.of(state_versions).packed())
                for state, state_versions in work.versions.items()
            ],
            work.load.packed() if len(work.load.key_groups) else b"",
            _pickle_other_fields(work, ("operator", "rows_in", "versions", "load")),
        )
        for work in report.operators
    ]
    usual_values: Any = tuple(getattr(report, name) for name in _USUAL)
    return usual_values, operators, _pickle_other_fields(report, ("operators", *_USUAL))


def _pickle_other_fields(report: OperatorReport | LaneReport, without: Collection[str]) -> bytes:
    """Pickle a report's fields that differ from their defaults, except `without`.

    Empty if there are none.
    """
    kind: Any = type(report)
    other_fields = {
        name: value
        for name, default in _defaults(kind)
        if name not in without
        and (value := getattr(report, name)) is not default
        and not _is_same(value, default)
    }
    return pickle.dumps(other_fields) if other_fields else b""


def _unpickle_other_fields(rest: bytes) -> dict[str, Any]:
    """Return field → value of the bytes of `_pickle_other_fields`."""
    return pickle.loads(rest) if rest else {}  # noqa: S301  our own lanes'


def _is_same(value: Any, default: Any) -> bool:
    """Return true if a value of a plain type equals its default; false for other types."""
    return type(value) is type(default) and isinstance(value, _PLAIN) and value == default


_PLAIN = (int, float, dict, list, Arrivals, Due)


@functools.cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a report class, each with its default."""
    return tuple(
        (each.name, each.default if each.default_factory is MISSING else each.default_factory())
        for each in fields(kind)
    )


def senders_that_differ(reports: Iterable[LaneReport]) -> set[tuple[int, int]]:
    """Return the senders (as numbers) whose repeated attempts sent different rows to lanes."""
    digests: dict[tuple[int, int], int] = {}
    return {
        sender
        for report in reports
        for sender, digest in report.digests.items()
        if digests.setdefault(sender, digest) != digest
    }


_ROUTES = ("places", "suspended", "load", "whole", "resumed")
"""Fields of an operator's instruction with a value for every key group."""
_NOT_HERE = np.iinfo(np.int64).max
"""Floor of key groups of other executors: no table is at that version."""


_Chains: TypeAlias = tuple[
    bytes,  # floors of the executor's key groups, ascending
    tuple[SegmentRef, ...],
    dict[int, SnapshotRef],
    tuple[int, ...],  # key groups to snapshot
]
"""Part of a state's instruction for the lanes of one executor; plain values encode quickly."""
_Runs: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[Any], int]
"""Values by key group as runs: first key group and value of each, and number of key groups."""
_ExecutorPart: TypeAlias = tuple[list[_Chains], tuple[SegmentRef, ...]]
"""Part of an operator's instruction: its states' parts, and segments of waiting rows."""
_PARTS_ENCODER = msgspec.msgpack.Encoder()
_PARTS_DECODER = msgspec.msgpack.Decoder(list[_ExecutorPart])


class InstructionParts:
    """An epoch's instruction, packed in parts, and with it the rows that have no exchange."""

    def __init__(
        self,
        routes: bytes,
        own: dict[str, bytes],
        payloads: Mapping[int, Sequence[bytes]],
        tasks: tuple[bytes, ...],
    ) -> None:
        self.packed_routes, self.packed_own = routes, own
        self.payloads = payloads  # place → payloads that replace an exchange
        self.tasks = tasks  # what tasks of the source side read: for each, pickled items
        self._routes: EpochInstruction | None = None
        self._whole: dict[str, EpochInstruction] = {}

    @classmethod
    def of(
        cls,
        instruction: EpochInstruction,
        payloads: Mapping[int, Sequence[bytes]] | None = None,
        tasks: tuple[bytes, ...] = (),
    ) -> InstructionParts:
        """Return an epoch's instruction in parts, each sent only to the executor that needs it."""
        names = list(dict.fromkeys(executor for executor, _ in instruction.places))
        number_of_executor = {name: index for index, name in enumerate(names)}
        executor_of = np.array(
            [number_of_executor[name] for name, _ in instruction.places], np.int64
        )
        split_operators = [
            _split_by_executor(operator_part, executor_of, len(names))
            for operator_part in instruction.operators
        ]
        parts = cls(
            pickle.dumps(_pack_routes(instruction)),
            {
                name: _PARTS_ENCODER.encode(
                    [operator_part[executor_number] for operator_part in split_operators]
                )
                for executor_number, name in enumerate(names)
            },
            payloads or {},
            tasks,
        )
        parts._routes = instruction  # this process need not unpack it
        return parts

    @property
    def without_states(self) -> EpochInstruction:
        """Instruction without state chains, for tasks that only send rows."""
        if self._routes is None:
            self._routes = _unpack_routes(*pickle.loads(self.packed_routes))  # noqa: S301  ours
        return self._routes

    def for_place(self, place: int) -> EpochInstruction:
        """Return the instruction for lane task `place`, with the state chains of its executor."""
        routes = self.without_states
        executor, _ = routes.places[place]
        if executor not in self._whole:
            own = _PARTS_DECODER.decode(self.packed_own[executor])
            is_own = np.array([name == executor for name, _ in routes.places])
            self._whole[executor] = replace(
                routes,
                operators=tuple(
                    _add_executor_part(operator, part, np.flatnonzero(is_own[operator.places]))
                    for operator, part in zip(routes.operators, own, strict=True)
                ),
            )
        return self._whole[executor]

    def for_executor(self, executor: str) -> InstructionParts:
        """Return the instruction with the state chains of one executor only, for its lanes."""
        return InstructionParts(self.packed_routes, {executor: self.packed_own[executor]}, {}, ())

    def __reduce__(self) -> tuple[type[InstructionParts], tuple[Any, ...]]:
        return InstructionParts, (self.packed_routes, self.packed_own, self.payloads, self.tasks)


def _pack_routes(instruction: EpochInstruction) -> tuple[EpochInstruction, list[dict[str, Any]]]:
    """Return an instruction without its arrays, and the arrays, run-length encoded."""
    no_rows = np.empty(0, np.int64)
    no_routes: dict[str, Any] = dict.fromkeys(_ROUTES, no_rows)
    return (
        replace(
            instruction,
            operators=tuple(
                replace(
                    operator,
                    states=tuple(
                        replace(state, floor=no_rows, segments=(), snapshots={}, to_snapshot=())
                        for state in operator.states
                    ),
                    waiting=(),
                    **no_routes,
                )
                for operator in instruction.operators
            ),
        ),
        [
            {name: _run_length_encoded(getattr(operator, name)) for name in _ROUTES}
            for operator in instruction.operators
        ],
    )


def _unpack_routes(
    instruction: EpochInstruction, arrays: Sequence[dict[str, Any]]
) -> EpochInstruction:
    """Return an instruction with its arrays, from the parts that `_pack_routes` returned."""
    return replace(
        instruction,
        operators=tuple(
            replace(own, **{name: _run_length_decoded(runs) for name, runs in packed.items()})
            for own, packed in zip(instruction.operators, arrays, strict=True)
        ),
    )


def _run_length_encoded(values: npt.NDArray[Any]) -> npt.NDArray[Any] | _Runs:
    """Return values, run-length encoded if that is shorter."""
    starts, of_run = runs_of(values)
    return (starts, of_run, len(values)) if 4 * len(starts) < len(values) else values


def _run_length_decoded(packed: npt.NDArray[Any] | _Runs) -> Any:
    """Decode run-length encoded values; plain values stay."""
    return from_runs(*packed) if isinstance(packed, tuple) else packed


def _split_by_executor(
    operator: OperatorInstruction, executor_of: npt.NDArray[np.int64], executors: int
) -> list[_ExecutorPart]:
    """Return the part of an operator's instruction for each executor.

    `executor_of`: executor number of each place.
    """
    owner = executor_of[operator.places]
    order = np.argsort(owner, kind="stable")
    ends = np.searchsorted(owner[order], np.arange(executors + 1)).tolist()
    states = [_split_state_by_executor(state, owner, order, ends) for state in operator.states]
    waiting = _segments_by_executor(operator.waiting, owner, executors)
    return [([parts[e] for parts in states], tuple(waiting[e])) for e in range(executors)]


def _split_state_by_executor(
    state: StateInstruction,
    owner: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    ends: Sequence[int],
) -> list[_Chains]:
    """Return the chains of a state's instruction for each executor.

    `owner`: executor number of each key group. `order`: key groups ordered by owner. `ends`: bounds
    of each owner's key groups in `order`.
    """
    executors = len(ends) - 1
    segments = _segments_by_executor(state.segments, owner, executors)
    snapshots: list[dict[int, SnapshotRef]] = [{} for _ in range(executors)]
    for key_group, snapshot in state.snapshots.items():
        snapshots[owner[key_group]][key_group] = snapshot
    due: list[list[int]] = [[] for _ in range(executors)]
    for key_group in state.to_snapshot:
        due[owner[key_group]].append(key_group)
    floor = state.floor[order]
    return [
        (
            floor[ends[e] : ends[e + 1]].tobytes(),
            tuple(segments[e]),
            snapshots[e],
            tuple(due[e]),
        )
        for e in range(executors)
    ]


def _segments_by_executor(
    segments: Sequence[SegmentRef], owner: npt.NDArray[np.int64], executors: int
) -> list[list[SegmentRef]]:
    """Return for each executor the segments with rows of its key groups, in their order.

    `owner`: executor number of each key group.
    """
    segments_of_executor: list[list[SegmentRef]] = [[] for _ in range(executors)]
    if segments:
        numbers, key_groups = key_group_columns(segments)
        for pair in np.unique(owner[key_groups] * len(segments) + numbers).tolist():
            executor, number = divmod(pair, len(segments))
            segments_of_executor[executor].append(segments[number])
    return segments_of_executor


def _add_executor_part(
    operator: OperatorInstruction, part: _ExecutorPart, key_groups: npt.NDArray[np.int64]
) -> OperatorInstruction:
    """Return an operator's instruction with an executor's state chains added.

    `part`: these chains, and its segments of waiting rows. `key_groups`: those that it owns.
    """
    chains, waiting = part

    def whole(state: StateInstruction, state_chains: _Chains) -> StateInstruction:
        """Insert the executor's chains into the instruction of a state."""
        floors, segments, snapshots, to_snapshot = state_chains
        floor = np.full(len(operator.places), _NOT_HERE)
        floor[key_groups] = np.frombuffer(floors, np.int64)
        return replace(
            state, floor=floor, segments=segments, snapshots=snapshots, to_snapshot=to_snapshot
        )

    return replace(operator, states=tuple(map(whole, operator.states, chains)), waiting=waiting)
