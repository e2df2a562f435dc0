"""Partitionings of the line of key groups, the chain of their sizes, and blocks of work over them.

**Migration transition matrix**: how the number of executors changes with each migration.  Paper 1
§5.2: entry (n, n') is the probability of migrating from n to n' executors, estimated from a log of
past numbers.  Invariant: rows sum to 1, sizes ascend.

**Partitionings**: ways to cut the line of key groups into intervals, and what it costs to go from
one to another.  Only the cuts matter to the cost of later migrations, not who owns which interval
(paper 1, lemmas 5.1 and 5.2), so a *partitioning* is a row of p + 1 ascending cuts, from 0 to m.
It may have fewer than p intervals that are not empty; then m is repeated at its end.

Going from one partitioning to another keeps the most bytes when old intervals are matched with new
ones.  Overlaps of two partitionings of one line cannot cross, so the best matching keeps the order
and an alignment of two sequences finds it: no assignment problem has to be solved, and many pairs
are aligned at once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.planning.arrays import FloatArray, IntArray

__all__ = [
    "BLOCK_PAIRS",
    "Block",
    "BlockMap",
    "Transitions",
    "count_partitionings",
    "estimate_transitions",
    "kept_bytes",
    "partitionings",
    "row_blocks",
    "serially",
]


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
    """Apply in this process: the `BlockMap` of small problems and of tests."""
    return [function(block) for block in blocks]


def row_blocks(counts: Sequence[int], widest: int) -> list[Block]:
    """Make blocks of rows of every size, small enough for a cache next to `widest` targets."""
    rows_at_once = max(1, min(256, BLOCK_PAIRS // max(1, min(widest, 256))))
    return [
        (size, first, min(count, first + rows_at_once))
        for size, count in enumerate(counts)
        for first in range(0, count, rows_at_once)
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transitions:
    """A migration transition matrix (MTM).

    Raises `InvalidProblemError` if sizes do not ascend from 1 or more, or a row is not a
    distribution.
    """

    sizes: tuple[int, ...]  # numbers of executors, ascending
    # shape ``(s, s)``: entry (i, j) is the probability to go from ``sizes[i]`` to ``sizes[j]``
    probability: FloatArray

    def __post_init__(self) -> None:
        sizes = tuple(int(n) for n in self.sizes)
        probability = np.array(self.probability, np.float64)
        if not sizes or sizes[0] < 1 or sorted(set(sizes)) != list(sizes):
            raise _wrong("transitions.sizes", sizes, "Give ascending numbers of at least 1.")
        if probability.shape != (len(sizes), len(sizes)):
            raise _wrong("transitions.probability", probability.shape, "Give a row for each size.")
        sums = probability.sum(axis=1)
        bad = ~((probability >= 0).all(axis=1) & (np.abs(sums - 1) <= 1e-6))
        if bad.any():
            i = int(bad.argmax())
            raise _wrong(
                f"transitions.probability[{i}]",
                probability[i].tolist(),
                "Give probabilities that sum to 1.",
            )
        probability /= sums[:, None]
        probability.setflags(write=False)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "probability", probability)


def _wrong(name: str, value: object, remedy: str) -> InvalidProblemError:
    return InvalidProblemError(
        f"{name} = {value!r} is wrong.", remedy=remedy, field=name, value=value
    )


def estimate_transitions(
    log: Sequence[int], *, sizes: Sequence[int] | None = None, stays: bool = False
) -> Transitions:
    """Estimate the matrix from a log of numbers of executors.

    Parameters
    ----------
    log
        Executors in use in each past period, oldest first.
    sizes
        Numbers to have rows for; default: those that occur.
    stays
        Whether two equal numbers in a row count as a migration from n to n. The paper counts only
        changes (§6), which is the default.

    Returns
    -------
    Transitions
        A number that no migration was seen to leave goes to itself with probability 1.

    Raises
    ------
    InvalidProblemError
        If the log is empty or holds a number that is not in `sizes`.

    Examples
    --------
    >>> estimate_transitions([2, 3, 3, 2, 4, 2, 3]).probability.tolist()
    [[0.0, 0.6666666666666666, 0.3333333333333333], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    if len(log) == 0:
        raise _wrong("log", [], "Give at least one number of executors.")
    rows = tuple(sorted(set(log))) if sizes is None else tuple(sizes)
    place = {n: i for i, n in enumerate(rows)}
    for i, n in enumerate(log):
        if n not in place:
            raise _wrong(f"log[{i}]", n, f"Give one of the sizes {rows}.")
    counts = np.zeros((len(rows), len(rows)))
    for before, after in itertools.pairwise(log):
        if stays or before != after:
            counts[place[before], place[after]] += 1
    silent = counts.sum(axis=1) == 0
    counts[np.flatnonzero(silent), np.flatnonzero(silent)] = 1
    return Transitions(sizes=rows, probability=counts / counts.sum(axis=1, keepdims=True))


def count_partitionings(reach: IntArray, parts: int) -> int:
    """Return how many partitionings into at most `parts` intervals are within the bound.

    `reach`: see `godwit.planning.intervals.ssm.Line`.
    """
    m = len(reach) - 1
    ways = [0] * m + [1]  # ways to cover [x, m) with exactly k intervals; exact integers
    total = 0
    for _ in range(parts):
        after = [0] * (m + 2)
        for x in range(m, -1, -1):
            after[x] = after[x + 1] + ways[x]
        ways = [after[x + 1] - after[int(reach[x]) + 1] for x in range(m)] + [0]
        total += ways[0]
    return total


def partitionings(reach: IntArray, parts: int, *, at_most: int) -> IntArray:
    """Enumerate the partitionings into at most `parts` intervals within the bound.

    Returns shape ``(count, parts + 1)``: cuts, in lexicographic order. Raises `InvalidProblemError`
    if there are more than `at_most`.
    """
    count = count_partitionings(reach, parts)
    if count > at_most:
        raise InvalidProblemError(
            f"There are {count} ways to cut {len(reach) - 1} key groups into {parts} intervals, "
            f"more than {at_most}.",
            remedy="Lower tau, use fewer key groups, or use the approximation.",
            field="current",
            value=count,
        )
    m = len(reach) - 1
    needed = np.zeros(m + 1, np.int32)
    for x in range(m - 1, -1, -1):
        needed[x] = needed[reach[x]] + 1 if reach[x] > x else parts + 1
    rows = np.zeros((1, 1), np.int32)
    for part in range(1, parts + 1):
        last = rows[:, -1]
        low = np.where(last == m, m, last + 1)
        lengths = np.maximum(reach[last] - low + 1, 0)
        lengths[last == m] = 1
        source = np.repeat(np.arange(len(rows)), lengths)
        step = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        cut = (low[source] + step).astype(np.int32)
        fits = needed[cut] <= parts - part
        rows = np.column_stack((rows[source[fits]], cut[fits]))
    return rows.astype(np.int32)


def kept_bytes(old: IntArray, new: IntArray, kept: FloatArray) -> FloatArray:
    """Most bytes that can stay where they are, for every pair of partitionings.

    `old`, `new`: shapes ``(a, p + 1)`` and ``(b, q + 1)``: cuts. `kept`: shape ``(m + 1,)``: bytes
    of state before each cut. Returns shape ``(a, b)``.
    """
    left, right = kept[old], kept[new]
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
