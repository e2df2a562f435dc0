"""Events of the controller and of the pool of executors: observations, decisions, scalings.

Every decision tells the numbers that it rests on, so that whoever reads the journal, a person or a
controller that goes on after a restart, needs nothing else.
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
    "ExecutorKept",
    "ExecutorRemoved",
    "ExecutorsMissing",
    "ExecutorsRequested",
    "ExecutorsReturned",
    "LanesBalanced",
    "LoadMeasured",
    "ManualOverrideRespected",
    "PlanAbandoned",
    "PlannerFailed",
    "RebalancingStarted",
    "ScaledIn",
    "ScaledOut",
    "ScalingFailed",
    "ScalingFinished",
    "ScalingRefused",
    "ScalingStarted",
    "WindowStateChosen",
]


def _told(numbers: Mapping[str, float]) -> str:
    told = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    return f" ({told})" if told else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeasured(Event):
    """A statistics period ended."""

    # period_s, epochs, missing: its length, its epochs with input, and those of them whose figures
    # were missing
    period_s: float
    epochs: int
    missing: int
    arrival_per_s: float  # source rows that arrived a second
    epoch_s: float  # mean time of an epoch
    bottleneck: str  # resource of which the greatest share is used
    # resource → share used, over all executors that stay
    usage: Mapping[str, float] = field(default_factory=dict)
    # largest difference between an executor's load index and the mean, as a share of the mean
    load_distance: float = 0.0
    # executor → share of its time that its lanes are busy
    load_index: Mapping[str, float] = field(default_factory=dict)
    # executor → speed, for those that are not as fast as the rest
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
    """The controller moves key groups between executors."""

    migrations: Mapping[str, str]  # component → id of the migration that carries it out
    planner: str  # whose plan
    # moves, state_bytes: key groups that move, and their state
    moves: int
    state_bytes: int
    draining: int  # how many of the moves empty executors that are to leave
    # distance_before, distance_after: load distance as a share of the mean, measured and predicted
    distance_before: float
    distance_after: float
    # gain_s, cost_s: time that the busiest executor is relieved of over the horizon, and time that
    # the busiest link needs
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
    """Key groups changed lane within their executors; no state moved."""

    component: str
    key_groups: int  # how many
    executors: tuple[str, ...]  # those on which they did
    # imbalance_before, imbalance_after: busiest lane over mean lane of the worst of these
    # executors, measured and predicted
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
    """More executors are to work: `before` do or are on their way, `wanted` are to be."""

    # those of them that were to leave, were still there, and stay; the others were asked for
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
    """Nothing was done where something might have been; told once, until it changes."""

    what: str  # what was not done
    reason: str  # why
    # what the reason rests on: name (with its unit) → value
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
    """Somebody decided by hand; it is left alone for a while."""

    # ``"migration of <component>"``, ``"components of <operator>"``, ``"draining of <executor>"``
    # or ``"scaling"``
    what: str
    until_s: float  # when it decides about it again, on the events' clock

    def _line(self) -> str:
        return f"{self.what} by hand is left alone for {max(0.0, self.until_s - self.at_s):.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStateChosen(Event):
    """Windows that overlap share panes from the next epoch on, or have states of their own."""

    operator: str  # whose windows
    duplicated: bool  # whether windows have states of their own
    reason: str  # why, with the numbers
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it rests on: figure → value

    def _line(self) -> str:
        way = "have states of their own" if self.duplicated else "share panes"
        return f"windows of {self.operator} {way}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsRequested(Event):
    """The cluster was asked for more executors; each that comes is an `ExecutorAdded`."""

    count: int  # how many more
    total: int  # how many there are to be then

    def _line(self) -> str:
        return f"asked the cluster for {counted(self.count, 'more executor')}, {self.total} in all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsMissing(Event):
    """Executors that the cluster was asked for do not come, and are not waited for any more."""

    count: int
    reason: str

    def _line(self) -> str:
        return f"{counted(self.count, 'executor')} did not come: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorRemoved(Event):
    """An executor that owned nothing any more was given back to the cluster, and is gone."""

    executor: str

    def _line(self) -> str:
        return f"executor {self.executor} was given back"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorKept(Event):
    """An executor that was draining stays: key groups may move onto it again."""

    executor: str

    def _line(self) -> str:
        return f"executor {self.executor} stays"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStarted(Event):
    """Somebody asked for another number of executors."""

    # before, wanted: executors there are, without those that drain, and executors there are to be
    before: int
    wanted: int

    def _line(self) -> str:
        return f"scaling from {counted(self.before, 'executor')} to {self.wanted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFinished(Event):
    """There are as many executors as were asked for, and key groups are where they are to be."""

    executors: tuple[str, ...]  # those there are
    moved: int  # key groups that changed executor for it

    def _line(self) -> str:
        return (
            f"scaled to {counted(len(self.executors), 'executor')} "
            f"({', '.join(self.executors)}), {counted(self.moved, 'key group')} moved"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFailed(Event):
    """A scaling ended early; what had been done stays, and no executor drains because of it."""

    wanted: int
    reason: str

    def _line(self) -> str:
        return f"scaling to {counted(self.wanted, 'executor')} failed: {self.reason}"
