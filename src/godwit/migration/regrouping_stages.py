"""One step of a regrouping, as a value, and what has to move for several of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from godwit.migration.placement import with_newcomers

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from godwit.model.assignment import Assignment, Move

__all__ = ["RegroupingStage", "Standing", "common_places", "moves_to_come"]


class Standing(Protocol):
    """A component, as far as it matters where it is (`godwit.migration.views.ComponentView`)."""

    @property
    def assignment(self) -> Assignment:
        """Where its key groups are."""

    @property
    def takes(self) -> frozenset[int] | None:
        """Where it takes rows, if it is one of two slots of every key group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stands:
    """A component that is yet to be made."""

    assignment: Assignment
    takes: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupingStage:
    """One step of a regrouping.

    Attributes
    ----------
    plan
        The physical plan that begins with it, as whoever asks knows it.
    parts
        Component of that plan → components before it that its operators are of; all take the places
        of the first of them (see `common_places`). Components that stay as they are are left out.
    states
        Component of `parts` → its states, by whatever names them.
    state_bytes
        Component, before and after → key group → bytes of state, as far as known.
    """

    plan: Any
    parts: Mapping[str, tuple[str, ...]]
    states: Mapping[str, tuple[Hashable, ...]]
    state_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


def common_places(parts: Sequence[str], components: Mapping[str, Standing]) -> Assignment:
    """Say where components go that come to one: to the places of the first of them.

    Of components that are slots of each other's key groups, to the place of the slot that takes
    rows: so what was balanced stays so, and what moves is gone with the windows that are open.

    Parameters
    ----------
    parts
        Names of the components.
    components
        Component → how it stands.
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
    """Return component → moves that bring it together with those that it shares one with.

    Parameters
    ----------
    stages
        Of a regrouping.
    components
        Component of today → how it stands.
    """
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
