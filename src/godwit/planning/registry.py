"""Every planner by name: what it minimises, under which constraints, at what cost.

The registry is what `godwit plan --help` prints and what `godwit plan compare` goes through.
Entries are data: a planner's module is imported when it is first used, so a missing optional solver
disturbs only the planners that need it.

A planner is a function ``plan_<name>(problem, *, clock=time.perf_counter, **options) -> Solution``
in the module ``godwit.planning.<module>``.  To add one: write the module, and add one entry
to `PLANNERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from godwit.model.errors import InvalidProblemError
from godwit.planning.intervals.partitionings import Transitions
from godwit.planning.intervals.projected import ProjectedCost
from godwit.planning.planner import (
    ARRAY,
    FLAG,
    NUMBER,
    NUMBERS,
    WHOLE,
    WHOLES,
    Planner,
    a_load_range,
    arbitrary_maps,
    equal_executors,
    none_draining,
    one_of,
    one_range_each,
    optional,
    port,
    some_tau,
    some_traffic,
    two_windows,
    wrong_field,
)

__all__ = ["PLANNERS", "Planner", "planner"]


def _read_transitions(value: object, name: str) -> object:
    if value is None or isinstance(value, Transitions):
        return value
    if not isinstance(value, Mapping) or set(value) != {"sizes", "probability"}:
        raise wrong_field(name, value, "Give an object with sizes and probability.")
    return Transitions(
        sizes=WHOLES(value["sizes"], f"{name}.sizes"),
        probability=ARRAY(value["probability"], f"{name}.probability"),
    )


_PROJECTED = port(ProjectedCost, "Give a table made by `godwit plan precompute`.")
_SOLVER = {
    "time_limit_s": NUMBER,
    "node_limit": optional(WHOLE),
    "patience": WHOLE,
}
_RING = {"points": WHOLE, "seed": WHOLE}
_INTERVALS_WITHIN_TAU = (one_range_each, equal_executors, some_tau)

PLANNERS: Mapping[str, Planner] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Planner(
                name="ssm",
                module="intervals.ssm",
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
                module="intervals.simple_ssm",
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
                module="intervals.oms",
                kind="exact",
                minimises="bytes moved by a known sequence of migrations",
                constraints="as ssm, after every migration",
                cost="partitionings per step, squared; refuses what cannot be enumerated",
                paper="1 §5.1",
                requires=_INTERVALS_WITHIN_TAU,
                refuses=("max_moves", "max_bytes"),
                takes={"targets": WHOLES, "taus": NUMBERS},
            ),
            Planner(
                name="mtm",
                module="intervals.mtm",
                kind="exact",
                minimises="bytes moved now plus the projected (discounted, expected) bytes later",
                constraints="as ssm",
                cost="one pass over the partitionings, after a pre-computation (PMC)",
                paper="1 §5.2",
                requires=_INTERVALS_WITHIN_TAU,
                refuses=("max_moves", "max_bytes", "max_usage"),
                takes={
                    "projected": _PROJECTED,
                    "transitions": _read_transitions,
                    "gamma": NUMBER,
                    "max_drift": NUMBER,
                },
            ),
            Planner(
                name="consistent_hashing",
                module="baselines",
                kind="baseline",
                minimises="nothing: balances the number of key groups, moves few of them",
                constraints="none (ignores load and limits)",
                cost="O((m + n·points) log(n·points))",
                paper="1 §6, appendix A",
                refuses=("max_usage",),
                takes=_RING | {"equal_counts": FLAG},
            ),
            Planner(
                name="storm_default",
                module="baselines",
                kind="baseline",
                minimises="nothing: the same number of consecutive key groups for everyone",
                constraints="intervals (ignores load and limits)",
                cost="O(m)",
                paper="1 §6",
                refuses=("max_usage",),
            ),
            Planner(
                name="redistribution",
                module="baselines",
                kind="baseline",
                minimises="imbalance plus migration, greedily, over the heaviest key groups",
                constraints="explicit map for heavy key groups, consistent hash for the rest",
                cost="O(m log m + heavy·n)",
                paper="1 §6 (Gedik 2014)",
                refuses=("max_usage",),
                takes=_RING | {"heavy_share": NUMBER, "migration_weight": NUMBER},
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
                takes=_SOLVER | {"rounds": WHOLE, "least_gain": NUMBER},
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
                    "max_load_distance": NUMBER,
                    "max_partition_load": NUMBER,
                    "partition_step": NUMBER,
                    "score_factor": NUMBER,
                    "pairs": WHOLE,
                    "even_enough": NUMBER,
                },
            ),
            Planner(
                name="flux",
                module="baselines",
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
                module="baselines",
                kind="baseline",
                minimises="imbalance, by splitting every key group over two executors and merging",
                constraints="two candidates per key group (ignores limits)",
                cost="O(m)",
                paper="2 §5.2 (Nasir 2015)",
                requires=(arbitrary_maps,),
                refuses=("max_usage", "target_executors"),
                takes={"seed": WHOLE, "merge_cost": NUMBER, "merge_load": NUMBER},
            ),
            Planner(
                name="cola",
                module="allocation.cola",
                kind="baseline",
                minimises="traffic between executors, from scratch",
                constraints="load distance at most max_load_distance percent (ignores limits)",
                cost="O(parts·(e + parts·log n))",
                paper="2 §5.3 (Khandekar 2009)",
                requires=(arbitrary_maps, some_traffic),
                refuses=("max_usage", "target_executors"),
                takes={"max_load_distance": NUMBER},
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
                takes={"resize": FLAG, "giving": one_of("range", "mean")},
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
                takes={"threshold": NUMBER, "refine": WHOLE, "least_gain": NUMBER},
            ),
            Planner(
                name="pkg",
                module="baselines",
                kind="baseline",
                minimises="imbalance, between two candidates per key group",
                constraints="two candidates per key group (ignores limits)",
                cost="O(m)",
                paper="4 §5 (Nasir 2015)",
                requires=(arbitrary_maps,),
                refuses=("max_usage", "target_executors"),
                takes={"seed": WHOLE},
            ),
            Planner(
                name="universal_hashing",
                module="baselines",
                kind="baseline",
                minimises="nothing: a new random hash function every time",
                constraints="none (ignores load and limits)",
                cost="O(m)",
                paper="4 §5 (UHLB)",
                requires=(arbitrary_maps,),
                refuses=("max_usage", "target_executors"),
                takes={"choices": WHOLE},
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
                takes={"phi_bytes_per_s": NUMBER},
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
                takes={"score": one_of("traffic", "attributes", "baseline"), "acyclic": FLAG},
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
