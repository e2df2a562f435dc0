"""A sample of partitionings that the future is likely to go through.

Uniform samples are useless here: two random partitionings of a long line have little in common, so
every step within such a sample would look dear.  The sample is grown instead.  It starts with the
cheapest single migrations (SSM) along random ways through the chain, from where the stream is now,
and from tighter loads than τ asks for, whose cuts serve several sizes.  Then, in rounds, the
equations are solved over the sample.  It grows by partitionings that one look ahead shows to lower
the costs (see `pmc`), and around those that the solution visits most: what SSM
would go to from there, and the same with one cut moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.intervals.projected import space_of
from godwit.planning.intervals.ssm import best_cuts, lay_out, least_bound, present_cuts, reach_of

if TYPE_CHECKING:
    from godwit.planning.arrays import FloatArray, IntArray
    from godwit.planning.intervals.transitions import Transitions
    from godwit.planning.problem import Problem

__all__ = ["Sample", "cheapest_step", "neighbours"]

RESTART = 0.1
"""Chance that a way starts again from a partitioning that is in the sample already."""


class Sample:
    """Distinct partitionings within τ, by size; it only grows.

    `problem`: loads, state sizes, τ, and where the stream is now. `transitions`: sizes and their
    probabilities. `rng`: source of everything random here. `most`: size that it never exceeds,
    except that every size has one partitioning.
    """

    def __init__(
        self,
        problem: Problem,
        transitions: Transitions,
        *,
        rng: np.random.Generator,
        most: int,
    ) -> None:
        self._problem = problem
        self._transitions = transitions
        self._rng = rng
        self._most = most
        self._kept = np.concatenate(([0.0], np.cumsum(problem.state_bytes)))
        self._reaches = [space_of(problem, n) for n in transitions.sizes]
        self._seen: list[set[tuple[int, ...]]] = [set() for _ in transitions.sizes]
        self._visited: list[tuple[int, tuple[int, ...]]] = []

    def __len__(self) -> int:
        return len(self._visited)

    @property
    def cuts(self) -> tuple[IntArray, ...]:
        """Per size n, shape ``(N_n, n + 1)``: partitionings in lexicographic order."""
        return tuple(
            np.array(sorted(rows), np.int32).reshape(-1, n + 1)
            for rows, n in zip(self._seen, self._transitions.sizes, strict=True)
        )

    def _add(self, size: int, cuts: IntArray | None) -> None:
        if cuts is None or (len(self._visited) >= self._most and self._seen[size]):
            return
        row = tuple(cuts.tolist())
        if row not in self._seen[size]:
            self._seen[size].add(row)
            self._visited.append((size, row))

    def _step(self, cuts: IntArray, size: int) -> IntArray | None:
        return cheapest_step(cuts, self._reaches[size], self._transitions.sizes[size], self._kept)

    def start(self, count: int) -> None:
        """Sample about `count` partitionings by SSM; none of a size that has none within τ."""
        now = present_cuts(self._problem)
        for size in range(len(self._transitions.sizes)):
            self._add(size, self._step(now, size))
        if len(self._visited) < len(self._transitions.sizes):
            return
        self._tighter(now)
        self._ways(count)

    def _tighter(self, now: IntArray) -> None:
        weight, sizes = self._problem.weight, self._transitions.sizes
        least, most = least_bound(self._problem), float(weight.sum())
        for limit in np.geomspace(least, most, 4 * len(sizes)).tolist():
            reach = reach_of(weight, limit)
            for parts in sizes:
                cuts = cheapest_step(now, reach, parts, self._kept)
                if cuts is not None:
                    self.spread(cuts)

    def spread(self, cuts: IntArray) -> None:
        """Add `cuts` under every size that they serve, and SSM's step from them to the others."""
        for size in range(len(self._transitions.sizes)):
            self._add(size, self._step(cuts, size))

    def _ways(self, count: int) -> None:
        sizes, probability = self._transitions.sizes, self._transitions.probability
        size, row = self._visited[0]
        for _ in range(4 * count):  # a way may go round in a small circle of partitionings
            if len(self._visited) >= count:
                return
            if self._rng.random() < RESTART:
                size, row = self._visited[int(self._rng.integers(len(self._visited)))]
            after = int(self._rng.choice(len(sizes), p=probability[size]))
            cuts = self._step(np.array(row, np.int32), after)
            assert cuts is not None, "every size has a partitioning"
            size, row = after, tuple(cuts.tolist())
            self._add(size, cuts)

    def grow(self, cuts: tuple[IntArray, ...], visits: FloatArray, count: int) -> None:
        """Grow to about `count` around the partitionings that are visited most.

        `cuts`: the sample that `visits` counts. `visits`: shape ``(N,)``: how often each
        partitioning is visited, all sizes one after another.
        """
        first = np.cumsum([0, *(len(rows) for rows in cuts)])
        for at in np.argsort(-visits, kind="stable").tolist():
            if len(self._visited) >= count:
                return
            size = int(np.searchsorted(first, at, side="right")) - 1
            row = cuts[size][at - first[size]]
            self.spread(row)
            around = neighbours(row, self._reaches[size])
            for i in self._rng.permutation(len(around))[:8].tolist():
                self.spread(around[i])
                self._add(size, around[i])

    def around(self, size: int, rows: IntArray) -> IntArray:
        """Partitionings that are not in the sample and differ by one cut from one of `rows`.

        Returns shape ``(count, parts + 1)``: distinct, in lexicographic order.
        """
        near = [neighbours(row, self._reaches[size]) for row in rows]
        if not near:
            return rows[:0]
        distinct = np.unique(np.concatenate(near), axis=0)
        seen = self._seen[size]
        return distinct[[tuple(row) not in seen for row in distinct.tolist()]]


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

    Returns shape ``(count, parts + 1)``.
    """
    inner, m = len(cuts) - 2, int(cuts[-1])
    shifts = np.array([s for step in steps for s in (-step, step)], np.int32)
    rows = np.repeat(cuts[None], inner * len(shifts), axis=0)
    moved = np.repeat(np.arange(1, inner + 1), len(shifts))
    rows[np.arange(len(rows)), moved] += np.tile(shifts, inner)
    left, right = rows[:, :-1], rows[:, 1:]
    # Cuts ascend, and m alone may be repeated: every partitioning has one way to be written.
    ascending = ((right > left) | ((left == m) & (right == m))).all(axis=1)
    rows = rows[ascending & (rows <= m).all(axis=1)]
    within = (rows[:, 1:] <= reach[rows[:, :-1]]).all(axis=1)
    return np.unique(rows[within], axis=0).astype(np.int32)
