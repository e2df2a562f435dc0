"""Mistakes in the code of a function per key: wrong annotations, and a state that is rebound.

A type checker finds wrong annotations too (`KeyedStream.process` is typed); without one, building
the flow finds them.  Only annotations that are certainly wrong are refused: one that cannot be
looked up, or is less precise than it could be, passes.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
import typing
import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from godwit.columns.python_values import KeyRows
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import function_name
from godwit.model.signatures import positional_parameters
from godwit.operators.declared import States
from godwit.operators.timers import FiredTimer, TimedRows
from godwit.values.codec import State, is_immutable
from godwit.values.records import hint_text, is_row_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PARAMETERS = 3


def check_annotations(
    operator: str,
    function: Callable[..., Any],
    *,
    keys: tuple[str, ...],
    row: type | None,  # class of the rows
    state: Any,  # type of the state; `States`: there are several
    has_timers: bool,
    for_timers: bool = False,
) -> None:
    """Raise if the annotations of a user's function contradict the operator's arguments.

    `has_timers`: the operator has timers. `for_timers`: the function gets a timer instead of rows.
    """
    hints = _parameter_types(function)
    if len(hints) < _PARAMETERS:
        return
    (key_name, key), (rows_name, rows), (state_name, state_hint), *_ = hints
    for mismatch in (
        _key_mismatch(key_name, key, keys),
        _timer_mismatch(rows_name, rows)
        if for_timers
        else _rows_mismatch(rows_name, rows, row, has_timers),
        _state_mismatch(state_name, state_hint, state),
    ):
        if mismatch:
            problem, remedy = mismatch
            raise InvalidFlowError(
                f"Operator {operator!r}: function {function_name(function)!r} takes {problem}.",
                remedy=remedy,
                operator=operator,
            )


def _parameter_types(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return name and annotation of each parameter; `Any` for a missing annotation."""
    if isinstance(function, functools.partial) or not inspect.isfunction(function):
        return []
    unwrapped = inspect.unwrap(function)
    closure_names = (
        inspect.getclosurevars(unwrapped).nonlocals if inspect.isfunction(unwrapped) else {}
    )
    parameters = []
    for parameter in positional_parameters(function, _PARAMETERS):
        name, hint = parameter.name, parameter.annotation
        try:  # one by one: that of the result may stand for a type checker alone
            carrier = types.SimpleNamespace(__annotations__={name: hint})
            hints = typing.get_type_hints(
                carrier, getattr(unwrapped, "__globals__", {}), {**closure_names}
            )
        except Exception:  # noqa: BLE001 - annotations may be anything
            hints = {}
        parameters.append((name, Any if hint is parameter.empty else hints.get(name, Any)))
    return parameters


def _key_mismatch(name: str, hint: Any, keys: tuple[str, ...]) -> tuple[str, str] | None:
    """Return how the annotation of the key is wrong, and the remedy; ``None`` if it is right.

    `hint`: the annotation of parameter `name`.
    """
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        if ... in parts or len(parts) == len(keys):
            return None
        return (
            f"{name}: {hint_text(hint)}, and there are {len(keys)} key columns",
            f"The key is a tuple of the values of {', '.join(keys)}.",
        )
    if _may_be_instance(hint, tuple):
        return None
    return (
        f"{name}: {hint_text(hint)}, and the key is a tuple, even with one column",
        f"Declare {name}: tuple[{', '.join([hint_text(hint)] * len(keys))}]; values are {name}[0].",
    )


def _rows_mismatch(
    name: str, hint: Any, row: type | None, has_timers: bool
) -> tuple[str, str] | None:
    """Return how the annotation of the rows is wrong, and the remedy; ``None`` if it is right.

    `row`: declared class of rows. `has_timers`: the operator has timers.
    """
    origin, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    hinted = hint_text(hint)
    if origin is TimedRows and not has_timers:
        return (
            f"{name}: {hinted}, and the operator has no timers",
            'Take gw.types.KeyRows, or declare timers=gw.types.OnTimer(..., clock="event").',
        )
    if origin in (KeyRows, TimedRows):
        if not parts or not is_row_class(parts[0]) or parts[0] is row:
            return None
        if row is None:
            return (
                f"{name}: {hinted}, and rows are named tuples",
                f"Say row={parts[0].__name__}, so that they are of that class.",
            )
        if issubclass(row, parts[0]):
            return None
        return (
            f"{name}: {hinted}, and row={row.__name__}",
            f"Take gw.types.{origin.__name__}[{row.__name__}], or say row={parts[0].__name__}.",
        )
    if _may_be_instance(hint, TimedRows if has_timers else KeyRows):
        return None
    kind = f"gw.types.KeyRows[{row.__name__ if row is not None else 'Any'}]"
    return f"{name}: {hinted}, and gets a {kind}", f"Iterate over it; declare {name}: {kind}."


def _timer_mismatch(name: str, hint: Any) -> tuple[str, str] | None:
    """Return how the annotation of a timer is wrong, and the remedy; ``None`` if it is right."""
    if _may_be_instance(hint, FiredTimer):
        return None
    return (
        f"{name}: {hint_text(hint)}, and gets a gw.types.FiredTimer",
        f"A timer has no rows; declare {name}: gw.types.FiredTimer.",
    )


def _state_mismatch(name: str, hint: Any, state: Any) -> tuple[str, str] | None:
    """Return how the annotation of the state is wrong, and the remedy; ``None`` if it is right."""
    hinted, origin, parts = hint_text(hint), typing.get_origin(hint) or hint, typing.get_args(hint)
    if state is States:
        if _may_be_instance(hint, States):
            return None
        return f"{name}: {hinted}, and has several states", f"Declare {name}: gw.types.States."
    try:
        in_holder = is_immutable(state())
    except Exception:  # noqa: BLE001 - another check reports the type
        return None
    text = hint_text(state)
    if in_holder:
        if origin is State:
            if not parts or _may_be_same(parts[0], state):
                return None
            return f"{name}: {hinted}, and state={text}", f"Take gw.types.State[{text}]."
        if _may_be_instance(hint, State):
            return None
        return (
            f"{name}: {hinted}, and state={text} cannot be changed in place: it comes in a holder",
            f"Declare {name}: gw.types.State[{text}], and assign {name}.value.",
        )
    root = typing.get_origin(state) or state
    is_same_type = origin is root and (
        not parts or not typing.get_args(state) or _may_be_same(hint, state)
    )
    if is_same_type or (origin is not root and _may_be_instance(hint, root)):
        return None
    return f"{name}: {hinted}, and state={text}", f"Declare {name}: {text}, or give state={hinted}."


def holds_values(state: Any) -> bool:
    """Return whether a type of state is of collections, which ``rows`` may be a name for."""
    cls = typing.get_origin(state) or state
    return isinstance(cls, type) and issubclass(cls, Collection) and not issubclass(cls, _TEXTS)


def _may_be_same(first: Any, second: Any) -> bool:
    """Return whether two types may be the same; unspecified parts match anything."""
    if first == second or any(_is_open(hint) for hint in (first, second)):
        return True
    if (typing.get_origin(first) or first) is not (typing.get_origin(second) or second):
        return False
    parts, other_parts = typing.get_args(first), typing.get_args(second)
    if not parts or not other_parts:  # as of `dict`, or `typing.Dict`
        return True
    return len(parts) == len(other_parts) and all(map(_may_be_same, parts, other_parts))


def _is_open(hint: Any) -> bool:
    """Return whether a type is not fully specified: `Any`, a type variable, or a union."""
    if hint is Any or isinstance(hint, typing.TypeVar):
        return True
    return any(map(_is_open, typing.get_args(hint))) or typing.get_origin(hint) in _UNIONS


def _may_be_instance(hint: Any, cls: Any) -> bool:
    """Return whether an instance of `cls` may fit an annotation."""
    origin = typing.get_origin(hint) or hint
    if origin in _UNIONS:
        return any(_may_be_instance(part, cls) for part in typing.get_args(hint))
    if not isinstance(origin, type) or not isinstance(cls, type) or origin is Any:
        return True
    try:
        return issubclass(cls, origin) or issubclass(origin, cls)
    except TypeError:  # a protocol with attributes
        return True


_TEXTS = (str, bytes, bytearray)
_UNIONS = (typing.Union, type(int | str))


# -- functions that give the name of their state to something else, which is then lost ------------
#
# ``state = {"n": 1}`` rebinds the name `state` to another dict; the state of the key does not
# change, and Python has no way to notice. Only changes in place count: ``state["n"] = 1``.

_STATE = 2
"""Position of the state among the arguments."""
_NEW = (
    *(ast.Dict, ast.List, ast.Set, ast.Tuple, ast.Constant, ast.JoinedStr, ast.BinOp),
    *(ast.DictComp, ast.ListComp, ast.SetComp),
)


def warn_of_rebinding(operator: str, function: Callable[..., Any], *, stacklevel: int) -> None:
    """Warn if a function assigns a new object to the name of its state argument.

    What a method returns (``state = state.setdefault("a", {})``) may be a part of the state, and is
    left alone; so is a function whose source cannot be found.
    """
    for line, name in _state_assignments(function):
        warnings.warn(
            f"Operator {operator!r}: {function_name(function)!r} assigns its argument {name!r} "
            f"(`{line}`), which changes no state: the key's state stays what it was. Change it in "
            f"place, as in {name}[...] = ... or {name}.clear(); state of a type that cannot be "
            f"changed in place, such as int, is assigned as {name}.value = ....",
            stacklevel=stacklevel + 1,
        )


def _state_assignments(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Yield the statements of a function that assign a new object to its state's name.

    With each, that name.
    """
    names = [parameter.name for parameter in positional_parameters(function, _STATE + 1)]
    while isinstance(function, functools.partial):
        function = function.func
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError, ValueError):
        return
    body = tree.body[0] if tree.body else None
    if not isinstance(body, ast.FunctionDef | ast.AsyncFunctionDef) or len(names) <= _STATE:
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
