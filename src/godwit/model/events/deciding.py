"""Events of the controller: what it saw, what it decided, and why.

Every decision tells the numbers that it rests on, so that whoever reads the journal, a person or a
controller that takes over, needs nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from godwit.model.events.event import Event
from godwit.model.wording import counted, human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DecisionSkipped",
    "ExecutorsReturned",
    "LanesBalanced",
    "LoadMeasured",
    "ManualOverrideRespected",
    "PlanAbandoned",
    "PlannerFailed",
    "RebalancingStarted",
    "ScaledIn",
    "ScaledOut",
    "ScalingRefused",
    "WindowStateChosen",
]


def _told(numbers: Mapping[str, float]) -> str:
    told = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    return f" ({told})" if told else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeasured(Event):
    """A statistics period ended.

    Attributes
    ----------
    period_s, epochs, missing
        Its length, its epochs with input, and those of them whose figures were missing.
    arrival_per_s
        Source rows that arrived a second.
    epoch_s
        Mean time of an epoch.
    bottleneck
        Resource of which the greatest share is used.
    usage
        Resource → share used, over all executors that stay.
    load_distance
        Largest difference between an executor's load index and the mean, as a share of the mean.
    load_index
        Executor → share of its time that its lanes are busy.
    speeds
        Executor → speed, for those that are not as fast as the rest.
    """

    period_s: float
    epochs: int
    missing: int
    arrival_per_s: float
    epoch_s: float
    bottleneck: str
    usage: Mapping[str, float] = field(default_factory=dict)
    load_distance: float = 0.0
    load_index: Mapping[str, float] = field(default_factory=dict)
    speeds: Mapping[str, float] = field(default_factory=dict)

    def _line(self) -> str:
        slow = ", ".join(f"{name} at speed {speed:.2f}" for name, speed in self.speeds.items())
        missing = f", {self.missing} of them without figures" if self.missing else ""
        return (
            f"load over {self.period_s:.1f} s, {counted(self.epochs, 'epoch')}{missing}: "
            f"{self.arrival_per_s:.0f} rows/s arrive, "
            f"{self.usage.get(self.bottleneck, 0.0):.0%} of {self.bottleneck} used, "
            f"load distance {self.load_distance:.1%}" + (f", {slow}" if slow else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancingStarted(Event):
    """The controller moves key groups between executors.

    Attributes
    ----------
    migrations
        Component → id of the migration that carries it out.
    planner
        Whose plan.
    moves, state_bytes
        Key groups that move, and their state.
    draining
        How many of the moves empty executors that are to leave.
    distance_before, distance_after
        Load distance as a share of the mean, measured and predicted.
    gain_s, cost_s
        Time that the busiest executor is relieved of over the horizon, and time that the busiest
        link needs.
    """

    migrations: Mapping[str, str]
    planner: str
    moves: int
    state_bytes: int
    draining: int
    distance_before: float
    distance_after: float
    gain_s: float
    cost_s: float

    def _line(self) -> str:
        emptied = f", {self.draining} of them off draining executors" if self.draining else ""
        return (
            f"rebalancing {', '.join(self.migrations)} by {self.planner}: "
            f"{counted(self.moves, 'key group')}{emptied}, {human_bytes(self.state_bytes)}, "
            f"load distance {self.distance_before:.1%} to {self.distance_after:.1%}, "
            f"gains {self.gain_s:.2f} s for {self.cost_s:.2f} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesBalanced(Event):
    """Key groups changed lane within their executors; no state moved.

    Attributes
    ----------
    key_groups
        How many.
    executors
        Those on which they did.
    imbalance_before, imbalance_after
        Busiest lane over mean lane of the worst of these executors, measured and predicted.
    """

    component: str
    key_groups: int
    executors: tuple[str, ...]
    imbalance_before: float
    imbalance_after: float

    def _line(self) -> str:
        return (
            f"{self.component}: {counted(self.key_groups, 'key group')} change lane on "
            f"{', '.join(self.executors)}, busiest lane {self.imbalance_before:.2f} to "
            f"{self.imbalance_after:.2f} times the mean"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scaling(Event):
    before: int
    wanted: int
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledOut(_Scaling):
    """More executors are to work: `before` do or are on their way, `wanted` are to be.

    Attributes
    ----------
    kept
        Those of them that were to leave, were still there, and stay; the others were asked for.
    """

    kept: tuple[str, ...] = ()

    def _line(self) -> str:
        more = counted(self.wanted - self.before, "more executor")
        kept = f", keeping {', '.join(self.kept)}" if self.kept else ""
        return f"scaling out, {more} for {self.wanted}{kept}: {self.reason}{_told(self.numbers)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledIn(_Scaling):
    """Executors are to be emptied and given back."""

    executors: tuple[str, ...]

    def _line(self) -> str:
        return (
            f"scaling in to {self.wanted}, draining {', '.join(self.executors)}: "
            f"{self.reason}{_told(self.numbers)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRefused(_Scaling):
    """More or fewer executors were wanted, and are not to be had or would not do."""

    def _line(self) -> str:
        return (
            f"staying at {counted(self.before, 'executor')} where {self.wanted} were wanted: "
            f"{self.reason}{_told(self.numbers)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsReturned(Event):
    """Executors that own nothing any more were given back to the cluster."""

    executors: tuple[str, ...]

    def _line(self) -> str:
        return f"gave back {', '.join(self.executors)}, which own nothing any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSkipped(Event):
    """Nothing was done where something might have been; told once, until it changes.

    Attributes
    ----------
    what
        What was not done.
    reason
        Why.
    numbers
        What the reason rests on: name (with its unit) → value.
    """

    what: str
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def _line(self) -> str:
        return f"no {self.what}: {self.reason}{_told(self.numbers)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerFailed(Event):
    """A planner or a scaling model gave no answer that can be used; the stream goes on as it is."""

    planner: str
    reason: str

    def _line(self) -> str:
        return f"planner {self.planner} failed: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAbandoned(Event):
    """A plan was overtaken by events; what has moved stays, and it is planned anew."""

    component: str
    reason: str

    def _line(self) -> str:
        return f"plan for {self.component} abandoned: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualOverrideRespected(Event):
    """Somebody decided by hand; it is left alone for a while.

    Attributes
    ----------
    what
        ``"migration of <component>"``, ``"components of <operator>"``, ``"draining of <executor>"``
        or ``"scaling"``.
    until_s
        When it decides about it again, on the events' clock.
    """

    what: str
    until_s: float

    def _line(self) -> str:
        return f"{self.what} by hand is left alone for {max(0.0, self.until_s - self.at_s):.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStateChosen(Event):
    """Windows that overlap share panes from the next epoch on, or have states of their own.

    Attributes
    ----------
    operator
        Whose windows.
    duplicated
        Whether windows have states of their own.
    reason
        Why, with the numbers.
    numbers
        What it rests on: figure → value.
    """

    operator: str
    duplicated: bool
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def _line(self) -> str:
        way = "have states of their own" if self.duplicated else "share panes"
        return f"windows of {self.operator} {way}: {self.reason}"
