"""Instruction of an epoch in parts: one part for all lanes, and one for the lanes of each executor.

Most of an instruction are references to changelog segments, with the bytes of small ones, and each
is needed only on the executors of its key groups.  So they are packed by executor; the routes of
rows, which every lane needs, are packed once, run-length encoded.  Each part is unpacked once per
Python process, and only where it is needed.

Invariant: for the key groups of a place, `InstructionParts.for_place` equals the whole instruction.
Other key groups are not brought forward by it.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from godwit.checkpoint.framing import key_group_columns
from godwit.checkpoint.records import SegmentRef, SnapshotRef
from godwit.model.key_groups import from_runs, runs_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.engine.lane.messages import (
        EpochInstruction,
        OperatorInstruction,
        StateInstruction,
    )

__all__ = ["InstructionParts"]

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
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[_ExecutorPart])


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
                name: _ENCODER.encode(
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
            own = _DECODER.decode(self.packed_own[executor])
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
