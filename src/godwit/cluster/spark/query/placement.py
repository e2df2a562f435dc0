"""Placement of a running query's key groups: assignments, plans and migrations.

Problem: planners are pure functions of a `Problem`; a query has the facts (where key groups are,
what they cost, how much state they hold) and can carry a plan out.

Invariant: what `QueryPlacement.preview` shows, `QueryPlacement.balance` and `migrate` carry out:
the same moves in the same order, made by `godwit.planning.solution.executable_plan`.
"""

from __future__ import annotations

import operator
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np

from godwit.migration import Bounds, MigrationRequested, Strategy
from godwit.migration.placement import check_target, shown_assignments, with_newcomers
from godwit.model.assignment import Assignment
from godwit.model.errors import InvalidPlanError, MigrationError
from godwit.model.frames import user_call
from godwit.model.naming import listing, type_name
from godwit.plan.explain import UserNames
from godwit.planning import Limits, Solution
from godwit.planning import planner as planner_named
from godwit.planning.preview import preview
from godwit.planning.problem import ComponentFacts, joint_problem, problem_of
from godwit.planning.solution import (
    ExecutablePlan,
    executable_plan,
    executable_plans,
    make_solution,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from godwit.cluster.spark.run.controller import ControllerThread
    from godwit.engine.loop import SharedConductor
    from godwit.migration import EndMigration
    from godwit.planning import Problem
    from godwit.planning.copy_routes import CopyRoute
    from godwit.planning.preview import PlanPreview

AnyStrategy = Strategy | Literal["live", "disruptive", "stop_the_world", "instant", "smooth"]
AnyPlan = Assignment | Mapping[int, str] | Solution | ExecutablePlan


def target_of(plan: AnyPlan, places: Assignment) -> tuple[Assignment, tuple[int, ...]]:
    """Return the assignment that a plan leads to, and the order in which it wants moves made.

    `places` are today's, executors included that own no key group. Refuses what is no plan, is
    outdated, or is of several components.
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
    return places.moved(checked_moves(plan)), ()


def checked_moves(plan: Any) -> dict[int, str]:
    """Return the moves of a plan that is no `Assignment`: key group → executor.

    Whole numbers of any kind (NumPy's too) name key groups; whether they and the executors exist
    is for the assignment to say.
    """
    if not isinstance(plan, Mapping):
        raise InvalidPlanError(
            f"migrate was given a plan of type {type_name(plan)}.",
            remedy='Give the moves, as in {0: "2", 1: "2"} (key group → executor), or a '
            "gw.Assignment.",
        )
    if not plan:
        raise InvalidPlanError(
            "migrate was given a plan without moves.",
            remedy='Name at least one, as in {0: "2"} (key group → executor).',
        )
    return {_key_group(number): _executor(number, name) for number, name in plan.items()}


def _key_group(number: Any) -> int:
    """Return the number of a key group, or refuse it."""
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


def _executor(number: object, name: object) -> str:
    """Return the name of an executor, or refuse it."""
    if not isinstance(name, str):
        raise InvalidPlanError(
            f"The plan sends key group {number!r} to {name!r}, of type {type_name(name)}.",
            remedy='Name executors by text, as in {0: "2"}; query.executors lists them.',
            key_group=number,
        )
    return name


def checked_bounds(bounds: Any) -> Bounds:
    """Return `bounds`, or the default ones for ``None``; refuse anything else."""
    if bounds is None:
        return Bounds()
    if not isinstance(bounds, Bounds):
        raise InvalidPlanError(
            f"migrate was given bounds of type {type_name(bounds)}.",
            remedy="Give gw.Bounds, as in bounds=gw.Bounds(max_moves=8).",
        )
    return bounds


def checked_strategy(strategy: Any) -> Strategy:
    """Return the strategy of that name; refuse one that does not exist."""
    try:
        return Strategy(strategy)
    except ValueError:
        raise InvalidPlanError(
            f"There is no strategy {strategy!r}.",
            remedy=f"Use one of {', '.join(s.value for s in Strategy)}.",
        ) from None


End = TypeVar("End")


class Pending(ABC, Generic[End]):
    """A change that was asked for and goes on in the background."""

    def __init__(self, id: str, conducting: SharedConductor) -> None:  # noqa: A002  its name in events
        self.id, self._conducting = id, conducting

    def __repr__(self) -> str:
        return f"<{self._description}: {'done' if self.done else 'under way'}>"

    @property
    @abstractmethod
    def _description(self) -> str: ...

    @abstractmethod
    def _end(self, timeout_s: float | None) -> End | None:
        """Wait for the end; ``None`` if it has not come in time."""

    @property
    def done(self) -> bool:
        """True once it has ended."""
        return self._end(0) is not None

    def wait(self, timeout: float | None = None) -> End:
        """Wait for its end and return how it ended.

        Parameters
        ----------
        timeout
            Seconds.

        Raises
        ------
        MigrationError
            If it has not ended by then, or the query stopped first.
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
        """End it: what has switched stays as it is, and the rest stays where it was."""
        self._conducting.cancel(self.id, reason)


class Migration(Pending["EndMigration"]):
    """A migration that was asked for."""

    def __init__(
        self,
        migration: str,
        component: str,
        conducting: SharedConductor,
        *,
        others: tuple[str, ...] = (),  # further ones, where key groups have two slots
    ) -> None:
        super().__init__(migration, conducting)
        self.component, self._others = component, others

    @property
    def _description(self) -> str:
        """Name of the migration in messages."""
        return f"Migration {self.id} of {self.component!r}"

    def _end(self, timeout_s: float | None) -> EndMigration | None:
        """Wait for the migration's end; ``None`` if it has not come in time."""
        ends = [self._conducting.ended(id_, timeout_s) for id_ in (self.id, *self._others)]
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

    def cancel(self, reason: str = "cancelled by the user") -> None:
        """End it: what has switched stays as it is, and the rest stays where it was."""
        super().cancel(reason)
        for other in self._others:
            with suppress(MigrationError):  # it has ended by itself
                self._conducting.cancel(other, reason)


class QueryPlacement:
    """Assignments of a running query, and migrations by hand: ``query.placement``."""

    def __init__(
        self,
        query: str,  # the query's name, for messages
        *,
        conducting: SharedConductor,  # the conductor
        # component → bytes of state of each key group
        state_bytes: Callable[[str], npt.NDArray[np.int64]],
        # the controller, if there is one; its migrations give way to those asked for here
        controller: ControllerThread | None = None,
        names: UserNames | None = None,  # by which users know components
    ) -> None:
        self._query, self._conducting, self._controller = query, conducting, controller
        self._names = UserNames(()) if names is None else names
        self._state_bytes = state_bytes

    def __repr__(self) -> str:
        return f"<QueryPlacement of {self._query!r}: {listing(tuple(self.assignments))}>"

    @property
    def assignments(self) -> Mapping[str, Assignment]:
        """Component → assignment of the next epoch; components upstream come first.

        Windows that are consolidated apart are one, and are where their rows go.
        """
        return shown_assignments(self._conducting.view, self._names.__getitem__)

    @property
    def parts(self) -> tuple[str, ...]:
        """Components of the engine: of windows that are consolidated apart, each slot is one."""
        return tuple(self._assigned)

    @property
    def _labels(self) -> dict[str, str]:
        """Component of the engine → its name for users."""
        names = tuple(self._assigned)
        return dict(zip(names, self._names.labels(names), strict=True))

    @property
    def _assigned(self) -> Mapping[str, Assignment]:
        """Component of the engine → its assignment."""
        return {name: c.assignment for name, c in self._conducting.view.components.items()}

    @property
    def executors(self) -> tuple[str, ...]:
        """Names of the executors that are alive."""
        return tuple(sorted(self._conducting.view.executors))

    @property
    def draining(self) -> frozenset[str]:
        """Executors that nothing may move onto."""
        return self._conducting.view.draining

    @user_call
    def migrate(
        self,
        plan: AnyPlan,
        *,
        component: str | None = None,
        strategy: AnyStrategy | None = None,
        bounds: Bounds | None = None,
    ) -> Migration:
        """Move key groups to other executors while the stream flows.

        Parameters
        ----------
        plan
            The assignment to arrive at, or just the moves: key group → executor; or a planner's
            solution (see `problem`), whose order of moves is kept.
        component
            Whose key groups; may be left out if the flow has only one component.
        strategy
            ``"live"``: copies are warmed in the background, each key group switches at an epoch
            boundary once its copy is nearly fresh (paper 1 §3.2). ``"disruptive"``: all switch now
            and the next epoch waits for the load. ``"stop_the_world"``: no epoch runs until
            everything is in place. ``"instant"``: no state moves; rows go to empty slots at the
            destination, and the windows that they are of are merged from both. ``"smooth"``:
            likewise, but panes that have begun stay where they are. The last two only for windows
            that are consolidated apart, and ``"instant"`` is their default; that of others is
            ``"live"``.
        bounds
            Limits of a live migration: key groups and bytes in flight at once, and the epochs a
            copy may lag by when it takes over. Left out, the default ones.

        Returns
        -------
        Migration
            Returns at once; ``wait()`` on it if need be.

        Raises
        ------
        InvalidPlanError
            If the plan is no plan, is not total, or names something that does not exist.
        MigrationError
            If the component is being migrated already (a controller's migration gives way), or
            cannot be migrated by that strategy, or the query has stopped.
        """
        self._insist_on_running()
        checked_bounds(bounds)
        name = self._component(component)
        begun: list[Migration] = []
        try:
            for slot, moves in self._moves_by_slot(name, plan).items():
                # As it is by now: what turns to the other slot has changed the places there.
                target = self._places(slot).moved(moves)
                begun.append(self._begin(slot, target, tuple(moves), strategy, bounds))
            if not begun:
                begun.append(self.begin_plan(name, plan, strategy, bounds))
        except BaseException:
            for migration in begun:
                migration.cancel("the other key groups cannot migrate")
            raise
        ids = tuple(migration.id for migration in begun)
        return Migration(ids[0], self._names[name], self._conducting, others=ids[1:])

    def _moves_by_slot(self, name: str, plan: AnyPlan) -> dict[str, dict[int, str]]:
        """Component → moves, in order, where key groups have two slots; nothing otherwise.

        Each key group moves in the slot that takes its rows.
        """
        view, known = self._conducting.view, self._names[name]
        slots = {n: c.takes for n, c in view.components.items() if c.takes is not None}
        slots = {n: takes for n, takes in slots.items() if self._names[n] == known}
        if name != known or len(slots) < 2:
            return {}
        places = with_newcomers(self.assignments[known], view.executors)
        target, order = target_of(plan, places)
        check_target(name, places, target, executors=places.executors, draining=self.draining)
        found: dict[str, dict[int, str]] = {}
        for g in order or range(places.num_key_groups):
            if target.executor(g) != places.executor(g):
                slot = next(n for n, takes in slots.items() if g in takes)
                found.setdefault(slot, {})[g] = target.executor(g)
        return found

    def _insist_on_running(self) -> None:
        """Refuse to migrate once the query has stopped."""
        if self._conducting.closed:
            raise MigrationError(
                f"Query {self._query!r} has stopped, so none of its key groups can move.",
                remedy="Start the flow again from its checkpoint, and migrate that query.",
                query=self._query,
            )

    def begin_plan(
        self, name: str, plan: AnyPlan, strategy: AnyStrategy | None, bounds: Bounds | None
    ) -> Migration:
        """Carry out a plan for one component of the engine."""
        return self._begin(name, *target_of(plan, self._places(name)), strategy, bounds)

    def _begin(
        self,
        name: str,
        target: Assignment,
        order: tuple[int, ...],
        strategy: AnyStrategy | None,
        bounds: Bounds | None,
    ) -> Migration:
        """Begin the migration of one component of the engine."""
        self._insist_on_running()
        limits = checked_bounds(bounds)
        default = self._conducting.view.components[name].default_strategy
        chosen = default if strategy is None else checked_strategy(strategy)
        migration = uuid.uuid4().hex[:8]
        sizes = self._state_bytes(name)
        with self._conducting.locked() as conductor:
            if self._controller is not None:
                self._controller.give_way(conductor, name)
            conductor.migrate(
                MigrationRequested(
                    id=migration,
                    component=name,
                    target=target,
                    strategy=chosen,
                    bounds=limits,
                    loads=conductor.recent_load.mean_busy_ms(name),
                    state_bytes={g: int(sizes[g]) for g in np.flatnonzero(sizes).tolist()},
                    order=order,
                )
            )
        return Migration(migration, self._names[name], self._conducting)

    @user_call
    def problem(self, component: str | None = None, *, limits: Limits | None = None) -> Problem:
        """Ask a planner's question about a component as it runs now, or about all of them.

        Load is the time that lanes are busy with each key group, which is what the controller
        plans by: milliseconds an epoch, the mean over the last epochs with input, which are the
        problem's history too; state is what a new copy has to
        read. Executors that own nothing yet are in it, those that drain are marked.

        Parameters
        ----------
        component
            Whose key groups. Left out, those of all components together: key groups are numbered
            through, component after component, `Problem.operators` are the components, and traffic
            is what key groups of one send to few of another, in rows an epoch.
        limits
            What a plan may cost and how even it must be.
        """
        if component is None and len(self._assigned) > 1:
            labels = self._labels
            every = {name: self._facts(name) for name in self._assigned}
            windows = min(len(facts.load) for facts in every.values())
            with self._conducting.locked() as conductor:
                pairs = conductor.recent_load.mean_pairs()
            joint = joint_problem(
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
            return replace(joint, operators=tuple(labels[name] for name in joint.operators))
        name = self._component(component)
        facts = self._facts(name)
        places, history = facts.assignment, facts.load
        problem = problem_of(
            places,
            load=history.mean(axis=0) if len(history) else np.zeros(places.num_key_groups),
            state_bytes=facts.state_bytes,
            history=history if len(history) else None,
            draining=self.draining & set(places.executors),
            limits=limits,
        )
        return replace(problem, operators=(self._labels[name],))

    def _facts(self, component: str) -> ComponentFacts:
        """Measured loads and state sizes of a component, for a planner's problem."""
        places = self._places(component)
        with self._conducting.locked() as conductor:
            epochs = conductor.recent_load.busy_ms(component)
        history = np.zeros((len(epochs), places.num_key_groups))
        for at, epoch in enumerate(epochs):
            for key_group, busy_ms in epoch.items():
                history[at, key_group] = busy_ms
        return ComponentFacts(
            assignment=places,
            load=history,
            state_bytes=self._state_bytes(component).astype(np.float64),
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
        """Predict what carrying out a plan would do, and where copies would come from.

        Parameters
        ----------
        plan
            As `migrate` takes it; a solution may also be of all components (see `problem`).
        component
            Whose key groups, unless the plan is a solution; may be left out if there is only one.
        bandwidth_bytes_per_s
            Of ways by which nothing has come yet; of the others what came of late counts.
        changed_share
            Share of the state that changes while it is being copied.

        Raises
        ------
        InvalidPlanError
            If the plan is none, is outdated, or is of other components.
        InvalidProblemError
            If the bandwidth is not positive or the share is not in [0, 1].
        """
        solution = plan if isinstance(plan, Solution) else self._solved(plan, component)
        return preview(
            solution,
            bandwidth_bytes_per_s=bandwidth_bytes_per_s,
            changed_share=changed_share,
            routes=self._routes(solution, component),
        )

    def _solved(self, plan: AnyPlan, component: str | None) -> Solution:
        """Make a solution of a plan made by hand, for the present problem."""
        name = self._component(component)
        problem, places = self.problem(name), self._places(name)
        target, _ = target_of(plan, places)
        check_target(
            name,
            places,
            target,
            executors=places.executors,
            draining=self.draining,
        )
        number = {executor: at for at, executor in enumerate(problem.executors)}
        owner = np.array([number[executor] for executor in target.executors])
        return make_solution(problem, owner[target.executor_of], method="a plan by hand")

    def _routes(self, solution: Solution, component: str | None) -> tuple[CopyRoute, ...]:
        """Predicted routes of the copies that a solution's moves need."""
        problem, moved = solution.problem, solution.moved
        names: tuple[str | None, ...] = problem.operators
        if len(names) == 1 and names[0] not in {*self._assigned, *self._labels.values()}:
            names = (component,)  # of a problem that somebody made
        routes: list[CopyRoute] = []
        for number, name in enumerate(map(self._component, names)):
            own = np.flatnonzero(problem.operator_of == number)
            going = np.flatnonzero(np.isin(own, moved)).tolist()
            places = {g: problem.executors[solution.assignment[own[g]]] for g in going}
            sizes = dict(enumerate(self._state_bytes(name).tolist()))
            with self._conducting.locked() as conductor:
                routes += conductor.foresee(name, places, sizes)
        return tuple(routes)

    @user_call
    def balance(
        self,
        planner: str = "milp",
        *,
        component: str | None = None,
        limits: Limits | None = None,
        strategy: AnyStrategy | None = None,
        bounds: Bounds | None = None,
        **options: Any,
    ) -> Migration | None:
        """Plan once on the load there is now, and carry the plan out.

        Parameters
        ----------
        planner
            Name of a planner, as in `godwit plan`.
        component, limits
            As for `problem`.
        strategy, bounds
            As for `migrate`.
        **options
            The planner's. `milp` ends its search within 1 % of the mean load of the best there can
            be; ``gap=0`` has it search on, for its time limit where the problem is large.

        Returns
        -------
        Migration or None
            ``None`` where the planner sees nothing worth moving.

        Raises
        ------
        InvalidProblemError
            If the planner does not exist, or cannot take the problem or an option.
        InvalidPlanError
            If no plan within the limits was found.
        """
        name = self._component(component)  # problem() would ask about all of several
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
        """Carry out a solution of the problem of all components (see `problem`).

        Parameters
        ----------
        solution
            A planner's.
        strategy, bounds
            As for `migrate`.

        Returns
        -------
        tuple of Migration
            One for each component that moves, in the order of the components.

        Raises
        ------
        InvalidPlanError
            If the solution is illegal, or of other components.
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

    @user_call
    def drain(
        self,
        executor: str,
        *,
        strategy: AnyStrategy | None = None,
        bounds: Bounds | None = None,
    ) -> tuple[Migration, ...]:
        """Empty an executor, and let nothing move onto it any more.

        If it cannot be planned or begun, things may move there as before.

        Parameters
        ----------
        executor
            Its name.
        strategy, bounds
            As for `migrate`.

        Returns
        -------
        tuple of Migration
            One for each component that had key groups there; the executor is empty at their ends.

        Raises
        ------
        InvalidPlanError
            If there is no such executor, or no other one.
        """
        there = sorted({e for name in self._assigned for e in self._places(name).executors})
        if executor not in there or not set(there) - self.draining - {executor}:
            raise InvalidPlanError(
                f"Executor {executor!r} cannot be drained: "
                + ("nothing would be left." if executor in there else "it is not there."),
                remedy=f"Executors are {', '.join(there)}.",
                executor=executor,
            )
        new = executor not in self.draining
        self._conducting.drain(executor)
        migrations = []
        try:
            for name in self._assigned:
                problem = self.problem(name)
                # Without the target, what would cost balance could stay for a later plan.
                emptied = replace(problem, limits=Limits(target_executors=len(problem.available)))
                plan = executable_plan(planner_named("milp")(emptied, time_limit_s=1.0))
                if plan.moves:
                    migrations.append(self.begin_plan(name, plan, strategy, bounds))
        except BaseException:
            if new:
                self._conducting.stay(executor)
            raise
        return tuple(migrations)

    def _places(self, component: str) -> Assignment:
        """Return the assignment of a component, with the executors that own nothing."""
        view = self._conducting.view
        return with_newcomers(view.components[component].assignment, view.executors)

    def _component(self, component: str | None) -> str:
        """Name of a component from the name or label that a user gave."""
        labels, shown = self._labels, list(self.assignments)
        if component is None and len(shown) == 1:
            return next(iter(labels))
        if component is None or component not in {*labels, *labels.values()}:
            raise InvalidPlanError(
                f"There is no component {component!r}."
                if component is not None
                else "The flow has several components.",
                remedy=f"Name one with component=: {', '.join(shown)}.",
            )
        return next((name for name in labels if component in (name, labels[name])), component)
