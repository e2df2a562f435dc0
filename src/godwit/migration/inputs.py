"""Inputs of the protocol that have many fields: the start of a run, and requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from godwit.migration.strategy import Bounds, Strategy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from godwit.migration.state import SlotPair
    from godwit.model.assignment import Assignment


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRequested:
    """Request to migrate a component to a target assignment."""

    id: str  # chosen by the caller
    component: str  # it may have one migration at a time
    target: Assignment  # with lanes and list of executors
    strategy: Strategy = Strategy.LIVE
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
