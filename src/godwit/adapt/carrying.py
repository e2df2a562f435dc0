"""Having plans carried out, and letting go of those that were overtaken by events."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.adapt.overtaken import Promise, why_overtaken
from godwit.migration import MigrationRequested
from godwit.migration.placement import with_newcomers
from godwit.model import events
from godwit.model.errors import GodwitError, InvalidPlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from godwit.adapt.planning import Planned
    from godwit.adapt.ports import Migrations
    from godwit.adapt.settings import Control
    from godwit.migration import ProtocolView
    from godwit.model.assignment import Assignment

__all__ = ["Carrying", "is_own"]

_OWN = "control-"


def is_own(migration: str) -> bool:
    """Whether a migration of that id is one of a controller's."""
    return migration.startswith(_OWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnderWay:
    migration: str
    executors: frozenset[str]
    promise: Promise


class Carrying:
    """The migrations that the controller asked for."""

    def __init__(
        self, settings: Control, migrations: Migrations, tell: Callable[..., None]
    ) -> None:
        self._settings, self._migrations, self._tell = settings, migrations, tell
        self._asked = 0
        self._own: dict[str, _UnderWay] = {}

    @property
    def ids(self) -> frozenset[str]:
        """Of the controller's own migrations."""
        return frozenset(own.migration for own in self._own.values())

    @property
    def under_way(self) -> dict[str, str]:
        """Component → id of its migration."""
        return {name: own.migration for name, own in self._own.items()}

    def overtaken(self, plan: Planned, view: ProtocolView) -> str | None:
        """Say why what is under way of a plan's components is overtaken by it.

        Returns: Empty where it is not; ``None`` where nothing is under way.
        """
        asked = plan.asked
        number = {executor: at for at, executor in enumerate(asked.problem.executors)}
        left: dict[int, int] = {}
        promises = []
        for name in asked.components:
            if name in self._own:
                promises.append(self._own[name].promise)
                component, first = view.components[name], asked.first[name]
                ends = {t.key_group: t.destination for t in component.transfers if t.planned}
                ends |= {move.key_group: move.destination for move in component.moves}
                left |= {first + g: number[e] for g, e in ends.items() if e in number}
        if not promises:
            return None
        if not left:
            return ""  # everything has moved, and it ends by itself
        return next(
            filter(
                None,
                (
                    why_overtaken(
                        asked.problem,
                        left,
                        promise,
                        plan.verdict,
                        max_load_distance=plan.terms.max_load_distance,
                        least_gain=plan.terms.least_gain,
                    )
                    for promise in promises
                ),
            ),
            "",
        )

    def give_back(self, executors: Collection[str]) -> None:
        """Need executors no more that own nothing any more and go: no plan ends by that."""
        for name, own in self._own.items():
            self._own[name] = replace(own, executors=own.executors.difference(executors))

    def look(self, view: ProtocolView) -> None:
        """Forget migrations that have ended; end those onto executors that are gone."""
        for name, own in list(self._own.items()):
            component = view.components.get(name)
            if component is None or component.migration != own.migration:
                del self._own[name]
                continue
            gone = sorted(own.executors - view.executors.keys())
            if gone:
                self._abandon(name, own, f"executor {gone[0]} is gone")

    def _abandon(self, name: str, own: _UnderWay, reason: str) -> None:
        try:
            self._migrations.cancel(own.migration, reason)
        except GodwitError:
            return  # it has just ended by itself
        finally:
            del self._own[name]
        self._tell(events.PlanAbandoned, component=name, reason=reason)

    def start(self, plan: Planned, *, instead: str = "") -> None:
        """Ask for the moves that a verdict leaves, component by component.

        plan: What is to be done.
        instead: Why what is under way of these components is given up for it, if anything is.
        """
        asked, verdict = plan.asked, plan.verdict
        for name in asked.components:
            if name in self._own:
                self._abandon(name, self._own[name], instead)
        view = self._migrations.view
        problem = asked.problem
        started: dict[str, str] = {}
        for name in asked.components:
            first = asked.first[name]
            order = [k for k in verdict.order.tolist() if first <= k < asked.part(name).stop]
            if not order:
                continue
            places = {k - first: problem.executors[verdict.assignment[k]] for k in order}
            sources = [problem.executors[problem.current[k]] for k in order]
            migration = self._request(plan, name, places, sources, view)
            if migration:
                started[name] = migration
        if not started:
            return
        self._tell(
            events.RebalancingStarted,
            migrations=started,
            planner=plan.planner,
            moves=len(verdict.order),
            state_bytes=int(verdict.moved_bytes),
            draining=int(np.count_nonzero(problem.draining[problem.current[verdict.order]])),
            distance_before=verdict.distance_before,
            distance_after=verdict.distance_after,
            gain_s=verdict.gain_s,
            cost_s=verdict.cost_s,
        )

    def _request(
        self,
        plan: Planned,
        name: str,
        places: dict[int, str],
        sources: list[str],
        view: ProtocolView,
    ) -> str:
        """Ask for the moves of one component; empty where it was overtaken."""
        asked = plan.asked
        weight = asked.problem.weight[asked.part(name)]
        sizes = asked.held_bytes[asked.part(name)]
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
                )
            )
        except GodwitError as error:
            self._tell(events.PlanAbandoned, component=name, reason=error.message)
            return ""
        self._own[name] = _UnderWay(
            migration=migration,
            executors=frozenset(places.values()) | frozenset(sources),
            promise=Promise.of(asked.problem, plan.verdict),
        )
        return migration


def _check_sources(component: str, current: Assignment, sources: dict[int, str]) -> None:
    """Refuse moves of key groups that are not where the plan found them."""
    for key_group, source in sources.items():
        if current.executor(key_group) != source:
            raise InvalidPlanError(
                f"Key group {key_group} of {component!r} has left executor {source!r}.",
                remedy="Plan again on the assignment there is now.",
                key_group=key_group,
            )
