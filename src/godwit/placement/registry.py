"""Registry of planners: objective, constraints and cost of each, by name.

A planner is a function ``plan_<name>(problem, **options) -> Solution`` in a module that is imported
when the planner is first used, so a missing optional solver disturbs only the planners that need
it.  Packages add planners by entry points of the group ``godwit.planners``, each of which names a
`Planner`.

Invariant: a planner's function is called only with a problem of its kind that it does not refuse,
and with options that exist and have values of the right type.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from godwit.model import plugins
from godwit.model.errors import InvalidProblemError, PluginError
from godwit.model.naming import did_you_mean
from godwit.placement.arrays import is_contiguous, wrong_value
from godwit.placement.problem import Problem
from godwit.placement.solution import Solution

WholeNumber = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Number = WholeNumber | float

_OF_PROGRAMS: Mapping[Any, str] = {
    Callable: "give a function that returns seconds",
    np.random.Generator: "give a numpy.random.Generator",
}
"""Types of options that only a program can pass, and JSON cannot."""


def read_option(value: Any, kind: Any, name: str) -> Any:
    """Return a planner's option converted to the type `kind`.

    A class with a method ``from_option(value, name)`` converts values itself. Raises
    `InvalidProblemError`, with the option's `name`, if a value cannot be converted.
    """
    if kind in _OF_PROGRAMS:
        if not isinstance(value, kind):
            raise wrong_value(name, value, _OF_PROGRAMS[kind])
        return value
    if (convert := getattr(kind, "from_option", None)) is not None:
        return convert(value, name)
    try:
        return msgspec.convert(_to_json(value), kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        raise wrong_value(f"{name}{place.rstrip('`')}", value, problem) from None


def _to_json(value: Any) -> Any:
    """Return a value with NumPy arrays and numbers converted for JSON."""
    if isinstance(value, Mapping):
        return {key: _to_json(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@dataclass(frozen=True, slots=True)
class Requirement:
    """Property that a planner requires of a problem."""

    holds: Callable[[Problem], bool]
    otherwise: str  # why a problem is refused for which it does not hold, in a few words


one_range_each = Requirement(
    lambda problem: is_contiguous(problem.current, problem.num_executors),
    "the current assignment is not made of intervals",
)
equal_executors = Requirement(
    lambda problem: problem.homogeneous, "executors have different capacities"
)
two_windows = Requirement(
    lambda problem: len(problem.history) > 1, "there are less than two windows of history"
)
a_load_range = Requirement(
    lambda problem: None not in (problem.limits.load_low, problem.limits.load_high),
    "limits.load_low and limits.load_high are not given",
)
none_draining = Requirement(lambda problem: not problem.draining.any(), "an executor is draining")
some_traffic = Requirement(
    lambda problem: len(problem.traffic.rate) > 0, "there is no traffic between key groups"
)
some_tau = Requirement(lambda problem: problem.limits.tau is not None, "limits.tau is not given")
arbitrary_maps = Requirement(lambda problem: not problem.intervals, "intervals are wanted")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHistory:
    """Knowledge of a controller that asks a planner again."""

    sizes: tuple[int, ...]  # numbers of executors until now, oldest first
    problem: Problem
    given: Mapping[str, Any]  # options of the user
    rng: np.random.Generator  # the same one at every call


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Description of a planner."""

    name: str  # as in ``godwit plan NAME``
    module: str  # where its function is
    # ``exact`` proves its optimum, ``heuristic`` does not, ``baseline`` is there to compare with
    kind: Literal["exact", "heuristic", "baseline"]
    # sentences for people
    minimises: str
    constraints: str
    cost: str
    paper: str  # paper and section
    asks: type = Problem  # kind of problem
    requires: tuple[Requirement, ...] = ()
    # limits that it does not keep: a problem that has one is refused. A baseline may break other
    # limits, and its solution then says so.
    refuses: tuple[str, ...] = ()
    # options by name, and the types of their values
    takes: Mapping[str, Any] = field(default_factory=dict)
    # options by which it plans for a stream unless told otherwise: an answer soon is worth more
    # there than a proof
    for_streams: Mapping[str, Any] = field(default_factory=dict)
    # options that a controller does not take: name → what to do about it
    for_one_call: Mapping[str, str] = field(default_factory=dict)
    # returns further options, from what a controller knows of a stream's past
    from_history: Callable[[StreamHistory], Mapping[str, Any]] | None = None
    collocates: bool = False  # weighs traffic, so it plans all components of a stream together
    plans_intervals: bool = False  # plans give every executor one range of key groups
    # ``module:class`` of a `godwit.control.styles.PlacementStyle` that it needs; empty: the default
    style: str = ""

    def refusal(self, problem: Problem) -> str:
        """Return the reasons, as text, why this planner cannot take a problem; empty if it can."""
        reasons = [asked.otherwise for asked in self.requires if not asked.holds(problem)]
        reasons += [
            f"it does not keep limits.{name}"
            for name in self.refuses
            if getattr(problem.limits, name) is not None
        ]
        return "; ".join(reasons)

    def load(self) -> Callable[..., Any]:
        """Import and return the planner's function.

        Raises `InvalidProblemError` if a solver that it needs is not installed.
        """
        try:
            module = importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            raise InvalidProblemError(
                f"Planner {self.name!r} needs the package {error.name!r}, which is not installed.",
                remedy=f"pip install {error.name}",
                field="method",
                value=self.name,
            ) from error
        function: Callable[..., Any] = getattr(module, f"plan_{self.name}")
        return function

    def defaults(self) -> Mapping[str, Any]:
        """Return option → its default value."""
        parameters = inspect.signature(self.load()).parameters
        return {name: parameters[name].default for name in self.takes}

    def __call__(self, problem: Any, **options: Any) -> Any:
        """Plan, after checking that the problem is one this planner can take.

        `options` are those of `takes`, and ``clock`` and ``rng`` where the planner's function has
        them. Raises `InvalidProblemError` if the problem is of another kind or refused, or if an
        option does not exist or has a value of the wrong type.
        """
        function, kind = self.load(), self.asks
        refusal = ""
        if not isinstance(problem, kind):
            refusal = f"it asks for a {kind.__name__}, not a {type(problem).__name__}"
        elif isinstance(problem, Problem):
            refusal = self.refusal(problem)
        if refusal:
            raise InvalidProblemError(
                f"Planner {self.name!r} does not support this problem: {refusal}.",
                remedy="Change the problem, or use another planner.",
                field="method",
                value=self.name,
            )
        known = inspect.signature(function).parameters
        arguments = {}
        for name, value in options.items():
            kind = self.takes.get(name, _ALWAYS.get(name) if name in known else None)
            if kind is None:
                raise InvalidProblemError(
                    f"Planner {self.name!r} has no option {name!r}.",
                    remedy=f"Its options are {', '.join(self.takes) or 'none'}.",
                    field=f"options.{name}",
                    value=value,
                )
            arguments[name] = read_option(value, kind, f"options.{name}")
        began = time.perf_counter()
        answer = function(problem, **arguments)
        if isinstance(answer, Solution):
            return replace(answer, elapsed_s=time.perf_counter() - began)
        return answer


_ALWAYS: Mapping[str, Any] = {"clock": Callable, "rng": np.random.Generator}
SOLVER_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {"time_limit_s": Number, "node_limit": WholeNumber | None, "patience": WholeNumber}
)
"""Options of planners that use a solver."""

_OWN: Final = ("milp", "intra_executor")
"""The product's planners, which are shown first."""


class _Planners(Mapping[str, Planner]):
    """Planners of the installed packages, which are imported when they are used."""

    def __getitem__(self, name: str) -> Planner:
        """Return a planner; raise `KeyError` if no installed package has it."""
        if name not in plugins.names("planners"):
            raise KeyError(name)
        entry = plugins.load("planners", name)
        if not isinstance(entry, Planner) or entry.name != name:
            raise PluginError(
                f"The entry point {name!r} of the group godwit.planners is {entry!r}.",
                remedy="It has to name a godwit.placement.registry.Planner of the same name.",
            )
        return entry

    def __iter__(self) -> Iterator[str]:
        names = plugins.names("planners")
        yield from (name for name in _OWN if name in names)
        yield from (name for name in names if name not in _OWN)

    def __len__(self) -> int:
        return sum(1 for _ in self)


PLANNERS: Mapping[str, Planner] = _Planners()
"""Every planner of the installed packages, by name; the product's own first."""


def planner(name: str) -> Planner:
    """Return the planner of this name.

    Raises
    ------
    InvalidProblemError
        If there is none of that name, or its package is not installed or cannot be imported.
    """
    try:
        return PLANNERS[name]
    except KeyError:
        package = plugins.absent("planners").get(name)
    except PluginError as error:
        raise InvalidProblemError(
            error.message, remedy=error.remedy, field="method", value=name
        ) from error
    if package is not None:
        raise InvalidProblemError(
            f"planner {name!r} comes with {package}, which is not installed.",
            remedy=f"pip install {package}",
            field="method",
            value=name,
        )
    raise InvalidProblemError(
        f"method = {name!r} is not a planner.",
        remedy=f"{did_you_mean(str(name), list(PLANNERS))}Choose one of {', '.join(PLANNERS)}.",
        field="method",
        value=name,
    )
