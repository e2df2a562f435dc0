"""MTM-aware migration: cheap now, and with a cheap expected future (paper 1 §5.2).

Definition 5.4: among assignments by intervals within τ, minimise the bytes moved now plus gamma
times the projected cost C of the new partitioning (see `pmc`).  The definition adds C undiscounted,
but then gamma = 0 would not reduce to SSM as §6 says it does; with the factor, which is also what
the equations of C use, it does.

With an exact table all partitionings into n' intervals are compared.  With a sample, candidates
beyond it (SSM's plan, and neighbours of the best so far) get their C by one look ahead into the
table, an upper bound.  Ties: the candidate that comes first in lexicographic order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.placement.arrays import wrong_value
from godwit.placement.solution import make_solution
from godwit_lab.planners.intervals.oms import kept_bytes, match_intervals
from godwit_lab.planners.intervals.pmc import (
    approximate_projected_cost,
    best_next,
    cheapest_step,
    count_within_tau,
    neighbours,
    projected_cost,
)
from godwit_lab.planners.intervals.projected import Transitions, last_cuts_within_tau
from godwit_lab.planners.intervals.ssm import line_of, load_bound, plan_ssm, present_cuts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from godwit.placement.arrays import FloatArray, IntArray
    from godwit.placement.problem import Problem
    from godwit.placement.solution import Solution
    from godwit_lab.planners.intervals.projected import ProjectedCost

ROUNDS = 4
"""Times that the neighbours of the best candidate are looked at."""
_EXACT = 2_000
"""Partitionings up to which a table is computed exactly, within a second."""
_SAMPLED = 60
"""Partitionings of a sample where there are more."""


def plan_mtm(
    problem: Problem,
    *,
    projected: ProjectedCost | None = None,
    transitions: Transitions | Mapping[str, Any] | None = None,
    gamma: float = 0.8,
    max_drift: float = 0.0,
) -> Solution:
    """Plan by intervals with the fewest bytes moved now plus discounted bytes expected later.

    (MTM: paper 1 §4.2.) The table `projected` is computed here if only the migration transition
    matrix is given (`transitions`, also as a mapping with ``sizes`` and ``probability``) and the
    discount factor `gamma`: exactly for up to 2,000 partitionings, over a sample beyond. Loads and
    sizes may be as far as `max_drift` from those of the table. The status is optimal only with an
    exact table of this very problem.

    Raises `InvalidProblemError` if the table does not fit the problem, or there is neither table
    nor matrix.
    """
    load_bound(problem)
    if projected is None:
        if transitions is None:
            remedy = "without `projected`, give the sizes and probabilities of the matrix"
            raise wrong_value("transitions", None, remedy)
        if not isinstance(transitions, Transitions):
            transitions = Transitions(**transitions)
        if count_within_tau(problem, transitions, gamma=gamma) <= _EXACT:
            projected = projected_cost(problem, transitions, gamma=gamma)
        else:  # drawn alike each time, so that equal problems have equal plans
            projected = approximate_projected_cost(
                problem, transitions, rng=np.random.default_rng(0), gamma=gamma,
                num_partitionings=_SAMPLED, check_partitionings=0, tolerance=1e-3,
            )  # fmt: skip
    projected.refuse_unless_fits(problem, max_drift=max_drift)
    parts = problem.target_executors
    size = projected.size_index(parts)
    last_cut = last_cuts_within_tau(problem, parts)
    rows = projected.space.cuts[size]
    within = (rows[:, 1:] <= last_cut[rows[:, :-1]]).all(axis=1)
    rows, later = rows[within], projected.cost[size][within]
    if not projected.exact:
        rows, later = _add_ssm_candidate(problem, projected, rows, later, last_cut)
    if len(rows) == 0:
        fallback = plan_ssm(problem)
        return make_solution(
            problem, fallback.assignment, method="mtm", reason=fallback.reason,
            objective=fallback.objective,
        )  # fmt: skip
    now = _bytes_now(problem, rows)
    index = int((now + projected.space.gamma * later).argmin())
    best = (rows[index], float(now[index]), float(later[index]))
    if not projected.exact:
        best = _improve_candidate(problem, projected, best, last_cut)
    cuts, moved, future = best
    objective = moved + projected.space.gamma * future
    fits = projected.exact and max_drift == 0
    return make_solution(
        problem,
        match_intervals(problem, cuts),
        method="mtm",
        optimal=fits,
        reason="" if fits else "projected costs are approximate",
        objective=objective,
        bound=objective if fits else None,
        details={
            "moved_bytes": moved,
            "projected_bytes": future,
            "gamma": projected.space.gamma,
            "exact": projected.exact,
            "partitionings": projected.num_partitionings,
            "measured_error": projected.measured_error,
            "measured_mean_error": projected.measured_mean_error,
        },
    )


def _bytes_now(problem: Problem, rows: IntArray) -> FloatArray:
    """Return the bytes that a migration to each partitioning (row of cuts) moves now."""
    cuts = present_cuts(problem)
    state_before = line_of(problem, np.inf, use=False).state_before
    stays: FloatArray = kept_bytes(cuts[None], rows, state_before)[0]
    return float(problem.state_bytes.sum()) - stays


def _add_ssm_candidate(
    problem: Problem,
    projected: ProjectedCost,
    rows: IntArray,
    later: FloatArray,
    last_cut: IntArray,
) -> tuple[IntArray, FloatArray]:
    """Add SSM's partitioning to the candidates.

    Return their rows, and projected costs (`later`).
    """
    cuts = present_cuts(problem)
    state_before = line_of(problem, np.inf, use=False).state_before
    next_cuts = cheapest_step(cuts, last_cut, problem.target_executors, state_before)
    if next_cuts is None:
        return rows, later
    ahead = _look_ahead(projected, next_cuts[None])
    return np.concatenate((rows, next_cuts[None])), np.concatenate((later, ahead))


def _look_ahead(projected: ProjectedCost, rows: IntArray) -> FloatArray:
    """Return projected costs of partitionings outside the table, by one step into it."""
    size = projected.size_index(rows.shape[1] - 1)
    return best_next(projected.space, rows, size, projected.cost)[0]


def _improve_candidate(
    problem: Problem,
    projected: ProjectedCost,
    best: tuple[IntArray, float, float],
    last_cut: IntArray,
) -> tuple[IntArray, float, float]:
    """Return the best candidate (cuts, bytes now, bytes later) after a search of its neighbours."""
    gamma = projected.space.gamma
    for _ in range(ROUNDS):
        around = neighbours(best[0], last_cut)
        if len(around) == 0:
            break
        now = _bytes_now(problem, around)
        promising = np.flatnonzero(now < best[1] + gamma * best[2])
        if len(promising) == 0:
            break
        later = _look_ahead(projected, around[promising])
        total = now[promising] + gamma * later
        index = int(total.argmin())
        if total[index] >= best[1] + gamma * best[2]:
            break
        best = (around[promising[index]], float(now[promising[index]]), float(later[index]))
    return best
