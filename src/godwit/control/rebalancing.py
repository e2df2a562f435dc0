"""Execution of plans: migrations between executors, and changes of lanes within them.

A plan may take longer than a period.  Executors come meanwhile, some are to leave, loads shift; to
wait for the end of a plan that is out of date is as wrong as to start over every period
because a fresh plan looks a little better.  The rule: a plan is *overtaken* if its remaining moves
would leave key groups on an executor that was to leave only after it was made, or would miss by
more than a move is worth the balance it was to reach; and if the plan that would be made today does
better.  Under noise a plan still leads to where it was to lead, so it is completed.

To change lane within an executor costs nothing, since its processes share one local store, and an
epoch waits for the busiest lane of all.  Invariant: no lane changes unless its executor's busiest
lane is above theta times the mean and comes down by more than noise.  Source: paper 5 §3.1 (theta =
1.2, every half second).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.cost_benefit import CERTAIN, LEAST_GAIN, load_distance
from godwit.control.judging import BalanceJudge
from godwit.control.planners.cores.intra_executor import balance_lanes
from godwit.engine.policies import Proposal
from godwit.migration.messages import CONTROLLER, LanesRequested, MigrationRequested
from godwit.migration.placement import with_newcomers
from godwit.model import events
from godwit.model.decision_events import ManualChange
from godwit.model.errors import GodwitError, InvalidPlanError
from godwit.time.durations import seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from godwit.control.cost_benefit import SelectedMoves
    from godwit.control.interfaces import MeasuredProblem
    from godwit.control.planning import Planned
    from godwit.control.policy import Announce, ManualOverrides
    from godwit.control.settings import Control
    from godwit.control.statistics import PeriodStatistics
    from godwit.engine.policies import CommittedEpoch
    from godwit.migration.coordinator import Coordinator
    from godwit.migration.state import ProtocolView
    from godwit.model.assignment import Assignment
    from godwit.placement import Problem
    from godwit.placement.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Migration:
    """A current migration by the controller, with the plan's assumptions and aim."""

    id: str
    executors: frozenset[str]  # that it moves key groups from and to
    known_executors: frozenset[str]  # when it was planned, and those of them that were to leave
    draining: frozenset[str]
    distance: float  # load distance that it was to reach, as a share of the mean
    started_s: float
    copied_s: float | None = None  # seconds until all copies were made; ``None``: they are not yet

    def replacement_reason(
        self,
        problem: Problem,
        remaining: Mapping[int, str],
        selected: SelectedMoves,
        *,
        max_load_distance: float,
    ) -> str:
        """Return the reason to replace the migration by a new plan; empty if it continues.

        `remaining`: moves not made yet: key group, numbered as in `problem`, → executor.
        `selected`: the moves of the new plan.
        """
        if not len(selected.order):
            return ""
        after = problem.current.copy()
        number = {executor: position for position, executor in enumerate(problem.executors)}
        after[list(remaining)] = [number[executor] for executor in remaining.values()]
        names = np.array(problem.executors)
        leaving = sorted(set(names[problem.draining].tolist()) - self.draining)
        for name in leaving:
            index = number[name]
            if np.count_nonzero(selected.assignment == index) < np.count_nonzero(after == index):
                return f"executor {name} will leave"
        reached = load_distance(problem, after)
        missed = reached - max(self.distance, max_load_distance)
        least = max(LEAST_GAIN, CERTAIN * selected.error)
        if missed < least or reached - selected.distance_after < LEAST_GAIN:
            return ""
        new = sorted(set(problem.executors) - self.known_executors)
        if new:
            return f"executor {new[0]} has joined"
        return f"it would lead to a load distance of {reached:.0%} instead of {self.distance:.0%}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rebalance:
    """Proposal's change: the selected moves of a plan."""

    plan: Planned
    instead: str = ""  # why the moves under way are replaced; empty if there are none


class Rebalancing:
    """Current migrations that the controller has requested."""

    def __init__(self, settings: Control, migrations: Coordinator, announce: Announce) -> None:
        self._settings, self._migrations, self._announce = settings, migrations, announce
        self._num_requested = 0
        self._own_migrations: dict[str, _Migration] = {}
        self._now_s = 0.0  # when this step began
        self._judge = BalanceJudge(announce)

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the controller's own migrations that are under way."""
        return frozenset(own.id for own in self._own_migrations.values())

    @property
    def under_way(self) -> dict[str, str]:
        """Component → id of the controller's migration of it that is under way."""
        return {name: own.id for name, own in self._own_migrations.items()}

    def replacement_reason(self, plan: Planned, view: ProtocolView) -> str | None:
        """Return the reason to replace current migrations by a new plan.

        Empty if they continue; ``None`` if none is under way.
        """
        measured = plan.measured
        remaining: dict[int, str] = {}
        under_way = [
            self._own_migrations[name]
            for name in measured.components
            if name in self._own_migrations
        ]
        for name in measured.components:
            if name in self._own_migrations:
                component, first = view.components[name], measured.parts[name].start
                destinations = {
                    t.key_group: t.destination for t in component.transfers if t.planned
                }
                destinations |= {move.key_group: move.destination for move in component.moves}
                known_executors = measured.problem.executors
                remaining |= {
                    first + g: executor
                    for g, executor in destinations.items()
                    if executor in known_executors
                }
        if not under_way:
            return None
        if not remaining:
            # Everything has moved, and it ends by itself, after an epoch under its assignment.
            known_to_all = frozenset.intersection(
                *(migration.known_executors for migration in under_way)
            )
            new = sorted(set(measured.problem.executors) - known_to_all)
            return f"executor {new[0]} has joined" if new else ""
        limit = self._settings.worth.max_load_distance
        reasons = (
            migration.replacement_reason(
                measured.problem, remaining, plan.selected, max_load_distance=limit
            )
            for migration in under_way
        )
        return next(filter(None, reasons), "")

    def wait_for_epoch(self, view: ProtocolView, left_s: float) -> bool:
        """Return whether to wait for the current epoch to end before moves.

        Their copies are made, and those of a new plan would not be by then: it would take as long,
        and give up moves that count from the next epoch on. `left_s`: until the epoch ends.
        """
        return any(
            own.copied_s is not None and left_s < own.copied_s and view.components[name].transfers
            for name, own in self._own_migrations.items()
        )

    def judge_results(self, planned: Sequence[Planned], period: PeriodStatistics) -> None:
        """Judge completed moves by this period's load; called once a period."""
        self._judge.judge_ended(planned, period, self._own_migrations.keys())

    def executors_released(self, executors: Collection[str]) -> None:
        """Record released executors, whose loss must not abandon a plan."""
        for name, own in self._own_migrations.items():
            self._own_migrations[name] = replace(own, executors=own.executors.difference(executors))

    def update(self, view: ProtocolView, now_s: float) -> None:
        """Drop migrations that have ended; cancel those that involve lost executors.

        Also notes whose copies have been made.
        """
        self._now_s = now_s
        for name, migration in list(self._own_migrations.items()):
            component = view.components.get(name)
            if component is None or component.migration != migration.id:
                del self._own_migrations[name]
                continue
            is_copying = component.moves or not all(t.warm for t in component.transfers)
            if migration.copied_s is None and not is_copying:
                self._own_migrations[name] = replace(
                    migration, copied_s=now_s - migration.started_s
                )
            lost = sorted(migration.executors - view.executors.keys())
            if lost:
                self._cancel_migration(name, migration, f"executor {lost[0]} was lost")

    def _cancel_migration(self, name: str, migration: _Migration, reason: str) -> None:
        """Cancel the controller's migration of component `name`, and announce the reason."""
        try:
            self._migrations.cancel(migration.id, reason)
        except GodwitError:
            return  # it has just ended by itself
        finally:
            del self._own_migrations[name]
        self._judge.abandoned(name)
        self._announce(events.PlanAbandoned, component=name, reason=reason)

    def start(self, change: Rebalance) -> bool:
        """Request the selected moves of a plan as migrations, one per component; return ``True``.

        Migrations under way of these components are cancelled.
        """
        plan = change.plan
        measured, selected = plan.measured, plan.selected
        for name in measured.components:
            if name in self._own_migrations:
                self._cancel_migration(name, self._own_migrations[name], change.instead)
        problem = measured.problem
        started: dict[str, str] = {}
        busy = busy_lanes(measured, self._migrations.view, selected.order)
        relief = _relief_of_busiest(problem, selected.assignment) / len(
            plan.moving_components or (1,)
        )
        for name in measured.components:
            part = measured.parts[name]
            order = [k for k in selected.order.tolist() if part.start <= k < part.stop]
            if not order:
                continue
            places = {k - part.start: problem.executors[selected.assignment[k]] for k in order}
            sources = [problem.executors[problem.current[k]] for k in order]
            migration = self._request_moves(plan, name, places, sources, busy, relief=relief)
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
            variance_before=selected.variance_before,
            variance_after=selected.variance_after,
        )
        self._judge.decided(plan)
        return True

    def change_lanes(self, change: LaneChange) -> bool:
        """Request a change of lanes; return ``False`` if the assignment has changed since."""
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

    def _request_moves(
        self,
        plan: Planned,
        name: str,
        places: dict[int, str],
        sources: list[str],
        busy: dict[str, FloatArray],
        *,
        relief: float,
    ) -> str:
        """Request the moves of component `name`; return the migration's id, empty if outdated.

        `places`: key group → executor. `sources`: present executor of each. `busy`: load of lanes
        (see `spread_over_lanes`), to which the moved load is added. `relief`: share of its time by
        which the busiest executor is relieved.
        """
        # As it is by now: what turns to its other slot has changed the places of that component.
        view = self._migrations.view
        measured = plan.measured
        weight = measured.problem.weight[measured.parts[name]]
        sizes = measured.held_bytes[measured.parts[name]]
        self._num_requested += 1
        migration = f"{CONTROLLER}{self._num_requested}"
        try:
            current = with_newcomers(view.components[name].assignment, view.executors)
            _check_sources(name, current, dict(zip(places, sources, strict=True)))
            self._migrations.migrate(
                MigrationRequested(
                    id=migration,
                    component=name,
                    target=spread_over_lanes(current.moved(places), places, weight, busy),
                    strategy=view.components[name].default_strategy,
                    chooses=True,
                    relief=relief,
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
        self._own_migrations[name] = _Migration(
            id=migration,
            executors=frozenset(places.values()) | frozenset(sources),
            known_executors=frozenset(problem.executors),
            draining=frozenset(np.array(problem.executors)[problem.draining].tolist()),
            distance=plan.selected.distance_after,
            started_s=self._now_s,
        )
        return migration


def _relief_of_busiest(problem: Problem, after: IntArray) -> float:
    """Return the decrease of the busiest executor's busy share; at least 0.

    `after`: executor of each key group after the moves.
    """
    busy_s, capacity = problem.load[:, 0], problem.capacity[:, 0]
    busiest_now, busiest_after = (
        float((np.bincount(places, busy_s, len(capacity)) / capacity).max())
        for places in (problem.current, after)
    )
    return max(busiest_now - busiest_after, 0.0)


def spread_over_lanes(
    target: Assignment,
    arriving: Collection[int],
    load: FloatArray,
    busy: dict[str, FloatArray],
) -> Assignment:
    """Return the assignment with arriving key groups on the least loaded lanes, heaviest first.

    Ties: the lower lane. `load`: of each key group, shape ``(G,)``. `busy`: executor → load of each
    lane, of all components, which is added to. Without it, lanes of a new executor would have equal
    numbers of key groups, and unequal loads.
    """
    lane_of, coming = target.lane_of.copy(), np.zeros(target.num_key_groups, np.bool_)
    coming[list(arriving)] = True
    for executor in np.unique(target.executor_of[coming]).tolist():
        lanes = busy.setdefault(target.executors[executor], np.zeros(target.lanes[executor]))
        mine = np.flatnonzero((target.executor_of == executor) & coming)
        for key_group in mine[np.argsort(-load[mine], kind="stable")].tolist():
            lane_of[key_group] = lane = int(lanes.argmin())
            lanes[lane] += load[key_group]
    return replace(target, lane_of=lane_of)


def busy_lanes(
    measured: MeasuredProblem, view: ProtocolView, moving: IntArray
) -> dict[str, FloatArray]:
    """Return executor → load of each of its lanes, of all components planned together.

    `moving`: key groups, numbered as in the problem, that leave their executors.
    """
    busy: dict[str, FloatArray] = {}
    staying = measured.problem.weight.copy()
    staying[moving] = 0.0
    for name in measured.components:
        assignment = view.components[name].assignment
        weight = staying[measured.parts[name]]
        for index, executor in enumerate(assignment.executors):
            here = assignment.executor_of == index
            lanes: FloatArray = np.bincount(
                assignment.lane_of[here], weight[here], assignment.lanes[index]
            ).astype(np.float64)
            busy[executor] = busy[executor] + lanes if executor in busy else lanes
    return busy


def _check_sources(component: str, current: Assignment, sources: dict[int, str]) -> None:
    """Raise if key groups have left the executors (`sources`) from which a plan moves them."""
    for key_group, source in sources.items():
        if current.executor(key_group) != source:
            raise InvalidPlanError(
                f"Key group {key_group} of {component!r} has left executor {source!r}.",
                remedy="Plan again, with the current assignment.",
                key_group=key_group,
            )


_LANES_EPOCHS = 3
"""Epochs with the same key groups on the lanes of an executor that these are balanced by, at least;
or half a period."""
_LEAST_GAIN = 0.1
"""Min. fall of the busiest lane's load, as a share of the mean lane's."""
_FINE_THRESHOLD_SHARE = 0.25
"""Fraction of both thresholds that suffices if noise does not explain the difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneChange:
    """Other lanes for some key groups of a component."""

    request: LanesRequested  # what to ask the coordinator for
    executors: tuple[str, ...]  # those on which key groups change lane
    before: float  # busiest lane over mean lane, of the worst of these executors
    after: float


class LaneBalancing:
    """Policy that balances lanes within executors."""

    def __init__(self, settings: Control, overrides: ManualOverrides, now_s: float) -> None:
        self._settings, self._overrides = settings, overrides
        self._next_check_s = now_s
        self._epochs: deque[CommittedEpoch] = deque(maxlen=16)

    def observe(self, epoch: CommittedEpoch) -> None:
        """Add a committed epoch to the measurements; lanes are due after a change of placement."""
        if epoch.outcome.batch is None:
            return
        before = self._epochs[-1].component_views if self._epochs else {}
        if any(
            name in before and before[name].assignment is not view.assignment
            for name, view in epoch.component_views.items()
        ):
            self._next_check_s = -math.inf
        self._epochs.append(epoch)

    def reset(self) -> None:
        """Drop all measurements, because the components have changed."""
        self._epochs.clear()

    def propose(
        self, view: ProtocolView, now_s: float, stages: Iterable[tuple[str, ...]]
    ) -> Iterator[Proposal]:
        """Yield changes of lanes, if they are due; `stages`: components that share lanes' tasks."""
        interval = self._settings.cadence.lanes_every
        if interval is None or now_s < self._next_check_s:
            return
        self._next_check_s = now_s + seconds(interval, "The setting lanes_every")
        for stage in stages:
            places = {
                name: view.components[name].assignment
                for name in stage
                if name in view.components
                and not self._overrides.holds(ManualChange.MIGRATION.of(name), now_s)
            }
            if max((max(assignment.lanes) for assignment in places.values()), default=0) < 2:
                continue
            parts = self._known_loads(places)
            for change in rebalance_lanes(parts, self._settings.worth.theta):
                component = change.request.component
                yield Proposal(
                    subject=f"lanes of {component}",
                    change=change,
                    reverses=frozenset({ManualChange.MIGRATION.of(component)}),
                )

    def _known_loads(self, places: Mapping[str, Assignment]) -> dict[str, LaneLoads]:
        """Return the measured loads of key groups, on executors that were observed for long enough.

        An epoch counts for an executor if all key groups that it has by `places` (component →
        present assignment) were there: on the same lanes, since what a change of lanes brought
        shows after it, or beside others that have left. These leave the rest uneven, and its load
        is known.
        """
        names = sorted(
            {executor for assignment_ in places.values() for executor in assignment_.executors}
        )
        index_of = {name: index_now for index_now, name in enumerate(names)}
        owner = {
            component: np.array([index_of[name] for name in assignment_.executors])[
                assignment_.executor_of
            ]
            for component, assignment_ in places.items()
        }
        observed: list[tuple[CommittedEpoch, BoolArray]] = []
        epochs, lasted_s = np.zeros((2, len(names)))
        has_lost = np.zeros(len(names), np.bool_)  # executors that key groups have left
        for epoch in self._epochs:
            has_gained, has_shifted, has_lost_groups = np.zeros((3, len(names)), np.bool_)
            for component, assignment in places.items():
                component_view = epoch.component_views.get(component)
                assignment_then = None if component_view is None else component_view.assignment
                if assignment_then is None:
                    has_gained[owner[component]] = True
                elif assignment_then is not assignment:
                    index_now = np.array(
                        [index_of.get(name, -1) for name in assignment_then.executors]
                    )
                    owner_before = index_now[assignment_then.executor_of]
                    is_moved = owner_before != owner[component]
                    has_gained[owner[component][is_moved]] = True
                    has_lost_groups[owner_before[is_moved & (owner_before >= 0)]] = True
                    has_shifted[owner[component][assignment_then.lane_of != assignment.lane_of]] = (
                        True
                    )
            is_unchanged = ~has_gained & (has_lost_groups | ~has_shifted)
            observed.append((epoch, is_unchanged))
            epochs += is_unchanged
            lasted_s += is_unchanged * epoch.took_s
            has_lost |= is_unchanged & has_lost_groups
        is_observed = (
            (epochs >= _LANES_EPOCHS) | (lasted_s >= self._settings.period_s / 2) | has_lost
        )
        loads = {}
        for component, assignment in places.items():
            load, rows = np.zeros((2, assignment.num_key_groups))
            for epoch, is_unchanged in observed:
                epoch_load = epoch.outcome.loads.get(component)
                if epoch_load is not None:
                    counts_here = (is_unchanged & is_observed)[
                        owner[component][epoch_load.key_groups]
                    ]
                    load[epoch_load.key_groups] += epoch_load.busy_s * counts_here
                    rows[epoch_load.key_groups] += epoch_load.rows * counts_here
            # Variance by chance of a number of rows, see `godwit.control.load_window`.
            variance = load * load / np.maximum(rows, 1.0)
            loads[component] = LaneLoads(assignment=assignment, load=load, variance=variance)
        return loads


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneLoads:
    """Loads of a component's key groups on the lanes that they have; shape ``(G,)`` each."""

    assignment: Assignment
    load: FloatArray  # in any unit; 0 if it is not known well enough
    variance: FloatArray  # of it, by chance


def _allowed_imbalance(error: FloatArray, theta: float) -> FloatArray:
    """Return the max. ratio of the busiest lane to the mean at which lanes do not change.

    `error`: standard error of the measured ratio. `theta`: ratio allowed at most.
    """
    allowed: FloatArray = np.minimum(
        theta, 1 + np.maximum(_FINE_THRESHOLD_SHARE * (theta - 1), CERTAIN * error)
    )
    return allowed


def _uneven_executors(parts: Mapping[str, LaneLoads], theta: float) -> list[str]:
    """Return the executors with a lane that is busier than allowed, up to rounding, by name."""
    names = sorted({e for part in parts.values() for e in part.assignment.executors})
    number = {name: index for index, name in enumerate(names)}
    width = max((max(part.assignment.lanes) for part in parts.values()), default=1)
    lanes, load, variance = np.full(len(names), width), *np.zeros((2, len(names) * width))
    for part in parts.values():
        index = np.array([number[name] for name in part.assignment.executors])
        np.minimum.at(lanes, index, part.assignment.lanes)
        flat = index[part.assignment.executor_of] * width + part.assignment.lane_of
        load += np.bincount(flat, part.load, len(load))
        variance += np.bincount(flat, part.variance, len(load))
    busiest = load.reshape(-1, width).max(axis=1)
    mean = np.maximum(load.reshape(-1, width).sum(axis=1) / lanes, np.finfo(np.float64).tiny)
    error = np.sqrt(variance.reshape(-1, width).max(axis=1)) / mean
    uneven = busiest / mean > _allowed_imbalance(error, theta) * (1 - 1e-9)
    return [names[index] for index in np.flatnonzero(uneven).tolist()]


def rebalance_lanes(parts: Mapping[str, LaneLoads], theta: float) -> list[LaneChange]:
    """Return changes of lanes that even out each executor's lanes, for the components of a stage.

    A lane serves all of them, so their key groups are assigned together. `theta`: ratio of the
    busiest lane to the mean one above which lanes change in any case. Beyond a quarter of that
    excess they do if noise does not explain it: an epoch waits for the busiest lane, and no state
    moves.
    """
    lane_of: dict[str, dict[int, int]] = {name: {} for name in parts}
    changed: dict[str, list[str]] = {name: [] for name in parts}
    before, after = 1.0, 1.0
    for executor in _uneven_executors(parts, theta):
        parts_here = {
            name: part for name, part in parts.items() if executor in part.assignment.executors
        }
        executor_index = {
            component: part.assignment.executors.index(executor)
            for component, part in parts_here.items()
        }
        num_lanes = min(
            part.assignment.lanes[executor_index[component]]
            for component, part in parts_here.items()
        )
        key_groups_of = {
            component: np.flatnonzero(part.assignment.executor_of == executor_index[component])
            for component, part in parts_here.items()
        }
        load = np.concatenate(
            [part.load[key_groups_of[component]] for component, part in parts_here.items()]
        )
        current = np.concatenate(
            [
                part.assignment.lane_of[key_groups_of[component]]
                for component, part in parts_here.items()
            ]
        )
        mean = float(load.sum()) / num_lanes
        if num_lanes < 2 or len(load) < 2 or mean <= 0 or int(current.max()) >= num_lanes:
            continue
        variance = np.concatenate(
            [part.variance[key_groups_of[component]] for component, part in parts_here.items()]
        )
        error = float(np.bincount(current, variance, num_lanes).max()) ** 0.5 / mean
        allowed = float(_allowed_imbalance(np.array(error), theta))
        gain = min(_LEAST_GAIN, max(_FINE_THRESHOLD_SHARE * _LEAST_GAIN, CERTAIN * error))
        imbalance_before = float(np.bincount(current, load, num_lanes).max()) / mean
        if imbalance_before <= allowed:
            continue
        balanced_lanes = balance_lanes(load, current, num_lanes, theta=1 + (allowed - 1) / 2)
        imbalance_after = float(np.bincount(balanced_lanes, load, num_lanes).max()) / mean
        if imbalance_before - imbalance_after < gain:
            continue
        start = 0
        for component, groups in key_groups_of.items():
            new_lanes = balanced_lanes[start : start + len(groups)]
            is_moved = new_lanes != current[start : start + len(groups)]
            lane_of[component].update(
                zip(groups[is_moved].tolist(), new_lanes[is_moved].tolist(), strict=True)
            )
            if is_moved.any():
                changed[component].append(executor)
            start += len(groups)
        if imbalance_before > before:
            before, after = imbalance_before, imbalance_after
    return [
        LaneChange(
            request=LanesRequested(component=name, lane_of=lanes_now),
            executors=tuple(changed[name]),
            before=before,
            after=after,
        )
        for name, lanes_now in lane_of.items()
        if lanes_now
    ]
