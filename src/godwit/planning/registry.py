"""Every planner by name: what it minimises, under which constraints, at what cost.

The registry is what `godwit plan --help` prints and what `godwit plan compare` goes through.
Entries are data: a planner's module is imported when it is first used, so a missing optional solver
disturbs only the planners that need it.

A planner is a function ``plan_<name>(problem, *, clock=time.perf_counter, **options) -> Solution``
in the module ``godwit.planning.<family>.<name>``.  To add one: write the module, and add one entry
to `PLANNERS`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from godwit.model.errors import InvalidProblemError
from godwit.planning.arrays import is_contiguous

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.planning.problem import Problem

__all__ = ["PLANNERS", "Planner", "planner"]

Requirement = Callable[["Problem"], str]
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
        Type of problem: ``assignment`` is `Problem`; ``cores`` and ``fusion`` have their own.
    requires
        Checks a problem must pass; see `refusal`.
    refuses
        Limits that it does not keep: a problem that has one is refused. A baseline may break other
        limits, and its solution then says so.
    """

    name: str
    family: str
    kind: Literal["exact", "heuristic", "baseline"]
    minimises: str
    constraints: str
    cost: str
    paper: str
    asks: Literal["assignment", "cores", "fusion"] = "assignment"
    requires: tuple[Requirement, ...] = ()
    refuses: tuple[str, ...] = ()

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
                remedy="Install godwit[planning].",
                field="method",
                value=self.name,
            ) from error
        function: Callable[..., Any] = getattr(module, f"plan_{self.name}")
        return function

    def options(self) -> Mapping[str, inspect.Parameter]:
        """Options of the planner's function by name, without clock and random generator."""
        parameters = inspect.signature(self.load()).parameters
        return {
            name: parameter
            for name, parameter in parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in {"clock", "rng"}
        }

    def __call__(self, problem: Any, **options: Any) -> Any:
        """Plan, after checking that the problem is one this planner can take.

        Raises
        ------
        InvalidProblemError
            If it is not, or if an option does not exist.
        """
        function = self.load()
        known = inspect.signature(function).parameters
        wanted = str(next(iter(known.values())).annotation)
        refusal = ""
        if type(problem).__name__ != wanted:
            refusal = f"it asks for a {wanted}, not a {type(problem).__name__}"
        elif self.asks == "assignment":
            refusal = self.refusal(problem)
        if refusal:
            raise InvalidProblemError(
                f"Planner {self.name!r} cannot take this problem: {refusal}.",
                remedy="Change the problem, or see `godwit plan --help` for other planners.",
                field="method",
                value=self.name,
            )
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise InvalidProblemError(
                f"Planner {self.name!r} has no option {unknown[0]!r}.",
                remedy=f"Its options are {', '.join(self.options()) or 'none'}.",
                field=f"options.{unknown[0]}",
                value=options[unknown[0]],
            )
        return function(problem, **options)


_INTERVALS_WITHIN_TAU = (one_range_each, equal_executors, some_tau)

PLANNERS: Mapping[str, Planner] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Planner(
                name="ssm",
                family="intervals",
                kind="exact",
                minimises="bytes moved by one migration",
                constraints="intervals; load within tau; target_executors, max_usage, max_bytes",
                cost="time O(m·r·n'), r = longest interval within the bound (paper: O(m²·n'))",
                paper="1 §4.3",
                requires=_INTERVALS_WITHIN_TAU,
                refuses=("max_moves",),
            ),
            Planner(
                name="simple_ssm",
                family="intervals",
                kind="exact",
                minimises="bytes moved by one migration",
                constraints="as ssm; the oracle that ssm is checked against",
                cost="time O(m³·n³·n'²), space O(m²·n²·n'): refuses m·n·n' above 2,000",
                paper="1 §4.2",
                requires=_INTERVALS_WITHIN_TAU,
                refuses=("max_moves",),
            ),
            Planner(
                name="oms",
                family="intervals",
                kind="exact",
                minimises="bytes moved by a known sequence of migrations",
                constraints="as ssm, after every migration",
                cost="partitionings per step, squared; refuses what cannot be enumerated",
                paper="1 §5.1",
                requires=_INTERVALS_WITHIN_TAU,
                refuses=("max_moves", "max_bytes"),
            ),
            Planner(
                name="mtm",
                family="intervals",
                kind="exact",
                minimises="bytes moved now plus the projected (discounted, expected) bytes later",
                constraints="as ssm",
                cost="one pass over the partitionings, after a pre-computation (PMC)",
                paper="1 §5.2",
                requires=_INTERVALS_WITHIN_TAU,
                refuses=("max_moves", "max_bytes", "max_usage"),
            ),
            Planner(
                name="consistent_hashing",
                family="baselines",
                kind="baseline",
                minimises="nothing: balances the number of key groups, moves few of them",
                constraints="none (ignores load and limits)",
                cost="O((m + n·points) log(n·points))",
                paper="1 §6, appendix A",
                refuses=("max_usage",),
            ),
            Planner(
                name="storm_default",
                family="baselines",
                kind="baseline",
                minimises="nothing: the same number of consecutive key groups for everyone",
                constraints="intervals (ignores load and limits)",
                cost="O(m)",
                paper="1 §6",
                refuses=("max_usage",),
            ),
            Planner(
                name="redistribution",
                family="baselines",
                kind="baseline",
                minimises="imbalance plus migration, greedily, over the heaviest key groups",
                constraints="explicit map for heavy key groups, consistent hash for the rest",
                cost="O(m log m + heavy·n)",
                paper="1 §6 (Gedik 2014)",
                refuses=("max_usage",),
            ),
            Planner(
                name="milp",
                family="allocation",
                kind="exact",
                minimises="load distance, then load left to drain, then over- plus underload",
                constraints="max_moves, max_bytes, max_usage, tau, target_executors; drains",
                cost="exact up to 600 binaries; beyond, the time limit, with a bound and a gap",
                paper="2 §4.3.1",
                requires=(arbitrary_maps,),
            ),
            Planner(
                name="albic",
                family="allocation",
                kind="heuristic",
                minimises="load distance down to even_enough, then traffic between executors",
                constraints="as milp; collocated key groups move as one, some busy pairs meet",
                cost="the time limit, for at most maxPL/stepPL + log(pairs) attempts",
                paper="2 §4.3.2",
                requires=(arbitrary_maps, some_traffic),
            ),
            Planner(
                name="flux",
                family="allocation",
                kind="baseline",
                minimises="variance of load, pair by pair",
                constraints="max_moves, max_bytes",
                cost="O(moves·(m + n log n))",
                paper="2 §5.1 (Shah 2003)",
                requires=(arbitrary_maps,),
                refuses=("max_usage", "target_executors"),
            ),
            Planner(
                name="potc",
                family="allocation",
                kind="baseline",
                minimises="imbalance, by splitting every key group over two executors and merging",
                constraints="two candidates per key group (ignores limits)",
                cost="O(m)",
                paper="2 §5.2 (Nasir 2015)",
                requires=(arbitrary_maps,),
                refuses=("max_usage", "target_executors"),
            ),
            Planner(
                name="cola",
                family="allocation",
                kind="baseline",
                minimises="traffic between executors, from scratch",
                constraints="load distance at most max_load_distance percent (ignores limits)",
                cost="O(parts·(e + parts·log n))",
                paper="2 §5.3 (Khandekar 2009)",
                requires=(arbitrary_maps, some_traffic),
                refuses=("max_usage", "target_executors"),
            ),
            Planner(
                name="elb",
                family="balancing",
                kind="heuristic",
                minimises="state moved and imbalance, by putting every load into a range",
                constraints="load_low, load_high, target_executors; adds and empties executors",
                cost="O(m log m)",
                paper="4 §3",
                requires=(arbitrary_maps, a_load_range),
                refuses=("max_moves", "max_bytes", "max_usage", "tau"),
            ),
            Planner(
                name="clb",
                family="balancing",
                kind="heuristic",
                minimises="variance of load summed over the windows of the history",
                constraints="target_executors (state movement is amortised over the windows)",
                cost="O(m²·windows)",
                paper="4 §4",
                requires=(arbitrary_maps, two_windows),
                refuses=("max_moves", "max_bytes", "max_usage", "tau"),
            ),
            Planner(
                name="pkg",
                family="balancing",
                kind="baseline",
                minimises="imbalance, between two candidates per key group",
                constraints="two candidates per key group (ignores limits)",
                cost="O(m)",
                paper="4 §5 (Nasir 2015)",
                requires=(arbitrary_maps,),
                refuses=("max_usage", "target_executors"),
            ),
            Planner(
                name="universal_hashing",
                family="balancing",
                kind="baseline",
                minimises="nothing: a new random hash function every time",
                constraints="none (ignores load and limits)",
                cost="O(m)",
                paper="4 §5 (UHLB)",
                requires=(arbitrary_maps,),
                refuses=("max_usage", "target_executors"),
            ),
            Planner(
                name="intra_executor",
                family="cores",
                kind="heuristic",
                minimises="reassignments between the lanes of one executor",
                constraints="busiest lane at most theta times the mean; max_moves",
                cost="O(m log m + rounds·log m)",
                paper="5 §3.1",
                requires=(arbitrary_maps, equal_executors, none_draining),
                refuses=("max_bytes", "max_usage", "target_executors", "tau"),
            ),
            Planner(
                name="core_allocation",
                family="cores",
                kind="exact",
                minimises="cores in total",
                constraints="mean latency of the queueing network at most the target",
                cost="O(m log m + cores·log m)",
                paper="5 §4.1",
                asks="cores",
            ),
            Planner(
                name="core_assignment",
                family="cores",
                kind="heuristic",
                minimises="bytes of state that leave a machine",
                constraints="cores per machine and executor; data-intensive executors stay local",
                cost="O(moves·(n + m)) per doubling of phi",
                paper="5 §4.2",
                asks="cores",
            ),
            Planner(
                name="naive_core_assignment",
                family="cores",
                kind="baseline",
                minimises="nothing: deals the cores out anew",
                constraints="cores per machine and executor",
                cost="O(cores)",
                paper="5 §5.4",
                asks="cores",
            ),
            Planner(
                name="fusion",
                family="components",
                kind="heuristic",
                minimises="rows between components (score traffic) or components (attributes)",
                constraints="a shared partition attribute per component; no cycle of components",
                cost="O(streams·log(streams) + operators²), mostly",
                paper="3 §4.4.1",
                asks="fusion",
            ),
        )
    }
)
"""Every planner, by name, in the order of the papers."""


def planner(name: str) -> Planner:
    """Find a planner.

    Raises
    ------
    InvalidProblemError
        If there is none of that name.
    """
    if name not in PLANNERS:
        raise InvalidProblemError(
            f"method = {name!r} is not a planner.",
            remedy=f"Choose one of {', '.join(PLANNERS)}.",
            field="method",
            value=name,
        )
    return PLANNERS[name]
