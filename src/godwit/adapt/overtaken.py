"""Whether a plan that is being carried out has been overtaken by events.

Problem: carrying a plan out may take longer than a period.  Executors come meanwhile, some are to
leave, loads shift; to wait for the end of a plan that no longer leads anywhere is as wrong as to
begin anew every period because a fresh plan looks a little better.

The rule: a plan is overtaken if what is left of it would leave key groups on an executor that was
to leave only after it was made, or would miss by more than a move is worth the balance it was to
reach; and if the plan that would be made today does better.  Under noise a plan still leads to
where it was to lead, so it is carried out to its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.adapt.worth import distance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.adapt.worth import Verdict
    from godwit.planning import Problem

__all__ = ["Promise", "why_overtaken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a plan was made for, and was to lead to."""

    # executors, draining: Those there were, and those of them that were to leave
    executors: frozenset[str]
    draining: frozenset[str]
    distance: float  # load distance that it was to reach, as a share of the mean

    @classmethod
    def of(cls, problem: Problem, verdict: Verdict) -> Promise:
        """Note what a verdict promises."""
        names = np.array(problem.executors)
        return cls(
            executors=frozenset(problem.executors),
            draining=frozenset(names[problem.draining].tolist()),
            distance=verdict.distance_after,
        )


def why_overtaken(
    problem: Problem,  # as things stand now
    # moves that are still to be made: key group → executor, by their numbers in the problem
    left: Mapping[int, int],
    promise: Promise,  # what the plan was to lead to
    verdict: Verdict,  # what is to be made of the plan of today
    *,
    max_load_distance: float,  # max_load_distance, least_gain: See `godwit.adapt.worth.Terms`
    least_gain: float,
) -> str:
    """Say why a plan is overtaken; empty where it is to be carried out to its end."""
    if not len(verdict.order):
        return ""
    after = problem.current.copy()
    after[list(left)] = list(left.values())
    names = np.array(problem.executors)
    leaving = sorted(set(names[problem.draining].tolist()) - promise.draining)
    for name in leaving:
        at = problem.executors.index(name)
        if np.count_nonzero(verdict.assignment == at) < np.count_nonzero(after == at):
            return f"executor {name} is to leave"
    reached = distance(problem, after)
    missed = reached - max(promise.distance, max_load_distance)
    if missed < least_gain or reached - verdict.distance_after < least_gain:
        return ""
    new = sorted(set(problem.executors) - promise.executors)
    if new:
        return f"executor {new[0]} has come"
    return (
        f"it would lead to a load distance of {reached:.0%}, where {promise.distance:.0%} was due"
    )
