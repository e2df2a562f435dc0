"""Planners on a running query: ask for its problem, plan, look at the plan, carry it out.

Problem: planners are pure functions of a `Problem`; a query has the facts (where key groups are,
what they cost, how much state they hold) and can carry a plan out.

Invariant: what `Balancing.preview` shows, `Balancing.balance` and `migrate` carry out: the same
moves in the same order, made by `godwit.planning.carrying_out.carry_out`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from godwit.cluster.spark.query.plans import target_of
from godwit.migration import Strategy
from godwit.migration.placement import check_target
from godwit.model.errors import InvalidPlanError
from godwit.model.frames import user_call
from godwit.model.naming import listing
from godwit.planning import Limits, Solution
from godwit.planning import planner as planner_named
from godwit.planning.carrying_out import carry_out, carry_out_each
from godwit.planning.preview import preview
from godwit.planning.running import ComponentFacts, joint_problem, problem_of
from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from godwit.cluster.spark.query.migrations import Migration
    from godwit.migration import Bounds
    from godwit.model.assignment import Assignment
    from godwit.model.pairs import KeyGroupPairs
    from godwit.planning import Problem
    from godwit.planning.carrying_out import CarryingOut
    from godwit.planning.copy_routes import CopyRoute
    from godwit.planning.preview import PlanPreview

__all__ = ["AnyStrategy", "Balancing"]

AnyStrategy = Strategy | Literal["live", "disruptive", "stop_the_world", "instant", "smooth"]


class Balancing(ABC):
    """What a query can do with planners; the query itself gives the facts."""

    @abstractmethod
    def migrate(
        self,
        plan: Assignment | Mapping[int, str] | Solution | CarryingOut,
        *,
        component: str | None = None,
        strategy: AnyStrategy | None = None,
        bounds: Bounds | None = None,
    ) -> Migration:
        """Move key groups to other executors while the stream flows."""

    @property
    @abstractmethod
    def components(self) -> tuple[str, ...]:
        """Names of the components."""

    @abstractmethod
    def _component(self, component: str | None) -> str: ...

    @abstractmethod
    def _places(self, component: str) -> Assignment:
        """Where key groups are, executors included that own none."""

    @abstractmethod
    def _cpu_ms(self, component: str) -> Sequence[Mapping[int, float]]:
        """Key group → CPU time, for each of the last epochs with input, oldest first."""

    @abstractmethod
    def _sizes(self, component: str) -> npt.NDArray[np.int64]:
        """Bytes of state of each key group."""

    @abstractmethod
    def _pairs(self) -> Mapping[tuple[str, str], KeyGroupPairs]:
        """(Component upstream, downstream) → rows an epoch with input sent, by key groups."""

    @abstractmethod
    def _draining(self) -> frozenset[str]:
        """Executors that nothing may move onto."""

    @abstractmethod
    def _foresee(self, component: str, places: Mapping[int, str]) -> tuple[CopyRoute, ...]:
        """Where copies of key groups that move would come from (key group → executor)."""

    @abstractmethod
    def _start_draining(self, executor: str) -> None: ...

    @abstractmethod
    def _stop_draining(self, executor: str) -> None: ...

    @user_call
    def problem(self, component: str | None = None, *, limits: Limits | None = None) -> Problem:
        """Ask a planner's question about a component as it runs now, or about all of them.

        Load is the CPU time of each key group in milliseconds an epoch, the mean over the last
        epochs with input, which are the problem's history too; state is what a new copy has to
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
        if component is None and len(self.components) > 1:
            every = {name: self._facts(name) for name in self.components}
            windows = min(len(facts.load) for facts in every.values())
            return joint_problem(
                {
                    name: replace(facts, load=facts.load[len(facts.load) - windows :])
                    for name, facts in every.items()
                },
                self._pairs(),
                draining=self._draining().intersection(
                    *(facts.assignment.executors for facts in every.values())
                ),
                limits=limits,
            )
        facts = self._facts(self._component(component))
        places, history = facts.assignment, facts.load
        problem = problem_of(
            places,
            load=history.mean(axis=0) if len(history) else np.zeros(places.num_key_groups),
            state_bytes=facts.state_bytes,
            history=history if len(history) else None,
            draining=self._draining() & set(places.executors),
            limits=limits,
        )
        return replace(problem, operators=(self._component(component),))

    def _facts(self, component: str) -> ComponentFacts:
        places, epochs = self._places(component), self._cpu_ms(component)
        history = np.zeros((len(epochs), places.num_key_groups))
        for at, epoch in enumerate(epochs):
            for key_group, cpu_ms in epoch.items():
                history[at, key_group] = cpu_ms
        return ComponentFacts(
            assignment=places,
            load=history,
            state_bytes=self._sizes(component).astype(np.float64),
        )

    @user_call
    def preview(
        self,
        plan: Assignment | Mapping[int, str] | Solution | CarryingOut,
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

    def _solved(
        self, plan: Assignment | Mapping[int, str] | CarryingOut, component: str | None
    ) -> Solution:
        """Take a plan that somebody made as the solution of the problem there is now."""
        name = self._component(component)
        problem, places = self.problem(name), self._places(name)
        target, _ = target_of(plan, places)
        check_target(
            name,
            places,
            target,
            executors=places.executors,
            draining=self._draining(),
        )
        number = {executor: at for at, executor in enumerate(problem.executors)}
        owner = np.array([number[executor] for executor in target.executors])
        return make_solution(problem, owner[target.executor_of], method="a plan by hand")

    def _routes(self, solution: Solution, component: str | None) -> tuple[CopyRoute, ...]:
        problem, moved = solution.problem, solution.moved
        names: tuple[str | None, ...] = problem.operators
        if len(names) == 1 and names[0] not in self.components:
            names = (component,)  # of a problem that somebody made
        routes: list[CopyRoute] = []
        for number, name in enumerate(map(self._component, names)):
            own = np.flatnonzero(problem.operator_of == number)
            going = np.flatnonzero(np.isin(own, moved)).tolist()
            places = {g: problem.executors[solution.assignment[own[g]]] for g in going}
            routes += self._foresee(name, places)
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
            The planner's.

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
        solution = planner_named(planner)(self.problem(name, limits=limits), **options)
        plan = carry_out(solution)
        if solution.status == "infeasible":
            raise InvalidPlanError(
                f"Planner {planner!r} found no plan within the limits: {solution.reason}.",
                remedy="Loosen the limits, or look at query.preview(solution) and migrate it.",
                component=name,
            )
        if not plan.moves:
            return None
        return self.migrate(plan, component=name, strategy=strategy, bounds=bounds)

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
        components = self.components
        parts = carry_out_each(solution)
        if len(components) == 1:
            parts = dict(zip(components, parts.values(), strict=False))
        elif set(solution.problem.operators) != set(components):
            raise InvalidPlanError(
                f"The solution is of {listing(solution.problem.operators)}.",
                remedy="Ask for query.problem(), without a component, and plan that; or migrate "
                "the solution with query.migrate(solution, component=...).",
            )
        return tuple(
            self.migrate(parts[name], component=name, strategy=strategy, bounds=bounds)
            for name in components
            if name in parts
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
        there = sorted({e for name in self.components for e in self._places(name).executors})
        if executor not in there or not set(there) - self._draining() - {executor}:
            raise InvalidPlanError(
                f"Executor {executor!r} cannot be drained: "
                + ("nothing would be left." if executor in there else "it is not there."),
                remedy=f"Executors are {', '.join(there)}.",
                executor=executor,
            )
        new = executor not in self._draining()
        self._start_draining(executor)
        migrations = []
        try:
            for name in self.components:
                problem = self.problem(name)
                # Without the target, what would cost balance could stay for a later plan.
                emptied = replace(problem, limits=Limits(target_executors=len(problem.available)))
                plan = carry_out(planner_named("milp")(emptied, time_limit_s=1.0))
                if plan.moves:
                    migrations.append(
                        self.migrate(plan, component=name, strategy=strategy, bounds=bounds)
                    )
        except BaseException:
            if new:
                self._stop_draining(executor)
            raise
        return tuple(migrations)
