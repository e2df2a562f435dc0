"""OMS: the cheapest way through a known sequence of migrations, exactly.

Problem (paper 1 §5.1).  The numbers of executors n₁, ..., nₚ of the next p migrations are known.
Find the assignments by intervals, each within its τ, with the fewest bytes moved in all.  Taking
the cheapest migration each time (`ssm`) is not optimal: see table 3 of the paper.

Method.  Only cuts matter to what comes after (lemma 5.1), so this is a shortest path through layers
of partitionings.  The paper recurses over all sequences of partitionings; going backwards over the
layers visits every pair of neighbours once, which finds the same optimum.  The last step is `ssm`.
Ties are broken towards the partitioning that comes first in lexicographic order.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment

from godwit.model.errors import InvalidProblemError
from godwit.planning.intervals.partitionings import kept_bytes, partitionings
from godwit.planning.intervals.ssm import (
    assign_intervals,
    best_cuts,
    lay_out,
    line_of,
    load_bound,
    plan_ssm,
    present_cuts,
    reach_within,
)
from godwit.planning.solution import RELATIVE_TOLERANCE, make_solution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.planning.arrays import Clock, FloatArray, IntArray
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["MAX_PARTITIONINGS", "match_intervals", "plan_oms"]

MAX_PARTITIONINGS = 20_000
"""Most partitionings of one step that are enumerated."""


def plan_oms(
    problem: Problem,
    *,
    targets: Sequence[int] = (),
    taus: Sequence[float] = (),
    clock: Clock = time.perf_counter,
) -> Solution:
    """Take the first step of the cheapest way through a sequence of migrations.

    Parameters
    ----------
    problem
        As for `godwit.planning.intervals.ssm.plan_ssm`.
    targets
        n₁, ..., nₚ: executors after each migration; default: one step to the problem's own n'.
    taus
        τ of each step; default ``limits.tau`` for all.

    Returns
    -------
    Solution
        The assignment after the first migration. ``objective`` is the bytes that all migrations
        move together; ``details["cuts"]`` and ``details["moved_bytes"]`` describe every step.

    Raises
    ------
    InvalidProblemError
        If the problem is not one of intervals, the sequence is malformed, or a step before the last
        has more than `MAX_PARTITIONINGS` partitionings.
    """
    began = clock()
    load_bound(problem)  # refuses problems that are not of intervals
    targets = tuple(targets) or (problem.target_executors,)
    taus = tuple(taus) or (problem.limits.tau or 0.0,) * len(targets)
    _check_sequence(problem, targets, taus)
    total = float(problem.weight.sum())
    reaches = [
        reach_within(problem, (1 + tau) * total / n * (1 + RELATIVE_TOLERANCE / 2))
        for n, tau in zip(targets, taus, strict=True)
    ]
    path = _shortest_path(problem, targets, reaches)
    if path is None:
        fallback = plan_ssm(problem, clock=clock)
        return make_solution(
            problem,
            fallback.assignment,
            method="oms",
            reason="a step of the sequence has no intervals within its limits; this is ssm's plan",
            objective=fallback.objective,
            elapsed_s=clock() - began,
        )
    cuts, moved = path
    return make_solution(
        problem,
        match_intervals(problem, cuts[0]),
        method="oms",
        optimal=True,
        objective=sum(moved),
        bound=sum(moved),
        elapsed_s=clock() - began,
        details={"cuts": [c.tolist() for c in cuts], "moved_bytes": moved},
    )


def _check_sequence(problem: Problem, targets: Sequence[int], taus: Sequence[float]) -> None:
    available = len(problem.available)
    for i, n in enumerate(targets):
        if not 1 <= n <= available:
            raise InvalidProblemError(
                f"targets[{i}] = {n!r} is wrong: {available} executors are available.",
                remedy="Name more executors in the problem, or ask for fewer.",
                field=f"targets[{i}]",
                value=n,
            )
    if len(taus) != len(targets) or not all(0 <= tau < np.inf for tau in taus):
        raise InvalidProblemError(
            f"taus = {tuple(taus)!r} is wrong for {len(targets)} targets.",
            remedy="Give one finite number that is at least 0 for each.",
            field="taus",
            value=tuple(taus),
        )
    if problem.limits.target_executors not in (None, targets[0]):
        raise InvalidProblemError(
            f"targets[0] = {targets[0]} contradicts limits.target_executors = "
            f"{problem.limits.target_executors}.",
            remedy="Give the same number.",
            field="targets[0]",
            value=targets[0],
        )


def _shortest_path(
    problem: Problem, targets: Sequence[int], reaches: list[IntArray]
) -> tuple[list[IntArray], list[float]] | None:
    everything = float(problem.state_bytes.sum())
    state_before = np.concatenate(([0.0], np.cumsum(problem.state_bytes)))
    now = line_of(problem, np.inf, use=False)
    layers = [
        partitionings(reach, n, at_most=MAX_PARTITIONINGS)
        for reach, n in zip(reaches[:-1], targets[:-1], strict=True)
    ]
    if any(len(layer) == 0 for layer in layers):
        return None
    if not layers:
        line = lay_out(present_cuts(problem), reach=reaches[0], kept=now.kept)
        last = best_cuts(line, targets[0])
        if last is None:
            return None
        cuts = np.array([0, *(y for _, y, _ in last)], np.int32)
        kept_now = kept_bytes(present_cuts(problem)[None], cuts[None], now.kept)[0, 0]
        return [cuts], [everything - float(kept_now)]
    ends = [best_cuts(lay_out(_no_repeats(row), reach=reaches[-1], kept=state_before), targets[-1])
            for row in layers[-1]]  # fmt: skip
    if ends[0] is None:  # the bound does not depend on where one comes from
        return None
    final = [np.array([0, *(y for _, y, _ in end or ())], np.int32) for end in ends]
    cost = np.array(
        [everything - _kept(row, f, state_before) for row, f in zip(layers[-1], final, strict=True)]
    )
    choices: list[IntArray] = []
    for i in range(len(layers) - 2, -1, -1):
        to_go = everything - kept_bytes(layers[i], layers[i + 1], state_before) + cost
        choices.append(to_go.argmin(axis=1).astype(np.int32))
        cost = to_go.min(axis=1)
    first = everything - kept_bytes(present_cuts(problem)[None], layers[0], now.kept)[0]
    at = int((first + cost).argmin())
    cuts_of_steps, moved = [layers[0][at]], [float(first[at])]
    for i, choice in enumerate(reversed(choices)):
        at = int(choice[at])
        moved.append(everything - _kept(cuts_of_steps[-1], layers[i + 1][at], state_before))
        cuts_of_steps.append(layers[i + 1][at])
    moved.append(everything - _kept(cuts_of_steps[-1], final[at], state_before))
    return [*cuts_of_steps, final[at]], moved


def _no_repeats(cuts: IntArray) -> IntArray:
    return cuts[np.concatenate(([True], np.diff(cuts) > 0))]


def _kept(old: IntArray, new: IntArray, state_before: FloatArray) -> float:
    return float(kept_bytes(old[None], new[None], state_before)[0, 0])


def match_intervals(problem: Problem, cuts: IntArray) -> IntArray:
    """Give the intervals between `cuts` to executors such that the most bytes stay."""
    cuts = _no_repeats(cuts)
    spans = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    stays = np.zeros((len(spans), problem.num_executors))
    for i, (x, y) in enumerate(spans):
        stays[i] = np.bincount(
            problem.current[x:y], problem.state_bytes[x:y], minlength=problem.num_executors
        )
    stays[:, problem.draining] = 0.0
    keeper = dict.fromkeys(range(len(spans)), -1)
    for i, e in zip(*linear_sum_assignment(stays, maximize=True), strict=True):
        x, y = spans[i]
        if stays[i, e] > 0:
            keeper[int(i)] = x + int((problem.current[x:y] == e).argmax())
    return assign_intervals(problem, [(x, y, keeper[i]) for i, (x, y) in enumerate(spans)])
