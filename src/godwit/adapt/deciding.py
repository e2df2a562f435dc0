"""Deciding, while a stream runs, which operators should share a component.

A *decider* is told of every committed epoch and says, now and then, which components it wants to
be made anew, and why.  What it measures and weighs is its own matter: `godwit.adapt.fusing` looks
at what operators send each other, `godwit.adapt.splitting` at what windows cost that are
consolidated together or apart.  Whoever carries it out (`godwit.cluster.spark.run.deciding`) asks
the conductor for it as for any regrouping.

Invariant: a decider asks nothing of the world, so that equal epochs lead to equal decisions; and it
says nothing of operators that somebody has named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from godwit.model.checks import insist_on_number
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from godwit.migration import EpochOutcome, EpochPlan
    from godwit.model.events import Event
    from godwit.plan.compiled import CompiledFlow

__all__ = ["Decider", "EpochSeen", "Verdict", "Wanted", "insist_on_epochs"]


def insist_on_epochs(settings: Any) -> None:
    """Check the settings that every decider has: numbers of epochs, and of decisions in a row.

    Raises `InvalidFlowError` if one is no whole number from 1.
    """
    for name in ("epochs", "confirm", "payback_epochs"):
        insist_on_number(
            f"The setting {name} of gw.{type(settings).__name__}",
            getattr(settings, name),
            least=1,
            whole=True,
            error=InvalidFlowError,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSeen:
    """A committed epoch, as deciders are told of it."""

    outcome: EpochOutcome  # what it did
    flow: CompiledFlow  # the flow under the plan that it ran under
    plans: Mapping[str, EpochPlan]  # component → how it ran
    # state that copies brought from the quicker side, in bytes a second of late; ``None`` where
    # nothing was measured
    copies_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Components that are to be made anew.

    Attributes
    ----------
    components
        Component → its operators.
    reason
        Why, with the numbers.
    worth_bytes
        State that may move for it.
    """

    components: Mapping[str, tuple[str, ...]]
    reason: str
    worth_bytes: float = math.inf

    @property
    def operators(self) -> frozenset[str]:
        """All operators that it names."""
        return frozenset(name for of in self.components.values() for name in of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a decider says of an epoch."""

    wanted: Wanted | None = None  # what is to change, if anything
    # events that people are told, and their values
    told: tuple[tuple[type[Event], Mapping[str, Any]], ...] = ()


class Decider(Protocol):
    """Says when other operators should share a component."""

    def observe(self, seen: EpochSeen) -> Verdict:
        """Take an epoch; say what is to change, if it is time to say so."""

    def settled(self, wanted: Wanted) -> None:
        """Take note that what was wanted is being done, or is not worth what would have to move."""

    def leave_alone(self, operators: Collection[str]) -> None:
        """Decide nothing any more about operators that somebody has named."""
