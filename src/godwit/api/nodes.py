"""What calls on streams add to the flow: their arguments, checked, as nodes of the plan.

Mistakes that need no knowledge of columns are found here, in the line that makes them; the others
when the flow is compiled.
"""

from __future__ import annotations

import ast
import datetime as dt
import functools
import inspect
import textwrap
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from godwit.columns.types import to_schema
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import (
    check_column_names,
    default_name,
    did_you_mean,
    function_name,
    is_one_of,
    listing,
    results_name,
    type_name,
)
from godwit.model.time_lengths import microseconds, signed_microseconds
from godwit.operators.aggregates import builtin
from godwit.operators.states.declared import ListState, MapState, ValueState, check_states
from godwit.operators.states.of_key import States
from godwit.plan.nodes import (
    ComputeNode,
    JoinNode,
    ProcessNode,
    SourceNode,
    branches_of,
    sources_of,
)
from godwit.plan.output_time import check_output_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from godwit.columns.types import SchemaLike
    from godwit.model.time_lengths import Duration
    from godwit.operators.aggregates import Aggregate
    from godwit.operators.firing import TimerClock
    from godwit.operators.joins.sides import How
    from godwit.operators.states.declared import Declared
    from godwit.plan.nodes import Branch, Codec, OperatorNode, StreamNode

__all__ = [
    "OwningFlow",
    "check_aggregate",
    "check_formerly",
    "check_function",
    "check_keys",
    "check_late",
    "compute_node",
    "describe",
    "join_newest_node",
    "join_node",
    "process_node",
]


class OwningFlow(Protocol):
    """The flow that streams belong to, as far as they know it."""

    name: str

    def _add_operator(self, node: OperatorNode) -> None: ...


class Keyed(Protocol):
    """A keyed stream, as far as its nodes need it."""

    @property
    def flow(self) -> OwningFlow: ...

    @property
    def node(self) -> StreamNode: ...

    @property
    def keys(self) -> tuple[str, ...]: ...


def compute_node(
    keyed: Keyed,
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
    _check_results(name, keyed.keys, aggregates, output)
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
    keyed: Keyed,
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
    _check_process(name, States if states else state, output, codec, state_upgrade)
    assert output is not None, "checked"
    _check_state_classes(name, state_classes)
    _check_timers(name, timers, on_timer)
    for called in (function, *(() if on_timer is None else (on_timer,))):
        _warn_of_rebinding(name, called, stacklevel=4)  # of the line that calls process
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
    keyed: Keyed, other: Keyed, *, between: tuple[Duration, Duration], **options: Any
) -> JoinNode:
    """Make the node of `KeyedStream.join`."""
    return _joined(
        keyed,
        other,
        "join",
        ("inner", "left", "right", "full"),
        lambda where: {"between_us": _interval_of(between, where)},
        **options,
    )


def join_newest_node(
    keyed: Keyed, other: Keyed, *, within: Duration | None, **options: Any
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
    keyed: Keyed,
    other: Keyed,
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
    _check_other(keyed, other, where)
    _check_how(how, known, where)
    reach = reach_of(where)
    _check_suffix(suffix, where)
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


def _operator_name(keyed: Keyed, name: str | None, action: str) -> str:
    if name is not None:
        return name
    return default_name([source.name for source in sources_of(keyed.node)], action, keyed.keys)


def describe(node: StreamNode) -> str:
    """Say what a stream is, for messages."""
    parts = [_described(branch) for branch in branches_of(node)]
    return parts[0] if len(parts) == 1 else f"the union of {' and '.join(parts)}"


def _described(branch: Branch) -> str:
    kind = "source" if isinstance(branch.feed, SourceNode) else "operator"
    number = len(branch.maps)
    after = f" after {number} map{'s' if number > 1 else ''}" if number else ""
    return f"{kind} {branch.feed.name!r}{after}"


def check_function(function: object, where: str, example: str) -> None:
    """Refuse what cannot be called."""
    if not callable(function):
        raise InvalidFlowError(
            f"{where} was given a value of type {type_name(function)}, which cannot be called.",
            remedy=f"Give it a function, as in {example}.",
        )


def check_keys(columns: tuple[object, ...], where: str, example: str) -> tuple[str, ...]:
    """Refuse columns that make no key: none, one that is not text, or one named twice."""
    if not columns:
        raise InvalidFlowError(
            f"{where} names no column.", remedy=f"Name at least one, as in {example}."
        )
    keys: list[str] = []
    for column in columns:
        if not isinstance(column, str):
            raise InvalidFlowError(
                f"{where} was given a value of type {type_name(column)}.",
                remedy=f"Name columns by text, as in {example}; compute a key that is no column "
                "yet in a map before.",
            )
        if column in keys:
            raise InvalidFlowError(
                f"{where} names column {column!r} twice.",
                remedy="Name each column once.",
                column=column,
            )
        keys.append(column)
    return tuple(keys)


def check_formerly(name: str, formerly: object, kind: str = "Operator") -> None:
    """Refuse a former name that is none, or that is the name."""
    if formerly is not None and (not isinstance(formerly, str) or formerly in ("", name)):
        raise InvalidFlowError(
            f"{kind} {name!r} has formerly={formerly!r}.",
            remedy="Give the other name that it has in the checkpoint, or leave formerly= out.",
            operator=name,
        )


def check_late(late: object, where: str) -> None:
    """Refuse what is no sink for the rows that are left out."""
    if late is not None and (
        isinstance(late, type)
        or not (callable(getattr(late, "open", None)) and callable(getattr(late, "deliver", 0)))
    ):
        raise InvalidFlowError(
            f"{where} was given {type_name(late)} for late=, which is not a sink.",
            remedy='Give an instance of a sink, such as late=gw.sinks.parquet("late/").',
        )


def check_aggregate(aggregate: Any, result: str, operator: str) -> None:
    """Refuse what is no aggregate, or is not told its columns by their names."""
    # Asked of the type, since a column of Spark's has an attribute of any name.
    if not callable(getattr(type(aggregate), "bind", None)):
        if result in ("name", "formerly", "output", "late") and isinstance(aggregate, str):
            raise InvalidFlowError(
                f"Operator {operator!r} was given {result}={aggregate!r} where windows take "
                "results alone.",
                remedy=f"Say it before, as in window(..., {result}={aggregate!r}).compute(...).",
                operator=operator,
                column=result,
            )
        raise InvalidFlowError(
            f"Operator {operator!r} has a result {result!r} that is no aggregate, but "
            f"{_spark_function(aggregate) or type_name(aggregate)}.",
            remedy=f'Give an aggregate of Godwit\'s, as in compute({result}=gw.sum("column")); '
            f"there are {', '.join(f'gw.{name}' for name in builtin.__all__)}.",
            operator=operator,
            column=result,
        )
    for column in aggregate.columns:
        if not isinstance(column, str):
            raise InvalidFlowError(
                f"Operator {operator!r}, result {result!r}, was given a value of type "
                f"{type_name(column)} in place of a column's name.",
                remedy=f'Name columns by text, as in compute({result}=gw.sum("column")).',
                operator=operator,
                column=result,
            )


def _check_timers(operator: str, timers: object, on_timer: object) -> None:
    """Refuse timers without a clock or without a function."""
    if timers is not None and not is_one_of(timers, ("event", "processing")):
        raise InvalidFlowError(
            f"Operator {operator!r} has timers={timers!r}.",
            remedy='Give "event" (they go by the watermark) or "processing" (by the clock).',
            operator=operator,
        )
    if (timers is None) != (on_timer is None):
        raise InvalidFlowError(
            f"Operator {operator!r} has timers={timers!r} and on_timer={on_timer!r}.",
            remedy='Give both, as in timers="event", on_timer=remind, or neither.',
            operator=operator,
        )


def _spark_function(value: object) -> str:
    """Say what a column of Spark's is, such as ``F.sum("v")``; nothing of other values."""
    if not type(value).__module__.startswith("pyspark.sql"):
        return ""
    return f"{value!r}, which Spark would compute on a DataFrame"


def _check_process(
    name: str, state: object, output: object, codec: object, state_upgrade: object
) -> None:
    """Refuse a function per key without a type of state or columns of output."""
    if isinstance(state, ValueState | ListState | MapState):
        raise InvalidFlowError(
            f"Operator {name!r} has state={state!r}, which declares one of several states.",
            remedy="Give it a name, as in states={"
            f'"seen": gw.{type(state).__name__}(...)}}, or give the type alone, as in state=dict.',
            operator=name,
        )
    if not callable(state):
        raise InvalidFlowError(
            f"Operator {name!r} has no type of state, but {state!r}."
            if state is not None
            else f"Operator {name!r} has no type of state.",
            remedy="Give a class that can be made without arguments, as in state=OrderBook or "
            "state=dict.",
            operator=name,
        )
    if output is None:
        raise InvalidFlowError(
            f"Operator {name!r} has no output columns.",
            remedy='Say what the function emits, as in output="symbol string, price double".',
            operator=name,
        )
    if not is_one_of(codec, ("msgpack", "pickle")):
        raise InvalidFlowError(
            f"Operator {name!r} has codec={codec!r}.",
            remedy=f"{did_you_mean(str(codec), ['msgpack', 'pickle'])}Give 'msgpack' or, for "
            "state that it cannot hold, 'pickle'.",
            operator=name,
        )
    if state_upgrade is not None and not callable(state_upgrade):
        raise InvalidFlowError(
            f"Operator {name!r} was given state_upgrade={state_upgrade!r}, which cannot be called.",
            remedy="Give a function that gets the old state as plain values and returns one "
            "of today's.",
            operator=name,
        )


def _check_state_classes(name: str, given: object) -> None:
    """Refuse what names no classes that state may hold."""
    classes = [*given.values()] if isinstance(given, Mapping) else given
    if not isinstance(classes, list | tuple | set | frozenset) or not all(
        isinstance(one, type) for one in classes
    ):
        raise InvalidFlowError(
            f"Operator {name!r} has state_classes={given!r}.",
            remedy="Give classes in a list, as in state_classes=[Order, Trade], or a dict of names "
            "and classes.",
            operator=name,
        )


def _check_results(
    name: str, keys: tuple[str, ...], aggregates: Mapping[str, Any], output: object
) -> None:
    """Refuse results that are no aggregates, or that have the name of a key column."""
    if output not in ("update", "complete"):
        raise InvalidFlowError(
            f"Operator {name!r} has output={output!r}.",
            remedy=f"{did_you_mean(str(output), ['update', 'complete'])}Give 'update' (keys "
            "that changed) or 'complete' (all keys).",
            operator=name,
        )
    for result, aggregate in aggregates.items():
        if result in keys:
            raise InvalidFlowError(
                f"Operator {name!r} has a result {result!r}, which is the name of a key "
                "column too.",
                remedy="Give the result another name; key columns are in the output anyway.",
                operator=name,
                column=result,
            )
        check_aggregate(aggregate, result, name)


def _check_other(keyed: Keyed, other: Any, where: str) -> None:
    """Refuse what is no keyed stream of the same flow."""
    if not isinstance(other, type(keyed)):
        raise InvalidFlowError(
            f"{where} was given a value of type {type_name(other)}, not a keyed stream.",
            remedy='Key the other stream too, as in orders.key_by("id").join('
            'payments.key_by("order"), ...); a table that does not stream is joined in a map.',
        )
    if other.flow is not keyed.flow:
        raise InvalidFlowError(
            f"{where} of flow {keyed.flow.name!r} was given a stream of another flow, "
            f"{other.flow.name!r}.",
            remedy="Build both streams from sources of one flow.",
            flow=keyed.flow.name,
        )


def _check_how(how: object, known: Sequence[str], where: str) -> None:
    """Refuse a kind of join that there is not."""
    if not is_one_of(how, known):
        raise InvalidFlowError(
            f"{where} has how={how!r}.",
            remedy=f"{did_you_mean(str(how), known)}Give {listing(known)}.",
        )


def _check_suffix(suffix: object, where: str) -> None:
    """Refuse a suffix that would tell no names apart."""
    if suffix is not None and (not isinstance(suffix, str) or not suffix):
        raise InvalidFlowError(
            f"{where} has suffix={suffix!r}.",
            remedy='Give a text, as in suffix="_right", or leave it out.',
        )


def _interval_of(between: Any, where: str) -> tuple[int, int]:
    """Read the bounds of an interval, in microseconds."""
    bounds = between if isinstance(between, tuple | list) else ()
    if len(bounds) != 2 or not all(isinstance(bound, str | dt.timedelta) for bound in bounds):
        raise InvalidFlowError(
            f"{where} has between={between!r}.",
            remedy="Give how long after a row of the left one of the right happens, at least and "
            'at most, as in between=("-10 minutes", "1 hour").',
        )
    earliest, latest = (signed_microseconds(b, f"A bound of {where}") for b in bounds)
    if earliest > latest:
        raise InvalidFlowError(
            f"{where} has between={between!r}, which ends before it begins.",
            remedy="Give the earlier bound first.",
        )
    return earliest, latest


# -- functions that give the name of their state to something else, which is then lost ------------
#
# ``state = {"n": 1}`` makes the name `state` mean another dict; the state of the key stays as it
# was, and Python has no way to notice. What counts is what is changed in place: ``state["n"] = 1``.

_STATE = 2
"""Position of the state among the arguments."""
_NEW = (
    *(ast.Dict, ast.List, ast.Set, ast.Tuple, ast.Constant, ast.JoinedStr, ast.BinOp),
    *(ast.DictComp, ast.ListComp, ast.SetComp),
)


def _warn_of_rebinding(operator: str, function: Callable[..., Any], *, stacklevel: int) -> None:
    """Warn if a function makes its state's name mean something new.

    What a method returns (``state = state.setdefault("a", {})``) may be a part of the state, and is
    left alone; so is a function whose source cannot be found.
    """
    for line, name in _rebound(function):
        warnings.warn(
            f"Operator {operator!r}: {function_name(function)!r} assigns its argument {name!r} "
            f"(`{line}`), which changes no state: the key's state stays what it was. Change it in "
            f"place, as in {name}[...] = ... or {name}.clear(); state of a type that cannot be "
            f"changed in place, such as int, is assigned as {name}.value = ....",
            stacklevel=stacklevel + 1,
        )


def _rebound(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Each statement that gives the state's name to a new object, and that name."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        names = list(inspect.signature(function).parameters)
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError, ValueError):
        return
    body = tree.body[0] if tree.body else None
    if not isinstance(body, ast.FunctionDef) or len(names) <= _STATE:
        return
    name = names[_STATE]
    for statement in ast.walk(body):
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        makes = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
        if named and (makes or isinstance(value, _NEW)):
            yield ast.unparse(statement), name
