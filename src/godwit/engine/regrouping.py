"""Plan of a regrouping as one value: preview, text and execution.

Operators of one component that go to different components are separated first, which moves nothing,
and merged with others afterwards.  So each step either splits components in place or merges whole
components; these move to the one with most state.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
from godwit.engine import outcomes
from godwit.migration.regrouping import Regrouping, RegroupingStage, moves_to_come
from godwit.model.text import counted, human_bytes
from godwit.plan.compiled import UpstreamInput
from godwit.plan.grouping import regrouped

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import StateId
    from godwit.migration.coordinator import Coordinator
    from godwit.migration.state import ComponentView
    from godwit.migration.strategy import Bounds
    from godwit.plan.compiled import CompiledFlow


def regrouping_stages(
    before: PhysicalPlan,
    after: PhysicalPlan,
    *,
    states: Mapping[str, Sequence[Hashable]],
    state_bytes: Mapping[str, Mapping[int, int]],
) -> tuple[RegroupingStage, ...]:
    """Return the stages from one plan to another of the same operators.

    Empty if every component stays; the last stage has the plan `after`. `states`: operator → its
    states. `state_bytes`: operator → key group → bytes of state, as far as known.
    """
    plans = [_split_components(before, after), after]
    totals = {name: sum(sizes.values()) for name, sizes in state_bytes.items()}
    stages, current_plan = [], before
    for plan in plans:
        parts = _merged_components(current_plan, plan, totals)
        if parts:
            operators_of_components = {
                component.name: component.operators
                for plan_ in (current_plan, plan)
                for component in plan_.components
            }
            stages.append(
                RegroupingStage(
                    plan=plan,
                    parts=parts,
                    states={
                        component.name: tuple(
                            state for operator in component.operators for state in states[operator]
                        )
                        for component in plan.components
                        if component.name in parts
                    },
                    state_bytes={
                        name: _sum_by_key_group(
                            state_bytes.get(operator, {}) for operator in operators
                        )
                        for name, operators in operators_of_components.items()
                    },
                )
            )
        current_plan = plan
    return tuple(stages)


def _split_components(before: PhysicalPlan, after: PhysicalPlan) -> PhysicalPlan:
    """Return the plan `before` with components split where `after` separates their operators."""
    home = {name: c for c in after.components for name in c.operators}
    names_before = {c.name for c in before.components}
    components: list[ComponentPlan] = []
    for component in before.components:
        pieces: dict[str, list[str]] = {}
        for name in component.operators:
            pieces.setdefault(home[name].name, []).append(name)
        if len(pieces) == 1:
            components.append(component)
            continue
        for goal, names in pieces.items():
            complete = set(home[names[0]].operators) == set(names)
            is_free = goal not in names_before - {component.name}
            name = goal if complete and is_free else "+".join(names)
            components.append(ComponentPlan(name=name, operators=tuple(names)))
    return PhysicalPlan(components=tuple(components))


def _merged_components(
    before: PhysicalPlan, after: PhysicalPlan, size: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Return new component → components of `before` that it consists of, largest first.

    Components that stay are left out. `size`: operator → bytes of state.
    """
    component_of_operator = {
        name: component_ for component_ in before.components for name in component_.operators
    }
    unchanged = {
        (component_.name, frozenset(component_.operators)) for component_ in before.components
    }
    parts = {}
    for component in after.components:
        if (component.name, frozenset(component.operators)) in unchanged:
            continue
        components_before = {
            component_of_operator[name].name: component_of_operator[name]
            for name in component.operators
        }
        largest_first = sorted(
            components_before.values(),
            key=lambda component_: (
                -sum(size.get(operator, 0) for operator in component_.operators),
                component_.name,
            ),
        )
        parts[component.name] = tuple(component_.name for component_ in largest_first)
    return parts


def _sum_by_key_group(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return the sum of bytes per key group."""
    total: dict[int, int] = {}
    for part in parts:
        for key_group, size in part.items():
            total[key_group] = total.get(key_group, 0) + size
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingTogether:
    """One component, and the component it moves to before they are merged."""

    component: str
    key_groups: tuple[int, ...]  # key groups that move, ascending
    state_bytes: int  # of state to be warmed


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupingPlan:
    """A regrouping before it is carried out.

    Attributes
    ----------
    before, after
        The physical plans.
    levels, exchanges
        Levels of the flow, and operators that get their rows by an exchange, before and after.
    moving
        Components that move first.
    stages
        The steps.
    """

    before: PhysicalPlan
    after: PhysicalPlan
    levels: tuple[int, int]
    exchanges: tuple[int, int]
    moving: tuple[ComingTogether, ...]
    stages: tuple[RegroupingStage, ...]

    @property
    def components(self) -> dict[str, str]:
        """New component → its operators, as text."""
        new = {name for stage in self.stages for name in stage.parts}
        return {
            component.name: ", ".join(component.operators)
            for component in self.after.components
            if component.name in new
        }

    @property
    def changes(self) -> bool:
        """True if any component changes."""
        return bool(self.stages)

    def to_text(self) -> str:
        """Return a description of the plan."""
        if not self.changes:
            return "Every component stays as it is."
        lines = [f"{name}: {operators}" for name, operators in self.components.items()]
        lines.append(
            f"levels {self.levels[0]} → {self.levels[1]}, "
            f"exchanges {self.exchanges[0]} → {self.exchanges[1]}"
        )
        lines += [
            f"{moving.component} moves to the others: "
            f"{counted(len(moving.key_groups), 'key group')}, {human_bytes(moving.state_bytes)}"
            for moving in self.moving
            if moving.key_groups
        ]
        if not any(moving.key_groups for moving in self.moving):
            lines.append("no state moves")
        return "\n".join(lines)


def plan_regrouping(
    flow: CompiledFlow,
    components_after: Mapping[str, Iterable[str]],
    *,
    components: Mapping[str, ComponentView],
    state_bytes: Callable[[tuple[StateId, ...]], Mapping[int, int]],
) -> RegroupingPlan:
    """Return the plan for regrouping the components of a running flow.

    `flow`: under its present plan. `components_after`: component → its operators (see `regrouped`).
    `state_bytes`: function of states that returns key group → bytes. Raises `InvalidPlanError` if
    an operator does not exist, or operators of one component could not run together.
    """
    after = flow.with_plan(regrouped(flow, components_after))
    sizes = {operator.name: state_bytes(operator.states) for operator in flow.operators}
    stages = regrouping_stages(
        flow.physical_plan,
        after.physical_plan,
        states={operator.name: operator.states for operator in flow.operators},
        state_bytes=sizes,
    )
    bytes_of = {name: sizes for stage in stages for name, sizes in stage.state_bytes.items()}
    moving = [
        ComingTogether(
            component=name,
            key_groups=tuple(sorted(move.key_group for move in moves)),
            state_bytes=sum(bytes_of[name].get(move.key_group, 0) for move in moves),
        )
        for name, moves in moves_to_come(stages, components).items()
    ]
    return RegroupingPlan(
        before=flow.physical_plan,
        after=after.physical_plan,
        levels=(flow.levels, after.levels),
        exchanges=(_count_exchanges(flow), _count_exchanges(after)),
        moving=tuple(moving),
        stages=stages,
    )


def _count_exchanges(flow: CompiledFlow) -> int:
    """Return the number of operators' inputs that arrive by an exchange."""
    return sum(
        not isinstance(edge, UpstreamInput)
        or flow.component_of(edge.upstream) is not flow.component_of(edge.operator)
        for edge in flow.inputs
    )


def plan_from_present(
    flow: CompiledFlow,
    components: Mapping[str, Iterable[str]],
    *,
    coordinator: Coordinator,
    log: CommitLog,
) -> RegroupingPlan:
    """Plan how to regroup a run's present components into the given ones; changes nothing.

    `components`: name of a wished component → its operators. `coordinator`, `log`: the run's, for
    its present components and the sizes of their states.
    """
    with coordinator.locked():
        flow = flow.with_plan(coordinator.plan)
        present_components = coordinator.view.components

    def sizes(states: tuple[StateId, ...]) -> dict[int, int]:
        """Bytes of some states, by key group."""
        with log.lock:
            state_bytes_ = outcomes.state_bytes(states, log.chains)
        return {
            key_group: int(state_bytes_[key_group])
            for key_group in np.flatnonzero(state_bytes_).tolist()
        }

    return plan_regrouping(flow, components, components=present_components, state_bytes=sizes)


def to_regrouping(plan: RegroupingPlan, bounds: Bounds, reason: str = "") -> Regrouping:
    """Return a regrouping plan as a request to the coordinator."""
    return Regrouping(
        id=f"regroup-{uuid.uuid4().hex[:8]}",
        stages=plan.stages,
        components=plan.components,
        reason=reason,
        bounds=bounds,
    )
