"""Rules for names of sources, operators, sinks and columns, and messages about wrong ones.

An operator's state is found again by the operator's name, so a default name depends only on what
the operator does, never on the order in which the program builds its operators.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import re
import sys
from importlib import import_module
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from godwit.model.errors import InvalidFlowError
from godwit.model.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from godwit.model.errors import GodwitError

RESERVED_PREFIX = "__godwit"
"""Columns that the runtime adds to a stream begin with this."""

MAX_NAME_LENGTH = 120
"""Names become parts of file names, which have 255 bytes on common file systems."""

_NAME = re.compile(r"\w[\w.\-]*")


class NoSuchCallError(InvalidFlowError, AttributeError):
    """There is no such name; also an AttributeError, so that ``hasattr`` works."""


def type_name(value: object) -> str:
    """Return the name of the type of `value` (or of `value`, if it is a type) for messages."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def is_one_of(value: object, known: Collection[str]) -> bool:
    """Return whether a value is a text and one of the `known` ones."""
    return isinstance(value, str) and value in known


def listing(names: Collection[str], limit: int = 20) -> str:
    """Return names in quotes as text; beyond `limit`, only the number of the others.

    Examples
    --------
    >>> listing(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(name) for name in list(names)[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a question that suggests the known names closest to `name`; empty if none is close.

    Examples
    --------
    >>> did_you_mean("tailnumber", ["tailnum", "year"])
    "Did you mean 'tailnum'? "
    """
    by_case = {candidate.casefold(): candidate for candidate in reversed(known)}
    close = difflib.get_close_matches(name.casefold(), list(by_case), n=3, cutoff=0.6)
    if not close:
        return ""
    return f"Did you mean {' or '.join(repr(by_case[match]) for match in close)}? "


def error_line(error: BaseException) -> str:
    r"""Return an error as one line: its type, and the first line of its text.

    Examples
    --------
    >>> error_line(ValueError("no such column\nat line 3"))
    'ValueError: no such column'
    """
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {printable(lines[0])}" if lines else type(error).__name__


def check_name(kind: str, name: object) -> str:
    """Return the name of a flow, source, operator or sink (`kind`); raise if it is not valid.

    Raises `InvalidFlowError` if it is not text, is empty or too long, or cannot be part of a file
    name.
    """
    if not isinstance(name, str):
        raise InvalidFlowError(
            f"The name of a {kind} must be text, but a value of type {type_name(name)} was given.",
            remedy=f"Give the {kind} a name such as 'flights'.",
        )
    if not _NAME.fullmatch(name) or name.startswith(RESERVED_PREFIX):
        raise InvalidFlowError(
            f"{name!r} cannot be the name of {'an' if kind[0] in 'aeiou' else 'a'} {kind}.",
            remedy="Use letters, digits, '_', '-' and '.', beginning with a letter, a digit or "
            f"'_', but not with {RESERVED_PREFIX!r}.",
            name=name,
        )
    if len(name.encode()) > MAX_NAME_LENGTH:
        raise InvalidFlowError(
            f"The name {name[:40]!r}... of a {kind} has {len(name.encode())} bytes.",
            remedy=f"Give the {kind} a name (name=) of at most {MAX_NAME_LENGTH} bytes.",
            name=name,
        )
    return name


def check_unique(kind: str, name: str, taken: Collection[str], flow: str) -> None:
    """Raise `InvalidFlowError` if another source, operator or sink (`kind`) has the name.

    `taken`: names in use in the flow.
    """
    if name in taken:
        raise InvalidFlowError(
            f"The name {name!r} is taken by another {kind} of flow {flow!r}.",
            remedy=f"Give one of the two another name; the {kind}s are {listing(taken)}.",
            flow=flow,
            name=name,
        )


@contextlib.contextmanager
def needs_package(what: str, package: str, extra: str, error: type[GodwitError]) -> Iterator[None]:
    """Context that imports something of an optional package; raise `error` if that is missing.

    `what`: user of the package, for the error. `extra`: extra of Godwit's that installs it.
    """
    try:
        yield
    except ImportError as cause:
        raise error(
            f"{what} needs {package}, which cannot be imported: {cause}.",
            remedy=f"pip install 'godwit-streams[{extra}]'",
            package=package,
        ) from cause


def no_such_name(
    module: str, name: str, known: Sequence[str], meant: Mapping[str, str]
) -> AttributeError:
    """Return the error for an unknown name of a module, with a suggestion.

    `known`: its public names. `meant`: names of other libraries → what to use instead.
    """
    problem = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(problem)
    remedy = f"{did_you_mean(name, known)}There are {listing(known, limit=len(known))}."
    if name in meant:
        remedy = f"Use {meant[name].replace('{name}', name)}."
    return NoSuchCallError(f"{problem}.", remedy=remedy, call=name)


def lazily(
    module: str, homes: Mapping[str, Sequence[str]], meant: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module that imports a name at its first use.

    `homes`: module → names that it defines. `meant`: names of other libraries, as above.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        """Import a name of the module; raise an `AttributeError` for an unknown one."""
        if name not in home_of:
            raise no_such_name(module, name, sorted(home_of), meant)
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return find, lambda: sorted(home_of)


def public_name(name: str) -> str:
    """Return the spelling of a public name, such as ``gw.control.Budget``; empty if unknown."""
    package = sys.modules[__name__.partition(".")[0]]
    if name in dir(package):
        return f"gw.{name}"
    rooms = ("control", "errors", "migration", "types")
    return next(
        (f"gw.{room}.{name}" for room in rooms if name in getattr(package, room).__all__), ""
    )


def check_number(
    what: str, value: Any, *, least: float, error: type[GodwitError], whole: bool = True
) -> None:
    """Raise `error` unless a setting (`what`) is a number of at least `least`.

    `whole`: it must be an integer.
    """
    kind = Integral if whole else Real
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if is_number and value >= least:
        return
    given_text = (
        repr(value) if isinstance(value, Real) else f"{value!r}, of type {type(value).__name__}"
    )
    raise error(
        f"{what} is {given_text}.",
        remedy=f"Give at least {least}{', a whole number' if whole else ''}.",
        value=value,
    )


def check_column_names(names: Iterable[str], where: str) -> None:
    """Raise `InvalidFlowError` for column names that are reserved, duplicate or differ by case.

    Spark, Delta and most readers of Parquet do not tell names apart that differ in case only.
    `where`: the columns' place, for errors.
    """
    seen: dict[str, str] = {}
    for name in names:
        if name.startswith(RESERVED_PREFIX):
            raise InvalidFlowError(
                f"{where} has a column {name!r}; names that begin with {RESERVED_PREFIX!r} are "
                "reserved.",
                remedy="Give the column another name.",
                column=name,
            )
        twin = seen.get(name.lower())
        if twin is not None:
            raise InvalidFlowError(
                f"{where} has two columns named {name!r}."
                if twin == name
                else f"{where} has columns {twin!r} and {name!r}, which differ in case only.",
                remedy="Drop one of them, or give it another name (in a map, toDF(...) renames by "
                "position).",
                column=name,
            )
        seen[name.lower()] = name


def function_name(function: Callable[..., object]) -> str:
    """Return the name of a user's function, for messages and default names.

    Examples
    --------
    >>> function_name(functools.partial(sorted, reverse=True))
    'sorted'
    """
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def keys_text(keys: Collection[str]) -> str:
    """Return key columns as text, such as ``by plane``; without any, all rows are together."""
    return f"by {', '.join(keys)}" if keys else "as a whole"


def default_name(sources: Sequence[str], action: str, keys: Collection[str]) -> str:
    """Return an operator's default name, made of its sources, its action and its key columns.

    Examples
    --------
    >>> default_name(["flights"], "total", ["tailnum", "year"])
    'flights_total_by_tailnum_year'
    >>> default_name(["buses", "trams", "ferries"], "delay", ["line"])
    'buses_and_2_more_delay_by_line'
    """
    first, others = "_and_".join(sources), len(sources) - 1
    if others > 1:
        first = f"{sources[0]}_and_{others}_more"
    text = "_".join([first, action, *(["by", *keys] if keys else ["of_all"])])
    return re.sub(r"[^\w.\-]+", "_", text)


def results_name(results: Collection[str]) -> str:
    """Return a name made of an operator's results; of many, the first two and a number.

    Examples
    --------
    >>> results_name(["total", "flights"]), results_name("abcde")
    ('total_flights', 'a_b_3_more')
    """
    names = list(results)
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2}_more"]
    return "_".join(names)
