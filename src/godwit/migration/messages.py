"""Messages of the protocol: its inputs of many fields, and its commands to the runtime.

Commands are carried out in order.

Switches of the assignment, suspension and loading concern the next epoch, never the running one.
`MigrationProtocol.next_epoch` returns all of these as one value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from godwit.migration.on_demand import OnDemand
from godwit.migration.strategy import Bounds, Strategy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from godwit.model import events
    from godwit.model.assignment import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCopies:
    """Key groups whose copies a peer is to send."""

    executor: str
    key_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWarming:
    """Bring copies of key groups at `executor` forward to the last committed epoch."""

    component: str
    executor: str
    key_groups: tuple[int, ...]  # ascending
    # repeated in the report; a newer attempt for the same key groups replaces an older one, which
    # may continue or stop
    attempt: str
    states: tuple[Any, ...] = ()  # the component's states at the time of the order
    # executors with copies to use first, and their key groups; key groups that they do not send,
    # and changes that their copies lack, are read from the checkpoint
    peers: tuple[PeerCopies, ...] = ()
    why: str = ""  # reason for the source; empty without a choice
    # make no copies, but verify and index the blocks of the checkpoint; no key group is reported
    index_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchAssignment:
    """Run the next epoch under `assignment`; record it durably before that epoch starts."""

    component: str
    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCopies:
    """Delete unused copies; they may be gone or incomplete."""

    component: str
    executor: str
    key_groups: tuple[int, ...]  # ascending
    states: tuple[Any, ...] = ()  # the component's states at the time of the order


@dataclass(frozen=True, slots=True)
class Announce:
    """Announce a decision of the protocol, such as suspended key groups.

    The decision is part of `MigrationProtocol.next_epoch`.
    """

    event: type[events.Event]
    values: Mapping[str, Any] = field(default_factory=dict)  # its fields, except epoch and time


class MigrationOutcome(StrEnum):
    """Final state of a migration."""

    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMigration:
    """End of a migration: the component is free for the next one."""

    id: str  # of the migration
    component: str
    # finished (after a commit under its last assignment), or cancelled (on request, or because all
    # moves were withdrawn)
    outcome: MigrationOutcome
    moved: int  # key groups that changed executor as planned
    withdrawn: int  # planned moves that were cancelled
    reason: str = ""  # why moves were withdrawn; empty if none were


Command = StartWarming | SwitchAssignment | DropCopies | EndMigration | Announce


@dataclass(slots=True, kw_only=True)
class SlotPair:
    """Two slots of every key group."""

    states: tuple[Any, Any]  # state of the first slots, and of the second
    second: set[int] = field(default_factory=set)  # key groups whose second slot takes rows
    # key groups whose other slot still takes rows of earlier panes
    smooth: set[int] = field(default_factory=set)
    # key groups whose first, and whose second slot is empty
    empty: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))

    def is_active(self, slot: int, key_group: int) -> bool:
        """Return true if a slot (0 or 1) takes the rows of a key group."""
        return (key_group in self.second) == (slot == 1)

    def record_empty(self, empty: Mapping[Any, frozenset[int]]) -> None:
        """Record the key groups without entries in each slot; `empty`: state of a slot → these."""
        for slot, state in enumerate(self.states):
            if state in empty:
                self.empty[slot].clear()
                self.empty[slot].update(empty[state])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Start of a run: the durable state and the executors. Every local store is empty."""

    run_id: str  # unique to the run; reports of an earlier run are recognised by it
    executors: Mapping[str, int]  # name → lanes
    # component → its last durable assignment (any assignment in a first run)
    assignments: Mapping[str, Assignment]
    committed: int = -1  # the last committed epoch; -1 before the first
    # component → key groups with rows in a wait buffer
    waiting: Mapping[str, Collection[int]] = field(default_factory=dict)
    # component → key group → bytes of state, as far as known
    state_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    slots: tuple[SlotPair, ...] = ()  # states that are two slots of every key group of one operator
    on_demand: OnDemand = field(default_factory=OnDemand)  # states that can be fetched on demand


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRequested:
    """Request to migrate a component to a target assignment."""

    id: str  # chosen by the caller
    component: str  # it may have one migration at a time
    target: Assignment  # with lanes and list of executors
    strategy: Strategy = Strategy.LIVE
    # the coordinator may choose ``ON_DEMAND`` or ``DISRUPTIVE`` instead of ``LIVE``, by costs
    chooses: bool = False
    # share of its time by which the busiest lane is relieved, where that is known
    relief: float = 0.0
    bounds: Bounds = field(default_factory=Bounds)
    # key group → load, for the order of the moves (see `order_moves`); default: 1 each
    loads: Mapping[int, float] = field(default_factory=dict)
    # key groups in the planned order of their moves; others follow, by load
    order: tuple[int, ...] = ()
    # key group → bytes of state, where better known than from the last commit
    state_bytes: Mapping[int, int] = field(default_factory=dict)
    # requested by a user; false for requests of a controller or a regrouping
    by_hand: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesRequested:
    """Request to move key groups to other lanes of their executors; no state moves."""

    component: str
    # executor → new number of lanes of the component there; left out: as before
    lanes: Mapping[str, int] = field(default_factory=dict)
    # key group → lane within the executor that owns it; left out: as before
    lane_of: Mapping[int, int] = field(default_factory=dict)


CONTROLLER: Final = "control-"
"""Prefix of the ids of a controller's migrations."""


def is_own(migration: str) -> bool:
    """Return whether the controller started the migration with this id."""
    return migration.startswith(CONTROLLER)
