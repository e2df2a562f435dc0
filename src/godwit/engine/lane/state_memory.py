"""Bound on the memory of state: which key groups leave the tables of a lane, and when.

A lane accounts for its share of the executor's tables, by the blocks of their files.  Before it
reads state, and again if it has read too much, key groups are *evicted*: they become partial copies
without entries (`LocalState.evict`), and only entries of touched keys come back.  All key groups of
a state leave together: with hashed keys they are alike, and a file without blocks costs nothing to
make.  An eviction makes later epochs fetch at most as many keys again as were fetched before it.

Invariant: no entries are evicted between bringing an operator's states forward and processing its
rows, and none of key groups of other lanes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from godwit.engine.lane.executor import local_state
from godwit.model.errors import StateMemoryError
from godwit.model.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.store.local_store import LocalState

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
class _State:
    """A state with tables that the lane accounts for."""

    operator: str
    local: LocalState
    why_all: str  # why entries of touched keys alone cannot be fetched; empty if they can
    others: Mask  # key groups of other lanes of the executor
    in_use: bool = False
    least_bytes: int = 0  # of its tables without entries, once it was evicted in this epoch
    came_again: bool = False  # was evicted in this epoch after it had been brought forward

    @property
    def reads_touched(self) -> bool:
        """True if entries of touched keys alone can be fetched."""
        return not self.why_all


@dataclass(slots=True, kw_only=True)
class StateMemory:
    """Memory of the state of one lane during an epoch.

    `bytes_of_all`: bound of the executor. `lane`, `lanes`: index of the lane among those of its
    executor, and their number. `evicted`: operator → number of its evicted key groups.
    """

    bytes_of_all: int
    lane: int
    lanes: int
    _states: Mapping[str, _State]
    evicted: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_lane(
        cls, flow: LaneFlow, instruction: EpochInstruction, place: int, root: Path
    ) -> StateMemory | None:
        """Return the memory of a lane; ``None`` without a bound. `root`: of the local store."""
        if not instruction.state_memory:
            return None
        executor = instruction.places[place][0]
        places_here = [i for i, (name, _) in enumerate(instruction.places) if name == executor]
        states: dict[str, _State] = {}
        for member, operator_instruction in zip(flow.operators, instruction.operators, strict=True):
            is_of_other_lane = np.isin(
                operator_instruction.places, [i for i in places_here if i != place]
            )
            for state in operator_instruction.states:
                schema = member.states[state.state.state].schema
                states[str(state.state)] = _State(
                    operator=member.operator.name,
                    local=local_state(
                        root, str(state.state), schema, len(operator_instruction.places)
                    ),
                    why_all=why_all(member.operator.reads_touched, instruction),
                    others=is_of_other_lane,
                )
        return cls(
            bytes_of_all=instruction.state_memory,
            lane=places_here.index(place),
            lanes=len(places_here),
            _states=states,
        )

    @property
    def share_bytes(self) -> int:
        """Bytes that the tables of the lane may have."""
        return self.bytes_of_all // self.lanes

    def used_bytes(self) -> int:
        """Bytes of the blocks of the lane's tables."""
        return sum(self._bytes_of(state) for state in self._states.values())

    def _bytes_of(self, state: _State) -> int:
        """Return the bytes of the blocks of one state's tables."""
        return state.local.file_bytes(self.lane, self.lanes)

    def release(self) -> None:
        """Allow all entries to be evicted: no operator needs them any more in this epoch."""
        for state in self._states.values():
            state.in_use = False

    def make_room(self, name: str, num_keys: int) -> None:
        """Evict key groups if there is no room for the entries of keys of a state."""
        state = self._states[name]
        needed = int(num_keys * state.local.bytes_per_key(self.lane, self.lanes))
        self._evict(self.share_bytes - needed)

    def admit(self, name: str, needed: Mask) -> bool:
        """Keep the entries of a state that was brought forward, if there is room for them.

        Returns false if they were evicted, and the state has to be brought forward again. `needed`:
        key groups that are needed. Entries of other states, and of other key groups of an operator
        that reads all entries of some, leave first. Raises `StateMemoryError` if the state needs
        too much again.
        """
        state = self._states[name]
        state.in_use = True
        self._evict(self.share_bytes)
        if not is_over(self.used_bytes(), self.share_bytes):
            return True
        if state.reads_touched and not state.came_again:
            state.came_again = True
            self._evict_state(state, ~state.others)
            return False
        if not state.reads_touched:
            self._evict_state(state, ~state.others & ~needed)
        self._check()
        return True

    def _check(self) -> None:
        """Raise `StateMemoryError` if the tables are larger than the lane's share."""
        used = self.used_bytes()
        if used <= self.share_bytes:
            return
        sizes = {name: self._bytes_of(state) for name, state in self._states.items()}
        name = max(sizes, key=sizes.__getitem__)
        state = self._states[name]
        raise StateMemoryError(
            f"An epoch needs {human_bytes(used)} of state at once in one of {self.lanes} lanes, "
            f"{human_bytes(sizes[name])} of them for operator {state.operator!r}. Each lane has a "
            f"share of {human_bytes(self.share_bytes)} of the {human_bytes(self.bytes_of_all)} of "
            "state_memory.",
            remedy=(
                "Limit the rows of an epoch, give more state_memory, or add executors."
                if state.reads_touched
                else "It needs all state of the key groups that have rows, because "
                f"{state.why_all}: give more state_memory, or add executors."
            ),
            operator=state.operator,
            needed_bytes=used,
            share_bytes=self.share_bytes,
        )

    def _evict(self, until_bytes: int) -> None:
        """Evict states that are not in use, larger ones first, until the bytes are not too many."""
        used = {name: self._bytes_of(state) for name, state in self._states.items()}
        total = sum(used.values())
        for name in sorted(used, key=lambda name: -used[name]):
            state = self._states[name]
            if not is_over(total, until_bytes):
                break
            if state.in_use or not state.reads_touched or used[name] <= state.least_bytes:
                continue
            self._evict_state(state, ~state.others)
            state.least_bytes = self._bytes_of(state)
            total += state.least_bytes - used[name]

    def _evict_state(self, state: _State, key_groups: Mask) -> None:
        """Evict key groups of a state."""
        candidates = np.flatnonzero(key_groups)
        state.local.refresh(candidates)
        stored = candidates[state.local.versions[candidates] >= 0]
        state.local.evict(stored)
        self.evicted[state.operator] = self.evicted.get(state.operator, 0) + len(stored)


def why_all(declared: bool, instruction: EpochInstruction) -> str:
    """Return why the entries of touched keys alone cannot be fetched; empty if they can.

    `declared`: true if the operator reads no others.
    """
    if not declared:
        return "the operator reads entries of other keys too"
    if instruction.restore != "touched":
        return f"the setting restore of lanes is {instruction.restore!r}"
    if not instruction.storage.maps:
        return "the checkpoint is not on a disk of this machine"
    return ""


def is_over(used_bytes: int, bound_bytes: int) -> bool:
    """Return true if tables are larger than a bound."""
    return used_bytes > bound_bytes


def is_partial_here(local: LocalState, key_groups: Mask) -> Mask:
    """Return a mask of those of some key groups of which a local store has a partial copy."""
    local.refresh(np.flatnonzero(key_groups))
    return key_groups & (local.bases >= 0)


def is_whole_here(local: LocalState, key_groups: Mask) -> Mask:
    """Return a mask of those of some key groups of which a local store has all entries."""
    local.refresh(np.flatnonzero(key_groups))
    return key_groups & (local.versions >= 0) & (local.bases < 0)
