"""Plans for fewer executors than there are: which of them stay is decided first.

Problem: ``limits.target_executors`` = n' asks for a plan in which at most n' executors own key
groups; the allocation model knows executors that stay and executors that drain.

Invariant: a plan is made with all but n' executors draining and has to empty them; the first choice
of those that stay for which that succeeds is taken, so choices that work are as few moves as can be
seen beforehand.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning import metrics
from godwit.planning.solution import Status
from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["choose_executors", "plan_within_target"]

_CHOICES = 12
"""Choices that are tried before the plan is given up as infeasible."""


def plan_within_target(problem: Problem, plan: Callable[[Problem], Solution]) -> Solution:
    """Plan with at most n' executors; the planner itself need only know draining ones.

    Parameters
    ----------
    problem
        With any ``limits.target_executors``.
    plan
        Makes a plan that empties draining executors if ``limits.target_executors`` is given.

    Returns
    -------
    Solution
        Of `problem`. Not optimal where there was a choice, and then without a bound.
    """
    first: Solution | None = None
    for narrowed in choose_executors(problem):
        found = plan(narrowed)
        if narrowed is problem:
            return found
        moved = make_solution(
            problem,
            found.assignment,
            method=found.method,
            objective=found.objective,
            elapsed_s=found.elapsed_s,
            details=found.details,
        )
        if moved.status is not Status.INFEASIBLE:
            return moved
        first = first or moved
    assert first is not None, "there is always a choice"
    return first


def choose_executors(problem: Problem) -> Iterator[Problem]:
    """Narrow a problem to n' executors, the others draining; the problem itself if none are over.

    Those with most load stay, then the fastest of the idle ones; ties: the lower index. Other
    choices follow, the latest of the order exchanged first.
    """
    available, target = problem.available, problem.target_executors
    if target == len(available):
        yield problem
        return
    load = metrics.loads(problem, problem.current)[available]
    order = available[np.lexsort((available, -problem.speed[available], -load))].tolist()
    for staying in itertools.islice(itertools.combinations(order, target), _CHOICES):
        draining = np.ones(problem.num_executors, np.bool_)
        draining[list(staying)] = False
        yield replace(problem, draining=draining)
