"""A planner's problem from what a running query knows.

Problem: loads and state sizes come as arrays per key group, places as an `Assignment` with names
and lanes; planners ask for a `Problem`.

Invariant: executors keep their order, and executors without key groups stay in the problem, so a
plan may use them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.arrays import wrong_value
from godwit.planning.problem import NO_TRAFFIC, Limits, Problem, Traffic

if TYPE_CHECKING:
    from collections.abc import Collection

    from godwit.model.assignment import Assignment
    from godwit.planning.arrays import FloatArray

__all__ = ["problem_of"]


def problem_of(
    assignment: Assignment,
    *,
    load: FloatArray,
    state_bytes: FloatArray,
    resources: tuple[str, ...] = ("cpu",),
    traffic: Traffic = NO_TRAFFIC,
    history: FloatArray | None = None,
    draining: Collection[str] = (),
    limits: Limits | None = None,
) -> Problem:
    """Ask about one component as it runs.

    Parameters
    ----------
    assignment
        Where key groups are. An executor's capacity is its number of lanes.
    load
        Shape ``(m,)`` or ``(m, r)``: load of each key group, in any unit (say, milliseconds of CPU
        per second).
    state_bytes
        Shape ``(m,)``: bytes of state.
    resources
        Names of the r resources.
    traffic
        Rates between key groups.
    history
        Shape ``(windows, m)``: load of every key group in past windows, oldest first.
    draining
        Names of executors that are to be emptied.
    limits
        What a plan may cost.

    Raises
    ------
    InvalidProblemError
        Names what is wrong, an executor to drain that does not exist among others.

    Examples
    --------
    >>> from godwit.model.assignment import even_assignment
    >>> running = even_assignment(4, ["a", "b"], [2, 1])
    >>> problem = problem_of(running, load=np.ones(4), state_bytes=np.zeros(4), draining=["b"])
    >>> problem.capacity[:, 0].tolist(), problem.available.tolist()
    ([2.0, 1.0], [0])
    """
    unknown = sorted(set(draining) - set(assignment.executors))
    if unknown:
        there = ", ".join(assignment.executors)
        raise wrong_value("draining", unknown[0], f"there is no such executor; there are {there}")
    lanes = np.asarray(assignment.lanes, np.int32)
    return Problem(
        executors=assignment.executors,
        load=load,
        state_bytes=state_bytes,
        current=assignment.executor_of,
        resources=resources,
        capacity=lanes.astype(np.float64),
        cores=lanes,
        draining=np.isin(assignment.executors, list(draining)),
        limits=limits or Limits(),
        traffic=traffic,
        history=np.empty((0, 0)) if history is None else history,
    )
