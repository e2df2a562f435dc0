"""Storm's default: the same number of consecutive key groups for every executor.

The baseline of paper 1 §6: it looks at neither load nor the present assignment, so it is quick and
moves much.  Executors are taken in the order of the problem; the first of them get one key group
more where numbers do not divide.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from godwit.planning.arrays import Clock
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["plan_storm_default"]


def plan_storm_default(problem: Problem, *, clock: Clock = time.perf_counter) -> Solution:
    """Deal consecutive key groups out evenly to the first n' executors that stay.

    Limits are ignored; a plan that breaks one has status infeasible and says which.
    """
    began = clock()
    m, parts = problem.num_key_groups, problem.target_executors
    sizes = np.full(parts, m // parts)
    sizes[: m % parts] += 1
    assignment = np.repeat(problem.available[:parts], sizes)
    return make_solution(problem, assignment, method="storm_default", elapsed_s=clock() - began)
