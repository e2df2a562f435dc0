"""What is known of a planner before it runs: what it asks, refuses and takes.

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
from godwit.planning.components.fusion import FusionProblem
from godwit.planning.cores.core_allocation import CoreAllocationProblem
from godwit.planning.cores.core_assignment import CoreAssignmentProblem
from godwit.planning.plain_values import Plain, wrong_field
from godwit.planning.problem import Problem

__all__ = [
    "ASKED",
    "Planner",
    "a_load_range",
    "arbitrary_maps",
    "equal_executors",
    "none_draining",
    "one_range_each",
    "port",
    "some_tau",
    "some_traffic",
    "two_windows",
]

Requirement = Callable[[Problem], str]
"""Why a planner cannot take a problem, in a few words; empty if it can."""


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
    given = limits.load_low is not None and limits.load_high is not None
    return "" if given else "limits.load_low and limits.load_high are not given"


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
    """What is known of a planner before it runs.

    Attributes
    ----------
    name
        As in ``godwit plan NAME``.
    family
        Folder of its module, ``godwit.planning.<family>.<name>``.
    kind
        ``exact`` proves its optimum, ``heuristic`` does not, ``baseline`` is there to compare with.
    minimises, constraints, cost
        Sentences for people.
    paper
        Paper and section.
    asks
        Kind of problem, see `ASKED`.
    requires
        Checks a problem must pass; see `refusal`.
    refuses
        Limits that it does not keep: a problem that has one is refused. A baseline may break other
        limits, and its solution then says so.
    takes
        Options by name, and what their values have to be.
    """

    name: str
    family: str
    kind: Literal["exact", "heuristic", "baseline"]
    minimises: str
    constraints: str
    cost: str
    paper: str
    asks: str = "assignment"
    requires: tuple[Requirement, ...] = ()
    refuses: tuple[str, ...] = ()
    takes: Mapping[str, Plain] = field(default_factory=dict)

    def refusal(self, problem: Problem) -> str:
        """Why this planner cannot take `problem`; empty if it can."""
        reasons = [check(problem) for check in self.requires]
        reasons += [
            f"it does not keep limits.{name}"
            for name in self.refuses
            if getattr(problem.limits, name) is not None
        ]
        return "; ".join(filter(None, reasons))

    def load(self) -> Callable[..., Any]:
        """Import and return the planner's function.

        Raises
        ------
        InvalidProblemError
            If a solver that it needs is not installed.
        """
        try:
            module = importlib.import_module(f"godwit.planning.{self.family}.{self.name}")
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

        Parameters
        ----------
        problem
            Of the kind that the planner asks.
        **options
            Those of `takes`, and ``clock`` and ``rng`` where the planner's function has them.

        Raises
        ------
        InvalidProblemError
            If the problem is another kind or refused, or if an option does not exist or has a value
            of the wrong type.
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
        given = {}
        for name, value in options.items():
            port = _PORTS.get(name) if name in known else None
            plain = port or self.takes.get(name)
            if plain is None:
                raise InvalidProblemError(
                    f"Planner {self.name!r} has no option {name!r}.",
                    remedy=f"Its options are {', '.join(self.takes) or 'none'}.",
                    field=f"options.{name}",
                    value=value,
                )
            given[name] = plain.read(value, f"options.{name}")
        return function(problem, **given)


def port(kind: type | Callable[[object], bool], remedy: str) -> Plain:
    """Make the type of what a program may hand in and JSON cannot."""

    def read(value: object, name: str) -> object:
        fits = isinstance(value, kind) if isinstance(kind, type) else kind(value)
        if not fits:
            raise wrong_field(name, value, remedy)
        return value

    return Plain(read=read, schema={})


_PORTS = {
    "clock": port(callable, "Give a function that returns seconds."),
    "rng": port(np.random.Generator, "Give a numpy.random.Generator."),
}
"""What programs may hand in and JSON cannot."""

ASKED: Mapping[str, type] = MappingProxyType(
    {
        "assignment": Problem,
        "core_allocation": CoreAllocationProblem,
        "core_assignment": CoreAssignmentProblem,
        "fusion": FusionProblem,
    }
)
"""Kinds of problems, by the name they have in JSON."""
