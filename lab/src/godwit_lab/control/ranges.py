"""Placement by ranges: every executor owns one range of key groups (paper 1).

Planners of intervals plan one component at a time, whose key groups form one line, and start from
intervals.  A stream has none when it starts, nor after an executor is lost; then ranges of about
equal load are laid out before the planner is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.control.styles import PlacementStyle
from godwit.placement.registry import one_range_each
from godwit_lab.planners.intervals.ranges import gather_ranges

if TYPE_CHECKING:
    from godwit.control.interfaces import MeasuredProblem
    from godwit.control.styles import Turn
    from godwit.placement.arrays import IntArray


class RangePlacement(PlacementStyle):
    """Plans each component by itself, as a whole, from one range of key groups per executor."""

    whole = True
    minds_speeds = False
    replans = False  # key groups form no intervals while a plan is carried out

    def __init__(self, settings: Any, topology: Any, announce: Any, **more: Any) -> None:
        super().__init__(settings, topology, announce, **more)
        self.groups = tuple((name,) for name in topology.components)

    def before(self, measured: MeasuredProblem, turn: Turn) -> IntArray | None:
        """Return ranges of about equal load, if there are none and no executors are to join."""
        if one_range_each.holds(measured.problem) or turn.waits:
            return None
        return gather_ranges(measured.problem)
