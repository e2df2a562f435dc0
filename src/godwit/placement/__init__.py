"""Placement of key groups: pure functions from a `Problem` to a `Solution`, over NumPy arrays.

A planner is written against `problem`, the question, `solution`, the answer with its judge,
`metrics`, and `registry`, the list of planners.  Packages add planners by entry points: those of
the product are in `godwit.control.planners`, the papers' others in `godwit_lab.planners`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from godwit.placement.problem import Limits, Problem, Traffic
from godwit.placement.solution import Solution, Status, validate_solution

if TYPE_CHECKING:
    from typing import Any

    from godwit.placement.registry import PLANNERS, planner

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
        return getattr(import_module("godwit.placement.registry"), name)
