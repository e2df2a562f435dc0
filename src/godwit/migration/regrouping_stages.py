"""One step of a regrouping, as a value, and what has to move for several of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from godwit.model.assignment import Assignment, Move

__all__ = ["RegroupingStage", "moves_to_come"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupingStage:
    """One step of a regrouping.

    Attributes
    ----------
    plan
        The physical plan that begins with it, as whoever asks knows it.
    parts
        Component of that plan → components before it that its operators are of; all take the places
        of the first of them. Components that stay as they are are left out.
    states
        Component of `parts` → its states, by whatever names them.
    state_bytes
        Component, before and after → key group → bytes of state, as far as known.
    """

    plan: Any
    parts: Mapping[str, tuple[str, ...]]
    states: Mapping[str, tuple[Hashable, ...]]
    state_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


def moves_to_come(
    stages: Iterable[RegroupingStage], assignments: Mapping[str, Assignment]
) -> dict[str, tuple[Move, ...]]:
    """Return component → moves that bring it to the places of the one it goes to.

    Parameters
    ----------
    stages
        Of a regrouping.
    assignments
        Component of today → its assignment.
    """
    at, moves = dict(assignments), {}
    for stage in stages:
        for first, *others in stage.parts.values():
            for name in others:
                moves[name] = at[name].moves_to(at[first])
        at |= {name: at[parts[0]] for name, parts in stage.parts.items()}
    return moves
