"""Planners: pure functions from a `Problem` to a `Solution`, over NumPy arrays.

Start with `godwit.planning.problem`, then any one planner, such as `godwit.planning.ssm`.
"""

from godwit.planning.problem import Limits, Problem, Traffic
from godwit.planning.registry import PLANNERS, planner
from godwit.planning.solution import Solution, Status
from godwit.planning.validation import validate_solution

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
