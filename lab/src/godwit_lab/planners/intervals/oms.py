"""OMS: the cheapest path through a known sequence of migrations, exactly (paper 1 §5.1).

The numbers of executors n₁, ..., nₚ of the next p migrations are known; find the assignments by
intervals, each within its τ, with the fewest bytes moved in all.  Taking the cheapest migration
each time (`ssm`) is not optimal: see table 3 of the paper.

Only cuts matter to later steps, not who owns which interval (lemmas 5.1 and 5.2), so a
*partitioning* is a row of p + 1 ascending cuts, from 0 to m; it may have fewer than p intervals
that are not empty, and then m is repeated at its end.  This is a shortest path through layers of
partitionings, found backwards; the last step is `ssm`.  Ties: the lexicographically first.

Where there are too many partitionings of a step, a *sample* of them may stand for all: those that
cut between blocks of about equal load, as fine as the sample allows, and what cheapest single steps
lead to.  So a plan by samples never moves more than single steps do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment

from godwit.model.errors import InvalidProblemError
from godwit.placement.arrays import wrong_value
from godwit.placement.solution import RELATIVE_TOLERANCE, make_solution
from godwit_lab.planners.intervals.ssm import (
    assign_intervals,
    best_cuts,
    last_cuts_within,
    lay_out,
    line_of,
    load_bound,
    plan_ssm,
    present_cuts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.placement.arrays import FloatArray, IntArray
    from godwit.placement.problem import Problem
    from godwit.placement.solution import Solution

MAX_PARTITIONINGS = 20_000
"""Most partitionings of one step that are enumerated."""


def count_partitionings(last_cut: IntArray, parts: int) -> int:
    """Return the number of partitionings into at most `parts` intervals within the load bound.

    `last_cut`: see `godwit_lab.planners.intervals.ssm.Line`.
    """
    m = len(last_cut) - 1
    ways = [0] * m + [1]  # ways to cover [x, m) with exactly k intervals; exact integers
    total = 0
    for _ in range(parts):
        after = [0] * (m + 2)
        for x in range(m, -1, -1):
            after[x] = after[x + 1] + ways[x]
        ways = [after[x + 1] - after[int(last_cut[x]) + 1] for x in range(m)] + [0]
        total += ways[0]
    return total


def partitionings(last_cut: IntArray, parts: int, *, at_most: int) -> IntArray:
    """Return the partitionings into at most `parts` intervals within the load bound.

    Shape ``(count, parts + 1)``: cuts, in lexicographic order. Raises `InvalidProblemError` if
    there are more than `at_most`.
    """
    count = count_partitionings(last_cut, parts)
    if count > at_most:
        raise InvalidProblemError(
            f"There are {count} ways to cut {len(last_cut) - 1} key groups into {parts} intervals, "
            f"more than {at_most}.",
            remedy="Lower tau, use fewer key groups, or use the approximation.",
            field="current",
            value=count,
        )
    m = len(last_cut) - 1
    needed = np.zeros(m + 1, np.int32)
    for x in range(m - 1, -1, -1):
        needed[x] = needed[last_cut[x]] + 1 if last_cut[x] > x else parts + 1
    rows = np.zeros((1, 1), np.int32)
    for part in range(1, parts + 1):
        last = rows[:, -1]
        low = np.where(last == m, m, last + 1)
        lengths = np.maximum(last_cut[last] - low + 1, 0)
        lengths[last == m] = 1
        source = np.repeat(np.arange(len(rows)), lengths)
        step = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        cut = (low[source] + step).astype(np.int32)
        fits = needed[cut] <= parts - part
        rows = np.column_stack((rows[source[fits]], cut[fits]))
    return rows.astype(np.int32)


def kept_bytes(old: IntArray, new: IntArray, state_before: FloatArray) -> FloatArray:
    """Return the most bytes that can stay, for each pair of partitionings, shape ``(a, b)``.

    `old` and `new` have shapes ``(a, p + 1)`` and ``(b, q + 1)``; `state_before` are the bytes of
    state before each cut. Most bytes stay when old intervals are matched with new ones. Overlaps of
    two partitionings of one line cannot cross, so an alignment of two sequences finds the best
    matching: no assignment problem has to be solved, and many pairs are aligned at once.
    """
    left, right = state_before[old], state_before[new]
    q = new.shape[1] - 1
    shape = (len(old), len(new))
    row = [np.zeros(shape) for _ in range(q + 1)]
    overlap, begin, free = np.empty(shape), np.empty(shape), np.empty(shape)
    for i in range(old.shape[1] - 1):
        diagonal = row[0]
        for j in range(q):
            np.minimum(left[:, i + 1, None], right[:, j + 1], out=overlap)
            np.maximum(left[:, i, None], right[:, j], out=begin)
            overlap -= begin  # not positive where the two do not overlap
            overlap += diagonal
            np.maximum(overlap, row[j], out=overlap)
            np.maximum(overlap, row[j + 1], out=overlap)
            # Matrices are reused in turn: allocating them would cost more than filling them.
            above, row[j + 1] = row[j + 1], overlap
            overlap = diagonal if j else free
            diagonal = above
        free = diagonal
    result: FloatArray = row[q]
    return result


def plan_oms(
    problem: Problem,
    *,
    targets: Sequence[int] = (),
    taus: Sequence[float] = (),
    sample: int | None = None,
) -> Solution:
    """Plan the first step of the cheapest path through a sequence of migrations (paper 1 §5).

    `targets` are n₁, ..., nₚ (default: one step to the problem's own n'), `taus` the τ of each step
    (default: ``limits.tau`` for all). `sample`: maximum number of partitionings considered per step
    (default: all); if there are more, the plan is feasible and not proved optimal. ``objective`` is
    the bytes that all migrations move together; ``details["cuts"]`` and ``details["moved_bytes"]``
    describe every step.

    Raises `InvalidProblemError` if the problem is not one of intervals, the sequence is malformed,
    or, without a sample, a step before the last has more than `MAX_PARTITIONINGS` partitionings.
    """
    load_bound(problem)  # refuses problems that are not of intervals
    targets = tuple(targets) or (problem.target_executors,)
    taus = tuple(taus) or (problem.limits.tau or 0.0,) * len(targets)
    _check_sequence(problem, targets, taus)
    if sample is not None and sample < 1:
        raise wrong_value("sample", sample, "give a number of partitionings, at least 1")
    total = float(problem.weight.sum())
    last_cuts = [
        last_cuts_within(problem, (1 + tau) * total / n * (1 + RELATIVE_TOLERANCE / 2))
        for n, tau in zip(targets, taus, strict=True)
    ]
    layers, every = _layers(problem, targets, last_cuts, sample)
    path = _shortest_path(problem, targets, last_cuts, layers)
    if path is None:
        fallback = plan_ssm(problem)
        return make_solution(
            problem,
            fallback.assignment,
            method="oms",
            reason="a step of the sequence has no intervals within its limits; this is ssm's plan",
            objective=fallback.objective,
        )
    cuts, moved = path
    return make_solution(
        problem,
        match_intervals(problem, cuts[0]),
        method="oms",
        optimal=every,
        reason="" if every else "steps before the last are planned by a sample of partitionings",
        objective=sum(moved),
        bound=sum(moved) if every else None,
        details={"cuts": [c.tolist() for c in cuts], "moved_bytes": moved},
    )


def _check_sequence(problem: Problem, targets: Sequence[int], taus: Sequence[float]) -> None:
    """Raise `InvalidProblemError` if targets and thresholds do not fit the problem."""
    available = len(problem.available)
    for i, n in enumerate(targets):
        if not 1 <= n <= available:
            remedy = f"name more executors than {available} in the problem, or ask for fewer"
            raise wrong_value(f"targets[{i}]", n, remedy)
    if len(taus) != len(targets) or not all(0 <= tau < np.inf for tau in taus):
        remedy = f"give {len(targets)} finite numbers that are at least 0, one for each target"
        raise wrong_value("taus", tuple(taus), remedy)
    if problem.limits.target_executors not in (None, targets[0]):
        limit = problem.limits.target_executors
        remedy = f"it contradicts limits.target_executors = {limit}: give the same number"
        raise wrong_value("targets[0]", targets[0], remedy)


def _layers(
    problem: Problem, targets: Sequence[int], last_cuts: list[IntArray], sample: int | None
) -> tuple[list[IntArray], bool]:
    """Return the partitionings of every step but the last, and whether these are all of them.

    `sample`: most partitionings a step.
    """
    most = MAX_PARTITIONINGS if sample is None else min(sample, MAX_PARTITIONINGS)
    steps = list(zip(last_cuts[:-1], targets[:-1], strict=True))
    if sample is None or all(count_partitionings(last_cut, n) <= most for last_cut, n in steps):
        return [partitionings(last_cut, n, at_most=most) for last_cut, n in steps], True
    layers, cuts = [], present_cuts(problem)
    state_before = line_of(problem, np.inf, use=False).state_before
    for last_cut, n in steps:
        layer = _coarse_partitionings(problem, last_cut, n, at_most=most)
        best = best_cuts(
            lay_out(_drop_empty(cuts), last_cut=last_cut, state_before=state_before), n
        )
        if best is not None:  # what a single step would lead to
            cuts = np.full(n + 1, problem.num_key_groups, np.int32)
            cuts[: len(best) + 1] = [0, *(y for _, y, _ in best)]
            layer = np.unique(np.concatenate((layer, cuts[None])), axis=0)
        layers.append(layer)
        state_before = np.concatenate(([0.0], np.cumsum(problem.state_bytes)))
    return layers, False


def _coarse_partitionings(
    problem: Problem, last_cut: IntArray, parts: int, *, at_most: int
) -> IntArray:
    """Return at most `at_most` partitionings that cut between blocks of about equal load.

    Shape ``(count, parts + 1)``; none if there are too many even with the fewest blocks, or none at
    all.
    """
    m, total = problem.num_key_groups, np.cumsum(problem.weight)
    blocks = m
    while blocks >= parts:
        ends = np.searchsorted(total, total[-1] * np.arange(1, blocks) / blocks) + 1
        points = np.unique(np.concatenate(([0, m], np.minimum(ends, m), present_cuts(problem))))
        coarse = np.searchsorted(points, last_cut[points], side="right") - 1
        coarse = np.maximum(coarse, np.arange(len(points))).astype(np.int32)
        if 0 < count_partitionings(coarse, parts) <= at_most:
            rows: IntArray = points[partitionings(coarse, parts, at_most=at_most)]
            return rows.astype(np.int32)
        blocks = blocks * 3 // 4
    return np.empty((0, parts + 1), np.int32)


def _shortest_path(
    problem: Problem, targets: Sequence[int], last_cuts: list[IntArray], layers: list[IntArray]
) -> tuple[list[IntArray], list[float]] | None:
    """Return cuts and bytes moved of each step, such that all steps together move the fewest bytes.

    ``None`` if a step has no partitioning. `targets`: numbers of intervals of each step.
    `last_cuts`: of each step, the last cut of an interval from each cut. `layers`: partitionings to
    choose from, of each step but the last.
    """
    everything = float(problem.state_bytes.sum())
    state_before = np.concatenate(([0.0], np.cumsum(problem.state_bytes)))
    now = line_of(problem, np.inf, use=False)
    if any(len(layer) == 0 for layer in layers):
        return None
    if not layers:
        line = lay_out(present_cuts(problem), last_cut=last_cuts[0], state_before=now.state_before)
        last = best_cuts(line, targets[0])
        if last is None:
            return None
        cuts = np.array([0, *(y for _, y, _ in last)], np.int32)
        kept_now = kept_bytes(present_cuts(problem)[None], cuts[None], now.state_before)[0, 0]
        return [cuts], [everything - float(kept_now)]
    ends = [
        best_cuts(
            lay_out(_drop_empty(row), last_cut=last_cuts[-1], state_before=state_before),
            targets[-1],
        )
        for row in layers[-1]
    ]
    if ends[0] is None:  # the bound does not depend on where one comes from
        return None
    final = [np.array([0, *(y for _, y, _ in end or ())], np.int32) for end in ends]
    cost = np.array(
        [
            everything - _kept_bytes(row, f, state_before)
            for row, f in zip(layers[-1], final, strict=True)
        ]
    )
    choices: list[IntArray] = []
    for i in range(len(layers) - 2, -1, -1):
        to_go = everything - kept_bytes(layers[i], layers[i + 1], state_before) + cost
        choices.append(to_go.argmin(axis=1).astype(np.int32))
        cost = to_go.min(axis=1)
    first = everything - kept_bytes(present_cuts(problem)[None], layers[0], now.state_before)[0]
    index = int((first + cost).argmin())
    cuts_of_steps, moved = [layers[0][index]], [float(first[index])]
    for i, choice in enumerate(reversed(choices)):
        index = int(choice[index])
        moved.append(
            everything - _kept_bytes(cuts_of_steps[-1], layers[i + 1][index], state_before)
        )
        cuts_of_steps.append(layers[i + 1][index])
    moved.append(everything - _kept_bytes(cuts_of_steps[-1], final[index], state_before))
    return [*cuts_of_steps, final[index]], moved


def _drop_empty(cuts: IntArray) -> IntArray:
    """Return cuts without the repeated ones at the end, which stand for empty intervals."""
    return cuts[np.concatenate(([True], np.diff(cuts) > 0))]


def _kept_bytes(old: IntArray, new: IntArray, state_before: FloatArray) -> float:
    """Return the most bytes that can stay between two partitionings."""
    return float(kept_bytes(old[None], new[None], state_before)[0, 0])


def match_intervals(problem: Problem, cuts: IntArray) -> IntArray:
    """Return the executor of each key group: intervals go to executors so that most bytes stay."""
    cuts = _drop_empty(cuts)
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
