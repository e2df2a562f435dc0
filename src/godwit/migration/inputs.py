"""Inputs of the protocol: facts.

The calls of the runtime (epochs, executors, requests) arrive once and in order.  Reports of warming
come from background jobs: they may be lost, late, repeated, or belong to an attempt that has long
been replaced.  Both kinds are plain values, so a run can be recorded and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from godwit.migration.strategy import Bounds, Strategy

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

    from godwit.migration.state import SlotPair
    from godwit.model.assignment import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Start of a run: the durable state and the executors. Every local store is empty."""

    run_id: str  # unique to the run; reports of an earlier run are recognised by it
    executors: Mapping[str, int]  # name → lanes
    # component → its last durable assignment (of a first run: any)
    assignments: Mapping[str, Assignment]
    committed: int = -1  # the last committed epoch; -1 before the first
    # component → key groups with rows in a wait buffer
    waiting: Mapping[str, Collection[int]] = field(default_factory=dict)
    # component → key group → bytes of state, as far as known
    state_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    slots: tuple[SlotPair, ...] = ()  # states that are two slots of every key group of one operator


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRequested:
    """A plan is to be carried out."""

    id: str  # the caller's name for the migration
    component: str  # it may have one migration at a time
    target: Assignment  # the assignment to arrive at, lanes and list of executors included
    strategy: Strategy = Strategy.LIVE
    bounds: Bounds = field(default_factory=Bounds)
    # key group → load, for the order of the moves (see `order_moves`); 1 each if left out
    loads: Mapping[int, float] = field(default_factory=dict)
    # key groups in the order in which a plan wants them to move; those that it does not name
    # follow, by load
    order: tuple[int, ...] = ()
    # key group → bytes of state, where known better than the last commit told
    state_bytes: Mapping[int, int] = field(default_factory=dict)
    # whether a person decided it; false of what a controller or a regrouping asks for
    by_hand: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CancellationRequested:
    """A migration is to end: what has switched stays, the rest does not move."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesRequested:
    """Key groups are to change lane within their executors: no state moves."""

    component: str
    # executor → number of lanes the component is to have there; left out: as before
    lanes: Mapping[str, int] = field(default_factory=dict)
    # key group → lane within the executor that owns it; left out: as before
    lane_of: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalPlanChanged:
    """The next epoch runs under another physical plan; unchanged components are not listed."""

    # Component → components until now that it is made of, of all or some of their operators. They
    # rest, and are in the same places.
    parts: Mapping[str, tuple[str, ...]]
    states: Mapping[str, tuple[Hashable, ...]]  # component → its states
    # component → key group → bytes of state, as far as known
    state_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmingFinished:
    """An attempt has brought copies forward."""

    component: str
    executor: str
    attempt: str  # as `StartWarming` named it
    # Key group → epoch; all changes of committed epochs up to it are in the copy. Key groups of the
    # attempt that are left out are still in progress.
    versions: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmingFailed:
    """An attempt to warm these key groups failed (no room, corrupt file, lost task)."""

    component: str
    executor: str
    attempt: str
    key_groups: Collection[int]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStarted:
    """An epoch begins, as `MigrationProtocol.next_epoch` planned it (and as now recorded)."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSucceeded:
    """The running epoch's record is durable."""

    epoch: int
    # component → key groups whose rows of this epoch went to the wait buffer
    waited: Mapping[str, Collection[int]] = field(default_factory=dict)
    # component → executor → key group → version of the copy there now, as far as lanes saw
    held: Mapping[str, Mapping[str, Mapping[int, int]]] = field(default_factory=dict)
    # component → key group → bytes of state, where changed
    state_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    # state that is a slot → key groups of which it holds nothing
    empty: Mapping[Hashable, frozenset[int]] = field(default_factory=dict)
    seconds: int = 1  # whole seconds that have passed since the last fact that said so


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFailed:
    """The running attempt at an epoch failed; the next one is planned anew."""

    epoch: int
    seconds: int = 1  # as of `EpochSucceeded`


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochHeld:
    """An epoch was due but epochs are held, or none is due while copies are awaited.

    The only passing of time while nothing runs.
    """

    seconds: int = 1  # as of `EpochSucceeded`


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorJoined:
    """An executor with an empty local store joined."""

    executor: str
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLeft:
    """An executor and its local store are gone."""

    executor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested:
    """An executor is to be removed later: nothing may move onto it any more."""

    executor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StayRequested:
    """An executor that was to be removed stays: key groups may move onto it again."""

    executor: str


Fact = (
    MigrationRequested
    | CancellationRequested
    | LanesRequested
    | PhysicalPlanChanged
    | WarmingFinished
    | WarmingFailed
    | EpochStarted
    | EpochSucceeded
    | EpochFailed
    | EpochHeld
    | ExecutorJoined
    | ExecutorLeft
    | DrainRequested
    | StayRequested
)
"""An input of `MigrationProtocol.handle`."""
