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

The middle column is the paper, see ``docs/bibliography.md``.  Start with `problem`, then any one
planner, such as `godwit_lab.planners.intervals.ssm`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from godwit.planning.problem import Limits, Problem, Traffic
from godwit.planning.solution import Solution, Status, validate_solution

if TYPE_CHECKING:
    from typing import Any

    from godwit.planning.registry import PLANNERS, planner

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

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Import the registry at its first use: planners of other packages come by it."""
        if name not in {"PLANNERS", "planner"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("godwit.planning.registry"), name)
