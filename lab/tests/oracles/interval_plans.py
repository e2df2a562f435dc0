"""Plans by intervals, by brute force: every way to cut the line, and the best matching of each."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment

from godwit.placement.problem import Limits, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.placement.arrays import IntArray

__all__ = [
    "cheapest_sequence",
    "fewest_bytes",
    "line_problem",
    "random_line_problem",
    "valid_cuts",
]


def line_problem(
    owners: Sequence[int],
    *,
    load: Sequence[float] | None = None,
    state_bytes: Sequence[float] | None = None,
    num_executors: int | None = None,
    draining: Sequence[bool] | None = None,
    tau: float | None = None,
    target: int | None = None,
) -> Problem:
    """Build a problem of intervals; loads and sizes are 1 where they are not given."""
    m = len(owners)
    n = max(owners) + 1 if num_executors is None else num_executors
    return Problem(
        executors=tuple(f"e{i}" for i in range(n)),
        load=np.ones(m) if load is None else np.array(load, np.float64),
        state_bytes=np.ones(m) if state_bytes is None else np.array(state_bytes, np.float64),
        current=np.array(owners, np.int32),
        draining=np.array([False] * n if draining is None else draining),
        intervals=True,
        limits=Limits(tau=tau, target_executors=target),
    )


def random_line_problem(rng: np.random.Generator, *, most: int = 9) -> Problem:
    """Draw a small problem; zero sizes, draining and new executors, and tight tau are common."""
    m, n = int(rng.integers(1, most + 1)), int(rng.integers(1, 6))
    cuts = np.concatenate(([0], np.sort(rng.integers(0, m + 1, n - 1)), [m]))
    draining = rng.random(n) < 0.2
    draining[rng.integers(n)] = False
    sizes = rng.integers(0, 6, m) * (rng.random() < 0.9)
    return line_problem(
        np.repeat(rng.permutation(n), np.diff(cuts)).tolist(),
        load=rng.integers(0, 6, m).tolist(),
        state_bytes=sizes.tolist(),
        num_executors=n,
        draining=draining.tolist(),
        tau=float(rng.choice([0.0, 0.1, 0.4, 1.2])),
        target=int(rng.integers(1, int((~draining).sum()) + 1)),
    )


def valid_cuts(problem: Problem, parts: int, limit: float) -> Iterator[tuple[int, ...]]:
    """Yield every way to cut the line into at most `parts` intervals within `limit`."""
    m = problem.num_key_groups
    for count in range(1, parts + 1):
        for inner in combinations(range(1, m), count - 1):
            cuts = (0, *inner, m)
            loads = [float(problem.weight[x:y].sum()) for x, y in pairwise(cuts)]
            if max(loads) <= limit * (1 + 1e-9):
                yield cuts


def _moved(problem: Problem, owners: IntArray, cuts: tuple[int, ...], usable: IntArray) -> float:
    stays = np.array(
        [
            [problem.state_bytes[x:y][owners[x:y] == e].sum() for e in usable.tolist()]
            for x, y in pairwise(cuts)
        ]
    )
    rows, columns = linear_sum_assignment(stays, maximize=True)
    return float(problem.state_bytes.sum() - stays[rows, columns].sum())


def fewest_bytes(problem: Problem, limit: float) -> float:
    """Fewest bytes moved by any plan of intervals with no load above `limit`; inf if none."""
    return min(
        (
            _moved(problem, problem.current, cuts, problem.available)
            for cuts in valid_cuts(problem, problem.target_executors, limit)
        ),
        default=float("inf"),
    )


def cheapest_sequence(problem: Problem, targets: Sequence[int], taus: Sequence[float]) -> float:
    """Fewest bytes that a sequence of migrations moves in all, by trying every one."""
    total = float(problem.weight.sum())

    def cost(owners: IntArray, step: int) -> float:
        if step == len(targets):
            return 0.0
        best = float("inf")
        limit = (1 + taus[step]) * total / targets[step]
        for cuts in valid_cuts(problem, targets[step], limit):
            # Who owns which interval does not matter to what follows (lemma 5.1): number them.
            after = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts)).astype(np.int32)
            usable = problem.available if step == 0 else np.unique(owners)
            best = min(best, _moved(problem, owners, cuts, usable) + cost(after, step + 1))
        return best

    return cost(problem.current, 0)
