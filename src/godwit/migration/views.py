"""The protocol's state as values that anybody may keep: plans of epochs, transfers, views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.migration.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.model.assignment import Assignment, Move

__all__ = ["ComponentView", "EpochPlan", "ProtocolView", "Transfer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """Plan of one component for one epoch."""

    assignment: Assignment  # the place of every key group
    suspended: frozenset[int]  # key groups whose rows go to their wait buffers
    # key groups that may be anywhere: their lanes load them before they process
    load: frozenset[int]
    # key groups that run and have rows waiting: those come first, in order, all of them
    consume: frozenset[int]
    # Of a component that is one of two slots of every key group: where it is the one that takes
    # rows. ``None`` of others.
    takes: frozenset[int] | None = None
    # those of them whose other slot takes rows of panes that it has
    smooth: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One key group on its way to being warm somewhere."""

    # key_group, destination, state_bytes: what, where to, how large
    key_group: int
    destination: str
    state_bytes: int
    planned: bool  # whether a migration asked for it; otherwise a suspended key group waits for it
    attempt: str | None = None  # the attempt in progress; ``None`` before it is ordered
    # attempts of this round that fell silent: their copies count too, whenever they report
    former: tuple[str, ...] = ()
    warm: bool = False  # whether the attempt has reported (the copy may have fallen behind since)
    rounds: int = 1  # rounds of catching up so far
    tries: int = 0  # attempts of this round that failed or fell silent
    due: int = 0  # second at which silence becomes a failure, and a failure another attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentView:
    """A component as the protocol sees it now."""

    assignment: Assignment  # of the next epoch
    # suspended, waiting, load: key groups that do not run, that have rows waiting, that the next
    # epoch loads
    suspended: frozenset[int]
    waiting: frozenset[int]
    load: frozenset[int]
    transfers: tuple[Transfer, ...]  # what is in flight, by key group
    moves: tuple[Move, ...]  # planned moves that are not in flight yet, in order
    # migration, strategy: the migration in progress, if any
    migration: str | None
    strategy: Strategy | None
    # whether that migration has moved everything, and waits for an epoch under its assignment
    settling: bool
    takes: frozenset[int] | None = None  # as of `EpochPlan`
    # key groups that would migrate without their state now, since their other slot is empty
    instant: frozenset[int] = frozenset()

    @property
    def default_strategy(self) -> Strategy:
        """Default strategy: one that moves no state, if possible."""
        return Strategy.LIVE if self.takes is None else Strategy.INSTANT


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolView:
    """The protocol's state as a value."""

    # executors, draining: name → lanes of those that are there, and those of them that are to leave
    executors: Mapping[str, int]
    draining: frozenset[str]
    # committed, running: the last committed epoch, and the one that runs now, if any
    committed: int
    running: int | None
    holds: tuple[str, ...]  # why no epoch may start; empty where one may
    components: Mapping[str, ComponentView]  # component → its state

    @property
    def waiting(self) -> bool:
        """True if any row waits."""
        return any(c.waiting for c in self.components.values())

    @property
    def due(self) -> bool:
        """True if an epoch has work even without input."""
        return not self.holds and any(
            c.settling or c.waiting - c.suspended for c in self.components.values()
        )

    @property
    def awaits(self) -> bool:
        """True if anything is in flight that may have to be tried again."""
        return bool(self.holds) or any(c.transfers for c in self.components.values())
