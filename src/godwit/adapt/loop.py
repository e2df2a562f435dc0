"""The adaptation loop: Algorithm 1 of paper 2, once a statistics period.

1. Executors that were to leave and are empty are given back.
2. Plan: where should key groups be?
3. Scale *by the plan*: what balancing can cure needs no executor; an executor may go only if the
   rest could be balanced.
4. Plan again, with what scaling has changed.
5. Carry out what pays (`godwit.adapt.worth`), within the budget.

Between two periods lanes are balanced within executors, and executors that come late are planned
for as soon as they are there.

Invariant: nothing that goes wrong here (a planner, a cluster, a plan overtaken by events) stops the
stream or the loop: it becomes an event, and the stream goes on with what it has.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.adapt.hands import Hands
from godwit.adapt.planner_thread import PlannerThread, run_untimed
from godwit.adapt.planning import Planning
from godwit.adapt.problems import usage
from godwit.adapt.rebalancing import Carrying, rebalance_lanes, recent_load
from godwit.adapt.resizing import Resizing
from godwit.adapt.speeds import Speeds
from godwit.adapt.statistics import Statistics
from godwit.adapt.worth import distance
from godwit.model import events
from godwit.model.durations import seconds
from godwit.model.errors import GodwitError
from godwit.planning import metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.adapt.planning import Planned
    from godwit.adapt.ports import (
        Clock,
        EpochObserved,
        ExecutorPool,
        Migrations,
        PlannerRunner,
        Topology,
    )
    from godwit.adapt.settings import Control
    from godwit.adapt.statistics import PeriodStatistics
    from godwit.migration import ProtocolView

__all__ = ["Controller"]

_LATE = 3
"""Periods after which one ends with fewer epochs than it should have."""
_LANES_EPOCHS = 3
"""Epochs under the same assignment that lanes are balanced by, at least."""


class Controller:
    """Balances and scales one running flow.

    Deterministic: equal observations at equal times give equal decisions. Not thread-safe; whoever
    drives it calls `observe` after every commit, and `turn` between epochs and while none run.
    """

    def __init__(
        self,
        settings: Control,  # what the user wants
        *,
        topology: Topology,
        migrations: Migrations,  # the conductor
        # adds and removes executors; ``None``: the number of executors is nobody's business
        pool: ExecutorPool | None = None,
        clock: Clock,  # tells the time; on the same scale as the events of `past`
        # runs planners and scaling models; ``None``: on a thread each, or where they may take as
        # long as they like, here
        run_planner: PlannerRunner | None = None,
        # component → key group → bytes of state, as far as known when the run begins
        state_bytes: Mapping[str, Mapping[int, int]] | None = None,
        # events of earlier runs of the same stream, oldest first: cool-downs, and what was
        # decided by hand, go on. Statistics do not: no period counts for longer than one.
        past: Iterable[events.Event] = (),
    ) -> None:
        self._settings, self._topology = settings, topology
        self._migrations, self._clock = migrations, clock
        now_s = clock.now_s()
        self._statistics = Statistics(topology, now_s, state_bytes or {})
        self._speeds = Speeds()
        run_model = run_planner
        if run_planner is None or run_model is None:
            # One each: what hangs in a scaling model is no fault of a planner, nor the other way.
            timed = settings.planning_limit is not None
            run_planner = PlannerThread() if timed else run_untimed
            run_model = PlannerThread() if timed else run_untimed
        self._run_planner = run_planner
        self._planning = Planning(settings, topology, run_planner, now_s, self._tell)
        self._carrying = Carrying(settings, migrations, self._tell)
        self._resizing = Resizing(settings, migrations, pool, run_model, self._tell)
        self._hands = Hands(seconds(settings.respect, "The setting respect"))
        for event in past:
            self._resizing.recall(event, now_s)
            if isinstance(event, events.HandRespected):
                self._hands.recall(event.what, event.until_s, now_s)
        self._period: PeriodStatistics | None = None
        self._found: Mapping[str, float] = {}
        self._known = frozenset(migrations.view.executors)
        self._said: dict[str, str] = {}
        self._lanes_due_s = now_s
        self._epochs_of_lanes: deque[EpochObserved] = deque(maxlen=16)

    # -- what whoever drives it calls -------------------------------------------------------------

    def observe(self, epoch: EpochObserved) -> None:
        """Take note of an epoch that was committed."""
        committed_s = epoch.committed_s
        self._statistics.observe(epoch, self._clock.now_s() if committed_s is None else committed_s)
        if epoch.outcome.batch is not None:
            self._epochs_of_lanes.append(epoch)

    def turn(self) -> None:
        """Decide what is due, and have it carried out through the ports."""
        now_s, view = self._clock.now_s(), self._migrations.view
        self._look(view, now_s)
        self._carrying.give_back(self._resizing.give_back(view))
        came = view.executors.keys() - self._known
        self._known = frozenset(view.executors)
        if not view.executors:
            self._resizing.begin_anew(now_s)
            return
        if view.components.keys() != set(self._topology.components):
            return  # of other components it is told with the next epoch
        if self._settings.policy == "static":
            if self._due(view, now_s):
                self._statistics.close(now_s)  # nothing is kept for longer than a period
        elif self._due(view, now_s):
            self._period = self._statistics.close(now_s)
            self._found = self._speeds.update(self._period)
            self._adapt(self._period, view, now_s, scale=True)
        elif came and self._period is not None:
            self._adapt(self._period, view, now_s, scale=False)
        else:
            self._balance_lanes(view, now_s)

    def regroup(self, topology: Topology) -> None:
        """Go on with other components: statistics begin anew, what was decided stands."""
        now_s = self._clock.now_s()
        self._topology, self._period = topology, None
        self._statistics = Statistics(topology, now_s, {})
        self._planning = Planning(self._settings, topology, self._run_planner, now_s, self._tell)
        self._epochs_of_lanes.clear()

    def scaled_by_hand(self) -> None:
        """Take note that somebody set the number of executors."""
        now_s = self._clock.now_s()
        for what, until_s in self._hands.scaled(now_s).items():
            self._tell(events.HandRespected, what=what, until_s=until_s)

    @property
    def status(self) -> dict[str, Any]:
        """What it is doing, for people: plain values."""
        now_s, period = self._clock.now_s(), self._period
        return {
            "planner": self._settings.planner_name,
            "policy": self._settings.policy,
            "nextDecisionInS": round(
                max(0.0, self._statistics.began_s + self._settings.period_s - now_s), 3
            ),
            "epochsObserved": self._statistics.epochs,
            "arrivalPerS": None if period is None else round(period.arrival_per_s, 1),
            "migrations": self._carrying.under_way,
            "draining": sorted(self._resizing.draining),
            "speeds": {e: round(v, 2) for e, v in self._found.items() if v != 1.0},
            "leftAlone": {w: round(s, 1) for w, s in self._hands.held(now_s).items()},
            "notDone": dict(self._said),
        }

    # -- observe ----------------------------------------------------------------------------------

    def _look(self, view: ProtocolView, now_s: float) -> None:
        self._resizing.look(view)
        new = self._hands.look(
            view,
            now_s,
            own_migrations=self._carrying.ids,
            own_draining=self._resizing.draining | self._resizing.returned,
        )
        for what, until_s in new.items():
            self._tell(events.HandRespected, what=what, until_s=until_s)
        self._carrying.look(view)

    def _due(self, view: ProtocolView, now_s: float) -> bool:
        passed_s = now_s - self._statistics.began_s
        if self._settings.scaling_model is not None and self._statistics.stepped:
            return True  # what needs more executors should not wait for the period's end
        if passed_s < self._settings.period_s:
            return False
        if self._statistics.show(self._settings.least_epochs, self._settings.period_s):
            return True
        late = passed_s >= _LATE * self._settings.period_s
        return late and (self._statistics.epochs > 0 or view.running is None)

    # -- evaluate and decide ----------------------------------------------------------------------

    def _adapt(
        self, period: PeriodStatistics, view: ProtocolView, now_s: float, *, scale: bool
    ) -> None:
        own = self._carrying.ids if self._replans else frozenset()
        busy = {
            name: "it is being migrated" if c.migration else "it was migrated by hand"
            for name, c in view.components.items()
            if (c.migration and c.migration not in own) or self._hands.hold_component(name, now_s)
        }
        planning = self._planning
        planning.begin()
        if scale:
            planning.remember(period, self._found)
        planned = planning.plan(period, view, self._found, fixed=busy.keys())
        if scale:
            self._tell_load(period, planned)
            if period.missing and period.missing == period.epochs:
                self._skip("balancing", "the figures of all epochs are missing", {})
                return
            if self._scale(period, view, planned, busy, now_s):
                view = self._migrations.view
                planned = planning.plan(period, view, self._found, fixed=busy.keys())
        self._carry_out(planned, busy)

    @property
    def _replans(self) -> bool:
        """Whether plans can be made in the middle of others.

        Not by ranges, of which there are none then; and cores that are lent remember to whom.
        """
        known = self._settings.registered
        ranges = known is not None and known.plans_intervals
        return self._settings.policy == "resource_centric" and not ranges

    def _scale(
        self,
        period: PeriodStatistics,
        view: ProtocolView,
        planned: list[Planned],
        busy: Mapping[str, str],
        now_s: float,
    ) -> bool:
        """Decide how many executors there are to be; return whether it changes the plan."""
        if self._settings.scaling_model is None:
            return False
        if self._hands.hold_scaling(now_s):
            self._skip("scaling", "the number of executors was set by hand", {})
            return False

        def trial(draining: frozenset[str]) -> list[Planned]:
            return self._planning.plan(period, view, self._found, draining=draining, tried=True)

        return self._resizing.decide(
            self._planning.situation(period, view, planned, self._found, now_s),
            view,
            planned,
            trial=None if busy or self._carrying.under_way else trial,
        )

    def _carry_out(self, planned: list[Planned], busy: Mapping[str, str]) -> None:
        for name, reason in busy.items():
            if reason != "it is being migrated":
                self._skip(f"balancing of {name}", reason, {})
        for plan in planned:
            what = f"balancing of {', '.join(plan.asked.components)}"
            verdict = plan.verdict
            overtaken = self._carrying.overtaken(plan, self._migrations.view)
            if overtaken == "":
                continue  # what is under way leads to where it was to lead
            if len(verdict.order):
                self._said.pop(what, None)
                self._carrying.start(plan, instead=overtaken or "")
            elif verdict.reason:
                self._skip(
                    what,
                    verdict.reason,
                    {
                        "load_distance": verdict.distance_before,
                        "gain_s": verdict.gain_s,
                        "cost_s": verdict.cost_s,
                    },
                )

    # -- lanes ------------------------------------------------------------------------------------

    def _balance_lanes(self, view: ProtocolView, now_s: float) -> None:
        every = self._settings.lanes_every
        if every is None or now_s < self._lanes_due_s:
            return
        self._lanes_due_s = now_s + seconds(every, "The setting lanes_every")
        for name, component in view.components.items():
            assignment = component.assignment
            if max(assignment.lanes) < 2 or self._hands.hold_component(name, now_s):
                continue
            under = [
                e
                for e in self._epochs_of_lanes
                if name in e.assignments and e.assignments[name] == assignment
            ]
            if len(under) < _LANES_EPOCHS:
                continue
            load = recent_load(name, under, assignment.num_key_groups)
            change = rebalance_lanes(name, assignment, load, self._settings.theta)
            if change is None:
                continue
            with suppress(GodwitError):  # overtaken: the assignment is another one by now
                self._migrations.change_lanes(change.request)
                self._tell(
                    events.LanesBalanced,
                    component=name,
                    key_groups=len(change.request.lane_of),
                    executors=change.executors,
                    imbalance_before=change.before,
                    imbalance_after=change.after,
                )

    # -- telling ----------------------------------------------------------------------------------

    def _tell(self, kind: type[events.Event], **values: Any) -> None:
        self._migrations.announce(kind, **values)

    def _skip(self, what: str, reason: str, numbers: Mapping[str, float]) -> None:
        """Tell why nothing was done, once until it changes."""
        if self._said.get(what) != reason:
            self._said[what] = reason
            self._tell(events.DecisionSkipped, what=what, reason=reason, numbers=dict(numbers))

    def _tell_load(self, period: PeriodStatistics, planned: list[Planned]) -> None:
        used: dict[str, float] = {}
        index: dict[str, float] = {}
        for plan in planned:
            problem = plan.asked.problem
            for resource, share in usage(problem).items():
                used[resource] = used.get(resource, 0.0) + share
            loads = metrics.load_index(problem, problem.current).tolist()
            for name, share in zip(problem.executors, loads, strict=True):
                index[name] = index.get(name, 0.0) + share
        self._tell(
            events.LoadMeasured,
            period_s=period.period_s,
            epochs=period.epochs,
            missing=period.missing,
            arrival_per_s=period.arrival_per_s,
            epoch_s=period.epoch_s,
            bottleneck=max(used, key=lambda name: used[name], default="time"),
            usage=used,
            load_distance=max(
                (distance(p.asked.problem, p.asked.problem.current) for p in planned), default=0.0
            ),
            load_index={name: float(np.round(share, 4)) for name, share in index.items()},
            speeds={e: speed for e, speed in self._found.items() if speed != 1.0},
        )
