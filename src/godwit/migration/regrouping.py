"""Regrouping of operators into other components while the stream runs.

A *regrouping* leads from one physical plan to another, between two epochs.  Operators that will
share a component must first be in the same places, so components are co-located by ordinary
migrations: copies are warmed, key groups switch, and no epoch waits.  When all of them are at rest
in the same places, the plan changes.  Operators that are separated stay where they are.

Invariants:

- the plan changes only while no epoch runs, and while no key group of the affected components
moves,
  is suspended or has waiting rows; migrations in progress end first;
- the change moves no key group: every lane keeps its state of every operator;
- every regrouping ends: lost or withdrawn moves are retried a few times; then the regrouping is
  cancelled with the reason.

Source: the basic adaptation operation Migrate(O, C, C') and its compositions, Madsen et al. (Enorm)
§4.5.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from godwit.migration.component import TrackedComponent
from godwit.migration.messages import MigrationRequested
from godwit.migration.placement import with_newcomers
from godwit.migration.strategy import Bounds, Strategy
from godwit.model import events
from godwit.model.errors import GodwitError, MigrationError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence

    from godwit.migration.coordinator import Coordinator
    from godwit.migration.messages import LanesRequested
    from godwit.migration.state import ComponentView
    from godwit.model.assignment import Assignment, Move


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupingStage:
    """One step of a regrouping."""

    plan: Any  # the physical plan after it, in the caller's type
    # Component of that plan → former components of its operators; all move to the places of the
    # first of them (see `common_places`). Unchanged components are left out.
    parts: Mapping[str, tuple[str, ...]]
    # component of `parts` → ids of its states
    states: Mapping[str, tuple[Hashable, ...]]
    # component, before and after → key group → bytes of state, as far as known
    state_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


def common_places(parts: Sequence[str], components: Mapping[str, ComponentView]) -> Assignment:
    """Return the assignment that components move to before they are merged: that of the first.

    For slots of two-phase windows it is the assignment of the active slots: so the load stays
    balanced, and only the state of open windows moves.
    """
    views = [components[name] for name in parts]
    first = views[0].assignment
    places = {
        key_group: component.assignment.executor(key_group)
        for component in views
        for key_group in component.takes or ()
    }
    if not places:
        return first
    lanes = {
        executor: count
        for component in views
        for executor, count in zip(
            component.assignment.executors, component.assignment.lanes, strict=True
        )
    }
    return with_newcomers(first, lanes).moved(places)


def moves_to_come(
    stages: Iterable[RegroupingStage], components: Mapping[str, ComponentView]
) -> dict[str, tuple[Move, ...]]:
    """Return component → moves to the executors of the components that it is merged with."""
    views = dict(components)
    moves: dict[str, tuple[Move, ...]] = {}
    for stage in stages:
        merged_views: dict[str, ComponentView] = {}
        for name, parts in stage.parts.items():
            common = common_places(parts, views)
            if len(parts) > 1:
                moves |= {part: views[part].assignment.moves_to(common) for part in parts}
            merged_views[name] = replace(views[parts[0]], assignment=common, takes=None)
        views |= merged_views
    return {name: to_make for name, to_make in moves.items() if to_make}


_TRIES = 4
"""Maximum number of migrations to co-locate one component."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouping:
    """A request to change the physical plan."""

    id: str  # chosen by the caller
    # steps in order; the last one has the requested plan; empty if no component changes
    stages: tuple[RegroupingStage, ...]
    # new component → its operators, as text for users
    components: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""  # of a regrouping by a policy; empty for a user's request
    # limits of the migrations that co-locate components
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRegrouping:
    """End of a regrouping."""

    id: str
    done: bool  # the next epoch runs under its plan
    reason: str = ""  # of a cancellation


def merged(
    stage: RegroupingStage, components: Mapping[str, TrackedComponent]
) -> dict[str, TrackedComponent]:
    """Return the new components that a stage makes by merging or splitting, with their copies.

    Raises `MigrationError` if a component does not exist, has moves or waiting rows, or parts of it
    are on different executors or lanes.
    """
    joined = {}
    for name, names in stage.parts.items():
        parts = [components[part] for part in names if part in components]
        if len(parts) < len(names) or not all(
            is_at_rest(part.view()) and same_places(parts[0].assignment, part.assignment)
            for part in parts
        ):
            raise MigrationError(
                f"Component {name!r} cannot be made of {', '.join(names)} now.",
                remedy="Wait until all of them are at rest in the same places.",
                component=name,
            )
        joined[name] = _merge_parts(name, parts, stage.state_bytes.get(name, {}))
    return joined


def _merge_parts(
    name: str, parts: list[TrackedComponent], state_bytes: Mapping[int, int]
) -> TrackedComponent:
    """Merge components on the same executors and lanes into one."""
    first = parts[0]
    component = TrackedComponent(
        name=name,
        assignment=replace(
            first.assignment, version=1 + max(part.assignment.version for part in parts)
        ),
        lanes={key: lanes for part in reversed(parts) for key, lanes in part.lanes.items()},
        state_bytes=np.zeros_like(first.state_bytes),
        load={key_group for part in parts for key_group in part.load},
        whole={key_group for part in parts for key_group in part.whole},
        orphaned=any(part.orphaned for part in parts),
    )
    component.record_state_bytes(state_bytes)
    for part in parts:
        for executor, key_groups in part.retired.items():
            component.retired.setdefault(executor, set()).update(key_groups)
    return component


def is_at_rest(component: ComponentView) -> bool:
    """Return true if no key group of a component moves, is suspended or has waiting rows."""
    return not (
        component.migration or component.transfers or component.suspended or component.waiting
    )


def same_places(left: Assignment, right: Assignment) -> bool:
    """Return true if all key groups have equal executors and lanes in both assignments."""
    owners, others = (np.array(a.executors)[a.executor_of] for a in (left, right))
    return np.array_equal(owners, others) and np.array_equal(left.lane_of, right.lane_of)


class OngoingRegrouping:
    """A regrouping in progress; the coordinator has one at a time."""

    def __init__(self, coordinator: Coordinator, request: Regrouping) -> None:
        self._coordinator, self.request = coordinator, request
        self._stages = list(request.stages)  # still to come, the first of them in progress
        # component → number of its migrations so far
        self._tries_of_component: Counter[str] = Counter()
        self._own_migration = ""  # id of the last one requested

    def announce(self) -> None:
        """Announce the start, with the number of key-group moves and their state bytes."""
        request = self.request
        moves = moves_to_come(request.stages, self._coordinator.view.components)
        sizes = {n: bytes_of for s in request.stages for n, bytes_of in s.state_bytes.items()}
        self._coordinator.announce(
            events.RegroupingStarted,
            regrouping=request.id,
            components=request.components,
            reason=request.reason,
            moves=sum(map(len, moves.values())),
            state_bytes=sum(
                sizes.get(name, {}).get(move.key_group, 0) for name in moves for move in moves[name]
            ),
        )

    def advance(self) -> None:
        """Advance as far as possible: begin a migration or the next stage, or give up.

        The coordinator calls it after every change.
        """
        while self._coordinator.regrouping == self.request.id and self._coordinator.view.executors:
            if self._is_ready():
                self._begin_stage()
                continue
            try:
                migration = self._next_migration()
                if migration is None:
                    return
                self._own_migration = migration.id
                self._coordinator.migrate(migration)
            except GodwitError as error:
                self._give_up(error.message)

    def _is_ready(self) -> bool:
        """Return true if the components to merge are at rest, on the same executors and lanes."""
        view = self._coordinator.view
        if view.running is not None or view.holds or not view.executors:
            return False
        return all(
            is_at_rest(view.components[name])
            and same_places(view.components[parts[0]].assignment, view.components[name].assignment)
            for parts in self._stages[0].parts.values()
            for name in parts
        )

    def _next_migration(self) -> MigrationRequested | None:
        """Return the next migration that co-locates a component; ``None`` if all are co-located.

        Raises `MigrationError` after too many attempts.
        """
        stage, components = self._stages[0], self._coordinator.view.components
        for parts in stage.parts.values():
            if len(parts) == 1:
                continue
            views = [components[name] for name in parts]
            if any(c.migration or c.suspended for c in views if c is views[0] or c.takes):
                continue  # their common places are about to change
            goal = common_places(parts, components)
            for name in parts:
                component = components[name]
                if component.migration is not None or component.suspended:
                    continue
                if same_places(component.assignment, goal):
                    continue
                self._tries_of_component[name] += 1
                if self._tries_of_component[name] > _TRIES:
                    raise MigrationError(
                        f"Key groups of {name!r} could not be moved to those of {parts[0]!r}: "
                        f"{_TRIES} migrations left some behind.",
                        remedy="Look at the events for failed copies.",
                        component=name,
                    )
                return MigrationRequested(
                    id=f"{self.request.id}-{name}-{self._tries_of_component[name]}",
                    component=name,
                    target=goal,
                    strategy=Strategy.LIVE,
                    bounds=self.request.bounds,
                    state_bytes=stage.state_bytes.get(name, {}),
                    by_hand=False,
                )
        return None

    def cancel(self, reason: str) -> None:
        """Cancel the regrouping and its migrations."""
        self._give_up(reason)
        for component in self._coordinator.view.components.values():
            migration = component.migration
            if migration is not None and migration.startswith(f"{self.request.id}-"):
                self._coordinator.cancel(migration, reason)

    def check_not_replaced(self, request: MigrationRequested | LanesRequested) -> None:
        """Raise `MigrationError` if the regrouping replaces a request's component."""
        if getattr(request, "id", None) == self._own_migration:
            return
        if any(request.component in parts for parts in self._stages[0].parts.values()):
            raise MigrationError(
                f"Component {request.component!r} is being regrouped ({self.request.id}).",
                remedy="Wait for the end of the regrouping or cancel it, then plan again.",
                component=request.component,
            )

    def _begin_stage(self) -> None:
        """Change to the physical plan of the current stage."""
        stage = self._stages.pop(0)
        if not self._stages:
            self._coordinator.end_regrouping(self.request.id)
            self._coordinator.announce(
                events.ComponentsRegrouped,
                regrouping=self.request.id,
                components=self.request.components,
            )
        self._coordinator.regrouped(stage)

    def _give_up(self, reason: str) -> None:
        """Cancel the regrouping, whose plan cannot be started."""
        self._coordinator.end_regrouping(self.request.id, reason)
        self._coordinator.announce(
            events.RegroupingCancelled,
            regrouping=self.request.id,
            components=self.request.components,
            reason=reason,
        )


MAX_ENDS: Final = 10_000
"""Number of remembered ends: a controller may begin a migration every few seconds, for months."""


def forget_oldest(ends: MutableMapping[str, Any]) -> None:
    """Drop the oldest entries of a mapping that has more than `MAX_ENDS`."""
    while len(ends) > MAX_ENDS:
        del ends[next(iter(ends))]
