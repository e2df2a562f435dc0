"""Components that are made anew while the stream runs: fusing, and letting go again.

A *regrouping* leads from one physical plan to another, between two epochs.  Operators that are to
share a component have to be in the same places first, so components come together by ordinary
migrations: copies are warmed, key groups switch, and no epoch waits.  When all of them rest in the
same places, the plan changes.  Operators that part stay where they are, and nothing moves.

Invariants:

- the plan changes only while no epoch runs, and while nothing of the components concerned moves,
  is suspended or waits; migrations that were under way end first;
- when it changes, no key group changes its place: what a lane holds of an operator, it holds after;
- every regrouping ends: what is lost or withdrawn on the way is tried again a few times, and then
  the plan stays as it is, with the reason.

Source: the basic adaptation operation Migrate(O, C, C') and its compositions, Madsen et al. (Enorm)
§4.5.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.migration.component import TrackedComponent
from godwit.migration.inputs import MigrationRequested
from godwit.migration.regrouping_stages import common_places
from godwit.migration.strategy import Bounds, Strategy
from godwit.model.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.migration.inputs import ComponentsRegrouped
    from godwit.migration.regrouping_stages import RegroupingStage
    from godwit.migration.views import ComponentView, ProtocolView
    from godwit.model.assignment import Assignment

__all__ = ["EndRegrouping", "OngoingRegrouping", "Regrouping", "merged"]

_TRIES = 4
"""Migrations that bring one component to another's places before that is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouping:
    """A physical plan that is to be arrived at.

    Attributes
    ----------
    id
        The caller's name for it.
    stages
        Plans on the way, in order; the last one is what is wanted (see `regrouping_stages`). None
        if every component is as it is to be.
    components
        Component that is made anew → its operators, for people.
    reason
        Why, where nobody asked for it.
    bounds
        Limits of the migrations that bring components together.
    """

    id: str
    stages: tuple[RegroupingStage, ...]
    components: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRegrouping:
    """How a regrouping ended.

    Attributes
    ----------
    id
        The regrouping.
    done
        Whether the next epoch runs under its plan.
    reason
        Why not; empty if it does.
    """

    id: str
    done: bool
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class OngoingRegrouping:
    """A regrouping under way: what it needs next.

    Attributes
    ----------
    request
        What was asked for.
    stages
        Those that are still to come, the first of them under way.
    tries
        Component → migrations that were asked for to bring it to its place.
    """

    request: Regrouping
    stages: list[RegroupingStage]
    tries: Counter[str] = field(default_factory=Counter)

    @property
    def stage(self) -> RegroupingStage:
        """The one under way."""
        return self.stages[0]

    @property
    def concerned(self) -> frozenset[str]:
        """Components that are about to be others."""
        return frozenset(name for parts in self.stage.parts.values() for name in parts)

    def next_migration(self, view: ProtocolView) -> MigrationRequested | None:
        """Return a migration that brings a component together with the one it goes to.

        Raises
        ------
        MigrationError
            If that was tried often enough.
        """
        for parts in self.stage.parts.values():
            if len(parts) == 1:
                continue
            standing = [view.components[name] for name in parts]
            if any(c.migration or c.suspended for c in standing if c is standing[0] or c.takes):
                continue  # where they are to go is about to change
            goal = common_places(parts, view.components)
            for name in parts:
                component = view.components[name]
                if component.migration is not None or component.suspended:
                    continue
                if same_places(component.assignment, goal):
                    continue
                self.tries[name] += 1
                if self.tries[name] > _TRIES:
                    raise MigrationError(
                        f"Key groups of {name!r} do not come to those of {parts[0]!r}: "
                        f"{_TRIES} migrations left some behind.",
                        remedy="Look at the events: warming may fail.",
                        component=name,
                    )
                return MigrationRequested(
                    id=f"{self.request.id}-{name}-{self.tries[name]}",
                    component=name,
                    target=goal,
                    strategy=Strategy.LIVE,
                    bounds=self.request.bounds,
                    state_bytes=self.stage.state_bytes.get(name, {}),
                )
        return None

    def is_ready(self, view: ProtocolView) -> bool:
        """Whether the plan of the stage under way may begin now."""
        if view.running is not None or view.holds or not view.executors:
            return False
        return all(
            rests(view.components[name])
            and same_places(view.components[parts[0]].assignment, view.components[name].assignment)
            for parts in self.stage.parts.values()
            for name in parts
        )

    def end(self, reason: str = "") -> EndRegrouping:
        """Return how it ended."""
        return EndRegrouping(id=self.request.id, done=not reason, reason=reason)


def merged(
    fact: ComponentsRegrouped, components: Mapping[str, TrackedComponent]
) -> dict[str, TrackedComponent]:
    """Return the components that `components` become, each with a record of its own.

    Raises
    ------
    MigrationError
        If one does not exist, moves or waits, or parts of one are in different places.
    """
    made = {}
    for name, names in fact.parts.items():
        parts = [components[part] for part in names if part in components]
        if len(parts) < len(names) or not all(
            rests(part.view()) and same_places(parts[0].assignment, part.assignment)
            for part in parts
        ):
            raise MigrationError(
                f"Component {name!r} cannot be made of {', '.join(names)} now.",
                remedy="Wait until all of them rest in the same places.",
                component=name,
            )
        made[name] = _joined(name, parts, fact.state_bytes.get(name, {}))
    return made


def _joined(
    name: str, parts: list[TrackedComponent], state_bytes: Mapping[int, int]
) -> TrackedComponent:
    first = parts[0]
    made = TrackedComponent(
        name=name,
        assignment=replace(
            first.assignment, version=1 + max(part.assignment.version for part in parts)
        ),
        lanes={key: lanes for part in reversed(parts) for key, lanes in part.lanes.items()},
        state_bytes=np.zeros_like(first.state_bytes),
        load={g for part in parts for g in part.load},
        orphaned=any(part.orphaned for part in parts),
    )
    made.note_bytes(state_bytes)
    for part in parts:
        for executor, key_groups in part.retired.items():
            made.retired.setdefault(executor, set()).update(key_groups)
    return made


def rests(component: ComponentView) -> bool:
    """Whether nothing of a component moves, is suspended or waits."""
    return not (
        component.migration or component.transfers or component.suspended or component.waiting
    )


def same_places(one: Assignment, other: Assignment) -> bool:
    """Whether every key group is in the same lane of the same executor, in whatever order."""
    owners, others = (np.array(a.executors)[a.executor_of] for a in (one, other))
    return np.array_equal(owners, others) and np.array_equal(one.lane_of, other.lane_of)
