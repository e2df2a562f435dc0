"""How long rows take, exactly: from cumulative curves, not from sampled rows.

Rows are taken first in, first out, so a batch is a stretch of the curve of arrivals, and all its
rows leave together when their epoch commits.  A stretch of even arrival gives delays that are
evenly spread between its first and its last row's; quantiles of the whole are those of this mixture
of uniform distributions, without any error but rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from godwit.planning.arrays import FloatArray

__all__ = ["Delays"]

_TOGETHER_S = 1e-9
"""Rows that arrived within this time arrived together: a steeper slope would be rounding."""


class Delays:
    """Delays of many rows: stretches of evenly spread ones.

    Attributes
    ----------
    pieces
        Shape ``(n, 3)``: count of rows, least and greatest delay in seconds.
    """

    def __init__(self, pieces: FloatArray) -> None:
        self.pieces: FloatArray = pieces[pieces[:, 0] > 0]

    @classmethod
    def of(cls, arrived: FloatArray, left_s: float) -> Delays:
        """Delays of rows that left together; `arrived` as `Arrivals.pieces` gives it."""
        count, first, last = arrived.T
        return cls(np.column_stack((count, left_s - last, left_s - first)))

    @classmethod
    def all_of(cls, several: list[Delays]) -> Delays:
        """Put together."""
        return cls(np.concatenate([np.empty((0, 3)), *(d.pieces for d in several)]))

    @property
    def rows(self) -> float:
        """How many rows."""
        return float(self.pieces[:, 0].sum())

    @property
    def mean_s(self) -> float:
        """The mean delay; NaN without rows."""
        count, least, most = self.pieces.T
        rows = count.sum()
        return float((count * (least + most)).sum() / (2 * rows)) if rows else float("nan")

    @property
    def greatest_s(self) -> float:
        """The greatest delay; NaN without rows."""
        return float(self.pieces[:, 2].max()) if len(self.pieces) else float("nan")

    def quantile_s(self, share: float) -> float:
        """Return the delay that `share` of the rows stay below; NaN without rows.

        The distribution function is piecewise linear with bends at the ends of the stretches, and
        jumps where a stretch has no width (rows that arrived together).
        """
        if not len(self.pieces):
            return float("nan")
        count, least, most = self.pieces.T
        wide = most - least > _TOGETHER_S
        slope = count[wide] / (most - least)[wide]
        at = np.concatenate((least[wide], most[wide], least[~wide]))
        bend = np.concatenate((slope, -slope, np.zeros(int((~wide).sum()))))
        jump = np.concatenate((np.zeros(2 * len(slope)), count[~wide]))
        order = np.argsort(at, kind="stable")
        at, bend, jump = at[order], bend[order], jump[order]
        grown = np.cumsum(bend)[:-1] * np.diff(at)
        after = np.cumsum(jump) + np.concatenate(([0.0], np.cumsum(grown)))
        wanted = share * count.sum()
        k = int(np.searchsorted(after, wanted - 1e-9))
        if k >= len(at):
            return float(at[-1])
        before = after[k] - jump[k]
        if k == 0 or wanted >= before:
            return float(at[k])
        rise = before - after[k - 1]
        return float(at[k - 1] + (at[k] - at[k - 1]) * (wanted - after[k - 1]) / rise)
