"""What calls on a keyed stream add to the flow: what they were given, checked, as a node.

Mistakes that need no knowledge of columns are found here, in the line that makes them; the others
when the flow is compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.api.call_checks import (
    check_formerly,
    check_function,
    check_late,
    check_process,
    check_results,
    check_state_classes,
    check_timers,
    describe,
)
from godwit.api.join_checks import check_how, check_other, check_suffix, interval_of
from godwit.api.rebinding import warn_of_rebinding
from godwit.columns.types import to_schema
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import (
    check_column_names,
    default_name,
    function_name,
    listing,
    results_name,
    type_name,
)
from godwit.model.time_lengths import microseconds
from godwit.operators.states.declared import check_states
from godwit.operators.states.of_key import States
from godwit.plan.nodes import ComputeNode, JoinNode, ProcessNode, sources_of
from godwit.plan.output_time import check_output_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.api.keyed_stream import KeyedStream
    from godwit.columns.types import SchemaLike
    from godwit.model.time_lengths import Duration
    from godwit.operators.aggregates import Aggregate
    from godwit.operators.firing import TimerClock
    from godwit.operators.joins.sides import How
    from godwit.operators.states.declared import Declared
    from godwit.plan.nodes import Codec

__all__ = ["compute_node", "join_newest_node", "join_node", "process_node"]


def compute_node(
    keyed: KeyedStream,
    aggregates: Mapping[str, Aggregate],
    *,
    name: str | None,
    output: str,
    formerly: str | None,
) -> ComputeNode:
    """Make the node of `KeyedStream.compute`."""
    where = f"compute by {listing(keyed.keys)} on {describe(keyed.node)}"
    _check_not_results(where, name=name, output=output, formerly=formerly)
    if not aggregates:
        raise InvalidFlowError(
            f"{where} has no aggregates.",
            remedy="Name a result, as in compute(flights=gw.count()).",
        )
    named, name = name is not None, _operator_name(keyed, name, results_name(aggregates))
    check_formerly(name, formerly)
    check_results(name, keyed.keys, aggregates, output)
    check_column_names([*keyed.keys, *aggregates], f"Operator {name!r}")
    return ComputeNode(
        name=name,
        upstream=keyed.node,
        keys=keyed.keys,
        aggregates=dict(aggregates),
        complete=output == "complete",
        formerly=formerly or "",
        named=named,
    )


def process_node(
    keyed: KeyedStream,
    function: Callable[..., Any],
    *,
    state: Any,
    states: Mapping[str, Declared] | None,
    output: SchemaLike | None,
    name: str | None,
    codec: Codec,
    state_classes: Mapping[str, type] | Sequence[type],
    state_upgrade: Callable[[Any], Any] | None,
    timers: TimerClock | None,
    on_timer: Callable[..., Any] | None,
    ttl: Duration | None,
    event_time: str | None,
    slack: Duration | None,
    formerly: str | None,
) -> ProcessNode:
    """Make the node of `KeyedStream.process`."""
    where = f"process by {listing(keyed.keys)} on {describe(keyed.node)}"
    check_function(function, where, "process(clear_market, state=..., output=...)")
    action = function_name(function)
    named = name is not None
    name = _operator_name(keyed, name, "process" if action == "<lambda>" else action)
    check_formerly(name, formerly)
    if states is not None:
        states = check_states(name, states, state=state, state_upgrade=state_upgrade, ttl=ttl)
    check_process(name, States if states else state, output, codec, state_upgrade)
    assert output is not None, "checked"
    check_state_classes(name, state_classes)
    check_timers(name, timers, on_timer)
    for called in (function, *(() if on_timer is None else (on_timer,))):
        warn_of_rebinding(name, called, stacklevel=4)  # of the line that calls process
    lives = f"The time-to-live of operator {name!r}"
    columns = to_schema(output, where=f"The output of operator {name!r}")
    column, slack_us = check_output_time(name, columns, event_time, slack)
    return ProcessNode(
        name=name,
        upstream=keyed.node,
        keys=keyed.keys,
        function=function,
        state_type=state,
        states=states or {},
        output=columns,
        event_time=column,
        slack_us=slack_us,
        codec=codec,
        state_classes=state_classes,
        state_upgrade=state_upgrade,
        timers=timers,
        on_timer=on_timer,
        ttl_us=None if ttl is None else microseconds(ttl, lives, least=1),
        formerly=formerly or "",
        named=named,
    )


def join_node(
    keyed: KeyedStream, other: KeyedStream, *, between: tuple[Duration, Duration], **options: Any
) -> JoinNode:
    """Make the node of `KeyedStream.join`."""
    return _joined(
        keyed,
        other,
        "join",
        ("inner", "left", "right", "full"),
        lambda where: {"between_us": interval_of(between, where)},
        **options,
    )


def join_newest_node(
    keyed: KeyedStream, other: KeyedStream, *, within: Duration | None, **options: Any
) -> JoinNode:
    """Make the node of `KeyedStream.join_newest`."""
    return _joined(
        keyed,
        other,
        "join_newest",
        ("left", "inner"),
        lambda where: {
            "within_us": None
            if within is None
            else microseconds(within, f"within= of {where}", least=0)
        },
        **options,
    )


def _joined(
    keyed: KeyedStream,
    other: KeyedStream,
    action: str,
    known: Sequence[How],
    reach_of: Callable[[str], dict[str, Any]],
    *,
    how: How,
    suffix: str | None,
    late: Any,
    name: str | None,
    formerly: str | None,
) -> JoinNode:
    where = f"{action} by {listing(keyed.keys)} on {describe(keyed.node)}"
    check_other(keyed, other, where)
    check_how(how, known, where)
    reach = reach_of(where)
    check_suffix(suffix, where)
    check_late(late, where)
    named = name is not None
    sources = "_and_".join(source.name for source in sources_of(other.node))
    name = _operator_name(keyed, name, f"{action}_{sources}")
    check_formerly(name, formerly)
    return JoinNode(
        name=name,
        upstream=keyed.node,
        keys=keyed.keys,
        right=other.node,
        right_keys=other.keys,
        how=how,
        suffix=suffix,
        late=late,
        formerly=formerly or "",
        named=named,
        **reach,
    )


def _check_not_results(where: str, **options: object) -> None:
    """Refuse aggregates in place of options."""
    for option, value in options.items():
        if value is not None and not isinstance(value, str):
            given = "an aggregate" if hasattr(value, "bind") else type_name(value)
            raise InvalidFlowError(
                f"{where} was given {given} for {option}=.",
                remedy=f"{option}= is an option of compute and takes text; a result cannot be "
                f"called {option!r}, so choose another name for it.",
            )


def _operator_name(keyed: KeyedStream, name: str | None, action: str) -> str:
    if name is not None:
        return name
    return default_name([source.name for source in sources_of(keyed.node)], action, keyed.keys)
