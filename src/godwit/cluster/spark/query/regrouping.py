"""``query.regroup``: what shares a component, changed while the stream runs."""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from godwit.cluster.spark.query.migrations import Asked
from godwit.cluster.spark.query.plans import checked_bounds
from godwit.cluster.spark.query.scalable import Scalable
from godwit.cluster.spark.run.deciding import planned_regrouping, regrouping_of
from godwit.model.errors import MigrationError
from godwit.model.frames import user_call
from godwit.plan.regrouping import checked_components

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.cluster.spark.run.run import Run
    from godwit.engine.regrouping import RegroupingPlan
    from godwit.engine.shared_conductor import SharedConductor
    from godwit.migration import Bounds, EndRegrouping
    from godwit.model.assignment import Assignment

__all__ = ["AskedRegrouping", "Regroupable"]


class AskedRegrouping(Asked["EndRegrouping"]):
    """A regrouping that was asked for.

    Cancelled, it leaves the physical plan as it is, and what has moved for it where it is.

    Attributes
    ----------
    plan
        What it takes.
    """

    def __init__(self, regrouping: str, plan: RegroupingPlan, conducting: SharedConductor) -> None:
        super().__init__(regrouping, conducting)
        self.plan = plan

    @property
    def _what(self) -> str:
        return f"Regrouping {self.id}"

    def _ended(self, timeout_s: float | None) -> EndRegrouping | None:
        return self._conducting.ended_regrouping(self.id, timeout_s)


class Regroupable(Scalable):
    """What a query can do about its components; the query itself gives the means."""

    _run: Run

    @property
    @abstractmethod
    def assignment(self) -> Mapping[str, Assignment]:
        """Component → assignment of the next epoch."""

    def explain(self) -> None:
        """Print how the flow runs now: as `Flow.explain`, under today's components."""
        sys.stdout.write(self._run.flow.explain() + "\n")

    @user_call
    def plan_regrouping(self, components: Mapping[str, Sequence[str]]) -> RegroupingPlan:
        """Say what it would take to regroup components; nothing happens.

        Parameters
        ----------
        components
            As for `regroup`.

        Returns
        -------
        RegroupingPlan
            Levels and exchanges before and after, and what would have to move; ``to_text()`` tells
            it.

        Raises
        ------
        InvalidPlanError
            If an operator does not exist, or operators of one component could not run together.
        """
        return self._planned(checked_components(components))

    @user_call
    def regroup(
        self, components: Mapping[str, Sequence[str]], *, bounds: Bounds | None = None
    ) -> AskedRegrouping:
        """Let other operators share a component from some epoch on, while the stream flows.

        Operators that are to share one are brought to the same places first, by live migrations;
        those that are to part stay where they are. Then the plan changes between two epochs.
        Results do not.

        Parameters
        ----------
        components
            Component → names of its operators. Operators that are not named stay together as they
            are. Operators in a row, keyed by the same columns, need no exchange between them once
            they share a component.
        bounds
            Limits of the migrations, as for `migrate`.

        Returns
        -------
        AskedRegrouping
            Returns at once; ``wait()`` on it if need be.

        Raises
        ------
        InvalidPlanError
            If an operator does not exist, or operators of one component could not run together.
        MigrationError
            If another regrouping is under way, or the query has stopped.

        Examples
        --------
        ``query.regroup({"planes": ["by_plane", "late_planes"]}).wait()``, and back:
        ``query.regroup({"by_plane": ["by_plane"]})``.
        """
        if not self.isActive:
            raise MigrationError(
                "The query has stopped, so its components stay as they are.",
                remedy="Start the flow again from its checkpoint, with components= if need be.",
            )
        limits, named = checked_bounds(bounds), checked_components(components)
        self._planned(named)  # nothing gives way to what cannot be
        with self._run.deciding.by_hand(name for of in named.values() for name in of):
            plan = self._planned(named)
            asked = regrouping_of(plan, limits)
            with self._run.conducting.locked() as conductor:
                conductor.regroup(asked)
        return AskedRegrouping(asked.id, plan, self._run.conducting)

    def _planned(self, components: Mapping[str, tuple[str, ...]]) -> RegroupingPlan:
        run = self._run
        return planned_regrouping(run.flow, components, conducting=run.conducting, log=run.log)

    def _components_told(self) -> dict[str, Any]:
        with self._run.conducting.locked() as conductor:
            return {c.name: list(c.operators) for c in conductor.plan.components}
