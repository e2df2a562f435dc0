"""Placement of a running query's key groups: assignments, plans and migrations.

Problem: planners are pure functions of a `Problem`; a query has the facts (where key groups are,
what they cost, how much state they hold) and can carry a plan out.

Invariant: `Query.balance` and `Query.migrate` carry out what `QueryPlacement.preview` shows: the
same moves in the same order, made by `godwit.placement.solution.executable_plan`.
"""

from __future__ import annotations

import operator
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np

from godwit.migration.messages import MigrationRequested, is_own
from godwit.migration.placement import check_target, shown_assignments, with_newcomers
from godwit.migration.strategy import Bounds, Strategy
from godwit.model.assignment import Assignment
from godwit.model.errors import InvalidPlanError, MigrationError
from godwit.model.frames import user_call
from godwit.model.naming import NoSuchCallError, did_you_mean, listing, type_name
from godwit.placement import Limits, Solution
from godwit.placement import planner as planner_named
from godwit.placement.preview import preview
from godwit.placement.problem import ComponentFacts, joint_problem
from godwit.placement.solution import (
    ExecutablePlan,
    executable_plan,
    executable_plans,
    make_solution,
)

if TYPE_CHECKING:
    from godwit.migration.coordinator import Coordinator
    from godwit.migration.messages import EndMigration
    from godwit.model.key_groups import KeyGroupPairs
    from godwit.placement import Problem
    from godwit.placement.copy_routes import CopyRoute
    from godwit.placement.preview import PlanPreview
    from godwit.runtime.ports import ChangedRun

AnyStrategy = (
    Strategy | Literal["live", "disruptive", "on_demand", "stop_the_world", "instant", "smooth"]
)
AnyPlan = str | Assignment | Mapping[int, str] | Solution | ExecutablePlan


def resolve_plan(plan: AnyPlan, places: Assignment) -> tuple[Assignment, tuple[int, ...]]:
    """Return a plan's target assignment, and its key groups in the order of their moves.

    `places`: the present assignment, with executors that own no key group too. Raises
    `InvalidPlanError` if `plan` is not a plan, is outdated, or is for several components.
    """
    if isinstance(plan, Solution):
        if len(plan.problem.operators) > 1:
            raise InvalidPlanError(
                f"The solution moves key groups of {listing(plan.problem.operators)}.",
                remedy="Carry it out for all of them, with query.placement.carry_out(solution).",
            )
        plan = executable_plan(plan)
    if isinstance(plan, ExecutablePlan):
        return plan.target(places), tuple(plan.places)
    if isinstance(plan, Assignment):
        return plan, ()
    if isinstance(plan, str):
        plan = dict.fromkeys(range(places.num_key_groups), plan)
    return places.moved(checked_moves(plan)), ()


def checked_moves(plan: Any) -> dict[int, str]:
    """Return a plan's moves, key group → executor; raise `InvalidPlanError` for another type.

    Whole numbers of any kind (NumPy's too) name key groups; the assignment checks that they and the
    executors exist.
    """
    if not isinstance(plan, Mapping):
        raise InvalidPlanError(
            f"migrate was given a plan of type {type_name(plan)}.",
            remedy='Give the moves, as in {0: "2", 1: "2"} (key group → executor), or a '
            "gw.migration.Assignment.",
        )
    if not plan:
        raise InvalidPlanError(
            "migrate was given a plan without moves.",
            remedy='Name at least one, as in {0: "2"} (key group → executor).',
        )
    return {
        _checked_key_group(number): _checked_executor(number, name) for number, name in plan.items()
    }


def _checked_key_group(number: Any) -> int:
    """Return the number of a key group; raise `InvalidPlanError` if it is not an integer."""
    try:
        if isinstance(number, bool):
            raise TypeError  # noqa: TRY301  it would be taken for 0 or 1
        return operator.index(number)
    except TypeError:
        raise InvalidPlanError(
            f"The plan names key group {number!r}, of type {type_name(number)}.",
            remedy='Key groups are whole numbers, as in {0: "2"}.',
            key_group=number,
        ) from None


def _checked_executor(number: object, name: object) -> str:
    """Return the name of an executor; raise `InvalidPlanError` if it is not text."""
    if not isinstance(name, str):
        raise InvalidPlanError(
            f"The plan sends key group {number!r} to {name!r}, of type {type_name(name)}.",
            remedy='Name executors by text, as in {0: "2"}; query.executors lists them.',
            key_group=number,
        )
    return name


def checked_bounds(bounds: Any) -> Bounds:
    """Return `bounds`, by default ``Bounds()``; raise `InvalidPlanError` for another type."""
    if bounds is None:
        return Bounds()
    if not isinstance(bounds, Bounds):
        raise InvalidPlanError(
            f"migrate was given bounds of type {type_name(bounds)}.",
            remedy="Give gw.migration.Bounds, as in bounds=gw.migration.Bounds(max_moves=8).",
        )
    return bounds


_VERBS = frozenset({"migrate", "balance", "drain", "scale", "executors"})
"""Names of a query that were names of its parts, too."""


def moved_to_query(part: str, name: str, kind: type) -> AttributeError:
    """Return the error for a name that a part of a query does not have."""
    if name.startswith("_"):
        return AttributeError(f"{kind.__name__!r} has no attribute {name!r}")
    known = [public for public in dir(kind) if not public.startswith("_")]
    remedy = f"{did_you_mean(name, known)}It has {listing(known)}."
    if name in _VERBS:
        remedy = f"Use query.{name}."
    return NoSuchCallError(f"query.{part} has no {name!r}.", remedy=remedy, call=name)


End = TypeVar("End")


class Pending(ABC, Generic[End]):
    """A requested change that is carried out in the background."""

    def __init__(
        self,
        id: str,  # noqa: A002  its name in events
        coordinator: Coordinator,
        others: tuple[str, ...] = (),  # changes that belong to it
    ) -> None:
        self.id, self._coordinator, self._others = id, coordinator, others

    def __repr__(self) -> str:
        return f"<{self._description}: {'done' if self.done else 'under way'}>"

    @property
    @abstractmethod
    def _description(self) -> str:
        """Name of the change for messages."""

    @abstractmethod
    def _end(self, timeout_s: float | None) -> End | None:
        """Wait for the end of the change and return it; ``None`` after the time-out."""

    @property
    def done(self) -> bool:
        """True once the change has ended, with or without success.

        Examples
        --------
        >>> migration = query.migrate({1: "local-0"}, component="by_plane")
        >>> ended = migration.wait(timeout=60)
        >>> migration.done
        True
        """
        return self._end(0) is not None

    def wait(self, timeout: float | None = None) -> End:
        """Wait until the change has ended, and return its result.

        Parameters
        ----------
        timeout
            Maximum time to wait, in seconds; ``None``: no limit. The change continues after it.

        Returns
        -------
        EndMigration or EndRegrouping
            Of a migration: ``outcome`` (``"finished"`` or ``"cancelled"``), ``moved`` (number of
            key groups that moved), ``withdrawn`` (number of those that did not) and ``reason``. Of
            a regrouping: ``done`` (true if the components changed) and ``reason``.

        Raises
        ------
        MigrationError
            If it has not ended within `timeout`, or the query stopped first.

        Examples
        --------
        >>> query.migrate({1: "local-1"}, component="by_plane").wait(timeout=60).outcome
        <MigrationOutcome.FINISHED: 'finished'>
        """
        end = self._end(timeout)
        if end is None:
            raise MigrationError(
                f"{self._description} has not ended"
                + ("." if timeout is None else f" after {timeout} s."),
                remedy="Look at query.status and query.events: copies may still be warming.",
            )
        return end

    def cancel(self, reason: str = "cancelled by the user") -> None:
        """Cancel the change: key groups that have moved stay, and the others do not move.

        Parameters
        ----------
        reason
            Text for the event that reports the end.

        Raises
        ------
        MigrationError
            If it has ended already.

        Examples
        --------
        >>> migration = query.migrate({2: "local-1"}, component="by_plane")  # doctest: +SKIP
        >>> migration.cancel("it can wait")  # doctest: +SKIP
        """
        self._coordinator.cancel(self.id, reason)
        for other in self._others:
            with suppress(MigrationError):  # it has ended by itself
                self._coordinator.cancel(other, reason)


class Migration(Pending["EndMigration"]):
    """A move of key groups to other executors, which continues in the background.

    Godwit makes it: ``query.migrate`` and others return it. `wait` blocks until it has ended, and
    returns how; `done` is true then. `cancel` ends it early.

    Attributes
    ----------
    id
        Identifier of the migration, by which events name it.
    component
        Name of the component whose key groups move.

    Examples
    --------
    >>> migration = query.migrate({7: "2"})  # doctest: +SKIP
    >>> played = gw.testing.cluster(delays, executors=2)
    >>> played.migrate("2", component="by_plane").wait().outcome
    <MigrationOutcome.FINISHED: 'finished'>
    """

    def __init__(
        self,
        migration: str,
        component: str,
        coordinator: Coordinator,
        *,
        others: tuple[str, ...] = (),  # further ones, where key groups have two slots
    ) -> None:
        super().__init__(migration, coordinator, others)
        self.component = component

    @property
    def _description(self) -> str:
        """Name of the migration in messages."""
        return f"Migration {self.id} of {self.component!r}"

    def _end(self, timeout_s: float | None) -> EndMigration | None:
        """Wait for the migration's end; return ``None`` after the time-out."""
        ends = [self._coordinator.ended(id_, timeout_s) for id_ in (self.id, *self._others)]
        known = [end for end in ends if end is not None]
        if len(known) < len(ends):
            return None
        if len(known) == 1:
            return known[0]
        worst = next((end for end in known if end.outcome != "finished"), known[0])
        return replace(
            worst,
            moved=sum(end.moved for end in known),
            withdrawn=sum(end.withdrawn for end in known),
        )


def cancel_own(coordinator: Coordinator, component: str) -> None:
    """Cancel the controller's migration of a component, if any, since a user requests another."""
    view = coordinator.view.components.get(component)
    if view is not None and view.migration is not None and is_own(view.migration):
        coordinator.cancel(view.migration, "superseded by a manual migration")


class QueryPlacement:
    """Assignments of key groups in a running query, plans for them, and migrations.

    It is the attribute ``query.placement`` of a `Query`.

    Examples
    --------
    >>> query.placement
    <QueryPlacement of 'delays': 'by_origin', 'by_plane', 'worst'>
    """

    def __init__(
        self,
        query: str,  # the query's name, for messages
        run: ChangedRun,
    ) -> None:
        self._query, self._run, self._names = query, run, run.names

    @property
    def _coordinator(self) -> Coordinator:
        """Coordinator of migrations; a repartitioning replaces it."""
        return self._run.coordinator

    def __repr__(self) -> str:
        return f"<QueryPlacement of {self._query!r}: {listing(tuple(self.assignments))}>"

    if not TYPE_CHECKING:  # a type checker would take every name for granted

        def __getattr__(self, name: str) -> Any:
            raise moved_to_query("placement", name, type(self))

    @property
    def assignments(self) -> Mapping[str, Assignment]:
        """Component → the assignment of its key groups in the next epoch; upstream ones first.

        Two-phase windows have one entry: the assignment of the slots that their rows go to now.

        Examples
        --------
        >>> query.placement.assignments["by_plane"].num_key_groups
        8
        """
        return shown_assignments(self._coordinator.view, self._names.__getitem__)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the internal components, of which two-phase windows have several.

        They have one for each of their two slots, and one that merges panes into windows.

        Examples
        --------
        >>> query.placement.parts
        ('by_origin', 'by_plane', 'worst')
        """
        return tuple(self._internal_assignments)

    @property
    def _labels(self) -> dict[str, str]:
        """Internal component → the name that users know."""
        names = tuple(self._internal_assignments)
        return dict(zip(names, self._names.labels(names), strict=True))

    @property
    def _internal_assignments(self) -> Mapping[str, Assignment]:
        """Internal component → its present assignment."""
        return {
            name: component.assignment
            for name, component in self._coordinator.view.components.items()
        }

    @property
    def draining(self) -> frozenset[str]:
        """Names of executors that are being emptied: no key group may move there.

        Examples
        --------
        >>> query.placement.draining
        frozenset()
        """
        return self._coordinator.view.draining

    def _migrate(
        self,
        plan: AnyPlan,
        *,
        component: str | None = None,
        strategy: AnyStrategy | None = None,
        bounds: Bounds | None = None,
    ) -> Migration:
        """Move key groups to other executors; see `Query.migrate`."""
        self._check_running()
        checked_bounds(bounds)
        name = self._internal_name(component)
        begun: list[Migration] = []
        try:
            for slot, moves in self._moves_by_slot(name, plan).items():
                # As it is by now: what turns to the other slot has changed the places there.
                target = self._present_assignment(slot).moved(moves)
                begun.append(self._begin(slot, target, tuple(moves), strategy, bounds))
            if not begun:
                begun.append(self.begin_plan(name, plan, strategy, bounds))
        except BaseException:
            for migration in begun:
                migration.cancel("the other key groups cannot migrate")
            raise
        self._run.carry_on()
        ids = tuple(migration.id for migration in begun)
        return Migration(ids[0], self._names[name], self._coordinator, others=ids[1:])

    def _moves_by_slot(self, name: str, plan: AnyPlan) -> dict[str, dict[int, str]]:
        """Return the moves of two-phase windows: component of a slot → key group → executor.

        A key group moves in the slot that takes its new rows. Empty for other components.
        """
        view, shown_name = self._coordinator.view, self._names[name]
        slots = {
            slot_name: component.takes
            for slot_name, component in view.components.items()
            if component.takes is not None
        }
        slots = {
            slot_name: takes
            for slot_name, takes in slots.items()
            if self._names[slot_name] == shown_name
        }
        if name != shown_name or len(slots) < 2:
            return {}
        places = with_newcomers(self.assignments[shown_name], view.executors)
        target, order = resolve_plan(plan, places)
        check_target(name, places, target, executors=places.executors, draining=self.draining)
        moves: dict[str, dict[int, str]] = {}
        for key_group in order or range(places.num_key_groups):
            if target.executor(key_group) != places.executor(key_group):
                slot = next(slot_name for slot_name, takes in slots.items() if key_group in takes)
                moves.setdefault(slot, {})[key_group] = target.executor(key_group)
        return moves

    def _check_running(self) -> None:
        """Raise `MigrationError` if the query has stopped."""
        if self._coordinator.closed:
            raise MigrationError(
                f"Query {self._query!r} has stopped, so none of its key groups can move.",
                remedy="Start the flow again from its checkpoint, and migrate that query.",
                query=self._query,
            )

    def begin_plan(
        self, name: str, plan: AnyPlan, strategy: AnyStrategy | None, bounds: Bounds | None
    ) -> Migration:
        """Begin a migration of one internal component; for users, `migrate` is enough.

        Parameters
        ----------
        name
            Name of the internal component (see `parts`).
        plan, strategy, bounds
            As for `Query.migrate`.

        Raises
        ------
        InvalidPlanError, MigrationError
            As for `Query.migrate`.

        Examples
        --------
        >>> migration = query.placement.begin_plan("by_plane", {3: "local-1"}, "live", None)
        >>> migration.wait(timeout=60).outcome
        <MigrationOutcome.FINISHED: 'finished'>
        """
        target, order = resolve_plan(plan, self._present_assignment(name))
        migration = self._begin(name, target, order, strategy, bounds)
        self._run.carry_on()
        return migration

    def _begin(
        self,
        name: str,
        target: Assignment,
        order: tuple[int, ...],
        strategy: AnyStrategy | None,
        bounds: Bounds | None,
    ) -> Migration:
        """Begin the migration of one internal component; `order`: key groups that move first."""
        self._check_running()
        limits = checked_bounds(bounds)
        default = self._coordinator.view.components[name].default_strategy
        chosen = default if strategy is None else Strategy(strategy)
        migration = secrets.token_hex(4)
        sizes = self._run.state_bytes(name)
        with self._coordinator.locked() as coordinator:
            cancel_own(coordinator, name)
            coordinator.migrate(
                MigrationRequested(
                    id=migration,
                    component=name,
                    target=target,
                    strategy=chosen,
                    # At once would be against bounds that someone gave.
                    chooses=strategy is None and bounds is None,
                    bounds=limits,
                    loads=coordinator.recent_load.mean_busy_ms(name),
                    state_bytes={
                        key_group: int(sizes[key_group])
                        for key_group in np.flatnonzero(sizes).tolist()
                    },
                    order=order,
                )
            )
        return Migration(migration, self._names[name], self._coordinator)

    @user_call
    def problem(self, component: str | None = None, *, limits: Limits | None = None) -> Problem:
        """Return the planning problem of a component as it runs now, or of all components.

        The load of a key group is the time that lanes are busy with it, in milliseconds per epoch:
        the mean over the last epochs with input, which are also the problem's history. The
        controller plans by the same. Its state size is the bytes that a new copy has to read.
        Executors without key groups are included, and draining ones are marked.

        Parameters
        ----------
        component
            Name of the component. By default all: key groups are numbered component after
            component, ``operators`` of the problem are the components, and traffic is the rows per
            epoch that a key group sends to few key groups of another component.
        limits
            Limits on the cost and the balance of a plan, as in
            ``godwit.placement.Limits(max_moves=16)``; by default none.

        Returns
        -------
        godwit.placement.Problem
            Input for a planner, as in ``godwit.placement.planner("milp")(problem)``.

        Raises
        ------
        InvalidPlanError
            If there is no component of that name.

        Examples
        --------
        >>> query.placement.problem("by_plane").executors
        ('local-0', 'local-1')
        """
        names = [*self._internal_assignments]
        if component is not None or len(names) == 1:
            names = [self._internal_name(component)]
        every = {name: self._facts(name) for name in names}
        windows = min(len(facts.load) for facts in every.values())
        pairs: Mapping[tuple[str, str], KeyGroupPairs] = {}
        if len(names) > 1:
            with self._coordinator.locked() as coordinator:
                pairs = coordinator.recent_load.mean_pairs()
        problem = joint_problem(
            {
                name: replace(facts, load=facts.load[len(facts.load) - windows :])
                for name, facts in every.items()
            },
            pairs,
            draining=self.draining.intersection(
                *(facts.assignment.executors for facts in every.values())
            ),
            limits=limits,
        )
        return replace(problem, operators=tuple(self._labels[name] for name in names))

    def _facts(self, component: str) -> ComponentFacts:
        """Return a component's assignment, recent loads and state sizes, to plan from."""
        places = self._present_assignment(component)
        with self._coordinator.locked() as coordinator:
            epochs = coordinator.recent_load.busy_ms(component)
        history = np.zeros((len(epochs), places.num_key_groups))
        for index, epoch in enumerate(epochs):
            for key_group, busy_ms in epoch.items():
                history[index, key_group] = busy_ms
        return ComponentFacts(
            assignment=places,
            load=history,
            state_bytes=self._run.state_bytes(component).astype(np.float64),
        )

    @user_call
    def preview(
        self,
        plan: AnyPlan,
        *,
        component: str | None = None,
        bandwidth_bytes_per_s: float = 125e6,
        changed_share: float = 0.05,
    ) -> PlanPreview:
        """Predict what a migration would do, without starting it.

        Parameters
        ----------
        plan
            Key group → name of its new executor, a target assignment, or a planner's solution, as
            for `Query.migrate`; a solution may also be for all components (see `problem`).
        component
            Name of the component; not needed for a solution, or if there is only one.
        bandwidth_bytes_per_s
            Assumed bandwidth, in bytes per second, of sources of copies for which none was measured
            yet.
        changed_share
            Assumed share of the state, in [0, 1], that changes while it is being copied.

        Returns
        -------
        PlanPreview
            ``moves``; ``routes``: the sources of copies; ``pause_s``: strategy → predicted seconds
            that rows of a moving key group wait at most; and more, which ``to_text()`` describes.

        Raises
        ------
        InvalidPlanError
            If `plan` is not a plan, is outdated, or is of other components.
        InvalidProblemError
            If the bandwidth is not positive or the share is not in [0, 1].

        Examples
        --------
        >>> here = query.placement.assignments["by_plane"].executor(4)
        >>> other = "local-1" if here == "local-0" else "local-0"
        >>> len(query.placement.preview({4: other}, component="by_plane").moves)
        1
        """
        solution = plan if isinstance(plan, Solution) else self._as_solution(plan, component)
        return preview(
            solution,
            bandwidth_bytes_per_s=bandwidth_bytes_per_s,
            changed_share=changed_share,
            routes=self._predicted_routes(solution, component),
        )

    def _as_solution(self, plan: AnyPlan, component: str | None) -> Solution:
        """Return a user's plan as a solution of the present problem."""
        name = self._internal_name(component)
        problem, places = self.problem(name), self._present_assignment(name)
        target, _ = resolve_plan(plan, places)
        check_target(
            name,
            places,
            target,
            executors=places.executors,
            draining=self.draining,
        )
        number = {executor: index for index, executor in enumerate(problem.executors)}
        owner = np.array([number[executor] for executor in target.executors])
        return make_solution(problem, owner[target.executor_of], method="a plan by hand")

    def _predicted_routes(self, solution: Solution, component: str | None) -> tuple[CopyRoute, ...]:
        """Predicted routes of the copies that a solution's moves need."""
        problem, moved = solution.problem, solution.moved
        names: tuple[str | None, ...] = problem.operators
        if len(names) == 1 and names[0] not in {
            *self._internal_assignments,
            *self._labels.values(),
        }:
            names = (component,)  # of a problem that someone made
        routes: list[CopyRoute] = []
        for number, name in enumerate(map(self._internal_name, names)):
            key_groups = np.flatnonzero(problem.operator_of == number)
            moving = np.flatnonzero(np.isin(key_groups, moved)).tolist()
            places = {
                key_group: problem.executors[solution.assignment[key_groups[key_group]]]
                for key_group in moving
            }
            sizes = dict(enumerate(self._run.state_bytes(name).tolist()))
            routes += self._coordinator.foresee(name, places, sizes)
        return tuple(routes)

    def _balance(
        self,
        planner: str = "milp",
        *,
        component: str | None = None,
        limits: Limits | None = None,
        strategy: AnyStrategy | None = None,
        bounds: Bounds | None = None,
        **options: Any,
    ) -> Migration | None:
        """Plan once for the current load, and carry out the plan; see `Query.balance`."""
        name = self._internal_name(component)  # problem() would ask about all of several
        known = planner_named(planner)
        solution = known(self.problem(name, limits=limits), **{**known.for_streams, **options})
        plan = executable_plan(solution)
        if solution.status == "infeasible":
            raise InvalidPlanError(
                f"Planner {planner!r} found no plan within the limits: {solution.reason}.",
                remedy="Loosen the limits, or look at query.placement.preview(solution) and "
                "migrate it.",
                component=self._names[name],
            )
        if not plan.moves:
            return None
        return self.begin_plan(name, plan, strategy, bounds)

    @user_call
    def carry_out(
        self,
        solution: Solution,
        *,
        strategy: AnyStrategy | None = None,
        bounds: Bounds | None = None,
    ) -> tuple[Migration, ...]:
        """Carry out a solution of the planning problem of all components (see `problem`).

        Parameters
        ----------
        solution
            Result of a planner for `problem` without a component.
        strategy, bounds
            How the key groups move, as for `Query.migrate`.

        Returns
        -------
        tuple of Migration
            One for each component that has moves, in the order of the components.

        Raises
        ------
        InvalidPlanError
            If the solution is infeasible, or of other components.

        Examples
        --------
        >>> from godwit.placement import planner
        >>> solution = planner("milp")(query.placement.problem())
        >>> ended = [part.wait(timeout=60) for part in query.placement.carry_out(solution)]
        """
        labels = self._labels
        parts = executable_plans(solution)
        if len(labels) == 1:
            parts = dict(zip(labels.values(), parts.values(), strict=False))
        elif set(solution.problem.operators) != {*labels.values()}:
            raise InvalidPlanError(
                f"The solution is of {listing(solution.problem.operators)}.",
                remedy="Ask for query.placement.problem(), without a component, and plan that; or "
                "migrate the solution with query.migrate(solution, component=...).",
            )
        return tuple(
            self.begin_plan(name, parts[label], strategy, bounds)
            for name, label in labels.items()
            if label in parts
        )

    def _drain(
        self,
        executor: str,
        *,
        strategy: AnyStrategy | None = None,
        bounds: Bounds | None = None,
    ) -> tuple[Migration, ...]:
        """Move all key groups away from an executor; see `Query.drain`."""
        executors = sorted(
            {
                e
                for name in self._internal_assignments
                for e in self._present_assignment(name).executors
            }
        )
        if executor not in executors or not set(executors) - self.draining - {executor}:
            raise InvalidPlanError(
                f"Executor {executor!r} cannot be drained: "
                + ("nothing would be left." if executor in executors else "it is not there."),
                remedy=f"Executors are {', '.join(executors)}.",
                executor=executor,
            )
        new = executor not in self.draining
        self._coordinator.drain(executor)
        migrations = []
        try:
            for name in self._internal_assignments:
                problem = self.problem(name)
                # Without the target, what would cost balance could stay for a later plan.
                emptied = replace(problem, limits=Limits(target_executors=len(problem.available)))
                plan = executable_plan(planner_named("milp")(emptied, time_limit_s=1.0))
                if plan.moves:
                    migrations.append(self.begin_plan(name, plan, strategy, bounds))
        except BaseException:
            if new:
                self._coordinator.stay(executor)
            raise
        return tuple(migrations)

    def _present_assignment(self, component: str) -> Assignment:
        """Return the assignment of a component, with the executors that own nothing."""
        view = self._coordinator.view
        return with_newcomers(view.components[component].assignment, view.executors)

    def _internal_name(self, component: str | None) -> str:
        """Return the internal name of a component from the user's; ``None`` names the only one.

        Raises `InvalidPlanError` if there is no such component.
        """
        labels, shown = self._labels, list(self.assignments)
        if component is None and len(shown) == 1:
            return next(iter(labels))
        if component is None or component not in {*labels, *labels.values()}:
            raise InvalidPlanError(
                f"There is no component {component!r}."
                if component is not None
                else "The flow has several components.",
                remedy=f"{did_you_mean(str(component), shown)}Name one with component=: "
                f"{', '.join(shown)}.",
            )
        return next((name for name in labels if component in (name, labels[name])), component)
