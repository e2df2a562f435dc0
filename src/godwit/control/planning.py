"""Plans whose moves pay, from a period's statistics.

Load is the share of its time that a lane of a *standard* executor would be busy with a key group,
and an executor's capacity is its lanes times its speed; so a load index is the share of its time
that an executor's lanes are busy, and a load distance the difference of two such shares.  Network
and memory are shares of what one executor has, so that the bottleneck (paper 2 §3) is found by
comparing like with like.  State is what a move would carry: nothing, where a key group switches to
an empty slot at its destination (instant migration, paper 3 §4.5).

Components that run at the same time are planned together: one *stage* (see `Topology`), or
everything where the planner collocates, as in paper 2; a style of placement may say otherwise
(`godwit.control.styles`).  The most unbalanced goes first, since all of them share one budget.

A planner may be a user's function: it may raise, return something other than a plan, or never
return.  The result here is a plan that can be executed, or `PlannerFailedError` with the
reason in words.  A planner may also know nothing of draining, or refuse it: as long as a key group
is on a draining executor, every plan that leaves here moves at least one off; so draining ends.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.control.cost_benefit import LEAN, Terms, is_uneven, load_distance, select_moves
from godwit.control.executor_speeds import changed_speed
from godwit.control.interfaces import MeasuredProblem
from godwit.control.latency_model import Learning, modelled_latency_s
from godwit.control.scaling import LoadRange
from godwit.control.settings import Budget, load_style
from godwit.control.situation import ScalingSituation, StageLoad, Station
from godwit.control.statistics import AssignmentPeriod, ComponentStatistics
from godwit.control.styles import PlacementStyle, Turn
from godwit.migration.placement import with_newcomers
from godwit.model import events
from godwit.model.errors import GodwitError, PlannerFailedError
from godwit.placement import Limits, Problem, Solution, metrics, validate_solution
from godwit.placement.problem import ComponentFacts, joint_problem
from godwit.placement.registry import (
    Planner,
    StreamHistory,
    a_load_range,
    one_range_each,
    some_tau,
)
from godwit.placement.solution import make_solution

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from godwit.control.cost_benefit import SelectedMoves
    from godwit.control.interfaces import PlannerRunner, T
    from godwit.control.policy import Announce
    from godwit.control.settings import Control, Means
    from godwit.control.statistics import PeriodStatistics
    from godwit.engine.policies import Topology
    from godwit.migration.state import ProtocolView
    from godwit.model.assignment import Assignment
    from godwit.placement.arrays import FloatArray, IntArray


def measured_problem(
    components: Sequence[str],
    *,
    statistics: PeriodStatistics,
    view: ProtocolView,
    speeds: Mapping[str, float],
    means: Means,
    limits: Limits,
    draining: frozenset[str] = frozenset(),
    history: Mapping[str, Sequence[FloatArray]] | None = None,
    topology: Topology,
    seconds_per_byte: float = 0.0,
) -> MeasuredProblem:
    """Return the planning problem of `components`, from a period's measurements.

    They are planned together. `draining`: executors to be emptied besides those of the view.
    `history`: component → loads of past periods, oldest first, as many for each. `topology`: who
    sends to whom. `seconds_per_byte`: CPU time of sending state.
    """
    per_s, seen = statistics.to_offered_per_s, statistics.components
    parts = {
        name: seen.get(name) or _no_statistics(view.components[name].assignment)
        for name in components
    }
    expected = {name: part.expected_s(speeds) for name, part in parts.items()}
    busy = {name: seconds * per_s for name, (seconds, _) in expected.items()}
    windows = _busy_history(busy, history or {})
    problem = joint_problem(
        {
            name: ComponentFacts(
                assignment=with_newcomers(view.components[name].assignment, view.executors),
                load=windows[name],
                state_bytes=part.state_bytes,
            )
            for name, part in parts.items()
        },
        {
            (up, name): pairs.times(part.row_bytes * per_s)
            for name, part in parts.items()
            for up, pairs in part.pairs.items()
        },
        draining=(view.draining | draining) & view.executors.keys(),
        limits=limits,
    )
    speed = np.array([speeds.get(name, 1.0) for name in problem.executors])
    each = np.ones(problem.num_executors)
    resources = {"time": (np.concatenate(list(busy.values())), problem.cores * speed)}
    sent = np.concatenate([part.in_bytes for part in parts.values()]) * per_s
    if means.link_bytes_per_s and sent.any():
        resources["network"] = (sent / means.link_bytes_per_s, each)
    if means.memory_bytes:
        resources["memory"] = (problem.state_bytes / means.memory_bytes, each)
    ends = np.cumsum([len(part.in_bytes) for part in parts.values()]).tolist()
    slices = dict(zip(components, map(slice, [0, *ends], ends), strict=True))
    turns = np.zeros(problem.num_key_groups, np.bool_)
    for name, rows in slices.items():
        turns[rows][list(view.components[name].instant)] = True
    # Both slots of a key group have to leave an executor that is to go.
    turns &= ~problem.draining[problem.current]
    whole = replace(
        problem,
        resources=tuple(resources),
        load=np.stack([load for load, _ in resources.values()], axis=1),
        capacity=np.stack([capacity for _, capacity in resources.values()], axis=1),
        state_bytes=np.where(turns, 0.0, problem.state_bytes),
        seconds_per_byte=seconds_per_byte,
        downstream=tuple(
            (components.index(up), components.index(down))
            for up, down in topology.downstream
            if up in parts and down in parts
        ),
    )
    return MeasuredProblem(
        problem=whole,
        parts=slices,
        rows_per_s=np.concatenate([part.rows for part in parts.values()]) * per_s,
        link_bytes_per_s=means.link_bytes_per_s or 1.0,
        held_bytes=problem.state_bytes,
        variance=_load_variance(whole, list(expected.values())),
    )


def _load_variance(
    problem: Problem, expected: Sequence[tuple[FloatArray, FloatArray | None]]
) -> FloatArray | None:
    """Return the variance of each key group's load on the bottleneck; ``None`` if unknown.

    `expected`: seconds and variance of each component. Bytes on the network have the relative error
    of busy time, since both come with the rows; sizes of state are exact.
    """
    resource = problem.resources[problem.bottleneck]
    if resource == "memory" or all(variance is None for _, variance in expected):
        return None
    relative = [
        np.zeros_like(mean) if variance is None else variance / np.maximum(mean, 1e-12) ** 2
        for mean, variance in expected
    ]
    variance: FloatArray = np.concatenate(relative) * problem.weight**2
    return variance


def _no_statistics(assignment: Assignment) -> ComponentStatistics:
    """Return statistics without measurements, for a component that has none."""
    zeros = np.zeros(assignment.num_key_groups)
    return ComponentStatistics(
        by_assignment=(AssignmentPeriod.empty(assignment),),
        in_bytes=zeros,
        state_bytes=zeros,
    )


def _busy_history(
    busy: Mapping[str, FloatArray], history: Mapping[str, Sequence[FloatArray]]
) -> dict[str, FloatArray]:
    """Return component → busy share of key groups in past periods, shape ``(periods, G)``.

    As many periods of each, the last ones of `history`; without any, `busy`: the present shares.
    """
    count = min(len(history.get(name, ())) for name in busy)
    if not count:
        return {name: load[None, :] for name, load in busy.items()}
    return {name: np.stack(list(history[name])[-count:]) for name in busy}


def fill_limits(
    planner: Planner | None, measured: MeasuredProblem, even_enough: float
) -> MeasuredProblem:
    """Return the problem with the limits that its planner needs: a load range, tau or theta.

    A user's function (`planner` is ``None``) gets all of them. `even_enough`: share of the mean by
    which an executor's load may differ from it.
    """
    if planner is None:
        return measured
    problem, limits = measured.problem, measured.problem.limits
    if a_load_range in planner.requires and limits.load_low is None:
        fair = metrics.mean_index(problem)
        limits = replace(
            limits, load_low=(1 - even_enough) * fair, load_high=(1 + even_enough) * fair
        )
    if some_tau in planner.requires and limits.tau is None:
        limits = replace(limits, tau=even_enough)
    if limits.theta is None:
        limits = replace(limits, theta=1 + even_enough)
    # What a planner does not keep to is seen to when its plan is cut down to the budget.
    limits = replace(limits, **dict.fromkeys(planner.refuses))
    intervals = planner.plans_intervals and one_range_each.holds(problem)
    return replace(measured, problem=replace(problem, limits=limits, intervals=intervals))


def resource_usage(problem: Problem) -> Mapping[str, float]:
    """Return resource → total load by total capacity of the executors that do not drain.

    The load includes that of key groups on draining executors.
    """
    total = problem.load.sum(axis=0) / problem.capacity[problem.available].sum(axis=0)
    return dict(zip(problem.resources, total.tolist(), strict=True))


def with_evacuation(problem: Problem, planned: IntArray) -> IntArray:
    """Return a plan that moves at least one key group off draining executors, if they own any.

    If `planned` does, it is returned unchanged. Otherwise all key groups of draining executors
    move, heaviest first, each to the executor with the least load per capacity. Ties: the lower
    executor, the lower key group.
    """
    on_draining = problem.draining[problem.current]
    if not on_draining.any() or (on_draining & (planned != problem.current)).any():
        return planned
    if not len(problem.available):
        return planned
    planned = planned.copy()
    load = metrics.loads(problem, planned)
    heap = [
        (float(load[executor] / problem.speed[executor]), executor)
        for executor in problem.available.tolist()
    ]
    heapq.heapify(heap)
    to_evacuate = np.flatnonzero(on_draining)
    for key_group in to_evacuate[np.lexsort((to_evacuate, -problem.weight[to_evacuate]))].tolist():
        index, executor = heap[0]
        planned[key_group] = executor
        heapq.heapreplace(
            heap, (index + float(problem.weight[key_group] / problem.speed[executor]), executor)
        )
    return planned


def guarded_plan(
    planner: Planner | Callable[[Problem], Any],
    problem: Problem,
    *,
    name: str,
    options: Mapping[str, Any],
    run: PlannerRunner,
    time_limit_s: float,
) -> Solution:
    """Run a planner, and check its answer; raise `PlannerFailedError` if either fails.

    `planner`: of the registry, or a function of a problem that returns a solution or the index of
    each key group's executor, shape ``(m,)``. `name`: of the planner, for errors. `run`: runs it
    within the time limit.
    """
    if isinstance(planner, Planner) and (refusal := planner.refusal(problem)):
        raise _planner_failed(name, f"it does not support this problem: {refusal}")
    try:
        # What it returns may be anything, too, and is read where it may take its time.
        solution = run(
            lambda: _checked_solution(planner(problem, **options), problem, name),
            time_limit_s=time_limit_s,
        )
    except TimeoutError:
        raise _planner_failed(name, f"it has not returned after {time_limit_s:g} s") from None
    except PlannerFailedError:
        raise
    except GodwitError as error:
        raise _planner_failed(name, str(error)) from error
    except Exception as error:
        raise _planner_failed(name, f"it raised {type(error).__name__}: {error}") from error
    try:
        validate_solution(solution)
    except GodwitError as error:
        raise _planner_failed(name, error.message) from error
    if solution.split is not None:
        raise _planner_failed(
            name, "it splits key groups over executors, but a key group has exactly one owner"
        )
    return solution


def _checked_solution(answer: Any, problem: Problem, name: str) -> Solution:
    """Convert a planner's answer, a `Solution` or an array of executors; raise if it is neither."""
    if isinstance(answer, Solution):
        if answer.problem is not problem:
            raise _planner_failed(name, "its solution belongs to another problem")
        return answer
    if isinstance(answer, np.ndarray) and np.iscomplexobj(answer):
        raise _planner_failed(name, "it returned complex numbers")
    try:
        values = np.asarray(answer, np.float64)
    except (TypeError, ValueError):
        raise _planner_failed(name, f"it returned a {type(answer).__name__}") from None
    if values.shape != problem.current.shape or not (values == np.floor(values)).all():
        raise _planner_failed(
            name,
            f"it returned a {type(answer).__name__} instead of a vector of "
            f"{problem.num_key_groups} executor indices",
        )
    within = np.clip(values, -1, problem.num_executors).astype(np.int32)
    return make_solution(problem, within, method=name)


def _planner_failed(name: str, reason: str) -> PlannerFailedError:
    """Return the error that a planner returned no valid plan."""
    return PlannerFailedError(
        f"Planner {name!r} returned no plan: {reason}.",
        remedy="The stream continues with its current assignment.",
        planner=name,
        reason=reason,
    )


_STEADY_SHARE = 0.25
"""Share by which rates, epochs and latencies of two periods may differ that are of steady state;
and share of an epoch's rows by which what sources hold back may."""
_HISTORY = 8
"""Min. number of past periods that planners with a history get."""
_REMEMBERED_SIZES = 256
"""Number of past executor counts that are kept."""
_NEARLY = 0.05
_MAX_SEARCH_WORK = 500_000
"""Key groups times executors times rounds that the default planner may search in a decision."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned:
    """Plan of one problem, and the selection of its moves that pay."""

    measured: MeasuredProblem
    assignment: IntArray  # shape ``(m,)``: what the planner wants
    selected: SelectedMoves  # what of it is worth it
    planner: str  # whose plan

    @property
    def moving_components(self) -> tuple[str, ...]:
        """Components that the selected moves belong to."""
        moves = np.isin(np.arange(len(self.assignment)), self.selected.order)
        return tuple(name for name, part in self.measured.parts.items() if moves[part].any())


class Planning:
    """Builds problems from measurements, runs planners, and selects the moves that pay."""

    def __init__(
        self,
        settings: Control,
        topology: Topology,
        run: PlannerRunner,
        now_s: float,
        announce: Announce,
        *,
        sizes: Sequence[int] = (),  # numbers of executors until now, oldest first
        started_s: float | None = None,  # when the run began; ``None``: now
        targets: Sequence[int] | None = None,  # numbers to come; ``None``: all of the options
    ) -> None:
        self._settings, self._topology, self._run = settings, topology, run
        self._announce = announce
        self.started_s = now_s if started_s is None else started_s
        """Time at which the run began, by the controller's clock."""
        self._now_s, self._num_coming = now_s, 0
        self._limit_s = settings.planning_limit_s
        self._any_gain = settings.worth.gain == "any"
        self._remaining_search_s, self._num_searches = self._limit_s, 1
        self._history: dict[str, deque[FloatArray]] = {}
        self._speeds: Mapping[str, float] = {}  # executor → speed in the last period
        self._periods = 0
        self._executors: frozenset[str] = frozenset()  # that key groups may be on
        self._changed_in = 0  # period in which these, or places of key groups, last changed
        self._random = np.random.default_rng(0)
        self._cluster_sizes = deque(
            sizes, maxlen=_REMEMBERED_SIZES
        )  # numbers of executors, each change one
        style: type[PlacementStyle] = load_style(settings)
        self._placement_style = style(settings, topology, announce, targets=targets)
        self._failure = ""
        self._learning = Learning()
        # the last period in which nothing changed
        self._unchanged_situation: ScalingSituation | None = None
        # time, key groups and bytes of the moves of the last period
        self._last_migration_costs: list[tuple[float, ...]] = []

    @property
    def sizes(self) -> tuple[int, ...]:
        """Past and present numbers of executors, oldest first."""
        return tuple(self._cluster_sizes)

    @property
    def targets(self) -> tuple[int, ...]:
        """Numbers of executors after each next migration, if the style plans several."""
        return self._placement_style.targets

    @property
    def status(self) -> Mapping[str, Any]:
        """Entries that the placement style adds to the controller's status."""
        return self._placement_style.status

    @property
    def replans(self) -> bool:
        """True if a new plan may be made while another is carried out."""
        return self._placement_style.replans

    def record_size(self, executors: int) -> None:
        """Append a number of executors to the history that planners predict from (paper 1 §5.2)."""
        if executors and (not self._cluster_sizes or self._cluster_sizes[-1] != executors):
            self._cluster_sizes.append(executors)

    def restore_from_event(self, event: events.Event) -> None:
        """Record executor counts, before and wanted, if an earlier run's event is a scaling."""
        if isinstance(event, events.ScaledOut | events.ScaledIn):
            self.record_size(event.before)
            self.record_size(event.wanted)

    def start_time_limit(self, now_s: float, *, coming: int = 0) -> None:
        """Start the time limit of a decision; `coming`: number of executors that will join."""
        self._remaining_search_s, self._now_s, self._num_coming = self._limit_s, now_s, coming
        # A period that ends early shares the budget of the one before.
        begun_s = now_s - self._settings.period_s * (1 - 1e-6)
        self._last_migration_costs = [
            (at_s, *rest) for at_s, *rest in self._last_migration_costs if at_s > begun_s
        ]

    def spend(self, selected: SelectedMoves, now_s: float) -> None:
        """Subtract moves that are carried out from the period's budget."""
        self._last_migration_costs.append((now_s, len(selected.order), selected.moved_bytes))
        self._changed_in = self._periods

    @property
    def _even_for(self) -> int:
        """Periods since key groups last moved, an executor came or went, or the run began."""
        return self._periods - self._changed_in

    def _remaining_budget(self) -> tuple[Budget, bool]:
        """Return the rest of the period's budget, and whether none of it was used."""
        moves, size_bytes = (
            sum(spent[column] for spent in self._last_migration_costs) for column in (1, 2)
        )
        return self._settings.budget.less(int(moves), size_bytes), not moves

    def add_to_history(self, period: PeriodStatistics, speeds: Mapping[str, float]) -> None:
        """Add the loads of a period to the history that planners get.

        `speeds`: of executors, as known by this period.
        """
        self._periods += 1
        every = max(_HISTORY, self._settings.search.every)
        history = self._history_without_mixed(speeds)
        self._speeds = dict(speeds)
        for name, component in period.components.items():
            windows = self._history[name] = deque(history.get(name, ()), maxlen=every)
            windows.append(component.standard_s(speeds) * period.to_offered_per_s)

    def _history_without_mixed(
        self, speeds: Mapping[str, float]
    ) -> Mapping[str, Sequence[FloatArray]]:
        """Return component → loads of past periods, all known to be measured at one speed.

        An executor of which `speeds` has a different speed than that of the last period may have
        had it for a part of that period already, whose loads are a mixture then.
        """
        mixed = changed_speed(self._speeds, speeds)
        return {
            # A planner over a history needs two.
            name: list(windows)[:-1] if mixed and len(windows) > 2 else list(windows)
            for name, windows in self._history.items()
        }

    def plan(
        self,
        period: PeriodStatistics,
        view: ProtocolView,
        speeds: Mapping[str, float],
        *,
        fixed: Collection[str] = (),
        draining: frozenset[str] = frozenset(),
        hypothetical: bool = False,
    ) -> list[Planned]:
        """Plan all components, the most unbalanced first, since they share one budget.

        `fixed`: components that stay as they are. `draining`: executors to be emptied besides those
        of the view. `hypothetical`: for a decision that may not be made, so nothing limits the
        moves, and planned sequences stay.
        """
        settings, history = self._settings, self._history_without_mixed(speeds)
        budget, alone = (Budget(max_bytes=None), True) if hypothetical else self._remaining_budget()
        staying_executors = view.executors.keys() - view.draining
        self.record_size(len(staying_executors))
        if staying_executors != self._executors:
            self._executors, self._changed_in = frozenset(staying_executors), self._periods
        measured = [
            measured_problem(
                group,
                statistics=period,
                view=view,
                # Without speeds, a slow executor's key groups count as heavy.
                speeds=speeds if self._placement_style.minds_speeds else {},
                means=settings.worth.means,
                limits=settings.search.limits,
                draining=draining,
                history=history,
                topology=self._topology,
                seconds_per_byte=settings.worth.seconds_per_byte,
            )
            for group in self._placement_style.groups
            if all(name in view.components for name in group)
        ]
        self._num_searches = sum(
            problem_.problem.num_key_groups * problem_.problem.num_executors
            for problem_ in measured
        )
        measured.sort(
            key=lambda problem_: -metrics.load_distance(problem_.problem, problem_.problem.current)
        )
        plans = []
        for unit in measured:
            plan = self._plan_one(unit, budget, set(fixed), alone=alone, hypothetical=hypothetical)
            alone = alone and not len(plan.selected.order)
            budget = budget.less(len(plan.selected.order), plan.selected.moved_bytes)
            plans.append(plan)
        return plans

    def _plan_one(
        self,
        measured: MeasuredProblem,
        budget: Budget,
        fixed: set[str],
        *,
        alone: bool,
        hypothetical: bool,
    ) -> Planned:
        """Plan one problem within the budget, and select the moves that pay.

        `fixed`: components that must not move. `alone`: the budget is whole. `hypothetical`: see
        `plan`.
        """
        settings, model = self._settings, self._settings.scaling_model
        limits = replace(
            settings.search.limits, max_moves=budget.max_moves, max_bytes=budget.max_bytes
        )
        if isinstance(model, LoadRange):
            limits = replace(limits, load_low=model.low, load_high=model.high)
        measured = replace(measured, problem=replace(measured.problem, limits=limits))
        measured = fill_limits(settings.registered, measured, settings.worth.max_load_distance)
        problem = measured.problem
        planned, required_assignment = problem.current, None
        if not fixed.issuperset(measured.components):
            circumstances = self._decision_circumstances(problem, hypothetical=hypothetical)
            required_assignment = self._placement_style.before(measured, circumstances)
            planner_assignment = (
                self._run_planner(measured, circumstances)
                if required_assignment is None
                else required_assignment
            )
            planned = with_evacuation(problem, planner_assignment)
            for name in fixed & set(measured.components):
                planned = planned.copy()
                planned[measured.parts[name]] = problem.current[measured.parts[name]]
        terms = Terms(
            max_load_distance=settings.worth.max_load_distance,
            even_enough=settings.worth.max_load_distance / 4,
            horizon_s=settings.worth.horizon * settings.period_s,
            seconds_per_byte=settings.worth.seconds_per_byte,
            any_gain=self._any_gain,
            fills=model is not None,
            even_for=self._even_for,
        )
        return Planned(
            measured=measured,
            assignment=planned,
            selected=select_moves(
                problem,
                planned,
                terms,
                budget,
                held_bytes=measured.held_bytes,
                variance=measured.variance,
                alone=alone,
                whole=self._placement_style.whole,
                must=required_assignment is not None,
            ),
            planner=self._placement_style.name,
        )

    def _decision_circumstances(self, problem: Problem, *, hypothetical: bool) -> Turn:
        """Return the circumstances of a decision about a problem; `hypothetical`: see `plan`."""
        return Turn(
            hypothetical=hypothetical,
            waits=self._num_coming > 0 and not problem.draining[problem.current].any(),
            running_s=self._now_s - self.started_s,
            try_plan=self._try_plan,
            search=lambda: self._fewest_moves_assignment(problem),
        )

    def _run_planner(self, measured: MeasuredProblem, circumstances: Turn) -> IntArray:
        """Return the style's assignment for a problem, or the current one.

        The present one if no executor is available, or if none drains and loads are even enough, or
        it is not the planner's turn.
        """
        problem = measured.problem
        if not len(problem.available):
            return problem.current
        must_evacuate = bool(problem.draining[problem.current].any())
        bound = self._settings.worth.max_load_distance
        is_even = not is_uneven(problem, measured.variance, bound, self._even_for)
        if is_even and not (must_evacuate or self._any_gain or len(problem.traffic.rate)):
            return problem.current  # whatever a planner said, it would not be worth it
        if self._periods % self._settings.search.every and not must_evacuate:
            return problem.current
        return self._placement_style.plan(measured, circumstances)

    def _fewest_moves_assignment(self, problem: Problem) -> IntArray:
        """Return the planner's assignment with the fewest sufficient moves, or the current one."""
        limits, best = problem.limits, problem.current
        for moves in self._move_limits(problem):
            solution = self._try_plan(replace(problem, limits=replace(limits, max_moves=moves)))
            if solution is None:
                break
            best = solution.assignment
            even = load_distance(problem, best) <= self._settings.worth.max_load_distance / 2
            if even or solution.num_moves < (moves or 0) or _has_small_gap(solution):
                break  # more moves would not help
        return best

    def _move_limits(self, problem: Problem) -> tuple[int | None, ...]:
        """Return limits on the number of moves, to be tried in order until a plan is balanced.

        A low limit is tried first, since a planner uses all moves that it may. Twice the moves
        needed to remove load above the mean usually suffice. If the problems are large, only one
        limit is tried. ``None``: unlimited.
        """
        registered, max_moves = self._settings.registered, problem.limits.max_moves
        if self._any_gain or registered is None or "max_moves" in registered.refuses:
            return (max_moves,)
        few_moves = 2 * _excess_key_groups(problem) + 4
        counts = (
            (few_moves, 4 * few_moves)
            if self._num_searches <= _MAX_SEARCH_WORK
            else (2 * few_moves,)
        )
        return tuple(count if max_moves is None else min(count, max_moves) for count in counts)

    def _try_plan(self, problem: Problem, /, **options: Any) -> Solution | None:
        """Return the planner's solution; ``None`` if it fails, which is announced once per reason.

        `options`: take precedence over those of the user.
        """
        settings, options = self._settings, self._planner_options(problem) | options
        try:
            solution = guarded_plan(
                settings.registered or settings.planner,  # type: ignore[arg-type]
                problem,
                name=settings.planner_name,
                options=options,
                run=self._run_in_time,
                time_limit_s=self._limit_s,
            )
        except PlannerFailedError as error:
            reason = error.context["reason"]
            if reason != self._failure:
                self._announce(events.PlannerFailed, planner=settings.planner_name, reason=reason)
            self._failure = reason
            return None
        self._failure = ""
        return solution

    def _run_in_time(self, plan: Callable[[], T], *, time_limit_s: float) -> T:  # noqa: ARG002
        """Return the result of a planner; raise `TimeoutError` if the decision's time is over."""
        if self._remaining_search_s <= 0:
            raise TimeoutError
        began = time.perf_counter()
        try:
            return self._run(plan, time_limit_s=self._remaining_search_s)
        finally:
            self._remaining_search_s -= time.perf_counter() - began

    def _planner_options(self, problem: Problem) -> dict[str, Any]:
        """Return the planner's options: those of the user, past sizes, and limits of the solver."""
        settings, known = self._settings, self._settings.registered
        options = dict(settings.search.options)
        if known is None:
            return options
        if known.from_history is not None:
            history = StreamHistory(
                sizes=tuple(self._cluster_sizes), problem=problem, given=options, rng=self._random
            )
            options |= known.from_history(history)
        if known.name == "milp":
            options.setdefault(
                "rounds", int(np.clip(_MAX_SEARCH_WORK // self._num_searches, 0, 30))
            )
            options.setdefault("patience", 10)
            options.setdefault("node_limit", 1)
            # Nearer to the optimum than what the moves are cut short at, and than noise is small.
            options.setdefault("gap", 10 * settings.worth.max_load_distance)
        if "time_limit_s" in known.takes:
            if math.isinf(self._remaining_search_s):
                options.setdefault("time_limit_s", math.inf)
                options.setdefault("node_limit", 1)
            options.setdefault("time_limit_s", max(1e-3, min(1.0, self._remaining_search_s / 2)))
        return options

    def situation(
        self,
        period: PeriodStatistics,
        view: ProtocolView,
        planned: list[Planned],
        speeds: Mapping[str, float],
        now_s: float,
        *,
        lead_s: float = 0.0,
    ) -> ScalingSituation:
        """Return load and executors after the plans, for a scaling model.

        `lead_s`: seconds until a decision takes effect, to forecast by.
        """
        settings = self._settings
        stays = sorted(view.executors.keys() - view.draining)
        cores = [view.executors[name] for name in stays]
        lanes = [view.executors[name] * speeds.get(name, 1.0) for name in stays]
        index: dict[str, float] = dict.fromkeys(stays, 0.0)
        offered = 0.0
        for plan in planned:
            problem = plan.measured.problem
            time = replace(problem, resources=("time",), load=problem.load[:, 0],
                           capacity=problem.capacity[:, 0],
                           limits=replace(problem.limits, max_usage=None))  # fmt: skip
            offered += float(time.weight.sum())
            after = metrics.load_index(time, plan.selected.assignment).tolist()
            for name, share in zip(problem.executors, after, strict=True):
                if name in index:
                    index[name] += share
        mean = offered / sum(lanes) if lanes else 0.0
        key_groups = sum(plan.measured.problem.num_key_groups for plan in planned)
        state_bytes = sum(float(plan.measured.problem.state_bytes.sum()) for plan in planned)
        moves, size = settings.budget.max_moves, settings.budget.max_bytes
        fills_at_once = (moves is None or moves >= key_groups) and (
            size is None or size >= state_bytes
        )
        idle = ""
        if 0 in (settings.budget.max_moves, settings.budget.max_bytes):
            idle = "the budget allows no moves of key groups"
        elif min(index.values(), default=0.0) < LEAN * mean:
            idle = "the plan leaves an executor with less than half of the mean load"
        return ScalingSituation(
            now_s=now_s,
            started_s=self.started_s,
            executors=len(stays),
            least=settings.min_executors,
            most=settings.max_executors or max(64, len(stays)),
            lanes=sum(lanes) / len(lanes) if lanes else 1.0,
            offered=offered,
            evenness=max(1.0, max(index.values(), default=0.0) / mean) if mean > 0 else 1.0,
            arrival_per_s=period.arrival_per_s,
            arrival_error=period.arrival_error,
            stations=_queueing_stations(period, speeds),
            epoch_s=period.epoch_s,
            fixed_s=period.fixed_s,
            per_row_s=period.per_row_s,
            outside_s=period.outside_s,
            waits_for_epochs=self._topology.epochs,
            backlog_rows=period.backlog_rows,
            latency=period.latency,
            recent_latency=period.recent_latency,
            latest_latency=period.latest_latency,
            cores=sum(cores) / len(cores) if cores else 1.0,
            trigger_s=self._topology.trigger_s,
            longest_epoch_s=self._topology.longest_epoch_s,
            stages=_stage_loads(self._topology.stages, period, speeds),
            busiest=period.busiest_s * period.to_offered_per_s,
            settled=period.settled,
            learned=self._learning.learned,
            lead_s=lead_s,
            fills_at_once=fills_at_once,
            idle=idle,
        )

    def learn(
        self, situation: ScalingSituation, *, changing: bool, settled: bool
    ) -> tuple[ScalingSituation, bool]:
        """Add a period to the latency model; return the situation, and whether it was steady.

        Costs of epochs are measured if the period was `settled`: one assignment throughout. It is
        not steady if key groups or executors were `changing` in this period or in the one before,
        whose rows may have been delivered in this one; nor while epochs become longer or shorter,
        as when a backlog is worked off.
        """
        if settled and not changing:
            self._learning.note_costs(situation)
            situation = replace(situation, learned=self._learning.learned)
        is_behind = (situation.backlog_rows or 0) > situation.arrival_per_s * _waits_s(situation)
        situation_before = None if changing or is_behind else self._unchanged_situation
        self._unchanged_situation = None if changing or is_behind else situation
        if situation_before is None or situation_before.executors != situation.executors:
            return situation, False
        # The busier lanes are, the longer it takes epochs to become as short as they will be.
        allowed_drift = _STEADY_SHARE * min(1.0, 2 * max(1 - situation.busiest, 0.0))
        for value_before, value_now, allowed in (
            (situation_before.arrival_per_s, situation.arrival_per_s, _STEADY_SHARE),
            (situation_before.epoch_s, situation.epoch_s, allowed_drift),
            (situation_before.latency.mean_s, situation.latency.mean_s, allowed_drift),
        ):
            if abs(value_now - value_before) > allowed * value_before:
                return situation, False
        backlog_change = abs((situation.backlog_rows or 0) - (situation_before.backlog_rows or 0))
        if backlog_change > _STEADY_SHARE * situation.arrival_per_s * situation.epoch_s:
            return situation, False
        self._learning.note_latency(situation)
        return replace(situation, learned=self._learning.learned), True


def _waits_s(situation: ScalingSituation) -> float:
    """Return the seconds that rows may wait in the sources of a steady stream.

    Epochs that work off a backlog are long, so their length alone does not tell.
    """
    modelled_s = modelled_latency_s(situation, max(situation.executors, 1), situation.learned)
    return min(situation.epoch_s, _STEADY_SHARE * modelled_s if modelled_s > 0 else math.inf)


def _has_small_gap(solution: Solution) -> bool:
    """Return whether a solution is proved to be within 5 % of the optimum."""
    return solution.gap is not None and solution.gap < _NEARLY


def _excess_key_groups(problem: Problem) -> int:
    """Return the min. number of moves that bring all loads to the mean and end all draining."""
    load, room = metrics.loads(problem, problem.current), problem.speed.copy()
    room[problem.draining] = 0.0
    excess = load - metrics.mean_index(problem) * room
    count = 0
    for executor in np.flatnonzero(excess > 0).tolist():
        weights = problem.weight[problem.current == executor]
        if problem.draining[executor]:
            count += len(weights)
        else:
            heaviest = np.cumsum(np.sort(weights)[::-1])
            count += int(np.searchsorted(heaviest, excess[executor])) + 1
    return count


def _stage_loads(
    stages: Sequence[Sequence[str]],
    period: PeriodStatistics,
    speeds: Mapping[str, float],
) -> tuple[StageLoad, ...]:
    """Return the loads of the key groups of each stage, at the arrival rate."""
    loads = []
    for stage in stages:
        parts = {
            name: period.components[name].standard_s(speeds) * period.to_offered_per_s
            for name in stage
            if name in period.components
        }
        if not parts:
            continue
        heaviest = max(parts, key=lambda name: float(parts[name].max(initial=0.0)))
        key_group = int(np.argmax(parts[heaviest])) if len(parts[heaviest]) else 0
        loads.append(
            StageLoad(
                loads=np.sort(np.concatenate(list(parts.values())))[::-1],
                component=heaviest,
                key_group=key_group,
                key=period.heaviest_key(heaviest, key_group),
            )
        )
    return tuple(loads)


def _queueing_stations(period: PeriodStatistics, speeds: Mapping[str, float]) -> dict[str, Station]:
    """Return component → arrival rate and service rate, for the queueing model."""
    stations = {}
    for name, component in period.components.items():
        rows, busy_s = float(component.rows.sum()), float(component.standard_s(speeds).sum())
        stations[name] = Station(
            arrival_per_s=rows * period.to_offered_per_s,
            service_per_s=rows / busy_s if busy_s > 0 else 0.0,
        )
    return stations
