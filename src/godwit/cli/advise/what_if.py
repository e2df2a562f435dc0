"""What a stage took, and what it would have taken had its work lain elsewhere.

A stateful stage of Spark runs one task per state partition on ``s`` slots; the micro-batch waits
for the last of them.  With task times p₁ … pₙ of one micro-batch:

- *as it ran*: from the first launch to the last finish;
- *moved*: the same tasks, freely placed on the slots by the rule "longest processing time first"
  (Graham 1969: within 4/3 - 1/(3s) of the best possible);
- *bound*: max(mean, max pᵢ), below which no placement of whole partitions can be;
- *mean*: Σ pᵢ / s, what work takes that can be divided at will (key groups finer than partitions).

What is saved by moving partitions is the time as it ran less the time moved; splitting them saves
at most the time as it ran less the mean.  Nothing is ever saved by less than nothing: as it ran
includes what the scheduler took, and the rule is not the best possible.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WhatIf", "longest_first_s", "what_if"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One stage of one micro-batch, in seconds.

    Attributes
    ----------
    as_run_s, moved_s, bound_s, mean_s
        See the module.
    longest_s
        The longest task.
    work_s
        All tasks together.
    """

    as_run_s: float
    moved_s: float
    bound_s: float
    mean_s: float
    longest_s: float
    work_s: float

    @property
    def saved_by_moving_s(self) -> float:
        """What placing whole partitions freely would have saved."""
        return max(0.0, self.as_run_s - self.moved_s)

    @property
    def saved_by_splitting_s(self) -> float:
        """What dividing the work at will would have saved, at most."""
        return max(0.0, self.as_run_s - self.mean_s)


def what_if(as_run_s: float, tasks_s: Sequence[float], slots: int) -> WhatIf:
    """Compare a stage with what it could have been.

    Parameters
    ----------
    as_run_s
        From the first launch to the last finish, in seconds.
    tasks_s
        What each task took, in seconds; at least one.
    slots
        How many tasks can run at once; at least one.

    Examples
    --------
    >>> made = what_if(8.0, [4.0, 4.0, 1.0, 1.0], slots=2)
    >>> made.moved_s, made.bound_s, made.mean_s
    (5.0, 5.0, 5.0)
    """
    work_s, longest_s = sum(tasks_s), max(tasks_s)
    mean_s = work_s / slots
    return WhatIf(
        as_run_s=as_run_s,
        moved_s=min(as_run_s, longest_first_s(tasks_s, slots)),
        bound_s=max(mean_s, longest_s),
        mean_s=mean_s,
        longest_s=longest_s,
        work_s=work_s,
    )


def longest_first_s(tasks_s: Sequence[float], slots: int) -> float:
    """Give the length of the schedule that gives the longest task left to the slot that is free."""
    free_s = [0.0] * min(slots, len(tasks_s))
    for task_s in sorted(tasks_s, reverse=True):
        heapq.heapreplace(free_s, free_s[0] + task_s)
    return max(free_s)
