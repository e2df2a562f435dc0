"""What is checked in the line that makes a call on a stream, and what is said if it will not do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import did_you_mean, is_one_of, type_name
from godwit.operators.aggregates import builtin
from godwit.operators.states.declared import ListState, MapState, ValueState
from godwit.plan.nodes import SourceNode, branches_of

if TYPE_CHECKING:
    from godwit.plan.nodes import Branch, StreamNode

__all__ = [
    "check_aggregate",
    "check_formerly",
    "check_function",
    "check_keys",
    "check_late",
    "check_process",
    "check_results",
    "check_state_classes",
    "check_timers",
    "describe",
]


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


def check_timers(operator: str, timers: object, on_timer: object) -> None:
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


def check_process(
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


def check_state_classes(name: str, given: object) -> None:
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


def check_results(
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
