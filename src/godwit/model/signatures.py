"""Signatures of users' functions, against the calls that they are made for.

Every function of a user is held against its call when it is given: how many arguments it takes,
whether it is asynchronous, and whether the names of its parameters stand in the order of the call.
Only certain errors are refused.  A function written in C may have no signature, and passes.

What a function returns is known later: `awaiting_hint` recognises a value that was to be awaited.
"""

from __future__ import annotations

import functools
import inspect
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from godwit.model.errors import GodwitError, InvalidFlowError
from godwit.model.naming import function_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

_ROLES: Final[Mapping[str, frozenset[str]]] = {
    role: frozenset(names.split())
    for role, names in {
        "key": "key keys k",
        "rows": "rows row r batch table df",
        "state": "state states st s",
        "timer": "timer timers t",
        "window": "window windows win w",
        "epoch": "epoch epochs epoch_id batch_id e",
        "key_of_row": "key_of_row keys_of_rows",
    }.items()
}
"""Role of an argument → names that people give to its parameter."""

_ROLE_OF: Final = {name: role for role, names in _ROLES.items() for name in names}
_VAGUE: Final = frozenset(["k", "r", "s", "t", "w", "e", "row", "batch", "table", "df"])
"""Names that people also give to something else, such as a state that is a batch of rows."""
ROLE_NAMES: Final = frozenset(_ROLE_OF)
NO_NAMES: Final[Mapping[str, Collection[str]]] = MappingProxyType({})

_NEVER: Final[Mapping[tuple[str, ...], Mapping[str, str]]] = {
    ("key", "rows", "state"): {
        "timer": "Timers are those of rows.timers, with timers=gw.types.OnTimer(...).",
    },
    ("key", "timer", "state"): {
        "rows": "A timer has no rows; what they say has to be in the state.",
    },
    ("key", "rows", "window"): {
        "state": "A function of windows gets all rows of a window at once, and has no state.",
        "timer": "A function of windows is called when a window ends, and has no timers.",
    },
    ("rows", "epoch"): {
        "key": "The function is called once for an epoch, with the rows of all keys.",
        "state": "The function is called once for an epoch, and has no state.",
    },
}
"""Roles of a call → roles that it does not have, and what to do in their place."""
AWAIT: Final = (
    "It has to be awaited: define the function by async def, and write await before the call that "
    "made it."
)
_NO_AWAIT: Final = (
    "It has to be awaited, which is done in key_by(...).process(...) alone: look it up there, or "
    "run it by asyncio.run(...)."
)
_NUMBERS: Final = ("no", "one", "two", "three", "four")


def is_asynchronous(function: Any) -> bool:
    """Return whether a function is an ``async def``: a coroutine function or an async generator."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = getattr(function, "__call__", function)  # noqa: B004 - as it is defined
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def check_signature(
    where: str,
    function: Callable[..., Any],
    called: str,
    *,
    named: Iterable[str] = (),
    meant: Mapping[str, Collection[str]] = NO_NAMES,
    awaited: bool = False,
    error: type[GodwitError] = InvalidFlowError,
    **context: str,
) -> None:
    """Raise if a user's function cannot be called as it will be, or mixes up its parameters.

    `where`: the owner of the function, for errors. `called`: the call as text, such as
    ``"function(key, rows, state)"``; its arguments are passed by position, and those that are
    `named` by keyword. `meant`: argument → other names that may mean it, such as those of the key
    columns. `awaited`: it may be an ``async def``. `context`: fields of the error.
    """
    name = function_name(function)
    if not awaited and is_asynchronous(function):
        raise error(
            f"{where}: function {name!r} is asynchronous, and is not awaited here.",
            remedy="Give a plain function; key_by(...).process(...) takes an async def, which can "
            "look up what others need.",
            **context,
        )
    arguments = re.findall(r"\w+", called.partition("(")[2])
    by_name = list(named)
    if by_name:
        called = (
            f"{called.removesuffix(')')}, {', '.join(f'{name_}={name_}' for name_ in by_name)})"
        )
    signature = own_signature(function)
    if signature is None:
        return  # written in C, without a signature that could be looked at
    try:
        signature.bind(*[None] * len(arguments), **dict.fromkeys(by_name))
    except TypeError as reason:
        count = _NUMBERS[len(arguments)] if len(arguments) < len(_NUMBERS) else len(arguments)
        raise error(
            f"{where}: {name!r} cannot be called as {called}: {reason}.",
            remedy="Give a function of these arguments."
            if by_name
            else f"Give a function of {'this' if len(arguments) == 1 else 'these'} {count} "
            f"argument{'' if len(arguments) == 1 else 's'}.",
            **context,
        ) from reason
    names = [parameter.name for parameter in positional_parameters(function, len(arguments))]
    if problem := _find_misplaced_argument(arguments, names[: len(arguments)], meant):
        problem_text, remedy = problem
        raise error(
            f"{where}: {name!r} takes ({', '.join(names)}) and is called as {called}: "
            f"{problem_text}.",
            remedy=remedy,
            **context,
        )


_WRONG_CALL: Final = re.compile(
    r"\(\) (takes .*positional argument|missing \d+ required|got an unexpected keyword argument)"
)


def passed_on_hint(function: Callable[..., Any], error: BaseException, called: str) -> str:
    """Return advice, after a space, on arguments that a decorator passes on; empty otherwise.

    A decorator's ``*args`` fit every call, so only the call of the function that it wraps fails.
    `error`: that `function` raised. `called`: the call of `function`, as in `check_signature`.
    """
    signature = own_signature(function)
    if not isinstance(error, TypeError) or signature is None or not _WRONG_CALL.search(str(error)):
        return ""
    passes_on = [p for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL]
    if not passes_on:
        return ""
    return (
        f" {function_name(function)!r} is called as {called}, and takes *{passes_on[0].name}: the "
        "function that it passes them on to has to take these arguments."
    )


def own_signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature that a function is called by; ``None`` if it has none to look at.

    Of what a decorator made, this is its own: the function that it wraps may take other arguments.
    """
    for follow in (False, True):
        try:
            return inspect.signature(function, follow_wrapped=follow)
        except (ValueError, TypeError):
            continue
    return None


def positional_parameters(function: Callable[..., Any], count: int) -> list[inspect.Parameter]:
    """Return the parameters that `count` arguments by position may go to.

    A decorator's ``*args`` stand for the parameters of the function that it wraps, if that function
    can be called with as many.
    """
    for signature in (own_signature(function), _wrapped_signature(function, count)):
        parameters = [
            parameter
            for parameter in (signature.parameters.values() if signature else ())
            if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        ]
        if parameters:
            return parameters
    return []


def _wrapped_signature(function: Callable[..., Any], count: int) -> inspect.Signature | None:
    """Return the signature of what a decorator wraps; ``None`` if `count` arguments do not fit."""
    try:
        signature = inspect.signature(function)
        signature.bind(*[None] * count)
    except (ValueError, TypeError):
        return None
    return signature


def _find_misplaced_argument(
    arguments: Sequence[str], names: Sequence[str], meant: Mapping[str, Collection[str]]
) -> tuple[str, str] | None:
    """Return which parameter stands in another's place, and the remedy; ``None`` if none does.

    A name tells its role only if the parameter in the place of that role has another one.  A name
    that may mean something else, such as one letter, tells it only if it is exchanged with another
    name of a role.  `meant`: argument → names that may mean it here.
    """
    if "other" in arguments:
        return None  # two of a kind, in any order
    roles = tuple(_ROLE_OF.get(argument, "") for argument in arguments)
    given_roles = [_ROLE_OF.get(name.lstrip("_"), "") for name in names]
    for position, (name, role) in enumerate(zip(names, given_roles, strict=True)):
        if not role or role == roles[position]:
            continue
        is_vague = name.lstrip("_") in _VAGUE or name in meant.get(arguments[position], ())
        if role not in roles:
            advice = _NEVER.get(roles, {}).get(role)
            if advice is not None and not is_vague and len(names) == len(roles):
                return f"{name!r} would be the {arguments[position]}", advice
            continue
        right_position = roles.index(role)
        if (
            right_position >= len(given_roles)
            or given_roles[right_position] == role
            or (is_vague and not given_roles[right_position])
        ):
            continue
        return (
            f"{name!r} would be the {arguments[position]}",
            f"Put the parameters in order: ({', '.join(_in_order(roles, names, given_roles))}).",
        )
    return None


def _in_order(roles: Sequence[str], names: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return parameters in the order of the roles; those without a role in the places left."""
    placed = {role: name for name, role in reversed(list(zip(names, given, strict=True))) if role}
    others = iter([name for name in names if name not in {placed.get(role) for role in roles}])
    return [placed[role] if role in placed else next(others, "_") for role in roles]


def awaiting_hint(value: object, *, is_plain: bool = False) -> str:
    """Return advice, with a blank behind it, if a value was to be awaited; empty otherwise.

    `is_plain`: only plain functions are called where it comes from.
    """
    if inspect.iscoroutine(value):
        value.close()  # it is never awaited, which Python would say again
    if inspect.isawaitable(value) or inspect.isasyncgen(value):
        return f"{_NO_AWAIT if is_plain else AWAIT} "
    return ""
