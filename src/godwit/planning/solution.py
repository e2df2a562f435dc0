"""What a planner answers: an assignment, and how good and how sure it is.

A solution keeps its problem, so every number about it (load distance, bytes moved, ...) is derived
from the assignment by `godwit.planning.metrics` and cannot disagree with it.  Only what the
planner alone knows is stored: objective, bound, status and time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.planning import metrics
from godwit.planning.move_order import planned_moves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.planning.move_order import PlannedMove
    from godwit.planning.problem import FloatArray, IntArray, Problem
    from godwit.planning.split_keys import SplitKeys

__all__ = ["Solution", "Status"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Status(StrEnum):
    """How sure a planner is of its assignment."""

    OPTIMAL = "optimal"
    """Within all limits, and proved best for the planner's objective."""
    FEASIBLE = "feasible"
    """Within all limits; not proved best (a heuristic, or a solver out of time)."""
    INFEASIBLE = "infeasible"
    """Breaks at least one limit; `Solution.reason` says which. The best that could be had."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """A planner's whole answer.

    Attributes
    ----------
    problem
        What was asked.
    method
        Name of the planner, as in the registry.
    assignment
        Shape ``(m,)``: index into ``problem.executors`` of each key group's owner.
    status
        How sure the planner is.
    reason
        Why the status is not better, in one sentence; empty when there is nothing to say.
    objective, bound
        Value of what the planner minimises, and a proved lower bound of it, if it has them.
    elapsed_s
        Seconds the planner took, by the clock it was given.
    details
        Facts only this planner has (say, the error of an approximation): name → plain value.
    split
        Where rows go if key groups are split over two executors; `assignment` is then today's,
        since no state changes owner, and numbers about load and traffic are those of the split.
    """

    problem: Problem
    method: str
    assignment: IntArray
    status: Status
    reason: str = ""
    objective: float | None = None
    bound: float | None = None
    elapsed_s: float = 0.0
    details: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    split: SplitKeys | None = None

    def __post_init__(self) -> None:
        assignment = np.array(self.assignment, np.int32)
        assignment.setflags(write=False)
        object.__setattr__(self, "assignment", assignment)

    @property
    def gap(self) -> float | None:
        """(objective - bound) / |objective|, 0 when both are 0; None without a bound."""
        if self.objective is None or self.bound is None:
            return None
        difference = max(0.0, self.objective - self.bound)
        return difference / abs(self.objective) if self.objective else float(difference > 0)

    @property
    def moved(self) -> IntArray:
        """Key groups that change executor, ascending."""
        return np.flatnonzero(self.assignment != self.problem.current).astype(np.int32)

    @property
    def num_moves(self) -> int:
        """Number of key groups that change executor."""
        return int(np.count_nonzero(self.assignment != self.problem.current))

    @property
    def moves(self) -> tuple[PlannedMove, ...]:
        """Moves in the order they should be made, see `godwit.planning.move_order`."""
        return planned_moves(self.problem, self.assignment)

    @property
    def load_index(self) -> FloatArray:
        """Shape ``(n,)``: load per capacity of each executor."""
        if self.split is not None:
            return self.split.load_index(self.problem)
        return metrics.load_index(self.problem, self.assignment)

    @property
    def load_distance(self) -> float:
        """Largest |load index - mean| over executors that stay; unit of load."""
        if self.split is not None:
            return self.split.load_distance(self.problem)
        return metrics.load_distance(self.problem, self.assignment)

    @property
    def variance(self) -> float:
        """Variance of the load index over executors that stay; unit of load, squared."""
        return float(self.load_index[self.problem.available].var())

    @property
    def moved_bytes(self) -> float:
        """ψ, bytes of state that change executor."""
        return metrics.moved_bytes(self.problem, self.assignment)

    @property
    def migration_cost_s(self) -> float:
        """alpha·ψ in seconds: the time to serialise the state that moves."""
        return metrics.migration_cost_s(self.problem, self.assignment)

    @property
    def collocation_factor(self) -> float:
        """Share of the traffic that stays on one executor, in [0, 1]."""
        if self.split is not None:
            return self.split.collocation_factor(self.problem)
        return metrics.collocation_factor(self.problem, self.assignment)
