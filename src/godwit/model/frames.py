"""Tracebacks of users' mistakes: their own lines, and as few of Godwit's as possible.

What a user reads of an error should be the line that made it and the sentence that explains it.
The calls that users make are marked with `user_call`: an error of ours leaves them with one frame
of this package, whichever depth it came from.  Of a user's function that fails, `user_traceback`
shows the user's frames alone.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from godwit.model.errors import GodwitError, InvalidFlowError, UserFunctionError
from godwit.model.naming import NoSuchCallError, did_you_mean, function_name, listing, public_name
from godwit.model.signatures import AWAIT, passed_on_hint
from godwit.model.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_AWAITABLE = re.compile(
    r"'(coroutine|async_generator|Task|Future)' object|of type (coroutine|Task|Future)\b"
)
_OURS = __name__.partition(".")[0]
_FIELDS = "__dataclass_fields__"
_OUR_FILES = str(Path(__file__).parent.parent) + os.sep


class WrongArgumentsError(InvalidFlowError, TypeError):
    """Wrong arguments of a call; also a TypeError, as for any other call."""


def user_call(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function so that tracebacks of its errors begin at the user's line.

    Wrong arguments raise an `InvalidFlowError` that suggests the right ones; frames of this package
    are removed from the tracebacks of Godwit's errors and of their causes.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, and shorten the tracebacks of errors of this package."""
        try:
            return function(*args, **kwargs)
        except GodwitError as error:
            shown: GodwitError = error.with_traceback(None)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # it was raised inside, and not by the call itself
            shown = _wrong_arguments(function, args, kwargs, error)
        except KeyboardInterrupt as interrupt:
            if hasattr(interrupt, "begins_at_user"):  # not amid the work, but after it
                interrupt.__traceback__ = None
            raise
        if shown.__cause__ is not None:
            shown.__cause__.__traceback__ = _skip_own_frames(shown.__cause__.__traceback__)
        raise shown

    return call


def user_class(cls: type[T]) -> type[T]:
    """Decorate a public class so that errors of its constructor begin at the user's line.

    An attribute that its instances do not have is answered with those that they have.
    """
    changed: Any = cls
    changed.__init__ = user_call(changed.__init__)
    if not hasattr(cls, "__getattr__"):
        changed.__getattr__ = no_such_attribute
    return cls


def no_such_attribute(instance: object, name: str) -> Any:
    """Raise an error that suggests the attribute to use for an unknown one, as ``__getattr__``.

    The class may name it in ``_MEANT``: former name, or name of another library → what to use.
    """
    cls = type(instance)
    if name.startswith("_"):
        raise AttributeError(name)
    known = [known for known in dir(cls) if not known.startswith("_")]
    our_name = getattr(cls, "_MEANT", {}).get(name)
    hint = f"Use {our_name}. " if our_name else did_you_mean(name, known)
    raise NoSuchCallError(
        f"{cls.__name__} has no {name!r}.",
        remedy=f"{hint}It has {listing(known, limit=len(known))}.",
        call=name,
    )


def _skip_own_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without this package's frames at its beginning."""
    while frames is not None and _is_own_frame(frames):
        frames = frames.tb_next
    return frames


def _is_own_frame(frames: TracebackType) -> bool:
    """Return whether the first frame of a traceback belongs to this package."""
    name: str = frames.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == _OURS


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _wrong_arguments(
    function: Callable[..., object],
    positional: tuple[object, ...],
    given: dict[str, object],
    error: TypeError,
) -> WrongArgumentsError:
    """Return the error for a call with wrong arguments, with a suggestion.

    `positional`, `given`: arguments by position and by keyword.
    """
    name = function.__name__
    if name == "__init__":
        name = type(positional[0]).__name__
    parameters = inspect.signature(function).parameters
    known = [parameter for parameter in parameters if parameter != "self"]
    unknown = [argument for argument in given if argument not in known]
    if unknown:
        current_name = (
            getattr(type(positional[0]), "_MEANT", {}).get(unknown[0]) if positional else None
        )
        suggestion = (
            f"Use {current_name}. "
            if current_name in known
            else _suggest_settings(unknown[0], parameters)
        )
        if unknown[0] in _FORMER and _FORMER[unknown[0]].partition("=")[0] in known:
            suggestion = f"Use {_FORMER[unknown[0]]}. "
        suggestion = suggestion or _suggest_argument(unknown[0], known)
        return WrongArgumentsError(
            f"{name} has no argument {unknown[0]!r}.",
            remedy=f"{suggestion}It takes {listing(known, limit=len(known)) or 'no arguments'}.",
        )
    problem = str(error).partition("() ")[2]
    remedy = f"It takes {listing(known) or 'no arguments'}."
    by_name = [
        parameter.name
        for parameter in parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    if "positional argument" in problem and "were given" in problem and by_name:
        positional_names = [
            parameter for parameter in known if parameters[parameter].kind in _BY_POSITION
        ]
        call = ", ".join([*positional_names, f"{by_name[0]}=..."])
        remedy = f"Give {'the others' if positional_names else 'arguments'} by name, "
        remedy += f"as in {name}({call}). "
        remedy += f"{_OTHER_CALLS.get(name, '')}It takes {listing(known)}."
        problem = f"takes {counted(len(positional_names), 'argument')} by position, and "
        problem += f"{len(positional) - (len(parameters) - len(known))} were given"
    return WrongArgumentsError(f"{name}() {problem}.", remedy=remedy)


def _suggest_settings(unknown: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """Return a hint at the parameter whose settings have a field `unknown`; empty if none has."""
    for name, parameter in parameters.items():
        for word in re.findall(r"\w+", str(parameter.annotation)):
            spelling = public_name(word)
            settings = operator.attrgetter(spelling[3:])(sys.modules[_OURS]) if spelling else None
            if isinstance(settings, type) and unknown in getattr(settings, _FIELDS, ()):
                return f"It is a setting of another: {name}={spelling}({unknown}=...). "
    return ""


def _suggest_argument(unknown: str, known: list[str]) -> str:
    """Return a question that suggests the known argument most like `unknown`; empty if none is."""
    for words, name in _WORDS:
        if name in known and words & set(re.split(r"[_\d]", unknown.lower())):
            return f"Did you mean {name!r}? "
    if name := spark_argument(unknown, known):
        return f"What others call {unknown} is {name}= here. "
    if unknown.lower() in _ELSEWHERE:
        return f"{_ELSEWHERE[unknown.lower()]} "
    return did_you_mean(unknown, known)


def spark_argument(name: object, known: Collection[str]) -> str:
    """Return which of the `known` arguments means what Spark calls `name`; empty if none does."""
    return next((ours for ours in _OF_SPARK.get(str(name).lower(), ()) if ours in known), "")


_OTHER_CALLS = {
    "tumbling": "Windows that overlap are hopping(length, every=...). ",
}
"""Call → advice where it gets more arguments by position than it takes."""

_FORMER = {
    "states": 'state={"total": gw.ValueState(int)}',
    "state_classes": "state=gw.ValueState(..., classes=...)",
    "state_upgrade": "state=gw.ValueState(..., upgrade=...)",
    "on_timer": 'timers=gw.types.OnTimer(function, clock="event")',
    "timer_order": "timers=gw.types.OnTimer(..., order=...)",
}
"""Former name of an argument → spelling to use in calls that have the argument before ``=``."""


_ELSEWHERE = {
    "outputmode": 'It is of the operator, as in compute(..., output="complete") or '
    'window(..., output="update"); without it, keys that changed are emitted.',
    "mode": "Every epoch is appended.",
    "multiline": "Each line holds one JSON object.",
    "checkpointlocation": "It is an argument of flow.start: checkpoint=.",
    "on": "Streams are joined by the columns of their key_by(...).",
    "condition": "Streams are joined by key and time; filter the result in a map.",
    "state": "A function of windows gets all rows of a window at once, and has no state.",
}
"""Names of Spark's options, in small letters → what to know where no argument means the same."""


_OF_SPARK = {
    "startingoffsets": ("start",),
    "startingtimestamp": ("start",),
    "auto_offset_reset": ("start",),
    "subscribe": ("topics", "topic"),
    "topic": ("topics",),
    "kafka.bootstrap.servers": ("servers",),
    "bootstrap_servers": ("servers",),
    "bootstrapservers": ("servers",),
    "maxoffsetspertrigger": ("max_rows_per_epoch",),
    "maxfilespertrigger": ("max_files_per_epoch",),
    "failondataloss": ("on_data_loss",),
    "kafka.group.id": ("group",),
    "groupidprefix": ("group",),
    "group_id": ("group",),
    "includeheaders": ("include",),
    "checkpointlocation": ("checkpoint",),
    "queryname": ("name",),
    "outputmode": ("mode", "output"),
    "pathglobfilter": ("pattern",),
    "sep": ("delimiter",),
    "nullvalue": ("null_values",),
    "multiline": ("newlines_in_values",),
    "columnnameofcorruptrecord": ("rejects",),
    "partitionby": ("partition_by",),
    "partitioncolumns": ("partition_by",),
    "dbtable": ("table",),
    "eventtime": ("event_time",),
    "delaythreshold": ("slack",),
    "rowspersecond": ("rows_per_second",),
    "windowduration": ("length", "size"),
    "slideduration": ("every",),
    "gapduration": ("gap",),
    "timemode": ("event_time",),
    "outputstructtype": ("output",),
    "statestructtype": ("state",),
    "ttlconfig": ("ttl",),
    "watermark": ("slack",),
    "watermarkdelay": ("slack",),
    "delay": ("slack",),
    "maxoutoforderness": ("slack",),
    "size": ("length",),
    "timeout": ("gap",),
    "schema": ("output",),
    "concurrency": ("capacity",),
    "maxconcurrency": ("capacity",),
}
"""Names of Spark's and Flink's options, in small letters → our arguments that mean the same."""

_WORDS = (
    (frozenset(["min", "minimum", "least"]), "min_executors"),
    (frozenset(["max", "maximum", "most"]), "max_executors"),
    (frozenset(["key", "primarykey"]), "keys"),
    (frozenset(["slide", "step", "hop"]), "every"),
)


def user_traceback(error: BaseException) -> str:
    """Return an error's traceback as text without this package's frames; empty if none are left.

    Causes of the error (``raise ... from``) are included in the same way.
    """
    report = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    pending: list[traceback.TracebackException | None] = [report]
    has_frames = False
    while pending:
        part = pending.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        frames = [frame for frame in part.stack if not frame.filename.startswith(_OUR_FILES)]
        has_frames = has_frames or bool(frames)
        part.stack = traceback.StackSummary.from_list(frames)
        pending += [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
    return "".join(report.format()) if has_frames else ""


def _advice_on_mistake(error: BaseException, key: tuple[object, ...] | None) -> str:
    """Return advice on a common mistake in a user's function, after a space; empty if none.

    `key`: that the function was called for; ``None``: many.
    """
    text = str(error)
    if isinstance(error, AttributeError) and type(error.obj).__module__.startswith("godwit."):
        if " It has " in text or " as in " in text:
            return ""  # it says so itself
        has = [name for name in dir(type(error.obj)) if not name.startswith("_")]
        return f" It has {', '.join(has)}."
    if isinstance(error, AttributeError):
        cls = type(error.obj)  # a row, perhaps, of a class of the user's
        fields = [*(getattr(cls, "__struct_fields__", None) or vars(cls).get(_FIELDS, ()))]
        if fields:
            return f" {did_you_mean(error.name or '', fields)}{cls.__name__} has {listing(fields)}."
    if isinstance(error, TypeError) and text.startswith("tuple indices must be integers"):
        return " A row is a named tuple: its column is row.name, and the key's value key[0]."
    if key is None:
        return ""
    if isinstance(error, AttributeError) and text.startswith("can't set attribute"):
        return " A row cannot be changed: make another, as in row._replace(column=...)."
    if text.startswith(("'State' object", "'ValueOfKey' object")):
        return " Its value is state.value."
    if text == "tuple index out of range" or " values to unpack" in text:
        return f" The key is a tuple of the columns of key_by, {key!r}."
    if isinstance(error, KeyError) and not _is_ours(error):
        return (
            f" If the state was asked for it: the state of a new key is empty, so take "
            f"state.get({text}, 0), or state.setdefault."
        )
    if isinstance(error, TypeError | AttributeError) and "tuple" in text and len(key) == 1:
        return f" The key is a tuple, even with one column, {key!r}: its value is key[0]."
    return ""


def _is_ours(error: BaseException) -> bool:
    """Return whether an error was raised by this package, and not by the user's code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return frames is not None and _is_own_frame(frames)


def function_failed(
    operator: str,
    function: Callable[..., object],
    key: tuple[object, ...] | None,
    error: BaseException,
    *,
    called: str,
    attempts: int = 1,
    rows_of: str = "",
) -> UserFunctionError:
    """Return the error that a user's function of an operator raised `error`.

    `key`: the key of the call; ``None``: the call was for the rows that `rows_of` describes.
    `called`: the call as text, such as ``"function(key, rows, state)"``. `attempts`: number of
    calls.
    """
    text = user_traceback(error)
    called_for = rows_of if key is None else f"key {key!r}"
    if not text:
        # No frame of the user's: the function ran, but returned something not iterable.
        problem = f"returned something that is not rows, for {called_for}: {error}"
        remedy = "Return a list of tuples or dicts, yield them, or return None."
        if _AWAITABLE.search(str(error)):
            remedy = AWAIT
    else:
        problem = f"raised {type(error).__qualname__} for {called_for}"
        if attempts > 1:
            problem += f", in the last of {attempts} attempts"
        error_message, correction = str(error), "Correct the function."
        if isinstance(error, GodwitError):  # of what the function was given, such as a state
            error_message, correction = error.message, error.remedy or correction
        else:
            correction += _advice_on_mistake(error, key) + passed_on_hint(function, error, called)
        problem += f": {error_message.removesuffix('.')}" if error_message else ""
        remedy = f"{correction} Its traceback is:\n{text}"
        if isinstance(error, SystemExit):
            remedy = (
                "To stop a query, call query.stop() where it was started; to skip the rest "
                f"of a key's rows, return. The call came from:\n{text}"
            )
    return UserFunctionError(
        f"Function {function_name(function)!r} of operator {operator!r} {problem}.",
        remedy=remedy,
        operator=operator,
        **({} if key is None else {"key": key}),
        error=type(error).__qualname__,
        traceback=text,
    )
