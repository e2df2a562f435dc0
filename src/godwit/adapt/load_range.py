"""Range of loads as a scaling model: as many executors as put the mean into its middle (ELB).

Paper 4 §3 gives every executor a load in [v, u]: ``⌈2w/(u + v)⌉`` of them hold the load w, and the
range says when that number changes.  So it both grows and shrinks a stream; the planner ``elb``
brings each load into the same range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.adapt.scaling import ROUNDING, WantedExecutors
from godwit.model.errors import InvalidControlError
from godwit.model.frames import user_call
from godwit.planning.metrics import wanted_executors

if TYPE_CHECKING:
    from godwit.adapt.scaling import ScalingSituation

__all__ = ["LoadRange", "load_range"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRange:
    """See `load_range`."""

    low: float
    high: float
    name: str = "load_range"
    paced: bool = True

    def wanted(self, situation: ScalingSituation) -> WantedExecutors:
        """Return the executors whose mean load is in the range, and those in its middle."""
        load = situation.offered / situation.lanes
        fewest = max(1, math.ceil(load / self.high - ROUNDING))
        most = max(fewest, math.floor(load / self.low + ROUNDING))
        middle = min(max(wanted_executors(load, self.low, self.high), fewest), most)
        return WantedExecutors(
            executors=fewest,
            comfortable=middle if situation.executors > most else most,
            aim=middle,
            reason=f"the mean load should be within {self.low:.0%} and {self.high:.0%}",
            numbers={"mean_load": load / max(situation.executors, 1)},
        )


@user_call
def load_range(low: float = 0.4, high: float = 0.8) -> LoadRange:
    """Scale so that the mean load of executors stays within a range (paper 4 §3).

    If the mean leaves the range, the number of executors changes so that the mean is in its middle.
    The planner ``elb`` keeps the load of every executor within such a range.

    Parameters
    ----------
    low, high
        Minimum and maximum share of their time that lanes are busy; above 0, at most 1.

    Raises
    ------
    InvalidControlError
        If they are not two increasing shares above 0 and at most 1.

    Examples
    --------
    >>> gw.load_range(0.4, 0.8).high
    0.8
    """
    numbers = all(isinstance(value, int | float) for value in (low, high))
    if not numbers or not 0 < low < high <= 1:
        raise InvalidControlError(
            f"Loads cannot be held between {low!r} and {high!r}.",
            remedy="Give two shares with 0 < low < high ≤ 1, such as 0.4 and 0.8.",
            low=low,
            high=high,
        )
    return LoadRange(low=low, high=high)
