"""The plans on the way from one physical plan to another.

Where operators of one component go to different ones, they part first, which moves nothing, and
come together with others afterwards.  So each step is either: components part where they are, or
whole components come to one.  The latter go to the one that has most state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
from godwit.migration import RegroupingStage

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

__all__ = ["regrouping_stages"]


def regrouping_stages(
    before: PhysicalPlan,
    after: PhysicalPlan,
    *,
    states: Mapping[str, Sequence[Hashable]],  # operator → its states
    # operator → key group → bytes of state, as far as known
    state_bytes: Mapping[str, Mapping[int, int]],
) -> tuple[RegroupingStage, ...]:
    """Return the steps from one plan to another of the same operators.

    Returns: None if every component stays as it is; the last one leads to `after`.
    """
    plans = [_parted(before, after), after]
    stages, at = [], before
    for plan in plans:
        parts = _parts(at, plan, {name: sum(of.values()) for name, of in state_bytes.items()})
        if parts:
            both = {c.name: c.operators for p in (at, plan) for c in p.components}
            stages.append(
                RegroupingStage(
                    plan=plan,
                    parts=parts,
                    states={
                        c.name: tuple(s for o in c.operators for s in states[o])
                        for c in plan.components
                        if c.name in parts
                    },
                    state_bytes={
                        name: _added(state_bytes.get(o, {}) for o in operators)
                        for name, operators in both.items()
                    },
                )
            )
        at = plan
    return tuple(stages)


def _parted(before: PhysicalPlan, after: PhysicalPlan) -> PhysicalPlan:
    """Return `before` with the components apart whose operators go to different ones."""
    home = {name: c for c in after.components for name in c.operators}
    taken = {c.name for c in before.components}
    components: list[ComponentPlan] = []
    for component in before.components:
        pieces: dict[str, list[str]] = {}
        for name in component.operators:
            pieces.setdefault(home[name].name, []).append(name)
        if len(pieces) == 1:
            components.append(component)
            continue
        for goal, names in pieces.items():
            whole = set(home[names[0]].operators) == set(names)
            wanted = goal if whole and goal not in taken - {component.name} else "+".join(names)
            components.append(ComponentPlan(name=wanted, operators=tuple(names)))
    return PhysicalPlan(components=tuple(components))


def _parts(
    before: PhysicalPlan, after: PhysicalPlan, size: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    of_operator = {name: c for c in before.components for name in c.operators}
    same = {(c.name, frozenset(c.operators)) for c in before.components}
    parts = {}
    for component in after.components:
        if (component.name, frozenset(component.operators)) in same:
            continue
        homes = {of_operator[name].name: of_operator[name] for name in component.operators}
        largest_first = sorted(
            homes.values(), key=lambda c: (-sum(size.get(o, 0) for o in c.operators), c.name)
        )
        parts[component.name] = tuple(c.name for c in largest_first)
    return parts


def _added(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for part in parts:
        for key_group, size in part.items():
            total[key_group] = total.get(key_group, 0) + size
    return total
