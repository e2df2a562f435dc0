"""What operators do, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model.naming import function_name
from godwit.model.time_lengths import spelled
from godwit.operators.aggregates.conditional import Conditional
from godwit.operators.states.declared import MapState
from godwit.plan.nodes import ComputeNode, DropDuplicatesNode, JoinNode, ProcessNode, WindowedNode

if TYPE_CHECKING:
    from godwit.operators.aggregates import Aggregate
    from godwit.operators.states.declared import Declared
    from godwit.plan.nodes import OperatorNode

__all__ = ["action_of"]


def action_of(node: OperatorNode) -> str:
    """Say what an operator does."""
    if isinstance(node, ProcessNode) and node.states:
        states = "states" if len(node.states) > 1 else "state"
        named = ", ".join(f"{name} ({_declared(of)})" for name, of in node.states.items())
        return f"process with {function_name(node.function)}, {states} {named}"
    if isinstance(node, ProcessNode):
        return (
            f"process with {function_name(node.function)}, state {function_name(node.state_type)}"
        )
    windows = ""
    if isinstance(node, WindowedNode):
        windows = f" per window: {', '.join(map(str, node.windows))}"
        if node.function is not None:
            return f"process with {function_name(node.function)}{windows}"
    if isinstance(node, DropDuplicatesNode):
        within = "" if node.within_us is None else f" within {spelled(node.within_us)}"
        return f"drop duplicates by {', '.join(node.keys)}{within}"
    if isinstance(node, JoinNode):
        return _join_in_words(node)
    if isinstance(node, ComputeNode) and node.windows is not None:
        windows = f" per window: {node.windows}"
    results = (
        f"{result} = {_aggregate_text(aggregate)}" for result, aggregate in node.aggregates.items()
    )
    return f"compute {', '.join(results)}{windows}"


def _aggregate_text(aggregate: Aggregate) -> str:
    """Say what an aggregate computes, and of which rows."""
    if isinstance(aggregate, Conditional):
        return f"{_aggregate_text(aggregate.aggregate)} where {aggregate.where}"
    name = getattr(aggregate, "name", type(aggregate).__name__)
    return f"{name}({', '.join(aggregate.columns)})"


def _declared(state: Declared) -> str:
    """Say what a named state is."""
    kind = type(state).__name__.removesuffix("State").lower()
    of = _type_text(state.of)
    return (
        f"{kind} of {of}"
        if not isinstance(state, MapState)
        else (f"map of {of} by {_type_text(state.by)}")
    )


def _type_text(of: object) -> str:
    return of.__name__ if isinstance(of, type) and not hasattr(of, "__origin__") else str(of)


def _join_in_words(node: JoinNode) -> str:
    """Say what a join does."""
    if node.between_us is None:
        old = "" if node.within_us is None else f", at most {spelled(node.within_us)} old"
        return f"join ({node.how}) with the newest row of the right{old}"
    earliest, latest = (_signed(moment) for moment in node.between_us)
    return f"join ({node.how}) with rows of the right from {earliest} to {latest} later"


def _signed(length_us: int) -> str:
    return f"-{spelled(-length_us)}" if length_us < 0 else spelled(length_us)
