"""Registry of planners: objective, constraints and cost of each, by name.

`PLANNERS` is what `godwit plan --help` prints and `godwit plan compare` goes through.  A planner is
a function ``plan_<name>(problem, **options) -> Solution`` in the module
``godwit.planning.<module>``, which is imported when it is first used, so a missing optional solver
disturbs only the planners that need it.  To add one: write the function, and add one entry.

Invariant: a planner's function is called only with a problem of its kind that it does not refuse,
and with options that exist and have values of the right type.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from godwit_lab.planners.cores.core_assignment import CoreAssignmentProblem
from godwit_lab.planners.intervals.projected import ProjectedCost, Transitions

from godwit.model.errors import InvalidProblemError
from godwit.model.naming import did_you_mean
from godwit.planning.arrays import is_contiguous, wrong_value
from godwit.planning.cores.core_allocation import CoreAllocationProblem
from godwit.planning.fusion import FusionProblem
from godwit.planning.problem import Problem
from godwit.planning.solution import Solution

_Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Number = _Whole | float


class _Matrix(msgspec.Struct, forbid_unknown_fields=True):
    """Plain values of `Transitions`."""

    sizes: tuple[_Whole, ...]
    probability: list[list[_Number]]


_OF_PROGRAMS: Mapping[Any, str] = {
    Callable: "give a function that returns seconds",
    np.random.Generator: "give a numpy.random.Generator",
    ProjectedCost: "give a table made by `godwit plan precompute`",
}
"""Types of options that only a program can pass, and JSON cannot."""


def read_option(value: Any, kind: Any, name: str) -> Any:
    """Return a planner's option converted to the type `kind`.

    Raises `InvalidProblemError`, with the option's `name`, if it cannot be.
    """
    if kind in _OF_PROGRAMS:
        if not isinstance(value, kind):
            raise wrong_value(name, value, _OF_PROGRAMS[kind])
        return value
    if kind is Transitions:
        if value is None or isinstance(value, Transitions):
            return value
        matrix = read_option(value, _Matrix, name)
        return Transitions(sizes=matrix.sizes, probability=matrix.probability)
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
    requires: tuple[Requirement, ...] = ()
    # limits that it does not keep: a problem that has one is refused. A baseline may break other
    # limits, and its solution then says so.
    refuses: tuple[str, ...] = ()
    # options by name, and the types of their values
    takes: Mapping[str, Any] = field(default_factory=dict)
    # options by which it plans for a stream unless told otherwise: an answer soon is worth more
    # there than a proof
    for_streams: Mapping[str, Any] = field(default_factory=dict)

    @property
    def plans_intervals(self) -> bool:
        """True if plans give every executor one range of key groups."""
        return self.module.startswith("intervals.")

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
        """Return option → its default value."""
        parameters = inspect.signature(self.load()).parameters
        return {name: parameters[name].default for name in self.takes}

    def __call__(self, problem: Any, **options: Any) -> Any:
        """Plan, after checking that the problem is one this planner can take.

        `options` are those of `takes`, and ``clock`` and ``rng`` where the planner's function has
        them. Raises `InvalidProblemError` if the problem is of another kind or refused, or if an
        option does not exist or has a value of the wrong type.
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


ASKED: Mapping[str, type] = MappingProxyType(
    {
        "assignment": Problem,
        "core_allocation": CoreAllocationProblem,
        "core_assignment": CoreAssignmentProblem,
        "fusion": FusionProblem,
    }
)
"""Kinds of problems, by the name they have in JSON."""


_ALWAYS: Mapping[str, Any] = {"clock": Callable, "rng": np.random.Generator}
_SOLVER = {"time_limit_s": _Number, "node_limit": _Whole | None, "patience": _Whole}
_RING = {"points": _Whole, "seed": _Whole}

_intervals = partial(Planner, kind="exact", requires=(one_range_each, equal_executors, some_tau))
_baseline = partial(Planner, module="baselines", kind="baseline")
_map_baseline = partial(
    _baseline, requires=(arbitrary_maps,), refuses=("max_usage", "target_executors")
)
_REGISTERED = (
    _intervals(
        name="ssm",
        module="intervals.ssm",
        minimises="bytes moved by one migration",
        constraints="intervals; load within tau; target_executors, max_usage, max_bytes",
        cost="time O(m·r·n'), r = longest interval within the bound (paper: O(m²·n'))",
        paper="1 §4.3",
        refuses=("max_moves",),
    ),
    _intervals(
        name="simple_ssm",
        module="intervals.ssm",
        minimises="bytes moved by one migration",
        constraints="as ssm; the oracle that ssm is checked against",
        cost="time O(m³·n³·n'²), space O(m²·n²·n'): refuses m·n·n' above 2,000",
        paper="1 §4.2",
        refuses=("max_moves",),
    ),
    _intervals(
        name="oms",
        module="intervals.oms",
        minimises="bytes moved by a known sequence of migrations",
        constraints="as ssm, after every migration",
        cost="partitionings per step, squared; refuses or samples what cannot be enumerated",
        paper="1 §5.1",
        refuses=("max_moves", "max_bytes"),
        takes={
            "targets": tuple[_Whole, ...],
            "taus": tuple[_Number, ...],
            "sample": _Whole | None,
        },
    ),
    _intervals(
        name="mtm",
        module="intervals.mtm",
        minimises="bytes moved now plus the projected (discounted, expected) bytes later",
        constraints="as ssm",
        cost="one pass over the partitionings, after a pre-computation (PMC)",
        paper="1 §5.2",
        refuses=("max_moves", "max_bytes", "max_usage"),
        takes={
            "projected": ProjectedCost,
            "transitions": Transitions,
            "gamma": _Number,
            "max_drift": _Number,
        },
    ),
    _baseline(
        name="consistent_hashing",
        minimises="nothing: balances the number of key groups, moves few of them",
        constraints="none (ignores load and limits)",
        cost="O((m + n·points) log(n·points))",
        paper="1 §6, appendix A",
        refuses=("max_usage",),
        takes=_RING | {"equal_counts": bool},
    ),
    _baseline(
        name="storm_default",
        minimises="nothing: the same number of consecutive key groups for everyone",
        constraints="intervals (ignores load and limits)",
        cost="O(m)",
        paper="1 §6",
        refuses=("max_usage",),
    ),
    _baseline(
        name="redistribution",
        minimises="imbalance plus migration, greedily, over the heaviest key groups",
        constraints="explicit map for heavy key groups, consistent hash for the rest",
        cost="O(m log m + heavy·n)",
        paper="1 §6 (Gedik 2014)",
        refuses=("max_usage",),
        takes=_RING | {"heavy_share": _Number, "migration_weight": _Number},
    ),
    Planner(
        name="milp",
        module="allocation.milp",
        kind="exact",
        minimises="load distance, then load left to drain, then over- plus underload",
        constraints="max_moves, max_bytes, max_usage, tau, target_executors; drains",
        cost="exact up to 600 binaries; beyond, the time limit, with a bound and a gap",
        paper="2 §4.3.1",
        requires=(arbitrary_maps,),
        takes=_SOLVER | {"rounds": _Whole, "least_gain": _Number, "gap": _Number},
        # What the controller takes, too: a tenth of the load distance that it puts up with.
        for_streams={"gap": 1.0},
    ),
    Planner(
        name="albic",
        module="allocation.albic",
        kind="heuristic",
        minimises="load distance down to even_enough, then traffic between executors",
        constraints="as milp; collocated key groups move as one, some busy pairs meet",
        cost="the time limit, for at most maxPL/stepPL + log(pairs) attempts",
        paper="2 §4.3.2",
        requires=(arbitrary_maps, some_traffic),
        takes=_SOLVER
        | {
            "max_load_distance": _Number,
            "max_partition_load": _Number,
            "partition_step": _Number,
            "score_factor": _Number,
            "pairs": _Whole,
            "even_enough": _Number,
        },
    ),
    _map_baseline(
        name="flux",
        minimises="variance of load, pair by pair",
        constraints="max_moves, max_bytes",
        cost="O(moves·(m + n log n))",
        paper="2 §5.1 (Shah 2003)",
    ),
    _map_baseline(
        name="potc",
        minimises="imbalance, by splitting every key group over two executors and merging",
        constraints="two candidates per key group (ignores limits)",
        cost="O(m)",
        paper="2 §5.2 (Nasir 2015)",
        takes={"seed": _Whole, "merge_cost": _Number, "merge_load": _Number},
    ),
    _baseline(
        name="cola",
        module="allocation.cola",
        minimises="traffic between executors, from scratch",
        constraints="load distance at most max_load_distance percent (ignores limits)",
        cost="O(parts·(e + parts·log n))",
        paper="2 §5.3 (Khandekar 2009)",
        requires=(arbitrary_maps, some_traffic),
        refuses=("max_usage", "target_executors"),
        takes={"max_load_distance": _Number},
    ),
    Planner(
        name="elb",
        module="balancing",
        kind="heuristic",
        minimises="state moved and imbalance, by putting every load into a range",
        constraints="load_low, load_high, target_executors; adds and empties executors",
        cost="O(m log m + moves·n)",
        paper="4 §3",
        requires=(arbitrary_maps, a_load_range),
        refuses=("max_moves", "max_bytes", "max_usage", "tau"),
        takes={"resize": bool, "giving": Literal["range", "mean"]},
    ),
    Planner(
        name="clb",
        module="balancing",
        kind="heuristic",
        minimises="variance of load summed over the windows of the history",
        constraints="target_executors (state movement is amortised over the windows)",
        cost="O(m²·windows)",
        paper="4 §4",
        requires=(arbitrary_maps, two_windows),
        refuses=("max_moves", "max_bytes", "max_usage", "tau"),
        takes={"threshold": _Number, "refine": _Whole, "least_gain": _Number},
    ),
    _map_baseline(
        name="pkg",
        minimises="imbalance, between two candidates per key group",
        constraints="two candidates per key group (ignores limits)",
        cost="O(m)",
        paper="4 §5 (Nasir 2015)",
        takes={"seed": _Whole},
    ),
    _map_baseline(
        name="universal_hashing",
        minimises="nothing: a new random hash function every time",
        constraints="none (ignores load and limits)",
        cost="O(m)",
        paper="4 §5 (UHLB)",
        takes={"choices": _Whole},
    ),
    Planner(
        name="intra_executor",
        module="cores.intra_executor",
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
        module="cores.core_allocation",
        kind="exact",
        minimises="cores in total",
        constraints="mean latency of the queueing network at most the target",
        cost="O(m log m + cores·log m)",
        paper="5 §4.1",
        asks="core_allocation",
    ),
    Planner(
        name="core_assignment",
        module="cores.core_assignment",
        kind="heuristic",
        minimises="bytes of state that leave a machine",
        constraints="cores per machine and executor; data-intensive executors stay local",
        cost="O(moves·(n + m)) per doubling of phi",
        paper="5 §4.2",
        asks="core_assignment",
        takes={"phi_bytes_per_s": _Number},
    ),
    Planner(
        name="naive_core_assignment",
        module="cores.core_assignment",
        kind="baseline",
        minimises="nothing: deals the cores out anew",
        constraints="cores per machine and executor",
        cost="O(cores)",
        paper="5 §5.4",
        asks="core_assignment",
    ),
    Planner(
        name="fusion",
        module="fusion",
        kind="heuristic",
        minimises="rows between components (score traffic) or components (attributes)",
        constraints="a shared partition attribute per component; no cycle of components",
        cost="O(streams·log(streams) + operators²), mostly",
        paper="3 §4.4.1",
        asks="fusion",
        takes={"score": Literal["traffic", "attributes", "baseline"], "acyclic": bool},
    ),
)
PLANNERS: Mapping[str, Planner] = MappingProxyType({entry.name: entry for entry in _REGISTERED})
"""Every planner, by name, in the order of the papers."""


def planner(name: str) -> Planner:
    """Return the planner of this name.

    Raises
    ------
    InvalidProblemError
        If there is none of that name.
    """
    if name not in PLANNERS:
        raise InvalidProblemError(
            f"method = {name!r} is not a planner.",
            remedy=f"{did_you_mean(str(name), list(PLANNERS))}Choose one of {', '.join(PLANNERS)}.",
            field="method",
            value=name,
        )
    return PLANNERS[name]
