"""Statistics of a period: load per key group, lane and executor, and the arrival rate.

A period's rates, epochs and sums are those of its own epochs and nothing older.  How the load is
distributed over key groups is known from all epochs since that last changed
(`godwit.control.load_window`), and the rate at which rows arrive from what came since *that* last
changed (`godwit.control.arrivals`); sizes of state are the last ones known.  An epoch whose figures
are missing counts as missing, not as idle.  Source: paper 2 §3 (statistics per key group over a
period, SPL).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.arrivals import ArrivalCurve
from godwit.control.load_window import LoadWindow
from godwit.control.outside_lanes import OutsideLanes
from godwit.engine.policies import busiest_lane_s
from godwit.model.key_groups import KeyGroupPairs, OperatorWork, key_groups_of
from godwit.model.latency import LatencyHistogram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.control.rate_trend import Trend
    from godwit.engine.policies import CommittedEpoch, Topology
    from godwit.model.assignment import Assignment
    from godwit.model.key_groups import KeyGroupLoad
    from godwit.placement.arrays import FloatArray

_LAST_PART = 1 / 3
"""Last part of a period, whose arrival rate is used if it is higher than the whole period's."""
_RISEN_FACTOR = 1.1
"""Min. ratio of the two."""
_LATENCY_PERIODS = 5
"""Number of periods for the ratio of a latency quantile to the mean."""
_PARTS = {"plan": "driver", "commit": "driver", "stages": "source"}
"""Phase of an epoch → part of the system that works in it outside the lanes."""
_BOTTLENECK_SHARE = 0.5
"""Min. share of a period at which a part, or a single key group, is the bottleneck."""
_EARLY_PERIODS = 2
"""Number of periods after a backlog that may end after few epochs, to release executors early."""
_SHOWN = 2
"""Number of epochs that suffice for decisions if a step ends a period early or epochs are long."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssignmentPeriod:
    """Costs of a component's key groups during one assignment period."""

    assignment: Assignment  # where they were
    # shape ``(G,)``: rows processed, and seconds that lanes were busy
    rows: FloatArray
    busy_s: FloatArray
    epochs: FloatArray  # shape ``(G,)``: epochs in which each was touched

    def add(self, load: KeyGroupLoad) -> None:
        """Add the load of one epoch to the sums of this assignment period."""
        touched = load.key_groups
        self.rows[touched] += load.rows
        self.busy_s[touched] += load.busy_s
        self.epochs[touched] += 1

    @classmethod
    def empty(cls, assignment: Assignment) -> AssignmentPeriod:
        """Return an assignment period without epochs."""
        rows, busy_s, epochs = np.zeros((3, assignment.num_key_groups))
        return cls(assignment=assignment, rows=rows, busy_s=busy_s, epochs=epochs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComponentStatistics:
    """Loads of one component over one period."""

    # what it cost, assignment by assignment; at least one
    by_assignment: tuple[AssignmentPeriod, ...]
    in_bytes: FloatArray  # shape ``(G,)``: bytes that operators upstream sent to each key group
    state_bytes: FloatArray  # shape ``(G,)``: bytes of state, as last known
    # component upstream → rows from its key groups to those of this one
    pairs: Mapping[str, KeyGroupPairs] = field(default_factory=dict)
    row_bytes: float = 0.0  # bytes that a row sent by operators upstream takes, on average
    # its load since that last changed, which continues with every epoch; ``None``: not known
    window: LoadWindow | None = None

    @property
    def rows(self) -> FloatArray:
        """Rows that each key group processed, shape ``(G,)``."""
        return _sum_arrays([s.rows for s in self.by_assignment])

    @property
    def busy_s(self) -> FloatArray:
        """Seconds that lanes were busy with each key group, shape ``(G,)``."""
        return _sum_arrays([s.busy_s for s in self.by_assignment])

    def standard_s(self, speeds: Mapping[str, float]) -> FloatArray:
        """Return the seconds of a lane at speed 1 that each key group needs, shape ``(G,)``."""
        total = np.zeros_like(self.in_bytes)
        for span in self.by_assignment:
            speed = np.array([speeds.get(name, 1.0) for name in span.assignment.executors])
            total += span.busy_s * speed[span.assignment.executor_of]
        return total

    def expected_s(self, speeds: Mapping[str, float]) -> tuple[FloatArray, FloatArray | None]:
        """Return the seconds that each key group is expected to need, and the variance of each.

        Both of shape ``(G,)``. The period gives the total, the load window the shares; the variance
        is ``None`` if it is unknown.
        """
        total = self.standard_s(speeds)
        shares = None if self.window is None else self.window.shares(speeds)
        if shares is None:
            return total, None
        sum_s = float(total.sum())
        return shares.share * sum_s, shares.variance * sum_s**2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeriodStatistics:
    """One statistics period."""

    began_s: float  # by the controller's clock
    ended_s: float
    # epochs with input, and those of them whose figures were missing, which count no further
    epochs: int
    missing: int
    rows: float  # source rows that all of them took
    covered: float  # share of these rows whose figures are there
    # source rows that arrived a second: since the rate last changed, if it did; otherwise over the
    # whole period or its last third, whichever is most
    arrival_per_s: float
    arrival_error: float = 0.0  # its standard error by noise, as a share; 0 if it is unknown
    rising: Trend | None = None  # its trend, where it rises and epochs have shown it
    # mean time of an epoch, in seconds, with the delivery that the next one waits for
    epoch_s: float
    # mean time of an epoch in which not even the busiest lanes were busy with key groups: what does
    # not depend on its rows, and seconds for each of them
    fixed_s: float
    per_row_s: float = 0.0
    # phase or sink → its seconds of the mean epoch, without the busiest lanes
    outside_s: Mapping[str, float] = field(default_factory=dict)
    # rows that the sources held back at last; ``None`` where they do not say
    backlog_rows: int | None
    components: Mapping[str, ComponentStatistics]  # component → its statistics
    # latency of the rows that were delivered, in the period, and in the last few of them
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    recent_latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    latest_latency: LatencyHistogram = field(default_factory=LatencyHistogram)  # of the last epoch
    # time that the busiest lanes of all epochs were busy with key groups, stage after stage
    busiest_s: float = 0.0
    key_work: Mapping[str, OperatorWork] = field(default_factory=dict)  # operator → by key

    @property
    def period_s(self) -> float:
        """Length of the period, in seconds."""
        return self.ended_s - self.began_s

    @property
    def settled(self) -> bool:
        """True if there are measurements, and no key group changed its executor or lane."""
        seen = self.components.values()
        return bool(seen) and all(len(component.by_assignment) == 1 for component in seen)

    @property
    def covered_s(self) -> float:
        """Seconds with measurements: less than the period if outcomes are missing."""
        return self.period_s * self.covered

    @property
    def to_offered_per_s(self) -> float:
        """Factor from a sum over the period to a rate per second, at the arrival rate of rows.

        All loads are offered loads. Under overload, lanes are busy all the time, whatever they have
        left to do: processed loads beside absolute bounds would show a stream that just fits.
        """
        return self.demand / self.covered_s if self.covered_s > 0 else 0.0

    def heaviest_key(self, component: str, key_group: int) -> str:
        """Return the key with most of a key group's time, as JSON; empty if unknown."""
        busy_s = self.components[component].busy_s
        work = self.key_work.get(component, OperatorWork())  # of one operator it has the name
        for key_work in work.keys:
            (its,) = key_groups_of(np.array([key_work.hash]), len(busy_s)).tolist()
            is_time = key_work.left and not (key_work.right or key_work.pairs)
            if is_time and its == key_group and key_work.left > 0.5e6 * busy_s[key_group]:
                return key_work.key
        return ""

    def held_up_by(self) -> tuple[str, float]:
        """Return the part with most of the period's time, and its share of the period.

        Empty if the stream waited for rows most of the time; as in `events.LoadMeasured`.
        """
        took_s: dict[str, float] = {"executors": self.busiest_s}
        for part, each_s in self.outside_s.items():
            name = _PARTS.get(part, part)
            took_s[name] = took_s.get(name, 0.0) + each_s * self.epochs
        name = max(took_s, key=lambda part: took_s[part])
        # An epoch counts as a whole where it ends, so one may take longer than its period.
        share = min(1.0, took_s[name] / max(self.period_s, 1e-9))
        if share < _BOTTLENECK_SHARE:
            return "", share
        if name == "executors":
            busy_s = {n: c.busy_s for n, c in self.components.items()}
            heaviest = max(busy_s, key=lambda n: float(busy_s[n].max()), default=None)
            if heaviest is not None:
                key_group_share = min(1.0, float(busy_s[heaviest].max()) / max(self.period_s, 1e-9))
                if key_group_share >= _BOTTLENECK_SHARE:
                    return (
                        f"key group {int(busy_s[heaviest].argmax())} of {heaviest!r}",
                        key_group_share,
                    )
        return name, share

    @property
    def demand(self) -> float:
        """Rows that arrived for every row processed; 1 if none was processed."""
        taken_per_s = self.rows / self.period_s if self.period_s > 0 else 0.0
        return self.arrival_per_s / taken_per_s if taken_per_s > 0 else 1.0


@dataclass(slots=True, kw_only=True)
class _Tally:
    """Measurements of a component so far."""

    by_assignment: list[AssignmentPeriod]
    in_bytes: FloatArray
    sent_rows: int = 0
    pairs: dict[str, list[KeyGroupPairs]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Epochs:
    """Epochs of the period so far: their rows, durations, and the last backlog."""

    rows: list[int] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    busiest_s: list[float] = field(default_factory=list)
    backlog_rows: int | None = None
    held_back: bool = False  # whether sources held rows back when one of them began
    caught_up: bool = False  # whether one of them has taken the last of these rows since
    missing: int = 0
    missing_rows: int = 0
    delivered: int = 0
    spent_s: Counter[str] = field(default_factory=Counter)  # phase or sink → seconds
    in_lanes_s: float = 0.0  # of these


class Statistics:
    """Sum of epochs since the last period ended."""

    def __init__(
        self,
        topology: Topology,
        now_s: float,  # when the first period begins
        # component → key group → bytes of state, as far as known already
        state_bytes: Mapping[str, Mapping[int, int]],
        usual_rates: Sequence[float] = (),  # arrival rates that an earlier run saw last
    ) -> None:
        self._topology = topology
        self._known_bytes = {name: dict(sizes) for name, sizes in state_bytes.items()}
        self._state_bytes: dict[str, FloatArray] = {}
        self.arrivals = ArrivalCurve(usual_rates)
        self._recent_latencies: deque[LatencyHistogram] = deque(maxlen=_LATENCY_PERIODS)
        self._latest = LatencyHistogram()  # of the rows that were delivered last
        self._windows: dict[str, LoadWindow] = {}
        self.speeds: Mapping[str, float] = {}
        """Executor → speed as last estimated; missing: 1."""
        self.shifted = False
        """True if the last epoch showed a change of the load's distribution."""
        self._arrivals_noted = False  # of the epoch that runs
        self._running_since_s: float | None = None  # of the epoch that runs, if that was reported
        self._last_took_s: float | None = None  # of the last epoch with input
        self._usual_rows = 0.0  # of an epoch of the last period
        self._periods_caught_up = (
            _EARLY_PERIODS  # periods since the one that took the last of a backlog
        )
        self._work_outside_lanes = OutsideLanes()
        # executors, rows and lanes' seconds of the last epoch, until it is delivered
        self._undelivered: tuple[int, int, float] | None = None
        self._begin_period(now_s)

    def _begin_period(self, now_s: float) -> None:
        """Begin a statistics period."""
        self.began_s = now_s
        self._epochs = _Epochs()
        self._components: dict[str, _Tally] = {}
        self._key_work: dict[str, OperatorWork] = {}
        self._latency = LatencyHistogram()

    @property
    def epochs(self) -> int:
        """Number of epochs with input in this period."""
        return len(self._epochs.rows)

    def has_enough(self, epochs: int, lasting_s: float) -> bool:
        """Return whether the period has `epochs` epochs, or epochs with a total of `lasting_s`."""
        seen = self._epochs
        long = len(seen.rows) >= _SHOWN and sum(seen.took_s) >= lasting_s
        return len(seen.rows) >= epochs or long

    @property
    def stepped(self) -> bool:
        """True if the arrival rate has just risen by a step, and the costs of epochs are known.

        One epoch with as many rows as two usual ones shows as much: where a step falls just before
        a period's end, the second one would be waited for while the backlog grows.
        """
        if self.arrivals.step_s is None:
            return False
        rows = self._epochs.rows
        return len(rows) >= _SHOWN or 0 < _SHOWN * self._usual_rows <= sum(rows)

    def caught_up(self, epochs: int) -> bool:
        """Return whether a backlog has just been worked off, and the load after it measured.

        True once an epoch has taken the last rows that sources held back: those of later epochs
        have not waited.  Then again after each `epochs` epochs of the next periods, if sources hold
        nothing back.
        """
        seen = self._epochs
        soon = self._periods_caught_up < _EARLY_PERIODS and not seen.held_back
        return seen.caught_up or (soon and len(seen.rows) >= epochs)

    def begun(self, rows: int, backlog_rows: int | None, at_s: float) -> None:
        """Record arrivals: an epoch began with `rows`, and sources had `backlog_rows` more."""
        self.arrivals.add_epoch(rows, at_s, backlog_rows)
        self._arrivals_noted, self._running_since_s = True, at_s
        self._note_backlog(backlog_rows)

    def epoch_left_s(self, now_s: float) -> float:
        """Return the seconds until the current epoch ends, if it takes as long as the last one.

        Infinite if either is unknown.
        """
        if self._running_since_s is None or self._last_took_s is None:
            return math.inf
        return max(0.0, self._running_since_s + self._last_took_s - now_s)

    def _note_backlog(self, backlog_rows: int | None) -> None:
        """Record the sources' backlog, if they report it."""
        if backlog_rows is not None:
            self._epochs.backlog_rows = backlog_rows
            self._epochs.held_back |= backlog_rows > 0
            self._epochs.caught_up &= backlog_rows == 0

    def observe(self, epoch: CommittedEpoch, committed_s: float) -> None:
        """Add a committed epoch."""
        outcome, so_far = epoch.outcome, self._epochs
        self.shifted, self._undelivered, self._running_since_s = False, None, None
        for name, load in outcome.loads.items():
            if name in epoch.component_views:
                sizes = self._state_bytes_of(
                    name, epoch.component_views[name].assignment.num_key_groups
                )
                sizes[load.key_groups] = load.state_bytes
        if outcome.batch is None:
            return  # what it cost is of rows that waited, which says nothing of the load to come
        for name, work in outcome.key_work.items():
            self._key_work[name] = self._key_work.get(name, OperatorWork()) + work
        so_far.rows.append(outcome.rows_in)
        so_far.took_s.append(epoch.took_s)
        self._last_took_s = epoch.took_s
        began_s, held_back = committed_s - epoch.took_s, epoch.backlog_rows
        reported_s = began_s if epoch.backlog_s is None else epoch.backlog_s
        if not self._arrivals_noted:
            self.arrivals.add_epoch(outcome.rows_in, reported_s, held_back)
            self._note_backlog(held_back)
        self._arrivals_noted = False
        so_far.caught_up = so_far.held_back and so_far.backlog_rows == 0
        if outcome.rows_in and not any(len(load.key_groups) for load in outcome.loads.values()):
            so_far.missing += 1
            so_far.missing_rows += outcome.rows_in
            return
        for name, plan in epoch.component_views.items():
            assignment = plan.assignment
            self._add_load_and_traffic(name, assignment, epoch)
            if name not in self._windows:
                self._windows[name] = LoadWindow(assignment.num_key_groups)
            window = self._windows[name]
            window.observe(assignment, outcome.loads.get(name), committed_s, self.speeds)
            self.shifted |= window.shifted
        busiest_s = sum(busiest_lane_s(stage, epoch) for stage in self._topology.stages)
        so_far.busiest_s.append(busiest_s)
        executors = {
            e for plan in epoch.component_views.values() for e in plan.assignment.executors
        }
        self._undelivered = len(executors), outcome.rows_in, busiest_s

    def delivered(self, latency: LatencyHistogram, spent_s: Mapping[str, float]) -> None:
        """Add the latency of the rows of an epoch that was delivered, and the time of its phases.

        `spent_s`: phase or sink → seconds, until the next epoch could begin.
        """
        self._latency = LatencyHistogram.merged((self._latency, latency))
        if latency.rows:
            self._latest = latency
        if self._undelivered is None:
            return
        (executors, rows, busiest_s), self._undelivered = self._undelivered, None
        so_far = self._epochs
        so_far.delivered += 1
        so_far.spent_s.update(spent_s)
        so_far.in_lanes_s += busiest_s
        self._work_outside_lanes.add(
            executors=executors, rows=rows, outside_s=sum(spent_s.values()) - busiest_s
        )

    def _state_bytes_of(self, component: str, num_key_groups: int) -> FloatArray:
        """Return the bytes of state of every key group, as last reported; the caller updates it."""
        if component not in self._state_bytes:
            sizes = np.zeros(num_key_groups)
            known = self._known_bytes.pop(component, {})
            sizes[list(known)] = list(known.values())
            self._state_bytes[component] = sizes
        return self._state_bytes[component]

    def _add_load_and_traffic(
        self, name: str, assignment: Assignment, epoch: CommittedEpoch
    ) -> None:
        """Add the load and traffic of one component in an epoch."""
        tally = self._components.get(name)
        if tally is None:
            zeros = np.zeros(assignment.num_key_groups)
            tally = self._components[name] = _Tally(by_assignment=[], in_bytes=zeros)
        if not tally.by_assignment or tally.by_assignment[-1].assignment is not assignment:
            tally.by_assignment.append(AssignmentPeriod.empty(assignment))
        load = epoch.outcome.loads.get(name)
        if load is not None:
            tally.by_assignment[-1].add(load)
        sent = epoch.outcome.traffic.get(name)
        if sent is not None:
            tally.in_bytes[np.asarray(sent.key_groups, np.intp)] += sent.size_bytes
            tally.sent_rows += sum(sent.rows)
            for upstream, pairs in sent.pairs.items():
                tally.pairs.setdefault(upstream, []).append(pairs)

    def close(self, now_s: float) -> PeriodStatistics:
        """End the period and begin the next; return its statistics."""
        if self._latency.rows:
            self._recent_latencies.append(self._latency)
        statistics = self.so_far(now_s)
        self._usual_rows = statistics.rows / max(statistics.epochs, 1)
        self._periods_caught_up = 0 if self._epochs.held_back else self._periods_caught_up + 1
        self.arrivals.drop_old()
        self._begin_period(now_s)
        return statistics

    def so_far(self, now_s: float) -> PeriodStatistics:
        """Return the statistics of the current period so far."""
        so_far = self._epochs
        busiest, took = sum(so_far.busiest_s), sum(so_far.took_s)
        rows, counted = sum(so_far.rows), len(so_far.busiest_s)
        mean_s = took / len(so_far.rows) if so_far.rows else 0.0
        outside_s = {}
        if so_far.delivered:
            outside_s = {part: s / so_far.delivered for part, s in so_far.spent_s.items()}
            in_lanes_s = so_far.in_lanes_s / so_far.delivered
            outside_s["stages"] = max(outside_s.get("stages", 0.0) - in_lanes_s, 0.0)
            mean_s += sum(s for part, s in outside_s.items() if part.startswith("sink "))
        fixed_s = max(0.0, mean_s - busiest / counted) if counted else mean_s
        per_row_s = self._work_outside_lanes.update()
        if so_far.rows:
            fixed_s = max(0.0, fixed_s - per_row_s * rows / len(so_far.rows))
        arrival_per_s, since_s = self._arrival_rate(now_s)
        return PeriodStatistics(
            began_s=self.began_s,
            ended_s=now_s,
            epochs=len(so_far.rows),
            missing=so_far.missing,
            rows=float(rows),
            covered=1 - so_far.missing_rows / rows if rows and counted else 1.0,
            arrival_per_s=arrival_per_s,
            arrival_error=self.arrivals.error_since(since_s),
            rising=self.arrivals.rises.trend if so_far.rows else None,
            epoch_s=mean_s,
            fixed_s=fixed_s,
            per_row_s=per_row_s,
            outside_s=outside_s,
            busiest_s=busiest,
            key_work=dict(self._key_work),
            backlog_rows=so_far.backlog_rows,
            latency=self._latency,
            recent_latency=LatencyHistogram.merged(self._recent_latencies),
            latest_latency=self._latest,
            components={
                name: ComponentStatistics(
                    by_assignment=tuple(tally.by_assignment),
                    in_bytes=tally.in_bytes,
                    state_bytes=self._state_bytes_of(name, len(tally.in_bytes)).copy(),
                    pairs={up: KeyGroupPairs.total(parts) for up, parts in tally.pairs.items()},
                    row_bytes=float(tally.in_bytes.sum()) / max(tally.sent_rows, 1),
                    window=self._windows.get(name),
                )
                for name, tally in self._components.items()
            },
        )

    def _arrival_rate(self, now_s: float) -> tuple[float, float]:
        """Return the arrival rate at the sources, in rows a second, and since when it holds."""
        so_far, arrivals = self._epochs, self.arrivals
        if not so_far.rows:
            return 0.0, self.began_s
        changed_s = arrivals.change_s
        # Where it changed just as the period began, the first interval has some of both rates.
        if changed_s is not None and changed_s >= self.began_s:
            return arrivals.rate_since_change or 0.0, changed_s
        length_s = now_s - self.began_s
        period_rate = arrivals.rate_since(self.began_s)
        if period_rate is None:
            # Where nothing tells when rows arrived, they did as they were taken.
            return float(sum(so_far.rows)) / max(length_s, 1e-9), self.began_s
        starts_s = [now_s - _LAST_PART * length_s]
        if arrivals.step_s is not None:
            starts_s.append(arrivals.step_s)
        last_rate, last_s = max(
            (rate, start_s)
            for start_s in starts_s
            if (rate := arrivals.rate_since(start_s)) is not None
        )
        # Of two estimates of one rate the greater is too high, as a rule.
        return (
            (last_rate, last_s)
            if last_rate > _RISEN_FACTOR * period_rate
            else (period_rate, self.began_s)
        )


def _sum_arrays(columns: list[FloatArray]) -> FloatArray:
    """Sum arrays of equal length, element by element."""
    total: FloatArray = np.sum(columns, axis=0)
    return total
