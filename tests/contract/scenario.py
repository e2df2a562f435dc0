"""Scenarios as values: what happens to one flow, between and within which epochs.

A scenario is a list of steps; `tests.contract.realization` says who carries them out, and
`tests.contract.verdict` what must be true afterwards, whoever did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from godwit.migration import Bounds, Policy, Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Cancel",
    "Deal",
    "Drain",
    "Executors",
    "ForgetStore",
    "Lanes",
    "Migrate",
    "Misfortune",
    "Policy",
    "Quiet",
    "Regroup",
    "Restart",
    "Rows",
    "Scenario",
    "Settle",
    "Step",
    "Warming",
]

Misfortune = Literal["aborted", "planned", "staged", "committed"]
"""What befalls an epoch.

``"aborted"``: its lanes have written and reported, but it is not committed; the next attempt is
planned anew.  The others: the driver dies when the epoch is planned, when its lanes have reported,
when it is committed but nothing of it delivered; `Restart` follows.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """An epoch with rows.

    Attributes
    ----------
    count
        How many.
    keys
        Among how many keys.
    misfortune
        What befalls it.
    loses
        An executor that is lost after its lanes have written: the attempt comes to nothing.
    """

    count: int = 60
    keys: int = 40
    misfortune: Misfortune | None = None
    loses: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """Whatever is due without rows happens: epochs without input, warming, time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Things continue without rows until none waits and no migration is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrate:
    """A migration is asked for.

    Attributes
    ----------
    component
        Whose key groups: those of this operator, and of those that share its component.
    to
        The executor that gets them; ``None``: each goes to the next executor but one.
    key_groups
        Which; ``None`` for all.
    strategy, bounds
        How.
    """

    component: str
    to: str | None = None
    key_groups: tuple[int, ...] | None = None
    strategy: Strategy = Strategy.LIVE
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """All key groups of a component are dealt out anew over other numbers of lanes."""

    component: str
    lanes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Key groups of a component change lane within their executors, from the next epoch on.

    Attributes
    ----------
    component
        Whose.
    lanes
        Executor → number of lanes it is to have there.
    lane_of
        Key group → lane.
    """

    component: str
    lanes: Mapping[str, int]
    lane_of: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """The last migration that was asked for is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An executor is emptied, and nothing moves onto it any more."""

    executor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Executors:
    """There are these executors from now on: name → lanes. What is not listed is dead."""

    there: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetStore:
    """The local store of an executor vanishes, and nobody is told."""

    executor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warming:
    """From now on warming is held up, fails, loses its reports, or works."""

    goes: Literal["held", "fails", "lost", "works"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    """Components are to be made anew: name → operators; refused while that is being done."""

    components: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The query ends, as it stands or dead already, and starts again from its checkpoint."""

    there: Mapping[str, int]


Step = (
    Rows
    | Quiet
    | Settle
    | Migrate
    | Deal
    | Lanes
    | Cancel
    | Drain
    | Executors
    | ForgetStore
    | Warming
    | Regroup
    | Restart
)

TWO: Mapping[str, int] = {"local-0": 1, "local-1": 1}
THREE: Mapping[str, int] = {"local-0": 1, "local-1": 1, "local-2": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Steps of a scenario, and its expected results.

    Attributes
    ----------
    name
        Says it.
    steps
        In order. `Settle` comes after the last.
    executors
        Those that there are at the start: name → lanes.
    deep
        Whether the flow has a second level.
    again
        Whether it has an operator behind `order` that is keyed as `order` is.
    policy
        Of the run.
    same_epochs
        Whether every epoch must give the very rows that it gives where nothing happens: no row
        waits. Otherwise rows may come later, once and in order.
    told, never
        Kinds of events that must have been announced, and that must not.
    ends
        How migrations ended, in the order in which they were asked for: (outcome, withdrawn).
        ``None``: that is not said.
    seed
        Of the rows.
    """

    name: str
    steps: tuple[Step, ...]
    executors: Mapping[str, int] = field(default_factory=lambda: TWO)
    deep: bool = False
    again: bool = False
    policy: Policy = field(default_factory=Policy)
    same_epochs: bool = False
    told: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    ends: tuple[tuple[str, int], ...] | None = None
    seed: int = 1

    def __str__(self) -> str:
        return self.name
