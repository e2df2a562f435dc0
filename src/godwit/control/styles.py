"""Placement styles: rules that turn a measured problem into an assignment.

The default style asks the planner about the components of a stage together.  Another style may plan
other components together, lay key groups out before the planner is asked, or ask no planner at all.
A planner may come with a style (`Planner.style`), and a package may add one that users name
(``gw.Control(elasticity=...)``) by an entry point of the group ``godwit.policies``.

Invariant: whatever the style, its assignment is checked, evacuates draining executors, and is cut
down to the moves that pay, by `godwit.control.planning`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.control.interfaces import MeasuredProblem
    from godwit.control.policy import Announce
    from godwit.control.settings import Control
    from godwit.engine.policies import Topology
    from godwit.placement import Problem, Solution
    from godwit.placement.arrays import IntArray


class TryPlan(Protocol):
    """Runs the controller's planner within the time limit of the decision."""

    def __call__(self, problem: Problem, /, **options: Any) -> Solution | None:
        """Return the planner's solution; ``None`` if it fails, which is announced.

        `options`: take precedence over those of the user.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Circumstances of a planning decision, and access to the planner."""

    hypothetical: bool  # for a decision that may not be made
    waits: bool  # executors will join, and none drains: a new layout should wait for them
    running_s: float  # since the run began
    try_plan: TryPlan
    search: Callable[[], IntArray]  # asks the planner as the default style does


class PlacementStyle:
    """The default style: the planner decides the placement of key groups.

    Parameters
    ----------
    settings, topology
        Of the controller.
    announce
        Announces events.
    targets
        Numbers of executors to come, as an earlier controller of this run left them.
    """

    whole = False
    """True if a plan is carried out either completely or not at all."""
    minds_speeds = True
    """False if every executor counts as equally fast."""
    replans = True
    """True if a new plan may be made while another is carried out."""

    def __init__(
        self,
        settings: Control,
        topology: Topology,
        announce: Announce,
        *,
        targets: Sequence[int] | None = None,
    ) -> None:
        known = settings.registered
        joint = known is not None and known.collocates
        self.groups = (topology.components,) if joint else topology.stages
        """Components that are planned together."""
        self.targets: tuple[int, ...] = ()
        """Numbers of executors after each next migration, if a style plans several."""
        self.name = settings.planner_name
        """Name of the plans' author in events."""
        del announce, targets

    @property
    def status(self) -> Mapping[str, Any]:
        """Further entries of the controller's status."""
        return {}

    def before(self, measured: MeasuredProblem, turn: Turn) -> IntArray | None:
        """Return an assignment that has priority over any plan, shape ``(m,)``; ``None`` if none.

        It is carried out whether it pays or not.
        """
        del measured, turn
        return None

    def plan(self, measured: MeasuredProblem, turn: Turn) -> IntArray:
        """Return the executor of each key group, shape ``(m,)``."""
        del measured
        return turn.search()
