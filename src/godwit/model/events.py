"""Events of a run: one frozen value for everything that happened.

``query.events`` yields these; the dashboard, the command line and the tests read the same values.
An event says what is already durable or already decided, never what is hoped for, and a decision
carries the numbers that it rests on: whoever reads the journal, a person or a controller that goes
on after a restart, needs nothing else.  Time comes from the caller, so a simulated run tells the
same story as a real one.  What the runtime reports to the migration protocol is another vocabulary
(``godwit.migration.inputs``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from godwit.model.event import Event, read_event
from godwit.model.wording import counted, human_bytes, key_groups_listed

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "AssignmentSwitched",
    "BackgroundFailed",
    "ComponentsRegrouped",
    "DecisionJudged",
    "DecisionSkipped",
    "EpochAborted",
    "EpochCommitted",
    "EpochsHeld",
    "EpochsReleased",
    "Event",
    "ExecutorAdded",
    "ExecutorDraining",
    "ExecutorKept",
    "ExecutorLost",
    "ExecutorRemoved",
    "ExecutorsMissing",
    "ExecutorsRequested",
    "ExecutorsReturned",
    "FilesCollected",
    "FlowChanged",
    "ForecastJudged",
    "HotKeySpread",
    "KeyGroupsLoaded",
    "KeyGroupsResumed",
    "KeyGroupsSuspended",
    "KeyGroupsWarmed",
    "LanesBalanced",
    "LayoutsCompared",
    "ListenerFailed",
    "LoadMeasured",
    "ManualOverrideRespected",
    "MigrationCancelled",
    "MigrationFinished",
    "MigrationStarted",
    "PeerTransferFailed",
    "PlanAbandoned",
    "PlannerFailed",
    "QueryFailed",
    "QueryStarted",
    "QueryStopped",
    "RebalancingStarted",
    "RegroupingCancelled",
    "RegroupingStarted",
    "ResidentLanesEnded",
    "ResidentLanesFailed",
    "ResidentLanesStarted",
    "RowsLeftOut",
    "RowsUnreadable",
    "ScaledIn",
    "ScaledOut",
    "ScalingFailed",
    "ScalingFinished",
    "ScalingRefused",
    "ScalingStarted",
    "WarmingStarted",
    "WindowStateChosen",
    "event_from_dict",
]


# -- the run itself: query, epochs, executors, checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStarted(Event):
    """A query began to run; `resumed`: its checkpoint held epochs already."""

    name: str
    resumed: bool = False

    def _line(self) -> str:
        how = f"resumed after epoch {self.epoch}" if self.resumed else "started"
        return f"query {self.name} {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowChanged(Event):
    """A query continues a checkpoint that was written by another version of its flow."""

    added: tuple[str, ...] = ()  # operators that start without state
    # operators that had been removed, and find the state that they left
    returned: tuple[str, ...] = ()
    # operators that are gone from the flow; the checkpoint keeps their state until it is dropped
    removed: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)  # old name → new name
    # what became of the results of operators that aggregate, of sinks and of their columns, in
    # words
    results: tuple[str, ...] = ()

    def _line(self) -> str:
        told = [f"{name} starts empty" for name in self.added]
        told += [f"{name} is back, with the state it left" for name in self.returned]
        told += [f"{name} is gone, its state is kept" for name in self.removed]
        told += [f"{old} is now {new}" for old, new in self.renamed.items()]
        return f"flow changed after epoch {self.epoch}: {'; '.join((*told, *self.results))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStopped(Event):
    """A query ended because it was asked to, or because its input did."""

    name: str

    def _line(self) -> str:
        return f"query {self.name} stopped after epoch {self.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailed(Event):
    """A query ended by an error; what was committed stays."""

    name: str
    error: str

    def _line(self) -> str:
        return f"query {self.name} failed after epoch {self.epoch}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCommitted(Event):
    """An epoch's record is durable."""

    # rows_in, rows_out: rows read from the sources and given to the sinks
    rows_in: int = 0
    rows_out: int = 0
    duration_ms: float = 0.0  # from the start of the epoch to its commit, in milliseconds
    # source, or ``<source>/<operator>`` where maps compute the event time anew → watermark as the
    # epoch left it, in milliseconds since 1970-01-01 UTC
    watermarks: Mapping[str, int] = field(default_factory=dict)
    # number of key groups whose rows went to a wait buffer in this epoch
    waiting_key_groups: int = 0
    # p50, p95, p99, max, mean → milliseconds from the arrival of its rows to the end of their
    # delivery; empty without rows
    latency_ms: Mapping[str, float] = field(default_factory=dict)

    def _line(self) -> str:
        waiting = self.waiting_key_groups
        waits = f", {counted(waiting, 'key group')} waiting" if waiting else ""
        return (
            f"epoch {self.epoch} committed: {counted(self.rows_in, 'row')} in, "
            f"{self.rows_out} out, {self.duration_ms:.0f} ms{waits}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLeftOut(Event):
    """An operator over event time left rows out in an epoch."""

    operator: str  # its name
    # late, ahead, untimed: rows of which all windows were closed, that were too far ahead of the
    # driver's clock, and that had no event time
    late: int = 0
    ahead: int = 0
    untimed: int = 0
    sink: str = ""  # name of the sink that the rows went to; empty if they are gone
    # sources of the operator whose watermark has no slack: any row out of order is late
    no_slack: tuple[str, ...] = ()

    @property
    def is_warning(self) -> bool:
        """True if the rows are gone."""
        return not self.sink

    def _line(self) -> str:
        reasons = {
            "late": self.late,
            "ahead of the clock": self.ahead,
            "without an event time": self.untimed,
        }
        told = ", ".join(f"{counted(n, 'row')} {reason}" for reason, n in reasons.items() if n)
        where = f"; sink {self.sink} has them" if self.sink else ""
        slack = ""
        if self.late and self.no_slack:
            slack = (
                f"; the watermark of {', '.join(self.no_slack)} has no slack, so what is out of "
                'order may be late: give flow.source(..., slack="10 minutes")'
            )
        return f"operator {self.operator} left out in epoch {self.epoch}: {told}{where}{slack}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsUnreadable(Event):
    """A source had rows in an epoch that could not be read."""

    source: str  # its name
    rows: int
    sink: str = ""  # name of the sink that they went to; empty if they are gone

    @property
    def is_warning(self) -> bool:
        """True if the rows are gone."""
        return not self.sink

    def _line(self) -> str:
        where = f"sink {self.sink} has them" if self.sink else "they are left out"
        rows = counted(self.rows, "row")
        return f"source {self.source} could not read {rows} in epoch {self.epoch}; {where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAborted(Event):
    """An attempt at an epoch failed; it left only files that nobody names."""

    reason: str

    def _line(self) -> str:
        return f"epoch {self.epoch} aborted: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsHeld(Event):
    """No further epoch starts until `EpochsReleased`."""

    reason: str

    def _line(self) -> str:
        return f"epochs held after epoch {self.epoch}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsReleased(Event):
    """Epochs may start again."""

    def _line(self) -> str:
        return f"epochs released after epoch {self.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorAdded(Event):
    """An executor joined; it owns nothing until a migration gives it key groups."""

    executor: str
    lanes: int

    def _line(self) -> str:
        return f"executor {self.executor} added with {counted(self.lanes, 'lane')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorDraining(Event):
    """An executor is to be removed: nothing moves onto it any more."""

    executor: str

    def _line(self) -> str:
        return f"executor {self.executor} is draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLost(Event):
    """An executor and its local store are gone."""

    executor: str
    reason: str = ""

    def _line(self) -> str:
        return f"executor {self.executor} lost" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesCollected(Event):
    """Files of the checkpoint that no retained record names were removed."""

    files: int
    freed_bytes: int = 0

    def _line(self) -> str:
        return f"{counted(self.files, 'file')} collected, {human_bytes(self.freed_bytes)} freed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentLanesStarted(Event):
    """Lanes that stay between epochs are there, and work small epochs from now on."""

    lanes: int
    took_ms: float  # since they were asked for

    def _line(self) -> str:
        return f"{counted(self.lanes, 'resident lane')} ready after {self.took_ms:.0f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentLanesEnded(Event):
    """Lanes that stay were let go; epochs run as Spark jobs until there are others."""

    reason: str

    def _line(self) -> str:
        return f"resident lanes ended: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentLanesFailed(Event):
    """Lanes that stay were lost, or did not come; epochs run as Spark jobs meanwhile."""

    reason: str
    pause_s: float  # until they are started again

    @property
    def is_warning(self) -> bool:
        """True: epochs take longer than they were meant to."""
        return True

    def _line(self) -> str:
        return (
            f"resident lanes failed: {self.reason}; epochs run as Spark jobs, and lanes are "
            f"started again after {self.pause_s:g} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerFailed(Event):
    """A listener raised; it stays. Announced once for each kind of error."""

    listener: str  # name of the function
    error: str  # the error's kind and text, in one line
    heard: str  # kind of the event that it was told

    def _line(self) -> str:
        return f"listener {self.listener} failed on {self.heard}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundFailed(Event):
    """Work beside the epochs failed and goes on, or a part could not be closed at the end."""

    what: str  # what it does, as in "watching executors"
    error: str  # the error's kind and text, in one line

    def _line(self) -> str:
        return f"{self.what} failed: {self.error}"


# -- the controller and the pool of executors


def _figures(numbers: Mapping[str, float]) -> str:
    """Write the numbers of a decision."""
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
class _Decision(Event):
    """A decision of the controller, or its outcome; `DECISIONS` has the names of all kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancingStarted(_Decision):
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
class LanesBalanced(_Decision):
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
class _Scaling(_Decision):
    """A decision about the number of executors."""

    before: int  # executors that work or are on their way
    wanted: int  # executors that are to work
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it rests on: figure → value


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledOut(_Scaling):
    """More executors are requested, or kept: from `before` to `wanted`."""

    # those of them that were to leave, were still there, and stay; the others were asked for
    kept: tuple[str, ...] = ()

    def _line(self) -> str:
        more = counted(self.wanted - self.before, "more executor")
        kept = f", keeping {', '.join(self.kept)}" if self.kept else ""
        return f"scaling out, {more} for {self.wanted}{kept}: {self.reason}{_figures(self.numbers)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledIn(_Scaling):
    """Executors are drained to be given back."""

    executors: tuple[str, ...]

    def _line(self) -> str:
        return (
            f"scaling in to {self.wanted}, draining {', '.join(self.executors)}: "
            f"{self.reason}{_figures(self.numbers)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRefused(_Scaling):
    """The number of executors should change, and cannot or must not."""

    def _line(self) -> str:
        return (
            f"staying at {counted(self.before, 'executor')} where {self.wanted} were wanted: "
            f"{self.reason}{_figures(self.numbers)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionJudged(_Decision):
    """What came of a decision about the number of executors, beside what it expected."""

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
class ForecastJudged(_Decision):
    """Forecasts of the arrival rate are used from now on, or not."""

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
class ExecutorsReturned(_Decision):
    """Executors that own nothing any more were given back to the cluster."""

    executors: tuple[str, ...]

    def _line(self) -> str:
        return f"gave back {', '.join(self.executors)}, which own nothing any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSkipped(_Decision):
    """Nothing was done although it was considered; announced once per reason."""

    what: str  # what was not done
    reason: str  # why
    # what the reason rests on: name (with its unit) → value
    numbers: Mapping[str, float] = field(default_factory=dict)

    def _line(self) -> str:
        return f"no {self.what}: {self.reason}{_figures(self.numbers)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerFailed(_Decision):
    """A planner or a scaling model gave no usable answer; the stream goes on unchanged."""

    planner: str
    reason: str

    def _line(self) -> str:
        return f"planner {self.planner} failed: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAbandoned(_Decision):
    """A plan under way was overtaken by events; completed moves stay, and it is planned anew."""

    component: str
    reason: str

    def _line(self) -> str:
        return f"plan for {self.component} abandoned: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualOverrideRespected(_Decision):
    """A decision by hand is respected by the controller for a while."""

    # ``"migration of <component>"``, ``"components of <operator>"``, ``"hot keys of <join>"``,
    # ``"draining of <executor>"`` or ``"scaling"``
    what: str
    until_s: float  # when it decides about it again, on the events' clock

    def _line(self) -> str:
        return f"{self.what} by hand is left alone for {max(0.0, self.until_s - self.at_s):.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStateChosen(_Decision):
    """Overlapping windows share panes from the next epoch on, or have states of their own."""

    operator: str  # whose windows
    duplicated: bool  # whether windows have states of their own
    reason: str  # why, with the numbers
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it rests on: figure → value

    def _line(self) -> str:
        way = "have states of their own" if self.duplicated else "share panes"
        return f"windows of {self.operator} {way}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKeySpread(_Decision):
    """Rows of a join's key go to other parts, in other lanes, from the next epoch on."""

    operator: str  # the join
    key: str  # its values as JSON
    # rows, columns: among how many parts rows of the left, and of the right, are divided; 1 and 1:
    # all of them go to one lane
    rows: int
    columns: int
    reason: str  # why, with the numbers
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it rests on: figure → value

    def _line(self) -> str:
        parts = self.rows * self.columns
        what = f"is spread over {parts} parts" if parts > 1 else "is gathered in one part"
        return f"key {self.key} of {self.operator} {what}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsRequested(_Decision):
    """The cluster was asked for more executors; each that comes is an `ExecutorAdded`."""

    count: int  # how many more
    total: int  # how many there are to be then

    def _line(self) -> str:
        return f"asked the cluster for {counted(self.count, 'more executor')}, {self.total} in all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorsMissing(_Decision):
    """Executors that were requested have not come, and are no longer waited for."""

    count: int
    reason: str

    def _line(self) -> str:
        return f"{counted(self.count, 'executor')} did not come: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorRemoved(_Decision):
    """An executor that owned nothing any more was given back to the cluster, and is gone."""

    executor: str

    def _line(self) -> str:
        return f"executor {self.executor} was given back"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorKept(_Decision):
    """An executor that was draining stays: key groups may move onto it again."""

    executor: str

    def _line(self) -> str:
        return f"executor {self.executor} stays"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStarted(_Decision):
    """Another number of executors was requested by hand."""

    # before, wanted: executors there are, without those that drain, and executors there are to be
    before: int
    wanted: int

    def _line(self) -> str:
        return f"scaling from {counted(self.before, 'executor')} to {self.wanted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFinished(_Decision):
    """The requested executors are there, and key groups are where they should be."""

    executors: tuple[str, ...]  # those there are
    moved: int  # key groups that changed executor for it

    def _line(self) -> str:
        return (
            f"scaled to {counted(len(self.executors), 'executor')} "
            f"({', '.join(self.executors)}), {counted(self.moved, 'key group')} moved"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFailed(_Decision):
    """A scaling ended early; what had been done stays, and no executor drains because of it."""

    wanted: int
    reason: str

    def _line(self) -> str:
        return f"scaling to {counted(self.wanted, 'executor')} failed: {self.reason}"


# -- migrations and the grouping of components


@dataclass(frozen=True, slots=True, kw_only=True)
class _MigrationEvent(Event):
    """An event of a migration."""

    migration: str  # its name
    component: str

    @property
    def _which(self) -> str:
        """Name the migration and its component."""
        return f"migration {self.migration} of {self.component}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStarted(_MigrationEvent):
    """A plan was accepted and is being carried out."""

    strategy: str
    moves: int
    state_bytes: int = 0

    def _line(self) -> str:
        return (
            f"{self._which} started ({self.strategy}): {counted(self.moves, 'key group')}, "
            f"{human_bytes(self.state_bytes)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationFinished(_MigrationEvent):
    """A migration is over, and an epoch has been committed under its last assignment."""

    moved: int
    withdrawn: int = 0

    def _line(self) -> str:
        rest = f", {self.withdrawn} withdrawn" if self.withdrawn else ""
        return f"{self._which} finished: {counted(self.moved, 'key group')} moved{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationCancelled(_MigrationEvent):
    """A migration ended early; what had moved stays where it is."""

    reason: str
    moved: int = 0
    withdrawn: int = 0

    def _line(self) -> str:
        return (
            f"{self._which} cancelled: {self.reason} "
            f"({self.moved} moved, {self.withdrawn} withdrawn)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyGroupEvent(Event):
    """An event of key groups of a component."""

    component: str
    key_groups: tuple[int, ...]

    @property
    def _which(self) -> str:
        """Name the component and its key groups."""
        return f"{self.component}: {key_groups_listed(self.key_groups)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmingStarted(_KeyGroupEvent):
    """An executor began to load copies in the background."""

    executor: str  # where
    # executors that are to send copies; the rest is read from the checkpoint
    peers: tuple[str, ...] = ()
    why: str = ""  # why from there; empty where there was nothing to choose

    def _line(self) -> str:
        source = f" from {', '.join(self.peers)}" if self.peers else ""
        why = f"{'' if source else ' from the checkpoint'} ({self.why})" if self.why else ""
        return (
            f"{self.component}: warming {key_groups_listed(self.key_groups)} "
            f"at {self.executor}{source}{why}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTransferFailed(_KeyGroupEvent):
    """An executor did not send its copies; they are read from the checkpoint."""

    executor: str
    source: str
    reason: str

    def _line(self) -> str:
        return f"{self._which} did not come from {self.source} to {self.executor}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsWarmed(_KeyGroupEvent):
    """An executor holds fresh copies of key groups that it may own soon."""

    executor: str  # where
    state_bytes: int = 0  # their state; of that, `peer_bytes` came from other executors
    peer_bytes: int = 0
    duration_ms: float = 0.0  # what it took

    def _line(self) -> str:
        peers = f", {human_bytes(self.peer_bytes)} from peers" if self.peer_bytes else ""
        return (
            f"{self._which} warm at {self.executor} "
            f"({human_bytes(self.state_bytes)} in {self.duration_ms:.0f} ms{peers})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsSuspended(_KeyGroupEvent):
    """Key groups have no state at their executor; their rows wait from now on."""

    def _line(self) -> str:
        return f"{self._which} suspended, their rows wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsResumed(_KeyGroupEvent):
    """The next epoch processes the rows that waited, in order, and then its own."""

    def _line(self) -> str:
        return f"{self._which} resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsLoaded(_KeyGroupEvent):
    """The next epoch loads key groups before it processes them."""

    def _line(self) -> str:
        return f"{self._which} loaded by the next epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSwitched(Event):
    """The next epoch runs under another assignment."""

    component: str
    version: int  # version of the new assignment
    key_groups: tuple[int, ...] = ()  # those that changed executor (none where only lanes changed)

    def _line(self) -> str:
        moved = (
            f"moves {key_groups_listed(self.key_groups)}"
            if self.key_groups
            else "changes lanes only"
        )
        return f"{self.component}: assignment {self.version} {moved}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RegroupingEvent(Event):
    """Fields of all regrouping events."""

    regrouping: str  # its name
    # component that is made anew → its operators, separated by commas
    components: Mapping[str, str]

    @property
    def _made(self) -> str:
        """List the components that are replaced."""
        return "; ".join(f"{name} of {of}" for name, of in self.components.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupingStarted(_RegroupingEvent):
    """Another physical plan was accepted; operators to be fused are co-located first."""

    # moves, state_bytes: key groups that have to move for it, and the state that is warmed for them
    moves: int
    state_bytes: int
    reason: str = ""  # why, with the numbers; empty if somebody asked for it

    def _line(self) -> str:
        why = f", since {self.reason}" if self.reason else ""
        return (
            f"regrouping {self.regrouping} started ({self._made}): "
            f"{counted(self.moves, 'key group')} to move, {human_bytes(self.state_bytes)}{why}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentsRegrouped(_RegroupingEvent):
    """The next epoch runs under another physical plan."""

    def _line(self) -> str:
        return f"components regrouped ({self.regrouping}): {self._made}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupingCancelled(_RegroupingEvent):
    """The physical plan stays as it is."""

    reason: str

    def _line(self) -> str:
        return f"regrouping {self.regrouping} cancelled: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutsCompared(Event):
    """A period ended in which the costs of one-phase and two-phase windows were compared."""

    operator: str  # the windowed aggregate
    # layout, cheaper: ``"split"`` or ``"combined"``: what it was, and what it should be
    layout: str
    cheaper: str
    epochs: int  # epochs of the period; what follows is for all of them together
    # split_ms, combined_ms: CPU time in either layout
    split_ms: float
    combined_ms: float
    # split_latency_ms, combined_latency_ms: how long migrations take in either layout
    split_latency_ms: float
    combined_latency_ms: float
    max_latency_ms: float | None = None  # how long they may; ``None``: as long as they like
    within: bool = True  # whether those of `cheaper` take no longer
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it rests on: figure → value

    def _line(self) -> str:
        bound = ""
        if self.max_latency_ms is not None:
            bound = f" of {self.max_latency_ms:.0f} ms allowed"
            if not self.within:
                bound += f", which neither keeps to: {self.cheaper} comes closest"
        better = "stays so" if self.layout == self.cheaper else f"{self.cheaper} would be better"
        return (
            f"{self.operator} is {self.layout} and {better}: over {counted(self.epochs, 'epoch')} "
            f"split {self.split_ms:.1f} ms of CPU, combined {self.combined_ms:.1f} ms; "
            f"migrations take {self.split_latency_ms:.0f} ms split, "
            f"{self.combined_latency_ms:.0f} ms combined{bound}"
        )


# -- reading events back from plain values

_KINDS: Mapping[str, type[Event]] = {
    name: globals()[name] for name in __all__ if name not in ("Event", "event_from_dict")
}

DECISIONS = frozenset(k.__name__ for k in _KINDS.values() if issubclass(k, _Decision))
"""Kinds of events by which the controller and the pool of executors tell what they decided."""


def event_from_dict(values: Any) -> Event:
    """Undo `Event.to_dict`."""
    return read_event(_KINDS, values)
