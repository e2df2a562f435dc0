"""Descriptions of the product's planners, which entry points name."""

from __future__ import annotations

from godwit.placement.registry import (
    SOLVER_OPTIONS,
    Number,
    Planner,
    WholeNumber,
    arbitrary_maps,
    equal_executors,
    none_draining,
)

milp = Planner(
    name="milp",
    module="godwit.control.planners.allocation.milp",
    kind="exact",
    minimises="load distance, then load left to drain, then over- plus underload",
    constraints="max_moves, max_bytes, max_usage, tau, target_executors; drains",
    cost="exact up to 600 binaries; beyond, the time limit, with a bound and a gap",
    paper="2 §4.3.1",
    requires=(arbitrary_maps,),
    takes={**SOLVER_OPTIONS, "rounds": WholeNumber, "least_gain": Number, "gap": Number},
    # What the controller takes, too: a tenth of the load distance that it puts up with.
    for_streams={"gap": 1.0},
)

intra_executor = Planner(
    name="intra_executor",
    module="godwit.control.planners.cores.intra_executor",
    kind="heuristic",
    minimises="reassignments between the lanes of one executor",
    constraints="busiest lane at most theta times the mean; max_moves",
    cost="O(m log m + rounds·log m)",
    paper="5 §3.1",
    requires=(arbitrary_maps, equal_executors, none_draining),
    refuses=("max_bytes", "max_usage", "target_executors", "tau"),
)
