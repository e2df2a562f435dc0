"""PMC: the projected cost of each partitioning, computed in advance (paper 1 §5.2).

Numbers of executors follow a Markov chain M (`Transitions`).  The projected cost C is the least
expected sum of bytes moved, c(P, P') per migration and discounted by gamma, over an endless
sequence:

    C(P) = Σ_n' M[n, n'] · min over P' with n' intervals of ( c(P, P') + gamma·C(P') )

Figure 9 of the paper prints a sum over all P' where this minimum belongs: the matrix gives
probabilities of numbers, not of partitionings.

One *sweep* evaluates the right-hand side for all P, block by block through a `BlockMap`, here or on
Spark.  Between sweeps the choices just made are evaluated to the end (policy iteration).  The
sweep's residual bounds the error: max|C - C*| ≤ gamma/(1-gamma) · residual.  Where partitionings
are too many, the equations are solved over a `Sample` of them.  Choosing only within it is a policy
that could be followed, so sampled costs are upper bounds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from scipy.sparse import csr_array

from godwit.model.errors import InvalidProblemError
from godwit_lab.planners.intervals.oms import (
    MAX_PARTITIONINGS,
    count_partitionings,
    kept_bytes,
    partitionings,
)
from godwit_lab.planners.intervals.projected import ProjectedCost, Space, last_cuts_within_tau
from godwit_lab.planners.intervals.ssm import (
    best_cuts,
    last_cuts_of,
    lay_out,
    least_bound,
    present_cuts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.placement.arrays import Clock, FloatArray, IntArray
    from godwit.placement.problem import Problem
    from godwit_lab.planners.intervals.projected import Transitions

BLOCK_PAIRS = 1 << 14
"""Pairs of partitionings aligned at once; a few such matrices fit a core's cache."""


In = TypeVar("In")


Out = TypeVar("Out")


Block = tuple[int, int, int]
"""Index of a size, first row, last row + 1."""


class BlockMap(Protocol):
    """Port: apply a function to every block, in any place and order; results in order."""

    def __call__(self, function: Callable[[In], Out], blocks: Sequence[In]) -> list[Out]:
        """Return ``[function(block) for block in blocks]``."""
        ...


def serially(function: Callable[[In], Out], blocks: Sequence[In]) -> list[Out]:
    """Return the results of a function for all blocks, computed one by one in this process."""
    return [function(block) for block in blocks]


def row_blocks(counts: Sequence[int], widest: int) -> list[Block]:
    """Return blocks of rows that fit a cache.

    `counts`: number of rows of each size. `widest`: largest number of columns.
    """
    rows_at_once = max(1, min(256, BLOCK_PAIRS // max(1, min(widest, 256))))
    return [
        (size, first, min(count, first + rows_at_once))
        for size, count in enumerate(counts)
        for first in range(0, count, rows_at_once)
    ]


RESTART = 0.1
"""Chance that a way starts again from a partitioning that is in the sample already."""


class Sample:
    """Sample of partitionings within τ, by size, that future migrations are likely to pass.

    It only grows. Uniform samples are useless here: two random partitionings of a long line have
    little in common, so every step within such a sample would look dear. The sample starts with the
    cheapest single migrations (SSM) along random ways through the chain, from where the stream is
    now, and from tighter loads than τ asks for, whose cuts serve several sizes. Then, in rounds,
    the equations are solved over it; it grows by partitionings that one look ahead shows to lower
    the costs, and around those that the solution visits most. `most` is never exceeded, except that
    every size has one.
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
        self._last_cuts = [last_cuts_within_tau(problem, n) for n in transitions.sizes]
        self._seen: list[set[tuple[int, ...]]] = [set() for _ in transitions.sizes]
        self._visited: list[tuple[int, tuple[int, ...]]] = []

    def __len__(self) -> int:
        return len(self._visited)

    @property
    def cuts(self) -> tuple[IntArray, ...]:
        """Partitionings of each size n, shape ``(N_n, n + 1)``, in lexicographic order."""
        return tuple(
            np.array(sorted(rows), np.int32).reshape(-1, n + 1)
            for rows, n in zip(self._seen, self._transitions.sizes, strict=True)
        )

    def _add(self, size: int, cuts: IntArray | None) -> None:
        """Add a partitioning to the sample, if it is new and there is room."""
        if cuts is None or (len(self._visited) >= self._most and self._seen[size]):
            return
        row = tuple(cuts.tolist())
        if row not in self._seen[size]:
            self._seen[size].add(row)
            self._visited.append((size, row))

    def _cheapest_step(self, cuts: IntArray, size: int) -> IntArray | None:
        """Return the partitioning into ``sizes[size]`` intervals cheapest to reach from `cuts`.

        ``None`` if no such partitioning is within τ.
        """
        return cheapest_step(cuts, self._last_cuts[size], self._transitions.sizes[size], self._kept)

    def start(self, count: int) -> None:
        """Begin a sample of about `count` partitionings, by steps of SSM from the present one."""
        now = present_cuts(self._problem)
        for size in range(len(self._transitions.sizes)):
            self._add(size, self._cheapest_step(now, size))
        if len(self._visited) < len(self._transitions.sizes):
            return
        self._sample_tighter_bounds(now)
        self._add_random_walks(count)

    def _sample_tighter_bounds(self, now: IntArray) -> None:
        """Add partitionings that SSM makes from `now` under bounds tighter than τ."""
        weight, sizes = self._problem.weight, self._transitions.sizes
        lowest, highest = least_bound(self._problem), float(weight.sum())
        for limit in np.geomspace(lowest, highest, 4 * len(sizes)).tolist():
            last_cut = last_cuts_of(weight, limit)
            for parts in sizes:
                cuts = cheapest_step(now, last_cut, parts, self._kept)
                if cuts is not None:
                    self.add_steps(cuts)

    def add_steps(self, cuts: IntArray) -> None:
        """Add `cuts` at every size that they fit, and the steps that SSM makes from them."""
        for size in range(len(self._transitions.sizes)):
            self._add(size, self._cheapest_step(cuts, size))

    def _add_random_walks(self, count: int) -> None:
        """Add SSM's steps along random walks through the sizes, up to `count` partitionings."""
        sizes, probability = self._transitions.sizes, self._transitions.probability
        size, row = self._visited[0]
        for _ in range(4 * count):  # a way may go round in a small circle of partitionings
            if len(self._visited) >= count:
                return
            if self._rng.random() < RESTART:
                size, row = self._visited[int(self._rng.integers(len(self._visited)))]
            after = int(self._rng.choice(len(sizes), p=probability[size]))
            cuts = self._cheapest_step(np.array(row, np.int32), after)
            assert cuts is not None, "every size has a partitioning"
            size, row = after, tuple(cuts.tolist())
            self._add(size, cuts)

    def grow(self, cuts: tuple[IntArray, ...], visits: FloatArray, count: int) -> None:
        """Enlarge the sample to about `count`, around the partitionings that are visited most.

        `cuts`: the present sample. `visits`: shape ``(N,)``: how often each of its partitionings is
        visited, all sizes one after another.
        """
        first = np.cumsum([0, *(len(rows) for rows in cuts)])
        for index in np.argsort(-visits, kind="stable").tolist():
            if len(self._visited) >= count:
                return
            size = int(np.searchsorted(first, index, side="right")) - 1
            row = cuts[size][index - first[size]]
            self.add_steps(row)
            around = neighbours(row, self._last_cuts[size])
            for i in self._rng.permutation(len(around))[:8].tolist():
                self.add_steps(around[i])
                self._add(size, around[i])

    def around(self, size: int, rows: IntArray) -> IntArray:
        """Return partitionings beyond the sample that differ by one cut from one of `rows`.

        Returns shape ``(count, parts + 1)``: distinct, in lexicographic order.
        """
        near = [neighbours(row, self._last_cuts[size]) for row in rows]
        if not near:
            return rows[:0]
        distinct = np.unique(np.concatenate(near), axis=0)
        seen = self._seen[size]
        return distinct[[tuple(row) not in seen for row in distinct.tolist()]]


def cheapest_step(
    cuts: IntArray, last_cut: IntArray, parts: int, state_before: FloatArray
) -> IntArray | None:
    """Return the cuts that SSM makes from `cuts`; ``None`` if none are possible. See `lay_out`."""
    cuts = cuts[np.concatenate(([True], np.diff(cuts) > 0))]
    best = best_cuts(lay_out(cuts, last_cut=last_cut, state_before=state_before), parts)
    if best is None:
        return None
    after = np.full(parts + 1, len(state_before) - 1, np.int32)
    after[0] = 0
    after[1 : len(best) + 1] = [y for _, y, _ in best]
    return after


def neighbours(cuts: IntArray, last_cut: IntArray, steps: tuple[int, ...] = (1, 2, 4)) -> IntArray:
    """Return partitionings within the bound that differ from `cuts` by one cut, moved a little.

    `steps`: distances that a cut is moved. Returns shape ``(count, parts + 1)``.
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
    within = (rows[:, 1:] <= last_cut[rows[:, :-1]]).all(axis=1)
    return np.unique(rows[within], axis=0).astype(np.int32)


ROUNDS = 4
"""Times that a sample is solved and grown around what its solution visits."""

CANDIDATES = 1_200
"""Partitionings of a size, about, that a round looks at beyond the sample."""


def _sweep_block(
    space: Space, cost: tuple[FloatArray, ...], block: Block
) -> tuple[FloatArray, IntArray]:
    """Return, for one block of rows, new costs, and the row chosen for every next size."""
    size, first, stop = block
    return best_next(space, space.cuts[size][first:stop], size, cost)


def _costs_beyond(
    space: Space, size: int, rows: IntArray, cost: tuple[FloatArray, ...], block: Block
) -> FloatArray:
    """Return the costs of a block of `rows` (partitionings) that the sample does not have.

    `cost`: costs of the sample, by size.
    """
    _, first, stop = block
    return best_next(space, rows[first:stop], size, cost)[0]


def best_next(
    space: Space, rows: IntArray, size: int, cost: tuple[FloatArray, ...]
) -> tuple[FloatArray, IntArray]:
    """Return the expected cost of each partitioning (row), and its best successor of every size.

    Shapes ``(a,)`` and ``(a, sizes)``; a successor is -1 where the probability is 0.
    """
    total = np.zeros(len(rows))
    chosen = np.full((len(rows), len(space.cuts)), -1, np.int32)
    probability = space.transitions.probability[size]
    for j in np.flatnonzero(probability).tolist():
        best, chosen[:, j] = _cheapest_target(
            rows, space.cuts[j], space.gamma * cost[j], space.state_before
        )
        total += probability[j] * best
    return total, chosen


def _cheapest_target(
    rows: IntArray, targets: IntArray, later: FloatArray, state_before: FloatArray
) -> tuple[FloatArray, IntArray]:
    """Return, for each partitioning (row), the target with the least bytes moved now plus later.

    `later`: cost of each target. `state_before`: bytes of state before each cut. Returns these
    sums, and the targets.
    """
    best = np.full(len(rows), np.inf)
    chosen = np.zeros(len(rows), np.int32)
    step = max(1, BLOCK_PAIRS // max(1, len(rows)))
    for low in range(0, len(targets), step):
        total = later[low : low + step] - kept_bytes(rows, targets[low : low + step], state_before)
        cheapest = total.argmin(axis=1)
        value = total[np.arange(len(rows)), cheapest]
        better = value < best
        best[better] = value[better]
        chosen[better] = low + cheapest[better]
    return best + state_before[-1], chosen


def count_within_tau(problem: Problem, transitions: Transitions, *, gamma: float) -> int:
    """Return the number of partitionings within τ, of all sizes together."""
    return sum(
        count_partitionings(last_cuts_within_tau(problem, n, gamma), n) for n in transitions.sizes
    )


def projected_cost(
    problem: Problem,
    transitions: Transitions,
    *,
    gamma: float = 0.8,
    max_partitionings: int = MAX_PARTITIONINGS,
    tolerance: float = 1e-9,
    block_map: BlockMap = serially,
    clock: Clock = time.perf_counter,
) -> ProjectedCost:
    """Compute the projected cost of every partitioning, exact to `tolerance` times all state.

    The discount factor gamma is below 1, since at 1 an endless sum has no value. Raises
    `InvalidProblemError` if there are more than `max_partitionings`, all sizes together, or none
    for a size that can occur.
    """
    began = clock()
    last_cuts = [last_cuts_within_tau(problem, n, gamma) for n in transitions.sizes]
    counts = [count_partitionings(r, n) for r, n in zip(last_cuts, transitions.sizes, strict=True)]
    if sum(counts) > max_partitionings:
        raise InvalidProblemError(
            f"There are {sum(counts)} partitionings, more than max_partitionings = "
            f"{max_partitionings}.",
            remedy="Raise it (the time grows as its square), or use the approximation.",
            field="max_partitionings",
            value=max_partitionings,
        )
    cuts = tuple(
        partitionings(r, n, at_most=max_partitionings)
        for r, n in zip(last_cuts, transitions.sizes, strict=True)
    )
    space = Space.of(problem, transitions, cuts=cuts, gamma=gamma)
    solved = _solve_costs(space, tolerance=tolerance, block_map=block_map)
    return ProjectedCost.of(
        problem, space, cost=solved.cost, exact=True, error_bytes=solved.error_bytes,
        sweeps=solved.sweeps,
        elapsed_s=clock() - began,
    )  # fmt: skip


def approximate_projected_cost(
    problem: Problem,
    transitions: Transitions,
    *,
    rng: np.random.Generator,
    gamma: float = 0.8,
    num_partitionings: int = 1_000,
    check_partitionings: int = 2_000,
    tolerance: float = 1e-6,
    block_map: BlockMap = serially,
    clock: Clock = time.perf_counter,
) -> ProjectedCost:
    """Compute projected costs over a sample of partitionings: upper bounds of the exact ones.

    If there are at most `num_partitionings` in all, the costs are exact; if there are at most
    `check_partitionings`, the exact costs are computed too, and the error is in
    `ProjectedCost.measured_error` and `measured_mean_error`.

    Raises `InvalidProblemError` if a size that can occur has no partitioning within τ.
    """
    began = clock()
    total = count_within_tau(problem, transitions, gamma=gamma)
    if total <= num_partitionings:
        return projected_cost(
            problem, transitions, gamma=gamma, max_partitionings=total, tolerance=tolerance,
            block_map=block_map, clock=clock,
        )  # fmt: skip
    sample = Sample(problem, transitions, rng=rng, most=num_partitionings)
    sample.start(num_partitionings // 3)
    for left in range(ROUNDS, 0, -1):
        space = Space.of(problem, transitions, cuts=sample.cuts, gamma=gamma)
        if len(sample) >= num_partitionings:
            break
        solved = _solve_costs(space, tolerance=max(tolerance, 1e-3), block_map=block_map)
        goal = len(sample) + -(-(num_partitionings - len(sample)) // left)
        visits = _visit_frequencies(space, solved.chosen)
        for cuts in _improving_partitionings(sample, space, solved, visits, block_map):
            if len(sample) < goal:
                sample.add_steps(cuts)
        sample.grow(space.cuts, visits, goal)
    space = Space.of(problem, transitions, cuts=sample.cuts, gamma=gamma)
    solved = _solve_costs(space, tolerance=tolerance, block_map=block_map)
    measured = on_average = None
    if total <= check_partitionings:
        exact = projected_cost(
            problem, transitions, gamma=gamma, max_partitionings=total, block_map=block_map
        )
        measured, on_average = _measured_errors(space, solved.cost, exact)
    return ProjectedCost.of(
        problem, space, cost=solved.cost, exact=False, error_bytes=solved.error_bytes,
        sweeps=solved.sweeps,
        elapsed_s=clock() - began, measured_error=measured, measured_mean_error=on_average,
        partitionings_in_all=total,
    )  # fmt: skip


def _measured_errors(
    space: Space, cost: tuple[FloatArray, ...], exact: ProjectedCost
) -> tuple[float, float]:
    """Return the greatest and the mean excess over exact costs, as shares of their mean."""
    above = np.array(
        [
            value - exact.cost_of(row, n)
            for rows, values, n in zip(space.cuts, cost, space.transitions.sizes, strict=True)
            for row, value in zip(rows, values.tolist(), strict=True)
        ]
    )
    mean = float(np.concatenate(exact.cost).mean()) or 1.0
    return max(0.0, float(above.max())) / mean, max(0.0, float(above.mean())) / mean


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Solved:
    """Costs per size, their largest error, the number of sweeps, and the last choices."""

    cost: tuple[FloatArray, ...]
    error_bytes: float
    sweeps: int
    chosen: IntArray


def _improving_partitionings(
    sample: Sample, space: Space, solved: _Solved, visits: FloatArray, block_map: BlockMap
) -> list[IntArray]:
    """Return partitionings beyond the sample that would lower its costs, the best first.

    Candidates differ by one cut from those chosen most. Their future cost is evaluated by one look
    ahead, and each counts for the partitionings that would choose it, by how often these are
    visited.
    """
    counts = [len(rows) for rows in space.cuts]
    bounds = np.cumsum([0, *counts])
    often = np.split(visits + 1 / bounds[-1], bounds[1:-1])
    offers: list[tuple[float, int, IntArray]] = []
    for j, parts in enumerate(space.transitions.sizes):
        leads = np.unique(solved.chosen[:, j])
        leads = leads[leads >= 0]
        most = np.argsort(-often[j][leads], kind="stable")[: max(1, CANDIDATES // (6 * parts))]
        around = sample.around(j, space.cuts[j][leads[most]])
        if len(around) == 0:
            continue
        look_ahead = partial(_costs_beyond, space, j, around, solved.cost)
        blocks = row_blocks([len(around)], max(counts))
        ahead = np.concatenate(block_map(look_ahead, blocks))
        worth = np.zeros(len(around))
        for i in np.flatnonzero(space.transitions.probability[:, j]).tolist():
            rows = space.cuts[i]
            value, cheapest = _cheapest_target(
                rows, around, space.gamma * ahead, space.state_before
            )
            today, _ = _cheapest_target(
                rows, space.cuts[j], space.gamma * solved.cost[j], space.state_before
            )
            gain = np.where(value < today * (1 - 1e-9), today - value, 0.0)
            np.add.at(worth, cheapest, space.transitions.probability[i, j] * often[i] * gain)
        offers += [(-worth[k], j, around[k]) for k in np.flatnonzero(worth > 0).tolist()]
    offers.sort(key=lambda offer: offer[:2])
    return [cuts for _, _, cuts in offers]


def _visit_frequencies(space: Space, chosen: IntArray) -> FloatArray:
    """Return how often a policy visits each partitioning, shape ``(N,)``.

    `chosen`: the policy: row chosen for every next size.
    """
    leads = _transition_matrix(space, chosen)
    visits: FloatArray = np.full(len(chosen), 1 / len(chosen))
    for _ in range(100):  # lazily, so that chains that alternate settle, too
        visits = (visits + leads.T @ visits) / 2
    return visits


def _solve_costs(space: Space, *, tolerance: float, block_map: BlockMap) -> _Solved:
    """Solve the cost equations by sweeps and policy evaluation, until the error is small.

    `tolerance`: largest error of a cost, as a share of the bytes of all state. `block_map`: runs
    the blocks of a sweep, in this process or as Spark tasks.
    """
    counts = [len(rows) for rows in space.cuts]
    blocks = row_blocks(counts, max(counts))
    bounds = np.cumsum([0, *counts])
    cost = np.zeros(bounds[-1])
    sweeps = 0
    goal = tolerance * max(float(space.state_before[-1]), 1.0)
    while True:
        sweep = partial(_sweep_block, space, tuple(np.split(cost, bounds[1:-1])))
        results = block_map(sweep, blocks)
        sweeps += 1
        swept = np.concatenate([values for values, _ in results])
        chosen = np.concatenate([choice for _, choice in results])
        error = float(np.abs(swept - cost).max()) * space.gamma / (1 - space.gamma)
        if error <= goal:
            parts = tuple(np.split(swept, bounds[1:-1]))
            return _Solved(cost=parts, error_bytes=error, sweeps=sweeps, chosen=chosen)
        cost = _evaluate_policy(space, (cost, swept, chosen), goal)


def _evaluate_policy(
    space: Space, choices: tuple[FloatArray, FloatArray, IntArray], goal: float
) -> FloatArray:
    """Return the costs of a policy.

    `choices`: costs before and after a sweep, and the policy. `goal`: maximum error.
    """
    cost, swept, chosen = choices
    leads = _transition_matrix(space, chosen)
    moved = swept - space.gamma * np.asarray(leads @ cost)
    value = swept
    while True:
        following: FloatArray = moved + space.gamma * np.asarray(leads @ value)
        change = float(np.abs(following - value).max())
        value = following
        if change * space.gamma <= goal * (1 - space.gamma) / 4:
            return value


def _transition_matrix(space: Space, chosen: IntArray) -> csr_array:
    """Return the matrix of transition probabilities between partitionings under a policy.

    `chosen`: the policy: row chosen for every next size.
    """
    counts = [len(rows) for rows in space.cuts]
    first = np.cumsum([0, *counts])
    probability = np.repeat(space.transitions.probability, counts, axis=0)
    source, size = np.nonzero(chosen >= 0)
    target = first[size] + chosen[source, size]
    n = len(chosen)
    return csr_array((probability[source, size], (source, target)), shape=(n, n))
