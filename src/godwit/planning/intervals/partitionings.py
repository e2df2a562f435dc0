"""Ways to cut the line of key groups into intervals, and what it costs to go from one to another.

Only the cuts matter to the cost of later migrations, not who owns which interval (paper 1, lemmas
5.1 and 5.2), so a *partitioning* is a row of p + 1 ascending cuts, from 0 to m.  It may have fewer
than p intervals that are not empty; then m is repeated at its end.

Going from one partitioning to another keeps the most bytes when old intervals are matched with new
ones.  Overlaps of two partitionings of one line cannot cross, so the best matching keeps the order
and an alignment of two sequences finds it: no assignment problem has to be solved, and many pairs
are aligned at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from godwit.planning.arrays import FloatArray, IntArray

__all__ = ["count_partitionings", "kept_bytes", "partitionings"]


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
