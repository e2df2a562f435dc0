"""Events of the controller and the pool of executors: measurements, decisions, outcomes."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  events are read by the types of their fields
from dataclasses import dataclass, field
from enum import StrEnum

from godwit.model.event import Event
from godwit.model.text import counted, human_bytes


def _figures_text(numbers: Mapping[str, float]) -> str:
    """Return a decision's figures as text in parentheses, with a space before.

    Empty without any.
    """
    figures = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    return f" ({figures})" if figures else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsTooFew(Event):
    """A component has too few key groups for its lanes, or for its load.

    Attributes
    ----------
    component
        Name of the component.
    key_groups
        Number of key groups of the flow.
    suggested
        A number to start the flow with.
    reason
        Reason as text.
    """

    component: str
    key_groups: int
    suggested: int
    reason: str

    def _one_line_text(self) -> str:
        return (
            f"{self.component}: {self.key_groups} key groups are too few, since {self.reason}; "
            f"start with num_key_groups={self.suggested} and "
            "gw.Checkpointing(repartition=True)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeasured(Event):
    """Measurements of a statistics period of the controller, at its end.

    Attributes
    ----------
    period_s
        Length of the period in seconds.
    epochs
        Number of epochs with input.
    missing
        Number of these epochs whose measurements are missing.
    arrival_per_s
        Source rows that arrived per second.
    epoch_s
        Mean duration of an epoch in seconds.
    bottleneck
        Resource that is used most: ``"time"`` (of lanes), the network, or memory.
    usage
        Resource → share of it that is used, over all executors that are not to be removed.
    load_distance
        Largest difference between the load index of an executor and the mean of all, as a share of
        the mean.
    load_index
        Executor → share of their time for which its lanes are busy.
    speeds
        Executor → its speed relative to the average executor, for those that differ from it.
    latency_ms
        ``p50``, ``p95``, ``p99``, ``max`` and ``mean`` of the latency of the period's rows, from
        their arrival to the end of their delivery, in milliseconds. Empty if no row was delivered.
    outside
        Phase of epochs (``"plan"``, ``"stages"``, ``"commit"``) or sink (``"sink 'name'"``) → share
        of the period that it took, not counting the busiest lanes, nor deliveries beside the next
        epoch.
    held_up_by
        The part that took most of the period: ``"executors"`` (the busiest lanes), ``"driver"``,
        ``"source"`` (reading and exchanging rows), ``"sink 'name'"``, or ``"key group 7 of
        'count'"`` if that alone kept a lane busy for half of the period. Empty if the stream waited
        for rows most of the time, and in events of versions that did not measure it.
    held_up
        Share of the period that it took; if the stream waited for rows, the largest share that any
        part took. 0 in events of versions that did not measure it.
    arrival_error
        Standard error of `arrival_per_s` by random noise, as a share of it; 0 if it is unknown.
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
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    outside: Mapping[str, float] = field(default_factory=dict)
    held_up_by: str = ""
    held_up: float = 0.0
    arrival_error: float = 0.0

    def _one_line_text(self) -> str:
        used = self.usage.get(self.bottleneck, 0.0)
        is_held_up = self.held_up_by not in ("", "executors")
        held_up_text = (
            f", {self.held_up:.0%} of the time for {self.held_up_by}" if is_held_up else ""
        )
        slow_executors = ", ".join(
            f"{name} at speed {speed:.2f}" for name, speed in self.speeds.items()
        )
        missing = f", {self.missing} of them without measurements" if self.missing else ""
        return (
            f"load over {self.period_s:.1f} s, {counted(self.epochs, 'epoch')}{missing}: "
            f"{self.arrival_per_s:.0f} rows/s arrive, "
            f"{used:.0%} of {self.bottleneck} used{held_up_text}, "
            f"load distance {self.load_distance:.1%}"
            + (f", {slow_executors}" if slow_executors else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Event):
    """A decision of the controller, or its outcome; `DECISIONS` has the names of all kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancingStarted(Decision):
    """The controller began to move key groups between executors.

    Attributes
    ----------
    migrations
        Component → identifier of the migration that moves its key groups.
    planner
        Name of the planner.
    moves
        Number of key groups that move.
    state_bytes
        Bytes of their state.
    draining
        Number of moves away from executors that are to be removed.
    distance_before, distance_after
        Load distance (largest difference between the load of an executor and the mean) as a share
        of the mean: measured before the moves, and predicted after them.
    gain_s
        Time in seconds that the busiest executor saves within the ``horizon`` of
        `godwit.control.Worth`.
    cost_s
        Time in seconds that the busiest network link needs to copy the state.
    variance_before, variance_after
        Variance of the loads of executors, as a share of the square of their mean: measured before
        the moves, and predicted after them (paper 4, equation 1).

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

    migrations: Mapping[str, str]
    planner: str
    moves: int
    state_bytes: int
    draining: int
    distance_before: float
    distance_after: float
    gain_s: float
    cost_s: float
    variance_before: float = 0.0
    variance_after: float = 0.0

    def _one_line_text(self) -> str:
        emptied = f", {self.draining} of them off draining executors" if self.draining else ""
        return (
            f"rebalancing {', '.join(self.migrations)} by {self.planner}: "
            f"{counted(self.moves, 'key group')}{emptied}, {human_bytes(self.state_bytes)}, "
            f"load distance {self.distance_before:.1%} to {self.distance_after:.1%}, "
            f"gains {self.gain_s:.2f} s for {self.cost_s:.2f} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationsPlanned(Decision):
    """Migrations for a known sequence of numbers of executors were planned together.

    Attributes
    ----------
    components
        Components that the plan is for.
    executors
        Number of executors in each step. The first item is the present number: its step moves key
        groups into one range per executor, if they are not in ranges yet.
    cuts
        For each step, the first key group of each executor's range, except the first range, which
        begins with key group 0.
    moved_bytes
        Bytes of state that each step moves.
    reason
        Reason why the sequence is planned now, and not earlier or later.
    """

    components: tuple[str, ...]
    executors: tuple[int, ...]
    cuts: tuple[tuple[int, ...], ...]
    moved_bytes: tuple[float, ...]
    reason: str

    def _one_line_text(self) -> str:
        return (
            f"migrations of {', '.join(self.components)} to "
            f"{', '.join(map(str, self.executors))} executors planned together, "
            f"{', '.join(map(human_bytes, self.moved_bytes))} move: {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesBalanced(Decision):
    """Key groups changed their lane (task slot) within an executor; no state moved.

    The lanes of an executor share its state.

    Attributes
    ----------
    component
        Name of the component.
    key_groups
        Number of key groups that changed their lane.
    executors
        Executors on which they did.
    imbalance_before, imbalance_after
        Load of the busiest lane divided by the mean of the executor's lanes, for the worst of these
        executors: measured and predicted.
    """

    component: str
    key_groups: int
    executors: tuple[str, ...]
    imbalance_before: float
    imbalance_after: float

    def _one_line_text(self) -> str:
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

    @property
    def _reason_text(self) -> str:
        """Reason of the scaling decision, with its figures, as text."""
        return self.reason + _figures_text(self.numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledOut(_Scaling):
    """The controller increases the number of executors.

    Attributes
    ----------
    before
        Number of executors in use or requested before the decision.
    wanted
        Number of executors after it.
    reason
        Reason of the decision.
    numbers
        Figures that the decision rests on: name (with its unit) → value.
    kept
        Names of executors that were being emptied for removal, and now stay in use; the remaining
        ones are requested from the cluster.
    """

    kept: tuple[str, ...] = ()

    def _one_line_text(self) -> str:
        more = counted(self.wanted - self.before, "more executor")
        keeping = f", keeping {', '.join(self.kept)}" if self.kept else ""
        return f"scaling out, {more} for {self.wanted}{keeping}: {self._reason_text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledIn(_Scaling):
    """The controller reduces the number of executors: some drain, to be removed when empty.

    Attributes
    ----------
    before
        Number of executors in use or requested before the decision.
    wanted
        Number of executors after it.
    reason
        Reason of the decision.
    numbers
        Figures that the decision rests on: name (with its unit) → value.
    executors
        Names of the executors that are emptied and then removed.
    """

    executors: tuple[str, ...]

    def _one_line_text(self) -> str:
        draining = ", ".join(self.executors)
        return f"scaling in to {self.wanted}, draining {draining}: {self._reason_text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRefused(_Scaling):
    """Another number of executors would be needed, but is not possible or would not help.

    Attributes
    ----------
    before
        Number of executors in use or requested; it does not change.
    wanted
        Number of executors that would be needed.
    reason
        Reason why the number does not change.
    numbers
        Figures that the decision rests on: name (with its unit) → value.
    """

    def _one_line_text(self) -> str:
        where = f" where {self.wanted} were wanted" if self.wanted != self.before else ""
        return f"staying at {counted(self.before, 'executor')}{where}: {self._reason_text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionJudged(Decision):
    """Measured effect of a scaling decision, compared with the expected one.

    Attributes
    ----------
    before, wanted
        Number of executors before and after the decision.
    verdict
        ``"helped"``; ``"no help"``: no such decision is made until the arrival rate or the
        executors change; or ``"overtaken"``: other changes made it impossible to tell.
    expected, measured, target
        The figure that the scaling model controls, such as a latency in seconds: as it was expected
        after the decision, as it was measured after it, and as the user wants it. `measured` is
        ``None`` if the decision was overtaken.
    arrival_per_s
        Source rows per second that the decision was made for.
    reason
        Reason of the verdict.
    """

    before: int
    wanted: int
    verdict: str
    expected: float
    measured: float | None
    target: float
    arrival_per_s: float
    reason: str

    def _one_line_text(self) -> str:
        measured = "" if self.measured is None else f", measured {self.measured:.3g}"
        return (
            f"scaling from {self.before} to {self.wanted}: {self.verdict}, "
            f"expected {self.expected:.3g}{measured}: {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCorrected(Decision):
    """The scaling model called too few executors sufficient: it is corrected, or needs it no more.

    Attributes
    ----------
    factor
        Factor on the figures that the model predicts from now on; 1: as without a correction.
    executors
        Number of executors that it is wrong about.
    measured, predicted, target
        The figure that the model controls, such as a latency in seconds: as measured in the last
        period, as predicted without the correction, and as the user wants it; ``None``: unknown.
    """

    factor: float
    executors: int
    measured: float | None
    predicted: float | None
    target: float

    def _one_line_text(self) -> str:
        if self.factor <= 1 or self.measured is None or self.predicted is None:
            return f"the scaling model is right again about {self.executors} executors"
        return (
            f"the scaling model is corrected by {self.factor:.2f}: {self.executors} executors "
            f"brought {self.measured:.3g} where {self.predicted:.3g} was predicted, and the "
            f"target is {self.target:g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastJudged(Decision):
    """The controller starts or stops using forecasts of the arrival rate.

    Attributes
    ----------
    used
        True if forecasts are used from now on.
    reason
        Reason of the decision.
    period_s
        Seconds after which the load repeats; ``None`` if no period is known.
    error, error_as_now
        Mean error over the last period of the load, in rows per second: of the forecast, and of the
        assumption that the rate does not change. ``None`` without a forecast.
    lead_s
        Time in seconds by which executors are requested before they are needed.
    """

    used: bool
    reason: str
    period_s: float | None
    error: float | None
    error_as_now: float | None
    lead_s: float

    def _one_line_text(self) -> str:
        period = "" if self.period_s is None else f" with a period of {self.period_s:.6g} s"
        off = ""
        if self.error is not None and self.error_as_now is not None:
            off = f", mean error {self.error:.4g} rows/s instead of {self.error_as_now:.4g}"
        return f"forecast{period} {'' if self.used else 'not '}used: {self.reason}{off}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsReturned(Decision):
    """Executors that own no key groups any more were given back to the cluster.

    Attributes
    ----------
    executors
        Names of the executors.
    """

    executors: tuple[str, ...]

    def _one_line_text(self) -> str:
        return f"returned to the cluster, without key groups: {', '.join(self.executors)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSkipped(Decision):
    """The controller considered a change and did not make it; reported once per reason.

    Attributes
    ----------
    what
        The change that was not made.
    reason
        Reason why.
    numbers
        Figures that the reason rests on: name (with its unit) → value.
    """

    what: str
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def _one_line_text(self) -> str:
        return f"no {self.what}: {self.reason}{_figures_text(self.numbers)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerFailed(Decision):
    """A planner or a scaling model gave no usable result; the stream continues unchanged.

    Attributes
    ----------
    planner
        Name of the planner or scaling model.
    reason
        Reason of the failure.
    """

    planner: str
    reason: str

    _TEXT = "planner {event.planner} failed: {event.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancingJudged(Decision):
    """Measured effect of moving key groups, compared with the expected one.

    Attributes
    ----------
    components
        Components whose key groups moved.
    verdict
        ``"helped"``, ``"no help"``, or ``"overtaken"``: other changes made it impossible to tell.
    before, expected, measured
        Load distance (largest difference between the load of an executor and the mean, as a share
        of the mean): before the moves, as expected after them, and as measured after them.
        `measured` is ``None`` if the moves were overtaken.
    reason
        Reason of the verdict.
    """

    components: tuple[str, ...]
    verdict: str
    before: float
    expected: float
    measured: float | None
    reason: str

    def _one_line_text(self) -> str:
        measured = "" if self.measured is None else f", measured {self.measured:.1%}"
        return (
            f"rebalancing {', '.join(self.components)}: {self.verdict}, load distance "
            f"{self.before:.1%} before, expected {self.expected:.1%}{measured}: {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAbandoned(Decision):
    """The controller gave up a plan in progress, which no longer fits; finished moves stay.

    Attributes
    ----------
    component
        Name of the component.
    reason
        Reason why the plan no longer fits.
    """

    component: str
    reason: str

    _TEXT = "plan for {event.component} abandoned: {event.reason}"


class ManualChange(StrEnum):
    """Kinds of changes by hand that controller and policies leave alone for a while."""

    MIGRATION = "migration"  # of a component
    COMPONENTS = "components"  # of an operator
    HOT_KEYS = "hot keys"  # of a join or process
    DRAINING = "draining"  # of an executor
    SCALING = "scaling"

    def of(self, name: str) -> str:
        """Return a change of this kind as text: ``"draining of 3"`` for the name ``"3"``."""
        return f"{self} of {name}"

    def name_in(self, what: str) -> str | None:
        """Return the name in a text that `of` made; ``None`` if it is of another kind."""
        kind, _, name = what.partition(" of ")
        return name if kind == self else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualOverrideRespected(Decision):
    """The controller and all policies leave a manual change alone for a while.

    Attributes
    ----------
    what
        The change: ``"migration of <component>"``, ``"components of <operator>"``, ``"hot keys of
        <join>"``, ``"draining of <executor>"`` or ``"scaling"``.
    until_s
        Time until which they leave it alone, by the same clock as the event's `at_s`.
    """

    what: str
    until_s: float

    def _one_line_text(self) -> str:
        left_s = max(0.0, self.until_s - self.at_s)
        return f"{self.what} was decided by hand, left alone for {left_s:.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStateChosen(Decision):
    """The layout of the state of overlapping windows changes from the next epoch on.

    A pane is a slice of time. Either windows share the state of panes, from which they are merged;
    or each window has a state of its own, to which its rows are added.

    Attributes
    ----------
    operator
        Name of the windowed operator.
    duplicated
        True if each window has a state of its own; false if windows share panes.
    reason
        Reason of the choice, with the numbers.
    numbers
        Figures that the decision rests on: name (with its unit) → value.
    """

    operator: str
    duplicated: bool
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def _one_line_text(self) -> str:
        way = "have states of their own" if self.duplicated else "share panes"
        return f"windows of {self.operator} {way}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKeySpread(Decision):
    """From the next epoch on, the rows of a hot key are divided among several lanes.

    Attributes
    ----------
    operator
        Name of the operator.
    key
        Values of the key columns, as JSON.
    rows, columns
        Numbers of parts among which the left rows and the right rows of a join are divided. For
        other operators `rows` is the number of parts, and `columns` is 1. If both are 1, all rows
        go to one lane again.
    reason
        Reason of the decision, with the numbers.
    numbers
        Figures that the decision rests on: name (with its unit) → value.
    """

    operator: str
    key: str
    rows: int
    columns: int
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def _one_line_text(self) -> str:
        parts = self.rows * self.columns
        what = f"is spread over {parts} parts" if parts > 1 else "is gathered in one part"
        return f"key {self.key} of {self.operator} {what}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsRequested(Decision):
    """The query asked the cluster for more executors; `ExecutorAdded` reports each that joins.

    Attributes
    ----------
    count
        Number of additional executors.
    total
        Number of executors that there will be then.
    """

    count: int
    total: int

    def _one_line_text(self) -> str:
        return f"asked the cluster for {counted(self.count, 'more executor')}, {self.total} in all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsMissing(Decision):
    """Requested executors did not join, and the query no longer waits for them.

    Attributes
    ----------
    count
        Number of executors that did not join.
    reason
        Reason, such as the time-out.
    """

    count: int
    reason: str

    def _one_line_text(self) -> str:
        return f"{counted(self.count, 'executor')} did not join: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorRemoved(Decision):
    """An executor that owned no key groups any more was given back to the cluster.

    Attributes
    ----------
    executor
        Name of the executor.
    """

    executor: str

    _TEXT = "executor {event.executor} was given back"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorKept(Decision):
    """An executor no longer drains: it stays, and key groups may move to it again.

    Attributes
    ----------
    executor
        Name of the executor.
    """

    executor: str

    _TEXT = "executor {event.executor} stays"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStarted(Decision):
    """A user requested another number of executors, by ``query.scale``.

    Attributes
    ----------
    before
        Number of executors before, without those that are to be removed.
    wanted
        Number of executors that was asked for.
    """

    before: int
    wanted: int

    def _one_line_text(self) -> str:
        return f"scaling from {counted(self.before, 'executor')} to {self.wanted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFinished(Decision):
    """A ``query.scale`` is complete: the executors are there, and key groups are balanced.

    Attributes
    ----------
    executors
        Names of the executors.
    moved
        Number of key groups that moved for this scaling.
    """

    executors: tuple[str, ...]
    moved: int

    def _one_line_text(self) -> str:
        return (
            f"scaled to {counted(len(self.executors), 'executor')} "
            f"({', '.join(self.executors)}), {counted(self.moved, 'key group')} moved"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFailed(Decision):
    """A ``query.scale`` ended early; finished moves stay, and no executor drains because of it.

    Attributes
    ----------
    wanted
        Number of executors that was asked for.
    reason
        Reason of the failure.
    """

    wanted: int
    reason: str

    def _one_line_text(self) -> str:
        return f"scaling to {counted(self.wanted, 'executor')} failed: {self.reason}"
