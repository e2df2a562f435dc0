"""What all components of a run share: executors, epochs, and the orders given so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.migration.commands import Command, LoadKeyGroups, ResumeKeyGroups, SuspendKeyGroups
    from godwit.migration.copies import Copies
    from godwit.migration.slots import SlotPair
    from godwit.migration.strategy import LossPolicy, Policy
    from godwit.migration.views import EpochPlan

__all__ = ["RunningEpoch", "Situation"]


@dataclass(slots=True, kw_only=True)
class RunningEpoch:
    """The attempt at an epoch that runs now.

    Attributes
    ----------
    epoch
        The epoch.
    plans
        Component → the plan it started with.
    lost
        Executors that died since it started; Spark may yet have finished their lanes elsewhere.
    """

    epoch: int
    plans: Mapping[str, EpochPlan]
    lost: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Situation:
    """The situation that every transition looks at.

    Attributes
    ----------
    run_id
        Unique to the run.
    policy
        What holds for the whole run.
    on_cold
        What becomes of key groups without a fresh copy: ``on_start`` until the first commit, then
        ``on_loss``.
    executors
        Name → lanes of those that are there.
    draining
        Those of them that are to leave.
    copies
        Who holds what.
    committed
        The last committed epoch.
    running
        The epoch that runs, if any.
    seconds
        Whole seconds that have passed, as facts say: the only clock.
    attempts
        Number of attempts at warming so far.
    slots
        Components that are two slots of every key group of one operator.
    orders
        What the fact at hand has led to.
    """

    run_id: str
    policy: Policy
    on_cold: LossPolicy
    executors: dict[str, int]
    copies: Copies
    committed: int
    draining: set[str] = field(default_factory=set)
    running: RunningEpoch | None = None
    seconds: int = 0
    attempts: int = 0
    slots: tuple[SlotPair, ...] = ()
    orders: list[Command] = field(default_factory=list)

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
