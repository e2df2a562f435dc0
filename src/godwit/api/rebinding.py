"""Functions that give the name of their state to something else, which is then lost.

``state = {"n": 1}`` makes the name `state` mean another dict; the state of the key stays as it was,
and Python has no way to notice.  What counts is what is changed in place: ``state["n"] = 1``.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import warnings
from typing import TYPE_CHECKING, Any

from godwit.model.naming import function_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["warn_of_rebinding"]

_STATE = 2
"""Position of the state among the arguments."""
_NEW = (
    *(ast.Dict, ast.List, ast.Set, ast.Tuple, ast.Constant, ast.JoinedStr, ast.BinOp),
    *(ast.DictComp, ast.ListComp, ast.SetComp),
)


def warn_of_rebinding(operator: str, function: Callable[..., Any], *, stacklevel: int) -> None:
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
