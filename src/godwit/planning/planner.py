"""Description of a planner: the problems it takes and refuses, and its options.

Invariant: a planner's function is called only with a problem of its kind that it does not refuse,
and with options that exist and have values of the right type.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from godwit.model.errors import InvalidProblemError
from godwit.planning.arrays import is_contiguous
from godwit.planning.cores.core_allocation import CoreAllocationProblem
from godwit.planning.cores.core_assignment import CoreAssignmentProblem
from godwit.planning.fusion import FusionProblem
from godwit.planning.problem import Problem

__all__ = [
    "ARRAY",
    "ASKED",
    "FLAG",
    "NUMBER",
    "NUMBERS",
    "WHOLE",
    "WHOLES",
    "Planner",
    "Reader",
    "a_load_range",
    "arbitrary_maps",
    "equal_executors",
    "none_draining",
    "one_of",
    "one_range_each",
    "optional",
    "port",
    "some_tau",
    "some_traffic",
    "two_windows",
    "wrong_field",
]

Reader = Callable[[object, str], Any]
"""Read the value of an option, or raise `InvalidProblemError` with the name and the value."""


def wrong_field(name: str, value: object, remedy: str) -> InvalidProblemError:
    """Error that names a field, shows its value, shortened if it is long, and says what to give."""
    text = repr(value)
    shown = text if len(text) <= 200 else text[:200] + "..."
    return InvalidProblemError(
        f"{name} = {shown} is wrong.", remedy=remedy, field=name, value=value
    )


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise wrong_field(name, value, "Give a number.")
    try:
        float(value)
    except OverflowError:
        raise wrong_field(name, value, "Give a smaller number.") from None
    return value  # type: ignore[return-value]  # whole numbers stay whole


def _whole(value: object, name: str) -> int:
    number = _number(value, name)
    if isinstance(number, float) and not number.is_integer():
        raise wrong_field(name, value, "Give a whole number.")
    if abs(number) > np.iinfo(np.int64).max:
        raise wrong_field(name, value, "Give a smaller number.")
    return int(number)


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise wrong_field(name, value, "Give true or false.")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise wrong_field(name, value, "Give a text.")
    return value


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise wrong_field(name, value, "Give a list.")
    return list(value)


def _array(value: object, name: str) -> Any:
    items = value.tolist() if isinstance(value, np.ndarray) else _list(value, name)
    try:
        array = np.asarray(items)
    except (ValueError, OverflowError):
        raise wrong_field(name, items, "Give numbers, as many in each row.") from None
    if array.dtype.kind not in "fiub":
        odd = next((v for v in np.ravel(np.asarray(items, object)) if not _is_number(v)), items)
        raise wrong_field(name, odd, "Give numbers.")
    return array


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < np.inf


NUMBER = _number
WHOLE = _whole
FLAG = _flag
TEXT = _text
ARRAY = _array
"""Numbers, in as many dimensions as the field has."""


def list_of(item: Reader) -> Reader:
    """Make the type of a list, read as a tuple."""

    def read(value: object, name: str) -> tuple[Any, ...]:
        return tuple(item(part, f"{name}[{i}]") for i, part in enumerate(_list(value, name)))

    return read


def one_of(*texts: str) -> Reader:
    """Make the type of one of a few texts."""

    def read(value: object, name: str) -> str:
        if not isinstance(value, str) or value not in texts:
            raise wrong_field(name, value, f"Give one of {', '.join(texts)}.")
        return value

    return read


def optional(reader: Reader) -> Reader:
    """Make the type of what `reader` reads, or nothing."""

    def read(value: object, name: str) -> Any:
        return None if value is None else reader(value, name)

    return read


NUMBERS, WHOLES, TEXTS = list_of(NUMBER), list_of(WHOLE), list_of(TEXT)


def port(kind: type | Callable[[object], bool], remedy: str) -> Reader:
    """Make the type of what a program may hand in and JSON cannot."""

    def read(value: object, name: str) -> object:
        fits = isinstance(value, kind) if isinstance(kind, type) else kind(value)
        if not fits:
            raise wrong_field(name, value, remedy)
        return value

    return read


Requirement = Callable[[Problem], str]
"""Reason why a planner cannot take a problem, in a few words; empty if it can."""


def one_range_each(problem: Problem) -> str:
    """Every executor must own one range of key groups today."""
    if not is_contiguous(problem.current, problem.num_executors):
        return "the current assignment is not made of intervals"
    return ""


def equal_executors(problem: Problem) -> str:
    """Executors must have equal capacities."""
    return "" if problem.homogeneous else "executors have different capacities"


def two_windows(problem: Problem) -> str:
    """There must be a history of at least two windows."""
    return "" if len(problem.history) > 1 else "there are less than two windows of history"


def a_load_range(problem: Problem) -> str:
    """There must be a range that loads should be in."""
    limits = problem.limits
    complete = limits.load_low is not None and limits.load_high is not None
    return "" if complete else "limits.load_low and limits.load_high are not given"


def none_draining(problem: Problem) -> str:
    """No executor may drain."""
    return "an executor is draining" if problem.draining.any() else ""


def some_traffic(problem: Problem) -> str:
    """There must be traffic between key groups."""
    return "" if len(problem.traffic.rate) else "there is no traffic between key groups"


def some_tau(problem: Problem) -> str:
    """Tau, the load balancing threshold, must be given."""
    return "" if problem.limits.tau is not None else "limits.tau is not given"


def arbitrary_maps(problem: Problem) -> str:
    """Any map must do as an assignment."""
    return "intervals are wanted" if problem.intervals else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Description of a planner."""

    name: str  # as in ``godwit plan NAME``
    module: str  # where its function is, below ``godwit.planning``
    # ``exact`` proves its optimum, ``heuristic`` does not, ``baseline`` is there to compare with
    kind: Literal["exact", "heuristic", "baseline"]
    # sentences for people
    minimises: str
    constraints: str
    cost: str
    paper: str  # paper and section
    asks: str = "assignment"  # kind of problem, see `ASKED`
    requires: tuple[Requirement, ...] = ()  # checks a problem must pass; see `refusal`
    # limits that it does not keep: a problem that has one is refused. A baseline may break other
    # limits, and its solution then says so.
    refuses: tuple[str, ...] = ()
    # options by name, and what their values have to be
    takes: Mapping[str, Reader] = field(default_factory=dict)

    @property
    def plans_intervals(self) -> bool:
        """Return whether every executor gets one range of key groups."""
        return self.module.startswith("intervals.")

    def refusal(self, problem: Problem) -> str:
        """Return why this planner cannot take `problem`; empty if it can."""
        reasons = [check(problem) for check in self.requires]
        reasons += [
            f"it does not keep limits.{name}"
            for name in self.refuses
            if getattr(problem.limits, name) is not None
        ]
        return "; ".join(filter(None, reasons))

    def load(self) -> Callable[..., Any]:
        """Import and return the planner's function.

        Raises `InvalidProblemError` if a solver that it needs is not installed.
        """
        try:
            module = importlib.import_module(f"godwit.planning.{self.module}")
        except ModuleNotFoundError as error:
            raise InvalidProblemError(
                f"Planner {self.name!r} needs the package {error.name!r}, which is not installed.",
                remedy="Install godwit-streams[planning].",
                field="method",
                value=self.name,
            ) from error
        function: Callable[..., Any] = getattr(module, f"plan_{self.name}")
        return function

    def defaults(self) -> Mapping[str, Any]:
        """Values of the options that are not given."""
        parameters = inspect.signature(self.load()).parameters
        return {name: parameters[name].default for name in self.takes}

    def __call__(self, problem: Any, **options: Any) -> Any:
        """Plan, after checking that the problem is one this planner can take.

        `problem`: of the kind that the planner asks. `**options`: those of `takes`, and ``clock``
        and ``rng`` where the planner's function has them. Raises `InvalidProblemError` if the
        problem is another kind or refused, or if an option does not exist or has a value of the
        wrong type.
        """
        function, kind = self.load(), ASKED[self.asks]
        refusal = ""
        if not isinstance(problem, kind):
            refusal = f"it asks for a {kind.__name__}, not a {type(problem).__name__}"
        elif isinstance(problem, Problem):
            refusal = self.refusal(problem)
        if refusal:
            raise InvalidProblemError(
                f"Planner {self.name!r} cannot take this problem: {refusal}.",
                remedy="Change the problem, or see `godwit plan --help` for other planners.",
                field="method",
                value=self.name,
            )
        known = inspect.signature(function).parameters
        arguments = {}
        for name, value in options.items():
            port = _PORTS.get(name) if name in known else None
            reader = port or self.takes.get(name)
            if reader is None:
                raise InvalidProblemError(
                    f"Planner {self.name!r} has no option {name!r}.",
                    remedy=f"Its options are {', '.join(self.takes) or 'none'}.",
                    field=f"options.{name}",
                    value=value,
                )
            arguments[name] = reader(value, f"options.{name}")
        return function(problem, **arguments)


_PORTS = {
    "clock": port(callable, "Give a function that returns seconds."),
    "rng": port(np.random.Generator, "Give a numpy.random.Generator."),
}
"""Options that programs may pass and JSON cannot."""

ASKED: Mapping[str, type] = MappingProxyType(
    {
        "assignment": Problem,
        "core_allocation": CoreAllocationProblem,
        "core_assignment": CoreAssignmentProblem,
        "fusion": FusionProblem,
    }
)
"""Kinds of problems, by the name they have in JSON."""
