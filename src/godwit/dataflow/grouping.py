"""Grouping operators into components, as a physical plan says.

Operators of one component share an assignment: their state of a key group is in one place, moves,
waits and resumes together.  Each still gets its rows by itself and keeps state of its own, so what
comes out does not depend on the plan; only what cannot run together is refused:

- operators that feed one another, since a component runs on one level, once an epoch;
- operators whose keys have other types, since equal keys would then be of different key groups, and
  to have them together is what a component is for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from godwit.dataflow.compiled import Component, UpstreamInput
from godwit.dataflow.naming import listing
from godwit.model.errors import InvalidPlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.dataflow.compiled import CompiledFlow
    from godwit.state.physical_plan import ComponentPlan, PhysicalPlan

__all__ = ["grouped"]


def grouped(flow: CompiledFlow, plan: PhysicalPlan) -> CompiledFlow:
    """Return `flow` with the components of `plan`.

    Raises
    ------
    InvalidPlanError
        If operators of one component could not run together, or the plan is of other operators.
    """
    named = [name for component in plan.components for name in component.operators]
    there = [operator.name for operator in flow.operators]
    if sorted(named) != sorted(there):
        raise InvalidPlanError(
            f"The physical plan is of operators {listing(sorted(named))}, and flow {flow.name!r} "
            f"has {listing(sorted(there))}.",
            remedy="Name every operator of the flow once.",
            flow=flow.name,
        )
    component_of = {name: c.name for c in plan.components for name in c.operators}
    fed_by: dict[str, set[str]] = {component.name: set() for component in plan.components}
    for given in flow.inputs:
        if isinstance(given, UpstreamInput):
            fed_by[component_of[given.operator]].add(component_of[given.upstream])
    levels = _levels(fed_by)
    components = sorted(
        (_component(flow, component, levels[component.name]) for component in plan.components),
        key=lambda component: component.level,
    )
    inputs = {given.operator: given for given in flow.inputs}
    return replace(
        flow,
        components=tuple(components),
        inputs=tuple(inputs[o.name] for component in components for o in component.operators),
    )


def _component(flow: CompiledFlow, plan: ComponentPlan, level: int) -> Component:
    operators = tuple(flow.operator(name) for name in plan.operators)
    types = {operator.name: tuple(operator.schema.keys.types) for operator in operators}
    if len(set(types.values())) > 1:
        keys = "; ".join(f"{name} by {', '.join(map(str, t))}" for name, t in types.items())
        raise InvalidPlanError(
            f"Operators of component {plan.name!r} have keys of different types: {keys}.",
            remedy="Let only operators share a component whose keys have the same types.",
            component=plan.name,
        )
    return Component(name=plan.name, operators=operators, level=level)


def _levels(fed_by: Mapping[str, set[str]]) -> dict[str, int]:
    """Component → its level: 1, or 1 more than the highest that feeds it."""
    levels: dict[str, int] = {}
    while len(levels) < len(fed_by):
        ready = [n for n in fed_by if n not in levels and fed_by[n] <= levels.keys()]
        if not ready:
            around = sorted(fed_by.keys() - levels.keys())
            raise InvalidPlanError(
                f"Operators of components {listing(around)} feed one another.",
                remedy="A component runs on one level, once an epoch: let operators share one only "
                "where none of them feeds another, however many others lie between.",
                components=around,
            )
        for name in ready:
            levels[name] = 1 + max((levels[upstream] for upstream in fed_by[name]), default=0)
    return levels
