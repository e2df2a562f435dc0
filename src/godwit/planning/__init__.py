"""Planners: pure functions from a `Problem` to a `Solution`, over NumPy arrays.

Every planner shares `problem`, the question, `solution`, the answer with its judge, and `registry`,
the list of planners.  The planners themselves, by family:

==============  =====  ==============================================================
`intervals`     1      fewest bytes moved, one range of key groups per executor
`allocation`    2      even load within a budget, draining, collocation
`fusion`        3      operators fused into components
`windows`       3      windows built from panes and from other windows
`balancing`     4      loads in a range, or even over a history of windows
`cores`         5      cores to a latency target, to machines; key groups to lanes
`baselines`            what the papers compare with: hashing, Flux, PKG, PoTC
==============  =====  ==============================================================

The middle column is the paper.  Start with `problem`, then any one planner, such as
`godwit.planning.intervals.ssm`.
"""

from godwit.planning.problem import Limits, Problem, Traffic
from godwit.planning.registry import PLANNERS, planner
from godwit.planning.solution import Solution, Status, validate_solution

__all__ = [
    "PLANNERS",
    "Limits",
    "Problem",
    "Solution",
    "Status",
    "Traffic",
    "planner",
    "validate_solution",
]
