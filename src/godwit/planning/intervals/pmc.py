"""PMC: what the future costs from each partitioning, computed before it is needed.

Problem (paper 1 §5.2).  Numbers of executors follow a Markov chain (`Transitions`).  From
partitioning P the next number n' is drawn; then a partitioning P' with n' intervals is chosen, and
the bytes c(P, P') move.  The projected cost C is the least expected sum of bytes, discounted by
gamma per migration, over an endless sequence:

    C(P) = Σ_n' M[n, n'] · min over P' with n' intervals of ( c(P, P') + gamma·C(P') )

Figure 9 of the paper prints a sum over all P' where this minimum belongs: the matrix gives
probabilities of numbers, not of partitionings.

Method.  One *sweep* evaluates the right-hand side for all P: this is the expensive part, done block
by block through a `BlockMap`, here or on Spark.  Between sweeps the choices just found are
evaluated to the end (policy iteration), so a handful of sweeps does what value iteration needs
hundreds for, with the same fixed point.  The sweep's residual bounds the error:
max|C - C*| ≤ gamma/(1-gamma) · residual, on every sweep.

Where partitionings are too many, the same equations are solved over a sample of them.  Choosing
only within the sample is a policy that could be followed, so sampled costs are upper bounds of the
exact ones.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from godwit.model.errors import InvalidProblemError
from godwit.planning.intervals.blocks import BLOCK_PAIRS, Block, BlockMap, row_blocks, serially
from godwit.planning.intervals.partitionings import count_partitionings, kept_bytes, partitionings
from godwit.planning.intervals.projected import ProjectedCost, Space, space_of
from godwit.planning.intervals.sampling import Sample

if TYPE_CHECKING:
    from godwit.planning.arrays import Clock, FloatArray, IntArray
    from godwit.planning.intervals.transitions import Transitions
    from godwit.planning.problem import Problem

__all__ = [
    "MAX_PARTITIONINGS",
    "Sweep",
    "approximate_projected_cost",
    "projected_cost",
]

MAX_PARTITIONINGS = 20_000
"""Most partitionings, all sizes together, that the exact computation takes by default."""
ROUNDS = 4
"""Times that a sample is solved and grown around what its solution visits."""

CANDIDATES = 1_200
"""Partitionings of a size, about, that a round looks at beyond the sample."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sweep:
    """One evaluation of the equations, ready to be sent to where a block is computed."""

    space: Space  # partitionings, sizes and probabilities
    cost: tuple[FloatArray, ...]  # per size, shape ``(N_n,)``: projected costs so far

    def __call__(self, block: Block) -> tuple[FloatArray, IntArray]:
        """Return new costs, and per size the row chosen, of the rows of one block."""
        size, first, stop = block
        rows = self.space.cuts[size][first:stop]
        return best_next(self.space, rows, size, self.cost)


def best_next(
    space: Space, rows: IntArray, size: int, cost: tuple[FloatArray, ...]
) -> tuple[FloatArray, IntArray]:
    """Evaluate the right-hand side for partitionings `rows` of size index `size`.

    Returns shapes ``(a,)`` and ``(a, sizes)``: costs, and the row chosen for every next size (-1
    where the. Returns probability is 0).
    """
    total = np.zeros(len(rows))
    chosen = np.full((len(rows), len(space.cuts)), -1, np.int32)
    probability = space.transitions.probability[size]
    for j in np.flatnonzero(probability).tolist():
        best, chosen[:, j] = _cheapest(rows, space.cuts[j], space.gamma * cost[j], space.kept)
        total += probability[j] * best
    return total, chosen


def _cheapest(
    rows: IntArray, targets: IntArray, later: FloatArray, kept: FloatArray
) -> tuple[FloatArray, IntArray]:
    """Least bytes now and `later` from each row to any target, and the target; ties: the first."""
    best = np.full(len(rows), np.inf)
    chosen = np.zeros(len(rows), np.int32)
    step = max(1, BLOCK_PAIRS // max(1, len(rows)))
    for low in range(0, len(targets), step):
        there = later[low : low + step] - kept_bytes(rows, targets[low : low + step], kept)
        at = there.argmin(axis=1)
        value = there[np.arange(len(rows)), at]
        better = value < best
        best[better] = value[better]
        chosen[better] = low + at[better]
    return best + kept[-1], chosen


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
    """Compute the projected cost of every partitioning, exactly.

    Parameters
    ----------
    problem
        Loads, state sizes and ``limits.tau``.
    transitions
        The migration transition matrix.
    gamma
        Discount factor, 0 ≤ gamma < 1 (at 1 an endless sum has no value).
    max_partitionings
        Refuse more than this, all sizes together.
    tolerance
        Stop when the error is at most this share of all state.
    block_map
        Where blocks are computed.
    clock
        Seconds.

    Raises
    ------
    InvalidProblemError
        If there are too many partitionings, or none for a size that can occur.
    """
    began = clock()
    reaches = [space_of(problem, n, gamma) for n in transitions.sizes]
    counts = [count_partitionings(r, n) for r, n in zip(reaches, transitions.sizes, strict=True)]
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
        for r, n in zip(reaches, transitions.sizes, strict=True)
    )
    space = Space.of(problem, transitions, cuts=cuts, gamma=gamma)
    found = _solve(space, tolerance=tolerance, block_map=block_map)
    return ProjectedCost.of(
        problem, space, cost=found.cost, exact=True, error_bytes=found.error_bytes,
        sweeps=found.sweeps,
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

    See `sampling` for how the sample begins, and `_offers` for how it grows. Where
    there are no more than `num_partitionings` in all, the costs are exact.

    Parameters
    ----------
    num_partitionings
        Size of the sample, all sizes together.
    check_partitionings
        Where all partitionings are at most so many, compute the exact costs too and state the error
        in `ProjectedCost.measured_error` and `measured_mean_error`.
    rng
        Source of the sample.

    Raises
    ------
    InvalidProblemError
        If a size that can occur has no partitioning within τ.
    """
    began = clock()
    total = sum(count_partitionings(space_of(problem, n, gamma), n) for n in transitions.sizes)
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
        found = _solve(space, tolerance=max(tolerance, 1e-3), block_map=block_map)
        goal = len(sample) + -(-(num_partitionings - len(sample)) // left)
        visits = _visits(space, found.chosen)
        for cuts in _offers(sample, space, found, visits, block_map):
            if len(sample) < goal:
                sample.spread(cuts)
        sample.grow(space.cuts, visits, goal)
    space = Space.of(problem, transitions, cuts=sample.cuts, gamma=gamma)
    found = _solve(space, tolerance=tolerance, block_map=block_map)
    measured = on_average = None
    if total <= check_partitionings:
        exact = projected_cost(
            problem, transitions, gamma=gamma, max_partitionings=total, block_map=block_map
        )
        measured, on_average = _errors(space, found.cost, exact)
    return ProjectedCost.of(
        problem, space, cost=found.cost, exact=False, error_bytes=found.error_bytes,
        sweeps=found.sweeps,
        elapsed_s=clock() - began, measured_error=measured, measured_mean_error=on_average,
        partitionings_in_all=total,
    )  # fmt: skip


def _errors(
    space: Space, cost: tuple[FloatArray, ...], exact: ProjectedCost
) -> tuple[float, float]:
    """Greatest and mean excess over the exact costs, relative to the mean of all exact costs."""
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
class _Found:
    """Costs per size, their greatest error, the sweeps it took, and the last choices."""

    cost: tuple[FloatArray, ...]
    error_bytes: float
    sweeps: int
    chosen: IntArray


def _offers(
    sample: Sample, space: Space, found: _Found, visits: FloatArray, block_map: BlockMap
) -> list[IntArray]:
    """Partitionings beyond the sample that would lower its costs, those that lower them most first.

    Candidates are those that differ by one cut from what is chosen most. What follows them is
    evaluated by one look ahead, and each counts for the partitionings that would choose it, by how
    often these are visited.
    """
    counts = [len(rows) for rows in space.cuts]
    bounds = np.cumsum([0, *counts])
    often = np.split(visits + 1 / bounds[-1], bounds[1:-1])
    offers: list[tuple[float, int, IntArray]] = []
    for j, parts in enumerate(space.transitions.sizes):
        leads = np.unique(found.chosen[:, j])
        leads = leads[leads >= 0]
        most = np.argsort(-often[j][leads], kind="stable")[: max(1, CANDIDATES // (6 * parts))]
        around = sample.around(j, space.cuts[j][leads[most]])
        if len(around) == 0:
            continue
        look_ahead = _LookAhead(space=space, size=j, rows=around, cost=found.cost)
        blocks = row_blocks([len(around)], max(counts))
        ahead = np.concatenate(block_map(look_ahead, blocks))
        worth = np.zeros(len(around))
        for i in np.flatnonzero(space.transitions.probability[:, j]).tolist():
            rows = space.cuts[i]
            value, at = _cheapest(rows, around, space.gamma * ahead, space.kept)
            today, _ = _cheapest(rows, space.cuts[j], space.gamma * found.cost[j], space.kept)
            gain = np.where(value < today * (1 - 1e-9), today - value, 0.0)
            np.add.at(worth, at, space.transitions.probability[i, j] * often[i] * gain)
        offers += [(-worth[k], j, around[k]) for k in np.flatnonzero(worth > 0).tolist()]
    offers.sort(key=lambda offer: offer[:2])
    return [cuts for _, _, cuts in offers]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _LookAhead:
    """Costs of partitionings beyond the table, one block at a time."""

    space: Space
    size: int
    rows: IntArray
    cost: tuple[FloatArray, ...]

    def __call__(self, block: Block) -> FloatArray:
        _, first, stop = block
        return best_next(self.space, self.rows[first:stop], self.size, self.cost)[0]


def _visits(space: Space, chosen: IntArray) -> FloatArray:
    """Shape ``(N,)``: how often each partitioning is visited when the choices are followed."""
    leads = _choices(space, chosen)
    visits: FloatArray = np.full(len(chosen), 1 / len(chosen))
    for _ in range(100):  # lazily, so that chains that alternate settle, too
        visits = (visits + leads.T @ visits) / 2
    return visits


def _solve(space: Space, *, tolerance: float, block_map: BlockMap) -> _Found:
    counts = [len(rows) for rows in space.cuts]
    blocks = row_blocks(counts, max(counts))
    bounds = np.cumsum([0, *counts])
    cost = np.zeros(bounds[-1])
    sweeps = 0
    goal = tolerance * max(float(space.kept[-1]), 1.0)
    while True:
        sweep = Sweep(space=space, cost=tuple(np.split(cost, bounds[1:-1])))
        results = block_map(sweep, blocks)
        sweeps += 1
        swept = np.concatenate([values for values, _ in results])
        chosen = np.concatenate([choice for _, choice in results])
        error = float(np.abs(swept - cost).max()) * space.gamma / (1 - space.gamma)
        if error <= goal:
            parts = tuple(np.split(swept, bounds[1:-1]))
            return _Found(cost=parts, error_bytes=error, sweeps=sweeps, chosen=chosen)
        cost = _follow(space, (cost, swept, chosen), goal)


def _follow(
    space: Space, choices: tuple[FloatArray, FloatArray, IntArray], goal: float
) -> FloatArray:
    """Evaluate the choices of a sweep to the end, without looking for better ones."""
    cost, swept, chosen = choices
    leads = _choices(space, chosen)
    moved = swept - space.gamma * np.asarray(leads @ cost)
    value = swept
    while True:
        following: FloatArray = moved + space.gamma * np.asarray(leads @ value)
        change = float(np.abs(following - value).max())
        value = following
        if change * space.gamma <= goal * (1 - space.gamma) / 4:
            return value


def _choices(space: Space, chosen: IntArray) -> csr_array:
    """Sparse ``(N, N)``: probability of going from one partitioning to another by the choices."""
    counts = [len(rows) for rows in space.cuts]
    first = np.cumsum([0, *counts])
    probability = np.repeat(space.transitions.probability, counts, axis=0)
    source, size = np.nonzero(chosen >= 0)
    target = first[size] + chosen[source, size]
    n = len(chosen)
    return csr_array((probability[source, size], (source, target)), shape=(n, n))
