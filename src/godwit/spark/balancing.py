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

from godwit.dataflow.frames import user_call
from godwit.migration import Strategy
from godwit.model.errors import InvalidPlanError
from godwit.planning import Limits
from godwit.planning import planner as planner_named
from godwit.planning.carrying_out import carry_out
from godwit.planning.preview import preview
from godwit.planning.running import problem_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from godwit.migration import Bounds
    from godwit.model.assignment import Assignment
    from godwit.planning import Problem, Solution
    from godwit.planning.carrying_out import CarryingOut
    from godwit.planning.preview import PlanPreview
    from godwit.spark.migrations import Migration

__all__ = ["AnyStrategy", "Balancing"]

AnyStrategy = Strategy | Literal["live", "disruptive", "stop_the_world"]


class Balancing(ABC):
    """What a query can do with planners; the query itself gives the facts."""

    @abstractmethod
    def migrate(
        self,
        plan: Assignment | Mapping[int, str] | Solution | CarryingOut,
        *,
        component: str | None = None,
        strategy: AnyStrategy = Strategy.LIVE,
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
    def _draining(self) -> frozenset[str]:
        """Executors that nothing may move onto."""

    @abstractmethod
    def _start_draining(self, executor: str) -> None: ...

    @user_call
    def problem(self, component: str | None = None, *, limits: Limits | None = None) -> Problem:
        """Ask a planner's question about a component as it runs now.

        Load is the CPU time of each key group in milliseconds an epoch, the mean over the last
        epochs with input, which are the problem's history too; state is what a new copy has to
        read. Executors that own nothing yet are in it, those that drain are marked.

        Parameters
        ----------
        component
            Whose key groups; may be left out if the flow has only one component.
        limits
            What a plan may cost and how even it must be.
        """
        name = self._component(component)
        places = self._places(name)
        epochs = self._cpu_ms(name)
        history = np.zeros((len(epochs), places.num_key_groups))
        for at, epoch in enumerate(epochs):
            for key_group, cpu_ms in epoch.items():
                history[at, key_group] = cpu_ms
        return problem_of(
            places,
            load=history.mean(axis=0) if epochs else np.zeros(places.num_key_groups),
            state_bytes=self._sizes(name).astype(np.float64),
            history=history if epochs else None,
            draining=self._draining() & set(places.executors),
            limits=limits,
        )

    @user_call
    def preview(
        self,
        solution: Solution,
        *,
        bandwidth_bytes_per_s: float = 125e6,
        changed_share: float = 0.05,
    ) -> PlanPreview:
        """Predict what carrying out a solution would do; see `godwit.planning.preview`."""
        return preview(
            solution, bandwidth_bytes_per_s=bandwidth_bytes_per_s, changed_share=changed_share
        )

    @user_call
    def balance(
        self,
        planner: str = "milp",
        *,
        component: str | None = None,
        limits: Limits | None = None,
        strategy: AnyStrategy = Strategy.LIVE,
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
        name = self._component(component)
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
    def drain(
        self,
        executor: str,
        *,
        strategy: AnyStrategy = Strategy.LIVE,
        bounds: Bounds | None = None,
    ) -> tuple[Migration, ...]:
        """Empty an executor, and let nothing move onto it any more.

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
        self._start_draining(executor)
        migrations = []
        for name in self.components:
            problem = self.problem(name)
            # Without the target, what would cost balance could stay for a later plan.
            emptied = replace(problem, limits=Limits(target_executors=len(problem.available)))
            plan = carry_out(planner_named("milp")(emptied, time_limit_s=1.0))
            if plan.moves:
                migrations.append(
                    self.migrate(plan, component=name, strategy=strategy, bounds=bounds)
                )
        return tuple(migrations)
