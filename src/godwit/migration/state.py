"""State of the protocol: the part all transitions share, and read-only views of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from godwit.migration.messages import Announce
from godwit.migration.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.migration.copies import Copies
    from godwit.migration.messages import Command, SlotPair
    from godwit.migration.on_demand import OnDemand
    from godwit.migration.strategy import LossPolicy, Policy
    from godwit.model import events
    from godwit.model.assignment import Assignment, Move


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One key group whose copy is being warmed."""

    key_group: int
    destination: str
    state_bytes: int
    planned: bool  # requested by a migration; otherwise a suspended key group waits for it
    attempt: str | None = None  # the attempt in progress; ``None`` before it is ordered
    # attempts of this round that timed out: their copies count too, if they report later
    former: tuple[str, ...] = ()
    warm: bool = False  # the attempt has reported (the copy may lag since)
    rounds: int = 1  # rounds of catching up so far
    tries: int = 0  # attempts of this round that failed or timed out
    due: int = 0  # second of the time-out, or of the next attempt after a failure
    failure: str = ""  # reason of the last failure; empty after a time-out


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentView:
    """Read-only view of a component: how it runs in the next epoch, and its moves."""

    assignment: Assignment  # the place of every key group
    suspended: frozenset[int] = frozenset()  # key groups whose rows go to their wait buffers
    waiting: frozenset[int] = frozenset()  # key groups that have rows waiting
    # key groups that lanes load before they process them
    load: frozenset[int] = frozenset()
    # those of them that are loaded whole, though entries could be fetched on demand
    whole: frozenset[int] = frozenset()
    transfers: tuple[Transfer, ...] = ()  # in flight, by key group
    moves: tuple[Move, ...] = ()  # planned moves that are not in flight yet, in order
    migration: str | None = None  # the migration in progress, if any
    strategy: Strategy | None = None  # of that migration
    settling: bool = False  # all moves are made; an epoch under the new assignment is awaited
    # of a slot of two-phase windows: key groups whose rows it takes; ``None`` for other components
    takes: frozenset[int] | None = None
    # those of them whose other slot still takes rows of its panes
    smooth: frozenset[int] = frozenset()
    # key groups that can migrate without state now, since their other slot is empty
    instant: frozenset[int] = frozenset()
    by_hand: bool = False  # a user requested the migration in progress

    @property
    def consume(self) -> frozenset[int]:
        """Key groups that are not suspended and have waiting rows, which are processed first."""
        return self.waiting - self.suspended

    @property
    def default_strategy(self) -> Strategy:
        """Default strategy: ``INSTANT`` for two-phase windows, else ``LIVE``."""
        return Strategy.LIVE if self.takes is None else Strategy.INSTANT


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolView:
    """Read-only view of the protocol's state."""

    executors: Mapping[str, int]  # name → lanes of live executors
    draining: frozenset[str]  # those of them that are draining
    committed: int  # the last committed epoch
    running: int | None  # the epoch that runs now, if any
    holds: tuple[str, ...]  # reasons why no epoch may start
    components: Mapping[str, ComponentView]  # component → its state
    # component → number of users' migrations begun in this run, so that one that begins and ends
    # between two views is seen too
    begun_by_hand: Mapping[str, int] = field(default_factory=dict)

    @property
    def waiting(self) -> bool:
        """True if rows wait for any key group."""
        return any(component.waiting for component in self.components.values())

    @property
    def due(self) -> bool:
        """True if an epoch has work to do even without input."""
        return not self.holds and any(
            component.settling or component.consume for component in self.components.values()
        )

    def owns_nothing(self, executor: str) -> bool:
        """Return true if an executor has no key groups, and none move to it."""
        return not any(
            (
                executor in component.assignment.executors
                and len(component.assignment.key_groups(executor))
            )
            or any(transfer.destination == executor for transfer in component.transfers)
            or any(move.destination == executor for move in component.moves)
            for component in self.components.values()
        )

    @property
    def awaits(self) -> bool:
        """True if epochs are held or copies are awaited, so that time-outs must be checked."""
        return bool(self.holds) or any(
            component.transfers or (component.moves and component.strategy is Strategy.ON_DEMAND)
            for component in self.components.values()
        )


@dataclass(slots=True, kw_only=True)
class ProtocolState:
    """State that all components of a run share: executors, epochs, and orders so far."""

    run_id: str  # unique to the run
    policy: Policy
    # treatment of key groups without a fresh copy: ``on_start`` until the first commit, then
    # ``on_loss``
    on_cold: LossPolicy
    executors: dict[str, int]  # name → lanes of live executors
    copies: Copies
    on_demand: OnDemand
    committed: int  # the last committed epoch
    draining: set[str] = field(default_factory=set)  # of the executors
    running: int | None = None  # the running epoch, if any
    # component → how it runs in the running or the last epoch
    component_views: Mapping[str, ComponentView] = field(default_factory=dict)
    # executors lost since its start; Spark may have run their lanes elsewhere
    lost: set[str] = field(default_factory=set)
    seconds: int = 0  # whole seconds that have passed, by reported facts: the only clock
    attempts: int = 0  # number of attempts at warming so far
    begun_by_hand: dict[str, int] = field(default_factory=dict)  # as of `ProtocolView`
    # components that are two slots of every key group of one operator
    slots: tuple[SlotPair, ...] = ()
    orders: list[Command] = field(default_factory=list)  # results of the current fact

    @property
    def horizon(self) -> int:
        """Epoch that is committed once the next one starts: the running one, else the last."""
        return self.committed if self.running is None else self.running

    def next_attempt(self) -> str:
        """Return an id for the next attempt at warming, unique over all runs."""
        self.attempts += 1
        return f"{self.run_id}/{self.attempts}"

    def announce(
        self,
        event: type[events.Event],
        component: str,
        key_groups: Iterable[int],
        **flags: bool,
    ) -> None:
        """Announce an event about key groups of a component, unless there are none.

        `flags`: other fields of the event, false by default.
        """
        ascending = tuple(sorted(key_groups))
        if ascending:
            values: dict[str, Any] = {"component": component, "key_groups": ascending}
            values |= {name: flag for name, flag in flags.items() if flag}
            self.orders.append(Announce(event, values))
