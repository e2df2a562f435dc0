"""Carrying plans out: migrations between executors, and lanes within them.

A plan may take longer than a period.  Executors come meanwhile, some are to leave, loads shift; to
wait for the end of a plan that no longer leads anywhere is as wrong as to begin anew every period
because a fresh plan looks a little better.  The rule: a plan is *overtaken* if what is left of it
would leave key groups on an executor that was to leave only after it was made, or would miss by
more than a move is worth the balance it was to reach; and if the plan that would be made today does
better.  Under noise a plan still leads to where it was to lead, so it is completed.

To change lane within an executor costs nothing, since its processes share one local store, and an
epoch waits for the busiest lane of all.  Invariant: no lane changes unless its executor's busiest
lane is above theta times the mean and comes down by more than noise.  Source: paper 5 §3.1 (theta =
1.2, every half second).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.adapt.cost_benefit import CERTAIN, LEAST_GAIN, distance
from godwit.adapt.policy import Proposal
from godwit.migration import LanesRequested, MigrationRequested
from godwit.migration.placement import with_newcomers
from godwit.model import events
from godwit.model.durations import seconds
from godwit.model.errors import GodwitError, InvalidPlanError
from godwit.planning.cores.intra_executor import balance_lanes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from godwit.adapt.cost_benefit import SelectedMoves
    from godwit.adapt.interfaces import EpochObserved, Migrations
    from godwit.adapt.planning import Planned
    from godwit.adapt.policy import Announce, ManualOverrides
    from godwit.adapt.settings import Control
    from godwit.migration import ProtocolView
    from godwit.model.assignment import Assignment
    from godwit.planning import Problem
    from godwit.planning.arrays import FloatArray

_OWN = "control-"


def is_own(migration: str) -> bool:
    """Return true for the id of a controller's migration."""
    return migration.startswith(_OWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Migration:
    """A migration of the controller under way, with the plan's assumptions and aim."""

    id: str
    executors: frozenset[str]  # that it moves key groups from and to
    known_executors: frozenset[str]  # when it was planned, and those of them that were to leave
    draining: frozenset[str]
    distance: float  # load distance that it was to reach, as a share of the mean

    def why_overtaken(
        self,
        problem: Problem,
        remaining: Mapping[int, str],
        selected: SelectedMoves,
        *,
        max_load_distance: float,
    ) -> str:
        """Return why today's plan replaces the rest of the migration; empty if it does not.

        `remaining` are the moves still to be made: key group, numbered as in `problem`, → executor.
        """
        if not len(selected.order):
            return ""
        after = problem.current.copy()
        number = {executor: at for at, executor in enumerate(problem.executors)}
        after[list(remaining)] = [number[executor] for executor in remaining.values()]
        names = np.array(problem.executors)
        leaving = sorted(set(names[problem.draining].tolist()) - self.draining)
        for name in leaving:
            at = number[name]
            if np.count_nonzero(selected.assignment == at) < np.count_nonzero(after == at):
                return f"executor {name} is to leave"
        reached = distance(problem, after)
        missed = reached - max(self.distance, max_load_distance)
        least = max(LEAST_GAIN, CERTAIN * selected.error)
        if missed < least or reached - selected.distance_after < LEAST_GAIN:
            return ""
        new = sorted(set(problem.executors) - self.known_executors)
        if new:
            return f"executor {new[0]} has come"
        return (
            f"it would lead to a load distance of {reached:.0%}, where {self.distance:.0%} was due"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rebalance:
    """Proposal's change: the selected moves of a plan."""

    plan: Planned
    instead: str = ""  # why what is under way of its components is given up for it, if anything is


class Rebalancing:
    """Migrations under way that the controller requested."""

    def __init__(self, settings: Control, migrations: Migrations, announce: Announce) -> None:
        self._settings, self._migrations, self._announce = settings, migrations, announce
        self._asked = 0
        self._own: dict[str, _Migration] = {}

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the controller's own migrations."""
        return frozenset(own.id for own in self._own.values())

    @property
    def under_way(self) -> dict[str, str]:
        """Component → id of its migration."""
        return {name: own.id for name, own in self._own.items()}

    def overtaken(self, plan: Planned, view: ProtocolView) -> str | None:
        """Return why a new plan replaces the migrations under way.

        Empty where they are not; ``None`` where nothing is under way.
        """
        measured = plan.measured
        remaining: dict[int, str] = {}
        under_way = [self._own[name] for name in measured.components if name in self._own]
        for name in measured.components:
            if name in self._own:
                component, first = view.components[name], measured.first[name]
                ends = {t.key_group: t.destination for t in component.transfers if t.planned}
                ends |= {move.key_group: move.destination for move in component.moves}
                known = measured.problem.executors
                remaining |= {first + g: e for g, e in ends.items() if e in known}
        if not under_way:
            return None
        if not remaining:
            return ""  # everything has moved, and it ends by itself
        limit = self._settings.worth.max_load_distance
        reasons = (
            own.why_overtaken(measured.problem, remaining, plan.selected, max_load_distance=limit)
            for own in under_way
        )
        return next(filter(None, reasons), "")

    def give_back(self, executors: Collection[str]) -> None:
        """Forget executors that are given back, so that their absence ends no plan."""
        for name, own in self._own.items():
            self._own[name] = replace(own, executors=own.executors.difference(executors))

    def look(self, view: ProtocolView) -> None:
        """Forget migrations that have ended; cancel those towards lost executors."""
        for name, own in list(self._own.items()):
            component = view.components.get(name)
            if component is None or component.migration != own.id:
                del self._own[name]
                continue
            gone = sorted(own.executors - view.executors.keys())
            if gone:
                self._abandon(name, own, f"executor {gone[0]} is gone")

    def _abandon(self, name: str, own: _Migration, reason: str) -> None:
        """Cancel a migration and announce why, unless it has just ended by itself."""
        try:
            self._migrations.cancel(own.id, reason)
        except GodwitError:
            return  # it has just ended by itself
        finally:
            del self._own[name]
        self._announce(events.PlanAbandoned, component=name, reason=reason)

    def start(self, change: Rebalance) -> bool:
        """Request the selected moves, component by component."""
        plan = change.plan
        measured, selected = plan.measured, plan.selected
        for name in measured.components:
            if name in self._own:
                self._abandon(name, self._own[name], change.instead)
        problem = measured.problem
        started: dict[str, str] = {}
        for name in measured.components:
            first = measured.first[name]
            order = [k for k in selected.order.tolist() if first <= k < measured.part(name).stop]
            if not order:
                continue
            places = {k - first: problem.executors[selected.assignment[k]] for k in order}
            sources = [problem.executors[problem.current[k]] for k in order]
            migration = self._request(plan, name, places, sources)
            if migration:
                started[name] = migration
        if not started:
            return True  # overtaken, and told so
        self._announce(
            events.RebalancingStarted,
            migrations=started,
            planner=plan.planner,
            moves=len(selected.order),
            state_bytes=int(selected.moved_bytes),
            draining=int(np.count_nonzero(problem.draining[problem.current[selected.order]])),
            distance_before=selected.distance_before,
            distance_after=selected.distance_after,
            gain_s=selected.gain_s,
            cost_s=selected.cost_s,
        )
        return True

    def change_lanes(self, change: LaneChange) -> bool:
        """Request other lanes; false if the assignment has changed since."""
        try:
            self._migrations.change_lanes(change.request)
        except GodwitError:
            return False
        self._announce(
            events.LanesBalanced,
            component=change.request.component,
            key_groups=len(change.request.lane_of),
            executors=change.executors,
            imbalance_before=change.before,
            imbalance_after=change.after,
        )
        return True

    def _request(
        self,
        plan: Planned,
        name: str,
        places: dict[int, str],
        sources: list[str],
    ) -> str:
        """Request the moves of one component; return the migration's id, or empty if overtaken."""
        # As it is by now: what turns to its other slot has changed the places of that component.
        view = self._migrations.view
        measured = plan.measured
        weight = measured.problem.weight[measured.part(name)]
        sizes = measured.held_bytes[measured.part(name)]
        self._asked += 1
        migration = f"{_OWN}{self._asked}"
        try:
            current = with_newcomers(view.components[name].assignment, view.executors)
            _check_sources(name, current, dict(zip(places, sources, strict=True)))
            self._migrations.migrate(
                MigrationRequested(
                    id=migration,
                    component=name,
                    target=current.moved(places),
                    strategy=view.components[name].default_strategy,
                    bounds=self._settings.bounds,
                    loads=dict(enumerate(weight.tolist())),
                    order=tuple(places),
                    state_bytes={g: int(sizes[g]) for g in np.flatnonzero(sizes).tolist()},
                    by_hand=False,
                )
            )
        except GodwitError as error:
            self._announce(events.PlanAbandoned, component=name, reason=error.message)
            return ""
        problem = measured.problem
        self._own[name] = _Migration(
            id=migration,
            executors=frozenset(places.values()) | frozenset(sources),
            known_executors=frozenset(problem.executors),
            draining=frozenset(np.array(problem.executors)[problem.draining].tolist()),
            distance=plan.selected.distance_after,
        )
        return migration


def _check_sources(component: str, current: Assignment, sources: dict[int, str]) -> None:
    """Refuse moves of key groups that have moved since the plan was made."""
    for key_group, source in sources.items():
        if current.executor(key_group) != source:
            raise InvalidPlanError(
                f"Key group {key_group} of {component!r} has left executor {source!r}.",
                remedy="Plan again on the assignment there is now.",
                key_group=key_group,
            )


_LANES_EPOCHS = 3
"""Epochs under the same assignment that lanes are balanced by, at least."""
_LEAST_GAIN = 0.1
"""Share of the mean lane by which the busiest one must come down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneChange:
    """Other lanes for some key groups of a component."""

    request: LanesRequested  # what to ask the conductor for
    executors: tuple[str, ...]  # those on which key groups change lane
    before: float  # busiest lane over mean lane, of the worst of these executors
    after: float


class LaneBalancing:
    """Policy that balances lanes within executors."""

    def __init__(self, settings: Control, overrides: ManualOverrides, now_s: float) -> None:
        self._settings, self._overrides = settings, overrides
        self._due_s = now_s
        self._epochs: deque[EpochObserved] = deque(maxlen=16)

    def observe(self, epoch: EpochObserved) -> None:
        """Record a committed epoch."""
        if epoch.outcome.batch is not None:
            self._epochs.append(epoch)

    def forget(self) -> None:
        """Forget all epochs, for other components."""
        self._epochs.clear()

    def propose(self, view: ProtocolView, now_s: float) -> Iterator[Proposal]:
        """Propose other lanes, if it is time to."""
        every = self._settings.cadence.lanes_every
        if every is None or now_s < self._due_s:
            return
        self._due_s = now_s + seconds(every, "The setting lanes_every")
        for name, component in view.components.items():
            assignment = component.assignment
            by_hand = self._overrides.holds(f"migration of {name}", now_s)
            if max(assignment.lanes) < 2 or by_hand:
                continue
            under = [e for e in self._epochs if e.assignments.get(name) == assignment]
            if len(under) < _LANES_EPOCHS:
                continue
            load = recent_load(name, under, assignment.num_key_groups)
            change = rebalance_lanes(name, assignment, load, self._settings.worth.theta)
            if change is not None:
                yield Proposal(subject=f"lanes of {name}", change=change)


def recent_load(component: str, epochs: Iterable[EpochObserved], num_key_groups: int) -> FloatArray:
    """Shape ``(G,)``: seconds that lanes were busy with each key group in the last epochs."""
    load = np.zeros(num_key_groups)
    for epoch in epochs:
        seen = epoch.outcome.loads.get(component)
        if seen is not None:
            load[seen.key_groups] += seen.busy_s
    return load


def rebalance_lanes(
    component: str, assignment: Assignment, load: FloatArray, theta: float
) -> LaneChange | None:
    """Balance the lanes of every executor above the threshold; ``None`` if there is none.

    The load is of shape ``(G,)``, in any unit; theta is the busiest lane over the mean one that is
    put up with.
    """
    lane_of: dict[int, int] = {}
    changed, before, after = [], 1.0, 1.0
    for executor, (name, lanes) in enumerate(
        zip(assignment.executors, assignment.lanes, strict=True)
    ):
        mine = np.flatnonzero(assignment.executor_of == executor)
        mean = float(load[mine].sum()) / lanes
        if lanes < 2 or len(mine) < 2 or mean <= 0:
            continue
        current = assignment.lane_of[mine]
        was = float(np.bincount(current, load[mine], lanes).max()) / mean
        if was <= theta:
            continue
        wanted = balance_lanes(load[mine], current, lanes, theta=theta)
        becomes = float(np.bincount(wanted, load[mine], lanes).max()) / mean
        if was - becomes < _LEAST_GAIN:
            continue
        moved = wanted != current
        lane_of.update(zip(mine[moved].tolist(), wanted[moved].tolist(), strict=True))
        changed.append(name)
        if was > before:
            before, after = was, becomes
    if not lane_of:
        return None
    return LaneChange(
        request=LanesRequested(component=component, lane_of=lane_of),
        executors=tuple(changed),
        before=before,
        after=after,
    )
