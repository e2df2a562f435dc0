"""Events of the controller and the pool of executors: measurements, decisions, outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from godwit.model.event import Event
from godwit.model.wording import counted, human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping


def _figures(numbers: Mapping[str, float]) -> str:
    """Write the numbers of a decision."""
    told = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    return f" ({told})" if told else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeasured(Event):
    """A statistics period ended.

    Examples
    --------
    >>> event = gw.events.LoadMeasured(
    ...     epoch=4, at_s=1.0, period_s=10.0, epochs=20, missing=1, arrival_per_s=1200.0,
    ...     epoch_s=0.4, bottleneck="time", usage={"time": 0.5}, load_distance=0.3,
    ...     load_index={"a": 0.5}, speeds={"b": 0.33},
    ... )
    >>> print(event.describe())
    load over 10.0 s, 20 epochs, 1 of them without figures: 1200 rows/s arrive, 50% of time
    used, load distance 30.0%, b at speed 0.33
    """

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
    # p50, p95, p99, max, mean → milliseconds that the rows of the period took, from their arrival
    # to the end of their delivery; empty where none was delivered
    latency_ms: Mapping[str, float] = field(default_factory=dict)

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
class Decision(Event):
    """A decision of the controller, or its outcome; `DECISIONS` has the names of all kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancingStarted(Decision):
    """The controller moves key groups between executors.

    Examples
    --------
    >>> event = gw.events.RebalancingStarted(
    ...     epoch=4, at_s=1.0, migrations={"sum": "control-1"}, planner="milp", moves=3,
    ...     state_bytes=2048, draining=1, distance_before=0.5, distance_after=0.01, gain_s=4.0,
    ...     cost_s=0.5,
    ... )
    >>> print(event.describe())
    rebalancing sum by milp: 3 key groups, 1 of them off draining executors, 2.0 KiB, load
    distance 50.0% to 1.0%, gains 4.00 s for 0.50 s
    """

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
    # variance_before, variance_after: of the load index over executors that stay, as a share of the
    # square of the mean, measured and predicted (paper 4, equation 1); `state_bytes` is its ψ
    variance_before: float = 0.0
    variance_after: float = 0.0

    def _line(self) -> str:
        emptied = f", {self.draining} of them off draining executors" if self.draining else ""
        return (
            f"rebalancing {', '.join(self.migrations)} by {self.planner}: "
            f"{counted(self.moves, 'key group')}{emptied}, {human_bytes(self.state_bytes)}, "
            f"load distance {self.distance_before:.1%} to {self.distance_after:.1%}, "
            f"gains {self.gain_s:.2f} s for {self.cost_s:.2f} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationsPlanned(Decision):
    """Migrations to a sequence of numbers of executors are planned together.

    Examples
    --------
    >>> event = gw.events.MigrationsPlanned(
    ...     epoch=4, at_s=1.0, components=("sum",), executors=(3, 4), cuts=((4, 13), (4, 6, 13)),
    ...     moved_bytes=(4096.0, 2048.0), reason="it is the first plan",
    ... )
    >>> print(event.describe())
    migrations of sum to 3, 4 executors planned together, 4.0 KiB, 2.0 KiB move: it is the first
    plan
    """

    components: tuple[str, ...]  # that are planned
    executors: tuple[int, ...]  # how many there are in each step, the present one first
    # of each step, the first key group of every range but the first range
    cuts: tuple[tuple[int, ...], ...]
    moved_bytes: tuple[float, ...]  # state that each step is to move
    reason: str  # why it is planned now

    def _line(self) -> str:
        return (
            f"migrations of {', '.join(self.components)} to "
            f"{', '.join(map(str, self.executors))} executors planned together, "
            f"{', '.join(map(human_bytes, self.moved_bytes))} move: {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesBalanced(Decision):
    """Key groups changed lane within their executors; no state moved.

    Examples
    --------
    >>> event = gw.events.LanesBalanced(
    ...     epoch=4, at_s=1.0, component="sum", key_groups=2, executors=("a",),
    ...     imbalance_before=1.8, imbalance_after=1.1,
    ... )
    >>> print(event.describe())
    sum: 2 key groups change lane on a, busiest lane 1.80 to 1.10 times the mean
    """

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
class _Scaling(Decision):
    """A decision about the number of executors."""

    before: int  # executors that work or are on their way
    wanted: int  # executors that are to work
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it rests on: figure → value


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledOut(_Scaling):
    """More executors are requested, or kept: from `before` to `wanted`.

    Examples
    --------
    >>> event = gw.events.ScaledOut(
    ...     epoch=4, at_s=1.0, before=2, wanted=4, reason="too slow",
    ...     numbers={"latency_s": 9.5},
    ... )
    >>> print(event.describe())
    scaling out, 2 more executors for 4: too slow (latency_s 9.5)
    """

    # those of them that were to leave, were still there, and stay; the others were asked for
    kept: tuple[str, ...] = ()

    def _line(self) -> str:
        more = counted(self.wanted - self.before, "more executor")
        kept = f", keeping {', '.join(self.kept)}" if self.kept else ""
        return f"scaling out, {more} for {self.wanted}{kept}: {self.reason}{_figures(self.numbers)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledIn(_Scaling):
    """Executors are drained to be given back.

    Examples
    --------
    >>> event = gw.events.ScaledIn(
    ...     epoch=4, at_s=1.0, before=4, wanted=3, reason="little to do", executors=("d",),
    ... )
    >>> print(event.describe())
    scaling in to 3, draining d: little to do
    """

    executors: tuple[str, ...]

    def _line(self) -> str:
        return (
            f"scaling in to {self.wanted}, draining {', '.join(self.executors)}: "
            f"{self.reason}{_figures(self.numbers)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRefused(_Scaling):
    """The number of executors should change, and cannot or must not.

    Examples
    --------
    >>> event = gw.events.ScalingRefused(
    ...     epoch=4, at_s=1.0, before=4, wanted=6, reason="4 is the limit",
    ... )
    >>> print(event.describe())
    staying at 4 executors where 6 were wanted: 4 is the limit
    """

    def _line(self) -> str:
        return (
            f"staying at {counted(self.before, 'executor')} where {self.wanted} were wanted: "
            f"{self.reason}{_figures(self.numbers)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionJudged(Decision):
    """Result of a decision about the number of executors, beside what it expected.

    Examples
    --------
    >>> event = gw.events.DecisionJudged(
    ...     epoch=4, at_s=1.0, before=2, wanted=4, verdict="no help", expected=0.5,
    ...     measured=1.5, target=0.8, arrival_per_s=1000.0,
    ...     reason="key group 17 alone fills 0.8 of a lane",
    ... )
    >>> print(event.describe())
    scaling from 2 to 4: no help, 0.5 was expected, 1.5 came: key group 17 alone fills 0.8
    of a lane
    """

    before: int  # executors before and after it
    wanted: int
    # ``"helped"``, ``"no help"``: not again until the situation is another one, or ``"overtaken"``
    verdict: str
    # expected, measured, target: of the figure that the scaling model goes by, such as a latency in
    # seconds
    expected: float
    measured: float | None  # ``None`` where it was overtaken
    target: float
    arrival_per_s: float  # rate that it was decided for
    reason: str

    def _line(self) -> str:
        came = "" if self.measured is None else f", {self.measured:.3g} came"
        return (
            f"scaling from {self.before} to {self.wanted}: {self.verdict}, {self.expected:.3g} was "
            f"expected{came}: {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastJudged(Decision):
    """Forecasts of the arrival rate are used from now on, or not.

    Examples
    --------
    >>> event = gw.events.ForecastJudged(
    ...     epoch=4, at_s=1.0, used=True, reason="it is better than that all stays as it is",
    ...     period_s=86400.0, error=100.0, error_as_now=900.0, lead_s=50.0,
    ... )
    >>> print(event.describe())
    forecast with a period of 86400 s used: it is better than that all stays as it is, off
    by 100 rows/s against 900
    """

    used: bool
    reason: str
    period_s: float | None  # after which the load repeats; ``None``: none is known
    # error, error_as_now: mean deviation from the rows a second that came, over the last period, of
    # the forecast, and of the one that all stays as it is; ``None`` where there was no forecast
    error: float | None
    error_as_now: float | None
    lead_s: float  # how long before they are needed executors are asked for

    def _line(self) -> str:
        period = "" if self.period_s is None else f" with a period of {self.period_s:.6g} s"
        off = ""
        if self.error is not None and self.error_as_now is not None:
            off = f", off by {self.error:.4g} rows/s against {self.error_as_now:.4g}"
        return f"forecast{period} {'' if self.used else 'not '}used: {self.reason}{off}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsReturned(Decision):
    """Executors that own nothing any more were given back to the cluster.

    Examples
    --------
    >>> event = gw.events.ExecutorsReturned(epoch=4, at_s=1.0, executors=("d",))
    >>> print(event.describe())
    gave back d, which own nothing any more
    """

    executors: tuple[str, ...]

    def _line(self) -> str:
        return f"gave back {', '.join(self.executors)}, which own nothing any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSkipped(Decision):
    """Nothing was done although it was considered; announced once per reason.

    Examples
    --------
    >>> event = gw.events.DecisionSkipped(
    ...     epoch=4, at_s=1.0, what="balancing of sum", reason="the load is even enough",
    ... )
    >>> print(event.describe())
    no balancing of sum: the load is even enough
    """

    what: str  # what was not done
    reason: str  # why
    # what the reason rests on: name (with its unit) → value
    numbers: Mapping[str, float] = field(default_factory=dict)

    def _line(self) -> str:
        return f"no {self.what}: {self.reason}{_figures(self.numbers)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerFailed(Decision):
    """A planner or a scaling model gave no usable answer; the stream goes on unchanged.

    Examples
    --------
    >>> event = gw.events.PlannerFailed(
    ...     epoch=4, at_s=1.0, planner="mine", reason="it raised KeyError: 1",
    ... )
    >>> print(event.describe())
    planner mine failed: it raised KeyError: 1
    """

    planner: str
    reason: str

    def _line(self) -> str:
        return f"planner {self.planner} failed: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancingJudged(Decision):
    """Result of moving key groups, beside what was expected.

    Examples
    --------
    >>> event = gw.events.RebalancingJudged(
    ...     epoch=4, at_s=1.0, components=("sums",), verdict="helped", before=0.5,
    ...     expected=0.02, measured=0.03, reason="executors are as even as was expected",
    ... )
    >>> print(event.describe())
    rebalancing sums: helped, load distance 50.0% to 2.0% was expected, 3.0% came: executors
    are as even as was expected
    """

    components: tuple[str, ...]
    # ``"helped"``, ``"no help"``, or ``"overtaken"``: nobody can tell
    verdict: str
    # load distance before, as it was to be, and as it came to be, as shares of the mean
    before: float
    expected: float
    measured: float | None  # ``None`` where it was overtaken
    reason: str

    def _line(self) -> str:
        came = "" if self.measured is None else f", {self.measured:.1%} came"
        return (
            f"rebalancing {', '.join(self.components)}: {self.verdict}, load distance "
            f"{self.before:.1%} to {self.expected:.1%} was expected{came}: {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAbandoned(Decision):
    """A plan under way was overtaken by events; completed moves stay, and it is planned anew.

    Examples
    --------
    >>> event = gw.events.PlanAbandoned(
    ...     epoch=4, at_s=1.0, component="sum", reason="executor d is gone",
    ... )
    >>> print(event.describe())
    plan for sum abandoned: executor d is gone
    """

    component: str
    reason: str

    def _line(self) -> str:
        return f"plan for {self.component} abandoned: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualOverrideRespected(Decision):
    """A decision by hand is respected by the controller for a while.

    Examples
    --------
    >>> event = gw.events.ManualOverrideRespected(
    ...     epoch=4, at_s=1.0, what="migration of sum", until_s=61.0,
    ... )
    >>> print(event.describe())
    migration of sum by hand is left alone for 60 s
    """

    # ``"migration of <component>"``, ``"components of <operator>"``, ``"hot keys of <join>"``,
    # ``"draining of <executor>"`` or ``"scaling"``
    what: str
    until_s: float  # when it decides about it again, on the events' clock

    def _line(self) -> str:
        return f"{self.what} by hand is left alone for {max(0.0, self.until_s - self.at_s):.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStateChosen(Decision):
    """Overlapping windows share panes from the next epoch on, or have states of their own.

    Examples
    --------
    >>> event = gw.events.WindowStateChosen(
    ...     epoch=4, at_s=1.0, operator="hourly", duplicated=True,
    ...     reason="12.0 ms of CPU with panes and 4.0 ms without",
    ...     numbers={"shared_ms": 12.0, "duplicated_ms": 4.0},
    ... )
    >>> print(event.describe())
    windows of hourly have states of their own: 12.0 ms of CPU with panes and 4.0 ms without
    """

    operator: str  # whose windows
    duplicated: bool  # whether windows have states of their own
    reason: str  # why, with the numbers
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it rests on: figure → value

    def _line(self) -> str:
        way = "have states of their own" if self.duplicated else "share panes"
        return f"windows of {self.operator} {way}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKeySpread(Decision):
    """Rows of a key go to other parts, in other lanes, from the next epoch on.

    Examples
    --------
    >>> event = gw.events.HotKeySpread(
    ...     epoch=4, at_s=1.0, operator="transfers", key='["central"]', rows=4, columns=1,
    ...     reason="it has 3.1 times the work of a lane", numbers={"share": 3.1},
    ... )
    >>> print(event.describe())
    key ["central"] of transfers is spread over 4 parts: it has 3.1 times the work of a lane
    """

    operator: str  # whose key
    key: str  # its values as JSON
    # rows, columns: among how many parts rows of the left of a join, and of the right, are
    # divided; of any other operator there is one column. 1 and 1: all rows go to one lane
    rows: int
    columns: int
    reason: str  # why, with the numbers
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it rests on: figure → value

    def _line(self) -> str:
        parts = self.rows * self.columns
        what = f"is spread over {parts} parts" if parts > 1 else "is gathered in one part"
        return f"key {self.key} of {self.operator} {what}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsRequested(Decision):
    """The cluster was asked for more executors; each that comes is an `ExecutorAdded`.

    Examples
    --------
    >>> event = gw.events.ExecutorsRequested(epoch=4, at_s=1.0, count=2, total=4)
    >>> print(event.describe())
    asked the cluster for 2 more executors, 4 in all
    """

    count: int  # how many more
    total: int  # how many there are to be then

    def _line(self) -> str:
        return f"asked the cluster for {counted(self.count, 'more executor')}, {self.total} in all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsMissing(Decision):
    """Executors that were requested have not come, and are no longer waited for.

    Examples
    --------
    >>> event = gw.events.ExecutorsMissing(
    ...     epoch=4, at_s=1.0, count=1, reason="none came within 60 s",
    ... )
    >>> print(event.describe())
    1 executor did not come: none came within 60 s
    """

    count: int
    reason: str

    def _line(self) -> str:
        return f"{counted(self.count, 'executor')} did not come: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorRemoved(Decision):
    """An executor that owned nothing any more was given back to the cluster, and is gone.

    Examples
    --------
    >>> event = gw.events.ExecutorRemoved(epoch=4, at_s=1.0, executor="3")
    >>> print(event.describe())
    executor 3 was given back
    """

    executor: str

    def _line(self) -> str:
        return f"executor {self.executor} was given back"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorKept(Decision):
    """An executor that was draining stays: key groups may move onto it again.

    Examples
    --------
    >>> event = gw.events.ExecutorKept(epoch=4, at_s=1.0, executor="3")
    >>> print(event.describe())
    executor 3 stays
    """

    executor: str

    def _line(self) -> str:
        return f"executor {self.executor} stays"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStarted(Decision):
    """Another number of executors was requested by hand.

    Examples
    --------
    >>> event = gw.events.ScalingStarted(epoch=4, at_s=1.0, before=2, wanted=4)
    >>> print(event.describe())
    scaling from 2 executors to 4
    """

    # before, wanted: executors there are, without those that drain, and executors there are to be
    before: int
    wanted: int

    def _line(self) -> str:
        return f"scaling from {counted(self.before, 'executor')} to {self.wanted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFinished(Decision):
    """The requested executors are there, and key groups are where they should be.

    Examples
    --------
    >>> event = gw.events.ScalingFinished(
    ...     epoch=4, at_s=1.0, executors=("1", "2", "3", "4"), moved=5,
    ... )
    >>> print(event.describe())
    scaled to 4 executors (1, 2, 3, 4), 5 key groups moved
    """

    executors: tuple[str, ...]  # those there are
    moved: int  # key groups that changed executor for it

    def _line(self) -> str:
        return (
            f"scaled to {counted(len(self.executors), 'executor')} "
            f"({', '.join(self.executors)}), {counted(self.moved, 'key group')} moved"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFailed(Decision):
    """A scaling ended early; what had been done stays, and no executor drains because of it.

    Examples
    --------
    >>> event = gw.events.ScalingFailed(
    ...     epoch=4, at_s=1.0, wanted=4, reason="the query has stopped",
    ... )
    >>> print(event.describe())
    scaling to 4 executors failed: the query has stopped
    """

    wanted: int
    reason: str

    def _line(self) -> str:
        return f"scaling to {counted(self.wanted, 'executor')} failed: {self.reason}"
