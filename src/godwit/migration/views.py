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
    """How one component runs in one epoch.

    Attributes
    ----------
    assignment
        The place of every key group.
    suspended
        Key groups whose rows go to their wait buffers.
    load
        Key groups that may be anywhere: their lanes load them before they process.
    consume
        Key groups that run and have rows waiting: those come first, in order, all of them.
    takes
        Of a component that is one of two slots of every key group: where it is the one that takes
        rows. ``None`` of others.
    smooth
        Those of them whose other slot takes rows of panes that it has.
    """

    assignment: Assignment
    suspended: frozenset[int]
    load: frozenset[int]
    consume: frozenset[int]
    takes: frozenset[int] | None = None
    smooth: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One key group on its way to being warm somewhere.

    Attributes
    ----------
    key_group, destination, state_bytes
        What, where to, how large.
    planned
        Whether a migration asked for it; otherwise a suspended key group waits for it.
    attempt
        The attempt under way; ``None`` before it is ordered.
    former
        Attempts of this round that fell silent: their copies count too, whenever they report.
    warm
        Whether the attempt has reported (the copy may have fallen behind since).
    rounds
        Rounds of catching up so far.
    tries
        Attempts of this round that failed or fell silent.
    due
        Second at which silence becomes a failure, and a failure another attempt.
    """

    key_group: int
    destination: str
    state_bytes: int
    planned: bool
    attempt: str | None = None
    former: tuple[str, ...] = ()
    warm: bool = False
    rounds: int = 1
    tries: int = 0
    due: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentView:
    """A component as the protocol sees it now.

    Attributes
    ----------
    assignment
        Of the next epoch.
    suspended, waiting, load
        Key groups that do not run, that have rows waiting, that the next epoch loads.
    transfers
        What is in flight, by key group.
    moves
        Planned moves that are not in flight yet, in order.
    migration, strategy
        The migration under way, if any.
    settling
        Whether that migration has moved everything, and waits for an epoch under its assignment.
    takes
        As of `EpochPlan`.
    instant
        Key groups that would migrate without their state now, since their other slot is empty.
    """

    assignment: Assignment
    suspended: frozenset[int]
    waiting: frozenset[int]
    load: frozenset[int]
    transfers: tuple[Transfer, ...]
    moves: tuple[Move, ...]
    migration: str | None
    strategy: Strategy | None
    settling: bool
    takes: frozenset[int] | None = None
    instant: frozenset[int] = frozenset()

    @property
    def default_strategy(self) -> Strategy:
        """How it migrates where nobody says how: without moving state, if that is possible."""
        return Strategy.LIVE if self.takes is None else Strategy.INSTANT


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolView:
    """The protocol's state as a value.

    Attributes
    ----------
    executors, draining
        Name → lanes of those that are there, and those of them that are to leave.
    committed, running
        The last committed epoch, and the one that runs now, if any.
    holds
        Why no epoch may start; empty where one may.
    components
        Component → its state.
    """

    executors: Mapping[str, int]
    draining: frozenset[str]
    committed: int
    running: int | None
    holds: tuple[str, ...]
    components: Mapping[str, ComponentView]

    @property
    def waiting(self) -> bool:
        """Whether any row waits."""
        return any(c.waiting for c in self.components.values())

    @property
    def due(self) -> bool:
        """Whether an epoch has something to do even if it has no input."""
        return not self.holds and any(
            c.settling or c.waiting - c.suspended for c in self.components.values()
        )

    @property
    def awaits(self) -> bool:
        """Whether anything is on its way that may have to be tried again."""
        return bool(self.holds) or any(c.transfers for c in self.components.values())
