"""Whether a user's functions can travel to executors, and if not, because of what.

Operators, and maps after them, run in lanes, so they are pickled with all that they refer to.
Maps before them are not: they run on the driver, where they may use DataFrames and sessions.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from godwit.cluster.spark.stages import by_value
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import error_line, function_name
from godwit.plan.nodes import (
    ComputeNode,
    ProcessNode,
    SourceNode,
    WindowedNode,
    branches_of,
    read_by,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.api.flow import LogicalFlow
    from godwit.plan.nodes import StreamNode

__all__ = ["check_picklable"]

_DRIVER_ONLY = ("pyspark.sql", "pyspark.core", "py4j")
_DEPTH = 5


def check_picklable(flow: LogicalFlow) -> None:
    """Refuse a flow with a function that cannot be sent to executors.

    Raises
    ------
    InvalidFlowError
        Names the operator, the function, and the variable that cannot be pickled.
    """
    checked: set[int] = set()
    for where, value, context in _parts(flow):
        if id(value) not in checked:
            checked.add(id(value))
            _check(value, where, context)


def _parts(flow: LogicalFlow) -> Iterator[tuple[str, Any, dict[str, str]]]:
    for node in flow.operators:
        context = {"operator": node.name}
        after = f"of operator {node.name!r}"
        if isinstance(node, ComputeNode) or (isinstance(node, WindowedNode) and node.aggregates):
            for result, aggregate in node.aggregates.items():
                yield f"Aggregate {result!r} {after}", aggregate, context
        elif isinstance(node, ProcessNode | WindowedNode):
            assert node.function is not None, "what has no aggregates has a function"
            yield f"Function {function_name(node.function)!r} {after}", node.function, context
            if isinstance(node, ProcessNode) and node.on_timer is not None:
                yield f"Function {function_name(node.on_timer)!r} {after}", node.on_timer, context
            if isinstance(node, ProcessNode):
                yield f"The type of state {after}", node.state_type, context
                for name, declared in node.states.items():
                    yield f"State {name!r} {after}", declared, context
        for stream in read_by(node):
            yield from _maps(stream)
    for sink in flow.sinks:
        yield from _maps(sink.upstream)


def _maps(node: StreamNode) -> Iterator[tuple[str, Any, dict[str, str]]]:
    for branch in branches_of(node):
        if isinstance(branch.feed, SourceNode):
            continue
        for one in branch.maps:
            where = f"Map {function_name(one.function)!r} after operator {branch.feed.name!r}"
            yield where, one.function, {"operator": branch.feed.name}


def _check(value: Any, where: str, context: dict[str, str]) -> None:
    error = _pickling_error(value)
    if error is None:
        return
    path, culprit = _culprit(value, _DEPTH)
    kind = type(culprit)
    told = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if path:
        what = f"its variable {path[-1]!r}"
        for name in reversed(path[:-1]):
            what += f" of {name!r}"
        what += f", of type {told}, cannot be pickled"
    else:
        what = f"it cannot be pickled ({error_line(error)})"
    if kind.__module__.startswith(_DRIVER_ONLY):
        remedy = (
            "DataFrames and sessions live on the driver: join with a table in a map before "
            "key_by, or collect it (toArrow(), toPandas()) and use the result."
        )
    else:
        remedy = (
            "Make it inside the function at its first use (a function with functools.cache does), "
            "or keep only what can be pickled outside of it."
        )
    raise InvalidFlowError(
        f"{where} cannot be sent to executors: {what}.",
        remedy=remedy,
        variable=".".join(path),
        **context,
    )


def _pickling_error(value: Any) -> Exception | None:
    try:
        by_value.dumps(value)
    except Exception as error:  # noqa: BLE001  a user's __reduce__ may raise anything
        return error
    return None


def _culprit(value: Any, depth: int) -> tuple[tuple[str, ...], Any]:
    """Names that lead from `value` to what cannot be pickled in it, and that thing."""
    if depth:
        for name, part in _referred_to(value):
            if _pickling_error(part) is not None:
                path, culprit = _culprit(part, depth - 1)
                return (name, *path), culprit
    return (), value


def _referred_to(value: Any) -> Iterator[tuple[str, Any]]:
    if inspect.ismethod(value):
        yield "self", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((f"argument {i}", part) for i, part in enumerate(value.args))
        yield from value.keywords.items()
        yield value.func.__name__, value.func
    elif inspect.isfunction(value):
        variables = inspect.getclosurevars(value)
        yield from variables.nonlocals.items()
        yield from variables.globals.items()
        for parameter in inspect.signature(value).parameters.values():
            if parameter.default is not parameter.empty:
                yield parameter.name, parameter.default
    elif not type(value).__module__.startswith(_DRIVER_ONLY):
        yield from getattr(value, "__dict__", {}).items()
