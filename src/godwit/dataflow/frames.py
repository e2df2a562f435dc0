"""Tracebacks of a user's mistake: the user's own lines, and as few of ours as can be.

What a user reads of an error should be the line that made it and the sentence that explains it.
The calls that users make are marked with `user_call`: an error of ours leaves them with one frame
of this package, whichever depth it came from.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from godwit.dataflow.naming import did_you_mean, listing
from godwit.model.errors import GodwitError, InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["user_call"]

P = ParamSpec("P")
R = TypeVar("R")

_OURS = __name__.partition(".")[0]


def user_call(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a call that users make: its errors begin with the user's line.

    Wrong arguments become an `InvalidFlowError` that offers the right ones; frames of this package
    leave the tracebacks of errors of ours and of what caused them.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except GodwitError as error:
            shown: GodwitError = error.with_traceback(None)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # it was raised inside, and not by the call itself
            shown = _wrong_arguments(function, kwargs, error)
        if shown.__cause__ is not None:
            shown.__cause__.__traceback__ = _without_ours(shown.__cause__.__traceback__)
        raise shown

    return call


def _without_ours(frames: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of this package that come before any other."""
    while frames is not None and _is_ours(frames):
        frames = frames.tb_next
    return frames


def _is_ours(frames: TracebackType) -> bool:
    name: str = frames.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == _OURS


def _wrong_arguments(
    function: Callable[..., object], given: dict[str, object], error: TypeError
) -> InvalidFlowError:
    name = function.__name__
    known = [p for p in inspect.signature(function).parameters if p != "self"]
    unknown = [argument for argument in given if argument not in known]
    if unknown:
        return InvalidFlowError(
            f"{name} has no argument {unknown[0]!r}.",
            remedy=f"{did_you_mean(unknown[0], known)}It takes {listing(known)}.",
        )
    told = str(error).partition("() ")[2]
    return InvalidFlowError(f"{name}() {told}.", remedy=f"It takes {listing(known)}.")
