"""Changing which operators share a component while the stream runs: ``query.components``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from godwit.engine.regrouping import plan_from_present, to_regrouping
from godwit.model.decision_events import ManualChange
from godwit.model.errors import GodwitError, MigrationError
from godwit.model.frames import user_call
from godwit.plan.explain import explain
from godwit.plan.grouping import checked_components
from godwit.runtime.failures import epoch_failed
from godwit.runtime.placement import Pending, checked_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from godwit.engine.regrouping import RegroupingPlan
    from godwit.migration.coordinator import Coordinator
    from godwit.migration.regrouping import EndRegrouping
    from godwit.migration.strategy import Bounds
    from godwit.runtime.ports import ChangedRun


class PendingRegrouping(Pending["EndRegrouping"]):
    """A requested change of components, which is carried out in the background.

    Godwit makes it: ``query.components.regroup`` returns it. If it is cancelled, the components
    stay as they are; key groups that have moved for it stay at their new places.

    Attributes
    ----------
    id
        Identifier of the regrouping, by which events name it.
    plan
        Levels and exchanges before and after, and the moves that it needs; ``plan.to_text()``
        describes them.

    Examples
    --------
    >>> pending = query.components.regroup({"by_plane": ["by_plane"]})
    >>> pending.wait(timeout=60).done
    True
    """

    def __init__(self, regrouping: str, plan: RegroupingPlan, coordinator: Coordinator) -> None:
        super().__init__(regrouping, coordinator)
        self.plan = plan

    @property
    def _description(self) -> str:
        """Name of the regrouping in messages."""
        return f"Regrouping {self.id}"

    def _end(self, timeout_s: float | None) -> EndRegrouping | None:
        """Wait for the regrouping's end; return ``None`` after the time-out."""
        return self._coordinator.ended_regrouping(self.id, timeout_s)


class QueryComponents(Collection[str]):
    """Components of a running query, and changes of them.

    It is the attribute ``query.components`` of a `Query`, and a collection of the components'
    names, upstream before downstream. A component is a group of operators that run in the same
    tasks, and whose key groups move together.

    Examples
    --------
    >>> list(query.components)
    ['by_origin', 'by_plane', 'worst']
    """

    def __init__(self, run: ChangedRun) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<QueryComponents: {', '.join(self.names)}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the components, as `migrate` takes them; upstream before downstream.

        Examples
        --------
        >>> query.components.names
        ('by_origin', 'by_plane', 'worst')
        """
        return self._run.names.each(self._run.coordinator.view.components)

    @property
    def operators(self) -> Mapping[str, tuple[str, ...]]:
        """Component → names of the operators that share it.

        Examples
        --------
        >>> query.components.operators
        {'by_plane': ('by_plane',), 'by_origin': ('by_origin',), 'worst': ('worst',)}
        """
        plan, names = self._run.coordinator.plan, self._run.names
        operators: dict[str, tuple[str, ...]] = {}
        for component in plan.components:
            known = names[component.name]
            operators[known] = names.each((*operators.get(known, ()), *component.operators))
        return operators

    def explain(self) -> str:
        """Return the plan with the present components as text, as `Flow.explain` prints it.

        Examples
        --------
        >>> print(query.components.explain())
        Flow 'delays': 1 source, 3 keyed operators on 2 levels, 3 sinks
        ...
        """
        return explain(self._run.flow)

    @user_call
    def plan_regrouping(self, components: Mapping[str, Sequence[str]]) -> RegroupingPlan:
        """Plan a regrouping of operators; changes nothing.

        Parameters
        ----------
        components
            Component → names of its operators. Operators that are not named keep their component.

        Returns
        -------
        RegroupingPlan
            Levels and exchanges before and after, and the moves needed; ``to_text()`` describes
            them.

        Raises
        ------
        InvalidPlanError
            If an operator does not exist, or operators of one component cannot run together.

        Examples
        --------
        >>> plan = query.components.plan_regrouping({"both": ["by_plane", "worst"]})
        >>> plan.changes
        True
        """
        return self._plan_regrouping(checked_components(components))

    @user_call
    def regroup(
        self, components: Mapping[str, Sequence[str]], *, bounds: Bounds | None = None
    ) -> PendingRegrouping:
        """Change which operators share a component, while the query runs.

        First, live migrations move the key groups of operators that will share a component to the
        same executors; operators that are separated stay where they are. Then the components change
        between two epochs. Results do not change.

        Parameters
        ----------
        components
            Component → names of its operators. Operators that are not named keep their component.
            Consecutive operators with the same key columns need no exchange between them once they
            share a component.
        bounds
            Limits on the key groups and bytes that are in flight at once; see
            `godwit.migration.Bounds`, whose defaults apply without it.

        Returns
        -------
        PendingRegrouping
            The change, which continues in the background; ``wait()`` waits for its end.

        Raises
        ------
        InvalidPlanError
            If an operator does not exist, or operators of one component cannot run together.
        MigrationError
            If another regrouping is in progress, or the query has stopped.

        Examples
        --------
        >>> together = query.components.regroup({"both": ["by_plane", "worst"]})
        >>> together.wait(timeout=60).done, query.components.names
        (True, ('both', 'by_origin'))
        >>> apart = query.components.regroup({"by_plane": ["by_plane"], "worst": ["worst"]})
        >>> apart.wait(timeout=60).done, query.components.names
        (True, ('by_origin', 'by_plane', 'worst'))
        """
        if self._run.coordinator.closed:
            raise MigrationError(
                "The query has stopped, so its components stay as they are.",
                remedy="Start the flow again from its checkpoint, with components= if need be.",
            )
        limits, named = checked_bounds(bounds), checked_components(components)
        self._plan_regrouping(named)  # nothing gives way to what cannot be
        members = (name for group in named.values() for name in group)
        with self._run.manual_change(map(ManualChange.COMPONENTS.of, members)) as record:
            plan = self._plan_regrouping(named)
            regrouping = to_regrouping(plan, limits)
            self._run.coordinator.regroup(regrouping)
            record(regrouping.id)
        self._run.carry_on()
        return PendingRegrouping(regrouping.id, plan, self._run.coordinator)

    @user_call
    def repartition(self, columns: Mapping[str, str | Sequence[str] | None]) -> None:
        """Change the key columns whose hash selects the key group of a row, for some operators.

        The state of the operators is rewritten accordingly, as by a start with
        ``gw.Checkpointing(repartition=True)``. No epoch runs meanwhile; this method returns when
        epochs run again, and the event `godwit.events.OperatorsRepartitioned` has the length of the
        pause. Results do not change. A later start keeps the columns, unless the program has
        another ``partition_by=``.

        Parameters
        ----------
        columns
            Operator → the key column, or columns, whose hash selects the key group, as
            ``partition_by=`` of ``key_by``; ``None``: all of its key columns.

        Raises
        ------
        InvalidPlanError
            If there is no such operator.
        InvalidFlowError
            If a column is not a key column of its operator.
        MigrationError
            If key groups are moving, executors are being added or removed, a regrouping is in
            progress, the method is called from within an epoch, or the query has stopped.
        CheckpointError
            If key groups of an operator have migrated without their state, or it has ``spread=`` or
            ``merge=``. Nothing has changed then. An error while the state is rewritten fails the
            query; then its checkpoint has either the former columns or the new ones.

        Examples
        --------
        >>> query.components.repartition({"by_plane": "plane"})  # its only key column: no change
        """
        try:
            self._run.repartition(columns)
        except GodwitError:
            raise
        except Exception as error:
            raise epoch_failed(self._run.flow.name, error) from error

    def _plan_regrouping(self, components: Mapping[str, tuple[str, ...]]) -> RegroupingPlan:
        """Plan a regrouping from the present components."""
        run, names = self._run, self._run.names
        plan = plan_from_present(run.flow, components, coordinator=run.coordinator, log=run.log)
        moving = [replace(part, component=names[part.component]) for part in plan.moving]
        return replace(plan, moving=tuple(moving))
