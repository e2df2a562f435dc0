"""Operators that may share a component, and physical plans asked for by users and policies.

A regrouping names the wanted components and their operators; the other components keep their
remaining operators.  `CompiledFlow.with_plan` refuses what cannot
run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
from godwit.model.errors import InvalidFlowError, InvalidPlanError
from godwit.model.naming import check_name, did_you_mean, listing, type_name
from godwit.operators.hot_keys import PART

if TYPE_CHECKING:
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow, UpstreamInput

_EXAMPLE = 'as in components={"trips": ["by_plane", "by_route"]}'


def keeps_keys(sender: KeyedOperator, edge: UpstreamInput) -> bool:
    """Return whether rows that `sender` emits certainly have the same keys when `edge` reads them.

    A user's function may give rows other keys, and then nothing is certain.
    """
    return (sender.mergeable or sender.consolidates) and not edge.maps


def in_lane_inputs(flow: CompiledFlow) -> tuple[UpstreamInput, ...]:
    """Return the inputs whose rows stay in the lane if sender and receiver are fused.

    The same columns decide the key groups of both (`KeyedOperator.placed_by`), and no user's
    function stands between. Windows that the user wants consolidated apart are left out.
    """
    inputs = []
    for operator in flow.operators:
        for edge in flow.inputs_fed_by(operator.name):
            receiver = flow.operator(edge.operator)
            if edge.others or receiver.consolidates:
                continue
            if keeps_keys(operator, edge) and _placed_alike(operator, receiver, edge):
                inputs.append(edge)
    return tuple(inputs)


def _placed_alike(sender: KeyedOperator, receiver: KeyedOperator, edge: UpstreamInput) -> bool:
    """Return whether the same columns decide the key groups of two operators' rows."""
    if PART in sender.hash_columns.names or PART in receiver.hash_columns.names:
        return False
    same = tuple(sender.placed_by.names) == receiver.placed_in(edge.keys)
    return same and sender.placed_by.types == receiver.placed_by.types


def checked_components(components: Any) -> dict[str, tuple[str, ...]]:
    """Return a user's components as plain values, component → operators; raise if not valid."""
    if not isinstance(components, Mapping):
        raise InvalidPlanError(
            f"Components were given as a value of type {type_name(components)}.",
            remedy=f"Give component → names of operators, {_EXAMPLE}.",
        )
    checked: dict[str, tuple[str, ...]] = {}
    for name, operators in components.items():
        names = (
            () if isinstance(operators, str) or not isinstance(operators, Iterable) else operators
        )
        listed = tuple(names)
        if not listed or not all(isinstance(operator, str) for operator in listed):
            raise InvalidPlanError(
                f"Component {name!r} was given as {operators!r}.",
                remedy=f"Give a name, and the names of at least one operator, {_EXAMPLE}.",
                component=name,
            )
        try:
            check_name("component", name)
        except InvalidFlowError as error:
            raise InvalidPlanError(error.message, remedy=error.remedy, component=name) from None
        checked[str(name)] = tuple(map(str, listed))  # NumPy's text is a type of its own
    return checked


def regrouped(flow: CompiledFlow, components: Mapping[str, Iterable[str]]) -> PhysicalPlan:
    """Return the physical plan with some components replaced by `components`.

    `components`: component → operators. A component that loses operators keeps its name, unless one
    operator is left, whose name it then takes. Raises `InvalidPlanError` if an operator does not
    exist or is named twice, or two components would have one name.
    """
    changed = {name: tuple(operators) for name, operators in components.items()}
    regrouped_operators = [operator for operators in changed.values() for operator in operators]
    operator_names = [operator.name for operator in flow.operators]
    for name in regrouped_operators:
        if name not in operator_names:
            raise InvalidPlanError(
                f"There is no operator {name!r} to make a component of.",
                remedy=f"{did_you_mean(name, operator_names)}Operators are "
                f"{listing(operator_names)}.",
                flow=flow.name,
                operator=name,
            )
        if regrouped_operators.count(name) > 1:
            raise InvalidPlanError(
                f"Operator {name!r} was given to components more than once.",
                remedy="Name it in one of them: an operator is in exactly one component.",
                flow=flow.name,
                operator=name,
            )
    plans = [ComponentPlan(name=name, operators=members) for name, members in changed.items()]
    for component in flow.physical_plan.components:
        remaining = tuple(name for name in component.operators if name not in regrouped_operators)
        if remaining:
            name = (
                remaining[0]
                if len(remaining) == 1 and len(component.operators) > 1
                else component.name
            )
            plans.append(ComponentPlan(name=name, operators=remaining))
    _check_names(flow, plans)
    return PhysicalPlan(components=tuple(plans))


def _check_names(flow: CompiledFlow, components: list[ComponentPlan]) -> None:
    """Raise if two components have one name, or one has the name of another's operator."""
    names = [component.name for component in components]
    operators = {operator.name for operator in flow.operators}
    for component in components:
        if names.count(component.name) > 1:
            raise InvalidPlanError(
                f"Two components would have the name {component.name!r}.",
                remedy="Give the components that you name other names, or name the operators of "
                "both.",
                flow=flow.name,
                component=component.name,
            )
        if component.name in operators and component.name not in component.operators:
            raise InvalidPlanError(
                f"Component {component.name!r} would have the name of an operator that it "
                "does not contain.",
                remedy=f"Choose another name, or add operator {component.name!r}.",
                flow=flow.name,
                component=component.name,
            )
