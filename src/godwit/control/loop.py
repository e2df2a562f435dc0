"""The adaptation loop: Algorithm 1 of paper 2, once a statistics period.

1. Executors that were to leave and are empty are given back.
2. Plan: where should key groups be?
3. Scale *by the plan*: what balancing can cure needs no executor; an executor may go only if the
   rest could be balanced.
4. Plan again, with what scaling has changed.
5. Carry out what pays (`godwit.control.cost_benefit`), within the budget.

Balancing and scaling are one policy (`godwit.control.policy`), since scaling decides by the plan.

Invariant: nothing that goes wrong here (a planner, a cluster, a plan overtaken by events) stops the
stream or the loop: it becomes an event, and the stream continues with what it has.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.control.cost_benefit import load_distance
from godwit.control.executor_speeds import Speeds
from godwit.control.forecast import Forecaster, RateHistory
from godwit.control.memory import ControllerMemory
from godwit.control.planner_thread import PlannerThread, run_without_limit
from godwit.control.planning import Planning, resource_usage
from godwit.control.policy import ManualOverrides, PolicyLoop
from godwit.control.rebalancing import LaneBalancing, LaneChange, Rebalance, Rebalancing
from godwit.control.resizing import Resizing
from godwit.control.settings import STATIC
from godwit.control.statistics import Statistics
from godwit.engine.policies import Proposal
from godwit.model import events
from godwit.model.decision_events import ManualChange
from godwit.placement import metrics
from godwit.placement.metrics import too_few_key_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from godwit.control.interfaces import Clock, PlannerRunner
    from godwit.control.planning import Planned
    from godwit.control.policy import Announce
    from godwit.control.settings import Control
    from godwit.control.situation import ScalingSituation
    from godwit.control.statistics import PeriodStatistics
    from godwit.engine.cluster import ExecutorPool
    from godwit.engine.policies import CommittedEpoch, Topology
    from godwit.migration.coordinator import Coordinator
    from godwit.migration.state import ProtocolView
    from godwit.model.latency import LatencyHistogram

_RISING_PERIODS = 2
"""Number of past periods that a rising rate must exceed, besides having a rising trend."""
_MAX_DELAY_PERIODS = 3
"""Number of period lengths after which a period ends with too few epochs."""
_IN_MIGRATION = "it is being migrated"


class Controller:
    """Controller of one running flow: balances and scales it.

    Deterministic: equal observations at equal times give equal decisions. Not thread-safe; the
    driving thread calls `observe` after every commit, and `step` between epochs and while none run.
    """

    def __init__(
        self,
        settings: Control,  # what the user wants
        *,
        topology: Topology,
        migrations: Coordinator,  # the coordinator
        # adds and removes executors; ``None``: the number of executors is fixed
        pool: ExecutorPool | None = None,
        clock: Clock,  # tells the time; on the same scale as the events of `past`
        # runs planners and scaling models; ``None``: on a thread each, or where they may take as
        # long as they like, here
        run_planner: PlannerRunner | None = None,
        # component → key group → bytes of state, as far as known when the run begins
        state_bytes: Mapping[str, Mapping[int, int]] | None = None,
        # events of earlier runs of the same stream, oldest first: cool-downs and manual
        # overrides continue. Statistics are not restored: they are at most one period old.
        past: Iterable[events.Event] = (),
        memory: ControllerMemory | None = None,  # what the run before left, likewise
        stated: Iterable[str] = (),  # operators whose components the options of the start name
    ) -> None:
        self._settings, self._topology = settings, topology
        self._migrations, self._clock = migrations, clock
        now_s = clock.now_s()
        memory = ControllerMemory() if memory is None else memory
        self._statistics = Statistics(topology, now_s, state_bytes or {}, memory.rates_per_s)
        self._speeds = Speeds()
        run_model = run_planner
        if run_planner is None or run_model is None:
            # One each: a scaling model that hangs must not block a planner, nor the other way.
            timed = settings.search.time_limit is not None
            run_planner = PlannerThread() if timed else run_without_limit
            run_model = PlannerThread() if timed else run_without_limit
        self._run_planner = run_planner
        self._planning = Planning(
            settings, topology, run_planner, now_s, self._announce, sizes=memory.sizes
        )
        self._rebalancing = Rebalancing(settings, migrations, self._announce)
        self._resizing = Resizing(settings, migrations, pool, run_model, self._announce)
        self._manual_overrides = ManualOverrides(
            settings.respect_s, announce=self._announce, stated=stated
        )
        self._forecaster = _forecaster_of(settings, memory, self._announce)
        for event in past:
            self._resizing.restore_from_event(event, now_s)
            if not memory.sizes:
                self._planning.restore_from_event(event)
            self._manual_overrides.restore_from_event(event, now_s)
        self._resizing.restore(memory, now_s)
        self._manual_overrides.restore(memory.overrides, now_s)
        self.policy_loop = PolicyLoop(self._manual_overrides, announce=self._announce)
        self._period: PeriodStatistics | None = None
        self._speed_of_executor: Mapping[str, float] = {}
        self._advised_components: dict[str, str] = {}  # component → why it has too few key groups
        self._executors = frozenset(migrations.view.executors)
        # last committed epoch when executors joined that nothing was planned for yet
        self._epoch_before_joins: int | None = None
        self._lanes = LaneBalancing(settings, self._manual_overrides, now_s)
        self._recent_rates: deque[float] = deque(
            maxlen=_RISING_PERIODS
        )  # arrival rates of last periods

    # -- called by the driving thread -------------------------------------------------------------

    def begun(self, rows: int, backlog_rows: int | None, at_s: float | None = None) -> None:
        """Record that an epoch began with `rows` rows, and sources had `backlog_rows` more rows.

        Arrivals are counted at the beginning, since an epoch of an overloaded stream ends late.
        """
        self._statistics.begun(rows, backlog_rows, self._clock.now_s() if at_s is None else at_s)

    def observe(self, epoch: CommittedEpoch) -> None:
        """Record a committed epoch."""
        committed_s = epoch.committed_s
        self._statistics.observe(epoch, self._clock.now_s() if committed_s is None else committed_s)
        self._lanes.observe(epoch)

    def delivered(self, latency: LatencyHistogram, spent_s: Mapping[str, float]) -> None:
        """Record the row latencies and the phases of an epoch that was delivered to sinks.

        `spent_s`: phase or sink → seconds, until the next epoch could begin.
        """
        self._statistics.delivered(latency, spent_s)

    def step(self) -> None:
        """Make and carry out decisions if a period has ended."""
        self._resizing.look_at_pool()  # before the executors: see there
        now_s, view = self._clock.now_s(), self._migrations.view
        self._resizing.update(view, now_s)
        if self._forecaster is not None:
            self._forecaster.measure_lead(frozenset(view.executors), self._resizing.pending, now_s)
        own_draining = self._resizing.draining | self._resizing.returned
        self._manual_overrides.detect(view, now_s, own_draining=own_draining)
        self._rebalancing.update(view, now_s)
        self._rebalancing.executors_released(self._resizing.release_drained(view))
        self.policy_loop.step([self], self, now_s)

    def regroup(self, topology: Topology) -> None:
        """Continue with new components: statistics restart, earlier decisions are kept."""
        now_s = self._clock.now_s()
        self._topology, self._period = topology, None
        self._statistics = Statistics(topology, now_s, {}, self._statistics.arrivals.recent_rates)
        self._planning = Planning(
            self._settings,
            topology,
            self._run_planner,
            now_s,
            self._announce,
            sizes=self._planning.sizes,
            started_s=self._planning.started_s,
            targets=self._planning.targets,
        )
        self._lanes.reset()

    @property
    def memory(self) -> ControllerMemory:
        """Measurements and decisions that the controller of the query's next run continues from."""
        now_s, (scaled, scaled_s) = self._clock.now_s(), self._resizing.last
        return ControllerMemory(
            overrides={
                w: now_s + left for w, left in self._manual_overrides.seconds_left(now_s).items()
            },
            scaled=scaled,
            scaled_s=scaled_s,
            rates_per_s=tuple(self._statistics.arrivals.recent_rates),
            rates={} if self._forecaster is None else self._forecaster.history.to_dict(),
            came_s=0.0 if self._forecaster is None else self._forecaster.came_s,
            sizes=self._planning.sizes,
        )

    @property
    def status(self) -> dict[str, Any]:
        """State for ``query.status``: planner, next decision, migrations, overrides, and more."""
        now_s, period = self._clock.now_s(), self._period
        return {
            "planner": self._settings.planner_name,
            "elasticity": self._settings.elasticity,
            "nextDecisionInS": round(
                max(0.0, self._statistics.began_s + self._settings.period_s - now_s), 3
            ),
            "epochsObserved": self._statistics.epochs,
            "latencyMs": {} if period is None else period.latency.figures_ms(),
            "arrivalPerS": None if period is None else round(period.arrival_per_s, 1),
            "migrations": self._rebalancing.under_way,
            "draining": sorted(self._resizing.draining),
            "speeds": {e: round(v, 2) for e, v in self._speed_of_executor.items() if v != 1.0},
            "leftAlone": {
                w: round(s, 1) for w, s in self._manual_overrides.seconds_left(now_s).items()
            },
            "notDone": dict(self.policy_loop.skipped),
            **self._planning.status,
        }

    # -- evaluate ---------------------------------------------------------------------------------

    def propose(self, now_s: float) -> Iterator[Proposal]:
        """Yield proposals at the end of a period: lanes, number of executors, and moves."""
        view, static = self._migrations.view, self._settings.elasticity == STATIC
        if view.executors.keys() - self._executors and self._epoch_before_joins is None:
            self._epoch_before_joins = view.committed
        self._executors = frozenset(view.executors)
        if not view.executors:
            self._resizing.request_first(now_s)
        elif view.components.keys() != set(self._topology.components):
            return  # the next epoch brings the topology of those there are now
        elif self._is_due(view, now_s):
            period = self._statistics.close(now_s)
            if self._forecaster is not None:
                self._forecaster.observe(period)
            if static:
                return  # closed only so that nothing is kept for longer than a period
            self._period, self._speed_of_executor = period, self._speeds.update(period)
            self._statistics.speeds = self._speed_of_executor
            yield from self._plan_and_propose(period, view, now_s, scale=True)
        elif static:
            return
        elif self._period is not None and self._plans_for_joined(view, now_s):
            yield from self._plan_and_propose(self._period, view, now_s, scale=False)
        elif self._statistics.shifted:
            # Where key groups should be cannot wait for the period's end; rates can.
            self._statistics.shifted = False
            period = self._statistics.so_far(now_s)
            # What shifted may be an executor, and not the keys.
            self._speed_of_executor = self._speeds.update(period, ended=False)
            yield from self._plan_and_propose(period, view, now_s, scale=False)
        if view.executors and not static:
            # Of what stays where it is: a plan begins when key groups have left others uneven.
            yield from self._lanes.propose(self._migrations.view, now_s, self._topology.stages)

    def _plans_for_joined(self, view: ProtocolView, now_s: float) -> bool:
        """Return whether to plan for executors that have joined.

        While others are to join it is done once the epoch that runs has ended: each plan restarts
        the copies, and none takes effect within an epoch.  For the last one it is done at once,
        unless the epoch ends before the copies of a new plan would be made.
        """
        if self._epoch_before_joins is None:
            return False
        if view.running is None or view.committed > self._epoch_before_joins:
            return True
        left_s = self._statistics.epoch_left_s(now_s)
        return not self._resizing.pending and not self._rebalancing.wait_for_epoch(view, left_s)

    def _is_due(self, view: ProtocolView, now_s: float) -> bool:
        """Return whether the period ends: with enough epochs, or earlier.

        Earlier at a step in the arrival rate, and when a backlog that executors were requested for
        has been worked off.
        """
        passed_s = now_s - self._statistics.began_s
        if self._settings.scaling_model is not None and self._statistics.stepped:
            return True  # what needs more executors should not wait for the period's end
        if self._resizing.many_lent and self._statistics.caught_up(
            self._settings.cadence.min_epochs
        ):
            return True  # nor should executors that only a backlog needed, if they are many
        if passed_s < self._settings.period_s:
            return False
        if self._settings.scaling_model is not None and self._statistics.arrivals.is_unsettled:
            return (
                passed_s >= _MAX_DELAY_PERIODS * self._settings.period_s
                and self._statistics.epochs > 0
            )
        if self._statistics.has_enough(self._settings.cadence.min_epochs, self._settings.period_s):
            return True
        late = passed_s >= _MAX_DELAY_PERIODS * self._settings.period_s
        return late and (self._statistics.epochs > 0 or view.running is None)

    def _plan_and_propose(
        self, period: PeriodStatistics, view: ProtocolView, now_s: float, *, scale: bool
    ) -> Iterator[Proposal]:
        """Plan, propose another number of executors if `scale` is set, and yield moves.

        Moves are planned again if executors drain by the proposal. Without `scale`, the loads are
        neither announced nor added to the history.
        """
        own = self._rebalancing.ids if self._planning.replans else frozenset()
        busy = {
            name: _IN_MIGRATION if c.migration else "it was migrated by hand"
            for name, c in view.components.items()
            if (c.migration and c.migration not in own)
            or self._manual_overrides.holds(ManualChange.MIGRATION.of(name), now_s)
        }
        self._epoch_before_joins = None
        planning = self._planning
        planning.start_time_limit(now_s, coming=self._resizing.pending)
        if scale:
            planning.add_to_history(period, self._speed_of_executor)
        planned = planning.plan(period, view, self._speed_of_executor, fixed=busy.keys())
        if scale:
            self._announce_load(period, planned)
            self._advise_on_key_groups(period)
            self._rebalancing.judge_results(planned, period)
            if period.missing and period.missing == period.epochs:
                reason = "no epoch has statistics"
                yield Proposal(subject="balancing", reason=reason)
                return
            yield from self._propose_scaling(period, view, planned, busy, now_s)
            draining, view = view.draining, self._migrations.view
            if view.draining != draining:
                planned = planning.plan(period, view, self._speed_of_executor, fixed=busy.keys())
        for name, reason in busy.items():
            if reason != _IN_MIGRATION:
                yield Proposal(subject=f"balancing of {name}", reason=reason)
        for plan in planned:
            # Nothing is planned of what stays as it is, so nothing is to be said of it, either.
            if not busy.keys() >= set(plan.measured.components):
                yield from self._propose_moves(plan)

    def _propose_scaling(
        self,
        period: PeriodStatistics,
        view: ProtocolView,
        planned: list[Planned],
        busy: Mapping[str, str],
        now_s: float,
    ) -> Iterator[Proposal]:
        """Yield a proposal of another number of executors, if load and plans suggest it.

        Also measures how steady the period was. `busy`: component → migration under way.
        """
        if self._settings.scaling_model is None:
            return
        if self._manual_overrides.holds(ManualChange.SCALING, now_s):
            reason = "the number of executors was set by hand"
            yield Proposal(subject=ManualChange.SCALING.value, reason=reason)
            return

        def trial(draining: frozenset[str]) -> list[Planned]:
            """Plan as if these executors were draining."""
            return self._planning.plan(
                period, view, self._speed_of_executor, draining=draining, hypothetical=True
            )

        situation = self._planning.situation(
            period, view, planned, self._speed_of_executor, now_s, lead_s=self._resizing.lead_s
        )
        moving = bool(busy or self._rebalancing.under_way)
        changing = (
            moving
            or bool(view.draining)
            or self._resizing.pending > 0
            or any(len(plan.selected.order) for plan in planned)
        )
        situation, steady = self._planning.learn(
            situation, changing=changing, settled=period.settled
        )
        if busy:  # moves under way are not in the plan
            situation = replace(situation, idle="")
        expected_per_s = self._expected_per_s(period, situation, now_s)
        situation = replace(situation, expected_per_s=expected_per_s)
        yield from self._resizing.propose(
            situation, view, planned, trial=None if moving else trial, steady=steady
        )

    def _expected_per_s(
        self, period: PeriodStatistics, situation: ScalingSituation, now_s: float
    ) -> float | None:
        """Return the forecast arrival rate, by a period of the load or by its trend.

        A decision counts from the time when executors have come and an epoch has begun with them
        until the next one does, a period later.
        """
        expected = None if self._forecaster is None else self._forecaster.expected_per_s(now_s)
        # Of a rate that rises each period's is the highest; some epochs of noise are looked at in
        # every period, and seem to rise sooner or later.
        highest = period.arrival_per_s >= max(self._recent_rates, default=0.0)
        self._recent_rates.append(period.arrival_per_s)
        if period.rising is None or not highest:
            return expected
        until_s = now_s + situation.lead_s + situation.epoch_s + self._settings.period_s
        return max(period.rising.rate_at(until_s), expected or 0.0)

    def _propose_moves(self, plan: Planned) -> Iterator[Proposal]:
        """Yield the moves of a plan if they pay, unless current migrations are as good."""
        overtaken = self._rebalancing.replacement_reason(plan, self._migrations.view)
        if overtaken == "":
            return  # the moves under way still reach their target
        selected = plan.selected
        if len(selected.order) or selected.reason:
            moving = plan.moving_components
            yield Proposal(
                subject=f"balancing of {', '.join(plan.measured.components)}",
                change=Rebalance(plan=plan, instead=overtaken or "") if moving else None,
                reason=selected.reason,
                reverses=frozenset(map(ManualChange.MIGRATION.of, moving)),
                numbers={
                    "load_distance": selected.distance_before,
                    "gain_s": selected.gain_s,
                    "cost_s": selected.cost_s,
                },
            )

    def answered(self, proposal: Proposal) -> None:
        """No-op: the next period repeats proposals that still pay."""

    # -- act --------------------------------------------------------------------------------------

    def cost(self, proposal: Proposal) -> float:
        """Return the cost in a proposal; plans are priced when they are made."""
        return proposal.cost

    def act(self, proposal: Proposal) -> bool:
        """Carry out a proposal; return ``False`` if its lanes or executors cannot change now."""
        change = proposal.change
        if isinstance(change, Rebalance):
            self._planning.spend(change.plan.selected, self._clock.now_s())
            return self._rebalancing.start(change)
        if isinstance(change, LaneChange):
            return self._rebalancing.change_lanes(change)
        return self._resizing.act(change)

    def _announce(self, kind: type[events.Event], **values: Any) -> None:
        """Announce an event through the coordinator."""
        self._migrations.announce(kind, **values)

    def _advise_on_key_groups(self, period: PeriodStatistics) -> None:
        """Announce each component with too few key groups once."""
        advised: dict[str, str] = {}
        for name, component in period.components.items():
            assignment = component.by_assignment[-1].assignment
            loads = component.busy_s * period.to_offered_per_s
            heaviest = int(np.argmax(loads))
            # More key groups do not divide a key.
            one_key = period.heaviest_key(name, heaviest)
            advice = too_few_key_groups(
                assignment.num_key_groups,
                sum(assignment.lanes),
                0.0 if one_key else float(loads[heaviest]),
            )
            if advice is None:
                continue
            advised[name] = advice.reason
            if name not in self._advised_components:
                self._announce(
                    events.KeyGroupsTooFew,
                    component=name,
                    key_groups=assignment.num_key_groups,
                    suggested=advice.suggested,
                    reason=advice.reason,
                )
        self._advised_components = advised

    def _announce_load(self, period: PeriodStatistics, planned: list[Planned]) -> None:
        """Announce the loads, the use of resources and the arrival rate of a period."""
        used: dict[str, float] = {}
        index: dict[str, float] = {}
        for plan in planned:
            problem = plan.measured.problem
            for resource, share in resource_usage(problem).items():
                used[resource] = used.get(resource, 0.0) + share
            loads = metrics.load_index(problem, problem.current).tolist()
            for name, share in zip(problem.executors, loads, strict=True):
                index[name] = index.get(name, 0.0) + share
        held_up_by, held_up = period.held_up_by()
        self._announce(
            events.LoadMeasured,
            period_s=period.period_s,
            epochs=period.epochs,
            missing=period.missing,
            arrival_per_s=period.arrival_per_s,
            epoch_s=period.epoch_s,
            bottleneck=max(used, key=lambda name: used[name], default="time"),
            usage=used,
            load_distance=max(
                (load_distance(p.measured.problem, p.measured.problem.current) for p in planned),
                default=0.0,
            ),
            load_index={name: float(np.round(share, 4)) for name, share in index.items()},
            speeds={e: speed for e, speed in self._speed_of_executor.items() if speed != 1.0},
            latency_ms=period.latency.figures_ms(),
            outside={
                part: float(np.round(took_s * period.epochs / period.period_s, 4))
                for part, took_s in period.outside_s.items()
            },
            held_up_by=held_up_by,
            held_up=float(np.round(held_up, 4)),
            arrival_error=float(np.round(period.arrival_error, 4)),
        )


def _forecaster_of(
    settings: Control, memory: ControllerMemory, announce: Announce
) -> Forecaster | None:
    """Return the forecaster of a controller, with its memory; ``None`` if no forecast is set.

    `announce`: announces events.
    """
    if settings.forecast is None:
        return None
    return Forecaster(
        settings.forecast,
        statistics_period_s=settings.period_s,
        announce=announce,
        remembered=RateHistory.from_dict(memory.rates),
        came_s=memory.came_s,
    )
