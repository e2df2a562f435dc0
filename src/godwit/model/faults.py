"""A user's own fault, as it should be read: with the user's frames alone.

The frames of Godwit and of Spark between the query and the function say nothing to who wrote the
function, so they are left out.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from godwit.model.errors import GodwitError, UserFunctionError
from godwit.model.naming import function_name

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["function_failed", "user_traceback"]

_OURS = str(Path(__file__).parent.parent) + os.sep


def user_traceback(error: BaseException) -> str:
    """Format a traceback without Godwit's own frames; empty if nothing else raised.

    What led to the exception (``raise ... from``) is in it, treated alike.
    """
    told = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    pending: list[traceback.TracebackException | None] = [told]
    found = False
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        frames = [frame for frame in one.stack if not frame.filename.startswith(_OURS)]
        found = found or bool(frames)
        one.stack = traceback.StackSummary.from_list(frames)
        pending += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]
    return "".join(told.format()) if found else ""


def function_failed(
    operator: str, function: Callable[..., object], key: tuple[object, ...], error: BaseException
) -> UserFunctionError:
    """Say that a function that is called per key failed, for which key, and where."""
    text = user_traceback(error)
    if not text:
        # No frame of the user's: the function ran, but what it returned is no iterable.
        what = f"returned something that is not rows, for key {key!r}: {error}"
        remedy = "Return a list of tuples or dicts, yield them, or return None."
    else:
        what = f"raised {type(error).__qualname__} for key {key!r}"
        said, correct = str(error), "Correct the function."
        if isinstance(error, GodwitError):  # of what the function was given, such as a state
            said, correct = error.message, error.remedy or correct
        elif isinstance(error, TypeError | AttributeError) and "tuple" in said and len(key) == 1:
            correct += f" The key is a tuple, also of one column, {key!r}: its value is key[0]."
        what += f": {said.removesuffix('.')}" if said else ""
        remedy = f"{correct} Its traceback is:\n{text}"
        if isinstance(error, SystemExit):
            remedy = (
                "To stop a query, call query.stop() where it was started; to skip the rest "
                f"of a key's rows, return. The call came from:\n{text}"
            )
    return UserFunctionError(
        f"Function {function_name(function)!r} of operator {operator!r} {what}.",
        remedy=remedy,
        operator=operator,
        key=key,
        error=type(error).__qualname__,
        traceback=text,
    )
