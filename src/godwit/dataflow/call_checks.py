"""What is checked in the line that makes a call on a stream, and what is said if it will not do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.dataflow.aggregates import builtin
from godwit.dataflow.naming import type_name
from godwit.dataflow.nodes import SourceNode, branches_of
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from godwit.dataflow.nodes import Branch, StreamNode

__all__ = ["check_aggregate", "check_formerly", "check_function", "check_timers", "describe"]


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


def check_formerly(name: str, formerly: object) -> None:
    """Refuse a former name that is none, or that is the name."""
    if formerly is not None and (not isinstance(formerly, str) or formerly in ("", name)):
        raise InvalidFlowError(
            f"Operator {name!r} has formerly={formerly!r}.",
            remedy="Give the other name that it has in the checkpoint, or leave formerly= out.",
            operator=name,
        )


def check_aggregate(aggregate: Any, result: str, operator: str) -> None:
    """Refuse what is no aggregate, or is not told its columns by their names."""
    # Asked of the type, since a column of Spark's has an attribute of any name.
    if not callable(getattr(type(aggregate), "bind", None)):
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
    if timers not in (None, "event", "processing"):
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
