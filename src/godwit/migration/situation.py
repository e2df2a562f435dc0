"""State that all components of a run share: executors, epochs, and orders so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.migration.commands import Command, LoadKeyGroups, ResumeKeyGroups, SuspendKeyGroups
    from godwit.migration.copies import Copies
    from godwit.migration.strategy import LossPolicy, Policy
    from godwit.migration.views import EpochPlan

__all__ = ["RunningEpoch", "Situation", "SlotPair"]


@dataclass(slots=True, kw_only=True)
class RunningEpoch:
    """The attempt at an epoch that runs now."""

    epoch: int  # the epoch
    plans: Mapping[str, EpochPlan]  # component → the plan it started with
    # executors that died since it started; Spark may yet have finished their lanes elsewhere
    lost: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class SlotPair:
    """Two slots of every key group."""

    states: tuple[Any, Any]  # the first slots' state, and the second ones'
    second: set[int] = field(default_factory=set)  # key groups whose second slot takes rows
    # key groups whose other slot still takes rows of earlier panes
    smooth: set[int] = field(default_factory=set)
    # key groups whose first, and whose second slot holds nothing
    empty: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))

    def is_active(self, slot: int, key_group: int) -> bool:
        """Return true if a slot takes rows."""
        return (key_group in self.second) == (slot == 1)

    def note(self, empty: Mapping[Any, frozenset[int]]) -> None:
        """Record the slots that hold nothing, as of an epoch."""
        for slot, state in enumerate(self.states):
            if state in empty:
                self.empty[slot].clear()
                self.empty[slot].update(empty[state])


@dataclass(slots=True, kw_only=True)
class Situation:
    """State of a run that every transition reads."""

    run_id: str  # unique to the run
    policy: Policy  # what holds for the whole run
    # what becomes of key groups without a fresh copy: ``on_start`` until the first commit, then
    # ``on_loss``
    on_cold: LossPolicy
    executors: dict[str, int]  # name → lanes of those that are there
    copies: Copies  # who holds what
    committed: int  # the last committed epoch
    draining: set[str] = field(default_factory=set)  # those of them that are to leave
    running: RunningEpoch | None = None  # the epoch that runs, if any
    seconds: int = 0  # whole seconds that have passed, as facts say: the only clock
    attempts: int = 0  # number of attempts at warming so far
    # components that are two slots of every key group of one operator
    slots: tuple[SlotPair, ...] = ()
    orders: list[Command] = field(default_factory=list)  # what the fact at hand has led to

    @property
    def horizon(self) -> int:
        """The last epoch that may be committed when the next one starts."""
        return self.running.epoch if self.running else self.committed

    def next_attempt(self) -> str:
        """Name an attempt at warming like no other of any run."""
        self.attempts += 1
        return f"{self.run_id}/{self.attempts}"

    def order(
        self,
        kind: type[SuspendKeyGroups | ResumeKeyGroups | LoadKeyGroups],
        component: str,
        key_groups: Iterable[int],
    ) -> None:
        """Give an order about key groups, unless there are none."""
        ascending = tuple(sorted(key_groups))
        if ascending:
            self.orders.append(kind(component=component, key_groups=ascending))
