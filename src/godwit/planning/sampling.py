"""A sample of partitionings that the future is likely to go through.

Uniform samples are useless here: two random partitionings of a long line have little in common, so
every step within such a sample would look dear.  The sample is grown instead: cheapest single
migrations (SSM) along random ways through the chain, from where the stream is now, and then, around
what they visit, partitionings with one cut moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.projected import space_of
from godwit.planning.ssm import best_cuts, lay_out, present_cuts

if TYPE_CHECKING:
    from godwit.planning.arrays import FloatArray, IntArray
    from godwit.planning.problem import Problem
    from godwit.planning.transitions import Transitions

__all__ = ["cheapest_step", "neighbours", "sampled_partitionings"]

RESTART = 0.1
"""Chance that a way starts again from a partitioning that is in the sample already."""


def sampled_partitionings(
    problem: Problem, transitions: Transitions, *, rng: np.random.Generator, count: int
) -> tuple[IntArray, ...]:
    """Sample about `count` partitionings within τ, all sizes together.

    Returns
    -------
    Per size n, shape ``(N_n, n + 1)``: distinct cuts in lexicographic order. A size without any
    partitioning within τ has none.
    """
    sizes, probability = transitions.sizes, transitions.probability
    kept = np.concatenate(([0.0], np.cumsum(problem.state_bytes)))
    reaches = [space_of(problem, n) for n in sizes]
    now = present_cuts(problem)
    seen: list[set[tuple[int, ...]]] = [set() for _ in sizes]
    visited: list[tuple[int, tuple[int, ...]]] = []

    def add(size: int, cuts: IntArray) -> None:
        row = tuple(cuts.tolist())
        if row not in seen[size]:
            seen[size].add(row)
            visited.append((size, row))

    for size in range(len(sizes)):
        first = cheapest_step(now, reaches[size], sizes[size], kept)
        if first is not None:
            add(size, first)
    if len(visited) < len(sizes):
        return tuple(_rows(rows, n) for rows, n in zip(seen, sizes, strict=True))
    size, row = visited[0]
    for _ in range(4 * count):  # a way may go round in a small circle of partitionings
        if len(visited) >= max(count // 2, len(sizes)):
            break
        if rng.random() < RESTART:
            size, row = visited[int(rng.integers(len(visited)))]
        size_after = int(rng.choice(len(sizes), p=probability[size]))
        cuts = cheapest_step(np.array(row, np.int32), reaches[size_after], sizes[size_after], kept)
        assert cuts is not None, "every size has a partitioning"
        size, row = size_after, tuple(cuts.tolist())
        add(size, cuts)
    for _ in range(4 * count):
        if len(visited) >= count:
            break
        size, row = visited[int(rng.integers(len(visited)))]
        around = neighbours(np.array(row, np.int32), reaches[size])
        if len(around):
            add(size, around[int(rng.integers(len(around)))])
    return tuple(_rows(rows, n) for rows, n in zip(seen, sizes, strict=True))


def _rows(rows: set[tuple[int, ...]], parts: int) -> IntArray:
    return np.array(sorted(rows), np.int32).reshape(-1, parts + 1)


def cheapest_step(cuts: IntArray, reach: IntArray, parts: int, kept: FloatArray) -> IntArray | None:
    """Cut as SSM would, coming from `cuts`; None if nothing is within the bound."""
    cuts = cuts[np.concatenate(([True], np.diff(cuts) > 0))]
    best = best_cuts(lay_out(cuts, reach=reach, kept=kept), parts)
    if best is None:
        return None
    after = np.full(parts + 1, len(kept) - 1, np.int32)
    after[0] = 0
    after[1 : len(best) + 1] = [y for _, y, _ in best]
    return after


def neighbours(cuts: IntArray, reach: IntArray, steps: tuple[int, ...] = (1, 2, 4)) -> IntArray:
    """Partitionings within the bound that differ by one cut moved by one of `steps`.

    Returns
    -------
    Shape ``(count, parts + 1)``.
    """
    inner = len(cuts) - 2
    shifts = np.array([s for step in steps for s in (-step, step)], np.int32)
    rows = np.repeat(cuts[None], inner * len(shifts), axis=0)
    rows[np.arange(len(rows)), np.repeat(np.arange(1, inner + 1), len(shifts))] += np.tile(
        shifts, inner
    )
    # Cuts ascend, and m alone may be repeated: every partitioning has one way to be written.
    rows = rows[((np.diff(rows, axis=1) > 0) | (rows[:, :-1] == cuts[-1])).all(axis=1)]
    rows = rows[(rows <= cuts[-1]).all(axis=1)]
    within = (rows[:, 1:] <= reach[rows[:, :-1]]).all(axis=1)
    return np.unique(rows[within], axis=0).astype(np.int32)
