"""Planners of the papers and what these compare with: descriptions, by name.

Each is an entry point of the group ``godwit.planners`` in ``lab/pyproject.toml``, so that
``gw.Control(planner=...)`` and `godwit plan` know it.  To add a planner: write the function,
describe it here, and add its entry point.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from godwit.control.planners.cores.core_allocation import CoreAllocationProblem
from godwit.control.planners.fusion import FusionProblem
from godwit.placement.registry import (
    SOLVER_OPTIONS,
    Number,
    Planner,
    WholeNumber,
    a_load_range,
    arbitrary_maps,
    equal_executors,
    one_range_each,
    some_tau,
    some_traffic,
    two_windows,
)
from godwit_lab.planners.cores.core_assignment import CoreAssignmentProblem
from godwit_lab.planners.intervals.projected import (
    ProjectedCost,
    Transitions,
    estimate_transitions,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.placement.registry import StreamHistory

_HERE = "godwit_lab.planners"


def _transitions(history: StreamHistory) -> Mapping[str, Any]:
    """Return the transition matrix of the numbers of executors so far, unless the user gave one."""
    if history.given.keys() & {"transitions", "projected"}:
        return {}
    sizes = sorted({*history.sizes, history.problem.target_executors})
    return {"transitions": estimate_transitions(history.sizes, sizes=sizes)}


_RING: Mapping[str, Any] = {"points": WholeNumber, "seed": WholeNumber}
_intervals = partial(
    Planner,
    kind="exact",
    requires=(one_range_each, equal_executors, some_tau),
    plans_intervals=True,
    style="godwit_lab.control.ranges:RangePlacement",
)
_baseline = partial(Planner, module=f"{_HERE}.baselines", kind="baseline")
_map_baseline = partial(
    _baseline, requires=(arbitrary_maps,), refuses=("max_usage", "target_executors")
)
ssm = _intervals(
    name="ssm",
    module=f"{_HERE}.intervals.ssm",
    minimises="bytes moved by one migration",
    constraints="intervals; load within tau; target_executors, max_usage, max_bytes",
    cost="time O(m·r·n'), r = longest interval within the bound (paper: O(m²·n'))",
    paper="1 §4.3",
    refuses=("max_moves",),
)
simple_ssm = _intervals(
    name="simple_ssm",
    module=f"{_HERE}.intervals.ssm",
    minimises="bytes moved by one migration",
    constraints="as ssm; the oracle that ssm is checked against",
    cost="time O(m³·n³·n'²), space O(m²·n²·n'): refuses m·n·n' above 2,000",
    paper="1 §4.2",
    refuses=("max_moves",),
)
oms = _intervals(
    name="oms",
    module=f"{_HERE}.intervals.oms",
    minimises="bytes moved by a known sequence of migrations",
    constraints="as ssm, after every migration",
    cost="partitionings per step, squared; refuses or samples what cannot be enumerated",
    paper="1 §5.1",
    refuses=("max_moves", "max_bytes"),
    takes={
        "targets": tuple[WholeNumber, ...],
        "taus": tuple[Number, ...],
        "sample": WholeNumber | None,
    },
    for_one_call={"taus": "gw.control.Search(limits=Limits(tau=...)) holds for every step"},
    style="godwit_lab.control.migration_sequence:SequencePlacement",
)
mtm = _intervals(
    name="mtm",
    module=f"{_HERE}.intervals.mtm",
    minimises="bytes moved now plus the projected (discounted, expected) bytes later",
    constraints="as ssm",
    cost="one pass over the partitionings, after a pre-computation (PMC)",
    paper="1 §5.2",
    refuses=("max_moves", "max_bytes", "max_usage"),
    takes={
        "projected": ProjectedCost,
        "transitions": Transitions,
        "gamma": Number,
        "max_drift": Number,
    },
    from_history=_transitions,
)
consistent_hashing = _baseline(
    name="consistent_hashing",
    minimises="nothing: balances the number of key groups, moves few of them",
    constraints="none (ignores load and limits)",
    cost="O((m + n·points) log(n·points))",
    paper="1 §6, appendix A",
    refuses=("max_usage",),
    takes={**_RING, "equal_counts": bool},
)
storm_default = _baseline(
    name="storm_default",
    minimises="nothing: the same number of consecutive key groups for everyone",
    constraints="intervals (ignores load and limits)",
    cost="O(m)",
    paper="1 §6",
    refuses=("max_usage",),
)
redistribution = _baseline(
    name="redistribution",
    minimises="imbalance plus migration, greedily, over the heaviest key groups",
    constraints="explicit map for heavy key groups, consistent hash for the rest",
    cost="O(m log m + heavy·n)",
    paper="1 §6 (Gedik 2014)",
    refuses=("max_usage",),
    takes={**_RING, "heavy_share": Number, "migration_weight": Number},
)
albic = Planner(
    name="albic",
    module=f"{_HERE}.allocation.albic",
    kind="heuristic",
    minimises="load distance down to even_enough, then traffic between executors",
    constraints="as milp; collocated key groups move as one, some busy pairs meet",
    cost="the time limit, for at most maxPL/stepPL + log(pairs) attempts",
    paper="2 §4.3.2",
    requires=(arbitrary_maps,),
    collocates=True,
    takes={
        **SOLVER_OPTIONS,
        "max_load_distance": Number,
        "max_partition_load": Number,
        "partition_step": Number,
        "score_factor": Number,
        "pairs": WholeNumber,
        "even_enough": Number,
    },
)
flux = _map_baseline(
    name="flux",
    minimises="variance of load, pair by pair",
    constraints="max_moves, max_bytes",
    cost="O(moves·(m + n log n))",
    paper="2 §5.1 (Shah 2003)",
)
potc = _map_baseline(
    name="potc",
    minimises="imbalance, by splitting every key group over two executors and merging",
    constraints="two candidates per key group (ignores limits)",
    cost="O(m)",
    paper="2 §5.2 (Nasir 2015)",
    takes={"seed": WholeNumber, "merge_cost": Number, "merge_load": Number},
)
cola = _baseline(
    name="cola",
    module=f"{_HERE}.allocation.cola",
    minimises="traffic between executors, from scratch",
    constraints="load distance at most max_load_distance percent (ignores limits)",
    cost="O(parts·(e + parts·log n))",
    paper="2 §5.3 (Khandekar 2009)",
    requires=(arbitrary_maps, some_traffic),
    collocates=True,
    refuses=("max_usage", "target_executors"),
    takes={"max_load_distance": Number},
)
elb = Planner(
    name="elb",
    module=f"{_HERE}.balancing",
    kind="heuristic",
    minimises="state moved and imbalance, by putting every load into a range",
    constraints="load_low, load_high, target_executors; adds and empties executors",
    cost="O(m log m + moves·n)",
    paper="4 §3",
    requires=(arbitrary_maps, a_load_range),
    refuses=("max_moves", "max_bytes", "max_usage", "tau"),
    takes={"resize": bool, "giving": Literal["range", "mean"]},
)
clb = Planner(
    name="clb",
    module=f"{_HERE}.balancing",
    kind="heuristic",
    minimises="variance of load summed over the windows of the history",
    constraints="target_executors (state movement is amortised over the windows)",
    cost="O(m²·windows)",
    paper="4 §4",
    requires=(arbitrary_maps, two_windows),
    refuses=("max_moves", "max_bytes", "max_usage", "tau"),
    takes={"threshold": Number, "refine": WholeNumber, "least_gain": Number},
)
pkg = _map_baseline(
    name="pkg",
    minimises="imbalance, between two candidates per key group",
    constraints="two candidates per key group (ignores limits)",
    cost="O(m)",
    paper="4 §5 (Nasir 2015)",
    takes={"seed": WholeNumber},
)
universal_hashing = _map_baseline(
    name="universal_hashing",
    minimises="nothing: a new random hash function every time",
    constraints="none (ignores load and limits)",
    cost="O(m)",
    paper="4 §5 (UHLB)",
    takes={"choices": WholeNumber},
    # another function every time
    from_history=lambda history: {"rng": history.rng},
)
core_allocation = Planner(
    name="core_allocation",
    module="godwit.control.planners.cores.core_allocation",
    kind="exact",
    minimises="cores in total",
    constraints="mean latency of the queueing network at most the target",
    cost="O(m log m + cores·log m)",
    paper="5 §4.1",
    asks=CoreAllocationProblem,
)
core_assignment = Planner(
    name="core_assignment",
    module=f"{_HERE}.cores.core_assignment",
    kind="heuristic",
    minimises="bytes of state that leave a machine",
    constraints="cores per machine and executor; data-intensive executors stay local",
    cost="O(moves·(n + m)) per doubling of phi",
    paper="5 §4.2",
    asks=CoreAssignmentProblem,
    takes={"phi_bytes_per_s": Number},
)
naive_core_assignment = Planner(
    name="naive_core_assignment",
    module=f"{_HERE}.cores.core_assignment",
    kind="baseline",
    minimises="nothing: reassigns all cores",
    constraints="cores per machine and executor",
    cost="O(cores)",
    paper="5 §5.4",
    asks=CoreAssignmentProblem,
)
fusion = Planner(
    name="fusion",
    module="godwit.control.planners.fusion",
    kind="heuristic",
    minimises="rows between components (score traffic) or components (attributes)",
    constraints="a shared partition attribute per component; no cycle of components",
    cost="O(streams·log(streams) + operators²), mostly",
    paper="3 §4.4.1",
    asks=FusionProblem,
    takes={"score": Literal["traffic", "attributes", "baseline"], "acyclic": bool},
)
