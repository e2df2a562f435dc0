"""Grouping operators into components, as a physical plan says.

Operators of one component share an assignment: their state of a key group is in one place, moves,
waits and resumes together.  Where one of them feeds another, its rows stay in the lane: there is no
exchange between.  Each still keeps state of its own, so what comes out does not depend on the plan;
only what cannot run together is refused:

- operators whose keys have other types, since equal keys would then be of different key groups, and
  to have them together is what a component is for;
- an operator that feeds another one which is keyed by other columns, since its rows must be sent to
  other lanes then;
- operators with one of another component between them, since a component runs on one level, once an
  epoch.

Source: partition attributes and fusion, Madsen et al. (Enorm) §4.3 and §4.4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from godwit.model.errors import InvalidPlanError
from godwit.model.naming import listing
from godwit.plan.compiled import Component, UpstreamInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow

__all__ = ["grouped", "keeps_keys", "rows_stay"]


def keeps_keys(sender: KeyedOperator, given: UpstreamInput) -> bool:
    """Whether rows reach the operator of `given` with the keys that they had in `sender`, surely.

    A function of the user's may give rows other keys; then only looking at them tells.
    """
    return (sender.partials is not None or sender.consolidates) and not given.maps


def rows_stay(flow: CompiledFlow) -> tuple[UpstreamInput, ...]:
    """Return the inputs whose rows surely stay in their lane, if both operators share a component.

    Both are keyed by the same columns, and no function of the user's stands between.  Windows that
    the user wants consolidated apart are left so.
    """
    found = []
    for operator in flow.operators:
        for given in flow.fed_by(operator.name):
            receiver = flow.operator(given.operator)
            if given.others or receiver.consolidates:
                continue
            if keeps_keys(operator, given) and operator.keys.equals(receiver.keys):
                found.append(given)
    return tuple(found)


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
            sender = component_of[given.upstream]
            for receiver in {component_of[name] for name in (given.operator, *given.others)}:
                if receiver != sender:
                    fed_by[receiver].add(sender)
                else:
                    _insist_on_staying(flow, given, receiver)
    levels = _levels(fed_by)
    components = sorted(
        (_component(flow, component, levels[component.name]) for component in plan.components),
        key=lambda component: component.level,
    )
    return replace(flow, components=tuple(components))


def _component(flow: CompiledFlow, plan: ComponentPlan, level: int) -> Component:
    operators = tuple(o for o in flow.operators if o.name in plan.operators)
    types = {operator.name: tuple(operator.keys.types) for operator in operators}
    if len(set(types.values())) > 1:
        keys = "; ".join(f"{name} by {', '.join(map(str, t))}" for name, t in types.items())
        raise InvalidPlanError(
            f"Operators of component {plan.name!r} have keys of different types: {keys}.",
            remedy="Let only operators share a component whose keys have the same types.",
            component=plan.name,
        )
    return Component(name=plan.name, operators=operators, level=level)


def _insist_on_staying(flow: CompiledFlow, given: UpstreamInput, component: str) -> None:
    """Refuse to have an operator beside the one that feeds it, if its rows are of other lanes."""
    sender, receiver = flow.operator(given.upstream), flow.operator(given.operator)
    if given.others:
        raise InvalidPlanError(
            f"Operator {sender.name!r} of component {component!r} feeds {receiver.name!r}, whose "
            "windows are consolidated apart: its key groups may be in two places each.",
            remedy="Leave either in a component of its own, or leave consolidate= out.",
            component=component,
            operators=[sender.name, receiver.name],
        )
    if tuple(sender.keys.names) != given.keys:
        raise InvalidPlanError(
            f"Operator {sender.name!r} of component {component!r} feeds {receiver.name!r}, and is "
            f"keyed by {listing(sender.keys.names)}, not by {listing(given.keys)}: its "
            "rows belong to other lanes.",
            remedy="Let an operator share a component with the one that feeds it only where both "
            "are keyed by the same columns, in the same order.",
            component=component,
            operators=[sender.name, receiver.name],
        )


def _levels(fed_by: Mapping[str, set[str]]) -> dict[str, int]:
    """Component → its level: 1, or 1 more than the highest that feeds it."""
    levels: dict[str, int] = {}
    while len(levels) < len(fed_by):
        ready = [n for n in fed_by if n not in levels and fed_by[n] <= levels.keys()]
        if not ready:
            around = sorted(fed_by.keys() - levels.keys())
            raise InvalidPlanError(
                f"Components {listing(around)} feed one another.",
                remedy="A component runs on one level, once an epoch: let two operators share one "
                "only together with all that lie on the way from one to the other.",
                components=around,
            )
        for name in ready:
            levels[name] = 1 + max((levels[upstream] for upstream in fed_by[name]), default=0)
    return levels
