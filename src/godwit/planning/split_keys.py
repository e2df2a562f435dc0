"""Key groups whose rows go to two executors, and what that does to load and traffic.

Problem: a method that splits keys has no owner per key group; pretending that it has shows moves
that nobody makes and a load that nobody has.

Invariant: every key group's rows go to at most two executors, `share` of them to the first; its
partials are merged on the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from godwit.planning.arrays import FloatArray, IntArray
    from godwit.planning.problem import Problem

__all__ = ["SplitKeys"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitKeys:
    """Where the rows of split key groups go."""

    # shape ``(m,)``: executors that get rows of each key group
    first: IntArray
    second: IntArray
    share: FloatArray  # shape ``(m,)``: part of the rows, in [0, 1], that the first gets
    merging: FloatArray  # shape ``(m,)``: load that merging the two partials adds on the first

    @property
    def num_split(self) -> int:
        """Number of key groups that really have rows on two executors."""
        return int(((self.share > 0) & (self.share < 1) & (self.first != self.second)).sum())

    def holders(self, executors: int) -> IntArray:
        """Shape ``(n,)``: key groups that each executor gets rows of."""
        one = np.bincount(self.first[self.share > 0], minlength=executors)
        apart = (self.share < 1) & ((self.first != self.second) | (self.share == 0))
        return (one + np.bincount(self.second[apart], minlength=executors)).astype(np.int32)

    def load_index(self, problem: Problem) -> FloatArray:
        """Shape ``(n,)``: load per capacity, merging included."""
        n, weight = problem.num_executors, problem.weight
        load = np.bincount(self.first, self.share * weight + self.merging, minlength=n)
        load += np.bincount(self.second, (1 - self.share) * weight, minlength=n)
        return np.asarray(load / problem.speed, np.float64)

    def mean_index(self, problem: Problem) -> float:
        """Load index that every executor would have if the load were spread perfectly."""
        total = float(problem.weight.sum() + self.merging.sum())
        return total / float(problem.speed[problem.available].sum())

    def load_distance(self, problem: Problem) -> float:
        """Largest |load index - mean| over the executors that stay."""
        index = self.load_index(problem)[problem.available]
        return float(np.abs(index - self.mean_index(problem)).max())

    def collocation_factor(self, problem: Problem) -> float:
        """Share of the traffic that is expected to stay on one executor.

        Rows are taken to be split independently at both ends.
        """
        source, target, rate = (
            problem.traffic.source,
            problem.traffic.target,
            problem.traffic.rate,
        )
        together = np.zeros(len(rate))
        for sends, sent in ((self.first, self.share), (self.second, 1 - self.share)):
            for gets, got in ((self.first, self.share), (self.second, 1 - self.share)):
                same = sends[source] == gets[target]
                together += np.where(same, sent[source] * got[target], 0.0)
        total = float(rate.sum())
        return float((rate * together).sum()) / total if total else 0.0
