"""The one judge of plans: whether an assignment is total, legal and within the limits.

Two kinds of fault are told apart.  An *illegal* assignment (a key group without an executor, a move
onto a draining executor) is never acceptable, whatever its status.  A *broken limit* is acceptable
only from a solution that says so itself (status infeasible, with the reason): baselines of the
papers ignore limits, and some problems cannot be solved within theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.model.errors import InvalidPlanError
from godwit.planning import metrics
from godwit.planning.solution import Solution, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.planning.problem import IntArray, Problem
    from godwit.planning.split_keys import SplitKeys

__all__ = ["broken_limits", "illegalities", "make_solution", "validate_solution"]

RELATIVE_TOLERANCE = 1e-9
"""Slack for limits on sums of floats, relative to the limit."""


def illegalities(problem: Problem, assignment: IntArray) -> list[str]:
    """Why `assignment` could not be carried out at all, one sentence each; empty if it could."""
    m, n = problem.num_key_groups, problem.num_executors
    if assignment.shape != (m,):
        return [f"the assignment has shape {assignment.shape}, not ({m},)"]
    outside = (assignment < 0) | (assignment >= n)
    if outside.any():
        k = int(outside.argmax())
        return [f"key group {k} is on executor {int(assignment[k])}, but there are {n}"]
    onto = problem.draining[assignment] & (assignment != problem.current)
    if onto.any():
        k = int(onto.argmax())
        name = problem.executors[assignment[k]]
        return [f"key group {k} moves onto executor {name}, which is draining"]
    return []


def broken_limits(
    problem: Problem, assignment: IntArray, split: SplitKeys | None = None
) -> list[str]:
    """Limits of the problem that a legal assignment breaks, one sentence each.

    Of limits on load, a split knows only τ.
    """
    limits, broken = problem.limits, []
    slack = 1 + RELATIVE_TOLERANCE
    moves = int(np.count_nonzero(assignment != problem.current))
    if limits.max_moves is not None and moves > limits.max_moves:
        broken.append(f"{moves} moves exceed max_moves = {limits.max_moves}")
    if limits.max_bytes is not None:
        size = metrics.moved_bytes(problem, assignment)
        if size > limits.max_bytes * slack:
            broken.append(f"{size:.6g} bytes moved exceed max_bytes = {limits.max_bytes:.6g}")
    if limits.tau is not None:
        if split is None:
            index, over = (
                metrics.load_index(problem, assignment),
                metrics.overload(problem, assignment),
            )
        else:
            index, mean = split.load_index(problem), split.mean_index(problem)
            over = float(index.max()) / mean - 1 if mean else 0.0
        if 1 + over > (1 + limits.tau) * slack:
            busiest = problem.executors[int(index.argmax())]
            broken.append(
                f"executor {busiest} has {1 + over:.4g} times its fair share, more than "
                f"1 + tau = {1 + limits.tau:.4g}"
            )
    if limits.target_executors is not None:
        used = len(np.unique(assignment))
        if used > limits.target_executors:
            broken.append(
                f"{used} executors own key groups, more than target_executors = "
                f"{limits.target_executors}"
            )
    if limits.max_usage is not None:
        broken.extend(_overused(problem, assignment, limits.max_usage))
    if problem.intervals:
        starts = assignment[np.flatnonzero(np.diff(assignment, prepend=-1))]
        ranges = np.bincount(starts, minlength=problem.num_executors)
        if ranges.max() > 1:
            name = problem.executors[int(ranges.argmax())]
            broken.append(f"executor {name} owns {ranges.max()} ranges, but intervals are wanted")
    return broken


def _overused(problem: Problem, assignment: IntArray, usage: tuple[float, ...]) -> list[str]:
    broken = []
    for r, name in enumerate(problem.resources):
        use = np.bincount(assignment, weights=problem.load[:, r], minlength=problem.num_executors)
        index = np.where(problem.draining, 0.0, use / problem.capacity[:, r])
        if index.max() > usage[r] * (1 + RELATIVE_TOLERANCE):
            executor = problem.executors[int(index.argmax())]
            broken.append(
                f"executor {executor} uses {index.max():.4g} of {name}, more than max_usage = "
                f"{usage[r]:.4g}"
            )
    return broken


def make_solution(
    problem: Problem,
    assignment: IntArray,
    *,
    method: str,
    optimal: bool = False,
    reason: str = "",
    objective: float | None = None,
    bound: float | None = None,
    elapsed_s: float = 0.0,
    details: Mapping[str, Any] | None = None,
    split: SplitKeys | None = None,
) -> Solution:
    """Build the solution of a planner, with the status that the limits leave it.

    `optimal`: whether the planner proved that nothing within the limits is better for its
    objective. `reason`: why the status is not better; broken limits are appended to it. Raises
    `InvalidPlanError` if the assignment is illegal: a fault of the planner, not of its input.
    """
    illegal = illegalities(problem, assignment)
    if illegal:
        raise _illegal(method, illegal)
    broken = broken_limits(problem, assignment, split)
    if broken:
        status = Status.INFEASIBLE
        reason = "; ".join(filter(None, (reason, *broken)))
    else:
        status = Status.OPTIMAL if optimal else Status.FEASIBLE
    return Solution(
        problem=problem,
        method=method,
        assignment=assignment,
        status=status,
        reason=reason,
        objective=objective,
        bound=bound,
        elapsed_s=elapsed_s,
        details=dict(details or {}),
        split=split,
    )


def validate_solution(solution: Solution) -> None:
    """Refuse a solution that is illegal, or that claims to be within limits it breaks.

    Raises
    ------
    InvalidPlanError
        With every fault in the message and in ``context["faults"]``.
    """
    faults = illegalities(solution.problem, solution.assignment)
    if faults:
        raise _illegal(solution.method, faults)
    broken = broken_limits(solution.problem, solution.assignment, solution.split)
    if broken and solution.status is not Status.INFEASIBLE:
        raise InvalidPlanError(
            f"The plan of {solution.method!r} has status {solution.status.value}, but "
            f"{'; '.join(broken)}.",
            remedy="Give it the status infeasible and the reason, or a plan within the limits.",
            method=solution.method,
            faults=broken,
        )
    if solution.status is Status.INFEASIBLE and not solution.reason:
        raise InvalidPlanError(
            f"The plan of {solution.method!r} is infeasible and does not say why.",
            remedy="Give the reason.",
            method=solution.method,
            faults=["no reason"],
        )


def _illegal(method: str, faults: list[str]) -> InvalidPlanError:
    return InvalidPlanError(
        f"The plan of {method!r} cannot be carried out: {'; '.join(faults)}.",
        remedy="This is a fault of the planner; please report it with the problem's JSON.",
        method=method,
        faults=faults,
    )
