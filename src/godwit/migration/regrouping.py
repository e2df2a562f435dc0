"""Components that are made anew while the stream runs: fusing, and letting go again.

A *regrouping* leads from one physical plan to another, between two epochs.  Operators that are to
share a component have to be in the same places first, so components come together by ordinary
migrations: copies are warmed, key groups switch, and no epoch waits.  When all of them rest in the
same places, the plan changes.  Operators that part stay where they are, and nothing moves.

Invariants:

- the plan changes only while no epoch runs, and while nothing of the components concerned moves,
  is suspended or waits; migrations that were in progress end first;
- when it changes, no key group changes its place: what a lane holds of an operator, it holds after;
- every regrouping ends: what is lost or withdrawn on the way is tried again a few times, and then
  the plan stays as it is, with the reason.

Source: the basic adaptation operation Migrate(O, C, C') and its compositions, Madsen et al. (Enorm)
§4.5.

One regrouping at a time is carried on, a step after every fact: whatever has happened, the one
question is what the stage in progress needs next, and nothing that it needs stops an epoch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from godwit.migration.component import TrackedComponent
from godwit.migration.inputs import ComponentsRegrouped, MigrationRequested
from godwit.migration.placement import with_newcomers
from godwit.migration.strategy import Bounds, Strategy
from godwit.model import events
from godwit.model.errors import GodwitError, MigrationError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence

    from godwit.migration.inputs import LanesRequested
    from godwit.migration.views import ComponentView, ProtocolView
    from godwit.model.assignment import Assignment, Move

__all__ = [
    "MAX_ENDS",
    "EndRegrouping",
    "OngoingRegrouping",
    "Regrouping",
    "RegroupingStage",
    "Regroupings",
    "Standing",
    "common_places",
    "forget_oldest",
    "merged",
    "moves_to_come",
]


class Standing(Protocol):
    """A component, as far as it matters where it is (`godwit.migration.views.ComponentView`)."""

    @property
    def assignment(self) -> Assignment:
        """Current places of its key groups."""

    @property
    def takes(self) -> frozenset[int] | None:
        """Key groups whose rows it takes, if it is one of two slots of every key group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stands:
    """A future component."""

    assignment: Assignment
    takes: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupingStage:
    """One step of a regrouping."""

    plan: Any  # the physical plan that begins with it, as whoever asks knows it
    # Component of that plan → components before it that its operators are of; all take the places
    # of the first of them (see `common_places`). Components that stay as they are are left out.
    parts: Mapping[str, tuple[str, ...]]
    # component of `parts` → its states, by whatever names them
    states: Mapping[str, tuple[Hashable, ...]]
    # component, before and after → key group → bytes of state, as far as known
    state_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


def common_places(parts: Sequence[str], components: Mapping[str, Standing]) -> Assignment:
    """Say where components go that come to one: to the places of the first of them.

    Of components that are slots of each other's key groups, to the place of the slot that takes
    rows: so what was balanced stays so, and what moves is gone with the windows that are open.
    """
    standing = [components[name] for name in parts]
    first = standing[0].assignment
    places = {g: c.assignment.executor(g) for c in standing for g in c.takes or ()}
    if not places:
        return first
    lanes = {
        executor: count
        for c in standing
        for executor, count in zip(c.assignment.executors, c.assignment.lanes, strict=True)
    }
    return with_newcomers(first, lanes).moved(places)


def moves_to_come(
    stages: Iterable[RegroupingStage], components: Mapping[str, Standing]
) -> dict[str, tuple[Move, ...]]:
    """Return component → moves that bring it together with those that it shares one with."""
    at: dict[str, Standing] = dict(components)
    moves: dict[str, tuple[Move, ...]] = {}
    for stage in stages:
        made: dict[str, Standing] = {}
        for name, parts in stage.parts.items():
            goal = common_places(parts, at)
            if len(parts) > 1:
                moves |= {part: at[part].assignment.moves_to(goal) for part in parts}
            made[name] = _Stands(assignment=goal)
        at |= made
    return {name: of for name, of in moves.items() if of}


_TRIES = 4
"""Migrations that bring one component to another's places before that is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouping:
    """A request to change the physical plan."""

    id: str  # the caller's name for it
    # Plans on the way, in order; the last one is what is wanted (`RegroupingStage`). None if
    # every component is as it is to be.
    stages: tuple[RegroupingStage, ...]
    # component that is made anew → its operators, for people
    components: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""  # why, where nobody asked for it
    # limits of the migrations that bring components together
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRegrouping:
    """End of a regrouping."""

    id: str
    done: bool  # whether the next epoch runs under its plan
    reason: str = ""  # why not; empty if it does


@dataclass(slots=True, kw_only=True)
class OngoingRegrouping:
    """A regrouping in progress, and its next need."""

    request: Regrouping  # what was asked for
    stages: list[RegroupingStage]  # those that are still to come, the first of them in progress
    # component → migrations that were asked for to bring it to its place
    tries: Counter[str] = field(default_factory=Counter)

    @property
    def stage(self) -> RegroupingStage:
        """The one in progress."""
        return self.stages[0]

    @property
    def concerned(self) -> frozenset[str]:
        """Components that are about to be others."""
        return frozenset(name for parts in self.stage.parts.values() for name in parts)

    def next_migration(self, view: ProtocolView) -> MigrationRequested | None:
        """Return a migration that brings a component together with the one it goes to.

        Raises `MigrationError` if that was tried often enough.
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
        """Return true if the plan of the current stage may begin now."""
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

    Raises `MigrationError` if one does not exist, moves or waits, or parts of one are in different
    places.
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
    """Return true if nothing of a component moves, is suspended or waits."""
    return not (
        component.migration or component.transfers or component.suspended or component.waiting
    )


def same_places(one: Assignment, other: Assignment) -> bool:
    """Return true if every key group has the same lane of the same executor."""
    owners, others = (np.array(a.executors)[a.executor_of] for a in (one, other))
    return np.array_equal(owners, others) and np.array_equal(one.lane_of, other.lane_of)


class RegroupingPorts(Protocol):
    """The part of the conductor that a regrouping needs."""

    @property
    def view(self) -> ProtocolView:
        """See `Conductor.view`."""

    def announce(self, kind: type[events.Event], **values: Any) -> None:
        """See `Conductor.announce`."""

    def migrate(self, request: MigrationRequested) -> None:
        """See `Conductor.migrate`."""

    def cancel(self, migration: str, reason: str) -> None:
        """See `Conductor.cancel`."""

    def regrouped(self, fact: ComponentsRegrouped) -> None:
        """See `Conductor.regrouped`."""


class Regroupings:
    """The regroupings of one run."""

    def __init__(self, conductor: RegroupingPorts, plan: Any) -> None:
        self._conductor = conductor
        self.plan = plan  # the physical plan of the epoch that runs, or of the next one
        self.ended: dict[str, EndRegrouping] = {}  # regrouping → how it ended
        self._ongoing: OngoingRegrouping | None = None
        self._own = ""

    def begin(self, request: Regrouping) -> None:
        """Begin a regrouping.

        Raises `MigrationError` if one is in progress.
        """
        if self._ongoing is not None:
            raise MigrationError(
                f"Regrouping {request.id!r} is refused: regrouping "
                f"{self._ongoing.request.id!r} is under way.",
                remedy="Wait for its end or cancel it, then look at what it left.",
                regrouping=self._ongoing.request.id,
            )
        ongoing = OngoingRegrouping(request=request, stages=list(request.stages))
        if not ongoing.stages:
            self._note_end(request.id, ongoing.end())
            return
        moves = moves_to_come(request.stages, self._conductor.view.components)
        sizes = {name: of for stage in request.stages for name, of in stage.state_bytes.items()}
        self._conductor.announce(
            events.RegroupingStarted,
            regrouping=request.id,
            components=request.components,
            reason=request.reason,
            moves=sum(map(len, moves.values())),
            state_bytes=sum(
                sizes.get(name, {}).get(move.key_group, 0) for name in moves for move in moves[name]
            ),
        )
        self._ongoing = ongoing
        self.go_on()

    def go_on(self) -> None:
        """Do what the regrouping in progress needs next, if anything."""
        while (ongoing := self._ongoing) is not None and self._conductor.view.executors:
            if ongoing.is_ready(self._conductor.view):
                self._begin_stage(ongoing)
                continue
            try:
                request = ongoing.next_migration(self._conductor.view)
                if request is None:
                    return
                self._own = request.id
                self._conductor.migrate(request)
            except GodwitError as error:
                self._end(ongoing, error.message)

    def cancel(self, asked: str, reason: str) -> bool:
        """End a regrouping, if that is the name of the one in progress."""
        if self._ongoing is None or self._ongoing.request.id != asked:
            return False
        self._end(self._ongoing, reason)
        for component in self._conductor.view.components.values():
            if component.migration is not None and component.migration.startswith(f"{asked}-"):
                self._conductor.cancel(component.migration, reason)
        return True

    def insist_on_staying(self, request: MigrationRequested | LanesRequested) -> None:
        """Refuse what somebody else asks of components that are about to be others.

        Raises `MigrationError`, which says what regrouping is in the way.
        """
        ongoing = self._ongoing
        own = getattr(request, "id", None) == self._own
        if ongoing is not None and request.component in ongoing.concerned and not own:
            raise MigrationError(
                f"Component {request.component!r} is being regrouped ({ongoing.request.id}).",
                remedy="Wait for the end of the regrouping or cancel it, then plan again.",
                component=request.component,
            )

    def _note_end(self, regrouping: str, end: EndRegrouping) -> None:
        self.ended[regrouping] = end
        forget_oldest(self.ended)

    def _begin_stage(self, ongoing: OngoingRegrouping) -> None:
        stage = ongoing.stages.pop(0)
        self.plan = stage.plan
        if not ongoing.stages:
            self._ongoing = None
            self._note_end(ongoing.request.id, ongoing.end())
            self._conductor.announce(
                events.ComponentsRegrouped,
                regrouping=ongoing.request.id,
                components=ongoing.request.components,
            )
        self._conductor.regrouped(
            ComponentsRegrouped(
                parts=stage.parts,
                states=stage.states,
                state_bytes={name: stage.state_bytes.get(name, {}) for name in stage.parts},
            )
        )

    def _end(self, ongoing: OngoingRegrouping, reason: str) -> None:
        self._ongoing = None
        self._note_end(ongoing.request.id, ongoing.end(reason))
        self._conductor.announce(
            events.RegroupingCancelled,
            regrouping=ongoing.request.id,
            components=ongoing.request.components,
            reason=reason,
        )


MAX_ENDS: Final = 10_000
"""A controller may begin a migration every few seconds, for months."""


def forget_oldest(ends: MutableMapping[str, Any]) -> None:
    """Keep the last `MAX_ENDS` entries, in the order in which they came."""
    while len(ends) > MAX_ENDS:
        del ends[next(iter(ends))]
